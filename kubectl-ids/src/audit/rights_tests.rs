//! Who may not see everything is told so before anything is judged.

use super::RunningAudit;
use crate::cluster::Cluster;
use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// An API server that allows lists, all of them empty, and the watches of every kind but one.
fn server(unwatchable: &'static str) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
            let (code, body) = match watches {
                false => (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})),
                true if request.uri().path().ends_with(unwatchable) => (403, refusal(unwatchable)),
                true => (200, Value::Null),
            };
            let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
            reply.send_response(Response::builder().status(code).body(Body::from(body)).expect("a response"));
        }
    });
    Client::new(service, "edge")
}

fn refusal(kind: &str) -> Value {
    let message = format!("{kind} is forbidden: User \"anna\" cannot watch resource \"{kind}\"");
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": message, "code": 403})
}

#[tokio::test]
async fn who_may_list_and_not_watch_is_told_so_instead_of_that_nothing_changes() {
    for kind in ["ingressdaemonsets", "deployments", "replicasets", "pods", "nodes"] {
        let client = server(kind);
        let cluster = Cluster { client: client.clone(), asks_once: client, namespace: "edge".into(), operator_namespace: "ids".into() };
        let refused = RunningAudit::begin(&cluster, None).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(refused.contains("watch") && refused.contains(kind), "{kind}: {refused}");
    }
    let client = server("nothing");
    let cluster = Cluster { client: client.clone(), asks_once: client, namespace: "edge".into(), operator_namespace: "ids".into() };
    assert!(RunningAudit::begin(&cluster, None).await.is_ok());
}
