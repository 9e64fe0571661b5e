//! The main job: rolling updates that lose no request.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::Bed,
    detacher::{Detacher, TIMESTAMP_KEY, Variant},
    load::LoadOptions,
    scenario::Scenario,
    scenarios::product::{self, GRACE, both_marks, deployment_mark, four_nodes, node_mark, rolling_update},
    traffic::Traffic,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Requests in each rollout.
const REQUESTS: u64 = 300_000;

/// Each mark set in turn, over one resource.
pub const THREE_ROLLOUTS: Scenario = Scenario {
    name: "three_rollouts_in_a_row_lose_no_request",
    options: four_nodes,
    expected: || {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let expected = Expectations::budget(1).claiming(seconds(GRACE)).detaching(seconds(1));
        Expectations { timestamp_key: Some(TIMESTAMP_KEY.to_owned()), ..expected }
    },
    body: |bed| Box::pin(three_rollouts(bed)),
};

async fn three_rollouts(bed: &mut Bed) -> Result<()> {
    product::serve(bed, rolling_update(1, deployment_mark()), &NODES).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let marks = [("Deployment mark", deployment_mark()), ("Node mark and timestamp", node_mark()), ("both marks", both_marks())];
    for (version, (what, marks)) in (2..).zip(marks) {
        product::change(bed, json!({ "updateStrategy": rolling_update(1, marks) })).await?;
        let traffic = Traffic::start(&bed.haproxy, &LoadOptions::full()).await?;
        product::roll_to(bed, &version.to_string()).await?;
        product::is_complete(bed, NODES.len(), Duration::from_mins(4)).await?;
        traffic.reaches(REQUESTS, Duration::from_mins(4)).await?;
        let outcome = traffic.stop().await?;
        bed.say(&format!("{what}: {} requests, {} failed", outcome.clients.requests, outcome.failed()));
        outcome.expect_all_served(REQUESTS)?;
    }
    Ok(())
}
