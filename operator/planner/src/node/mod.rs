//! One node with everything of the resource on it: what it should be, what it needs, and whether a grant still fits that.
//!
//! The snapshot gives the objects, `protocol` the rules; a `ManagedNode` goes out. Nothing here looks at two nodes at once: that is
//! `rollout`.

pub mod breaker;
pub mod clocks;
pub mod replicas;

use crate::{
    facts::{
        DeploymentFacts, NodeFacts, PodFacts, ReplicaSetFacts, Resource,
        readiness::{self, is_complete, is_settled},
        scheduling,
    },
    protocol::target::{self, Fit, FitView, NeedView, Stops},
    reason::Reason,
    snapshot::Snapshot,
    spec::{ResolvedSpec, Topology, node_selection::is_chosen},
};
use crds::{
    UnixSeconds, hash,
    holders::{Entry, EntryPhase, Holders},
    ingress_daemon_set::OnDetachTimeout,
    ledger::{Grant, GrantReason, Ledger, Marks, WaitFor},
    names,
    token::{Phase, Token},
};
use std::{collections::BTreeSet, sync::Arc};

/// Ids from here on are nobody's: JSON numbers of this size lose digits, and milliseconds since 1970 never get there.
pub const ID_LIMIT: u64 = 1 << 53;

/// One node and everything of the resource on it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub struct ManagedNode<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Facts of the Node object; absent if there is none.
    pub node: Option<&'a NodeFacts>,
    /// The resource's Deployment for this node; absent if there is none.
    pub deployment: Option<&'a DeploymentFacts>,
    /// The resource that manages the node.
    pub resource: &'a Resource,
    /// The resource's pods on the node.
    pub pods: &'a [Arc<PodFacts>],
    /// `ReplicaSets` whose pods have the gate for updates in place.
    pub replica_sets: &'a [ReplicaSetFacts],
    /// A `ReplicaSet` of ours without its Deployment is there.
    pub orphaned: bool,
    /// Grant for the node in the ledger; absent if it holds no slot.
    pub grant: Option<&'a Grant>,
    /// The node belongs to the resource.
    pub chosen: bool,
    /// Value of the member label.
    pub member: Option<&'a str>,
    /// Readable token of this resource.
    pub token: Option<Token>,
    /// The Node's holders, or why they cannot be read.
    pub holders: Result<Holders, String>,
    /// Entry of this resource among the holders.
    pub entry: Option<Entry>,
    /// Pods are exactly as the Deployment says.
    pub settled: bool,
    /// The template at the wanted revision was changed by somebody else.
    pub drifted: bool,
    /// The spec as it is for this node, with the template that it is to run; absent when the spec is not valid.
    pub settings: Option<&'a ResolvedSpec>,
    /// Why that is not the template of the rollout.
    pub held_back: Option<Reason>,
    /// The node is to keep what it runs, but no history has that revision. `settings` then have the template of the rollout.
    pub former_unknown: bool,
    /// Whether the rollout may come to this node.
    pub turn: RolloutTurn,
    /// It joins while a revision is to prove itself, though a Deployment is there: its machine has taken the name of another.
    pub joins: bool,
}

/// Whether the rollout may come to a node, by its steps and its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutTurn {
    /// The rollout may come to the node now.
    Now,
    /// The steps up to the present one ask for it, and the partition keeps it at what it runs.
    HeldByPartition,
    /// A later step asks for it.
    Later,
}

/// Length of a day, in milliseconds.
const DAY: u64 = 24 * 3600 * 1000;

/// Ids are given out one by one, from the time in milliseconds on or from what the ledger says. What is a day ahead of both was written by
/// somebody else: a kubelet may annotate its own Node.
fn first_unbelievable(snapshot: &Snapshot, ledger: &Ledger) -> u64 {
    let now = u64::try_from(snapshot.now.saturating_mul(1000)).unwrap_or(0);
    now.max(ledger.next_id).saturating_add(DAY).min(ID_LIMIT / 2)
}

/// Keys that a grant remembers.
const FORMER_KEYS: usize = 8;

