//! What gates and resources that are gone have left on a node, and what of it goes.

use super::{after, apply, facts, initializing, node, startup, tainted, taints, texts, world};
use crds::{
    names,
    node_readiness_gate::{Effect, GateTaint},
};
use planner::{
    node_gates::{
        World,
        leftovers::{GatesAndResources, Leftovers, MISSING_FOR, gone, leftovers, missing, of_gone},
        legacy, preset,
        record::annotation_key,
    },
    spec::node_rights::NodeRights,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Where every mark may be a resource's.
fn left(node: &Value, present: &BTreeSet<String>) -> Leftovers {
    let world = World { rights: NodeRights::all(), ..World::default() };
    leftovers(&facts(node), present, &GatesAndResources { world, ..GatesAndResources::default() })
}

#[test]
fn cleanup_removes_only_what_gates_left_on_a_node() {
    let waiting = world(startup(), &[]);
    let other = json!({"key": "other", "effect": "NoExecute"});
    let (mut held, _) = after(&waiting, &tainted("n1", std::slice::from_ref(&other)));
    held["metadata"]["annotations"]["ingressdaemonsets.mumoshu.github.io/gate-broken"] = "no record".into();
    held["metadata"]["annotations"]["mine"] = "kept".into();
    let found = left(&held, &BTreeSet::new());
    assert_eq!((found.taints, found.annotations.len()), (vec!["startup.k8s.io/initializing:NoSchedule".to_owned()], 2));
    apply(&mut held, &found.patch.unwrap()).unwrap();
    assert_eq!((taints(&held), texts(&held["metadata"]["annotations"])), (vec![other], BTreeMap::from([("mine".into(), "kept".into())])));
    assert_eq!(left(&held, &BTreeSet::new()).patch, None);
}

/// A node that three resources use and two hold detached.
fn held_by_resources() -> Value {
    let entry = |phase: &str, key: &str, time: i64, previous: Option<&str>| json!({ "id": 7, "phase": phase, "key": key, "value": "", "previous": previous, "time": time });
    let holders = json!({
        "aaaaaaaa": entry("Detached", "detached", 20, None),
        "bbbbbbbb": entry("Detached", "out", 10, Some("before")),
        "cccccccc": entry("Attached", "detached", 30, None),
    });
    let mut held = node("n1");
    held["metadata"]["labels"] =
        ["aaaaaaaa", "bbbbbbbb", "cccccccc"].into_iter().map(|uid8| (names::member_label(uid8), Value::from("serving"))).collect();
    held["metadata"]["labels"]["mine"] = "kept".into();
    held["metadata"]["annotations"] = json!({ names::HOLDERS_ANNOTATION: holders.to_string(), "detached": "", "out": "", "mine": "kept" });
    held
}

#[test]
fn cleanup_reverts_all_marks_of_gone_resources() {
    let mut held = held_by_resources();
    let found = left(&held, &BTreeSet::new());
    assert_eq!((found.labels.len(), found.restored.as_slice()), (3, &["annotation out".to_owned()][..]));
    apply(&mut held, &found.patch.unwrap()).unwrap();
    assert_eq!(texts(&held["metadata"]["labels"]), BTreeMap::from([("mine".into(), "kept".into())]));
    let stays = BTreeMap::from([("mine".into(), "kept".into()), ("out".into(), "before".into())]);
    assert_eq!(texts(&held["metadata"]["annotations"]), stays);
    assert_eq!(left(&held, &BTreeSet::new()).patch, None);
}

#[test]
fn cleanup_removes_or_restores_labels_of_gone_resources() {
    for previous in [None, Some("before")] {
        let mark = names::EXCLUDE_FROM_LOAD_BALANCERS_LABEL;
        let entry =
            json!({ "id": 7, "phase": "Detached", "key": format!("label:{mark}"), "value": "true", "previous": previous, "time": 1 });
        let mut held = node("n1");
        held["metadata"]["labels"] = json!({ mark: "true", "mine": "kept" });
        held["metadata"]["annotations"] = json!({ names::HOLDERS_ANNOTATION: json!({ "aaaaaaaa": entry }).to_string() });
        let found = left(&held, &BTreeSet::new());
        assert_eq!((found.labels.len(), found.restored.len()), if previous.is_some() { (0, 1) } else { (1, 0) });
        apply(&mut held, &found.patch.unwrap()).unwrap();
        assert_eq!(held["metadata"]["labels"].get(mark).and_then(Value::as_str), previous);
        assert_eq!(held["metadata"]["labels"]["mine"], "kept");
        assert!(texts(&held["metadata"]["annotations"]).is_empty());
    }
}

#[test]
fn resources_that_are_there_keep_their_labels_and_their_marks() {
    let mut held = held_by_resources();
    let present = BTreeSet::from(["aaaaaaaa".to_owned(), "bbbbbbbb".to_owned(), "cccccccc".to_owned()]);
    assert_eq!(left(&held, &present).patch, None);
    let found = left(&held, &BTreeSet::from(["aaaaaaaa".to_owned()]));
    apply(&mut held, &found.patch.unwrap()).unwrap();
    assert_eq!(held["metadata"]["annotations"]["detached"], "", "it is held by the one that stays");
    assert_eq!(held["metadata"]["annotations"]["out"], "before");
    let holders = held["metadata"]["annotations"][names::HOLDERS_ANNOTATION].as_str().unwrap();
    assert!(holders.contains("aaaaaaaa") && !holders.contains("bbbbbbbb"), "{holders}");
    assert!(held["metadata"]["labels"].get(names::member_label("aaaaaaaa")).is_some());
    assert!(held["metadata"]["labels"].get(names::member_label("bbbbbbbb")).is_none());
}

fn set(uid8s: &[&str]) -> BTreeSet<String> {
    uid8s.iter().map(|uid8| (*uid8).to_owned()).collect()
}

#[test]
fn a_running_operator_removes_only_what_gone_resources_left() {
    let known = GatesAndResources { world: World { rights: NodeRights::all(), ..World::default() }, ..GatesAndResources::default() };
    let (mut held, _) = after(&world(startup(), &[]), &held_by_resources());
    let (tainted, recorded) = (taints(&held), held["metadata"]["annotations"].as_object().unwrap().len());
    assert_eq!(of_gone(&facts(&held), &BTreeSet::new(), &known).patch, None);
    assert_eq!(of_gone(&facts(&held), &set(&["dddddddd"]), &known).patch, None);
    let found = of_gone(&facts(&held), &set(&["bbbbbbbb", "cccccccc", "dddddddd"]), &known);
    apply(&mut held, &found.patch.unwrap()).unwrap();
    let labels: Vec<_> = texts(&held["metadata"]["labels"]).into_keys().collect();
    assert_eq!(labels, [names::member_label("aaaaaaaa"), "mine".to_owned()]);
    let annotations = &held["metadata"]["annotations"];
    let holders = annotations[names::HOLDERS_ANNOTATION].as_str().unwrap();
    assert!(holders.contains("aaaaaaaa") && !holders.contains("bbbbbbbb") && !holders.contains("cccccccc"), "{holders}");
    assert_eq!((&annotations["detached"], &annotations["out"]), (&json!(""), &json!("before")));
    assert_eq!((taints(&held), annotations.as_object().unwrap().len()), (tainted, recorded), "what gates put there stays");
}

#[test]
fn one_patch_removes_labels_of_at_most_a_thousand_resources() {
    let mut held = node("n1");
    let all: BTreeSet<_> = (0..1_500).map(|index| format!("{index:08x}")).collect();
    held["metadata"]["labels"] = all.iter().map(|uid8| (names::member_label(uid8), Value::from("serving"))).collect();
    for left in [500, 0] {
        let patch = of_gone(&facts(&held), &all, &GatesAndResources::default()).patch.unwrap();
        assert!(patch.as_array().unwrap().len() < 2_100, "the API server takes 10,000 operations");
        apply(&mut held, &patch).unwrap();
        assert_eq!(texts(&held["metadata"]["labels"]).len(), left);
    }
}

#[test]
fn a_resource_is_gone_after_it_was_missing_five_minutes() {
    let nodes = [facts(&held_by_resources()), facts(&node("n2"))];
    let look = |present: &[&str], before: &BTreeMap<String, Duration>, now: u64| {
        let now = Duration::from_secs(now);
        let missing = missing(&nodes, &set(present), before, now);
        let gone = gone(&missing, now);
        (missing, gone)
    };
    let five_minutes = MISSING_FOR.as_secs();
    let (first, none) = look(&["aaaaaaaa", "bbbbbbbb"], &BTreeMap::new(), 100);
    assert_eq!((&first, none), (&BTreeMap::from([("cccccccc".to_owned(), Duration::from_secs(100))]), BTreeSet::new()));
    let (second, none) = look(&["aaaaaaaa"], &first, 99 + five_minutes);
    assert_eq!((second.len(), none), (2, BTreeSet::new()));
    let (third, gone) = look(&["aaaaaaaa"], &second, 100 + five_minutes);
    assert_eq!(gone, set(&["cccccccc"]));
    // The time of one that was seen again starts again.
    let (seen, gone) = look(&["aaaaaaaa", "bbbbbbbb"], &third, 101 + five_minutes);
    assert_eq!((seen.len(), gone), (1, set(&["cccccccc"])));
    assert_eq!(look(&["aaaaaaaa"], &seen, 100 + 3 * five_minutes).1, set(&["cccccccc"]));
}

#[test]
fn a_taint_that_was_there_before_stays_and_is_named() {
    let (held, _) = after(&world(startup(), &[]), &tainted("n1", &[initializing()]));
    let found = left(&held, &BTreeSet::new());
    assert_eq!((found.taints.len(), found.adopted.len(), found.annotations.len()), (0, 1, 1));
}

#[test]
fn records_of_vanished_gates_are_removed_with_their_taints() {
    let (held, _) = after(&world(startup(), &[]), &node("n1"));
    let (after, _) = after(&World::default(), &held);
    assert!(taints(&after).is_empty() && texts(&after["metadata"]["annotations"]).is_empty(), "{after}");
}

/// A taint that is not the operator's, and a record that the kubelet may have written.
fn isolated(uid: &str) -> Value {
    let record = json!({"g": "web", "k": "quarantine", "e": "NoExecute", "s": "held", "o": "applied", "c": "fresh", "t": 0});
    let mut held = tainted("n1", &[json!({"key": "quarantine", "effect": "NoExecute"})]);
    held["metadata"]["annotations"] = json!({ annotation_key(uid): record.to_string() });
    held
}

#[test]
fn taints_of_unknown_origin_stay_until_somebody_names_them() {
    for uid in ["gone", "ids-0a1b", preset::UID, legacy::UID] {
        let mut held = isolated(uid);
        let found = left(&held, &BTreeSet::new());
        assert_eq!((found.unknown.as_slice(), found.patch), (&["quarantine:NoExecute".to_owned()][..], None), "{uid}");
        let had = |effect| GateTaint { key: "quarantine".into(), value: None, effect };
        let naming = |effect| GatesAndResources { named: vec![had(effect)], ..GatesAndResources::default() };
        assert_eq!(leftovers(&facts(&held), &BTreeSet::new(), &naming(Effect::NoSchedule)).patch, None, "another effect");
        let mut remembering = GatesAndResources::default();
        remembering.world.remember_taints([(uid.to_owned(), vec![had(Effect::NoExecute)])].into_iter(), |_| true);
        for known in [naming(Effect::NoExecute), remembering] {
            assert_eq!(leftovers(&facts(&held), &BTreeSet::new(), &known).taints, ["quarantine:NoExecute"]);
        }
        let found = leftovers(&facts(&held), &BTreeSet::new(), &naming(Effect::NoExecute));
        apply(&mut held, &found.patch.unwrap()).unwrap();
        assert!(taints(&held).is_empty() && texts(&held["metadata"]["annotations"]).is_empty(), "{held}");
    }
}

#[test]
fn labels_forbidden_to_resources_stay_despite_the_holders_annotation() {
    let isolated = "node-restriction.kubernetes.io/isolated";
    for previous in [None, Some("false")] {
        let mark = |key: &str, previous: Option<&str>| json!({ "id": 7, "phase": "Detached", "key": format!("label:{key}"), "value": "true", "previous": previous, "time": 1 });
        let allowed = names::EXCLUDE_FROM_LOAD_BALANCERS_LABEL;
        let mut held = node("n1");
        held["metadata"]["labels"] = json!({ isolated: "true", allowed: "true" });
        let entries = json!({ "aaaaaaaa": mark(isolated, previous), "bbbbbbbb": mark(allowed, None) });
        held["metadata"]["annotations"] = json!({ names::HOLDERS_ANNOTATION: entries.to_string() });
        let found = leftovers(&facts(&held), &BTreeSet::new(), &GatesAndResources::default());
        assert_eq!(found.unknown_marks, [format!("label {isolated}")]);
        apply(&mut held, &found.patch.unwrap()).unwrap();
        assert_eq!(held["metadata"]["labels"], json!({ isolated: "true" }));
        assert_eq!(leftovers(&facts(&held), &BTreeSet::new(), &GatesAndResources::default()).patch, None);
    }
}
