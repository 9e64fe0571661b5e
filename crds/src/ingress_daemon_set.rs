//! `IngressDaemonSet`: N pods on every chosen node, updated only after the load balancer has looked away.
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their words; clippy takes them for one attribute")]

use crate::{duration::Duration, label_selector::LabelRequirement, ledger::Annotation, names, node_readiness_gate::GateTaint};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is to run where, and how nodes are updated. Writer: the user.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ingressdaemonsets.mumoshu.github.io",
    version = "v1alpha1",
    kind = "IngressDaemonSet",
    plural = "ingressdaemonsets",
    singular = "ingressdaemonset",
    shortname = "ids",
    category = "all",
    namespaced,
    derive = "PartialEq",
    status = "crate::status::IngressDaemonSetStatus",
    doc = "Runs N pods on every chosen node behind an external load balancer, and takes a node out of the load balancer before it updates the pods on it.",
    scale(spec_replicas_path = ".spec.podsPerNode", status_replicas_path = ".status.replicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.nodes.desired", description = "Nodes chosen"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.nodes.current", description = "Nodes with a Deployment"),
    printcolumn(
        name = "Up-to-date",
        type_ = "integer",
        json_path = ".status.nodes.updated",
        description = "Nodes complete at the newest revision"
    ),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.nodes.available", description = "Nodes that serve"),
    printcolumn(
        name = "Detached",
        type_ = "integer",
        json_path = ".status.nodes.detached",
        description = "Nodes held out of the load balancer"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Progressing\")].reason",
        description = "What goes on"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Pods-per-node", type_ = "integer", json_path = ".status.replicas", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revisions.update", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.template.spec) || !has(self.template.spec.nodeName)")
    .message("template.spec.nodeName must not be set: the operator pins the pods of each node; choose nodes with nodeSelector"))]
pub struct IngressDaemonSetSpec {
    /// Pods on every chosen node. 0 stops them all, after detaching. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100))]
    pub pods_per_node: i32,
    /// Older name of podsPerNode; used when podsPerNode is 1 or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub replicas: Option<i32>,
    /// Labels of the nodes to run on, in addition to template.spec.nodeSelector, required node affinity and tolerations.
    /// Empty: every node that those allow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Labels copied to the per-node Deployments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// How pods are pinned to their node. Auto: by nodeName, or by node affinity where pods hold host ports, so that a second pod waits instead of being rejected.
    #[serde(default)]
    pub placement: Placement,
    /// Ports on every chosen node where the health checker answers the load balancer: 200 if all replicas of the node are ready and no update is scheduled for them, else 503. With detachment an update is scheduled from the moment on at which the node gets its place in the budget. With maxUnavailableNodes 0 the node stays attached by definition: 503 only while replicas are not ready, see readyPolicy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(range(min = 1, max = 65535)))]
    #[x_kube(validation = Rule::new("self.all(p, self.exists_one(q, q == p))").message("must name each port once: remove the one that is there twice"))]
    pub health_check_node_ports: Vec<i32>,
    /// One port, instead of healthCheckNodePorts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub health_check_node_port: Option<i32>,
    /// Older spelling of healthCheckNodePort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub health_check_port: Option<i32>,
    /// The health checker's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_checker: Option<HealthChecker>,
    /// What the load balancer does, so that the operator knows how long to wait where no grace period is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancer>,
    /// The pods, as in a Deployment. Labels and annotations are kept; the operator adds its own.
    #[schemars(schema_with = "crate::manifest::pod_template_schema")]
    pub template: serde_json::Value,
    /// Seconds that a new pod must be ready before it counts as available.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86400))]
    pub min_ready_seconds: i32,
    /// No new node is started; nodes under way finish.
    #[serde(default)]
    pub paused: bool,
    /// Former revisions of the template that are kept, as `ControllerRevisions`, beside those in use. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: Option<u32>,
    /// Runs a former revision of the template on all nodes for as long as it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<RollbackTo>,
    /// Lets the rollout go on after a step that pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<Promote>,
    /// A taint that chosen nodes keep until all their replicas are ready, and get again when those cease to be: as a `NodeReadinessGate` of mode Continuous that requires this resource. Only where the operator's flag --allowed-node-taints allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_readiness_taint: Option<GateTaint>,
    /// How nodes are updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

fn one() -> i32 {
    1
}

/// A former revision of the template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollbackTo {
    /// Number of the revision, as in the field `revision` of its `ControllerRevision`. 0: the newest but that of spec.template.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub revision: i64,
}

