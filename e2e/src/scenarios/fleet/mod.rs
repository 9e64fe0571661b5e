//! Fleets of simulated nodes against the real API server. Their code runs in this process.
//! Nodes with processes are in `node_library/`; how fast a fleet is, is in `bench/fleet/`.
//! The settings of a fleet are in the scenario. What it wrote is read from the API server.

mod faults;
mod holes;
pub(super) mod in_place;
mod kubelet;
mod outages;
mod session;

use crate::{
    auditor::Expectations,
    bed::{Options, control_plane::Timing},
    scenario::Scenario,
};

/// Faults of simulated pods and nodes look like those of a kubelet, and a seed repeats their history.
pub const FAULTS: Scenario = Scenario {
    name: "simulated_faults_look_real_and_a_seed_repeats_them",
    options: || Options { timing: Timing { node_grace_seconds: 12, ..Timing::default() }, ..Options::default() },
    expected: Expectations::default,
    body: |bed| Box::pin(faults::run(bed)),
};

/// A fleet misses no deletion, renews each lease and sets right what others change in its objects.
pub const HOLES: Scenario = Scenario {
    name: "a_fleet_keeps_deletions_and_leases_and_repairs_foreign_changes",
    options: Options::default,
    expected: Expectations::default,
    body: |bed| Box::pin(holes::run(bed)),
};

/// `kubectl logs` of simulated pods, also from the second process once it has taken the fleet over.
pub const KUBELET: Scenario = Scenario {
    name: "kubectl_reads_logs_of_simulated_pods_after_a_hand_over",
    options: Options::default,
    expected: Expectations::default,
    body: |bed| Box::pin(kubelet::run(bed)),
};

/// An API server that stands still under a thousand nodes.
pub const OUTAGES: Scenario = Scenario {
    name: "a_thousand_simulated_nodes_outlive_a_stopped_api_server",
    options: || Options {
        // As Kubernetes has it: an API server that stands still for 20 s must cost no node.
        timing: Timing { node_grace_seconds: 50, ..Timing::default() },
        ..Options::default()
    },
    expected: Expectations::default,
    body: |bed| Box::pin(outages::run(bed)),
};
