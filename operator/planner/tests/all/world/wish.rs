//! What the user of the simulated cluster wants, in few knobs.

use super::cluster::HEALTH_PORT;
use crds::{IngressDaemonSetSpec, names};
use serde_json::{Value, json};

/// Keys of the annotation, or the label, that asks the detacher.
pub const KEYS: [&str; 4] = [
    "detacher.example.com/detach",
    "label:detacher.example.com/out",
    "detacher.example.com/detach-too",
    "label:detacher.example.com/out-too",
];
/// Key of the detacher's timestamp.
pub const STAMP: &str = "detacher.example.com/detached-at";
/// Keys of the annotation on the Deployment.
const DEPLOYMENT_KEYS: [&str; 2] = ["example.com/out", "example.com/out-too"];
/// Seconds.
pub const GRACE: i64 = 4;
/// Seconds.
pub const STAMP_GRACE: i64 = 2;
/// Seconds.
pub const DETACH_TIMEOUT: i64 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// The token alone.
    Token,
    /// An annotation on the Deployment.
    Deployment,
    /// An annotation on the Node, which has no health port.
    Node,
    /// Both.
    Both,
    /// On the Node, and the detacher says when.
    Timestamp,
    /// None: pods are replaced on attached nodes.
    Degrade,
}

pub const ALL_MARKS: [Marks; 6] = [Marks::Token, Marks::Deployment, Marks::Node, Marks::Both, Marks::Timestamp, Marks::Degrade];

/// How a budget is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Nodes,
    /// Of which four nodes make that number.
    Percent,
}

/// Label of half the nodes, one of each zone and more.
pub const POOL: (&str, &str) = ("example.com/pool", "a");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// All nodes for ingress.
    All,
    /// Those that `spec.nodeSelector` names besides.
    Spec,
    /// Those that the node selector of the template names, which is part of its revision.
    Template,
}

/// Key of the label that tells domains apart.
pub const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zones {
    /// There are none.
    Ignored,
    /// Each has a budget of one node.
    OneEach,
    /// One is finished before the next.
    OneAtATime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub zones: Zones,
    /// Nodes that must stay available.
    pub minimum: i32,
    /// The same, as a share.
    pub minimum_share: Option<&'static str>,
    pub ignores_not_ready: bool,
    pub image: u8,
    pub budget: i32,
    pub unit: Unit,
    /// Which nodes are chosen.
    pub pool: Pool,
    /// How pods get to their node.
    pub placement: &'static str,
    pub marks: Marks,
    /// Which of the two keys.
    pub key: usize,
    pub pods: i32,
    pub paused: bool,
    pub on_timeout: &'static str,
    pub attach_soak: u32,
    /// Further fields of `rollingUpdate`.
    pub rollout: Value,
    pub on_delete: bool,
    pub rollback_to: Option<i64>,
    /// Image and step.
    pub promote: Option<(u8, u32)>,
    pub history: Option<u32>,
    pub pod_update: &'static str,
    /// Seconds for which pods must be ready to be available.
    pub min_ready: u32,
}

impl Wish {
    pub fn new(marks: Marks, budget: i32) -> Self {
        Self {
            zones: Zones::Ignored,
            minimum: 0,
            minimum_share: None,
            ignores_not_ready: false,
            image: 1,
            budget,
            unit: Unit::Nodes,
            pool: Pool::All,
            placement: "Auto",
            marks,
            key: 0,
            pods: 2,
            paused: false,
            on_timeout: "Halt",
            attach_soak: 0,
            rollout: Value::Null,
            on_delete: false,
            rollback_to: None,
            promote: None,
            history: None,
            pod_update: "Recreate",
            min_ready: 0,
        }
    }

    /// Name of the image.
    pub fn image(&self) -> String {
        format!("app:{}", self.image)
    }

    /// Whether a node with these labels is chosen.
    pub fn chooses(&self, labels: &Value) -> bool {
        labels["ingress"] == "true" && (self.pool == Pool::All || labels[POOL.0] == POOL.1)
    }