/// The resource may hold the node by the entry's key: the operator's flags allow it, or it was granted. A kubelet may annotate its own Node,
/// and would otherwise have labels changed that it must not change itself.
fn may_hold(snapshot: &Snapshot, grant: Option<&Grant>, entry: &Entry) -> bool {
    let has =
        |grant: &Grant| grant.marks.node.as_ref().is_some_and(|mark| mark.key == entry.key) || grant.former_node_keys.contains(&entry.key);
    grant.is_some_and(has) || snapshot.node_rights.allows_mark(&snapshot.resource.namespace, &entry.key)
}

/// All nodes that concern the resource, by name, before the rollout says what each is to run.
pub fn all<'a>(snapshot: &'a Snapshot, settings: Option<&'a ResolvedSpec>, ledger: &'a Ledger) -> Vec<ManagedNode<'a>> {
    let member_key = names::member_label(snapshot.resource.uid8());
    let mut names: BTreeSet<&str> = snapshot.deployments.keys().map(String::as_str).collect();
    names.extend(ledger.grants.keys().map(String::as_str));
    names.extend(snapshot.orphans.keys().map(String::as_str));
    names.extend(snapshot.nodes.keys().map(String::as_str));
    let all = names.into_iter().map(|name| managed(snapshot, settings, ledger, &member_key, name));
    all.filter(|managed| managed.chosen || managed.has_anything()).collect()
}

fn managed<'a>(
    snapshot: &'a Snapshot,
    settings: Option<&'a ResolvedSpec>,
    ledger: &'a Ledger,
    member_key: &str,
    name: &'a str,
) -> ManagedNode<'a> {
    let uid8 = snapshot.resource.uid8();
    let node: Option<&NodeFacts> = snapshot.nodes.get(name).map(AsRef::as_ref);
    let deployment: Option<&DeploymentFacts> = snapshot.deployments.get(name).map(AsRef::as_ref);
    let pods = snapshot.pods_on(name);
    let member = node.and_then(|node| node.labels.get(member_key)).map(String::as_str);
    let mut holders = node.map_or_else(|| Ok(Holders::new()), |node| node.holders().map_err(|error| error.to_string()));
    let ours = holders.as_mut().ok().and_then(|holders| holders.get_mut(uid8));
    if let Some(forged) = ours.filter(|ours| !may_hold(snapshot, ledger.grants.get(name), ours)) {
        (forged.phase, forged.previous) = (EntryPhase::Attached, None);
    }
    let entry = holders.as_ref().ok().and_then(|holders| holders.get(uid8)).cloned();
    let ours = |id: u64| id < first_unbelievable(snapshot, ledger);
    let entry = entry.map(|entry| if ours(entry.id) { entry } else { Entry { id: 0, ..entry } });
    let is_member = member.is_some() || deployment.is_some();
    let chosen = match (node, settings) {
        _ if snapshot.resource.deleting => false,
        (None, _) => false,
        (Some(node), Some(settings)) => is_chosen(&snapshot.resource.spec, settings, name, node, is_member),
        // With an invalid spec the last good state keeps running.
        (Some(_), None) => is_member,
    };
    ManagedNode {
        name,
        node,
        deployment,
        resource: &snapshot.resource,
        pods,
        replica_sets: snapshot.replica_sets.get(name).map_or(&[], Vec::as_slice),
        orphaned: snapshot.orphans.contains_key(name),
        grant: ledger.grants.get(name),
        chosen,
        member,
        token: deployment.and_then(DeploymentFacts::readable_token).filter(|token| token.uid8 == uid8 && ours(token.id)),
        holders,
        entry,
        settled: deployment.is_some_and(|deployment| is_settled(deployment, pods)),
        drifted: false,
        settings,
        held_back: None,
        former_unknown: false,
        turn: RolloutTurn::Now,
        joins: false,
    }
}