/// Leave to go on after a step that pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Promote {
    /// Revision that was looked at, as in status.revisions.update: leave for another template is none.
    #[schemars(schema_with = "crate::manifest::revision_schema")]
    pub revision: String,
    /// Number of the last step to go on after; the first step is 1.
    #[schemars(range(min = 1, max = 16))]
    pub step: u32,
}

/// Labels for the per-node Deployments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels copied to the per-node Deployments.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub match_labels: BTreeMap<String, String>,
    /// Older resources may have these. They select nothing, and condition Valid says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// How pods are pinned to their node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// `NodeAffinity` where pods hold host ports, else `NodeName`.
    #[default]
    Auto,
    /// By spec.nodeName, past the scheduler.
    NodeName,
    /// By required node affinity on metadata.name, through the scheduler.
    NodeAffinity,
}

/// The health checker's pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthChecker {
    /// Image; default: the one of the operator's own release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::image_schema")]
    pub image: Option<String>,
    /// When the image is pulled: Always, `IfNotPresent` or Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: Option<String>,
    /// `ServiceAccount`; default: one that the operator makes and binds. A named one must exist and have the rights that the checker needs: condition `HealthCheckersReady` says which it lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::object_name_schema")]
    pub service_account_name: Option<String>,
    /// Resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Address to listen on; default: all, IPv4 and IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::address_schema")]
    pub bind_address: Option<String>,
    /// How many ready pods make a node healthy; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_policy: Option<ReadyPolicy>,
}

/// How many ready pods make a node healthy.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'AtLeast' || has(self.minReady)").message("type AtLeast needs minReady, the number of ready pods that make a node healthy: set it, or type to All"))]
pub struct ReadyPolicy {
    /// All, or `AtLeast` with minReady.
    #[serde(rename = "type", default)]
    pub type_: ReadyPolicyType,
    /// With `AtLeast`: ready pods that are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub min_ready: Option<i32>,
}

/// Kinds of ready policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReadyPolicyType {
    /// All replicas of the node are ready.
    #[default]
    All,
    /// At least minReady are.
    AtLeast,
}

/// How the load balancer checks nodes. Default grace period = interval × unhealthyThreshold + timeout + propagation;
/// default attach soak = interval × healthyThreshold + propagation.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.preset != 'Custom' || has(self.interval) && has(self.unhealthyThreshold) && has(self.healthyThreshold)")
    .message("preset Custom has no figures of its own: set interval, unhealthyThreshold and healthyThreshold, or name the preset of your load balancer"))]
pub struct LoadBalancer {
    /// Where figures that are not given come from. They are defaults, or measurements, of a load balancer that nobody has tuned: give those that you changed.
    #[serde(default)]
    pub preset: LoadBalancerPreset,
    /// Time between two health checks of one checker, such as 2s. Default: the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub interval: Option<Duration>,
    /// Time after which a health check counts as failed. Default: the preset's; 0s with Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub timeout: Option<Duration>,
    /// Failed checks in a row that take a node out. Default: the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub unhealthy_threshold: Option<u32>,
    /// Good checks in a row that take a node in. Default: the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub healthy_threshold: Option<u32>,
    /// Time until the whole load balancer follows. Default: the preset's; 0s with Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub propagation: Option<Duration>,
}

/// Load balancers whose figures are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum LoadBalancerPreset {
    /// AWS Network Load Balancer with its own defaults.
    AwsNlb,
    /// AWS Network Load Balancer as the AWS Load Balancer Controller makes it.
    AwsNlbLbc,
    /// Google Cloud passthrough load balancer.
    GcpPassthrough,
    /// Azure Standard Load Balancer.
    Azure,
    /// `HAProxy` and others on one's own machines.
    #[serde(rename = "HAProxy")]
    HaProxy,
    /// No figures: interval and thresholds must be given.
    #[default]
    Custom,
}

