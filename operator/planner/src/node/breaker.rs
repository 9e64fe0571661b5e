//! The admission-failure breaker: a kubelet that refuses a node's pods must not be flooded with new ones.

use crate::{
    facts::{DeploymentFacts, PodFacts},
    reason::Reason,
};
use crds::{UnixSeconds, names};
use std::{collections::BTreeSet, sync::Arc};

/// Refusals within [`WINDOW`] seconds that open it.
const REFUSALS: usize = 3;
/// Length of the window in which refusals are counted, in seconds.
const WINDOW: i64 = 60;
/// Longest time that it stays open, seconds.
const LONGEST: i64 = 15 * 60;

/// The breaker as it is stored on the Deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// How often it opened in a row.
    pub openings: u32,
    /// When the next try comes.
    pub until: UnixSeconds,
}

impl std::fmt::Display for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.openings, self.until)
    }
}

/// What the Deployment's label says; an unreadable label is none.
pub fn read(deployment: &DeploymentFacts) -> Option<Breaker> {
    let (openings, until) = deployment.labels.get(names::BREAKER_LABEL)?.split_once('.')?;
    Some(Breaker { openings: openings.parse().ok()?, until: until.parse().ok()? })
}

/// The breaker, while it is open. One that would be open for longer than any is has seen a clock that was set back since.
pub fn open(deployment: &DeploymentFacts, now: UnixSeconds) -> Option<Breaker> {
    read(deployment).filter(|breaker| breaker.until > now && !is_of_another_clock(breaker.until, now))
}

/// No time of ours is so far ahead.
fn is_of_another_clock(at: UnixSeconds, now: UnixSeconds) -> bool {
    at.saturating_sub(now) > LONGEST
}

/// The breaker that is to open now.
pub fn opens(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>], now: UnixSeconds) -> Option<Breaker> {
    if open(deployment, now).is_some() || deployment.replicas() == 0 || refusals_since(i64::MIN, pods, now) < REFUSALS {
        return None;
    }
    let openings = read(deployment).map_or(0, |breaker| breaker.openings).saturating_add(1);
    Some(Breaker { openings, until: now.saturating_add(pause(openings)) })
}

/// While it is open, a node may lose a pod that it kept: how many pods it still has, where those that are made in place of what it lost
/// are refused, too. A pod of before that is unready for a moment, or restarts, is not lost; nor is one that has run on a node whose
/// kubelet is not heard of (`lost`), where none is ready.
pub fn kept_of_fewer(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>], lost: bool, now: UnixSeconds) -> Option<(Breaker, i32)> {
    let breaker = open(deployment, now)?;
    let since = breaker.until.saturating_sub(pause(breaker.openings));
    let was_there = |pod: &PodFacts| pod.ready || pod.created <= since || lost && pod.runs != 0;
    let stays = |pod: &&Arc<PodFacts>| !pod.ended && !pod.terminating && pod.rejected_at.is_none() && was_there(pod);
    let kept = i32::try_from(pods.iter().filter(stays).count()).unwrap_or(i32::MAX);
    (kept < deployment.replicas() && refusals_since(since, pods, now) >= REFUSALS).then_some((breaker, kept))
}

fn refusals_since(since: UnixSeconds, pods: &[Arc<PodFacts>], now: UnixSeconds) -> usize {
    let counts = |at: &UnixSeconds| *at > since && now.saturating_sub(*at) < WINDOW && !is_of_another_clock(*at, now);
    pods.iter().filter_map(|pod| pod.rejected_at).filter(counts).count()
}

/// For how long it is open, seconds.
fn pause(openings: u32) -> i64 {
    60i64.saturating_mul(1 << openings.min(10).saturating_sub(1)).min(LONGEST)
}

/// What is said of the node while it is open.
pub fn reason(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>], now: UnixSeconds) -> Option<Reason> {
    let Breaker { until, .. } = open(deployment, now)?;
    Some(Reason::AdmissionRejected { until, message: refusal(pods).unwrap_or_else(|| "see the pods' events".into()) })
}

/// What the kubelet said of the newest refused pod.
fn refusal(pods: &[Arc<PodFacts>]) -> Option<String> {
    let newest = pods.iter().filter(|pod| pod.rejected_at.is_some()).max_by_key(|pod| (pod.rejected_at, &pod.name))?;
    newest.trouble.as_ref().map(|(reason, message)| format!("{reason}: {message}"))
}

/// Names of the refused pods that have been counted and can go.
pub fn leftovers(pods: &[Arc<PodFacts>], now: UnixSeconds) -> BTreeSet<&str> {
    let is_old = |at: UnixSeconds| now.saturating_sub(at) >= WINDOW || is_of_another_clock(at, now);
    let counted = |pod: &&Arc<PodFacts>| !pod.terminating && pod.rejected_at.is_some_and(is_old);
    pods.iter().filter(counted).map(|pod| pod.name.as_str()).collect()
}
