//! The listener: TLS, then HTTP/1.1.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ResolvesServerCert, ServerConfig, WebPkiClientVerifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::auth::PeerCertificate;

/// Most connections at a time. The API server makes one for each log, command and port-forward.
const CONNECTIONS: usize = 2048;
/// How long a client may take for the handshake, and for the head of each request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an accept that failed is followed by none.
const PAUSE: Duration = Duration::from_millis(100);

/// Settings of TLS, 1.2 at least: the certificate is whatever `certificate` says at each handshake, and clients that have a
/// certificate of one of the authorities in `client_ca` are known by it. Clients without one may have a token.
///
/// Fails when the file cannot be read or has no authority in it.
///
/// ```no_run
/// use std::{path::Path, sync::Arc};
///
/// use virtual_kubelet::api::{ServingCertificate, tls};
///
/// # fn main() -> anyhow::Result<()> {
/// let certificate = ServingCertificate::from_files(Path::new("/etc/vk/tls.crt"), Path::new("/etc/vk/tls.key"))?;
/// let config: rustls::ServerConfig = tls(Arc::new(certificate), Some(Path::new("/etc/kubernetes/pki/ca.crt")))?;
/// # Ok(())
/// # }
/// ```
pub fn tls(certificate: Arc<dyn ResolvesServerCert>, client_ca: Option<&Path>) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(path).with_context(|| format!("reading {}", path.display()))? {
                roots.add(certificate.with_context(|| format!("reading {}", path.display()))?)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).allow_unauthenticated().build();
            builder.with_client_cert_verifier(verifier.with_context(|| format!("using the authorities in {}", path.display()))?)
        }
    };
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves until `stop` is cancelled; then connections are dropped. At most 2048 at a time; a client has 10 s for the handshake
/// and for the head of each request.
///
/// ```no_run
/// use tokio_util::sync::CancellationToken;
/// use virtual_kubelet::api::serve;
///
/// # async fn example(config: rustls::ServerConfig, router: axum::Router) -> std::io::Result<()> {
/// let (listener, stop) = (tokio::net::TcpListener::bind("[::]:10250").await?, CancellationToken::new());
/// let serving = tokio::spawn(serve(listener, config, router, stop.clone()));
/// tokio::signal::ctrl_c().await?;
/// stop.cancel();
/// let _ = serving.await;
/// # Ok(())
/// # }
/// ```
pub async fn serve(listener: TcpListener, tls: ServerConfig, router: Router, stop: CancellationToken) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the kubelet API");
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

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    // A peer that vanished without a word is noticed, also while a client only listens.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(30))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(10))?;
    Ok((stream, place))
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => return,
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let router = match certificate {
        Some(der) => router.layer(axum::Extension(PeerCertificate(Arc::from(der.as_ref())))),
        None => router,
    };
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the kubelet API ended early");
    }
}
