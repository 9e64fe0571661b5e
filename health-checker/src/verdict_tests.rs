use super::*;
use crate::view::{NodeFacts, ObjectChange, PodFacts, Update, Watch};
use crds::token::Token;
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_mins(1);

fn token(phase: &str) -> Option<Token> {
    format!("0a1b2c3d.7.{phase}.1700000000").parse().ok()
}

fn deployment(desired: u32, phase: &str) -> DeploymentFacts {
    DeploymentFacts { desired, token: token(phase), to_be_updated: false, deleting: false }
}

fn pod(uid: &str) -> PodFacts {
    PodFacts { uid: uid.into(), ready: true, disowned: false, terminating: false, revision: Some("r1".into()), probes: vec![] }
}

/// A node with two ready pods of two, heard of just now.
pub(crate) fn healthy(now: Instant) -> View {
    let mut view = View::new(ReadyPolicy::All);
    view.apply(Update::Deployments(ObjectChange::Replaced(vec![("d".into(), deployment(2, "Closed"))])), now);
    view.apply(Update::Pods(ObjectChange::Replaced(vec![("a".into(), pod("a")), ("b".into(), pod("b"))])), now);
    view.apply(Update::Node(ObjectChange::Replaced(vec![("n".into(), NodeFacts { to_be_deleted: false, deleting: false })])), now);
    view
}

fn reason_after(change: impl FnOnce(&mut View)) -> VerdictReason {
    let now = Instant::now();
    let mut view = healthy(now);
    change(&mut view);
    verdict(&view, now).reason
}

fn the_deployment(view: &mut View) -> &mut DeploymentFacts {
    view.deployments.objects.get_mut("d").expect("is there")
}

fn a_pod(view: &mut View) -> &mut PodFacts {
    view.pods.objects.get_mut("a").expect("is there")
}

fn the_node(view: &mut View) -> &mut NodeFacts {
    view.node.objects.get_mut("n").expect("is there")
}

#[test]
fn nodes_serve_with_all_replicas_ready_and_no_update() {
    assert_eq!(reason_after(|_| {}), VerdictReason::Serving);
}

#[test]
fn the_token_decides_before_the_pods_do() {
    for (phase, expected) in [
        ("New", VerdictReason::NeverComplete),
        ("Claimed", VerdictReason::DetachRequested),
        ("InPlace", VerdictReason::Updating),
        ("Updating", VerdictReason::Updating),
        ("Degrading", VerdictReason::Serving),
        ("Closed", VerdictReason::Serving),
    ] {
        assert_eq!(reason_after(|view| the_deployment(view).token = token(phase)), expected, "{phase}");
    }
}

#[test]
fn in_degrading_the_ready_policy_alone_decides() {
    let degrading = |view: &mut View| {
        the_deployment(view).token = token("Degrading");
        a_pod(view).ready = false;
    };
    assert_eq!(reason_after(degrading), VerdictReason::PodsNotReady);
    let at_least_one = |view: &mut View| {
        degrading(view);
        view.policy = ReadyPolicy::AtLeast(1);
    };
    assert_eq!(reason_after(at_least_one), VerdictReason::Serving);
}

#[test]
fn an_unreadable_token_counts_as_closed() {
    assert_eq!(reason_after(|view| the_deployment(view).token = None), VerdictReason::Serving);
}

#[test]
fn the_annotation_takes_the_node_out_in_every_phase() {
    for phase in ["Closed", "Degrading", "garbage"] {
        let change = |view: &mut View| {
            the_deployment(view).token = token(phase);
            the_deployment(view).to_be_updated = true;
        };
        assert_eq!(reason_after(change), VerdictReason::TakenOutByHand, "{phase}");
    }
}

#[test]
fn without_a_deployment_the_pods_do_not_count() {
    assert_eq!(reason_after(|view| view.deployments.objects.clear()), VerdictReason::DeploymentMissing);
    assert_eq!(reason_after(|view| the_deployment(view).deleting = true), VerdictReason::DeploymentMissing);
}

#[test]
fn a_recreated_deployment_counts_instead_of_the_deleted_one() {
    let change = |view: &mut View| {
        the_deployment(view).deleting = true;
        view.deployments.objects.insert("e".into(), deployment(2, "Closed"));
    };
    assert_eq!(reason_after(change), VerdictReason::Serving);
}

#[test]
fn of_two_deployments_each_can_hold_the_node_back() {
    let second =
        |desired, phase: &'static str| move |view: &mut View| drop(view.deployments.objects.insert("e".into(), deployment(desired, phase)));
    assert_eq!(reason_after(second(0, "Claimed")), VerdictReason::DetachRequested);
    assert_eq!(reason_after(second(1, "Closed")), VerdictReason::PodsNotReady);
}

