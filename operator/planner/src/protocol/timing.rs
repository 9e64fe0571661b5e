//! Times of marks, turned into yes, no and when.

use crate::{
    facts::NodeFacts,
    reason::Reason,
    spec::{DEFAULT_GRACE, ResolvedSpec},
};
use crds::{UnixSeconds, holders::Entry, ingress_daemon_set::OnDetachTimeout};

/// How far a clock may be ahead of another: a detacher's timestamp this much older than our mark still answers it.
const SKEW: i64 = 5;

/// How long an update waits for the taint of a gate, in seconds: the operator writes both, within moments. Beyond that the gate is
/// hindered, and says so itself; updates are no reason to be hindered, too.
pub(crate) const TAINT_WITHIN: i64 = 60;

/// Counted seconds after which a period is certainly over: one more than its length, because whole seconds are counted and a mark may be
/// almost a second younger than its count. A period of 0 is over at once.
pub(crate) fn after(seconds: i64) -> i64 {
    seconds.saturating_add(i64::from(seconds > 0))
}

/// When a time of another clock was; one in the future counts from first sight.
fn began(stored: UnixSeconds, now: UnixSeconds, first_seen: UnixSeconds) -> UnixSeconds {
    if stored > now { first_seen.min(now) } else { stored }
}

/// What the marks of a grant carry.
#[derive(Clone, Copy, Debug)]
pub struct Marked<'a> {
    /// Time of the decision.
    pub now: UnixSeconds,
    /// For how many seconds the Deployment mark has been seen, when it is in use.
    pub token: Option<i64>,
    /// Our entry on the Node, when the Node mark is in use, and for how many seconds it has been seen.
    pub entry: Option<(&'a Entry, i64)>,
    /// Facts of the Node object; absent if there is none.
    pub node: Option<&'a NodeFacts>,
}

/// The grace of all marks: `None` when it is over.
pub fn grace(settings: &ResolvedSpec, marked: &Marked<'_>) -> Option<Reason> {
    let by_deployment = marked.token.map(|waited| after(settings.deployment_grace).saturating_sub(waited));
    let by_node = marked.entry.map(|(_, waited)| after(settings.node_grace).saturating_sub(waited));
    let until = marked.now.saturating_add(by_deployment.max(by_node).unwrap_or(0));
    let plain = || (marked.now < until).then_some(Reason::GracePeriod { until });
    let (Some((entry, waited)), Some(timestamp)) = (marked.entry, &settings.timestamp) else { return plain() };
    // What a detacher answers is its own time: here the time counts at which it was asked, however late that arrived.
    let seen = marked.now.saturating_sub(waited);
    match detached_at(&timestamp.key, began(entry.time, marked.now, seen), marked.node) {
        DetacherAnswer::At(time) => {
            let until = until.max(began(time, marked.now, seen).saturating_add(after(timestamp.grace)));
            (marked.now < until).then_some(Reason::GracePeriod { until })
        }
        missing => {
            if waited < settings.detach_timeout {
                let until = seen.saturating_add(settings.detach_timeout);
                return Some(match missing {
                    DetacherAnswer::Unreadable => Reason::BadTimestamp(timestamp.key.clone()),
                    DetacherAnswer::None | DetacherAnswer::At(_) => Reason::WaitingForDetacher { until },
                });
            }
            match settings.on_detach_timeout {
                OnDetachTimeout::Proceed => plain(),
                OnDetachTimeout::Halt | OnDetachTimeout::Abort => Some(Reason::DetachTimeout),
            }
        }
    }
}

/// The grace of a mark that has been seen for so long when the spec, which would say it, is not valid.
pub fn default_grace(now: UnixSeconds, waited: i64) -> Option<Reason> {
    let left = after(DEFAULT_GRACE).saturating_sub(waited);
    (left > 0).then_some(Reason::GracePeriod { until: now.saturating_add(left) })
}

/// Whether the node, which has been seen attached for so many seconds, has soaked: `None` when it has.
///
/// `alone`: no other resource holds the key, so the detacher is expected to let go of the node.
pub fn soak(
    settings: &ResolvedSpec,
    now: UnixSeconds,
    waited: i64,
    attached: Option<&Entry>,
    alone: bool,
    node: Option<&NodeFacts>,
) -> Option<Reason> {
    let left = after(settings.attach_soak).saturating_sub(waited);
    if left > 0 {
        return Some(Reason::AttachSoak { until: now.saturating_add(left) });
    }
    let timestamp = settings.timestamp.as_ref().filter(|_| attached.is_some() && alone)?;
    let waiting = node.is_some_and(|node| node.annotations.contains_key(&timestamp.key)) && waited < settings.detach_timeout;
    waiting.then_some(Reason::WaitingForAttachment)
}

enum DetacherAnswer {
    None,
    At(UnixSeconds),
    Unreadable,
}

/// When the detacher deregistered the node, if it did so after we asked.
fn detached_at(key: &str, started: UnixSeconds, node: Option<&NodeFacts>) -> DetacherAnswer {
    let Some(text) = node.and_then(|node| node.annotations.get(key)) else { return DetacherAnswer::None };
    match chrono::DateTime::parse_from_rfc3339(text) {
        Err(_) => DetacherAnswer::Unreadable,
        Ok(time) if time.timestamp() >= started.saturating_sub(SKEW) => DetacherAnswer::At(time.timestamp()),
        Ok(_) => DetacherAnswer::None,
    }
}