impl ManagedNode<'_> {
    /// Something of ours is on the node.
    pub fn has_anything(&self) -> bool {
        self.deployment.is_some() || self.orphaned || self.grant.is_some() || self.member.is_some() || self.entry.is_some()
    }

    /// The Node's annotation names the resource.
    pub fn is_skipped(&self) -> bool {
        let key = self.resource.key();
        let listed = self.node.and_then(|node| node.annotations.get(names::SKIP_ANNOTATION));
        listed.is_some_and(|listed| listed.split(',').any(|one| one.trim() == key))
    }

    /// Its Deployment says this revision of the template.
    pub fn is_at(&self, revision: &str) -> bool {
        self.deployment.is_some_and(|deployment| deployment.revision() == revision)
    }

    /// A hash that orders nodes that are alike. Each revision has another order, and the order of the input never matters.
    pub fn order_hash(&self, revision: &str) -> String {
        hash::hex(format!("{}/{revision}", self.name).as_bytes(), 16)
    }

    /// The token's phase; an unreadable one counts as Closed, and is repaired.
    pub fn phase(&self) -> Option<Phase> {
        self.deployment.map(|_| self.token.as_ref().map_or(Phase::Closed, |token| token.phase))
    }

    /// The node has served once.
    pub fn served(&self) -> bool {
        self.member == Some("serving") || self.phase().is_some_and(|phase| phase != Phase::New)
    }

    /// Its Deployment has served, and its machine has not yet: it has taken the name of another.
    pub fn took_name(&self) -> bool {
        self.member != Some("serving") && self.phase().is_some_and(|phase| phase != Phase::New)
    }

    /// What holds new work back on this node. A halt for failed nodes does not hold a machine that has taken the name of another: what that
    /// one has left must go.
    pub fn stops(&self, stops: Stops) -> Stops {
        Stops { failed: stops.failed && !self.joins, ..stops }
    }

    /// The node may get traffic: it has served once and is still there.
    pub fn serves(&self) -> bool {
        self.served() && self.node.is_some()
    }

    /// The node is about to be taken away: an autoscaler's taint, out-of-service, or its deletion.
    pub fn is_draining(&self) -> bool {
        self.node.is_some_and(|node| node.deleting || node.taints.iter().any(scheduling::is_departure))
    }

    /// Key of the taint that says so; nothing when the Node is being deleted.
    pub fn departure(&self) -> Option<&str> {
        let node = self.node.filter(|node| !node.deleting)?;
        node.taints.iter().find(|taint| scheduling::is_departure(taint)).map(|taint| taint.key.as_str())
    }

    /// Marks for its removal: none where nothing is served.
    pub fn removal_marks(&self, settings: &ResolvedSpec) -> Marks {
        if self.serves() { settings.detach_marks() } else { Marks::default() }
    }

    /// The same when the spec cannot be read: the mark that every health checker knows.
    pub fn removal_marks_without_settings(&self) -> Marks {
        Marks { deployment: self.serves(), ..Marks::default() }
    }

    /// Its Deployment wants no pods, or there is none.
    pub fn is_empty(&self) -> bool {
        self.deployment.is_none_or(|deployment| deployment.replicas() <= 0)
    }

    /// The Node is there and not Ready: what its pods are said to be is of the time when its kubelet was last heard of.
    pub fn is_lost(&self) -> bool {
        self.node.is_some_and(|node| !node.ready)
    }

    /// Our entry holds the node out of the load balancer.
    pub fn holds_node(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.phase == EntryPhase::Detached)
    }

    /// The grant has written what it changes.
    pub fn is_updated(&self) -> bool {
        self.grant.zip(self.token.as_ref()).is_some_and(|(grant, token)| {
            token.id == grant.id && matches!(token.phase, Phase::InPlace | Phase::Updating | Phase::Degrading)
        })
    }

    /// The grant has paused its Deployment, whose pods change in place.
    pub fn is_in_place(&self) -> bool {
        self.is_updated() && self.phase() == Some(Phase::InPlace)
    }

    /// The domain that the node is in: its label's value, empty without one.
    pub fn domain(&self, topology: &Topology) -> &str {
        self.node.and_then(|node| node.labels.get(&topology.key)).map_or("", String::as_str)
    }

    /// A slot is taken for the node, by a grant as it was read.
    pub fn holds_slot(&self) -> bool {
        self.grant.is_some_and(|grant| !is_free(grant))
    }

    /// All its pods are ready, and none of another revision is left: what the health checker sees. They may not be *available* yet.
    pub fn is_ready(&self) -> bool {
        self.deployment.is_some_and(|deployment| readiness::is_ready(deployment, self.pods))
    }

    /// What keeps its pods from being ready, as far as they say it.
    pub fn trouble(&self) -> Option<(String, String)> {
        self.deployment.and_then(|deployment| readiness::trouble(self.pods, deployment.revision(), deployment.refusal.is_some()))
    }

    /// Why the API server takes none of its pods, where no pod is in trouble.
    pub fn refusal(&self) -> Option<Reason> {
        let message = self.deployment?.refusal.clone()?;
        self.trouble().is_none().then_some(Reason::PodsRefused(message))
    }

    /// Has served once and does not now; never, when the spec is not valid or wants no pods.
    pub fn is_unavailable(&self) -> bool {
        if !self.served() || self.settings.is_none_or(ResolvedSpec::is_without_pods) {
            return false;
        }
        let holding = self.phase() != Some(Phase::Closed) || self.holds_node();
        !self.is_ready() || self.deployment.is_some_and(|deployment| deployment.replicas() == 0) || holding || self.taken_out().is_some()
    }

    /// The key of an annotation, or of a Node's label, that is not of our making and takes the node out of service.
    pub fn taken_out(&self) -> Option<&str> {
        let on_node = self.settings.and_then(|settings| settings.node_mark.as_ref()).map(|mark| mark.key.as_str());
        let on_node = on_node.filter(|key| !self.holds_node() && self.node.is_some_and(|node| node.mark(key).is_some()));
        let on_deployment =
            || self.deployment.is_some_and(|deployment| deployment.annotations.contains_key(names::TO_BE_UPDATED_ANNOTATION));
        on_node.or_else(|| on_deployment().then_some(names::TO_BE_UPDATED_ANNOTATION))
    }

    /// What the node needs that takes a grant; `None` when nothing does.
    pub fn need(&self, now: UnixSeconds) -> Option<GrantReason> {
        let Some(settings) = self.settings else { return self.need_without_settings() };
        let replicas = self.deployment.map_or(0, DeploymentFacts::replicas);
        target::need(&NeedView {
            chosen: self.chosen,
            draining: self.is_draining(),
            has_anything: self.has_anything(),
            phase: self.phase(),
            readable: self.token.is_some(),
            granted: self.grant.is_some(),
            detached: self.holds_node(),
            current: self.is_at(&settings.revision),
            drifted: self.drifted,
            broken: self.deployment.is_some_and(|deployment| breaker::open(deployment, now).is_some()),
            replicas: replicas.cmp(&settings.pods_per_node),
            empty: self.is_empty(),
        })
    }

    /// The same while the spec is not valid: what leaves needs no template.
    fn need_without_settings(&self) -> Option<GrantReason> {
        if self.resource.deleting || self.node.is_none() {
            return self.has_anything().then_some(GrantReason::Remove);
        }
        let drains = self.is_draining() && self.phase().is_some_and(|phase| phase != Phase::New);
        drains.then_some(GrantReason::Drain)
    }

    /// The Deployment is what a grant is to bring about.
    pub fn is_complete(&self, grant: &Grant) -> bool {
        let Some(deployment) = self.deployment else { return false };
        match grant.kind {
            GrantReason::Remove => is_complete(deployment, self.pods, "", 0),
            // One that the breaker has emptied is settled without a pod, and is not to be attached.
            GrantReason::Abort => {
                let emptied = self.is_empty() && breaker::read(deployment).is_some();
                self.settled && (!emptied || self.settings.is_some_and(ResolvedSpec::is_without_pods))
            }
            // It ends by another grant, in its place.
            GrantReason::Drain => false,
            GrantReason::Update | GrantReason::Repair | GrantReason::Shrink | GrantReason::Grow => match self.settings {
                Some(settings) if grant.revision == settings.revision => {
                    // A node whose kubelet refuses more pods again serves on with those that it has.
                    let refused = grant.kind == GrantReason::Grow && deployment.replicas() > 0 && breaker::read(deployment).is_some();
                    let wanted = if refused { deployment.replicas().min(settings.pods_per_node) } else { settings.pods_per_node };
                    is_complete(deployment, self.pods, &grant.revision, wanted)
                }
                // One that the breaker has emptied is settled without a pod.
                _ => self.is_at(&grant.revision) && self.settled && breaker::read(deployment).is_none(),
            },
        }
    }
}

