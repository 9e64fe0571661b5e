//! What several tests begin with.

use crds::{ingress_daemon_set::IngressDaemonSetSpec, names};
use planner::facts::Resource;

/// The resource `edge` of the namespace `web`, as a watch shows it, without a status.
pub fn edge(spec: IngressDaemonSetSpec) -> Resource {
    let finalizers = vec![names::FINALIZER.into()];
    Resource { finalizers, ..Resource::created(("web", "edge"), "0a1b2c3d-0000-4000-8000-000000000000", spec, 0) }
}
