//! Whether a change of the template can come about in place.

use super::change;
use serde_json::Value;
use std::{collections::BTreeSet, fmt};

/// What asks for other pods although nothing but an annotation changes: `kubectl rollout restart` writes it.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Why pods have to be re-created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// `podUpdate` is Recreate.
    NotAsked,
    /// The former template is not known any more.
    FormerUnknown,
    /// The pods were made without what an update in place needs, or by another version of the operator.
    OtherRendering,
    /// Somebody changed the Deployment.
    Drifted,
    /// More than images, labels and annotations differs.
    MoreThanImages,
    /// The image of an init container differs: it would not run again.
    InitImage,
    /// Somebody asks for a restart.
    RestartedAt,
    /// An environment variable is made from a label or annotation that changes: it would keep its value.
    Environment,
    /// The default of `imagePullPolicy` follows the image's tag, and a pod cannot change it.
    PullPolicy,
    /// `maxUnavailablePodsPerNode` is 0, and a pod that is updated in place is down meanwhile.
    NoPodMayBeDown,
    /// The pods of the node are not those of one `ReplicaSet` that its Deployment calls its own.
    ReplicaSets,
    /// Pods lack the readiness gate.
    PodsWithoutGate,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "podUpdate is Recreate",
            Self::FormerUnknown => "the template that the pods were made of is not recorded any more",
            Self::OtherRendering => {
                "the pods were made before podUpdate was set, or by another version of the operator, and have to be made again once"
            }
            Self::Drifted => "somebody changed the node's Deployment",
            Self::MoreThanImages => "more than images of containers, labels and annotations changes",
            Self::InitImage => "the image of an init container changes, which would not run again",
            Self::RestartedAt => "the annotation kubectl.kubernetes.io/restartedAt asks for a restart",
            Self::Environment => "an environment variable is made from a label or an annotation that changes",
            Self::PullPolicy => "imagePullPolicy is not given and its default changes with the image's tag",
            Self::NoPodMayBeDown => "maxUnavailablePodsPerNode is 0, and a pod that is updated in place is down meanwhile",
            Self::ReplicaSets => {
                "the node's pods are not all of the one ReplicaSet of its Deployment, or a former ReplicaSet has the wanted template"
            }
            Self::PodsWithoutGate => "pods of the node lack the readiness gate",
        })
    }
}

/// Whether one template of the user can become the other on running pods.
pub fn templates(former: &Value, wanted: &Value) -> Result<(), Why> {
    let Some(changed) = change::between(former, wanted) else {
        return Err(if only_init_images(former, wanted) { Why::InitImage } else { Why::MoreThanImages });
    };
    if changed.annotations.contains_key(RESTARTED_AT) {
        return Err(Why::RestartedAt);
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
    if change::containers(wanted).any(reads_one) {
        return Err(Why::Environment);
    }
    let by_default = |place: usize| change::containers(wanted).nth(place).is_some_and(|container| container["imagePullPolicy"].is_null());
    if changed.images.iter().any(|image| by_default(image.place) && is_latest(&image.from) != is_latest(&image.to)) {
        return Err(Why::PullPolicy);
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
