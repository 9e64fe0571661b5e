//! What tests of several modules need: a client of an API server that a closure plays, and one that admits objects. No test is here.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admission;

pub use admission::{AdmissionServer, WEBHOOKS};

use http::{Method, Request, Response, Uri};
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// A client of an API server that answers so, with a code and a body; where there is no answer, the client waits for ever.
pub fn api_server(mut answer: impl FnMut(Method, Uri, Value) -> Option<(u16, Value)> + Send + 'static) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            match answer(parts.method, parts.uri, body) {
                Some((code, answer)) => {
                    reply.send_response(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap());
                }
                None => std::mem::forget(reply),
            }
        }
    });
    Client::new(service, "default")
}

/// One that has these objects in each list, and of whose watches nothing is heard.
pub fn lists(mut items: impl FnMut(&str) -> Value + Send + 'static) -> Client {
    api_server(move |_, uri, _| {
        let is_watch = uri.query().unwrap_or_default().contains("watch=");
        let list = |items| json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        (!is_watch).then(|| (200, list(items(uri.path()))))
    })
}
