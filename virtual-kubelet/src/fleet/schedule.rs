//! What is due when, oldest first; no I/O.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tokio::time::Instant;

/// Things to do, each with a deadline and a moment before which it is not tried. Of all that may be tried the one with the
/// earliest deadline comes first: after an outage, what is oldest.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// (not before, deadline, key, turn)
    early: BinaryHeap<Reverse<(Instant, Instant, u32, u32)>>,
    /// (deadline, key, turn)
    ready: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    /// The present turn of each key: an entry of an earlier turn counts no more.
    turns: HashMap<u32, u32>,
    next_turn: u32,
}

impl Schedule {
    /// Plans `key`, which replaces an earlier plan of it.
    pub fn insert(&mut self, key: u32, deadline: Instant, not_before: Instant) {
        self.next_turn = self.next_turn.wrapping_add(1);
        self.turns.insert(key, self.next_turn);
        self.early.push(Reverse((not_before, deadline, key, self.next_turn)));
    }

    pub fn remove(&mut self, key: u32) {
        self.turns.remove(&key);
    }

    /// Whether `key` is planned.
    pub fn contains(&self, key: u32) -> bool {
        self.turns.contains_key(&key)
    }

    /// Whether something may be tried at `now`.
    pub fn has_ready(&mut self, now: Instant) -> bool {
        while let Some(Reverse((not_before, deadline, key, turn))) = self.early.peek().copied() {
            let counts = self.turns.get(&key) == Some(&turn);
            if counts && not_before > now {
                break;
            }
            self.early.pop();
            if counts {
                self.ready.push(Reverse((deadline, key, turn)));
            }
        }
        while let Some(Reverse((_, key, turn))) = self.ready.peek() {
            if self.turns.get(key) == Some(turn) {
                return true;
            }
            self.ready.pop();
        }
        false
    }

    /// Takes what is due first, with its deadline.
    pub fn pop(&mut self, now: Instant) -> Option<(u32, Instant)> {
        if !self.has_ready(now) {
            return None;
        }
        let Reverse((deadline, key, _)) = self.ready.pop()?;
        self.turns.remove(&key);
        Some((key, deadline))
    }

    /// When the next thing may be tried that may not be yet.
    pub fn wakes_at(&self) -> Option<Instant> {
        self.early.peek().map(|Reverse((not_before, ..))| *not_before)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_comes_first_after_an_outage_despite_longer_pauses() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut schedule = Schedule::default();
        // All failed for a while; the oldest was told to pause longest.
        schedule.insert(1, at(1), at(20));
        schedule.insert(2, at(2), at(19));
        schedule.insert(3, at(3), at(18));
        assert_eq!(schedule.pop(at(17)), None);
        assert_eq!(schedule.wakes_at(), Some(at(18)));
        let order: Vec<_> = std::iter::from_fn(|| schedule.pop(at(20))).collect();
        assert_eq!(order, [(1, at(1)), (2, at(2)), (3, at(3))]);
    }

    #[test]
    fn a_replaced_or_removed_plan_never_comes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut schedule = Schedule::default();
        schedule.insert(1, at(1), at(1));
        assert!(schedule.has_ready(at(1)));
        schedule.insert(1, at(9), at(9));
        assert!(!schedule.has_ready(at(8)));
        schedule.insert(2, at(2), at(2));
        schedule.remove(2);
        assert_eq!(schedule.pop(at(9)), Some((1, at(9))));
        assert_eq!(schedule.pop(at(99)), None);
    }
}
