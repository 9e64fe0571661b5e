//! One write per action, with a precondition unless the object is ours alone, and the events that tell of it.
//!
//! Actions come from a plan by way of [`rollout`](crate::rollout), which remembers what was written. Nothing here decides or remembers:
//! afterwards the watches are believed, not the answer.

mod events;

pub use events::Announcer;
pub(crate) use events::publish;

use crate::{
    metrics::Metrics,
    watch::{Kind, Observed, version},
};
use crds::{IngressDaemonSet, names};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
        core::v1::{Node, Pod, Secret, ServiceAccount},
        rbac::v1::{ClusterRoleBinding, RoleBinding},
    },
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
    core::{NamespaceResourceScope, Status},
};
use planner::{
    Action, Snapshot,
    plan::{Supporting, Write},
    reason::NodeObject,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fmt::Debug, future::Future, time::Duration};

/// Longest time of one API call.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Field manager of the supporting objects.
const FIELD_MANAGER: &str = "ingress-daemonset-operator/health-checker";

/// Why an action had no effect, by what follows from it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object is not what the decision was based on: look again, decide again.
    #[error("the object had changed")]
    Conflict,
    /// The object's name belongs to somebody else.
    #[error("`{0}` exists and belongs to somebody else")]
    Foreign(String),
    /// Another resource of this kind has an object of this name.
    #[error("the name `{0}` is taken")]
    Taken(String),
    /// A right is missing.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// The API server would refuse it again.
    #[error("refused: {0}")]
    Invalid(String),
    /// It was refused for this node before, and people know.
    #[error("refused again")]
    Known,
    /// It may go better next time.
    #[error("{0}")]
    Transient(String),
}

/// What one action brought about, to be remembered.
#[derive(Debug, Default)]
pub struct Done {
    /// Kind and version of what was written.
    pub written: Option<(Kind, u64)>,
    /// UID of a Deployment that was written whole, and its generation.
    pub generation: Option<(String, i64)>,
}

impl Done {
    /// An object was written that the watch of its kind is to show.
    fn of(kind: Kind, meta: &ObjectMeta) -> Self {
        Self { written: Some((kind, version(meta.resource_version.as_deref()))), generation: None }
    }
}

/// Writes on behalf of one resource.
pub struct Writer<'a> {
    /// API client without retries of its own.
    pub client: &'a Client,
    /// Metrics.
    pub metrics: &'a Metrics,
    /// What the decision was based on.
    pub snapshot: &'a Snapshot,
}

