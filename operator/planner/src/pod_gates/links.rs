//! What gates of pods, and those of nodes beside them, mean to one resource.

use super::{Gate, World};
use crate::{gates_shared::Key, node_gates::GateLinks};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// How all gates bear on a resource of a namespace whose pods have these labels. `of_nodes`: how gates of nodes do, from
/// [`links`](crate::node_gates::links::links). `has_all`: there are no gates of pods but those of `world`.
pub fn links(of_nodes: GateLinks, world: &World, has_all: bool, namespace: &str, labels: &Value) -> GateLinks {
    let asking = of_namespace(&world.gates, namespace).filter(|gate| gate.injects());
    let mut conditions: Vec<_> =
        asking.filter(|gate| gate.spec.selects(|key| labels.get(key)?.as_str())).map(|gate| gate.spec.condition_type.clone()).collect();
    conditions.sort();
    conditions.dedup();
    // What nothing is done for waits; nobody else opens it.
    let all = of_namespace(&world.gates, namespace).chain(of_namespace(&world.surplus, namespace));
    let kept = has_all.then(|| all.filter(|gate| !gate.deleting).map(|gate| gate.spec.condition_type.clone()).collect());
    GateLinks { conditions, kept, ..of_nodes }
}

fn of_namespace<'m>(gates: &'m BTreeMap<Key, Arc<Gate>>, namespace: &str) -> impl Iterator<Item = &'m Arc<Gate>> + use<'m> {
    let namespace = namespace.to_owned();
    gates.range((namespace.clone(), String::new())..).take_while(move |(key, _)| key.0 == namespace).map(|(_, gate)| gate)
}
