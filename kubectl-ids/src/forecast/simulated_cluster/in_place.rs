//! Pods that are updated in place, in the simulated cluster: their `ReplicaSets` and gates, images that change, and images that come
//! before.

use std::sync::Arc;

use crds::{UnixSeconds, in_place::PodRecord, names};
use planner::{
    facts::{ContainerFacts, DeploymentFacts, InPlacePod, PodFacts, PullFacts, ReplicaSetFacts},
    objects::in_place::{change, gates},
};
use serde_json::{Value, json};

use super::{SimulatedCluster, object, patched, pods_on, strings};

impl SimulatedCluster {
    /// The `ReplicaSet` of a Deployment whose pods have the gate takes the place of all of before, as they are not kept.
    pub(super) fn make_replica_set(&mut self, node: &str, deployment: &DeploymentFacts) {
        self.snapshot.replica_sets.remove(node);
        let template = deployment.spec.get("template").unwrap_or_default();
        if !gates(&template) {
            return;
        }
        self.made += 1;
        let (name, hash) = (format!("{}-{}", deployment.name, self.made), self.made.to_string());
        for pod in pods_on(&mut self.snapshot.pods, node) {
            pod.gated = Some(Box::new(gated(&hash, &pod.name, &template)));
        }
        let set = ReplicaSetFacts {
            uid: format!("planned-{name}"),
            name,
            owner: deployment.uid.clone(),
            hash,
            token: None,
            replicas: deployment.replicas(),
            spec: json!({ "template": template }).into(),
        };
        self.snapshot.replica_sets.insert(node.to_owned(), vec![set]);
    }

    /// The Deployment finds its pods, made by a `ReplicaSet` of this template already.
    pub(super) fn has_pods_of(&self, node: &str, spec: &Value) -> bool {
        let sets = self.snapshot.replica_sets.get(node).map_or(&[][..], Vec::as_slice);
        let Some(set) = sets.iter().find(|set| set.template() == spec["template"]) else { return false };
        let pods = self.snapshot.pods_on(node);
        spec["replicas"] == pods.len() && pods.iter().all(|pod| pod.gated.as_ref().is_some_and(|gated| gated.hash == set.hash))
    }

    /// What an update in place that is under way has changed begins to run.
    pub(super) fn go_on_in_place(&mut self, node: &str) {
        // What is in trouble does not mend itself.
        if self.snapshot.pods_on(node).iter().any(|pod| pod.trouble.is_some()) {
            return;
        }
        self.made += 1;
        for gated in pods_on(&mut self.snapshot.pods, node).filter_map(|pod| pod.gated.as_deref_mut()) {
            gated.observed_generation = gated.generation;
            let Some(record) = &gated.record else { continue };
            for container in &mut gated.containers {
                if record.before.get(&container.name).is_some_and(|before| before.container == container.id) {
                    begin(container, self.made, self.snapshot.now);
                }
            }
        }
        self.ready_at.insert(node.to_owned(), self.snapshot.now.saturating_add(self.pod_seconds));
    }

    pub(super) fn patch_replica_set(&mut self, node: &str, name: &str, patch: &Value) -> bool {
        let set = self.snapshot.replica_sets.get_mut(node).into_iter().flatten().find(|set| set.name == name);
        let Some(set) = set else { return false };
        let labels = set.token.iter().map(|token| (names::IN_PLACE_TOKEN.to_owned(), Value::from(token.as_str())));
        let labels: Value = labels.collect::<serde_json::Map<_, _>>().into();
        let before = json!({ "metadata": { "uid": set.uid, "labels": labels }, "spec": { "template": set.template() } });
        let Some(after) = patched(before.clone(), patch) else { return false };
        set.token = after["metadata"]["labels"][names::IN_PLACE_TOKEN].as_str().map(str::to_owned);
        set.spec = json!({ "template": after["spec"]["template"] }).into();
        after != before
    }

    /// Containers whose image changes start again, and are ready after the usual time.
    pub(super) fn patch_pod(&mut self, node: &str, name: &str, patch: &Value) -> bool {
        let (now, run) = (self.snapshot.now, self.made + 1);
        let Some(pod) = pods_on(&mut self.snapshot.pods, node).find(|pod| pod.name == name) else {
            return false;
        };
        let Some(gated) = pod.gated.as_deref_mut() else { return false };
        let containers: Vec<_> =
            gated.containers.iter().map(|container| json!({ "name": container.name, "image": container.image })).collect();
        let mut metadata = json!({ "uid": gated.uid, "labels": object(&gated.labels) });
        if !gated.annotations.is_empty() {
            metadata["annotations"] = object(&gated.annotations);
        }
        let before = json!({ "metadata": metadata, "spec": { "containers": containers } });
        let Some(after) = patched(before.clone(), patch).filter(|after| *after != before) else { return false };
        gated.labels = strings(&after["metadata"]["labels"]).into();
        gated.annotations = strings(&after["metadata"]["annotations"]).into();
        gated.record = PodRecord::parse(gated.annotations.get(names::IN_PLACE_TOKEN).map(String::as_str));
        gated.generation += 1;
        gated.observed_generation = gated.generation;
        let mut restarts = false;
        for (container, after) in gated.containers.iter_mut().zip(after["spec"]["containers"].as_array().into_iter().flatten()) {
            let image = after["image"].as_str().unwrap_or_default();
            if container.image != image {
                image.clone_into(&mut container.image);
                begin(container, run, now);
                restarts = true;
            }
        }
        if let Some(revision) = gated.labels.get(names::REVISION_LABEL) {
            pod.revision.clone_from(revision);
        }
        if restarts {
            pod.ready = false;
            self.made = run;
            self.ready_at.insert(node.to_owned(), now.saturating_add(self.pod_seconds));
        }
        self.count_ready(node);
        true
    }

