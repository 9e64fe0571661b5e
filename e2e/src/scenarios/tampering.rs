//! What people do to the operator's objects by hand, in every phase of a rollout.
//!
//! A table of lanes, all in one bed and at the same time: a resource with nodes of its own, and the actions that are tried
//! on it, each in every phase. For each row a new version is rolled out; as soon as a node of the lane shows the phase, the
//! action hits that node. Then the rollout ends, or status says why it does not, and it ends when the obstacle is taken away.

use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crds::{
    IngressDaemonSet, IngressDaemonSetStatus,
    holders::{Entry, EntryPhase},
    names,
    token::{Phase as TokenPhase, Token},
};
use futures::future::try_join_all;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

use crate::{
    auditor::{Expectations, Kind, Observation},
    bed::{Bed, Options, node::NodeSpec},
    cluster::{
        detacher::{DETACHED_KEY, Detacher, TIMESTAMP_KEY, Variant},
        operator_process::{self, OperatorProcess},
        product, workload,
    },
    eventually::eventually,
    faults::{Fault, FaultProxy},
    scenario::Scenario,
};

/// How long a phase, and the end of a rollout over two nodes, may take. It takes 10 s, beside five other lanes.
const DEADLINE: Duration = Duration::from_mins(2);
/// So often a row is tried, each time with a new version, until its action comes in its phase.
const TRIES: u32 = 4;
/// How long the operator's writes take: the least time between two phases.
const PHASE_LASTS: Duration = Duration::from_millis(250);
/// The label by which a lane chooses its nodes.
const LANE: &str = "example.com/lane";
/// A resource that does not exist, as it would appear in marks.
const STRANGER: &str = "ffffffff";
/// The keys of the action [`Action::OtherKeys`].
const OTHER_KEYS: [&str; 2] = ["example.com/out", "alpha.service-controller.kubernetes.io/exclude-balancer"];

/// Where a node is in its update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is under way; the rollout begins right after the action.
    Idle,
    /// The ledger has a grant; the claim follows.
    Granted,
    /// The token is claimed, so that the health check fails; the Node's entry follows.
    Claimed,
    /// The Node's entry says detached; the grace runs.
    Detached,
    /// The pods change.
    Updating,
    /// The token is closed again; the soak runs.
    Soaking,
}

const PHASES: &[Phase] = &[Phase::Idle, Phase::Granted, Phase::Claimed, Phase::Detached, Phase::Updating, Phase::Soaking];
/// Only what touches the ledger, tokens or entries can tell grant, claim and detachment apart.
const FEWER_PHASES: &[Phase] = &[Phase::Idle, Phase::Detached, Phase::Updating, Phase::Soaking];

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    DeleteDeployment,
    DeleteDeploymentAndOrphan,
    EditTemplate,
    Scale(u32),
    RolloutUndo,
    RolloutPause,
    ReRegisterNode,
    DegradeMode,
    NodeMarkOnly,
    OtherKeys,
    Budget(u32),
    RemoveToken,
    RemoveHolders,
    RemoveNodeKey,
    RemoveDeploymentAnnotation,
    RemoveMemberLabel,
    ForeignToken,
    GreaterToken,
    ForeignHolder,
    BreakHolders,
    TakeOutByHand,
    WipeRollout,
    WipeStatus,
}

