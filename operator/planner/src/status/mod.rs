//! The status that people, `kubectl wait` and autoscalers read.
//!
//! The plan and the ledger come in at the end of a pass; conditions, counts, states of nodes, and what blocks the rollout go out. It says
//! what was decided and decides nothing.

pub(crate) mod blocked;

use crate::{
    node::ManagedNode,
    objects::{
        health_checker, render,
        revisions::{RevisionOrigin, Targets},
    },
    plan::{NodeProgress, Plan},
    reason::{Reason, clock},
    rollout::{mark_conflicts::MarkConflicts, rollout_state},
    snapshot::Snapshot,
    spec::{DisruptionMode, ResolvedSpec, SpecProblem, node_rights},
    status::blocked::{blocked, eta, obstacle},
};
use crds::{
    NodeReadinessGateStatus,
    ledger::{GrantReason, Ledger},
    status::{IngressDaemonSetStatus, NodeCounts, NodePhase, NodeState, Revisions},
    token::Phase,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest list of node states; also the schema's bound.
const LISTED: usize = 100;

/// The status for what was seen and decided.
pub fn status(
    snapshot: &Snapshot,
    targets: &Result<Targets, Vec<SpecProblem>>,
    managed_nodes: &[ManagedNode<'_>],
    plan: &Plan,
    ledger: Ledger,
) -> IngressDaemonSetStatus {
    let earlier = snapshot.resource.status.clone().unwrap_or_default();
    let valid = targets.as_ref().ok().map(|targets| &targets.effective);
    let nodes = counts(valid, managed_nodes, &ledger);
    let effective = valid.map_or_else(|| earlier.revisions.effective.clone(), |settings| settings.revision.clone());
    let update = targets.as_ref().map_or_else(|_| earlier.revisions.update.clone(), |targets| targets.newest.clone());
    let through = targets.as_ref().is_ok_and(|targets| rollout_state::is_through(targets, &ledger, &plan.sights, managed_nodes));
    let obstacle = obstacle(plan, &ledger, &nodes);
    let blocked = valid.and_then(|settings| blocked(snapshot, settings, obstacle, earlier.blocked.as_ref()));
    IngressDaemonSetStatus {
        observed_generation: Some(snapshot.resource.generation),
        replicas: valid.map_or(earlier.replicas, |settings| settings.pods_per_node),
        revisions: Revisions { current: if through { effective.clone() } else { earlier.revisions.current.clone() }, update, effective },
        conditions: conditions(snapshot, targets, managed_nodes, plan, &nodes, &ledger, through),
        eta: eta(&nodes, &ledger, snapshot.now).filter(|_| blocked.is_none()).map(clock),
        blocked,
        node_states: node_states(snapshot, plan, &earlier.node_states),
        node_readiness: node_readiness(snapshot, earlier.node_readiness),
        nodes,
        rollout: Some(ledger),
    }
}

/// What the gate says that `nodeReadinessTaint` stands for, or said before it was looked at by this process.
fn node_readiness(snapshot: &Snapshot, earlier: Option<NodeReadinessGateStatus>) -> Option<NodeReadinessGateStatus> {
    let allowed = snapshot.resource.spec.node_readiness_taint.is_some()
        && node_rights::forbidden_taint(&snapshot.node_rights, &snapshot.resource).is_none();
    let has_gate = allowed && !snapshot.resource.deleting;
    snapshot.node_readiness.clone().or(earlier).filter(|_| has_gate)
}

fn counts(settings: Option<&ResolvedSpec>, managed_nodes: &[ManagedNode<'_>], ledger: &Ledger) -> NodeCounts {
    let count = |test: &dyn Fn(&ManagedNode<'_>) -> bool| {
        u32::try_from(managed_nodes.iter().filter(|managed| test(managed)).count()).unwrap_or(u32::MAX)
    };
    let chosen = |managed: &ManagedNode<'_>| managed.chosen;
    let serves = |managed: &ManagedNode<'_>| {
        managed.is_ready()
            && managed.phase() == Some(Phase::Closed)
            && !managed.is_unavailable()
            && managed.deployment.is_some_and(|deployment| deployment.replicas() > 0)
    };
    NodeCounts {
        desired: count(&chosen),
        current: count(&|managed| managed.deployment.is_some()),
        updated: count(&|managed| {
            managed.chosen
                && managed.is_ready()
                && managed.deployment.zip(settings).is_some_and(|(deployment, settings)| {
                    deployment.revision() == settings.revision && deployment.replicas() == settings.pods_per_node
                })
        }),
        ready: count(&|managed| managed.chosen && managed.is_ready()),
        available: count(&|managed| managed.chosen && serves(managed)),
        unavailable: count(&|managed| managed.chosen && managed.is_unavailable()),
        degraded: count(&|managed| managed.phase() == Some(Phase::Degrading)),
        detached: count(&|managed| {
            matches!(managed.phase(), Some(Phase::Claimed | Phase::InPlace | Phase::Updating))
                || managed.holds_node()
                || ledger.grants.get(managed.name).is_some_and(|grant| grant.kind == GrantReason::Remove && managed.deployment.is_none())
        }),
        failed: ledger.rollout_state.as_ref().map_or(0, |rollout| u32::try_from(rollout.failed.len()).unwrap_or(u32::MAX)),
    }
}

/// Nodes in trouble first, then those under way, then those that wait.
fn node_states(snapshot: &Snapshot, plan: &Plan, earlier: &[NodeState]) -> Vec<NodeState> {
    let rank = |state: &NodeProgress| match state.phase {
        NodePhase::Blocked | NodePhase::Failed => 0,
        NodePhase::Unavailable => 1,
        NodePhase::Waiting => 3,
        _ => 2,
    };
    let mut states: Vec<_> = plan.node_states.iter().collect();
    states.sort_by_key(|(name, state)| (rank(state), *name));
    states
        .into_iter()
        .take(LISTED)
        .map(|(name, state)| {
            let before = earlier.iter().find(|before| before.name == *name && before.phase == state.phase);
            NodeState {
                name: name.clone(),
                phase: state.phase,
                since: before.map_or_else(|| clock(snapshot.now), |before| before.since.clone()),
                reason: state.reason.word().to_owned(),
                message: state.message(),
            }
        })
        .collect()
}

fn conditions(
    snapshot: &Snapshot,
    targets: &Result<Targets, Vec<SpecProblem>>,
    managed_nodes: &[ManagedNode<'_>],
    plan: &Plan,
    nodes: &NodeCounts,
    ledger: &Ledger,
    through: bool,
) -> Vec<Condition> {
    let earlier = snapshot.resource.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let settings = targets.as_ref().map(|targets| &targets.effective);
    let mut wanted = vec![
        valid(snapshot, settings, nodes),
        available(settings, nodes),
        progressing(snapshot, targets, plan, nodes, ledger, through),
        degraded(managed_nodes, plan),
        paused(snapshot),
    ];
    wanted.extend(rolled_back(targets, ledger));
    let back = wanted.iter().find(|(_, _, reason, _)| *reason == ROLLED_BACK).map(|(.., message)| message.clone());
    wanted.extend(stalled(settings, plan, nodes, ledger).or(back.map(|message| ("Stalled", true, ROLLED_BACK, message))));
    wanted.extend(checkers(snapshot, settings, plan));
    wanted.extend(ready(snapshot, settings, managed_nodes, plan, nodes, ledger, &wanted));
    wanted.extend(conflicts(snapshot, settings, managed_nodes, plan));
    let now = jiff::Timestamp::from_second(snapshot.now).unwrap_or_default();
    wanted
        .into_iter()
        .map(|(type_, status, reason, message)| {
            let status = if status { "True" } else { "False" };
            let since = earlier
                .iter()
                .find(|condition| condition.type_ == type_ && condition.status == status)
                .map(|condition| condition.last_transition_time.clone());
            Condition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message: message.chars().take(1024).collect(),
                last_transition_time: since.unwrap_or(Time(now)),
                observed_generation: Some(snapshot.resource.generation),
            }
        })
        .collect()
}

type ConditionFields = (&'static str, bool, &'static str, String);
type Resolved<'a> = Result<&'a ResolvedSpec, &'a Vec<SpecProblem>>;

fn valid(snapshot: &Snapshot, settings: Resolved<'_>, nodes: &NodeCounts) -> ConditionFields {
    let join = |problems: &[SpecProblem]| problems.iter().map(|invalid| invalid.message.as_str()).collect::<Vec<_>>().join("; ");
    match settings {
        Err(problems) => ("Valid", false, problems.first().map_or("InvalidSpec", |first| first.reason), join(problems)),
        Ok(settings) => {
            let mut warnings = settings.warnings.clone();
            if health_checker::uses_old_image(&snapshot.resource.spec) {
                warnings.push(SpecProblem {
                    reason: "OldHealthCheckerImage",
                    message: format!(
                        "healthChecker.image names the original's image: remove healthChecker.image and healthChecker.serviceAccountName; the operator uses image {} and its own ServiceAccount instead",
                        snapshot.health_checker_image
                    ),
                });
            }
            warnings.extend(node_rights::refused_taint(&snapshot.node_rights, &snapshot.resource));
            warnings.extend(covers_all_nodes(settings, nodes.desired as usize));
            match warnings.first() {
                Some(first) => ("Valid", true, first.reason, join(&warnings)),
                None => ("Valid", true, "Accepted", "the spec is valid".into()),
            }
        }
    }
}

/// Nothing keeps an update from taking out all nodes at once.
fn covers_all_nodes(settings: &ResolvedSpec, nodes: usize) -> Option<SpecProblem> {
    let budget = settings.budget.of(nodes);
    let covers = settings.mode == DisruptionMode::Detach && nodes > 0 && budget >= nodes && settings.min_available.is_zero();
    covers.then(|| SpecProblem {
        reason: "BudgetCoversAllNodes",
        message: format!(
            "maxUnavailableNodes allows {budget} and {nodes} are chosen, so an update takes out all nodes at once: lower maxUnavailableNodes, or set minAvailableNodes"
        ),
    })
}

/// As for a Deployment: no more nodes are missing than the budget allows.
fn available(settings: Resolved<'_>, nodes: &NodeCounts) -> ConditionFields {
    let budget = settings.as_ref().map_or(0, |settings| settings.budget.of(nodes.desired as usize));
    let enough = nodes.desired == 0 || nodes.available > 0 && nodes.available as usize + budget >= nodes.desired as usize;
    let reason = if nodes.desired == 0 {
        "NoNodes"
    } else if settings.as_ref().is_ok_and(|settings| settings.is_without_pods()) {
        "ScaledToZero"
    } else if enough {
        "MinimumNodesAvailable"
    } else {
        "MinimumNodesUnavailable"
    };
    ("Available", enough && nodes.desired > 0, reason, format!("{} of {} nodes serve", nodes.available, nodes.desired))
}

fn progressing(
    snapshot: &Snapshot,
    targets: &Result<Targets, Vec<SpecProblem>>,
    plan: &Plan,
    nodes: &NodeCounts,
    ledger: &Ledger,
    through: bool,
) -> ConditionFields {
    let settings = targets.as_ref().map(|targets| &targets.effective);
    let proving = targets.as_ref().ok().filter(|targets| !through && targets.is_not_current() && nodes.updated > 0);
    let without_pods = settings.is_ok_and(ResolvedSpec::is_without_pods);
    let proving = proving.map(|targets| targets.effective.rollout.proven_after).filter(|seconds| *seconds > 0 && !without_pods);
    let back = targets.as_ref().is_ok_and(|targets| targets.origin == RevisionOrigin::RolledBack);
    let message = format!("{} of {} nodes run the newest revision, {} under way", nodes.updated, nodes.desired, ledger.grants.len());
    let waits = plan.step.is_some() || plan.node_states.values().any(|state| state.phase == NodePhase::Waiting);
    let behind = nodes.updated < nodes.desired || !ledger.grants.is_empty() || waits;
    let under_way = is_under_way(plan, ledger);
    let says = |wanted: &Reason| plan.node_states.values().any(|state| state.reason == *wanted);
    let given_up = says(&Reason::DetachAborted) && !under_way;
    let goes_on = blocked::goes_on_by_itself(plan);
    if snapshot.resource.deleting {
        ("Progressing", true, "Deleting", message)
    } else if settings.is_err() {
        ("Progressing", false, "InvalidSpec", message)
    } else if ledger.rebuilding.is_some() {
        ("Progressing", true, "RebuildingLedger", message)
    } else if behind && without_pods && ledger.grants.is_empty() {
        let message = format!("{message}; podsPerNode is 0: the other nodes get the newest revision in their turn once they have pods");
        ("Progressing", false, "ScaledToZero", message)
    } else if !behind && back {
        let message = format!(
            "the newest revision failed: correct spec.template; {} of {} nodes run the previous revision",
            nodes.updated, nodes.desired
        );
        ("Progressing", false, ROLLED_BACK, message)
    } else if !behind && proving.is_some() {
        let seconds = proving.unwrap_or_default();
        let flapping = plan.sights.suspects().count();
        if flapping > 0 {
            let message = format!(
                "{message}; {flapping} nodes broke after their update (see nodeStates): they must serve {seconds} s without a break"
            );
            ("Progressing", false, "NodesFlapping", message)
        } else if nodes.unavailable > 0 {
            ("Progressing", false, "NodesUnavailable", message)
        } else {
            proves_itself(&message, seconds)
        }
    } else if !behind {
        ("Progressing", false, "Complete", message)
    } else if let Some(message) = settings.ok().and_then(|settings| late(settings, plan, ledger)) {
        ("Progressing", false, DEADLINE, message)
    } else if let Some(seconds) = proving.filter(|_| blocked::only_proves(plan, ledger, nodes)) {
        proves_itself(&message, seconds)
    } else if let Some(state) = holding(plan, goes_on).filter(|_| !under_way) {
        ("Progressing", false, state.word(), format!("{message}; {}", state.message_of_rollout()))
    } else if snapshot.resource.spec.paused && (ledger.grants.is_empty() || given_up) {
        ("Progressing", false, "Paused", message)
    } else if says(&Reason::DetachTimeout) {
        ("Progressing", false, "DetachTimeout", message)
    } else if given_up && !goes_on {
        ("Progressing", false, "DetachAborted", message)
    } else if let Some(step) = plan.step.as_ref().filter(|_| ledger.grants.is_empty()) {
        ("Progressing", true, "RollingOut", format!("{message}; {}", step.message_of_rollout()))
    } else if ledger.grants.is_empty() && plan.node_states.values().all(|state| state.phase == NodePhase::Joining) {
        ("Progressing", true, "NodesJoining", message)
    } else if ledger.grants.is_empty()
        && plan.node_states.values().all(|state| matches!(state.phase, NodePhase::Joining | NodePhase::Unavailable))
    {
        ("Progressing", false, "NodesUnavailable", message)
    } else {
        ("Progressing", true, "RollingOut", message)
    }
}

/// What Helm, Argo CD and Flux wait for, in the words of kstatus: Ready, and beside a Ready that is False either Reconciling or Stalled.
fn ready(
    snapshot: &Snapshot,
    settings: Resolved<'_>,
    managed_nodes: &[ManagedNode<'_>],
    plan: &Plan,
    nodes: &NodeCounts,
    ledger: &Ledger,
    others: &[ConditionFields],
) -> Vec<ConditionFields> {
    let other = |wanted: &str| others.iter().find(|(type_, ..)| *type_ == wanted);
    let stalled = other("Stalled").map(|(_, _, reason, message)| (*reason, message.clone()));
    let progressing = other("Progressing").map_or(("", String::new()), |(_, _, reason, message)| (*reason, message.clone()));
    let silent = other("HealthCheckersReady").filter(|(_, is_ready, ..)| !is_ready);
    let with_pods = managed_nodes.iter().filter(|managed| managed.deployment.is_some_and(|deployment| deployment.replicas() > 0)).count();
    let is_proved = nodes.updated == 0 || ledger.rollout_state.as_ref().is_none_or(|rollout| rollout.proved);
    let held = blocked::held_by_spec(plan).filter(|_| ledger.grants.is_empty() && is_proved);
    let is_through = held.is_some() || ["Complete", "ScaledToZero"].contains(&progressing.0);
    let without_pods = settings.is_ok_and(ResolvedSpec::is_without_pods);
    // As for a DaemonSet: whatever took a node away, what was asked for is not there.
    let (is_ready, reason, message) = match (&stalled, silent) {
        (Some((reason, message)), _) => (false, *reason, message.clone()),
        _ if snapshot.resource.deleting || !is_through => (false, progressing.0, progressing.1),
        _ if without_pods && with_pods > 0 => (false, "ScalingDown", format!("{with_pods} nodes still have pods")),
        _ if without_pods => (true, "ScaledToZero", "podsPerNode is 0".into()),
        _ if nodes.available < nodes.desired => {
            (false, "NodesUnavailable", format!("{} of {} nodes serve", nodes.available, nodes.desired))
        }
        (None, Some((_, _, reason, message))) => (false, *reason, message.clone()),
        _ if nodes.desired == 0 => (true, "NoNodes", "no node is chosen".into()),
        _ => match held {
            Some(reason) => {
                (true, reason, format!("all {} nodes serve, {} of them with the wanted revision", nodes.desired, nodes.updated))
            }
            None => (true, "Complete", format!("all {} nodes serve the wanted revision", nodes.desired)),
        },
    };
    let reconciling = (!is_ready && stalled.is_none()).then(|| ("Reconciling", true, reason, message.clone()));
    [("Ready", is_ready, reason, message)].into_iter().chain(reconciling).collect()
}

/// A node that has a grant goes on by itself.
fn is_under_way(plan: &Plan, ledger: &Ledger) -> bool {
    let stands =
        |state: &NodeProgress| state.phase == NodePhase::Failed || matches!(state.reason, Reason::Drained(_) | Reason::DetachAborted);
    ledger.grants.keys().any(|node| plan.node_states.get(node).is_some_and(|state| !stands(state)))
}

/// Only so many seconds without a break must pass.
fn proves_itself(message: &str, seconds: i64) -> ConditionFields {
    ("Progressing", true, "Proving", format!("{message}; the revision is proved once its nodes serve {seconds} s without a break"))
}

/// What everything waits for that a person, time or a window has to settle.
fn holding(plan: &Plan, goes_on: bool) -> Option<&Reason> {
    let reasons = plan.node_states.values().map(|state| &state.reason).chain(&plan.step);
    reasons.filter(|reason| !(goes_on && **reason == Reason::Partition)).find(|reason| reason.class().holds_all)
}

/// A node is in trouble that does not mend itself by waiting for a step of the rollout.
fn degraded(managed_nodes: &[ManagedNode<'_>], plan: &Plan) -> ConditionFields {
    let troubled = |state: &&NodeProgress| state.reason.class().trouble || state.phase == NodePhase::Unavailable;
    let mut found: Vec<_> = plan.node_states.iter().filter(|(_, state)| troubled(state)).collect();
    found.sort_by_key(|(name, _)| {
        (managed_nodes.iter().find(|managed| managed.name == name.as_str()).is_none_or(|managed| managed.grant.is_none()), *name)
    });
    match found.first() {
        // A last step that halts holds no node back.
        None => match plan.step.as_ref().filter(|reason| matches!(reason, Reason::TooManyFailed { .. })) {
            Some(reason) => ("Degraded", true, reason.word(), reason.message()),
            None => ("Degraded", false, "AsExpected", "no node is in trouble".into()),
        },
        Some((name, state)) => {
            let more = if found.len() > 1 { format!(" (and {} more)", found.len() - 1) } else { String::new() };
            ("Degraded", true, state.reason.word(), format!("node {name}: {}{more}", state.reason.message()))
        }
    }
}

fn paused(snapshot: &Snapshot) -> ConditionFields {
    if snapshot.resource.spec.paused {
        ("Paused", true, "Paused", "spec.paused is true: nodes under way finish, no new node starts".into())
    } else {
        ("Paused", false, "NotPaused", "spec.paused is false".into())
    }
}

/// Reason of conditions when all is as it was before the revision that failed.
const ROLLED_BACK: &str = "RolledBack";

/// Reason of conditions when no node was finished for too long, as for a Deployment.
const DEADLINE: &str = "ProgressDeadlineExceeded";

fn late(settings: &ResolvedSpec, plan: &Plan, ledger: &Ledger) -> Option<String> {
    let rollout = ledger.rollout_state.as_ref().filter(|rollout| plan.clocks.is_running() && rollout_state::is_late(settings, rollout))?;
    Some(format!(
        "no node finished within {} s (progressDeadlineSeconds), the last one finished at {}: see nodeStates for what each node waits for",
        settings.rollout.progress_deadline,
        clock(rollout.progressed_at)
    ))
}

/// Another revision than the one of the spec runs because that one failed.
fn rolled_back(targets: &Result<Targets, Vec<SpecProblem>>, ledger: &Ledger) -> Option<ConditionFields> {
    let targets = targets.as_ref().ok().filter(|targets| targets.origin == RevisionOrigin::RolledBack)?;
    let rolled_back = ledger.rolled_back.as_ref()?;
    let message = format!(
        "revision {} {}; revision {} runs instead until you change spec.template or run `kubectl ids retry --all`",
        rolled_back.from, rolled_back.reason, targets.effective.revision
    );
    Some(("RolledBack", true, "RevisionFailed", message))
}

/// Nothing goes on until somebody acts; kstatus reads this.
fn stalled(settings: Resolved<'_>, plan: &Plan, nodes: &NodeCounts, ledger: &Ledger) -> Option<ConditionFields> {
    let settings = match settings {
        Ok(settings) => settings,
        Err(problems) => {
            let first = problems.first()?;
            return Some(("Stalled", true, first.reason, first.message.clone()));
        }
    };
    if let Some(message) = late(settings, plan, ledger) {
        return Some(("Stalled", true, DEADLINE, message));
    }
    let holds = || plan.node_states.values().map(|state| &state.reason).chain(&plan.step);
    if let Some(reason) = holds().find(|reason| matches!(reason, Reason::TooManyFailed { .. })) {
        return Some(("Stalled", true, reason.word(), reason.message()));
    }
    // A pause that ends by itself, after which there is a slot for another node.
    let goes_on = ledger.grants.len() < settings.budget.of(nodes.desired as usize) && blocked::goes_on_by_itself(plan);
    if let Some((node, reason)) = obstacle(plan, ledger, nodes).filter(|(_, reason)| reason.class().needs_somebody && !goes_on) {
        let of = if node.is_empty() { String::new() } else { format!("node {node}: ") };
        return Some(("Stalled", true, reason.word(), format!("{of}{}", reason.message_of_rollout())));
    }
    let (name, state) = plan.node_states.iter().find(|(_, state)| state.reason.class().stalls)?;
    Some(("Stalled", true, state.reason.word(), format!("node {name}: {}", state.reason.message())))
}

/// Whether the load balancer gets an answer everywhere; nothing where nobody asks.
fn checkers(snapshot: &Snapshot, settings: Resolved<'_>, plan: &Plan) -> Option<ConditionFields> {
    let settings = settings.ok().filter(|settings| !settings.ports.is_empty() && !snapshot.resource.deleting)?;
    if let Some(message) = health_checker::account_lacks(snapshot) {
        return Some(("HealthCheckersReady", false, "ServiceAccountLacksRights", message));
    }
    let refused = plan.checkers_refused.as_ref().map(|refused| {
        let said = &refused.message;
        format!(
            "the API server refuses what health checkers need: {said}. Correct healthChecker in the spec, or what refuses it. Until then health checkers do not change"
        )
    });
    if let Some(message) = refused.clone().filter(|_| plan.checkers_refused.as_ref().is_some_and(|refused| refused.holds_up)) {
        return Some(("HealthCheckersReady", false, "HealthCheckersRefused", message));
    }
    let short = settings.ports.iter().find_map(|port| match snapshot.daemon_sets.iter().find(|set| set.owned && set.port == *port) {
        None => Some(format!("port {port} has no DaemonSet of health checkers yet")),
        Some(set) => (set.ready < set.desired).then(|| {
            let (ready, desired, name) = (set.ready, set.desired, &set.name);
            format!("port {port}: {ready} of {desired} health checkers are ready: check the pods of DaemonSet {name}; the load balancer gets no answer from the others")
        }),
    });
    let (ready, reason, message) = match short {
        Some(message) => (false, "HealthCheckersNotReady", message),
        None => (true, "HealthCheckersReady", "all health checkers are ready".into()),
    };
    Some(("HealthCheckersReady", ready, reason, [Some(message), refused].into_iter().flatten().collect::<Vec<_>>().join("; ")))
}

fn conflicts(snapshot: &Snapshot, settings: Resolved<'_>, managed_nodes: &[ManagedNode<'_>], plan: &Plan) -> Vec<ConditionFields> {
    let mut found = Vec::new();
    if let Err(problems) = settings {
        found.extend(
            problems
                .iter()
                .filter(|invalid| invalid.reason == "HealthCheckPortConflict")
                .map(|invalid| (invalid.reason, true, invalid.reason, invalid.message.clone())),
        );
    }
    let Ok(settings) = settings else { return found };
    if let Some(first) = snapshot.port_conflicts.first() {
        let more =
            if snapshot.port_conflicts.len() > 1 { format!(" (and {} more)", snapshot.port_conflicts.len() - 1) } else { String::new() };
        found.push(("HealthCheckPortConflict", true, "HealthCheckPortConflict", format!("{first}{more}")));
    } else if let Some(message) = health_checker::late_service(snapshot, settings) {
        found.push(("HealthCheckPortConflict", true, "HealthCheckPortConflict", message));
    }
    let node =
        plan.node_states.values().find_map(|state| if let Reason::NameConflict(name) = &state.reason { Some(name.clone()) } else { None });
    let checker = settings.ports.iter().map(|port| render::object_name(&snapshot.resource.name, &port.to_string(), &snapshot.taken_names));
    let checker = checker
        .into_iter()
        .find(|name| snapshot.foreign_names.contains(name) || snapshot.daemon_sets.iter().any(|set| set.name == *name && !set.owned));
    if let Some(name) = node.or(checker) {
        found.push(("NameConflict", true, "NameConflict", Reason::NameConflict(name).message()));
    }
    let marks = settings.detach_marks();
    let mark_conflicts = MarkConflicts::of(snapshot, Some(settings), &Ledger::default());
    if let Some(other) = managed_nodes.iter().filter(|managed| managed.chosen).find_map(|managed| mark_conflicts.on(managed, &marks)) {
        found.push(("DetachAnnotationConflict", true, "DetachAnnotationConflict", Reason::DetachAnnotationConflict(other).message()));
    }
    found
}
