//! Other resources that detach a node by the same key with another value. One of them detaches it: the one that has done so before, with
//! what it asks for now, else the one that uses the node, else the one that has had the key for longer, else the older one. The other waits,
//! and takes nothing from it.

use crate::{
    facts::{OtherResource, Resource},
    node::ManagedNode,
    snapshot::Snapshot,
    spec::{
        ResolvedSpec,
        claims::{Claim, claimed_since, other_claims_since},
        node_selection::is_chosen,
        resolve,
    },
};
use crds::{
    UnixSeconds,
    holders::EntryPhase,
    ledger::{Annotation, Ledger, Marks},
    names,
};
use std::cell::{LazyCell, OnceCell};

/// Resources whose marks conflict with those of this resource, as one pass sees them.
#[derive(Debug)]
pub struct MarkConflicts<'a> {
    known: Vec<MarkConflict<'a>>,
    resource: &'a Resource,
}

#[derive(Debug)]
struct MarkConflict<'a> {
    resource: &'a OtherResource,
    mark: Annotation,
    /// Absent when its spec is not valid: it keeps the nodes that it has. Resolved when a node is asked about.
    settings: OnceCell<Option<ResolvedSpec>>,
}

impl<'a> MarkConflicts<'a> {
    /// Resources whose Node mark contradicts the one of the settings, or of a grant.
    pub fn of(snapshot: &'a Snapshot, settings: Option<&ResolvedSpec>, ledger: &Ledger) -> Self {
        let granted = ledger.grants.values().filter_map(|grant| grant.marks.node.as_ref());
        let ours: Vec<_> = settings.and_then(|settings| settings.node_mark.as_ref()).into_iter().chain(granted).collect();
        let known = snapshot.others.iter().filter_map(|resource| {
            let mark = mark_of(resource)?;
            ours.iter().any(|our| contradict(our, &mark)).then(|| MarkConflict { resource, mark, settings: OnceCell::new() })
        });
        Self { known: known.collect(), resource: &snapshot.resource }
    }

    /// The first of them on this node, by name.
    pub fn on(&self, managed: &ManagedNode<'_>, marks: &Marks) -> Option<String> {
        let mark = marks.node.as_ref()?;
        let (our_uid8, our_age) = (self.resource.uid8(), (self.resource.created, self.resource.uid.as_str()));
        let has_used = |uid8: &str, mark: &Annotation| {
            let entry = managed.holders.as_ref().ok().and_then(|holders| holders.get(uid8));
            entry.is_some_and(|entry| entry.key == mark.key && entry.value == mark.value)
        };
        let is_member = |uid8: &str| managed.node.is_some_and(|node| node.is_used_by(uid8));
        let claim = LazyCell::new(|| Claim::Key(mark.key.clone()));
        // Who has claimed the key only, and used no node since, comes last.
        let order = |since: Option<UnixSeconds>| since.filter(|since| *since > 0).unwrap_or(UnixSeconds::MAX);
        // Most nodes have no rival.
        let our_order = LazyCell::new(|| {
            let since = order(claimed_since(self.resource, &claim));
            (!has_used(our_uid8, mark), !is_member(our_uid8), since, our_age)
        });
        let comes_first = |rival: &&MarkConflict<'_>| {
            let (uid8, age) = (names::uid8(&rival.resource.uid), (rival.resource.created, rival.resource.uid.as_str()));
            let since = order(other_claims_since(rival.resource, &claim));
            // One whose spec is refused detaches nothing.
            rival.resource.accepted && (!has_used(uid8, &rival.mark), !is_member(uid8), since, age) < *our_order
        };
        // What a resource chooses takes longer to find out than whether it comes first.
        let first = self.known.iter().filter(|rival| contradict(&rival.mark, mark)).filter(comes_first);
        let here = first.filter(|rival| rival.is_on(managed));
        // A resource that holds the node with a value that it had before is told by its entry alone.
        let holds = || {
            let entries = managed.holders.iter().flatten().filter(|(uid8, _)| *uid8 != our_uid8);
            let mut contrary =
                entries.filter(|(_, entry)| entry.phase == EntryPhase::Detached && entry.key == mark.key && entry.value != mark.value);
            contrary.next().map(|_| "another resource".to_owned())
        };
        here.map(|rival| self.resource.name_for_its_readers("resource", &rival.resource.key)).min().or_else(holds)
    }
}

impl MarkConflict<'_> {
    fn settings(&self) -> Option<&ResolvedSpec> {
        self.settings.get_or_init(|| resolve(&self.resource.resource.spec).ok()).as_ref()
    }

    fn is_on(&self, managed: &ManagedNode<'_>) -> bool {
        managed.node.is_some_and(|node| {
            let chosen = |settings| is_chosen(&self.resource.resource.spec, settings, managed.name, node, true);
            node.is_used_by(names::uid8(&self.resource.uid)) || self.settings().is_some_and(chosen)
        })
    }
}

fn mark_of(resource: &OtherResource) -> Option<Annotation> {
    let rolling = resource.resource.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    rolling.node_mark()
}

fn contradict(one: &Annotation, other: &Annotation) -> bool {
    one.key == other.key && one.value != other.value
}
