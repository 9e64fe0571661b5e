//! The kubelet's routes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handlers::{ContainerTarget, HandlerError, PodHandlers, PodTarget, Session};
use super::options::{self, StreamOptions};
use super::{channels, port_forward, session};

/// How long clients may take to open the streams that they announced, by default.
///
/// ```
/// use virtual_kubelet::api::{Api, DEFAULT_STREAM_CREATION_TIMEOUT};
///
/// /// For clients on slow lines.
/// fn patient(api: Api) -> Api {
///     api.stream_creation_timeout(2 * DEFAULT_STREAM_CREATION_TIMEOUT)
/// }
/// assert_eq!(DEFAULT_STREAM_CREATION_TIMEOUT.as_secs(), 30);
/// ```
pub const DEFAULT_STREAM_CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest message of a WebSocket that is taken.
const LARGEST_MESSAGE: usize = 4 << 20;
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// What the routes share.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use tokio_util::sync::CancellationToken;
/// use virtual_kubelet::api::{Api, PodHandlers};
///
/// struct Nothing;
/// impl PodHandlers for Nothing {}
///
/// let stop = CancellationToken::new();
/// let api = Api::new(Arc::new(Nothing), stop.clone()).stream_creation_timeout(Duration::from_secs(10));
/// println!("{} commands and port-forwards end with this program", api.open_sessions());
/// stop.cancel();
/// ```
#[derive(Clone)]
pub struct Api {
    handlers: Arc<dyn PodHandlers>,
    sessions: TaskTracker,
    stop: CancellationToken,
    stream_creation: Duration,
}

impl Api {
    /// For these handlers. Sessions are ended when `stop` is cancelled.
    pub fn new(handlers: Arc<dyn PodHandlers>, stop: CancellationToken) -> Self {
        Self { handlers, sessions: TaskTracker::new(), stop, stream_creation: DEFAULT_STREAM_CREATION_TIMEOUT }
    }

    /// With another time within which clients open the streams that they announced.
    #[must_use]
    pub fn stream_creation_timeout(mut self, timeout: Duration) -> Self {
        self.stream_creation = timeout;
        self
    }

    /// How many commands, attached clients and port-forwards there are.
    pub fn open_sessions(&self) -> usize {
        self.sessions.len()
    }

