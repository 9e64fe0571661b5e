//! Who works, and who waits for a place; no I/O.

use std::collections::{BTreeMap, HashMap};

use super::{Operation, PodId};

/// Work of one kind. Each has places of its own, so that work that hangs holds up none of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// Creations that wait until the provider has been told which pods there are; without places.
    Held,
    /// Creations that go one after the other.
    InTurn,
    /// Other creations, and updates.
    Give,
    /// What ends pods in the provider.
    End,
    /// Writes of statuses.
    Status,
    /// Deletions in the API.
    Remove,
}

const POOLS: usize = 6;

impl Pool {
    pub fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Create(_) | Operation::Update(_) => Self::Give,
            Operation::Delete(..) | Operation::Ask(_) | Operation::Forget => Self::End,
            Operation::Patch(_) => Self::Status,
            Operation::Remove | Operation::Evict(_) => Self::Remove,
        }
    }
}

/// The places of all pools, and the lines before them.
pub(super) struct Pools {
    places: [usize; POOLS],
    lines: [BTreeMap<u64, PodId>; POOLS],
    waiting: HashMap<PodId, (Pool, u64)>,
    came: u64,
}

impl Pools {
    /// With so many places for each kind.
    pub fn new(workers: usize) -> Self {
        Self { places: [0, 1, workers, workers, workers, workers], lines: Default::default(), waiting: HashMap::new(), came: 0 }
    }

    /// Takes a worker, or else a turn in the queue: the same as before if it waits there already.
    pub fn enter(&mut self, pool: Pool, id: &PodId) -> bool {
        if self.places[pool as usize] > 0 {
            self.quit(id);
            self.places[pool as usize] -= 1;
            return true;
        }
        if self.waiting.get(id).is_none_or(|(line, _)| *line != pool) {
            self.quit(id);
            self.came += 1;
            self.waiting.insert(id.clone(), (pool, self.came));
            self.lines[pool as usize].insert(self.came, id.clone());
        }
        false
    }

    /// Gives a place back.
    pub fn leave(&mut self, pool: Pool) {
        self.places[pool as usize] += 1;
    }

    /// The first in the line, once there is a place.
    pub fn next(&mut self, pool: Pool) -> Option<PodId> {
        let (_, id) = self.lines[pool as usize].first_key_value().filter(|_| self.places[pool as usize] > 0)?;
        let id = id.clone();
        self.quit(&id);
        Some(id)
    }

    /// All who wait in this line, which they leave.
    pub fn drain(&mut self, pool: Pool) -> Vec<PodId> {
        let ids: Vec<_> = std::mem::take(&mut self.lines[pool as usize]).into_values().collect();
        for id in &ids {
            self.waiting.remove(id);
        }
        ids
    }

    /// Whether it is in a line.
    pub fn is_waiting(&self, id: &PodId) -> bool {
        self.waiting.contains_key(id)
    }

    /// Leaves the line, if it is in one.
    pub fn quit(&mut self, id: &PodId) {
        if let Some((pool, place)) = self.waiting.remove(id) {
            self.lines[pool as usize].remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> PodId {
        PodId { namespace: "ns".into(), name: name.into(), uid: name.into() }
    }

    #[test]
    fn pods_waiting_for_a_pool_enter_in_order_of_arrival() {
        let mut pools = Pools::new(1);
        assert!(pools.enter(Pool::Give, &id("a")) && pools.enter(Pool::End, &id("b")));
        assert!(!pools.enter(Pool::Give, &id("c")) && !pools.enter(Pool::Give, &id("d")));
        // Who asks again does not lose its place in the line.
        assert!(!pools.enter(Pool::Give, &id("c")));
        assert_eq!(pools.next(Pool::Give), None);
        pools.leave(Pool::Give);
        assert_eq!(pools.next(Pool::Give), Some(id("c")));
        assert!(pools.is_waiting(&id("d")) && !pools.is_waiting(&id("c")));
    }

    #[test]
    fn whoever_wants_something_else_by_now_leaves_the_line() {
        let mut pools = Pools::new(1);
        assert!(pools.enter(Pool::Give, &id("a")) && !pools.enter(Pool::Give, &id("b")));
        assert!(pools.enter(Pool::Remove, &id("b")));
        pools.leave(Pool::Give);
        assert_eq!(pools.next(Pool::Give), None);
        assert!(!pools.enter(Pool::Held, &id("c")));
        assert_eq!(pools.drain(Pool::Held), [id("c")]);
        assert!(!pools.is_waiting(&id("c")));
    }
}
