//! Does one operation on a pod: one call of the provider, or one request to the API server.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::Value;
use tokio::time::{Instant, interval_at, sleep_until};
use tracing::{Instrument as _, info_span};

use super::decide::{NOT_RESOLVED, is_terminal, not_given_status, status_patch, waiting_status};
use super::environment::NodeFacts;
use super::references::ReferenceSource;
use super::{Events, Operation, PodControllerConfig, PodId, PodLifecycleHandler, resolved};
use crate::api_call::{ApiCallError, within};
use crate::errdefs::ProviderError;

/// A call of the provider that takes longer is told, each time that it has taken as long again.
const SLOW_CALL: Duration = Duration::from_secs(30);

/// Time after the grace period of a pod until the provider is asked about one whose end it has not told, and between two such
/// questions.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(30);

/// What came of it.
pub(super) enum Outcome {
    Created(Arc<Pod>),
    Updated(Arc<Pod>),
    EndOrdered(i64),
    /// The provider does not know the pod that it should end: there is nothing to end.
    Lost,
    /// The provider still has the pod that it should have ended; the status, if that has ended.
    Kept(Option<Box<PodStatus>>),
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

/// A call of the provider in a span of its own, whose panics are errors like others: they are its own, and end nothing of ours.
pub(super) async fn caught<T>(
    name: &str,
    id: Option<&PodId>,
    call: impl Future<Output = Result<T, ProviderError>>,
) -> Result<T, ProviderError> {
    let (namespace, pod, uid) = (id.map(|id| &*id.namespace), id.map(|id| &*id.name), id.map(|id| &*id.uid));
    let span = info_span!("provider_call", call = name, otel.name = name, namespace, pod, uid);
    let outcome = AssertUnwindSafe(call.instrument(span)).catch_unwind().await;
    outcome.unwrap_or_else(|_| Err(ProviderError::Other(anyhow::anyhow!("the provider panicked in {name}"))))
}

/// A pod that the provider has, and its status, as far as the provider tells it.
pub(super) type Had = (Arc<Pod>, Option<PodStatus>);

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
    call_limit: Option<Duration>,
}

impl<P: PodLifecycleHandler> Performer<P> {
    pub fn new(config: &PodControllerConfig<P>) -> Self {
        Self {
            client: config.client.clone(),
            provider: config.provider.clone(),
            events: config.events.clone(),
            references: config.references.clone(),
            node: (!config.skip_downward_api_resolution).then(|| config.node_facts.clone()),
            call_limit: config.call_limit,
        }
    }

    /// A call of the provider. One that takes long is told to those who wait for the pod, and given up when it may take no longer.
    async fn call<T>(
        &self,
        name: &str,
        id: Option<&PodId>,
        pod: Option<&Pod>,
        call: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let begun = Instant::now();
        let mut call = std::pin::pin!(caught(name, id, call));
        let mut limit = std::pin::pin!(async {
            match self.call_limit {
                Some(limit) => sleep_until(begun + limit).await,
                None => std::future::pending().await,
            }
        });
        let mut slow = interval_at(begun + SLOW_CALL, SLOW_CALL);
        loop {
            tokio::select! {
                biased;
                answer = &mut call => return answer,
                () = &mut limit => {
                    let waited = begun.elapsed().as_secs();
                    return Err(ProviderError::Other(anyhow::anyhow!("the provider has not answered {name} within {waited} s")));
                }
                _ = slow.tick() => {
                    let of = id.map(PodId::to_string).unwrap_or_default();
                    tracing::warn!(call = name, pod = of, "the provider has not answered for {} s", begun.elapsed().as_secs());
                    if let Some(pod) = pod {
                        let message = format!("the provider takes longer than {} s for {name}", SLOW_CALL.as_secs());
                        self.events.warning(pod, "ProviderCallSlow", message);
                    }
                }
            }
        }
    }

    /// The pods of the provider that are `wanted`, with their statuses, which are asked for so many at a time.
    pub async fn pods(&self, wanted: impl Fn(&Pod) -> bool, at_a_time: usize) -> Result<Vec<Had>, ProviderError> {
        let pods = self.call("get_pods", None, None, self.provider.get_pods()).await?;
        let with_status = |pod: Arc<Pod>| {
            async move {
                let id = PodId::of(&pod);
                let status = self.call("get_pod_status", Some(&id), Some(&pod), self.provider.get_pod_status(&id)).await;
                (pod, status.unwrap_or_default())
            }
            .boxed()
        };
        let asked: Vec<_> = pods.into_iter().filter(|pod| wanted(pod)).map(with_status).collect();
        Ok(futures::stream::iter(asked).buffer_unordered(at_a_time).collect().await)
    }

    /// Tells the provider that all pods of the node are these.
    pub async fn retain(&self, present: &HashSet<PodId>) -> Result<(), ProviderError> {
        self.call("retain", None, None, self.provider.retain(present).map(Ok)).await
    }

