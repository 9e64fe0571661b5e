//! Requests of a fleet: one client for all nodes, each request as the node that it is for where that is asked for.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, header};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::limiter::{Outcome, Slot};
use super::metrics::{Metrics, RequestLabels};
use super::watch::Disturbance;
use crate::api_call::TIMEOUT;

/// An outage of so long may have cut the connections of watches silently.
const CUTS_WATCHES: Duration = Duration::from_secs(5);
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
/// Of what was written only the metadata are of interest.
const METADATA_ALONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// One request.
#[derive(Debug)]
pub(super) struct Call {
    pub method: Method,
    /// What it is about, for the metrics.
    pub resource: &'static str,
    pub path: String,
    /// Name of the node that asks.
    pub node: String,
    /// Empty for none.
    pub body: Vec<u8>,
    /// The whole object is wanted.
    pub whole: bool,
}

/// Why a request failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// None when there was no answer.
    pub code: Option<u16>,
    /// What the server said about when to come again.
    pub retry_after: Option<Duration>,
    pub message: String,
}

/// What is read of an answer's metadata.
#[derive(Debug, Deserialize)]
pub(super) struct Written {
    pub metadata: WrittenMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrittenMetadata {
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub resource_version: String,
}

/// What a refusal says.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

/// A body. What is written here has no keys that JSON lacks, so that it cannot fail; an empty body would be refused.
pub(super) fn bytes(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

pub(super) struct Requests {
    client: Client,
    impersonate: bool,
    pub metrics: Arc<Metrics>,
    reach: Mutex<Reach>,
    /// Refusals that were told: verb, resource and code.
    told: Mutex<HashSet<(&'static str, &'static str, u16)>>,
    pub disturbance: watch::Sender<Disturbance>,
    /// Grows with each answer that ends an outage.
    pub recoveries: watch::Sender<u64>,
}

#[derive(Debug)]
struct Reach {
    last_answer: Instant,
    lost: bool,
}

/// Longest time in seconds for which a server may ask to be left alone.
const LONGEST_WAIT: u64 = 300;

impl Requests {
    pub fn new(client: Client, impersonate: bool, metrics: Arc<Metrics>) -> Self {
        let reach = Mutex::new(Reach { last_answer: Instant::now(), lost: false });
        let (disturbance, recoveries) = (watch::Sender::default(), watch::Sender::new(0));
        Self { client, impersonate, metrics, reach, told: Mutex::default(), disturbance, recoveries }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Makes a request and reads its answer.
    pub async fn call<T: serde::de::DeserializeOwned>(&self, slot: &Slot, call: Call) -> Result<T, Failure> {
        let verb = match call.method {
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            _ => "delete",
        };
        let resource = call.resource;
        let started = Instant::now();
        let result = match tokio::time::timeout(TIMEOUT, self.send(call)).await {
            Ok(result) => result,
            Err(_) => Err(Failure { code: None, retry_after: None, message: format!("no answer within {} s", TIMEOUT.as_secs()) }),
        };
        let code = match &result {
            Ok((code, _)) => Some(*code),
            Err(failure) => failure.code,
        };
        self.metrics.answered(&RequestLabels { verb, resource, code: code.unwrap_or_default().into() });
        slot.note(match code {
            None => Outcome::Unreachable,
            Some(429 | 500..) => Outcome::Overloaded,
            Some(_) => Outcome::Answered,
        });
        self.reached(code.is_some(), started);
        if let (Err(failure), Some(code @ (400 | 401 | 403 | 422))) = (&result, code) {
            self.refused(verb, resource, code, &failure.message);
        }
        let (_, bytes) = result?;
        serde_json::from_slice(&bytes).map_err(|error| Failure {
            code: Some(200),
            retry_after: None,
            message: format!("cannot read the answer: {error}"),
        })
    }

    async fn send(&self, call: Call) -> Result<(u16, Vec<u8>), Failure> {
        let failed = |message: String| Failure { code: None, retry_after: None, message };
        let mut request = http::Request::builder().method(call.method.clone()).uri(call.path);
        if !call.whole {
            request = request.header(header::ACCEPT, METADATA_ALONE);
        }
        if self.impersonate {
            request = request.header("Impersonate-User", format!("system:node:{}", call.node)).header("Impersonate-Group", "system:nodes");
        }
        if !call.body.is_empty() {
            let kind = if call.method == Method::PATCH { STRATEGIC_MERGE } else { "application/json" };
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request.body(Body::from(call.body)).map_err(|error| failed(error.to_string()))?;
        let answer = self.client.send(request).await.map_err(|error| failed(error.to_string()))?;
        let code = answer.status().as_u16();
        let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let bytes = answer.into_body().collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
        if (200..300).contains(&code) {
            return Ok((code, bytes.into()));
        }
        let message = serde_json::from_slice::<Status>(&bytes).map(|status| status.message).unwrap_or_default();
        Err(Failure {
            code: Some(code),
            retry_after: retry_after.map(|seconds: u64| Duration::from_secs(seconds.min(LONGEST_WAIT))),
            message: format!("{code}: {message}"),
        })
    }

    /// What is refused once is refused a thousand times: it is told once.
    fn refused(&self, verb: &'static str, resource: &'static str, code: u16, message: &str) {
        let mut told = self.told.lock();
        if told.insert((verb, resource, code)) {
            tracing::warn!(verb, resource, message, "the API server refuses a request; further requests like it are not logged");
        }
    }

    /// Notes whether the server answers a request that was `started` then; after an outage all who wait are told.
    fn reached(&self, answered: bool, started: Instant) {
        let mut reach = self.reach.lock();
        if !answered {
            // A request that is lost while others are answered is no outage.
            if reach.last_answer <= started && !std::mem::replace(&mut reach.lost, true) {
                tracing::warn!("the API server does not answer");
            }
            return;
        }
        let silent = reach.last_answer.elapsed();
        reach.last_answer = Instant::now();
        if std::mem::take(&mut reach.lost) {
            tracing::info!(seconds = silent.as_secs_f32(), "the API server answers again");
            self.recoveries.send_modify(|count| *count += 1);
            if silent >= CUTS_WATCHES {
                self.disturbance.send_modify(|disturbance| disturbance.reopen += 1);
            }
        }
    }
}
