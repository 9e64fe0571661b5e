//! What to do next for one pod, from what the API server shows and what the provider says; no I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

/// Grace period of a pod that names none.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Reason of a pod whose environment cannot be made (yet), and of the event that says so.
pub(super) const NOT_RESOLVED: &str = "EnvironmentNotResolved";

/// What is known of one pod.
#[derive(Clone, Debug, Default)]
pub struct PodRecord {
    /// As the API server last showed it; `None` when it has left the API.
    pub server: Option<Arc<Pod>>,
    /// As it was last given to the provider.
    pub given: Option<Arc<Pod>>,
    /// As it was given before that: what the provider tells may still be made of it.
    pub given_before: Option<Arc<Pod>>,
    /// Grace of the last order to end it.
    pub delete_sent: Option<i64>,
    /// Its grace is long over, and the provider has not told its end.
    pub overdue: bool,
    /// The provider does not know the pod (any more).
    pub lost: bool,
    /// The provider's latest status.
    pub status: Option<PodStatus>,
    /// Annotations that the provider wants on the pod; others stay.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Annotations that the provider last handed back as it was given them: it may keep a former pod for ever.
    pub handed_back: BTreeMap<String, String>,
    /// The provider has begun to end the pod by itself, with this grace in seconds.
    pub evicted: Option<i64>,
    /// The provider will never take the pod as it is here.
    pub refused: Option<Arc<Pod>>,
    /// The pod with which a creation failed: something of it may be there all the same.
    pub attempted: Option<Arc<Pod>>,
    /// The status that is being written, and the annotations that go with it.
    pub writing: Option<(PodStatus, Option<BTreeMap<String, String>>)>,
    /// A status that the API server does not take.
    pub unwritable: Option<PodStatus>,
    /// A status and annotations that the API server took and does not show, and the version that the pod got by that.
    pub unshown: Option<Unshown>,
}

/// What the API server took and does not show.
#[derive(Clone, Debug)]
pub struct Unshown {
    status: PodStatus,
    annotations: Option<BTreeMap<String, String>>,
    version: Option<String>,
}

/// What a provider tells of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodReport {
    pub status: PodStatus,
    pub annotations: Option<BTreeMap<String, String>>,
    pub evicted: Option<i64>,
}

/// The next thing to do for a pod.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Give the pod to the provider.
    Create(Arc<Pod>),
    /// Tell the provider what changed.
    Update(Arc<Pod>),
    /// Tell the provider to end it within so many seconds.
    Delete(Arc<Pod>, i64),
    /// Ask the provider whether it still has a pod that should have ended.
    Ask(Arc<Pod>),
    /// Write the provider's status: a strategic merge patch.
    Patch(Value),
    /// Ask the API to end, within so many seconds, a pod that the provider ends by itself.
    Evict(i64),
    /// Remove the ended pod from the API.
    Remove,
    /// Drop the record of a pod that has ended and left the API.
    Forget,
}

pub(super) fn is_terminal(status: Option<&PodStatus>) -> bool {
    matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
}

fn grace(pod: &Pod) -> i64 {
    let of_spec = || pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    pod.metadata.deletion_grace_period_seconds.or_else(of_spec).unwrap_or(DEFAULT_GRACE_SECONDS)
}

/// A status as the API server would show it: with times of whole seconds, nothing where there is only an empty text, and one
/// condition of each type. Otherwise it would never be the same as what the server shows, and be written for ever.
fn as_shown(status: PodStatus) -> PodStatus {
    let read = serde_json::to_value(&status).and_then(serde_json::from_value);
    let mut status: PodStatus = read.unwrap_or(status);
    for text in [&mut status.host_ip, &mut status.pod_ip, &mut status.reason, &mut status.message, &mut status.phase] {
        text.take_if(|text| text.is_empty());
    }
    if let Some(conditions) = &mut status.conditions {
        let mut latest: Vec<PodCondition> = Vec::with_capacity(conditions.len());
        for condition in conditions.drain(..) {
            match latest.iter_mut().find(|before| before.type_ == condition.type_) {
                Some(before) => *before = condition,
                None => latest.push(condition),
            }
        }
        *conditions = latest;
    }
    status
}

