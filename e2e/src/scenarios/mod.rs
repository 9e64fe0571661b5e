//! All scenarios, by theme. A new one is written in its file, listed here and in `tests/scenarios.rs`.

mod changes;
mod compatibility;
mod crashes;
mod deletion;
mod failures;
mod faults;
mod health;
mod membership;
pub mod product;
mod rivals;
mod rollout;
mod serving;
pub mod workload;

use crate::scenario::Scenario;

/// Every scenario.
pub const ALL: &[Scenario] = &[
    serving::A_PLAIN_DEPLOYMENT,
    rollout::THREE_ROLLOUTS,
    membership::WHILE_SERVING,
    membership::DURING_A_ROLLOUT,
    changes::TEMPLATE,
    changes::SETTINGS,
    changes::DEGRADE,
    changes::DRIFT,
    changes::REWRITTEN,
    failures::MISSING_IMAGE,
    failures::KUBELET_RESTART,
    failures::SILENT_DETACHER,
    failures::OPERATOR_KILLED,
    failures::HAND_OVER,
    failures::REFUSED_PODS,
    failures::BAD_EDIT,
    compatibility::ORIGINAL_EXAMPLE,
    deletion::DELETED_UNDER_LOAD,
    deletion::NAME_TAKEN,
    health::ANSWERS,
    crashes::AFTER_EVERY_WRITE,
    crashes::BEFORE_EVERY_WRITE,
    crashes::DOWN,
    faults::EVERY_ANSWER,
    faults::CUT_OFF,
    rivals::TWO_AT_ONCE,
    rivals::LEADERS,
    rivals::STOPPED,
];
