//! What gates mean to the resources that they ask for.

use super::world::{Gate, Key};
use crate::snapshot::GateLinks;
use crds::node_readiness_gate::{DuringUpdate, Effect, Inject, Mode, Policy};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
        let injected = gate.spec.tolerations.as_ref().is_none_or(|tolerations| tolerations.inject != Inject::None);
        for wanted in gate.spec.requirements.iter().filter_map(|requirement| requirement.ingress_daemon_set.as_ref()) {
            let link = links.entry((wanted.namespace.clone(), wanted.name.clone())).or_default();
            link.watched = true;
            if injected {
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

/// Whenever one requirement is not met, the taint comes: of mode Bootstrap it does once, and with other requirements beside it
/// `AnyOf` may go without.
fn taints_surely(gate: &Gate) -> bool {
    let alone = gate.spec.policy == Policy::AllOf || gate.spec.requirements.len() == 1;
    gate.spec.mode == Mode::Continuous && !gate.spec.dry_run && !gate.deleting && alone
}
