//! An HTTP proxy between one operator and the API server, which makes requests fail as a rule says.
//!
//! It passes the operator's own token on and has none itself, so the rights of `deploy/` stay in force. A rule is a pure
//! function of the request: its number, whether it is the first of its kind, what it asks for.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{Response, StatusCode, body::Bytes, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

use crate::bed::{Bed, control_plane};

use super::{
    fault::{Fault, Reached},
    log::{Exchange, Log},
    request::{self, Request},
    stream,
};

/// Which fault a request meets.
type Rule = Box<dyn Fn(&Request) -> Fault + Send>;
type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// A running proxy. Dropping it closes all its connections.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    caught: mpsc::UnboundedReceiver<Request>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    api_server: Client,
    state: Mutex<State>,
    catches: mpsc::UnboundedSender<Request>,
    /// Watches with a smaller number deliver nothing any more.
    silent_below: watch::Sender<u64>,
    /// Held requests with a smaller number go on.
    free_below: watch::Sender<u64>,
    /// Connections of an operator that was killed have an older one.
    generation: AtomicU64,
}

struct State {
    rule: Rule,
    log: Log,
    /// A request was caught for [`Fault::Crash`]: the operator is to end.
    crashing: bool,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop();
    }
}

impl FaultProxy {
    /// Starts one on a port of its own, through which everything passes.
    pub async fn start(bed: &Bed) -> Result<Self> {
        let (catches, caught) = mpsc::unbounded_channel();
        let state = State { rule: Box::new(|_| Fault::None), log: Log::default(), crashing: false };
        let shared = Arc::new(Shared {
            api_server: without_credentials(bed).await?,
            state: Mutex::new(state),
            catches,
            silent_below: watch::Sender::new(0),
            free_below: watch::Sender::new(0),
            generation: AtomicU64::new(0),
        });
        let mut proxy = Self { address: (Ipv4Addr::LOCALHOST, 0).into(), shared, caught, accepting: None };
        proxy.resume().await?;
        Ok(proxy)
    }

    /// What the operator takes for the API server.
    pub fn server(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on requests meet these faults.
    pub fn inject(&self, rule: impl Fn(&Request) -> Fault + Send + 'static) {
        let mut state = self.shared.state();
        state.rule = Box::new(rule);
        state.log.count_attempts_anew();
    }

    /// Everything passes again.
    pub fn pass(&self) {
        self.inject(|_| Fault::None);
    }

    /// A request was caught for a crash, and the operator has not ended since: nothing passes.
    pub fn is_crashing(&self) -> bool {
        self.shared.state().crashing
    }

    /// The next request that was caught for a crash, or is held.
    pub async fn caught(&mut self) -> Result<Request> {
        self.caught.recv().await.context("the proxy has ended")
    }

    /// The operator has ended: nothing that it still sent reaches the API server, and the next one may come.
    pub fn forget_operator(&self) {
        self.shared.generation.fetch_add(1, Ordering::AcqRel);
        self.shared.state().crashing = false;
    }

    /// Requests held until now go on.
    pub fn let_go(&self) {
        self.shared.free_below.send_replace(self.shared.state().log.next());
    }

    /// Watches under way deliver nothing more, and their connections stay open.
    pub fn silence_watches(&self) {
        self.shared.silent_below.send_replace(self.shared.state().log.next());
    }

    /// Connections are refused, and those that are open are reset.
    pub fn stop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }

    /// Listens again, on the same port.
    pub async fn resume(&mut self) -> Result<()> {
        let listener = TcpListener::bind(self.address).await.context("listening for the operator")?;
        self.address = listener.local_addr()?;
        self.accepting = Some(tokio::spawn(accept(listener, Arc::clone(&self.shared))));
        Ok(())
    }

    /// All requests so far, in the order in which they came.
    pub fn log(&self) -> Vec<Exchange> {
        self.shared.state().log.exchanges()
    }
}

async fn without_credentials(bed: &Bed) -> Result<Client> {
    let mut kubeconfig = bed.control_plane.admin_kubeconfig_for(&control_plane::server())?;
    kubeconfig["users"][0]["user"] = serde_json::json!({});
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).context("reading the proxy's kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Client::try_from(config).context("building the proxy's client")
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Aborted together with this task.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(serve(stream, Arc::clone(&shared)));
            }
            Err(error) => {
                tracing::warn!("proxy: accepting: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // So that a connection that we close is reset. The operator closes the others.
    if let Err(error) = stream.set_zero_linger() {
        tracing::warn!("proxy: {error}");
    }
    let generation = shared.generation.load(Ordering::Acquire);
    let service = service_fn(move |request| Arc::clone(&shared).answer(request, generation));
    // An error is a reset that a rule asked for, or a client that went away.
    if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("proxy: {error}");
    }
}

