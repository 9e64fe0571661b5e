//! Kubernetes nodes without machines: a node that registers itself with a real API server, keeps its lease, and hands the pods that land on
//! it to a *provider*. It knows nothing of the rest of this repository.
//!
//! [`node::NodeController`] owns the Node and Lease objects, [`pod::PodController`] owns the pods of one node, and
//! [`process::ProcessProvider`] runs them as local processes. [`fleet::Fleet`] is thousands of nodes whose pods are [`simulated`].
//!
//! Crates whose types are in this API are here again, in the versions that fit:
//!
//! ```
//! use virtual_kubelet::{api, axum, futures, jiff, k8s_openapi, kube, node, rustls, tokio_util};
//!
//! let facts = node::MachineFacts { name: "n1".into(), ..node::MachineFacts::default() };
//! let node: k8s_openapi::api::core::v1::Node = node::new_node(&facts, jiff::Timestamp::now());
//!
//! fn renewed_by(client: kube::Client) -> node::NodeControllerOpt {
//!     node::with_node_lease_client(kube::Api::namespaced(client, "kube-node-lease"))
//! }
//!
//! fn served(
//!     listener: tokio::net::TcpListener,
//!     tls: rustls::ServerConfig,
//!     router: axum::Router,
//!     stop: tokio_util::sync::CancellationToken,
//! ) -> futures::future::BoxFuture<'static, ()> {
//!     Box::pin(api::serve(listener, tls, router, stop))
//! }
//! ```
//!
//! The feature `v1_36`, on by default, chooses that version of the Kubernetes API in `k8s-openapi`. A program of another version leaves it
//! out (`default-features = false`) and sets its own on `k8s-openapi`; from `v1_35` on this crate builds with it.

pub use ::{axum, futures, jiff, k8s_openapi, kube, rustls, tokio_util};

pub mod api;
pub mod api_call;
pub mod errdefs;
pub mod fleet;
mod lifecycle;
pub mod node;
pub mod pod;
pub mod process;
pub mod queue;
mod reopening_watch;
pub mod simulated;
