//! Courses of updates of a small fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crds::{IngressDaemonSet, ingress_daemon_set::IngressDaemonSetSpec, names};
use insta::assert_snapshot;
use planner::{Snapshot, facts::NodeFacts};
use serde_json::{Value, json};

use super::{
    pace::{Pace, PaceSource},
    simulation::{Forecast, simulate},
};
use crate::{fixtures::edge, output::Style, status_view::StatusView};

const PACE: Pace = Pace { pod_seconds: 4, source: PaceSource::Given };

#[expect(clippy::needless_pass_by_value, reason = "values are built in the call, by `json!`")]
fn spec(version: &str, more: Value) -> IngressDaemonSetSpec {
    let mut spec = json!({
        "podsPerNode": 2,
        "nodeSelector": { "ingress": "true" },
        "healthCheckNodePorts": [10080],
        "template": { "spec": { "containers": [{ "name": "nginx", "image": format!("nginx:{version}") }] } },
        "updateStrategy": { "rollingUpdate": {
            "maxUnavailableNodes": 2, "attachSoakSeconds": 1, "provenAfterSeconds": 0, "annotateDeploymentToDetach": { "gracePeriodSeconds": 5 },
        } },
    });
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    serde_json::from_value(spec).unwrap()
}

fn node(zone: &str) -> NodeFacts {
    let labels: BTreeMap<_, _> = [("ingress", "true"), ("zone", zone)].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    NodeFacts { uid: format!("uid-{zone}"), labels: labels.into(), ready: true, address: Some("192.0.2.1".into()), ..NodeFacts::default() }
}

fn nothing_runs() -> Snapshot {
    let zones = ["a", "b", "a", "b"];
    let nodes = zones.iter().zip(1..).map(|(zone, index)| (format!("n{index}"), Arc::new(node(zone)))).collect();
    Snapshot { nodes: Arc::new(nodes), ..Snapshot::of(edge(spec("1", json!({}))), 1_767_225_600) }
}

/// Four nodes serve version 1.
fn serving() -> Snapshot {
    simulate(nothing_runs(), PACE).1
}

fn update(mut snapshot: Snapshot, spec: IngressDaemonSetSpec) -> Forecast {
    snapshot.resource.spec = spec;
    snapshot.resource.generation += 1;
    simulate(snapshot, PACE).0
}

fn names_of(forecast: &Forecast) -> Vec<&str> {
    forecast.turns.iter().map(|turn| turn.node.as_str()).collect()
}

#[test]
fn nodes_of_a_new_resource_join_at_once() {
    let (forecast, after) = simulate(nothing_runs(), PACE);
    assert_eq!(names_of(&forecast), ["n1", "n2", "n3", "n4"]);
    assert!(forecast.turns.iter().all(|turn| turn.kind.is_none() && turn.wave == 1 && turn.ends.is_some()), "{forecast:#?}");
    assert_eq!(after.resource.status.unwrap().nodes.available, 4);
}

#[test]
fn the_plan_is_empty_where_nothing_needs_to_change() {
    let snapshot = serving();
    let same = snapshot.resource.spec.clone();
    assert_snapshot!(update(snapshot, same).render(Style::default()));
}

#[test]
fn an_update_goes_in_waves_of_the_budget() {
    let forecast = update(serving(), spec("2", json!({})));
    let waves: Vec<_> = forecast.turns.iter().map(|turn| turn.wave).collect();
    assert_eq!(waves, [1, 1, 2, 2], "{forecast:#?}");
    // Grace and soak take a second more each, for times are cut to whole seconds.
    assert!(forecast.turns.iter().all(|turn| turn.ends.unwrap() - turn.begins == 6 + 4 + 2), "{forecast:#?}");
    assert!(forecast.turns.iter().skip(2).all(|turn| turn.waited == ["Budget"]), "{forecast:#?}");
    assert_eq!((forecast.duration, forecast.left.len(), forecast.budget), (24, 0, 2));
    assert_snapshot!(forecast.render(Style::default()));
}

