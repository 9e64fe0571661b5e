//! Whether a node has what a gate asks for.

use super::{
    in_force,
    record::{Cause, Record},
    world::{Gate, Pod, PodSource, World, daemon_set_pods, pod_source, short},
};
use crate::{
    facts::{NodeFacts, scheduling},
    gates_shared::{Key, ReplicaHealth, Source},
};
use crds::UnixSeconds;
use crds::node_readiness_gate::{
    AnnotationRequirement, ConditionRequirement, ConditionStatus, DaemonSetRequirement, DuringUpdate, Effect, IngressDaemonSetRequirement,
    PodsRequirement, Policy, Requirement,
};
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::util::intstr::IntOrString};

/// How long `Hold` holds by default, in seconds: as long as a node may take by default.
const MAX_HOLD: i64 = 600;
/// Clocks of nodes and of the operator may differ by this much, in seconds: as for a detacher's timestamp.
const SKEW: i64 = 5;
/// Seconds within which a kubelet that started again has checked each pod of its node.
const RECHECKED: i64 = 120;

/// Whether a node has what is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequirementVerdict {
    /// The node meets the requirement.
    Met,
    /// The node does not meet the requirement, and why.
    Unmet(String),
    /// The question does not apply to the node.
    NotApplicable,
    /// It cannot be seen, and why: nothing changes.
    NoData(String),
}

impl RequirementVerdict {
    /// The requirement no longer holds the node.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Met | Self::NotApplicable)
    }
}

/// What is found for one gate on one node.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Verdict over all requirements of the gate.
    pub verdict: RequirementVerdict,
    /// Requirements that are not met, by name, with the reason.
    pub blocked: Vec<(String, String)>,
    /// It is not met because the operator itself updates the node, and the gate asks for the taint then.
    pub planned: bool,
    /// The taint would evict pods that are waited for: the requirement that names them, with the reason.
    pub evicts: Option<(String, String)>,
    /// When to look again although nothing changes.
    pub recheck_at: Option<UnixSeconds>,
}

/// Looks at all requirements of a gate.
pub fn find(world: &World, gate: &Gate, node: &Subject<'_>) -> Finding {
    let mut recheck_at: Option<UnixSeconds> = None;
    let mut verdicts = Vec::with_capacity(gate.spec.requirements.len());
    for requirement in &gate.spec.requirements {
        let (verdict, recheck) = evaluate(world, requirement, node);
        recheck_at = [recheck_at, recheck].into_iter().flatten().min();
        verdicts.push((requirement.name.as_str(), verdict));
    }
    let verdict = together(gate.spec.policy, &verdicts);
    let believed_at = started(node).and_then(|(_, believed_at)| believed_at).filter(|at| *at > node.now && !verdict.passes());
    recheck_at = [recheck_at, believed_at].into_iter().flatten().min();
    let planned = gate.spec.requirements.iter().filter_map(|wanted| wanted.ingress_daemon_set.as_ref()).any(|wanted| {
        wanted.during_update == DuringUpdate::Taint
            && health(world, wanted, node).is_some_and(|found| found.chosen && found.updating_since.is_some())
    });
    let planned = planned && matches!(verdict, RequirementVerdict::Unmet(_));
    let blocked = verdicts.into_iter().filter_map(|(name, verdict)| match verdict {
        RequirementVerdict::Unmet(reason) | RequirementVerdict::NoData(reason) => Some((name.to_owned(), reason)),
        RequirementVerdict::Met | RequirementVerdict::NotApplicable => None,
    });
    let blocked = if verdict.passes() { Vec::new() } else { blocked.collect() };
    let evicts = if gate.spec.taint.effect == Effect::NoExecute { evicts(world, gate, node) } else { None };
    Finding { verdict, blocked, planned, evicts, recheck_at }
}

