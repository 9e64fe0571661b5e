//! `IngressDaemonSet`: N pods on every chosen node. The load balancer stops sending traffic to a node before its pods change.
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their words; clippy takes them for one attribute")]

use crate::{
    duration::Duration,
    label_selector::LabelRequirement,
    ledger::{Annotation, Ledger},
    names,
    node_readiness_gate::GateTaint,
};
use k8s_openapi::{
    api::core::v1::{LocalObjectReference, ResourceRequirements, Toleration},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Desired pods, nodes and update strategy.
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
    doc = "Runs N pods on every chosen node behind an external load balancer. Takes each node out of the load balancer before its pods are updated.",
    scale(spec_replicas_path = ".spec.podsPerNode", status_replicas_path = ".status.replicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.nodes.desired", description = "Chosen nodes"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.nodes.current", description = "Nodes with a Deployment"),
    printcolumn(
        name = "Up-to-date",
        type_ = "integer",
        json_path = ".status.nodes.updated",
        description = "Nodes whose pods all run the wanted revision and are ready"
    ),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.nodes.available", description = "Nodes in service"),
    printcolumn(
        name = "Detached",
        type_ = "integer",
        json_path = ".status.nodes.detached",
        description = "Nodes that the operator keeps out of the load balancer"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Progressing\")].reason",
        description = "Reason of condition Progressing"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Pods-per-node", type_ = "integer", json_path = ".status.replicas", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revisions.update", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.template.spec) || !has(self.template.spec.nodeName)")
    .message("template.spec.nodeName must not be set: choose nodes with nodeSelector; the operator assigns each pod to its node"))]
pub struct IngressDaemonSetSpec {
    /// Number of pods on every chosen node. 0 detaches the nodes and stops their pods. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100))]
    pub pods_per_node: i32,
    /// Older name of podsPerNode. Used when podsPerNode is 1 or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub replicas: Option<i32>,
    /// Labels that a node must have. template.spec.nodeSelector, required node affinity and tolerations apply as well. Default: every node that they allow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Labels copied to the per-node Deployments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// How each pod is assigned to its node. Auto (default): `NodeAffinity` if pods hold host ports, so that a second pod waits instead of being rejected; else `NodeName`. `NodeName`: by spec.nodeName, without the scheduler. `NodeAffinity`: by required node affinity on metadata.name, through the scheduler.
    #[serde(default)]
    pub placement: Placement,
    /// Ports on every chosen node where the health checker answers the load balancer: 200 if the replicas of the node are ready (see readyPolicy) and no update of the node is scheduled, else 503. In detach mode, an update is scheduled as soon as the node gets a slot of the budget. With maxUnavailableNodes 0, the node stays attached: the answer is 503 only while too few replicas are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(range(min = 1, max = 65535)))]
    #[x_kube(validation = Rule::new("self.all(p, self.exists_one(q, q == p))").message("must list each port only once: remove the duplicate"))]
    pub health_check_node_ports: Vec<i32>,
    /// A single port, instead of healthCheckNodePorts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub health_check_node_port: Option<i32>,
    /// Older spelling of healthCheckNodePort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub health_check_port: Option<i32>,
    /// Settings of the health checker's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_checker: Option<HealthChecker>,
    /// Health check timings of the load balancer. Default grace period = interval × unhealthyThreshold + timeout + propagation. Default attach soak = interval × healthyThreshold + propagation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancer>,
    /// Pod template, as in a Deployment. The operator adds labels and annotations of its own.
    #[schemars(schema_with = "crate::schema::pod_template_schema")]
    pub template: serde_json::Value,
    /// Seconds that a new pod must be ready before it counts as available.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86400))]
    pub min_ready_seconds: i32,
    /// Start no new node. Nodes that are being updated finish.
    #[serde(default)]
    pub paused: bool,
    /// Number of earlier template revisions to keep as `ControllerRevisions`, in addition to the revisions in use. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: Option<u32>,
    /// Run an earlier revision of the template on all nodes while this field is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<RollbackTo>,
    /// Continue the rollout after a canary step that pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<Promote>,
    /// Taint that a chosen node keeps until all its replicas are ready, and gets again when they stop being ready. Works as a `NodeReadinessGate` of mode Continuous that requires this resource. The operator's flag --allowed-node-taints must allow the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_readiness_taint: Option<GateTaint>,
    /// How the operator updates nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

fn one() -> i32 {
    1
}

/// An earlier revision of the template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollbackTo {
    /// Number of the revision, as in the field `revision` of its `ControllerRevision`. 0: the newest revision other than that of spec.template.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub revision: i64,
}