impl Action {
    /// Reasons of a node that status may give for not going on, until the person undoes what he did.
    fn excuses(self) -> &'static [&'static str] {
        match self {
            // Whose mark it is that stands there nobody can tell once the holders, or the token, say otherwise: it stays.
            Self::ForeignHolder | Self::TakeOutByHand | Self::RemoveHolders | Self::GreaterToken => &["TakenOut"],
            Self::BreakHolders => &["HoldersUnreadable"],
            _ => &[],
        }
    }

    /// There is something that it can change in this phase.
    fn has_effect(self, phase: Phase) -> bool {
        match self {
            // The Deployment keeps no former ReplicaSets (revisionHistoryLimit 0), so that there is none to go back to but in the middle.
            Self::RolloutUndo => phase == Phase::Updating,
            // The keys stand only while the node is out.
            Self::RemoveNodeKey => matches!(phase, Phase::Detached | Phase::Updating),
            Self::RemoveDeploymentAnnotation => matches!(phase, Phase::Claimed | Phase::Detached | Phase::Updating),
            _ => true,
        }
    }

    /// It changes a node or its Deployment, so that what happens there is not the operator's doing.
    fn is_by_hand(self) -> bool {
        !self.is_setting() && !matches!(self, Self::WipeRollout | Self::WipeStatus)
    }

    /// It is one write to a Deployment: what follows is the operator's repair, which is judged. After [`Action::RolloutUndo`] the
    /// Deployment controller goes on to replace pods.
    fn is_repaired(self) -> bool {
        matches!(self, Self::DeleteDeployment | Self::DeleteDeploymentAndOrphan | Self::EditTemplate | Self::Scale(_))
    }

    /// It changes the resource's own settings, which are put back before the next row.
    fn is_setting(self) -> bool {
        matches!(self, Self::DegradeMode | Self::NodeMarkOnly | Self::OtherKeys | Self::Budget(_))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A resource with nodes of its own.
struct Lane {
    name: &'static str,
    nodes: &'static [&'static str],
    budget: u32,
    actions: &'static [Action],
    phases: &'static [Phase],
}

/// Deployments, by people who break the node that they touch.
const DEPLOYMENTS: &[Lane] = &[
    Lane {
        name: "deleted",
        nodes: &["n1", "n2"],
        budget: 1,
        actions: &[Action::DeleteDeployment, Action::DeleteDeploymentAndOrphan],
        phases: FEWER_PHASES,
    },
    Lane { name: "edited", nodes: &["n3", "n4"], budget: 1, actions: &[Action::EditTemplate, Action::RolloutPause], phases: FEWER_PHASES },
    Lane { name: "scaled", nodes: &["n5", "n6"], budget: 1, actions: &[Action::Scale(1), Action::Scale(0)], phases: FEWER_PHASES },
    Lane { name: "turned", nodes: &["n7", "n8"], budget: 1, actions: &[Action::RolloutUndo, Action::ReRegisterNode], phases: FEWER_PHASES },
];

/// Marks that only the operator writes, by people who remove them.
const REMOVED: &[Lane] = &[
    Lane { name: "token", nodes: &["n1", "n2"], budget: 1, actions: &[Action::RemoveToken], phases: PHASES },
    Lane { name: "holders", nodes: &["n3", "n4"], budget: 1, actions: &[Action::RemoveHolders], phases: PHASES },
    Lane { name: "node-key", nodes: &["n5", "n6"], budget: 1, actions: &[Action::RemoveNodeKey], phases: PHASES },
    Lane { name: "annotation", nodes: &["n7", "n8"], budget: 1, actions: &[Action::RemoveDeploymentAnnotation], phases: PHASES },
    Lane { name: "member", nodes: &["n9", "n10"], budget: 1, actions: &[Action::RemoveMemberLabel], phases: PHASES },
];

/// The same, by people who write others.
const FORGED: &[Lane] = &[
    Lane { name: "foreign", nodes: &["n1", "n2"], budget: 1, actions: &[Action::ForeignToken], phases: PHASES },
    Lane { name: "greater", nodes: &["n3", "n4"], budget: 1, actions: &[Action::GreaterToken], phases: PHASES },
    Lane { name: "held", nodes: &["n5", "n6"], budget: 1, actions: &[Action::ForeignHolder], phases: PHASES },
    Lane { name: "broken", nodes: &["n7", "n8"], budget: 1, actions: &[Action::BreakHolders], phases: PHASES },
    Lane { name: "taken", nodes: &["n9", "n10"], budget: 1, actions: &[Action::TakeOutByHand], phases: PHASES },
];