/// Pods that do not bear the taint would be its first victims. Where it is not known, a node that works is left alone.
fn evicts(world: &World, gate: &Gate, node: &Subject<'_>) -> Option<(String, String)> {
    let works = node.record.map_or(!node.is_new || in_force::is_up(node.facts), |record| !record.is_held());
    gate.spec.requirements.iter().find_map(|requirement| {
        let wanted = requirement.ingress_daemon_set.as_ref()?;
        let of = format!("pods of IngressDaemonSet {}/{}", wanted.namespace, wanted.name);
        let why = match health(world, wanted, node) {
            Some(found) if found.evicted_by.contains(&gate.spec.taint) => {
                format!("the taint would evict {of} on the node: only pods of the next revision tolerate the taint")
            }
            None if works => format!("waiting to see whether {of} on the node tolerate the taint"),
            Some(_) | None => return None,
        };
        Some((requirement.name.clone(), why))
    })
}

fn together(policy: Policy, verdicts: &[(&str, RequirementVerdict)]) -> RequirementVerdict {
    let first =
        |wanted: fn(&RequirementVerdict) -> bool| verdicts.iter().find(|(_, verdict)| wanted(verdict)).map(|(_, verdict)| verdict.clone());
    let met = || first(|verdict| *verdict == RequirementVerdict::Met);
    let unmet = || first(|verdict| matches!(verdict, RequirementVerdict::Unmet(_)));
    let no_data = || first(|verdict| matches!(verdict, RequirementVerdict::NoData(_)));
    match policy {
        Policy::AllOf => unmet().or_else(no_data).or_else(met),
        Policy::AnyOf => met().or_else(no_data).or_else(unmet),
    }
    .unwrap_or(RequirementVerdict::NotApplicable)
}

/// A node, as requirements see it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Facts of the Node object.
    pub facts: &'a NodeFacts,
    /// Record of the gate on the node.
    pub record: Option<&'a Record>,
    /// What other gates recorded of it, by their UID.
    pub records: &'a std::collections::BTreeMap<String, Record>,
    /// It came while the gate was in force, see [`in_force::is_new`].
    pub is_new: bool,
    /// Time of the decision.
    pub now: UnixSeconds,
}

impl Subject<'_> {
    /// Since when a record says what it says, unix seconds.
    pub fn since(&self, record: &Record) -> UnixSeconds {
        if record.time == 0 { self.facts.created } else { record.time }
    }
}

fn evaluate(world: &World, requirement: &Requirement, node: &Subject<'_>) -> (RequirementVerdict, Option<UnixSeconds>) {
    if let Some(wanted) = &requirement.condition {
        return condition(wanted, node);
    }
    let verdict = if let Some(wanted) = &requirement.pods {
        pod_source(requirement).map_or_else(unknown, |source| pods(world, &source, wanted, node))
    } else if let Some(wanted) = &requirement.daemon_set {
        daemon_set(world, wanted, node)
    } else if let Some(wanted) = &requirement.ingress_daemon_set {
        return ingress_daemon_set(world, wanted, node);
    } else if let Some(wanted) = &requirement.csi_driver {
        csi_driver(world, &wanted.name, node)
    } else if let Some(wanted) = &requirement.gate {
        other_gate(world, &wanted.name, node)
    } else if let Some(wanted) = &requirement.node_annotation {
        if has_annotation(wanted, |key| node.facts.annotations.get(key).map(String::as_str)) {
            RequirementVerdict::Met
        } else {
            RequirementVerdict::Unmet(format!("the Node has no annotation {}", shown(wanted)))
        }
    } else {
        unknown()
    };
    (verdict, None)
}

/// A kind that a newer version of the definition knows.
fn unknown() -> RequirementVerdict {
    RequirementVerdict::NoData("update the operator: this release does not know the kind of the requirement".into())
}

fn shown(annotation: &AnnotationRequirement) -> String {
    annotation.value.as_ref().map_or_else(|| annotation.key.clone(), |value| format!("{}={value}", annotation.key))
}

