//! Rights that the operator lacks: each rule of its `ClusterRole` is taken away in turn, and an operator is started without it. What
//! serves goes on, the operator says what is missing, what can be done without the right is done, and the rest as soon as it is there.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    auditor::{Expectations, Kind},
    bed::{Bed, Options, operator},
    cluster::{
        operator_process::{self, OperatorProcess},
        product,
    },
    eventually::eventually,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

/// Until an operator that was started has tried what needs a right: seconds, alone.
const TRIED: Duration = Duration::from_mins(1);
/// How long a rollout is watched that must not end. With its rights it takes a second or two.
const WAITING: Duration = Duration::from_secs(5);

/// What comes of a change of the template while a right is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rollout {
    /// Nothing was seen: no node is touched, and the operator is not ready.
    NotReady,
    /// It waits until the right is there.
    Waits,
    /// It ends.
    Ends,
}
use Rollout::{Ends, NotReady, Waits};

/// Group and resource that a rule is about, and what comes of a rollout without it.
type Case = (&'static str, Rollout);

/// Without it a gate of pods sets no condition.
const PODS_STATUS: &str = "/pods/status";

/// What the operator reads.
const READ: [Case; 13] = [
    ("ingressdaemonsets.mumoshu.github.io/ingressdaemonsets", NotReady),
    ("ingressdaemonsets.mumoshu.github.io/nodereadinessgates", Waits),
    ("ingressdaemonsets.mumoshu.github.io/podreadinessgates", Waits),
    ("discovery.k8s.io/endpointslices", Waits),
    ("/nodes", NotReady),
    ("admissionregistration.k8s.io/mutatingadmissionpolicies", Ends),
    ("admissionregistration.k8s.io/mutatingwebhookconfigurations", Ends),
    ("storage.k8s.io/csinodes", Ends),
    ("apps/deployments", NotReady),
    ("apps/replicasets", NotReady),
    ("apps/controllerrevisions", NotReady),
    ("/pods", NotReady),
    ("/services", NotReady),
];

/// What it reads and writes for health checkers, and what it only writes.
const WRITTEN: [Case; 9] = [
    ("apps/daemonsets", NotReady),
    ("ingressdaemonsets.mumoshu.github.io/ingressdaemonsets/status", Waits),
    ("ingressdaemonsets.mumoshu.github.io/nodereadinessgates/status", Ends),
    ("ingressdaemonsets.mumoshu.github.io/podreadinessgates/status", Ends),
    (PODS_STATUS, Waits),
    ("/serviceaccounts", Ends),
    ("/secrets", Ends),
    ("rbac.authorization.k8s.io/rolebindings", Ends),
    ("events.k8s.io/events", Ends),
];

/// Rules that other scenarios take away, or that need a cluster in another state.
const ELSEWHERE: [&str; 3] = [
    // `ownership.rs`
    "ingressdaemonsets.mumoshu.github.io/ingressdaemonsets/finalizers",
    // Written where a resource comes or goes whose health checkers may read Nodes; what was refused is told as for Roles.
    "rbac.authorization.k8s.io/clusterrolebindings",
    // Asked where a resource names an account for its health checkers: without an answer the account counts as fit
    // (`operator/tests/wire/account.rs`).
    "authorization.k8s.io/subjectaccessreviews",
];

/// Rights to read are taken away one after the other: pods serve on, and the operator reports the missing right.
pub const TO_READ: Scenario = Scenario {
    name: "missing_rights_to_read_are_reported_and_pods_serve_on",
    options: || Options { takes_rights_away: true, ..Options::with_nodes(2).with_infra() },
    expected: || Expectations::budget(1).watches_hang(),
    body: |bed| Box::pin(without_each(bed, &READ)),
};

/// Rights to write are taken away one after the other: what needs it waits, and the operator reports the missing right.
pub const TO_WRITE: Scenario = Scenario {
    name: "missing_rights_to_write_are_reported_and_stop_nothing_else",
    options: || Options { takes_rights_away: true, ..Options::with_nodes(2).with_infra() },
    expected: || Expectations::budget(1).watches_hang(),
    body: |bed| Box::pin(without_each(bed, &WRITTEN)),
};

async fn without_each(bed: &mut Bed, cases: &[Case]) -> Result<()> {
    let update = product::rolling_update(1, product::deployment_mark());
    product::serve(bed, update, &["n1", "n2"]).await?;
    let role: Value = serde_json::from_str(&bed.kubectl(&["get", "clusterrole", operator::NAME, "-o", "json"]).await?)?;
    let rules = role["rules"].as_array().context("a role has rules")?;
    let named: BTreeSet<_> = READ.iter().chain(&WRITTEN).map(|(right, _)| *right).chain(ELSEWHERE).collect();
    for rule in rules {
        ensure!(keys(rule).any(|right| named.contains(right.as_str())), "no case takes this rule away: {rule}");
    }
    operator_process::stop_pods(bed).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    for (number, (right, rollout)) in cases.iter().enumerate() {
        without(bed, number, right, *rollout, rules).await.with_context(|| format!("without {right}"))?;
    }
    traffic.all_served(bed).await
}

async fn without(bed: &Bed, number: usize, right: &str, rollout: Rollout, rules: &[Value]) -> Result<()> {
    let left: Vec<_> = rules.iter().filter(|rule| !keys(rule).any(|key| key == right)).collect();
    ensure!(left.len() < rules.len(), "no rule is about it");
    grant(bed, &json!(left)).await?;
    let mut operator = OperatorProcess::start(bed, &format!("without-{number}")).await?;
    // Each writes its status anew, and the pods that come are to get a condition.
    bed.apply(&gates(number)).await?;
    roll_to(bed, &number.to_string()).await?;
    let (group, resource) = right.split_once('/').context("group/resource")?;
    // As `kubectl` names it: `daemonsets.apps`, `pods/status`.
    let (kind, part) = resource.split_at(resource.find('/').unwrap_or(resource.len()));
    let named = if group.is_empty() { resource.to_owned() } else { format!("{kind}.{group}{part}") };
    let counted = format!("resource=\"{resource}\",group=\"{group}\"");
    let said = eventually(TRIED, "metrics and /readyz say what is missing", async || {
        let metrics = operator.get("/metrics").await?;
        let is_told = metrics.lines().any(|line| line.starts_with("ids_forbidden_requests_total") && line.contains(&counted));
        ensure!(is_told, "nothing was counted for {counted}");
        let ready = operator.get("/readyz").await?;
        ensure!(ready.contains(&named) && ready.contains("install the ClusterRole"), "{ready}");
        ensure!(ready.contains("503 Service Unavailable") == (rollout == NotReady), "{ready}");
        Ok(ready)
    })
    .await?;
    bed.say(&format!("{right}: {}", said.lines().skip_while(|line| !line.is_empty()).skip(1).collect::<Vec<_>>().join(" | ")));
    if rollout == Ends {
        product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    } else {
        product::stays(
            bed,
            (Kind::IngressDaemonSet, &product::api(bed)),
            "the rollout does not end without the right",
            WAITING,
            |resource| {
                ensure!(!product::has_ended(resource, 2), "it ended");
                Ok(())
            },
        )
        .await?;
    }
    if right.ends_with("readinessgates") {
        product::status_says(bed, "that gates cannot be listed", TRIED, |status| {
            product::has_condition(status, "Valid", "False", "GatesUnreadable")
        })
        .await?;
    }
    if right == PODS_STATUS {
        eventually(TRIED, "the gate says that somebody must act", async || {
            bed.kstatus_says("podreadinessgate", "endpoint", "Failed").await
        })
        .await?;
    }
    operator.check()?;
    grant(bed, &json!(rules)).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await.context("with the right again")?;
    operator.stop().await
}

/// `group/resource` of each resource of a rule.
fn keys(rule: &Value) -> impl Iterator<Item = String> {
    let texts = |field: &str| rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
    texts("apiGroups").flat_map(move |group| texts("resources").map(move |resource| format!("{group}/{resource}")))
}

async fn grant(bed: &Bed, rules: &Value) -> Result<()> {
    let patch = json!({ "rules": rules }).to_string();
    bed.kubectl(&["patch", "clusterrole", operator::NAME, "--type=merge", "-p", &patch]).await.map(drop)
}

/// The condition that pods wait for.
const ENDPOINT: &str = "example.com/endpoint";

/// Another revision, whose pods have a readiness gate.
async fn roll_to(bed: &Bed, version: &str) -> Result<()> {
    let mut template = product::template(version);
    template["spec"]["readinessGates"] = json!([{ "conditionType": ENDPOINT }]);
    product::change(bed, json!({ "template": template })).await
}

/// A gate of nodes that asks for a CSI driver and taints none, and one of pods that follows a Service; others than those of another number.
fn gates(number: usize) -> [Value; 2] {
    let api = "ingressdaemonsets.mumoshu.github.io/v1alpha1";
    let driver = json!({ "name": "driver", "csiDriver": { "name": format!("csi-{number}.example.com") } });
    let another = json!({ "key": format!("example.com/without-{number}"), "operator": "DoesNotExist" });
    [
        json!({
            "apiVersion": api, "kind": "NodeReadinessGate", "metadata": { "name": "csi" },
            "spec": { "allNodes": true, "taint": { "key": "readiness.k8s.io/csi" }, "dryRun": true, "requirements": [driver] },
        }),
        json!({
            "apiVersion": api, "kind": "PodReadinessGate", "metadata": { "name": "endpoint", "namespace": "default" },
            "spec": {
                "conditionType": ENDPOINT, "source": { "service": { "name": "kubernetes" } },
                "selector": { "matchLabels": { "app": "nginx" }, "matchExpressions": [another] },
            },
        }),
    ]
}
