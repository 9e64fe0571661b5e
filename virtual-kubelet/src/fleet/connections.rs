//! A client for a fleet: with a bound on its connections.
//!
//! hyper's pool has none: a request that finds no idle connection begins one, and when another one becomes free first, the one that
//! was begun in vain stays open as well. As many requests at once as the limits of a fleet let through may so have many more
//! connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service;
use tower::util::MapErrLayer;

use crate::api_call::TIMEOUT;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Connections at once, at most: 48 requests about leases, 64 about Nodes and pods, two watches or lists, and some more for
/// connections that are being closed.
const CONNECTIONS: usize = 120;

/// A client for a [`Fleet`](super::Fleet): it never has more than 120 connections, and repeats no request by itself.
///
/// Of `config` the address, the credentials, the certificates, the headers and the time to connect count (10 s without one), neither
/// proxies nor the other times: all requests of a fleet have deadlines of their own.
///
/// ```no_run
/// use virtual_kubelet::fleet::{self, Fleet, FleetConfig};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = fleet::client(&kube::Config::infer().await?)?;
/// let fleet = Fleet::new(client, FleetConfig::new(1_000))?;
/// # Ok(())
/// # }
/// ```
pub fn client(config: &Config) -> kube::Result<Client> {
    bounded(config, CONNECTIONS)
}

fn bounded(config: &Config, most: usize) -> kube::Result<Client> {
    let https = config.rustls_https_connector()?;
    let connector = Bounded { inner: https, permits: Arc::new(Semaphore::new(most)), patience: config.connect_timeout.unwrap_or(TIMEOUT) };
    let client: legacy::Client<_, Body> = legacy::Builder::new(TokioExecutor::new()).build(connector);
    let stack = ClientBuilder::new(client, config.default_namespace.clone())
        .with_layer(&MapErrLayer::new(BoxError::from))
        .with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(auth) => stack.with_layer(&auth).with_layer(&config.base_uri_layer()).build(),
        None => stack.with_layer(&config.base_uri_layer()).build(),
    })
}

/// Connects while there are permits; else it waits for one, which ends when another connection becomes free for the request.
#[derive(Clone)]
struct Bounded<C> {
    inner: C,
    permits: Arc<Semaphore>,
    patience: std::time::Duration,
}

impl<C, U> Service<U> for Bounded<C>
where
    C: Service<U> + Clone + Send + 'static,
    C::Error: Into<BoxError>,
    C::Future: Send,
    U: Send + 'static,
{
    type Response = Counted<C::Response>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, address: U) -> Self::Future {
        let fresh = self.inner.clone();
        // The one that was asked whether it is ready is the one that connects.
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let (permits, patience) = (self.permits.clone(), self.patience);
        Box::pin(async move {
            // What hyper begins in vain would else wait here for as long as there is no permit.
            let permit = tokio::time::timeout(TIMEOUT, permits.acquire_owned()).await.map_err(|_| "all connections are in use")??;
            let connected = tokio::time::timeout(patience, inner.call(address)).await.map_err(|_| "no connection in time")?;
            Ok(Counted { inner: connected.map_err(Into::into)?, _permit: permit })
        })
    }
}

/// A connection that has a permit for as long as it lives.
struct Counted<S> {
    inner: S,
    _permit: OwnedSemaphorePermit,
}

impl<S: Connection> Connection for Counted<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

impl<S: Read + Unpin> Read for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[derive(Default)]
    struct Open {
        now: AtomicUsize,
        most: AtomicUsize,
        answers: AtomicUsize,
    }

    /// Answers each request of a connection after a while.
    async fn serve(mut stream: TcpStream, open: Arc<Open>) -> io::Result<()> {
        let mut request = Vec::new();
        let mut part = [0; 4096];
        loop {
            let read = stream.read(&mut part).await?;
            if read == 0 {
                return Ok(());
            }
            request.extend_from_slice(&part[..read]);
            if request.ends_with(b"\r\n\r\n") {
                request.clear();
                // Other answers come meanwhile, so that connections become free while others are begun.
                let number = open.answers.fetch_add(1, Ordering::Relaxed) as u64;
                tokio::time::sleep(Duration::from_millis(1 + number % 7)).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await?;
            }
        }
    }

    async fn slow_server() -> (Config, Arc<Open>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let kept = Arc::new(Open::default());
        let counted = kept.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let open = counted.clone();
                let now = open.now.fetch_add(1, Ordering::Relaxed) + 1;
                open.most.fetch_max(now, Ordering::Relaxed);
                tokio::spawn(async move {
                    let _ = serve(stream, open.clone()).await;
                    open.now.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        (Config::new(uri), kept)
    }

    #[tokio::test]
    async fn all_requests_are_answered_within_the_bound_of_connections() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (config, open) = slow_server().await;
        let client = bounded(&config, 10).unwrap();
        let requests = (0..1_000).map(|_| async {
            let answer = client.send(http::Request::get("/api").body(Body::empty()).unwrap()).await.unwrap();
            answer.into_body().collect().await.unwrap().to_bytes()
        });
        let answers = futures::future::join_all(requests).await;
        assert!(answers.iter().all(|answer| &answer[..] == b"{}"));
        let most = open.most.load(Ordering::Relaxed);
        assert!((2..=10).contains(&most), "{most} connections at once");
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_makes_room_for_another_one() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (config, open) = slow_server().await;
        let client = bounded(&config, 1).unwrap();
        for _ in 0..3 {
            let request = http::Request::get("/api").header("Connection", "close").body(Body::empty()).unwrap();
            let answer = client.send(request).await.unwrap();
            answer.into_body().collect().await.unwrap();
        }
        assert_eq!(open.most.load(Ordering::Relaxed), 1);
    }
}
