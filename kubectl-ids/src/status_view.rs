//! What `status` shows: the resource's own status, put into words and numbers.

use std::fmt::Write as _;

use crds::{
    IngressDaemonSet, UnixSeconds,
    ledger::GrantReason,
    status::{Blocked, NodeCounts, NodeState, Revisions},
};
use kube::ResourceExt as _;
use planner::spec::{DisruptionMode, resolve};
use serde::Serialize;

use crate::output::{Style, Tone, age, bar, in_one_line, span, table, tone_of};

/// Characters of the bar of progress.
const BAR: usize = 20;
/// Nodes that the operator lists at most.
const LISTED: usize = 100;

/// What is shown of a resource. Also what `-o json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusView {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// In a word: the reason of the condition Progressing.
    pub state: String,
    /// The same in a sentence.
    pub message: String,
    /// The status speaks of the newest spec.
    pub current: bool,
    /// No node waits, and none is under way.
    pub complete: bool,
    /// Nothing is under way, and nodes keep another revision because they are to have no pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Nothing goes on until somebody acts: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    /// Why the rollout does not go on, while it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// When the rollout is expected to end, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// Steps of a canary: done, and of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<(u32, usize)>,
    /// Revisions of the pod template.
    pub revisions: Revisions,
    /// Numbers of nodes.
    pub counts: NodeCounts,
    /// The budget, where the spec is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Nodes that may be disrupted now.
    pub grants: Vec<Granted>,
    /// Conditions that are not as they should be.
    pub conditions: Vec<Remarkable>,
    /// Nodes that are not idle.
    pub nodes: Vec<Row>,
}

/// How many nodes may be disrupted at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Nodes.
    pub nodes: usize,
    /// The field that says so.
    pub field: &'static str,
}

/// A node that may be disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Granted {
    /// Its name.
    pub node: String,
    /// Why.
    pub kind: GrantReason,
    /// Fencing id.
    pub id: u64,
    /// Time of the grant.
    pub granted_at: UnixSeconds,
}

/// A condition that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remarkable {
    /// Type and status.
    pub condition: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

/// A node that is not idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What goes on.
    pub phase: String,
    /// Since when, RFC 3339.
    pub since: String,
    /// Why it is not further, in a word.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

impl StatusView {
    /// Of a resource as it was read.
    pub fn of(resource: &IngressDaemonSet) -> Self {
        let status = resource.status.clone().unwrap_or_default();
        let condition = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
        let progressing = condition("Progressing");
        let current = status.observed_generation == resource.metadata.generation;
        let grants: Vec<_> = status.rollout.iter().flat_map(|ledger| &ledger.grants).map(granted).collect();
        let is_true = |type_: &str| condition(type_).filter(|condition| condition.status == "True");
        let budget = resolve(&resource.spec).ok().map(|settings| Budget {
            nodes: settings.budget.of(usize::try_from(status.nodes.desired).unwrap_or(0)),
            field: if settings.mode == DisruptionMode::Detach { "maxUnavailableNodes" } else { "maxDegradedNodes" },
        });
        Self {
            namespace: resource.namespace().unwrap_or_default(),
            name: resource.name_any(),
            state: progressing.map_or("Unknown", |condition| &condition.reason).to_owned(),
            message: progressing.map_or("no status from the operator yet", |condition| &condition.message).to_owned(),
            current,
            complete: current && grants.is_empty() && progressing.is_some_and(|condition| condition.reason == "Complete"),
            over: is_true("Ready").filter(|ready| current && ready.reason == "ScaledToZero").map(|ready| ready.message.clone()),
            stalled: is_true("Stalled").filter(|_| current).map(|condition| condition.message.clone()),
            blocked: status.blocked.clone(),
            eta: status.eta.clone(),
            steps: steps(resource),
            revisions: status.revisions.clone(),
            counts: status.nodes.clone(),
            budget,
            grants,
            conditions: status
                .conditions
                .iter()
                .filter(|condition| is_remarkable(&condition.type_, &condition.status))
                .map(remarkable)
                .collect(),
            nodes: status.node_states.iter().map(row).collect(),
        }
    }