#[test]
fn no_replica_wanted_is_503() {
    assert_eq!(reason_after(|view| the_deployment(view).desired = 0), VerdictReason::NoReplicasWanted);
}

#[test]
fn a_terminating_or_unready_pod_does_not_count() {
    assert_eq!(reason_after(|view| a_pod(view).terminating = true), VerdictReason::PodsNotReady);
    assert_eq!(reason_after(|view| a_pod(view).ready = false), VerdictReason::PodsNotReady);
    assert_eq!(reason_after(|view| drop(view.pods.objects.remove("a"))), VerdictReason::PodsNotReady);
}

#[test]
fn a_third_pod_makes_up_for_one_that_terminates() {
    let change = |view: &mut View| {
        a_pod(view).terminating = true;
        view.pods.objects.insert("c".into(), pod("c"));
    };
    assert_eq!(reason_after(change), VerdictReason::Serving);
}

#[test]
fn policy_at_least_n_needs_n_ready_pods() {
    for (wanted, expected) in [(1, VerdictReason::Serving), (2, VerdictReason::Serving), (3, VerdictReason::PodsNotReady)] {
        assert_eq!(reason_after(|view| view.policy = ReadyPolicy::AtLeast(wanted)), expected);
    }
}

#[test]
fn a_node_being_deleted_stops_serving_unlike_a_missing_one() {
    assert_eq!(reason_after(|view| the_node(view).to_be_deleted = true), VerdictReason::NodeBeingDeleted);
    assert_eq!(reason_after(|view| the_node(view).deleting = true), VerdictReason::NodeBeingDeleted);
    assert_eq!(reason_after(|view| view.node.objects.clear()), VerdictReason::Serving);
}

#[test]
fn nothing_is_served_before_all_three_watches_have_listed() {
    assert_eq!(reason_after(|view| view.node.seen = None), VerdictReason::NotSynced);
    assert_eq!(reason_after(|view| view.pods.seen = None), VerdictReason::NotSynced);
    assert_eq!(reason_after(|view| view.deployments.seen = None), VerdictReason::NotSynced);
}

#[test]
fn an_unwatched_node_is_neither_awaited_nor_too_old() {
    let now = Instant::now();
    let mut view = healthy(now);
    (view.watches, view.node.seen) = (Watch::WITHOUT_NODE, None);
    view.node.objects.clear();
    assert_eq!(verdict(&view, now).reason, VerdictReason::Serving);
    let later = now + CONFIRM_AFTER + Duration::from_secs(1);
    assert_eq!(verdict(&view, later).reason, VerdictReason::StaleView, "it did not serve before");
    view.apply(Update::Pods(ObjectChange::Unchanged), later);
    view.apply(Update::Deployments(ObjectChange::Unchanged), later);
    assert_eq!(verdict(&view, later).reason, VerdictReason::Serving);
}

#[test]
fn a_serving_node_serves_on_despite_an_old_view() {
    let now = Instant::now();
    let mut view = healthy(now);
    view.serving = true;
    assert_eq!(verdict(&view, now + 60 * MINUTE).reason, VerdictReason::Serving);
}

#[test]
fn a_node_not_serving_waits_for_a_fresh_view() {
    let now = Instant::now();
    let mut view = healthy(now);
    let later = now + MINUTE;
    view.apply(Update::Pods(ObjectChange::Unchanged), later);
    view.apply(Update::Deployments(ObjectChange::Unchanged), later);
    assert_eq!(verdict(&view, later).reason, VerdictReason::StaleView, "the Node was not heard of");
    view.apply(Update::Node(ObjectChange::Unchanged), later);
    assert_eq!(verdict(&view, later).reason, VerdictReason::Serving);
}

#[test]
fn a_probe_failing_here_counts_until_news_about_pods() {
    let now = Instant::now();
    let mut view = healthy(now);
    view.serving = true;
    view.failed_here.insert("a".into(), now + MINUTE);
    assert_eq!(verdict(&view, now + 2 * MINUTE).reason, VerdictReason::ProbesFailHere);
    view.apply(Update::Deployments(ObjectChange::Unchanged), now + 2 * MINUTE);
    assert_eq!(verdict(&view, now + 2 * MINUTE).reason, VerdictReason::ProbesFailHere, "nothing was said about pods");
    view.apply(Update::Pods(ObjectChange::Unchanged), now + 2 * MINUTE);
    assert_eq!(verdict(&view, now + 2 * MINUTE).reason, VerdictReason::Serving);
    assert!(view.failed_here.is_empty());
}

