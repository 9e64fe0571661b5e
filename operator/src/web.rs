//! `/livez`, `/readyz`, `/metrics`.

use crate::{callers, metrics::Metrics, watch::Observer};
use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
struct WebState {
    metrics: Arc<Metrics>,
    observer: Arc<Observer>,
}

/// Takes the port; an error says what to do: choose another with `option`.
pub async fn listen(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        // A host without IPv6 refuses the default address.
        Err(_) if address.ip().is_unspecified() && address.is_ipv6() => TcpListener::bind(("0.0.0.0", address.port())).await,
        result => result,
    }
    .with_context(|| format!("cannot listen on {address}: choose another address with {option}"))
}

/// Serves until `stop`, and whoever has asked by then.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, observer: Arc<Observer>, stop: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(|State(shared): State<WebState>| async move { shared.metrics.scrape() }))
        .with_state(WebState { metrics, observer });
    callers::accept(listener, stop.clone(), |stream| callers::http(stream, router.clone(), stop.clone())).await;
}

/// Ready when every watch has listed once: a standby with a warm view is ready, too. Rights that are missing are told in either case.
async fn ready(State(shared): State<WebState>) -> (StatusCode, String) {
    let missing = shared.observer.missing();
    let (code, first) = if missing.is_empty() {
        (StatusCode::OK, "ok".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for the first list of: {}", missing.join(", ")))
    };
    let lines: Vec<_> = std::iter::once(first).chain(shared.metrics.rights.missing()).map(|line| line + "\n").collect();
    (code, lines.concat())
}
