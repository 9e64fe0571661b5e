//! The library `virtual-kubelet` against the real API server: what the original promises, what the original does wrong, and
//! what goes wrong around it. Its code runs in this process.
//! The API of a node is in `kubelet_api/`, fleets are in `fleet/`.

mod nodes;
mod outages;
mod pods;
mod provider;
mod session;

use crate::{
    auditor::Expectations,
    bed::{Options, control_plane::Timing},
    scenario::Scenario,
};

/// The inventory of the original's tests, and a test for each of its known faults.
pub const PROMISES: Scenario = Scenario {
    name: "virtual_kubelet_keeps_what_the_original_promises",
    options: Options::default,
    expected: || Expectations::budget(0),
    body: |bed| {
        Box::pin(async move {
            Box::pin(nodes::run(bed)).await?;
            Box::pin(pods::run(bed)).await
        })
    },
};

/// 409s, gaps of the watch, compacted history, an API server that stands still.
pub const OUTAGES: Scenario = Scenario {
    name: "virtual_kubelet_outlives_conflicts_watch_gaps_and_api_outages",
    options: || Options {
        // As Kubernetes has it: an API server that stands still for 20 s must cost no node.
        timing: Timing { node_grace_seconds: 50, ..Timing::default() },
        ..Options::default()
    },
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(outages::run(bed)),
};
