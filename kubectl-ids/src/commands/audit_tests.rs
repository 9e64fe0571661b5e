//! An audit that does not see everything does not end as one that has found nothing wrong.

use super::*;
use auditor::{Property, Violation};
use futures::stream;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::convert::Infallible;

/// What becomes of the right to see a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// It stays.
    Stays,
    /// It goes when the audit has made sure of it: no watch is opened.
    GoesBeforeTheWatch,
    /// It goes later: the watch has to list again, and the list is refused.
    GoesWithTheWatch,
    /// It stays, and the API server never says that a watch is open.
    IsNotAnswered,
}

/// An API server without objects, for a user whose right to see Pods is such.
fn cluster(right: Right) -> Cluster {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<BoxBody<_, Infallible>>>();
    tokio::spawn(async move {
        let (mut has_expired, mut unanswered) = (false, Vec::new());
        while let Some((request, reply)) = handle.next_request().await {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.contains("watch=");
            // By these the audit makes sure before it begins.
            let is_first = query.contains("limit=1") || query.contains("timeoutSeconds=1");
            let of_pods = if request.uri().path().ends_with("/pods") && !is_first { right } else { Right::Stays };
            let (code, body) = match (of_pods, is_watch) {
                (Right::GoesBeforeTheWatch, true) => (403, Some(refusal())),
                (Right::GoesWithTheWatch, false) if has_expired => (403, Some(refusal())),
                (Right::GoesWithTheWatch, true) => {
                    has_expired = true;
                    let gone = json!({"kind": "Status", "status": "Failure", "reason": "Expired", "message": "", "code": 410});
                    (200, Some(json!({"type": "ERROR", "object": gone})))
                }
                (Right::IsNotAnswered, true) => {
                    unanswered.push(reply);
                    continue;
                }
                // Nothing happens.
                (_, true) => (200, None),
                (_, false) => (200, Some(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}))),
            };
            let body = match body {
                Some(body) => Full::from(format!("{body}\n").into_bytes()).boxed(),
                None => StreamBody::new(stream::pending()).boxed(),
            };
            reply.send_response(Response::builder().status(code).body(body).expect("a response"));
        }
    });
    let client = Client::new(service, "edge");
    Cluster { client: client.clone(), asks_once: client, namespace: "edge".into(), operator_namespace: "ids".into() }
}

fn refusal() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403})
}

#[tokio::test(start_paused = true)]
async fn an_audit_fails_if_a_kind_is_not_watched_throughout() {
    let mut passed = Vec::new();
    for right in [Right::Stays, Right::GoesBeforeTheWatch, Right::GoesWithTheWatch, Right::IsNotAnswered] {
        let options = arguments::AuditOptions { name: None, duration: Some(Duration::from_secs(5)) };
        if audit(&cluster(right), &options, Style::default()).await.unwrap() == ExitCode::SUCCESS {
            passed.push(right);
        }
    }
    assert_eq!(passed, [Right::Stays]);
}

#[test]
fn a_violation_has_one_line_whatever_was_seen() {
    let violation = Violation { property: Property::Budget, revision: 7, what: "x\nn9  Idle".into() };
    let line = describe(&ResourceViolation { resource: "edge".into(), violation }, Style::default());
    assert!(line.contains("n9  Idle") && line.lines().count() == 1, "{line}");
}