    fn spawn(&self, session: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.sessions.spawn(async move {
            tokio::select! {
                () = session => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Adds the routes that concern pods: `containerLogs`, `exec`, `attach`, `portForward`, `pods` and, with `debug`, `runningpods`.
///
/// ```
/// use std::sync::Arc;
/// use tokio_util::sync::CancellationToken;
/// use virtual_kubelet::api::{Api, PodHandlers, attach_pod_metrics_routes, attach_pod_routes};
///
/// struct Nothing;
/// impl PodHandlers for Nothing {}
///
/// let api = Api::new(Arc::new(Nothing), CancellationToken::new());
/// let mine = axum::Router::new().route("/mine", axum::routing::get(async || "of this program"));
/// let router: axum::Router = attach_pod_metrics_routes(attach_pod_routes(mine, &api, false), &api);
/// ```
pub fn attach_pod_routes(router: Router, api: &Api, debug: bool) -> Router {
    let mut ours = Router::new();
    let mut add = |path: &str, methods: MethodRouter<Api>| {
        let before = std::mem::take(&mut ours);
        ours = before.route(path, methods.clone()).route(&format!("{path}/"), methods);
    };
    add("/containerLogs/{namespace}/{pod}/{container}", get(container_logs));
    add("/exec/{namespace}/{pod}/{third}", get(exec).post(exec));
    add("/exec/{namespace}/{pod}/{third}/{fourth}", get(exec).post(exec));
    add("/attach/{namespace}/{pod}/{third}", get(attach).post(attach));
    add("/attach/{namespace}/{pod}/{third}/{fourth}", get(attach).post(attach));
    add("/portForward/{namespace}/{pod}", get(forward).post(forward));
    add("/portForward/{namespace}/{pod}/{third}", get(forward).post(forward));
    add("/pods", get(async |State(api): State<Api>| pod_list(api.handlers.pods().await)));
    if debug {
        add("/runningpods", get(async |State(api): State<Api>| pod_list(api.handlers.running_pods().await)));
    }
    router.merge(ours.with_state(api.clone()))
}

/// Adds the routes that tell what pods use: `stats/summary` and `metrics/resource`.
///
/// ```
/// use axum::Router;
/// use virtual_kubelet::api::{Api, attach_pod_metrics_routes};
///
/// /// A node that shows what its pods use, and lets nobody in.
/// fn figures(api: &Api) -> Router {
///     attach_pod_metrics_routes(Router::new(), api)
/// }
/// ```
pub fn attach_pod_metrics_routes(router: Router, api: &Api) -> Router {
    let ours = Router::new()
        .route("/stats/summary", get(stats_summary))
        .route("/stats/summary/", get(stats_summary))
        .route("/metrics/resource", get(resource_metrics))
        .route("/metrics/resource/", get(resource_metrics));
    router.merge(ours.with_state(api.clone()))
}

/// All routes, `healthz` among them, and answers for everything else: 404, or 405 for another method.
///
/// ```
/// use std::sync::Arc;
///
/// use axum::{body::Body, http::Request};
/// use tokio_util::sync::CancellationToken;
/// use tower::ServiceExt;
/// use virtual_kubelet::api::{Api, PodHandlers, router};
///
/// struct Nothing;
/// impl PodHandlers for Nothing {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let routes = router(&Api::new(Arc::new(Nothing), CancellationToken::new()), false);
/// let status = async |path: &str| {
///     let request = Request::get(path).body(Body::empty()).unwrap();
///     routes.clone().oneshot(request).await.unwrap().status().as_u16()
/// };
/// assert_eq!(status("/healthz").await, 200);
/// assert_eq!(status("/pods").await, 501);
/// assert_eq!(status("/elsewhere").await, 404);
/// # }
/// ```
pub fn router(api: &Api, debug: bool) -> Router {
    let router = Router::new().route("/healthz", get(async || "ok"));
    attach_pod_metrics_routes(attach_pod_routes(router, api, debug), api)
        .fallback(async || (StatusCode::NOT_FOUND, "404 request not found"))
        .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed"))
}

impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        let (code, text) = self.answer();
        (StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), text).into_response()
    }
}

fn bad_request(text: String) -> Response {
    (StatusCode::BAD_REQUEST, text).into_response()
}

async fn container_logs(
    State(api): State<Api>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let options = match options::log_options(&options::query(request.uri().query().unwrap_or_default())) {
        Ok(options) => options,
        Err(text) => return bad_request(text),
    };
    let target = ContainerTarget { pod: PodTarget { namespace, name, uid: None }, container };
    match api.handlers.container_logs(&target, options).await {
        Ok(log) => ([(CONTENT_TYPE, "text/plain")], Body::from_stream(ReaderStream::new(log))).into_response(),
        Err(error) => error.into_response(),
    }
}

fn pod_list(pods: Result<Vec<Pod>, HandlerError>) -> Response {
    match pods.map(|items| serde_json::to_vec(&List { items, ..List::default() })) {
        Ok(Ok(json)) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn stats_summary(State(api): State<Api>) -> Response {
    match api.handlers.stats_summary().await {
        Ok(summary) => axum::Json(summary).into_response(),
        Err(error) => from_provider("status", error),
    }
}

async fn resource_metrics(State(api): State<Api>) -> Response {
    match api.handlers.resource_metrics().await {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => from_provider("metrics", error),
    }
}

fn from_provider(what: &str, error: HandlerError) -> Response {
    match error.answer() {
        (500, text) => (StatusCode::INTERNAL_SERVER_ERROR, format!("error getting {what} from provider: {text}")).into_response(),
        _ => error.into_response(),
    }
}

/// The container of a path, whose third part is a UID when there is a fourth.
fn target(mut parts: Vec<(String, String)>) -> Option<ContainerTarget> {
    let container = parts.pop()?.1;
    let mut parts = parts.into_iter().map(|(_, value)| value);
    Some(ContainerTarget { pod: PodTarget { namespace: parts.next()?, name: parts.next()?, uid: parts.next() }, container })
}

async fn exec(State(api): State<Api>, Path(parts): Path<Vec<(String, String)>>, request: Request) -> Response {
    let query = options::query(request.uri().query().unwrap_or_default());
    let wanted = match options::stream_options(&query) {
        Ok(wanted) => wanted,
        Err(text) => return bad_request(text),
    };
    let Some(target) = target(parts) else { return StatusCode::NOT_FOUND.into_response() };
    let command = options::command(&query);
    if command.is_empty() {
        return bad_request("you must specify a command".into());
    }
    let session = api.handlers.exec(&target, command).await;
    begin(&api, request, wanted, session)
}

async fn attach(State(api): State<Api>, Path(parts): Path<Vec<(String, String)>>, request: Request) -> Response {
    let wanted = match options::stream_options(&options::query(request.uri().query().unwrap_or_default())) {
        Ok(wanted) => wanted,
        Err(text) => return bad_request(text),
    };
    let Some(target) = target(parts) else { return StatusCode::NOT_FOUND.into_response() };
    let session = api.handlers.attach(&target).await;
    begin(&api, request, wanted, session)
}

/// How a client wants to go on after the handshake.
#[derive(Debug)]
enum Wanted {
    WebSocket { accept: String, offered: Vec<String> },
    Spdy { offered: Vec<String> },
}

fn listed(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect()
}

fn upgrade_wanted(headers: &HeaderMap) -> Option<Wanted> {
    if !listed(headers, &CONNECTION).iter().any(|value| value.eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    match headers.get(UPGRADE)?.to_str().ok()? {
        name if name.eq_ignore_ascii_case("websocket") => {
            let accept = derive_accept_key(headers.get(SEC_WEBSOCKET_KEY)?.as_bytes());
            Some(Wanted::WebSocket { accept, offered: listed(headers, &SEC_WEBSOCKET_PROTOCOL) })
        }
        name if name.eq_ignore_ascii_case("SPDY/3.1") => Some(Wanted::Spdy { offered: listed(headers, &STREAM_PROTOCOL) }),
        _ => None,
    }
}

fn upgrade_required() -> Response {
    bad_request("Upgrade request required".into())
}

fn no_protocol(offered: &[String], known: &[&str]) -> Response {
    let text = format!("unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {known:?}");
    (StatusCode::FORBIDDEN, text).into_response()
}

fn switching(upgrade: &'static str, headers: &[(HeaderName, &str)]) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(UPGRADE, HeaderValue::from_static(upgrade));
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        if let Ok(value) = HeaderValue::from_str(value) {
            answer.insert(name.clone(), value);
        }
    }
    response
}

fn websocket_answer(accept: &str, protocol: &str) -> Response {
    let key = HeaderName::from_static("sec-websocket-accept");
    switching("websocket", &[(key, accept), (SEC_WEBSOCKET_PROTOCOL, protocol)])
}

fn spdy_answer(protocol: &str) -> Response {
    switching("SPDY/3.1", &[(STREAM_PROTOCOL, protocol)])
}

async fn websocket(upgrade: OnUpgrade) -> hyper::Result<WebSocketStream<TokioIo<Upgraded>>> {
    let config = WebSocketConfig::default().max_message_size(Some(LARGEST_MESSAGE)).max_frame_size(Some(LARGEST_MESSAGE));
    Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgrade.await?), Role::Server, Some(config)).await)
}

fn begin(api: &Api, mut request: Request, wanted: StreamOptions, session: Result<Session, HandlerError>) -> Response {
    let Some(upgrade) = upgrade_wanted(request.headers()) else { return upgrade_required() };
    let session = match session {
        Ok(session) => session,
        Err(error) => return error.into_response(),
    };
    tracing::debug!(path = request.uri().path(), ?upgrade, "a session begins");
    let ready = hyper::upgrade::on(&mut request);
    match upgrade {
        Wanted::WebSocket { accept, offered } => {
            let Some(protocol) = channels::negotiate(offered.iter().map(String::as_str)) else {
                return no_protocol(&offered, &channels::PROTOCOLS.map(|protocol| protocol.name));
            };
            api.spawn(async move {
                if let Ok(socket) = websocket(ready).await {
                    session::over_websocket(socket, protocol, wanted, session).await;
                }
            });
            websocket_answer(&accept, protocol.name)
        }
        Wanted::Spdy { offered } => {
            let Some(protocol) = session::negotiate_spdy(offered.iter().map(String::as_str)) else {
                return no_protocol(&offered, &session::SPDY_PROTOCOLS.map(|protocol| protocol.name));
            };
            let patience = api.stream_creation;
            api.spawn(async move {
                if let Ok(transport) = ready.await {
                    session::over_spdy(TokioIo::new(transport), protocol, wanted, patience, session).await;
                }
            });
            spdy_answer(protocol.name)
        }
    }
}

async fn forward(State(api): State<Api>, Path(parts): Path<Vec<(String, String)>>, mut request: Request) -> Response {
    let mut values = parts.into_iter().map(|(_, value)| value);
    let (Some(namespace), Some(name)) = (values.next(), values.next()) else { return StatusCode::NOT_FOUND.into_response() };
    let target = PodTarget { namespace, name, uid: values.next() };
    let Some(upgrade) = upgrade_wanted(request.headers()) else { return upgrade_required() };
    let dial = match api.handlers.port_forward(&target).await {
        Ok(dial) => dial,
        Err(error) => return error.into_response(),
    };
    let (pod, patience) = (format!("{}_{}", target.name, target.namespace), api.stream_creation);
    let query = options::query(request.uri().query().unwrap_or_default());
    tracing::debug!(path = request.uri().path(), ?upgrade, "a port-forward begins");
    let ready = hyper::upgrade::on(&mut request);
    match upgrade {
        Wanted::WebSocket { accept, offered } if offered.iter().any(|name| name == port_forward::TUNNEL_PROTOCOL) => {
            api.spawn(async move {
                let Ok(socket) = websocket(ready).await else { return };
                let (transport, carry) = port_forward::tunnel(socket);
                tokio::join!(carry, port_forward::over_spdy(transport, dial, pod, patience));
            });
            websocket_answer(&accept, port_forward::TUNNEL_PROTOCOL)
        }
        Wanted::WebSocket { accept, offered } => {
            let Some(protocol) = channels::negotiate(offered.iter().map(String::as_str)) else {
                return no_protocol(&offered, &[port_forward::TUNNEL_PROTOCOL, "v4.channel.k8s.io"]);
            };
            let wanted = match options::ports(&query) {
                Ok(wanted) => wanted,
                Err(text) => return bad_request(text),
            };
            api.spawn(async move {
                if let Ok(socket) = websocket(ready).await {
                    port_forward::over_channels(socket, protocol, wanted, dial, pod).await;
                }
            });
            websocket_answer(&accept, protocol.name)
        }
        Wanted::Spdy { offered } => {
            if !offered.is_empty() && !offered.iter().any(|name| name == port_forward::SPDY_PROTOCOL) {
                return no_protocol(&offered, &[port_forward::SPDY_PROTOCOL]);
            }
            api.spawn(async move {
                if let Ok(transport) = ready.await {
                    port_forward::over_spdy(TokioIo::new(transport), dial, pod, patience).await;
                }
            });
            spdy_answer(port_forward::SPDY_PROTOCOL)
        }
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
