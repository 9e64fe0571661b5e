//! Detachers that do not do their work, under each policy for that.
//!
//! A table of resources, each with a node and a detacher of its own, all in one bed and at the same time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSetStatus, status::NodePhase};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec},
    cluster::{
        detacher::{DETACHED_KEY, Detacher, TIMESTAMP_KEY, Variant},
        product::{self, GRACE, has_condition},
        workload,
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

const MINUTE: Duration = Duration::from_mins(1);
/// Seconds that a detacher may take.
const TIMEOUT: u64 = 5;
/// The label by which a row chooses its node.
const ROW: &str = "example.com/row";
/// Within the timeout, and beyond it.
const SLOW: Variant = Variant::Slow(Duration::from_secs(1));
const TOO_SLOW: Variant = Variant::Slow(Duration::from_secs(TIMEOUT + 15));

/// What is expected of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It ends.
    Ends,
    /// It halts; it goes on by itself as soon as the detacher answers.
    Halts,
    /// It passes over the detacher when its time is up.
    Proceeds,
    /// The node is attached again, its pods untouched, and tried again with the next version.
    GivesUp,
}

/// A resource on a node of its own.
struct Row {
    name: &'static str,
    policy: &'static str,
    variant: Variant,
    outcome: Outcome,
}

const fn row(name: &'static str, variant: Variant, policy: &'static str, outcome: Outcome) -> Row {
    Row { name, policy, variant, outcome }
}

const ROWS: &[Row] = &[
    row("silent-halt", Variant::Silent, "Halt", Outcome::Halts),
    row("silent-proceed", Variant::Silent, "Proceed", Outcome::Proceeds),
    row("silent-abort", Variant::Silent, "Abort", Outcome::GivesUp),
    row("stale-halt", Variant::StaleTimestamp, "Halt", Outcome::Halts),
    row("stale-proceed", Variant::StaleTimestamp, "Proceed", Outcome::Proceeds),
    row("stale-abort", Variant::StaleTimestamp, "Abort", Outcome::GivesUp),
    row("too-slow-halt", TOO_SLOW, "Halt", Outcome::Halts),
    row("too-slow-proceed", TOO_SLOW, "Proceed", Outcome::Proceeds),
    row("too-slow-abort", TOO_SLOW, "Abort", Outcome::GivesUp),
    row("slow-abort", SLOW, "Abort", Outcome::Ends),
    row("false-halt", Variant::FalseSuccess, "Halt", Outcome::Ends),
    row("false-proceed", Variant::FalseSuccess, "Proceed", Outcome::Ends),
    row("false-abort", Variant::FalseSuccess, "Abort", Outcome::Ends),
];

/// Every variant with every policy.
pub const FAULTY_DETACHERS: Scenario = Scenario {
    name: "silent_slow_stale_or_lying_detachers_are_handled_by_policy",
    options: || {
        let node = |(index, row): (usize, &Row)| NodeSpec::new(&format!("n{}", index + 1)).label(ROW, row.name);
        Options { nodes: ROWS.iter().enumerate().map(node).collect(), ..Options::default() }.with_infra()
    },
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(faulty_detachers(bed)),
};

async fn faulty_detachers(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let mut objects = vec![workload::config_map("default")];
    objects.extend(ROWS.iter().map(Row::resource));
    bed.apply(&objects).await?;
    let bed = &*bed;
    try_join_all(ROWS.iter().map(|row| product::is_complete_named(bed, row.name, 1, product::ROLLED_OUT))).await?;
    bed.say("all serve");
    try_join_all((1..).zip(ROWS).map(|(index, row)| row.run(bed, format!("n{index}")))).await?;
    lied_to_under_load(bed).await
}

/// That a detacher lies nobody can see in the API. With both marks the health check has taken the node out all the same
/// before its pods change: no request is lost.
async fn lied_to_under_load(bed: &Bed) -> Result<()> {
    let rows = || (1..).zip(ROWS).filter(|(_, row)| row.variant == Variant::FalseSuccess);
    for (_, row) in rows() {
        let mark = json!({ "annotateDeploymentToDetach": { "gracePeriodSeconds": GRACE } });
        product::change_named(bed, row.name, json!({ "updateStrategy": { "rollingUpdate": mark } })).await?;
    }
    let nodes: Vec<_> = (1..=ROWS.len()).map(|index| format!("n{index}")).collect();
    let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
    bed.haproxy.serves(MINUTE, &nodes).await?;
    let _liars: Vec<_> =
        rows().map(|(index, row)| Detacher::start_on(&bed.client, &bed.haproxy, row.variant, &format!("n{index}"))).collect();
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    try_join_all(rows().map(|(_, row)| row.rolls_out(bed, "4"))).await?;
    bed.say("lied to, with both marks");
    traffic.all_served(bed).await
}

