//! What readiness gates of nodes are told of a resource's replicas.

use crate::{
    facts::{DeploymentFacts, NodeFacts, scheduling},
    gates_shared::ReplicaHealth,
    node::{ManagedNode, breaker},
    snapshot::Snapshot,
    spec::{ResolvedSpec, node_selection::is_chosen},
};
use crds::{
    node_readiness_gate::{Effect, GateTaint},
    token::Phase,
};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use std::collections::BTreeMap;

/// The replicas on every node; on one that is not chosen there are none to wait for. While the spec is not valid, what runs goes on as
/// its Deployment says, or as it was where the breaker has changed that. Whether the resource is to choose any other node is not
/// known: such a node is left out.
pub fn of(snapshot: &Snapshot, settings: Option<&ResolvedSpec>, managed_nodes: &[ManagedNode<'_>]) -> BTreeMap<String, ReplicaHealth> {
    let on = |node: &NodeFacts| ReplicaHealth {
        node_uid: node.uid.clone(),
        labels_and_taints_hash: node.labels_and_taints_hash(),
        ..ReplicaHealth::default()
    };
    let choice_is_known = settings.is_some() || snapshot.resource.deleting;
    let all = snapshot.nodes.iter().filter(|_| choice_is_known);
    let mut replicas: BTreeMap<_, _> = all.map(|(name, node)| (name.clone(), on(node))).collect();
    let of_gate = |taint: &Taint| snapshot.gates.passing.iter().any(|(key, effect)| (key, effect) == (&taint.key, &taint.effect));
    let passes = |taint: &Taint| scheduling::is_passing(taint) || of_gate(taint);
    // A node that has only just come may not be chosen yet, for taints that go by themselves: its replicas are to come.
    let coming = settings.into_iter().flat_map(|settings| snapshot.nodes.iter().map(move |(name, node)| (settings, name, node)));
    for (settings, name, node) in coming.filter(|(.., node)| node.taints.iter().any(passes)) {
        let mut started = NodeFacts::clone(node);
        started.taints.retain(|taint| !passes(taint));
        if is_chosen(&snapshot.resource.spec, settings, name, &started, false) {
            let wanted = u32::try_from(settings.pods_per_node).unwrap_or(0);
            let coming = ReplicaHealth { chosen: true, wanted, detached: true, ..on(node) };
            replicas.insert(name.clone(), coming);
        }
    }
    for (managed, node) in managed_nodes.iter().filter(|managed| managed.chosen).filter_map(|managed| Some((managed, managed.node?))) {
        let ready = || managed.pods.iter().filter(|pod| pod.ready && !pod.terminating && !pod.ended);
        // Where the breaker has taken replicas away, the last spec says how many there are to be.
        let broken = managed.deployment.and_then(breaker::read).and_then(|_| snapshot.resource.last_replicas());
        let runs = broken.or(managed.deployment.map(DeploymentFacts::replicas)).unwrap_or(0);
        let wanted = managed.settings.map_or(runs, |settings| settings.pods_per_node);
        let health = ReplicaHealth {
            chosen: true,
            wanted: u32::try_from(wanted).unwrap_or(0),
            ready: u32::try_from(ready().count()).unwrap_or(u32::MAX),
            fresh_since: ready().map(|pod| pod.fresh_since).min().unwrap_or(0),
            updating_since: managed.grant.map(|grant| grant.granted_at),
            detached: managed.phase() != Some(Phase::Closed) || managed.holds_node() || managed.taken_out().is_some(),
            evicted_by: snapshot.gates.evicting.iter().filter(|taint| would_evict(managed, taint)).cloned().collect(),
            ..on(node)
        };
        replicas.insert(managed.name.to_owned(), health);
    }
    replicas
}

/// The taint would evict a pod of the resource that is on the node: a gate's toleration comes with the next revision. Pods that are
/// being replaced count as those that go.
pub fn would_evict(managed: &ManagedNode<'_>, taint: &GateTaint) -> bool {
    let mut pods = managed.pods.iter().filter(|pod| !pod.terminating && !pod.ended).peekable();
    if taint.effect != Effect::NoExecute || pods.peek().is_none() {
        return false;
    }
    let Some(deployment) = managed.deployment else { return true };
    let counts = &deployment.status;
    let replaces = counts.observed_generation < deployment.generation || counts.updated != counts.replicas;
    replaces || pods.any(|pod| pod.revision != deployment.revision()) || !bears(&deployment.spec.template_tolerations(), taint)
}

/// For good: a toleration for some seconds only delays the eviction.
fn bears(tolerations: &[Toleration], taint: &GateTaint) -> bool {
    let taint = Taint { key: taint.key.clone(), effect: taint.effect.as_str().to_owned(), value: taint.value.clone(), ..Taint::default() };
    tolerations.iter().any(|toleration| toleration.toleration_seconds.is_none() && scheduling::tolerates(toleration, &taint))
}
