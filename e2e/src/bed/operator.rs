//! The operator as `deploy/` installs it.

/// Namespace of the operator and its lease.
pub const NAMESPACE: &str = "ingress-daemonset-system";
/// Name of the operator's Deployment, `ServiceAccount`, `ClusterRole`, webhook and lease.
pub const NAME: &str = "ingress-daemonset-operator";
/// The user that the operator's pods are.
pub const USER: &str = "system:serviceaccount:ingress-daemonset-system:ingress-daemonset-operator";
/// What of Nodes the operator of a bed lets resources taint, beyond what it does by default: a variable, and its value.
pub const NODE_TAINTS: (&str, &str) = ("ALLOWED_NODE_TAINTS", "default=readiness.k8s.io/*");
/// Whose health checkers may read Nodes, as the environment of the operator says it.
pub const NODE_READERS: (&str, &str) = ("ALLOWED_NODE_READERS", "default");