#[test]
fn one_zone_is_finished_before_the_next_begins() {
    let rolling = json!({ "rollingUpdate": { "maxUnavailableNodes": 2, "attachSoakSeconds": 1, "annotateDeploymentToDetach": { "gracePeriodSeconds": 5 },
        "topology": { "key": "zone", "maxUnavailableNodes": 1, "oneDomainAtATime": true } } });
    let forecast = update(serving(), spec("2", json!({ "updateStrategy": rolling })));
    let zones: Vec<_> = forecast.turns.iter().filter_map(|turn| turn.domain.as_deref()).collect();
    assert_eq!(zones, ["a", "a", "b", "b"]);
    assert_eq!(forecast.turns.last().unwrap().wave, 4);
    assert_snapshot!(forecast.render(Style::default()));
}

/// Four nodes serve version 1, with pods that can be updated in place.
fn serving_in_place() -> Snapshot {
    let mut snapshot = nothing_runs();
    snapshot.resource.spec = spec("1", staying("InPlaceIfPossible", &json!({})));
    simulate(snapshot, PACE).1
}

fn staying(how: &str, more: &Value) -> Value {
    let mut strategy = rolling(more);
    strategy["updateStrategy"]["rollingUpdate"]["podUpdate"] = how.into();
    strategy
}

#[test]
fn pods_that_can_stay_do_and_the_plan_says_so() {
    let forecast = update(serving_in_place(), spec("2", staying("InPlaceOnly", &json!({}))));
    assert!(forecast.turns.len() == 4 && forecast.turns.iter().all(|turn| turn.in_place && turn.recreated.is_none()), "{forecast:#?}");
    assert!(forecast.left.is_empty() && forecast.turns.iter().all(|turn| turn.ends.is_some()), "{forecast:#?}");
    let text = forecast.render(Style::default());
    assert_eq!(text.matches("Update in place").count(), 4, "{text}");
}

#[test]
fn updates_wait_until_images_are_pre_pulled() {
    let forecast = update(serving_in_place(), spec("2", staying("InPlaceIfPossible", &json!({ "prePull": true }))));
    assert!(
        forecast.turns.iter().all(|turn| turn.in_place && turn.waited.first().is_some_and(|reason| reason == "PrePulling")),
        "{forecast:#?}"
    );
    assert!(forecast.turns.len() == 4 && forecast.turns.iter().all(|turn| turn.begins >= 4), "{forecast:#?}");
}

#[test]
fn the_plan_says_why_pods_cannot_stay_in_place() {
    let change = |how: &str| {
        let mut changed = spec("2", staying(how, &json!({})));
        changed.template["spec"]["containers"][0]["env"] = json!([{ "name": "A", "value": "1" }]);
        update(serving_in_place(), changed)
    };
    let recreated = change("InPlaceIfPossible");
    assert!(recreated.turns.len() == 4 && recreated.turns.iter().all(|turn| !turn.in_place && turn.recreated.is_some()), "{recreated:#?}");
    let text = recreated.render(Style::default());
    assert!(text.contains("The pods of 4 nodes must be re-created: the template changes more than container images"), "{text}");
    let held = change("InPlaceOnly");
    assert!(held.turns.is_empty() && held.left.len() == 4, "{held:#?}");
    assert!(held.left.iter().all(|left| left.reason.0 == "NotInPlace"), "{held:#?}");
}

#[test]
fn held_nodes_are_named_and_the_others_go_on() {
    let mut snapshot = serving();
    let nodes = Arc::make_mut(&mut snapshot.nodes);
    Arc::make_mut(nodes.get_mut("n1").unwrap()).annotations.insert(names::SKIP_ANNOTATION.into(), "web/edge".into());
    Arc::make_mut(nodes.get_mut("n2").unwrap()).ready = false;
    let forecast = update(snapshot, spec("2", json!({})));
    let held: Vec<_> = forecast.left.iter().map(|left| (left.node.as_str(), left.reason.0.as_str())).collect();
    assert_eq!(held, [("n1", "Skipped"), ("n2", "NodeNotReady")]);
    assert_eq!(names_of(&forecast).len(), 2, "{forecast:#?}");
}

