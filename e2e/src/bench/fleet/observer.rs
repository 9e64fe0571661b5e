//! What users of the fleet see: one watch of all nodes, one of all pods.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::{task::JoinHandle, time::sleep};

use super::raw::{self, Change, Thin};

/// How often [`Observer::sees`] looks. What it returns is as exact as the watch.
const LOOK: Duration = Duration::from_millis(10);

/// Both watches; dropping it ends them.
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    watches: [JoinHandle<()>; 2],
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.watches.iter().for_each(JoinHandle::abort);
    }
}

/// What was seen so far.
#[derive(Debug)]
pub struct Seen {
    nodes: HashMap<String, bool>,
    /// Nodes that are Ready.
    pub ready: usize,
    /// Nodes that were Ready and then were not.
    pub lost: BTreeSet<String>,
    pods: HashMap<String, Pod>,
    /// Pods that are Running and Ready.
    pub running: usize,
    /// How long each took from its creation until then.
    pub starts: Vec<Duration>,
    changed: Instant,
}

#[derive(Debug)]
struct Pod {
    created: Instant,
    running: bool,
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self { nodes: HashMap::new(), ready: 0, lost: BTreeSet::new(), pods: HashMap::new(), running: 0, starts: Vec::new(), changed: now }
    }

    /// Pods that there are.
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    fn node(&mut self, node: Thin, gone: bool, now: Instant) {
        let (name, ready) = (node.metadata.name.clone(), !gone && node.is_ready());
        let was = if gone { self.nodes.remove(&name) } else { self.nodes.insert(name, ready) }.unwrap_or_default();
        if was != ready {
            self.ready = self.ready + usize::from(ready) - usize::from(was);
            self.changed = now;
        }
        if was && !ready {
            self.lost.insert(node.metadata.name);
        }
    }

    fn pod(&mut self, pod: &Thin, gone: bool, now: Instant) {
        let name = &pod.metadata.name;
        if gone {
            if let Some(Pod { running, .. }) = self.pods.remove(name) {
                self.running -= usize::from(running);
                self.changed = now;
            }
            return;
        }
        let running = pod.status.phase == "Running" && pod.is_ready();
        let known = self.pods.entry(name.clone()).or_insert(Pod { created: now, running: false });
        if running && !known.running {
            self.starts.push(now.saturating_duration_since(known.created));
        }
        if running != known.running {
            self.running = self.running + usize::from(running) - usize::from(known.running);
            known.running = running;
        }
        self.changed = now;
    }

    /// After a watch that had to list again: objects that are not in the list are gone.
    fn only_pods(&mut self, pods: &[Thin], now: Instant) {
        let names: BTreeSet<_> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        self.pods.retain(|name, _| names.contains(name.as_str()));
        self.running = self.pods.values().filter(|pod| pod.running).count();
        self.changed = now;
    }
}

impl Observer {
    /// Starts both watches.
    pub fn start(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::new(Instant::now())));
        let (of_nodes, of_pods) = (Arc::clone(&seen), Arc::clone(&seen));
        let nodes = raw::follow(client.clone(), "/api/v1/nodes", "", move |change| {
            let (mut seen, now) = (lock(&of_nodes), Instant::now());
            match change {
                Change::All(nodes) => nodes.into_iter().for_each(|node| seen.node(node, false, now)),
                Change::Is(node) => seen.node(node, false, now),
                Change::Gone(node) => seen.node(node, true, now),
            }
        });
        let pods = raw::follow(client.clone(), "/api/v1/namespaces/default/pods", "", move |change| {
            let (mut seen, now) = (lock(&of_pods), Instant::now());
            match change {
                Change::All(pods) => {
                    seen.only_pods(&pods, now);
                    for pod in &pods {
                        seen.pod(pod, false, now);
                    }
                }
                Change::Is(pod) => seen.pod(&pod, false, now),
                Change::Gone(pod) => seen.pod(&pod, true, now),
            }
        });
        Self { seen, watches: [tokio::spawn(nodes), tokio::spawn(pods)] }
    }

    /// What was seen so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Waits until `fact` holds; returns when the last change before that was seen.
    pub async fn sees(&self, deadline: Duration, what: &str, fact: impl Fn(&Seen) -> bool) -> Result<Instant> {
        let begun = Instant::now();
        loop {
            let state = {
                let seen = self.seen();
                if fact(&seen) {
                    return Ok(seen.changed);
                }
                format!("{} nodes are Ready, {} of {} pods Running", seen.ready, seen.running, seen.pods())
            };
            if begun.elapsed() > deadline {
                bail!("not within {} s: {what}; {state}", deadline.as_secs());
            }
            sleep(LOOK).await;
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn thin(name: &str, phase: &str, ready: &str) -> Thin {
        let conditions = json!([{ "type": "Ready", "status": ready }]);
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "phase": phase, "conditions": conditions } })).unwrap()
    }

    #[test]
    fn a_node_is_lost_only_when_it_was_ready_before() {
        let now = Instant::now();
        let mut seen = Seen::new(now);
        seen.node(thin("a", "", "False"), false, now);
        seen.node(thin("b", "", "True"), false, now);
        assert_eq!((seen.ready, seen.lost.len()), (1, 0));
        seen.node(thin("b", "", "Unknown"), false, now);
        assert_eq!((seen.ready, seen.lost.len()), (0, 1));
    }

    #[test]
    fn pod_starts_last_from_creation_until_running_and_ready() {
        let begun = Instant::now();
        let mut seen = Seen::new(begun);
        seen.pod(&thin("a", "Pending", "False"), false, begun);
        seen.pod(&thin("a", "Running", "False"), false, begun + Duration::from_secs(1));
        seen.pod(&thin("a", "Running", "True"), false, begun + Duration::from_secs(2));
        seen.pod(&thin("a", "Running", "True"), false, begun + Duration::from_secs(3));
        assert_eq!((seen.running, seen.starts.as_slice()), (1, [Duration::from_secs(2)].as_slice()));
    }

    #[test]
    fn a_pod_that_is_gone_runs_no_more() {
        let now = Instant::now();
        let mut seen = Seen::new(now);
        seen.pod(&thin("a", "Running", "True"), false, now);
        seen.pod(&thin("a", "Running", "True"), true, now);
        assert_eq!((seen.running, seen.pods()), (0, 0));
    }

    #[test]
    fn a_pod_lost_between_two_watches_counts_as_gone() {
        let now = Instant::now();
        let mut seen = Seen::new(now);
        seen.pod(&thin("a", "Running", "True"), false, now);
        seen.only_pods(&[thin("b", "Pending", "False")], now);
        assert_eq!((seen.running, seen.pods()), (0, 0));
    }
}
