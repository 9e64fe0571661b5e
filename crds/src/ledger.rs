//! The grant ledger, `status.rollout`: who may disrupt which node. Writer: the operator, with the resourceVersion it read.

use crate::duration::UnixSeconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Permissions to disrupt nodes, and the source of grant ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// Next id that was never used. Ids only grow; a reserved id that is not used is lost.
    #[serde(default)]
    pub next_id: u64,
    /// Grants by node name.
    #[serde(default)]
    pub grants: BTreeMap<String, Grant>,
    /// Set while the operator rebuilds a lost ledger: it first fences every object with this id, and gives no grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilding: Option<u64>,
    /// Rollout of the wanted revision.
    #[serde(rename = "course", default, skip_serializing_if = "Option::is_none")]
    pub rollout_state: Option<RolloutState>,
    /// Automatic rollback in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// Nodes that broke after they were attached with a revision that not all nodes have run, at most 100. Those with `since` are suspect now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub suspects: BTreeMap<String, Suspect>,
    /// Health ports of the last valid spec. Another resource that asks for one of them later does not get it on
    /// nodes that this resource uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub served_ports: Vec<ServedPort>,
    /// Key by which the last valid spec marks Nodes. Of two resources that ask for other values of a key, the one that has had it for longer
    /// comes first on nodes that both use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach_key: Option<DetachKey>,
}

/// Key of a mark on Nodes that the operator has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DetachKey {
    /// Key of the annotation, or of the label after `label:`.
    pub key: String,
    /// Since when the valid spec has had this key and the resource has used a node, Unix seconds. 0 before the first node.
    pub since: UnixSeconds,
}

/// Health port that the operator has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServedPort {
    /// Number of the port.
    pub port: u16,
    /// Since when the valid spec has had this port and the resource has used a node, Unix seconds. 0 before the first node.
    pub since: UnixSeconds,
}

impl Ledger {
    /// Nothing that a decision rests on differs: counts and times of the rollout are seen again by whoever looks.
    pub fn equals_ignoring_seconds(&self, other: &Self) -> bool {
        let strip = |ledger: &Self| {
            let ledger = ledger.without_seconds();
            let rollout_state =
                ledger.rollout_state.map(|rollout| RolloutState { progressed_at: 0, began_with: 0, finished: 0, ..rollout });
            Self { rollout_state, ..ledger }
        };
        strip(self) == strip(other)
    }

    /// The same without what only counts seconds.
    #[must_use]
    pub fn without_seconds(&self) -> Self {
        let mut ledger = self.clone();
        if let Some(rollout) = &mut ledger.rollout_state {
            (rollout.idle, rollout.spent, rollout.proving, rollout.proof) = (0, 0, 0, 0);
            rollout.runs.clear();
            rollout.soaked = rollout.soaked.map(|_| 0);
        }
        for suspect in ledger.suspects.values_mut() {
            (suspect.unbroken, suspect.out) = (0, 0);
            suspect.runs.clear();
        }
        ledger.grants.values_mut().for_each(|grant| grant.waited.clear());
        ledger
    }

    /// By how many seconds what is counted here is at most ahead of an earlier ledger; a count that became smaller is news at once.
    pub fn ahead_of(&self, other: &Self) -> i64 {
        let courses = self.rollout_state.iter().zip(&other.rollout_state).flat_map(|(one, other)| {
            let soaked = (one.soaked.unwrap_or(0), other.soaked.unwrap_or(0));
            [(one.idle, other.idle), (one.proving, other.proving), (one.proof, other.proof), soaked]
        });
        let suspects = self.suspects.iter().filter_map(|(node, one)| Some((one, other.suspects.get(node)?)));
        let suspects = suspects.flat_map(|(one, other)| [(one.unbroken, other.unbroken), (one.out, other.out)]);
        let waits = self.grants.iter().flat_map(|(node, grant)| {
            let known = other.grants.get(node).map_or(&[][..], |grant| &grant.waited);
            let before = |wait: &Wait| known.iter().find(|known| (known.what, known.since) == (wait.what, wait.since));
            grant.waited.iter().map(move |wait| (wait.seconds, before(wait).map_or(0, |known| known.seconds)))
        });
        let ahead = |(one, other): (i64, i64)| if one < other { i64::MAX } else { one.saturating_sub(other) };
        courses.chain(suspects).chain(waits).map(ahead).max().unwrap_or(0)
    }
}