/// Permission to continue after a canary step that pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Promote {
    /// Revision that you approve, as in status.revisions.update. The permission does not apply to other revisions.
    #[schemars(schema_with = "crate::schema::revision_schema")]
    pub revision: String,
    /// Number of the last approved step. The first step is 1.
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
    /// Older resources may have these, without effect. Condition Valid reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// How each pod is assigned to its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// `NodeAffinity` where pods hold host ports, else `NodeName`.
    #[default]
    Auto,
    /// By spec.nodeName, without the scheduler.
    NodeName,
    /// By required node affinity on metadata.name, through the scheduler.
    NodeAffinity,
}

/// Settings of the health checker's pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthChecker {
    /// Image. Default: the image of the operator's release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::image_schema")]
    pub image: Option<String>,
    /// When the image is pulled: Always, `IfNotPresent` or Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: Option<String>,
    /// `ServiceAccount`. Default: the operator creates one with the needed rights. A `ServiceAccount` that you name must exist and have the rights of a health checker; condition `HealthCheckersReady` lists missing rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::object_name_schema")]
    pub service_account_name: Option<String>,
    /// Resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Priority class of the pods. Default: system-node-critical, which GKE admits only where a `ResourceQuota` allows it. With "", they have no class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::priority_class_schema")]
    pub priority_class_name: Option<String>,
    /// Secrets in this namespace with which the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// Tolerations of the pods. Default: all taints. A node whose taints they do not tolerate gets no health checker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Address to listen on: `0.0.0.0` for all IPv4 addresses alone, or `::`. Default: all IPv4 and IPv6 addresses. The operator asks each
    /// health port at the address of its Node, so that no other address works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::address_schema")]
    pub bind_address: Option<String>,
    /// Number of ready pods that makes a node healthy. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_policy: Option<ReadyPolicy>,
}

/// Number of ready pods that makes a node healthy.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'AtLeast' || has(self.minReady)").message("type AtLeast needs minReady: set it to the number of ready pods that makes a node healthy, or set type to All"))]
pub struct ReadyPolicy {
    /// All: every replica of the node must be ready. `AtLeast`: minReady replicas must be ready.
    #[serde(rename = "type", default)]
    pub type_: ReadyPolicyType,
    /// Number of ready pods that is enough, for type `AtLeast`.
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
    /// At least minReady pods of the node are ready.
    AtLeast,
}

/// Health check timings of the load balancer. Default grace period = interval × unhealthyThreshold + timeout + propagation.
/// Default attach soak = interval × healthyThreshold + propagation.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.preset != 'Custom' || has(self.interval) && has(self.unhealthyThreshold) && has(self.healthyThreshold)")
    .message("preset Custom has no default timings: set interval, unhealthyThreshold and healthyThreshold, or name the preset of your load balancer"))]
pub struct LoadBalancer {
    /// Source of default timings. They are defaults, or measurements, of an untuned load balancer: override any value you tuned.
    #[serde(default)]
    pub preset: LoadBalancerPreset,
    /// Time between two health checks of one checker, such as 2s. Default: from the preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub interval: Option<Duration>,
    /// Time after which a health check counts as failed. Default: from the preset; 0s with Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub timeout: Option<Duration>,
    /// Consecutive failed checks before a node receives no new traffic. Default: from the preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub unhealthy_threshold: Option<u32>,
    /// Consecutive successful checks before a node receives traffic. Default: from the preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub healthy_threshold: Option<u32>,
    /// Time until all parts of the load balancer apply a change. Default: from the preset; 0s with Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub propagation: Option<Duration>,
}

/// Load balancers with known timings.
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
    /// `HAProxy` and other load balancers on your own machines.
    #[serde(rename = "HAProxy")]
    HaProxy,
    /// No default timings: set interval and both thresholds.
    #[default]
    Custom,
}

