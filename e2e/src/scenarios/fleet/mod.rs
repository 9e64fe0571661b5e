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

/// What goes wrong with simulated pods and nodes, and what follows from a seed.
pub const FAULTS: Scenario = Scenario {
    name: "simulated_faults_look_like_those_of_a_kubelet_and_a_seed_repeats_a_history",
    options: || Options { timing: Timing { node_grace_seconds: 12, ..Timing::default() }, ..Options::default() },
    expected: Expectations::default,
    body: |bed| Box::pin(faults::run(bed)),
};

/// What kubelets that are none get wrong.
pub const HOLES: Scenario = Scenario {
    name: "a_fleet_loses_no_deletion_and_no_lease_and_repairs_what_others_change",
    options: Options::default,
    expected: Expectations::default,
    body: |bed| Box::pin(holes::run(bed)),
};

/// What `kubectl` is told of simulated pods; two processes with one fleet.
pub const KUBELET: Scenario = Scenario {
    name: "kubectl_reads_logs_of_simulated_pods_also_from_the_process_that_takes_a_fleet_over",
    options: Options::default,
    expected: Expectations::default,
    body: |bed| Box::pin(kubelet::run(bed)),
};

/// An API server that stands still under a thousand nodes.
pub const OUTAGES: Scenario = Scenario {
    name: "a_thousand_simulated_nodes_outlive_an_api_server_that_stands_still",
    options: || Options {
        // As Kubernetes has it: an API server that stands still for 20 s must cost no node.
        timing: Timing { node_grace_seconds: 50, ..Timing::default() },
        ..Options::default()
    },
    expected: Expectations::default,
    body: |bed| Box::pin(outages::run(bed)),
};