impl Writer<'_> {
    /// Makes the call of an action.
    pub async fn write(&self, action: &Action) -> Result<Done, Error> {
        match action {
            Action::WriteStatus { status, live_absent, .. } => {
                for name in live_absent {
                    self.check_absent(name).await?;
                }
                self.patch_resource(true, json!([{"op": "add", "path": "/status", "value": status}])).await
            }
            Action::SetFinalizers(finalizers) => {
                self.patch_resource(false, json!([{"op": "add", "path": "/metadata/finalizers", "value": finalizers}])).await
            }
            Action::CreateDeployment { name, body, .. } => self.create(name, body).await,
            Action::RecordRevision { name, body } => self.record(name, body).await,
            Action::RenumberRevision { name, patch } => self.patch::<ControllerRevision>(&self.api(), name, patch).await,
            Action::PatchDeployment { name, patch, write, .. } => {
                let api: Api<Deployment> = self.api();
                let patched = self.fenced(api.patch(name, &PatchParams::default(), &json_patch(patch)?)).await?;
                let full = matches!(write, Write::Update | Write::Recreate(_) | Write::Direct)
                    && patch.as_array().is_some_and(|operations| operations.iter().any(|operation| operation["path"] == "/spec/template"));
                let generation = full.then(|| (patched.metadata.uid.clone().unwrap_or_default(), patched.metadata.generation.unwrap_or(0)));
                Ok(Done { generation, ..Done::of(Kind::Deployments, &patched.metadata) })
            }
            Action::DeleteDeployment { name, uid, resource_version, .. } => {
                let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: Some(resource_version.clone()) };
                let api: Api<Deployment> = self.api();
                gone(api.delete(name, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }).await)
            }
            Action::PatchNode { node, patch, live_absent, .. } => {
                if let Some(name) = live_absent {
                    self.check_absent(name).await?;
                }
                self.patch::<Node>(&Api::all(self.client.clone()), node, patch).await
            }
            Action::Reclaim { name, identity, .. } => self.reclaim(name, identity).await,
            Action::Apply { object: object @ Supporting::Secret(_), body } => self.make_key(object, body).await,
            Action::Apply { object, body } => {
                let applied = self
                    .dynamic(object)
                    .patch(name_of(object), &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(body))
                    .await
                    .map_err(classify)?;
                let is_watched = matches!(object, Supporting::DaemonSet(_));
                Ok(if is_watched { Done::of(Kind::DaemonSets, &applied.metadata) } else { Done::default() })
            }
            Action::Delete { object, uid } => {
                let preconditions = uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
                gone(self.dynamic(object).delete(name_of(object), &DeleteParams { preconditions, ..DeleteParams::background() }).await)
            }
            Action::DeletePod { name, uid, resource_version } => {
                let preconditions = uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: resource_version.clone() });
                let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
                gone(self.api::<Pod>().delete(name, &parameters).await)
            }
            Action::CreatePod { body, .. } => {
                let created = self.erased::<Pod>().create(&PostParams::default(), &object(body)?).await.map_err(classify)?;
                Ok(Done::of(Kind::Pods, &created.metadata))
            }
            Action::PatchReplicaSet { name, patch, .. } => self.patch::<ReplicaSet>(&self.api(), name, patch).await,
            Action::PatchPod { name, patch, .. } => self.patch::<Pod>(&self.api(), name, patch).await,
            Action::PatchPodStatus { name, patch, .. } => {
                let api: Api<Pod> = self.api();
                let patched = self.fenced(api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))).await?;
                Ok(Done::of(Kind::Pods, &patched.metadata))
            }
        }
    }

    /// What is in the namespace of the resource.
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.snapshot.resource.namespace)
    }

    /// The same, of which nothing is left out that this program does not know.
    fn erased<K: Resource<DynamicType = ()>>(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.snapshot.resource.namespace, &ApiResource::erase::<K>(&()))
    }

    async fn patch<K>(&self, api: &Api<K>, name: &str, patch: &Value) -> Result<Done, Error>
    where
        K: Observed + Resource + Clone + DeserializeOwned + Debug,
    {
        let patched = self.fenced(api.patch(name, &PatchParams::default(), &json_patch(patch)?)).await?;
        Ok(Done::of(K::KIND, patched.meta()))
    }

    /// A patch whose failed `test` is a fencing rejection.
    async fn fenced<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
        call.await.map_err(classify).inspect_err(|error| {
            if matches!(error, Error::Conflict) {
                self.metrics.fenced();
            }
        })
    }

    /// Writes to the resource itself, with the resourceVersion that was read.
    async fn patch_resource(&self, status: bool, operations: Value) -> Result<Done, Error> {
        let resource = &self.snapshot.resource;
        let mut all = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": resource.uid}),
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": resource.resource_version}),
        ];
        all.extend(operations.as_array().cloned().unwrap_or_default());
        let api = self.erased::<IngressDaemonSet>();
        let patch: Patch<()> = json_patch(&Value::Array(all))?;
        let params = PatchParams::default();
        let patched = if status {
            self.fenced(api.patch_status(&resource.name, &params, &patch)).await?
        } else {
            self.fenced(api.patch(&resource.name, &params, &patch)).await?
        };
        // Without finalizers the resource goes, and its watch shows no version of it any more.
        let going = resource.deleting && !status;
        Ok(if going { Done::default() } else { Done::of(Kind::Resources, &patched.metadata) })
    }

    async fn create(&self, name: &str, body: &Value) -> Result<Done, Error> {
        let api = self.erased::<Deployment>();
        match api.create(&PostParams::default(), &object(body)?).await {
            Ok(created) => {
                let generation = || (created.metadata.uid.clone().unwrap_or_default(), created.metadata.generation.unwrap_or(0));
                let generation = planner::objects::render::is_wanted(body).then(generation);
                Ok(Done { generation, ..Done::of(Kind::Deployments, &created.metadata) })
            }
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                let node = body["metadata"]["annotations"][names::NODE_NAME_ANNOTATION].as_str().unwrap_or_default();
                let identity = planner::objects::render::identity_patch(&self.snapshot.resource, name, node);
                Err(self.who_has(&api, name, &identity).await)
            }
            Err(error) => Err(classify(error)),
        }
    }

    async fn record(&self, name: &str, body: &Value) -> Result<Done, Error> {
        let api = self.dynamic(&Supporting::ControllerRevision(name.to_owned()));
        match api.create(&PostParams::default(), &object(body)?).await {
            Ok(created) => Ok(Done::of(Kind::Revisions, &created.metadata)),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => match api.get_opt(name).await.map_err(classify)? {
                Some(found) if !is_ours(&found.metadata, self.snapshot) => Err(Error::Foreign(name.to_owned())),
                _ => Err(Error::Conflict),
            },
            Err(error) => Err(classify(error)),
        }
    }

    /// Makes the Secret with a key that nobody knows. One that is there stays: we have no right to read it, nor to change it.
    async fn make_key(&self, supporting: &Supporting, body: &Value) -> Result<Done, Error> {
        let mut key = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut key).map_err(|_| Error::Transient("no random bytes for a key".into()))?;
        let mut body = body.clone();
        body["data"] = json!({"key": ByteString(key.to_vec())});
        match self.dynamic(supporting).create(&PostParams::default(), &object(&body)?).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(Done::default()),
            created => created.map(|_| Done::default()).map_err(classify),
        }
    }

    /// Whose object has the name that we wanted.
    async fn who_has(&self, api: &Api<DynamicObject>, name: &str, identity: &Value) -> Error {
        match api.get_opt(name).await {
            Ok(Some(object)) => {
                let controller = object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
                match controller {
                    // Ours, but its watch did not show it: somebody took our labels away.
                    Some(owner) if owner.uid == self.snapshot.resource.uid => match self.reclaim(name, identity).await {
                        Ok(_) => Error::Conflict,
                        Err(error) => error,
                    },
                    Some(owner) if owner.kind == "IngressDaemonSet" => Error::Taken(name.to_owned()),
                    _ => Error::Foreign(name.to_owned()),
                }
            }
            Ok(None) => Error::Conflict,
            Err(error) => classify(error),
        }
    }

    /// Puts back how we know a Deployment of ours, when it is there.
    async fn reclaim(&self, name: &str, identity: &Value) -> Result<Done, Error> {
        let api: Api<Deployment> = self.api();
        let Some(found) = api.get_metadata_opt(name).await.map_err(classify)? else { return Ok(Done::default()) };
        let meta = found.metadata;
        if !is_ours(&meta, self.snapshot) {
            return Err(Error::Foreign(name.to_owned()));
        }
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})];
        for (path, missing) in [("/metadata/labels", meta.labels.is_none()), ("/metadata/annotations", meta.annotations.is_none())] {
            if missing {
                operations.push(json!({"op": "add", "path": path, "value": {}}));
            }
        }
        operations.extend(identity.as_array().cloned().unwrap_or_default());
        let patched = self.fenced(api.patch(name, &PatchParams::default(), &json_patch(&Value::Array(operations))?)).await?;
        Ok(Done::of(Kind::Deployments, &patched.metadata))
    }

    async fn check_absent(&self, name: &str) -> Result<(), Error> {
        let api: Api<Deployment> = self.api();
        match api.get_metadata_opt(name).await.map_err(classify)? {
            Some(found) if is_ours(&found.metadata, self.snapshot) => Err(Error::Conflict),
            _ => Ok(()),
        }
    }

    fn dynamic(&self, object: &Supporting) -> Api<DynamicObject> {
        match object {
            Supporting::DaemonSet(_) => self.erased::<DaemonSet>(),
            Supporting::ServiceAccount(_) => self.erased::<ServiceAccount>(),
            Supporting::Secret(_) => self.erased::<Secret>(),
            Supporting::RoleBinding(_) => self.erased::<RoleBinding>(),
            Supporting::ClusterRoleBinding(_) => Api::all_with(self.client.clone(), &ApiResource::erase::<ClusterRoleBinding>(&())),
            Supporting::ControllerRevision(_) => self.erased::<ControllerRevision>(),
        }
    }
}