    pub(super) fn patch_pod_status(&mut self, node: &str, name: &str, patch: &Value) -> bool {
        let open = Some(patch["status"]["conditions"][0]["status"] == "True");
        let pod = pods_on(&mut self.snapshot.pods, node).find(|pod| pod.name == name);
        let Some(pod) = pod.filter(|pod| pod.gated.as_ref().is_some_and(|gated| gated.gate != open)) else { return false };
        if let Some(gated) = &mut pod.gated {
            gated.gate = open;
        }
        look(pod);
        self.count_ready(node);
        true
    }

    /// What its Deployment says of its pods.
    pub(super) fn count_ready(&mut self, node: &str) {
        let ready = self.snapshot.pods_on(node).iter().filter(|pod| pod.ready).count();
        let ready = i32::try_from(ready).unwrap_or(i32::MAX);
        if let Some(deployment) = self.snapshot.deployments.get_mut(node).map(Arc::make_mut) {
            (deployment.status.ready, deployment.status.available) = (ready, ready);
        }
    }

    /// The images come as fast as a pod is ready.
    pub(super) fn begin_pull(&mut self, node: &str, name: &str, body: &Value) -> bool {
        let revision = body["metadata"]["labels"][names::PRE_PULL_LABEL].as_str().unwrap_or_default().to_owned();
        let (name, node) = (name.to_owned(), node.to_owned());
        let created = self.snapshot.now;
        let pull = PullFacts { uid: name.clone(), name, node: node.clone(), revision, created, ..PullFacts::default() };
        self.snapshot.pulls.entry(node.clone()).or_default().push(pull);
        self.go_on_pulling(&node);
        true
    }

    /// Images that are on their way without trouble.
    pub(super) fn go_on_pulling(&mut self, node: &str) {
        let on_their_way = |pull: &PullFacts| !pull.pulled && !pull.terminating && pull.trouble.is_none();
        if self.snapshot.pulls.get(node).into_iter().flatten().any(on_their_way) {
            self.pulled_at.insert(node.to_owned(), self.snapshot.now.saturating_add(self.pod_seconds.max(1)));
        }
    }

    pub(super) fn pulls_end(&mut self, now: UnixSeconds) {
        let due: Vec<_> = self.pulled_at.iter().filter(|(_, at)| **at <= now).map(|(node, _)| node.clone()).collect();
        for node in due {
            self.pulled_at.remove(&node);
            for pull in self.snapshot.pulls.get_mut(&node).into_iter().flatten().filter(|pull| pull.trouble.is_none()) {
                pull.pulled = true;
            }
        }
    }

    /// A pod that pulled images goes; one that served is replaced.
    pub(super) fn delete_pod(&mut self, name: &str) -> bool {
        let pulls = |pulls: &Vec<PullFacts>| pulls.iter().any(|pull| pull.name == name);
        if let Some(found) = self.snapshot.pulls.values_mut().find(|all| pulls(all)) {
            found.retain(|pull| pull.name != name);
            return true;
        }
        let serves = |pods: &[Arc<PodFacts>]| pods.iter().any(|pod| pod.name == name);
        let node = self.snapshot.pods.iter().find(|(_, pods)| serves(pods)).map(|(node, _)| node.clone());
        node.inspect(|node| self.replace_pods(node)).is_some()
    }
}

/// Whether a pod is ready: its containers are, and its gate lets it.
pub(super) fn look(pod: &mut PodFacts) {
    if let Some(gated) = &pod.gated {
        pod.ready = gated.gate == Some(true) && gated.containers.iter().all(|container| container.ready);
    }
}

/// Another run of a container.
fn begin(container: &mut ContainerFacts, run: u64, now: UnixSeconds) {
    container.id = format!("planned://{}-{run}", container.name);
    container.image_id = format!("planned://{}", container.image);
    container.shown = container.image.clone();
    (container.running, container.ready, container.started_at) = (false, false, now);
    container.restarts = container.restarts.saturating_add(1);
}

fn gated(hash: &str, name: &str, template: &Value) -> InPlacePod {
    let containers = change::containers(template).map(|container| {
        let text = |key: &str| container[key].as_str().unwrap_or_default().to_owned();
        let mut facts = ContainerFacts { name: text("name"), image: text("image"), restarts: -1, ..ContainerFacts::default() };
        begin(&mut facts, 0, 0);
        facts
    });
    InPlacePod {
        uid: format!("planned-{name}-{hash}"),
        resource_version: "1".into(),
        generation: 1,
        observed_generation: 1,
        hash: hash.to_owned(),
        gate: None,
        containers: containers.collect(),
        termination_grace: template["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30),
        labels: change::texts(template, "labels").into(),
        annotations: change::texts(template, "annotations").into(),
        record: None,
    }
}
