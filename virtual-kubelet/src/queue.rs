//! A queue of keys, each with the time at which it is due, and the policy by which failed ones come again.
//!
//! It is a plain data structure for one owner, which takes what is due, does it anywhere, and reports back. Keys due at
//! the same time come in the order in which they were added; a timer wheel would not keep that order.
//!
//! ```
//! use std::time::Duration;
//!
//! use tokio::time::Instant;
//! use virtual_kubelet::queue::{Attempt, Retry, RetryPolicy};
//!
//! // Three tries more, a second apart; but what is refused is not tried again.
//! let policy = RetryPolicy::new(|attempt: &Attempt<'_, String>| match attempt.tries {
//!     1..=3 if attempt.error != "refused" => Retry::After(Duration::from_secs(1)),
//!     _ => Retry::GiveUp,
//! });
//! let pod = "pod".to_owned();
//! let after = |tries, error| policy.decide(&Attempt { key: &pod, tries, first_added: Instant::now(), error });
//! assert_eq!(after(3, "no answer"), Retry::After(Duration::from_secs(1)));
//! assert_eq!(after(4, "no answer"), Retry::GiveUp);
//! assert_eq!(after(1, "refused"), Retry::GiveUp);
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::api_call::retry_delay;

/// A try that failed.
#[derive(Debug)]
pub struct Attempt<'a, K> {
    /// What was tried.
    pub key: &'a K,
    /// How often it was tried since its last success, this try included; at least 1.
    pub tries: u32,
    /// When it was added for the first of these tries.
    pub first_added: Instant,
    /// Why it failed.
    pub error: &'a str,
}

/// What becomes of a key after a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It is due again after this time.
    After(Duration),
    /// It is dropped until it is added again.
    GiveUp,
}

/// Decides about failed tries. The default is 250 ms, doubled up to 30 s, for ever. One of one's own is made by
/// [`RetryPolicy::new`]; see the [module](self) for an example.
///
/// ```
/// use std::time::Duration;
///
/// use tokio::time::Instant;
/// use virtual_kubelet::queue::{Attempt, Retry, RetryPolicy};
///
/// let after_four = |policy: RetryPolicy<u8>| {
///     policy.decide(&Attempt { key: &1, tries: 4, first_added: Instant::now(), error: "no answer" })
/// };
/// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
/// assert_eq!(after_four(RetryPolicy::default()), Retry::After(Duration::from_secs(2)));
/// assert_eq!(after_four(RetryPolicy::fixed(second)), Retry::After(second));
/// assert_eq!(after_four(RetryPolicy::exponential(second, minute)), Retry::After(8 * second));
/// ```
pub struct RetryPolicy<K>(Arc<Decide<K>>);

type Decide<K> = dyn Fn(&Attempt<'_, K>) -> Retry + Send + Sync;

impl<K> RetryPolicy<K> {
    /// What `decide` says of each failed try.
    pub fn new(decide: impl Fn(&Attempt<'_, K>) -> Retry + Send + Sync + 'static) -> Self {
        Self(Arc::new(decide))
    }

    /// For ever, with a pause of `first`, doubled after each failure and never above `cap`.
    pub fn exponential(first: Duration, cap: Duration) -> Self {
        Self::new(move |attempt| Retry::After(retry_delay(attempt.tries, first, cap)))
    }

    /// For ever, with the same pause each time.
    pub fn fixed(pause: Duration) -> Self {
        Self::new(move |_| Retry::After(pause))
    }

    /// What becomes of this try's key.
    pub fn decide(&self, attempt: &Attempt<'_, K>) -> Retry {
        (self.0)(attempt)
    }
}

impl<K> Default for RetryPolicy<K> {
    fn default() -> Self {
        Self::exponential(Duration::from_millis(250), Duration::from_secs(30))
    }
}

impl<K> Clone for RetryPolicy<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> fmt::Debug for RetryPolicy<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetryPolicy")
    }
}

/// Place in the order: when it is due, and which was added first among those due at the same time.
type Place = (Instant, u64);

#[derive(Debug)]
struct Item {
    place: Option<Place>,
    taken: bool,
    /// Forgotten while it was taken: a failure is no reason to come again.
    forgotten: bool,
    failures: u32,
    first_added: Instant,
}

