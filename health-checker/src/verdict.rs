//! May the load balancer send traffic to this node?

use crate::view::{CONFIRM_AFTER, DeploymentFacts, ReadyPolicy, View};
use crds::token::Phase;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Why the answer is what it is. The words are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictReason {
    /// 200.
    Serving,
    /// Not all watches have listed once.
    NotSynced,
    /// The node has no Deployment of the resource, or it is being deleted.
    DeploymentMissing,
    /// The Node is being deleted, or has a taint of one who is about to delete or drain it.
    NodeBeingDeleted,
    /// Token `New`: the pods were never complete.
    NeverComplete,
    /// Token `Claimed`: the load balancer shall let go before pods change.
    DetachRequested,
    /// Token `Updating` or `InPlace`: pods change.
    Updating,
    /// Somebody annotated the Deployment.
    TakenOutByHand,
    /// The Deployment wants no pod.
    NoReplicasWanted,
    /// Fewer pods are ready than the policy asks for.
    PodsNotReady,
    /// The API says enough pods are ready, but their readiness probes fail from this node.
    ProbesFailHere,
    /// Everything says 200, but the view is too old to start serving on.
    StaleView,
}

impl VerdictReason {
    /// The word in bodies, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "Serving",
            Self::NotSynced => "NotSynced",
            Self::DeploymentMissing => "DeploymentMissing",
            Self::NodeBeingDeleted => "NodeBeingDeleted",
            Self::NeverComplete => "NeverComplete",
            Self::DetachRequested => "DetachRequested",
            Self::Updating => "Updating",
            Self::TakenOutByHand => "TakenOutByHand",
            Self::NoReplicasWanted => "NoReplicasWanted",
            Self::PodsNotReady => "PodsNotReady",
            Self::ProbesFailHere => "ProbesFailHere",
            Self::StaleView => "StaleView",
        }
    }
}

/// The answer for the node, and what it was based on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Why.
    pub reason: VerdictReason,
    /// Replicas wanted.
    pub desired: u32,
    /// Pods that count as ready.
    pub ready: u32,
    /// Phase of the token, when there is one that can be read.
    pub phase: Option<Phase>,
    /// Id in the token.
    pub grant: Option<u64>,
    /// Revision that the node's pods run; several are separated by commas.
    pub revision: Option<String>,
    /// Age of the oldest part of the view; `None` before the first sync.
    pub age: Option<Duration>,
}

impl Verdict {
    /// 200, otherwise 503.
    pub fn serving(&self) -> bool {
        self.reason == VerdictReason::Serving
    }
}

/// Decides.
pub fn verdict(view: &View, now: Instant) -> Verdict {
    let live = || view.deployments.objects.values().filter(|deployment| !deployment.deleting);
    let token = live().find(|deployment| hold(deployment).is_some()).or_else(|| live().next()).and_then(|one| one.token.as_ref());
    Verdict {
        reason: reason(view, now),
        desired: live().fold(0, |sum, deployment| sum.saturating_add(deployment.desired)),
        ready: ready(view, true, now),
        phase: token.map(|token| token.phase),
        grant: token.map(|token| token.id),
        revision: revision(view),
        age: view.age(now),
    }
}

fn reason(view: &View, now: Instant) -> VerdictReason {
    let Some(age) = view.age(now) else { return VerdictReason::NotSynced };
    let live: Vec<_> = view.deployments.objects.values().filter(|deployment| !deployment.deleting).collect();
    if live.is_empty() {
        return VerdictReason::DeploymentMissing;
    }
    if view.node.objects.values().any(|node| node.to_be_deleted || node.deleting) {
        return VerdictReason::NodeBeingDeleted;
    }
    if let Some(hold) = live.iter().find_map(|deployment| hold(deployment)) {
        return hold;
    }
    let desired = live.iter().fold(0, |sum: u32, deployment| sum.saturating_add(deployment.desired));
    if desired == 0 {
        return VerdictReason::NoReplicasWanted;
    }
    let wanted = match view.policy {
        ReadyPolicy::All => desired,
        ReadyPolicy::AtLeast(number) => number,
    };
    if ready(view, false, now) < wanted {
        return VerdictReason::PodsNotReady;
    }
    if ready(view, true, now) < wanted {
        return VerdictReason::ProbesFailHere;
    }
    if !view.serving && age > CONFIRM_AFTER { VerdictReason::StaleView } else { VerdictReason::Serving }
}

/// What the Deployment says against serving, whatever its pods are. A token that cannot be read says nothing: the
/// operator repairs it, and meanwhile a typing error must not take nodes out. Neither does a generation that was not
/// observed yet, or a change of labels or strategy would take out the fleet.
fn hold(deployment: &DeploymentFacts) -> Option<VerdictReason> {
    match deployment.token.as_ref().map(|token| token.phase) {
        Some(Phase::New) => Some(VerdictReason::NeverComplete),
        Some(Phase::Claimed) => Some(VerdictReason::DetachRequested),
        Some(Phase::InPlace | Phase::Updating) => Some(VerdictReason::Updating),
        Some(Phase::Degrading | Phase::Closed) | None => deployment.to_be_updated.then_some(VerdictReason::TakenOutByHand),
    }
}

fn ready(view: &View, with_probes: bool, now: Instant) -> u32 {
    let count = view.pods.objects.values().filter(|pod| view.counts(pod, now) && !(with_probes && view.fails_here(pod))).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn revision(view: &View) -> Option<String> {
    let pods = view.pods.objects.values().filter(|pod| !pod.terminating);
    let revisions: BTreeSet<_> = pods.filter_map(|pod| pod.revision.as_deref()).collect();
    (!revisions.is_empty()).then(|| revisions.into_iter().collect::<Vec<_>>().join(","))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
pub(crate) mod tests;
