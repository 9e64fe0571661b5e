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
fn after(stored: i64, seconds: i64) -> i64 {
    stored.saturating_add(seconds).saturating_add(i64::from(seconds > 0))
}

/// When a stored time was; one in the future counts from first sight.
fn began(stored: i64, now: i64, first_seen: i64) -> i64 {
    if stored > now { first_seen.min(now) } else { stored }
}

/// What the marks of a grant carry.
#[derive(Clone, Copy, Debug)]
pub struct Marked<'a> {
    /// Now, seconds since 1970.
    pub now: i64,
    /// Since when this process has known the marks of this id; for stored times that lie in the future.
    pub first_seen: i64,
    /// The Deployment's token, when the Deployment mark is in use.
    pub token: Option<&'a Token>,
    /// Our entry on the Node, when the Node mark is in use.
    pub entry: Option<&'a Entry>,
    /// The Node.
    pub node: Option<&'a NodeFacts>,
}

/// The grace of all marks: `None` when it is over.
pub fn grace(settings: &Settings, marked: &Marked<'_>) -> Option<Hold> {
    let from = |stored: i64| began(stored, marked.now, marked.first_seen);
    let by_deployment = marked.token.map(|token| after(from(token.since), settings.deployment_grace));
    let by_node = marked.entry.map(|entry| after(from(entry.time), settings.node_grace));
    let until = by_deployment.max(by_node).unwrap_or(marked.now);
    let plain = || (marked.now < until).then_some(Hold::GracePeriod { until });
    let (Some(entry), Some(timestamp)) = (marked.entry, &settings.timestamp) else { return plain() };
    let started = from(entry.time);
    match detached_at(&timestamp.key, started, marked.node) {
        Answer::At(time) => {
            let until = until.max(after(from(time), timestamp.grace));
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
    let until = after(began(stored, now, first_seen), DEFAULT_GRACE);
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
