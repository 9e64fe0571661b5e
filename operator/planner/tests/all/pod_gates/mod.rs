//! Readiness gates of pods: what is decided about one pod, and what its patch does to the conditions that the API server has. What a
//! webhook or a policy does to new pods is in `pod_admission`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::needless_pass_by_value, reason = "cases are written where they are used")]

mod random;
mod sources;

use crate::gates::standing;
use planner::{
    facts::NodeFacts,
    gates_shared::Key,
    node_gates::GateLinks,
    pod_gates::{
        Gate, Pod, PodPlan, World,
        decide::{Transition, decide},
        links::links,
        owners,
        policy_objects::policy,
        status::{ForbiddenWrites, status},
        world::{GATES_PER_NAMESPACE, PodCondition},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The condition of the original demo.
const TYPE: &str = "www.example.com/feature-1";
/// Seconds since 1970.
const NOW: i64 = 1_600_000_000;
const THEN: &str = "2020-07-11T03:19:55Z";

fn gate(name: &str, more: Value) -> Gate {
    let mut spec = json!({"conditionType": TYPE});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let created = NOW - 1_000;
    Gate {
        namespace: "web".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        generation: 1,
        created,
        deleting: false,
        spec: serde_json::from_value(spec).unwrap(),
    }
}

fn key() -> Key {
    ("web".into(), "p".into())
}

fn texts(entries: &[(&str, &str)]) -> planner::facts::label_map::LabelMap {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>().into()
}

fn pod() -> Pod {
    Pod { uid: "pod-uid".into(), gates: vec![TYPE.into()], node: "n1".into(), address: "10.0.0.1".into(), ..Pod::default() }
}

fn labelled(value: &str) -> Pod {
    Pod { labels: texts(&[("example", value)]), ..pod() }
}

fn world(gates: Vec<Gate>, pod: Pod) -> World {
    World {
        gates: gates.into_iter().map(|gate| (gate.key(), Arc::new(gate))).collect(),
        pods: BTreeMap::from([(key(), pod)]),
        ..World::default()
    }
}

fn by_label(more: Value) -> Gate {
    let mut spec = json!({"source": {"label": {"key": "example"}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    gate("demo", spec)
}

/// What a strategic merge of `status.conditions` leaves: directives first, then the rest by type.
fn merge(conditions: &mut Vec<Value>, patch: &Value) {
    let patched = patch["status"]["conditions"].as_array().unwrap();
    for deleted in patched.iter().filter(|entry| entry["$patch"] == "delete") {
        conditions.retain(|condition| condition["type"] != deleted["type"]);
    }
    for entry in patched.iter().filter(|entry| entry.get("$patch").is_none()) {
        match conditions.iter_mut().find(|condition| condition["type"] == entry["type"]) {
            Some(condition) => condition.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone()),
            None => conditions.push(entry.clone()),
        }
    }
}

/// The pod as it is after its patch.
fn patched(pod: &Pod, plan: &PodPlan) -> Pod {
    let Some(patch) = &plan.patch else { return pod.clone() };
    assert_eq!(patch["metadata"], json!({"uid": pod.uid}), "another pod of the name is not taken for this one");
    assert_eq!(patch.as_object().unwrap().len(), 2);
    let mut conditions: Vec<_> = pod.conditions.iter().map(as_value).collect();
    merge(&mut conditions, patch);
    Pod { conditions: conditions.iter().map(as_condition).collect(), version: pod.version + 1, ..pod.clone() }
}

fn as_value(condition: &PodCondition) -> Value {
    let mut value = json!({"type": condition.type_, "status": condition.status, "reason": condition.reason, "message": condition.message});
    if let Some(transition) = &condition.transition {
        value["lastTransitionTime"] = transition.as_str().into();
    }
    if let Some(generation) = condition.observed_generation {
        value["observedGeneration"] = generation.into();
    }
    value
}

fn as_condition(value: &Value) -> PodCondition {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    PodCondition {
        type_: text("type"),
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
        transition: value["lastTransitionTime"].as_str().map(str::to_owned),
        observed_generation: value["observedGeneration"].as_i64(),
    }
}

fn condition(status: &str, reason: &str, message: &str) -> PodCondition {
    PodCondition {
        type_: TYPE.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        transition: Some(THEN.into()),
        observed_generation: None,
    }
}

/// Decides, applies the patch, and decides again: that must be all.
fn settled(gates: Vec<Gate>, pod: Pod) -> Pod {
    settled_in(world(gates, pod), None)
}

fn settled_in(mut world: World, node: Option<&NodeFacts>) -> Pod {
    let plan = decide(&world, &key(), node, NOW);
    let after = patched(&world.pods[&key()], &plan);
    world.pods.insert(key(), after.clone());
    let again = decide(&world, &key(), node, NOW + 60);
    assert_eq!(again.patch, None, "only on change");
    assert!(again.transitions.is_empty());
    after
}

fn says(pod: &Pod) -> Option<(&str, &str)> {
    pod.condition(TYPE).map(|condition| (condition.status.as_str(), condition.reason.as_str()))
}

#[test]
fn the_demo_label_switches_its_condition_both_ways() {
    let on = settled(vec![by_label(json!({}))], labelled("true"));
    assert_eq!(says(&on), Some(("True", "SourceTrue")));
    assert_eq!(on.condition(TYPE).unwrap().message, "label example=true");
    let off = settled(vec![by_label(json!({}))], Pod { labels: texts(&[("example", "false")]), ..on });
    assert_eq!(says(&off), Some(("False", "SourceFalse")));
    assert_eq!(
        says(&settled(vec![by_label(json!({}))], Pod { labels: texts(&[("example", "true")]), ..off })),
        Some(("True", "SourceTrue"))
    );
}

#[test]
fn a_gate_leaves_unlisted_ended_and_unselected_pods_alone() {
    let selected = by_label(json!({"selector": {"matchLabels": {"run": "centos"}}}));
    let unlisted = Pod { gates: vec!["other".into()], ..labelled("true") };
    let ended = Pod { ended: true, ..labelled("true") };
    for (gate, pod) in [(by_label(json!({})), unlisted), (by_label(json!({})), ended), (selected, labelled("true"))] {
        assert_eq!(decide(&world(vec![gate], pod), &key(), None, NOW).patch, None);
    }
    let deleting = Gate { deleting: true, ..by_label(json!({})) };
    assert_eq!(decide(&world(vec![deleting], labelled("true")), &key(), None, NOW), PodPlan::default());
}

#[test]
fn the_transition_time_changes_with_the_status_only() {
    let same = Pod { conditions: vec![condition("True", "ByHand", "")], ..labelled("true") };
    let after = settled(vec![by_label(json!({}))], same);
    assert_eq!(after.condition(TYPE).unwrap().transition.as_deref(), Some(THEN));
    let other = Pod { conditions: vec![condition("False", "ByHand", "")], ..labelled("true") };
    let after = settled(vec![by_label(json!({}))], other);
    assert_eq!(after.condition(TYPE).unwrap().transition.as_deref(), Some("2020-09-13T12:26:40Z"));
}

#[test]
fn entries_that_the_original_controller_appended_become_one() {
    let twice = vec![condition("False", "", ""), condition("True", "", "")];
    let after = settled(vec![by_label(json!({}))], Pod { conditions: twice, ..labelled("true") });
    assert_eq!(after.conditions.len(), 1);
    assert_eq!(says(&after), Some(("True", "SourceTrue")));
}

#[test]
fn the_default_counts_while_the_source_says_nothing() {
    for (default, pod, wanted) in [
        ("True", pod(), Some(("True", "Default"))),
        ("False", pod(), Some(("False", "Default"))),
        ("Unset", pod(), None),
        ("False", labelled("maybe"), Some(("False", "Default"))),
        ("Unset", Pod { conditions: vec![condition("True", "SourceTrue", "label example=true")], ..pod() }, None),
        ("Unset", Pod { conditions: vec![condition("True", "", "")], ..pod() }, Some(("True", ""))),
    ] {
        let after = settled(vec![by_label(json!({"default": default}))], pod.clone());
        assert_eq!(says(&after), wanted, "default {default}: {pod:?}");
    }
}

#[test]
fn a_restarted_container_closes_the_gate_until_the_source_changes() {
    let gates = || vec![by_label(json!({"resetOnRestart": true}))];
    // Containers may restart before anybody says anything.
    let approved = settled(gates(), Pod { restarts: 2, ..labelled("true") });
    assert_eq!(says(&approved), Some(("True", "SourceTrue")));
    let restarted = settled(gates(), Pod { restarts: 3, ..approved.clone() });
    assert_eq!(says(&restarted), Some(("False", "ContainerRestarted")));
    let again = settled(gates(), Pod { restarts: 4, ..restarted });
    assert_eq!(says(&again), Some(("False", "ContainerRestarted")), "once is enough");
    let silent = settled(gates(), Pod { labels: texts(&[]), ..again.clone() });
    assert_eq!(says(&silent), None);
    for between in [silent, settled(gates(), Pod { labels: texts(&[("example", "false")]), ..again })] {
        let anew = settled(gates(), Pod { labels: texts(&[("example", "true")]), ..between });
        assert_eq!(says(&anew), Some(("True", "SourceTrue")));
    }
    let without = settled(vec![by_label(json!({}))], Pod { restarts: 3, ..approved });
    assert_eq!(says(&without), Some(("True", "SourceTrue")), "only where the gate says so");
}

#[test]
fn previously_uncounted_sidecar_restarts_reset_nothing() {
    let gates = || vec![by_label(json!({"resetOnRestart": true}))];
    let counted = |message: &str| vec![condition("True", "SourceTrue", message)];
    let of = |restarts, sidecars| Pod { restarts, sidecar_restarts: sidecars, ..labelled("true") };
    let message = |pod: &Pod| pod.condition(TYPE).unwrap().message.clone();
    let before = Pod { conditions: counted("label example=true (restarts: 0)"), ..of(0, Some(2)) };
    let upgraded = settled(gates(), before.clone());
    assert_eq!(
        (says(&upgraded), message(&upgraded).as_str()),
        (Some(("True", "SourceTrue")), "label example=true (restarts: 2, of sidecars: 2)")
    );
    let resets = |pod: &Pod, restarts, sidecars| {
        let after = settled(gates(), Pod { restarts, sidecar_restarts: Some(sidecars), ..pod.clone() });
        says(&after) == Some(("False", "ContainerRestarted"))
    };
    assert!(resets(&before, 1, 2), "an earlier release counted these");
    for (containers, sidecars, wanted) in [(0, 2, false), (0, 3, true), (1, 2, true), (1, 1, true)] {
        assert_eq!(resets(&upgraded, containers, sidecars), wanted, "{containers} {sidecars}");
    }
    let without = Pod { conditions: counted("label example=true (restarts: 1)"), ..of(1, None) };
    assert_eq!(message(&settled(gates(), without)), "label example=true (restarts: 1)", "nothing is written for it");
}

#[test]
fn restarts_before_a_gate_do_not_reset_its_older_condition() {
    let by_hand = Pod { conditions: vec![condition("True", "", "")], restarts: 5, ..labelled("true") };
    let taken_over = settled(vec![by_label(json!({"resetOnRestart": true}))], by_hand);
    assert_eq!(says(&taken_over), Some(("True", "SourceTrue")));
    assert_eq!(taken_over.condition(TYPE).unwrap().transition.as_deref(), Some(THEN));
}

#[test]
fn generations_are_written_only_where_the_api_server_keeps_them() {
    let keeps = Pod { generation: Some(3), keeps_generation: true, ..labelled("true") };
    let after = settled(vec![by_label(json!({}))], keeps);
    assert_eq!(after.condition(TYPE).unwrap().observed_generation, Some(3));
    let later = settled(vec![by_label(json!({}))], Pod { generation: Some(4), ..after });
    assert_eq!(later.condition(TYPE).unwrap().observed_generation, Some(4));
    let drops = Pod { generation: Some(3), keeps_generation: false, ..labelled("true") };
    assert_eq!(settled(vec![by_label(json!({}))], drops).condition(TYPE).unwrap().observed_generation, None);
}

#[test]
fn of_two_gates_with_one_condition_the_older_wins() {
    let labels = || gate("b-label", json!({"source": {"label": {"key": "example"}}}));
    let holds = || gate("a-manual", json!({"source": {"manual": {}}}));
    let older = Gate { created: NOW - 5_000, ..labels() };
    for (gates, winner, status_is) in [(vec![older, holds()], "b-label", "False"), (vec![labels(), holds()], "a-manual", "True")] {
        let world = world(gates.clone(), labelled("false"));
        let plan = decide(&world, &key(), None, NOW);
        assert_eq!(plan.patch.as_ref().unwrap()["status"]["conditions"].as_array().unwrap().len(), 1);
        let loser = gates.iter().find(|gate| gate.name != winner).unwrap();
        let view = &plan.views[&loser.name];
        assert_eq!(view.beaten_by.as_deref(), Some(winner));
        let status = status(&world, loser, &[], [("p", view)].into_iter(), None, None, NOW);
        let conflict = status.conditions.iter().find(|condition| condition.type_ == "Conflicting").unwrap();
        assert_eq!((conflict.status.as_str(), conflict.reason.as_str()), ("True", "SameConditionType"));
        assert!(conflict.message.contains(winner), "{}", conflict.message);
        assert_eq!(says(&settled_in(world, None)).unwrap().0, status_is);
    }
}

#[test]
fn several_gates_of_a_pod_make_one_patch() {
    let other = Gate {
        spec: serde_json::from_value(json!({"conditionType": "example.com/held", "source": {"manual": {}}})).unwrap(),
        ..gate("held", json!({"source": {"manual": {}}}))
    };
    let holds = owners::hold(None, "ops", "drill").unwrap();
    let both = Pod {
        gates: vec![TYPE.into(), "example.com/held".into()],
        annotations: texts(&[(crds::names::READINESS_HOLDS_ANNOTATION, &holds)]),
        ..labelled("true")
    };
    let mut world = world(vec![by_label(json!({})), other.clone()], both);
    let plan = decide(&world, &key(), None, NOW);
    assert_eq!(plan.patch.as_ref().unwrap()["status"]["conditions"].as_array().unwrap().len(), 2);
    let became: Vec<_> = plan.transitions.iter().map(|Transition { gate, to }| (gate.as_str(), *to)).collect();
    assert_eq!(became, [("held", Some(false)), ("demo", Some(true))]);
    let after = patched(&world.pods[&key()], &plan);
    world.pods.insert(key(), after);
    let views = decide(&world, &key(), None, NOW).views;
    let status = status(&world, &other, &[], [("p", &views["held"])].into_iter(), None, None, NOW);
    assert_eq!((status.pods.matched, status.pods.true_, status.pods.false_), (1, 0, 1));
    assert_eq!((status.held[0].pod.as_str(), status.held[0].message.as_str()), ("p", "held by ops (drill)"));
    assert_eq!(status.summary, "True on 0 of 1 pods");
}

#[test]
fn an_unreadable_list_of_holds_holds_and_says_why() {
    let garbled = Pod { annotations: texts(&[(crds::names::READINESS_HOLDS_ANNOTATION, "mine!")]), ..pod() };
    let after = settled(vec![gate("m", json!({"default": "True", "failMode": "Open", "source": {"manual": {}}}))], garbled);
    assert_eq!(says(&after), Some(("False", "HoldsUnreadable")));
    assert!(after.condition(TYPE).unwrap().message.contains("[{\"owner\": \"me\""), "{after:?}");
}

#[test]
fn only_gates_that_ask_and_select_by_labels_have_policies() {
    assert_eq!(policy(&by_label(json!({}))), None);
    assert_eq!(policy(&by_label(json!({"admission": {"onCreate": "Policy"}}))), None, "it would be for every pod");
    let selected = json!({"selector": {"matchLabels": {"app": "it's"}}, "admission": {"onCreate": "Policy"}});
    let policy = policy(&by_label(selected)).unwrap();
    let namespaces = &policy.binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"];
    assert_eq!(namespaces, &json!({"kubernetes.io/metadata.name": "web", crds::names::INJECT_LABEL: "enabled"}));
    assert!(policy.policy["spec"]["matchConditions"].to_string().contains(r"it\\'s"), "{}", policy.policy);
    assert!(policy.name.len() <= 63 && policy.name.starts_with("pod-gate-web-demo-"), "{}", policy.name);
}

#[test]
fn a_namespace_beyond_its_limit_keeps_its_oldest_gates() {
    let of = |namespace: &str, index: usize| Gate {
        namespace: namespace.into(),
        created: NOW - 1_000 + i64::try_from(index).unwrap(),
        ..gate(&format!("gate-{index:03}"), json!({"source": {"label": {"key": "example"}}}))
    };
    let all = |many: usize| {
        let gates = (0..many).map(|index| of("tenant", index)).chain([of("web", 0)]);
        gates.map(|gate| (gate.key(), Arc::new(gate))).collect::<BTreeMap<_, _>>()
    };
    let mut world = World::default();
    assert_eq!(world.take_gates(all(GATES_PER_NAMESPACE)), BTreeSet::from(["tenant".to_owned(), "web".to_owned()]));
    assert!(world.surplus.is_empty());
    // Those that come do not concern a neighbour, and push nobody out.
    assert_eq!(world.take_gates(all(GATES_PER_NAMESPACE + 20)), BTreeSet::from(["tenant".to_owned()]));
    assert_eq!((world.gates.len(), world.surplus.len()), (GATES_PER_NAMESPACE + 1, 20));
    let conditions = |name: &str| {
        let key = ("tenant".to_owned(), name.to_owned());
        let gate = world.gates.get(&key).or_else(|| world.surplus.get(&key)).unwrap();
        status(&world, gate, &[], std::iter::empty(), None, None, NOW).conditions
    };
    let ready = |name: &str| {
        let said = conditions(name);
        said.into_iter().find(|condition| condition.type_ == "Ready").map(|condition| (condition.status, condition.reason)).unwrap()
    };
    assert_eq!(ready("gate-000"), ("True".to_owned(), "NoPodHeld".to_owned()));
    assert_eq!(ready("gate-119"), ("False".to_owned(), "TooManyGates".to_owned()));
    assert_eq!((standing(&conditions("gate-000")), standing(&conditions("gate-119"))), (vec!["Ready"], vec!["Stalled"]));
    let pod = Pod { gates: vec![TYPE.into()], labels: texts(&[("example", "true")]), ..pod() };
    assert_eq!(world.gates_of(&("tenant".into(), "p".into()), &pod).len(), GATES_PER_NAMESPACE);
    // One of the oldest goes: the next one has its place.
    let mut fewer = all(GATES_PER_NAMESPACE + 20);
    fewer.remove(&("tenant".into(), "gate-000".into()));
    world.take_gates(fewer);
    assert!(world.gates.contains_key(&("tenant".into(), format!("gate-{GATES_PER_NAMESPACE:03}"))));
}

#[test]
fn gates_beyond_their_namespaces_limit_cost_no_object_watches() {
    let of = |index: usize| {
        let name = format!("db-{index}");
        let object = json!({"objectCondition": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "type": "Available"}});
        let gate = gate(&format!("gate-{index:03}"), json!({"source": object}));
        (gate.key(), Arc::new(Gate { created: NOW - 1_000 + i64::try_from(index).unwrap(), ..gate }))
    };
    let mut world = World::default();
    world.take_gates((0..GATES_PER_NAMESPACE + 20).map(of).collect());
    let watched: BTreeSet<_> = world.wanted_objects().into_iter().map(|object| object.name).collect();
    assert_eq!(watched, (0..GATES_PER_NAMESPACE).map(|index| format!("db-{index}")).collect::<BTreeSet<_>>());
}

#[test]
fn a_resource_lists_conditions_that_its_namespaces_gates_ask_for() {
    let asking = |name: &str, type_: &str, more: Value| {
        let mut spec = json!({
            "conditionType": type_, "source": {"label": {"key": "example"}}, "selector": {"matchLabels": {"app": "web"}},
            "admission": {"onCreate": "Policy"},
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gate(name, spec)
    };
    let gates = [
        asking("b", "example.com/b", json!({})),
        asking("a", "example.com/a", json!({})),
        asking("a-too", "example.com/a", json!({})),
        asking("other-pods", "example.com/other-pods", json!({"selector": {"matchLabels": {"app": "dns"}}})),
        asking("asks-not", "example.com/asks-not", json!({"admission": {"onCreate": "None"}})),
        Gate { deleting: true, ..asking("goes", "example.com/goes", json!({})) },
        Gate { namespace: "dns".into(), ..asking("elsewhere", "example.com/elsewhere", json!({})) },
    ];
    let mut world = World::default();
    world.take_gates(gates.into_iter().map(|gate| (gate.key(), Arc::new(gate))).collect());
    let surplus = asking("surplus", "example.com/surplus", json!({}));
    world.surplus.insert(surplus.key(), Arc::new(surplus));
    let of_nodes = GateLinks { watched: true, ..GateLinks::default() };
    let found = links(of_nodes.clone(), &world, true, "web", &json!({"app": "web"}));
    assert_eq!(found.conditions, ["example.com/a", "example.com/b"]);
    let kept = ["a", "asks-not", "b", "other-pods", "surplus"].map(|name| format!("example.com/{name}"));
    assert_eq!(found.kept, Some(kept.into()));
    assert!(found.watched, "what gates of nodes mean stays");
    let unlabelled = links(of_nodes, &world, false, "web", &Value::Null);
    assert_eq!((unlabelled.conditions.len(), unlabelled.kept), (0, None), "there may be others");
}

#[test]
fn a_gate_whose_patches_are_forbidden_is_not_ready() {
    let labelled = Pod { labels: texts(&[("open", "true")]), ..pod() };
    let world = world(vec![gate("open", json!({"source": {"label": {"key": "open"}}}))], labelled);
    let views = decide(&world, &key(), None, NOW).views;
    let said = |views: &BTreeMap<String, planner::pod_gates::decide::GateView>, refused: Option<&'static str>| {
        let seen = || views.values().map(|view| ("p", view));
        let forbidden = ForbiddenWrites::of(seen(), |_| refused);
        let gate = world.gates.values().next().unwrap();
        let conditions = status(&world, gate, &[], seen(), None, forbidden.as_ref(), NOW).conditions;
        assert_eq!(standing(&conditions), [if forbidden.is_some() { "Stalled" } else { "Ready" }]);
        conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap()
    };
    let ready = said(&views, Some("pods \"p\" is forbidden"));
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "PatchForbidden"));
    assert!(ready.message.contains("1 pods, including p: pods \"p\" is forbidden"), "{}", ready.message);
    assert_eq!(said(&views, None).status, "True");
    // Another gate has something to write to the pod, this one has not.
    let calm = views.into_iter().map(|(name, view)| (name, planner::pod_gates::decide::GateView { due: false, ..view })).collect();
    assert_eq!(said(&calm, Some("no")).status, "True");
}

#[test]
fn the_condition_of_updates_in_place_has_no_second_writer() {
    // The definition refuses such a gate; an older one let it through.
    let mut gate = by_label(json!({"default": "True"}));
    gate.spec.condition_type = crds::names::IN_PLACE_GATE.to_owned();
    let pod = Pod { gates: vec![crds::names::IN_PLACE_GATE.to_owned()], ..labelled("true") };
    assert_eq!(decide(&world(vec![gate], pod), &key(), None, NOW).patch, None);
}