    /// For people.
    pub fn render(&self, style: Style, now: UnixSeconds) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = self.summarise(&mut text, style, now);
        if !self.nodes.is_empty() {
            let rows = self.nodes.iter().map(|row| {
                let since = age(&row.since, now).unwrap_or_else(|| "-".into());
                [&row.name, &row.phase, &since, &row.reason, &row.message].map(String::clone).to_vec()
            });
            let header = ["NODE", "PHASE", "SINCE", "REASON", "MESSAGE"];
            let _ = write!(text, "\n{}", table(style, &header, rows.collect(), Some((1, tone_of))));
            if self.nodes.len() >= LISTED {
                let _ = writeln!(text, "only {LISTED} nodes are listed: use `kubectl ids why NODE` for other nodes");
            }
        }
        text
    }

    fn summarise(&self, text: &mut String, style: Style, now: UnixSeconds) -> std::fmt::Result {
        let counts = &self.counts;
        let tone = if self.stalled.is_some() {
            Tone::Bad
        } else if self.complete || self.over.is_some() {
            Tone::Good
        } else {
            Tone::Busy
        };
        writeln!(text, "{}/{}  {}", self.namespace, self.name, style.paint(&self.state, tone))?;
        let progress = bar(counts.updated, counts.desired, BAR);
        let eta = self.eta.as_deref().and_then(|eta| left(eta, now)).map(|left| format!(", about {left} left")).unwrap_or_default();
        writeln!(text, "Updated    {progress} {} of {} nodes{eta}", counts.updated, counts.desired)?;
        writeln!(text, "Nodes      {}", self.numbers())?;
        if let Some(budget) = &self.budget {
            let most = self
                .grants
                .iter()
                .map(|grant| format!("{} ({:?}, {})", grant.node, grant.kind, span(now.saturating_sub(grant.granted_at))));
            let names = most.clone().take(6).collect::<Vec<_>>().join(", ");
            let more = self.grants.len().saturating_sub(6);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let names = if names.is_empty() { String::new() } else { format!(": {names}{more}") };
            writeln!(text, "Budget     {} of {} ({}) granted{names}", self.grants.len(), budget.nodes, budget.field)?;
        }
        writeln!(text, "Revision   {}", self.revision())?;
        if let Some((done, of)) = self.steps {
            writeln!(text, "Steps      {done} of {of} done")?;
        }
        if let Some(blocked) = &self.blocked {
            let since = age(&blocked.since, now).map(|since| format!(" for {since}")).unwrap_or_default();
            let word = style.paint("Blocked", Tone::Waiting);
            writeln!(text, "{word}    {} by {}{since}: {}", blocked.reason, blocked.object, in_one_line(&blocked.message))?;
        }
        if !self.current {
            writeln!(text, "Note       the operator has not processed the newest spec yet")?;
        }
        for remarkable in &self.conditions {
            let tone = if remarkable.condition.starts_with("Paused") { Tone::Waiting } else { Tone::Bad };
            let message = in_one_line(&remarkable.message);
            writeln!(text, "{}  {}: {message}", style.paint(&remarkable.condition, tone), remarkable.reason)?;
        }
        Ok(())
    }

    fn numbers(&self) -> String {
        let counts = &self.counts;
        let mut numbers = vec![format!("{} available", counts.available)];
        let optional =
            [("unavailable", counts.unavailable), ("detached", counts.detached), ("degraded", counts.degraded), ("failed", counts.failed)];
        numbers.extend(optional.iter().filter(|(_, number)| *number > 0).map(|(word, number)| format!("{number} {word}")));
        numbers.join(", ")
    }

    fn revision(&self) -> String {
        match (self.revisions.current.as_str(), self.revisions.update.as_str()) {
            (_, "") => "-".into(),
            ("", update) => update.into(),
            (current, update) if current == update => format!("{update}{}", self.pinned()),
            (current, update) => format!("{current} -> {update}{}", self.pinned()),
        }
    }

    /// What nodes are to run where that is not the newest revision.
    fn pinned(&self) -> String {
        let effective = &self.revisions.effective;
        if effective.is_empty() || *effective == self.revisions.update { String::new() } else { format!(", held at {effective}") }
    }

    /// What has changed since another look, a line each, for output that cannot be rewritten.
    pub fn changes(&self, before: Option<&Self>) -> Vec<String> {
        let mut lines = Vec::new();
        let summary = |view: &Self| {
            format!(
                "{}/{}  {}: {} of {} nodes updated, {}, {} under way",
                view.namespace,
                view.name,
                view.state,
                view.counts.updated,
                view.counts.desired,
                view.numbers(),
                view.grants.len()
            )
        };
        let now = summary(self);
        if before.map(summary).as_ref() != Some(&now) {
            lines.push(now);
        }
        for remarkable in self.conditions.iter().filter(|found| !before.is_some_and(|before| before.conditions.contains(found))) {
            lines.push(format!("{}  {}: {}", remarkable.condition, remarkable.reason, remarkable.message));
        }
        let same = |row: &Row, other: &Row| (&row.name, &row.phase, &row.reason) == (&other.name, &other.phase, &other.reason);
        for row in self.nodes.iter().filter(|row| !before.is_some_and(|before| before.nodes.iter().any(|other| same(row, other)))) {
            lines.push(format!("{}  {}  {}: {}", row.name, row.phase, row.reason, row.message));
        }
        let idle = before.iter().flat_map(|before| &before.nodes).filter(|row| !self.nodes.iter().any(|other| other.name == row.name));
        lines.extend(idle.map(|row| format!("{}  Idle", row.name)));
        lines.iter().map(|line| in_one_line(line)).collect()
    }
}

/// Steps that are done, and how many there are, while a rollout with steps is under way.
fn steps(resource: &IngressDaemonSet) -> Option<(u32, usize)> {
    let rolling = resource.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    let rollout = resource.ledger()?.rollout_state.as_ref()?;
    let of = rolling.steps.len();
    let revisions = &resource.status.as_ref()?.revisions;
    (of > 0 && revisions.current != revisions.update).then_some((rollout.steps_done, of))
}

/// How long it is until an RFC 3339 time.
fn left(time: &str, now: UnixSeconds) -> Option<String> {
    let time = chrono::DateTime::parse_from_rfc3339(time).ok()?;
    Some(span(time.timestamp() - now)).filter(|_| time.timestamp() > now)
}

fn granted((node, grant): (&String, &crds::ledger::Grant)) -> Granted {
    Granted { node: node.clone(), kind: grant.kind, id: grant.id, granted_at: grant.granted_at }
}

/// Whether a condition tells of a fault. An unknown one does when it is True, for the operator may be newer.
fn is_remarkable(type_: &str, status: &str) -> bool {
    match type_ {
        "Valid" | "Available" | "HealthCheckersReady" => status != "True",
        // What is wrong when these are not as they should be is in the state, in another condition, or in the numbers.
        "Progressing" | "Ready" | "Reconciling" => false,
        _ => status == "True",
    }
}

fn remarkable(condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition) -> Remarkable {
    Remarkable {
        condition: format!("{}={}", condition.type_, condition.status),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    }
}

fn row(state: &NodeState) -> Row {
    Row {
        name: state.name.clone(),
        phase: state.phase.to_string(),
        since: state.since.clone(),
        reason: state.reason.clone(),
        message: state.message.clone(),
    }
}
