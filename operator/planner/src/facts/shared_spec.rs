//! A Deployment's `spec` as the API server stores it, without holding what all nodes have in common once for each of them.

use crate::facts::label_map::KeyInterner;
use crds::names;
use k8s_openapi::api::core::v1::Toleration;
use serde_json::Value;
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Weak},
};

/// What stands before the number of a text that is the Deployment's own. The API server takes no such character in a name.
const OWN: char = '\0';

/// A `spec` as stored, API defaults included.
///
/// Deployments of thousands of nodes differ in a few texts alone: their own name, their node's, and its hash. What is left is
/// held once for all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedSpec {
    common: Arc<Common>,
    own: Arc<[Box<str>]>,
}

/// What many have in common.
#[derive(Debug, Default, PartialEq)]
struct Common {
    /// The spec; each text that is the Deployment's own is replaced by [`OWN`] and its place in `own`.
    spec: Value,
    /// The label of its template that is read of every Deployment several times in each pass.
    revision: Option<Box<str>>,
}

impl From<Value> for Common {
    fn from(spec: Value) -> Self {
        let revision = template_label(&spec, names::REVISION_LABEL).map(Box::from);
        Self { spec, revision }
    }
}

impl From<Value> for SharedSpec {
    fn from(spec: Value) -> Self {
        Self { common: Arc::new(spec.into()), own: Arc::default() }
    }
}

impl SharedSpec {
    /// The spec has this top-level field.
    pub fn has(&self, field: &str) -> bool {
        self.common.spec.get(field).is_some()
    }

    /// A copy of a top-level field; `None` if the spec lacks the field.
    pub fn get(&self, field: &str) -> Option<Value> {
        let mut value = self.common.spec.get(field)?.clone();
        each_text(&mut value, &mut |text| {
            if let Some(own) = self.own_text(text) {
                *text = own.to_owned();
            }
        });
        Some(value)
    }

    /// A copy of the whole spec.
    pub fn to_value(&self) -> Value {
        let mut value = self.common.spec.clone();
        each_text(&mut value, &mut |text| {
            if let Some(own) = self.own_text(text) {
                *text = own.to_owned();
            }
        });
        value
    }

    /// Tells what it holds in common with others from what others hold, as long as it is held.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.common).addr()
    }

    /// What it holds in common with others.
    pub fn common(&self) -> &Value {
        &self.common.spec
    }

    /// Bytes of the texts that are its own.
    pub fn own_bytes(&self) -> usize {
        self.own.iter().map(|text| text.len()).sum()
    }

    /// A number among its fields.
    pub fn number(&self, field: &str) -> Option<i64> {
        self.common.spec.get(field)?.as_i64()
    }

    /// A label of the pod template.
    pub fn template_label(&self, key: &str) -> Option<&str> {
        let text = template_label(&self.common.spec, key)?;
        Some(self.own_text(text).unwrap_or(text))
    }

    /// The revision that the pod template carries.
    pub fn revision(&self) -> Option<&str> {
        let text = self.common.revision.as_deref()?;
        Some(self.own_text(text).unwrap_or(text))
    }

    /// Tolerations of the pod template; those that nobody can read are left out.
    pub fn template_tolerations(&self) -> Vec<Toleration> {
        let mut found = self.held("template").pointer("/spec/tolerations").cloned().unwrap_or_default();
        each_text(&mut found, &mut |text| {
            if let Some(own) = self.own_text(text) {
                *text = own.to_owned();
            }
        });
        serde_json::from_value(found).unwrap_or_default()
    }

    /// A field as it is held.
    pub(crate) fn held(&self, field: &str) -> &Value {
        self.common.spec.get(field).unwrap_or(&Value::Null)
    }

    /// What a text that is held stands for, when it stands for another.
    pub(crate) fn own_text(&self, text: &str) -> Option<&str> {
        let place: usize = text.strip_prefix(OWN).filter(|_| !self.own.is_empty())?.parse().ok()?;
        self.own.get(place).map(AsRef::as_ref)
    }
}

/// What the specs that are held have in common.
#[derive(Debug, Default)]
pub struct SpecInterner {
    /// Keys of labels and annotations.
    pub keys: KeyInterner,
    /// By a hash of the text, which may be as long as all that is held.
    known: HashMap<u64, Weak<Common>>,
    hasher: RandomState,
    /// How many may be known before those are dropped that nobody holds any more.
    most: usize,
}

