//! The loop of one resource: observe, decide, act, and again.

use super::{
    Actor, Memory,
    account::MISSING_AGAIN,
    act::{is_checker, needed_by_checkers},
    ask_rights,
    health_ports::ask,
    try_template,
};
use crate::{
    backoff,
    gates_shared::GateState,
    metrics::Metrics,
    turns::Turns,
    watch::{Named, Observer},
    write::{Announcer, Error, still_foreign},
};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Client, ResourceExt as _, runtime::controller::Action as Requeue};
use planner::{
    Action, Plan, Reason, Snapshot, decide,
    facts::Resource,
    memory::Sights,
    plan::{NodeProgress, Write},
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// Writes to different objects under way at once.
const PARALLEL: usize = 16;
/// How long one pass goes on beginning writes: what it has not begun by then is decided anew, by what is seen then.
const LONGEST_PASS: Duration = Duration::from_secs(1);
/// Least time between two writes of status that change no grant.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How soon to look again after an object turned out to be newer than its watch had shown.
const AFTER_CONFLICT: Duration = Duration::from_millis(300);
/// First and longest wait after a failed pass; doubled in between.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));

/// Namespace and name of a resource.
type Key = (String, String);

/// What every pass shares.
pub struct Context {
    /// API client without retries of its own.
    pub client: Client,
    /// The view of the cluster.
    pub observer: Arc<Observer>,
    /// How gates bear on resources.
    pub gates: Arc<GateState>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Events.
    pub announcer: Announcer,
    /// Image for health checkers.
    pub health_checker_image: String,
    /// By namespace and name.
    pub memories: Mutex<BTreeMap<Key, Arc<Mutex<Memory>>>>,
    /// Namespaces take turns.
    pub turns: Turns,
    /// Passes in a row that failed and brought nothing about, by namespace and name.
    pub failures: parking_lot::Mutex<BTreeMap<Key, u32>>,
}

/// A pass failed; it is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failed(String);

/// One pass over one resource.
pub async fn reconcile(resource: Arc<Named>, context: Arc<Context>) -> Result<Requeue, Failed> {
    let key = (resource.namespace().unwrap_or_default(), resource.name_any());
    let turn = match context.turns.take(&key.0) {
        Ok(turn) => turn,
        Err(again) => return Ok(Requeue::requeue(again)),
    };
    let memory = Arc::clone(context.memories.lock().await.entry(key.clone()).or_default());
    let mut memory = memory.lock().await;
    let (now, at) = (chrono::Utc::now().timestamp(), Instant::now());
    if !memory.is_caught_up(&context.observer) {
        // The watch that lags wakes us; the time is for one that never does.
        tracing::debug!("waiting to see own writes");
        return Ok(Requeue::requeue(Duration::from_secs(1)));
    }
    if context.observer.lacks_spec(&key.0, &key.1) {
        context.observer.read_spec(&context.client, &key.0, &key.1).await.map_err(|error| Failed(format!("reading the spec: {error}")))?;
        return Ok(Requeue::requeue(Duration::from_secs(1)));
    }
    let Some(mut snapshot) = context.observer.snapshot(&key.0, &key.1, now, &context.health_checker_image) else {
        if let Some(error) = context.observer.unreadable(&key.0, &key.1) {
            tracing::error!(namespace = key.0, name = key.1, error, "the resource cannot be decoded; its last good state keeps running");
        }
        return Ok(Requeue::requeue(Duration::from_secs(5)));
    };
    if memory.uid != snapshot.resource.uid {
        // A resource that was deleted and made again under its name is another one.
        *memory = Memory::of(&snapshot.resource.uid);
        return Ok(Requeue::requeue(Duration::ZERO));
    }
    if memory.written_generations.len() > snapshot.deployments.len() {
        memory.forget_deployments(&snapshot.deployments.values().map(|deployment| deployment.uid.as_str()).collect());
    }
    memory.forget_refusals(|node| snapshot.nodes.contains_key(node) || snapshot.deployments.contains_key(node));
    if relist_for_rebuild(&context, &mut memory, &snapshot).await? {
        return Ok(Requeue::requeue(Duration::ZERO));
    }
    memory.complete(&mut snapshot);
    if !memory.foreign_names.is_empty() {
        let still = still_foreign(&context.client, &snapshot, &memory.foreign_names).await;
        // The snapshot knows further strangers, by their labels: only those that have gone leave it.
        snapshot.foreign_names.retain(|name| still.contains(name) || !memory.foreign_names.contains(name));
        memory.foreign_names = still;
    }
    if !try_template(&context.client, &mut memory, &mut snapshot).await {
        return Ok(Requeue::requeue(AFTER_CONFLICT));
    }
    ask_rights(&context.client, &mut memory, &mut snapshot).await;
    let labels = &snapshot.resource.spec.template["metadata"]["labels"];
    let Some(links) = context.gates.links(&key.0, &key.1, labels) else {
        // What the gates are decides which taints keep no pod away; the first list of gates wakes us.
        return Ok(Requeue::requeue(Duration::from_secs(1)));
    };
    snapshot.gates = links;
    snapshot.node_readiness = context.gates.status(&key.0, &key.1);
    snapshot.watched = memory.watched(now, at);
    snapshot.clocks = std::mem::take(&mut memory.clocks);
    snapshot.sights = std::mem::take(&mut memory.sights);
    let mut plan = decide(&snapshot);
    if !plan.questions.is_empty() {
        snapshot.answers = ask(&plan.questions, &turn.asking).await;
        plan = decide(&snapshot);
    }
    memory.clocks = std::mem::take(&mut plan.clocks);
    memory.sights = std::mem::take(&mut plan.sights);
    // Of a large fleet that is megabytes, and writes take a while.
    snapshot.sights = Sights::default();
    context.metrics.decided(&format!("{}/{}", key.0, key.1), Some(&plan));
    if let Some(replicas) = plan.replicas.take() {
        context.gates.replicas(&key, replicas);
    }
    note_phases(&context.metrics, &mut memory, &plan);
    name_rivals(&snapshot, &plan);
    tracing::debug!(actions = ?plan.actions.iter().map(brief).collect::<Vec<_>>(), recheck_at = plan.recheck_at, "decided");
    let outcome = carry_out(&context, &snapshot, &plan, &mut memory).await;
    context.announcer.decided(&snapshot, &plan).await;
    context.metrics.passed(outcome.is_ok());
    let soon = outcome?;
    context.failures.lock().remove(&key);
    let due = plan.recheck_at.map_or(300, |at| at.saturating_sub(now).max(1));
    // A health checker may see the same write a moment after us.
    let contradicted =
        plan.node_states.values().any(|state| matches!(state.reason, Reason::StillHealthy { .. } | Reason::StillUnhealthy { .. }));
    let due = if contradicted { AFTER_CONFLICT } else { Duration::from_secs(due.unsigned_abs()) };
    // Nothing tells when somebody binds the account.
    let due = if snapshot.account_lacks.is_empty() { due } else { due.min(MISSING_AGAIN) };
    Ok(Requeue::requeue(soon.map_or(due, |soon| soon.min(due))))
}

/// Says in the log who of other namespaces has what the resource asks for: its status must not, for whoever reads that may read nothing
/// there.
fn name_rivals(snapshot: &Snapshot, plan: &Plan) {
    let Resource { namespace, name, spec, status, .. } = &snapshot.resource;
    let known = |conflict: &Condition| status.iter().flat_map(|status| &status.conditions).any(|known| known.message == conflict.message);
    let is_conflict = |condition: &&Condition| ["HealthCheckPortConflict", "DetachAnnotationConflict"].contains(&condition.type_.as_str());
    let conflicts = plan.status.conditions.iter().filter(is_conflict);
    for conflict in conflicts.filter(|conflict| conflict.message.contains("of another namespace") && !known(conflict)) {
        let resources: Vec<_> = snapshot.others.iter().map(|other| &other.key).collect();
        let services: Vec<_> = spec.health_ports().filter_map(|port| snapshot.service_ports.get(&port)).collect();
        tracing::info!(namespace, name, ?resources, ?services, conflict = conflict.message, "others claim the same of a node");
    }
}

/// A resource is gone: so is what was remembered of it.
pub async fn forget(context: &Context, namespace: &str, name: &str) {
    let display = format!("{namespace}/{name}");
    context.metrics.decided(&display, None);
    context.announcer.forget(&display);
    let key = (namespace.to_owned(), name.to_owned());
    context.memories.lock().await.remove(&key);
    context.failures.lock().remove(&key);
}

/// How long to wait after a failed pass.
#[expect(clippy::needless_pass_by_value, reason = "the signature that the controller calls")]
pub fn back_off(resource: Arc<Named>, error: &Failed, context: Arc<Context>) -> Requeue {
    let key = (resource.namespace().unwrap_or_default(), resource.name_any());
    let mut failures = context.failures.lock();
    let failed = failures.entry(key.clone()).or_default();
    let wait = backoff::pause(BACKOFF, *failed);
    *failed = failed.saturating_add(1);
    tracing::warn!(namespace = key.0, name = key.1, %error, again_in = ?wait, "pass failed");
    Requeue::requeue(wait)
}

/// While a ledger is rebuilt, the cache is replaced once by a consistent list; `true` when that happened.
async fn relist_for_rebuild(context: &Context, memory: &mut Memory, snapshot: &Snapshot) -> Result<bool, Failed> {
    let ledger = snapshot.resource.ledger();
    let rebuilding = ledger.and_then(|ledger| ledger.rebuilding);
    if ledger.is_none() || rebuilding.is_some() {
        // Ids of a ledger that was lost lie below its fence: a Deployment made with one could be claimed by a stale operator.
        memory.reserved.clear();
    }
    if rebuilding.is_none() || memory.listed_for == rebuilding {
        return Ok(false);
    }
    context
        .observer
        .relist(&context.client, &snapshot.resource.namespace)
        .await
        .map_err(|error| Failed(format!("consistent list: {error}")))?;
    memory.listed_for = rebuilding;
    Ok(true)
}

/// First all writes except applies of health-checker `DaemonSets`, status and finalizers, 16 at once; then those three, one by one, in the
/// plan's order.
///
/// Returns how soon to look again, when that is sooner than the plan says.
async fn carry_out(context: &Context, snapshot: &Snapshot, plan: &Plan, memory: &mut Memory) -> Result<Option<Duration>, Failed> {
    let status_written = memory.status_written;
    let fresh = memory.nothing_is_stale();
    let stale: Vec<_> = plan.actions.iter().map(|action| if fresh { None } else { stale_for(action, snapshot, memory) }).collect();
    let mut soon = stale.iter().flatten().min().copied();
    let actions = || plan.actions.iter().zip(&stale).filter(|(_, stale)| stale.is_none()).map(|(action, _)| action);
    let memory = Mutex::new(memory);
    let actor = Actor { client: &context.client, metrics: &context.metrics, announcer: &context.announcer, snapshot };
    let last = |action: &&Action| matches!(action, Action::WriteStatus { .. } | Action::SetFinalizers(_)) || is_checker(action);
    let first = {
        let mut actions: Vec<_> = actions().filter(|action| !last(action)).collect();
        let mut memory = memory.lock().await;
        let next = memory.next.take().and_then(|next| actions.iter().position(|action| brief(action) == next));
        actions.rotate_left(next.unwrap_or(0));
        // Every moment more, a kubelet refuses another pod.
        actions.sort_by_key(|action| !matches!(action, Action::PatchDeployment { write: Write::Breaker, .. }));
        actions
    };
    let until = Instant::now() + LONGEST_PASS;
    let attempts: Vec<_> = first.iter().map(|action| attempt(&actor, action, &memory, until)).collect();
    let begun: Vec<_> = futures::stream::iter(attempts).buffer_unordered(PARALLEL).collect().await;
    let mut results: Vec<_> = begun.into_iter().flatten().collect();
    let later = first.get(results.len()).map(|action| brief(action));
    if later.is_some() {
        soon = Some(Duration::ZERO);
    }
    memory.lock().await.next.clone_from(&later);
    let is_right = |action: &Action| matches!(action, Action::Apply { .. }) && !is_checker(action);
    let wanted = plan.actions.iter().filter(|action| is_right(action)).count();
    let has_rights = results.iter().filter(|(action, result)| is_right(action) && result.is_ok()).count() == wanted;
    for action in actions().filter(last) {
        let since = status_written.map(|at| at.elapsed());
        match action {
            Action::WriteStatus { urgent: false, .. } if since.is_some_and(|since| since < STATUS_EVERY) => {
                let due = STATUS_EVERY.saturating_sub(since.unwrap_or_default());
                soon = Some(soon.map_or(due, |soon| soon.min(due)));
            }
            // A health checker begins by asking for what it has a right to see.
            Action::Apply { .. } if !has_rights => {}
            // The finalizer goes only when everything before it went well.
            Action::SetFinalizers(_)
                if snapshot.resource.deleting && (later.is_some() || results.iter().any(|(_, result)| result.is_err())) => {}
            _ => results.push((action, actor.act(action, &memory).await)),
        }
    }
    if results.iter().any(|(_, result)| result.is_ok()) {
        // The API server takes writes: what it refuses now and then is to slow down nothing else.
        context.failures.lock().remove(&(snapshot.resource.namespace.clone(), snapshot.resource.name.clone()));
    }
    let failures: Vec<_> = results.into_iter().filter_map(|(action, result)| result.err().map(|error| (action, error))).collect();
    let mut memory = memory.lock().await;
    for (action, _) in failures.iter().filter(|(_, error)| matches!(error, Error::Conflict)) {
        if let Some(basis) = basis(action, snapshot) {
            memory.note_stale(brief(action), basis);
        }
    }
    drop(memory);
    report(context, snapshot, &failures).await;
    // A refusal for a node, or of what health checkers need, is remembered, and in the status: all else goes on.
    let remembered = |action: &Action, error: &Error| {
        matches!(error, Error::Known) || matches!(error, Error::Invalid(_) | Error::Forbidden(_)) && is_remembered(action)
    };
    if failures.iter().any(|(action, error)| remembered(action, error) && !matches!(error, Error::Known)) {
        // The status is to say so.
        soon = Some(AFTER_CONFLICT);
    }
    let failures: Vec<_> = failures.into_iter().filter(|(action, error)| !remembered(action, error)).collect();
    let conflicts = failures.iter().all(|(_, error)| matches!(error, Error::Conflict | Error::Taken(_)));
    match failures.first() {
        None => Ok(soon),
        Some(_) if conflicts => Ok(Some(AFTER_CONFLICT)),
        Some((_, error)) => Err(Failed(error.to_string())),
    }
}

/// What the API server compares before it takes a write: as long as we see nothing else, it would refuse it again.
fn basis(action: &Action, snapshot: &Snapshot) -> Option<String> {
    match action {
        Action::WriteStatus { .. } | Action::SetFinalizers(_) => Some(snapshot.resource.resource_version.clone()),
        Action::PatchDeployment { patch, .. }
        | Action::PatchNode { patch, .. }
        | Action::PatchReplicaSet { patch, .. }
        | Action::PatchPod { patch, .. } => {
            let tests = patch.as_array()?.iter().filter(|operation| operation["op"] == "test");
            Some(tests.map(ToString::to_string).collect())
        }
        _ => None,
    }
}

fn stale_for(action: &Action, snapshot: &Snapshot, memory: &Memory) -> Option<Duration> {
    memory.stale_for(&brief(action), &basis(action, snapshot)?)
}

/// Carries out an action, unless it is too late to begin.
fn attempt<'a>(
    actor: &'a Actor<'_>,
    action: &'a Action,
    memory: &'a Mutex<&mut Memory>,
    until: Instant,
) -> BoxFuture<'a, Option<(&'a Action, Result<(), Error>)>> {
    async move {
        if Instant::now() >= until {
            return None;
        }
        Some((action, actor.act(action, memory).await))
    }
    .boxed()
}

