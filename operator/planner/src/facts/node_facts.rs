//! What is read of a Node.

use super::label_map::LabelMap;
use crds::{UnixSeconds, holders::Holders, names, node_readiness_gate::ConditionStatus};
use k8s_openapi::api::core::v1::Taint;
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    sync::Arc,
};

/// What is read of a Node.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field or condition of the object")]
pub struct NodeFacts {
    /// UID of the Node object: another one if the node is deleted and created again.
    pub uid: String,
    /// `resourceVersion` at which the object was read.
    pub resource_version: String,
    /// Labels of the Node.
    pub labels: LabelMap,
    /// Annotations of the Node.
    pub annotations: LabelMap,
    /// Has an annotation map at all: JSON Patch cannot add into a missing one.
    pub has_annotations: bool,
    /// Taints of the Node, in their order in the spec.
    pub taints: Vec<Taint>,
    /// The Node is cordoned (`spec.unschedulable`).
    pub unschedulable: bool,
    /// The condition Ready is True.
    pub ready: bool,
    /// The condition Ready is Unknown: the kubelet says nothing any more.
    pub silent: bool,
    /// The Node has a deletion timestamp.
    pub deleting: bool,
    /// IP address at which the node is reached inside the cluster.
    pub address: Option<String>,
    /// The first such address of IPv4, where `address` is another one.
    pub ipv4_address: Option<String>,
    /// Conditions of the Node's status.
    pub conditions: Vec<NodeCondition>,
    /// Boot ID: another one after each start of the machine.
    pub boot_id: String,
    /// Machine ID: another one if another machine takes the name.
    pub machine_id: String,
    /// Creation of the Node.
    pub created: UnixSeconds,
}

/// A condition of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Type of the condition, such as Ready.
    pub type_: Arc<str>,
    /// Status of the condition: True, False or Unknown.
    pub status: ConditionStatus,
    /// When it was last said.
    pub heartbeat: UnixSeconds,
    /// When it last changed.
    pub transition: UnixSeconds,
}

impl NodeFacts {
    /// The resource of this UID, of which these are the first characters, uses the node, as its label says.
    pub fn is_used_by(&self, uid8: &str) -> bool {
        self.labels.contains_key(&names::member_label(uid8))
    }

    /// IP address of the node at which a process is reached that listens on all addresses, or, with `ipv4_alone`, on all of IPv4.
    pub fn listens_at(&self, ipv4_alone: bool) -> Option<&String> {
        let is_ipv4 = |address: &&String| address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4());
        let mut all = self.address.iter().chain(&self.ipv4_address);
        if ipv4_alone { all.find(is_ipv4) } else { all.next() }
    }

    /// The same, but for what changes with every heartbeat.
    pub fn equals_ignoring_heartbeats(&self, other: &Self) -> bool {
        let said = |condition: &NodeCondition| NodeCondition { heartbeat: 0, ..condition.clone() };
        self.conditions.len() == other.conditions.len()
            && self.conditions.iter().map(said).eq(other.conditions.iter().map(said))
            && self.is_same_but_conditions(other)
    }

    /// The same to whom conditions other than Ready mean nothing.
    pub fn is_same_but_conditions(&self, other: &Self) -> bool {
        *self == Self { resource_version: self.resource_version.clone(), conditions: self.conditions.clone(), ..other.clone() }
    }

    /// What decides on who may use the node, its labels and taints, as a number; equal for equal ones within one process.
    pub fn labels_and_taints_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (key, value) in self.labels.entries() {
            (key, value).hash(&mut hasher);
        }
        for taint in &self.taints {
            (&taint.key, &taint.effect, &taint.value).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Value of what marks the Node: an annotation, or a label.
    pub fn mark(&self, key: &str) -> Option<&String> {
        key.strip_prefix(crds::names::LABEL_MARK).map_or_else(|| self.annotations.get(key), |key| self.labels.get(key))
    }

    /// The holders annotation; `Err` when somebody made it unreadable.
    pub fn holders(&self) -> Result<Holders, serde_json::Error> {
        crds::holders::parse(self.annotations.get(crds::names::HOLDERS_ANNOTATION).map(String::as_str))
    }
}
