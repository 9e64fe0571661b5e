//! Why a node is as it is, from the operator's own words first, then from the objects.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use crds::{
    IngressDaemonSet, UnixSeconds,
    ledger::Suspect,
    names,
    status::NodeState,
    token::{Phase, Token},
};
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt as _;
use planner::{
    Snapshot, decide,
    facts::{DeploymentFacts, NodeFacts, PodFacts},
    node_gates::record::{Record, records},
    objects::revisions::Targets,
    spec::{ResolvedSpec, node_selection::is_chosen},
};

use crate::output::{Style, Tone, age, in_one_line, span, tone_of};

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeExplanation {
    /// In a word.
    pub phase: String,
    /// Since when, RFC 3339, where the operator says so.
    pub since: Option<String>,
    /// Why, in a word and a sentence.
    pub reason: (String, String),
    /// What else there is to see, one line each: what, and what about it.
    pub details: Vec<(&'static str, String)>,
}

/// Says why a node is as it is; `Err` where there is no such node, with what to do.
pub fn why(resource: &IngressDaemonSet, snapshot: &Snapshot, node: &str) -> Result<NodeExplanation, String> {
    let ledger = resource.ledger();
    let known = snapshot.nodes.contains_key(node) || snapshot.deployments.contains_key(node);
    if !known && ledger.is_none_or(|ledger| !ledger.grants.contains_key(node)) {
        return Err(unknown(snapshot, node));
    }
    let said = resource.status.iter().flat_map(|status| &status.node_states).find(|state| state.name == node);
    let (phase, since, reason) = match said {
        Some(NodeState { phase, since, reason, message, .. }) => {
            (phase.to_string(), Some(since.clone()), (reason.clone(), message.clone()))
        }
        None => unsaid(snapshot, node),
    };
    Ok(NodeExplanation { phase, since: since.filter(|since| !since.is_empty()), reason, details: details(resource, snapshot, node) })
}

fn unknown(snapshot: &Snapshot, node: &str) -> String {
    let mut near: Vec<_> = snapshot.nodes.keys().filter(|name| name.starts_with(node) || name.contains(node)).cloned().collect();
    if near.is_empty() {
        near = snapshot.deployments.keys().cloned().collect();
    }
    if near.is_empty() {
        return format!("there is no node {node}: see `kubectl get nodes`");
    }
    format!("there is no node {node}; there is {}", crate::failure::listed(&near))
}

/// The status lists a hundred nodes at most, and none that are idle: the same planner decides what the operator would say.
fn unsaid(snapshot: &Snapshot, node: &str) -> (String, Option<String>, (String, String)) {
    let plan = decide(snapshot);
    if let Some(state) = plan.node_states.get(node) {
        return (state.phase.to_string(), None, (state.reason.word().to_owned(), state.message()));
    }
    let idle = |reason: &str, message: String| ("Idle".to_owned(), None, (reason.to_owned(), message));
    let refused = plan.status.conditions.iter().find(|condition| condition.type_ == "Valid" && condition.status == "False");
    if let Some(refused) = refused {
        return idle(&refused.reason, format!("{}; pods on the node keep running", refused.message));
    }
    // As the operator sees it: with what gates and its flags make of the spec.
    let Ok(Targets { effective: settings, .. }) = Targets::of(snapshot) else {
        return idle("InvalidSpec", "the spec is not valid; pods on the node keep running".into());
    };
    let deployment = snapshot.deployments.get(node);
    match snapshot.nodes.get(node) {
        Some(facts) if !is_chosen(&snapshot.resource.spec, &settings, node, facts, deployment.is_some()) => {
            ("NotChosen".to_owned(), None, ("NotChosen".to_owned(), unchosen(snapshot, &settings, node, facts)))
        }
        _ => match deployment {
            Some(found) if found.revision() == settings.revision => {
                idle("UpToDate", format!("runs the newest revision; {} of {} pods ready", found.status.ready, found.replicas()))
            }
            Some(_) => idle("Unknown", "does not run the newest revision; no obstacle found: the operator processes the node soon".into()),
            None => idle("Unknown", "has no pods of the resource yet; the operator processes the node soon".into()),
        },
    }
}

/// Which condition the Node does not fulfil.
fn unchosen(snapshot: &Snapshot, settings: &ResolvedSpec, name: &str, node: &NodeFacts) -> String {
    let wanted = |(key, value): (&String, &String)| (node.labels.get(key) != Some(value)).then(|| format!("{key}={value}"));
    let by_spec = snapshot.resource.spec.node_selector.iter().filter_map(wanted);
    let missing: Vec<_> = by_spec.chain(settings.pod.node_selector.iter().flatten().filter_map(wanted)).collect();
    if !missing.is_empty() {
        return format!(
            "the Node lacks the label {} that nodeSelector asks for: `kubectl label node {name} {}`",
            missing.join(", "),
            missing.join(" ")
        );
    }
    let with = |taints: Vec<Taint>| is_chosen(&snapshot.resource.spec, settings, name, &NodeFacts { taints, ..node.clone() }, false);
    if with(Vec::new()) {
        let (of_gates, others): (Vec<_>, Vec<_>) =
            node.taints.iter().filter(|taint| !with(vec![(*taint).clone()])).partition(|taint| held_by(node, taint).is_some());
        let mut said: Vec<_> = of_gates.into_iter().filter_map(|taint| Some(held(&held_by(node, taint)?))).collect();
        if !others.is_empty() {
            let taints: Vec<_> = others.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
            said.push(format!(
                "the pods do not tolerate all of the Node's taints ({}): add a toleration to the template",
                taints.join(", ")
            ));
        }
        return said.join("; ");
    }
    "the template's required node affinity does not match the Node".into()
}

/// What a gate recorded on the Node that keeps the taint there.
fn held_by(node: &NodeFacts, taint: &Taint) -> Option<Record> {
    let claims = |record: &Record| record.is_held() && (record.key.as_str(), record.effect.as_str()) == (&taint.key, &taint.effect);
    records(&node.annotations).into_values().find(claims)
}

/// Which gate it is, and where it says what it waits for.
fn held(record: &Record) -> String {
    let Record { gate, key, effect, .. } = record;
    let see = match gate.split_once('/') {
        None => format!("`kubectl get nrg {gate} -o yaml`"),
        Some(("configmap" | "preset", _)) => "the operator's log and metrics".into(),
        Some((namespace, name)) => format!("status.nodeReadiness of `kubectl get ids {name} -n {namespace} -o yaml`"),
    };
    format!("readiness gate {gate} keeps taint {key}:{effect} on the Node until the gate's requirements are met: see {see}")
}

fn details(resource: &IngressDaemonSet, snapshot: &Snapshot, node: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let now = snapshot.now;
    let grant = resource.ledger().and_then(|ledger| ledger.grants.get(node));
    if let Some(grant) = grant {
        let since = span(now.saturating_sub(grant.granted_at));
        let revision = if grant.revision.is_empty() { String::new() } else { format!(" to revision {}", grant.revision) };
        found.push(("Grant", format!("{:?}{revision}, id {}, granted {since} ago", grant.kind, grant.id)));
    }
    if let Some(suspect) = resource.ledger().and_then(|ledger| ledger.suspects.get(node)) {
        found.push(("Suspect", describe_suspect(suspect)));
    }
    if let Some(facts) = snapshot.nodes.get(node) {
        found.push(("Node", describe_node(snapshot, facts)));
        found.extend(records(&facts.annotations).values().filter(|record| record.is_held()).map(|record| ("Gate", held(record))));
    }
    if let Some(deployment) = snapshot.deployments.get(node) {
        found.push(("Deployment", describe_deployment(deployment, now)));
    }
    found.extend(snapshot.pods_on(node).iter().map(|pod| ("Pod", describe_pod(pod))));
    found
}

/// What the ledger says of a node that broke after its update; seconds are those of its last write.
fn describe_suspect(suspect: &Suspect) -> String {
    let Suspect { revision, falls, outages, last, since, unbroken, out, .. } = suspect;
    let since = if *since > 0 { format!("since {}", clock(*since)) } else { "no longer suspect".to_owned() };
    let last = if last.is_empty() { String::new() } else { format!(", last {last}") };
    let together = if *outages > 0 { format!(", lost {outages} times with others") } else { String::new() };
    format!(
        "{since}: revision {revision}, {falls} falls{last}{together}, {unbroken} s without a break, out of service for {out} s in total"
    )
}

fn describe_node(snapshot: &Snapshot, node: &NodeFacts) -> String {
    let mut words = vec![if node.ready { "Ready".to_owned() } else { "NotReady".to_owned() }];
    if node.unschedulable {
        words.push("cordoned: updated last".into());
    }
    if let Some(entry) = node.holders().ok().and_then(|holders| holders.get(snapshot.resource.uid8()).cloned()) {
        words.push(format!("detach {} {:?} since {}", names::mark_in_words(&entry.key), entry.phase, clock(entry.time)));
    }
    if let Some(listed) = node.annotations.get(names::SKIP_ANNOTATION) {
        words.push(format!("skipped by {listed}"));
    }
    words.join(", ")
}

fn describe_deployment(deployment: &DeploymentFacts, now: UnixSeconds) -> String {
    let status = &deployment.status;
    let token = match deployment.token() {
        Some(Ok(Token { id, phase, since, .. })) => format!(", {} for {} (id {id})", health(phase), span(now.saturating_sub(since))),
        Some(Err(error)) => format!(", {error}"),
        None => ", without a token".into(),
    };
    format!("{}: revision {}, {} of {} pods ready{token}", deployment.name, deployment.revision(), status.ready, deployment.replicas())
}

/// What a phase means for the load balancer.
fn health(phase: Phase) -> &'static str {
    match phase {
        Phase::New => "new, not complete yet, health check 503",
        Phase::Claimed => "out of the load balancer, health check 503",
        Phase::InPlace => "updating in place, health check 503",
        Phase::Degrading => "updating while attached",
        Phase::Updating => "updating, health check 503",
        Phase::Closed => "attached",
    }
}

