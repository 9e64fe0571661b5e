//! Why a node is as it is, from the operator's own words first, then from the objects.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use crds::{
    IngressDaemonSet, names,
    status::NodeState,
    token::{Phase, Token},
};
use kube::ResourceExt as _;
use planner::{
    Snapshot, decide,
    eligibility::is_chosen,
    settings::{Settings, resolve},
    snapshot::{DeploymentFacts, NodeFacts, PodFacts},
};

use crate::output::{Style, Tone, age, span, tone_of};

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
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
pub fn why(resource: &IngressDaemonSet, snapshot: &Snapshot, node: &str) -> Result<Answer, String> {
    let ledger = resource.ledger();
    let known = snapshot.nodes.contains_key(node) || snapshot.deployments.contains_key(node);
    if !known && ledger.is_none_or(|ledger| !ledger.grants.contains_key(node)) {
        return Err(unknown(snapshot, node));
    }
    let said = resource.status.iter().flat_map(|status| &status.node_states).find(|state| state.name == node);
    let (phase, since, reason) = match said {
        Some(NodeState { phase, since, reason, message, .. }) => (phase.clone(), Some(since.clone()), (reason.clone(), message.clone())),
        None => unsaid(snapshot, node),
    };
    Ok(Answer { phase, since: since.filter(|since| !since.is_empty()), reason, details: details(resource, snapshot, node) })
}

fn unknown(snapshot: &Snapshot, node: &str) -> String {
    let mut near: Vec<_> = snapshot.nodes.keys().filter(|name| name.starts_with(node) || name.contains(node)).cloned().collect();
    if near.is_empty() {
        near = snapshot.deployments.keys().cloned().collect();
    }
    if near.is_empty() {
        return format!("there is no node {node}: `kubectl get nodes` lists them");
    }
    format!("there is no node {node}; there is {}", crate::failure::listed(&near))
}

/// The status lists a hundred nodes at most, and none that are idle: the same planner decides what the operator would say.
fn unsaid(snapshot: &Snapshot, node: &str) -> (String, Option<String>, (String, String)) {
    let settings = resolve(&snapshot.resource.spec);
    if let Some(held) = decide(snapshot).held.get(node) {
        return (held.phase.to_owned(), None, (held.hold.reason().to_owned(), held.hold.message()));
    }
    let idle = |reason: &str, message: String| ("Idle".to_owned(), None, (reason.to_owned(), message));
    let Ok(settings) = settings else {
        return idle("InvalidSpec", "the spec is not valid (see condition Valid); what runs on the node keeps running".into());
    };
    let deployment = snapshot.deployments.get(node);
    match snapshot.nodes.get(node) {
        Some(facts) if !is_chosen(&snapshot.resource.spec, &settings, node, facts, deployment.is_some()) => {
            ("NotChosen".to_owned(), None, ("NotChosen".to_owned(), unchosen(snapshot, &settings, node, facts)))
        }
        _ => match deployment {
            Some(found) if found.revision() == settings.revision => {
                idle("UpToDate", format!("it runs the newest revision, {} of {} pods are ready", found.status.ready, found.replicas()))
            }
            Some(_) => idle(
                "Unknown",
                "it does not run the newest revision, and nothing holds it back: the operator is about to look at it".into(),
            ),
            None => idle("Unknown", "it has no pods of the resource yet: the operator is about to look at it".into()),
        },
    }
}

/// Which condition the Node does not fulfil.
fn unchosen(snapshot: &Snapshot, settings: &Settings, name: &str, node: &NodeFacts) -> String {
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
    let without_taints = NodeFacts { taints: Vec::new(), ..node.clone() };
    if is_chosen(&snapshot.resource.spec, settings, name, &without_taints, false) {
        let taints: Vec<_> = node.taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
        return format!("the pods do not tolerate all of the Node's taints ({}): add a toleration to the template", taints.join(", "));
    }
    "the template's required node affinity does not match the Node".into()
}

fn details(resource: &IngressDaemonSet, snapshot: &Snapshot, node: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let now = snapshot.now;
    let grant = resource.ledger().and_then(|ledger| ledger.grants.get(node));
    if let Some(grant) = grant {
        let since = span(now.saturating_sub(grant.granted_at));
        let revision = if grant.revision.is_empty() { String::new() } else { format!(" to revision {}", grant.revision) };
        found.push(("Permission", format!("{:?}{revision}, id {}, given {since} ago", grant.kind, grant.id)));
    }
    if let Some(facts) = snapshot.nodes.get(node) {
        found.push(("Node", describe_node(snapshot, facts)));
    }
    if let Some(deployment) = snapshot.deployments.get(node) {
        found.push(("Deployment", describe_deployment(deployment, now)));
    }
    found.extend(snapshot.pods_on(node).iter().map(|pod| ("Pod", describe_pod(pod))));
    found
}

fn describe_node(snapshot: &Snapshot, node: &NodeFacts) -> String {
    let mut words = vec![if node.ready { "Ready".to_owned() } else { "NotReady".to_owned() }];
    if node.unschedulable {
        words.push("cordoned: updated last".into());
    }
    if let Some(entry) = node.holders().ok().and_then(|holders| holders.get(snapshot.resource.uid8()).cloned()) {
        words.push(format!("detach annotation {} {:?} since {}", entry.key, entry.phase, clock(entry.time)));
    }
    if let Some(listed) = node.annotations.get(names::SKIP_ANNOTATION) {
        words.push(format!("left out by {listed}"));
    }
    words.join(", ")
}

fn describe_deployment(deployment: &DeploymentFacts, now: i64) -> String {
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
        Phase::New => "never complete yet, health check 503",
        Phase::Claimed => "taken out, health check 503",
        Phase::Degrading => "updating while attached",
        Phase::Updating => "updating, health check 503",
        Phase::Closed => "attached",
    }
}

fn describe_pod(pod: &PodFacts) -> String {
    let state = match (pod.terminating, pod.ended, pod.ready) {
        (true, ..) => "ending",
        (_, true, _) => "ended",
        (.., true) => "ready",
        _ => "not ready",
    };
    let trouble = pod.trouble.as_ref().map(|(reason, message)| format!("; {reason}: {message}")).unwrap_or_default();
    format!("{}: revision {}, {state}{trouble}", pod.name, pod.revision)
}

fn clock(seconds: i64) -> String {
    DateTime::<Utc>::from_timestamp(seconds, 0).map_or_else(|| seconds.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}

impl Answer {
    /// For people.
    pub fn render(&self, resource: &IngressDaemonSet, node: &str, style: Style, now: i64) -> String {
        let tone = if self.phase == "NotChosen" { Tone::Plain } else { tone_of(&self.phase) };
        let since = self.since.as_deref().and_then(|since| age(since, now)).map(|since| format!(" for {since}")).unwrap_or_default();
        let (reason, message) = &self.reason;
        let mut text = format!(
            "{node} of {}/{}  {}{since}\n{reason}: {message}\n",
            resource.namespace().unwrap_or_default(),
            resource.name_any(),
            style.paint(&self.phase, tone)
        );
        if !self.details.is_empty() {
            text.push('\n');
        }
        for (what, about) in &self.details {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{what:<11} {about}");
        }
        text
    }
}
