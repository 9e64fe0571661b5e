//! P8: nothing starts while the resource is paused, outside its windows, or while its rollout halts. P9: what failed is not begun
//! again.
//!
//! A grant is judged by the spec and status that its write went over: that write carries their resourceVersion, so the
//! operator had read just these.

use chrono::{DateTime, TimeDelta, Utc};
use crds::ingress_daemon_set::Window;
use rollout_windows::Windows;
use serde_json::Value;

use super::{
    Audit, Property,
    changes::earlier,
    observation::{ObjectExt, Observation},
};

/// Grants that need no admission: they take over a slot, or serve nodes that go anyway.
const WITHOUT_ADMISSION: [&str; 3] = ["Abort", "Drain", "Remove"];
/// How much later than it was decided on a grant may be seen: the operator looks at its clock, writes, and the watch delivers.
const SEEN_LATE: TimeDelta = TimeDelta::seconds(10);
/// How far the operator's clock may be ahead of ours, as it allows detachers.
const SKEW: TimeDelta = TimeDelta::seconds(5);

impl Audit<'_> {
    /// Looks for nodes that got a grant while nothing may be begun.
    pub(super) fn judge_grants(&mut self, before: Option<&Value>, observation: &Observation) {
        let after = &observation.object;
        let Some(old) = before.map(|before| &before["status"]["rollout"]) else { return };
        // What a ledger has that was rebuilt had been begun before.
        if !old["rebuilding"].is_null() {
            return;
        }
        let Some(new) = after["status"]["rollout"]["grants"].as_object() else { return };
        for (node, grant) in new.iter().filter(|(node, _)| old["grants"][node].is_null()) {
            let Some(before) = before else { continue };
            if let Some(why) = has_failed_here(before, after, node, grant) {
                self.report(Property::FailedOnce, format!("node {node} got a grant of {} for a revision that {why}", after.name()));
            }
            let Some(why) = self.held(before, after, grant, observation.at) else { continue };
            self.report(Property::HeldStartsNothing, format!("node {node} got a grant of {} while {why}", after.name()));
        }
    }

    /// Why nothing of the grant's kind may be begun.
    fn held(&self, before: &Value, after: &Value, grant: &Value, at: DateTime<Utc>) -> Option<&'static str> {
        let kind = grant["kind"].as_str().unwrap_or_default();
        if WITHOUT_ADMISSION.contains(&kind) {
            return None;
        }
        let spec = &before["spec"];
        if spec["paused"].as_bool() == Some(true) {
            return Some("it is paused");
        }
        let rolling = &spec["updateStrategy"]["rollingUpdate"];
        if waits_for_detacher(rolling, before) && waits_for_detacher(rolling, after) {
            return Some("a detacher has not answered for another node");
        }
        if kind != "Update" {
            return None;
        }
        // What fails, or is tried again, is noted in the write in which the next node may be begun: both sides must say so.
        if has_failed(rolling, before, grant) && has_failed(rolling, after, grant) {
            return Some("its revision has failed");
        }
        // From afar a watch may lag by more than is allowed for here: then the grant's own time counts.
        let given = if self.expected.from_afar { earlier(grant["grantedAt"].as_i64().unwrap_or(i64::MAX), at) } else { at };
        is_closed(rolling, given - SEEN_LATE, at + SKEW).then_some("no window is open")
    }
}

/// A node is detached, its detacher silent, and no further node may follow it.
fn waits_for_detacher(rolling: &Value, resource: &Value) -> bool {
    let halts = rolling["onDetachTimeout"].as_str().is_none_or(|policy| policy == "Halt");
    let states = resource["status"]["nodeStates"].as_array();
    halts && states.is_some_and(|states| states.iter().any(|state| state["reason"] == "DetachTimeout"))
}

/// The grant's revision has failed on as many nodes as make its rollout halt, or its pods restart too often. A slot that a
/// person freed is no failure.
fn has_failed(rolling: &Value, resource: &Value, grant: &Value) -> bool {
    let course = &resource["status"]["rollout"]["course"];
    if course["revision"] != grant["revision"] {
        return false;
    }
    let reasons = course["failed"].as_object().into_iter().flatten().map(|(_, failure)| failure["reason"].as_str().unwrap_or_default());
    let counted: Vec<_> = reasons.filter(|reason| !matches!(*reason, "Released" | "OutBefore")).collect();
    let most = rolling["maxFailedNodes"].as_u64().unwrap_or(1).max(1);
    counted.contains(&"Restarts") || counted.len() as u64 >= most
}

/// The revision of an update was taken back, or has failed on this node. As with a halt both sides must say so; who pins
/// a revision may want the one that failed.
fn has_failed_here(before: &Value, after: &Value, node: &str, grant: &Value) -> Option<&'static str> {
    let of_both = |says: &dyn Fn(&Value) -> bool| says(&before["status"]["rollout"]) && says(&after["status"]["rollout"]);
    let revision = grant["revision"].as_str().filter(|_| grant["kind"] == "Update")?;
    let newest = after["status"]["revisions"]["update"] == revision;
    let pinned = !before["spec"]["rollbackTo"].is_null();
    if newest && !pinned && of_both(&|ledger| ledger["rolledBack"]["from"] == revision) {
        return Some("was rolled back");
    }
    let failed = |ledger: &Value| ledger["course"]["revision"] == revision && !ledger["course"]["failed"][node].is_null();
    of_both(&failed).then_some("has failed there")
}

/// At no moment from the first to the last a window was open. Windows that cannot be read hold nothing: such a spec is not valid.
fn is_closed(rolling: &Value, first: DateTime<Utc>, last: DateTime<Utc>) -> bool {
    let windows: Vec<Window> = serde_json::from_value(rolling["windows"].clone()).unwrap_or_default();
    let Ok(windows) = Windows::parse(&windows) else { return false };
    let opening = windows.at(first);
    !opening.open && opening.changes_at.is_none_or(|opens| opens > last)
}
