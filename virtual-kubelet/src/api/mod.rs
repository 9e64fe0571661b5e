//! The API that the API server expects of each node, behind `kubectl logs`, `exec`, `attach`, `cp`, `port-forward` and `top`.
//!
//! A provider implements [`PodHandlers`]; [`attach_pod_routes`] and [`attach_pod_metrics_routes`] put it on an axum router,
//! [`router`] makes a whole one, and [`serve`] serves that over TLS. Commands and attached clients come over a WebSocket
//! (`v5.channel.k8s.io` and its predecessors) or over SPDY/3.1, port-forwards over SPDY/3.1, alone or inside a WebSocket.

mod auth;
mod certificate;
pub mod channels;
mod handlers;
pub mod logs;
mod options;
mod port_forward;
mod routes;
mod server;
mod session;
pub mod spdy;

pub use auth::{Access, ApiReviews, Auth, PeerCertificate, Refusal, Reviews, User, WebhookAuth, access, authorize, certificate_user};
pub use certificate::{NodeIdentity, ServingCertificate};
pub use handlers::{
    BoxDuplex, BoxRead, BoxWrite, ContainerTarget, Dialer, Duplex, HandlerError, PodHandlers, PodTarget, Session, SessionIo, TerminalSize,
};
pub use options::{LogOptions, LogStreams, Query, Since, StreamOptions, log_options, query, stream_options};
pub use port_forward::{over_channels as forward_over_channels, over_spdy as forward_over_spdy, tunnel};
pub use routes::{Api, DEFAULT_STREAM_CREATION_TIMEOUT, attach_pod_metrics_routes, attach_pod_routes, router};
pub use server::{serve, tls};
pub use session::{SPDY_PROTOCOLS, SpdyProtocol, over_spdy as session_over_spdy, over_websocket as session_over_websocket};