/// Keys and when they are due. A key is in it once, and taken by nobody else while it is worked on.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::queue::{KeyedQueue, Retry, RetryPolicy};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let policy = RetryPolicy::fixed(Duration::from_secs(1));
/// let mut queue = KeyedQueue::default();
/// queue.add("pod");
/// let key = queue.next().await;
/// // It failed, and comes again in a second.
/// assert_eq!(queue.failed(&key, &policy, "refused"), Retry::After(Duration::from_secs(1)));
/// queue.add_after("other pod", Duration::from_secs(60));
/// assert_eq!(queue.waiting(), 2);
/// let key = queue.next().await;
/// assert_eq!(key, "pod");
/// queue.done(&key);
/// // It is not wanted any more.
/// queue.forget(&"other pod");
/// assert!(queue.is_empty());
/// # }
/// ```
#[derive(Debug)]
pub struct KeyedQueue<K> {
    order: BTreeMap<Place, K>,
    items: HashMap<K, Item>,
    added: u64,
}

impl<K> Default for KeyedQueue<K> {
    fn default() -> Self {
        Self { order: BTreeMap::new(), items: HashMap::new(), added: 0 }
    }
}

impl<K: Clone + Eq + Hash> KeyedQueue<K> {
    /// The key is due now. One that is being worked on is due again afterwards.
    pub fn add(&mut self, key: K) {
        self.add_at(key, Instant::now());
    }

    /// The key is due after `delay`, unless it is due earlier already.
    pub fn add_after(&mut self, key: K, delay: Duration) {
        self.add_at(key, Instant::now() + delay);
    }

    fn add_at(&mut self, key: K, at: Instant) {
        let item = self.items.entry(key.clone()).or_insert_with(|| Item {
            place: None,
            taken: false,
            forgotten: false,
            failures: 0,
            first_added: Instant::now(),
        });
        item.forgotten = false;
        if item.place.is_some_and(|(due, _)| due <= at) {
            return;
        }
        let place = (at, self.added);
        self.added += 1;
        let before = item.place.replace(place);
        if item.taken {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(place, key);
    }

    /// The key is not due any more, nor will it come again when the work on it fails.
    pub fn forget(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        let place = item.place.take();
        item.failures = 0;
        if item.taken {
            item.forgotten = true;
        } else {
            self.items.remove(key);
            if let Some(place) = place {
                self.order.remove(&place);
            }
        }
    }

    /// Waits for the next key that is due, and takes it: it does not come again before [`KeyedQueue::done`] or
    /// [`KeyedQueue::failed`]. Waits for ever when none is in the queue. Dropping the future loses nothing.
    pub async fn next(&mut self) -> K {
        loop {
            let Some((&place, _)) = self.order.first_key_value() else { return std::future::pending().await };
            if place.0 > Instant::now() {
                sleep_until(place.0).await;
            }
            if let Some(key) = self.order.remove(&place) {
                if let Some(item) = self.items.get_mut(&key) {
                    item.place = None;
                    item.taken = true;
                }
                return key;
            }
        }
    }

    /// Whether the last work on the key failed.
    pub(crate) fn is_failing(&self, key: &K) -> bool {
        self.items.get(key).is_some_and(|item| item.failures > 0)
    }

    /// The work on a key succeeded: its failures are forgotten.
    pub fn done(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        item.failures = 0;
        item.first_added = Instant::now();
        self.give_back(key);
    }

    /// The work on a key failed: it comes again as `policy` says, or earlier when it was added meanwhile.
    pub fn failed(&mut self, key: &K, policy: &RetryPolicy<K>, error: &str) -> Retry {
        let Some(item) = self.items.get_mut(key) else { return Retry::GiveUp };
        if std::mem::take(&mut item.forgotten) && item.place.is_none() {
            self.give_back(key);
            return Retry::GiveUp;
        }
        item.failures = item.failures.saturating_add(1);
        let attempt = Attempt { key, tries: item.failures, first_added: item.first_added, error };
        let decision = policy.decide(&attempt);
        if let Retry::After(pause) = decision {
            self.add_at(key.clone(), Instant::now() + pause);
        } else {
            item.failures = 0;
            item.first_added = Instant::now();
        }
        self.give_back(key);
        decision
    }

    fn give_back(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        item.taken = false;
        item.forgotten = false;
        match item.place {
            Some(place) => drop(self.order.insert(place, key.clone())),
            None => drop(self.items.remove(key)),
        }
    }

    /// How many keys wait for their time.
    pub fn waiting(&self) -> usize {
        self.order.len()
    }

    /// Whether no key waits and none is being worked on.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
