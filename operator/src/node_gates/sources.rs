//! Watches of what gates ask for: only what a gate asks for is watched, and each of it once.

use super::facts;
use crate::gates_shared::{
    GateState,
    follow::{Seen, config, follow, settle},
};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::Pod,
    storage::v1::CSINode,
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use planner::{
    gates_shared::{Key, Source},
    node_gates::world::{self, NOWHERE, PodSource, Pods},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::task::{AbortHandle, JoinSet};

/// The watches under way.
pub struct Sources {
    client: Client,
    state: Arc<GateState>,
    tasks: JoinSet<()>,
    pods: BTreeMap<PodSource, AbortHandle>,
    daemon_sets: BTreeMap<Key, AbortHandle>,
    csi_drivers: Option<AbortHandle>,
}

impl Sources {
    /// None yet.
    pub fn new(client: Client, state: Arc<GateState>) -> Self {
        Self { client, state, tasks: JoinSet::new(), pods: BTreeMap::new(), daemon_sets: BTreeMap::new(), csi_drivers: None }
    }

    /// Watches exactly what the gates ask for.
    pub fn adjust(&mut self) {
        let (pods, daemon_sets, csi) = {
            let world = self.state.world();
            (world.wanted_pods(), world.wanted_daemon_sets(), world.wants_csi_drivers())
        };
        while self.tasks.try_join_next().is_some() {}
        let world = &mut *self.state.changing_world();
        let (client, state) = (&self.client, &self.state);
        settle(&mut self.pods, &mut world.pods, pods, |source| self.tasks.spawn(follow_pods(client.clone(), Arc::clone(state), source)));
        settle(&mut self.daemon_sets, &mut world.daemon_sets, daemon_sets, |key| {
            self.tasks.spawn(follow_daemon_set(client.clone(), Arc::clone(state), key))
        });
        if csi && self.csi_drivers.is_none() {
            self.csi_drivers = Some(self.tasks.spawn(follow_csi_drivers(self.client.clone(), Arc::clone(&self.state))));
        } else if !csi && let Some(task) = self.csi_drivers.take() {
            task.abort();
            world.csi_drivers = Source::default();
        }
    }

    /// Something is watched of which neither a list nor a refusal was seen.
    pub fn are_listing(&self) -> bool {
        let world = self.state.world();
        world.pods.values().any(Source::is_listing)
            || world.daemon_sets.values().any(Source::is_listing)
            || self.csi_drivers.is_some() && world.csi_drivers.is_listing()
    }

    /// Why something that is watched cannot be seen.
    pub fn broken(&self) -> Option<String> {
        let world = self.state.world();
        let pods = world.pods.iter().map(|(source, seen)| (source.to_string(), &seen.broken));
        let daemon_sets = world.daemon_sets.iter().map(|((namespace, name), seen)| (format!("DaemonSet {namespace}/{name}"), &seen.broken));
        let all = pods.chain(daemon_sets).chain([("CSINodes".to_owned(), &world.csi_drivers.broken)]);
        all.into_iter().find_map(|(what, broken)| Some(format!("listing {what}: {}", broken.as_ref()?)))
    }
}

async fn follow_pods(client: Client, state: Arc<GateState>, source: PodSource) {
    let api: Api<Pod> = if source.namespace.is_empty() { Api::all(client) } else { Api::namespaced(client, &source.namespace) };
    let config = config().labels(&source.selector.to_string());
    let cut = |pod: Pod| ((pod.namespace().unwrap_or_default(), pod.name_any()), facts::pod(pod));
    let seen = |seen: Seen<(Key, (String, world::Pod))>| {
        let mut world = state.changing_world();
        let Some(found) = world.pods.get_mut(&source).map(|source| &mut source.found) else { return };
        let changed: Vec<_> = match seen {
            Seen::All(pods) => {
                let mut listed = Pods::default();
                for (key, pod) in pods {
                    insert(&mut listed, key, pod);
                }
                // The node that a pod was on is not told when it is deleted in a gap.
                let changed = found.take().unwrap_or_default().differing(&listed);
                *found = Some(listed);
                changed.into_iter().collect()
            }
            Seen::Now((key, pod)) => {
                let node = pod.0.clone();
                if let Some(found) = found {
                    insert(found, key, pod);
                }
                vec![node]
            }
            Seen::Gone((key, _)) => found.iter_mut().flat_map(|found| remove(found, &key)).collect(),
        };
        drop(world);
        state.nodes(changed);
    };
    let broken = |broken| note(&state, |world| world.pods.get_mut(&source).map(|source| &mut source.broken), broken);
    follow(api, config, cut, seen, broken).await;
}

/// Takes a pod in.
fn insert(pods: &mut Pods, key: Key, (node, facts): (String, world::Pod)) {
    // It does not wait for a node any more; it may have been on none.
    if let Some(waiting) = pods.on.get_mut(NOWHERE).filter(|_| node != NOWHERE) {
        waiting.remove(&key);
        pods.on.retain(|_, pods| !pods.is_empty());
    }
    pods.on.entry(node).or_default().insert(key, facts);
}

/// Takes a pod out; returns the nodes that it was on.
fn remove(pods: &mut Pods, key: &Key) -> Vec<String> {
    let nodes = pods.on.iter_mut().filter_map(|(node, pods)| pods.remove(key).map(|_| node.clone())).collect();
    pods.on.retain(|_, pods| !pods.is_empty());
    nodes
}

/// Notes whether a source can be seen; every node may be concerned.
fn note(state: &GateState, of: impl Fn(&mut planner::node_gates::World) -> Option<&mut Option<String>>, broken: Option<String>) {
    let mut world = state.changing_world();
    let Some(known) = of(&mut world) else { return };
    let changed = known.is_some() != broken.is_some();
    if changed && let Some(why) = &broken {
        tracing::warn!(why, "the operator cannot see a source of a readiness gate; nodes do not change");
    }
    *known = broken;
    drop(world);
    if changed {
        state.every_node();
    }
}

/// How soon the newest revision of a `DaemonSet` is asked for again where it is not known.
const REVISION_RETRY: Duration = Duration::from_secs(5);

async fn follow_daemon_set(client: Client, state: Arc<GateState>, key: Key) {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &key.0);
    let config = config().fields(&format!("metadata.name={}", key.1));
    let (newest_seen, mut arrivals) = tokio::sync::watch::channel(None::<DaemonSet>);
    let seen = |seen: Seen<DaemonSet>| {
        let now = match seen {
            Seen::All(mut found) => found.pop(),
            Seen::Now(found) => Some(found),
            Seen::Gone(_) => None,
        };
        let _ = newest_seen.send(now); // its receiver lives in this function
    };
    let wants_revision = || {
        state.world().gates.values().any(|gate| {
            gate.spec.requirements.iter().filter_map(|wanted| wanted.daemon_set.as_ref()).any(|wanted| {
                wanted.current_revision && (wanted.namespace.as_str(), wanted.name.as_str()) == (key.0.as_str(), key.1.as_str())
            })
        })
    };
    let take = async {
        // A gate may begin to ask for the newest revision at any time, and who was asked for it may not have answered.
        let mut unknown = false;
        loop {
            match tokio::time::timeout(REVISION_RETRY, arrivals.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) if unknown && wants_revision() => {}
                Err(_) => continue,
            }
            let mut now = arrivals.borrow_and_update().clone().map(facts::daemon_set);
            if let Some(found) = now.as_mut().filter(|_| wants_revision()) {
                found.revision = newest(&client, &key.0, found).await;
            }
            unknown = now.as_ref().is_some_and(|found| found.revision.is_none());
            let mut world = state.changing_world();
            let Some(source) = world.daemon_sets.get_mut(&key) else { continue };
            let differs = source.found.as_ref() != Some(&now);
            source.found = Some(now);
            drop(world);
            if differs {
                // Another selector is another source of pods.
                state.gates();
                state.every_node();
            }
        }
    };
    let broken = |broken| note(&state, |world| world.daemon_sets.get_mut(&key).map(|source| &mut source.broken), broken);
    tokio::join!(follow(api, config, std::convert::identity, seen, broken), take);
}

