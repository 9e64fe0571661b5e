//! What the tests of the two originals assert, of the gates that stand for them: istio-cni-taint (a `ConfigMap` of critical pods) and
//! nodetaintshandler (the preset `startup.k8s.io`). `docs/node-readiness-tests.md` says which test stands for which.

mod cleanup;

use crds::{
    label_selector::LabelSelector,
    node_readiness_gate::{ConditionStatus, Requirement},
};
use k8s_openapi::api::core::v1::Taint;
use planner::{
    facts::{NodeCondition, NodeFacts},
    gates_shared::Source,
    node_gates::{
        Gate, GateClocks, NodePlan, World,
        decide::decide,
        legacy, preset,
        transition::Happened,
        world::{Pod, PodSource, Pods},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Unix seconds of every look.
const NOW: i64 = 1_700_000_000;
/// When the gates were first known: nodes that are older were there before.
const SINCE: i64 = NOW - 100;

/// A Node as the API server stores it, as far as gates read it.
fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "created": NOW - 10},
        "spec": {},
        "conditions": [["Ready", "True", NOW]],
    })
}

fn tainted(name: &str, taints: &[Value]) -> Value {
    let mut node = node(name);
    node["spec"]["taints"] = taints.into();
    node
}

fn readiness() -> Value {
    json!({"key": "NodeReadiness", "effect": "NoSchedule"})
}