/// How the operator updates nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// `RollingUpdate` (default): update all nodes, within the budget. `OnDelete`: update a node, within the budget, once somebody has deleted one of its pods.
    #[serde(rename = "type", default)]
    pub type_: UpdateStrategyType,
    /// Budget, detachment and pace of updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Kinds of update strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Node by node, within the budget.
    #[default]
    RollingUpdate,
    /// Only nodes on which somebody has deleted a pod, within the budget.
    OnDelete,
}

/// Budget, detachment and pace of updates.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.waitForDetachmentByAnnotatedTimestamp) || has(self.annotateNodeToDetach) || has(self.labelNodeToDetach)")
        .message("waitForDetachmentByAnnotatedTimestamp needs annotateNodeToDetach or labelNodeToDetach: set annotateNodeToDetach.key, which asks the detacher"),
    validation = Rule::new("!has(self.annotateNodeToDetach) || !has(self.labelNodeToDetach)")
        .message("annotateNodeToDetach and labelNodeToDetach must not both be set: keep the one that your load balancer or detacher uses, remove the other"),
    validation = Rule::new("!has(self.waitForDetachmentByAnnotatedTimestamp) || !has(self.annotateNodeToDetach) || self.waitForDetachmentByAnnotatedTimestamp.key != self.annotateNodeToDetach.key")
        .message("waitForDetachmentByAnnotatedTimestamp.key and annotateNodeToDetach.key must differ: the detacher writes the first, the operator the second"),
    validation = Rule::new("has(self.maxUnavaiableNodes) || !has(self.maxDegradedNodes) || !(self.maxDegradedNodes == 0 || self.maxDegradedNodes == '0%') || (has(self.maxUnavailableNodes) && !(self.maxUnavailableNodes == 0 || self.maxUnavailableNodes == '0%'))")
        .message("maxUnavailableNodes and maxDegradedNodes must not both be 0: set one of them to 1 or more, or no node can be updated")
)]
pub struct RollingUpdate {
    /// Budget: nodes that may be out of service at once, a number or percentage (rounded down, at least 1). Above 0, the operator detaches a node and then updates all its pods at once. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_unavailable_nodes: Option<IntOrString>,
    /// Budget of degrade mode: nodes whose pods may be replaced at once while the nodes stay attached, a number or percentage. Used when maxUnavailableNodes is 0. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_degraded_nodes: Option<IntOrString>,
    /// Older spelling of maxUnavailableNodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_unavaiable_nodes: Option<IntOrString>,
    /// Older spelling of maxDegradedNodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_degaraded_nodes: Option<IntOrString>,
    /// Pods of one node that may be down at once in degrade mode, a number or percentage. Default 1. In detach mode always 100%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_unavailable_pods_per_node: Option<IntOrString>,
    /// Older spelling of maxUnavailablePodsPerNode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_unavailable_pods_per_nodes: Option<IntOrString>,
    /// Older spelling of maxUnavailablePodsPerNode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_unavaiable_pods_per_node: Option<IntOrString>,
    /// Pods that may start on a node before old pods end, a number or percentage. Default 0. In detach mode always 0. Refused if pods hold host ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub max_surged_pods_per_node: Option<IntOrString>,
    /// How the pods of a node change. Recreate (default): new pods replace them. `InPlaceIfPossible`: images, labels and annotations change in the existing pods; other changes replace the pods. `InPlaceOnly`: the same, but other changes wait.
    #[serde(default)]
    pub pod_update: PodUpdate,
    /// Pull the images of a new revision on a node before the operator takes the node out of service.
    #[serde(default)]
    pub pre_pull: bool,
    /// Annotate the node's Deployment before its pods change. Health ports answer 503 from then on, as they do without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotate_deployment_to_detach: Option<AnnotateDeployment>,
    /// Annotate the Node before its pods change, to ask a detacher to deregister it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotate_node_to_detach: Option<AnnotateNode>,
    /// Label the Node before its pods change. Load balancers that exclude Nodes with this label leave it out, such as those that cloud controllers create for Services. Use it instead of annotateNodeToDetach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_node_to_detach: Option<LabelNode>,
    /// Wait for the timestamp at which the detacher deregistered the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_detachment_by_annotated_timestamp: Option<WaitForTimestamp>,
    /// Seconds to wait for the detacher before onDetachTimeout applies. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub detach_timeout_seconds: Option<u32>,
    /// Action if the detacher does not answer in time. Halt (default): wait and start no other node. Proceed: continue as if the node were detached. Abort: attach the node again and leave its pods unchanged.
    #[serde(default)]
    pub on_detach_timeout: OnDetachTimeout,
    /// Budget of each domain, such as a zone or rack, in addition to the budget of all nodes. A Node label names the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Nodes that must stay available, a number or a percentage (rounded up) of the nodes that are chosen or being removed. While only this many are available, the operator takes no node out of service and removes none. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub min_available_nodes: Option<IntOrString>,
    /// Times at which the operator may start to update a node. Nodes that are being updated finish. Windows with deny take precedence. If all windows have deny, any other time is allowed. Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub windows: Vec<Window>,
    /// Whether nodes that are not Ready use the budget. `CountAgainst` (default): they count as unavailable. Ignore: they do not.
    #[serde(default)]
    pub not_ready_nodes: NotReadyNodes,
    /// Seconds from attaching a node to freeing its slot of the budget. Default: from loadBalancer, else 10. With 0, the next node may be taken out before the load balancer uses this one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub attach_soak_seconds: Option<u32>,
    /// Nodes that keep the revision they run, a number or a percentage (rounded up) of chosen nodes. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_schema")]
    pub partition: Option<IntOrString>,
    /// Steps of a canary. Each step limits the nodes that get a new template until the next step begins. After the last step, all nodes get the template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub steps: Vec<RolloutStep>,
    /// Seconds from the first change of a node's pods until an incomplete node counts as failed. The clock runs only while an operator watches. It stops while the rollout is paused, while the Node is not Ready, skipped or taken out by others, and while the Deployment's controller lags. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub node_deadline_seconds: Option<u32>,
    /// Seconds without a finished node until condition Progressing becomes False with reason `ProgressDeadlineExceeded`. The clock stops while the rollout is paused, blocked or outside its windows. Default 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 864_000))]
    pub progress_deadline_seconds: Option<u32>,
    /// Number of failed nodes at which the rollout of a revision halts. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_failed_nodes: Option<u32>,
    /// Seconds for which all nodes of a new revision must serve without a break before the revision is proved. Until then, these nodes keep their slots of the budget, so a revision that breaks within this time reaches no more nodes than the budget allows. At its end, a rollout takes this many seconds more to complete. With 0, a revision needs no proof, and no node is suspect. Default 60, or attachSoakSeconds or minReadySeconds if longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub proven_after_seconds: Option<u32>,
    /// How many times a pod of a new revision falls until the revision fails on its node. A pod falls when it restarts, when it is unready for more than 10 seconds, when the kubelet evicts it, or when its machine is lost. Falls older than 10 minutes do not count if the node has served without a break since. 0: no limit. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_flaps: Option<u32>,
    /// When the rollout halts because pods failed or machines were lost, return to the last revision that all nodes ran, within the same budget. A first revision stays, and a silent detacher alone turns nothing back. spec.template stays unchanged; the operator does not try it again until it changes, or until you run `kubectl ids retry --all`.
    #[serde(default)]
    pub auto_rollback: bool,
}

