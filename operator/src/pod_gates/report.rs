//! What gates say of themselves: status, events, metrics.

use super::policy_sync::PolicyHandle;
use crate::{
    metrics::pod_gates::{PodGateMetrics, Pods},
    write::{self, Error},
};
use crds::{PodReadinessGate, PodReadinessGateStatus};
use futures::{StreamExt as _, stream};
use k8s_controller::events::{EventRecorder, EventType};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use planner::{
    gates_shared::{Key, accepted::SETTLING, conditions::repeats_ready},
    pod_gates::{
        Gate, World,
        decide::GateView,
        status::{ForbiddenWrites, TOO_MANY_GATES, status},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Statuses of gates of one namespace that are written at once: few, since what is left of the API server is for those who serve.
const AT_ONCE: usize = 4;

/// A status that is to be written.
pub struct StatusWrite {
    object: PodReadinessGate,
    uid: String,
    before: PodReadinessGateStatus,
    after: PodReadinessGateStatus,
}

/// Writes the status of gates that changed, tells of their transitions, and counts.
pub struct Reporter {
    client: Client,
    metrics: PodGateMetrics,
    recorder: Arc<EventRecorder>,
    due: bool,
    /// What was written last, by UID: the watch may not have shown it yet.
    reported: BTreeMap<String, PodReadinessGateStatus>,
    /// Namespaces whose gates are written just now.
    under_way: BTreeSet<String>,
}

/// What came of writing the status of gates of a namespace: of each gate, by UID, the new one, or nothing where it is to be tried again.
pub struct Written {
    namespace: String,
    gates: Vec<(String, Option<PodReadinessGateStatus>)>,
}

impl Reporter {
    /// Nothing was reported yet.
    pub fn new(client: Client, metrics: PodGateMetrics, recorder: EventRecorder) -> Self {
        Self { client, metrics, recorder: Arc::new(recorder), due: true, reported: BTreeMap::new(), under_way: BTreeSet::new() }
    }

    /// Something has changed that status tells.
    pub fn due(&mut self) {
        self.due = true;
    }

    /// Whether something has.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Writes that are due, `forbidden` being pods whose patch was refused, with the answer: of every gate that changed, its status
    /// before and after, by namespace. Namespaces that are written just now come later.
    pub fn changed(
        &mut self,
        world: &World,
        objects: &BTreeMap<Key, PodReadinessGate>,
        views: &BTreeMap<Key, BTreeMap<String, GateView>>,
        admission: &PolicyHandle,
        forbidden: &BTreeMap<Key, String>,
    ) -> BTreeMap<String, Vec<StatusWrite>> {
        self.due = false;
        let now = chrono::Utc::now().timestamp();
        let all = || world.gates.iter().chain(&world.surplus);
        let there: BTreeSet<_> = all().map(|(_, gate)| gate.uid.as_str()).collect();
        self.reported.retain(|uid, _| there.contains(uid.as_str()));
        let mut changes: BTreeMap<String, Vec<StatusWrite>> = BTreeMap::new();
        let mut shown = BTreeMap::new();
        for (key, gate) in all() {
            let Some(object) = objects.get(key).filter(|object| object.metadata.uid.as_ref() == Some(&gate.uid)) else { continue };
            // Of one that is surplus there are no views.
            let pods = || world.gates.contains_key(key).then(|| world.pods_of(gate)).into_iter().flatten();
            let seen = || pods().filter_map(|(pod, _)| Some((pod.1.as_str(), views.get(pod)?.get(&gate.name)?)));
            let refused = |pod: &str| forbidden.get(&(gate.namespace.clone(), pod.to_owned())).map(String::as_str);
            let forbidden = if forbidden.is_empty() { None } else { ForbiddenWrites::of(seen(), refused) };
            let before = self.reported.get(&gate.uid).or(object.status.as_ref()).cloned().unwrap_or_default();
            let after = status(world, gate, &before.conditions, seen(), admission.condition(gate), forbidden.as_ref(), now);
            if world.gates.contains_key(key) {
                shown.extend(counts(gate, &after));
            }
            if gate.deleting || after == before {
                continue;
            }
            if self.under_way.contains(&gate.namespace) {
                self.due = true;
            } else {
                changes.entry(gate.namespace.clone()).or_default().push(StatusWrite {
                    object: object.clone(),
                    uid: gate.uid.clone(),
                    before,
                    after,
                });
            }
        }
        // Of gates that are gone nothing is shown.
        self.metrics.pods.replace(&shown);
        changes
    }

    /// Writes the status of gates of a namespace, a few at once: other namespaces do not wait for it.
    pub fn write(&mut self, namespace: String, changes: Vec<StatusWrite>) -> impl Future<Output = Written> + use<> {
        self.under_way.insert(namespace.clone());
        let (client, recorder) = (self.client.clone(), Arc::clone(&self.recorder));
        async move {
            let writes = stream::iter(changes).map(|change| write(&client, &recorder, change)).buffer_unordered(AT_ONCE);
            Written { namespace, gates: writes.filter_map(std::future::ready).collect().await }
        }
    }

    /// Notes what came of it.
    pub fn written(&mut self, Written { namespace, gates }: Written) {
        self.under_way.remove(&namespace);
        for (uid, after) in gates {
            match after {
                Some(after) => drop(self.reported.insert(uid, after)),
                None => self.due = true,
            }
        }
    }
}

/// Writes a status, and tells of what is new in it; nothing where the gate is gone.
async fn write(client: &Client, recorder: &EventRecorder, change: StatusWrite) -> Option<(String, Option<PodReadinessGateStatus>)> {
    let StatusWrite { object, uid, before, after } = change;
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<PodReadinessGate> = Api::namespaced(client.clone(), &namespace);
    let body = json!({"metadata": {"uid": uid}, "status": replaced(&before, &after)});
    match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await.map_err(write::classify) {
        Ok(_) => {
            for condition in after.conditions.iter().filter(|condition| is_news(&before.conditions, condition)) {
                tell(recorder, &object, condition).await;
            }
            Some((uid, Some(after)))
        }
        // It is gone, or another one.
        Err(Error::Conflict) => None,
        Err(error) => {
            tracing::warn!(namespace, gate = name, %error, "status not written; trying again");
            Some((uid, None))
        }
    }
}

/// An event for a transition of the gate; none for each pod.
async fn tell(recorder: &EventRecorder, object: &PodReadinessGate, condition: &Condition) {
    let works = (condition.type_ == "Conflicting") != (condition.status == "True") || condition.reason == SETTLING;
    let type_ = if works { EventType::Normal } else { EventType::Warning };
    write::publish(recorder, object, type_, (&condition.reason, "Gate"), condition.message.clone()).await;
}

/// Its pods by what the condition says.
fn counts(gate: &Gate, status: &PodReadinessGateStatus) -> [(Pods, i64); 4] {
    let name = format!("{}/{}", gate.namespace, gate.name);
    let pods = &status.pods;
    [("true", pods.true_), ("false", pods.false_), ("unset", pods.unset), ("not_gated", pods.not_gated)]
        .map(|(state, count)| (Pods { gate: name.clone(), state }, i64::from(count)))
}

/// Whether a condition says something new that people are to be told; that nothing is wrong is no news at first. Of gates that are too many
/// each says so in its status: events about thousands would cost the API server more. So would one about each gate whenever an operator
/// starts, whose admission is not in force for the first seconds.
fn is_news(before: &[Condition], condition: &Condition) -> bool {
    if repeats_ready(condition) || condition.reason == TOO_MANY_GATES {
        return false;
    }
    let is_refused = |condition: &Condition| condition.reason.ends_with("Refused");
    match before.iter().find(|known| known.type_ == condition.type_) {
        Some(known) if condition.reason == SETTLING => is_refused(known),
        Some(known) if known.reason == SETTLING => is_refused(condition),
        Some(known) => (&known.status, &known.reason) != (&condition.status, &condition.reason),
        None => condition.reason != SETTLING && (condition.type_ == "Conflicting") == (condition.status == "True"),
    }
}

/// The body of a merge patch that leaves exactly `after`: lists and texts that became empty are not serialised, and would stay.
fn replaced(before: &PodReadinessGateStatus, after: &PodReadinessGateStatus) -> Value {
    let mut body = serde_json::to_value(after).unwrap_or_default(); // plain data: always serialisable
    if after.held.is_empty() && !before.held.is_empty() {
        body["held"] = json!(null);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::pod_readiness_gate::HeldPod;

    fn condition(type_: &str, status: &str, reason: &str) -> Condition {
        serde_json::from_value(json!({
            "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-11-22T12:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_changed_condition_is_news_and_initial_calm_is_not() {
        let ready = condition("Ready", "True", "NoPodHeld");
        assert!(!is_news(&[], &ready) && !is_news(&[], &condition("Conflicting", "False", "OnlyOne")));
        assert!(is_news(&[], &condition("Ready", "False", "SourceUnreadable")));
        assert!(is_news(&[], &condition("Conflicting", "True", "SameConditionType")));
        assert!(is_news(std::slice::from_ref(&ready), &condition("Ready", "True", "PodsHeld")));
        assert!(!is_news(std::slice::from_ref(&ready), &ready));
        assert!(!is_news(&[], &condition("Stalled", "True", "PatchForbidden")), "Ready has said so");
        assert!(!is_news(&[], &condition("Ready", "False", "TooManyGates")), "there may be thousands");
        let admission = |status, reason| condition("AdmissionActive", status, reason);
        let (active, settling, refused) =
            (admission("True", "Policy"), admission("False", "Settling"), admission("False", "PolicyRefused"));
        let missing = admission("False", "NoPolicies");
        for (before, after, news) in [
            (&active, &settling, false),
            (&settling, &active, false),
            (&missing, &settling, false),
            (&settling, &missing, false),
            (&settling, &refused, true),
            (&refused, &settling, true),
            (&active, &missing, true),
        ] {
            assert_eq!(is_news(std::slice::from_ref(before), after), news, "{} after {}", after.reason, before.reason);
        }
    }

    #[test]
    fn a_list_of_pods_that_became_empty_goes() {
        let before = PodReadinessGateStatus { held: vec![HeldPod::default()], ..PodReadinessGateStatus::default() };
        let body = replaced(&before, &PodReadinessGateStatus::default());
        assert!(body.as_object().unwrap().get("held").is_some_and(Value::is_null), "{body}");
    }
}
