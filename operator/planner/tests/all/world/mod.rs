//! A simulated cluster for whole rollouts: an API server that applies what the planner says, the controllers and kubelets
//! that follow, operators that see the past, and an audit of every state. Nothing here reads a clock or sleeps.
#![allow(dead_code, reason = "fuzz targets are another program, which uses a part of the world")]

pub mod api;
pub mod audit;
pub mod cluster;
pub mod operator;
pub mod pods;
pub mod wish;

use api::{patched, store, store_deployment, text};
use audit::Audit;
use cluster::{Cluster, deployment_facts, node_facts, node_of};
use operator::{Operator, Request};
use planner::{
    Action, Plan,
    facts::{DaemonSetFacts, DeploymentFacts, NodeFacts, PodFacts, ReplicaSetFacts, Resource, RevisionFacts},
    plan::{Supporting, Write},
};
use pods::{Pod, pod_facts};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};
use wish::Wish;

/// The cluster as it was at one moment.
#[derive(Clone, Debug)]
pub struct View {
    pub resource: Option<Arc<Resource>>,
    pub nodes: Arc<BTreeMap<String, Arc<NodeFacts>>>,
    /// By node.
    pub deployments: Arc<BTreeMap<String, Arc<DeploymentFacts>>>,
    pub orphans: Arc<BTreeMap<String, Value>>,
    pub pods: Arc<BTreeMap<String, Vec<Arc<PodFacts>>>>,
    pub revisions: Arc<Vec<RevisionFacts>>,
    pub sets: Arc<BTreeMap<String, Vec<ReplicaSetFacts>>>,
    sets_version: u64,
}

impl View {
    /// What has not changed is shared with the view before: many worlds are simulated.
    fn of(cluster: &Cluster, last: Option<&Self>) -> Self {
        let mut pods: BTreeMap<String, Vec<Arc<PodFacts>>> = BTreeMap::new();
        for pod in &cluster.pods {
            pods.entry(pod.node.clone()).or_default().push(Arc::new(pod_facts(pod)));
        }
        let kept = |last: Option<&Arc<BTreeMap<String, Value>>>| last.filter(|last| ***last == cluster.orphans).cloned();
        Self {
            resource: cluster.resource.clone(),
            nodes: facts(
                last.map(|last| &last.nodes),
                &cluster.nodes,
                |node| text(node, "/metadata/name"),
                |node| &node.resource_version,
                node_facts,
            ),
            deployments: facts(
                last.map(|last| &last.deployments),
                &cluster.deployments,
                node_of,
                |deployment| &deployment.resource_version,
                deployment_facts,
            ),
            orphans: kept(last.map(|last| &last.orphans)).unwrap_or_else(|| Arc::new(cluster.orphans.clone())),
            pods: Arc::new(pods),
            revisions: Arc::clone(&cluster.revisions),
            sets: match last.filter(|last| last.sets_version == cluster.sets_version) {
                Some(last) => Arc::clone(&last.sets),
                None => Arc::new(cluster.set_facts()),
            },
            sets_version: cluster.sets_version,
        }
    }

    /// Nobody could tell the two apart.
    fn is(&self, other: &Self) -> bool {
        let version = |view: &Self| view.resource.as_ref().map(|resource| resource.resource_version.clone());
        Arc::ptr_eq(&self.nodes, &other.nodes)
            && Arc::ptr_eq(&self.deployments, &other.deployments)
            && Arc::ptr_eq(&self.orphans, &other.orphans)
            && Arc::ptr_eq(&self.revisions, &other.revisions)
            && self.sets == other.sets
            && version(self) == version(other)
            && self.pods == other.pods
    }
}

/// What is read of all objects; the same as before where none has another version.
fn facts<F>(
    last: Option<&Arc<BTreeMap<String, Arc<F>>>>,
    objects: &BTreeMap<String, Value>,
    name: fn(&Value) -> &str,
    version: fn(&F) -> &str,
    of: fn(&Value) -> F,
) -> Arc<BTreeMap<String, Arc<F>>> {
    let known = |object: &Value| {
        let known = last?.get(name(object))?;
        (version(known) == text(object, "/metadata/resourceVersion")).then_some(known)
    };
    if let Some(last) = last.filter(|last| last.len() == objects.len() && objects.values().all(|object| known(object).is_some())) {
        return Arc::clone(last);
    }
    let each = |object: &Value| (name(object).to_owned(), known(object).cloned().unwrap_or_else(|| Arc::new(of(object))));
    Arc::new(objects.values().map(each).collect())
}

