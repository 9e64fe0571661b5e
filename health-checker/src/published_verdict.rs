//! Keeps the view: takes in news one at a time, decides, publishes.

use crate::{
    answer::{Answer, Identity, render},
    local_probes::Candidates,
    verdict::{Verdict, VerdictReason, verdict},
    view::{News, View, Watch},
};
use jiff::Timestamp;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time,
};
use tracing::info;

/// Receivers of the verdict and of what follows from it.
#[derive(Debug)]
pub struct Outputs {
    /// What to answer.
    pub answer: watch::Sender<Arc<Answer>>,
    /// What to probe.
    pub candidates: watch::Sender<Candidates>,
    /// Makes a watch list anew.
    pub refresh: BTreeMap<Watch, Arc<Notify>>,
}

/// The view with the verdict that was last published.
#[derive(Debug)]
pub struct PublishedVerdict {
    identity: Identity,
    view: View,
    reason: VerdictReason,
    since: Timestamp,
    confirmed: Option<Instant>,
}

impl PublishedVerdict {
    /// Nothing known, and the answer that says so.
    pub fn new(identity: Identity, view: View) -> (Self, Arc<Answer>) {
        let (now, since) = (time::Instant::now().into_std(), Timestamp::now());
        let verdict = verdict(&view, now);
        let published = Self { reason: verdict.reason, since, confirmed: None, identity, view };
        let answer = Arc::new(render(&published.identity, &published.view, verdict, since, now));
        (published, answer)
    }

    /// Runs until every sender of news is gone.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<News>, outputs: Outputs) {
        // The age in the body is at most this old.
        let mut ticks = time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                news = inbox.recv() => match news {
                    Some(news) => self.take_in(news),
                    None => return,
                },
                _ = ticks.tick() => {}
            }
            self.publish(&outputs);
        }
    }

    fn take_in(&mut self, news: News) {
        match news {
            News::Watch { update, at } => self.view.apply(update, at),
            News::FailsHere { uid, at } => drop(self.view.failed_here.insert(uid, at)),
            News::PassesHere { uid, probe, at } => drop(self.view.passed_here.insert((uid, probe), at)),
        }
    }

    fn publish(&mut self, outputs: &Outputs) {
        let now = time::Instant::now().into_std();
        let verdict = verdict(&self.view, now);
        if verdict.reason != self.reason {
            self.note_change(&verdict);
        }
        self.view.serving = verdict.serving();
        // Probes that fail from here speak only as long as the API server is silent about pods: it may just have had nothing to say.
        if matches!(verdict.reason, VerdictReason::StaleView | VerdictReason::ProbesFailHere) {
            self.confirm(now, outputs);
        }
        let answer = render(&self.identity, &self.view, verdict, self.since, now);
        outputs.answer.send_replace(Arc::new(answer));
        let candidates = self.candidates(now);
        outputs.candidates.send_if_modified(|known| {
            let changed = *known != candidates;
            *known = candidates;
            changed
        });
    }

    fn note_change(&mut self, verdict: &Verdict) {
        info!(
            from = self.reason.as_str(),
            to = verdict.reason.as_str(),
            serving = verdict.serving(),
            ready = verdict.ready,
            desired = verdict.desired,
            phase = verdict.phase.map(crds::token::Phase::as_str),
            grant = verdict.grant,
            "verdict changed"
        );
        self.reason = verdict.reason;
        self.since = Timestamp::now();
    }

    /// Asks the watches that are too old to start serving on, at most once a second.
    fn confirm(&mut self, now: Instant, outputs: &Outputs) {
        if self.confirmed.is_some_and(|last| now.saturating_duration_since(last) < Duration::from_secs(1)) {
            return;
        }
        self.confirmed = Some(now);
        for (watch, refresh) in &outputs.refresh {
            if self.view.is_to_be_confirmed(*watch, now) {
                refresh.notify_one();
            }
        }
    }

    fn candidates(&self, now: Instant) -> Candidates {
        let counted = || self.view.pods.objects.values().filter(|pod| self.view.counts(pod, now));
        let pods = counted().filter(|pod| !pod.probes.is_empty());
        Candidates {
            disowned: counted().any(|pod| pod.disowned),
            pods: pods.map(|pod| (pod.uid.clone(), pod.probes.clone())).collect(),
            heard: self.view.watches.iter().map(|watch| self.view.seen(*watch)).min().flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        verdict::tests::healthy,
        view::{ObjectChange, Update},
    };
    use futures::FutureExt as _;

    #[tokio::test(start_paused = true)]
    async fn a_quiet_api_server_is_asked_about_failing_probes() {
        let begin = time::Instant::now();
        let mut view = healthy(begin.into_std());
        view.serving = true;
        let identity = Identity { namespace: "web".into(), name: "edge".into(), node: "n1".into() };
        let (published, unsynced) = PublishedVerdict::new(identity, view);
        let (answer, mut answered) = watch::channel(unsynced);
        let (candidates, _probed) = watch::channel(Candidates::default());
        let refresh: BTreeMap<Watch, Arc<Notify>> = Watch::ALL.into_iter().map(|watch| (watch, Arc::default())).collect();
        let pods = refresh[&Watch::Pods].clone();
        let (news, inbox) = mpsc::channel(8);
        tokio::spawn(published.run(inbox, Outputs { answer, candidates, refresh }));
        let mut becomes = async |reason: VerdictReason| {
            let known = answered.wait_for(|answer| answer.verdict.reason == reason);
            drop(time::timeout(Duration::from_secs(3), known).await.expect("in time").unwrap());
        };
        becomes(VerdictReason::Serving).await;
        time::advance(Duration::from_secs(50)).await;
        assert!(pods.notified().now_or_never().is_none(), "what serves goes on");
        news.send(News::FailsHere { uid: "a".into(), at: time::Instant::now().into_std() }).await.unwrap();
        becomes(VerdictReason::ProbesFailHere).await;
        time::timeout(Duration::from_secs(2), pods.notified()).await.expect("it is asked");
        for update in
            [Update::Pods(ObjectChange::Unchanged), Update::Deployments(ObjectChange::Unchanged), Update::Node(ObjectChange::Unchanged)]
        {
            news.send(News::Watch { update, at: time::Instant::now().into_std() }).await.unwrap();
        }
        becomes(VerdictReason::Serving).await;
    }

    #[tokio::test]
    async fn without_a_node_watch_the_other_watches_define_silence() {
        let begin = Instant::now();
        let mut view = healthy(begin);
        (view.watches, view.node.seen) = (Watch::WITHOUT_NODE, None);
        let identity = Identity { namespace: "web".into(), name: "edge".into(), node: "n1".into() };
        let published = PublishedVerdict::new(identity, view).0;
        assert_eq!(published.candidates(begin).heard, Some(begin), "else probes are never repeated from here");
    }
}
