//! What a node controller asks of the thing behind the node.

use std::future::Future;
use std::sync::Mutex;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::errdefs::ProviderError;

/// Takes a provider's view of its node. Only labels, annotations and status count; the latest wins.
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
pub trait NodeProvider: Send + Sync + 'static {
    /// A light check that the thing is alive. While it fails, neither status nor lease is written,
    /// so that the control plane notices.
    fn ping(&self) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Called once, before anything else; the sink may be used at any time afterwards.
    fn notify_node_status(&self, sink: NodeStatusSink);
}

/// A provider that is always alive, and whose status changes only by [`NaiveNodeProvider::update_status`].
#[derive(Debug, Default)]
pub struct NaiveNodeProvider {
    sink: Mutex<Option<NodeStatusSink>>,
}

impl NaiveNodeProvider {
    /// Passes `node`'s labels, annotations and status on; false when no controller runs yet.
    pub fn update_status(&self, node: Node) -> bool {
        let sink = self.sink.lock().map(|sink| sink.clone()).unwrap_or_default();
        sink.map(|sink| sink.notify(node)).is_some()
    }
}

impl NodeProvider for NaiveNodeProvider {
    async fn ping(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    fn notify_node_status(&self, sink: NodeStatusSink) {
        if let Ok(mut slot) = self.sink.lock() {
            *slot = Some(sink);
        }
    }
}
