//! One look at every node, by lists: changes what needs a change, and tells the rest.

use super::config_map::{of_config_map, of_preset};
use crate::{
    args::CompatFlags,
    gates_shared::{CompatGates, GateState, definitions},
    metrics::GateMetrics,
    node_gates::{self, Engine, NodesSeen},
    pages,
    watch::{GuardedResource, Observed, Observer, PAGE},
};
use anyhow::{Context as _, bail};
use k8s_controller::events::{EventRecorder, Reporter};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
    core::v1::{ConfigMap, Node, Pod, Service},
};
use kube::{Api, Client, Resource, api::ListParams, core::NamespaceResourceScope};
use planner::{
    node_gates::{decide::GateView, links::links},
    spec::node_rights::NodeRights,
};
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long lists that fail are tried again: the original waited a minute for each of its watches.
const LISTED_WITHIN: Duration = Duration::from_mins(1);
/// Between two attempts: a list that failed tells of nothing to wait for.
const RETRY: Duration = Duration::from_secs(1);

/// What one pass needs.
pub struct OnePassOptions {
    /// API client without retries of its own.
    pub client: Client,
    /// Gates from the command line.
    pub compat: CompatFlags,
    /// Image of the health checker for resources that name none.
    pub health_checker_image: String,
    /// What resources may have written to Nodes.
    pub node_rights: NodeRights,
    /// Who events are from.
    pub reporter: Reporter,
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

/// Lists, decides, changes.
pub async fn run(options: OnePassOptions) -> anyhow::Result<Report> {
    let deadline = Instant::now() + LISTED_WITHIN;
    let engine = loop {
        match start(&options, deadline).await {
            Ok(engine) => break engine,
            Err(error) if is_final(&error) || Instant::now() >= deadline => return Err(error),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "not everything could be listed; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    };
    let seen = engine.run_once().await;
    let mut lines: Vec<_> = seen.views.iter().flat_map(|(node, views)| lines(&seen, node, views)).collect();
    lines.sort();
    let held = !seen.failures.is_empty() || seen.views.values().flat_map(BTreeMap::values).any(|view| view.held);
    Ok(Report { lines, held })
}

/// The loop that knows all nodes, and everything that decisions about them read.
async fn start(options: &OnePassOptions, deadline: Instant) -> anyhow::Result<Engine> {
    let client = &options.client;
    let observer = Arc::new(Observer::with(options.node_rights.clone()));
    let state = GateState::of(&observer);
    let gates = definitions::list(client).await?;
    let compat = from_command_line(options).await?;
    state.change_compat(|known| *known = compat);
    observer.take(list::<Node>(Api::all(client.clone()), ListParams::default()).await.context("listing Nodes")?);
    observer.take(list::<GuardedResource>(Api::all(client.clone()), ListParams::default()).await.context("listing IngressDaemonSets")?);
    // Of what belongs to resources nothing is read until a gate asks for replicas.
    observer.take_no_objects();
    if gates.iter().any(|gate| gate.0.is_err()) || observer.has_unreadable() {
        tracing::warn!("some gates cannot be decoded: their nodes stay as they are");
    }
    let gate_options = node_gates::EngineOptions {
        client: client.clone(),
        observer: Arc::clone(&observer),
        state: Arc::clone(&state),
        metrics: GateMetrics::registered(&mut Registry::default()),
        recorder: EventRecorder::new(client.clone(), options.reporter.clone()),
        webhook: None,
        admission_policies: true,
    };
    let mut engine = Engine::of_one_pass(gate_options, gates).await;
    if !state.world().wanted_replicas().is_empty() {
        replicas(options, &observer, &state).await?;
    }
    engine.everything_listed(deadline).await.map_err(Unusable)?;
    Ok(engine)
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

async fn list<K>(api: Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned,
{
    pages::all(&api, params, PAGE).await
}

async fn from_command_line(options: &OnePassOptions) -> anyhow::Result<CompatGates> {
    let now = chrono::Utc::now().timestamp();
    let mut compat = CompatGates { preset: of_preset(&options.compat, now), ..CompatGates::default() };
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

/// The replicas that gates ask for, as a pass over their resource sees them.
async fn replicas(options: &OnePassOptions, observer: &Observer, state: &GateState) -> anyhow::Result<()> {
    let ours = || ListParams::default().labels(crds::names::RESOURCE_LABEL);
    take::<Deployment>(options, observer, ours()).await?;
    take::<ReplicaSet>(options, observer, ours()).await?;
    take::<ControllerRevision>(options, observer, ours()).await?;
    take::<Pod>(options, observer, ours()).await?;
    take::<DaemonSet>(options, observer, ListParams::default().labels(crds::names::HEALTH_CHECKER_LABEL)).await?;
    take::<Service>(options, observer, ListParams::default()).await?;
    let now = chrono::Utc::now().timestamp();
    let links = links(state.world().gates.values(), [], |_| false);
    for (key, gates) in links {
        let snapshot = observer.snapshot(&key.0, &key.1, now, &options.health_checker_image);
        let Some(mut snapshot) = snapshot else { continue };
        // Taints of gates make no node one that the resource does not choose.
        snapshot.gates = gates;
        if let Some(found) = planner::decide(&snapshot).replicas {
            state.replicas(&key, found);
        }
    }
    Ok(())
}

async fn take<K>(options: &OnePassOptions, observer: &Observer, params: ListParams) -> anyhow::Result<()>
where
    K: Observed + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let listed = list::<K>(Api::all(options.client.clone()), params).await;
    observer.take(listed.with_context(|| format!("listing {}", K::plural(&())))?);
    Ok(())
}

fn lines<'s>(seen: &'s NodesSeen, node: &'s str, views: &'s BTreeMap<String, GateView>) -> impl Iterator<Item = Line> + 's {
    views.iter().filter_map(move |(uid, view)| {
        let gate = seen.gates.get(uid)?;
        let taint = &gate.spec.taint;
        let value = taint.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        let blocked = || view.blocked.iter().map(|(name, reason)| format!("{name}: {reason}")).collect::<Vec<_>>().join("; ");
        let (state, why) = match (seen.failures.get(node), seen.unsatisfiable.get(uid)) {
            (Some(failure), _) => ("failed", failure.clone()),
            (None, Some((_, message))) => ("not enforced", message.clone()),
            (None, None) => (state(view, gate.spec.dry_run), blocked()),
        };
        let why = if why.is_empty() { gate.name.clone() } else { format!("{}: {why}", gate.name) };
        Some(Line { node: node.to_owned(), taint: format!("{}{value}:{}", taint.key, taint.effect.as_str()), state, why })
    })
}

fn state(view: &GateView, dry_run: bool) -> &'static str {
    match (view, dry_run) {
        (GateView { would_taint: true, .. }, _) => "would be held",
        (GateView { would_release: true, .. }, _) => "would be released",
        (_, true) => "dry run",
        (GateView { no_room: true, .. }, _) => "no budget",
        (GateView { spared: true, .. }, _) => "spared",
        (GateView { stuck: true, .. }, _) => "stuck",
        (GateView { held: true, .. }, _) => "held",
        (GateView { released: true, .. }, _) => "released",
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
    fn the_table_shows_node_taint_state_and_reason() {
        let line =
            |node: &str, state, why: &str| Line { node: node.into(), taint: "NodeReadiness:NoSchedule".into(), state, why: why.into() };
        let report = Report { lines: vec![line("n1", "released", "a"), line("node-10", "held", "a: b: 0 of 1 pods")], held: true };
        let wanted = "NODE     TAINT                     STATE     WHY\n\
                      n1       NodeReadiness:NoSchedule  released  a\n\
                      node-10  NodeReadiness:NoSchedule  held      a: b: 0 of 1 pods\n";
        assert_eq!(report.to_string(), wanted);
    }

    #[test]
    fn missing_rights_and_unusable_config_maps_are_not_retried() {
        let forbidden = kube::Error::Api(Box::new(serde_json::from_value(serde_json::json!({"code": 403, "message": "no"})).unwrap()));
        assert!(is_final(&anyhow::Error::from(forbidden).context("listing Nodes")));
        assert!(is_final(&anyhow::Error::from(Unusable("no".into()))));
        assert!(!is_final(&anyhow::anyhow!("no answer")));
    }
}
