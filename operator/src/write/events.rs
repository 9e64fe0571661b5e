//! Events on transitions: at most five per node update.

use super::reference;
use futures::StreamExt as _;
use k8s_controller::events::{Event, EventRecorder, EventType};
use parking_lot::Mutex;
use planner::{Action, Plan, Reason, Snapshot, plan::Write};
use std::collections::BTreeMap;

/// Events of one write under way at once.
const PARALLEL: usize = 16;

/// What is wrong: condition or node, its reason and message.
type News = BTreeMap<String, (String, String)>;

/// Publishes events; a failure is logged and never holds anything up.
#[derive(Debug)]
pub struct Announcer {
    recorder: EventRecorder,
    /// By namespace and name of the resource: condition or node, its reason and message.
    conditions: Mutex<BTreeMap<String, News>>,
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
                let grant = snapshot.resource.ledger().and_then(|ledger| ledger.grants.get(node));
                let detaches_by_node = grant.is_some_and(|grant| grant.marks.node.is_some());
                match write {
                    Write::Claim if !detaches_by_node => {
                        self.normal(snapshot, "NodeDetached", "Detach", format!("node {node}: its health check answers 503 from now on"))
                            .await;
                    }
                    Write::Detach => {
                        let mark = grant
                            .and_then(|grant| grant.marks.node.as_ref())
                            .map(|mark| crds::names::mark_in_words(&mark.key))
                            .unwrap_or_default();
                        self.normal(snapshot, "NodeDetached", "Detach", format!("node {node}: {mark} asks to take the node out")).await;
                    }
                    Write::Update => self.normal(snapshot, "NodeUpdated", "Update", format!("node {node}: updating its pods")).await,
                    Write::Pause => {
                        self.normal(snapshot, "NodeUpdated", "Update", format!("node {node}: updating its pods in place")).await;
                    }
                    Write::Recreate(why) => {
                        let note = format!("node {node}: re-creating its pods instead of updating them in place: {why}");
                        self.normal(snapshot, "NodeUpdated", "Update", note).await;
                    }
                    Write::Close => {
                        self.normal(snapshot, "NodeAttached", "Attach", format!("node {node}: complete, back in rotation")).await;
                    }
                    Write::FirstClose => self.normal(snapshot, "NodeJoined", "Attach", format!("node {node}: new, in rotation")).await,
                    Write::Breaker => {
                        self.warning(
                            snapshot,
                            "AdmissionRejected",
                            "Breaker",
                            format!("node {node}: the kubelet rejected its pods repeatedly; scaled down until the next try"),
                        )
                        .await;
                    }
                    Write::Claim | Write::Resume | Write::Unmark | Write::Direct | Write::Fence | Write::Member | Write::Clean => {}
                }
            }
            _ => {}
        }
    }

    /// Tells of conditions that changed for the worse, and of nodes that failed.
    pub async fn decided(&self, snapshot: &Snapshot, plan: &Plan) {
        let mut now: News = plan
            .status
            .conditions
            .iter()
            .filter(|condition| {
                (condition.type_ == "Valid") == (condition.status == "False")
                    && !matches!(condition.type_.as_str(), "Available" | "Progressing" | "Paused" | "Degraded")
            })
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
            let reason = match (key.starts_with("node/"), reason.as_str()) {
                (false, "DetachTimeout" | "MaxFailedNodes") => "RolloutHalted".to_owned(),
                (false, "RevisionFailed") => "RolledBack".to_owned(),
                _ => reason,
            };
            self.warning(snapshot, &reason, "Decide", message).await;
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
        let event = Event { type_, reason: reason.into(), action: action.into(), note: Some(note), related: None };
        if let Err(error) = self.recorder.publish(&reference(snapshot), &event).await {
            tracing::warn!(%error, reason, "event not published");
        }
    }
}

/// What people are warned of about a node, as the reason of an event: a node with trouble has not failed yet.
fn warning_of(reason: &Reason) -> Option<&'static str> {
    match reason {
        Reason::DetachTimeout | Reason::GivenUp | Reason::Failed { .. } => Some("NodeFailed"),
        Reason::PodsNotReady { trouble: Some(_), .. } | Reason::UpdatingInPlace { trouble: Some(_), .. } => Some(reason.word()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_pods_have_trouble_is_told_with_that_trouble_and_has_failed_when_its_time_is_over() {
        let trouble = Some(("ImagePullBackOff".to_owned(), "no such image".to_owned()));
        let waits = Reason::PodsNotReady { ready: 0, wanted: 2, trouble };
        assert_eq!(warning_of(&waits), Some("ImagePull"));
        assert_eq!(warning_of(&Reason::PodsNotReady { ready: 0, wanted: 2, trouble: None }), None);
        assert_eq!(warning_of(&Reason::Failed { with: "ImagePull", out_before: false, now: Box::new(waits) }), Some("NodeFailed"));
    }
}
