//! What is done next on a node whose Deployment is paused for an update in place.
//!
//! Pure and over `Copy` types, as [`step`](crate::protocol::step()): the same function runs in the operator and in the model that
//! searches it. Everything follows from what the objects say, so that it does not matter who did the step before.

/// The `ReplicaSet` of the Deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaSetView {
    /// The id in its token; 0 when it has none.
    pub token: u64,
    /// The `ReplicaSet` has the wanted template.
    pub wanted: bool,
}

/// A pod that is updated in place, not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own, and the model enumerates them")]
pub struct PodView {
    /// The pod's annotation has the grant's id.
    pub claimed: bool,
    /// The pod's spec has the wanted images.
    pub imaged: bool,
    /// It says the wanted labels and annotations, too.
    pub wanted: bool,
    /// The condition of its gate: `Some(true)` lets it be ready.
    pub gate: Option<bool>,
    /// The condition Ready is True.
    pub ready: bool,
    /// What it says runs, and is ready but for the gate.
    pub complete: bool,
}

/// Everything that the next moves depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own, and the model enumerates them")]
pub struct InPlaceFacts<'a> {
    /// Id of the grant.
    pub id: u64,
    /// The Deployment is still paused.
    pub paused: bool,
    /// The Deployment's controller has processed the pause.
    pub observed: bool,
    /// The template can change in place, on the pods that there are.
    pub possible: bool,
    /// `ReplicaSet` of the Deployment; none if it is gone.
    pub replica_set: Option<ReplicaSetView>,
    /// Pods that are updated in place.
    pub pods: &'a [PodView],
    /// How many of them may be down at once.
    pub allowed: usize,
    /// Traffic has had the time to go elsewhere.
    pub drained: bool,
}

/// One write, or what is waited for. Pods are named by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Until the Deployment's controller has seen the pause: one that has not would make another `ReplicaSet`.
    AwaitPause,
    /// Sets the condition of the pod's gate to False, so that the pod gets no traffic.
    Shut(usize),
    /// `ReplicaSet`: our token, with the wanted template or as it is.
    Claim {
        /// The move also writes the wanted template.
        rewrite: bool,
    },
    /// Pod: the wanted images, labels and annotations, our id, and what ran before.
    Change(usize),
    /// Sets the condition of the pod's gate to True, so that the pod may be ready.
    Open(usize),
    /// Until a pod is not ready any more, traffic is gone, or containers run.
    AwaitPod(usize),
    /// It is over: the Deployment goes on, with the template that the `ReplicaSet` has, or with the wanted one as for any other
    /// update, which re-creates the pods.
    Finish {
        /// All pods were updated in place; none has to be re-created.
        in_place: bool,
    },
}

/// The moves that are to be made now. No late write of an earlier grant can take effect once it is over: it tests the tokens of
/// `ReplicaSet` and pods, which all carry the grant's id by then, or the pods are about to go.
pub fn moves(view: &InPlaceFacts<'_>) -> Vec<Move> {
    let Some(replica_set) = view.replica_set else { return vec![Move::Finish { in_place: false }] };
    let claimed = replica_set.token == view.id;
    if !view.paused || !view.possible || claimed && !replica_set.wanted {
        return vec![if claimed { Move::Finish { in_place: false } } else { Move::Claim { rewrite: false } }];
    }
    if !view.observed {
        return vec![Move::AwaitPause];
    }
    let mut moves = Vec::new();
    let mut down = view.pods.iter().filter(|pod| !pod.ready || pod.gate == Some(false)).count();
    let mut waiting = false;
    let mut begins = view.pods.iter().all(|pod| pod.imaged);
    for (place, pod) in view.pods.iter().enumerate() {
        if !pod.imaged && pod.gate != Some(false) {
            if !pod.ready || down < view.allowed {
                down += usize::from(pod.ready);
                moves.push(Move::Shut(place));
            }
            waiting = true;
        } else if !pod.imaged && (pod.ready || !view.drained) {
            moves.push(Move::AwaitPod(place));
        } else if !pod.claimed || !pod.wanted {
            begins = true;
            if claimed {
                moves.push(Move::Change(place));
            }
        } else if !pod.complete {
            moves.push(Move::AwaitPod(place));
        } else if pod.gate != Some(true) {
            moves.push(Move::Open(place));
        }
    }
    if !claimed && begins {
        // A pod that dies from here on comes back with the wanted images.
        moves.push(Move::Claim { rewrite: true });
    }
    if moves.is_empty() && !waiting && claimed {
        moves.push(Move::Finish { in_place: true });
    }
    moves
}
