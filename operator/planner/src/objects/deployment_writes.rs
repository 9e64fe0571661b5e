//! Patches of a node's Deployment. Each tests the UID and the token that the decision was based on.

use crate::{
    facts::{DeploymentFacts, not_before},
    node::{ManagedNode, breaker::Breaker},
    objects::render,
    patch::{JsonPatch, annotation, label},
    snapshot::Snapshot,
    spec::ResolvedSpec,
};
use crds::{
    UnixSeconds,
    ingress_daemon_set::PodUpdate,
    ledger::{Grant, GrantReason, Marks},
    names,
    token::{Phase, Token},
};
use serde_json::{Value, json};

/// The API server's default of a Deployment's `progressDeadlineSeconds`.
const DEFAULT_PROGRESS_DEADLINE: i32 = 600;

/// A patch that tests UID and token, and the token that follows.
fn fenced(deployment: &DeploymentFacts, next: Option<&Token>) -> JsonPatch {
    let at = label(names::TOKEN_LABEL);
    let old = deployment.labels.get(names::TOKEN_LABEL).map_or(Value::Null, |old| old.as_str().into());
    let patch = JsonPatch::of(&deployment.uid).test(&at, old);
    match next {
        Some(token) => patch.add(&at, token.to_string()),
        None => patch,
    }
}

fn token(snapshot: &Snapshot, id: u64, phase: Phase, since: UnixSeconds, keep_annotation: bool) -> Token {
    Token { uid8: snapshot.resource.uid8().to_owned(), id, phase, since, keep_annotation }
}

/// A token of this id, after which no patch of an earlier grant applies.
pub fn fence(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, id: u64) -> Value {
    let phase = if managed.phase() == Some(Phase::New) { Phase::New } else { Phase::Closed };
    fenced(deployment, Some(&token(snapshot, id, phase, snapshot.now, false))).into_value()
}

/// `id.Claimed` and the user's annotation, when one is configured.
pub fn claim(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, grant: &Grant) -> Value {
    let held = managed.token.as_ref().filter(|token| matches!(token.phase, Phase::Claimed | Phase::InPlace | Phase::Updating));
    let mark = managed
        .settings
        .and_then(|settings| settings.deployment_annotation.as_ref())
        .filter(|mark| grant.marks.deployment_keys.contains(&mark.key));
    let found = mark.and_then(|mark| deployment.annotations.get(&mark.key).map(|value| (mark, value)));
    let present = found.is_some();
    // Whoever took our token away left our annotation behind: with our value it is ours, and no person's.
    let forgotten = managed.token.is_none() && found.is_some_and(|(mark, value)| *value == mark.value);
    let keep = held.map_or(present && !forgotten, |token| token.keep_annotation);
    // Grace that was served counts while the mark stays on.
    let since = held.map_or(snapshot.now, |token| token.since);
    let mut patch = fenced(deployment, Some(&token(snapshot, grant.id, Phase::Claimed, since, keep)));
    if let Some(mark) = mark.filter(|_| !present) {
        if deployment.annotations.is_empty() {
            patch = patch.add("/metadata/annotations", json!({}));
        }
        patch = patch.add(&annotation(&mark.key), mark.value.as_str());
    }
    patch.into_value()
}

/// What the kind changes, and `id.Updating`; `id.Degrading` when no mark is in use.
pub fn update(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, grant: &Grant) -> Value {
    let holding = managed.token.as_ref().is_some_and(|token| matches!(token.phase, Phase::Claimed | Phase::Updating));
    let marked = grant.marks != Marks::default() || holding || managed.holds_node();
    let phase = if marked { Phase::Updating } else { Phase::Degrading };
    let keep = managed.token.as_ref().is_some_and(|token| token.keep_annotation);
    // A node that tries again to have all pods of its revision has no other deadline than the first time: its seconds are kept by `since`.
    let retries = grant.kind == GrantReason::Grow && managed.is_at(&grant.revision);
    let again = managed.token.as_ref().filter(|token| retries && token.phase != Phase::Closed);
    let since = again.map_or(snapshot.now, |token| token.since);
    let mut patch = fenced(deployment, Some(&token(snapshot, grant.id, phase, since, keep)));
    // What leaves needs no valid spec.
    if matches!(grant.kind, GrantReason::Remove | GrantReason::Drain) {
        return patch.add("/spec/replicas", 0).into_value();
    }
    let Some(settings) = managed.settings else { return as_before(patch, snapshot, deployment, grant).into_value() };
    match grant.kind {
        GrantReason::Abort | GrantReason::Remove | GrantReason::Drain => return patch.into_value(),
        GrantReason::Shrink | GrantReason::Grow => {}
        // A repair of the token alone must not roll pods to another rendering.
        GrantReason::Repair if !managed.drifted => {}
        GrantReason::Update | GrantReason::Repair => {
            patch = patch.add("/spec/template", render::template(&snapshot.resource, settings, &deployment.name, managed.name));
        }
    }
    // How often its breaker has opened is forgotten only once the node has all its pods, or other ones.
    let patch = if grant.kind == GrantReason::Grow && !deployment.spec.has("paused") { patch } else { goes_on(patch, deployment) };
    patch.add("/spec/replicas", settings.pods_per_node).add("/spec/strategy", render::strategy(settings)).into_value()
}

