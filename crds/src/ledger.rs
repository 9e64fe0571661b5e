//! The grant ledger, `status.rollout`: who may disrupt which node. Writer: the operator, with the resourceVersion it read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Permissions to disrupt nodes, and the source of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// The next id that was never used. Ids only grow; one that was reserved and not used is lost.
    #[serde(default)]
    pub next_id: u64,
    /// The grants, by node name.
    #[serde(default)]
    pub grants: BTreeMap<String, Grant>,
    /// Set while a lost ledger is rebuilt: every object is first fenced with this id, and no grant is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilding: Option<u64>,
    /// The rollout of the revision that nodes are to run.
    #[serde(rename = "course", default, skip_serializing_if = "Option::is_none")]
    pub rollout_state: Option<RolloutState>,
    /// The automatic rollback in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// Nodes that broke after they were attached with a revision that not all nodes have run, at most 100.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub suspects: BTreeMap<String, Suspect>,
    /// Health ports of the last spec that was valid: another resource that asks for one of them later does not get it where this one uses
    /// the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub served_ports: Vec<ServedPort>,
}

/// A health port that the operator has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServedPort {
    /// The port.
    pub port: u16,
    /// Unix seconds since when specs with it have been valid.
    pub since: i64,
}

impl crate::IngressDaemonSet {
    /// The ledger in its status; absent when never written or wiped.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.status.as_ref()?.rollout.as_ref()
    }
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

    /// By how many seconds what is counted here is at most ahead of an earlier ledger; what begins anew is news at once.
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

/// How the rollout of one revision has gone so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutState {
    /// The revision.
    pub revision: String,
    /// Since when it is the wanted one, unix seconds.
    pub since: i64,
    /// When a node was last finished, or the rollout began; moved by the time for which its clock stood still.
    pub progressed_at: i64,
    /// Seconds since then for which a node was under way, nothing was shut, and somebody watched.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle: i64,
    /// The same since the rollout began.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spent: i64,
    /// Seconds since a node was last finished for which nodes waited for the proof of the revision, as long as somebody watched.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub proving: i64,
    /// Nodes that ran the revision when it became the wanted one.
    #[serde(default)]
    pub began_with: u32,
    /// Nodes that run it now.
    #[serde(default)]
    pub finished: u32,
    /// Steps of the canary that are done.
    #[serde(default)]
    pub steps_done: u32,
    /// Seconds for which the nodes of the present step serve without a break, as long as somebody watched; absent while they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soaked: Option<i64>,
    /// Step of the canary, counted from 0, whose restarts of containers are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_step: Option<u32>,
    /// Restarts of containers of the revision that do not count, by node: those before that step, and those that a person has looked at
    /// and let pass.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier_restarts: BTreeMap<String, i64>,
    /// What runs the revision has served without a break for `provenAfterSeconds`, once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proved: bool,
    /// Seconds for which it has served so since the last node was attached, as long as somebody watched.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub proof: i64,
    /// Stands for the runs of all containers for which that was counted: what has run anew while nobody watched has broken.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runs: String,
    /// Nodes that were given the revision before it was proved, with the UID of their Node: each keeps a place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reached: BTreeMap<String, String>,
    /// UIDs of Nodes that went, or were not Ready or started anew, after they were given the revision, though nobody had announced it; at
    /// most 100.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(length(max = 100))]
    pub lost: BTreeSet<String>,
    /// What the resource's annotation `…/retry` said: another value lets pass all that failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retry: String,
    /// Nodes on which the revision failed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<String, Failure>,
    /// The same for Nodes that have gone since, by UID, at most 100: another machine is no reason to try the revision again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub failed_nodes: BTreeMap<String, GoneFailure>,
}

/// The revision failed on a node that has gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoneFailure {
    /// The node's name.
    pub node: String,
    /// Unix seconds.
    pub at: i64,
    /// One word.
    pub reason: String,
}

/// A node broke after it was attached: a container restarted, or a pod was not ready or went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspect {
    /// UID of the Node.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// The revision that it runs.
    pub revision: String,
    /// How often the pod restarted, or was not ready for more than 10 seconds, that did so most often; how often pods were evicted by their
    /// kubelet, and the machine was lost.
    #[serde(default, skip_serializing_if = "is_none")]
    pub falls: u32,
    /// What the last of them was, in a word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last: String,
    /// Unix seconds since when it is suspect; absent when it is no more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: i64,
    /// Seconds without a break, as long as somebody watched.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unbroken: i64,
    /// Stands for the runs of the containers for which that was counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runs: String,
    /// Seconds out of service in all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub out: i64,
}

/// The revision failed on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Unix seconds.
    pub at: i64,
    /// One word.
    pub reason: String,
    /// What the Node's annotation `…/retry` said then: another value asks to try again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retry: String,
}

/// A revision failed, and another runs in its place until the template changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// The revision that failed.
    pub from: String,
    /// The revision that runs in its place.
    pub to: String,
    /// Unix seconds.
    pub at: i64,
    /// Why.
    pub reason: String,
}

/// Permission to disrupt one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Fencing id: objects carry it while the grant works on them.
    pub id: u64,
    /// UID of the Node for which it was given; empty when there was no Node object.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Why the node is disrupted.
    pub kind: GrantReason,
    /// Revision that the node gets; for Abort, what it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// How the node is taken out of the load balancer.
    #[serde(default)]
    pub marks: Marks,
    /// Topology domain in which it takes a place, when there were domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Unix seconds of the grant; a retarget keeps it.
    pub granted_at: i64,
    /// Abort after a detach timeout: the revision that was given up. The slot stays taken until something else is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// A person has ordered the slot to be freed: the node is attached as it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// The node was out of service when it was given: its update says nothing of the revision, and the proof goes on meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_before: bool,
    /// For how long it has waited for what it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub waited: Vec<Wait>,
}

/// For how long a grant has waited for something, as long as somebody watched: neither an absence of the operator nor a clock that is set
/// shortens or lengthens a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What for.
    #[serde(rename = "for")]
    pub what: WaitFor,
    /// The time that is stored with it, unix seconds: another one is another wait.
    pub since: i64,
    /// Seconds.
    pub seconds: i64,
}

/// What a grant waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum WaitFor {
    /// A gate to put its taint on the Node.
    Taint,
    /// The load balancer to look away, since the Deployment is marked.
    DeploymentMark,
    /// The same, or a detacher's timestamp, since the Node is marked.
    NodeMark,
    /// Pods to be what they should be: the time of the node's deadline.
    Pods,
    /// The load balancer to look at the node again.
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
    /// The node runs another revision than it should.
    #[default]
    Update,
    /// Somebody changed what the operator sets, or a token is stuck.
    Repair,
    /// Fewer replicas.
    Shrink,
    /// More replicas on a node that serves.
    Grow,
    /// The node is no longer chosen.
    Remove,
    /// The node is about to be taken away: an autoscaler's taint, out-of-service, or its deletion.
    Drain,
    /// The way back: nothing but the token changes.
    Abort,
}

/// Which objects carry a grant's mark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    /// The Deployment: its token makes the health check fail.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deployment: bool,
    /// Annotation keys on the Deployment that CLOSE removes: the user's, and those of grants that this one replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployment_keys: Vec<String>,
    /// The Node: the annotation that asks a detacher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Annotation>,
}

/// An annotation that is set, or a label of a Node; the value may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Annotation {
    /// Its key; `label:` and its key where it is a label.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_of_a_course_are_no_news_and_all_that_a_decision_rests_on_is() {
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
    fn seconds_that_were_counted_are_few_ahead_and_those_that_begin_anew_are_news() {
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
