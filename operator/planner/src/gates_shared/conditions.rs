//! The conditions of a gate.

use crds::UnixSeconds;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// How a gate stands, in the words that Helm, Flux and Argo CD read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateReadiness {
    /// The operator keeps the gate.
    Ready,
    /// The operator tries again, and may succeed without anybody's help.
    Reconciling,
    /// Somebody must act first.
    Stalled,
}

/// Whether a condition repeats what Ready says, for programs that do not know the reasons of Ready.
pub fn repeats_ready(condition: &Condition) -> bool {
    matches!(condition.type_.as_str(), "Reconciling" | "Stalled")
}

/// Conditions under construction.
pub(crate) struct GateConditions<'a> {
    generation: i64,
    before: &'a [Condition],
    now: UnixSeconds,
    said: Vec<Condition>,
}

impl<'a> GateConditions<'a> {
    /// None yet. `generation`: of the gate; `before`: its conditions so far, whose times stay where the status does.
    pub(crate) fn new(generation: i64, before: &'a [Condition], now: UnixSeconds) -> Self {
        Self { generation, before, now, said: Vec::new() }
    }

    /// Adds a condition.
    pub(crate) fn say(&mut self, type_: &str, status: bool, reason: &str, message: String) {
        let status = if status { "True" } else { "False" };
        let earlier = self.before.iter().find(|condition| condition.type_ == type_ && condition.status == status);
        let since = earlier
            .map_or_else(|| Time(Timestamp::from_second(self.now).unwrap_or_default()), |condition| condition.last_transition_time.clone());
        self.said.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: Some(self.generation),
            last_transition_time: since,
        });
    }

    /// Adds Ready, and where it is False either Reconciling or Stalled, which say the same.
    pub(crate) fn say_ready(&mut self, readiness: GateReadiness, reason: &str, message: String) {
        let repeated = match readiness {
            GateReadiness::Ready => None,
            GateReadiness::Reconciling => Some("Reconciling"),
            GateReadiness::Stalled => Some("Stalled"),
        };
        self.say("Ready", repeated.is_none(), reason, message.clone());
        if let Some(type_) = repeated {
            self.say(type_, true, reason, message);
        }
    }

    /// All of them, in the order in which they were added.
    pub(crate) fn into_said(self) -> Vec<Condition> {
        self.said
    }
}
