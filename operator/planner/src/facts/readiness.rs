//! Whether a node's Deployment is complete, and whether its node is in service.

use crate::facts::{DeploymentFacts, PodFacts};
use std::sync::Arc;

/// The Deployment is complete: everything it wants to run runs, and nothing else does.
///
/// The counters alone lie with a surge: an old pod on a shared port answers the new one's probe, then dies. So the pods
/// must be exactly those that are wanted, none of them terminating, all of the template's revision.
pub fn is_settled(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>]) -> bool {
    deployment.status.available == deployment.replicas() && is_ready(deployment, pods)
}

/// The same, but that pods may be too young to count as available (`minReadySeconds`).
pub fn is_ready(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>]) -> bool {
    let counts = &deployment.status;
    counts.observed_generation >= deployment.generation
        && [counts.replicas, counts.updated, counts.ready] == [deployment.replicas(); 3]
        && counts.terminating == 0
        && has_ready_pods(deployment, pods)
}

/// The same by the pods alone: the counters of the Deployment are its controller's, which may lag.
pub fn has_ready_pods(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>]) -> bool {
    let live = || pods.iter().filter(|pod| !pod.ended);
    // Looked up once: several times in each pass this is asked of every node.
    let revision = deployment.revision();
    usize::try_from(deployment.replicas()).is_ok_and(|wanted| live().count() == wanted)
        && live().all(|pod| pod.ready && !pod.terminating && pod.revision == revision)
}

/// Complete at a revision with this many pods.
pub fn is_complete(deployment: &DeploymentFacts, pods: &[Arc<PodFacts>], revision: &str, replicas: i32) -> bool {
    deployment.replicas() == replicas && (replicas == 0 || deployment.revision() == revision) && is_settled(deployment, pods)
}

/// The first trouble that a pod names, by pod name. What ended counts only where it ran the wanted `revision` and others can take its
/// place, none of which the API server has `refused`: a kubelet leaves an evicted pod behind for as long as it likes.
pub fn trouble(pods: &[Arc<PodFacts>], revision: &str, refused: bool) -> Option<(String, String)> {
    let speaks = |pod: &PodFacts| !pod.ended || !refused && pod.revision == revision;
    let counts = |pod: &&Arc<PodFacts>| pod.trouble.is_some() && !pod.terminating && speaks(pod);
    let first = pods.iter().filter(counts).min_by_key(|pod| (pod.ended, &pod.name))?;
    first.trouble.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_pods_trouble_counts_only_for_the_wanted_template() {
        let pod = |name: &str, revision: &str, ended, trouble: Option<&str>| PodFacts {
            name: name.into(),
            revision: revision.into(),
            ended,
            trouble: trouble.map(|reason| (reason.to_owned(), String::new())),
            ..PodFacts::default()
        };
        let former = pod("a", "old", true, Some("Evicted"));
        let evicted = pod("b", "new", true, Some("Evicted"));
        let pulls = pod("c", "new", false, Some("ImagePullBackOff"));
        let said = |refused, pods: &[&PodFacts]| {
            let pods: Vec<_> = pods.iter().map(|pod| Arc::new((*pod).clone())).collect();
            trouble(&pods, "new", refused).map(|(reason, _)| reason)
        };
        assert_eq!(said(false, &[&former, &pod("d", "new", false, None)]), None);
        assert_eq!(said(false, &[&former, &evicted]).as_deref(), Some("Evicted"));
        assert_eq!(said(false, &[&former, &evicted, &pulls]).as_deref(), Some("ImagePullBackOff"));
        assert_eq!(said(true, &[&former, &evicted]), None);
        assert_eq!(said(true, &[&evicted, &pulls]).as_deref(), Some("ImagePullBackOff"));
    }
}
