//! Sorts what several watches deliver, each in order and all of them apart, by resourceVersion.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{Kind, Observation};

/// Observations wait here until no watch is likely to deliver an earlier one.
#[derive(Debug)]
pub struct Queue {
    patience: Duration,
    waiting: BTreeMap<u64, (Instant, Next)>,
    /// Newest revision of each object: a list shows again what a watch has shown.
    latest: BTreeMap<(Kind, String), u64>,
    judged: u64,
}

/// An observation whose turn it is.
#[derive(Clone, Debug)]
pub struct Next {
    /// The observation.
    pub observation: Observation,
    /// It is not known what was before it: a later one was handed out already, or a watch had a gap. To be taken in, not judged.
    pub late: bool,
}

impl Queue {
    /// Waits so long for a watch that lags.
    pub fn new(patience: Duration) -> Self {
        Self { patience, waiting: BTreeMap::new(), latest: BTreeMap::new(), judged: 0 }
    }

    /// What happened up to this revision was there before anybody looked.
    pub fn begin_at(&mut self, revision: u64) {
        self.judged = self.judged.max(revision);
    }

    /// Takes an observation in, which a watch delivered `now`; `late` where its watch had a gap before it.
    pub fn push(&mut self, observation: Observation, late: bool, now: Instant) {
        let latest = self.latest.entry(key(&observation)).or_default();
        if *latest >= observation.revision {
            return;
        }
        *latest = observation.revision;
        self.waiting.insert(observation.revision, (now, Next { observation, late }));
    }

    /// The earliest, once it has waited long enough.
    pub fn next(&mut self, now: Instant) -> Option<Next> {
        let since = self.waiting.first_key_value().map(|(_, (since, _))| *since)?;
        (now.saturating_duration_since(since) >= self.patience).then(|| self.pop()).flatten()
    }

    /// The earliest, however short it has waited: nothing follows.
    pub fn pop(&mut self) -> Option<Next> {
        let (revision, (_, mut next)) = self.waiting.pop_first()?;
        if next.observation.deleted {
            self.latest.remove(&key(&next.observation));
        }
        next.late |= revision <= self.judged;
        self.judged = self.judged.max(revision);
        Some(next)
    }
}

fn key(observation: &Observation) -> (Kind, String) {
    (observation.kind, observation.object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Utc;
    use serde_json::json;

    fn seen(revision: u64) -> Observation {
        let object = json!({ "metadata": { "uid": format!("uid-{revision}") } });
        Observation { revision, at: Utc::now(), kind: Kind::Pod, deleted: false, object }
    }

    fn revisions(queue: &mut Queue, now: Instant) -> Vec<(u64, bool)> {
        std::iter::from_fn(|| queue.next(now)).map(|next| (next.observation.revision, next.late)).collect()
    }

    #[test]
    fn what_comes_within_the_patience_is_put_in_order() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut queue = Queue::new(2 * second);
        queue.push(seen(7), false, start);
        queue.push(seen(5), false, start + second);
        assert_eq!(revisions(&mut queue, start + second), []);
        assert_eq!(revisions(&mut queue, start + 3 * second), [(5, false), (7, false)]);
    }

    #[test]
    fn what_comes_later_says_so() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut queue = Queue::new(second);
        queue.push(seen(7), false, start);
        assert_eq!(revisions(&mut queue, start + second), [(7, false)]);
        queue.push(seen(6), false, start + second);
        queue.push(seen(7), false, start + second);
        assert_eq!(revisions(&mut queue, start + 2 * second), [(6, true)], "and the same is not seen twice");
    }
}
