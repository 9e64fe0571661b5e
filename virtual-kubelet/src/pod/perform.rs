//! Does one operation on a pod: one call of the provider, or one request to the API server.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::Value;

use super::decide::{not_given_status, status_patch};
use super::environment::NodeFacts;
use super::references::ReferenceSource;
use super::{Events, Operation, PodControllerConfig, PodId, PodLifecycleHandler, resolved};
use crate::api_call::{ApiCallError, within};
use crate::errdefs::ProviderError;

/// What came of it.
pub(super) enum Outcome {
    Created(Arc<Pod>),
    Updated(Arc<Pod>),
    EndOrdered(i64),
    /// The provider does not know the pod that it should end: nothing is left to end.
    Lost,
    /// The provider does not know the pod that has changed.
    Unknown,
    Written(Box<Pod>),
    /// The API server does not take the status.
    Unwritable(String),
    Evicted,
    /// Gone from the API, or another pod has the name now.
    Gone,
    Forgotten,
    Failed {
        error: String,
        /// The pod with the failure in its status.
        shown: Option<Box<Pod>>,
        refusal: Option<Refusal>,
    },
}

/// A call of the provider, whose panics are errors like others: they are its own, and end nothing of ours.
pub(super) async fn caught<T>(call: impl Future<Output = T>) -> Result<T, ProviderError> {
    let outcome = AssertUnwindSafe(call).catch_unwind().await;
    outcome.map_err(|_| ProviderError::Other(anyhow::anyhow!("the provider panicked")))
}

/// The provider will never take this pod as it is.
pub(super) struct Refusal(pub Arc<Pod>);

fn failed(error: &impl ToString) -> Outcome {
    Outcome::Failed { error: error.to_string(), shown: None, refusal: None }
}

pub(super) struct Performer<P> {
    client: Client,
    pub provider: Arc<P>,
    events: Events,
    references: Arc<dyn ReferenceSource>,
    /// None when the environment is the provider's task.
    node: Option<NodeFacts>,
}

impl<P: PodLifecycleHandler> Performer<P> {
    pub fn new(config: &PodControllerConfig<P>) -> Self {
        Self {
            client: config.client.clone(),
            provider: config.provider.clone(),
            events: config.events.clone(),
            references: config.references.clone(),
            node: (!config.skip_downward_api_resolution).then(|| config.node_facts.clone()),
        }
    }

