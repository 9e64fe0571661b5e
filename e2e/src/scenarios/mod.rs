//! All scenarios, by theme. A new one is written in its file, listed here and in `tests/scenarios.rs`: `alone`, unless it is quiet.

pub mod bad_input;
mod changes;
mod compatibility;
mod course;
mod crashes;
mod deletion;
mod detachers;
mod effects;
mod failures;
mod faults;
mod fleet;
mod flood;
mod gate_admission;
mod gate_budget;
mod gate_once;
mod gate_originals;
mod gate_races;
mod gate_startup;
mod gate_upstream;
mod gates;
mod guide;
mod handover;
mod health;
mod in_place;
mod incidents;
mod kubelet_api;
mod limits;
mod membership;
mod migration;
mod node_library;
mod outages;
mod ownership;
mod placement;
mod plugin;
mod pod_gates;
mod process_pods;
pub mod product;
mod rivals;
mod rollout;
mod room;
mod serving;
mod sharing;
mod tampering;
mod unattended;
mod windows;
pub mod workload;

use crate::scenario::Scenario;

/// Every scenario.
pub const ALL: &[Scenario] = &[
    serving::A_PLAIN_DEPLOYMENT,
    rollout::THREE_ROLLOUTS,
    rollout::LABELLED,
    room::ROOM,
    course::CANARY,
    course::RESTARTS,
    course::ROLLED_BACK,
    course::FALLEN,
    course::DRAINED,
    course::FAILED_NODES,
    membership::WHILE_SERVING,
    membership::DURING_A_ROLLOUT,
    placement::CHOICE,
    placement::DELETED,
    windows::CLOSES,
    limits::TOLD,
    limits::HISTORY,
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
    in_place::UNDER_LOAD,
    in_place::MISHAPS,
    in_place::CRASHES,
    incidents::TWO_UPDATES,
    incidents::BAD_UPDATES,
    incidents::TERMINATING,
    incidents::DEAD_NODE,
    incidents::NO_MARK,
    bad_input::BAD_INPUT,
    flood::FLEET,
    compatibility::ORIGINAL_EXAMPLE,
    deletion::DELETED_UNDER_LOAD,
    deletion::WITHOUT_OPERATOR,
    deletion::NAME_TAKEN,
    ownership::NEEDS_FINALIZERS,
    health::ANSWERS,
    health::CONTRADICTED,
    handover::NO_CHECK_LOST,
    handover::PORT_TAKEN,
    tampering::TAMPERED_DEPLOYMENTS,
    tampering::TAMPERED_MARKS,
    tampering::TAMPERED_RESOURCE,
    sharing::SHARED_KEY,
    detachers::FAULTY_DETACHERS,
    outages::API_SERVER_STOPPED,
    outages::ETCD,
    outages::LOST_NODES,
    crashes::AFTER_EVERY_WRITE,
    crashes::BEFORE_EVERY_WRITE,
    crashes::FROM_FIRST_TO_LAST,
    crashes::DOWN,
    faults::EVERY_ANSWER,
    faults::EVERY_MODE,
    faults::CUT_OFF,
    rivals::TWO_AT_ONCE,
    rivals::LEADERS,
    rivals::STOPPED,
    rivals::OLD_LIST,
    unattended::KILLED,
    unattended::RIVALS,
    migration::FROM_A_DAEMON_SET,
    migration::FROM_THE_ORIGINAL,
    process_pods::ADOPTED,
    node_library::PROMISES,
    node_library::OUTAGES,
    kubelet_api::KUBECTL,
    kubelet_api::VANISHED,
    fleet::FAULTS,
    fleet::HOLES,
    fleet::OUTAGES,
    plugin::STEERS,
    gate_admission::POLICIES,
    gate_admission::WEBHOOK,
    gate_once::ONCE,
    gate_originals::CONFIG_MAP,
    gate_startup::STARTUP,
    gates::LIFE,
    gates::TOGETHER,
    gates::JOINING,
    gate_races::RACES,
    pod_gates::DEMO_AND_HOLDS,
    pod_gates::SOURCES,
];
