//! What happens to nodes while a revision proves itself, and is not its doing, or is: one power cut, machines that are replaced, a backend
//! that all need, a disk that is full, and a person who thinks better of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, ledger::Course};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auditor::Expectations,
    bed::Bed,
    load::LoadOptions,
    scenario::Scenario,
    scenarios::{
        course::held,
        product::{self, deployment_mark, four_nodes, rolling_update},
        proof::{self, reached},
    },
    traffic::Traffic,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// All serve, with a first revision that was proved in a moment. From now on these fields of the rolling update hold.
async fn serve(bed: &Bed, template: Value, more: Value) -> Result<()> {
    let mut resource = product::resource("1", &rolling_update(1, deployment_mark()));
    resource["spec"]["template"] = template;
    product::serve_resource(bed, resource, &NODES).await?;
    product::change(bed, json!({ "updateStrategy": { "rollingUpdate": more } })).await
}

fn course(status: &IngressDaemonSetStatus) -> Option<&Course> {
    status.rollout.as_ref()?.course.as_ref()
}

/// The first node that has the newest revision and is attached again, and that revision.
async fn first_attached(bed: &Bed) -> Result<(String, String)> {
    let status = product::status_says(bed, "one node has the newest revision, and is attached", product::SAID, |status| {
        let idle = status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty());
        status.revisions.update != status.revisions.current && status.nodes.updated == 1 && idle
    })
    .await?;
    let node = course(&status).and_then(|course| course.reached.keys().next().cloned()).context("no node was reached")?;
    Ok((node, status.revisions.update))
}

/// Seconds; a rollback that waited for the proof would not be over in time.
const LONG: u32 = 600;

/// A person sets the template back.
pub const BACK: Scenario = Scenario {
    name: "a_rollback_while_the_first_node_of_a_revision_proves_it_begins_at_once_and_no_request_fails",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(back(bed)),
};

async fn back(bed: &mut Bed) -> Result<()> {
    serve(bed, product::template("1"), json!({ "provenAfterSeconds": LONG })).await?;
    let first = product::api(bed).get(product::NAME).await?.status.context("no status")?.revisions.current;
    let from = bed.recorder.history().await?.len();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let watch = bed.haproxy.watch().await?;
    product::roll_to(bed, "2").await?;
    let (node, update) = first_attached(bed).await?;
    product::status_says(bed, "the others wait for the proof", product::SAID, |status| held(status, "Proving").len() == 3).await?;
    product::roll_to(bed, "1").await?;
    let changed = Instant::now();
    product::status_says(bed, "the way back begins", product::SAID, |status| {
        let mut grants = status.rollout.iter().flat_map(|ledger| &ledger.grants);
        grants.any(|(granted, grant)| *granted == node && grant.revision == first)
    })
    .await?;
    let began = changed.elapsed();
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    let (began, over) = (began.as_secs_f32(), changed.elapsed().as_secs_f32());
    bed.say(&format!("the way back began after {began:.1} s and was complete after {over:.1} s; the proof takes {LONG} s"));
    let reached = reached(bed, from, &update).await?;
    ensure!(reached.len() == 1, "the revision reached {reached:?}");
    proof::was_never_current(bed, from, &update).await?;
    watch.at_least(3).await?;
    traffic.all_served(bed).await
}