/// Progress of the rollout of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutState {
    /// The revision.
    pub revision: String,
    /// When the revision became the wanted one, Unix seconds.
    pub since: UnixSeconds,
    /// When a node was last finished or the rollout began, Unix seconds, plus the time for which the clock stood still.
    pub progressed_at: UnixSeconds,
    /// Watched seconds since then in which a node was being updated and the rollout was not held up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle: i64,
    /// The same since the beginning of the rollout.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spent: i64,
    /// Watched seconds since a node was last finished in which nodes waited for the proof of the revision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub proving: i64,
    /// Number of nodes that ran the revision when it became the wanted one.
    #[serde(default)]
    pub began_with: u32,
    /// Number of nodes that run the revision now.
    #[serde(default)]
    pub finished: u32,
    /// Number of finished steps of the canary.
    #[serde(default)]
    pub steps_done: u32,
    /// Watched seconds for which the nodes of the present step have served without a break. Absent while they do not serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soaked: Option<i64>,
    /// Step of the canary whose container restarts are counted; the first is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_step: Option<u32>,
    /// Container restarts of the revision that do not count, by node: those before that step, and those that a person accepted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier_restarts: BTreeMap<String, i64>,
    /// The revision is proved, or needs no proof: its nodes have once served without a break for `provenAfterSeconds`, but for noise and for
    /// nodes that failed or are lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proved: bool,
    /// Watched seconds for which its nodes have served without a break since the last node was attached.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub proof: i64,
    /// Fingerprint of the container runs for which `proof` was counted. It shows restarts that happened while nobody watched.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runs: String,
    /// Nodes that got the revision before it was proved, with the UID of their Node. Each keeps its slot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reached: BTreeMap<String, String>,
    /// UIDs of Nodes that were deleted, not Ready or rebooted without announcement after they got the revision; at most 100.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(length(max = 100))]
    pub lost: BTreeSet<String>,
    /// Names of the Nodes in `lost`, by UID, as far as they are known: a Node that is gone cannot be asked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub lost_nodes: BTreeMap<String, String>,
    /// Last seen value of the resource's annotation `…/retry`. A new value accepts all failures so far.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retry: String,
    /// Nodes on which the revision failed, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<String, Failure>,
    /// The same for Nodes that no longer exist, by UID; at most 100. A replacement machine does not cause another try.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub failed_nodes: BTreeMap<String, GoneFailure>,
}

/// Failure of the revision on a node that no longer exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoneFailure {
    /// Name of the node.
    pub node: String,
    /// When it happened, Unix seconds.
    pub at: UnixSeconds,
    /// Machine-readable reason.
    pub reason: String,
}

/// Node that broke after it was attached: a container restarted, or a pod was not ready or disappeared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspect {
    /// UID of the Node.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Revision that the node runs.
    pub revision: String,
    /// Number of falls: restarts and unready times above 10 seconds of the worst pod, evictions by the kubelet, machine losses.
    #[serde(default, skip_serializing_if = "is_none")]
    pub falls: u32,
    /// Number of times that the machine was lost together with others, so that the revision need not be the cause.
    #[serde(default, skip_serializing_if = "is_none")]
    pub outages: u32,
    /// Machine-readable reason of the last fall.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last: String,
    /// When the node became suspect, Unix seconds. Absent when it is no longer suspect.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: UnixSeconds,
    /// Watched seconds without a break.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unbroken: i64,
    /// Fingerprint of the container runs for which `unbroken` was counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runs: String,
    /// Total seconds out of service.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub out: i64,
}

/// Failure of the revision on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// When it happened, Unix seconds.
    pub at: UnixSeconds,
    /// Machine-readable reason.
    pub reason: String,
    /// Value of the Node's annotation `…/retry` at that time. A new value asks for another try.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retry: String,
}

/// Automatic rollback: another revision replaces a failed one until the template changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// Revision that failed.
    pub from: String,
    /// Revision that replaces it.
    pub to: String,
    /// When it happened, Unix seconds.
    pub at: UnixSeconds,
    /// Reason of the rollback.
    pub reason: String,
}

/// Permission to disrupt one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Fencing id. Objects carry it while the grant works on them.
    pub id: u64,
    /// UID of the Node at the time of the grant. Empty if there was no Node object.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Reason of the disruption.
    pub kind: GrantReason,
    /// Revision that the node gets. For Abort: the revision that it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Marks that take the node out of the load balancer.
    #[serde(default)]
    pub marks: Marks,
    /// Keys of Node marks that the grant had before its target changed. The operator takes off a mark with such a key, even if its flags
    /// do not allow the key any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub former_node_keys: Vec<String>,
    /// Topology domain in which the grant uses a slot. Absent without domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// When the grant was given, Unix seconds. A change of its target keeps the time.
    pub granted_at: UnixSeconds,
    /// Abort after a detach timeout: the abandoned revision. The slot stays in use until the wanted state changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// A person asked to free the slot: the operator attaches the node unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// The node was out of service at the time of the grant: its update says nothing about the revision, and the proof continues.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_before: bool,
    /// Time that the grant has waited, by what it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub waited: Vec<Wait>,
}

