//! Recorded revisions of the template, put into words.

use std::collections::BTreeMap;

use crds::{IngressDaemonSet, UnixSeconds, hash, names};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::output::{Style, span, table};

/// A recorded revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its number, which grows.
    pub number: i64,
    /// Hash of the template, as in status.revisions.
    pub revision: String,
    /// When it was first recorded, seconds since 1970.
    pub recorded: i64,
    /// Images of the containers, by name.
    pub images: BTreeMap<String, String>,
}

impl Revision {
    /// Of the object in which it is recorded.
    pub fn of(found: &ControllerRevision) -> Self {
        let data = found.data.as_ref().map(|data| data.0.clone()).unwrap_or_default();
        let containers = data.pointer("/spec/template/spec/containers").and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            number: found.revision,
            revision: found.labels().get(names::REVISION_LABEL).cloned().unwrap_or_default(),
            recorded: found.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            images: containers.iter().map(|container| (text(&container["name"]), text(&container["image"]))).collect(),
        }
    }
}

/// The newest one but that of the spec, and but the one that is pinned now.
pub fn newest_before<'a>(revisions: &'a [Revision], resource: &IngressDaemonSet) -> Option<&'a Revision> {
    let spec = hash::revision(&resource.spec.template);
    let pinned = resource.spec.rollback_to.map(|pinned| pinned.revision).filter(|number| *number > 0);
    let below = |revision: &&Revision| revision.revision != spec && pinned.is_none_or(|pinned| revision.number < pinned);
    revisions.iter().filter(below).max_by_key(|revision| revision.number)
}

/// For people, newest last.
pub fn render(
    resource: &IngressDaemonSet,
    revisions: &[Revision],
    nodes: &BTreeMap<String, usize>,
    style: Style,
    now: UnixSeconds,
) -> String {
    let status = resource.status.clone().unwrap_or_default();
    let spec = hash::revision(&resource.spec.template);
    let rolled_back = status.rollout.and_then(|ledger| ledger.rolled_back);
    let rows = revisions.iter().map(|revision| {
        let mut words = Vec::new();
        if revision.revision == spec {
            words.push("spec.template");
        }
        if revision.revision == status.revisions.effective && status.revisions.effective != spec {
            words.push(if resource.spec.rollback_to.is_some() { "pinned by rollbackTo" } else { "rolled back to" });
        }
        if rolled_back.as_ref().is_some_and(|rolled_back| rolled_back.from == revision.revision) {
            words.push("failed");
        }
        if revision.revision == status.revisions.current {
            words.push("last on all nodes");
        }
        let images = revision.images.values().cloned().collect::<Vec<_>>().join(", ");
        let running = nodes.get(&revision.revision).copied().unwrap_or(0).to_string();
        let age = span(now.saturating_sub(revision.recorded));
        vec![revision.number.to_string(), revision.revision.clone(), age, running, words.join(", "), images]
    });
    table(style, &["REVISION", "HASH", "AGE", "NODES", "IS", "IMAGES"], rows.collect(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resource(image: &str, pinned: Option<i64>) -> IngressDaemonSet {
        serde_json::from_value(json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet", "metadata": { "name": "edge" },
            "spec": {
                "template": { "spec": { "containers": [{ "name": "nginx", "image": image }] } },
                "rollbackTo": pinned.map(|number| json!({ "revision": number })),
            },
        }))
        .unwrap()
    }

    #[test]
    fn undo_never_picks_the_revision_of_the_spec() {
        let recorded = |(number, image): (i64, &str)| Revision {
            number,
            revision: hash::revision(&resource(image, None).spec.template),
            recorded: 0,
            images: BTreeMap::new(),
        };
        let revisions: Vec<_> = [(1, "a"), (2, "b"), (3, "c"), (4, "d")].map(recorded).into();
        for (image, pinned, expected) in [
            ("d", None, Some(3)),
            ("c", None, Some(4)),
            ("d", Some(0), Some(3)),
            ("d", Some(3), Some(2)),
            ("b", Some(3), Some(1)),
            ("d", Some(1), None),
        ] {
            let found = newest_before(&revisions, &resource(image, pinned)).map(|revision| revision.number);
            assert_eq!(found, expected, "{image} and pinned to {pinned:?}");
        }
    }
}
