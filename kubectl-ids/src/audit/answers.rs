//! Asks health checkers through the API server, where whoever runs the audit reaches no node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use auditor::{Answer, Kind, Observation};
use chrono::Utc;
use crds::names;
use futures::{StreamExt as _, stream::FuturesUnordered};
use http::Request;
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Channel, Event};

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(1);
/// Health checkers that are asked in one round: in a large cluster each has its turn later, and the API server as little to do.
const IN_ONE_ROUND: usize = 20;
/// Whoever does not answer within this is asked again in its next turn.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read. A health checker's has a tenth of that.
const LONGEST: usize = 16 * 1024;

/// Health checkers that run.
#[derive(Clone, Debug, Default)]
pub struct CheckerPorts(Arc<Mutex<BTreeMap<String, CheckerPort>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckerPort {
    /// The resource that it is for, by the first 8 characters of its UID: names come again.
    resource: String,
    pod: String,
    port: u16,
}

enum Heard {
    /// Of a health checker of this resource.
    Answer(String, Answer),
    Forbidden,
    Nothing,
}

impl CheckerPorts {
    /// Takes in what a watch delivered.
    pub fn see(&self, observation: &Observation) {
        if observation.kind != Kind::Pod {
            return;
        }
        let uid = observation.object["metadata"]["uid"].as_str().unwrap_or_default();
        let mut doors = self.0.lock();
        match door(&observation.object).filter(|_| !observation.deleted) {
            Some(door) => drop(doors.insert(uid.to_owned(), door)),
            None => drop(doors.remove(uid)),
        }
    }

    /// One round after the other, for ever; ends where the user may not. `client` must not ask again by itself after a 503.
    pub(super) async fn ask(&self, client: &Client, namespace: &str, channel: &Channel) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = String::new();
        loop {
            ticks.tick().await;
            let round = self.round(&last);
            if let Some((uid, _)) = round.last() {
                last.clone_from(uid);
            }
            let mut asked: FuturesUnordered<_> = round.iter().map(|(_, door)| ask(client, namespace, door)).collect();
            while let Some(heard) = asked.next().await {
                match heard {
                    Heard::Answer(resource, answer) => channel.send(Event::Heard(resource, answer)),
                    Heard::Forbidden => {
                        let remark = "you may not get pods/proxy: the audit does not judge answers of health checkers (P10)";
                        channel.send(Event::Remark(remark.to_owned()));
                        return;
                    }
                    Heard::Nothing => {}
                }
            }
        }
    }

    /// Those whose turn it is, after the one that was `last`.
    fn round(&self, last: &str) -> Vec<(String, CheckerPort)> {
        let doors = self.0.lock();
        let (done, to_come): (Vec<_>, Vec<_>) = doors.iter().partition(|(uid, _)| uid.as_str() <= last);
        to_come.into_iter().chain(done).take(IN_ONE_ROUND).map(|(uid, door)| (uid.clone(), door.clone())).collect()
    }
}

/// Where a pod of a health checker answers, once it runs.
fn door(pod: &Value) -> Option<CheckerPort> {
    let labels = &pod["metadata"]["labels"];
    labels[names::HEALTH_CHECKER_LABEL].as_str()?;
    if pod["status"]["phase"] != "Running" || !pod["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let arguments = pod["spec"]["containers"][0]["args"].as_array()?;
    let port = arguments.iter().find_map(|argument| argument.as_str()?.strip_prefix("--port="))?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(CheckerPort { resource: text(&labels[names::RESOURCE_LABEL])?, pod: text(&pod["metadata"]["name"])?, port: port.parse().ok()? })
}

async fn ask(client: &Client, namespace: &str, CheckerPort { resource, pod, port }: &CheckerPort) -> Heard {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/");
    let Ok(request) = Request::get(path).body(Body::empty()) else { return Heard::Nothing };
    let answer = async {
        let response = client.send(request).await.ok()?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), LONGEST).collect().await.ok()?.to_bytes();
        Some((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let Ok(Some((status, body))) = timeout(PATIENCE, answer).await else { return Heard::Nothing };
    match Answer::read(Utc::now(), *port, status, &body) {
        Some(answer) => Heard::Answer(resource.clone(), answer),
        // The API server's own word: a health checker knows 200 and 503.
        None if status == 403 => Heard::Forbidden,
        None => Heard::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str) -> Value {
        json!({
            "metadata": { "name": format!("pod-{uid}"), "uid": uid, "labels": { names::HEALTH_CHECKER_LABEL: "edge", names::RESOURCE_LABEL: "0a1b2c3d" } },
            "spec": { "containers": [{ "args": ["run", "--port=10080"] }] },
            "status": { "phase": "Running" },
        })
    }

    fn seen(object: Value, deleted: bool) -> Observation {
        Observation { revision: 1, at: Utc::now(), kind: Kind::Pod, deleted, object }
    }

    #[test]
    fn only_health_checkers_that_run_and_stay_are_asked() {
        assert_eq!(door(&pod("a")), Some(CheckerPort { resource: "0a1b2c3d".to_owned(), pod: "pod-a".to_owned(), port: 10080 }));
        for (pointer, value) in [
            ("/metadata/labels", json!({})),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("/status/phase", json!("Pending")),
            ("/spec/containers/0/args", json!(["run", "--port=none"])),
        ] {
            let mut other = pod("a");
            match other.pointer_mut(pointer) {
                Some(place) => *place = value,
                None => other["metadata"]["deletionTimestamp"] = value,
            }
            assert_eq!(door(&other), None, "{pointer}");
        }
    }

    #[test]
    fn everybody_has_a_turn_and_a_round_has_its_limit() {
        let doors = CheckerPorts::default();
        for index in 0..50 {
            doors.see(&seen(pod(&format!("{index:02}")), false));
        }
        let (mut last, mut asked) = (String::new(), std::collections::BTreeSet::new());
        for _ in 0..3 {
            let round = doors.round(&last);
            assert_eq!(round.len(), IN_ONE_ROUND);
            last.clone_from(&round.last().unwrap().0);
            asked.extend(round.into_iter().map(|(uid, _)| uid));
        }
        assert_eq!(asked.len(), 50);
        doors.see(&seen(pod("07"), true));
        assert!(!doors.round("06").iter().any(|(uid, _)| uid == "07"), "it is gone");
    }
}
