//! Local evidence: while the API or the kubelet is silent, pods that are ready by the last news are probed from the node. A failure can
//! take the node out, until the API server, which is asked at once, says again that the pod is ready. Success keeps it in where only
//! the node controller speaks against them. No probe ever brings it back.

use crate::{
    probe,
    probe::ReadinessProbe,
    view::{News, PROBE_TICK},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time,
};

/// Pods to probe, and whether to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Probes of the ready pods, by UID.
    pub pods: BTreeMap<String, Vec<ReadinessProbe>>,
    /// When the quietest watch was last heard of; `None` before the first sync.
    pub heard: Option<Instant>,
    /// A pod counts as ready by old news of the kubelet alone.
    pub disowned: bool,
}

type ProbeKey = (String, usize);

/// What was found so far.
#[derive(Debug, Default)]
pub struct Tally {
    entries: BTreeMap<ProbeKey, ProbeRecord>,
}

#[derive(Debug, Default)]
struct ProbeRecord {
    passed_before: bool,
    failures: u32,
    in_flight: bool,
    next: Option<Instant>,
}

impl Tally {
    /// Probes that are to be made now. Forgets pods that are no candidates any more.
    pub fn due(&mut self, candidates: &Candidates, now: Instant) -> Vec<(ProbeKey, ReadinessProbe)> {
        let wanted: BTreeMap<ProbeKey, &ReadinessProbe> = candidates
            .pods
            .iter()
            .flat_map(|(uid, probes)| probes.iter().enumerate().map(move |(index, probe)| ((uid.clone(), index), probe)))
            .collect();
        self.entries.retain(|key, _| wanted.contains_key(key));
        let mut due = Vec::new();
        for (key, probe) in wanted {
            let entry = self.entries.entry(key.clone()).or_default();
            if !entry.in_flight && entry.next.is_none_or(|next| next <= now) {
                entry.in_flight = true;
                entry.next = Some(now + probe.period);
                due.push((key, probe.clone()));
            }
        }
        due
    }

    /// The same, as long as the API server is silent or the kubelet is. When it speaks, nothing is to be probed, and failures before
    /// that no longer count.
    pub fn due_without_news(&mut self, candidates: &Candidates, after: Duration, now: Instant) -> Vec<(ProbeKey, ReadinessProbe)> {
        let fresh = candidates.heard.is_none_or(|heard| now.saturating_duration_since(heard) <= after);
        if fresh && !candidates.disowned {
            self.forget_failures();
            return Vec::new();
        }
        self.due(candidates, now)
    }

    /// Takes in a result; true when it establishes that the pod fails from here. A probe that never passed from here
    /// proves nothing: the network may not let this process reach the pod at all.
    pub fn record(&mut self, key: &ProbeKey, threshold: u32, passed: bool) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.in_flight = false;
        if passed {
            entry.passed_before = true;
            entry.failures = 0;
            return false;
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.passed_before && entry.failures >= threshold
    }

    /// The API has spoken: failures before that no longer count.
    pub fn forget_failures(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.failures = 0);
    }

    /// Pods probed.
    pub fn pods(&self) -> BTreeSet<&str> {
        self.entries.keys().map(|(uid, _)| uid.as_str()).collect()
    }
}

