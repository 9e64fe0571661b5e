//! What a gate says of itself.

use super::{
    decide::GateView,
    world::{GATES_PER_NAMESPACE, Gate, World},
};
use crate::gates_shared::conditions::{GateConditions, GateReadiness};
use crds::UnixSeconds;
use crds::pod_readiness_gate::{HeldPod, PodCounts, PodReadinessGateStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::collections::BTreeSet;

/// Reason of `Ready` in gates beyond [`GATES_PER_NAMESPACE`].
pub const TOO_MANY_GATES: &str = "TooManyGates";
/// How many pods are named.
const SAMPLE: usize = 10;

/// Writes to pods that somebody does not allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForbiddenWrites {
    /// Number of pods whose patch was refused.
    pub pods: u32,
    /// Name of one of these pods.
    pub pod: String,
    /// Message of the API server.
    pub message: String,
}

impl ForbiddenWrites {
    /// Those of a gate, by how it sees pods. `refused`: what the API server answered to the patch of a pod.
    pub fn of<'a>(views: impl Iterator<Item = (&'a str, &'a GateView)>, refused: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let mut found = views.filter(|(_, view)| view.due).filter_map(|(pod, _)| Some((pod, refused(pod)?)));
        let (pod, message) = found.next()?;
        let pods = u32::try_from(found.count()).unwrap_or(u32::MAX).saturating_add(1);
        Some(Self { pods, pod: pod.to_owned(), message: message.to_owned() })
    }

    fn said(&self) -> String {
        let Self { pods, pod, message } = self;
        format!(
            "the operator cannot write the condition of {pods} pods, including {pod}: {message}; install the ClusterRole of this release again, so that the operator may patch the status of pods, or make admission control allow the patch. These pods do not change"
        )
    }
}

/// The status of a gate. `views`: how it sees each pod that it selects, by name. `admission`: how pods get the readiness gate,
/// where it asks for that. `forbidden`: writes to its pods that are not allowed.
pub fn status<'a>(
    world: &World,
    gate: &Gate,
    before: &[Condition],
    views: impl Iterator<Item = (&'a str, &'a GateView)>,
    admission: Option<(&'static str, bool, String)>,
    forbidden: Option<&ForbiddenWrites>,
    now: UnixSeconds,
) -> PodReadinessGateStatus {
    let mut pods = PodCounts::default();
    let mut held = Vec::new();
    let mut unreadable: Option<&str> = None;
    let mut beaten: BTreeSet<&str> = BTreeSet::new();
    let mut beaten_pods = 0_u32;
    for (name, view) in views {
        if !view.gated {
            pods.not_gated += 1;
            continue;
        }
        pods.matched += 1;
        unreadable = unreadable.or(view.unreadable.as_deref());
        if let Some(winner) = &view.beaten_by {
            beaten.insert(winner);
            beaten_pods += 1;
        }
        match view.status {
            Some(true) => pods.true_ += 1,
            Some(false) => pods.false_ += 1,
            None => pods.unset += 1,
        }
        if view.status != Some(true) && held.len() < SAMPLE {
            held.push(HeldPod { pod: name.to_owned(), reason: view.reason.clone(), message: view.message.clone() });
        }
    }
    let summary = summary(&pods);
    let mut conditions = GateConditions::new(gate.generation, before, now);
    match (unseen(world, gate), forbidden, unreadable) {
        _ if world.surplus.contains_key(&gate.key()) => conditions.say_ready(GateReadiness::Stalled, TOO_MANY_GATES, surplus()),
        (Some(why), ..) => {
            conditions.say_ready(GateReadiness::Reconciling, "PodsUnreadable", format!("the operator cannot see the gate's pods: {why}"));
        }
        (None, Some(forbidden), _) => conditions.say_ready(GateReadiness::Stalled, "PatchForbidden", forbidden.said()),
        (None, None, Some(why)) => {
            let then = format!("the operator cannot read the source: {why}; failMode is {:?}", gate.spec.fail_mode);
            conditions.say_ready(GateReadiness::Reconciling, "SourceUnreadable", then);
        }
        (None, None, None) if pods.matched == 0 && pods.not_gated > 0 => {
            let message = format!("none of the {} selected pods lists {} in readinessGates", pods.not_gated, gate.spec.condition_type);
            conditions.say_ready(GateReadiness::Ready, "NoPodListsCondition", message);
        }
        (None, None, None) if pods.matched == pods.true_ => conditions.say_ready(GateReadiness::Ready, "NoPodHeld", summary.clone()),
        (None, None, None) => conditions.say_ready(GateReadiness::Ready, "PodsHeld", summary.clone()),
    }
    if beaten.is_empty() {
        conditions.say("Conflicting", false, "OnlyOne", "no other gate keeps this condition on the same pods".into());
    } else {
        let winners = beaten.into_iter().take(SAMPLE).collect::<Vec<_>>().join(", ");
        let message = format!("older gates with the same conditionType keep the condition on {beaten_pods} pods: {winners}");
        conditions.say("Conflicting", true, "SameConditionType", message);
    }
    if let Some((reason, works, message)) = admission {
        conditions.say("AdmissionActive", works, reason, message);
    }
    PodReadinessGateStatus { observed_generation: Some(gate.generation), conditions: conditions.into_said(), pods, held, summary }
}

fn summary(pods: &PodCounts) -> String {
    match pods.matched {
        0 => "no pod".into(),
        matched => format!("True on {} of {matched} pods", pods.true_),
    }
}

fn surplus() -> String {
    format!(
        "the operator ignores this gate and keeps only the {GATES_PER_NAMESPACE} oldest PodReadinessGates of a namespace: delete some gates, or select more pods with one gate"
    )
}

/// Why the gate's pods cannot be seen.
fn unseen<'a>(world: &'a World, gate: &Gate) -> Option<&'a str> {
    world.pod_sources.get(&gate.namespace)?.broken.as_deref()
}
