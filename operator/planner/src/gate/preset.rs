//! The preset `startup.k8s.io`: what nodetaintshandler does, as a gate.

use super::world::Gate;
use crds::{
    label_selector::{LabelOperator, LabelRequirement, LabelSelector},
    node_readiness_gate::{
        AnnotationRequirement, DeletionPolicy, Effect, ExistingNodes, GateTaint, Mode, NodeReadinessGateSpec, PodsRequirement, Policy,
        Requirement,
    },
};
use std::collections::BTreeMap;

/// Its name on the command line.
pub const STARTUP: &str = "startup.k8s.io";
/// What names its records on Nodes.
pub const UID: &str = "preset-startup";
/// Annotation that a released node has, with the unix time.
pub const COMPLETED: &str = "startup.k8s.io/completedAt";

/// The gate. `namespace`: of the pods; empty for all. `since`: unix seconds; nodes that are older count as released, unless
/// `backfill` is set and nothing runs on them.
pub fn startup(namespace: &str, backfill: bool, since: i64) -> Gate {
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
    Gate {
        name: format!("preset/{STARTUP}"),
        uid: UID.to_owned(),
        generation: 0,
        created: since,
        deleting: false,
        spec: NodeReadinessGateSpec {
            node_selector: Some(LabelSelector { match_expressions: vec![user_pools], ..LabelSelector::default() }),
            all_nodes: false,
            taint: GateTaint { key: "startup.k8s.io/initializing".into(), value: Some("wait".into()), effect: Effect::NoSchedule },
            policy: Policy::AllOf,
            mode: Mode::Bootstrap,
            existing_nodes: Some(if backfill { ExistingNodes::GateIfIdle } else { ExistingNodes::Grandfather }),
            regate_on: Vec::new(),
            requirements: vec![Requirement { name: "init".into(), pods: Some(pods), ..Requirement::default() }],
            release: None,
            retaint: None,
            admission: None,
            tolerations: None,
            deletion_policy: DeletionPolicy::RemoveTaints,
            dry_run: false,
        },
        completion_annotation: Some(COMPLETED.to_owned()),
    }
}
