//! Whether a change of the template can come about in place.

use super::change;
use crate::reason::RecreateReason;
use serde_json::Value;
use std::collections::BTreeSet;

/// What asks for other pods although nothing but an annotation changes: `kubectl rollout restart` writes it.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Whether one template of the user can become the other on running pods.
pub fn templates(former: &Value, wanted: &Value) -> Result<(), RecreateReason> {
    let Some(changed) = change::between(former, wanted) else {
        return Err(if only_init_images(former, wanted) { RecreateReason::InitImage } else { RecreateReason::MoreThanImages });
    };
    if changed.annotations.contains_key(RESTARTED_AT) {
        return Err(RecreateReason::RestartedAt);
    }
    let fields: BTreeSet<String> = changed
        .labels
        .keys()
        .map(|key| format!("metadata.labels['{key}']"))
        .chain(changed.annotations.keys().map(|key| format!("metadata.annotations['{key}']")))
        .collect();
    let reads_one = |container: &Value| {
        let variables = container["env"].as_array().into_iter().flatten();
        variables.filter_map(|variable| variable["valueFrom"]["fieldRef"]["fieldPath"].as_str()).any(|path| fields.contains(path))
    };
    let stays = |container: &&Value| container["restartPolicy"] == "Always";
    let sidecars = wanted["spec"]["initContainers"].as_array().into_iter().flatten().filter(stays);
    if change::containers(wanted).chain(sidecars).any(reads_one) {
        return Err(RecreateReason::Environment);
    }
    let by_default = |place: usize| change::containers(wanted).nth(place).is_some_and(|container| container["imagePullPolicy"].is_null());
    if changed.images.iter().any(|image| by_default(image.place) && is_latest(&image.from) != is_latest(&image.to)) {
        return Err(RecreateReason::PullPolicy);
    }
    Ok(())
}

/// The tag is `latest`, or there is none: the API server makes such images be pulled each time.
fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn only_init_images(former: &Value, wanted: &Value) -> bool {
    let without = |template: &Value| {
        let mut template = template.clone();
        for container in template["spec"]["initContainers"].as_array_mut().into_iter().flatten() {
            container["image"] = Value::Null;
        }
        template
    };
    change::between(&without(former), &without(wanted)).is_some()
}
