//! Events on transitions: at most five per node update.

use super::reference;
use futures::StreamExt as _;
use k8s_controller::events::{Event, EventRecorder, EventType};
use kube::Resource;
use parking_lot::Mutex;
use planner::{Action, Plan, Reason, Snapshot, facts::TOO_MANY_RESOURCES, plan::Write};
use std::collections::BTreeMap;

/// Events of one write under way at once.
const PARALLEL: usize = 16;

/// What is wrong: condition or node, its reason and message.
type Problems = BTreeMap<String, (String, String)>;

/// Tells of what became of resources and their nodes.
#[derive(Debug)]
pub struct Announcer {
    recorder: EventRecorder,
    /// By namespace and name of the resource: condition or node, its reason and message.
    conditions: Mutex<BTreeMap<String, Problems>>,
}

impl Announcer {
    /// Publishes through this recorder.
    pub fn new(recorder: EventRecorder) -> Self {
        Self { recorder, conditions: Mutex::default() }
    }

    /// Tells what an action has done.
    pub async fn done(&self, snapshot: &Snapshot, action: &Action) {
        match action {
            Action::WriteStatus { granted, .. } => {
                // Side by side: the grants of a large fleet are many, and their nodes wait for the next pass.
                let events =
                    granted.iter().map(|node| self.normal(snapshot, "NodeGranted", "Grant", format!("node {node}: budget slot granted")));
                let events: Vec<_> = events.collect();
                futures::stream::iter(events).buffer_unordered(PARALLEL).collect::<()>().await;
            }
            Action::PatchDeployment { node, write, .. } | Action::PatchNode { node, write, .. } => {
                let mark = snapshot.resource.ledger().and_then(|ledger| ledger.grants.get(node)?.marks.node.as_ref());
                let (reason, action, note) = match write {
                    Write::Claim if mark.is_none() => ("NodeDetached", "Detach", "its health check answers 503 from now on".into()),
                    Write::Detach => {
                        let mark = mark.map(|mark| crds::names::mark_in_words(&mark.key)).unwrap_or_default();
                        ("NodeDetached", "Detach", format!("{mark} asks to take the node out"))
                    }
                    Write::Update => ("NodeUpdated", "Update", "updating its pods".into()),
                    Write::Pause => ("NodeUpdated", "Update", "updating its pods in place".into()),
                    Write::Recreate(why) => {
                        ("NodeUpdated", "Update", format!("re-creating its pods instead of updating them in place: {why}"))
                    }
                    Write::Close => ("NodeAttached", "Attach", "complete, back in rotation".into()),
                    Write::FirstClose => ("NodeJoined", "Attach", "new, in rotation".into()),
                    Write::Breaker => {
                        let note = format!("node {node}: the kubelet rejected its pods repeatedly; scaled down until the next try");
                        return self.warning(snapshot, "AdmissionRejected", "Breaker", note).await;
                    }
                    Write::Claim | Write::Resume | Write::Unmark | Write::Direct | Write::Fence | Write::Member | Write::Clean => return,
                };
                self.normal(snapshot, reason, action, format!("node {node}: {note}")).await;
            }
            _ => {}
        }
    }

    /// Tells of conditions that changed for the worse, and of nodes that failed.
    pub async fn decided(&self, snapshot: &Snapshot, plan: &Plan) {
        let mut now: Problems = plan
            .status
            .conditions
            .iter()
            .filter(|condition| is_problem(&condition.type_, &condition.status, &condition.reason))
            .map(|condition| (condition.type_.clone(), (condition.reason.clone(), condition.message.clone())))
            .collect();
        for (node, state) in &plan.node_states {
            if let Some(reason) = warning_of(&state.reason) {
                now.insert(format!("node/{node}"), (reason.to_owned(), format!("node {node}: {}", state.reason.message())));
            }
        }
        let news: Vec<_> = {
            let mut known = self.conditions.lock();
            let before = known.insert(snapshot.resource.key(), now.clone()).unwrap_or_default();
            now.into_iter().filter(|(key, (reason, _))| before.get(key).is_none_or(|(earlier, _)| earlier != reason)).collect()
        };
        for (key, (reason, message)) in news {
            let reason = if key.starts_with("node/") { &reason } else { warning_of_condition(&reason) };
            self.warning(snapshot, reason, "Decide", message).await;
        }
    }

    /// The resource, by namespace and name, is gone.
    pub fn forget(&self, key: &str) {
        self.conditions.lock().remove(key);
    }

    /// Tells of a failure that people must act on.
    pub async fn warning(&self, snapshot: &Snapshot, reason: &str, action: &str, note: String) {
        self.publish(snapshot, EventType::Warning, reason, action, note).await;
    }