fn has_annotation<'a>(wanted: &AnnotationRequirement, annotation: impl Fn(&str) -> Option<&'a str>) -> bool {
    annotation(&wanted.key).is_some_and(|found| wanted.value.as_deref().is_none_or(|value| value == found))
}

/// How often a condition that is too old is looked at, in seconds: as often as a kubelet says its own.
const LOOK_FOR_HEARTBEAT: i64 = 10;

/// Looked up by its type: a condition of another type with a newer heartbeat says nothing about it.
fn condition(wanted: &ConditionRequirement, node: &Subject<'_>) -> (RequirementVerdict, Option<UnixSeconds>) {
    let found = node.facts.conditions.iter().find(|condition| &*condition.type_ == wanted.type_.as_str());
    let (says, recheck) = match (found, &wanted.max_age) {
        (None, _) => (wanted.default_.unwrap_or(ConditionStatus::Unknown).as_str(), None),
        (Some(found), Some(max_age)) => {
            // Whole seconds, as heartbeats are.
            let stale_at = found.heartbeat.saturating_add(max_age.milliseconds().unwrap_or(i64::MAX) / 1000);
            if stale_at < node.now {
                // A heartbeat alone is no news of the node.
                (ConditionStatus::Unknown.as_str(), Some(node.now.saturating_add(LOOK_FOR_HEARTBEAT)))
            } else {
                (found.status.as_str(), Some(stale_at.saturating_add(1)))
            }
        }
        (Some(found), None) => (found.status.as_str(), None),
    };
    let verdict = if says == wanted.status.as_str() {
        RequirementVerdict::Met
    } else if found.is_some() {
        RequirementVerdict::Unmet(format!("condition {} is {says}, not {}", wanted.type_, wanted.status.as_str()))
    } else {
        RequirementVerdict::Unmet(format!("the Node has no condition {}", wanted.type_))
    };
    (verdict, recheck)
}

fn pods(world: &World, source: &PodSource, wanted: &PodsRequirement, node: &Subject<'_>) -> RequirementVerdict {
    let pods = match live(world.pods.get(source), || source.to_string()) {
        Ok(pods) => pods,
        Err(verdict) => return verdict,
    };
    let is_ready = |pod: &Pod| {
        let annotated = wanted
            .ready_annotation
            .as_ref()
            .is_some_and(|annotation| has_annotation(annotation, |key| pod.annotations.get(key).map(String::as_str)));
        annotated || !wanted.annotation_only && pod.ready && pod.containers_ready
    };
    let there = pods.on.get(node.name).into_iter().flat_map(|pods| pods.values()).filter(|pod| !pod.terminating && !pod.ended);
    let (ready, all) =
        there.fold((0, 0), |(ready, all), pod| (ready + i32::from(is_ready(pod) && is_of_now(pod.fresh_since, node)), all + 1));
    let enough = match &wanted.min_ready {
        Some(IntOrString::String(_)) => all > 0 && ready == all,
        Some(IntOrString::Int(number)) => ready >= *number,
        None => ready >= 1,
    };
    if enough { RequirementVerdict::Met } else { RequirementVerdict::Unmet(format!("{ready} of {all} {source} are ready")) }
}

fn live<T>(source: Option<&Source<T>>, what: impl Fn() -> String) -> Result<&T, RequirementVerdict> {
    source
        .map_or(Err("the first list is pending"), Source::live)
        .map_err(|why| RequirementVerdict::NoData(format!("the operator cannot see {}: {why}", what())))
}

/// What a pod says may be from before the machine was started again: its status stands until its kubelet is back.
fn is_of_now(fresh_since: UnixSeconds, node: &Subject<'_>) -> bool {
    let ready = node.facts.conditions.iter().find(|condition| &*condition.type_ == "Ready");
    let lost_at = ready.filter(|ready| ready.status.as_str() != "True").map(|ready| ready.transition);
    // The operator may have looked long after the start: what became ready between the two counts once its kubelet has checked it.
    let believed = |at: UnixSeconds| at <= node.now && in_force::is_up(node.facts);
    let started_at = started(node).filter(|(_, believed_at)| !believed_at.is_some_and(believed)).map(|(since, _)| since);
    lost_at.max(started_at).is_none_or(|since| fresh_since >= since)
}