/// The resource itself. Nothing that the operator does afterwards is excused.
const RESOURCE: &[Lane] = &[
    Lane { name: "wiped", nodes: &["n1", "n2"], budget: 1, actions: &[Action::WipeRollout], phases: PHASES },
    Lane { name: "emptied", nodes: &["n12", "n13"], budget: 1, actions: &[Action::WipeStatus], phases: PHASES },
    Lane { name: "rekeyed", nodes: &["n3", "n4"], budget: 1, actions: &[Action::OtherKeys], phases: FEWER_PHASES },
    Lane { name: "moded", nodes: &["n5", "n6"], budget: 1, actions: &[Action::DegradeMode, Action::NodeMarkOnly], phases: FEWER_PHASES },
    Lane { name: "raised", nodes: &["n7", "n8"], budget: 1, actions: &[Action::Budget(2)], phases: FEWER_PHASES },
    Lane { name: "lowered", nodes: &["n9", "n10", "n11"], budget: 2, actions: &[Action::Budget(1)], phases: FEWER_PHASES },
];

/// Deployments are deleted, edited, scaled or turned back in every phase.
pub const TAMPERED_DEPLOYMENTS: Scenario = Scenario {
    name: "deployments_changed_by_hand_do_not_stop_a_rollout",
    options: || options(DEPLOYMENTS),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(tampered(bed, DEPLOYMENTS)),
};

/// Tokens, holders, keys and labels are removed in every phase.
pub const REMOVED_MARKS: Scenario = Scenario {
    name: "marks_removed_by_hand_do_not_stop_a_rollout",
    options: || options(REMOVED),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(tampered(bed, REMOVED)),
};

/// Tokens and holders are forged, and nodes taken out, in every phase.
pub const FORGED_MARKS: Scenario = Scenario {
    name: "marks_forged_by_hand_do_not_stop_a_rollout",
    options: || options(FORGED),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(tampered(bed, FORGED)),
};

/// The status is wiped, or mode, key or budget change, in every phase.
pub const TAMPERED_RESOURCE: Scenario = Scenario {
    name: "a_wiped_status_or_changed_strategy_stops_no_rollout",
    options: || options(RESOURCE),
    // The greatest budget of a lane; each is judged by its own besides.
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(tampered(bed, RESOURCE)),
};

fn options(lanes: &[Lane]) -> Options {
    let spec = |lane: &Lane, name: &&str| NodeSpec::new(name).label(LANE, lane.name);
    Options { nodes: lanes.iter().flat_map(|lane| lane.nodes.iter().map(|name| spec(lane, name))).collect(), ..Options::default() }
        .with_infra()
}

/// Both marks and the detacher's timestamp, with the shortest graces there are.
fn strategy(budget: u32) -> Value {
    product::rolling_update(
        budget,
        json!({
            "maxDegradedNodes": null,
            "annotateDeploymentToDetach": { "key": names::TO_BE_UPDATED_ANNOTATION, "gracePeriodSeconds": 1 },
            "annotateNodeToDetach": { "key": DETACHED_KEY, "value": "true", "gracePeriodSeconds": 0 },
            "waitForDetachmentByAnnotatedTimestamp": { "key": TIMESTAMP_KEY, "format": "RFC3339", "gracePeriodSeconds": 0 },
            "attachSoakSeconds": 1,
        }),
    )
}

async fn tampered(bed: &mut Bed, lanes: &'static [Lane]) -> Result<()> {
    bed.install().await?;
    operator_process::stop_pods(bed).await?;
    let proxy = FaultProxy::start(bed).await?;
    let mut operator = OperatorProcess::start_behind(bed, "scenario", &proxy, &[operator_process::SOLE]).await?;
    // So long every phase lasts at least: the person comes in time.
    proxy.inject(|request| if request.is_step() { Fault::Delay(PHASE_LASTS) } else { Fault::None });
    let mut objects = vec![workload::config_map("default")];
    objects.extend(lanes.iter().map(Lane::resource));
    bed.apply(&objects).await?;
    let _detacher = Detacher::start(&bed.client, &bed.haproxy, Variant::Good);
    let bed = &*bed;
    try_join_all(lanes.iter().map(|lane| lane.ends(bed, "1"))).await?;
    bed.say("all serve");
    try_join_all(lanes.iter().map(|lane| lane.run(bed))).await?;
    operator.check()
}

impl Lane {
    fn resource(&self) -> Value {
        let mut resource = product::resource("1", &strategy(self.budget));
        resource["metadata"]["name"] = self.name.into();
        resource["spec"]["nodeSelector"] = json!({ LANE: self.name });
        resource
    }

