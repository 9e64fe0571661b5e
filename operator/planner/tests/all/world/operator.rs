//! An operator process: what it believes, what it remembers, how it carries out a plan.

use super::{View, World, cluster::UID8};
use crds::names;
use planner::{
    Action, Plan, Snapshot,
    memory::{Clocks, Sights},
    node_gates::GateLinks,
    objects::{health_checker, render},
    plan::Write,
    spec::node_rights::NodeRights,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// One watch each, so that they lag apart.
#[derive(Clone, Copy, Debug)]
pub enum Store {
    Resource,
    Nodes,
    Deployments,
    Pods,
}

pub const STORES: [Store; 4] = [Store::Resource, Store::Nodes, Store::Deployments, Store::Pods];

#[derive(Clone, Debug, Default)]
pub struct Operator {
    /// Positions in the history, by store.
    seen: [usize; 4],
    reserved: Vec<u64>,
    clocks: Clocks,
    sights: Sights,
    /// When it last looked, by a clock that nobody sets.
    looked_at: Option<i64>,
    written_generations: BTreeMap<String, i64>,
    asserted: BTreeSet<String>,
    listed_for: Option<u64>,
    /// How gates bear on the resource.
    pub gates: GateLinks,
    /// What its flags allow; `None` for everything.
    pub node_rights: Option<NodeRights>,
    /// How much there was to see when it last decided that nothing was to be done, and when it wanted to look again.
    rests: Option<(usize, i64)>,
}

/// One API call that is to be made.
#[derive(Clone, Debug)]
pub struct Request {
    pub action: Action,
    /// Of the resource, as it was read.
    pub resource_version: String,
    /// Nodes that have lost pods, as they were read.
    pub broken: Arc<BTreeSet<String>>,
}

/// A decision, and what it was based on.
pub struct Planned {
    pub snapshot: Snapshot,
    pub plan: Plan,
    pub requests: Vec<Request>,
}

/// Nodes of which fewer pods serve than their Deployment asks for.
fn broken(snapshot: &Snapshot) -> BTreeSet<String> {
    let serving = |node: &str| snapshot.pods_on(node).iter().filter(|pod| pod.ready && !pod.terminating).count();
    let lacks = |node: &str, replicas: i32| usize::try_from(replicas).is_ok_and(|replicas| serving(node) < replicas);
    let nodes = snapshot.deployments.iter().filter(|(node, deployment)| lacks(node, deployment.replicas()));
    nodes.map(|(node, _)| node.clone()).collect()
}

impl Operator {
    pub fn advance(&mut self, world: &World, store: Store, versions: usize) {
        let seen = &mut self.seen[store as usize];
        *seen = (*seen + versions).min(world.history.len() - 1);
    }

    pub fn catch_up(&mut self, world: &World) {
        self.seen = [world.history.len() - 1; 4];
    }

    /// A new process, whose first lists are this far behind.
    pub fn crash(&mut self, world: &World, behind: usize) {
        *self = Self { seen: [(world.history.len() - 1).saturating_sub(behind); 4], ..Self::default() };
    }

    /// Something has changed since it last looked, or the time has come.
    pub fn has_to_look(&self, world: &World) -> bool {
        self.rests.is_none_or(|(versions, again)| world.versions() > versions || world.cluster.now >= again)
    }

    pub fn looked(&mut self, rests: Option<(usize, i64)>) {
        self.rests = rests;
    }

    fn view<'a>(&self, world: &'a World, store: Store) -> &'a View {
        &world.history[self.seen[store as usize]]
    }

    /// None while the resource is not there.
    pub fn snapshot(&mut self, world: &World) -> Option<Snapshot> {
        let resource = self.view(world, Store::Resource).resource.clone()?;
        self.list_for_rebuilding(world, &resource);
        let nodes = self.view(world, Store::Nodes).nodes.clone();
        let deployments = self.view(world, Store::Deployments).deployments.clone();
        let mut snapshot = Snapshot {
            health_checker_image: "checker:1".into(),
            nodes,
            deployments: (*deployments).clone(),
            pods: (*self.view(world, Store::Pods).pods).clone(),
            replica_sets: (*self.view(world, Store::Pods).sets).clone(),
            orphans: self
                .view(world, Store::Deployments)
                .orphans
                .iter()
                .map(|(node, template)| (node.clone(), serde_json::json!({"template": template}).into()))
                .collect(),
            daemon_sets: world.cluster.daemon_sets.clone(),
            history: self.view(world, Store::Resource).revisions.to_vec(),
            reserved: self.reserved.clone(),
            listed_since_rebuild: self.listed_for.is_some(),
            asserted: self.asserted.clone(),
            written_generations: self.written_generations.clone(),
            gates: self.gates.clone(),
            ..Snapshot::of((*resource).clone(), world.cluster.now)
        };
        if let Some(rights) = &self.node_rights {
            snapshot.node_rights = Arc::new(rights.clone());
        }
        snapshot.clocks = self.clocks.clone();
        snapshot.sights = self.sights.clone();
        snapshot.watched = self.looked_at.map_or(0, |at| world.cluster.passed - at);
        Some(snapshot)
    }

    /// Consistent lists, once the ledger says that it is being rebuilt; ids that were reserved before are void then.
    fn list_for_rebuilding(&mut self, world: &World, resource: &planner::facts::Resource) {
        let ledger = resource.ledger();
        let fence = ledger.and_then(|ledger| ledger.rebuilding);
        if ledger.is_none() || fence.is_some() {
            self.reserved.clear();
        }
        if fence.is_some() && self.listed_for != fence {
            let newest = world.history.len() - 1;
            self.seen[1..].fill(newest);
        }
        self.listed_for = fence;
    }

    /// Ids that were reserved before the ledger was lost are void.
    pub fn forget_reserved(&mut self) {
        self.reserved.clear();
    }

    pub fn plan(&mut self, world: &World) -> Option<Planned> {
        let mut snapshot = self.snapshot(world)?;
        let mut plan = planner::decide(&snapshot);
        if !plan.questions.is_empty() {
            snapshot.answers =
                plan.questions.keys().map(|node| (node.clone(), world.cluster.health_port(node).into_iter().collect())).collect();
            plan = planner::decide(&snapshot);
        }
        self.clocks = plan.clocks.clone();
        self.sights = plan.sights.clone();
        self.looked_at = Some(world.cluster.passed);
        let resource_version = &snapshot.resource.resource_version;
        let broken = Arc::new(broken(&snapshot));
        let request =
            |action: &Action| Request { action: action.clone(), resource_version: resource_version.clone(), broken: Arc::clone(&broken) };
        let requests = plan.actions.iter().map(request).collect();
        Some(Planned { snapshot, plan, requests })
    }

    /// Sends a request and remembers what came of it; false when it was refused.
    pub fn send(&mut self, world: &mut World, request: &Request) -> bool {
        if let Action::CreateDeployment { id, .. } = &request.action {
            self.reserved.retain(|reserved| reserved != id);
        }
        let done = world.apply(request);
        if !done {
            return false;
        }
        match &request.action {
            Action::WriteStatus { reserve, .. } => self.reserved.extend(reserve),
            Action::CreateDeployment { name, body, .. } if render::is_wanted(body) => self.remember_generation(world, name),
            Action::PatchDeployment { name, patch, write: Write::Update | Write::Recreate(_) | Write::Direct, .. }
                if writes_template(patch) =>
            {
                self.remember_generation(world, name);
            }
            Action::Apply { object, body } => {
                self.asserted.insert(health_checker::assertion(object, body));
            }
            _ => {}
        }
        true
    }

    fn remember_generation(&mut self, world: &World, name: &str) {
        if let Some(deployment) = world.cluster.deployments.get(name) {
            let uid = deployment["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            self.written_generations.insert(uid, super::api::generation(deployment));
        }
    }
}

fn writes_template(patch: &serde_json::Value) -> bool {
    patch
        .as_array()
        .is_some_and(|operations| operations.iter().any(|operation| operation["path"] == "/spec/template" && operation["op"] == "add"))
}

/// The label that says that our resource uses the node.
pub fn member_label() -> String {
    names::member_label(UID8)
}