#[test]
fn the_revision_is_that_of_the_pods_that_stay() {
    let now = Instant::now();
    let mut view = healthy(now);
    assert_eq!(verdict(&view, now).revision.as_deref(), Some("r1"));
    a_pod(&mut view).revision = Some("r2".into());
    assert_eq!(verdict(&view, now).revision.as_deref(), Some("r1,r2"));
    a_pod(&mut view).terminating = true;
    assert_eq!(verdict(&view, now).revision.as_deref(), Some("r1"));
}

#[test]
fn disowned_pods_with_passing_probes_keep_a_node_serving() {
    let now = Instant::now();
    let mut view = healthy(now);
    for pod in view.pods.objects.values_mut() {
        (pod.ready, pod.disowned) = (false, true);
        pod.probes = vec![a_probe()];
    }
    view.serving = true;
    assert_eq!(verdict(&view, now).reason, VerdictReason::PodsNotReady, "nobody has seen them pass");
    for uid in ["a", "b"] {
        view.passed_here.insert((uid.into(), 0), now);
    }
    assert_eq!(verdict(&view, now).reason, VerdictReason::Serving);
    assert_eq!(verdict(&view, now + MINUTE).reason, VerdictReason::PodsNotReady, "that was long ago");
    a_pod(&mut view).probes.clear();
    assert_eq!(verdict(&view, now).reason, VerdictReason::PodsNotReady, "without a probe nothing is known of it");
    a_pod(&mut view).probes = vec![a_probe()];
    view.serving = false;
    assert_eq!(verdict(&view, now).reason, VerdictReason::PodsNotReady);
    view.serving = true;
    let failed = now + Duration::from_secs(1);
    view.failed_here.insert("a".into(), failed);
    assert_eq!(verdict(&view, failed).reason, VerdictReason::ProbesFailHere, "its own probes decide");
    view.failed_here.clear();
    a_pod(&mut view).terminating = true;
    assert_eq!(verdict(&view, now).reason, VerdictReason::PodsNotReady);
}

#[test]
fn a_disowned_pod_counts_until_its_probe_is_overdue() {
    let now = Instant::now();
    let mut view = healthy(now);
    for pod in view.pods.objects.values_mut() {
        (pod.ready, pod.disowned) = (false, true);
        pod.probes = vec![a_probe()];
    }
    view.serving = true;
    for uid in ["a", "b"] {
        view.passed_here.insert((uid.into(), 0), now);
    }
    // There was news until now, so that nothing was probed since; the first result comes within a period, a timeout and a tick.
    let reason_at = |view: &View, seconds| verdict(view, now + Duration::from_secs(seconds)).reason;
    assert_eq!(reason_at(&view, 9), VerdictReason::Serving);
    assert_eq!(reason_at(&view, 12), VerdictReason::Serving);
    assert_eq!(reason_at(&view, 13), VerdictReason::PodsNotReady);
    view.probe_after = Duration::from_secs(30);
    assert_eq!(reason_at(&view, 32), VerdictReason::Serving);
    assert_eq!(reason_at(&view, 33), VerdictReason::PodsNotReady);
    // A kubelet may be more patient.
    for pod in view.pods.objects.values_mut() {
        pod.probes[0].period = MINUTE;
    }
    assert_eq!((reason_at(&view, 240), reason_at(&view, 241)), (VerdictReason::Serving, VerdictReason::PodsNotReady));
}

fn any_deployment() -> impl Strategy<Value = DeploymentFacts> {
    let phase = prop::sample::select(vec!["New", "Claimed", "Degrading", "InPlace", "Updating", "Closed", "?"]);
    (0..4_u32, phase, prop::bool::weighted(0.1), prop::bool::weighted(0.1))
        .prop_map(|(desired, phase, to_be_updated, deleting)| DeploymentFacts { desired, token: token(phase), to_be_updated, deleting })
}

fn any_pods() -> impl Strategy<Value = Vec<(bool, bool, bool)>> {
    prop::collection::vec((prop::bool::weighted(0.8), prop::bool::weighted(0.1), prop::bool::weighted(0.1)), 0..5)
}

