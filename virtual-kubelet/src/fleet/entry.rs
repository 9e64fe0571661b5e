//! One pod of a fleet: what the API shows, what the simulation says, and which writes are due; no I/O.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::slim::{SlimContainer, SlimPod};
use crate::pod::{is_shown, status_body};
use crate::process::status::Role;
use crate::simulated::{ContainerTemplate, Plan, SimulatedPod, Template, Whereabouts};

/// Grace period of a pod that names none.
const DEFAULT_GRACE_SECONDS: i64 = 30;
/// Conditions that are a kubelet's.
const CONDITIONS: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// A write that is due about a pod.
#[derive(Debug, PartialEq)]
pub(super) enum Write {
    /// A strategic merge patch of its status, and the sign of that status.
    Patch(Value, u64),
    /// It has ended and leaves the API.
    Delete(Value),
}

/// Where the pod's node is, and who it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub uid: &'a str,
    pub host_ip: &'a str,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
pub(super) struct Entry {
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub node: u32,
    pub pod_ip: Option<Ipv4Addr>,
    /// What rules and annotations say, whatever a call asks for.
    pub plan: Arc<Plan>,
    /// None for a pod that had ended, or never began, before it was first seen.
    pub machine: Option<SimulatedPod>,
    gates: Box<[Option<Box<str>>]>,
    deleting: bool,
    has_finalizers: bool,
    /// The API shows it as ended: its status is never written again.
    is_over: bool,
    /// It was asked to leave the API.
    pub is_removed: bool,
    /// Sign of the status that the API shows, as far as it is known to be what is wanted.
    shown: Option<u64>,
    /// Status of each of [`CONDITIONS`] in the API, and since when.
    conditions: [Option<(bool, Timestamp)>; CONDITIONS.len()],
    /// Version of our last write: what is older shows nothing new.
    pub written: u64,
    /// Version of the newest event that came while a write was under way.
    unjudged: u64,
    pub is_busy: bool,
    pub is_queued: bool,
    pub failures: u32,
    /// What tells apart the status that is being written.
    pub writing: Option<u64>,
    /// The same of one that the server does not take.
    unwritable: Option<u64>,
    pub not_before: Option<Instant>,
    /// When it became due that something is written.
    pub due_since: Option<Instant>,
    pub wake: Option<Instant>,
    /// When somebody last wanted to see a container of it.
    pub looked_at: Option<Instant>,
    /// Which list showed it last.
    pub list: u32,
}

pub(super) fn version_of(pod: &SlimPod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn grace(pod: &SlimPod) -> i64 {
    pod.metadata.deletion_grace_period_seconds.or(pod.spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE_SECONDS).max(0)
}

/// What of a pod's spec its simulation depends on.
pub(super) fn template_of(pod: &SlimPod) -> Template {
    let container = |container: &SlimContainer, role: Role| ContainerTemplate {
        name: container.name.as_str().into(),
        image: container.image.as_str().into(),
        role,
        restart_policy: container.restart_policy.as_deref().map(Into::into),
    };
    let init = pod.spec.init_containers.iter().map(|init| {
        let role = if init.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init };
        container(init, role)
    });
    let grace = pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    Template {
        containers: init.chain(pod.spec.containers.iter().map(|main| container(main, Role::Main))).collect(),
        restart_policy: pod.spec.restart_policy.as_deref().unwrap_or("Always").into(),
        readiness_gates: pod.spec.readiness_gates.iter().map(|gate| gate.condition_type.as_str().into()).collect(),
        grace_seconds: u32::try_from(grace).unwrap_or_default(),
        host_network: pod.spec.host_network,
    }
}

/// How a pod is to behave.
pub(super) struct Behaviour {
    pub seed: u64,
    pub plan: Arc<Plan>,
    pub template: Arc<Template>,
}

impl Entry {
    /// A pod that is seen for the first time. One that an earlier process ran goes on from where its status says that it is.
    pub fn new(pod: &SlimPod, namespace: Arc<str>, node: u32, behaviour: Behaviour, now: Timestamp) -> Self {
        let Behaviour { seed, plan, template } = behaviour;
        let asked = plan.clone();
        let is_over = is_terminal(&pod.status);
        // One that is to end before anything of it ran has nothing to end.
        let never_ran = pod.metadata.deletion_timestamp.is_some() && pod.status.container_statuses.is_none();
        let machine =
            (!is_over && !never_ran).then(|| SimulatedPod::adopt(seed, plan, template, pod.metadata.generation, &pod.status, now));
        Self {
            namespace,
            name: pod.metadata.name.as_deref().unwrap_or_default().into(),
            node,
            pod_ip: None,
            plan: asked,
            machine,
            gates: [].into(),
            deleting: false,
            has_finalizers: false,
            is_over,
            is_removed: false,
            shown: None,
            conditions: [None; CONDITIONS.len()],
            written: 0,
            unjudged: 0,
            is_busy: false,
            writing: None,
            unwritable: None,
            is_queued: false,
            failures: 0,
            not_before: None,
            due_since: None,
            wake: None,
            looked_at: None,
            list: 0,
        }
    }

