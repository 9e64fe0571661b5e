//! What a node controller asks of the thing behind the node.

use std::future::Future;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::errdefs::ProviderError;

/// Takes a provider's view of its node. Only labels, annotations and status count; the latest wins.
///
/// ```
/// use k8s_openapi::api::core::v1::Node;
/// use virtual_kubelet::node::NodeStatusSink;
///
/// let (sink, updates) = NodeStatusSink::new();
/// let mut node = Node::default();
/// node.metadata.labels = Some([("rack".to_owned(), "7".to_owned())].into());
/// sink.notify(node.clone());
/// assert_eq!(*updates.borrow(), Some(node));
/// ```
#[derive(Clone, Debug)]
pub struct NodeStatusSink(watch::Sender<Option<Node>>);

impl NodeStatusSink {
    /// A sink and the receiver of what is put in.
    pub fn new() -> (Self, watch::Receiver<Option<Node>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), receiver)
    }

    /// Replaces the node's labels, annotations and status. Never blocks.
    pub fn notify(&self, node: Node) {
        self.0.send_replace(Some(node));
    }
}

/// The thing behind a node.
///
/// ```
/// use virtual_kubelet::errdefs::ProviderError;
/// use virtual_kubelet::node::{NodeProvider, NodeStatusSink};
///
/// /// A node that is there as long as a file is.
/// struct WhileFileExists(std::path::PathBuf);
///
/// impl NodeProvider for WhileFileExists {
///     async fn ping(&self) -> Result<(), ProviderError> {
///         tokio::fs::metadata(&self.0).await.map(drop).map_err(ProviderError::as_not_found)
///     }
///
///     fn notify_node_status(&self, _sink: NodeStatusSink) {}
/// }
/// ```
pub trait NodeProvider: Send + Sync + 'static {
    /// A light check that the thing is alive. While it fails, neither status nor lease is written,
    /// so that the control plane notices. At most one is in flight.
    fn ping(&self) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Called once, before anything else; the sink may be used at any time afterwards. Must not block.
    fn notify_node_status(&self, sink: NodeStatusSink);
}

/// A provider that is always alive, and whose status changes only by [`NaiveNodeProvider::update_status`].
///
/// ```
/// use virtual_kubelet::node::{NaiveNodeProvider, NodeProvider, NodeStatusSink};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let provider = NaiveNodeProvider::default();
/// let (sink, mut updates) = NodeStatusSink::new();
/// // A node controller does this when it starts.
/// provider.notify_node_status(sink);
/// provider.update_status(Default::default()).await;
/// assert!(updates.borrow_and_update().is_some());
/// # }
/// ```
#[derive(Debug, Default)]
pub struct NaiveNodeProvider {
    sink: watch::Sender<Option<NodeStatusSink>>,
}

impl NaiveNodeProvider {
    /// Passes `node`'s labels, annotations and status on, as soon as a controller runs.
    pub async fn update_status(&self, node: Node) {
        let mut sink = self.sink.subscribe();
        if let Ok(sink) = sink.wait_for(Option::is_some).await
            && let Some(sink) = sink.as_ref()
        {
            sink.notify(node);
        }
    }
}

impl NodeProvider for NaiveNodeProvider {
    async fn ping(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    fn notify_node_status(&self, sink: NodeStatusSink) {
        self.sink.send_replace(Some(sink));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_status_waits_until_a_controller_takes_it() {
        let provider = NaiveNodeProvider::default();
        let mut update = Box::pin(provider.update_status(Node::default()));
        assert!((&mut update).now_or_never().is_none());
        let (sink, received) = NodeStatusSink::new();
        provider.notify_node_status(sink);
        update.await;
        assert!(received.borrow().is_some());
    }
}
