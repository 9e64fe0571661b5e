//! The course of an update: which nodes, in which order, how long, and what holds the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use crds::{
    UnixSeconds,
    ledger::{GrantReason, Ledger},
    status::NodePhase,
};
use planner::{
    Action, Plan, Reason, Snapshot, decide, node::clocks::LONGEST_LOOK, objects::in_place::is_paused, plan::Write, reason::StepState,
    snapshot::PortAnswer, spec::resolve,
};

use super::{pace::Pace, simulated_cluster::SimulatedCluster};
use crate::output::{Style, Tone, in_one_line, span, table};

/// Nodes times passes that are simulated at most: some seconds of work.
const WORK: usize = 3_000_000;
/// Passes without time going by, after which something must be wrong with the simulation itself.
const RESTLESS: usize = 200;
/// Looks in a row that change nothing, after which only an event is worth another.
const QUIET: usize = 20;
/// The planner looks again after this many seconds even if nothing is due.
const RESYNC: i64 = 300;
/// How far the future is looked into, in seconds.
const HORIZON: i64 = 14 * 86_400;
/// After so many seconds in which nothing but clocks went on, and no time is known at which that ends, nothing will: no proof takes longer
/// than a day.
const STILL: i64 = 86_400 + 3600;

/// What a node goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeForecast {
    /// The node.
    pub node: String,
    /// Which group of nodes that begin together it belongs to, from 1.
    pub wave: usize,
    /// Why it is disrupted; nothing for one that joins.
    pub kind: Option<GrantReason>,
    /// Its topology domain, where there are domains.
    pub domain: Option<String>,
    /// Seconds from now on; 0 for what is under way already.
    pub begins: i64,
    /// Seconds from now on.
    pub ends: Option<i64>,
    /// Reasons for which it waited before.
    pub waited: Vec<String>,
    /// Its pods stay.
    pub in_place: bool,
    /// Why they do not, where they were to stay if possible.
    pub recreated: Option<String>,
}

/// A node that does not get its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The node.
    pub node: String,
    /// What it is in.
    pub phase: String,
    /// Why, in a word and a sentence.
    pub reason: (String, String),
}

/// The course of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// What is wrong with the spec: nothing would change.
    pub invalid: Vec<String>,
    /// A remark on a spec that is carried out: a word and a sentence, from the condition Valid.
    pub remark: Option<(String, String)>,
    /// Nodes in order.
    pub turns: Vec<NodeForecast>,
    /// Nodes that are held for as long as nobody acts.
    pub left: Vec<Left>,
    /// Nodes that are chosen, in the end.
    pub chosen: usize,
    /// Nodes of these that need nothing.
    pub untouched: usize,
    /// Revision in the end.
    pub revision: String,
    /// The budget in nodes.
    pub budget: usize,
    /// Seconds until the last node has ended.
    pub duration: i64,
    /// There was too much to simulate: what is here is the beginning.
    pub cut: bool,
}

/// What happens until nothing happens any more.
pub fn forecast(snapshot: Snapshot, pace: Pace) -> Forecast {
    simulate(snapshot, pace).0
}