impl PodRecord {
    pub(super) fn take(&mut self, report: PodReport) {
        self.status = Some(as_shown(report.status));
        if let Some(told) = report.annotations {
            self.annotations = Some(self.own_annotations(told));
        }
        self.evicted = report.evicted.or(self.evicted);
    }

    /// Of the annotations that the provider tells, those that it has changed. The others it only hands back, as it was given
    /// them now, just before or before that, or as it has handed them back before: were they taken for its own, nobody else
    /// could ever change them again.
    fn own_annotations(&mut self, told: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let given = [&self.server, &self.given, &self.given_before];
        let was_given = |key: &String, value: &String| {
            let annotations = given.into_iter().flatten().filter_map(|pod| pod.metadata.annotations.as_ref());
            annotations.chain([&self.handed_back]).any(|annotations| annotations.get(key) == Some(value))
        };
        let is_own = |key: &String| self.annotations.as_ref().is_some_and(|own| own.contains_key(key));
        let (own, handed_back) = told.into_iter().partition::<BTreeMap<_, _>, _>(|(key, value)| is_own(key) || !was_given(key, value));
        self.handed_back.extend(handed_back);
        own
    }

    /// The provider has taken the pod like this.
    pub(super) fn give(&mut self, pod: Arc<Pod>) {
        self.given_before = self.given.replace(pod);
        (self.refused, self.attempted) = (None, None);
    }

    /// The next operation, or nothing when all is as it should be.
    pub fn next(&self, now: Timestamp) -> Option<Operation> {
        let mut ended = self.lost || is_terminal(self.status.as_ref());
        let Some(server) = &self.server else {
            return match (&self.given, &self.attempted) {
                (Some(given), _) if !ended => self.order_end(given).or_else(|| self.ask(given)),
                (None, Some(attempted)) if !ended && self.delete_sent.is_none() => self.order_end(attempted),
                _ => Some(Operation::Forget),
            };
        };
        let deleting = server.metadata.deletion_timestamp.is_some();
        let over = is_terminal(server.status.as_ref());
        match &self.given {
            None if deleting || over => {
                if self.attempted.is_some() && self.delete_sent.is_none() && !ended {
                    return self.order_end(server);
                }
                ended = true;
            }
            None => return (!self.lost && !self.is_refused(server)).then(|| Operation::Create(server.clone())),
            Some(_) if ended => {}
            Some(_) if deleting || over => {
                if let Some(order) = self.order_end(server).or_else(|| self.ask(server)) {
                    return Some(order);
                }
            }
            Some(given) if is_changed(given, server) && !self.is_refused(server) => return Some(Operation::Update(server.clone())),
            Some(_) => {}
        }
        // A status that cannot be written keeps no pod in the API.
        let leaving = self.evicted.is_some() || deleting && ended;
        if let Some(status) = self.status.as_ref().filter(|status| !over && !self.is_unshown(status, server))
            && !(leaving && self.unwritable.as_ref() == Some(status))
            && let Some(patch) = status_patch(server, status, self.annotations.as_ref(), now)
        {
            return Some(Operation::Patch(patch));
        }
        if let Some(grace) = self.evicted.filter(|_| !deleting) {
            return Some(Operation::Evict(grace));
        }
        (deleting && ended).then_some(Operation::Remove)
    }

    /// The server took it in this version of the pod, and shows something else.
    fn is_unshown(&self, status: &PodStatus, server: &Pod) -> bool {
        self.unshown.as_ref().is_some_and(|unshown| {
            unshown.status == *status && unshown.annotations == self.annotations && unshown.version == server.metadata.resource_version
        })
    }

    /// Something that its environment refers to was not there.
    pub(super) fn waits_for_references(&self) -> bool {
        let status = self.server.as_ref().and_then(|server| server.status.as_ref());
        self.given.is_none() && status.and_then(|status| status.reason.as_deref()) == Some(NOT_RESOLVED)
    }