    async fn run(&self, bed: &Bed) -> Result<()> {
        let mut version = 1;
        for action in self.actions {
            for phase in self.phases {
                if !action.has_effect(*phase) {
                    continue;
                }
                let mut tries = 0;
                loop {
                    (version, tries) = (version + 1, tries + 1);
                    let row = self.row(bed, *action, *phase, &version.to_string()).await;
                    let missed = row.with_context(|| format!("{}: {action} while {phase:?}", self.name))?;
                    let Some(missed) = missed else { break };
                    bed.say(&format!("{action} while {phase:?} missed: {missed}"));
                    ensure!(tries < TRIES, "{}: {action} never came while {phase:?}: {missed}", self.name);
                }
            }
        }
        Ok(())
    }

    /// One row of the table. Why the action missed its phase, if it did.
    async fn row(&self, bed: &Bed, action: Action, phase: Phase, version: &str) -> Result<Option<String>> {
        let started = Instant::now();
        let uid = product::api(bed).get(self.name).await?.uid().context("no UID")?;
        let mut seen = Seen { lane: self, uid8: names::uid8(&uid).to_owned(), live: bed.recorder.live(), until_now: Vec::new() };
        let idle = phase == Phase::Idle;
        let node = if idle {
            self.nodes.first().copied().context("a lane without nodes")?
        } else {
            self.roll(bed, version).await?;
            self.reaches(phase, &mut seen).await?
        };
        if action.is_by_hand() {
            product::hands_on(bed, &[node]).await?;
        }
        let write = self.act(bed, action, node).await?;
        if action.is_repaired() {
            product::hands_off(bed, &[node]).await?;
        }
        if idle {
            self.roll(bed, version).await?;
        }
        let outcome = self.outcome(bed, action, version).await?;
        if action.is_setting() {
            self.change(bed, json!({ "updateStrategy": strategy(self.budget) })).await?;
            self.ends(bed, version).await?;
        }
        if action.is_by_hand() && !action.is_repaired() {
            product::hands_off(bed, &[node]).await?;
        }
        let missed = seen.missed(&write, phase, node, version)?;
        if missed.is_none() {
            bed.say(&format!("{action} while {phase:?}, node {node}: {outcome}, {:.1} s", started.elapsed().as_secs_f32()));
        }
        Ok(missed)
    }

    /// Waits until the rollout ends, or until status gives a reason that the action excuses and the person takes it back.
    async fn outcome(&self, bed: &Bed, action: Action, version: &str) -> Result<String> {
        let mut excuse = None;
        let told = eventually(DEADLINE, "the rollout ends, or status says why not", async || {
            let resource = product::api(bed).get(self.name).await?;
            let status = resource.status.clone().unwrap_or_default();
            excuse = excuse_of(&status, action);
            if excuse.is_none() {
                self.has_ended(bed, &resource, version).await?;
            }
            Ok(())
        });
        told.await?;
        let Some(reason) = excuse else { return Ok("ends".to_owned()) };
        self.undo(bed, action).await?;
        self.ends(bed, version).await?;
        Ok(format!("says {reason}, ends once it is undone"))
    }

    async fn change(&self, bed: &Bed, spec: Value) -> Result<()> {
        product::change_named(bed, self.name, spec).await
    }

    async fn roll(&self, bed: &Bed, version: &str) -> Result<()> {
        self.change(bed, json!({ "template": product::template(version) })).await
    }

