//! P12: nothing of ours remains after deletion.

use crds::names;
use serde_json::Value;

use super::{
    Audit, Kind, Property,
    cluster_state::{holders, is_binding_of, resource},
    observation::ObjectExt,
};

impl Audit<'_> {
    /// At the moment the resource is gone: the finalizer was the last thing to go, so all else is gone before.
    pub(super) fn judge_remains(&mut self, deleted: &Value) {
        let uid8 = names::uid8(deleted.uid()).to_owned();
        let label = names::member_label(&uid8);
        let mut remains = Vec::new();
        for node in self.cluster.of(Kind::Node) {
            if node.label(&label).is_some() {
                remains.push(format!("label {label} of node {}", node.name()));
            }
            if holders(node).contains_key(&uid8) {
                remains.push(format!("the entry of node {}", node.name()));
            }
        }
        let bindings = self.cluster.of(Kind::ClusterRoleBinding);
        remains.extend(
            bindings.filter(|binding| is_binding_of(binding, &uid8)).map(|binding| format!("ClusterRoleBinding {}", binding.name())),
        );
        if !remains.is_empty() {
            self.report(Property::NothingRemains, format!("{} was deleted, but not {}", deleted.name(), remains.join(", ")));
        }
        self.deleted_resources.insert(uid8, self.now);
    }

    /// At the end: what the garbage collector may take a moment for.
    pub(super) fn judge_late_remains(&mut self) {
        let left: Vec<_> = self
            .cluster
            .members()
            .filter(|deployment| self.deleted_resources.contains_key(resource(deployment)))
            .map(|deployment| deployment.name().to_owned())
            .collect();
        if !left.is_empty() {
            self.report(Property::NothingRemains, format!("Deployments of deleted resources are left: {}", left.join(", ")));
        }
    }
}
