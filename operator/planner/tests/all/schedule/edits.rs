//! What a person changes in a Deployment of ours, beneath the operator.

use crate::world::World;
use crds::names;
use serde_json::Value;

#[derive(Clone, Copy, Debug)]
pub enum Edit {
    Replicas(u8),
    Image,
    /// A label of the template.
    PodLabel,
    /// A label of the Deployment itself.
    Label,
    Strategy,
    Paused(bool),
    /// The token goes; once only, because a write that was decided without it could come late, after it went again.
    Token,
}

pub const EDITS: [Edit; 10] = [
    Edit::Replicas(0),
    Edit::Replicas(1),
    Edit::Replicas(3),
    Edit::Image,
    Edit::PodLabel,
    Edit::Label,
    Edit::Strategy,
    Edit::Paused(true),
    Edit::Paused(false),
    Edit::Token,
];

impl Edit {
    pub fn make(self, world: &mut World, node: &str) {
        let name = format!("edge-{node}");
        let Some(deployment) = world.cluster.deployments.get(&name) else { return };
        if matches!(self, Self::Token) && !world.audit.may_lose_its_token(deployment) {
            return;
        }
        world.edit_deployment(&name, |deployment| self.apply(deployment));
    }

    fn apply(self, deployment: &mut Value) {
        let spec = &mut deployment["spec"];
        match self {
            Self::Replicas(replicas) => spec["replicas"] = replicas.into(),
            Self::Image => spec["template"]["spec"]["containers"][0]["image"] = "app:77".into(),
            Self::PodLabel => spec["template"]["metadata"]["labels"]["app"] = "other".into(),
            Self::Strategy => spec["strategy"] = serde_json::json!({"type": "Recreate"}),
            Self::Paused(paused) => spec["paused"] = paused.into(),
            Self::Label => deployment["metadata"]["labels"][names::NODE_HASH_LABEL] = "other".into(),
            Self::Token => {
                if let Some(labels) = deployment["metadata"]["labels"].as_object_mut() {
                    labels.remove(names::TOKEN_LABEL);
                }
            }
        }
    }
}