/// The label `controller-revision-hash` of the newest pods of a `DaemonSet`.
async fn newest(client: &Client, namespace: &str, daemon_set: &world::DaemonSet) -> Option<String> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let listed = api.list(&ListParams::default().labels(&daemon_set.selector.to_string())).await.ok()?;
    let own =
        listed.items.into_iter().filter(|found| found.metadata.owner_references.iter().flatten().any(|owner| owner.uid == daemon_set.uid));
    own.max_by_key(|found| found.revision)?.metadata.labels?.remove("controller-revision-hash")
}

async fn follow_csi_drivers(client: Client, state: Arc<GateState>) {
    let cut = |node: CSINode| {
        let name = node.name_any();
        (name, node.spec.drivers.into_iter().map(|driver| driver.name).collect::<BTreeSet<_>>())
    };
    let seen = |seen: Seen<(String, BTreeSet<String>)>| {
        let mut world = state.world();
        let found = &mut world.csi_drivers.found;
        let changed = match seen {
            Seen::All(nodes) => {
                *found = Some(nodes.into_iter().collect());
                None
            }
            Seen::Now((name, drivers)) => {
                if let Some(found) = found {
                    found.insert(name.clone(), drivers);
                }
                Some(name)
            }
            Seen::Gone((name, _)) => {
                if let Some(found) = found {
                    found.remove(&name);
                }
                Some(name)
            }
        };
        drop(world);
        match changed {
            Some(name) => state.nodes([name]),
            None => state.every_node(),
        }
    };
    let broken = |broken| note(&state, |world| Some(&mut world.csi_drivers.broken), broken);
    follow(Api::all(client), config(), cut, seen, broken).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pods: &mut Pods, node: Option<&str>) {
        let spec = serde_json::json!({ "nodeName": node, "containers": [] });
        let pod = serde_json::from_value(serde_json::json!({ "metadata": { "name": "p", "namespace": "ops" }, "spec": spec })).unwrap();
        insert(pods, ("ops".to_owned(), "p".to_owned()), facts::pod(pod));
    }

    #[test]
    fn a_pod_waits_for_a_node_until_it_has_one() {
        let mut pods = Pods::default();
        take(&mut pods, None);
        assert!(pods.on.keys().eq([NOWHERE]));
        take(&mut pods, Some("n1"));
        assert!(pods.on.keys().eq(["n1"]) && pods.on["n1"].len() == 1);
    }

    #[test]
    fn a_deleted_pod_is_removed_and_its_node_notified() {
        let mut pods = Pods::default();
        take(&mut pods, Some("n1"));
        let key = ("ops".to_owned(), "p".to_owned());
        assert_eq!(remove(&mut pods, &key), ["n1"]);
        assert!(pods.on.is_empty());
        assert!(remove(&mut pods, &key).is_empty());
    }
}
