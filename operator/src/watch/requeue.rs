//! Resources to look at again.
//!
//! A set, not a queue: a standby hears of changes for weeks without acting on them. Changes within a short time are
//! handed out together, counted from the first one: a debounce that starts anew with every change would never end while
//! pods are made and refused without pause.

use super::Named;
use futures::Stream;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::Notify;

/// Changes within this time are decided on together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Resources to look at again, by namespace and name.
#[derive(Debug, Default)]
pub struct RequeueSet {
    keys: Mutex<BTreeSet<(String, String)>>,
    news: Notify,
}

impl RequeueSet {
    /// Something that concerns this resource has changed.
    pub fn mark(&self, namespace: String, name: String) {
        self.keys.lock().insert((namespace, name));
        self.news.notify_one();
    }

    /// What was marked, for ever.
    pub fn stream(self: Arc<Self>) -> impl Stream<Item = ObjectRef<Named>> {
        futures::stream::unfold((self, BTreeSet::new()), |(requeue, mut keys)| async move {
            while keys.is_empty() {
                requeue.news.notified().await;
                tokio::time::sleep(TOGETHER).await;
                keys = std::mem::take(&mut *requeue.keys.lock());
            }
            let (namespace, name) = keys.pop_first()?;
            Some((ObjectRef::new(&name).within(&namespace), (requeue, keys)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;

    #[tokio::test(start_paused = true)]
    async fn changes_without_pause_are_handed_out_after_a_short_time() {
        let requeue = Arc::new(RequeueSet::default());
        let mut stream = Box::pin(Arc::clone(&requeue).stream());
        let started = tokio::time::Instant::now();
        let endless = async {
            loop {
                requeue.mark("edge".into(), "web".into());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let first = tokio::select! {
            first = stream.next() => first,
            () = endless => None,
        };
        assert_eq!(first.map(|key| key.name), Some("web".to_owned()));
        assert!(started.elapsed() < TOGETHER * 2, "after {:?}", started.elapsed());
    }
}
