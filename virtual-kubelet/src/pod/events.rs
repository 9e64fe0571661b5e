//! Events about pods: repeated ones are counted, and none ever holds anything up.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;

use super::PodId;
use crate::api_call::{ApiCallError, within};

/// Events that may wait for the API server; more are dropped.
const BACKLOG: usize = 256;
/// Events remembered to be counted when they come again.
const REMEMBERED: usize = 512;

struct Report {
    id: PodId,
    warning: bool,
    reason: String,
    message: String,
    at: Timestamp,
}

/// Records events of one node. What cannot be written is left out: events never hold anything up.
///
/// ```no_run
/// # use virtual_kubelet::pod::Events;
/// # fn example(client: kube::Client, pod: &k8s_openapi::api::core::v1::Pod) {
/// let events = Events::start(client, "n1".into());
/// events.warning(pod, "FailedMount", "the disk is not there");
/// events.normal(pod, "Started", "started container web");
/// // Where nobody shall be told, as in a test.
/// Events::none().normal(pod, "Started", "started container web");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Events(Option<mpsc::Sender<Report>>);

impl Events {
    /// Starts to record for the node `node_name`. Has to be called in a tokio runtime; ends with the last clone.
    pub fn start(client: Client, node_name: String) -> Self {
        let (sender, mut inbox) = mpsc::channel::<Report>(BACKLOG);
        tokio::spawn(async move {
            let mut written: HashMap<(PodId, String, String), (String, i32)> = HashMap::new();
            while let Some(report) = inbox.recv().await {
                if written.len() >= REMEMBERED {
                    written.clear();
                }
                if let Err(error) = write(&client, &node_name, &report, &mut written).await {
                    tracing::debug!(%error, reason = report.reason, "recording an event failed");
                }
            }
        });
        Self(Some(sender))
    }

    /// Records nothing.
    pub fn none() -> Self {
        Self(None)
    }

    /// Something went its normal way. `reason` is one word in `CamelCase`, the message for humans.
    pub fn normal(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.send(pod, false, reason, message.into());
    }

    /// Something went wrong.
    pub fn warning(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.send(pod, true, reason, message.into());
    }

    fn send(&self, pod: &Pod, warning: bool, reason: &str, message: String) {
        if let Some(sender) = &self.0 {
            let report = Report { id: PodId::of(pod), warning, reason: reason.into(), message, at: Timestamp::now() };
            // A full backlog means that the API server does not answer; events are the first to go.
            let _ = sender.try_send(report);
        }
    }
}

async fn write(
    client: &Client,
    node_name: &str,
    report: &Report,
    written: &mut HashMap<(PodId, String, String), (String, i32)>,
) -> Result<(), ApiCallError> {
    let api = Api::<Event>::namespaced(client.clone(), &report.id.namespace);
    let key = (report.id.clone(), report.reason.clone(), report.message.clone());
    if let Some((name, count)) = written.get_mut(&key) {
        *count += 1;
        let patch = json!({ "count": *count, "lastTimestamp": Time(report.at) });
        within(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await?;
        return Ok(());
    }
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", report.id.name, report.at.as_nanosecond())),
            namespace: Some(report.id.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(report.id.namespace.clone()),
            name: Some(report.id.name.clone()),
            uid: Some(report.id.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(if report.warning { "Warning" } else { "Normal" }.into()),
        reason: Some(report.reason.clone()),
        message: Some(report.message.clone()),
        count: Some(1),
        first_timestamp: Some(Time(report.at)),
        last_timestamp: Some(Time(report.at)),
        source: Some(EventSource { component: Some("kubelet".into()), host: Some(node_name.into()) }),
        reporting_component: Some("kubelet".into()),
        reporting_instance: Some(node_name.into()),
        ..Event::default()
    };
    let created = within(api.create(&PostParams::default(), &event)).await?;
    written.insert(key, (created.name_any(), 1));
    Ok(())
}
