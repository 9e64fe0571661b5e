//! HTTP/1 over any listener, within limits.

use crate::{
    answer::Answer,
    connections::{Limits, Table, Tracked},
    listener::Accept,
    metrics::Requests,
    probers::Probers,
    proxy_protocol::Unwrapped,
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    header::{ALLOW, CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    net::IpAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// hyper's smallest; a health check's header is a tenth of it.
const BUFFER: usize = 8192;
const MAX_HEADERS: usize = 64;
/// For answers that are under way when the process ends.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// A body in one piece.
#[derive(Debug, Default)]
pub struct Payload(Option<Bytes>);

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// What answers requests. An answer must not wait for anything.
pub trait Respond: Send + Sync + 'static {
    /// Answers one request.
    fn respond(&self, request: &Request<Incoming>, from: Option<IpAddr>) -> Response<Payload>;
}

/// Answers every path with the verdict: load balancers differ in the path that they ask for.
#[derive(Debug)]
pub struct HealthPort {
    /// The verdict.
    pub answer: watch::Receiver<Arc<Answer>>,
    /// Who asks.
    pub probers: Arc<Probers>,
    /// How often, by code.
    pub requests: Requests,
    /// The process is about to end: clients shall not come back on the same connection.
    pub leaving: Arc<AtomicBool>,
}

impl Respond for HealthPort {
    fn respond(&self, request: &Request<Incoming>, from: Option<IpAddr>) -> Response<Payload> {
        let mut response = if matches!(*request.method(), Method::GET | Method::HEAD) {
            let answer = self.answer.borrow().clone();
            let mut response = Response::new(Payload::from(answer.body.clone()));
            *response.status_mut() = answer.status;
            response.headers_mut().clone_from(&answer.headers);
            if let Some(from) = from {
                self.probers.served(from, answer.status);
            }
            response
        } else {
            only_get_and_head()
        };
        self.requests.count(response.status());
        if self.leaving.load(Relaxed) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// 405.
pub fn only_get_and_head() -> Response<Payload> {
    let mut response = Response::new(Payload::default());
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Serves until `stop` is cancelled, and then until the answers under way are given.
pub async fn serve<A: Accept>(listener: A, table: Arc<Table>, respond: Arc<impl Respond>, stop: CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = sweep(&table) => {}
        () = accept(&listener, &table, &respond, &stop) => {}
    }
    drop(listener);
    finish(&table).await;
}

/// Closes connections that are over a limit, for ever.
pub async fn sweep(table: &Table) {
    let mut ticks = time::interval(Duration::from_millis(500));
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        table.sweep();
    }
}

/// Accepts connections, for ever. Each is answered also when this is dropped, until `stop` is cancelled.
pub async fn accept<A: Accept>(listener: &A, table: &Arc<Table>, respond: &Arc<impl Respond>, stop: &CancellationToken) {
    loop {
        match listener.accept_one().await {
            Ok((stream, from)) => {
                let seat = table.enter(from);
                tokio::spawn(talk(stream, from, seat, respond.clone(), stop.clone()));
            }
            // Mostly: no file descriptor is left.
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                table.displace();
                time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Waits for the answers that are under way when connections are told to end.
pub async fn finish(table: &Table) {
    let _ = time::timeout(LAST_ANSWERS, table.emptied()).await;
}

async fn talk<S>(stream: S, from: Option<IpAddr>, seat: crate::connections::Seat, respond: Arc<impl Respond>, stop: CancellationToken)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let connection = seat.connection.clone();
    let io = TokioIo::new(Unwrapped::new(Tracked { stream, connection: connection.clone() }));
    let service = service_fn(|request: Request<Incoming>| {
        connection.request_read();
        let response = respond.respond(&request, from);
        async move { Ok::<_, Infallible>(response) }
    });
    // The table watches the time: hyper's own limit for headers also ends connections that merely wait for the next check.
    let served = http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(BUFFER)
        .half_close(true)
        .serve_connection(io, service);
    let mut served = pin!(served);
    tokio::select! {
        biased;
        () = seat.connection.gone.cancelled() => return,
        result = served.as_mut() => {
            if let Err(error) = result {
                debug!(%error, "connection ended");
            }
            return;
        }
        () = stop.cancelled() => served.as_mut().graceful_shutdown(),
    }
    let _ = time::timeout(LAST_ANSWERS, served).await;
}

/// A table with the limits of the admin socket and the like, which few clients use.
pub fn small_table() -> Arc<Table> {
    Table::new(Limits { idle: Duration::from_mins(1), ..Limits::new(16) })
}