    /// The first node of the lane that shows the phase.
    async fn reaches(&self, phase: Phase, seen: &mut Seen<'_>) -> Result<&'static str> {
        let mut updated = BTreeSet::new();
        let shown = async {
            loop {
                let next = seen.next().await?;
                if let Some(node) = self.nodes.iter().find(|node| self.shows(&next, &seen.uid8, phase, node, &mut updated)) {
                    return Ok(*node);
                }
            }
        };
        tokio::time::timeout(DEADLINE, shown).await.with_context(|| format!("no node became {phase:?}"))?
    }

    fn shows(&self, seen: &Observation, uid8: &str, phase: Phase, node: &str, updated: &mut BTreeSet<String>) -> bool {
        let object = &seen.object;
        let is = |kind, name: &str| seen.kind == kind && !seen.deleted && object["metadata"]["name"] == name;
        if is(Kind::IngressDaemonSet, self.name) {
            return phase == Phase::Granted && object["status"]["rollout"]["grants"][node].is_object();
        }
        if is(Kind::Node, node) {
            let holders = crds::holders::parse(object["metadata"]["annotations"][names::HOLDERS_ANNOTATION].as_str()).unwrap_or_default();
            return phase == Phase::Detached && holders.get(uid8).is_some_and(|entry| entry.phase == EntryPhase::Detached);
        }
        if !is(Kind::Deployment, &self.deployment(node)) {
            return false;
        }
        let token = object["metadata"]["labels"][names::TOKEN_LABEL].as_str().and_then(|token| token.parse::<Token>().ok());
        match token.map(|token| token.phase) {
            Some(TokenPhase::Claimed) => phase == Phase::Claimed,
            Some(TokenPhase::Updating) => {
                updated.insert(node.to_owned());
                phase == Phase::Updating
            }
            Some(TokenPhase::Closed) => phase == Phase::Soaking && updated.contains(node),
            _ => false,
        }
    }

    fn deployment(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    /// Does it.
    async fn act(&self, bed: &Bed, action: Action, node: &str) -> Result<Write> {
        let deployment = self.deployment(node);
        let token = |token: Value| json!({ "metadata": { "labels": { names::TOKEN_LABEL: token } } });
        let annotation = |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });
        let rolling = |more: Value| json!({ "updateStrategy": { "rollingUpdate": more } });
        match action {
            Action::DeleteDeployment => self.delete(bed, &deployment, &DeleteParams::background()).await,
            Action::DeleteDeploymentAndOrphan => self.delete(bed, &deployment, &DeleteParams::orphan()).await,
            Action::EditTemplate => {
                let tampered = json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/env/0/value", "value": "tampered" }]);
                let patch = serde_json::from_value(tampered).context("building a patch")?;
                let before = deployments(bed).get(&deployment).await?;
                let after = deployments(bed).patch(&deployment, &PatchParams::default(), &Patch::<()>::Json(patch)).await?;
                write_of(&before, &after)
            }
            Action::Scale(replicas) => self.edit(bed, &deployment, json!({ "spec": { "replicas": replicas } })).await,
            Action::RolloutPause => self.edit(bed, &deployment, json!({ "spec": { "paused": true } })).await,
            Action::RolloutUndo => rollout_undo(bed, &deployment).await,
            Action::ReRegisterNode => self.re_register(bed, node).await,
            Action::DegradeMode => {
                let marks = ["annotateDeploymentToDetach", "annotateNodeToDetach", "waitForDetachmentByAnnotatedTimestamp"];
                let mut degrade = json!({ "maxUnavailableNodes": 0, "maxDegradedNodes": 1 });
                for mark in marks {
                    degrade[mark] = Value::Null;
                }
                self.set(bed, rolling(degrade)).await
            }
            Action::NodeMarkOnly => self.set(bed, rolling(json!({ "annotateDeploymentToDetach": null }))).await,
            Action::OtherKeys => {
                // The detacher of the bed does not know these.
                let keys = json!({
                    "annotateDeploymentToDetach": { "key": OTHER_KEYS[0] }, "annotateNodeToDetach": { "key": OTHER_KEYS[1] },
                    "waitForDetachmentByAnnotatedTimestamp": null,
                });
                self.set(bed, rolling(keys)).await
            }
            Action::Budget(nodes) => self.set(bed, rolling(json!({ "maxUnavailableNodes": nodes }))).await,
            Action::RemoveToken => self.edit(bed, &deployment, token(Value::Null)).await,
            Action::ForeignToken => self.edit(bed, &deployment, token(format!("{STRANGER}.7.Closed.0").into())).await,
            Action::GreaterToken => {
                let (uid8, next_id) = self.next_id(bed).await?;
                self.edit(bed, &deployment, token(format!("{uid8}.{}.Closed.0", next_id + 5).into())).await
            }
            Action::RemoveDeploymentAnnotation => {
                self.edit(bed, &deployment, annotation(names::TO_BE_UPDATED_ANNOTATION, Value::Null)).await
            }
            Action::TakeOutByHand => self.edit(bed, &deployment, annotation(names::TO_BE_UPDATED_ANNOTATION, "by hand".into())).await,
            Action::RemoveHolders => edit_node(bed, node, annotation(names::HOLDERS_ANNOTATION, Value::Null)).await,
            Action::BreakHolders => edit_node(bed, node, annotation(names::HOLDERS_ANNOTATION, "{".into())).await,
            Action::RemoveNodeKey => edit_node(bed, node, annotation(DETACHED_KEY, Value::Null)).await,
            Action::ForeignHolder => hold_by_stranger(bed, node).await,
            Action::RemoveMemberLabel => {
                let (uid8, _) = self.next_id(bed).await?;
                edit_node(bed, node, json!({ "metadata": { "labels": { names::member_label(&uid8): null } } })).await
            }
            Action::WipeRollout => self.patch_status(bed, json!({ "status": { "rollout": null } })).await,
            Action::WipeStatus => self.patch_status(bed, json!({ "status": null })).await,
        }
    }

