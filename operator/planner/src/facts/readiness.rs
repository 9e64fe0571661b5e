//! Whether a node's Deployment is complete, and whether its node is in service.

use crate::facts::{DeploymentFacts, PodFacts};

/// The Deployment is at rest: everything it wants to run runs, and nothing else does.
///
/// The counters alone lie with a surge: an old pod on a shared port answers the new one's probe, then dies. So the pods
/// must be exactly those that are wanted, none of them terminating, all of the template's revision.
pub fn is_settled(deployment: &DeploymentFacts, pods: &[PodFacts]) -> bool {
    deployment.status.available == deployment.replicas() && is_ready(deployment, pods)
}

/// The same, but that pods may be too young to count as available (`minReadySeconds`).
pub fn is_ready(deployment: &DeploymentFacts, pods: &[PodFacts]) -> bool {
    let counts = &deployment.status;
    counts.observed_generation >= deployment.generation
        && [counts.replicas, counts.updated, counts.ready] == [deployment.replicas(); 3]
        && counts.terminating == 0
        && has_ready_pods(deployment, pods)
}

/// The same by the pods alone: the counters of the Deployment are its controller's, which may lag.
pub fn has_ready_pods(deployment: &DeploymentFacts, pods: &[PodFacts]) -> bool {
    let live = || pods.iter().filter(|pod| !pod.ended);
    // Looked up once: several times in each pass this is asked of every node.
    let revision = deployment.revision();
    usize::try_from(deployment.replicas()).is_ok_and(|wanted| live().count() == wanted)
        && live().all(|pod| pod.ready && !pod.terminating && pod.revision == revision)
}

/// Complete at a revision with this many pods.
pub fn is_complete(deployment: &DeploymentFacts, pods: &[PodFacts], revision: &str, replicas: i32) -> bool {
    deployment.replicas() == replicas && (replicas == 0 || deployment.revision() == revision) && is_settled(deployment, pods)
}

/// The first trouble that a pod names, by pod name.
pub fn trouble(pods: &[PodFacts]) -> Option<(String, String)> {
    let mut troubled: Vec<_> = pods.iter().filter(|pod| pod.trouble.is_some() && !pod.terminating).collect();
    troubled.sort_by_key(|pod| (pod.ended, &pod.name));
    troubled.first().and_then(|pod| pod.trouble.clone())
}
