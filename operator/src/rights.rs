//! Rights that the operator lacks, from what the API server answers, whoever asked: each is logged, counted and told by `/readyz`.

use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body as HttpBody, Bytes};
use kube::{client::Body, core::Status};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// For how long a right that was refused counts as missing: what needs it is tried again within that time, the last pause being ten minutes.
const COUNTS_FOR: Duration = Duration::from_mins(11);

/// A right, as a rule of a role names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct Right {
    /// What may be done.
    pub verb: String,
    /// To which kind of object, in the plural, with a subresource after a slash.
    pub resource: String,
    /// API group of the kind; empty for the core group.
    pub group: String,
}

/// What the API server has refused.
#[derive(Debug, Default)]
pub struct Rights {
    /// When each was refused last.
    refused: Mutex<BTreeMap<Right, Instant>>,
    requests: Family<Right, Counter>,
}

impl Rights {
    /// Nothing was refused yet.
    pub fn registered(registry: &mut Registry) -> Arc<Self> {
        let rights = Self::default();
        let help = "Requests for which the operator lacks the right; alert if it increases";
        registry.register("forbidden_requests", help, rights.requests.clone());
        Arc::new(rights)
    }

    /// Rights that were refused lately, each as a sentence that says what to do.
    pub fn missing(&self) -> Vec<String> {
        let refused = self.refused.lock();
        refused.iter().filter(|(_, at)| at.elapsed() < COUNTS_FOR).map(|(right, _)| sentence(right)).collect()
    }

    fn note(&self, message: &str) {
        let Some(right) = lacking(message) else { return };
        self.requests.get_or_create(&right).inc();
        let sentence = sentence(&right);
        let before = self.refused.lock().insert(right, Instant::now());
        if before.is_none_or(|at| at.elapsed() >= COUNTS_FOR) {
            tracing::error!(message, "{sentence}");
        }
    }
}

/// What a `Status` says, be it JSON or protobuf, in which a text stands as it is.
fn message(body: &[u8]) -> Cow<'_, str> {
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => status.message.into(),
        Err(_) => String::from_utf8_lossy(body),
    }
}

fn sentence(Right { verb, resource, group }: &Right) -> String {
    let (kind, rest) = resource.split_at(resource.find('/').unwrap_or(resource.len()));
    let dot = if group.is_empty() { "" } else { "." };
    format!("the operator may not {verb} {kind}{dot}{group}{rest}: install the ClusterRole of this release again")
}

/// The right that a refusal is about; nothing where something else refused, such as a webhook, a quota or a namespace that ends.
fn lacking(message: &str) -> Option<Right> {
    let right = |verb: &str, resource: &str, group: &str| {
        Some(Right { verb: verb.to_owned(), resource: resource.to_owned(), group: group.to_owned() })
    };
    if message.contains("cannot set blockOwnerDeletion") {
        return right("update", "ingressdaemonsets/finalizers", crds::names::GROUP);
    }
    if message.contains("is attempting to grant RBAC permissions not currently held") {
        return right("bind", "clusterroles", "rbac.authorization.k8s.io");
    }
    // User "system:serviceaccount:…" cannot patch resource "nodes" in API group "" at the cluster scope
    let (verb, rest) = message.split_once("\" cannot ")?.1.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once("\" in API group \"")?;
    right(verb, resource, rest.split_once('"')?.0)
}

/// The operator itself lacks a right; nothing that anybody asked for is refused.
pub fn is_of_a_right(message: &str) -> bool {
    lacking(message).is_some()
}

/// Has [`Rights`] look at every answer.
#[derive(Clone, Debug)]
pub struct NoteRefusals(pub Arc<Rights>);

impl<S> Layer<S> for NoteRefusals {
    type Service = Noting<S>;

    fn layer(&self, inner: S) -> Noting<S> {
        Noting { inner, rights: Arc::clone(&self.0) }
    }
}

/// The client below [`NoteRefusals`].
#[derive(Clone, Debug)]
pub struct Noting<S> {
    inner: S,
    rights: Arc<Rights>,
}

