//! Lists and watches one kind. Unlike `kube::runtime::watcher` it reports bookmarks, which are the only proof that a
//! silent watch is alive, lists anew on request, and starts from a list after every failure.

use crate::{
    view::{News, ObjectChange, Update},
    watched_objects::{List, Watched},
};
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Client,
    core::{Request, WatchEvent, params::ListParams, params::WatchParams},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    time::{self, Instant},
};
use tracing::{debug, info, warn};

/// For the answer to a list, and for the head of the answer to a watch.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Short enough that nodes come back soon after the API server does.
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);

/// What to list and watch.
#[derive(Clone, Debug)]
pub struct Collection {
    /// The word in logs.
    pub name: &'static str,
    /// Path of the collection.
    pub path: String,
    /// Label selector.
    pub labels: Option<String>,
    /// Field selector.
    pub fields: Option<String>,
    /// After this the server ends a watch, in seconds; below 300, and not the same on every node.
    pub watch_seconds: u32,
    /// Bookmarks come every minute; a watch that is silent for longer than this has lost its server, or the server has
    /// nothing to bookmark. A list tells which.
    pub silence: Duration,
}

/// Why a watch was given up.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Client(#[source] kube::Error),
    #[error("cannot build the request: {0}")]
    Request(#[from] kube::core::request::Error),
    #[error("no answer for {0:?}")]
    NoAnswer(Duration),
    #[error("the server ended the watch: {0}")]
    Ended(String),
    #[error("an object or list has no resourceVersion")]
    NoResourceVersion,
}

/// How a watch ended, other than by a failure.
enum End {
    /// List again, at once.
    ListAgain,
    /// Nobody listens any more.
    Unwanted,
}

type Events<K> = BoxStream<'static, Result<WatchEvent<K>, kube::Error>>;

/// Follows the source until nobody receives its news.
pub async fn follow<K: Watched>(
    client: Client,
    source: Collection,
    refresh: Arc<Notify>,
    wrap: fn(ObjectChange<K::Kept>) -> Update,
    news: mpsc::Sender<News>,
) {
    let pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(LONGEST_PAUSE / 2)
        .with_jitter()
        .without_max_times();
    let mut feed: Feed<K> = Feed { client, source, refresh, wrap, news, failures: 0, watched: false };
    let mut pause = pauses.build();
    loop {
        feed.watched = false;
        let outcome = feed.once().await;
        if feed.watched {
            pause = pauses.build();
        }
        match outcome {
            Ok(End::ListAgain) => {}
            Ok(End::Unwanted) => return,
            Err(error) => {
                feed.failures = feed.failures.saturating_add(1);
                let failures = feed.failures;
                // One line per outage and one a minute or so, not one per attempt.
                if failures % 64 == 1 {
                    warn!(watch = feed.source.name, failures, %error, "cannot list or watch; the last verdict stays");
                } else {
                    debug!(watch = feed.source.name, failures, %error, "cannot list or watch");
                }
                time::sleep(pause.next().unwrap_or(LONGEST_PAUSE)).await;
            }
        }
    }
}

struct Feed<K: Watched> {
    client: Client,
    source: Collection,
    refresh: Arc<Notify>,
    wrap: fn(ObjectChange<K::Kept>) -> Update,
    news: mpsc::Sender<News>,
    /// In a row.
    failures: u32,
    /// A watch has lived for a while. A server that answers lists and no watch is not to be asked for lists without a pause.
    watched: bool,
}

impl<K: Watched> Feed<K> {
    async fn once(&mut self) -> Result<End, Broken> {
        let Some(mut version) = self.list().await? else { return Ok(End::Unwanted) };
        loop {
            let started = Instant::now();
            let mut events = self.watch(&version).await?;
            let outcome = self.drain(&mut events, &mut version).await;
            let lived = started.elapsed() >= Duration::from_secs(1);
            self.watched |= lived;
            if let Some(end) = outcome? {
                return Ok(end);
            }
            if lived {
                self.delivers();
            }
            // A proxy that ends every watch at once must not make us spin.
            if !lived {
                return Err(Broken::Ended("at once".into()));
            }
        }
    }