    async fn normal(&self, snapshot: &Snapshot, reason: &str, action: &str, note: String) {
        self.publish(snapshot, EventType::Normal, reason, action, note).await;
    }

    async fn publish(&self, snapshot: &Snapshot, type_: EventType, reason: &str, action: &str, note: String) {
        tracing::info!(resource = %snapshot.resource.name, namespace = %snapshot.resource.namespace, reason, "{note}");
        publish(&self.recorder, &reference(snapshot), type_, (reason, action), note).await;
    }
}

/// Publishes an event with a reason and an action; a failure is logged and never holds anything up.
pub(crate) async fn publish<K>(recorder: &EventRecorder, about: &K, type_: EventType, (reason, action): (&str, &str), note: String)
where
    K: Resource<DynamicType = ()> + Sync,
{
    let event = Event { type_, reason: reason.into(), action: action.into(), note: Some(note), related: None };
    if let Err(error) = recorder.publish(about, &event).await {
        tracing::warn!(%error, reason, "event not published");
    }
}

/// What people are warned of about a node, as the reason of an event: a node with trouble has not failed yet.
fn warning_of(reason: &Reason) -> Option<&'static str> {
    match reason {
        Reason::DetachTimeout | Reason::DetachAborted | Reason::Failed { .. } => Some("NodeFailed"),
        Reason::PodsNotReady { trouble: Some(_), .. } | Reason::UpdatingInPlace { trouble: Some(_), .. } => Some(reason.word()),
        _ => None,
    }
}

/// The reason of the event that tells of a condition with this reason.
fn warning_of_condition(reason: &str) -> &str {
    match reason {
        "DetachTimeout" | "DetachAborted" | "MaxFailedNodes" => "RolloutHalted",
        "RevisionFailed" => "RolledBack",
        _ => reason,
    }
}

/// Whether a condition asks for somebody. What some of them say, events of nodes or other conditions say, too.
fn is_problem(type_: &str, status: &str, reason: &str) -> bool {
    // Of resources that are too many each says so in its status: events about thousands would cost the API server more.
    if reason == TOO_MANY_RESOURCES {
        return false;
    }
    match type_ {
        "Valid" => status == "False",
        // Health checkers that start, on a new node for example, ask for nobody.
        "HealthCheckersReady" => reason == "ServiceAccountLacksRights",
        "Available" | "Progressing" | "Paused" | "Degraded" | "Ready" | "Reconciling" => false,
        _ => status != "False",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conditions_that_need_action_are_told_as_warnings() {
        for (type_, status, reason) in [
            ("Ready", "True", "Complete"),
            ("Ready", "False", "RollingOut"),
            ("Reconciling", "True", "RollingOut"),
            ("HealthCheckersReady", "True", "HealthCheckersReady"),
            ("HealthCheckersReady", "False", "HealthCheckersNotReady"),
            ("Valid", "True", "Accepted"),
            ("Valid", "False", "TooManyResources"),
            ("Stalled", "True", "TooManyResources"),
            ("Stalled", "False", "RollingOut"),
        ] {
            assert!(!is_problem(type_, status, reason), "{type_}={status} {reason}");
        }
        for (type_, status, reason) in [
            ("Valid", "False", "InvalidSpec"),
            ("Valid", "False", "TooLarge"),
            ("Stalled", "True", "TooLarge"),
            ("Stalled", "True", "DetachTimeout"),
            ("RolledBack", "True", "RevisionFailed"),
            ("HealthCheckersReady", "False", "ServiceAccountLacksRights"),
        ] {
            assert!(is_problem(type_, status, reason), "{type_}={status} {reason}");
        }
    }

    #[test]
    fn whatever_halts_a_rollout_is_told_as_a_halt() {
        for reason in [Reason::DetachTimeout.word(), Reason::DetachAborted.word(), "MaxFailedNodes"] {
            assert_eq!(warning_of_condition(reason), "RolloutHalted", "{reason}");
        }
        assert_eq!(warning_of_condition("RevisionFailed"), "RolledBack");
        assert_eq!(warning_of_condition("InvalidSpec"), "InvalidSpec");
    }

    #[test]
    fn a_nodes_warning_names_its_pods_trouble_until_it_fails() {
        let trouble = Some(("ImagePullBackOff".to_owned(), "no such image".to_owned()));
        let waits = Reason::PodsNotReady { ready: 0, wanted: 2, trouble };
        assert_eq!(warning_of(&waits), Some("ImagePull"));
        assert_eq!(warning_of(&Reason::PodsNotReady { ready: 0, wanted: 2, trouble: None }), None);
        assert_eq!(warning_of(&Reason::Failed { with: "ImagePull", out_before: false, now: Box::new(waits) }), Some("NodeFailed"));
    }
}
