//! The cluster and what operators believe of it, in as few bits as the protocol leaves.
//!
//! An id is a number that grows. An object is its fields that some guard reads. Time is an age that `Tick` raises. Pods
//! of one node are of one revision, and ready or not.

use crds::{holders::EntryPhase, ledger::GrantReason, token::Phase};
use std::hash::{BuildHasher as _, Hash};

pub type Id = u8;

/// How old a mark is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Age {
    #[default]
    Fresh,
    /// Its grace is over.
    Graced,
    /// The detacher should have answered by now.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub id: Id,
    pub kind: GrantReason,
    pub revision: u8,
    pub deployment_mark: bool,
    /// Key of the Node mark; 0 is none.
    pub key: u8,
    /// UID of the Node; 0 is none.
    pub node_uid: u8,
    /// The revision that was given up.
    pub refused: Option<u8>,
    /// It is, or was once, a drain: it holds a slot above the budget.
    pub above: bool,
    /// A person has freed the slot: the node is attached as it is.
    pub freed: bool,
}

impl Grant {
    /// Takes no slot: a removal of a node that does not serve.
    pub fn is_free(&self) -> bool {
        self.kind == GrantReason::Remove && !self.deployment_mark && self.key == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub id: Id,
    pub phase: EntryPhase,
    pub key: u8,
    pub age: Age,
}

/// The detacher's timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stamp {
    Absent,
    /// Written for what holds the node now.
    Current,
    /// Written for what held it before.
    Old,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Member {
    Absent,
    Joining,
    Serving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub struct Node {
    pub uid: u8,
    /// Of its topology, which it never leaves.
    pub domain: u8,
    pub chosen: bool,
    /// It is about to be taken away.
    pub draining: bool,
    /// A person wants it left alone.
    pub skipped: bool,
    /// A person asks to try it again.
    pub retried: bool,
    /// The grant whose slot a person wants to be freed; 0 is none.
    pub to_free: Id,
    pub member: Member,
    pub entry: Option<Entry>,
    pub stamp: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub struct Deployment {
    pub uid: u8,
    pub id: Id,
    pub phase: Phase,
    pub age: Age,
    pub revision: u8,
    pub replicas: u8,
    pub drifted: bool,
    /// How its pods get to their node.
    pub placement: u8,
    /// Its controller has seen this spec.
    pub observed: bool,
    /// What its controller last counted was what it wanted.
    pub counted: bool,
    /// It was Closed once.
    pub served: bool,
    /// In the eyes of an operator: its spec was changed since, so that a test of the generation fails.
    pub superseded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The Deployment of the node, or nobody where there are no pods.
    Deployment,
    /// Their Deployment was deleted, and they with it.
    Ending,
    /// Their Deployment was deleted, and they were left.
    Orphan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// Never ready yet.
    Starting,
    Ready,
    /// Ready once, and not now.
    Lost,
}

/// Whose doing it is that pods are younger than the newest revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// They are not.
    None,
    /// A person deleted those that were there.
    Given,
    /// The operator's own.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pods {
    pub revision: u8,
    pub drifted: bool,
    pub count: u8,
    pub health: Health,
    pub owner: Owner,
    pub order: Order,
}

pub const NO_PODS: Pods =
    Pods { revision: 0, drifted: false, count: 0, health: Health::Ready, owner: Owner::Deployment, order: Order::None };

/// All there is of one node: in truth, or in the eyes of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Part of the resource's status.
    pub grant: Option<Grant>,
    /// Part of the status, too: the revision failed on the node, and whether a person had asked to try it again by then.
    pub failed: Option<bool>,
    pub node: Option<Node>,
    pub deployment: Option<Deployment>,
    pub pods: Pods,
}

/// How nodes are taken out of the load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marks {
    pub deployment: bool,
    /// Key of the Node mark; 0 is none.
    pub key: u8,
}

pub const DEGRADE: Marks = Marks { deployment: false, key: 0 };
pub const TOKEN: Marks = Marks { deployment: true, key: 0 };
pub const NODE: Marks = Marks { deployment: false, key: 1 };
pub const BOTH: Marks = Marks { deployment: true, key: 1 };

/// The resource, but for its grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub struct Resource {
    pub revision: u8,
    pub replicas: u8,
    pub marks: Marks,
    pub budget: u8,
    pub paused: bool,
    /// No window is open.
    pub closed: bool,
    /// The revision failed on too many nodes.
    pub failed: bool,
    pub placement: u8,
    /// A person lets the rollout go on beyond its first step.
    pub promoted: bool,
    /// The ledger says that the first step is done.
    pub stepped: bool,
    /// The ledger's next id; 0 when there is no ledger.
    pub next: Id,
    /// The fence while a lost ledger is rebuilt; 0 when it is not.
    pub rebuilding: Id,
}