/// Ends the connection.
#[derive(Debug)]
struct Broken(String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Broken {}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    async fn answer(self: Arc<Self>, request: hyper::Request<Incoming>, generation: u64) -> Result<Answer, Broken> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|error| Broken(error.to_string()))?.to_bytes();
        let Some((request, fault)) = self.admit(&head, &body, generation) else {
            return never().await;
        };
        let number = request.number;
        match fault {
            Fault::None => self.pass(number, head, body, Duration::ZERO).await,
            Fault::Delay(delay) => {
                tokio::time::sleep(delay).await;
                self.pass(number, head, body, delay).await
            }
            Fault::Answer(code) => self.status(number, code),
            Fault::AnswerInstead(code) => {
                self.lose(number, head, body, Reached::ApiServer).await;
                self.status(number, code)
            }
            Fault::Swallow(reached) => {
                self.lose(number, head, body, reached).await;
                never().await
            }
            Fault::Reset(reached) => {
                self.lose(number, head, body, reached).await;
                Err(Broken("reset".into()))
            }
            Fault::Crash(reached) => {
                self.lose(number, head, body, reached).await;
                let _ = self.catches.send(request);
                never().await
            }
            Fault::Hold => self.hold(request, head, body).await,
            Fault::Past(revision) => {
                let head = request::as_of(head, revision).map_err(|error| Broken(error.to_string()))?;
                self.pass(number, head, body, Duration::ZERO).await
            }
        }
    }

    /// Gets a request as far as this; its answer is lost, but for the log.
    async fn lose(&self, number: u64, head: http::request::Parts, body: Bytes, reached: Reached) {
        if reached == Reached::ApiServer {
            let _ = self.forward(number, head, body).await;
        }
    }

    async fn hold(self: Arc<Self>, request: Request, head: http::request::Parts, body: Bytes) -> Result<Answer, Broken> {
        let number = request.number;
        let _ = self.catches.send(request);
        let mut free = self.free_below.subscribe();
        // In a task of its own: it is on its way, whoever waits for it.
        let late = tokio::spawn(async move {
            let _ = free.wait_for(|free| number < *free).await;
            self.pass(number, head, body, Duration::ZERO).await
        });
        late.await.map_err(|error| Broken(error.to_string()))?
    }

    /// Numbers a request and asks the rule; none when its operator is to end, or has ended.
    fn admit(&self, head: &http::request::Parts, body: &Bytes, generation: u64) -> Option<(Request, Fault)> {
        let mut state = self.state();
        if state.crashing || generation != self.generation.load(Ordering::Acquire) {
            return None;
        }
        let request = state.log.admit(head, body);
        let fault = (state.rule)(&request);
        state.log.note_fault(request.number, fault);
        state.crashing = matches!(fault, Fault::Crash(_));
        Some((request, fault))
    }

    async fn pass(&self, number: u64, head: http::request::Parts, body: Bytes, delay: Duration) -> Result<Answer, Broken> {
        let answer = self.forward(number, head, body).await?;
        self.state().log.note_answer(number, answer.status().as_u16());
        Ok(answer.map(|body| stream::delivered(body, delay, number, self.silent_below.subscribe())))
    }

    async fn forward(&self, number: u64, mut head: http::request::Parts, body: Bytes) -> Result<Response<Body>, Broken> {
        head.headers.remove(header::HOST);
        let request = http::Request::from_parts(head, Body::from(body));
        let answer = self.api_server.send(request).await.map_err(|error| Broken(error.to_string()))?;
        self.state().log.note_forwarded(number, answer.status().as_u16());
        Ok(answer)
    }

    /// A failure as the API server words it.
    fn status(&self, number: u64, code: u16) -> Result<Answer, Broken> {
        self.state().log.note_answer(number, code);
        let status = StatusCode::from_u16(code).map_err(|error| Broken(error.to_string()))?;
        let reason = match code {
            409 => "Conflict",
            422 => "Invalid",
            429 => "TooManyRequests",
            504 => "Timeout",
            _ => "InternalError",
        };
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "injected by the fault proxy", "reason": reason, "code": code,
        });
        let body = Full::new(Bytes::from(body.to_string())).map_err(|never: Infallible| match never {}).boxed_unsync();
        let mut answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
        if code == 429 {
            answer = answer.header(header::RETRY_AFTER, "1");
        }
        answer.body(body).map_err(|error| Broken(error.to_string()))
    }
}

/// Until the connection ends.
async fn never() -> Result<Answer, Broken> {
    std::future::pending().await
}