    /// A watch works. Lists say nothing of that: a server may answer these alone.
    fn delivers(&mut self) {
        if self.failures > 0 {
            info!(watch = self.source.name, failures = self.failures, "the API server answers again");
            self.failures = 0;
        }
    }

    /// Returns the version to watch from; `None` when nobody listens.
    async fn list(&mut self) -> Result<Option<String>, Broken> {
        let params =
            ListParams { label_selector: self.source.labels.clone(), field_selector: self.source.fields.clone(), ..ListParams::default() };
        let request = Request::new(&self.source.path).list(&params)?;
        // What the list says was true after this moment, not necessarily when it arrives.
        let asked = Instant::now();
        let list: List<K> = answered(self.client.request(request)).await?;
        if list.metadata.resource_version.is_empty() {
            return Err(Broken::NoResourceVersion);
        }
        let objects = list.items.unwrap_or_default().into_iter().map(|object| (object.metadata().name.clone(), object.keep())).collect();
        let wanted = self.send(ObjectChange::Replaced(objects), asked).await;
        Ok(wanted.then_some(list.metadata.resource_version))
    }

    async fn watch(&self, version: &str) -> Result<Events<K>, Broken> {
        let params = WatchParams {
            label_selector: self.source.labels.clone(),
            field_selector: self.source.fields.clone(),
            timeout: Some(self.source.watch_seconds),
            bookmarks: true,
            send_initial_events: false,
        };
        let request = Request::new(&self.source.path).watch(&params, version)?;
        Ok(answered(self.client.request_events::<K>(request)).await?.boxed())
    }

    /// `None` when the watch came to its regular end.
    async fn drain(&mut self, events: &mut Events<K>, version: &mut String) -> Result<Option<End>, Broken> {
        loop {
            let event = tokio::select! {
                event = time::timeout(self.source.silence, events.next()) => event,
                () = self.refresh.notified() => return Ok(Some(End::ListAgain)),
            };
            let event = match event {
                Err(_) => {
                    info!(watch = self.source.name, silence = ?self.source.silence, "the watch is silent; listing again");
                    return Ok(Some(End::ListAgain));
                }
                Ok(None) => return Ok(None),
                Ok(Some(event)) => event.map_err(broken)?,
            };
            let (change, seen) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (name, seen) = (object.metadata().name.clone(), object.metadata().resource_version.clone());
                    (ObjectChange::Applied(name, object.keep()), seen)
                }
                WatchEvent::Deleted(object) => {
                    (ObjectChange::Deleted(object.metadata().name.clone()), object.metadata().resource_version.clone())
                }
                WatchEvent::Bookmark(bookmark) => (ObjectChange::Unchanged, bookmark.metadata.resource_version),
                WatchEvent::Error(status) => return Err(Broken::Ended(format!("{} {}", status.code, status.message))),
            };
            if seen.is_empty() {
                return Err(Broken::NoResourceVersion);
            }
            *version = seen;
            self.delivers();
            if !self.send(change, Instant::now()).await {
                return Ok(Some(End::Unwanted));
            }
        }
    }

    async fn send(&self, change: ObjectChange<K::Kept>, at: Instant) -> bool {
        self.news.send(News::Watch { update: (self.wrap)(change), at: at.into_std() }).await.is_ok()
    }
}

async fn answered<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Broken> {
    match time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(broken),
        Err(_) => Err(Broken::NoAnswer(REQUEST_TIMEOUT)),
    }
}

/// The server's own words say all; the rest of its status fills a screen.
fn broken(error: kube::Error) -> Broken {
    match error {
        kube::Error::Api(status) => Broken::Refused(format!("{} {}", status.code, status.message)),
        error => Broken::Client(error),
    }
}