    /// The revision of the template with this image.
    pub fn revision_of(&self, image: u8) -> String {
        crds::hash::revision(&self.template(image))
    }

    fn template(&self, image: u8) -> Value {
        let image = format!("app:{image}");
        let mut pod = json!({"containers": [{"name": "app", "image": image, "resources": {"requests": {"cpu": "1000m"}}}]});
        if self.pool == Pool::Template {
            pod["nodeSelector"] = json!({(POOL.0): POOL.1});
        }
        json!({"metadata": {"labels": {"app": "edge"}}, "spec": pod})
    }

    pub fn spec(&self) -> IngressDaemonSetSpec {
        let mut rolling =
            json!({"detachTimeoutSeconds": DETACH_TIMEOUT, "onDetachTimeout": self.on_timeout, "attachSoakSeconds": self.attach_soak});
        // A node counts as good the moment it serves, but where that is what a test is about.
        rolling["provenAfterSeconds"] = 0.into();
        match self.zones {
            Zones::Ignored => {}
            // Half of two nodes, and never less than one.
            Zones::OneEach if self.unit == Unit::Percent => rolling["topology"] = json!({"key": ZONE, "maxUnavailableNodes": "50%"}),
            Zones::OneEach => rolling["topology"] = json!({"key": ZONE, "maxUnavailableNodes": 1}),
            Zones::OneAtATime => rolling["topology"] = json!({"key": ZONE, "oneDomainAtATime": true}),
        }
        if let Some(rollout) = self.rollout.as_object() {
            rolling.as_object_mut().expect("an object").extend(rollout.clone());
        }
        rolling["podUpdate"] = self.pod_update.into();
        rolling["minAvailableNodes"] = self.minimum_share.map_or(self.minimum.into(), Value::from);
        rolling["notReadyNodes"] = if self.ignores_not_ready { "Ignore" } else { "CountAgainst" }.into();
        let budget = if self.unit == Unit::Percent { format!("{}%", 25 * self.budget).into() } else { Value::from(self.budget) };
        rolling[if self.marks == Marks::Degrade { "maxDegradedNodes" } else { "maxUnavailableNodes" }] = budget;
        if matches!(self.marks, Marks::Deployment | Marks::Both) {
            rolling["annotateDeploymentToDetach"] = json!({"key": DEPLOYMENT_KEYS[self.key % 2], "gracePeriodSeconds": GRACE});
        }
        if matches!(self.marks, Marks::Node | Marks::Both | Marks::Timestamp) {
            let key = KEYS[self.key];
            match key.strip_prefix(names::LABEL_MARK) {
                Some(label) => rolling["labelNodeToDetach"] = json!({"key": label, "value": "", "gracePeriodSeconds": GRACE}),
                None => rolling["annotateNodeToDetach"] = json!({"key": key, "gracePeriodSeconds": GRACE}),
            }
        }
        if self.marks == Marks::Timestamp {
            rolling["waitForDetachmentByAnnotatedTimestamp"] = json!({"key": STAMP, "gracePeriodSeconds": STAMP_GRACE});
        }
        let mut selector = json!({"ingress": "true"});
        if self.pool == Pool::Spec {
            selector[POOL.0] = POOL.1.into();
        }
        spec(json!({
            "podsPerNode": self.pods,
            "minReadySeconds": self.min_ready,
            "paused": self.paused,
            "nodeSelector": selector,
            "placement": self.placement,
            "healthCheckNodePorts": if self.marks == Marks::Node { json!([]) } else { json!([HEALTH_PORT]) },
            "template": self.template(self.image),
            "updateStrategy": {"type": if self.on_delete { "OnDelete" } else { "RollingUpdate" }, "rollingUpdate": rolling},
            "rollbackTo": self.rollback_to.map(|revision| json!({"revision": revision})),
            "promote": self.promote.map(|(image, step)| json!({"revision": self.revision_of(image), "step": step})),
            "revisionHistoryLimit": self.history,
        }))
    }
}

pub fn spec(json: Value) -> IngressDaemonSetSpec {
    serde_json::from_value(json).expect("a spec")
}