/// Without a valid spec a node that was emptied gets as many pods as it had, of the template that its Deployment has.
fn as_before(patch: JsonPatch, snapshot: &Snapshot, deployment: &DeploymentFacts, grant: &Grant) -> JsonPatch {
    let emptied = grant.kind == GrantReason::Grow && deployment.replicas() == 0;
    let Some(replicas) = snapshot.resource.last_replicas().filter(|_| emptied) else { return patch };
    goes_on(patch, deployment).add("/spec/replicas", replicas)
}

/// Neither paused nor held back by the breaker any more.
fn goes_on(mut patch: JsonPatch, deployment: &DeploymentFacts) -> JsonPatch {
    if deployment.spec.has("paused") {
        patch = patch.remove("/spec/paused");
    }
    if deployment.labels.contains_key(names::BREAKER_LABEL) {
        patch = patch.remove(&label(names::BREAKER_LABEL));
    }
    patch
}

/// `id.InPlace`: the Deployment's controller makes no other pods until it goes on.
pub fn pause(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, grant: &Grant) -> Value {
    let keep = managed.token.as_ref().is_some_and(|token| token.keep_annotation);
    let patch = fenced(deployment, Some(&token(snapshot, grant.id, Phase::InPlace, snapshot.now, keep)));
    // Former ReplicaSets go: the oldest whose template is the wanted one would be taken for the Deployment's own.
    set(patch.add("/spec/paused", true), deployment, "revisionHistoryLimit", 0.into()).into_value()
}

/// `id.Updating`, or `id.Degrading` when no mark is in use: the Deployment goes on with the template that its `ReplicaSet` has,
/// which `change` writes, and makes no other pods. The deadline of the node goes on, too.
pub fn unpause(
    snapshot: &Snapshot,
    managed: &ManagedNode<'_>,
    deployment: &DeploymentFacts,
    grant: &Grant,
    change: impl FnOnce(JsonPatch) -> JsonPatch,
) -> Value {
    let marked = grant.marks != Marks::default() || managed.holds_node();
    let phase = if marked { Phase::Updating } else { Phase::Degrading };
    let keep = managed.token.as_ref().is_some_and(|token| token.keep_annotation);
    let since = managed.token.as_ref().map_or(snapshot.now, |token| token.since);
    // A template that somebody has edited meanwhile would not be the ReplicaSet's.
    let patch =
        fenced(deployment, Some(&token(snapshot, grant.id, phase, since, keep))).test("/metadata/generation", deployment.generation);
    let mut patch = change(patch).remove("/spec/paused");
    if deployment.labels.contains_key(names::BREAKER_LABEL) {
        patch = patch.remove(&label(names::BREAKER_LABEL));
    }
    if let Some(settings) = managed.settings {
        patch = patch.add("/spec/replicas", settings.pods_per_node).add("/spec/strategy", render::strategy(settings));
    }
    patch.into_value()
}

/// `id.Closed`, and our annotations away.
pub fn close(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, grant: &Grant) -> Value {
    let keep = managed.token.as_ref().is_some_and(|token| token.keep_annotation);
    let since = not_before(snapshot.now, managed.pods);
    let mut patch = fenced(deployment, Some(&token(snapshot, grant.id, Phase::Closed, since, false)))
        .test("/metadata/generation", deployment.generation);
    for key in grant.marks.deployment_keys.iter().filter(|key| !keep && deployment.annotations.contains_key(key)) {
        patch = patch.remove(&annotation(key));
    }
    accept(patch, snapshot, managed, deployment).into_value()
}

/// Remembers what the API server made of our template, where that is something else.
fn accept(patch: JsonPatch, snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts) -> JsonPatch {
    match managed.settings.and_then(|settings| render::rewritten(snapshot, settings, managed.name, deployment)) {
        Some(hash) => patch.add(&label(names::ACCEPTED_LABEL), hash),
        None => patch,
    }
}