    async fn delete(&self, bed: &Bed, deployment: &str, how: &DeleteParams) -> Result<Write> {
        let before = deployments(bed).get(deployment).await?;
        deployments(bed).delete(deployment, how).await.context("deleting the Deployment")?;
        Ok(Write::Deletion(Kind::Deployment, revision(&before)?))
    }

    async fn edit(&self, bed: &Bed, deployment: &str, patch: Value) -> Result<Write> {
        let before = deployments(bed).get(deployment).await?;
        let after = deployments(bed).patch(deployment, &PatchParams::default(), &Patch::Merge(patch)).await;
        write_of(&before, &after.context("editing the Deployment")?)
    }

    async fn set(&self, bed: &Bed, spec: Value) -> Result<Write> {
        let before = product::api(bed).get(self.name).await?;
        let patch = Patch::Merge(json!({ "spec": spec }));
        let after = product::api(bed).patch(self.name, &PatchParams::default(), &patch).await;
        write_of(&before, &after.context("changing the resource")?)
    }

    async fn patch_status(&self, bed: &Bed, patch: Value) -> Result<Write> {
        let before = product::api(bed).get(self.name).await?;
        let after = product::api(bed).patch_status(self.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        write_of(&before, &after.context("writing the status")?)
    }

    /// How tokens of the lane begin, and the next id of its ledger.
    async fn next_id(&self, bed: &Bed) -> Result<(String, u64)> {
        let resource = product::api(bed).get(self.name).await?;
        let ledger = resource.ledger().context("no ledger")?;
        Ok((names::uid8(&resource.uid().context("no UID")?).to_owned(), ledger.next_id))
    }

    /// Deletes the Node object; its agent registers it again, and the administrator labels it.
    async fn re_register(&self, bed: &Bed, node: &str) -> Result<Write> {
        let api = Api::<Node>::all(bed.client.clone());
        let before = api.get(node).await?;
        let old = before.uid();
        api.delete(node, &DeleteParams::default()).await?;
        eventually(DEADLINE, "the node is registered again", async || {
            ensure!(api.get(node).await?.uid() != old, "the old Node is still there");
            Ok(())
        })
        .await?;
        edit_node(bed, node, json!({ "metadata": { "labels": { LANE: self.name } } })).await?;
        Ok(Write::Deletion(Kind::Node, revision(&before)?))
    }

    /// Takes back what an action left in the way, as status asks for.
    async fn undo(&self, bed: &Bed, action: Action) -> Result<()> {
        for node in self.nodes {
            let deployment = self.deployment(node);
            let gone = |keys: &[&str]| {
                let keys: serde_json::Map<_, _> = keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
                json!({ "metadata": { "annotations": keys } })
            };
            match action {
                Action::TakeOutByHand | Action::GreaterToken => {
                    self.edit(bed, &deployment, gone(&[names::TO_BE_UPDATED_ANNOTATION])).await?;
                }
                Action::RemoveHolders => {
                    edit_node(bed, node, gone(&[DETACHED_KEY])).await?;
                }
                Action::BreakHolders | Action::ForeignHolder => {
                    edit_node(bed, node, gone(&[names::HOLDERS_ANNOTATION, DETACHED_KEY])).await?;
                }
                _ => bail!("{action} needs no undoing"),
            }
        }
        Ok(())
    }

    async fn ends(&self, bed: &Bed, version: &str) -> Result<()> {
        let resource = async || product::api(bed).get(self.name).await;
        eventually(DEADLINE, &format!("{} has rolled out version {version}", self.name), async || {
            self.has_ended(bed, &resource().await?, version).await
        })
        .await
    }

    /// Status says so, and so do the objects: the version, the pods, and no mark left.
    async fn has_ended(&self, bed: &Bed, resource: &IngressDaemonSet, version: &str) -> Result<()> {
        ensure!(product::has_ended(resource, self.nodes.len()), "{}", product::summary(&resource.status.clone().unwrap_or_default()));
        for node in self.nodes {
            let deployment = serde_json::to_value(deployments(bed).get(&self.deployment(node)).await?)?;
            let spec = &deployment["spec"];
            let runs = (&spec["replicas"], &spec["template"]["spec"]["containers"][0]["env"][0]["value"]);
            ensure!(runs == (&json!(2), &json!(version)), "{node} runs {runs:?}");
            let object = Api::<Node>::all(bed.client.clone()).get(node).await?;
            for key in OTHER_KEYS.iter().chain(&[DETACHED_KEY, names::TO_BE_UPDATED_ANNOTATION]) {
                let left = deployment["metadata"]["annotations"].get(*key).is_some() || object.annotations().contains_key(*key);
                ensure!(!left, "{key} is left on {node}");
            }
        }
        Ok(())
    }
}

fn deployments(bed: &Bed) -> Api<Deployment> {
    Api::namespaced(bed.client.clone(), "default")
}

/// A reason of the status that the action accounts for.
fn excuse_of(status: &IngressDaemonSetStatus, action: Action) -> Option<String> {
    let excused = |reason: &String| action.excuses().contains(&reason.as_str());
    status.node_states.iter().map(|state| &state.reason).find(|reason| excused(reason)).cloned()
}

async fn edit_node(bed: &Bed, node: &str, patch: Value) -> Result<Write> {
    let api = Api::<Node>::all(bed.client.clone());
    let before = api.get(node).await?;
    let after = api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await;
    write_of(&before, &after.context("editing the Node")?)
}

/// What an action wrote, by which the history tells when.
#[derive(Debug)]
enum Write {
    /// At this resourceVersion.
    At(u64),
    /// The node's object of this kind was deleted after this resourceVersion.
    Deletion(Kind, u64),
    /// The Deployment's template became a former one after this resourceVersion.
    Undo(u64),
    /// Nothing, and why.
    Nothing(String),
}

fn revision(object: &impl kube::ResourceExt) -> Result<u64> {
    object.resource_version().context("no resourceVersion")?.parse().context("the resourceVersion is no number")
}

/// A patch that changes nothing leaves the resourceVersion as it was.
fn write_of<K: kube::ResourceExt>(before: &K, after: &K) -> Result<Write> {
    let (before, after) = (revision(before)?, revision(after)?);
    Ok(if after > before { Write::At(after) } else { Write::Nothing("it changed nothing".to_owned()) })
}

/// What has become of a lane's objects since a row began.
struct Seen<'a> {
    lane: &'a Lane,
    uid8: String,
    live: Receiver<Arc<Observation>>,
    until_now: Vec<Arc<Observation>>,
}

