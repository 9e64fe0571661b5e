//! Watches of what gates ask for: each for as long as some gate asks for it.

use futures::StreamExt as _;
use kube::{
    Api,
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

/// Ends the tasks that are not wanted any more; returns what they were for.
pub(crate) fn keep<K: Ord + Clone>(tasks: &mut BTreeMap<K, AbortHandle>, wanted: &BTreeSet<K>) -> Vec<K> {
    let gone: Vec<_> = tasks.keys().filter(|key| !wanted.contains(*key)).cloned().collect();
    for key in &gone {
        if let Some(task) = tasks.remove(key) {
            task.abort();
        }
    }
    gone
}

/// Follows a watch for ever; `seen` takes each event, `broken` what hinders it, and nothing when that is over.
pub(crate) async fn follow<K>(api: Api<K>, config: watcher::Config, mut seen: impl FnMut(Event<K>), broken: impl Fn(Option<String>))
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let (mut listed, mut refused) = (false, 0_u32);
    loop {
        let next = if refused > 0 { tokio::time::timeout(BELIEVED_AFTER, events.next()).await } else { Ok(events.next().await) };
        match next {
            Ok(None) => return,
            // A watch that was opened again is silent until something changes.
            Err(_) => {
                refused = 0;
                if listed {
                    broken(None);
                }
            }
            Ok(Some(Err(error))) => {
                refused += 1;
                // Connections end; one that cannot be opened again is another matter.
                if !listed || refused > 1 {
                    broken(Some(error.to_string()));
                }
            }
            Ok(Some(Ok(event))) => {
                listed |= matches!(event, Event::InitDone);
                refused = 0;
                let done = matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_));
                seen(event);
                if done && listed {
                    broken(None);
                }
            }
        }
    }
}