/// Names in the namespace that are still somebody else's; asked live, because such objects are not watched.
pub async fn still_foreign(client: &Client, snapshot: &Snapshot, names: &BTreeSet<String>) -> BTreeSet<String> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), &snapshot.resource.namespace);
    let mut foreign = BTreeSet::new();
    for name in names {
        match api.get_metadata_opt(name).await {
            Ok(Some(found)) if is_ours(&found.metadata, snapshot) => {}
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => {
                foreign.insert(name.clone());
            }
        }
    }
    foreign
}

/// Belongs to the snapshot's resource.
fn is_ours(meta: &ObjectMeta, snapshot: &Snapshot) -> bool {
    meta.owner_references.iter().flatten().any(|owner| owner.uid == snapshot.resource.uid)
}

/// The node for which something is written, and what; nothing where it is for the resource as a whole.
pub fn written_for(action: &Action) -> Option<(&str, NodeObject)> {
    match action {
        Action::CreateDeployment { node, .. }
        | Action::PatchDeployment { node, .. }
        | Action::DeleteDeployment { node, .. }
        | Action::Reclaim { node, .. } => Some((node, NodeObject::Deployment)),
        Action::PatchNode { node, .. } => Some((node, NodeObject::Node)),
        Action::CreatePod { node, .. } => Some((node, NodeObject::PullPod)),
        Action::PatchReplicaSet { node, .. } | Action::PatchPod { node, .. } | Action::PatchPodStatus { node, .. } => {
            Some((node, NodeObject::Pods))
        }
        Action::WriteStatus { .. }
        | Action::SetFinalizers(_)
        | Action::RecordRevision { .. }
        | Action::RenumberRevision { .. }
        | Action::Apply { .. }
        | Action::Delete { .. }
        | Action::DeletePod { .. } => None,
    }
}

