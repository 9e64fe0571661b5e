//! What the node's health port says, before pods change and before a slot is freed: the token alone proves what was
//! written, not what the load balancer is told.

use crate::{
    facts::Resource,
    node::ManagedNode,
    objects::health_checker::listens_on_ipv4_alone,
    plan::Question,
    protocol::step::Step,
    reason::{NodeObject, Reason},
    snapshot::{PortAnswer, Snapshot},
    spec::ResolvedSpec,
};
use crds::{
    ledger::{Grant, GrantReason},
    token::Phase,
};

/// What the health ports say about the next step of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Nothing speaks against it: all ports agree, or none is to be asked.
    None,
    /// The operator has to ask the health ports first.
    Ask(Question),
    /// The port contradicts the token.
    Contradicts(Reason),
    /// These ports do not answer; without an address of the node nobody can be asked.
    Silent {
        /// IP address of the node.
        address: Option<String>,
        /// Ports that do not answer.
        ports: Vec<u16>,
    },
}

/// Asks where an answer could contradict the step: 200 before pods change under the Deployment mark, and an older phase
/// before the slot is freed. Silence is no consent: nobody knows then what the load balancer is told. Deletion is bounded, and never waits
/// for a health checker; neither does a node that is taken away and has only to give its slot to that.
pub fn evidence(snapshot: &Snapshot, settings: Option<&ResolvedSpec>, managed: &ManagedNode<'_>, grant: &Grant, next: Step) -> Evidence {
    let phase = managed.token.as_ref().filter(|token| token.id == grant.id).map(|token| token.phase);
    let asks = match next {
        // What the API server refuses is not written anyway.
        Step::Update | Step::Pause => {
            phase == Some(Phase::Claimed)
                && grant.kind != GrantReason::Abort
                && snapshot.refusal(managed.name, NodeObject::Deployment).is_none()
        }
        Step::Release { .. } => phase == Some(Phase::Closed) && managed.chosen && !managed.is_draining(),
        _ => false,
    };
    let ports = settings.map(|settings| &settings.ports).filter(|ports| asks && !ports.is_empty() && !snapshot.resource.deleting);
    let Some((ports, node)) = ports.zip(managed.node) else { return Evidence::None };
    let Some(address) = node.listens_at(listens_on_ipv4_alone(&snapshot.resource.spec)) else {
        return Evidence::Silent { address: None, ports: ports.clone() };
    };
    let Some(answers) = snapshot.answers.get(managed.name) else {
        let Resource { namespace, name, .. } = &snapshot.resource;
        let question = Question { address: address.clone(), ports: ports.clone(), namespace: namespace.clone(), name: name.clone() };
        return Evidence::Ask(question);
    };
    if let Some(contradiction) = answers.iter().find_map(|answer| contradiction(*answer, next)) {
        return Evidence::Contradicts(contradiction);
    }
    let silent: Vec<_> = ports.iter().copied().filter(|port| !answers.iter().any(|answer| answer.port == *port)).collect();
    // A machine that is down serves nobody: it counts as unavailable by itself, and its slot is of no use to it.
    let down = !node.ready && matches!(next, Step::Release { .. });
    if silent.is_empty() || down { Evidence::None } else { Evidence::Silent { address: Some(address.clone()), ports: silent } }
}

/// A 503 for a reason of its own, such as a pod that is not ready, contradicts nothing.
fn contradiction(answer: PortAnswer, next: Step) -> Option<Reason> {
    match (next, answer.healthy, answer.phase) {
        (Step::Update | Step::Pause, true, _) => Some(Reason::StillHealthy { port: answer.port }),
        (Step::Release { .. }, false, Some(phase)) if phase != Phase::Closed => Some(Reason::StillUnhealthy { port: answer.port, phase }),
        _ => None,
    }
}