impl Seen<'_> {
    async fn next(&mut self) -> Result<Arc<Observation>> {
        let next = self.live.recv().await.context("the recorder has ended, or observations were lost")?;
        self.until_now.push(Arc::clone(&next));
        Ok(next)
    }

    /// Why the write did not come while the node was in the phase, if it did not.
    fn missed(&mut self, write: &Write, phase: Phase, node: &str, version: &str) -> Result<Option<String>> {
        loop {
            match self.live.try_recv() {
                Ok(next) => self.until_now.push(next),
                Err(TryRecvError::Empty) => break,
                Err(error) => bail!("the recorder has ended, or observations were lost: {error}"),
            }
        }
        // Kinds overtake each other.
        self.until_now.sort_by_key(|seen| seen.revision);
        let name = |kind| if kind == Kind::Node { node.to_owned() } else { self.lane.deployment(node) };
        let first = |kind: Kind, after: u64, test: &dyn Fn(&Observation) -> bool| {
            let name = name(kind);
            let later = self.until_now.iter().filter(|seen| seen.revision > after && seen.kind == kind);
            later.into_iter().find(|seen| seen.object["metadata"]["name"] == name.as_str() && test(seen)).map(|seen| seen.revision)
        };
        let written = match write {
            Write::At(revision) => Some(*revision),
            Write::Deletion(kind, after) => {
                first(*kind, *after, &|seen| seen.deleted || seen.object["metadata"]["deletionTimestamp"].is_string())
            }
            Write::Undo(after) => first(Kind::Deployment, *after, &|seen| {
                seen.object["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] != version
            }),
            Write::Nothing(why) => return Ok(Some(why.clone())),
        };
        let Some(written) = written else { return Ok(Some("the history does not show it".to_owned())) };
        let found = self.phase_before(written, node);
        Ok((found != phase).then(|| format!("{node} was {found:?} when it came")))
    }

    /// Where the node was in its update when something was written.
    fn phase_before(&self, revision: u64, node: &str) -> Phase {
        let last = |kind: Kind, name: &str| {
            let earlier = self.until_now.iter().rev().filter(|seen| seen.revision < revision && seen.kind == kind);
            earlier.into_iter().find(|seen| seen.object["metadata"]["name"] == name).map(|seen| &seen.object)
        };
        let granted =
            last(Kind::IngressDaemonSet, self.lane.name).and_then(|resource| resource["status"]["rollout"]["grants"][node]["id"].as_u64());
        let Some(granted) = granted else { return Phase::Idle };
        let token = last(Kind::Deployment, &self.lane.deployment(node));
        let token = token.and_then(|object| object["metadata"]["labels"][names::TOKEN_LABEL].as_str()?.parse::<Token>().ok());
        let holders = last(Kind::Node, node).and_then(|object| object["metadata"]["annotations"][names::HOLDERS_ANNOTATION].as_str());
        let entry = crds::holders::parse(holders).unwrap_or_default().remove(&self.uid8);
        match token.filter(|token| token.id == granted).map(|token| token.phase) {
            None => Phase::Granted,
            Some(TokenPhase::Updating) => Phase::Updating,
            Some(TokenPhase::Closed) => Phase::Soaking,
            Some(_) if entry.is_some_and(|entry| entry.phase == EntryPhase::Detached) => Phase::Detached,
            Some(_) => Phase::Claimed,
        }
    }
}

