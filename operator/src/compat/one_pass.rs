//! One look at every node, by lists: what is to be changed is changed, the rest is told.

use super::config_map::{of_config_map, of_preset};
use crate::{
    args::CompatFlags,
    gates_shared::{CompatGates, definitions},
    metrics::GateMetrics,
    node_gates::{
        absent,
        act::{self, Outcome},
        events::Teller,
        facts,
        sources::{insert, newest},
    },
    pages,
    watch::{Guarded, Observed, Observer, PAGE},
};
use anyhow::{Context as _, bail};
use crds::{NodeReadinessGate, NodeReadinessGateStatus};
use futures::StreamExt as _;
use k8s_controller::events::EventRecorder;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
    core::v1::{ConfigMap, Node, Pod, Service},
    storage::v1::CSINode,
};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams, core::NamespaceResourceScope};
use planner::{
    facts::NodeFacts,
    gates_shared::Source,
    node_gates::{
        Gate, GateClocks, World,
        decide::{NodePlan, View, decide},
        force::{Said, in_force},
        links::links,
        record::annotation_key,
        retaint_budget::RetaintBudget,
        satisfiable::unsatisfiable,
        transition::GateClock,
        world::{PodSource, Pods},
    },
    spec::node_rights::NodeRights,
};
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use std::{cell::RefCell, collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long lists that fail are tried again: the original waited a minute for each of its watches.
const LISTED_WITHIN: Duration = Duration::from_mins(1);
/// Between two attempts: a list that failed tells of nothing to wait for.
const RETRY: Duration = Duration::from_secs(1);
/// Nodes that are changed at once.
const PARALLEL: usize = 16;
/// Writes of one node: each decides anew, with what is there then.
const ROUNDS: usize = 6;

/// What one pass needs.
pub struct Options {
    /// API client without retries of its own.
    pub client: Client,
    /// Gates from the command line.
    pub compat: CompatFlags,
    /// `STARTUP_BACKFILL` is set.
    pub backfill: bool,
    /// Image of the health checker for resources that name none.
    pub health_checker_image: String,
    /// What resources may have written to Nodes.
    pub node_rights: NodeRights,
    /// Events.
    pub recorder: EventRecorder,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// Name of the node.
    pub node: String,
    /// `key=value:effect`.
    pub taint: String,
    /// A word for what the gate has decided.
    pub state: &'static str,
    /// The gate, and what it waits for.
    pub why: String,
}

/// How one pass ended.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is said of each node and gate that selects it.
    pub lines: Vec<Line>,
    /// Some node is held, or could not be changed.
    pub held: bool,
}

