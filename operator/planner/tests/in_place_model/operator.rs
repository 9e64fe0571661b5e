//! What an operator would write, and what becomes of each write.

use super::{Broken, IDS, Mutation, PODS, Pod, Search, Site, State, Write};
use crds::{ledger::GrantReason, token::Phase};
use planner::{
    objects::in_place::moves::{InPlaceFacts, Move, PodView, ReplicaSetView, moves},
    protocol::step::{GrantView, NodeView, Step, StepView, TokenView, step},
};

impl Search {
    fn breaks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// What the operator that sees this would do.
    pub(super) fn writes(&self, seen: &Site, in_place: bool, pods: usize) -> Vec<Write> {
        let mut writes: Vec<Write> = Vec::new();
        let kept = seen.deployment.phase == Phase::InPlace || seen.deployment.phase == Phase::Claimed && seen.deployment.paused;
        let shut = (0..PODS).filter(|i| !kept && seen.pods[*i].is_some_and(|pod| pod.gate != Some(true)));
        writes.extend(shut.map(Write::Open));
        let deployment = seen.deployment;
        let Some((id, revision)) = seen.grant else {
            if deployment.revision != seen.wanted || deployment.paused {
                writes.push(Write::Admit);
            }
            return writes;
        };
        let own = deployment.id == id;
        let progress = (own && deployment.phase == Phase::InPlace).then(|| self.progress(seen, id, revision, in_place));
        let view = StepView {
            grant: GrantView { id: id.into(), kind: GrantReason::Update, deployment_mark: true, node_mark: false },
            token: Some(TokenView { id: deployment.id.into(), phase: deployment.phase }),
            entry: None,
            node: NodeView::Same,
            wanted: revision == seen.wanted,
            complete: deployment.revision == revision && !deployment.paused && seen.settled(pods),
            pauses: deployment.paused || in_place && self.possible(seen),
            replaced: progress.as_ref().is_some_and(|moves| matches!(moves[..], [Move::Finish { .. }])),
            graced: true,
            soaked: true,
            pods_left: true,
            member: true,
        };
        match step(&view) {
            Step::Retarget => writes.push(Write::Retarget),
            Step::Release { .. } => writes.push(Write::Release),
            Step::Replace => writes.extend(progress.into_iter().flatten().map(Write::Move)),
            Step::Update => {
                let stays = progress.is_some_and(|moves| moves == [(Move::Finish { in_place: true })]);
                writes.push(Write::Deployment(Step::Update, stays));
            }
            Step::AwaitComplete if !self.breaks(Mutation::StragglersLeft) => {
                let current = seen.set_of(deployment.revision).filter(|_| deployment.observed == deployment.generation);
                let former = |pod: Pod| pod.image != deployment.revision && current.is_some_and(|set| set.uid == pod.set);
                writes.extend((0..PODS).filter(|i| seen.pods[*i].is_some_and(former)).map(Write::Delete));
            }
            other @ (Step::Claim | Step::Pause | Step::Close) => writes.push(Write::Deployment(other, false)),
            _ => {}
        }
        writes
    }

    /// Pods and `ReplicaSet` are those of one template.
    fn possible(&self, seen: &Site) -> bool {
        let current = seen.set_of(seen.deployment.revision);
        let alone = seen.sets.iter().flatten().count() == 1;
        alone && current.is_some_and(|set| seen.live().all(|pod| pod.set == set.uid))
    }

    fn progress(&self, seen: &Site, id: u8, revision: u8, in_place: bool) -> Vec<Move> {
        let set = seen.current_set();
        let pods: Vec<_> = seen.pods.iter().flatten().map(|pod| self.pod_view(*pod, id, revision)).collect();
        let places: Vec<_> = (0..PODS).filter(|i| seen.pods[*i].is_some()).collect();
        let others = seen.sets.iter().flatten().any(|other| set.is_some_and(|set| set.uid != other.uid));
        let ours = seen.live().all(|pod| set.is_some_and(|set| set.uid == pod.set));
        let observed = seen.deployment.observed == seen.deployment.generation || self.breaks(Mutation::PauseNotAwaited);
        let forgets = self.breaks(Mutation::ReplicaSetForgotten);
        let next = moves(&InPlaceFacts {
            id: id.into(),
            paused: seen.deployment.paused,
            observed,
            possible: in_place && !others && ours,
            replica_set: set.map(|set| ReplicaSetView {
                token: if forgets { id.into() } else { set.token.into() },
                wanted: forgets || set.revision == revision,
            }),
            pods: &pods,
            allowed: self.allowed,
            drained: true,
        });
        let place = |next: Move| match next {
            Move::Shut(i) => Move::Shut(places[i]),
            Move::Change(i) => Move::Change(places[i]),
            Move::Open(i) => Move::Open(places[i]),
            Move::AwaitPod(i) => Move::AwaitPod(places[i]),
            other => other,
        };
        next.into_iter().map(place).collect()
    }

