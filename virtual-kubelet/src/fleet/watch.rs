//! A list, and a watch that goes on where the last one ended.
//!
//! Unlike kube's `watcher` it can be opened anew without listing again: after an outage of the API server a list of everything
//! would stand in the way of the heartbeats.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::api_call::{TIMEOUT, retry_delay};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// How long the API server keeps a watch open; its maximum for clients is a little less than five minutes.
const OPEN_SECONDS: u32 = 290;
/// Bookmarks come every minute: a watch that is silent for longer is dead, whatever its connection says.
const SILENT: Duration = Duration::from_secs(90);
/// A watch that the API server ends sooner is opened again after a pause: one that always does so would be asked all the time.
const SHORT: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Event<K> {
    /// All objects follow.
    ListBegins,
    /// An object is as it is.
    Applied(K),
    /// An object has gone.
    Deleted(K),
    /// Those were all objects.
    ListEnds,
}

/// What is done to a watch from outside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disturbance {
    /// Grows each time the connection is to be given up.
    pub reopen: u64,
    /// Not opened before.
    pub blind_until: Option<Instant>,
}

/// Follows all objects that `fields` selects, until the receiver is dropped.
pub(super) async fn follow<K>(api: Api<K>, fields: Option<&str>, mut disturbed: watch::Receiver<Disturbance>, sink: mpsc::Sender<Event<K>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut failures = 0;
    let mut version: Option<String> = None;
    while !sink.is_closed() {
        let blind_until = disturbed.borrow_and_update().blind_until;
        if let Some(until) = blind_until {
            tokio::time::sleep_until(until).await;
        }
        let (before, opened) = (version.clone(), Instant::now());
        let result = match &mut version {
            None => list(&api, fields, &sink).await.map(|listed| version = Some(listed)),
            Some(version) => go_on(&api, fields, version, &mut disturbed, &sink).await,
        };
        if before.is_some() && before != version {
            failures = 0;
        }
        let pause = match result {
            Ok(()) => continue,
            Err(Broken::Ended) => return,
            Err(Broken::Closed) if opened.elapsed() >= SHORT => continue,
            Err(Broken::Closed) => retry_delay(failures + 1, FIRST_RETRY, LONGEST_RETRY),
            Err(Broken::Expired) => {
                version = None;
                // The first list may follow at once; where none helps, lists in a row would be a load of their own.
                if failures == 0 { Duration::ZERO } else { retry_delay(failures, FIRST_RETRY, LONGEST_RETRY) }
            }
            Err(Broken::Failed(why)) => {
                // Once per outage: what follows is the same again.
                if failures == 0 {
                    tracing::warn!(kind = %K::kind(&()), why, "the watch failed; retrying");
                }
                retry_delay(failures + 1, FIRST_RETRY, LONGEST_RETRY)
            }
        };
        failures += 1;
        // A recovery ends the pause.
        let _ = tokio::time::timeout(pause, disturbed.changed()).await;
    }
}

enum Broken {
    /// Nobody listens.
    Ended,
    /// The API server ended the watch, as it does from time to time.
    Closed,
    /// Where it was to go on is forgotten.
    Expired,
    Failed(String),
}

impl From<kube::Error> for Broken {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Expired,
            error => Self::Failed(error.to_string()),
        }
    }
}

async fn send<K>(sink: &mpsc::Sender<Event<K>>, event: Event<K>) -> Result<(), Broken> {
    sink.send(event).await.map_err(|_| Broken::Ended)
}

async fn list<K>(api: &Api<K>, fields: Option<&str>, sink: &mpsc::Sender<Event<K>>) -> Result<String, Broken>
where
    K: Clone + DeserializeOwned + Debug,
{
    send(sink, Event::ListBegins).await?;
    let mut parameters = ListParams::default().limit(PAGE);
    if let Some(fields) = fields {
        parameters = parameters.fields(fields);
    }
    loop {
        let page = tokio::time::timeout(TIMEOUT * 3, api.list(&parameters)).await;
        let page = page.map_err(|_| Broken::Failed("no list in time".into()))??;
        for object in page.items {
            send(sink, Event::Applied(object)).await?;
        }
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            send(sink, Event::ListEnds).await?;
            return Ok(page.metadata.resource_version.unwrap_or_default());
        };
        parameters = parameters.continue_token(&token);
    }
}

/// Watches from `version` on, which it keeps up to date, until the watch ends, breaks or is disturbed.
async fn go_on<K>(
    api: &Api<K>,
    fields: Option<&str>,
    version: &mut String,
    disturbed: &mut watch::Receiver<Disturbance>,
    sink: &mpsc::Sender<Event<K>>,
) -> Result<(), Broken>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut parameters = WatchParams::default().timeout(OPEN_SECONDS);
    if let Some(fields) = fields {
        parameters = parameters.fields(fields);
    }
    let opened = tokio::select! {
        opened = tokio::time::timeout(TIMEOUT, api.watch(&parameters, version)) => opened,
        _ = disturbed.changed() => return Ok(()),
    };
    let mut events = opened.map_err(|_| Broken::Failed("no answer in time".into()))??.boxed();
    loop {
        let event = tokio::select! {
            () = sink.closed() => return Err(Broken::Ended),
            changed = disturbed.changed() => return changed.map_err(|_| Broken::Ended),
            event = tokio::time::timeout(SILENT, events.next()) => event.map_err(|_| Broken::Failed("silent".into()))?,
        };
        let Some(event) = event else { return Err(Broken::Closed) };
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                *version = object.resource_version().unwrap_or_default();
                send(sink, Event::Applied(object)).await?;
            }
            WatchEvent::Deleted(object) => {
                *version = object.resource_version().unwrap_or_default();
                send(sink, Event::Deleted(object)).await?;
            }
            WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::fake;
    use crate::fleet::slim::SlimNode;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_at_once_is_reopened_more_rarely() {
        let (requests, log) = fake::requests(|asked| {
            let list = json!({ "metadata": { "resourceVersion": "1" }, "items": [] });
            (200, if asked.query.contains("watch=") { Value::Null } else { list })
        });
        let (sink, mut events) = mpsc::channel(16);
        tokio::spawn(follow::<SlimNode>(Api::all(requests.client()), None, requests.disturbance.subscribe(), sink));
        assert!(matches!(events.recv().await, Some(Event::ListBegins)));
        assert!(matches!(events.recv().await, Some(Event::ListEnds)));
        tokio::time::sleep(Duration::from_mins(1)).await;
        let log = log.lock().unwrap();
        let lists = log.iter().filter(|asked| !asked.query.contains("watch=")).count();
        // After 0.25, 0.5, 1, 2, 4, 8, and then every 10 s.
        assert_eq!((lists, log.len() - lists), (1, 11), "{log:?}");
    }
}
