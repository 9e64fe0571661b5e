//! The preset `startup.k8s.io`: what nodetaintshandler does, as a gate.

use super::world::Gate;
use crds::{
    UnixSeconds,
    label_selector::{LabelOperator, LabelRequirement, LabelSelector},
    node_readiness_gate::{AnnotationRequirement, Effect, ExistingNodes, GateTaint, NodeReadinessGateSpec, PodsRequirement, Requirement},
};
use std::collections::BTreeMap;

/// Name of the preset on the command line.
pub const STARTUP: &str = "startup.k8s.io";
/// UID by which Nodes name the preset's records.
pub const UID: &str = "preset-startup";
/// Annotation that a released node has, with the unix time.
pub const COMPLETED: &str = "startup.k8s.io/completedAt";

/// Taint of the preset.
pub fn taint() -> GateTaint {
    GateTaint { key: "startup.k8s.io/initializing".into(), value: Some("wait".into()), effect: Effect::NoSchedule }
}

/// The gate. `namespace`: of the pods; empty for all. `since`: unix seconds; nodes that are older count as released, unless
/// `backfill` is set and nothing runs on them.
pub fn startup(namespace: &str, backfill: bool, since: UnixSeconds) -> Gate {
    let pods = PodsRequirement {
        namespace: namespace.to_owned(),
        selector: LabelSelector {
            match_labels: BTreeMap::from([("startup.k8s.io/component".to_owned(), "init".to_owned())]),
            ..LabelSelector::default()
        },
        min_ready: None,
        ready_annotation: Some(AnnotationRequirement { key: "startup.k8s.io/ready".into(), value: Some("true".into()) }),
        annotation_only: false,
    };
    // System pools of AKS: the cluster's own pods must find a place.
    let user_pools =
        LabelRequirement { key: "kubernetes.azure.com/mode".into(), operator: LabelOperator::NotIn, values: vec!["system".into()] };
    let init = Requirement { name: "init".into(), pods: Some(pods), ..Requirement::default() };
    Gate {
        name: format!("preset/{STARTUP}"),
        uid: UID.to_owned(),
        generation: 0,
        created: since,
        edited: None,
        deleting: false,
        spec: NodeReadinessGateSpec {
            existing_nodes: Some(if backfill { ExistingNodes::GateIfIdle } else { ExistingNodes::Grandfather }),
            ..NodeReadinessGateSpec::new(taint(), vec![init])
                .on(LabelSelector { match_expressions: vec![user_pools], ..LabelSelector::default() })
        },
        completion_annotation: Some(COMPLETED.to_owned()),
    }
}
