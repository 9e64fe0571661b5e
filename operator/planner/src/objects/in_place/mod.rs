//! Updates in place: the pods of a node stay, and only their containers restart.
//!
//! A Deployment makes other pods whenever its template changes. So it is paused, its `ReplicaSet` and the pods are changed beneath it, and
//! it goes on with the template that the `ReplicaSet` has by then (ADR 0013). A node with its objects comes in, the next moves and their
//! patches go out. Nothing here says which node has its turn.

pub mod change;
pub mod classify;
pub mod completion;
pub mod moves;
pub mod writes;

use crate::reason::RecreateReason;
use crate::{
    facts::{DeploymentFacts, InPlacePod, PodFacts, ReplicaSetFacts},
    node::{ManagedNode, clocks},
    objects::{render, revisions::Targets},
    protocol::timing,
    snapshot::Snapshot,
    spec::{DisruptionMode, ResolvedSpec},
};
use crds::{
    UnixSeconds,
    in_place::token_id,
    ingress_daemon_set::PodUpdate,
    ledger::{Grant, GrantReason, Marks, WaitFor},
    names,
    token::Phase,
};
use moves::{InPlaceFacts, Move, PodView, ReplicaSetView, moves};
use serde_json::Value;
use std::sync::Arc;

/// A node whose Deployment is paused under its grant's id.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Moves that the operator makes or waits for now.
    pub moves: Vec<Move>,
    /// The pods that [`Move`]s name.
    pub pods: Vec<(&'a PodFacts, &'a InPlacePod)>,
    /// The `ReplicaSet` that the pods are of.
    pub replica_set: Option<&'a ReplicaSetFacts>,
    /// The template that it gets, and the pods, and the Deployment in the end.
    pub target: Option<Value>,
    /// When traffic has had the time to go elsewhere.
    pub drained_at: UnixSeconds,
    /// Why the pods have to be re-created, when they have to.
    pub why: Option<RecreateReason>,
}

/// How an update of the node would come about: in place, or why not.
pub fn way(managed: &ManagedNode<'_>, targets: &Targets) -> Result<(), RecreateReason> {
    let (Some(deployment), Some(settings)) = (managed.deployment, managed.settings) else { return Err(RecreateReason::FormerUnknown) };
    let former = classified(managed, deployment, settings, targets)?;
    if !render::contains(&deployment.spec.get("template").unwrap_or_default(), &rendered(managed, former, deployment)) {
        return Err(RecreateReason::Drifted);
    }
    let own = own(deployment, managed.replica_sets);
    let template = deployment.spec.get("template").unwrap_or_default();
    let current: Vec<_> = own.iter().filter(|set| set.template() == template).collect();
    let others = own.len() > current.len() && {
        let target = target(deployment, former, managed, settings);
        own.iter().any(|set| set.template() != template && (set.replicas > 0 || target.as_ref() == Some(&set.template())))
    };
    if current.len() != 1 || others {
        return Err(RecreateReason::ReplicaSets);
    }
    let gated = |pod: &Arc<PodFacts>| pod.gated.as_ref().is_some_and(|gated| current.iter().any(|set| set.hash == gated.hash));
    if !managed.pods.iter().filter(|pod| !pod.ended && !pod.terminating).all(gated) {
        return Err(RecreateReason::PodsWithoutGate);
    }
    Ok(())
}

/// Whether the templates allow it; then the spec with the template that the node runs.
fn classified<'t>(
    managed: &ManagedNode<'_>,
    deployment: &DeploymentFacts,
    settings: &ResolvedSpec,
    targets: &'t Targets,
) -> Result<&'t ResolvedSpec, RecreateReason> {
    if settings.pod_update == PodUpdate::Recreate {
        return Err(RecreateReason::NotAsked);
    }
    let former = targets.at(deployment.revision()).ok_or(RecreateReason::FormerUnknown)?;
    if deployment.template_label(names::RENDERED_BY_LABEL) != Some(render::rendered_by(settings).as_str())
        || render::rendered_by(former) != render::rendered_by(settings)
    {
        return Err(RecreateReason::OtherRendering);
    }
    if settings.mode == DisruptionMode::Degrade && settings.max_unavailable_pods.is_zero() && managed.pods.iter().any(|pod| !pod.ended) {
        return Err(RecreateReason::NoPodMayBeDown);
    }
    classify::templates(&former.template, &settings.template)?;
    Ok(former)
}

fn rendered(managed: &ManagedNode<'_>, settings: &ResolvedSpec, deployment: &DeploymentFacts) -> Value {
    render::template(managed.resource, settings, &deployment.name, managed.name)
}

