//! What gates mean to the resources that they ask for.

use super::world::Gate;
use crate::gates_shared::Key;
use crds::node_readiness_gate::{DuringUpdate, Effect, GateTaint, Inject, Mode, Policy};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How readiness gates, of nodes and of pods, bear on a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GateLinks {
    /// A gate asks for the resource's replicas.
    pub watched: bool,
    /// Taints, by key and effect, of gates that ask for replicas: they keep no pod of the resource away.
    pub taints: Vec<(String, String)>,
    /// Taints of all gates: they go by themselves, and are no statement about which pods a node is meant for.
    pub passing: Vec<(String, String)>,
    /// Gates that taint a node before it is updated (`duringUpdate: Taint`): nothing changes there before.
    pub tainting: Vec<Arc<Gate>>,
    /// Taints of gates that ask for them and evict what does not bear them (`NoExecute`).
    pub evicting: Vec<GateTaint>,
    /// Conditions that gates of pods ask to have listed in the pods, in order.
    pub conditions: Vec<String>,
    /// Conditions that gates of pods of the namespace keep; nothing while not all of these gates could be read.
    pub kept: Option<BTreeSet<String>>,
    /// Which kinds of gates cannot be read, and why, when one cannot: the operator knows none of these gates then.
    pub unreadable: Option<String>,
}

/// How gates of nodes bear on each resource that one of them names. `followed`: resources that gates of pods name. `is_shut`: a gate could
/// never open, so it taints no node.
pub fn links<'a>(
    gates: impl IntoIterator<Item = &'a Arc<Gate>>,
    followed: impl IntoIterator<Item = Key>,
    is_shut: impl Fn(&Gate) -> bool,
) -> BTreeMap<Key, GateLinks> {
    let mut links: BTreeMap<Key, GateLinks> = BTreeMap::new();
    let (mut passing, mut borne) = (BTreeSet::new(), BTreeSet::new());
    for gate in gates {
        let taint = &gate.spec.taint;
        let key_and_effect = (taint.key.clone(), taint.effect.as_str().to_owned());
        for wanted in gate.spec.requirements.iter().filter_map(|requirement| requirement.ingress_daemon_set.as_ref()) {
            let link = links.entry((wanted.namespace.clone(), wanted.name.clone())).or_default();
            link.watched = true;
            if injects(gate) {
                borne.insert(key_and_effect.clone());
            }
            if taint.effect == Effect::NoExecute && !link.evicting.contains(taint) {
                link.evicting.push(taint.clone());
            }
            let taints_first = wanted.during_update == DuringUpdate::Taint && taints_surely(gate) && !is_shut(gate);
            if taints_first && !link.tainting.contains(gate) {
                link.tainting.push(Arc::clone(gate));
            }
        }
        passing.insert(key_and_effect);
    }
    for link in links.values_mut() {
        // Also those of gates that wait for other resources: of two that keep each other's pods away, none would ever open.
        link.taints = borne.iter().cloned().collect();
        link.passing = passing.iter().cloned().collect();
    }
    for key in followed {
        links.entry(key).or_default().watched = true;
    }
    links
}

/// The operator adds the toleration of the gate's taint to pods that are asked for.
pub(crate) fn injects(gate: &Gate) -> bool {
    gate.spec.tolerations.as_ref().is_none_or(|tolerations| tolerations.inject != Inject::None)
}

/// Whenever one requirement is not met, the taint comes: of mode Bootstrap it does once, and with other requirements beside it
/// `AnyOf` may go without.
fn taints_surely(gate: &Gate) -> bool {
    let alone = gate.spec.policy == Policy::AllOf || gate.spec.requirements.len() == 1;
    gate.spec.mode == Mode::Continuous && !gate.spec.dry_run && !gate.deleting && alone
}
