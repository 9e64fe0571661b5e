//! What comes about on a node, and what is remembered of it between two looks.

use super::record::Record;
use crds::UnixSeconds;
use std::collections::BTreeMap;

/// What is remembered of a gate and a node between two looks; losing it costs time, never a taint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateClock {
    /// Since when the requirements are met without a break.
    pub passing_since: Option<UnixSeconds>,
    /// Since when they are not.
    pub failing_since: Option<UnixSeconds>,
    /// When the taint was last put back that somebody else had taken away.
    pub put_back_at: Option<UnixSeconds>,
    /// Whether the node was found to be idle.
    pub idle: Option<bool>,
    /// In a dry run: what would be recorded of the node.
    pub trial: Option<Record>,
}

/// By the UID of the gate.
pub type GateClocks = BTreeMap<String, GateClock>;

/// Change of a gate's taint on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The taint came; `late` when the node had been there without it.
    Added {
        /// Pods may have come meanwhile.
        late: bool,
    },
    /// The gate took over a taint that was on the node before.
    Adopted,
    /// The taint came back that somebody else had taken away.
    PutBack,
    /// The gate released the node and removed the taint.
    Removed,
    /// The taint went because the gate has nothing more to say about the node, whether it is ready or not.
    LetGo,
    /// The gate has no more need of the taint, which stays for other gates.
    Yielded,
    /// The taint went because the node had been held for too long.
    TimedOut,
}

/// Change that a gate brought about on a node, for events and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// UID of the gate.
    pub gate: String,
    /// Change of the taint or of the record.
    pub happened: Happened,
    /// Seconds for which the node was held, where it was released now.
    pub held_for: Option<i64>,
    /// Since when the requirements are met or not met that led to it.
    pub since: Option<UnixSeconds>,
    /// It had passed, and lost its release for ceasing to be ready.
    pub regression: bool,
}
