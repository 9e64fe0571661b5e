//! A lost ledger: every object that holds no node is fenced with one id before any grant is given again.

use crate::{
    facts::DeploymentFacts,
    node::{ID_LIMIT, ManagedNode},
    objects::{deployment_writes, node_writes},
    plan::{Action, Write},
    snapshot::Snapshot,
    spec::ResolvedSpec,
};
use crds::{
    holders::EntryPhase,
    ledger::{Grant, GrantReason, Ledger, Marks},
    token::Phase,
};

/// Objects that one pass fences: a patch takes about 5 KiB until it is sent, and a fleet of 5,000 nodes has 10,000 objects.
pub const FENCES: usize = 256;

/// Actions before the ledger can be used.
#[derive(Debug)]
pub enum Rebuild {
    /// No rebuild is needed: the ledger is usable.
    No,
    /// Write this ledger; nothing else.
    Write(Box<Ledger>),
    /// Write these fences, at most [`FENCES`]; nothing else.
    Fence(Vec<Action>),
    /// Wait until Deployments and Nodes have been listed consistently.
    Wait,
}

/// Looks at the ledger and at every id there is.
pub fn rebuild(
    snapshot: &Snapshot,
    settings: Option<&ResolvedSpec>,
    ledger: Option<&Ledger>,
    managed_nodes: &[ManagedNode<'_>],
) -> Rebuild {
    let largest = managed_nodes
        .iter()
        .flat_map(|managed| [managed.token.as_ref().map_or(0, |token| token.id), managed.entry.as_ref().map_or(0, |entry| entry.id)])
        .max()
        .unwrap_or(0);
    let sound = |ledger: &&Ledger| {
        let granted = ledger.grants.values().map(|grant| grant.id).max().unwrap_or(0);
        let fence = ledger.rebuilding.unwrap_or(0);
        ledger.next_id < ID_LIMIT && fence < ID_LIMIT && (ledger.rebuilding.is_some() || ledger.next_id > largest.max(granted))
    };
    // What failed, and what was rolled back, is as true as it was.
    let fenced = |fence| Rebuild::Write(Box::new(Ledger { next_id: fence, rebuilding: Some(fence), ..remembered(ledger) }));
    let Some(ledger) = ledger.filter(sound) else {
        // Milliseconds since 1970 lie above every id that a wiped ledger could have given out.
        let now = u64::try_from(snapshot.now.saturating_mul(1000)).unwrap_or(0).min(ID_LIMIT / 2);
        return fenced(now.max(largest.saturating_add(1)));
    };
    let Some(fence) = ledger.rebuilding else { return Rebuild::No };
    if !snapshot.listed_since_rebuild {
        return Rebuild::Wait;
    }
    if largest > fence {
        return fenced(largest.saturating_add(1));
    }
    let open: Vec<_> = managed_nodes.iter().flat_map(|managed| fences(snapshot, settings, managed, fence)).take(FENCES).collect();
    if open.is_empty() { Rebuild::Write(Box::new(rebuilt(snapshot, settings, managed_nodes, fence, ledger))) } else { Rebuild::Fence(open) }
}

/// What does not depend on grants.
fn remembered(ledger: Option<&Ledger>) -> Ledger {
    let Some(Ledger { rollout_state, rolled_back, suspects, served_ports, detach_key, .. }) = ledger.cloned() else {
        return Ledger::default();
    };
    Ledger { rollout_state, rolled_back, suspects, served_ports, detach_key, ..Ledger::default() }
}

/// Objects that hold a node get a grant; they keep their token until it works on them.
fn holds(managed: &ManagedNode<'_>) -> bool {
    matches!(managed.phase(), Some(Phase::Claimed | Phase::InPlace | Phase::Updating | Phase::Degrading)) || managed.holds_node()
}

fn fences(snapshot: &Snapshot, settings: Option<&ResolvedSpec>, managed: &ManagedNode<'_>, fence: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    if let Some(deployment) = managed.deployment
        && !matches!(managed.phase(), Some(Phase::Claimed | Phase::InPlace | Phase::Updating | Phase::Degrading))
        && managed.token.as_ref().is_none_or(|token| token.id < fence)
    {
        actions.push(fence_deployment(snapshot, managed, deployment, fence));
    }
    let uid8 = snapshot.resource.uid8();
    let node_marks = settings.is_some_and(|settings| settings.node_mark.is_some());
    if let (Some(node), Ok(holders)) = (managed.node, &managed.holders)
        && (managed.entry.is_some() || node_marks && managed.chosen && !node_writes::is_full(holders, uid8))
        && !managed.holds_node()
        && managed.entry.as_ref().is_none_or(|entry| entry.id < fence)
    {
        let patch = node_writes::fence(node, holders, uid8, fence, snapshot.now);
        actions.push(Action::PatchNode { node: managed.name.to_owned(), patch, write: Write::Fence, live_absent: None });
    }
    actions
}

fn fence_deployment(snapshot: &Snapshot, managed: &ManagedNode<'_>, deployment: &DeploymentFacts, fence: u64) -> Action {
    let (node, name) = (managed.name.to_owned(), deployment.name.clone());
    Action::PatchDeployment { node, name, patch: deployment_writes::fence(snapshot, managed, deployment, fence), write: Write::Fence }
}

fn rebuilt(snapshot: &Snapshot, settings: Option<&ResolvedSpec>, managed_nodes: &[ManagedNode<'_>], fence: u64, before: &Ledger) -> Ledger {
    let mut ledger = Ledger { next_id: fence + 1, ..remembered(Some(before)) };
    for managed in managed_nodes.iter().filter(|managed| holds(managed)) {
        let mut marks = settings.map(ResolvedSpec::update_marks).unwrap_or_default();
        if matches!(managed.phase(), Some(Phase::Claimed | Phase::InPlace | Phase::Updating)) {
            marks.deployment = true;
        }
        if let Some(entry) = managed.entry.as_ref().filter(|entry| entry.phase == EntryPhase::Detached) {
            marks.node = Some(crds::ledger::Annotation { key: entry.key.clone(), value: entry.value.clone() });
        }
        let kind = managed.need(snapshot.now).unwrap_or(GrantReason::Repair);
        let revision = match (kind, managed.settings) {
            (GrantReason::Remove | GrantReason::Drain, _) => String::new(),
            (_, Some(settings)) => settings.revision.clone(),
            (_, None) => managed.deployment.map(|deployment| deployment.revision().to_owned()).unwrap_or_default(),
        };
        let node_uid = managed.node.map(|node| node.uid.clone()).unwrap_or_default();
        let domain = settings.and_then(|settings| settings.topology.as_ref()).map(|topology| managed.domain(topology).to_owned());
        let marks =
            Marks { deployment_keys: settings.map(|settings| settings.detach_marks().deployment_keys).unwrap_or_default(), ..marks };
        ledger.grants.insert(
            managed.name.to_owned(),
            Grant { id: ledger.next_id, node_uid, kind, revision, marks, domain, granted_at: snapshot.now, ..Grant::default() },
        );
        ledger.next_id += 1;
    }
    ledger
}