/// Since when readiness counts on a node that was seen to have started again, and when all of it counts while the Node is Ready.
fn started(node: &Subject<'_>) -> Option<(UnixSeconds, Option<UnixSeconds>)> {
    let record = node.record.filter(|record| record.is_held() && matches!(record.cause, Cause::Reboot | Cause::Replaced))?;
    let since = node.since(record);
    // It has started once more, and that was not written down: nothing is known of when.
    let believed_at = (record.boot == short(&node.facts.boot_id)).then(|| since.saturating_add(RECHECKED));
    Some((since.saturating_sub(SKEW), believed_at))
}

fn daemon_set(world: &World, wanted: &DaemonSetRequirement, node: &Subject<'_>) -> RequirementVerdict {
    let name = || format!("DaemonSet {}/{}", wanted.namespace, wanted.name);
    let key: Key = (wanted.namespace.clone(), wanted.name.clone());
    let found = match live(world.daemon_sets.get(&key), name) {
        Ok(Some(found)) => found,
        Ok(None) => return RequirementVerdict::Unmet(format!("{} does not exist", name())),
        Err(verdict) => return verdict,
    };
    if !runs_on(world, found, node) {
        return RequirementVerdict::NotApplicable;
    }
    let pods = match live(world.pods.get(&daemon_set_pods(&key, found)), || format!("pods of {}", name())) {
        Ok(pods) => pods,
        Err(verdict) => return verdict,
    };
    let own = pods
        .on
        .get(node.name)
        .into_iter()
        .flat_map(|pods| pods.values())
        .filter(|pod| pod.controller == found.uid && !pod.terminating && !pod.ended);
    let ready: Vec<_> = own.clone().filter(|pod| pod.ready && is_of_now(pod.fresh_since, node)).collect();
    match &found.revision {
        _ if own.clone().next().is_none() => RequirementVerdict::Unmet(format!("{} has no pod on the node", name())),
        _ if ready.is_empty() => RequirementVerdict::Unmet(format!("the pod of {} is not ready", name())),
        _ if !wanted.current_revision => RequirementVerdict::Met,
        None => RequirementVerdict::NoData(format!("the operator cannot see the newest revision of {}", name())),
        Some(newest) if ready.iter().any(|pod| pod.revision == *newest) => RequirementVerdict::Met,
        Some(_) => RequirementVerdict::Unmet(format!("the pod of {} runs an older revision", name())),
    }
}

/// As its controller will see it once the node has started: taints of gates, and those that go by themselves, are no reason to stay
/// away for good.
fn runs_on(world: &World, daemon_set: &super::world::DaemonSet, node: &Subject<'_>) -> bool {
    let is_gate = |key: &str, effect: &str| world.gates.values().any(|gate| gate.has_taint(key, effect));
    let ignored = |taint: &Taint| scheduling::is_passing(taint) || is_gate(&taint.key, &taint.effect);
    scheduling::daemon_set_runs(&daemon_set.pod, node.name, node.facts, ignored)
}

/// What a resource's own pass says of the node.
fn health<'a>(world: &'a World, wanted: &IngressDaemonSetRequirement, node: &Subject<'_>) -> Option<&'a ReplicaHealth> {
    let nodes = world.replicas.get(&(wanted.namespace.clone(), wanted.name.clone()))?;
    // Whether the node is chosen may have changed with its labels and taints; a pass that has seen them is on its way.
    nodes
        .get(node.name)
        .filter(|found| found.node_uid == node.facts.uid && found.labels_and_taints_hash == node.facts.labels_and_taints_hash())
}

