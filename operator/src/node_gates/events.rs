//! Events: what came about on Nodes, and what gates say that have no status of their own.

use super::act;
use crate::{
    metrics::node_gates::{GateMetrics, OfGate},
    write,
};
use crds::NodeReadinessGate;
use k8s_controller::events::{EventRecorder, EventType};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Client, Resource};
use parking_lot::Mutex;
use planner::node_gates::{Gate, Transition, transition::Happened};
use std::{sync::Arc, time::Instant};
use tokio::{sync::mpsc::Sender, task::JoinHandle};

/// Events a second, and at once: a thousand nodes that are released together need no thousand events.
const EVENTS: (f64, f64) = (10.0, 50.0);

/// What may wait to be told: each holds a Node, and pods may have to be listed for it.
const WAITING: usize = 500;

/// Something to tell.
pub enum Told {
    /// It came about on a node for a gate.
    Transition {
        /// The node, as it is now.
        node: Box<Node>,
        /// The gate.
        gate: Arc<Gate>,
        /// What.
        transition: Transition,
    },
    /// A record said that a gate had put this taint on a node; no gate is known that did.
    Unknown {
        /// The node: its name and UID.
        node: Box<Node>,
        /// Key of the taint.
        key: String,
        /// Its effect.
        effect: String,
    },
    /// A condition of a gate has changed.
    Condition {
        /// What the gate is made from.
        about: About,
        /// It says that something is wrong.
        is_trouble: bool,
        /// One word.
        reason: String,
        /// A sentence.
        message: String,
    },
}

/// What a gate is made from that has conditions to tell of.
pub enum About {
    /// A gate.
    Gate(Box<NodeReadinessGate>),
    /// The `ConfigMap` of istio-cni-taint.
    ConfigMap(Box<ConfigMap>),
}

/// Counts and tells what came about, beside the loop: no decision waits for an event. Ends with its sender.
pub fn announce(client: Client, metrics: GateMetrics, teller: Teller) -> (Sender<Told>, JoinHandle<()>) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Told>(WAITING);
    let telling = tokio::spawn(async move {
        while let Some(told) = receiver.recv().await {
            match told {
                Told::Transition { node, gate, transition } => {
                    let mut strangers = 0;
                    if transition.happened == (Happened::Added { late: true })
                        && let Some(found) = act::strangers(&client, &gate, &node).await
                    {
                        strangers = found;
                        let late = metrics.late_pods.get_or_create(&OfGate { gate: gate.name.clone() });
                        late.inc_by(u64::try_from(strangers).unwrap_or(u64::MAX));
                    }
                    teller.tell(&metrics, &node, &gate, &transition, strangers).await;
                }
                Told::Unknown { node, key, effect } => teller.tell_unknown(&metrics, &node, &key, &effect).await,
                Told::Condition { about, is_trouble, reason, message } => {
                    let type_ = if is_trouble { EventType::Warning } else { EventType::Normal };
                    match about {
                        About::Gate(gate) => teller.publish(&metrics, &*gate, type_, &reason, message).await,
                        About::ConfigMap(config_map) => teller.publish(&metrics, &*config_map, type_, &reason, message).await,
                    }
                }
            }
        }
    });
    (sender, telling)
}

/// Tells of what came about on Nodes, not too often.
#[derive(Debug)]
pub struct Teller {
    recorder: EventRecorder,
    /// Events that may be written now, and when that was counted.
    left: Mutex<(f64, Instant)>,
}

impl Teller {
    /// Through this recorder.
    pub fn new(recorder: EventRecorder) -> Self {
        Self { recorder, left: Mutex::new((EVENTS.1, Instant::now())) }
    }

    fn may_tell(&self) -> bool {
        let mut left = self.left.lock();
        let now = Instant::now();
        let tokens = now.duration_since(left.1).as_secs_f64().mul_add(EVENTS.0, left.0).min(EVENTS.1);
        let may = tokens >= 1.0;
        *left = (if may { tokens - 1.0 } else { tokens }, now);
        may
    }

    /// An event on a Node, for each thing that came about. `strangers`: pods that were there before the taint and do not bear it, where
    /// they were counted.
    pub async fn tell(&self, metrics: &GateMetrics, node: &Node, gate: &Gate, transition: &Transition, strangers: usize) {
        let taint = format!("{}:{}", gate.spec.taint.key, gate.spec.taint.effect.as_str());
        let name = &gate.name;
        let (type_, reason, words) = match transition.happened {
            Happened::Added { .. } if strangers > 0 => {
                let words = format!(
                    "gate {name}: {taint} added late: {strangers} pods that do not tolerate it came first; see condition AdmissionActive of the gate"
                );
                (EventType::Warning, "TaintedLate", words)
            }
            Happened::Added { .. } if transition.regression => {
                (EventType::Warning, "TaintAdded", format!("gate {name}: the node is no longer ready, {taint} added"))
            }
            Happened::Added { .. } => (EventType::Normal, "TaintAdded", format!("gate {name}: {taint} added until the node is ready")),
            Happened::Adopted => {
                (EventType::Normal, "TaintAdopted", format!("gate {name}: the existing {taint} stays until the node is ready"))
            }
            Happened::PutBack => {
                (EventType::Warning, "TaintAdded", format!("gate {name}: somebody else removed {taint}, the operator added it again"))
            }
            Happened::Removed => (EventType::Normal, "TaintRemoved", format!("gate {name}: the node is ready, {taint} removed")),
            Happened::LetGo => {
                let words =
                    format!("gate {name}: {taint} removed: the gate does not apply to the node now, see its selector and conditions");
                (EventType::Normal, "TaintRemoved", words)
            }
            Happened::Yielded => {
                (EventType::Normal, "TaintYielded", format!("gate {name}: the node is ready; {taint} stays for other gates"))
            }
            Happened::TimedOut => (
                EventType::Warning,
                "ReleaseTimedOut",
                format!("gate {name}: release.timeout is over, {taint} removed although the node is not ready"),
            ),
        };
        tracing::info!(node = node.metadata.name, gate = name, reason, "{words}");
        self.publish(metrics, node, type_, reason, words).await;
    }

    /// An event on a Node whose taint stays although an annotation calls it one of a gate.
    pub async fn tell_unknown(&self, metrics: &GateMetrics, node: &Node, key: &str, effect: &str) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let words = format!(
            "{key}:{effect} stays: an annotation of the Node names a gate for it, but no known gate ever had this taint; if nothing needs the taint, remove it: kubectl taint nodes {name} {key}:{effect}-"
        );
        tracing::warn!(node = name, "{words}");
        self.publish(metrics, node, EventType::Warning, "TaintOfUnknownGate", words).await;
    }

    async fn publish<K>(&self, metrics: &GateMetrics, about: &K, type_: EventType, reason: &str, note: String)
    where
        K: Resource<DynamicType = ()> + Sync,
    {
        if self.may_tell() {
            write::publish(&self.recorder, about, type_, (reason, "Gate"), note).await;
        } else {
            metrics.events_dropped.inc();
        }
    }
}
