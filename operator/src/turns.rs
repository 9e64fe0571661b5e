//! Namespaces take turns, and none has more of the operator than its share: passes of one are put off while many of its own are under way,
//! so that those of another do not wait for thousands of them.

use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Passes of one namespace under way at once. Each thread decides one at a time; the others wait for answers of the API server.
const AT_ONCE: usize = 16;
/// Health ports that are asked at once for the passes of one namespace.
pub const ASKED_AT_ONCE: usize = 64;
/// What each pass that was put off adds to the time after which the next one is tried again: as many come a second then as can be decided.
const EACH: Duration = Duration::from_millis(5);
/// Least and most of that time.
const PUT_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Who may pass now.
#[derive(Debug, Default)]
pub struct Turns(Mutex<BTreeMap<String, Busy>>);

/// A namespace of which some pass is under way.
#[derive(Debug)]
struct Busy {
    asking: Arc<Semaphore>,
    passes: usize,
    /// Those that were put off meanwhile.
    put_off: u32,
}

impl Default for Busy {
    fn default() -> Self {
        Self { asking: Arc::new(Semaphore::new(ASKED_AT_ONCE)), passes: 0, put_off: 0 }
    }
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn<'t> {
    /// Places for questions to health ports, which all passes of the namespace share.
    pub asking: Arc<Semaphore>,
    turns: &'t Turns,
    namespace: String,
}

impl Turns {
    /// A turn of the namespace, or after which time to ask for one again.
    pub fn take(&self, namespace: &str) -> Result<Turn<'_>, Duration> {
        let mut all = self.0.lock();
        let busy = all.entry(namespace.to_owned()).or_default();
        if busy.passes >= AT_ONCE {
            busy.put_off = busy.put_off.saturating_add(1);
            return Err(EACH.saturating_mul(busy.put_off).clamp(PUT_OFF.0, PUT_OFF.1));
        }
        busy.passes += 1;
        let asking = Arc::clone(&busy.asking);
        drop(all);
        Ok(Turn { asking, turns: self, namespace: namespace.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut all = self.turns.0.lock();
        if let Some(busy) = all.get_mut(&self.namespace) {
            busy.passes -= 1;
            if busy.passes == 0 {
                all.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_separate_turns_and_wait_longer_when_asking_more() {
        let turns = Turns::default();
        let taken: Vec<_> = (0..AT_ONCE).filter_map(|_| turns.take("tenant").ok()).collect();
        assert_eq!(taken.len(), AT_ONCE);
        let waits: Vec<_> = (0..2_000).filter_map(|_| turns.take("tenant").err()).collect();
        assert_eq!((waits.first(), waits.last(), waits.len()), (Some(&PUT_OFF.0), Some(&PUT_OFF.1), 2_000));
        assert!(waits.is_sorted());
        let other = turns.take("edge").unwrap();
        assert!(taken.iter().all(|turn| Arc::ptr_eq(&turn.asking, &taken[0].asking)), "they share their places");
        assert!(!Arc::ptr_eq(&other.asking, &taken[0].asking));
        drop((taken, other));
        assert!(turns.take("tenant").is_ok());
        assert!(turns.0.lock().is_empty(), "nothing is remembered");
    }
}