/// How nodes are updated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// `RollingUpdate`, or `OnDelete`: a node is updated, within the same budget, once somebody has deleted one of its pods.
    #[serde(rename = "type", default)]
    pub type_: UpdateStrategyType,
    /// Budget and detachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Kinds of update strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Node by node, within the budget.
    #[default]
    RollingUpdate,
    /// A node whose pods somebody deletes, within the budget.
    OnDelete,
}

/// Budget and detachment.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.waitForDetachmentByAnnotatedTimestamp) || has(self.annotateNodeToDetach) || has(self.labelNodeToDetach)")
        .message("waitForDetachmentByAnnotatedTimestamp needs annotateNodeToDetach or labelNodeToDetach, without which no detacher is asked: set annotateNodeToDetach.key"),
    validation = Rule::new("!has(self.annotateNodeToDetach) || !has(self.labelNodeToDetach)")
        .message("annotateNodeToDetach and labelNodeToDetach must not both be set, a node has one mark: remove the one that nothing looks at"),
    validation = Rule::new("!has(self.waitForDetachmentByAnnotatedTimestamp) || !has(self.annotateNodeToDetach) || self.waitForDetachmentByAnnotatedTimestamp.key != self.annotateNodeToDetach.key")
        .message("waitForDetachmentByAnnotatedTimestamp.key and annotateNodeToDetach.key must differ: the detacher writes one, the operator the other"),
    validation = Rule::new("has(self.maxUnavaiableNodes) || !has(self.maxDegradedNodes) || !(self.maxDegradedNodes == 0 || self.maxDegradedNodes == '0%') || (has(self.maxUnavailableNodes) && !(self.maxUnavailableNodes == 0 || self.maxUnavailableNodes == '0%'))")
        .message("maxUnavailableNodes and maxDegradedNodes must not both be 0, or no node could ever be updated: set one of them to 1 or more")
)]
pub struct RollingUpdate {
    /// Nodes that may be out of service at once, number or percentage (rounded down, at least 1). Above 0 the operator detaches a node before it updates all pods on it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_unavailable_nodes: Option<IntOrString>,
    /// Nodes whose pods may be replaced at once while they stay attached, number or percentage. Used when maxUnavailableNodes is 0. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_degraded_nodes: Option<IntOrString>,
    /// Older spelling of maxUnavailableNodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_unavaiable_nodes: Option<IntOrString>,
    /// Older spelling of maxDegradedNodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_degaraded_nodes: Option<IntOrString>,
    /// Pods of one node that may be down at once without detachment, number or percentage. Default 1; always 100% with detachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_unavailable_pods_per_node: Option<IntOrString>,
    /// Older spelling of maxUnavailablePodsPerNode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_unavailable_pods_per_nodes: Option<IntOrString>,
    /// Older spelling of maxUnavailablePodsPerNode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_unavaiable_pods_per_node: Option<IntOrString>,
    /// Pods that may be started on a node before old ones end, number or percentage. Default 0; 0 with detachment. Refused
    /// where pods hold host ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub max_surged_pods_per_node: Option<IntOrString>,
    /// How the pods of a node get another image: Recreate, or in place, where a change of template asks for nothing but other images, labels and annotations. With `InPlaceIfPossible` other changes re-create the pods, with `InPlaceOnly` they wait.
    #[serde(default)]
    pub pod_update: PodUpdate,
    /// Pull the images of a new revision on a node before it is taken out of service for the update.
    #[serde(default)]
    pub pre_pull: bool,
    /// Annotate the node's Deployment before its pods change; the health check fails from then on. Where there are health ports it fails without this, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotate_deployment_to_detach: Option<AnnotateDeployment>,
    /// Annotate the Node before its pods change, which asks node-detacher to deregister it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotate_node_to_detach: Option<AnnotateNode>,
    /// Label the Node before its pods change, which takes it out of load balancers that leave out Nodes with that label, such as those that cloud controllers make for Services. Instead of annotateNodeToDetach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_node_to_detach: Option<LabelNode>,
    /// Wait for the time at which the detacher deregistered the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_detachment_by_annotated_timestamp: Option<WaitForTimestamp>,
    /// Seconds to wait for the detacher before onDetachTimeout applies. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub detach_timeout_seconds: Option<u32>,
    /// When the detacher does not answer in time: Halt (wait, start no other node), Proceed (as if it had), Abort (attach the node again, its pods untouched).
    #[serde(default)]
    pub on_detach_timeout: OnDetachTimeout,
    /// Budget of each zone, rack or whatever a Node label tells apart, besides the budget of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Nodes that must stay available, number or percentage (rounded up) of those chosen and those that leave: none is taken out of service, or removed, while only so many are left. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub min_available_nodes: Option<IntOrString>,
    /// When a node may be started; nodes under way finish. Without windows that allow: always, but for those with deny, which beat the others. Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub windows: Vec<Window>,
    /// Whether a node whose Node is not Ready counts as unavailable, and so against the budget. Default: it does.
    #[serde(default)]
    pub not_ready_nodes: NotReadyNodes,
    /// Seconds to wait after a node is attached again before its place in the budget is free. Default: from loadBalancer, else 10. With 0 the next node may be taken out before the load balancer has this one back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub attach_soak_seconds: Option<u32>,
    /// Nodes that keep the revision they run, number or percentage (rounded up) of those chosen. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_schema")]
    pub partition: Option<IntOrString>,
    /// Canary: a new template reaches only so many nodes before the next step begins; after the last step, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub steps: Vec<RolloutStep>,
    /// Seconds from the first change of a node's pods until it counts as failed when it is not complete. The clock counts the time for which an operator watches, and stands still while paused, while the Node is not Ready, skipped or taken out by others, and while the Deployment's controller lags. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub node_deadline_seconds: Option<u32>,
    /// Seconds without any node being finished until condition Progressing becomes False with reason `ProgressDeadlineExceeded`. The clock stands still while the rollout is paused, blocked or outside its windows. Default 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 864_000))]
    pub progress_deadline_seconds: Option<u32>,
    /// Failed nodes at which the rollout of a revision halts. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_failed_nodes: Option<u32>,
    /// Seconds for which what runs a new revision must serve without a break before the revision counts as good. Until then the nodes that run it keep their places in the budget, so that a revision that breaks within this time reaches no more nodes than the budget. At the end of a rollout as many seconds pass before it is complete. With 0 a node counts as good the moment it serves. Default 60, or attachSoakSeconds or minReadySeconds where that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub proven_after_seconds: Option<u32>,
    /// How often a pod of a new revision may restart, or cease to be ready for more than 10 seconds, before the revision has failed on its node. What is 10 minutes past is forgotten when the node has served without a break since. With 0 no number fails. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_flaps: Option<u32>,
    /// When the rollout halts, go back to the last revision that all nodes ran, within the same budget. spec.template stays as it is and is not tried again until it changes.
    #[serde(default)]
    pub auto_rollback: bool,
}