    fn pod_view(&self, pod: Pod, id: u8, revision: u8) -> PodView {
        let wanted = pod.image == revision;
        PodView {
            claimed: pod.token == id || wanted && self.breaks(Mutation::PodsNotClaimed),
            imaged: wanted,
            wanted,
            gate: pod.gate,
            ready: pod.ready(),
            complete: pod.runs == Some(pod.image) || wanted && self.breaks(Mutation::CompletionNotAwaited),
        }
    }

    /// A write takes effect, or is refused.
    pub(super) fn carry_out<const K: usize>(&self, state: &State<K>, k: usize, write: Write) -> Option<(State<K>, Broken)> {
        let (seen, mut after) = (state.seen[k], *state);
        let now = &mut after.truth;
        let ledger = (seen.grant, seen.next, seen.wanted) == (now.grant, now.next, now.wanted);
        let mut broken = None;
        match write {
            Write::Admit | Write::Retarget if ledger && now.next <= IDS => {
                now.grant = Some((now.next, now.wanted));
                now.next += 1;
            }
            Write::Release if ledger => now.grant = None,
            Write::Admit | Write::Retarget | Write::Release | Write::Move(Move::AwaitPause | Move::AwaitPod(_) | Move::Finish { .. }) => {
                return None;
            }
            Write::Deployment(step, stays) => broken = self.write_deployment(&mut after, &seen, step, stays)?,
            Write::Open(i) | Write::Move(Move::Open(i)) => self.gate(now, &seen, i, true)?,
            Write::Move(Move::Shut(i)) => self.gate(now, &seen, i, false)?,
            Write::Move(Move::Claim { rewrite }) => {
                let (id, revision) = seen.grant?;
                let believed = seen.current_set()?;
                let unfenced = self.breaks(Mutation::ReplicaSetUnfenced);
                let set = now.sets.iter_mut().flatten().find(|set| set.uid == believed.uid)?;
                // A write of the template tests what it replaces.
                if set.token != believed.token && !unfenced || rewrite && set.revision != believed.revision && !unfenced {
                    return None;
                }
                set.token = id;
                if rewrite {
                    set.revision = revision;
                }
            }
            Write::Move(Move::Change(i)) => {
                let ((id, revision), believed) = (seen.grant?, seen.pods[i]?);
                let unfenced = self.breaks(Mutation::PodsUnfenced);
                let pod = now.pods.iter_mut().flatten().find(|pod| pod.uid == believed.uid)?;
                if pod.token != believed.token && !unfenced || pod.image != believed.image {
                    return None;
                }
                if pod.image != revision && matches!(now.deployment.phase, Phase::Closed | Phase::New) {
                    broken = Some("P3: images of a pod change on a node that serves");
                }
                (pod.image, pod.token) = (revision, id);
            }
            Write::Delete(i) => {
                let believed = seen.pods[i]?;
                // The one that was seen, as it was seen.
                let same = |pod: Pod| {
                    if self.breaks(Mutation::DeletedUntested) { pod.uid == believed.uid } else { pod == believed }
                };
                *now.pods.iter_mut().find(|pod| pod.is_some_and(same))? = None;
                if now.deployment.phase == Phase::Closed {
                    broken = Some("P3: a pod is deleted on a node that serves");
                }
            }
        }
        Some((after, broken))
    }

    /// The condition, with the resourceVersion that was read.
    fn gate(&self, now: &mut Site, seen: &Site, place: usize, open: bool) -> Option<()> {
        let believed = seen.pods[place]?;
        let pod = now.pods.iter_mut().flatten().find(|pod| **pod == believed)?;
        pod.gate = Some(open);
        Some(())
    }

    fn write_deployment<const K: usize>(&self, after: &mut State<K>, seen: &Site, step: Step, stays: bool) -> Option<Broken> {
        let now = &mut after.truth;
        let (believed, (id, revision)) = (seen.deployment, seen.grant?);
        let same = now.deployment.generation == believed.generation;
        if (now.deployment.id, now.deployment.phase) != (believed.id, believed.phase) {
            return None;
        }
        let mut broken = None;
        match step {
            Step::Claim => (now.deployment.id, now.deployment.phase) = (id, Phase::Claimed),
            Step::Pause => {
                (now.deployment.id, now.deployment.phase) = (id, Phase::InPlace);
                now.deployment.generation += u8::from(!now.deployment.paused);
                now.deployment.paused = true;
            }
            Step::Update => {
                if stays && !same {
                    return None;
                }
                if stays && now.live().any(|pod| pod.runs.is_some_and(|runs| runs != pod.image)) {
                    broken = Some("P15: the pause ends while a container runs a former image");
                }
                after.excused |= !stays;
                let changes = now.deployment.paused || now.deployment.revision != revision;
                (now.deployment.id, now.deployment.phase) = (id, Phase::Updating);
                (now.deployment.revision, now.deployment.paused) = (revision, false);
                now.deployment.generation += u8::from(changes);
            }
            _ => {
                if !same {
                    return None;
                }
                now.deployment.phase = Phase::Closed;
                if now.live().any(|pod| pod.image != now.deployment.revision) || now.deployment.paused {
                    broken = Some("P5: a node is attached with pods of another revision");
                }
            }
        }
        Some(broken)
    }
}
