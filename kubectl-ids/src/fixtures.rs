//! What several tests begin with.

use crds::{ingress_daemon_set::IngressDaemonSetSpec, names};
use planner::snapshot::Resource;

/// The resource `edge` of the namespace `web`, as a watch shows it, without a status.
pub fn edge(spec: IngressDaemonSetSpec) -> Resource {
    Resource {
        name: "edge".into(),
        namespace: "web".into(),
        uid: "0a1b2c3d-0000-4000-8000-000000000000".into(),
        resource_version: "1".into(),
        generation: 1,
        created: 0,
        deleting: false,
        finalizers: vec![names::FINALIZER.into()],
        spec,
        status: None,
    }
}
