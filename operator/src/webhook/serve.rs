//! The listener: TLS with whatever certificate there is at each handshake, then HTTP/1.1.

use super::certificates::Certificates;
use crate::callers::{self, PATIENCE};
use anyhow::Result;
use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::sync::Arc;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The certificate of each next handshake. Without one, handshakes fail.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

impl Serving {
    /// Serves these from now on; connections that are open keep theirs.
    pub fn set(&self, certificates: &Certificates) -> Result<()> {
        let key = Arc::new(certificates.certified_key()?);
        *self.0.write() = Some(key);
        Ok(())
    }
}

/// Settings of TLS, 1.2 at least.
pub fn tls(serving: Serving) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions)?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(serving));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, tls: ServerConfig, router: Router, stop: CancellationToken) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let router = router.layer(middleware::from_fn(in_time));
    callers::accept(listener, stop.clone(), |stream| connection(stream, acceptor.clone(), router.clone(), stop.clone())).await;
}

/// Answers a request, unless it does not come in time: an API server waits for two seconds.
async fn in_time(request: Request, next: Next) -> Response {
    let answer = timeout(PATIENCE, next.run(request)).await;
    answer.unwrap_or_else(|_| (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response())
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router, stop: CancellationToken) {
    match timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => callers::http(stream, router, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with the webhook failed"),
        Err(_) => {}
    }
}