/// How the pods of a node change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodUpdate {
    /// New pods replace them.
    #[default]
    Recreate,
    /// Pods stay if only images, labels and annotations change: their containers restart. Other changes replace the pods.
    InPlaceIfPossible,
    /// The same, but an update that needs new pods waits.
    InPlaceOnly,
}

/// One step of a canary.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodes) != has(self.nodeSelector)")
    .message("a step needs either nodes (total number on the new revision) or nodeSelector (labels of the nodes): set exactly one of them"))]
pub struct RolloutStep {
    /// Nodes that run the new revision when the step is done, including those of earlier steps: a number or a percentage (rounded down, at least 1) of chosen nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::step_nodes_schema")]
    pub nodes: Option<IntOrString>,
    /// Labels of this step's nodes. Nodes of earlier steps are added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Time for which the nodes of the step must serve without a break before the step is done, such as 10m. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::duration_schema")]
    pub soak: Option<Duration>,
    /// Most container restarts of the new revision since this step began. Above this number, the rollout halts. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub max_restarts: Option<u32>,
    /// Wait for spec.promote when the step is done.
    #[serde(default)]
    pub pause: bool,
}

/// Domains of nodes, each with its own budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Key of the Node label whose value is the domain, such as topology.kubernetes.io/zone. Nodes without the label form one domain.
    #[schemars(schema_with = "crate::schema::label_key_schema")]
    pub key: String,
    /// Nodes of one domain that may be disrupted at once, a number or a percentage (rounded down, at least 1) of the domain's nodes. Default: only the budget of all nodes applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_percent_above_zero_schema")]
    pub max_unavailable_nodes: Option<IntOrString>,
    /// Finish all nodes of one domain before the next domain starts. Otherwise domains take turns.
    #[serde(default)]
    pub one_domain_at_a_time: bool,
}