prop_compose! {
    fn any_view(start: Instant)(
        deployments in prop::collection::vec(any_deployment(), 0..3),
        pods in any_pods(),
        node in prop::option::of((prop::bool::weighted(0.1), prop::bool::weighted(0.1))),
        ages in prop::array::uniform3(0..30_u64),
        policy in prop_oneof![Just(ReadyPolicy::All), (1..4_u32).prop_map(ReadyPolicy::AtLeast)],
        serving: bool,
    ) -> View {
        let at = |age: u64| start + Duration::from_secs(30 - age);
        let mut view = View::new(policy);
        view.apply(Update::Deployments(ObjectChange::Replaced(deployments.into_iter().enumerate().map(|(i, d)| (i.to_string(), d)).collect())), at(ages[0]));
        let kept = pods.iter().enumerate().map(|(i, (ready, terminating, _))| (i.to_string(), PodFacts { ready: *ready, terminating: *terminating, ..pod(&i.to_string()) }));
        view.apply(Update::Pods(ObjectChange::Replaced(kept.collect())), at(ages[1]));
        view.apply(Update::Node(ObjectChange::Replaced(node.map(|(to_be_deleted, deleting)| ("n".into(), NodeFacts { to_be_deleted, deleting })).into_iter().collect())), at(ages[2]));
        for (i, _) in pods.iter().enumerate().filter(|(_, pod)| pod.2) {
            view.failed_here.insert(i.to_string(), start + Duration::from_secs(30));
        }
        view.serving = serving;
        view
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn serving_needs_enough_ready_pods_and_no_hold(view in any_view(Instant::now())) {
        let now = Instant::now() + Duration::from_secs(30);
        if verdict(&view, now).serving() {
            let live: Vec<_> = view.deployments.objects.values().filter(|deployment| !deployment.deleting).collect();
            let desired: u32 = live.iter().map(|deployment| deployment.desired).sum();
            let ready = view.pods.objects.values().filter(|pod| pod.ready && !pod.terminating).map(|_| 1_u32).sum::<u32>();
            prop_assert!(desired >= 1);
            let enough = match view.policy {
                ReadyPolicy::All => desired,
                ReadyPolicy::AtLeast(number) => number,
            };
            prop_assert!(ready >= enough);
            for deployment in live {
                prop_assert!(!deployment.to_be_updated);
                let phase = deployment.token.as_ref().map(|token| token.phase);
                prop_assert!(!matches!(phase, Some(Phase::New | Phase::Claimed | Phase::InPlace | Phase::Updating)));
            }
            prop_assert!(view.node.objects.values().all(|node| !node.deleting && !node.to_be_deleted));
        }
    }

    #[test]
    fn time_alone_never_switches_between_200_and_503(view in any_view(Instant::now()), later in 0..10_000_u64) {
        let now = Instant::now() + Duration::from_secs(30);
        let mut view = view;
        let first = verdict(&view, now).serving();
        view.serving = first;
        prop_assert_eq!(verdict(&view, now + Duration::from_secs(later)).serving(), first);
    }

    #[test]
    fn failing_here_can_only_take_a_node_out(view in any_view(Instant::now())) {
        let now = Instant::now() + Duration::from_secs(30);
        let mut without = view.clone();
        without.failed_here.clear();
        prop_assert!(!verdict(&view, now).serving() || verdict(&without, now).serving());
    }

    #[test]
    fn on_an_old_view_no_node_starts_to_serve(view in any_view(Instant::now()), later in 41..1_000_u64) {
        let view = View { serving: false, ..view };
        prop_assert!(!verdict(&view, Instant::now() + Duration::from_secs(later)).serving());
    }

    #[test]
    fn a_pod_that_becomes_ready_never_takes_a_node_out(view in any_view(Instant::now())) {
        let now = Instant::now() + Duration::from_secs(30);
        let mut more = view.clone();
        more.pods.objects.insert("more".into(), pod("more"));
        prop_assert!(!verdict(&view, now).serving() || verdict(&more, now).serving());
    }
}

fn a_probe() -> crate::probe::ReadinessProbe {
    crate::probe::ReadinessProbe {
        target: crate::probe::ProbeTarget::Tcp { host: "127.0.0.1".into(), port: 1 },
        period: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        failure_threshold: 3,
    }
}

#[test]
fn every_reason_of_an_answer_is_explained_in_the_guide() {
    let source = include_str!("verdict.rs");
    let words: Vec<_> =
        source.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \"")?.1.strip_suffix("\",")).collect();
    assert!(words.len() >= 12, "{words:?}");
    let guide = include_str!("../../docs/operations.md");
    for word in words {
        let code = if word == "Serving" { 200 } else { 503 };
        assert!(guide.contains(&format!("| `{word}` | {code} | ")), "docs/operations.md does not explain {word}");
    }
}
