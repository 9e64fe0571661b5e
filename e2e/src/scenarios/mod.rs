//! All scenarios, by theme. Write a new one in a file here and list it in [`ALL`], and in [`GROUPS`] if `make test` must run it.
//! What a benchmark or the demo also needs is in `cluster/`.
//! A scenario gets a bed from the frame, and returns an error if what its name says does not hold.

mod absences;
pub mod bad_input;
mod budgets;
mod canaries;
mod changes;
mod chart;
mod clock;
mod compatibility;
mod crashes;
mod deletion;
mod detachers;
mod failures;
mod faults;
mod first_example;
mod fleet;
mod flood;
mod handover;
mod health;
mod in_place;
mod incidents;
mod kubelet_api;
mod limits;
mod machines;
mod membership;
mod migration;
mod missing_rights;
mod node_gates;
mod node_library;
mod noise;
mod operations;
mod outages;
mod ownership;
mod placement;
mod plugin;
mod pod_gates;
mod process_pods;
mod proof;
mod quotas;
mod rollout;
mod serving;
mod sharing;
mod tampering;
mod tenants;
mod tutorial;
mod two_operators;
mod unattended;
mod upgrade;
mod windows;

use anyhow::{Context as _, Result};

use crate::{
    cluster::{former_operator, operator_process},
    scenario::{Group, Scenario},
};

/// What single scenarios need that the others do without.
pub fn prepare(name: &str) -> Result<()> {
    if name == upgrade::FORTH_AND_BACK.name {
        former_operator::build()?;
    }
    let with_helm =
        [chart::HELM, chart::REFUSED, chart::PLAIN, chart::LOGIN, chart::WAITS, quotas::CRITICAL_PODS_OF_HELM, tutorial::TUTORIAL];
    if with_helm.iter().any(|scenario| scenario.name == name) {
        chart::build_helm()?;
    }
    if name == chart::HELM.name {
        chart::fetch_monitoring()?;
    }
    if name == chart::PLAIN.name {
        chart::find_jq()?;
    }
    if name == clock::STEPS.name {
        operator_process::faketime()?;
    }
    Ok(())
}

/// Every scenario.
pub const ALL: &[Scenario] = &[
    serving::A_PLAIN_DEPLOYMENT,
    rollout::THREE_ROLLOUTS,
    rollout::LABELLED,
    budgets::BUDGETS,
    canaries::CANARY,
    canaries::RESTARTS,
    canaries::ROLLED_BACK,
    canaries::FALLEN,
    canaries::DRAINED,
    canaries::FAILED_NODES,
    proof::CRASHES,
    proof::FLAPS,
    proof::MACHINE_DIES,
    proof::CRASHES_LATE,
    proof::CRASHES_IN_TIME,
    noise::POWER_CUT,
    noise::REPLACED,
    noise::BACKEND,
    noise::DISK,
    noise::BACK,
    noise::IGNORED,
    absences::LATE,
    absences::CRASHES_UNSEEN,
    absences::SHORT_LIVES,
    absences::DEAD_POOL,
    clock::STEPS,
    upgrade::FORTH_AND_BACK,
    chart::HELM,
    chart::REFUSED,
    chart::PLAIN,
    chart::LOGIN,
    chart::WAITS,
    membership::WHILE_SERVING,
    membership::DURING_A_ROLLOUT,
    placement::CHOICE,
    placement::DELETED,
    windows::CLOSES,
    limits::TOLD,
    limits::HISTORY,
    quotas::CRITICAL_PODS,
    quotas::CRITICAL_PODS_OF_HELM,
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
    first_example::SERVES_PORT_80,
    first_example::SERVES_THROUGH_A_ROLLOUT,
    first_example::OF_THE_GUIDE,
    first_example::EDITED,
    tutorial::TUTORIAL,
    deletion::DELETED_UNDER_LOAD,
    deletion::WITHOUT_OPERATOR,
    deletion::WRONG_ORDER,
    deletion::NAME_TAKEN,
    ownership::NEEDS_FINALIZERS,
    ownership::BOUND,
    ownership::NAMED_ACCOUNT,
    ownership::NODE_READERS,
    tenants::ROLES,
    tenants::HOSTILE,
    tenants::CLAIMS,
    tenants::LARGE,
    missing_rights::TO_READ,
    missing_rights::TO_WRITE,
    health::ANSWERS,
    health::CONTRADICTED,
    handover::NO_CHECK_LOST,
    handover::PORT_TAKEN,
    tampering::TAMPERED_DEPLOYMENTS,
    tampering::REMOVED_MARKS,
    tampering::FORGED_MARKS,
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
    two_operators::TWO_AT_ONCE,
    two_operators::LEADERS,
    two_operators::STOPPED,
    two_operators::OLD_LIST,
    unattended::KILLED,
    unattended::RIVALS,
    migration::FROM_A_DAEMON_SET,
    migration::FROM_THE_ORIGINAL,
    machines::KILLED,
    machines::FULL_DISK,
    machines::OUT_OF_MEMORY,
    machines::REGISTERED_ANEW,
    machines::IMAGES,
    process_pods::ADOPTED,
    node_library::PROMISES,
    node_library::OUTAGES,
    kubelet_api::KUBECTL,
    kubelet_api::VANISHED,
    fleet::FAULTS,
    fleet::HOLES,
    fleet::KUBELET,
    fleet::OUTAGES,
    plugin::STEERS,
    operations::COMMANDS,
    node_gates::admission::POLICIES,
    node_gates::admission::WEBHOOK,
    node_gates::one_pass::ONE_PASS,
    node_gates::originals::CONFIG_MAP,
    node_gates::startup::STARTUP,
    node_gates::life::LIFE,
    node_gates::life::TOGETHER,
    node_gates::life::JOINING,
    node_gates::races::RACES,
    pod_gates::DEMO_AND_HOLDS,
    pod_gates::SOURCES,
];

