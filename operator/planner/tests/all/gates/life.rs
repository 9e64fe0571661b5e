//! One node in the hands of the operator.

use crds::node_readiness_gate::ConditionStatus;
use k8s_openapi::api::core::v1::Taint;
use planner::{
    facts::{NodeCondition, NodeFacts},
    node_gates::{
        Gate, GateClocks, NodePlan, World, decide,
        record::{Record, records},
        satisfiable::unsatisfiable,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub const KEY: &str = "readiness.k8s.io/edge";
pub const NODE: &str = "n1";
/// Seconds; gates are of 1,000, nodes of 2,000.
pub const NOW: i64 = 10_000;

/// A gate that waits for the condition Warm.
pub fn gate(uid: &str, more: Value) -> Gate {
    let mut spec = json!({
        "allNodes": true,
        "taint": {"key": KEY, "value": "pending", "effect": "NoSchedule"},
        "requirements": [{"name": "warm", "condition": {"type": "Warm"}}],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Gate {
        name: format!("gate-{uid}"),
        uid: uid.into(),
        generation: 1,
        created: 1_000,
        edited: None,
        deleting: false,
        spec: serde_json::from_value(spec).unwrap(),
        completion_annotation: None,
    }
}

fn world(gates: Vec<Gate>) -> World {
    let gates = gates.into_iter().map(|gate| (gate.uid.clone(), Arc::new(gate))).collect();
    let mut world = World { gates, ..World::default() };
    world.remember_taints(std::iter::empty(), |_| true);
    world
}

fn node() -> NodeFacts {
    NodeFacts {
        uid: "node-uid".into(),
        has_annotations: true,
        created: 2_000,
        boot_id: "boot-1".into(),
        machine_id: "machine1".into(),
        ..NodeFacts::default()
    }
}

pub fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.into(), effect: effect.into(), ..Taint::default() }
}

pub fn says(node: &mut NodeFacts, type_: &str, status: ConditionStatus) {
    node.conditions.retain(|condition| &*condition.type_ != type_);
    node.conditions.push(NodeCondition { type_: type_.into(), status, heartbeat: NOW, transition: NOW });
}

pub fn warm(node: &mut NodeFacts) {
    says(node, "Warm", ConditionStatus::True);
}

pub fn cold(node: &mut NodeFacts) {
    says(node, "Warm", ConditionStatus::False);
}

/// One node in the hands of the operator, with everything that happens to it.
pub struct Life {
    pub world: World,
    pub node: NodeFacts,
    pub clocks: GateClocks,
    pub room: bool,
    pub now: i64,
    pub writes: usize,
}

impl Life {
    pub fn new(gates: Vec<Gate>) -> Self {
        Self { world: world(gates), node: node(), clocks: GateClocks::new(), room: true, now: NOW, writes: 0 }
    }

    pub fn plan(&self) -> NodePlan {
        let shut: BTreeSet<_> =
            self.world.gates.values().filter(|gate| unsatisfiable(&self.world, gate).is_some()).map(|gate| gate.uid.clone()).collect();
        decide(&self.world, &shut, NODE, &self.node, &self.clocks, &mut |_| self.room, self.now)
    }

    /// Decides and writes, once.
    pub fn pass(&mut self) -> NodePlan {
        self.world.remember_taints(std::iter::empty(), |_| true);
        let plan = self.plan();
        self.clocks = plan.clocks.clone();
        if let Some(patch) = &plan.patch {
            self.writes += 1;
            self.node = patched(&self.node, patch).unwrap();
        }
        plan
    }

    /// The same, as long as there is something to write.
    pub fn settle(&mut self) -> &mut Self {
        for _ in 0..10 {
            if self.pass().patch.is_none() {
                return self;
            }
        }
        panic!("it never comes to rest");
    }

    pub fn after(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self.settle()
    }

    pub fn is_tainted(&self) -> bool {
        self.node.taints.iter().any(|taint| taint.key == KEY)
    }

    pub fn record(&self, uid: &str) -> Option<Record> {
        records(&self.node.annotations).remove(uid)
    }

    pub fn is_held(&self, uid: &str) -> bool {
        self.record(uid).is_some_and(|record| record.is_held())
    }
}

fn object(node: &NodeFacts) -> Value {
    let mut object = json!({"metadata": {"uid": node.uid}, "spec": {}});
    if node.has_annotations {
        object["metadata"]["annotations"] =
            node.annotations.entries().map(|(key, value)| (key.to_owned(), Value::from(value))).collect::<serde_json::Map<_, _>>().into();
    }
    if !node.taints.is_empty() {
        object["spec"]["taints"] = serde_json::to_value(&node.taints).unwrap();
    }
    object
}

/// What the API server makes of a patch; `None` when a test in it fails.
pub fn patched(node: &NodeFacts, patch: &Value) -> Option<NodeFacts> {
    let mut object = object(node);
    for operation in patch.as_array().unwrap() {
        // To the API server a missing member equals null.
        if operation["op"] == "test" && operation["value"].is_null() {
            if object.pointer(operation["path"].as_str().unwrap()).is_some() {
                return None;
            }
            continue;
        }
        let operation: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
        json_patch::patch(&mut object, &operation).ok()?;
    }
    let annotations: BTreeMap<String, String> = serde_json::from_value(object["metadata"]["annotations"].clone()).unwrap_or_default();
    Some(NodeFacts {
        has_annotations: !annotations.is_empty(),
        annotations: annotations.into(),
        taints: serde_json::from_value(object["spec"]["taints"].clone()).unwrap_or_default(),
        ..node.clone()
    })
}