fn ingress_daemon_set(
    world: &World,
    wanted: &IngressDaemonSetRequirement,
    node: &Subject<'_>,
) -> (RequirementVerdict, Option<UnixSeconds>) {
    let name = || format!("IngressDaemonSet {}/{}", wanted.namespace, wanted.name);
    if world.absent.contains(&(wanted.namespace.clone(), wanted.name.clone())) {
        return (RequirementVerdict::NoData(format!("{} does not exist", name())), None);
    }
    let Some(found) = health(world, wanted, node) else {
        if world.invalid.contains(&(wanted.namespace.clone(), wanted.name.clone())) {
            return (RequirementVerdict::NoData(format!("the spec of {} is not valid", name())), None);
        }
        return (RequirementVerdict::NoData(format!("the operator has not checked {} for this node yet", name())), None);
    };
    if !found.chosen {
        return (RequirementVerdict::NotApplicable, None);
    }
    let Some(since) = found.updating_since else { return (replicas(found, wanted, node, &name), None) };
    match wanted.during_update {
        DuringUpdate::Strict => (replicas(found, wanted, node, &name), None),
        DuringUpdate::Taint => (RequirementVerdict::Unmet(format!("{} is updating its pods on the node", name())), None),
        DuringUpdate::Hold => {
            let most = wanted.max_hold.as_ref().and_then(crds::Duration::milliseconds).map_or(MAX_HOLD, |hold| hold / 1000);
            let until = since.saturating_add(most);
            let released = node.record.map_or(!node.is_new, |record| !record.is_held());
            if released && node.now < until { (RequirementVerdict::Met, Some(until)) } else { (replicas(found, wanted, node, &name), None) }
        }
    }
}

fn replicas(
    found: &ReplicaHealth,
    wanted: &IngressDaemonSetRequirement,
    node: &Subject<'_>,
    name: &dyn Fn() -> String,
) -> RequirementVerdict {
    let ready = if is_of_now(found.fresh_since, node) { found.ready } else { 0 };
    let least = match &wanted.min_ready {
        None => found.wanted,
        Some(IntOrString::Int(number)) => u32::try_from(*number).unwrap_or(0),
        Some(IntOrString::String(text)) => match text.strip_suffix('%').and_then(|percent| percent.parse::<u32>().ok()) {
            Some(percent) => found.wanted.saturating_mul(percent.min(100)).div_ceil(100),
            None => found.wanted,
        },
    };
    if ready < least {
        RequirementVerdict::Unmet(format!("{ready} of {} replicas of {} are ready", found.wanted, name()))
    } else if found.detached {
        RequirementVerdict::Unmet(format!("{} holds the node out of the load balancer", name()))
    } else {
        RequirementVerdict::Met
    }
}

fn csi_driver(world: &World, driver: &str, node: &Subject<'_>) -> RequirementVerdict {
    match live(Some(&world.csi_drivers), || "CSINodes".to_owned()) {
        Err(verdict) => verdict,
        Ok(nodes) if nodes.get(node.name).is_some_and(|drivers| drivers.contains(driver)) => RequirementVerdict::Met,
        Ok(_) => RequirementVerdict::Unmet(format!("CSI driver {driver} is not registered on the node")),
    }
}

fn other_gate(world: &World, name: &str, node: &Subject<'_>) -> RequirementVerdict {
    let Some(other) = world.gates.values().find(|gate| gate.name == name && !gate.deleting) else {
        return RequirementVerdict::NoData(format!("NodeReadinessGate {name} does not exist"));
    };
    if !other.selects(node.facts) {
        return RequirementVerdict::NotApplicable;
    }
    match node.records.get(&other.uid) {
        Some(record) if !record.is_held() => RequirementVerdict::Met,
        Some(_) | None => RequirementVerdict::Unmet(format!("NodeReadinessGate {name} has not released the node")),
    }
}