async fn rollout_undo(bed: &Bed, deployment: &str) -> Result<Write> {
    let before = deployments(bed).get(deployment).await?;
    Ok(match bed.kubectl(&["rollout", "undo", &format!("deployment/{deployment}")]).await {
        Ok(_) => Write::Undo(revision(&before)?),
        // Too late: the former ReplicaSet has gone by now.
        Err(error) => Write::Nothing(format!("{error:#}")),
    })
}

/// An entry of a resource that does not exist, beside those that are there.
async fn hold_by_stranger(bed: &Bed, node: &str) -> Result<Write> {
    eventually(DEADLINE, "the stranger's entry is written", async || {
        let api = Api::<Node>::all(bed.client.clone());
        let object = api.get(node).await?;
        let mut holders = crds::holders::parse(object.annotations().get(names::HOLDERS_ANNOTATION).map(String::as_str))?;
        let (key, value) = (DETACHED_KEY.to_owned(), "true".to_owned());
        let time = chrono::Utc::now().timestamp();
        holders.insert(STRANGER.to_owned(), Entry { id: 1, phase: EntryPhase::Detached, key, value, previous: None, time });
        let annotations = json!({ names::HOLDERS_ANNOTATION: serde_json::to_string(&holders)?, DETACHED_KEY: "true" });
        let patch = json!({ "metadata": { "resourceVersion": object.resource_version(), "annotations": annotations } });
        let held = api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        write_of(&object, &held)
    })
    .await
}