    /// The API shows the pod; whether there may be something to write.
    pub fn see(&mut self, pod: &SlimPod, site: Site<'_>, plan: Arc<Plan>, template: Arc<Template>, now: Timestamp) -> bool {
        let version = version_of(pod);
        if version != 0 && version < self.written {
            return false;
        }
        self.has_finalizers = pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        self.is_over = is_terminal(&pod.status);
        self.deleting = pod.metadata.deletion_timestamp.is_some();
        // An answer to our own write may have come before the event that opened the gate.
        let mut changed = self.note_gates(pod, &template);
        if let Some(machine) = &mut self.machine {
            changed |= machine.advance(now);
            changed |= machine.update(plan, template, pod.metadata.generation, now);
            if self.deleting || self.is_over {
                let grace = Duration::from_secs(u64::try_from(grace(pod)).unwrap_or_default());
                changed |= machine.stop(now, grace);
            }
            changed |= machine.advance(now);
        }
        // Our own last write, and nobody's since.
        if version == self.written && version != 0 {
            return changed || self.wants_to_leave();
        }
        if self.is_busy {
            self.unjudged = self.unjudged.max(version);
            return changed;
        }
        self.note_conditions(pod.status.conditions.as_deref().unwrap_or_default());
        let wanted = self.status(site);
        let is_right = wanted.as_ref().is_none_or(|wanted| is_shown(&pod.status, wanted));
        self.shown = wanted.filter(|_| is_right).as_ref().map(sign);
        !is_right || self.wants_to_leave()
    }

    /// Whether a gate says something else than before.
    fn note_gates(&mut self, pod: &SlimPod, template: &Template) -> bool {
        let conditions = pod.status.conditions.as_deref().unwrap_or_default();
        let status =
            |gate: &str| conditions.iter().find(|condition| condition.type_ == gate).map(|condition| condition.status.as_str().into());
        let before = std::mem::replace(&mut self.gates, template.readiness_gates.iter().map(|gate| status(gate)).collect());
        before != self.gates
    }

    fn note_conditions(&mut self, conditions: &[PodCondition]) {
        for (known, type_) in self.conditions.iter_mut().zip(CONDITIONS) {
            let shown = conditions.iter().find(|condition| condition.type_ == type_);
            *known = shown.filter(|shown| shown.status != "Unknown").and_then(|shown| {
                let since = shown.last_transition_time.as_ref()?.0;
                Some((shown.status == "True", since))
            });
        }
    }

    fn wants_to_leave(&self) -> bool {
        self.deleting && !self.is_removed && self.machine.as_ref().is_none_or(SimulatedPod::is_over_for_good)
    }

    fn status(&self, site: Site<'_>) -> Option<PodStatus> {
        let machine = self.machine.as_ref().filter(|_| !self.is_over)?;
        let pod_ip = self.pod_ip.map(|address| address.to_string()).unwrap_or_default();
        Some(machine.status(&Whereabouts {
            namespace: &self.namespace,
            name: &self.name,
            uid: site.uid,
            host_ip: site.host_ip,
            pod_ip: &pod_ip,
            gates: &self.gates,
        }))
    }

    /// The write that is due now, if any.
    pub fn write(&self, site: Site<'_>, now: Timestamp) -> Option<Write> {
        if self.is_removed {
            return None;
        }
        let leaves = self.wants_to_leave();
        // The last status of a pod that is about to leave would be one more request for nobody, unless somebody keeps the
        // pod to read it.
        if leaves && (!self.has_finalizers || self.is_over) {
            return Some(Self::delete(site));
        }
        if let Some(status) = self.status(site) {
            let sign = sign(&status);
            // One that the server does not take keeps no pod in the API.
            if self.shown != Some(sign) && !(leaves && self.unwritable == Some(sign)) {
                return Some(Write::Patch(self.patch(site, &status, now), sign));
            }
        }
        leaves.then(|| Self::delete(site))
    }

    fn delete(site: Site<'_>) -> Write {
        Write::Delete(json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": { "uid": site.uid },
        }))
    }

    fn patch(&self, site: Site<'_>, status: &PodStatus, now: Timestamp) -> Value {
        let now = whole_second(now);
        status_body(Some(site.uid), status, now, |type_| {
            let index = CONDITIONS.iter().position(|known| *known == type_)?;
            let (is_true, since) = self.conditions[index]?;
            Some((if is_true { "True" } else { "False" }, Some(Time(since))))
        })
    }

    /// A patch was taken, in this version.
    pub fn patched(&mut self, body: &Value, sign: u64, version: u64) {
        self.is_busy = false;
        self.failures = 0;
        self.written = self.written.max(version);
        // What came in between was somebody else's, and may be in the way of ours.
        self.shown = (self.unjudged <= version || version == 0).then_some(sign);
        self.unjudged = 0;
        let written = body.pointer("/status/conditions").and_then(Value::as_array);
        let conditions = written.and_then(|list| serde_json::from_value::<Vec<PodCondition>>(Value::Array(list.clone())).ok());
        self.note_conditions(conditions.as_deref().unwrap_or_default());
        self.is_over = matches!(body.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
    }

    /// A write failed: what the API shows is unknown. With `refused` the server will not take this status.
    pub fn failed(&mut self, refused: bool) {
        self.is_busy = false;
        self.unwritable = self.writing.filter(|_| refused);
        self.failures += 1;
        self.shown = None;
        self.unjudged = 0;
    }
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Tells statuses apart.
fn sign(status: &PodStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
