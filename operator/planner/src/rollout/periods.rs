//! For how long a node must serve without a break, and after which time what broke on it is forgotten.

use crate::spec::ResolvedSpec;
use crds::ledger::Suspect;

/// Seconds after which a kubelet, too, has forgotten how often a container restarted: the time in which it takes back its back-off.
pub(super) const FORGOTTEN_AFTER: i64 = 600;

/// Seconds that a spec gives.
#[derive(Clone, Copy)]
pub(super) struct Periods {
    pub(super) proven_after: i64,
    pub(super) forgotten_after: i64,
    pub(super) node_deadline: i64,
    pub(super) max_flaps: u32,
}

impl Periods {
    pub(super) fn of(settings: &ResolvedSpec) -> Self {
        let proven_after = settings.rollout.proven_after;
        let (node_deadline, max_flaps) = (settings.rollout.node_deadline, settings.rollout.max_flaps);
        Self { proven_after, forgotten_after: forgotten_after(proven_after), node_deadline, max_flaps }
    }

    /// Suspects and falls are counted at all.
    pub(super) fn suspects(self) -> bool {
        self.proven_after > 0
    }

    /// Seconds for which a node that fell, and was lost with others, so often must serve without a break to count as good. What has failed
    /// is bad until that is forgotten.
    pub(super) fn good_after(self, falls: u32, outages: u32) -> i64 {
        let failed = self.max_flaps > 0 && falls.max(outages) >= self.max_flaps;
        if falls > 1 || failed { self.forgotten_after } else { self.proven_after }
    }
}

/// Seconds without a break after which falls are forgotten.
fn forgotten_after(proven_after: i64) -> i64 {
    if proven_after == 0 { 0 } else { proven_after.max(FORGOTTEN_AFTER) }
}

/// Seconds for which this node must serve without a break to count as good.
pub(crate) fn good_after(suspect: &Suspect, settings: &ResolvedSpec) -> i64 {
    Periods::of(settings).good_after(suspect.falls, suspect.outages)
}
