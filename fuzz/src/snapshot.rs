//! Snapshots of rollouts in which anything may have been written by anybody.

use crate::{
    json,
    world::{
        World,
        operator::Operator,
        wish::{Marks, Wish},
    },
};
use arbitrary::{Result, Unstructured};
use crds::{IngressDaemonSetStatus, names};
use k8s_openapi::api::core::v1::Taint;
use planner::{
    Snapshot, decide,
    facts::{DeploymentFacts, NodeFacts, PodFacts},
    reason::NodeObject,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

/// Seconds after the change of the template at which snapshots are taken.
const MOMENTS: [usize; 6] = [0, 2, 4, 7, 11, 20];
const ALL_MARKS: [Marks; 4] = [Marks::Token, Marks::Both, Marks::Timestamp, Marks::Degrade];

static SNAPSHOTS: LazyLock<Vec<Snapshot>> =
    LazyLock::new(|| ALL_MARKS.iter().flat_map(|marks| MOMENTS.map(|seconds| rollout(*marks, seconds))).collect());

fn rollout(marks: Marks, seconds: usize) -> Snapshot {
    let mut world = World::new(Wish::new(marks, 2), 4);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).expect("an undisturbed world converges");
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    for _ in 0..seconds {
        world.fair_second(&mut operator);
    }
    operator.catch_up(&world);
    operator.snapshot(&world).expect("the resource is there")
}

/// A snapshot in the middle of a rollout.
pub fn under_way(which: usize) -> Snapshot {
    SNAPSHOTS[which % SNAPSHOTS.len()].clone()
}

/// Whatever is in the objects, equal snapshots give equal plans, and the status keeps to its bounds.
pub fn run(data: &[u8]) {
    // Bytes that run out are no finding.
    let _ = changed(&mut Unstructured::new(data));
}

fn changed(u: &mut Unstructured<'_>) -> Result<()> {
    let mut snapshot = under_way(u.arbitrary::<u8>()?.into());
    for _ in 0..u.int_in_range(1..=12)? {
        change(u, &mut snapshot)?;
    }
    let plan = decide(&snapshot);
    assert_eq!(plan, decide(&snapshot));
    assert!(plan.status.node_states.len() <= 100);
    assert!(plan.status.conditions.iter().all(|condition| condition.message.chars().count() <= 1024));
    Ok(())
}

fn change(u: &mut Unstructured<'_>, snapshot: &mut Snapshot) -> Result<()> {
    match u.int_in_range(0..=9)? {
        0 => snapshot.now = json::number(u)?,
        1 => resource(u, snapshot)?,
        2 => ledger(u, snapshot)?,
        3 | 4 => {
            let mut nodes = (*snapshot.nodes).clone();
            if let Some(node) = any(u, &mut nodes)? {
                change_node(u, Arc::make_mut(node))?;
            }
            snapshot.nodes = Arc::new(nodes);
        }
        5 | 6 => {
            if let Some(deployment) = any(u, &mut snapshot.deployments)? {
                change_deployment(u, Arc::make_mut(deployment))?;
            }
        }
        7 => {
            if let Some(pods) = any(u, &mut snapshot.pods)? {
                change_pods(u, pods)?;
            }
        }
        8 => remove_or_strange(u, snapshot)?,
        _ => memory(u, snapshot)?,
    }
    Ok(())
}

fn any<'a, T>(u: &mut Unstructured<'_>, map: &'a mut BTreeMap<String, T>) -> Result<Option<&'a mut T>> {
    if map.is_empty() {
        return Ok(None);
    }
    let chosen = u.choose_index(map.len())?;
    Ok(map.values_mut().nth(chosen))
}

fn resource(u: &mut Unstructured<'_>, snapshot: &mut Snapshot) -> Result<()> {
    let resource = &mut snapshot.resource;
    match u.int_in_range(0..=4)? {
        0 => resource.deleting = u.arbitrary()?,
        1 => resource.generation = json::number(u)?,
        2 => resource.spec.pods_per_node = u.arbitrary()?,
        3 => resource.spec.paused = u.arbitrary()?,
        _ => resource.finalizers = vec![json::text(u)?],
    }
    Ok(())
}

/// The status as JSON, changed; what no longer decodes cannot be in the store either.
fn ledger(u: &mut Unstructured<'_>, snapshot: &mut Snapshot) -> Result<()> {
    let Ok(mut status) = serde_json::to_value(&snapshot.resource.status) else { return Ok(()) };
    json::change(u, &mut status)?;
    if let Ok(status) = serde_json::from_value::<Option<IngressDaemonSetStatus>>(status) {
        snapshot.resource.status = status;
    }
    Ok(())
}

fn token(u: &mut Unstructured<'_>) -> Result<String> {
    let uid8 = *u.choose(&[crate::world::cluster::UID8, "ffffffff", ""])?;
    let phase = *u.choose(&["New", "Claimed", "Degrading", "Updating", "Closed", "Open"])?;
    let end = *u.choose(&["", ".k", ".x"])?;
    Ok(format!("{uid8}.{}.{phase}.{}{end}", json::number(u)?, json::number(u)?))
}

