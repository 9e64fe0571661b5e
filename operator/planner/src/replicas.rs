//! What readiness gates of nodes are told of a resource's replicas.

use crate::{
    eligibility,
    gate::world::ReplicaHealth,
    settings::Settings,
    snapshot::{NodeFacts, Snapshot},
    wanted::Case,
};
use crds::token::Phase;
use std::collections::BTreeMap;

/// The replicas on every node; on one that is not chosen there are none to wait for.
pub fn of(snapshot: &Snapshot, settings: &Settings, cases: &[Case<'_>]) -> BTreeMap<String, ReplicaHealth> {
    let on = |node: &NodeFacts| ReplicaHealth { node_uid: node.uid.clone(), standing: node.standing(), ..ReplicaHealth::default() };
    let mut replicas: BTreeMap<_, _> = snapshot.nodes.iter().map(|(name, node)| (name.clone(), on(node))).collect();
    // A node that has only just come may not be chosen yet, for taints that go by themselves: its replicas are to come.
    for (name, node) in snapshot.nodes.iter().filter(|(_, node)| node.taints.iter().any(eligibility::is_passing)) {
        let mut started = NodeFacts::clone(node);
        started.taints.retain(|taint| !eligibility::is_passing(taint));
        if eligibility::is_chosen(&snapshot.resource.spec, settings, name, &started, false) {
            let wanted = u32::try_from(settings.pods_per_node).unwrap_or(0);
            let coming = ReplicaHealth { chosen: true, wanted, detached: true, ..on(node) };
            replicas.insert(name.clone(), coming);
        }
    }
    for (case, node) in cases.iter().filter(|case| case.chosen).filter_map(|case| Some((case, case.node?))) {
        let ready = case.pods.iter().filter(|pod| pod.ready && !pod.terminating && !pod.ended).count();
        let health = ReplicaHealth {
            chosen: true,
            wanted: case.settings.map_or(0, |settings| u32::try_from(settings.pods_per_node).unwrap_or(0)),
            ready: u32::try_from(ready).unwrap_or(u32::MAX),
            updating_since: case.grant.map(|grant| grant.granted_at),
            detached: case.phase() != Some(Phase::Closed) || case.holds_node() || case.taken_out().is_some(),
            ..on(node)
        };
        replicas.insert(case.name.to_owned(), health);
    }
    replicas
}