/// The Deployment's template as it would be: what the API server added to it stays.
fn target(deployment: &DeploymentFacts, former: &ResolvedSpec, managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> Option<Value> {
    let (before, after) = (rendered(managed, former, deployment), rendered(managed, settings, deployment));
    Some(change::between(&before, &after)?.apply(&deployment.spec.get("template")?))
}

/// The `ReplicaSets` of the Deployment.
fn own<'a>(deployment: &DeploymentFacts, replica_sets: &'a [ReplicaSetFacts]) -> Vec<&'a ReplicaSetFacts> {
    let mut own: Vec<_> = replica_sets.iter().filter(|set| set.owner == deployment.uid).collect();
    own.sort_by_key(|set| &set.uid);
    own
}

/// The node's pods that run on, in an order of their own: which of them comes first must not depend on who told of them first.
fn live<'a>(managed: &ManagedNode<'a>) -> Vec<&'a PodFacts> {
    let mut live: Vec<_> = managed.pods.iter().map(Arc::as_ref).filter(|pod| !pod.ended && !pod.terminating).collect();
    live.sort_by_key(|pod| &pod.name);
    live
}

/// The update of this grant begins with a pause: in place, or because a pause of before has to be ended in order.
pub fn pauses(managed: &ManagedNode<'_>, grant: &Grant, targets: Option<&Targets>) -> bool {
    let Some((deployment, targets)) = managed.deployment.zip(targets) else { return false };
    match grant.kind {
        GrantReason::Update | GrantReason::Repair if is_paused(deployment) && has_gate(deployment) => true,
        GrantReason::Update => way(managed, targets).is_ok(),
        _ => false,
    }
}

/// The Deployment is paused (`spec.paused`).
pub fn is_paused(deployment: &DeploymentFacts) -> bool {
    deployment.spec.get("paused") == Some(Value::Bool(true))
}

/// Its pods can be kept from being ready.
fn has_gate(deployment: &DeploymentFacts) -> bool {
    gates(deployment.spec.held("template"))
}

/// The template declares the gate.
pub fn gates(template: &Value) -> bool {
    let gates = template["spec"]["readinessGates"].as_array().into_iter().flatten();
    gates.into_iter().any(|gate| gate["conditionType"] == names::IN_PLACE_GATE)
}

/// Where a node stands whose Deployment is paused under its grant's id; `None` for any other.
pub fn progress<'a>(snapshot: &Snapshot, managed: &ManagedNode<'a>, grant: &Grant, targets: Option<&Targets>) -> Option<Progress<'a>> {
    let deployment = managed.deployment?;
    let token = managed.token.as_ref().filter(|token| token.id == grant.id && token.phase == Phase::InPlace)?;
    let own = own(deployment, managed.replica_sets);
    let uid8 = snapshot.resource.uid8();
    let id_of = |set: &ReplicaSetFacts| token_id(uid8, set.token.as_deref());
    let template = deployment.spec.get("template").unwrap_or_default();
    let found = own.iter().filter(|set| id_of(set) > 0).max_by_key(|set| id_of(set));
    let replica_set = found.or_else(|| own.iter().find(|set| set.template() == template)).copied();
    let (target, why) = match wanted(managed, grant, targets, replica_set.filter(|set| id_of(set) == grant.id)) {
        Ok(target) => (Some(target), None),
        Err(why) => (None, Some(why)),
    };
    // A former one that has the wanted template already would be taken for the Deployment's own, with pods of its own.
    let other = |set: &&&ReplicaSetFacts| replica_set.is_none_or(|current| current.uid != set.uid);
    let alone = own.iter().filter(other).all(|set| set.replicas == 0 && target.as_ref() != Some(&set.template()));
    let pods = live(managed);
    let gated: Vec<_> = pods.iter().filter_map(|pod| Some((*pod, pod.gated.as_deref()?))).collect();
    let ours = gated.len() == pods.len() && gated.iter().all(|(_, pod)| replica_set.is_some_and(|set| set.hash == pod.hash));
    let possible = target.as_ref().is_some_and(|target| replica_set.is_some_and(|set| change::between(&set.template(), target).is_some()));
    let why = why.or((!alone || !possible).then_some(RecreateReason::ReplicaSets)).or((!ours).then_some(RecreateReason::PodsWithoutGate));
    let views: Vec<_> = gated.iter().map(|(pod, gated)| pod_view(pod, gated, target.as_ref(), &template, grant.id, snapshot.now)).collect();
    let drained_at = drained_at(snapshot.now, managed, grant, token.since);
    let moves = moves(&InPlaceFacts {
        id: grant.id,
        paused: is_paused(deployment),
        observed: deployment.status.observed_generation >= deployment.generation,
        possible: why.is_none(),
        replica_set: replica_set
            .map(|set| ReplicaSetView { token: id_of(set), wanted: target.as_ref().is_some_and(|target| set.template() == *target) }),
        pods: &views,
        allowed: allowed(managed),
        drained: snapshot.now >= drained_at,
    });
    let why = why.filter(|_| {
        !is_paused(deployment) || moves.iter().any(|next| matches!(next, Move::Finish { in_place: false } | Move::Claim { rewrite: false }))
    });
    Some(Progress { moves, pods: gated, replica_set, target, drained_at, why })
}