    /// The provider has told that the pod ends, or has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.evicted.is_some() || is_terminal(self.status.as_ref())
    }

    /// A write of all that the provider has told so far begins. It may tell more before the answer is there.
    pub(super) fn write(&mut self) {
        self.writing = self.status.clone().map(|status| (status, self.annotations.clone()));
    }

    /// The server has answered the write that was under way with this pod.
    pub(super) fn written(&mut self, pod: &Pod, now: Timestamp) {
        let Some((status, annotations)) = self.writing.take() else { return };
        self.unwritable = None;
        let is_shown = status_patch(pod, &status, annotations.as_ref(), now).is_none();
        self.unshown = (!is_shown).then(|| Unshown { status, annotations, version: pod.metadata.resource_version.clone() });
    }

    /// The server has refused the write that was under way.
    pub(super) fn refused_write(&mut self) {
        self.unwritable = self.writing.take().map(|(status, _)| status);
    }

    fn is_refused(&self, server: &Pod) -> bool {
        self.refused.as_ref().is_some_and(|refused| !is_changed(refused, server))
    }

    fn order_end(&self, pod: &Arc<Pod>) -> Option<Operation> {
        let grace = grace(pod);
        self.delete_sent.is_none_or(|sent| grace < sent).then(|| Operation::Delete(pod.clone(), grace))
    }

    fn ask(&self, pod: &Arc<Pod>) -> Option<Operation> {
        self.overdue.then(|| Operation::Ask(pod.clone()))
    }
}

/// Whether a change of the pod is a reason not to wait for the next try of what failed.
pub(super) fn is_news(known: &Pod, now: &Pod) -> bool {
    let deletion = |pod: &Pod| (pod.metadata.deletion_timestamp.clone(), pod.metadata.deletion_grace_period_seconds);
    is_changed(known, now) || deletion(known) != deletion(now)
}

/// Whether both are the same but for environments: a provider may have been given the pod with a resolved one.
pub(super) fn differ_in_environment_alone(a: &Pod, b: &Pod) -> bool {
    let bare = |pod: &Pod| {
        let mut pod = pod.clone();
        if let Some(spec) = &mut pod.spec {
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                (container.env, container.env_from) = (None, None);
            }
            for container in spec.ephemeral_containers.iter_mut().flatten() {
                (container.env, container.env_from) = (None, None);
            }
        }
        pod
    };
    !is_changed(&bare(a), &bare(b))
}

/// Whether anything changed that a provider has to know. Readiness gates look at conditions of
/// others, so those count.
fn is_changed(given: &Pod, server: &Pod) -> bool {
    given.spec != server.spec
        || given.metadata.labels != server.metadata.labels
        || given.metadata.annotations != server.metadata.annotations
        || given.metadata.generation != server.metadata.generation
        || gate_states(given) != gate_states(server)
}

fn conditions(status: Option<&PodStatus>) -> &[PodCondition] {
    status.and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn gate_states(pod: &Pod) -> Vec<(&str, Option<&str>)> {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    gates
        .iter()
        .map(|gate| {
            let condition = conditions(pod.status.as_ref()).iter().find(|c| c.type_ == gate.condition_type);
            (gate.condition_type.as_str(), condition.map(|c| c.status.as_str()))
        })
        .collect()
}

/// The strategic merge patch that makes the server's status say what `wanted` says, or nothing when it
/// does already. Conditions that `wanted` lacks belong to others and survive.
/// Annotations go with the status, as far as they differ.
pub(super) fn status_patch(
    server: &Pod,
    wanted: &PodStatus,
    annotations: Option<&BTreeMap<String, String>>,
    now: Timestamp,
) -> Option<Value> {
    let empty = PodStatus::default();
    let current = server.status.as_ref().unwrap_or(&empty);
    let has = |key: &String| server.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    let annotations: BTreeMap<_, _> = annotations.into_iter().flatten().filter(|(key, value)| has(key) != Some(value)).collect();
    if is_shown(current, wanted) && annotations.is_empty() {
        return None;
    }
    let mut patch = status_body(server.metadata.uid.as_deref(), wanted, now, |type_| {
        let before = conditions(Some(current)).iter().find(|before| before.type_ == type_)?;
        Some((before.status.as_str(), before.last_transition_time.clone()))
    });
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = json!(annotations);
    }
    Some(patch)
}