impl SpecInterner {
    /// The spec of a Deployment to which these texts are its own: the same as was given, however it is held.
    pub fn intern(&mut self, mut spec: Value, own: &[&str]) -> SharedSpec {
        let mut ambiguous = false;
        each_text(&mut spec, &mut |text| ambiguous |= text.starts_with(OWN));
        if ambiguous {
            return spec.into();
        }
        each_text(&mut spec, &mut |text| {
            if let Some(place) = own.iter().position(|own| own == text && !own.is_empty()) {
                *text = format!("{OWN}{place}");
            }
        });
        let own = own.iter().map(|text| Box::from(*text)).collect();
        SharedSpec { common: self.share(spec), own }
    }

    fn share(&mut self, spec: Value) -> Arc<Common> {
        let key = self.hasher.hash_one(spec.to_string());
        if let Some(known) = self.known.get(&key).and_then(Weak::upgrade).filter(|known| known.spec == spec) {
            return known;
        }
        if self.known.len() >= self.most {
            self.known.retain(|_, held| held.strong_count() > 0);
            self.most = (self.known.len() * 2).max(16);
        }
        let shared = Arc::new(Common::from(spec));
        self.known.insert(key, Arc::downgrade(&shared));
        shared
    }
}

/// A label of the pod template, as it is held.
fn template_label<'s>(spec: &'s Value, key: &str) -> Option<&'s str> {
    spec.get("template")?.get("metadata")?.get("labels")?.get(key)?.as_str()
}

fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(name: &str, node: &str) -> Value {
        json!({ "replicas": 2, "template": {
            "metadata": { "labels": { "name": name, "app": "edge" } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "args": [node, "--node"] }] },
        } })
    }

    #[test]
    fn specs_differing_only_in_their_own_texts_are_held_once() {
        let mut specs = SpecInterner::default();
        let held: Vec<_> =
            ["a", "b"].map(|node| specs.intern(spec(&format!("edge-{node}"), node), &[&format!("edge-{node}"), node])).into();
        assert!(Arc::ptr_eq(&held[0].common, &held[1].common));
        for (held, node) in held.iter().zip(["a", "b"]) {
            assert_eq!(held.to_value(), spec(&format!("edge-{node}"), node));
            assert_eq!(held.get("template"), spec(&format!("edge-{node}"), node).get("template").cloned());
            assert_eq!(held.template_label("name"), Some(format!("edge-{node}").as_str()));
            assert_eq!((held.template_label("app"), held.number("replicas")), (Some("edge"), Some(2)));
            assert_eq!(held.revision(), None);
        }
    }

    /// A node may be called as a revision is.
    #[test]
    fn a_revision_is_read_whosever_text_it_is() {
        let spec = json!({ "template": { "metadata": { "labels": { names::REVISION_LABEL: "0a1b2c3d4e" } } } });
        let mut specs = SpecInterner::default();
        for held in [specs.intern(spec.clone(), &["0a1b2c3d4e"]), specs.intern(spec.clone(), &["n1"]), spec.into()] {
            assert_eq!(held.revision(), Some("0a1b2c3d4e"));
        }
    }

    #[test]
    fn a_text_that_looks_like_a_placeholder_stays_unchanged() {
        let odd = json!({ "args": ["\u{0}0", "a"] });
        assert_eq!(SpecInterner::default().intern(odd.clone(), &["a"]).to_value(), odd);
        assert_eq!(SharedSpec::from(odd.clone()).to_value(), odd);
    }

    #[test]
    fn an_own_text_that_is_not_known_replaces_nothing() {
        let empty = json!({ "hostname": "", "name": "x" });
        assert_eq!(SpecInterner::default().intern(empty.clone(), &["", "x"]).to_value(), empty);
    }

    #[test]
    fn what_nobody_holds_any_more_is_forgotten() {
        let mut specs = SpecInterner::default();
        for number in 0..1000 {
            specs.intern(json!({ "number": number }), &[]);
        }
        assert!(specs.known.len() <= 16, "{}", specs.known.len());
    }
}