/// What one process remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// An id from the ledger, not used yet; 0 is none.
    pub reserved: Id,
    /// The fence for which it has listed everything.
    pub listed: Id,
}

/// How often the environment may still do what it does not do by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Left {
    pub templates: u8,
    pub marks: u8,
    pub keys: u8,
    pub budgets: u8,
    pub pauses: u8,
    pub scalings: u8,
    pub crashes: u8,
    pub deletions: u8,
    pub recreations: u8,
    pub leaves: u8,
    pub edits: u8,
    pub outages: u8,
    pub wipes: u8,
    pub drains: u8,
    pub closings: u8,
    pub failures: u8,
    pub rollbacks: u8,
    pub skips: u8,
    pub node_failures: u8,
    pub retries: u8,
    pub releases: u8,
    pub pod_deletions: u8,
    pub placements: u8,
    pub promotions: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column<const K: usize> {
    pub truth: Site,
    pub seen: [Site; K],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<const N: usize, const K: usize> {
    pub columns: [Column<K>; N],
    pub truth: Resource,
    pub seen: [Resource; K],
    pub memory: [Memory; K],
    pub left: Left,
    /// The largest id that was ever given out or written.
    pub largest: Id,
    /// The largest number of nodes that may be out now: a lowered budget interrupts nobody.
    pub allowance: u8,
}

fn hash_of(value: &impl Hash) -> u64 {
    // Two states of one hash would be taken for one: 64 good bits make that unlikely for millions of them.
    foldhash::quality::FixedState::with_seed(20_261_121).hash_one(value)
}

/// Hashes of the parts of a state. A move changes few of them.
pub struct Hashes<const N: usize, const K: usize> {
    truths: [u64; N],
    seen: [[u64; K]; N],
    resource: u64,
    resources: [u64; K],
    left: u64,
}

impl<const N: usize, const K: usize> Hashes<N, K> {
    /// The same number for states that differ only in the names of nodes and operators. These are the hashes of the state.
    pub fn fingerprint(&self, state: &State<N, K>) -> u64 {
        match K {
            1 => self.in_order(state, [0; K]),
            _ => self.in_order(state, std::array::from_fn(|k| k)).min(self.in_order(state, std::array::from_fn(|k| K - 1 - k))),
        }
    }

    fn in_order(&self, state: &State<N, K>, operators: [usize; K]) -> u64 {
        let mut columns: [u64; N] = std::array::from_fn(|i| hash_of(&(self.truths[i], operators.map(|k| self.seen[i][k]))));
        columns.sort_unstable();
        let operators = operators.map(|k| (self.resources[k], state.memory[k]));
        hash_of(&(columns, self.resource, operators, self.left, state.largest, state.allowance))
    }
}

impl<const N: usize, const K: usize> State<N, K> {
    /// See [`Hashes::fingerprint`].
    pub fn fingerprint(&self) -> u64 {
        self.hashes(None).fingerprint(self)
    }

    /// Beside a state of which they are known, only what differs is hashed: most of a search's time would go there.
    pub fn hashes(&self, known: Option<(&Self, &Hashes<N, K>)>) -> Hashes<N, K> {
        fn part<T: Hash + PartialEq>(now: &T, known: Option<(&T, u64)>) -> u64 {
            known.filter(|(before, _)| *before == now).map_or_else(|| hash_of(now), |(_, hash)| hash)
        }
        Hashes {
            truths: std::array::from_fn(|i| {
                part(&self.columns[i].truth, known.map(|(before, hashes)| (&before.columns[i].truth, hashes.truths[i])))
            }),
            seen: std::array::from_fn(|i| {
                std::array::from_fn(|k| {
                    part(&self.columns[i].seen[k], known.map(|(before, hashes)| (&before.columns[i].seen[k], hashes.seen[i][k])))
                })
            }),
            resource: part(&self.truth, known.map(|(before, hashes)| (&before.truth, hashes.resource))),
            resources: std::array::from_fn(|k| part(&self.seen[k], known.map(|(before, hashes)| (&before.seen[k], hashes.resources[k])))),
            left: part(&self.left, known.map(|(before, hashes)| (&before.left, hashes.left))),
        }
    }

    /// The Deployment's generation rises: who saw the last one did not see this one.
    pub fn raise_generation(&mut self, i: usize) {
        let column = &mut self.columns[i];
        for seen in &mut column.seen {
            if let Some(deployment) = &mut seen.deployment {
                deployment.superseded = true;
            }
        }
    }

    /// A fresh process that has seen everything; what was allowed to happen no longer matters.
    pub fn calm(&self) -> State<N, 1> {
        State {
            columns: self.columns.map(|column| Column { truth: column.truth, seen: [column.truth] }),
            truth: self.truth,
            seen: [self.truth],
            memory: [Memory::default()],
            left: Left::default(),
            largest: self.largest,
            allowance: self.allowance,
        }
    }
}