/// The same, and how everything is then.
pub(super) fn simulate(snapshot: Snapshot, pace: Pace) -> (Forecast, Snapshot) {
    let mut forecast = Forecast::default();
    match resolve(&snapshot.resource.spec) {
        // There is no spec to find fault with: the condition Valid says why.
        Err(_) if snapshot.resource.withheld.is_some() => {}
        Err(problems) => forecast.invalid = problems.into_iter().map(|problem| problem.message).collect(),
        Ok(settings) => forecast.revision = settings.revision,
    }
    let start = snapshot.now;
    let mut rollout = ForecastRollout { start, forecast, waited: BTreeMap::new(), seen: BTreeSet::new(), waves: BTreeSet::new() };
    rollout.note_grants(&snapshot, start);
    let mut cluster = SimulatedCluster::new(snapshot, pace.pod_seconds);
    let (mut work, mut restless, mut quiet, mut moved) = (0, 0, 0, start);
    let last = loop {
        let plan = decided(&mut cluster);
        cluster.looked(&plan);
        rollout.note(&cluster.snapshot, &plan);
        work += cluster.snapshot.nodes.len() + 10;
        let now = cluster.snapshot.now;
        let mut changed = false;
        for action in &plan.actions {
            if cluster.act(action) {
                changed = true;
                // The seconds that clocks have counted are written again and again.
                moved = if matches!(action, Action::WriteStatus { .. }) { moved } else { now };
            }
        }
        if !changed {
            rollout.note_waiting(&plan);
        }
        rollout.note_grants(&cluster.snapshot, now);
        restless = if changed { restless + 1 } else { 0 };
        if changed && restless < RESTLESS && work < WORK {
            quiet = 0;
            continue;
        }
        let proving = plan.sights.is_proving() && due_soon(&plan, now);
        quiet = if restless > 0 || cluster.next_event().is_some() || proving { 0 } else { quiet + 1 };
        restless = 0;
        let due = plan.recheck_at.filter(|at| (now + 1..now + RESYNC).contains(at) && quiet < QUIET);
        let known = cluster.next_event().into_iter().chain(opens(&plan, now)).min();
        let next = known.into_iter().chain(due.filter(|_| now - moved < STILL)).min();
        if work >= WORK || now - start > HORIZON {
            rollout.forecast.cut = true;
            break plan;
        }
        match next {
            Some(at) => cluster.advance(at),
            None => break plan,
        }
    };
    (rollout.end(&cluster.snapshot, &last), cluster.snapshot)
}

/// A clock of the proof runs.
fn due_soon(plan: &Plan, now: UnixSeconds) -> bool {
    plan.recheck_at.is_some_and(|at| at <= now + LONGEST_LOOK)
}

/// A decision, with health ports that are not asked: in the simulation each answers, and contradicts nothing.
fn decided(cluster: &mut SimulatedCluster) -> Plan {
    let plan = decide(&cluster.snapshot);
    if plan.questions.is_empty() {
        return plan;
    }
    let agrees = |port: &u16| PortAnswer { port: *port, healthy: false, phase: None };
    let answers = plan.questions.iter().map(|(node, question)| (node.clone(), question.ports.iter().map(agrees).collect()));
    cluster.snapshot.answers = answers.collect();
    let plan = decide(&cluster.snapshot);
    cluster.snapshot.answers.clear();
    plan
}

/// When the clock alone lets something go, however far away that is.
fn opens(plan: &Plan, now: UnixSeconds) -> Option<UnixSeconds> {
    let times = plan.node_states.values().filter_map(|state| match &state.reason {
        Reason::OutsideWindow { opens: Some(at) } | Reason::Step { state: StepState::Soaking { until: at }, .. } => Some(*at),
        _ => None,
    });
    times.filter(|at| *at > now).min()
}

struct ForecastRollout {
    start: i64,
    forecast: Forecast,
    /// Reasons for which nodes wait, in the order in which they came up.
    waited: BTreeMap<String, Vec<String>>,
    /// Grants and creations that are noted already: node, and id of the grant.
    seen: BTreeSet<(String, Option<u64>)>,
    /// When nodes began.
    waves: BTreeSet<i64>,
}