/// Everything that was listed, and what follows from it for all nodes.
struct Pass {
    client: Client,
    metrics: GateMetrics,
    teller: Teller,
    observer: Observer,
    world: World,
    shut: BTreeMap<String, (&'static str, String)>,
    rooms: RefCell<BTreeMap<String, RetaintBudget>>,
    /// Unix seconds.
    now: i64,
}

/// Lists, decides, changes.
pub async fn run(options: Options) -> anyhow::Result<Report> {
    let (observer, mut world, said) = patiently(async || view(&options).await).await?;
    let shut: BTreeMap<_, _> = world.gates.iter().filter_map(|(uid, gate)| Some((uid.clone(), unsatisfiable(&world, gate)?))).collect();
    let now = chrono::Utc::now().timestamp();
    let since = world.gates.iter().filter_map(|(uid, gate)| {
        let before = said.get(uid).and_then(Said::of);
        Some((uid.clone(), in_force(gate, !shut.contains_key(uid), before.as_ref(), now)?.since.0.as_second()))
    });
    world.in_force = since.collect();
    let pass = Pass {
        shut,
        client: options.client,
        metrics: GateMetrics::registered(&mut Registry::default()),
        teller: Teller::new(options.recorder),
        observer,
        world,
        rooms: RefCell::default(),
        now,
    };
    pass.count_rooms();
    let nodes = pass.observer.nodes();
    let looks = nodes.iter().map(async |(name, node)| (name, pass.settle(name, node).await));
    let mut settled = futures::stream::iter(looks).buffer_unordered(PARALLEL);
    let mut report = Report::default();
    while let Some((name, (views, failure))) = settled.next().await {
        report.held |= failure.is_some() || views.values().any(|view| view.held);
        report.lines.extend(pass.lines(name, &views, failure.as_deref()));
    }
    report.lines.sort();
    Ok(report)
}

/// Tries again for a minute; a right that is missing will not come by itself.
async fn patiently<T>(mut look: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let deadline = Instant::now() + LISTED_WITHIN;
    loop {
        match look().await {
            Ok(seen) => return Ok(seen),
            Err(error) if is_final(&error) || Instant::now() >= deadline => return Err(error),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "not everything could be listed; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn is_final(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<kube::Error>())
        .any(|cause| matches!(cause, kube::Error::Api(status) if status.code == 403))
        || error.is::<Unusable>()
}

/// What no second look changes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unusable(String);

/// What gates have said of themselves, by UID.
type Statuses = BTreeMap<String, NodeReadinessGateStatus>;

/// All nodes, everything that decisions about them read, and what gates said before.
async fn view(options: &Options) -> anyhow::Result<(Observer, World, Statuses)> {
    let client = &options.client;
    let observer = Observer::with(options.node_rights.clone());
    let objects = definitions::list(client).await?;
    let compat = from_command_line(options).await?;
    observer.take(list::<Node>(Api::all(client.clone()), ListParams::default()).await.context("listing Nodes")?);
    observer.take(list::<Guarded>(Api::all(client.clone()), ListParams::default()).await.context("listing IngressDaemonSets")?);
    let unreadable = objects.iter().any(|object| object.0.is_err()) || observer.has_unreadable();
    if unreadable {
        tracing::warn!("some gates cannot be decoded: their nodes stay as they are");
    }
    let readable = objects.iter().filter_map(|object| object.0.as_ref().ok());
    let resources = observer.resources();
    let of_object = |object: &NodeReadinessGate| Some((object.uid()?, object.status.clone()?));
    let of_resources = resources.iter().filter_map(|resource| definitions::said_of_implied(resource));
    let said: Statuses = readable.clone().filter_map(of_object).chain(of_resources).collect();
    let gates = definitions::all(readable, resources.iter().map(AsRef::as_ref), &compat, observer.node_rights());
    let mut world =
        World { incomplete: unreadable, gates: gates.into_iter().map(|(uid, gate)| (uid, Arc::new(gate))).collect(), ..World::default() };
    world.rights = options.node_rights.clone();
    world.remember_taints(said.iter().map(|(uid, status)| (uid.clone(), status.taints.clone())), |_| true);
    world.absent = absent(&world, &observer);
    for key in world.wanted_daemon_sets() {
        // By a list, as everything else: the operator needs no right to get one.
        let named = ListParams::default().fields(&format!("metadata.name={}", key.1));
        let listed = list::<DaemonSet>(Api::namespaced(client.clone(), &key.0), named).await;
        let found = listed.with_context(|| format!("listing DaemonSet {}/{}", key.0, key.1))?.pop();
        let found = match found.map(facts::daemon_set) {
            Some(mut found) => {
                found.revision = newest(client, &key.0, &found).await;
                Some(found)
            }
            None => None,
        };
        world.daemon_sets.insert(key, seen(found));
    }
    for source in world.wanted_pods() {
        let pods = pods(client, &source).await.with_context(|| format!("listing {source}"))?;
        world.pods.insert(source, seen(pods));
    }
    if world.wants_csi_drivers() {
        let nodes = list::<CSINode>(Api::all(client.clone()), ListParams::default()).await.context("listing CSINodes")?;
        let drivers = |node: &CSINode| node.spec.drivers.iter().map(|driver| driver.name.clone()).collect();
        world.csi_drivers = seen(nodes.iter().map(|node| (node.name_any(), drivers(node))).collect());
    }
    if !world.wanted_replicas().is_empty() {
        replicas(options, &observer, &mut world).await?;
    }
    Ok((observer, world, said))
}

fn seen<T>(found: T) -> Source<T> {
    Source { found: Some(found), broken: None }
}

async fn list<K>(api: Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    pages::all(&api, params, PAGE).await
}

async fn from_command_line(options: &Options) -> anyhow::Result<CompatGates> {
    let now = chrono::Utc::now().timestamp();
    let mut compat = CompatGates { preset: of_preset(&options.compat, options.backfill, now), ..CompatGates::default() };
    let Some(at) = &options.compat.legacy_configmap else { return Ok(compat) };
    let api: Api<ConfigMap> = Api::namespaced(options.client.clone(), &at.namespace);
    for name in &at.names {
        let found = api.get_opt(name).await.with_context(|| format!("reading ConfigMap {}/{name}", at.namespace))?;
        if let Some(object) = found {
            let gate = of_config_map(&object, now).map_err(|why| Unusable(format!("ConfigMap {}/{name}: {why}", at.namespace)))?;
            compat.config_map = Some(gate);
            return Ok(compat);
        }
    }
    bail!(Unusable(format!("there is no ConfigMap {}/{}", at.namespace, at.names.join(" or "))))
}

async fn pods(client: &Client, source: &PodSource) -> kube::Result<Pods> {
    let api: Api<Pod> =
        if source.namespace.is_empty() { Api::all(client.clone()) } else { Api::namespaced(client.clone(), &source.namespace) };
    let mut pods = Pods::default();
    for pod in list(api, ListParams::default().labels(&source.selector.to_string())).await? {
        insert(&mut pods, pod);
    }
    Ok(pods)
}

/// The replicas that gates ask for, as a pass over their resource sees them.
async fn replicas(options: &Options, observer: &Observer, world: &mut World) -> anyhow::Result<()> {
    let ours = || ListParams::default().labels(crds::names::RESOURCE_LABEL);
    take::<Deployment>(options, observer, ours()).await?;
    take::<ReplicaSet>(options, observer, ours()).await?;
    take::<ControllerRevision>(options, observer, ours()).await?;
    take::<Pod>(options, observer, ours()).await?;
    take::<DaemonSet>(options, observer, ListParams::default().labels(crds::names::HEALTH_CHECKER_LABEL)).await?;
    take::<Service>(options, observer, ListParams::default()).await?;
    let now = chrono::Utc::now().timestamp();
    let links = links(world.gates.values(), [], |_| false);
    for (key, gates) in links {
        let snapshot = observer.snapshot(&key.0, &key.1, now, &options.health_checker_image);
        let Some(mut snapshot) = snapshot else { continue };
        // Taints of gates make no node one that the resource does not choose.
        snapshot.gates = gates;
        if let Some(found) = planner::decide(&snapshot).replicas {
            world.replicas.insert(key, Arc::new(found));
        }
    }
    Ok(())
}

async fn take<K>(options: &Options, observer: &Observer, params: ListParams) -> anyhow::Result<()>
where
    K: Observed + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let listed = list::<K>(Api::all(options.client.clone()), params).await;
    observer.take(listed.with_context(|| format!("listing {}", K::plural(&())))?);
    Ok(())
}

impl Pass {
    fn decide(&self, name: &str, node: &NodeFacts, clocks: &Clocks, has_room: &mut dyn FnMut(&Gate) -> bool) -> NodePlan {
        decide(&self.world, &self.shut.keys().cloned().collect(), name, node, clocks, has_room, self.now)
    }

    /// How nodes are seen before anything is changed.
    fn count_rooms(&self) {
        let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (name, node) in &*self.observer.nodes() {
            for (uid, view) in self.decide(name, node, &Clocks::default(), &mut |_| false).views {
                let (matched, regressed) = counts.entry(uid).or_default();
                *matched += 1;
                *regressed += usize::from(view.regressed);
            }
        }
        let of =
            |(uid, (matched, regressed))| Some((Clone::clone(&uid), RetaintBudget::of(self.world.gates.get(&uid)?, matched, regressed, 0)));
        self.rooms.replace(counts.into_iter().filter_map(of).collect());
    }

    fn take_room(&self, gate: &Gate) -> bool {
        let mut rooms = self.rooms.borrow_mut();
        let Some(room) = rooms.get_mut(&gate.uid).filter(|room| room.is_open()) else { return false };
        room.nodes -= 1;
        room.this_minute -= 1;
        true
    }

    /// One pass cannot watch a node that was there before a gate for `retaint.failingFor`: it takes what it sees for what has been.
    fn clocks(&self, node: &NodeFacts) -> Clocks {
        let unknown = self.world.gates.keys().filter(|uid| !node.annotations.contains_key(&annotation_key(uid)));
        unknown.map(|uid| (uid.clone(), Clock { failing_since: Some(0), ..Clock::default() })).collect()
    }

    /// Changes a node until there is nothing more to change; returns how it is seen then, and what went wrong.
    async fn settle(&self, name: &str, node: &Arc<NodeFacts>) -> (BTreeMap<String, View>, Option<String>) {
        let (mut node, mut clocks, mut views) = (Arc::clone(node), self.clocks(node), BTreeMap::new());
        for _ in 0..ROUNDS {
            let plan = self.decide(name, &node, &clocks, &mut |gate| self.take_room(gate));
            (clocks, views) = (plan.clocks, plan.views);
            if !plan.asks_whether_idle.is_empty() {
                let Some(idle) = act::is_idle(&self.client, name).await else {
                    return (views, Some("its pods cannot be listed".into()));
                };
                for gate in plan.asks_whether_idle {
                    clocks.entry(gate).or_default().idle = Some(idle);
                }
                continue;
            }
            let Some(patch) = plan.patch else { return (views, None) };
            let now = match act::patch(&self.client, &self.metrics, name, &patch).await {
                Outcome::Done(now) => {
                    for transition in &plan.transitions {
                        if let Some(gate) = self.world.gates.get(&transition.gate) {
                            self.teller.tell(&self.metrics, &now, gate, transition, 0).await;
                        }
                    }
                    for (key, effect) in &plan.unknown {
                        self.teller.tell_unknown(&self.metrics, &now, key, effect).await;
                    }
                    now
                }
                Outcome::Stale(now, _) => now,
                Outcome::Gone => return (BTreeMap::new(), None),
                Outcome::Forbidden(message) | Outcome::Failed(message, _) => return (views, Some(message)),
            };
            self.observer.learn(*now);
            let Some(known) = self.observer.node(name) else { return (BTreeMap::new(), None) };
            node = known;
        }
        (views, Some("it changes faster than it can be looked at".into()))
    }

    fn lines<'a>(&'a self, node: &'a str, views: &'a BTreeMap<String, View>, failure: Option<&'a str>) -> impl Iterator<Item = Line> + 'a {
        views.iter().filter_map(move |(uid, view)| {
            let gate = self.world.gates.get(uid)?;
            let taint = &gate.spec.taint;
            let value = taint.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
            let blocked = || view.blocked.iter().map(|(name, reason)| format!("{name}: {reason}")).collect::<Vec<_>>().join("; ");
            let (state, why) = match (failure, self.shut.get(uid)) {
                (Some(failure), _) => ("failed", failure.to_owned()),
                (None, Some((_, message))) => ("not enforced", message.clone()),
                (None, None) => (state(view, gate.spec.dry_run), blocked()),
            };
            let why = if why.is_empty() { gate.name.clone() } else { format!("{}: {why}", gate.name) };
            Some(Line { node: node.to_owned(), taint: format!("{}{value}:{}", taint.key, taint.effect.as_str()), state, why })
        })
    }
}

fn state(view: &View, dry_run: bool) -> &'static str {
    match (view, dry_run) {
        (View { would_taint: true, .. }, _) => "would be held",
        (View { would_release: true, .. }, _) => "would be released",
        (_, true) => "dry run",
        (View { no_room: true, .. }, _) => "no budget",
        (View { spared: true, .. }, _) => "spared",
        (View { stuck: true, .. }, _) => "stuck",
        (View { held: true, .. }, _) => "held",
        (View { released: true, .. }, _) => "released",
        _ => "unknown",
    }
}

/// The table, with a heading.
impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let widest = |of: fn(&Line) -> &str, heading: &str| {
            self.lines.iter().map(|line| of(line).chars().count()).chain([heading.len()]).max().unwrap_or(0)
        };
        let (node, taint, state) =
            (widest(|line| &line.node, "NODE"), widest(|line| &line.taint, "TAINT"), widest(|line| line.state, "STATE"));
        writeln!(formatter, "{:node$}  {:taint$}  {:state$}  WHY", "NODE", "TAINT", "STATE")?;
        for line in &self.lines {
            writeln!(formatter, "{:node$}  {:taint$}  {:state$}  {}", line.node, line.taint, line.state, line.why)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_column_for_node_taint_state_and_reason() {
        let line =
            |node: &str, state, why: &str| Line { node: node.into(), taint: "NodeReadiness:NoSchedule".into(), state, why: why.into() };
        let report = Report { lines: vec![line("n1", "released", "a"), line("node-10", "held", "a: b: 0 of 1 pods")], held: true };
        let wanted = "NODE     TAINT                     STATE     WHY\n\
                      n1       NodeReadiness:NoSchedule  released  a\n\
                      node-10  NodeReadiness:NoSchedule  held      a: b: 0 of 1 pods\n";
        assert_eq!(report.to_string(), wanted);
    }

    #[test]
    fn a_missing_right_and_a_config_map_that_cannot_be_used_are_not_tried_again() {
        let forbidden = kube::Error::Api(Box::new(serde_json::from_value(serde_json::json!({"code": 403, "message": "no"})).unwrap()));
        assert!(is_final(&anyhow::Error::from(forbidden).context("listing Nodes")));
        assert!(is_final(&anyhow::Error::from(Unusable("no".into()))));
        assert!(!is_final(&anyhow::anyhow!("no answer")));
    }
}
