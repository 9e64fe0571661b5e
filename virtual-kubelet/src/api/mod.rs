//! The API that the API server expects of each node, behind `kubectl logs`, `exec`, `attach`, `cp`, `port-forward` and `top`.
//!
//! A provider implements [`PodHandlers`]: nothing here runs a pod. [`attach_pod_routes`] and [`attach_pod_metrics_routes`] put it on an
//! axum router, [`router`] makes a whole one, and [`serve`] serves that over TLS. Commands and attached clients come over a WebSocket
//! (`v5.channel.k8s.io` and its predecessors) or over SPDY/3.1, port-forwards over SPDY/3.1, alone or inside a WebSocket.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use axum::middleware::from_fn_with_state;
//! use tokio_util::sync::CancellationToken;
//! use virtual_kubelet::api::{self, Api, ApiReviews, Auth, PodHandlers, ServingCertificate, WebhookAuth};
//!
//! # async fn example(client: kube::Client, handlers: Arc<dyn PodHandlers>, stop: CancellationToken) -> anyhow::Result<()> {
//! let certificate = ServingCertificate::from_files(Path::new("/etc/vk/tls.crt"), Path::new("/etc/vk/tls.key"))?;
//! let tls = api::tls(Arc::new(certificate), Some(Path::new("/etc/kubernetes/pki/ca.crt")))?;
//! // Whoever the API server lets have `nodes/proxy` and the like of this node.
//! let auth = Auth::Webhook(Arc::new(WebhookAuth::new(ApiReviews { client, node: "n1".into() })));
//! let router = api::router(&Api::new(handlers, stop.clone()), false).layer(from_fn_with_state(auth, api::authorize));
//! let listener = tokio::net::TcpListener::bind("198.18.0.1:10250").await?;
//! api::serve(listener, tls, router, stop).await;
//! # Ok(())
//! # }
//! ```

mod auth;
mod certificate;
// Wire formats: public for the fuzz targets alone.
#[doc(hidden)]
pub mod channels;
mod handlers;
pub mod logs;
mod options;
mod port_forward;
mod routes;
mod server;
mod session;
#[doc(hidden)]
pub mod spdy;

pub use auth::{Access, ApiReviews, Auth, PeerCertificate, Refusal, Reviews, User, WebhookAuth, authorize};
pub use certificate::{NodeIdentity, ServingCertificate};
pub use handlers::{
    BoxDuplex, BoxRead, BoxWrite, ContainerTarget, Dialer, Duplex, HandlerError, PodHandlers, PodTarget, Session, SessionIo, TerminalSize,
};
pub use options::{LogOptions, LogStreams, Since};
// The routes do this for every provider: public for the fuzz targets alone.
#[doc(hidden)]
pub use options::{Query, StreamOptions, log_options, query, stream_options};
pub use routes::{Api, DEFAULT_STREAM_CREATION_TIMEOUT, attach_pod_metrics_routes, attach_pod_routes, router};
pub use server::{serve, tls};
#[doc(hidden)]
pub use session::{SPDY_PROTOCOLS, SpdyProtocol, over_spdy as session_over_spdy, over_websocket as session_over_websocket};