    fn api(&self, id: &PodId) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &id.namespace)
    }

    pub async fn perform(&self, id: &PodId, operation: Operation) -> Outcome {
        // A pod must not stay taken for ever by an operation that is no more.
        AssertUnwindSafe(self.attempt(id, operation)).catch_unwind().await.unwrap_or_else(|_| failed(&"the operation panicked"))
    }

    async fn attempt(&self, id: &PodId, operation: Operation) -> Outcome {
        match operation {
            Operation::Create(pod) => self.create(id, pod).await,
            Operation::Update(pod) => self.update(id, pod).await,
            Operation::Delete(pod, grace) => self.delete(id, pod, grace).await,
            Operation::Ask(pod) => self.ask(id, &pod).await,
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
            Operation::Forget => match self.call("forget_pod", Some(id), None, self.provider.forget_pod(id).map(Ok)).await {
                Ok(()) => Outcome::Forgotten,
                Err(error) => failed(&error),
            },
        }
    }

    /// The pod as the provider gets it. What an environment lacks is told by events, and so is why it cannot be made.
    async fn ready(&self, pod: &Arc<Pod>) -> Result<Arc<Pod>, String> {
        let Some(node) = &self.node else { return Ok(pod.clone()) };
        let mut notes = Vec::new();
        let resolved = resolved::resolve(&*self.references, pod, node, &mut notes).await;
        let resolved = resolved.map_err(|error| error.to_string());
        if let Some(error) = resolved.as_ref().err().filter(|error| !notes.iter().any(|note| note.message.ends_with(*error))) {
            self.events.warning(pod, NOT_RESOLVED, error.as_str());
        }
        for note in notes {
            self.events.warning(pod, note.reason, note.message);
        }
        resolved
    }

    async fn create(&self, id: &PodId, pod: Arc<Pod>) -> Outcome {
        let given = match self.ready(&pod).await {
            Ok(given) => given,
            Err(error) => {
                let shown = self.show(id, &pod, &waiting_status(NOT_RESOLVED, &error)).await;
                return Outcome::Failed { error, shown, refusal: None };
            }
        };
        match self.call("create_pod", Some(id), Some(&pod), self.provider.create_pod(given)).await {
            Ok(()) => {
                self.events.normal(&pod, "ProviderCreateSuccess", "Create pod in provider successfully");
                Outcome::Created(pod)
            }
            Err(error) => {
                self.events.warning(&pod, "ProviderCreateFailed", error.to_string());
                let shown = self.show(id, &pod, &not_given_status(&pod, &error.to_string())).await;
                let refusal = error.is_invalid_input().then_some(Refusal(pod));
                Outcome::Failed { error: error.to_string(), shown, refusal }
            }
        }
    }

    async fn update(&self, id: &PodId, pod: Arc<Pod>) -> Outcome {
        let given = match self.ready(&pod).await {
            Ok(given) => given,
            Err(error) => return failed(&error),
        };
        match self.call("update_pod", Some(id), Some(&pod), self.provider.update_pod(given)).await {
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

    async fn delete(&self, id: &PodId, pod: Arc<Pod>, grace: i64) -> Outcome {
        match self.call("delete_pod", Some(id), Some(&pod), self.provider.delete_pod(pod.clone(), grace)).await {
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

    async fn ask(&self, id: &PodId, pod: &Pod) -> Outcome {
        let none_when_unknown = |error: ProviderError| if error.is_not_found() { Ok(None) } else { Err(error) };
        let status = self.call("get_pod_status", Some(id), Some(pod), self.provider.get_pod_status(id)).await.or_else(none_when_unknown);
        let is_known = match &status {
            // It may have none yet.
            Ok(None) => self.call("get_pod", Some(id), Some(pod), self.provider.get_pod(id)).await.map(|pod| pod.is_some()),
            _ => Ok(true),
        };
        match (status, is_known) {
            (_, Ok(false)) => Outcome::Lost,
            (_, Err(error)) if error.is_not_found() => Outcome::Lost,
            (Err(error), _) | (_, Err(error)) => failed(&error),
            (Ok(status), Ok(true)) if is_terminal(status.as_ref()) => Outcome::Kept(status.map(Box::new)),
            (Ok(_), Ok(true)) => {
                let message = format!("the provider still has the pod {} s after its grace period", ASK_AFTER.as_secs());
                self.events.warning(pod, "ProviderDeleteOverdue", message);
                Outcome::Kept(None)
            }
        }
    }

    /// A pod that could not be given to the provider says why in its status: the pod with it, if that was written.
    async fn show(&self, id: &PodId, pod: &Pod, status: &PodStatus) -> Option<Box<Pod>> {
        let patch = status_patch(pod, status, None, Timestamp::now())?;
        self.patch(id, &patch).await.ok().map(Box::new)
    }

    async fn patch(&self, id: &PodId, patch: &Value) -> Result<Pod, ApiCallError> {
        within(self.api(id).patch_status(&id.name, &PatchParams::default(), &Patch::Strategic(patch))).await
    }

    /// Deletes the pod of this UID, and none that has its name by now; `false` when it is gone already.
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