/// The first `Closed` of a new Deployment.
pub fn first_close(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, id: u64) -> Value {
    let patch = fenced(deployment, Some(&token(snapshot, id, Phase::Closed, snapshot.now, false)));
    accept(patch.test("/metadata/generation", deployment.generation), snapshot, managed, deployment).into_value()
}

/// The breaker opens: this many replicas.
pub fn open_breaker(deployment: &DeploymentFacts, breaker: Breaker, replicas: i32) -> Value {
    let at = label(names::BREAKER_LABEL);
    let old = deployment.labels.get(names::BREAKER_LABEL).map_or(Value::Null, |old| old.as_str().into());
    fenced(deployment, None)
        .test(&at, old)
        .add(&at, breaker.to_string())
        .test("/spec/replicas", deployment.replicas())
        .add("/spec/replicas", replicas)
        .into_value()
}

/// A field of the spec, tested to be as it was seen, where it is something else.
fn set(patch: JsonPatch, deployment: &DeploymentFacts, key: &str, value: Value) -> JsonPatch {
    let old = deployment.spec.get(key).unwrap_or(Value::Null);
    if render::contains(&old, &value) {
        return patch;
    }
    let at = format!("/spec/{key}");
    patch.test(&at, old).add(&at, value)
}

/// For how long pods must be ready, in this order: the API server checks the deadline against the new minReadySeconds.
fn min_ready(patch: JsonPatch, snapshot: &Snapshot, deployment: &DeploymentFacts) -> JsonPatch {
    let seconds = snapshot.resource.spec.min_ready_seconds;
    let deadline = render::progress_deadline(seconds).unwrap_or(DEFAULT_PROGRESS_DEADLINE);
    let patch = set(patch, deployment, "progressDeadlineSeconds", deadline.into());
    set(patch, deployment, "minReadySeconds", seconds.into())
}

/// What a node that waits for its pods would wait for in vain, or not for long enough; `None` when nothing is to be changed.
pub fn patience(snapshot: &Snapshot, deployment: &DeploymentFacts) -> Option<Value> {
    let patch = min_ready(JsonPatch::default(), snapshot, deployment);
    (!patch.is_empty()).then(|| fenced(deployment, None).then(patch).into_value())
}

/// Everything that needs no grant, in one patch; `None` when nothing is to be changed.
///
/// Labels and strategy always, template and replicas of a `New` Deployment, and replicas of one that has none.
pub fn direct(snapshot: &Snapshot, settings: &ResolvedSpec, managed: &ManagedNode<'_>, deployment: &DeploymentFacts) -> Option<Value> {
    // Of most nodes nothing is to be changed at most looks.
    let mut patch = JsonPatch::default();
    for (key, value) in render::labels(&snapshot.resource, &deployment.name, managed.name) {
        let old = deployment.labels.get(&key);
        if old != Some(&value) {
            let at = label(&key);
            patch = patch.test(&at, old.map_or(Value::Null, |old| old.as_str().into())).add(&at, value);
        }
    }
    if deployment.annotations.get(names::NODE_NAME_ANNOTATION).map(String::as_str) != Some(managed.name) {
        if deployment.annotations.is_empty() {
            patch = patch.add("/metadata/annotations", json!({}));
        }
        patch = patch.add(&annotation(names::NODE_NAME_ANNOTATION), managed.name);
    }
    patch = set(patch, deployment, "strategy", render::strategy(settings));
    if settings.pod_update != PodUpdate::Recreate {
        patch = set(patch, deployment, "revisionHistoryLimit", 0.into());
    }
    patch = min_ready(patch, snapshot, deployment);
    let new = managed.phase() == Some(Phase::New);
    let behind = deployment.revision() != settings.revision || managed.drifted;
    let shut = crate::node::breaker::open(deployment, snapshot.now).is_some();
    if new && behind {
        patch = patch.test("/metadata/generation", deployment.generation);
        patch = patch.add("/spec/template", render::template(&snapshot.resource, settings, &deployment.name, managed.name));
        if deployment.spec.has("paused") {
            patch = patch.remove("/spec/paused");
        }
    }
    let may_scale = new && (behind || !shut) || deployment.replicas() == 0 && !shut && !behind;
    if may_scale && managed.grant.is_none() && deployment.replicas() != settings.pods_per_node {
        patch = set(patch, deployment, "replicas", settings.pods_per_node.into());
    }
    let has_settled = managed.settled && deployment.replicas() == settings.pods_per_node;
    if deployment.labels.contains_key(names::BREAKER_LABEL) && (has_settled || new && behind) {
        patch = patch.remove(&label(names::BREAKER_LABEL));
    }
    (!patch.is_empty()).then(|| fenced(deployment, None).then(patch).into_value())
}
