//! What a rule may know of a request.

use std::hash::{DefaultHasher, Hash, Hasher};

use http::{request::Parts, uri::InvalidUri};
use hyper::{Method, body::Bytes};
use serde_json::Value;

/// Digits in a row that are a time, a random name or a resourceVersion rather than a count or an id.
const LONG_NUMBER: usize = 5;

/// Fields that differ between two attempts at the same: times, and what only counts seconds.
const VOLATILE: [&str; 19] = [
    "resourceVersion",
    "managedFields",
    "renewTime",
    "acquireTime",
    "leaseTransitions",
    "eventTime",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "since",
    "seconds",
    "idle",
    "spent",
    "proof",
    "runs",
    "soaked",
    "unbroken",
    "out",
    "waited",
    "eta",
];

/// Kinds of which the operator lists all objects.
const KINDS: [&str; 8] =
    ["ingressdaemonsets", "nodes", "deployments", "replicasets", "pods", "daemonsets", "services", "controllerrevisions"];

/// One request of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its place among all requests, from 1.
    pub number: u64,
    /// 1 for the first request that asks for the same, whenever it does so; see [`Request::is_first`].
    pub attempt: u32,
    /// HTTP method.
    pub method: Method,
    /// Path without the query.
    pub path: String,
    /// It asks for a watch.
    pub watch: bool,
    /// It asks for all objects in a stream, before what changes.
    pub stream: bool,
    /// It is only tried.
    pub dry_run: bool,
    /// What it sends.
    pub body: Bytes,
}

impl Request {
    /// It asks for all objects of a kind.
    pub fn is_list(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        self.method == Method::GET && !self.watch && KINDS.contains(&name)
    }

    /// It is meant to change something.
    pub fn is_write(&self) -> bool {
        self.method != Method::GET && !self.dry_run
    }

    /// A write to a resource, its Deployments or Nodes: a step of the protocol.
    pub fn is_step(&self) -> bool {
        self.is_write() && ["/ingressdaemonsets/", "/deployments", "/nodes/"].iter().any(|part| self.path.contains(part))
    }

    /// Its body contains this text.
    pub fn says(&self, text: &str) -> bool {
        self.body.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// Nothing like it was asked for since the rule was set: the same method and path and, but for times, names made
    /// at random and what is only tested, the same body.
    pub fn is_first(&self) -> bool {
        self.attempt == 1
    }
}

/// The same list, as of this resourceVersion.
pub(super) fn as_of(mut head: Parts, revision: u64) -> Result<Parts, InvalidUri> {
    let asked = head.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("resourceVersion"));
    let query: Vec<_> = asked.map(str::to_owned).chain([format!("resourceVersion={revision}&resourceVersionMatch=Exact")]).collect();
    head.uri = format!("{}?{}", head.uri.path(), query.join("&")).parse()?;
    Ok(head)
}

/// What two requests have in common that ask for the same.
pub(super) fn identity(method: &Method, path: &str, watch: bool, stream: bool, body: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    (method.as_str(), path, watch, stream).hash(&mut hasher);
    let mut body = serde_json::from_slice(body).unwrap_or(Value::Null);
    normalize(&mut body);
    body.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Removes what differs between two attempts at the same, or is only tested.
fn normalize(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.retain(|item| item["op"] != "test");
            items.iter_mut().for_each(normalize);
        }
        Value::Object(fields) => {
            // A key that is made at random.
            let is_secret = fields.get("kind").is_some_and(|kind| kind == "Secret");
            fields.retain(|field, _| !(VOLATILE.contains(&field.as_str()) || is_secret && field == "data"));
            fields.values_mut().for_each(normalize);
        }
        Value::String(text) => *text = without_long_numbers(text),
        Value::Number(number) if number.to_string().len() >= LONG_NUMBER => *value = Value::Null,
        _ => {}
    }
}

fn without_long_numbers(text: &str) -> String {
    let mut kept = String::new();
    let mut digits = String::new();
    for character in text.chars().chain(['\0']) {
        if character.is_ascii_digit() {
            digits.push(character);
            continue;
        }
        kept.push_str(if digits.len() >= LONG_NUMBER { "#" } else { &digits });
        digits.clear();
        kept.push(character);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(operations: &Value) -> u64 {
        identity(&Method::PATCH, "/x", false, false, &Bytes::from(operations.to_string()))
    }

    #[test]
    fn a_list_of_the_past_keeps_other_query_parameters() {
        let request = http::Request::get("/api/v1/nodes?limit=100&resourceVersion=0&labelSelector=a%3Db").body(()).unwrap();
        let head = as_of(request.into_parts().0, 7).unwrap();
        assert_eq!(head.uri, "/api/v1/nodes?limit=100&labelSelector=a%3Db&resourceVersion=7&resourceVersionMatch=Exact");
    }

    #[test]
    fn another_attempt_at_a_write_is_the_same_write() {
        let write = |version: &str, token: &str| {
            patch(&serde_json::json!([
                { "op": "test", "path": "/metadata/resourceVersion", "value": version },
                { "op": "replace", "path": "/metadata/labels/token", "value": token },
            ]))
        };
        assert_eq!(write("812", "0a1b2c3d.4.Claimed.1795274891"), write("813", "0a1b2c3d.4.Claimed.1795274892"));
        assert_ne!(write("812", "0a1b2c3d.4.Claimed.1795274891"), write("812", "0a1b2c3d.5.Claimed.1795274891"));
        assert_ne!(write("812", "0a1b2c3d.4.Claimed.1795274891"), write("812", "0a1b2c3d.4.Closed.1795274891"));
    }

    #[test]
    fn a_secret_with_another_key_is_the_same_secret() {
        let make =
            |name: &str, key: &str| patch(&serde_json::json!({ "kind": "Secret", "metadata": { "name": name }, "data": { "key": key } }));
        assert_eq!(make("a", "QQ=="), make("a", "Qg=="));
        assert_ne!(make("a", "QQ=="), make("b", "QQ=="));
    }

    /// Else a write that is tried again in the next second would be another one, and fail as the first of its kind.
    #[test]
    fn a_heartbeat_of_the_next_second_is_the_same_write() {
        let beat = |second: u32, ready: &str| {
            let at = format!("2026-11-25T00:00:0{second}Z");
            let condition = serde_json::json!({ "type": "Ready", "status": ready, "lastHeartbeatTime": at, "lastTransitionTime": at });
            patch(&serde_json::json!({ "status": { "conditions": [condition] } }))
        };
        assert_eq!(beat(1, "True"), beat(2, "True"));
        assert_ne!(beat(1, "True"), beat(1, "False"));
    }

    /// Else each second of a clock would be another request, and none would ever succeed where each fails once.
    #[test]
    fn statuses_differing_only_in_seconds_are_the_same_write() {
        let write = |counted: u32, grants: u32| {
            let wait = serde_json::json!({ "for": "Pods", "since": 1_795_274_891, "seconds": counted });
            patch(&serde_json::json!({ "status": {
                "eta": "2026-11-25T00:00:00Z",
                "rollout": {
                    "course": { "idle": counted, "spent": counted, "proof": counted, "soaked": counted, "revision": "b7d025d06a" },
                    "grants": { "n1": { "id": grants, "waited": [wait] } },
                    "suspects": { "n2": { "unbroken": counted, "out": counted, "falls": 1 } },
                },
            } }))
        };
        assert_eq!(write(1, 7), write(2, 7));
        assert_ne!(write(1, 7), write(1, 8));
    }
}