fn change_node(u: &mut Unstructured<'_>, node: &mut NodeFacts) -> Result<()> {
    match u.int_in_range(0..=6)? {
        0 => {
            let phase = *u.choose(&["Attached", "Detached", "Elsewhere"])?;
            let uid8 = *u.choose(&[crate::world::cluster::UID8, "ffffffff"])?;
            let (id, time) = (json::number(u)?, json::number(u)?);
            let holders =
                serde_json::json!({uid8: {"id": id, "phase": phase, "key": json::text(u)?, "value": json::text(u)?, "time": time}});
            node.annotations.insert(names::HOLDERS_ANNOTATION.into(), holders.to_string());
        }
        1 => drop(node.annotations.insert(names::HOLDERS_ANNOTATION.into(), json::value(u, 3)?.to_string())),
        2 => drop(node.annotations.insert(json::text(u)?, json::text(u)?)),
        3 => drop(node.labels.insert(names::member_label(crate::world::cluster::UID8), json::text(u)?)),
        4 => node.taints.push(Taint { key: json::text(u)?, value: Some(json::text(u)?), effect: json::text(u)?, time_added: None }),
        5 => node.uid = json::text(u)?,
        _ => {
            node.ready = u.arbitrary()?;
            node.deleting = u.arbitrary()?;
            node.has_annotations = u.arbitrary()?;
        }
    }
    Ok(())
}

fn change_deployment(u: &mut Unstructured<'_>, deployment: &mut DeploymentFacts) -> Result<()> {
    match u.int_in_range(0..=7)? {
        0 => drop(deployment.labels.insert(names::TOKEN_LABEL.into(), token(u)?)),
        1 => drop(deployment.labels.insert(names::TOKEN_LABEL.into(), json::text(u)?)),
        2 => drop(deployment.labels.insert(names::BREAKER_LABEL.into(), format!("{}.{}", json::number(u)?, json::number(u)?))),
        3 => drop(deployment.annotations.insert(json::text(u)?, json::text(u)?)),
        4 => {
            let mut spec = deployment.spec.to_value();
            json::change(u, &mut spec)?;
            deployment.spec = spec.into();
        }
        5 => {
            deployment.status.observed_generation = json::number(u)?;
            deployment.generation = json::number(u)?;
            deployment.status.replicas = u.arbitrary()?;
            deployment.status.updated = u.arbitrary()?;
            deployment.status.ready = u.arbitrary()?;
            deployment.status.available = u.arbitrary()?;
        }
        6 => deployment.refusal = Some(json::text(u)?),
        _ => {
            deployment.deleting = u.arbitrary()?;
        }
    }
    Ok(())
}

fn change_pods(u: &mut Unstructured<'_>, pods: &mut Vec<Arc<PodFacts>>) -> Result<()> {
    if u.ratio(1, 3)? {
        pods.push(Arc::new(PodFacts { name: json::text(u)?, revision: json::text(u)?, ..PodFacts::default() }));
    }
    if let Some(pod) = pods.last_mut().map(Arc::make_mut) {
        pod.ready = u.arbitrary()?;
        pod.terminating = u.arbitrary()?;
        pod.ended = u.arbitrary()?;
        pod.rejected_at = if u.arbitrary()? { Some(json::number(u)?) } else { None };
        pod.trouble = if u.arbitrary()? { Some((json::text(u)?, json::text(u)?)) } else { None };
    }
    Ok(())
}

/// Something is gone, or under another name.
fn remove_or_strange(u: &mut Unstructured<'_>, snapshot: &mut Snapshot) -> Result<()> {
    match u.int_in_range(0..=5)? {
        0 => drop(snapshot.deployments.pop_first()),
        1 => drop(snapshot.pods.pop_last()),
        2 => {
            let mut nodes = (*snapshot.nodes).clone();
            nodes.pop_first();
            snapshot.nodes = Arc::new(nodes);
        }
        3 => {
            if let Some((_, deployment)) = snapshot.deployments.pop_last() {
                snapshot.deployments.insert(json::text(u)?, deployment);
            }
        }
        4 => drop(snapshot.orphans.insert(json::text(u)?, json::value(u, 4)?.into())),
        _ => snapshot.daemon_sets.clear(),
    }
    Ok(())
}

/// What the process remembers.
fn memory(u: &mut Unstructured<'_>, snapshot: &mut Snapshot) -> Result<()> {
    match u.int_in_range(0..=4)? {
        0 => snapshot.reserved = u.arbitrary()?,
        1 => snapshot.listed_since_rebuild = u.arbitrary()?,
        2 => {
            let object = *u.choose(&[NodeObject::Node, NodeObject::Deployment, NodeObject::Pods, NodeObject::PullPod])?;
            snapshot.refusals.entry(object).or_default().insert(json::text(u)?, json::text(u)?);
        }
        3 => drop(snapshot.foreign_names.insert(json::text(u)?)),
        _ => snapshot.watched = json::number(u)?,
    }
    Ok(())
}