/// Probes whenever the view is older than `after`, or the kubelet is silent, until the candidates' sender is gone.
pub async fn gather(mut candidates: watch::Receiver<Candidates>, after: Duration, news: mpsc::Sender<News>) {
    let mut tally = Tally::default();
    let mut running = JoinSet::new();
    let mut ticks = time::interval(PROBE_TICK);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let now = time::Instant::now().into_std();
                let known = candidates.borrow_and_update().clone();
                for (key, probe) in tally.due_without_news(&known, after, now) {
                    running.spawn(async move { (key, probe.failure_threshold, probe::passes(&probe).await) });
                }
            }
            Some(result) = running.join_next() => {
                let Ok((key, threshold, passed)) = result else { continue };
                let at = time::Instant::now().into_std();
                let found = if tally.record(&key, threshold, passed) {
                    News::FailsHere { uid: key.0, at }
                } else if passed {
                    News::PassesHere { uid: key.0, probe: key.1, at }
                } else {
                    continue;
                };
                if news.send(found).await.is_err() {
                    return;
                }
            }
        }
        if candidates.has_changed().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::ProbeTarget;

    fn candidates() -> Candidates {
        let probe = ReadinessProbe {
            target: ProbeTarget::Tcp { host: "127.0.0.1".into(), port: 1 },
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            failure_threshold: 2,
        };
        Candidates { pods: BTreeMap::from([("a".to_owned(), vec![probe])]), ..Candidates::default() }
    }

    fn attempt(tally: &mut Tally, now: Instant, passed: bool) -> bool {
        let due = tally.due(&candidates(), now);
        assert_eq!(due.len(), 1);
        tally.record(&due[0].0, due[0].1.failure_threshold, passed)
    }

    #[test]
    fn enough_failures_of_a_probe_that_passed_are_evidence() {
        let (mut tally, start) = (Tally::default(), Instant::now());
        assert!(!attempt(&mut tally, start, true));
        assert!(!attempt(&mut tally, start + Duration::from_secs(10), false));
        assert!(attempt(&mut tally, start + Duration::from_secs(20), false));
    }

    #[test]
    fn a_probe_that_never_passed_from_here_is_no_evidence() {
        let (mut tally, start) = (Tally::default(), Instant::now());
        for seconds in (0..100).step_by(10) {
            assert!(!attempt(&mut tally, start + Duration::from_secs(seconds), false));
        }
    }

    #[test]
    fn failures_before_fresh_news_do_not_count() {
        let (mut tally, start) = (Tally::default(), Instant::now());
        attempt(&mut tally, start, true);
        attempt(&mut tally, start + Duration::from_secs(10), false);
        tally.forget_failures();
        assert!(!attempt(&mut tally, start + Duration::from_secs(20), false));
        assert!(attempt(&mut tally, start + Duration::from_secs(30), false));
    }

    #[test]
    fn a_probe_runs_once_per_period_and_never_concurrently() {
        let (mut tally, start) = (Tally::default(), Instant::now());
        let due = tally.due(&candidates(), start);
        assert_eq!(due.len(), 1);
        assert!(tally.due(&candidates(), start + Duration::from_mins(1)).is_empty(), "the first has not ended");
        tally.record(&due[0].0, 2, true);
        assert_eq!(tally.due(&candidates(), start + Duration::from_mins(1)).len(), 1);
        tally.due(&Candidates::default(), start + Duration::from_secs(61));
        assert!(tally.pods().is_empty());
    }

    #[test]
    fn api_server_news_stops_probes_and_clears_failures() {
        let (mut tally, start, after) = (Tally::default(), Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut known = Candidates { heard: Some(start), ..candidates() };
        let mut attempt = |known: &Candidates, now, passed| {
            let due = tally.due_without_news(known, after, now);
            due.into_iter().map(|(key, probe)| tally.record(&key, probe.failure_threshold, passed)).next()
        };
        assert_eq!(attempt(&known, at(10), true), None, "it has just spoken");
        assert_eq!(attempt(&known, at(20), true), Some(false));
        assert_eq!(attempt(&known, at(30), false), Some(false));
        known.heard = Some(at(35));
        assert_eq!(attempt(&known, at(40), false), None);
        assert_eq!(attempt(&known, at(50), false), Some(false), "the first since it spoke");
        assert_eq!(attempt(&known, at(60), false), Some(true));
        known = Candidates { heard: Some(at(70)), disowned: true, ..candidates() };
        assert_eq!(attempt(&known, at(70), false), Some(true), "the kubelet is silent");
    }
}
