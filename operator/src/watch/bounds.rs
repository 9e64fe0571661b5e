//! How much of resources is held, whoever makes them: a namespace can make thousands, each as large as the API server takes it. What is
//! beyond these bounds is known by its name and status alone, and nothing is undone that it has done.

use super::{
    GuardedResource,
    held::{json_size, mappings},
};
use crate::trim;
use crds::{IngressDaemonSet, IngressDaemonSetSpec, UnixSeconds, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use planner::facts::{SPEC_BYTES, SPEC_MAPPINGS, Withheld};
use serde_json::json;

/// Those who wrote last, of whom is kept when they did.
const MANAGERS: usize = 16;
/// Finalizers that are kept.
const FINALIZERS: usize = 64;
/// Characters that are kept of the annotation that asks for another try, and of why a resource cannot be decoded.
const TEXT: usize = 1024;
/// What may stay of a spec that is not held whole, in bytes of JSON.
const REST: usize = 16 * 1024;

/// A resource, cut down to what is read of it.
#[derive(Debug)]
pub struct Kept {
    pub(super) object: Result<IngressDaemonSet, String>,
    /// Why its spec is not there.
    pub(super) withheld: Option<Withheld>,
}

impl Kept {
    pub(super) fn of(guarded: GuardedResource) -> Self {
        match guarded.0 {
            Ok(object) => {
                let withheld = too_large(&object.spec);
                let spec = if withheld.is_some() { cut(object.spec) } else { object.spec };
                Self { object: Ok(IngressDaemonSet { metadata: read_of_metadata(object.metadata), spec, ..object }), withheld }
            }
            Err(error) => Self { object: Err(error.error.chars().take(TEXT).collect()), withheld: None },
        }
    }

    /// One too many of its namespace.
    pub(super) fn withhold(&mut self) {
        if let Ok(object) = &mut self.object {
            *object = without_spec(object);
            self.withheld = Some(Withheld::TooMany);
        }
    }

    /// Its place, if it can be decoded.
    pub(super) fn place(&self) -> Option<ResourceOrder> {
        self.object.as_ref().ok().map(ResourceOrder::of)
    }
}

/// The order in which resources of a namespace are looked after: those that run something, then the oldest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceOrder {
    runs_nothing: bool,
    created: UnixSeconds,
    uid: String,
    /// Its name.
    pub name: String,
}

impl ResourceOrder {
    pub(super) fn of(object: &IngressDaemonSet) -> Self {
        Self {
            runs_nothing: !runs(object),
            created: object.metadata.creation_timestamp.as_ref().map_or(0, super::seconds),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
        }
    }
}

/// By what the operator wrote: users cannot.
fn runs(object: &IngressDaemonSet) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|status| status.nodes.current > 0 || status.rollout.as_ref().is_some_and(|ledger| !ledger.grants.is_empty()))
}

/// What is read of the metadata. The user may have made the rest of it large: labels, owners, other annotations, who manages
/// which field.
pub fn read_of_metadata(meta: ObjectMeta) -> ObjectMeta {
    let retry = meta.annotations.and_then(|mut annotations| annotations.remove(names::RETRY_ANNOTATION));
    let retry = retry.map(|retry| (names::RETRY_ANNOTATION.to_owned(), retry.chars().take(TEXT).collect::<String>()));
    let ours = |finalizer: &String| [names::FINALIZER, names::FINALIZER_OF_ORIGINAL].contains(&finalizer.as_str());
    let finalizers = meta.finalizers.map(|all| {
        let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(ours);
        others.into_iter().take(FINALIZERS).chain(ours).collect()
    });
    // When the spec was last written, and by whom, is read; which fields that were is not.
    let mut managed: Vec<_> = meta.managed_fields.unwrap_or_default();
    managed.sort_by(|one, other| other.time.cmp(&one.time));
    managed.truncate(MANAGERS);
    for entry in &mut managed {
        entry.fields_v1 = None;
    }
    ObjectMeta {
        managed_fields: (!managed.is_empty()).then_some(managed),
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        annotations: retry.map(|retry| [retry].into()),
        finalizers,
        ..ObjectMeta::default()
    }
}

/// The spec takes more than anybody needs: as text, or as mappings, each of which takes some hundred bytes however short it is.
fn too_large(spec: &IngressDaemonSetSpec) -> Option<Withheld> {
    if let Some((bytes, mappings)) = trim::left_out(&spec.template) {
        return Some(Withheld::TooLarge { bytes, mappings });
    }
    let bytes = json_size(spec);
    let mappings = mappings(&spec.template);
    let fits = bytes <= SPEC_BYTES && mappings <= SPEC_MAPPINGS;
    (!fits).then_some(Withheld::TooLarge { bytes, mappings })
}

/// The same of one that is one too many in its namespace: one that runs nothing claims nothing either.
pub(super) fn without_spec(object: &IngressDaemonSet) -> IngressDaemonSet {
    let (metadata, status) = (object.metadata.clone(), object.status.clone());
    let spec = if runs(object) { cut(object.spec.clone()) } else { bare().unwrap_or_else(|| cut(object.spec.clone())) };
    IngressDaemonSet { metadata, spec, status }
}

/// Leaves of a spec what says where the resource belongs, as far as that is short.
fn cut(mut spec: IngressDaemonSetSpec) -> IngressDaemonSetSpec {
    let template = std::mem::take(&mut spec.template);
    let of = |path: &str| template.pointer(path).cloned().unwrap_or_default();
    // The taint of `nodeReadinessTaint` must not reach other nodes than it did.
    spec.template = json!({"metadata": {"labels": of("/metadata/labels")}, "spec": {"nodeSelector": of("/spec/nodeSelector")}});
    if json_size(&spec) > REST { bare().unwrap_or(spec) } else { spec }
}

fn bare() -> Option<IngressDaemonSetSpec> {
    serde_json::from_value(json!({"template": null})).ok()
}
