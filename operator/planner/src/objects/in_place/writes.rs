//! Patches of `ReplicaSets` and pods. Each tests the UID and the token that the decision was based on.

use super::{
    change::{self, Change, Image},
    completion,
};
use crate::{
    facts::{ContainerFacts, InPlacePod, ReplicaSetFacts, Resource},
    patch::{self, JsonPatch},
};
use crds::{
    UnixSeconds,
    in_place::{Instance, PodRecord, token},
    names,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Our token on the `ReplicaSet`, and, with a `target`, its template.
pub fn claim(resource: &Resource, set: &ReplicaSetFacts, id: u64, target: Option<&Value>) -> Option<Value> {
    let at = patch::label(names::IN_PLACE_TOKEN);
    let old = set.token.as_deref().map_or(Value::Null, Into::into);
    let mut patch = JsonPatch::of(&set.uid).test(&at, old).add(&at, token(resource.uid8(), id));
    if let Some(target) = target {
        patch = change::between(&set.template(), target)?.write(patch, "/spec/template");
    }
    Some(patch.into_value())
}

/// What makes a pod one of the template `target`; `before` is the template that it may be of. `None` when a container is missing.
pub fn pod_change(pod: &InPlacePod, target: &Value, before: &Value) -> Option<Change> {
    let mut images = Vec::new();
    for container in change::containers(target) {
        let (name, to) = (container["name"].as_str()?, container["image"].as_str()?);
        let (place, found) = pod.containers.iter().enumerate().find(|(_, found)| found.name == name)?;
        if found.image != to {
            images.push(Image { place, container: name.to_owned(), from: found.image.clone(), to: to.to_owned() });
        }
    }
    let keys = |what: &str, has: &dyn Fn(&str) -> Option<String>| {
        let (wanted, former) = (change::texts(target, what), change::texts(before, what));
        let concerned = wanted.keys().chain(former.keys()).filter_map(|key| Some((key.clone(), has(key)?))).collect();
        change::keys(&concerned, &wanted)
    };
    Some(Change {
        images,
        labels: keys("labels", &|key| pod.labels.get(key).cloned()),
        annotations: keys("annotations", &|key| pod.annotations.get(key).cloned()),
        lacks_annotations: pod.annotations.is_empty(),
    })
}

/// The images, labels and annotations of the template on a pod, with our token and what ran before.
pub fn change(pod: &InPlacePod, id: u64, target: &Value, before: &Value, now: UnixSeconds) -> Option<Value> {
    let mut change = pod_change(pod, target, before)?;
    let earlier = pod.record.as_ref();
    let mut ran: BTreeMap<String, Instance> = earlier.map(|record| record.before.clone()).unwrap_or_default();
    for image in &change.images {
        if let Some(container) = pod.containers.get(image.place) {
            ran.insert(container.name.clone(), instance(pod, container, earlier, now));
        }
    }
    let record = PodRecord { id, at: now, before: ran };
    let old = pod.annotations.get(names::IN_PLACE_TOKEN).cloned();
    change.annotations.insert(names::IN_PLACE_TOKEN.to_owned(), (old, Some(record.to_string())));
    Some(change.write(JsonPatch::of(&pod.uid), "").into_value())
}

/// The run that the next one must not be taken for. One that an earlier change has not reached yet was begun before that.
fn instance(pod: &InPlacePod, container: &ContainerFacts, earlier: Option<&PodRecord>, now: UnixSeconds) -> Instance {
    let known = earlier.and_then(|record| record.before.get(&container.name)).filter(|known| known.container == container.id);
    known.cloned().unwrap_or_else(|| Instance {
        container: container.id.clone(),
        // What was never seen running may have been begun with anything.
        image: if completion::is_complete(pod, now) { container.image.clone() } else { String::new() },
        shown: container.shown.clone(),
        image_id: container.image_id.clone(),
        restarts: container.restarts,
    })
}

/// A strategic merge patch of the pod's status: the condition of the gate, and nothing else.
pub fn gate(pod: &InPlacePod, open: bool, now: UnixSeconds) -> Value {
    let (status, reason, message) =
        if open { ("True", "NotUpdatingInPlace", "") } else { ("False", "UpdatingInPlace", "the operator is updating the pod in place") };
    let time = chrono::DateTime::from_timestamp(now, 0).unwrap_or_default().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let mut condition = json!({
        "type": names::IN_PLACE_GATE, "status": status, "reason": reason, "message": message, "lastTransitionTime": time,
    });
    if pod.generation > 0 {
        condition["observedGeneration"] = pod.generation.into();
    }
    json!({ "metadata": { "uid": pod.uid, "resourceVersion": pod.resource_version }, "status": { "conditions": [condition] } })
}