impl ForecastRollout {
    /// Why nodes wait when no action is due.
    fn note_waiting(&mut self, plan: &Plan) {
        for (node, state) in plan.node_states.iter().filter(|(_, state)| state.phase == NodePhase::Waiting) {
            let reasons = self.waited.entry(node.clone()).or_default();
            let reason = state.reason.word().to_owned();
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }

    /// Creations, and the budget.
    fn note(&mut self, snapshot: &Snapshot, plan: &Plan) {
        for action in &plan.actions {
            if let Action::CreateDeployment { node, .. } = action
                && self.seen.insert((node.clone(), None))
            {
                self.begin(snapshot, node, None, snapshot.now);
            }
            let Action::PatchDeployment { node, write, .. } = action else { continue };
            let under_way = self.forecast.turns.iter_mut().find(|turn| turn.node == *node && turn.ends.is_none());
            match (under_way, write) {
                (Some(turn), Write::Pause) => (turn.in_place, turn.recreated) = (true, None),
                (Some(turn), Write::Recreate(why)) => (turn.in_place, turn.recreated) = (false, Some(why.to_string())),
                _ => {}
            }
        }
        self.forecast.budget = self.forecast.budget.max(plan.gauges.budget);
    }

    /// Grants that were given, and those that have ended.
    fn note_grants(&mut self, snapshot: &Snapshot, now: UnixSeconds) {
        let nothing = Ledger::default();
        let ledger = snapshot.resource.ledger().unwrap_or(&nothing);
        let given: Vec<_> = ledger.grants.iter().map(|(node, grant)| (node.clone(), grant.id, grant.kind)).collect();
        for (node, id, kind) in given {
            let under_way = self.forecast.turns.iter_mut().find(|turn| turn.node == node && turn.ends.is_none() && turn.kind.is_some());
            if let Some(turn) = under_way {
                // A retarget keeps the place.
                turn.kind = Some(kind);
                self.seen.insert((node, Some(id)));
            } else if self.seen.insert((node.clone(), Some(id))) {
                self.begin(snapshot, &node, Some(kind), now);
            }
        }
        let since = now - self.start;
        for turn in self.forecast.turns.iter_mut().filter(|turn| turn.ends.is_none()) {
            let over = match turn.kind {
                Some(_) => !ledger.grants.contains_key(&turn.node),
                None => joined(snapshot, &turn.node),
            };
            if over {
                turn.ends = Some(since);
                self.forecast.duration = self.forecast.duration.max(since);
            }
        }
    }

    fn begin(&mut self, snapshot: &Snapshot, node: &str, kind: Option<GrantReason>, now: UnixSeconds) {
        let label =
            snapshot.resource.spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref()?.topology.as_ref());
        let domain =
            label.map(|topology| snapshot.nodes.get(node).and_then(|node| node.labels.get(&topology.key)).cloned().unwrap_or_default());
        self.waves.insert(now);
        let waited = self.waited.remove(node).unwrap_or_default();
        let (node, begins) = (node.to_owned(), now - self.start);
        let in_place = snapshot.deployments.get(&node).is_some_and(|deployment| is_paused(deployment));
        self.forecast.turns.push(NodeForecast { node, wave: 0, kind, domain, begins, ends: None, waited, in_place, recreated: None });
    }

    fn end(mut self, snapshot: &Snapshot, last: &Plan) -> Forecast {
        let waves: BTreeMap<i64, usize> = self.waves.iter().zip(1..).map(|(at, wave)| (*at - self.start, wave)).collect();
        for turn in &mut self.forecast.turns {
            turn.wave = waves.get(&turn.begins).copied().unwrap_or(1);
        }
        let begun: BTreeSet<_> = self.forecast.turns.iter().filter(|turn| turn.ends.is_some()).map(|turn| turn.node.clone()).collect();
        let left = last.node_states.iter().filter(|(node, state)| !begun.contains(*node) || state.phase == NodePhase::Waiting);
        self.forecast.left = left
            .map(|(node, state)| Left {
                node: node.clone(),
                phase: state.phase.to_string(),
                reason: (state.reason.word().to_owned(), state.reason.message()),
            })
            .collect();
        let effective = &last.status.revisions.effective;
        if !effective.is_empty() {
            self.forecast.revision.clone_from(effective);
        }
        self.forecast.chosen = usize::try_from(last.status.nodes.desired).unwrap_or(0);
        match last.status.conditions.iter().find(|condition| condition.type_ == "Valid") {
            Some(refused) if refused.status == "False" && self.forecast.invalid.is_empty() => {
                self.forecast.invalid.push(format!("{}: {}", refused.reason, refused.message));
            }
            Some(valid) if valid.status == "True" && valid.reason != "Accepted" => {
                self.forecast.remark = Some((valid.reason.clone(), valid.message.clone()));
            }
            _ => {}
        }
        let touched: BTreeSet<_> =
            self.forecast.turns.iter().map(|turn| &turn.node).chain(self.forecast.left.iter().map(|left| &left.node)).collect();
        self.forecast.untouched = snapshot.deployments.keys().filter(|node| !touched.contains(node)).count();
        self.forecast
    }
}

/// A node that was new serves.
fn joined(snapshot: &Snapshot, node: &str) -> bool {
    let token = snapshot.deployments.get(node).and_then(|deployment| deployment.readable_token());
    token.is_some_and(|token| token.phase == crds::token::Phase::Closed)
}