#[test]
fn a_paused_resource_begins_nothing() {
    let forecast = update(serving(), spec("2", json!({ "paused": true })));
    assert!(forecast.turns.is_empty() && forecast.left.len() == 4, "{forecast:#?}");
    assert!(forecast.left.iter().all(|left| left.reason.0 == "Paused"));
    assert_snapshot!(forecast.render(Style::default()));
}

#[test]
fn pods_replaced_without_detachment_take_their_rounds() {
    let rolling = json!({ "rollingUpdate": { "maxDegradedNodes": 1, "attachSoakSeconds": 0, "maxUnavailablePodsPerNode": 1 } });
    let forecast = update(serving(), spec("2", json!({ "updateStrategy": rolling })));
    assert_eq!(forecast.turns.iter().map(|turn| turn.wave).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(forecast.turns.iter().all(|turn| turn.ends.unwrap() - turn.begins == 2 * 4), "{forecast:#?}");
}

fn rolling(more: &Value) -> Value {
    let mut rolling =
        json!({ "maxUnavailableNodes": 2, "attachSoakSeconds": 1, "annotateDeploymentToDetach": { "gracePeriodSeconds": 5 } });
    rolling.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    json!({ "updateStrategy": { "rollingUpdate": rolling } })
}

#[test]
fn canary_steps_soak_and_a_pausing_step_holds_the_rest() {
    let steps = json!({ "steps": [{ "nodes": 1, "soak": "10m" }, { "nodes": 2, "pause": true }] });
    let forecast = update(serving(), spec("2", rolling(&steps)));
    assert_eq!(
        forecast.turns.iter().map(|turn| (turn.wave, turn.begins > 600)).collect::<Vec<_>>(),
        [(1, false), (2, true)],
        "{forecast:#?}"
    );
    let reasons: BTreeSet<_> = forecast.left.iter().map(|left| left.reason.0.as_str()).collect();
    assert_eq!((forecast.left.len(), reasons), (2, BTreeSet::from(["AwaitingPromotion"])));
    assert_snapshot!(forecast.render(Style::default()));
}

#[test]
fn a_window_is_waited_for_however_far_it_is() {
    let saturday_at_six = 1_767_420_000;
    let snapshot = serving();
    let expected = saturday_at_six - snapshot.now;
    let windows = json!({ "windows": [{ "schedule": "0 6 * * SAT", "duration": "3h", "timeZone": "UTC" }] });
    let forecast = update(snapshot, spec("2", rolling(&windows)));
    let begins = forecast.turns.iter().map(|turn| turn.begins).min();
    assert_eq!((forecast.turns.len(), begins), (4, Some(expected)), "{forecast:#?}");
    assert!(forecast.turns.iter().all(|turn| turn.waited.first().is_some_and(|reason| reason == "OutsideWindow")));
}

#[test]
fn a_detacher_is_waited_for() {
    let rolling = json!({ "rollingUpdate": { "maxUnavailableNodes": 4, "attachSoakSeconds": 0,
        "annotateNodeToDetach": { "key": "example.com/detach", "gracePeriodSeconds": 1 },
        "waitForDetachmentByAnnotatedTimestamp": { "key": "example.com/detached-at", "gracePeriodSeconds": 3 } } });
    let forecast = update(serving(), spec("2", json!({ "updateStrategy": rolling })));
    // Two seconds until its timestamp, the grace after that, the pods, two seconds until the timestamp is gone.
    assert!(forecast.turns.iter().all(|turn| turn.ends.unwrap() == 2 + 4 + 4 + 2), "{forecast:#?}");
}

#[test]
fn a_spec_that_contradicts_itself_changes_nothing() {
    let forecast = update(serving(), spec("2", json!({ "replicas": 3 })));
    assert!(forecast.turns.is_empty());
    assert_snapshot!(forecast.render(Style::default()));
}

#[test]
fn nodes_no_longer_chosen_are_removed_within_the_budget() {
    let mut snapshot = serving();
    for name in ["n1", "n2", "n3"] {
        Arc::make_mut(Arc::make_mut(&mut snapshot.nodes).get_mut(name).unwrap()).labels.remove("ingress");
    }
    let same = snapshot.resource.spec.clone();
    let forecast = update(snapshot, same);
    assert_eq!(forecast.turns.iter().map(|turn| turn.wave).collect::<Vec<_>>(), [1, 1, 2], "{forecast:#?}");
    assert!(forecast.turns.iter().all(|turn| turn.kind == Some(crds::ledger::GrantReason::Remove)));
    assert_eq!(forecast.chosen, 1);
}

/// The resource as the API server has it.
fn stored(snapshot: &Snapshot) -> IngressDaemonSet {
    let mut resource = IngressDaemonSet::new("edge", snapshot.resource.spec.clone());
    resource.metadata.namespace = Some("web".into());
    resource.metadata.generation = Some(snapshot.resource.generation);
    resource.status = snapshot.resource.status.clone();
    resource
}

#[test]
fn of_a_status_without_a_fault_no_condition_is_shown() {
    // The simulated cluster has no health checkers, and that is a fault.
    let of_version = |version: &str, paused: bool| spec(version, json!({ "healthCheckNodePorts": [], "paused": paused }));
    let shown = |snapshot: &Snapshot| -> Vec<_> {
        StatusView::of(&stored(snapshot)).conditions.into_iter().map(|condition| condition.condition).collect()
    };
    let mut snapshot = nothing_runs();
    snapshot.resource.spec = of_version("1", false);
    let mut snapshot = simulate(snapshot, PACE).1;
    assert_eq!(shown(&snapshot), Vec::<String>::new());
    snapshot.resource.spec = of_version("2", true);
    snapshot.resource.generation += 1;
    assert_eq!(shown(&simulate(snapshot, PACE).1), ["Paused=True"]);
}

#[test]
fn a_rollout_is_over_when_no_node_wants_pods() {
    let without_checkers = |version: &str, pods: u32| spec(version, json!({ "healthCheckNodePorts": [], "podsPerNode": pods }));
    let begin = |pods: u32| {
        let mut snapshot = nothing_runs();
        snapshot.resource.spec = without_checkers("1", pods);
        simulate(snapshot, PACE).1
    };
    let change = |mut snapshot: Snapshot, spec: IngressDaemonSetSpec| {
        snapshot.resource.spec = spec;
        snapshot.resource.generation += 1;
        let after = simulate(snapshot, PACE).1;
        StatusView::of(&stored(&after)).over
    };
    let mut skipped = begin(2);
    let nodes = Arc::make_mut(&mut skipped.nodes);
    Arc::make_mut(nodes.get_mut("n1").unwrap()).annotations.insert(names::SKIP_ANNOTATION.into(), "web/edge".into());
    // The order may be taken back at any moment, and the status is as old as the operator's last look.
    assert_eq!(change(skipped.clone(), without_checkers("2", 2)), None);
    assert_eq!(change(begin(0), without_checkers("2", 0)).as_deref(), Some("podsPerNode is 0"));
    // A partition is an order to wait for.
    let partition = json!({ "healthCheckNodePorts": [], "updateStrategy": { "rollingUpdate": { "partition": 2 } } });
    assert_eq!(change(skipped, spec("2", partition)), None);
}

#[test]
fn why_explains_a_node_that_the_status_does_not_list() {
    let mut snapshot = serving();
    Arc::make_mut(&mut snapshot.nodes).insert("other".into(), Arc::new(NodeFacts { ready: true, ..NodeFacts::default() }));
    let resource = stored(&snapshot);
    let said = |node: &str| {
        let answer = crate::why::why(&resource, &snapshot, node);
        answer.map(|answer| answer.render(&resource, node, Style::default(), snapshot.now))
    };
    assert_snapshot!(format!("{}\n{}", said("n1").unwrap(), said("other").unwrap()));
    assert_eq!(said("n").unwrap_err(), "there is no node n; there is n1, n2, n3, n4");
}
