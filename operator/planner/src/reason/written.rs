//! Objects of a node that the operator writes.

use std::fmt;

/// A kind of object that the operator writes for a node: what the API server refuses of one says nothing of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeObject {
    /// The Node itself: its label, its mark and our entry.
    Node,
    /// The node's Deployment.
    Deployment,
    /// The node's pods, and their `ReplicaSet`.
    Pods,
    /// The pod that pulls images for the node.
    PullPod,
}

impl fmt::Display for NodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "a change of the Node",
            Self::Deployment => "the node's Deployment",
            Self::Pods => "a change of the node's pods",
            Self::PullPod => "the pod that pulls images for the node",
        })
    }
}
