//! Who may not see everything is told so before anything is judged.

use super::RunningAudit;
use crate::cluster::Cluster;
use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::time::Duration;

/// When the right to a verb is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// When the audit makes sure of it.
    FromTheStart,
    /// Only after that.
    Later,
}

/// An API server that allows lists, all of them empty, and watches, but of one kind not this verb.
fn server(refused: &'static str, of: &'static str, missing: Missing) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let query = request.uri().query().unwrap_or_default();
            let verb = if query.contains("watch=") { "watch" } else { "list" };
            // By these the audit makes sure before it begins.
            let is_first = query.contains("limit=1") || query.contains("timeoutSeconds=1");
            let is_missing = is_first == (missing == Missing::FromTheStart);
            let (code, body) = match verb {
                _ if verb == refused && is_missing && request.uri().path().ends_with(of) => (403, refusal(verb, of)),
                "list" => (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})),
                _ => (200, Value::Null),
            };
            let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
            reply.send_response(Response::builder().status(code).body(Body::from(body)).expect("a response"));
        }
    });
    Client::new(service, "edge")
}

fn refusal(verb: &str, kind: &str) -> Value {
    let message = format!("{kind} is forbidden: User \"anna\" cannot {verb} resource \"{kind}\"");
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": message, "code": 403})
}

/// Begins an audit for somebody who lacks this right.
async fn begin(refused: &'static str, of: &'static str) -> anyhow::Result<RunningAudit> {
    begin_on(server(refused, of, Missing::FromTheStart)).await
}

async fn begin_on(client: Client) -> anyhow::Result<RunningAudit> {
    let cluster = Cluster { client: client.clone(), asks_once: client, namespace: "edge".into(), operator_namespace: "ids".into() };
    RunningAudit::begin(&cluster, None).await
}

#[tokio::test]
async fn the_audit_names_a_missing_list_or_watch_right() {
    for verb in ["list", "watch"] {
        for kind in ["ingressdaemonsets", "deployments", "replicasets", "pods", "nodes"] {
            let refused = begin(verb, kind).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(refused.contains(&format!("you may not {verb} {kind}")), "{verb} {kind}: {refused}");
        }
    }
    assert_eq!(begin("get", "nothing").await.map(|audit| audit.remarks).ok(), Some(Vec::new()));
}

#[tokio::test]
async fn who_may_not_see_bindings_gets_an_audit_without_them() {
    for verb in ["list", "watch"] {
        let remarks = begin(verb, "clusterrolebindings").await.map(|audit| audit.remarks).map_err(|error| format!("{error:#}"));
        let said = format!(
            "you may not {verb} clusterrolebindings: the audit does not judge whether they remain after deletion, or whether a node \
             serves that is about to go"
        );
        assert_eq!(remarks, Ok(vec![said]));
    }
}

#[tokio::test]
async fn an_audit_ends_when_its_first_list_is_refused() {
    let begun = tokio::time::timeout(Duration::from_secs(30), begin_on(server("list", "pods", Missing::Later))).await;
    let refused = begun.expect("the audit waits for ever").err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(refused.contains("cannot list Pod: ") && refused.contains("pods is forbidden"), "{refused}");
}
