//! Another version of the operator takes over in the middle of a rollout: an upgrade, and the way back from it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, ledger::Ledger, status::NodePhase};
use serde_json::Value;

use crate::{
    auditor::{Expectations, Property},
    bed::Bed,
    cluster::{
        effects::Effects,
        former_operator,
        operator_process::{self, OperatorProcess, Program},
        product::{self, deployment_mark, four_nodes, has_condition, rolling_update},
    },
    eventually::eventually,
    host::images,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::outages::roll_slowly_to,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Nodes that serve at every moment: all but the budget of one.
const SERVE: usize = 3;
/// Seconds for which a revision must serve; today's operator waits for them, and the former one does not know the field.
const PROVEN: u32 = 5;

/// The CRDs are today's all the time, as where an upgrade of the operator is taken back.
pub const FORTH_AND_BACK: Scenario = Scenario {
    name: "an_upgrade_and_downgrade_during_a_rollout_break_no_promise",
    options: four_nodes,
    // That a revision has to prove itself is promised by today's operator alone; where it is at work, it is held to that as well.
    expected: || expected().except(Property::UnprovedBounded).except(Property::ProofFirst),
    body: |bed| Box::pin(forth_and_back(bed)),
};

fn expected() -> Expectations {
    Expectations::budget(1)
}

async fn forth_and_back(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    operator_process::stop_pods(bed).await?;
    // By default it names an image that the bed does not have: today's default names no registry that exists.
    let program = Program::at(former_operator::program()?).with("HEALTH_CHECKER_IMAGE", images::HEALTH_CHECKER);
    let mut former = OperatorProcess::start_program(bed, "former", program).await?;
    let mut strategy = rolling_update(1, deployment_mark());
    strategy["rollingUpdate"]["provenAfterSeconds"] = PROVEN.into();
    strategy["rollingUpdate"]["autoRollback"] = true.into();
    product::serve_installed(bed, product::resource("1", &strategy), &NODES).await?;
    let (from, traffic, watch) = (seen(bed).await?, begin_load(bed).await?, bed.haproxy.watch().await?);

    roll_slowly_to(bed, "2").await?;
    half_way(bed, "the former operator").await?;
    // Nobody asks it to end, so that its lease has to run out: the pods change meanwhile.
    former.kill().await?;
    let since = seen(bed).await?;
    let mut today = OperatorProcess::start(bed, "today").await?;
    ends_well(bed, from, "today's operator").await?;

    let from = seen(bed).await?;
    roll_slowly_to(bed, "3").await?;
    let before = half_way(bed, "today's operator").await?;
    today.stop().await?;
    keeps_all_promises(bed, since).await?;
    former.run()?;
    drops(bed, &before, "course.proved").await?;
    ends_well(bed, from, "the former operator").await?;
    former.stop().await?;
    let since = seen(bed).await?;
    today.run()?;
    is_taken_over(bed).await?;

    // Today's operator goes on with a ledger that has lost which nodes keep a place until the revision is proved.
    let from = seen(bed).await?;
    roll_slowly_to(bed, "4").await?;
    let before = proves(bed).await?;
    today.stop().await?;
    keeps_all_promises(bed, since).await?;
    former.run()?;
    drops(bed, &before, "course.reached").await?;
    former.stop().await?;
    let since = seen(bed).await?;
    today.run()?;
    ends_well(bed, from, "today's operator again").await?;
    is_taken_over(bed).await?;
    keeps_all_promises(bed, since).await?;
    today.check()?;

    watch.at_least(SERVE).await?;
    traffic.all_served(bed).await
}

async fn begin_load(bed: &Bed) -> Result<Traffic> {
    Traffic::start(&bed.haproxy, &LoadOptions::default()).await
}

async fn seen(bed: &Bed) -> Result<usize> {
    Ok(bed.recorder.history().await?.len())
}

/// One node is done, and the pods of another change.
async fn half_way(bed: &Bed, who: &str) -> Result<IngressDaemonSetStatus> {
    let status = product::status_says(bed, "one node is done, and another under way", product::SAID, |status| {
        let done = |ledger: &Ledger| {
            ledger.rollout_state.as_ref().is_some_and(|rollout| rollout.revision == status.revisions.update && rollout.finished == 1)
        };
        status.rollout.as_ref().is_some_and(done) && status.node_states.iter().any(|state| state.phase == NodePhase::Updating)
    })
    .await?;
    let under_way: Vec<_> = status.rollout.iter().flat_map(|ledger| ledger.grants.keys()).collect();
    bed.say(&format!("{who} has done one node, {under_way:?} is under way"));
    Ok(status)
}

/// The first node is done, and none is begun before the revision is proved.
async fn proves(bed: &Bed) -> Result<IngressDaemonSetStatus> {
    let proves = |status: &IngressDaemonSetStatus| {
        let waiting = status.node_states.iter().filter(|state| state.reason == "Proving").count();
        waiting == NODES.len() - 1 && status.rollout.as_ref().is_some_and(|ledger| ledger.grants.is_empty())
    };
    let status = product::status_says(bed, "the first node proves the revision", product::SAID, proves).await?;
    bed.say("today's operator has done one node, which proves the revision");
    Ok(status)
}

/// The rollout that began after `from` observations comes to its end; each node was changed once, and nothing was condemned.
async fn ends_well(bed: &Bed, from: usize, who: &str) -> Result<()> {
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    Effects::since(&bed.recorder.history().await?, from)?.changed_once(&NODES)?;
    product::nothing_failed(bed, from).await?;
    bed.say(&format!("{who} has finished the rollout"));
    Ok(())
}

/// The auditor finds nothing since then, when today's operator began, in what today's operator promises.
async fn keeps_all_promises(bed: &Bed, since: usize) -> Result<()> {
    let verdict = bed.recorder.judge_since(since, &expected()).await?;
    ensure!(verdict.violations.is_empty(), "today's operator alone: {:?}", verdict.violations);
    Ok(())
}

/// Today's operator says that all is complete, in words that the former one does not have.
async fn is_taken_over(bed: &Bed) -> Result<()> {
    product::status_says(bed, "today's operator calls the rollout complete", product::SAID, |status| {
        let proved = status.rollout.as_ref().and_then(|ledger| ledger.rollout_state.as_ref()).is_some_and(|rollout| rollout.proved);
        proved && has_condition(status, "Progressing", "False", "Complete")
    })
    .await?;
    product::is_complete(bed, NODES.len(), product::SAID).await
}

/// The former operator writes the ledger without what it does not know, this field among others.
async fn drops(bed: &Bed, before: &IngressDaemonSetStatus, unknown: &str) -> Result<()> {
    let before = fields(before)?;
    ensure!(before.contains(unknown), "the ledger has no {unknown}: {before:?}");
    let after = eventually(product::SAID, "the former operator has written the ledger", async || {
        let after = fields(&product::api(bed).get(product::NAME).await?.status.context("no status")?)?;
        ensure!(!after.contains(unknown), "{after:?}");
        Ok(after)
    })
    .await?;
    let dropped: Vec<_> = before.difference(&after).collect();
    bed.say(&format!("of the ledger the former operator has dropped {dropped:?}"));
    Ok(())
}

/// Fields of the ledger, those of grants without their nodes.
fn fields(status: &IngressDaemonSetStatus) -> Result<BTreeSet<String>> {
    let ledger = serde_json::to_value(status.rollout.as_ref().context("no ledger")?)?;
    let keys = |of: &str, object: &Value| -> Vec<String> {
        object.as_object().into_iter().flat_map(|fields| fields.keys().map(|key| format!("{of}{key}"))).collect()
    };
    let grants = ledger["grants"].as_object().into_iter().flatten().flat_map(|(_, grant)| keys("grant.", grant));
    Ok(keys("", &ledger).into_iter().chain(keys("course.", &ledger["course"])).chain(grants).collect())
}
