//! Names that the product writes into the API: labels, annotations, finalizers, roles.
//!
//! Each name has one writer, which its comment names.

/// API group of every custom resource.
pub const GROUP: &str = "ingressdaemonsets.mumoshu.github.io";
/// Version of the API of every custom resource.
pub const VERSION: &str = "v1alpha1";

/// Finalizer on an `IngressDaemonSet`. Writer: the operator.
pub const FINALIZER: &str = "ingressdaemonsets.mumoshu.github.io/finalizer";
/// Finalizer of the original controller (2020), which had no slash. Understood, never written.
pub const FINALIZER_OF_ORIGINAL: &str = "ingressdaemonsets.mumoshu.github.io";

/// Label of a Node that cloud controllers leave out of the load balancers that they make for Services (Kubernetes, well-known labels).
pub const EXCLUDE_FROM_LOAD_BALANCERS_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Before the key of a Node mark that is a label and no annotation. No key of either has a colon.
pub const LABEL_MARK: &str = "label:";

/// The key of a Node mark, with the word for what it is.
pub fn mark_in_words(key: &str) -> String {
    key.strip_prefix(LABEL_MARK).map_or_else(|| format!("annotation {key}"), |key| format!("label {key}"))
}

/// Label of a per-node Deployment: its fencing token, see [`crate::token::Token`]. Writer: the operator.
pub const TOKEN_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/token";
/// Label of Deployments and pod templates: first 8 characters of the resource's UID. Writer: the operator.
pub const RESOURCE_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/resource";
/// Label of Deployments, their pods and health-checker pods: the per-node Deployment's name, or the health-checker
/// `DaemonSet`'s, kept from the original. Writer: the operator.
pub const NODE_LABEL: &str = "ingress-daemonset-node";
/// Label of a per-node Deployment, kept from the original: the node's name, where it is no longer than a label may be. Nothing is found by
/// it. Writer: the operator.
pub const FOR_NODE_LABEL: &str = "ingress-daemon-for-node";
/// Label of Deployments and pods: hash of the full node name, see [`crate::hash::node_hash`]. Writer: the operator.
pub const NODE_HASH_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/node-hash";
/// Annotation of Deployments: the full node name, which may be longer than a label. Writer: the operator.
pub const NODE_NAME_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/node-name";
/// Pod-template label: revision of the user's template that the pods run. Writer: the operator.
pub const REVISION_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/revision";
/// Pod-template label: hash of the operator's own additions to the template. Writer: the operator.
pub const RENDERED_BY_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/rendered-by";
/// Label of a Deployment: hash of its pod template as the API server stores it, where that is not what was rendered
/// (a webhook or policy rewrites it, or a feature is off): such a difference is no drift. Writer: the operator.
pub const ACCEPTED_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/accepted";
/// Label of a Deployment whose pods were refused at admission again and again: `<openings>.<closes at, unix seconds>`.
/// Writer: the operator.
pub const BREAKER_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/breaker";
/// Label of health-checker pods and their `DaemonSet`, kept from the original. Writer: the operator.
pub const HEALTH_CHECKER_LABEL: &str = "ingress-daemonset-hc";
/// Annotation of a health-checker `DaemonSet`: the port it serves. Writer: the operator.
pub const HEALTH_PORT_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/health-check-node-port";
/// Exit code of a health checker whose port belongs to somebody else; its termination message says to whom. Read by the operator.
pub const PORT_CONFLICT_EXIT_CODE: u8 = 3;
/// Prefix of the label of Nodes that says that a resource uses them; the first 8 characters of the resource's UID follow.
/// Values: `joining`, `serving`. Writer: the operator.
pub const MEMBER_LABEL_PREFIX: &str = "ingressdaemonsets.mumoshu.github.io/member-";
/// Annotation of Nodes: who holds the detach annotation, see [`crate::holders`]. Writer: the operator.
pub const HOLDERS_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/detach-holders";
/// Default key of `annotateDeploymentToDetach`, spelled with `.com` as in the original. On a Deployment it makes the
/// health check fail, whoever set it. Writers: the operator, and people who take a node out by hand.
pub const TO_BE_UPDATED_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.com/to-be-updated";
/// Prefix of the annotations of Nodes in which a readiness gate records what it has decided; the gate's UID follows.
/// Writer: the operator.
pub const GATE_RECORD_PREFIX: &str = "ingressdaemonsets.mumoshu.github.io/gate-";
/// Label of the admission policies of a readiness gate: the gate's UID. Writer: the operator.
pub const GATE_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/gate";
/// Type of the pod condition that lets a pod be ready: it is False while the pod is updated in place. Pods have it among their
/// readiness gates where `podUpdate` is not Recreate. Writer: the operator.
pub const IN_PLACE_GATE: &str = "ingressdaemonsets.mumoshu.github.io/in-place";
/// On a `ReplicaSet` a label, on a pod an annotation: whose update in place changed it last, see [`crate::in_place`]. Writer: the
/// operator.
pub const IN_PLACE_TOKEN: &str = "ingressdaemonsets.mumoshu.github.io/in-place";
/// Label of pods that pull images before a node's update: the revision whose images they pull. Writer: the operator.
pub const PRE_PULL_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/pre-pull";
/// Label of the admission policies of a readiness gate of pods: the gate's UID. Writer: the operator.
pub const POD_GATE_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/pod-gate";
/// Label of Namespaces, with the value [`INJECT_LABEL_VALUE`]: pods in it may get readiness gates as they are created. Writer: people.
pub const INJECT_LABEL: &str = "ingressdaemonsets.mumoshu.github.io/inject-readiness-gates";
/// The value that [`INJECT_LABEL`] must have.
pub const INJECT_LABEL_VALUE: &str = "enabled";
/// Annotation of pods: who holds them out of readiness, as JSON. Writers: whoever holds a pod, each its own entries.
pub const READINESS_HOLDS_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/readiness-holds";
/// Annotation of Nodes: resources, as `<namespace>/<name>` separated by commas, that leave this node as it is. Writer: people.
pub const SKIP_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/skip";
/// Annotation of Nodes: another value than at a node's failure lets the operator try the node again. Annotation of an
/// `IngressDaemonSet`: another value than before lets pass all that failed, and what was rolled back is tried again. Writer: people.
pub const RETRY_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/retry";
/// Annotation of Nodes: a grant, as `<namespace>/<name>:<id>`, whose slot is freed although the node is not finished.
/// Writer: people.
pub const RELEASE_ANNOTATION: &str = "ingressdaemonsets.mumoshu.github.io/release";
/// Taint that node-detacher puts on nodes it detaches; tolerated by our pods.
pub const DETACHER_TAINT: &str = "node-detacher.variant.run/detaching";
/// Taint of cluster-autoscaler on nodes that it is about to delete.
pub const CLUSTER_AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// Taint of Karpenter on nodes that it is about to delete.
pub const KARPENTER_TAINT: &str = "karpenter.sh/disrupted";
/// Taint that a person puts on a node that is shut down for good.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Taints of nodes that are about to be taken away, or are gone: such a node is detached and emptied, whatever the budget says.
/// Sources: cluster-autoscaler, Karpenter, Kubernetes, GKE, and the aws-node-termination-handler with `taintNode`. Its
/// `rebalance-recommendation` is none of them: nobody has decided yet that the node goes.
pub const DEPARTURE_TAINTS: [&str; 7] = [
    CLUSTER_AUTOSCALER_TAINT,
    KARPENTER_TAINT,
    OUT_OF_SERVICE_TAINT,
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
];

/// A taint of this key is one of [`DEPARTURE_TAINTS`].
pub fn is_departure(key: &str) -> bool {
    DEPARTURE_TAINTS.contains(&key)
}

/// `ClusterRole` of a health checker inside its namespace: read pods and Deployments.
pub const HEALTH_CHECKER_ROLE: &str = "ingress-daemonset-health-checker";
/// `ClusterRole` of a health checker outside it: read Nodes.
pub const HEALTH_CHECKER_NODE_ROLE: &str = "ingress-daemonset-health-checker-nodes";

/// The label key that marks a Node as a member of the resource.
pub fn member_label(uid8: &str) -> String {
    format!("{MEMBER_LABEL_PREFIX}{uid8}")
}

/// The first 8 characters of an object's UID, which name the resource where space is scarce.
pub fn uid8(uid: &str) -> &str {
    uid.get(..8).unwrap_or(uid)
}
