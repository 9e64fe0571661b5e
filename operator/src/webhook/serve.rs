//! The listener: TLS with whatever certificate there is at each handshake, then HTTP/1.1.
//!
//! `virtual-kubelet` has one like it for the kubelet's API, with clients' certificates, upgrades and keepalives. It is a library of its
//! own that knows nothing of this product, and a package for both would be one more to publish for forty lines.

use super::certificates::Certificates;
use anyhow::Result;
use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Most connections at a time: an API server keeps a few.
const CONNECTIONS: usize = 256;
/// How long a client may take for the handshake, for the head of each request, and for all of it: an API server waits for two seconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an accept that failed is followed by none: it fails for want of descriptors or memory, and nothing tells when there is some
/// again.
const PAUSE: Duration = Duration::from_millis(100);

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

/// Serves until `stop`; then connections are dropped.
pub async fn serve(listener: TcpListener, tls: ServerConfig, router: Router, stop: CancellationToken) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let router = router.layer(middleware::from_fn(in_time));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => return,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the webhook");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection(stream, acceptor, router) => {}
            }
            drop(place);
        });
    }
}

/// Answers a request, unless it does not come in time.
async fn in_time(request: Request, next: Next) -> Response {
    let answer = timeout(PATIENCE, next.run(request)).await;
    answer.unwrap_or_else(|_| (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response())
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let stream = match timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake with the webhook failed"),
        Err(_) => return,
    };
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the webhook ended early");
    }
}