/// Watched time that a grant has waited for one thing. An absence of the operator or a changed clock does not alter it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// Kind of wait.
    #[serde(rename = "for")]
    pub what: WaitFor,
    /// Start time that the object stores, Unix seconds. Another start time means another wait.
    pub since: UnixSeconds,
    /// Watched seconds of waiting.
    pub seconds: i64,
}

/// Kind of wait of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum WaitFor {
    /// A gate must put its taint on the Node.
    Taint,
    /// The load balancer must stop sending traffic after the Deployment was marked.
    DeploymentMark,
    /// The load balancer must stop sending traffic, or the detacher must write its timestamp, after the Node was marked.
    NodeMark,
    /// The pods must become complete before the node's deadline.
    Pods,
    /// The load balancer must send traffic to the node again.
    Attached,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_none(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(seconds: &i64) -> bool {
    *seconds == 0
}

/// Why a node is disrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GrantReason {
    /// The node does not run the wanted revision.
    #[default]
    Update,
    /// Fields that the operator sets were changed, or a token is stuck.
    Repair,
    /// Fewer replicas.
    Shrink,
    /// More replicas on a node that serves.
    Grow,
    /// The node is no longer chosen.
    Remove,
    /// The node is about to be removed: an autoscaler's taint, an out-of-service taint, or its deletion.
    Drain,
    /// The node returns: only the token changes.
    Abort,
}

/// Objects that carry the marks of a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    /// The Deployment is marked: its token makes the health check fail.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deployment: bool,
    /// Annotation keys that the operator removes from the Deployment on close: the user's key, and keys of replaced grants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployment_keys: Vec<String>,
    /// Mark of the Node: the annotation or label that takes it out of load balancers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Annotation>,
}

/// Annotation of an object, or label of a Node. The value may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Annotation {
    /// Key. A label has the prefix `label:`.
    pub key: String,
    /// Value.
    #[serde(default)]
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_decisions_rest_on_makes_a_course_news() {
        let with = |rollout_state: RolloutState| Ledger { rollout_state: Some(rollout_state), ..Ledger::default() };
        let before = RolloutState { revision: "a".into(), since: 1, ..RolloutState::default() };
        for same in [
            RolloutState { progressed_at: 2, ..before.clone() },
            RolloutState { idle: 2, ..before.clone() },
            RolloutState { spent: 2, ..before.clone() },
            RolloutState { proving: 2, ..before.clone() },
            RolloutState { began_with: 2, ..before.clone() },
            RolloutState { finished: 2, ..before.clone() },
            RolloutState { proof: 2, ..before.clone() },
        ] {
            assert!(with(before.clone()).equals_ignoring_seconds(&with(same.clone())), "{same:?}");
        }
        for other in [
            RolloutState { revision: "b".into(), ..before.clone() },
            RolloutState { since: 2, ..before.clone() },
            RolloutState { steps_done: 1, ..before.clone() },
            RolloutState { soaked: Some(2), ..before.clone() },
            RolloutState { proved: true, ..before.clone() },
            RolloutState { reached: [("n1".to_owned(), "uid".to_owned())].into(), ..before.clone() },
        ] {
            assert!(!with(before.clone()).equals_ignoring_seconds(&with(other.clone())), "{other:?}");
        }
        assert!(!with(before).equals_ignoring_seconds(&Ledger::default()));
    }

    #[test]
    fn only_a_count_restarted_from_zero_is_news_at_once() {
        let wait = |seconds| Wait { what: WaitFor::Pods, since: 7, seconds };
        let with = |proof, unbroken, waited: &[Wait]| Ledger {
            rollout_state: Some(RolloutState { proof, ..RolloutState::default() }),
            suspects: [("n1".to_owned(), Suspect { unbroken, ..Suspect::default() })].into(),
            grants: [("n2".to_owned(), Grant { waited: waited.to_vec(), ..Grant::default() })].into(),
            ..Ledger::default()
        };
        let before = with(20, 5, &[wait(3)]);
        assert_eq!(before.ahead_of(&before), 0);
        assert_eq!(with(21, 7, &[wait(6)]).ahead_of(&before), 3);
        assert_eq!(with(20, 5, &[wait(3), Wait { since: 8, ..wait(9) }]).ahead_of(&before), 9, "a wait that the other does not know");
        for anew in [with(0, 5, &[wait(3)]), with(20, 0, &[wait(3)])] {
            assert_eq!(anew.ahead_of(&before), i64::MAX);
            assert_eq!(anew.without_seconds(), before.without_seconds());
        }
    }
}