fn name_of(object: &Supporting) -> &str {
    match object {
        Supporting::DaemonSet(name)
        | Supporting::ServiceAccount(name)
        | Supporting::Secret(name)
        | Supporting::RoleBinding(name)
        | Supporting::ClusterRoleBinding(name)
        | Supporting::ControllerRevision(name) => name,
    }
}

/// An object as it is sent.
pub(crate) fn object(body: &Value) -> Result<DynamicObject, Error> {
    serde_json::from_value(body.clone()).map_err(|error| Error::Invalid(error.to_string()))
}

pub(crate) fn json_patch(operations: &Value) -> Result<Patch<()>, Error> {
    serde_json::from_value(operations.clone()).map(Patch::Json).map_err(|error| Error::Invalid(format!("not a JSON Patch: {error}")))
}

/// Deleted, or already gone.
fn gone<T>(result: kube::Result<T>) -> Result<Done, Error> {
    match result.map_err(classify) {
        Err(Error::Transient(message)) => Err(Error::Transient(message)),
        Err(Error::Forbidden(message)) => Err(Error::Forbidden(message)),
        Err(Error::Conflict) | Ok(_) => Ok(Done::default()),
        Err(other) => Err(other),
    }
}

/// What the API server says, without causes, when an operation `test` of a JSON Patch finds something else. Others who answer with the same
/// code, such as admission webhooks, say what is wrong.
const PATCH_REFUSED: &str = "the server rejected our request due to an error in our request";

/// A failed JSON Patch `test` is a 422 without causes (observed on 1.36); another 422 is an object that the API server, or somebody whom it
/// asks, will not take.
pub(crate) fn classify(error: kube::Error) -> Error {
    let kube::Error::Api(status) = error else { return Error::Transient(chain(&error)) };
    let causes = |status: &Status| status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
    match status.code {
        422 if causes(&status) || status.message != PATCH_REFUSED => Error::Invalid(status.message.clone()),
        404 | 409 | 422 => Error::Conflict,
        403 => Error::Forbidden(status.message.clone()),
        400 | 405 | 413 | 415 => Error::Invalid(status.message.clone()),
        _ => Error::Transient(status.message.clone()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The reference of a resource for events.
pub fn reference(snapshot: &Snapshot) -> IngressDaemonSet {
    let resource = &snapshot.resource;
    let mut object = IngressDaemonSet::new(&resource.name, resource.spec.clone());
    object.meta_mut().namespace = Some(resource.namespace.clone());
    object.meta_mut().uid = Some(resource.uid.clone());
    object.meta_mut().resource_version = Some(resource.resource_version.clone());
    object
}