async fn report(context: &Context, snapshot: &Snapshot, failures: &[(&Action, Error)]) {
    for (action, error) in failures {
        match error {
            Error::Known => {}
            Error::Conflict | Error::Taken(_) => tracing::info!(what = brief(action), %error, "not written; deciding again"),
            Error::Transient(_) => tracing::warn!(what = brief(action), %error, "not written; trying again"),
            Error::Foreign(_) | Error::Forbidden(_) | Error::Invalid(_) => {
                context.announcer.warning(snapshot, "WriteRefused", "Act", format!("{}: {error}", brief(action))).await;
            }
        }
    }
}

/// Its refusal is remembered.
fn is_remembered(action: &Action) -> bool {
    crate::write::written_for(action).is_some() || needed_by_checkers(action).is_some()
}

/// An action in a few words, for the log.
fn brief(action: &Action) -> String {
    match action {
        Action::WriteStatus { .. } => "status".into(),
        Action::SetFinalizers(_) => "finalizers".into(),
        Action::CreateDeployment { name, .. } => format!("create Deployment {name}"),
        Action::PatchDeployment { name, write, .. } => format!("{} Deployment {name}", write.as_str()),
        Action::RecordRevision { name, .. } => format!("record ControllerRevision {name}"),
        Action::RenumberRevision { name, .. } => format!("renumber ControllerRevision {name}"),
        Action::DeleteDeployment { name, .. } => format!("delete Deployment {name}"),
        Action::PatchNode { node, write, .. } => format!("{} Node {node}", write.as_str()),
        Action::Reclaim { name, .. } => format!("reclaim Deployment {name}"),
        Action::Apply { object, .. } => format!("apply {}", object.key()),
        Action::Delete { object, .. } => format!("delete {}", object.key()),
        Action::DeletePod { name, .. } => format!("delete pod {name}"),
        Action::CreatePod { name, .. } => format!("create pod {name}"),
        Action::PatchReplicaSet { name, .. } => format!("update in place ReplicaSet {name}"),
        Action::PatchPod { name, .. } => format!("update in place pod {name}"),
        Action::PatchPodStatus { name, .. } => format!("gate pod {name}"),
    }
}

/// Measures how long nodes stay in a phase.
fn note_phases(metrics: &Metrics, memory: &mut Memory, plan: &Plan) {
    let phases = std::mem::take(&mut memory.phases);
    for (node, (phase, since)) in &phases {
        if plan.node_states.get(node).is_none_or(|state: &NodeProgress| state.phase != *phase) {
            metrics.spent(*phase, since.elapsed().as_secs_f64());
        }
    }
    for (node, state) in &plan.node_states {
        let since = phases.get(node).filter(|(phase, _)| *phase == state.phase).map_or_else(Instant::now, |(_, since)| *since);
        memory.phases.insert(node.clone(), (state.phase, since));
    }
}

#[cfg(test)]
mod tests;