fn describe_pod(pod: &PodFacts) -> String {
    let state = match (pod.terminating, pod.ended, pod.ready) {
        (true, ..) => "terminating",
        (_, true, _) => "terminated",
        (.., true) => "ready",
        _ => "not ready",
    };
    let trouble = pod.trouble.as_ref().map(|(reason, message)| format!("; {reason}: {message}")).unwrap_or_default();
    format!("{}: revision {}, {state}{trouble}", pod.name, pod.revision)
}

fn clock(seconds: i64) -> String {
    DateTime::<Utc>::from_timestamp(seconds, 0).map_or_else(|| seconds.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}

impl NodeExplanation {
    /// For people.
    pub fn render(&self, resource: &IngressDaemonSet, node: &str, style: Style, now: UnixSeconds) -> String {
        let tone = if self.phase == "NotChosen" { Tone::Plain } else { tone_of(&self.phase) };
        let since = self.since.as_deref().and_then(|since| age(since, now)).map(|since| format!(" for {since}")).unwrap_or_default();
        let (reason, message) = &self.reason;
        let mut text = format!(
            "{node} of {}/{}  {}{since}\n{reason}: {}\n",
            resource.namespace().unwrap_or_default(),
            resource.name_any(),
            style.paint(&self.phase, tone),
            in_one_line(message)
        );
        if !self.details.is_empty() {
            text.push('\n');
        }
        for (what, about) in &self.details {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{what:<11} {}", in_one_line(about));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::edge;
    use planner::node_gates::record::annotation_key;
    use serde_json::json;
    use std::{collections::BTreeMap, sync::Arc};

    fn resource() -> IngressDaemonSet {
        let pod = json!({ "containers": [{ "name": "nginx", "image": "nginx:1.29" }] });
        serde_json::from_value(json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
            "metadata": { "name": "edge", "namespace": "web", "uid": "0a1b2c3d-0000-4000-8000-000000000000" },
            "spec": { "nodeSelector": { "role": "edge" }, "template": { "spec": pod } },
        }))
        .unwrap()
    }

    fn taint(key: &str) -> Taint {
        Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() }
    }

    /// What is said of a node with these taints, which gates of these names keep there.
    fn asked(taints: &[(&str, Option<&str>)]) -> NodeExplanation {
        let resource = resource();
        let mut node = NodeFacts { uid: "u".into(), ready: true, ..NodeFacts::default() };
        node.labels.insert("role".into(), "edge".into());
        for (index, (key, gate)) in taints.iter().enumerate() {
            node.taints.push(taint(key));
            let record = json!({ "g": gate, "k": key, "e": "NoSchedule", "s": "held", "o": "applied", "c": "fresh", "t": 1 });
            if gate.is_some() {
                node.annotations.insert(annotation_key(&index.to_string()), record.to_string());
            }
        }
        let nodes = Arc::new(BTreeMap::from([("n1".to_owned(), Arc::new(node))]));
        why(&resource, &Snapshot { nodes, ..Snapshot::of(edge(resource.spec.clone()), 1_767_225_600) }, "n1").unwrap()
    }

    #[test]
    fn why_names_the_gate_that_keeps_pods_from_a_node() {
        for (gate, see) in [
            ("network", "kubectl get nrg network"),
            ("web/other", "kubectl get ids other -n web"),
            ("configmap/kube-system/node.readiness", "the operator's log"),
        ] {
            let answer = asked(&[("example.com/network", Some(gate))]);
            let (_, message) = &answer.reason;
            assert_eq!(answer.phase, "NotChosen");
            assert!(message.contains(&format!("readiness gate {gate} keeps taint example.com/network:NoSchedule")), "{message}");
            assert!(message.contains(see) && !message.contains("add a toleration"), "{message}");
            assert!(answer.details.iter().any(|(what, about)| *what == "Gate" && about.contains(gate)), "{:?}", answer.details);
        }
    }

    /// What the operator has written of it comes first, then what its ledger counts.
    #[test]
    fn why_shows_a_suspects_message_and_ledger_counts() {
        let mut resource = resource();
        let said =
            "suspect since 2026-01-01T00:00:00Z: it fell 2 times, the last time a container restarted; the node counts as good later";
        resource.status = serde_json::from_value(json!({
            "nodeStates": [{ "name": "n1", "phase": "Suspect", "since": "2026-01-01T00:00:09Z", "reason": "Suspect", "message": said }],
            "rollout": { "suspects": { "n1": {
                "nodeUID": "u", "revision": "b", "falls": 2, "last": "CrashLoop", "since": 1_767_225_600, "unbroken": 12, "out": 20,
            } } },
        }))
        .unwrap();
        let nodes = Arc::new(BTreeMap::from([("n1".to_owned(), Arc::new(NodeFacts { ready: true, ..NodeFacts::default() }))]));
        let snapshot = Snapshot { nodes, ..Snapshot::of(edge(resource.spec.clone()), 1_767_225_640) };
        let text = why(&resource, &snapshot, "n1").unwrap().render(&resource, "n1", Style::default(), snapshot.now);
        assert!(text.contains(&format!("Suspect: {said}")), "{text}");
        let counts =
            "since 2026-01-01T00:00:00Z: revision b, 2 falls, last CrashLoop, 12 s without a break, out of service for 20 s in total";
        assert!(text.contains(&format!("Suspect     {counts}")), "{text}");
    }

    #[test]
    fn an_unknown_taint_needs_a_toleration_unlike_a_gates_taint() {
        let (_, message) = asked(&[("example.com/gpu", None), ("example.com/network", Some("network"))]).reason;
        assert!(message.contains("not tolerate all of the Node's taints (example.com/gpu:NoSchedule): add a toleration"), "{message}");
        assert!(message.contains("gate network keeps taint"), "{message}");
    }
}
