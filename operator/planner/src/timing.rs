//! Times of marks, turned into yes, no and when.

use crate::{
    hold::Hold,
    settings::{DEFAULT_GRACE, Settings},
    snapshot::NodeFacts,
};
use crds::{holders::Entry, ingress_daemon_set::OnDetachTimeout, token::Token};

/// How far a clock may be ahead of another: a detacher's timestamp this much older than our mark still answers it.
const SKEW: i64 = 5;

/// When a period that began at `stored` is over for certain: stored times are cut to whole seconds, and so is now, so that
/// a mark may be almost a second younger than the difference says.
pub(crate) fn after(stored: i64, seconds: i64) -> i64 {
    stored.saturating_add(seconds).saturating_add(i64::from(seconds > 0))
}

/// When a stored time was; one in the future counts from first sight.
fn began(stored: i64, now: i64, first_seen: i64) -> i64 {
    if stored > now { first_seen.min(now) } else { stored }
}

/// Since when a load balancer can have heard of a mark: not before it was seen, for the write that set it may have been under way
/// for long; and not before the time that it says, unless that is still to come. Seen in the very next second it is no later than
/// [`after`] allows for.
fn in_effect(stored: i64, now: i64, first_seen: i64) -> i64 {
    began(stored, now, first_seen).max(first_seen.min(now).saturating_sub(1))
}

/// What the marks of a grant carry.
#[derive(Clone, Copy, Debug)]
pub struct Marked<'a> {
    /// Now, seconds since 1970.
    pub now: i64,
    /// The Deployment's token, when the Deployment mark is in use, and since when this process has seen it.
    pub token: Option<(&'a Token, i64)>,
    /// Our entry on the Node, when the Node mark is in use, and since when this process has seen it.
    pub entry: Option<(&'a Entry, i64)>,
    /// The Node.
    pub node: Option<&'a NodeFacts>,
}

/// The grace of all marks: `None` when it is over.
pub fn grace(settings: &Settings, marked: &Marked<'_>) -> Option<Hold> {
    let from = |stored, seen| in_effect(stored, marked.now, seen);
    let by_deployment = marked.token.map(|(token, seen)| after(from(token.since, seen), settings.deployment_grace));
    let by_node = marked.entry.map(|(entry, seen)| after(from(entry.time, seen), settings.node_grace));
    let until = by_deployment.max(by_node).unwrap_or(marked.now);
    let plain = || (marked.now < until).then_some(Hold::GracePeriod { until });
    let (Some((entry, seen)), Some(timestamp)) = (marked.entry, &settings.timestamp) else { return plain() };
    // What a detacher answers is its own time: here the time counts at which it was asked, however late that arrived.
    let started = began(entry.time, marked.now, seen);
    match detached_at(&timestamp.key, started, marked.node) {
        Answer::At(time) => {
            let until = until.max(after(began(time, marked.now, seen), timestamp.grace));
            (marked.now < until).then_some(Hold::GracePeriod { until })
        }
        missing => {
            let deadline = started.saturating_add(settings.detach_timeout);
            if marked.now < deadline {
                return Some(match missing {
                    Answer::Unreadable(text) => Hold::BadTimestamp(text),
                    Answer::None | Answer::At(_) => Hold::WaitingForDetacher { until: deadline },
                });
            }
            match settings.on_detach_timeout {
                OnDetachTimeout::Proceed => plain(),
                OnDetachTimeout::Halt | OnDetachTimeout::Abort => Some(Hold::DetachTimeout),
            }
        }
    }
}

/// The grace of a mark of this time when the spec, which would say it, is not valid.
pub fn default_grace(now: i64, first_seen: i64, stored: i64) -> Option<Hold> {
    let until = after(in_effect(stored, now, first_seen), DEFAULT_GRACE);
    (now < until).then_some(Hold::GracePeriod { until })
}

/// Whether the node has soaked after its attachment: `None` when it has.
///
/// `alone`: no other resource holds the key, so the detacher is expected to let go of the node.
pub fn soak(
    settings: &Settings,
    now: i64,
    closed_at: i64,
    attached: Option<&Entry>,
    alone: bool,
    node: Option<&NodeFacts>,
) -> Option<Hold> {
    let since = attached.map_or(closed_at, |entry| entry.time.max(closed_at)).min(now);
    let until = after(since, settings.attach_soak);
    if now < until {
        return Some(Hold::AttachSoak { until });
    }
    let timestamp = settings.timestamp.as_ref().filter(|_| attached.is_some() && alone)?;
    let waiting =
        node.is_some_and(|node| node.annotations.contains_key(&timestamp.key)) && now < since.saturating_add(settings.detach_timeout);
    waiting.then_some(Hold::WaitingForAttachment)
}

enum Answer {
    None,
    At(i64),
    Unreadable(String),
}

/// When the detacher deregistered the node, if it did so after we asked.
fn detached_at(key: &str, started: i64, node: Option<&NodeFacts>) -> Answer {
    let Some(text) = node.and_then(|node| node.annotations.get(key)) else { return Answer::None };
    match chrono::DateTime::parse_from_rfc3339(text) {
        Err(_) => Answer::Unreadable(text.chars().take(64).collect()),
        Ok(time) if time.timestamp() >= started.saturating_sub(SKEW) => Answer::At(time.timestamp()),
        Ok(_) => Answer::None,
    }
}