/// How the pods of a node get another image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodUpdate {
    /// Other pods take their place.
    #[default]
    Recreate,
    /// They stay, where nothing but images, labels and annotations changes: their containers restart.
    InPlaceIfPossible,
    /// The same, and no update begins that would need other pods.
    InPlaceOnly,
}

/// One step of a canary.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodes) != has(self.nodeSelector)")
    .message("a step needs either nodes (how many run the new revision in all) or nodeSelector (which ones): set one of them"))]
pub struct RolloutStep {
    /// Nodes that run the new revision when the step is done, those of earlier steps included: number or percentage (rounded down, at least 1) of those chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_above_zero_schema")]
    pub nodes: Option<IntOrString>,
    /// The nodes with these labels, besides those of earlier steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// How long the nodes of the step must serve without a break before the step is done, such as 10m. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::duration_schema")]
    pub soak: Option<Duration>,
    /// Restarts of containers of the new revision, counted from the beginning of this step, above which the rollout halts. Default: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub max_restarts: Option<u32>,
    /// Wait for spec.promote when the step is done.
    #[serde(default)]
    pub pause: bool,
}

/// Domains of nodes with a budget of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Key of the Node label whose value is the domain, such as topology.kubernetes.io/zone. Nodes without it form one domain.
    #[schemars(schema_with = "crate::manifest::label_key_schema")]
    pub key: String,
    /// Nodes of one domain that may be disrupted at once, number or percentage of the domain's (rounded down, at least 1). Default: no bound but the one of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::count_or_percent_above_zero_schema")]
    pub max_unavailable_nodes: Option<IntOrString>,
    /// Finish the nodes of one domain before any of the next. Otherwise domains take turns.
    #[serde(default)]
    pub one_domain_at_a_time: bool,
}

