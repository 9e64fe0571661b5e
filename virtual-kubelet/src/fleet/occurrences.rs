//! How often a name was used; no I/O.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// So many names are remembered: those of a Deployment's pods never come again, those of a `StatefulSet`'s soon.
const REMEMBERED: usize = 1 << 16;

/// Counts the pods of each name, so that each has delays of its own which are the same in another run.
#[derive(Debug, Default)]
pub(super) struct Occurrences {
    counts: HashMap<u64, u32>,
    oldest: VecDeque<u64>,
}

impl Occurrences {
    /// How many pods of this name there were before.
    pub fn next(&mut self, namespace: &str, name: &str) -> u32 {
        let mut hasher = DefaultHasher::new();
        (namespace, name).hash(&mut hasher);
        let key = hasher.finish();
        if let Some(count) = self.counts.get_mut(&key) {
            *count = count.wrapping_add(1);
            return *count;
        }
        if self.oldest.len() >= REMEMBERED
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.counts.remove(&oldest);
        }
        self.oldest.push_back(key);
        self.counts.insert(key, 0);
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_a_name_are_numbered_until_it_is_forgotten() {
        let mut occurrences = Occurrences::default();
        assert_eq!(
            [("a", "x"), ("a", "x"), ("b", "x"), ("a", "x")].map(|(namespace, name)| occurrences.next(namespace, name)),
            [0, 1, 0, 2]
        );
        for name in 0..REMEMBERED {
            occurrences.next("c", &name.to_string());
        }
        assert_eq!(occurrences.counts.len(), REMEMBERED);
        assert_eq!(occurrences.next("a", "x"), 0);
    }
}