/// Takes no slot: a Remove of a node that does not serve. The ledger says so by the absence of marks, because what an
/// operator sees of the node may be of long ago.
pub fn is_free(grant: &Grant) -> bool {
    grant.kind == GrantReason::Remove && grant.marks == Marks::default()
}

/// Whether the grant is still what is wanted; else the grant that takes its slot (its id is set by the caller).
pub fn fits(managed: &ManagedNode<'_>, grant: &Grant, stops: Stops, now: UnixSeconds) -> Result<(), Box<Grant>> {
    if grant.released && (managed.chosen || managed.deployment.is_some()) {
        return Ok(());
    }
    let Some(settings) = managed.settings else { return fits_without_settings(managed, grant) };
    let (for_update, for_removal) = (settings.update_marks(), managed.removal_marks(settings));
    let outcome = target::fit(&FitView {
        chosen: managed.chosen,
        kind: grant.kind,
        current: grant.revision == settings.revision,
        marked: carries(&grant.marks, &for_update),
        marked_for_removal: carries(&grant.marks, &for_removal),
        detaches: for_update != Marks::default(),
        phase: managed.phase(),
        updated: managed.is_updated() && !managed.is_in_place(),
        empty: managed.is_empty(),
        in_place: managed.is_in_place(),
        need: managed.need(now),
        given_up: gave_up(grant, settings),
        // A grant for something else does not turn into the update that the node is held back from.
        stops: Stops { closed: stops.closed || managed.former_unknown, ..stops },
    });
    let next = match outcome {
        Fit::Fits => return Ok(()),
        Fit::Take(kind @ (GrantReason::Remove | GrantReason::Drain)) => replace(managed, grant, kind, String::new(), &for_removal),
        Fit::Take(kind) => replace(managed, grant, kind, settings.revision.clone(), &for_update),
        Fit::TurnBack => turn_back(managed, grant),
    };
    Err(Box::new(next))
}