impl Forecast {
    /// For people.
    pub fn render(&self, style: Style) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = self.write(&mut text, style);
        text
    }

    fn write(&self, text: &mut String, style: Style) -> std::fmt::Result {
        for problem in &self.invalid {
            writeln!(text, "{}: {}", style.paint("not valid", Tone::Bad), in_one_line(problem))?;
        }
        if !self.invalid.is_empty() {
            return writeln!(text, "Running pods keep running; nothing would change.");
        }
        let disrupted = self.turns.iter().filter(|turn| turn.kind.is_some()).count();
        let joining = self.turns.len() - disrupted;
        if let Some((reason, message)) = &self.remark {
            writeln!(text, "{}: {}", style.paint(reason, Tone::Waiting), in_one_line(message))?;
        }
        writeln!(text, "Revision   {}", self.revision)?;
        write!(
            text,
            "Nodes      {} chosen: {disrupted} to disrupt, at most {} at once; {} unchanged",
            self.chosen, self.budget, self.untouched
        )?;
        let optional = [(joining, "new"), (self.left.len(), "held")];
        for (number, word) in optional.iter().filter(|(number, _)| *number > 0) {
            write!(text, "; {number} {word}")?;
        }
        writeln!(text)?;
        if self.turns.is_empty() && self.left.is_empty() {
            return writeln!(text, "Nothing to do: every node matches the spec.");
        }
        if !self.turns.is_empty() {
            write!(text, "\n{}", self.order(style))?;
        }
        let mut recreated: BTreeMap<&str, usize> = BTreeMap::new();
        for why in self.turns.iter().filter_map(|turn| turn.recreated.as_deref()) {
            *recreated.entry(why).or_default() += 1;
        }
        for (why, nodes) in recreated {
            let nodes = if nodes == 1 { "a node".to_owned() } else { format!("{nodes} nodes") };
            writeln!(text, "\nThe pods of {nodes} must be re-created: {why}")?;
        }
        if !self.left.is_empty() {
            let rows =
                self.left.iter().map(|left| vec![left.node.clone(), left.phase.clone(), left.reason.0.clone(), left.reason.1.clone()]);
            let held = table(style, &["HELD", "PHASE", "REASON", "MESSAGE"], rows.collect(), Some((1, crate::output::tone_of)));
            write!(text, "\n{held}")?;
        }
        let Some(waves) = self.turns.iter().map(|turn| turn.wave).max() else {
            return writeln!(text, "\nExpected   no change until somebody acts");
        };
        let duration = span(self.duration);
        let words = match (self.turns.iter().any(|turn| turn.ends.is_none()), self.cut) {
            (_, true) => format!("more than {duration}: the simulation stops here, after {} nodes", self.turns.len()),
            (true, false) => format!("{duration} until somebody must act"),
            (false, false) => duration,
        };
        writeln!(text, "\nExpected   {words}, in {waves} {}", if waves == 1 { "wave" } else { "waves" })
    }

    fn order(&self, style: Style) -> String {
        let domains = self.turns.iter().any(|turn| turn.domain.is_some());
        let mut header = vec!["WAVE", "NODE", "WHAT", "BEGINS", "TAKES", "WAITS FOR"];
        if domains {
            header.insert(2, "DOMAIN");
        }
        let rows = self.turns.iter().map(|turn| {
            let begins = if turn.begins == 0 { "now".into() } else { format!("+{}", span(turn.begins)) };
            let takes = turn.ends.map_or_else(|| "-".into(), |ends| span(ends - turn.begins));
            let waited = if turn.waited.is_empty() { "-".into() } else { turn.waited.join(", ") };
            let kind = turn.kind.map_or_else(|| "Join".into(), |kind| format!("{kind:?}"));
            let kind = if turn.in_place { format!("{kind} in place") } else { kind };
            let mut row = vec![turn.wave.to_string(), turn.node.clone(), kind, begins, takes, waited];
            if domains {
                row.insert(2, turn.domain.clone().filter(|domain| !domain.is_empty()).unwrap_or_else(|| "-".into()));
            }
            row
        });
        table(style, &header, rows.collect(), None)
    }
}