/// A time in which nodes may be started, or must not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// When it begins, as in a `CronJob`: minute, hour, day of month, month, day of week, such as "0 2 * * 1-5"; or @daily, @weekly, @monthly. A start in the hour that a change of clocks leaves out comes right after it; one in the hour that comes twice comes once.
    #[schemars(schema_with = "crate::manifest::schedule_schema")]
    pub schedule: String,
    /// How long it lasts from each start, 1m to 744h, such as 3h. Time that passes, whatever clocks on walls show.
    #[schemars(schema_with = "crate::manifest::window_duration_schema")]
    pub duration: Duration,
    /// Time zone of the schedule by its IANA name, such as Europe/Berlin or UTC.
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// No node is started in it, whatever other windows say.
    #[serde(default)]
    pub deny: bool,
}

/// What becomes of nodes whose Node is not Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NotReadyNodes {
    /// They count as unavailable.
    #[default]
    CountAgainst,
    /// They leave the budget alone.
    Ignore,
}

/// The annotation on the Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotateDeployment {
    /// Its key. Default ingressdaemonsets.mumoshu.github.com/to-be-updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::deployment_annotation_key_schema")]
    pub key: Option<String>,
    /// Its value. Default empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::annotation_value_schema")]
    pub value: Option<String>,
    /// Seconds from the annotation to the first change of a pod. Default: from loadBalancer, else 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<u32>,
}

/// The annotation on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotateNode {
    /// Its key: one that the operator's flag --allowed-detach-keys allows, by default node-detacher.variant.run/detached and those of cloud controllers.
    #[schemars(schema_with = "crate::manifest::node_annotation_key_schema")]
    pub key: String,
    /// Its value, at most 63 characters. Default empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::node_annotation_value_schema")]
    pub value: Option<String>,
    /// Seconds from the annotation to the first change of a pod. Default: from loadBalancer, else 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<u32>,
}

/// A label on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelNode {
    /// Its key: one that the operator's flag --allowed-detach-keys allows. Default: node.kubernetes.io/exclude-from-external-load-balancers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::node_label_key_schema")]
    pub key: Option<String>,
    /// Its value. Default true; cloud controllers ask only whether the label is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::manifest::label_value_schema")]
    pub value: Option<String>,
    /// Seconds from the label to the first change of a pod: until the cloud has deregistered the node, and its connections have drained. Nothing tells the operator how long that is, so it has no default.
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: u32,
}

impl IngressDaemonSetSpec {
    /// Health ports that it asks for, in whichever spelling; some may be there twice.
    pub fn health_ports(&self) -> impl Iterator<Item = u16> {
        let ports = self.health_check_node_ports.iter().chain(&self.health_check_node_port).chain(&self.health_check_port);
        ports.filter_map(|port| u16::try_from(*port).ok())
    }
}

impl RollingUpdate {
    /// What is put on a Node to have it taken out of the load balancer.
    pub fn node_mark(&self) -> Option<Annotation> {
        let annotation = self.annotate_node_to_detach.as_ref();
        let annotation = annotation.map(|mark| Annotation { key: mark.key.clone(), value: mark.value.clone().unwrap_or_default() });
        let label = self.label_node_to_detach.as_ref();
        let label = label.map(|mark| {
            let key = mark.key.as_deref().unwrap_or(names::EXCLUDE_FROM_LOAD_BALANCERS_LABEL);
            Annotation { key: format!("{}{key}", names::LABEL_MARK), value: mark.value.clone().unwrap_or_else(|| "true".to_owned()) }
        });
        annotation.or(label)
    }
}

/// The detacher's timestamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitForTimestamp {
    /// Key of the annotation that the detacher writes on the Node.
    #[schemars(schema_with = "crate::manifest::node_annotation_key_schema")]
    pub key: String,
    /// RFC3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RFC3339"]))]
    pub format: Option<String>,
    /// Seconds from the timestamp to the first change of a pod. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<u32>,
}

/// What happens when the detacher does not answer in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDetachTimeout {
    /// Wait and start no other node.
    #[default]
    Halt,
    /// Go on as if the node were detached.
    Proceed,
    /// Attach the node again, its pods untouched.
    Abort,
}