impl Row {
    fn resource(&self) -> Value {
        let mark = json!({
            "annotateNodeToDetach": { "key": DETACHED_KEY, "value": "true", "gracePeriodSeconds": 0 },
            "waitForDetachmentByAnnotatedTimestamp": { "key": TIMESTAMP_KEY, "format": "RFC3339", "gracePeriodSeconds": product::JUDGED_GRACE },
            "detachTimeoutSeconds": TIMEOUT,
            "onDetachTimeout": self.policy,
        });
        let mut resource = product::resource("1", &product::rolling_update(1, mark));
        resource["metadata"]["name"] = self.name.into();
        resource["spec"]["nodeSelector"] = json!({ ROW: self.name });
        resource["spec"]["podsPerNode"] = 1.into();
        resource
    }

    async fn run(&self, bed: &Bed, node: String) -> Result<()> {
        let started = Instant::now();
        let detacher = Detacher::start_on(&bed.client, &bed.haproxy, self.variant, &node);
        self.roll(bed, "2").await?;
        match self.outcome {
            Outcome::Ends | Outcome::Proceeds => {
                self.ends(bed).await?;
                let timeout = Duration::from_secs(TIMEOUT);
                ensure!(self.outcome == Outcome::Ends || started.elapsed() >= timeout, "{} did not wait for the detacher", self.name);
            }
            Outcome::Halts => self.halts(bed).await?,
            Outcome::GivesUp => self.gives_up(bed).await?,
        }
        bed.say(&format!("{:?}, {}: {:?}, {:.1} s", self.variant, self.policy, self.outcome, started.elapsed().as_secs_f32()));
        drop(detacher);
        // What a liar or a slow one left behind the good one finds, as a detacher does that was restarted.
        let _repaired = Detacher::start_on(&bed.client, &bed.haproxy, Variant::Good, &node);
        match self.outcome {
            Outcome::Halts => self.ends(bed).await?,
            Outcome::Ends | Outcome::Proceeds | Outcome::GivesUp => {}
        }
        self.rolls_out(bed, "3").await?;
        // The detacher sees a little later than the status that the node is attached, and must not end before.
        eventually(MINUTE, &format!("{node} gets requests again"), async || {
            let counters = bed.haproxy.counters().await?;
            let server = counters.servers.get(&node).context("no such server")?;
            ensure!(server.takes_traffic(), "{server:?}");
            Ok(())
        })
        .await
    }

    async fn roll(&self, bed: &Bed, version: &str) -> Result<()> {
        product::change_named(bed, self.name, json!({ "template": product::template(version) })).await
    }

    async fn rolls_out(&self, bed: &Bed, version: &str) -> Result<()> {
        self.roll(bed, version).await?;
        self.ends(bed).await
    }

    async fn ends(&self, bed: &Bed) -> Result<()> {
        product::is_complete_named(bed, self.name, 1, product::ROLLED_OUT).await
    }

    async fn halts(&self, bed: &Bed) -> Result<()> {
        let halted = |status: &IngressDaemonSetStatus| {
            has_condition(status, "Stalled", "True", "DetachTimeout") && status.nodes.detached == 1 && status.nodes.updated == 0
        };
        product::status_of_says(bed, self.name, "it halts", product::SAID, halted).await?;
        if self.variant == TOO_SLOW {
            return self.ends(bed).await;
        }
        self.stays(bed, "it stays halted", halted).await
    }

    async fn gives_up(&self, bed: &Bed) -> Result<()> {
        let given_up = |status: &IngressDaemonSetStatus| {
            let blocked = status.node_states.iter().any(|state| state.phase == NodePhase::Blocked && state.reason == "DetachAborted");
            blocked && status.nodes.detached == 0 && status.nodes.available == 1 && status.nodes.updated == 0
        };
        product::status_of_says(bed, self.name, "it gives up", product::SAID, given_up).await?;
        self.stays(bed, "it detaches and aborts but once", given_up).await
    }

    async fn stays(&self, bed: &Bed, what: &str, test: impl Fn(&IngressDaemonSetStatus) -> bool) -> Result<()> {
        product::status_of_stays(bed, self.name, what, Duration::from_secs(TIMEOUT + 1), test).await
    }
}
