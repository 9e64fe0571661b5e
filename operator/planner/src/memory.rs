//! What one process remembers of a resource between two passes: seconds that it has counted, and what it has seen of nodes.
//!
//! Data only. Losing it costs time, never safety.

use crds::{UnixSeconds, ledger::WaitFor};
use std::collections::{BTreeMap, BTreeSet};

/// What one process has counted. Losing it costs time, never safety.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Seconds for which it has looked at the resource.
    pub(crate) age: i64,
    pub(crate) waits: BTreeMap<WaitKey, Clock>,
    pub(crate) rollout_state: RolloutClocks,
}

/// Node, what is waited for, and the time that is stored with it: by that a mark is known, which a later grant takes over.
pub(crate) type WaitKey = (String, WaitFor, UnixSeconds);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) seconds: i64,
    pub(crate) runs: bool,
}

/// Clocks of the whole rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RolloutClocks {
    pub(crate) revision: String,
    pub(crate) since: UnixSeconds,
    pub(crate) steps_done: u32,
    pub(crate) idle: i64,
    pub(crate) spent: i64,
    pub(crate) proving: i64,
    pub(crate) soaked: Option<i64>,
    pub(crate) runs: bool,
    /// Nodes wait for the proof.
    pub(crate) proves: bool,
    /// The step has not soaked for long enough.
    pub(crate) soaks: bool,
}

/// What one process has seen so far of the nodes that run a revision which is not yet that of all. Losing it costs time, never safety.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sights {
    pub(crate) nodes: BTreeMap<String, Sight>,
    /// The revision whose proof it is.
    pub(crate) revision: String,
    pub(crate) proof: i64,
    /// The proof went on at the last look.
    pub(crate) proving: bool,
    /// Most of what runs other revisions is out of service, too: that is not what this one has done.
    pub(crate) common_trouble: bool,
    /// Seconds for which health ports have been silent that a step waits for, by node.
    pub(crate) silent: BTreeMap<String, i64>,
    /// Nodes that are lost, or were lately.
    pub(crate) lost: BTreeMap<String, Losses>,
    /// Boots of machines, by node, while there is a revision to prove.
    pub(crate) boots: BTreeMap<String, Boot>,
    /// UIDs of Nodes that went without notice soon after their update, while no node without the revision went, with their names. They are
    /// kept as long as the ledger counts them.
    pub(crate) gone: BTreeMap<String, String>,
    /// UIDs of Nodes whose going says nothing of the revision.
    pub(crate) excused: BTreeSet<String>,
    /// Stands for the runs of all containers of the revision.
    pub(crate) runs: u64,
}

/// A node whose machine died, started anew or went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Those of the last ten minutes, and the last one while the node is down; the last of them last.
    pub(crate) all: Vec<Loss>,
    /// Its Node was not Ready at the last look: that it starts anew then is the same loss.
    pub(crate) down: bool,
}

/// A machine died, started anew or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Seconds since the loss.
    pub(crate) since: i64,
    /// The node belonged to the resource and served, and nobody had said that it would go.
    pub(crate) in_use: bool,
    /// The revision is not why: the node was in use with another one, and had not been lost again and again in the ten minutes before.
    pub(crate) is_witness: bool,
}

/// A machine at the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Boot {
    /// Boot ID of the Node.
    pub(crate) id: String,
    /// The node belonged to the resource and served, and nobody had said that it would go.
    pub(crate) in_use: bool,
}

/// A node, since its pods run what they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub(crate) struct Sight {
    pub(crate) node_uid: String,
    pub(crate) boot_id: String,
    pub(crate) revision: String,
    /// It was attached, and no grant was at work.
    pub(crate) attached: bool,
    /// Some pod of the node was not ready.
    pub(crate) broken: bool,
    /// The clocks of the node advanced at the last look.
    pub(crate) counted: bool,
    /// It served without a break at the last look, and nobody kept it out of service.
    pub(crate) serves: bool,
    pub(crate) suspect: bool,
    /// When the node became suspect; 0: it is not.
    pub(crate) since: UnixSeconds,
    pub(crate) unbroken: i64,
    pub(crate) out: i64,
    /// Falls before this process looked.
    pub(crate) recorded: u32,
    pub(crate) evictions: u32,
    pub(crate) losses: u32,
    /// Seconds since its machine was lost, until that is judged, and how often it was since.
    pub(crate) loss: Option<(i64, u32)>,
    /// Losses of its machine that those of others excuse.
    pub(crate) outages: u32,
    /// The loss of its machine, which is not over, is none of the revision.
    pub(crate) excused: bool,
    /// Whoever takes it away had said so.
    pub(crate) announced: bool,
    /// Its machine was lost, and what follows from that is not over.
    pub(crate) lost: bool,
    /// Seconds since it was last seen that its Node was not Ready, or had started anew.
    pub(crate) back: i64,
    /// Seconds since it was attached.
    pub(crate) served: i64,
    pub(crate) last: &'static str,
    pub(crate) runs: u64,
    /// In the order of their names; a map for each node would take five times as much.
    pub(crate) pods: Vec<PodSight>,
    /// Falls of pods that went and have no successors yet, the most last.
    pub(crate) left: Vec<u32>,
}

/// A pod of such a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub(crate) struct PodSight {
    pub(crate) name: String,
    pub(crate) runs: u64,
    pub(crate) ready: bool,
    /// It was ready once.
    pub(crate) served: bool,
    pub(crate) ended: bool,
    /// Seconds of the time without readiness that is not over.
    pub(crate) unready: i64,
    /// That time is no fall, or was counted as one.
    pub(crate) excused: bool,
    /// It was counted as one, and no restart has ended it yet.
    pub(crate) fell: bool,
    pub(crate) falls: u32,
    /// Seconds since the last restart that was counted.
    pub(crate) restarted: Option<i64>,
}
