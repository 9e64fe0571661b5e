//! The `IngressDaemonSets` that gates name, as far as gates ask for it.

use crate::watch::Observer;
use k8s_openapi::api::core::v1::Toleration;
use planner::{gates_shared::Key, node_gates::World};
use std::collections::{BTreeMap, BTreeSet};

/// Which `IngressDaemonSets` gates name that do not exist; one that cannot be decoded does.
pub(super) fn absent(world: &World, observer: &Observer) -> BTreeSet<Key> {
    let exists = |(namespace, name): &Key| observer.resource(namespace, name).is_some() || observer.unreadable(namespace, name).is_some();
    world.wanted_replicas().into_iter().filter(|key| !exists(key)).collect()
}

/// Which `IngressDaemonSets` gates name whose spec is not valid, or cannot be decoded.
pub(super) fn invalid(world: &World, observer: &Observer) -> BTreeSet<Key> {
    let is_invalid = |(namespace, name): &Key| {
        let found = observer.resource(namespace, name);
        let says = found.and_then(|resource| Some(resource.status.as_ref()?.says_invalid()));
        says.unwrap_or(false) || observer.unreadable(namespace, name).is_some()
    };
    world.wanted_replicas().into_iter().filter(is_invalid).collect()
}

/// What the templates of `IngressDaemonSets` tolerate that gates name; nothing of one that does not exist, cannot be decoded, or is held
/// without its template.
pub(super) fn tolerations(world: &World, observer: &Observer) -> BTreeMap<Key, Vec<Toleration>> {
    let of = |(namespace, name): &Key| {
        let resource = observer.resource(namespace, name)?;
        resource.spec.template.pointer("/spec/containers")?;
        let listed = resource.spec.template.pointer("/spec/tolerations").cloned().unwrap_or_else(|| serde_json::json!([]));
        serde_json::from_value(listed).ok()
    };
    world.wanted_replicas().into_iter().filter_map(|key| Some((key.clone(), of(&key)?))).collect()
}
