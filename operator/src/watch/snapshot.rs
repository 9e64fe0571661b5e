//! The snapshot of one resource, cut out of the index. What a process remembers is for others to add.

use super::{
    facts,
    index::{Index, Key, of_namespace},
};
use crds::{IngressDaemonSet, UnixSeconds, hash, names};
use planner::{
    Snapshot,
    facts::{DeploymentFacts, OtherResource, PodFacts, PullFacts, ReplicaSetFacts, Resource, RevisionFacts},
    objects::render::object_name,
    spec::{claims::acceptance, node_rights::NodeRights},
};
use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(super) fn build(
    index: &Index,
    namespace: &str,
    name: &str,
    now: UnixSeconds,
    health_checker_image: &str,
    node_rights: &Arc<NodeRights>,
) -> Option<Snapshot> {
    let key = (namespace.to_owned(), name.to_owned());
    let resource = index.resources.get(&key)?;
    let uid = resource.metadata.uid.clone().unwrap_or_default();
    let uid8 = names::uid8(&uid).to_owned();
    let taken = taken(index, namespace, &uid8);
    let deployments = deployments(index, namespace, name, &uid, &taken);
    let orphans = of_namespace(&index.replica_sets, namespace).filter(|(_, entry)| entry.uid8 == uid8 && entry.controller.is_none());
    let mut orphans: Vec<_> = orphans.collect();
    // An update leaves more than one on a node: the last one counts, which has most pods. With the template of another one they would go.
    orphans.sort_by_key(|(_, entry)| entry.facts.orphans);
    // Of one that is too large nothing is held.
    let orphans = orphans.into_iter();
    let orphans =
        orphans.filter_map(|(_, entry)| Some((index.node_names.get(&entry.node_hash)?.clone(), entry.facts.orphan.clone()?))).collect();
    let daemon_sets = of_namespace(&index.daemon_sets, namespace).filter(|(_, entry)| entry.uid8 == uid8);
    let itself = Resource {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        uid: uid.clone(),
        resource_version: resource.metadata.resource_version.clone().unwrap_or_default(),
        generation: resource.metadata.generation.unwrap_or(0),
        created: resource.metadata.creation_timestamp.as_ref().map_or(0, facts::seconds),
        deleting: resource.metadata.deletion_timestamp.is_some(),
        finalizers: resource.metadata.finalizers.clone().unwrap_or_default(),
        retry: resource.metadata.annotations.as_ref().and_then(|all| all.get(names::RETRY_ANNOTATION)).cloned().unwrap_or_default(),
        spec: resource.spec.clone(),
        withheld: index.withheld.get(&key).copied(),
        status: resource.status.clone(),
    };
    Some(Snapshot {
        health_checker_image: health_checker_image.to_owned(),
        node_rights: Arc::clone(node_rights),
        nodes: Arc::clone(&index.nodes),
        pods: pods(index, namespace, &uid8, &deployments),
        pulls: pulls(index, namespace, &uid8),
        replica_sets: replica_sets(index, namespace, &uid8, &deployments),
        orphans,
        daemon_sets: daemon_sets
            .map(|(_, entry)| planner::facts::DaemonSetFacts {
                owned: entry.controller.as_deref() == Some(uid.as_str()),
                ..entry.facts.clone()
            })
            .collect(),
        history: history(index, namespace, &uid),
        port_conflicts: port_conflicts(index, namespace, &uid8),
        others: others(index, &key, resource),
        service_ports: Arc::new(
            index
                .services
                .iter()
                .flat_map(|((namespace, name), ports)| ports.iter().map(move |port| (*port, format!("{namespace}/{name}"))))
                .collect(),
        ),
        foreign_names: labelled_by_others(index, namespace, &uid),
        taken_names: taken,
        deployments,
        ..Snapshot::of(itself, now)
    })
}

/// The resource's Deployments by node. One that carries our labels and belongs to somebody else is none of them.
///
/// The node is the one for which the Deployment's name was made: its label and annotation may have been edited.
fn deployments(index: &Index, namespace: &str, name: &str, uid: &str, taken: &BTreeSet<String>) -> BTreeMap<String, Arc<DeploymentFacts>> {
    let ours = of_namespace(&index.deployments, namespace).filter(|(_, entry)| entry.controller.as_deref() == Some(uid));
    // Whoever may make Deployments makes thousands that no hint fits: the names for all nodes are made once.
    let by_name = LazyCell::new(|| {
        let names = |node| [object_name(name, node, &BTreeSet::new()), object_name(name, node, taken)];
        let all = index.nodes.keys().rev().flat_map(|node| names(node).map(|name| (name, node)));
        all.collect::<BTreeMap<_, _>>()
    });
    ours.filter_map(|((_, object), entry)| {
        let (annotated, facts) = &entry.facts;
        let hashed = index.node_names.get(&entry.node_hash);
        let fits = |node: &&String| object_name(name, node, &BTreeSet::new()) == *object || object_name(name, node, taken) == *object;
        let node = [Some(annotated), hashed].into_iter().flatten().find(fits);
        let node = node.or_else(|| by_name.get(object).copied()).or(hashed).or((!annotated.is_empty()).then_some(annotated))?;
        Some((node.clone(), Arc::clone(facts)))
    })
    .collect()
}

