//! The API with as little work on this side as can be, so that neither the limit nor what observes costs what is measured:
//! bodies are text, and of objects only the fields are decoded that are looked at.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::AsyncBufReadExt as _;
use futures::TryStreamExt as _;
use http::Request;
use kube::Client;
use serde::{Deserialize, de::IgnoredAny};

/// What is looked at of nodes, leases and pods.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Thin {
    /// Its metadata.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: Spec,
    /// What is.
    pub status: Status,
}

/// Part of the metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Version.
    pub resource_version: String,
    /// Whether somebody has deleted it.
    pub deletion_timestamp: Option<IgnoredAny>,
    /// How long it then still has.
    pub deletion_grace_period_seconds: Option<u32>,
}

/// Part of the spec.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// When a lease was renewed.
    pub renew_time: Option<jiff::Timestamp>,
}

/// Part of the status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// A pod's phase.
    pub phase: String,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// Part of a condition.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Its type.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

impl Thin {
    /// Whether the condition Ready is True.
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.r#type == "Ready" && condition.status == "True")
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    metadata: ListMetadata,
    items: Vec<Thin>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    remaining_item_count: usize,
}

#[derive(Deserialize)]
struct Line {
    r#type: Kind,
    object: Thin,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
}

/// What a watch says.
#[derive(Debug)]
pub enum Change {
    /// Everything there is.
    All(Vec<Thin>),
    /// It is there, as it is now.
    Is(Thin),
    /// It is gone.
    Gone(Thin),
}

/// Sends a request with a body and returns the answer's text.
pub async fn send(client: &Client, method: &str, path: &str, content_type: &str, body: String) -> kube::Result<String> {
    let request = Request::builder().method(method).uri(path).header("Content-Type", content_type).body(body.into_bytes());
    client.request_text(request.map_err(kube::Error::HttpError)?).await
}

/// How many there are below `path`.
pub async fn how_many(client: &Client, path: &str) -> Result<usize> {
    let List { metadata, items } = listed(client, &format!("{path}?limit=1")).await?;
    Ok(items.len() + metadata.remaining_item_count)
}

/// Everything below `path`.
pub async fn list(client: &Client, path: &str) -> Result<Vec<Thin>> {
    Ok(listed(client, path).await?.items)
}

async fn listed(client: &Client, path: &str) -> Result<List> {
    let request = Request::get(path).body(Vec::new())?;
    client.request(request).await.with_context(|| format!("listing {path}"))
}

/// Tells `heard` what there is and everything that happens, for as long as this future is polled.
pub async fn follow(client: Client, path: &str, selector: &str, mut heard: impl FnMut(Change)) {
    loop {
        if let Err(error) = follow_once(&client, path, selector, &mut heard).await {
            tracing::debug!(%error, path, "watching again");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// One list and the watches that follow it, until one of them does not lead on.
async fn follow_once(client: &Client, path: &str, selector: &str, heard: &mut impl FnMut(Change)) -> Result<()> {
    let List { metadata, items } = listed(client, &format!("{path}?{selector}")).await?;
    let mut version = metadata.resource_version;
    heard(Change::All(items));
    loop {
        let uri = format!("{path}?{selector}&watch=true&timeoutSeconds=600&resourceVersion={version}");
        let mut lines = client.request_stream(Request::get(uri).body(Vec::new())?).await?.lines();
        while let Some(line) = lines.try_next().await? {
            // An error, such as a version too old, has another form.
            let Line { r#type, object } = serde_json::from_str(&line).context("no change")?;
            version.clone_from(&object.metadata.resource_version);
            heard(if r#type == Kind::Deleted { Change::Gone(object) } else { Change::Is(object) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_whatever_else_the_object_has() {
        let text = r#"{"type":"MODIFIED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"sim-1","uid":"u","resourceVersion":"7",
            "deletionTimestamp":"2026-11-21T00:00:00Z","managedFields":[{}]},"spec":{"taints":[]},
            "status":{"capacity":{"cpu":"1"},"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"True"}]}}}"#;
        let Line { r#type, object } = serde_json::from_str(text).unwrap();
        assert!(r#type == Kind::Modified && object.is_ready() && object.metadata.deletion_timestamp.is_some());
        assert_eq!((object.metadata.name.as_str(), object.metadata.resource_version.as_str()), ("sim-1", "7"));
    }

    #[test]
    fn an_error_on_a_watch_is_no_change() {
        let text = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}"#;
        assert!(serde_json::from_str::<Line>(text).is_err());
    }

    #[test]
    fn an_unknown_ready_is_not_ready() {
        let text = r#"{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}"#;
        assert!(!serde_json::from_str::<Thin>(text).unwrap().is_ready());
    }

    #[test]
    fn the_time_of_a_lease_is_read() {
        let lease: Thin = serde_json::from_str(r#"{"spec":{"renewTime":"2026-11-21T00:00:10.500000Z"}}"#).unwrap();
        assert_eq!(lease.spec.renew_time.map(jiff::Timestamp::as_millisecond), Some(1_795_219_210_500));
    }
}
