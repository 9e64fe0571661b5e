//! Which taints are known to be of gates: those that they have, and had.

use super::{
    legacy, preset,
    world::{IMPLIED, World},
};
use crds::node_readiness_gate::GateTaint;

/// How many taints are remembered of one gate.
const TAINTS: usize = 16;

impl World {
    /// Remembers which taints gates have, and had before this process: `said` is what their status says of that, by UID. `is_recorded`:
    /// whether any Node has a record of a gate.
    pub fn remember_taints(&mut self, said: impl Iterator<Item = (String, Vec<GateTaint>)>, is_recorded: impl Fn(&str) -> bool) {
        for (uid, taints) in said {
            self.taints.entry(uid).or_insert(taints);
        }
        for (uid, gate) in self.gates.iter().filter(|(_, gate)| !gate.spec.dry_run) {
            let GateTaint { key, effect, .. } = &gate.spec.taint;
            let known = self.taints.entry(uid.clone()).or_default();
            if known.last().is_none_or(|last| (&last.key, last.effect) != (key, *effect)) {
                known.retain(|taint| (&taint.key, taint.effect) != (key, *effect));
                known.push(GateTaint { key: key.clone(), value: None, effect: *effect });
                known.drain(..known.len().saturating_sub(TAINTS));
            }
        }
        let gates = &self.gates;
        self.taints.retain(|uid, _| gates.contains_key(uid) || is_recorded(uid));
    }

    /// Whether a gate has put such taints on nodes, as far as this is known from what only the operator writes. A kubelet may write
    /// annotations of its own Node, records among them, and may not change its taints: what a record says is no reason to take one away.
    pub fn had_taint(&self, uid: &str, key: &str, effect: &str) -> bool {
        let is_it = |taint: &GateTaint| taint.key == key && taint.effect.as_str() == effect;
        self.taints.get(uid).is_some_and(|known| known.iter().any(is_it))
            || match uid {
                legacy::UID => is_it(&legacy::taint()),
                preset::UID => is_it(&preset::taint()),
                _ => uid.starts_with(IMPLIED) && self.rights.names_taint(key),
            }
    }
}
