//! Work that many ask for at once is done once for all who asked before it began.

use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Work whose result everybody who asked before it began can use.
#[derive(Debug, Default)]
pub struct SharedWork {
    asked: AtomicU64,
    /// How many had asked when the last work that ended well began.
    served: tokio::sync::Mutex<u64>,
}

impl SharedWork {
    /// Returns when `work` that began after this call has ended well: one's own or another's.
    ///
    /// # Errors
    /// One's own work failed.
    pub async fn run<E>(&self, work: impl AsyncFnOnce() -> Result<(), E>) -> Result<(), E> {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut served = self.served.lock().await;
        if *served >= number {
            return Ok(());
        }
        let asked = self.asked.load(Ordering::Acquire);
        work().await?;
        *served = asked;
        Ok(())
    }
}

/// The same, by a key. Nothing is kept of a key that nobody asks for.
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
