//! The admin socket: for people and for Prometheus on the node, never for the load balancer.

use crate::{
    answer::Answer,
    connections::Table,
    metrics::Metrics,
    probers::Probers,
    ready::Readiness,
    server::{Payload, Respond, only_get_and_head},
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};
use tokio::sync::watch;

/// Where the admin socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// Unix socket.
    Path(PathBuf),
    /// Loopback address and port: the process is on the host network, and shall open nothing else there.
    Loopback(SocketAddr),
}

/// Neither an absolute path nor a loopback address with a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an absolute path nor a loopback address with a port such as 127.0.0.1:9180")]
pub struct ParseAdminAddressError(String);

impl FromStr for AdminAddress {
    type Err = ParseAdminAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with('/') {
            return Ok(Self::Path(text.into()));
        }
        let address = text.parse().ok().filter(|address: &SocketAddr| address.ip().to_canonical().is_loopback());
        address.map(Self::Loopback).ok_or_else(|| ParseAdminAddressError(text.to_owned()))
    }
}

/// Answers on the admin socket.
#[derive(Debug)]
pub struct Admin {
    /// The verdict.
    pub answer: watch::Receiver<Arc<Answer>>,
    /// Synced, and the port is held?
    pub state: watch::Receiver<Readiness>,
    /// For `/probes`.
    pub probers: Arc<Probers>,
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Connections of the health port.
    pub health_port: Arc<Table>,
}

impl Respond for Admin {
    fn respond(&self, request: &Request<Incoming>, _: Option<IpAddr>) -> Response<Payload> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return only_get_and_head();
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "ok\n".into()),
            "/readyz" => {
                let state = *self.state.borrow();
                text(
                    if state == Readiness::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE },
                    format!("{}\n", state.as_str()),
                )
            }
            "/metrics" => {
                let answer = self.answer.borrow().clone();
                typed(
                    StatusCode::OK,
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    self.metrics.scrape(&answer, &self.health_port),
                )
            }
            "/probes" => typed(StatusCode::OK, "application/json", serde_json::to_string(&self.probers.snapshot()).unwrap_or_default()),
            _ => text(StatusCode::NOT_FOUND, "/livez /readyz /metrics /probes\n".into()),
        }
    }
}

fn text(code: StatusCode, body: String) -> Response<Payload> {
    typed(code, "text/plain; charset=utf-8", body)
}

fn typed(code: StatusCode, kind: &'static str, body: String) -> Response<Payload> {
    let mut response = Response::new(Payload::from(Bytes::from(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_socket_is_never_reachable_from_outside_the_node() {
        for text in ["/run/a.sock", "127.0.0.1:9180", "[::1]:9180"] {
            assert!(text.parse::<AdminAddress>().is_ok(), "{text}");
        }
        for text in ["0.0.0.0:9180", "[::]:9180", "192.0.2.1:80", "localhost:80", "a.sock", ""] {
            assert!(text.parse::<AdminAddress>().is_err(), "{text}");
        }
    }
}
