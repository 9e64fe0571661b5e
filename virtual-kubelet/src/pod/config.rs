//! How a pod controller works.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::runtime::watcher;

use super::environment::NodeFacts;
use super::references::{ApiReferences, ReferenceSource};
use super::{Events, PodId};
use crate::api_call::Recoveries;
use crate::errdefs::ProviderError;
use crate::queue::RetryPolicy;

/// Whether a pod of the watch is one of this node's; see [`PodControllerConfig::pod_event_filter`].
///
/// ```
/// use std::sync::Arc;
///
/// use k8s_openapi::api::core::v1::Pod;
/// use virtual_kubelet::pod::PodEventFilterFunc;
///
/// let small: PodEventFilterFunc = Arc::new(|pod| pod.spec.as_ref().is_none_or(|spec| spec.containers.len() <= 1));
/// assert!(small(&Pod::default()));
/// ```
pub type PodEventFilterFunc = Arc<dyn Fn(&Pod) -> bool + Send + Sync>;

/// What a pod controller needs to know. [`NodeController::pods`](crate::node::NodeController::pods) makes one for the pods of a node of
/// the same program; [`PodControllerConfig::new`] sets what has a default.
///
/// ```no_run
/// # use std::{sync::Arc, time::Duration};
/// # use virtual_kubelet::pod::environment::NodeFacts;
/// # use virtual_kubelet::pod::{Events, PodControllerConfig, PodId, PodLifecycleHandler, PodNotifier};
/// # use virtual_kubelet::queue::RetryPolicy;
/// # fn example<P: PodLifecycleHandler + PodNotifier>(client: kube::Client, provider: Arc<P>, node: &k8s_openapi::api::core::v1::Node) {
/// let mut config = PodControllerConfig::new(client.clone(), "n1", provider);
/// config.node_facts = NodeFacts::of(node);
/// config.events = Events::start(client, "n1".into());
/// config.sync_pods_from_kubernetes = RetryPolicy::fixed(Duration::from_secs(5));
/// # }
/// ```
pub struct PodControllerConfig<P> {
    /// Access to pods.
    pub client: Client,
    /// The node whose pods are run.
    pub node_name: String,
    /// What runs them. A provider that is no [`PodNotifier`](super::PodNotifier) is wrapped into a
    /// [`Polling`](super::Polling).
    pub provider: Arc<P>,
    /// Which pods are watched; by default those whose `spec.nodeName` is the node. One that selects more needs
    /// [`PodControllerConfig::pod_event_filter`].
    pub pod_watch: watcher::Config,
    /// Pods for which it is false are none of this controller's: they are not given to the provider, and pods of
    /// the provider for which it is false are left alone. All, by default.
    pub pod_event_filter: PodEventFilterFunc,
    /// Where events about pods go; nowhere, by default.
    pub events: Events,
    /// Where `ConfigMaps`, Secrets and services are read that an environment refers to: by name from the API server,
    /// by default; [`WatchedReferences`](super::references::WatchedReferences) read less and notice what comes late.
    pub references: Arc<dyn ReferenceSource>,
    /// What fields such as `status.hostIP` and limits that are not set refer to. Required, unless
    /// [`PodControllerConfig::skip_downward_api_resolution`] is set: an environment with nothing in their place would be wrong.
    pub node_facts: NodeFacts,
    /// Gives pods to the provider as they are: their environment is its own task then, for instance at each start of a
    /// container. By default `env` is resolved to plain values before, and `envFrom` is empty.
    pub skip_downward_api_resolution: bool,
    /// When a pod comes again that could not be given to the provider, or be ended there. For ever, by default.
    pub sync_pods_from_kubernetes: RetryPolicy<PodId>,
    /// When a pod comes again that has ended and could not be removed from the API. For ever, by default.
    pub delete_pods_from_kubernetes: RetryPolicy<PodId>,
    /// When a pod comes again whose status could not be written. For ever, by default.
    pub sync_pod_status_from_provider: RetryPolicy<PodId>,
    /// Longest time that a call of the provider may take: then it is dropped and counts as failed. Without a limit, the default, it
    /// may take for ever. Calls that take longer than 30 s are told in the log and as an event about their pod, each time.
    pub call_limit: Option<Duration>,
    /// Tells when the API server answers again; shared with the node controller of the same program by
    /// [`NodeController::pods`](crate::node::NodeController::pods). Without that a watch may be deaf for minutes after an outage.
    pub recoveries: Recoveries,
}

impl<P> PodControllerConfig<P> {
    /// A configuration with what has no default.
    pub fn new(client: Client, node_name: impl Into<String>, provider: Arc<P>) -> Self {
        let node_name = node_name.into();
        Self {
            references: Arc::new(ApiReferences::new(client.clone())),
            client,
            pod_watch: pod_informer_filter(&node_name),
            node_name,
            provider,
            pod_event_filter: Arc::new(|_| true),
            events: Events::none(),
            node_facts: NodeFacts::default(),
            skip_downward_api_resolution: false,
            sync_pods_from_kubernetes: RetryPolicy::default(),
            delete_pods_from_kubernetes: RetryPolicy::default(),
            sync_pod_status_from_provider: RetryPolicy::default(),
            call_limit: None,
            recoveries: Recoveries::default(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ProviderError> {
        if self.node_name.is_empty() {
            return Err(ProviderError::invalid_input("missing node name"));
        }
        match self.node_facts.lack() {
            Some(fact) if !self.skip_downward_api_resolution => {
                Err(ProviderError::invalid_input(format!("missing {fact} of the node in node_facts: pods may refer to it")))
            }
            _ => Ok(()),
        }
    }
}

impl<P> fmt::Debug for PodControllerConfig<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodControllerConfig").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// A watch of the pods of one node.
///
/// ```
/// let watch = virtual_kubelet::pod::pod_informer_filter("n1");
/// assert_eq!(watch.field_selector.as_deref(), Some("spec.nodeName=n1"));
/// ```
pub fn pod_informer_filter(node_name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("spec.nodeName={node_name}"))
}

/// A filter for pods of one node, for a watch of more than those.
///
/// ```
/// use k8s_openapi::api::core::v1::{Pod, PodSpec};
///
/// let filter = virtual_kubelet::pod::filter_pods_for_node_name("n1");
/// let on = |node: &str| Pod { spec: Some(PodSpec { node_name: Some(node.into()), ..PodSpec::default() }), ..Pod::default() };
/// assert!(filter(&on("n1")) && !filter(&on("n2")) && !filter(&Pod::default()));
/// ```
pub fn filter_pods_for_node_name(node_name: &str) -> PodEventFilterFunc {
    let node_name = node_name.to_owned();
    Arc::new(move |pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&node_name))
}

/// A filter for pods that one of these filters is for.
///
/// ```
/// use k8s_openapi::api::core::v1::{Pod, PodSpec};
/// use virtual_kubelet::pod::{filter_pods_for_node_name, pod_filters};
///
/// let filter = pod_filters([filter_pods_for_node_name("n1"), filter_pods_for_node_name("n2")]);
/// let on = |node: &str| Pod { spec: Some(PodSpec { node_name: Some(node.into()), ..PodSpec::default() }), ..Pod::default() };
/// assert!(filter(&on("n2")) && !filter(&on("n3")));
/// // Without filters, no pod.
/// assert!(!pod_filters([])(&on("n1")));
/// ```
pub fn pod_filters(filters: impl IntoIterator<Item = PodEventFilterFunc>) -> PodEventFilterFunc {
    let filters: Vec<_> = filters.into_iter().collect();
    Arc::new(move |pod| filters.iter().any(|filter| filter(pod)))
}