/// The scenario of this name.
pub fn find(name: &str) -> Result<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).with_context(|| format!("there is no scenario `{name}`; `bed list` lists them"))
}

/// The group of this name.
pub fn find_group(name: &str) -> Result<&'static Group> {
    GROUPS.iter().find(|group| group.name == name).with_context(|| format!("there is no group `{name}`; `bed list --groups` lists them"))
}

/// Names of all scenarios on virtual kubelets: what runs on any machine.
pub fn names() -> Vec<&'static str> {
    ALL.iter().filter(|scenario| !(scenario.options)().kubelets).map(|scenario| scenario.name).collect()
}

/// The scenario compares how long something takes with how long it took before: nothing else may run beside it.
pub fn compares_times(name: &str) -> bool {
    name == tenants::HOSTILE.name
}

/// What `make test` runs: of most promises one scenario that shows it on the real control plane, and those in which something is real that
/// nothing else has, such as a kubelet API, a webhook's certificates or a load balancer. What wire tests show as well, or a harder scenario
/// here includes, is for `make soak`. The group that takes longest comes first.
pub const GROUPS: &[Group] = &[
    Group { name: "machine", scenarios: &[proof::MACHINE_DIES, first_example::SERVES_PORT_80] },
    Group {
        name: "api",
        scenarios: &[
            bad_input::BAD_INPUT,
            compatibility::ORIGINAL_EXAMPLE,
            first_example::OF_THE_GUIDE,
            tenants::ROLES,
            pod_gates::DEMO_AND_HOLDS,
            ownership::NEEDS_FINALIZERS,
            node_gates::admission::POLICIES,
            // It stops the operator.
            node_gates::admission::WEBHOOK,
        ],
    },
    Group { name: "canaries", scenarios: &[canaries::CANARY, canaries::ROLLED_BACK, budgets::BUDGETS] },
    Group { name: "guide", scenarios: &[migration::FROM_A_DAEMON_SET, operations::COMMANDS] },
    Group { name: "modes", scenarios: &[changes::DEGRADE, in_place::UNDER_LOAD, detachers::FAULTY_DETACHERS] },
    Group {
        name: "traffic",
        scenarios: &[incidents::TERMINATING, node_gates::life::JOINING, handover::PORT_TAKEN, deletion::DELETED_UNDER_LOAD],
    },
    Group { name: "proof", scenarios: &[proof::CRASHES, proof::FLAPS] },
    Group { name: "operator", scenarios: &[failures::OPERATOR_KILLED, faults::CUT_OFF] },
    // It begins in a cluster without the product.
    Group { name: "plugin", scenarios: &[plugin::STEERS] },
    Group { name: "kubelet", scenarios: &[node_library::PROMISES, kubelet_api::KUBECTL] },
    Group { name: "api-server", scenarios: &[health::ANSWERS] },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_scenarios_or_groups_have_the_same_name() {
        let names: BTreeSet<_> = ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), ALL.len());
        let groups: BTreeSet<_> = GROUPS.iter().map(|group| group.name).collect();
        assert_eq!(groups.len(), GROUPS.len());
    }

    #[test]
    fn names_of_scenarios_have_at_most_ten_words() {
        for scenario in ALL {
            let words = scenario.name.split('_').count();
            assert!(words <= 10, "{}: {words} words", scenario.name);
        }
    }

    #[test]
    fn grouped_scenarios_can_run_alone_and_are_grouped_once() {
        let mut seen = BTreeSet::new();
        for scenario in GROUPS.iter().flat_map(|group| group.scenarios) {
            assert!(ALL.iter().any(|known| known.name == scenario.name), "{} is not in ALL", scenario.name);
            assert!(seen.insert(scenario.name), "{} is in two groups", scenario.name);
        }
    }

    #[test]
    fn scenarios_that_share_a_control_plane_agree_on_it() {
        let wanted = |scenario: &Scenario| {
            let options = (scenario.options)();
            (options.timing, options.critical_needs_quota, options.kubelets)
        };
        for group in GROUPS {
            let wanted: Vec<_> = group.scenarios.iter().map(wanted).collect();
            assert!(wanted.windows(2).all(|pair| pair[0] == pair[1]), "{}", group.name);
        }
    }
}