/// The template that is wanted on the `ReplicaSet`. One that carries our token has it already: what it is then is not compared
/// with the spec again, and never written twice.
fn wanted(
    managed: &ManagedNode<'_>,
    grant: &Grant,
    targets: Option<&Targets>,
    claimed: Option<&ReplicaSetFacts>,
) -> Result<Value, RecreateReason> {
    let revision = |template: &Value| template["metadata"]["labels"][names::REVISION_LABEL] == grant.revision.as_str();
    if let Some(template) = claimed.map(ReplicaSetFacts::template) {
        return if revision(&template) && gates(&template) { Ok(template) } else { Err(RecreateReason::ReplicaSets) };
    }
    let (Some(deployment), Some(settings), Some(targets)) = (managed.deployment, managed.settings, targets) else {
        return Err(RecreateReason::FormerUnknown);
    };
    let former = classified(managed, deployment, settings, targets)?;
    let target = target(deployment, former, managed, settings).ok_or(RecreateReason::MoreThanImages)?;
    if !revision(&target) || !render::contains(&target, &rendered(managed, settings, deployment)) {
        return Err(RecreateReason::Drifted);
    }
    Ok(target)
}

/// Pods that may be down at once: at least one, or nothing would ever change.
fn allowed(managed: &ManagedNode<'_>) -> usize {
    let wanted = managed.deployment.map_or(0, |deployment| usize::try_from(deployment.replicas()).unwrap_or(0));
    managed.settings.map_or(1, |settings| settings.max_unavailable_pods.of(wanted)).max(1)
}

/// A node that was detached before has no traffic of the load balancer; any other fails its health check since the pause.
fn drained_at(now: UnixSeconds, managed: &ManagedNode<'_>, grant: &Grant, since: UnixSeconds) -> UnixSeconds {
    let detached = grant.marks != Marks::default() || managed.holds_node();
    let waited = clocks::waited(grant, WaitFor::DeploymentMark, since);
    managed.settings.filter(|_| !detached).map_or(now, |settings| now.saturating_add(timing::after(settings.deployment_grace) - waited))
}

fn pod_view(pod: &PodFacts, gated: &InPlacePod, target: Option<&Value>, before: &Value, id: u64, now: UnixSeconds) -> PodView {
    let change = target.and_then(|target| writes::pod_change(gated, target, before));
    PodView {
        claimed: gated.record.as_ref().is_some_and(|record| record.id == id),
        imaged: change.as_ref().is_some_and(|change| change.images.is_empty()),
        wanted: change.as_ref().is_some_and(change::Change::is_empty),
        gate: gated.gate,
        ready: pod.ready,
        complete: completion::is_complete(gated, now),
    }
}

/// Pods that have to be deleted, or nothing would ever replace them. They have a former template of the `ReplicaSet` that the
/// Deployment calls its own now, because they came about at the wrong moment of an update in place that was given up.
pub fn stragglers<'a>(managed: &ManagedNode<'a>) -> Vec<&'a PodFacts> {
    let Some(deployment) = managed.deployment else { return Vec::new() };
    if is_paused(deployment) || deployment.status.observed_generation < deployment.generation || !has_gate(deployment) {
        return Vec::new();
    }
    let live = live(managed);
    let live = || live.iter().copied();
    if live().all(|pod| pod.revision == deployment.revision()) {
        return Vec::new();
    }
    let template = deployment.spec.get("template").unwrap_or_default();
    let current = own(deployment, managed.replica_sets).into_iter().find(|set| set.template() == template);
    let Some(current) = current else { return Vec::new() };
    let is_former =
        |pod: &&PodFacts| pod.revision != deployment.revision() && pod.gated.as_ref().is_some_and(|gated| gated.hash == current.hash);
    let down = live().filter(|pod| !pod.ready && !is_former(pod)).count();
    let spare = if managed.phase() == Some(Phase::Degrading) { allowed(managed).saturating_sub(down) } else { usize::MAX };
    live().filter(is_former).take(spare).collect()
}

/// Pods whose gate nothing keeps shut: True at once, or they would never be ready.
pub fn to_open<'a>(managed: &ManagedNode<'a>) -> Vec<(&'a PodFacts, &'a InPlacePod)> {
    let kept = match managed.phase() {
        Some(Phase::InPlace) => true,
        Some(Phase::Claimed) => managed.deployment.is_some_and(is_paused),
        _ => false,
    };
    let pods = managed.pods.iter().map(Arc::as_ref).filter(|pod| !kept && !pod.ended && !pod.terminating);
    let mut shut: Vec<_> = pods.filter_map(|pod| Some((pod, pod.gated.as_deref().filter(|gated| gated.gate != Some(true))?))).collect();
    shut.sort_by_key(|(pod, _)| &pod.name);
    shut
}
