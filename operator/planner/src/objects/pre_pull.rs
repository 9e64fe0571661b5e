//! Images on the node before it is taken out of service: a kubelet ends the container first and fetches the image afterwards.
//!
//! A pod per node has the new images, and a command that is in none of them: it is made, and cannot begin. What its status says
//! tells whether the images came: a kubelet that says anything of a container's start, or knows the image's ID, has the image.

use crate::{
    facts::PullFacts,
    node::ManagedNode,
    objects::{
        in_place::change,
        render::{object_name, owner_reference},
    },
    plan::Action,
    snapshot::Snapshot,
    spec::ResolvedSpec,
};
use crds::{UnixSeconds, hash, ledger::GrantReason, names};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A program that no image has.
const NO_PROGRAM: &str = "/ingress-daemonset-pre-pull-starts-nothing";

/// Shortest and longest time in seconds before a pod that its kubelet gave up makes way for another: what the node lacks comes by and by.
const AGAIN_AFTER: (i64, i64) = (60, 15 * 60);

/// Whether the images of the wanted revision are on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// The images are on the node, or the spec does not ask to pull them first.
    Done,
    /// A pod has to be created that pulls them.
    ToBegin,
    /// A pod is pulling them; with its trouble, if any.
    UnderWay(Option<(String, String)>),
    /// The kubelet gave the pod up, and another will replace it; with its trouble.
    GivenUp(Option<(String, String)>),
}

/// How far the pull of a node's next images is.
pub fn pull(snapshot: &Snapshot, managed: &ManagedNode<'_>, kind: GrantReason) -> Pull {
    let Some((settings, deployment)) = managed.settings.zip(managed.deployment).filter(|(settings, _)| settings.pre_pull) else {
        return Pull::Done;
    };
    let current = deployment.spec.get("template").unwrap_or_default();
    if kind != GrantReason::Update || images(&settings.template).is_subset(&images(&current)) {
        return Pull::Done;
    }
    match snapshot.pulls.get(managed.name).into_iter().flatten().find(|pull| pull.revision == settings.revision && !pull.terminating) {
        None => Pull::ToBegin,
        Some(PullFacts { pulled: true, .. }) => Pull::Done,
        Some(pull) if pull.given_up => Pull::GivenUp(pull.trouble.clone()),
        Some(pull) => Pull::UnderWay(pull.trouble.clone()),
    }
}

/// The images of a template.
fn images(template: &Value) -> BTreeSet<String> {
    let of = |list: &Value| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(|container| container["image"].as_str().map(str::to_owned)).collect()
    };
    change::containers(template)
        .filter_map(|c| c["image"].as_str().map(str::to_owned))
        .chain(of(&template["spec"]["initContainers"]))
        .collect()
}

/// Creates the pod that pulls the images of a node's next revision.
pub fn begin(snapshot: &Snapshot, managed: &ManagedNode<'_>, settings: &ResolvedSpec) -> Action {
    let resource = &snapshot.resource;
    let part = hash::hex(format!("{}/{}", managed.name, settings.revision).as_bytes(), 10);
    let name = object_name(&resource.name, &format!("pull-{part}"), &BTreeSet::new());
    let spec = &settings.template["spec"];
    let size = json!({ "cpu": "10m", "memory": "16Mi" });
    let containers = images(&settings.template).into_iter().enumerate().map(|(index, image)| {
        json!({
            "name": format!("pull-{index}"),
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": [NO_PROGRAM],
            "resources": { "requests": size, "limits": size },
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        })
    });
    let mut pod = json!({
        "nodeName": managed.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "tolerations": [{ "operator": "Exists" }],
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": containers.collect::<Vec<_>>(),
    });
    // Whoever may fetch the images for the workload may fetch them for this.
    for field in ["imagePullSecrets", "serviceAccountName"] {
        if !spec[field].is_null() {
            pod[field] = spec[field].clone();
        }
    }
    let body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": resource.namespace,
            "labels": { names::RESOURCE_LABEL: resource.uid8(), names::PRE_PULL_LABEL: settings.revision },
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": pod,
    });
    Action::CreatePod { node: managed.name.to_owned(), name, body: Box::new(body) }
}

/// When a pod makes way for another, if its kubelet gave it up. It stays for as long as the rollout had gone on when it was made, so that
/// each pod of a node stays for longer than the one before.
fn makes_way_at(snapshot: &Snapshot, pull: &PullFacts) -> Option<UnixSeconds> {
    let rollout = snapshot.resource.ledger().and_then(|ledger| ledger.rollout_state.as_ref());
    let since = rollout.map_or(pull.created, |rollout| rollout.since);
    let (shortest, longest) = AGAIN_AFTER;
    let pause = pull.created.saturating_sub(since).clamp(shortest, longest);
    (pull.given_up && !pull.terminating).then(|| pull.created.saturating_add(pause))
}

/// When the next pod that its kubelet gave up makes way for another.
pub fn again_at(snapshot: &Snapshot) -> Option<UnixSeconds> {
    snapshot.pulls.values().flatten().filter_map(|pull| makes_way_at(snapshot, pull)).filter(|at| *at > snapshot.now).min()
}

/// Pods that have done what they were for or that their kubelet gave up, and those whose images are wanted no more.
pub fn over(snapshot: &Snapshot, managed_nodes: &[ManagedNode<'_>]) -> Vec<Action> {
    let waits = |node: &str, pull: &PullFacts| {
        let managed = managed_nodes.iter().find(|managed| managed.name == node);
        managed.is_some_and(|managed| {
            let wanted = managed.settings.is_some_and(|settings| settings.pre_pull && settings.revision == pull.revision);
            wanted && managed.chosen && managed.need(snapshot.now) == Some(GrantReason::Update)
        })
    };
    let all = snapshot.pulls.iter().flat_map(|(node, pulls)| pulls.iter().map(move |pull| (node, pull)));
    let failed = |pull: &PullFacts| makes_way_at(snapshot, pull).is_some_and(|at| at <= snapshot.now);
    let over = all.filter(|(node, pull)| !pull.terminating && (failed(pull) || !waits(node, pull)));
    over.map(|(_, pull)| Action::DeletePod { name: pull.name.clone(), uid: Some(pull.uid.clone()), resource_version: None }).collect()
}