/// The detacher did not answer for what is wanted now, by the same mark, and the policy is to leave it at that: the grant was given up.
pub fn gave_up(grant: &Grant, settings: &ResolvedSpec) -> bool {
    grant.refused.as_deref() == Some(settings.revision.as_str())
        && settings.on_detach_timeout == OnDetachTimeout::Abort
        && settings.update_marks().node == grant.marks.node
}

/// A grant that was given up keeps its slot, lest the node is detached and given up again for ever (ADR 0003); what leaves is not kept.
pub fn is_kept(managed: &ManagedNode<'_>, grant: &Grant, now: UnixSeconds) -> bool {
    is_given_up(managed, grant, now) && !matches!(managed.need(now), Some(GrantReason::Remove | GrantReason::Drain))
}

/// What was given up is still what is wanted.
pub fn is_given_up(managed: &ManagedNode<'_>, grant: &Grant, now: UnixSeconds) -> bool {
    let kept = |settings: &ResolvedSpec| gave_up(grant, settings) && managed.need(now).is_some();
    grant.refused.is_some() && !grant.released && managed.settings.is_none_or(kept)
}

/// With an invalid spec nothing new is begun: what has not changed its pods turns back, what has goes on. What leaves still does, and
/// comes back when it is not taken away after all.
fn fits_without_settings(managed: &ManagedNode<'_>, grant: &Grant) -> Result<(), Box<Grant>> {
    let need = managed.need_without_settings();
    if let Some(kind) = need.filter(|kind| grant.kind != GrantReason::Remove && grant.kind != *kind) {
        return Err(Box::new(replace(managed, grant, kind, String::new(), &managed.removal_marks_without_settings())));
    }
    let goes = grant.kind == GrantReason::Remove || grant.kind == GrantReason::Drain && (need.is_some() || managed.deployment.is_none());
    if goes && managed.is_updated() && !managed.is_empty() {
        return Err(Box::new(renew(managed, grant, Stops::default())));
    }
    if goes || grant.kind == GrantReason::Abort || grant.kind != GrantReason::Drain && managed.is_updated() {
        return Ok(());
    }
    // A node that was emptied gets as many pods as it had.
    match (managed.resource.last_replicas(), grant.kind) {
        _ if !managed.is_empty() => Err(Box::new(turn_back(managed, grant))),
        // A drain of which nothing says how many there were waits for a spec that does.
        (Some(1..), GrantReason::Grow) | (None, GrantReason::Drain) => Ok(()),
        // What the breaker emptied waits for a valid spec.
        (Some(1..), kind) if kind == GrantReason::Drain || managed.deployment.is_none_or(|found| breaker::read(found).is_none()) => {
            Err(Box::new(Grant { kind: GrantReason::Grow, ..turn_back(managed, grant) }))
        }
        _ => Err(Box::new(turn_back(managed, grant))),
    }
}