/// A recurring time in which the operator may start to update nodes or, with deny, must not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Start times, as in a `CronJob`: minute, hour, day of month, month, day of week, such as "0 2 * * 1-5"; or @daily, @weekly, @monthly. If daylight saving time skips a start, the window starts right after the gap. If the hour of a start repeats, the window starts once; a schedule for every hour of the day starts twice.
    #[schemars(schema_with = "crate::schema::schedule_schema")]
    pub schedule: String,
    /// Length from each start, 1m to 744h, such as 3h. It is elapsed time: clock changes do not alter it.
    #[schemars(schema_with = "crate::schema::window_duration_schema")]
    pub duration: Duration,
    /// Time zone of the schedule, an IANA name such as Europe/Berlin or UTC.
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// Start no node in this window, whatever other windows allow.
    #[serde(default)]
    pub deny: bool,
}

/// Whether nodes that are not Ready use the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NotReadyNodes {
    /// They count as unavailable.
    #[default]
    CountAgainst,
    /// They do not use the budget.
    Ignore,
}

/// Annotation of the Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotateDeployment {
    /// Key of the annotation. Default ingressdaemonsets.mumoshu.github.com/to-be-updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::deployment_annotation_key_schema")]
    pub key: Option<String>,
    /// Value of the annotation. Default empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::annotation_value_schema")]
    pub value: Option<String>,
    /// Grace period: seconds from the annotation to the first change of a pod. Default: from loadBalancer, else 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<u32>,
}

/// Annotation of the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotateNode {
    /// Key of the annotation. The operator's flag --allowed-detach-keys must allow it; by default, it allows node-detacher.variant.run/detached and the keys of cloud controllers.
    #[schemars(schema_with = "crate::schema::node_annotation_key_schema")]
    pub key: String,
    /// Value of the annotation, at most 63 characters. Default empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::node_annotation_value_schema")]
    pub value: Option<String>,
    /// Grace period: seconds from the annotation to the first change of a pod. Default: from loadBalancer, else 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<u32>,
}

/// Label of the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelNode {
    /// Key of the label. The operator's flag --allowed-detach-keys must allow it. Default: node.kubernetes.io/exclude-from-external-load-balancers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::node_label_key_schema")]
    pub key: Option<String>,
    /// Value of the label. Default true. Cloud controllers check only that the label exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_value_schema")]
    pub value: Option<String>,
    /// Grace period: seconds from the label to the first change of a pod. It must cover the time until the cloud has deregistered the node and its connections have drained. Required, because the operator cannot measure this time.
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: u32,
}

impl IngressDaemonSet {
    /// The ledger in its status; absent when never written or wiped.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.status.as_ref()?.rollout.as_ref()
    }
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

/// Timestamp that the detacher writes on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitForTimestamp {
    /// Key of the annotation that the detacher writes on the Node.
    #[schemars(schema_with = "crate::schema::node_annotation_key_schema")]
    pub key: String,
    /// Format of the timestamp. RFC3339 is the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RFC3339"]))]
    pub format: Option<String>,
    /// Grace period: seconds from the timestamp to the first change of a pod. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_seconds: Option<u32>,
}

/// Action if the detacher does not answer in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDetachTimeout {
    /// Wait and start no other node.
    #[default]
    Halt,
    /// Continue as if the node were detached.
    Proceed,
    /// Attach the node again and leave its pods unchanged.
    Abort,
}
