//! Watches of what gates ask for: each for as long as some gate asks for it.

use crate::watch::{PAGE, WATCH_SECONDS};
use futures::StreamExt as _;
use kube::{
    Api,
    core::Status,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::task::AbortHandle;

/// How long a watch that was refused once must go without another refusal to be believed again: longer than the longest pause
/// between two attempts.
const BELIEVED_AFTER: Duration = Duration::from_secs(75);

/// For how long a refusal of the first list is taken for one that will pass: an API server that has just started may not know its rights
/// yet.
pub const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The same where the API server says that it is busy, or that it has just started.
pub const BUSY_FOR: Duration = Duration::from_mins(2);
/// Codes by which it says so.
const BUSY: [u16; 3] = [429, 503, 504];

/// The first list of a kind, which the API server refuses.
#[derive(Debug)]
pub struct RefusedList {
    kind: &'static str,
    /// Since when it has been refused for whatever reason.
    since: Option<tokio::time::Instant>,
    /// Since when for another reason than that the API server is busy.
    denied: Option<tokio::time::Instant>,
}

impl RefusedList {
    /// It is not refused so far. `kind` is the plural that people read.
    pub const fn of(kind: &'static str) -> Self {
        Self { kind, since: None, denied: None }
    }

    /// What cannot be listed, why, and what to do, once the refusal has lasted.
    pub fn lasts(&mut self, refusal: &Status) -> Option<String> {
        let (message, now) = (&refusal.message, tokio::time::Instant::now());
        let is_busy = BUSY.contains(&refusal.code);
        let remedy =
            if refusal.code == 403 { "install the ClusterRole of this release again" } else { "the log of the API server says more" };
        let since = *self.since.get_or_insert(now);
        let lasts = if is_busy {
            tracing::warn!(message, "{} cannot be listed yet; trying again", self.kind);
            false
        } else {
            tracing::error!(message, "{} cannot be listed: {remedy}", self.kind);
            self.denied.get_or_insert(now).elapsed() >= REFUSED_FOR
        };
        (lasts || since.elapsed() >= BUSY_FOR).then(|| format!("{} ({message}; {remedy})", self.kind))
    }
}

/// Ends the tasks that are not wanted any more; returns what they were for.
pub fn keep<K: Ord + Clone>(tasks: &mut BTreeMap<K, AbortHandle>, wanted: &BTreeSet<K>) -> Vec<K> {
    let gone: Vec<_> = tasks.keys().filter(|key| !wanted.contains(*key)).cloned().collect();
    for key in &gone {
        if let Some(task) = tasks.remove(key) {
            task.abort();
        }
    }
    gone
}

/// A task, and what it has found, for exactly what is wanted.
pub fn settle<K: Ord + Clone, T: Default>(
    tasks: &mut BTreeMap<K, AbortHandle>,
    sources: &mut BTreeMap<K, T>,
    wanted: BTreeSet<K>,
    mut start: impl FnMut(K) -> AbortHandle,
) {
    for key in keep(tasks, &wanted) {
        sources.remove(&key);
    }
    for key in wanted.into_iter().filter(|key| !tasks.contains_key(key)).collect::<Vec<_>>() {
        sources.insert(key.clone(), T::default());
        tasks.insert(key.clone(), start(key));
    }
}

/// As such a watch is asked for.
pub fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE)
}

/// What a watch has shown.
pub enum Seen<F> {
    /// Exactly these are there.
    All(Vec<F>),
    /// One has come, or has changed.
    Now(F),
    /// One is gone; it was like this.
    Gone(F),
}

/// Follows a watch for ever, of whose objects `cut` keeps what is read; `seen` takes what it shows, `broken` what hinders it, and nothing
/// when that is over.
pub async fn follow<K, F>(
    api: Api<K>,
    config: watcher::Config,
    cut: impl Fn(K) -> F,
    mut seen: impl FnMut(Seen<F>),
    broken: impl Fn(Option<String>),
) where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let (mut listing, mut listed, mut refused) = (Vec::new(), false, 0_u32);
    loop {
        let next = if refused > 0 { tokio::time::timeout(BELIEVED_AFTER, events.next()).await } else { Ok(events.next().await) };
        let event = match next {
            Ok(None) => return,
            // A watch that was opened again is silent until something changes.
            Err(_) => {
                refused = 0;
                if listed {
                    broken(None);
                }
                continue;
            }
            Ok(Some(Err(error))) => {
                refused += 1;
                // Connections end; one that cannot be opened again is another matter.
                if !listed || refused > 1 {
                    broken(Some(error.to_string()));
                }
                continue;
            }
            Ok(Some(Ok(event))) => event,
        };
        refused = 0;
        seen(match event {
            Event::Init => {
                listing.clear();
                continue;
            }
            Event::InitApply(object) => {
                listing.push(cut(object));
                continue;
            }
            Event::InitDone => {
                listed = true;
                Seen::All(std::mem::take(&mut listing))
            }
            Event::Apply(object) => Seen::Now(cut(object)),
            Event::Delete(object) => Seen::Gone(cut(object)),
        });
        if listed {
            broken(None);
        }
    }
}