/// The marks wanted now, and those of the grant that is replaced: all of their steps are passed.
fn replace(managed: &ManagedNode<'_>, grant: &Grant, kind: GrantReason, revision: String, wanted: &Marks) -> Grant {
    let mut keys = grant.marks.deployment_keys.clone();
    keys.extend(wanted.deployment_keys.iter().filter(|key| !grant.marks.deployment_keys.contains(key)).cloned());
    let node = wanted.node.clone().or_else(|| grant.marks.node.clone());
    let former = grant.marks.node.as_ref().filter(|former| node.as_ref().is_some_and(|mark| mark.key != former.key));
    let mut former_node_keys = grant.former_node_keys.clone();
    former_node_keys.extend(former.map(|mark| mark.key.clone()).filter(|key| !grant.former_node_keys.contains(key)));
    // The entry has one key; a person changes it some times at most while a node is out.
    former_node_keys.drain(..former_node_keys.len().saturating_sub(FORMER_KEYS));
    Grant {
        id: grant.id,
        node_uid: managed.node.map(|node| node.uid.clone()).unwrap_or_default(),
        kind,
        revision,
        marks: Marks { deployment: grant.marks.deployment || wanted.deployment, deployment_keys: keys, node },
        former_node_keys,
        domain: grant.domain.clone(),
        granted_at: grant.granted_at,
        refused: None,
        released: false,
        out_before: grant.out_before,
        waited: grant.waited.clone(),
    }
}

/// The same once more, for objects that are others than those it was given for. Where `stops` says so, nothing is begun anew. What a
/// person or the detach timeout decided about it stays.
pub fn renew(managed: &ManagedNode<'_>, grant: &Grant, stops: Stops) -> Grant {
    if stops.stops(grant.kind) && !managed.is_updated() {
        return Grant { refused: grant.refused.clone(), released: grant.released, ..turn_back(managed, grant) };
    }
    Grant { node_uid: managed.node.map(|node| node.uid.clone()).unwrap_or_default(), ..grant.clone() }
}

/// The same for a person who asks to try a node again that failed: what its Deployment says is kept where it is what is wanted, and the
/// time of its pods begins again.
pub fn again(managed: &ManagedNode<'_>, grant: &Grant, now: UnixSeconds) -> Grant {
    if managed.need(now).is_none() {
        return turn_back(managed, grant);
    }
    let waited = grant.waited.iter().filter(|wait| wait.what != WaitFor::Pods).cloned().collect();
    Grant { refused: None, waited, ..renew(managed, grant, Stops::default()) }
}

/// The way back: the node keeps what it runs.
pub fn turn_back(managed: &ManagedNode<'_>, grant: &Grant) -> Grant {
    let revision = managed.deployment.map(|deployment| deployment.revision().to_owned()).unwrap_or_default();
    replace(managed, grant, GrantReason::Abort, revision, &Marks::default())
}

/// The Abort that follows a detach timeout: it keeps the slot, and remembers what was given up.
pub fn give_up(managed: &ManagedNode<'_>, grant: &Grant, refused: &str) -> Grant {
    Grant { refused: Some(refused.to_owned()), ..turn_back(managed, grant) }
}

/// A person wants the slot back: the node is attached as it is.
pub fn set_free(managed: &ManagedNode<'_>, grant: &Grant) -> Grant {
    Grant { released: true, ..turn_back(managed, grant) }
}

/// Every mark that is wanted is in the grant.
fn carries(grant: &Marks, wanted: &Marks) -> bool {
    (grant.deployment || !wanted.deployment)
        && wanted.deployment_keys.iter().all(|key| grant.deployment_keys.contains(key))
        && (wanted.node.is_none() || grant.node == wanted.node)
}
