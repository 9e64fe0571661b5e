//! An API server of a few lines, for tests of requests and their order.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::time::Instant;

use super::limiter::Limiter;
use super::metrics::Metrics;
use super::requests::Requests;

/// A request that came.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub at: Instant,
    /// Method and path.
    pub what: String,
    /// What follows the path.
    pub query: String,
    pub body: Value,
}

pub(super) type Log = Arc<Mutex<Vec<Asked>>>;

/// Requests to a server that answers as `answer` says: a status and a body, which is empty for null.
pub(super) fn requests(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> (Arc<Requests>, Log) {
    requests_after(|_| futures::future::ready(()).boxed(), answer)
}

/// The same to one that does `first` before it answers.
pub(super) fn requests_after(
    first: impl Fn(&Asked) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
) -> (Arc<Requests>, Log) {
    let log = Log::default();
    let (first, answer, kept) = (Arc::new(first), Arc::new(answer), log.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (first, answer, kept) = (first.clone(), answer.clone(), kept.clone());
        async move {
            let what = format!("{} {}", request.method(), request.uri().path());
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body = request.into_body().collect().await?.to_bytes();
            let asked = Asked { at: Instant::now(), what, query, body: serde_json::from_slice(&body).unwrap_or_default() };
            first(&asked).await;
            let (code, body) = answer(&asked);
            kept.lock().unwrap().push(asked);
            let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body).unwrap() };
            let answer = http::Response::builder().status(code).body(Body::from(body));
            Ok::<_, kube::Error>(answer.unwrap())
        }
    });
    let (leases, writes) = (Limiter::new(4, 48), Limiter::new(4, 64));
    let metrics = Arc::new(Metrics::new(&leases, &writes));
    (Arc::new(Requests::new(Client::new(service, "default"), false, metrics)), log)
}