    fn api(&self, id: &PodId) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &id.namespace)
    }

    pub async fn perform(&self, id: &PodId, operation: Operation) -> Outcome {
        // A pod must not stay taken for ever by an operation that is no more.
        caught(self.attempt(id, operation)).await.unwrap_or_else(|error| failed(&error))
    }

    async fn attempt(&self, id: &PodId, operation: Operation) -> Outcome {
        match operation {
            Operation::Create(pod) => self.create(id, pod).await,
            Operation::Update(pod) => self.update(pod).await,
            Operation::Delete(pod, grace) => self.delete(pod, grace).await,
            Operation::Patch(patch) => match self.patch(id, &patch).await {
                Ok(pod) => Outcome::Written(Box::new(pod)),
                Err(ApiCallError::NotFound(_)) => Outcome::Gone,
                Err(error @ ApiCallError::Invalid(_)) => Outcome::Unwritable(error.to_string()),
                Err(error) => failed(&error),
            },
            Operation::Evict(grace) => match self.remove(id, grace).await {
                Ok(true) => Outcome::Evicted,
                Ok(false) => Outcome::Gone,
                Err(error) => failed(&error),
            },
            Operation::Remove => match self.remove(id, 0).await {
                Ok(_) => Outcome::Gone,
                Err(error) => failed(&error),
            },
            Operation::Forget => {
                self.provider.forget_pod(id).await;
                Outcome::Forgotten
            }
        }
    }

    /// The pod as the provider gets it. What an environment lacks is told by events.
    async fn ready(&self, pod: &Arc<Pod>) -> Result<Arc<Pod>, String> {
        let Some(node) = &self.node else { return Ok(pod.clone()) };
        let mut notes = Vec::new();
        let resolved = resolved::resolve(&*self.references, pod, node, &mut notes).await;
        for note in notes {
            self.events.warning(pod, note.reason, note.message);
        }
        resolved.map_err(|error| error.to_string())
    }

    async fn create(&self, id: &PodId, pod: Arc<Pod>) -> Outcome {
        let given = match self.ready(&pod).await {
            Ok(given) => given,
            Err(error) => return failed(&error),
        };
        match self.provider.create_pod(given).await {
            Ok(()) => {
                self.events.normal(&pod, "ProviderCreateSuccess", "Create pod in provider successfully");
                Outcome::Created(pod)
            }
            Err(error) => {
                self.events.warning(&pod, "ProviderCreateFailed", error.to_string());
                self.show_failure(id, pod, &error).await
            }
        }
    }

    async fn update(&self, pod: Arc<Pod>) -> Outcome {
        let given = match self.ready(&pod).await {
            Ok(given) => given,
            Err(error) => return failed(&error),
        };
        match self.provider.update_pod(given).await {
            Ok(()) => {
                self.events.normal(&pod, "ProviderUpdateSuccess", "Update pod in provider successfully");
                Outcome::Updated(pod)
            }
            Err(error) if error.is_not_found() => Outcome::Unknown,
            // What runs goes on running as it was: its status says so, and an event says why.
            Err(error) => {
                self.events.warning(&pod, "ProviderUpdateFailed", error.to_string());
                let refusal = error.is_invalid_input().then_some(Refusal(pod));
                Outcome::Failed { error: error.to_string(), shown: None, refusal }
            }
        }
    }

    async fn delete(&self, pod: Arc<Pod>, grace: i64) -> Outcome {
        match self.provider.delete_pod(pod.clone(), grace).await {
            Ok(()) => {
                self.events.normal(&pod, "ProviderDeleteSuccess", "Delete pod in provider successfully");
                Outcome::EndOrdered(grace)
            }
            Err(error) if error.is_not_found() => Outcome::Lost,
            Err(error) => {
                self.events.warning(&pod, "ProviderDeleteFailed", error.to_string());
                failed(&error)
            }
        }
    }

    /// A pod that could not be given to the provider says why in its status.
    async fn show_failure(&self, id: &PodId, pod: Arc<Pod>, error: &ProviderError) -> Outcome {
        let status: PodStatus = not_given_status(&pod, &error.to_string());
        let shown = match status_patch(&pod, &status, None, Timestamp::now()) {
            Some(patch) => self.patch(id, &patch).await.ok().map(Box::new),
            None => None,
        };
        let refusal = error.is_invalid_input().then_some(Refusal(pod));
        Outcome::Failed { error: error.to_string(), shown, refusal }
    }

    async fn patch(&self, id: &PodId, patch: &Value) -> Result<Pod, ApiCallError> {
        within(self.api(id).patch_status(&id.name, &PatchParams::default(), &Patch::Strategic(patch))).await
    }

    /// Deletes this very pod, and none that has its name by now; `false` when it is gone already.
    async fn remove(&self, id: &PodId, grace: i64) -> Result<bool, ApiCallError> {
        let parameters = DeleteParams {
            grace_period_seconds: Some(u32::try_from(grace).unwrap_or_default()),
            preconditions: Some(Preconditions { uid: Some(id.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        let refused = match within(self.api(id).delete(&id.name, &parameters)).await {
            Ok(_) => return Ok(true),
            Err(ApiCallError::NotFound(_)) => return Ok(false),
            Err(error @ ApiCallError::Conflict(_)) => error,
            Err(error) => return Err(error),
        };
        // The precondition, or somebody else's write at the same moment.
        let found = within(self.api(id).get_opt(&id.name)).await?;
        let same = found.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(id.uid.as_str()));
        if same { Err(refused) } else { Ok(false) }
    }
}