/// Names of Deployments that carry our label and are not ours.
fn labelled_by_others(index: &Index, namespace: &str, uid: &str) -> BTreeSet<String> {
    let labelled = of_namespace(&index.deployments, namespace).filter(|(_, entry)| entry.uid8 == names::uid8(uid));
    labelled.filter(|(_, entry)| entry.controller.as_deref() != Some(uid)).map(|((_, name), _)| name.clone()).collect()
}

fn pods(
    index: &Index,
    namespace: &str,
    uid8: &str,
    deployments: &BTreeMap<String, Arc<DeploymentFacts>>,
) -> BTreeMap<String, Vec<Arc<PodFacts>>> {
    let hashes: BTreeMap<String, &String> = deployments.keys().map(|node| (hash::node_hash(node), node)).collect();
    let mut pods: BTreeMap<String, Vec<Arc<PodFacts>>> = BTreeMap::new();
    let ours = of_namespace(&index.pods, namespace).filter(|(_, entry)| entry.uid8 == uid8 && !entry.node_hash.is_empty());
    for (_, entry) in ours {
        if let Some(node) = hashes.get(&entry.node_hash).copied().or_else(|| index.node_names.get(&entry.node_hash)) {
            pods.entry(node.clone()).or_default().push(Arc::clone(&entry.facts));
        }
    }
    pods
}

/// Pods that pull images, by node.
fn pulls(index: &Index, namespace: &str, uid8: &str) -> BTreeMap<String, Vec<PullFacts>> {
    let mut pulls: BTreeMap<String, Vec<PullFacts>> = BTreeMap::new();
    let ours = of_namespace(&index.pods, namespace).filter(|(_, entry)| entry.uid8 == uid8);
    for pull in ours.filter_map(|(_, entry)| entry.facts.pull.as_deref()) {
        pulls.entry(pull.node.clone()).or_default().push(pull.clone());
    }
    pulls
}

/// By node: a `ReplicaSet` belongs to the node of its Deployment.
fn replica_sets(
    index: &Index,
    namespace: &str,
    uid8: &str,
    deployments: &BTreeMap<String, Arc<DeploymentFacts>>,
) -> BTreeMap<String, Vec<ReplicaSetFacts>> {
    let nodes: BTreeMap<&str, &String> = deployments.iter().map(|(node, deployment)| (deployment.uid.as_str(), node)).collect();
    let mut sets: BTreeMap<String, Vec<ReplicaSetFacts>> = BTreeMap::new();
    for (_, entry) in of_namespace(&index.replica_sets, namespace).filter(|(_, entry)| entry.uid8 == uid8) {
        let Some(facts) = &entry.facts.gated else { continue };
        if let Some(node) = nodes.get(facts.owner.as_str()) {
            sets.entry((*node).clone()).or_default().push(facts.clone());
        }
    }
    sets
}

fn port_conflicts(index: &Index, namespace: &str, uid8: &str) -> BTreeSet<String> {
    let ours = of_namespace(&index.pods, namespace).filter(|(_, entry)| entry.uid8 == uid8);
    ours.filter_map(|(_, entry)| entry.facts.port_conflict.clone()).collect()
}

fn history(index: &Index, namespace: &str, uid: &str) -> Vec<RevisionFacts> {
    let ours = of_namespace(&index.revisions, namespace).filter(|(_, entry)| entry.controller.as_deref() == Some(uid));
    ours.map(|(_, entry)| entry.facts.clone()).collect()
}

/// Names that other resources of this kind have given to their objects.
fn taken(index: &Index, namespace: &str, uid8: &str) -> BTreeSet<String> {
    let deployments = of_namespace(&index.deployments, namespace).map(|(key, entry)| (key, &entry.uid8));
    let daemon_sets = of_namespace(&index.daemon_sets, namespace).map(|(key, entry)| (key, &entry.uid8));
    deployments.chain(daemon_sets).filter(|(_, owner)| *owner != uid8).map(|((_, name), _)| name.clone()).collect()
}

/// Other resources that claim something that this one claims.
fn others(index: &Index, key: &Key, resource: &IngressDaemonSet) -> Vec<OtherResource> {
    let found = index.rivals(key, resource).into_iter().filter_map(|key| Some((key, index.resources.get(key)?)));
    let other = |((namespace, name), other): (&Key, &Arc<IngressDaemonSet>)| {
        let uid = other.metadata.uid.clone().unwrap_or_default();
        OtherResource {
            key: format!("{namespace}/{name}"),
            created: other.metadata.creation_timestamp.as_ref().map_or(0, facts::seconds),
            accepted: acceptance(other.status.as_ref()).is_some(),
            resource: Arc::clone(other),
            uid,
        }
    };
    found.map(other).collect()
}