/// The strategic merge patch of a whole status. `before` says what status a condition has now, and since when: its transition
/// time moves only when its status does.
pub(crate) fn status_body<'a>(
    uid: Option<&str>,
    wanted: &PodStatus,
    now: Timestamp,
    before: impl Fn(&str) -> Option<(&'a str, Option<Time>)>,
) -> Value {
    let mut status = wanted.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_transition_time = match before(&condition.type_) {
            Some((status, since)) if status == condition.status => since,
            _ => Some(Time(now)),
        };
    }
    let mut patch = json!({ "metadata": { "uid": uid }, "status": status });
    if wanted.reason.is_none() {
        patch["status"]["reason"] = Value::Null;
    }
    if wanted.message.is_none() {
        patch["status"]["message"] = Value::Null;
    }
    // Merged by address, those of before or of somebody else would stay, of which the server takes one of a kind alone.
    for list in ["hostIPs", "podIPs"] {
        if let Some(addresses) = patch["status"][list].as_array_mut() {
            addresses.push(json!({ "$patch": "replace" }));
        }
    }
    // Absent fields of a merged condition would keep their old value.
    for condition in patch["status"]["conditions"].as_array_mut().into_iter().flatten() {
        for field in ["reason", "message"] {
            if condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
    }
    patch
}

/// Whether `current` says all that `wanted` says. What it says beside that is of others, except for what a write of `wanted` takes
/// away.
pub(crate) fn is_shown(current: &PodStatus, wanted: &PodStatus) -> bool {
    matches!((serde_json::to_value(current), serde_json::to_value(wanted)), (Ok(current), Ok(wanted)) if says(&current, &wanted))
}

/// Fields that end with what they were said of: left out, they are written as absent.
const OF_THE_MOMENT: [&str; 5] = ["reason", "message", "state", "lastState", "started"];

fn says(current: &Value, wanted: &Value) -> bool {
    match wanted {
        _ if is_empty(wanted) => is_empty(current),
        Value::Object(wanted) => {
            wanted.iter().all(|(name, wanted)| says_in(name, &current[name], wanted))
                && OF_THE_MOMENT.iter().all(|name| wanted.contains_key(*name) || is_empty(&current[name]))
        }
        Value::Array(wanted) => {
            let current = items(current);
            current.len() == wanted.len() && current.iter().zip(wanted).all(|(current, wanted)| says(current, wanted))
        }
        _ => current == wanted,
    }
}

fn says_in(field: &str, current: &Value, wanted: &Value) -> bool {
    let by = |key: &str| {
        items(wanted).iter().all(|wanted| items(current).iter().any(|current| current[key] == wanted[key] && says(current, wanted)))
    };
    match field {
        // When a condition changed follows from what it is.
        "lastTransitionTime" | "lastProbeTime" => true,
        "state" | "lastState" => current == wanted || is_empty(current) && is_empty(wanted),
        // Merged by key, so that others may have theirs.
        "conditions" => by("type"),
        "resourceClaimStatuses" => by("name"),
        _ => says(current, wanted),
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Whether a server shows it as absent, or may.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(_) | Value::Bool(true) => false,
    }
}

/// Status of a pod that the provider did not take. One that is never restarted has failed by that.
pub(super) fn not_given_status(pod: &Pod, message: &str) -> PodStatus {
    let never = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
    let waiting = waiting_status("ProviderFailed", message);
    if never { PodStatus { phase: Some("Failed".into()), ..waiting } } else { waiting }
}

/// Status of a pod that waits for something.
pub(super) fn waiting_status(reason: &str, message: &str) -> PodStatus {
    let (reason, message) = (Some(reason.into()), Some(message.into()));
    PodStatus { phase: Some("Pending".into()), reason, message, ..PodStatus::default() }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
