//! Work that many ask for at once is done once for all who asked before it began, and takes up a part of the time only.

use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// After work, nothing is done for so many times as long as it took: a user who makes and deletes resources in a loop asks all the time.
const REST: u32 = 4;
/// The longest such time.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Work whose result everybody who asked before it began can use.
#[derive(Debug, Default)]
pub struct SharedWork {
    asked: AtomicU64,
    done: tokio::sync::Mutex<LastWork>,
}

/// What was done last.
#[derive(Debug, Default)]
struct LastWork {
    /// How many had asked when the last work that ended well began.
    asked: u64,
    /// Until when it is not done again.
    rests_until: Option<Instant>,
}

impl SharedWork {
    /// Returns when `work` that began after this call has ended well: one's own or another's.
    ///
    /// # Errors
    /// One's own work failed.
    pub async fn run<E>(&self, work: impl AsyncFnOnce() -> Result<(), E>) -> Result<(), E> {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut done = self.done.lock().await;
        if done.asked >= number {
            return Ok(());
        }
        if let Some(until) = done.rests_until {
            tokio::time::sleep_until(until).await;
        }
        let (asked, began) = (self.asked.load(Ordering::Acquire), Instant::now());
        let result = work().await;
        let rest = began.elapsed().saturating_mul(REST).min(LONGEST_REST);
        done.rests_until = Some(Instant::now() + rest);
        result?;
        done.asked = asked;
        Ok(())
    }
}

/// The same, by a key. Nothing is kept of a key that nobody asks for, not even how long its work rests.
#[derive(Debug)]
pub struct SharedBy<K>(Mutex<BTreeMap<K, Arc<SharedWork>>>);

impl<K> Default for SharedBy<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> SharedBy<K> {
    /// That of a key.
    pub fn of<Q>(&self, key: &Q) -> Arc<SharedWork>
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        let mut all = self.0.lock();
        all.retain(|_, shared| Arc::strong_count(shared) > 1);
        Arc::clone(all.entry(key.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::sync::atomic::AtomicU32;
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn callers_share_the_next_run_but_not_its_failure() {
        let (shared, works, may_end) = (SharedWork::default(), AtomicU32::new(0), Semaphore::new(0));
        let ask = |fails: bool| {
            let (works, may_end) = (&works, &may_end);
            shared.run(async move || {
                works.fetch_add(1, Ordering::SeqCst);
                may_end.acquire().await.map_err(drop)?.forget();
                if fails { Err(()) } else { Ok(()) }
            })
        };
        let everybody = async {
            let first = ask(false);
            let others = join_all([true, false, false, false].map(ask));
            tokio::join!(first, others)
        };
        let end = async {
            for begun in 1..=3 {
                while works.load(Ordering::SeqCst) < begun {
                    tokio::task::yield_now().await;
                }
                may_end.add_permits(1);
            }
        };
        let ((first, others), ()) = tokio::join!(everybody, end);
        assert_eq!((first, others), (Ok(()), vec![Err(()), Ok(()), Ok(()), Ok(())]));
        assert_eq!(works.load(Ordering::SeqCst), 3, "the first, the one that failed, and one for all the others");
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_not_repeated_at_once() {
        for (took, rest) in [(1, 4), (60, 10)] {
            let (shared, took) = (SharedWork::default(), Duration::from_secs(took));
            let begin = Instant::now();
            for (number, passed) in [took.as_secs(), 2 * took.as_secs() + rest].into_iter().enumerate() {
                // Whether it ends well or not.
                let result = if number == 0 { Err(()) } else { Ok(()) };
                let work = async || {
                    tokio::time::sleep(took).await;
                    result
                };
                assert_eq!(shared.run(work).await, result);
                assert_eq!(begin.elapsed().as_secs(), passed, "work {number}, and the rest before it");
            }
        }
    }

    #[test]
    fn callers_of_one_key_share_and_unused_keys_are_dropped() {
        let all = SharedBy::<String>::default();
        let (edge, again, other) = (all.of("edge"), all.of("edge"), all.of("other"));
        assert!(Arc::ptr_eq(&edge, &again) && !Arc::ptr_eq(&edge, &other));
        drop((edge, again, other));
        let _last = all.of("last");
        assert_eq!(all.0.lock().len(), 1);
    }
}