#[derive(Clone, Debug)]
pub struct World {
    pub cluster: Cluster,
    pub audit: Audit,
    pub history: Vec<View>,
    /// Views that are kept no more.
    forgotten: usize,
    /// No operator lags, so that the newest view is all that is kept; states are audited once a second.
    brief: bool,
}

/// A world in which everything is as wished, and the operator that made it so.
pub fn settled(wish: Wish, nodes: usize) -> (World, Operator) {
    let mut world = World::new(wish, nodes);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).expect("it comes to rest");
    assert_eq!(world.audit.violations, Vec::<String>::new());
    (world, operator)
}

impl World {
    pub fn new(wish: Wish, nodes: usize) -> Self {
        let mut world =
            Self { cluster: Cluster::new(wish, nodes), audit: Audit::default(), history: Vec::new(), forgotten: 0, brief: false };
        world.record();
        world
    }

    /// One for so many nodes that to look at all of them after each of many writes in a second would take minutes.
    pub fn brief(wish: Wish, nodes: usize) -> Self {
        Self { brief: true, ..Self::new(wish, nodes) }
    }

    /// How many views there have been.
    pub fn versions(&self) -> usize {
        self.forgotten + self.history.len()
    }

    /// Changes the cluster from outside.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut Cluster) -> T) -> T {
        let result = change(&mut self.cluster);
        self.record();
        result
    }

    /// Changes a Deployment as a person does, and lets the audit know that it was nobody else.
    pub fn edit_deployment(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let before = self.cluster.deployments.get(name).cloned();
        self.cluster.edit_deployment(name, edit);
        if let Some((before, after)) = before.zip(self.cluster.deployments.get(name)) {
            self.audit.edited(&before, after);
        }
        self.record();
    }

    /// Checks the state and keeps it for those who lag.
    fn record(&mut self) {
        if !self.brief {
            self.look();
        }
    }

    fn look(&mut self) {
        let view = View::of(&self.cluster, self.history.last());
        let same = self.history.last().is_some_and(|last| last.is(&view));
        // What nobody could tell from the state before is that state.
        if !(self.brief && same) {
            self.audit.state(&self.cluster);
        }
        if same {
            return;
        }
        if self.brief {
            self.forgotten += self.history.len();
            self.history.clear();
        }
        self.history.push(view);
    }

    /// The view of this second, where not every change gives one.
    fn look_once(&mut self) {
        if self.brief {
            self.look();
        }
    }

    pub fn tick(&mut self) {
        self.change(|cluster| cluster.tick(|_| true));
    }

    /// One API call; false when it was refused or changed nothing that matters.
    pub fn apply(&mut self, request: &Request) -> bool {
        let done = self.carry_out(request);
        self.record();
        done
    }

    fn is_current(&self, version: &str) -> bool {
        self.cluster.resource.as_ref().is_some_and(|resource| resource.resource_version == version)
    }

    fn carry_out(&mut self, request: &Request) -> bool {
        match &request.action {
            Action::WriteStatus { status, live_absent, .. } => {
                if !self.is_current(&request.resource_version) || live_absent.iter().any(|name| self.cluster.deployments.contains_key(name))
                {
                    return false;
                }
                self.audit.conditions_write(&self.cluster, status);
                if let Some(ledger) = &status.rollout {
                    self.audit.status_write(&self.cluster, self.cluster.ledger(), ledger, &request.broken);
                }
                self.cluster.edit_resource(|resource| resource.status = Some((**status).clone()));
                true
            }
            Action::SetFinalizers(finalizers) => {
                let current = self.is_current(&request.resource_version);
                if current {
                    self.cluster.edit_resource(|resource| resource.finalizers.clone_from(finalizers));
                    if finalizers.is_empty() {
                        self.collect_garbage();
                    }
                }
                current
            }
            Action::CreateDeployment { id, name, body, .. } => self.create(*id, name, body),
            Action::PatchDeployment { name, patch, write, .. } => self.patch_deployment(name, patch, *write),
            Action::RecordRevision { name, body } => self.record_revision(name, body),
            Action::RenumberRevision { name, patch } => self.renumber_revision(name, patch),
            Action::DeleteDeployment { name, uid, resource_version, .. } => {
                let same = |deployment: &Value| {
                    text(deployment, "/metadata/uid") == uid && text(deployment, "/metadata/resourceVersion") == resource_version
                };
                let found = self.cluster.deployments.get(name).is_some_and(same);
                if found {
                    self.cluster.delete_deployment(name, false);
                }
                found
            }
            Action::PatchNode { node, patch, live_absent, .. } => {
                if live_absent.as_ref().is_some_and(|name| self.cluster.deployments.contains_key(name)) {
                    return false;
                }
                self.patch_node(node, patch)
            }
            // Nobody takes labels away in this world.
            Action::Reclaim { .. } => true,
            Action::Apply { object, body } => {
                self.cluster.supporting.insert(object.clone());
                self.apply_daemon_set(object, body);
                true
            }
            Action::Delete { object: Supporting::ControllerRevision(name), uid } => {
                let before = self.cluster.revisions.len();
                Arc::make_mut(&mut self.cluster.revisions).retain(|known| known.name != *name || uid.as_ref() != Some(&known.uid));
                self.cluster.revisions.len() < before
            }
            Action::Delete { object, .. } => {
                self.cluster.daemon_sets.retain(|set| Supporting::DaemonSet(set.name.clone()) != *object);
                self.cluster.supporting.remove(object)
            }
            Action::DeletePod { name, uid, resource_version } => self.cluster.delete_pod(name, uid.as_deref(), resource_version.as_deref()),
            Action::PatchReplicaSet { name, patch, .. } => {
                let Some((before, after)) = self.cluster.patch_set(name, patch) else { return false };
                self.audit.set_write(&self.cluster, &before, &after);
                true
            }
            Action::PatchPod { name, patch, .. } => {
                let Some(before) = self.cluster.patch_pod(name, patch) else { return false };
                self.audit.pod_write(&self.cluster, &before);
                true
            }
            Action::PatchPodStatus { name, patch, .. } => self.cluster.patch_pod_status(name, patch),
            // Images are there in this world.
            Action::CreatePod { .. } => false,
        }
    }

    /// The last finalizer is gone: what an owner reference reaches goes too.
    fn collect_garbage(&mut self) {
        if self.cluster.resource.as_ref().is_some_and(|resource| resource.deleting) {
            self.cluster.resource = None;
            self.cluster.daemon_sets.clear();
            self.cluster.revisions = Arc::default();
            self.cluster.supporting.retain(|object| matches!(object, Supporting::ClusterRoleBinding(_)));
        }
    }

    fn create(&mut self, id: u64, name: &str, body: &Value) -> bool {
        if self.cluster.deployments.contains_key(name) || self.cluster.resource.is_none() {
            return false;
        }
        let mut deployment = body.clone();
        deployment["metadata"]["uid"] = self.cluster.uid().into();
        self.cluster.version += 1;
        deployment["metadata"]["resourceVersion"] = self.cluster.version.to_string().into();
        deployment["metadata"]["generation"] = 1.into();
        api::add_defaults(&mut deployment);
        self.audit.creation(&self.cluster, id, &deployment);
        self.cluster.deployments.insert(name.to_owned(), deployment);
        true
    }

    fn record_revision(&mut self, name: &str, body: &Value) -> bool {
        if self.cluster.revisions.iter().any(|known| known.name == name) || self.cluster.resource.is_none() {
            return false;
        }
        let template = body["data"]["spec"]["template"].clone();
        let uid = self.cluster.uid();
        Arc::make_mut(&mut self.cluster.revisions).push(RevisionFacts {
            name: name.to_owned(),
            uid,
            number: body["revision"].as_i64().expect("a number"),
            revision: crds::hash::revision(&template),
            template: Arc::new(template),
        });
        true
    }

    fn renumber_revision(&mut self, name: &str, patch: &Value) -> bool {
        let Some(index) = self.cluster.revisions.iter().position(|known| known.name == name) else { return false };
        let known = &self.cluster.revisions[index];
        let Ok(after) = patched(&serde_json::json!({"metadata": {"uid": known.uid}, "revision": known.number}), patch) else {
            return false;
        };
        Arc::make_mut(&mut self.cluster.revisions)[index].number = after["revision"].as_i64().expect("a number");
        true
    }

    fn patch_deployment(&mut self, name: &str, patch: &Value, write: Write) -> bool {
        let Some(before) = self.cluster.deployments.get(name).cloned() else { return false };
        let Ok(after) = patched(&before, patch) else { return false };
        let after = store_deployment(&before, after, &mut self.cluster.version);
        if write == Write::Breaker {
            self.audit.breaker_write(&self.cluster, &before, &after);
        } else {
            self.audit.deployment_write(&self.cluster, &before, &after);
        }
        if write == Write::Resume {
            self.audit.resumed(&self.cluster, &after);
        }
        self.cluster.deployments.insert(name.to_owned(), after);
        true
    }

    fn patch_node(&mut self, name: &str, patch: &Value) -> bool {
        let Some(before) = self.cluster.nodes.get(name).cloned() else { return false };
        let Ok(after) = patched(&before, patch) else { return false };
        let after = store(&before, after, &mut self.cluster.version);
        self.audit.node_write(&self.cluster, &before, &after);
        self.cluster.nodes.insert(name.to_owned(), after);
        true
    }

    fn apply_daemon_set(&mut self, object: &Supporting, body: &Value) {
        let Supporting::DaemonSet(name) = object else { return };
        let port = body["metadata"]["annotations"][crds::names::HEALTH_PORT_ANNOTATION].as_str().and_then(|port| port.parse().ok());
        self.cluster.daemon_sets.retain(|set| set.name != *name);
        self.cluster.daemon_sets.push(DaemonSetFacts {
            name: name.clone(),
            uid: format!("uid-of-{name}"),
            port: port.expect("a port"),
            spec: Arc::new(body["spec"].clone()),
            observed: true,
            desired: 0,
            updated: 0,
            ready: 0,
            owned: true,
        });
    }

    /// One second of a world in which nothing goes wrong; the plan that was carried out.
    pub fn fair_second(&mut self, operator: &mut Operator) -> Option<Plan> {
        self.look_once();
        self.pass(operator)
    }

    fn pass(&mut self, operator: &mut Operator) -> Option<Plan> {
        operator.catch_up(self);
        let planned = operator.plan(self);
        for request in planned.iter().flat_map(|planned| &planned.requests) {
            operator.send(self, request);
        }
        self.tick();
        planned.map(|planned| planned.plan)
    }

    /// The same for an operator that decides only when something has changed, or when it said that it would look again.
    pub fn idle_second(&mut self, operator: &mut Operator) -> Option<Plan> {
        self.look_once();
        if !operator.has_to_look(self) {
            self.tick();
            return None;
        }
        let (versions, now) = (self.versions(), self.cluster.now);
        let plan = self.pass(operator);
        let idle = plan.as_ref().is_none_or(|plan| plan.actions.is_empty());
        let again = plan.as_ref().and_then(|plan| plan.recheck_at).unwrap_or(now + 1);
        operator.looked(idle.then_some((versions, again)));
        plan
    }

    /// Runs until `done`; says what held when that takes too long.
    pub fn run_until(&mut self, operator: &mut Operator, seconds: usize, done: impl Fn(&World) -> bool) -> Result<usize, String> {
        self.run_by(Self::fair_second, operator, seconds, done)
    }

    /// The same for an operator that sleeps while it has nothing to do.
    pub fn idle_until(&mut self, operator: &mut Operator, seconds: usize, done: impl Fn(&World) -> bool) -> Result<usize, String> {
        self.run_by(Self::idle_second, operator, seconds, done)
    }

    fn run_by(
        &mut self,
        pass: fn(&mut Self, &mut Operator) -> Option<Plan>,
        operator: &mut Operator,
        seconds: usize,
        done: impl Fn(&World) -> bool,
    ) -> Result<usize, String> {
        let mut last = None;
        for second in 0..seconds {
            if done(self) {
                return Ok(second);
            }
            last = pass(self, operator).or(last);
        }
        let last = last.map(|plan| {
            (plan.node_states, plan.actions.into_iter().filter(|action| !matches!(action, Action::WriteStatus { .. })).collect::<Vec<_>>())
        });
        Err(format!("not done after {seconds} s: {last:#?}\nledger {:#?}", self.cluster.ledger()))
    }

    /// Every chosen node serves what is wanted, and nobody has a grant.
    pub fn is_converged(&self) -> bool {
        let cluster = &self.cluster;
        let Some(resource) = &cluster.resource else { return false };
        // The usual answer, before anything is computed for it.
        if !cluster.ledger().is_some_and(|ledger| ledger.grants.is_empty() && ledger.rebuilding.is_none()) {
            return false;
        }
        let revision = crds::hash::revision(&resource.spec.template);
        let wanted = usize::try_from(cluster.wish.pods).unwrap_or(0);
        let serves = |name: &String| {
            cluster.deployment_on(name).is_some_and(|deployment| {
                let closed = audit::token(deployment).is_some_and(|token| token.phase == crds::token::Phase::Closed || wanted == 0);
                let pods: Vec<_> = cluster.pods.iter().filter(|pod| pod.node == *name && pod.rejected_at.is_none()).collect();
                let as_wished = |pod: &Pod| pod.ready && pod.revision() == revision && is_as_wished(resource, &pod.template);
                closed && is_put_right(resource, deployment) && pods.len() == wanted && pods.iter().all(|pod| as_wished(pod))
            })
        };
        let chosen = |node: &Value| cluster.is_chosen(node);
        let detached = |node: &Value| audit::entry(node).is_some_and(|entry| entry.phase == crds::holders::EntryPhase::Detached);
        let ours = |name: &String| cluster.deployment_on(name).is_some();
        // Nodes without pods have not run it, and no nodes neither.
        let nobody = wanted == 0 || !cluster.nodes.values().any(chosen);
        let is_current = resource.status.as_ref().is_some_and(|status| status.revisions.current == revision);
        (is_current || nobody)
            && cluster
                .nodes
                .iter()
                .all(|(name, node)| if chosen(node) { serves(name) && !detached(node) } else { !ours(name) && !detached(node) })
            && cluster.deployments.values().all(|deployment| cluster.nodes.contains_key(node_of(deployment)))
    }

    /// What of ours is left, which must be nothing once the resource is gone.
    pub fn leftovers(&self) -> Vec<String> {
        let cluster = &self.cluster;
        let mut found: Vec<_> = cluster.deployments.keys().map(|name| format!("Deployment {name}")).collect();
        found.extend(cluster.supporting.iter().map(Supporting::key));
        for (name, node) in &cluster.nodes {
            let metadata = &node["metadata"];
            let keys = metadata["labels"].as_object().into_iter().chain(metadata["annotations"].as_object()).flatten().map(|(key, _)| key);
            found.extend(keys.filter(|key| key.starts_with(crds::names::GROUP)).map(|key| format!("{key} on {name}")));
            found.extend(wish::KEYS.iter().filter(|key| cluster::is_marked(node, key)).map(|key| format!("{key} on {name}")));
        }
        found
    }
}

/// What persons change in a pod template is as it is wished.
fn is_as_wished(resource: &Resource, template: &Value) -> bool {
    let wanted = &resource.spec.template;
    let labels = |template: &Value| template["metadata"]["labels"]["app"].clone();
    let image = |template: &Value| template["spec"]["containers"][0]["image"].clone();
    labels(template) == labels(wanted) && image(template) == image(wanted)
}

/// The same for the Deployment around it.
fn is_put_right(resource: &Resource, deployment: &Value) -> bool {
    let (spec, labels) = (&deployment["spec"], &deployment["metadata"]["labels"]);
    let pods = resource.spec.pods_per_node;
    spec["replicas"] == pods
        && spec["paused"] != true
        && spec["strategy"]["type"] == "RollingUpdate"
        && labels[crds::names::NODE_HASH_LABEL] == crds::hash::node_hash(node_of(deployment)).as_str()
        && (pods == 0 || is_as_wished(resource, &spec["template"]))
}