impl<S, B> Service<Request<Body>> for Noting<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (answer, rights) = (self.inner.call(request), Arc::clone(&self.rights));
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into)?;
            if answer.status() != StatusCode::FORBIDDEN {
                return Ok(answer.map(Either::Left));
            }
            let (parts, body) = answer.into_parts();
            let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
            rights.note(&message(&bytes));
            Ok(Response::from_parts(parts, Either::Right(Full::new(bytes))))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use kube::{Api, Client, client::ClientBuilder};
    use serde_json::json;

    #[test]
    fn a_refusal_names_a_right_only_if_one_is_missing() {
        let user = "User \"system:serviceaccount:ingress-daemonset-system:ingress-daemonset-operator\"";
        for (message, right) in [
            (
                format!("nodes \"n1\" is forbidden: {user} cannot patch resource \"nodes\" in API group \"\" at the cluster scope"),
                Some(("patch", "nodes", "")),
            ),
            (
                format!("x is forbidden: {user} cannot patch resource \"pods/status\" in API group \"\" in the namespace \"edge\""),
                Some(("patch", "pods/status", "")),
            ),
            (
                format!("deployments.apps is forbidden: {user} cannot list resource \"deployments\" in API group \"apps\" at the cluster scope: RBAC: clusterrole not found"),
                Some(("list", "deployments", "apps")),
            ),
            (
                "deployments.apps \"web-n1\" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>".into(),
                Some(("update", "ingressdaemonsets/finalizers", crds::names::GROUP)),
            ),
            (
                "rolebindings.rbac.authorization.k8s.io \"checker\" is forbidden: user \"operator\" (groups=[]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"]}".into(),
                Some(("bind", "clusterroles", "rbac.authorization.k8s.io")),
            ),
            ("admission webhook \"deny.example.com\" denied the request: you cannot do that".into(), None),
            ("pods \"p\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1".into(), None),
            ("User \"u\" cannot list".into(), None),
            (String::new(), None),
        ] {
            let right = right.map(|(verb, resource, group)| Right { verb: verb.into(), resource: resource.into(), group: group.into() });
            assert_eq!(lacking(&message), right, "{message}");
        }
    }

    /// A client of an API server that answers so.
    fn client(rights: &Arc<Rights>, code: u16, message: &str) -> Client {
        let body =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": message, "code": code});
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap();
            async move { Ok::<_, BoxError>(answer) }
        });
        ClientBuilder::new(service, "default").with_layer(&NoteRefusals(Arc::clone(rights))).build()
    }

    #[test]
    fn protobuf_and_json_refusals_name_the_same_missing_right() {
        let text = "nodes is forbidden: User \"u\" cannot list resource \"nodes\" in API group \"\" at the cluster scope";
        let json = json!({"kind": "Status", "message": text, "code": 403}).to_string().into_bytes();
        let protobuf =
            [b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\xff\x01\x1a\x60", text.as_bytes(), b"\x22\x09Forbidden\x30\x93\x03"].concat();
        for body in [json, protobuf] {
            assert_eq!(lacking(&message(&body)).map(|right| right.resource).as_deref(), Some("nodes"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_is_counted_and_reported_for_minutes() {
        let mut registry = Registry::default();
        let rights = Rights::registered(&mut registry);
        let message = "nodes is forbidden: User \"u\" cannot get resource \"nodes\" in API group \"\" at the cluster scope";
        for (code, times) in [(403, 1), (403, 2), (404, 2), (429, 2)] {
            let error = Api::<Node>::all(client(&rights, code, message)).get("n1").await.unwrap_err();
            let kube::Error::Api(status) = error else { unreachable!("{error}") };
            assert_eq!((status.code, status.message.as_str()), (code, message));
            let right = Right { verb: "get".into(), resource: "nodes".into(), group: String::new() };
            assert_eq!(rights.requests.get_or_create(&right).get(), times);
        }
        assert_eq!(rights.missing(), ["the operator may not get nodes: install the ClusterRole of this release again"]);
        tokio::time::advance(COUNTS_FOR).await;
        assert!(rights.missing().is_empty());
    }
}