fn initializing() -> Value {
    json!({"key": "startup.k8s.io/initializing", "value": "wait", "effect": "NoSchedule"})
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

fn facts(node: &Value) -> NodeFacts {
    let condition = |condition: &Value| NodeCondition {
        type_: condition[0].as_str().unwrap().into(),
        status: if condition[1] == "True" { ConditionStatus::True } else { ConditionStatus::False },
        heartbeat: condition[2].as_i64().unwrap(),
        transition: NOW - 1000,
    };
    let taints: Vec<Taint> = serde_json::from_value(node["spec"]["taints"].clone()).unwrap_or_default();
    NodeFacts {
        uid: node["metadata"]["uid"].as_str().unwrap().to_owned(),
        labels: texts(&node["metadata"]["labels"]).into(),
        annotations: texts(&node["metadata"]["annotations"]).into(),
        has_annotations: !texts(&node["metadata"]["annotations"]).is_empty(),
        taints,
        conditions: node["conditions"].as_array().unwrap().iter().map(condition).collect(),
        created: node["metadata"]["created"].as_i64().unwrap(),
        ..NodeFacts::default()
    }
}

/// Pods of a cluster: namespace, labels, node, and what is said of them.
type Cluster<'a> = &'a [(&'a str, &'a str, &'a str, Pod)];

fn ready() -> Pod {
    Pod { ready: true, containers_ready: true, fresh_since: NOW, ..Pod::default() }
}

fn unready() -> Pod {
    Pod::default()
}

fn annotated(pod: Pod) -> Pod {
    Pod { annotations: BTreeMap::from([("startup.k8s.io/ready".to_owned(), "true".to_owned())]).into(), ..pod }
}

/// One gate, and the pods that it looks for as watches would show them.
fn world(gate: Gate, cluster: Cluster<'_>) -> World {
    let mut world = World::default();
    for source in gate.pod_sources() {
        let mut pods = Pods::default();
        for (place, (namespace, labels, node, pod)) in cluster.iter().enumerate() {
            if shows(&source, namespace, labels) {
                pods.on.entry((*node).to_owned()).or_default().insert(((*namespace).to_owned(), place.to_string()), pod.clone());
            }
        }
        world.pods.insert(source, Source { found: Some(pods), broken: None });
    }
    world.gates.insert(gate.uid.clone(), Arc::new(gate));
    world
}

fn shows(source: &PodSource, namespace: &str, labels: &str) -> bool {
    let labels: BTreeMap<_, _> = labels.split(',').filter_map(|label| label.split_once('=')).collect();
    (source.namespace.is_empty() || source.namespace == namespace) && source.selector.matches(|key| labels.get(key).copied())
}

fn look(world: &World, node: &Value, clocks: &GateClocks) -> NodePlan {
    decide(world, &BTreeSet::new(), node["metadata"]["name"].as_str().unwrap(), &facts(node), clocks, &mut |_| true, NOW)
}

/// As the API server does: a missing member equals null.
fn apply(node: &mut Value, patch: &Value) -> Result<(), json_patch::PatchError> {
    let mut now = node.clone();
    for operation in patch.as_array().unwrap() {
        let missing = now.pointer(operation["path"].as_str().unwrap()).is_none();
        if operation["op"] == "test" && operation["value"].is_null() && missing {
            continue;
        }
        let one: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
        json_patch::patch(&mut now, &one)?;
    }
    *node = now;
    Ok(())
}

/// One look; the Node with the patch applied, and how many patches there were: none or one.
fn after(world: &World, node: &Value) -> (Value, usize) {
    let plan = look(world, node, &GateClocks::default());
    let Some(patch) = plan.patch else { return (node.clone(), 0) };
    let mut node = node.clone();
    apply(&mut node, &patch).unwrap();
    (node, 1)
}

fn taints(node: &Value) -> Vec<Value> {
    node["spec"]["taints"].as_array().cloned().unwrap_or_default()
}

/// Entries of one list, each a name, a namespace and a selector.
fn requirements(lists: &[(&str, &str)]) -> Result<Vec<Requirement>, String> {
    let data: BTreeMap<_, _> = lists.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    legacy::requirements(&data)
}

fn config_map(lists: &[(&str, &str)]) -> Gate {
    legacy::gate("kube-system", "node.readiness", SINCE, requirements(lists).unwrap())
}

/// Name, namespace and selector of each requirement.
fn settings(requirements: &[Requirement]) -> Vec<(String, String, String)> {
    let of = |one: &Requirement| {
        let pods = one.pods.as_ref().unwrap();
        (one.name.clone(), pods.namespace.clone(), pods.selector.to_string())
    };
    requirements.iter().map(of).collect()
}

const ISTIO: &str = "- name: istio-cni\n  selector: app=istio\n  namespace: kube-system\n";

mod load_config {
    use super::*;

    #[track_caller]
    fn says(lists: &[(&str, &str)], wanted: &[(&str, &str, &str)]) {
        let wanted = wanted.iter().map(|(name, namespace, selector)| (name.to_string(), namespace.to_string(), selector.to_string()));
        assert_eq!(settings(&requirements(lists).unwrap()), wanted.collect::<Vec<_>>(), "{lists:?}");
    }

    #[test]
    fn trailing_blanks_of_a_selector_are_ignored() {
        says(
            &[("config", "- name: istio-cni\n  selector: 'app=istio  '\n  namespace: kube-system\n")],
            &[("istio-cni", "kube-system", "app=istio")],
        );
    }

    #[test]
    fn keys_are_merged() {
        says(
            &[
                ("config1", "- name: critical-test1\n  selector: critical=test1\n  namespace: test1\n"),
                ("config2", "- name: critical-test2\n  selector: critical=test2\n  namespace: test2\n"),
            ],
            &[("critical-test1", "test1", "critical=test1"), ("critical-test2", "test2", "critical=test2")],
        );
    }

    #[test]
    fn one_key_holds_several_entries() {
        says(
            &[(
                "config",
                "- {name: a, selector: critical=test1, namespace: test1}\n- {name: b, selector: critical=test2, namespace: test2}\n",
            )],
            &[("a", "test1", "critical=test1"), ("b", "test2", "critical=test2")],
        );
    }

    #[test]
    fn a_comma_in_a_selector_begins_a_new_requirement() {
        says(
            &[(
                "config",
                "- {name: a, selector: 'critical=test1, app=istio', namespace: test1}\n- {name: b, selector: critical=test2, namespace: test2}\n",
            )],
            &[("a", "test1", "critical=test1"), ("a-2", "test1", "app=istio"), ("b", "test2", "critical=test2")],
        );
    }

    #[test]
    fn every_form_of_a_selector_without_a_comma_is_understood() {
        for (selector, wanted) in [
            ("app=istio", "app=istio"),
            ("app == istio", "app=istio"),
            ("app!=istio", "app notin (istio)"),
            ("app in (istio)", "app=istio"),
            ("app notin (istio)", "app notin (istio)"),
            ("app", "app"),
            ("'!app'", "!app"),
            ("example.com/app=", "example.com/app="),
        ] {
            says(&[("config", &format!("- {{name: a, selector: {selector}, namespace: test}}"))], &[("a", "test", wanted)]);
        }
    }

    #[test]
    fn unknown_fields_and_empty_lists_are_no_error() {
        says(
            &[("config", "- {name: a, selector: app=istio, namespace: test, color: red}"), ("empty", ""), ("none", "[]")],
            &[("a", "test", "app=istio")],
        );
        says(&[], &[]);
    }

    #[test]
    fn all_that_is_wrong_is_explained() {
        for (list, words) in [
            ("- {name: a, selector: 'app in (a,b)', namespace: test}", "each comma in `app in (a,b)` begins a new requirement"),
            ("- {name: a, selector: 'app=istio,', namespace: test}", "names no label"),
            ("- {name: a, namespace: test}", "names no label"),
            ("- {name: a, selector: app=istio}", "namespace is missing"),
            ("- {name: a, selector: 'app=is tio', namespace: test}", "`is tio` is not a label value"),
            ("- {name: a, selector: 'cpu>4', namespace: test}", "not a label key"),
            ("- {name: a, selector: 'app within (a)', namespace: test}", "not a label selector"),
            ("name: a", "not a list of {name, namespace, selector}"),
            ("- [", "not a list of {name, namespace, selector}"),
        ] {
            let error = requirements(&[("config", list)]).expect_err(list);
            assert!(error.contains(words) && error.contains("key config"), "{list}: {error}");
        }
        let both = requirements(&[("a", "- {selector: x=y}"), ("b", "- {namespace: z}")]).unwrap_err();
        assert!(both.contains("key a, entry 1") && both.contains("key b, entry 1"), "{both}");
    }
}

mod readiness_taint {
    use super::*;

    #[test]
    fn an_unready_node_has_exactly_one_readiness_taint() {
        let world = world(config_map(&[("config", ISTIO)]), &[]);
        for before in [tainted("n1", &[readiness()]), node("n1")] {
            let (after, patches) = after(&world, &before);
            assert_eq!((taints(&after), patches), (vec![readiness()], 1));
        }
    }

    #[test]
    fn the_taint_is_known_by_key_and_effect() {
        let gate = config_map(&[]);
        assert!(gate.has_taint("NodeReadiness", "NoSchedule"));
        assert!(!gate.has_taint("NodeReadiness", "NoExecute") && !gate.has_taint("other", "NoSchedule"));
    }

    #[test]
    fn a_ready_node_has_no_readiness_taint() {
        let world = world(config_map(&[("config", ISTIO)]), &[("kube-system", "app=istio", "n1", ready())]);
        for before in [tainted("n1", &[readiness()]), node("n1")] {
            let (released, _) = after(&world, &before);
            assert_eq!(taints(&released), Vec::<Value>::new());
            assert_eq!(after(&world, &released).1, 0, "a node that is right is not written again");
        }
    }

    #[test]
    fn the_ready_condition_counts_despite_newer_heartbeats_of_others() {
        let world = world(config_map(&[("config", ISTIO)]), &[("kube-system", "app=istio", "n1", ready())]);
        for (conditions, held) in [
            (json!([["Ready", "True", NOW]]), false),
            (json!([["Ready", "False", NOW]]), true),
            (json!([]), true),
            // The original took the first of these for not ready, and the second for ready never.
            (json!([["Ready", "True", NOW - 60], ["NetworkProblem", "False", NOW]]), false),
            (json!([["Ready", "False", NOW - 60], ["NetworkProblem", "True", NOW]]), true),
        ] {
            let mut node = node("n1");
            node["conditions"] = conditions.clone();
            assert_eq!(!taints(&after(&world, &node).0).is_empty(), held, "{conditions}");
        }
    }

    #[test]
    fn unready_released_nodes_regain_the_taint_without_delay() {
        let up = world(config_map(&[("config", ISTIO)]), &[("kube-system", "app=istio", "n1", ready())]);
        let (released, _) = after(&up, &node("n1"));
        let down = world(config_map(&[("config", ISTIO)]), &[("kube-system", "app=istio", "n1", unready())]);
        let plan = look(&down, &released, &GateClocks::default());
        assert!(
            matches!(plan.transitions.as_slice(), [one] if one.happened == Happened::Added { late: false } && one.regression),
            "{plan:?}"
        );
        let room = planner::node_gates::retaint_budget::RetaintBudget::of(&config_map(&[]), 5000, 4999, 5000);
        assert!(room.is_open());
    }
}

mod controller {
    use super::*;

    fn cluster(nodes: &[&str]) -> Vec<Value> {
        nodes.iter().map(|name| node(name)).collect()
    }

    #[test]
    fn every_node_is_judged_by_its_own_pods() {
        let world = world(config_map(&[("config", ISTIO)]), &[("kube-system", "app=istio", "n2", ready())]);
        for nodes in [vec!["n1"], vec!["n1", "n2", "n3"]] {
            for node in cluster(&nodes) {
                let held = !taints(&after(&world, &node).0).is_empty();
                assert_eq!(held, node["metadata"]["name"] != "n2", "{node}");
            }
        }
    }

    #[test]
    fn existing_unready_nodes_are_tainted_when_the_gate_begins() {
        let world = world(config_map(&[("config", ISTIO)]), &[]);
        for nodes in [vec!["n1"], vec!["n1", "n2", "n3"]] {
            for mut node in cluster(&nodes) {
                node["metadata"]["created"] = (SINCE - 1000).into();
                assert_eq!(taints(&after(&world, &node).0), [readiness()]);
            }
        }
    }

    #[test]
    fn a_node_needs_one_ready_pod_for_each_requirement() {
        const TWO: &str = "- {name: a, selector: 'critical=test1, app=istio', namespace: test1}";
        /// What it is, the `ConfigMap`, the pods, and whether the node is ready.
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Cluster<'a>, bool);
        let one = ("config", "- {name: a, selector: critical=test1, namespace: test1}");
        let cases: [Case<'_>; 9] = [
            (
                "at least one pod satisfies",
                &[one],
                &[("test1", "critical=test1", "n1", ready()), ("test1", "critical=test1", "n1", unready())],
                true,
            ),
            ("wrong label", &[one], &[("test1", "critical=other", "n1", ready())], false),
            ("wrong namespace", &[one], &[("test2", "critical=test1", "n1", ready())], false),
            ("right but unready", &[one], &[("test1", "critical=test1", "n1", unready())], false),
            ("on another node", &[one], &[("test1", "critical=test1", "n2", ready())], false),
            ("empty configuration", &[], &[], true),
            ("some but not all labels", &[("config", TWO)], &[("test1", "critical=test1", "n1", ready())], false),
            (
                "all labels",
                &[("config", TWO)],
                &[
                    ("test1", "critical=test1", "n1", ready()),
                    ("test1", "app=istio", "n1", unready()),
                    ("test1", "app=istio", "n1", ready()),
                ],
                true,
            ),
            ("one pod with both labels", &[("config", TWO)], &[("test1", "critical=test1,app=istio", "n1", ready())], true),
        ];
        for (name, lists, cluster, wanted) in cases {
            let world = world(config_map(lists), cluster);
            assert_eq!(taints(&after(&world, &node("n1")).0).is_empty(), wanted, "{name}");
        }
    }
}

fn startup() -> Gate {
    preset::startup("", false, SINCE)
}

const INIT: &str = "startup.k8s.io/component=init";

mod startup_pod_ready {
    use super::*;

    #[test]
    fn a_startup_pod_is_ready_by_annotation_or_full_readiness() {
        let containers = Pod { ready: false, containers_ready: true, ..ready() };
        let not_all = Pod { containers_ready: false, ..ready() };
        let cases: [(&str, Cluster<'_>, bool); 9] = [
            ("no pods", &[], false),
            ("annotation", &[("any", INIT, "n1", annotated(unready()))], true),
            ("condition and containers", &[("any", INIT, "n1", ready())], true),
            ("not all containers", &[("any", INIT, "n1", not_all.clone())], false),
            ("no condition", &[("any", INIT, "n1", containers)], false),
            ("other node", &[("any", INIT, "n2", ready())], false),
            ("one of several", &[("any", INIT, "n1", unready()), ("other", INIT, "n1", ready())], true),
            ("annotation over containers", &[("any", INIT, "n1", annotated(not_all))], true),
            ("unlabelled", &[("any", "app=web", "n1", ready())], false),
        ];
        for (name, cluster, wanted) in cases {
            let (after, _) = after(&world(startup(), cluster), &tainted("n1", &[initializing()]));
            assert_eq!(taints(&after).is_empty(), wanted, "{name}");
        }
    }

    #[test]
    fn pods_that_cannot_be_listed_change_nothing() {
        let mut world = world(startup(), &[("any", INIT, "n1", ready())]);
        for source in world.pods.values_mut() {
            source.broken = Some("no answer".into());
        }
        let before = tainted("n1", &[initializing()]);
        assert_eq!(taints(&after(&world, &before).0), taints(&before));
    }

    #[test]
    fn a_namespace_keeps_pods_of_others_out() {
        let cluster: Cluster<'_> = &[("tenant", INIT, "n1", ready())];
        let (after, _) = after(&world(preset::startup("ops", false, SINCE), cluster), &tainted("n1", &[initializing()]));
        assert_eq!(taints(&after), [initializing()]);
    }
}

mod startup_taint {
    use super::*;

    fn is_ready() -> World {
        world(startup(), &[("any", INIT, "n1", ready())])
    }

    #[test]
    fn the_startup_taint_is_known_by_key_and_effect() {
        assert!(startup().has_taint("startup.k8s.io/initializing", "NoSchedule"));
        assert!(!startup().has_taint("startup.k8s.io/initializing", "NoExecute"));
        assert!(!startup().has_taint("other", "NoSchedule"));
    }

    #[test]
    fn one_write_removes_the_taint_and_sets_the_annotation() {
        let other = json!({"key": "other", "effect": "NoExecute"});
        let (released, patches) = after(&is_ready(), &tainted("n1", &[initializing(), other.clone()]));
        assert_eq!((taints(&released), patches), (vec![other], 1));
        assert_eq!(released["metadata"]["annotations"][preset::COMPLETED], NOW.to_string());
        assert_eq!(after(&is_ready(), &released).1, 0, "the second look writes nothing");
    }

    #[test]
    fn a_stale_write_fails_whole_before_the_next_succeeds() {
        let seen = tainted("n1", &[initializing()]);
        let plan = look(&is_ready(), &seen, &GateClocks::default());
        let mut now = tainted("n1", &[json!({"key": "first", "effect": "NoSchedule"}), initializing()]);
        apply(&mut now, &plan.patch.unwrap()).unwrap_err();
        let (released, _) = after(&is_ready(), &now);
        assert_eq!(taints(&released), [json!({"key": "first", "effect": "NoSchedule"})]);
        assert_eq!(released["metadata"]["annotations"][preset::COMPLETED], NOW.to_string());
    }

    #[test]
    fn an_untainted_node_keeps_its_completion_annotation() {
        let mut before = node("n1");
        before["metadata"]["annotations"] = json!({preset::COMPLETED: "1600000000"});
        let (after, _) = after(&is_ready(), &before);
        assert_eq!(after["metadata"]["annotations"][preset::COMPLETED], "1600000000");
    }

    #[test]
    fn the_taint_stays_until_the_startup_pod_is_ready() {
        let waiting = world(startup(), &[("any", INIT, "n1", unready())]);
        let (held, _) = after(&waiting, &tainted("n1", &[initializing()]));
        assert_eq!(taints(&held), [initializing()]);
        assert_eq!(taints(&after(&is_ready(), &held).0), Vec::<Value>::new());
    }

    #[test]
    fn new_nodes_outside_system_pools_get_the_startup_taint() {
        let empty = world(startup(), &[]);
        assert_eq!(taints(&after(&empty, &node("n1")).0), [initializing()]);
        for (mode, wanted) in [("system", vec![]), ("user", vec![initializing()])] {
            let mut node = node("n1");
            node["metadata"]["labels"] = json!({"kubernetes.azure.com/mode": mode});
            assert_eq!(taints(&after(&empty, &node).0), wanted, "{mode}");
        }
    }

    #[test]
    fn a_released_node_is_never_tainted_again() {
        let (released, _) = after(&is_ready(), &tainted("n1", &[initializing()]));
        let gone = world(startup(), &[]);
        assert_eq!(after(&gone, &released), (released, 0));
    }
}

mod backfill {
    use super::*;

    fn old() -> Value {
        let mut node = node("n1");
        node["metadata"]["created"] = (SINCE - 1000).into();
        node
    }

    fn look_knowing(gate: Gate, node: &Value, idle: Option<bool>) -> (NodePlan, Vec<Value>) {
        let mut clocks = GateClocks::default();
        clocks.entry(preset::UID.to_owned()).or_default().idle = idle;
        let plan = look(&world(gate, &[]), node, &clocks);
        let mut node = node.clone();
        if let Some(patch) = &plan.patch {
            apply(&mut node, patch).unwrap();
        }
        (plan, taints(&node))
    }

    #[test]
    fn backfill_taints_existing_nodes_only_while_they_are_idle() {
        let gate = || preset::startup("", true, SINCE);
        let (plan, _) = look_knowing(gate(), &old(), None);
        assert!(plan.patch.is_none() && plan.asks_whether_idle.contains(preset::UID), "it is asked first: {plan:?}");
        assert_eq!(look_knowing(gate(), &old(), Some(true)).1, [initializing()]);
        assert!(look_knowing(gate(), &old(), Some(false)).1.is_empty(), "a workload is there");
        assert!(look_knowing(startup(), &old(), Some(true)).1.is_empty(), "no backfill was asked for");
    }

    #[test]
    fn a_node_that_was_completed_is_not_tainted_by_backfill() {
        let mut node = old();
        node["metadata"]["annotations"] = json!({preset::COMPLETED: "1600000000"});
        let (plan, taints) = look_knowing(preset::startup("", true, SINCE), &node, Some(true));
        assert!(taints.is_empty() && plan.asks_whether_idle.is_empty(), "{plan:?}");
    }
}

#[test]
fn both_gates_list_pods_by_label_and_namespace() {
    let of = |gate: Gate| gate.pod_sources().map(|source| source.to_string()).collect::<Vec<_>>();
    assert_eq!(of(startup()), ["pods startup.k8s.io/component=init in any namespace"]);
    assert_eq!(of(config_map(&[("config", ISTIO)])), ["pods app=istio in namespace kube-system"]);
    assert!(LabelSelector::default().is_empty());
}

/// What `deploy/optional` has in a file.
fn samples(file: &str) -> Vec<Value> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/optional").join(file);
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_sample_startup_daemon_set_fits_the_startup_preset() {
    let sample = &samples("startup-daemonset.yaml")[0];
    assert_eq!((&sample["kind"], &sample["metadata"]["name"]), (&json!("DaemonSet"), &json!("node-startup-init")));
    let gate = preset::startup("", false, 0);
    let pods = gate.spec.requirements.iter().find_map(|requirement| requirement.pods.as_ref()).unwrap();
    let template = &sample["spec"]["template"];
    assert!(pods.selector.matches(|key| template["metadata"]["labels"][key].as_str()), "{}", template["metadata"]);
    let taint = &gate.spec.taint;
    let toleration = json!([{ "key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect }]);
    assert_eq!(template["spec"]["tolerations"], toleration);
}

#[test]
fn the_legacy_role_allows_the_config_maps_looked_for() {
    let objects = samples("legacy-configmap.yaml");
    let role = objects.iter().find(|object| object["kind"] == "Role").unwrap();
    assert_eq!(role["metadata"]["namespace"], legacy::NAMESPACE);
    assert_eq!(role["rules"][0]["resourceNames"], json!(legacy::NAMES));
}
