//! What the API server is told about new nodes, as CEL, beside what the operator says of them itself.

use cel::{Context, Program, Value};
use crds::{
    label_selector::{LabelOperator, LabelRequirement, LabelSelector},
    node_readiness_gate::{
        Admission, DaemonSetRequirement, Effect, GateTaint, Inject, NodeReadinessGateSpec, OnCreate, Requirement, Tolerations,
    },
};
use k8s_openapi::api::core::v1::Taint;
use planner::{
    facts::NodeFacts,
    gates_shared::{Source, accepted::SETTLES, policy_objects::quote},
    node_gates::{
        Gate, GateClocks, World, decide,
        policy_objects::{self, Means, Offers, asked, clause, means, not_tainted, policies, policy_name, selected},
        record::annotation_key,
        satisfiable::unsatisfiable,
        world::DaemonSet,
    },
};
use proptest::{collection, option, prelude::*, sample::select};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// Few, so that selectors and labels meet; some that end a literal, a list or an expression of CEL where they are not escaped.
pub const KEYS: [&str; 5] = ["role", "topology.kubernetes.io/zone", "a.b", "it's", "x] || true"];
pub const VALUES: [&str; 9] = ["", "edge", "Edge", "it's", "\\", "\\'", "a\nb\u{7}", "ü\u{1f600}", "'] || true || '' in ['"];
const EFFECTS: [Effect; 3] = [Effect::NoSchedule, Effect::PreferNoSchedule, Effect::NoExecute];

pub fn texts(from: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    select(from).prop_map(str::to_owned)
}

fn requirement() -> impl Strategy<Value = LabelRequirement> {
    let operator = select(&[LabelOperator::In, LabelOperator::NotIn, LabelOperator::Exists, LabelOperator::DoesNotExist][..]);
    (texts(&KEYS), operator, collection::vec(texts(&VALUES), 0..4)).prop_map(|(key, operator, values)| LabelRequirement {
        key,
        operator,
        values,
    })
}

pub fn selector() -> impl Strategy<Value = LabelSelector> {
    (collection::btree_map(texts(&KEYS), texts(&VALUES), 0..3), collection::vec(requirement(), 0..4))
        .prop_map(|(match_labels, match_expressions)| LabelSelector { match_labels, match_expressions })
}

fn spec(node_selector: Option<LabelSelector>, all_nodes: bool) -> NodeReadinessGateSpec {
    let taint = GateTaint { key: "readiness.k8s.io/edge".into(), value: None, effect: Effect::NoSchedule };
    NodeReadinessGateSpec { node_selector, all_nodes, ..NodeReadinessGateSpec::new(taint, Vec::new()) }
}

fn gate(name: &str, uid: &str, spec: NodeReadinessGateSpec) -> Gate {
    Gate { name: name.into(), uid: uid.into(), generation: 1, created: 0, edited: None, deleting: false, spec, completion_annotation: None }
}

fn says(expression: &str, node: &Json) -> bool {
    let program = Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let mut context = Context::default();
    context.add_variable("object", node).unwrap();
    match program.execute(&context) {
        Ok(Value::Bool(verdict)) => verdict,
        other => panic!("{expression} of {node}: {other:?}"),
    }
}

/// As the API server shows it: without a map or list that is empty.
fn node(labels: Option<&BTreeMap<String, String>>, taints: &[Json]) -> Json {
    let mut node = json!({"metadata": {"name": "n"}, "spec": {}});
    if let Some(labels) = labels {
        node["metadata"]["labels"] = json!(labels);
    }
    if !taints.is_empty() {
        node["spec"]["taints"] = json!(taints);
    }
    node
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_selects_exactly_the_nodes_that_its_gate_selects(
        selector in option::weighted(0.95, selector()),
        all_nodes in prop::bool::weighted(0.05),
        labels in option::weighted(0.9, collection::btree_map(texts(&KEYS), texts(&VALUES), 0..5)),
    ) {
        let spec = spec(selector, all_nodes);
        let ours = spec.selects(|key| labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str));
        let theirs = selected(&spec).is_some_and(|expression| says(&expression, &node(labels.as_ref(), &[])));
        prop_assert_eq!(ours, theirs, "{:?}", selected(&spec));
    }

    #[test]
    fn a_policy_sees_its_taint_only_by_key_and_effect(
        key in texts(&KEYS),
        effect in select(&EFFECTS[..]),
        taints in collection::vec((texts(&KEYS), texts(&VALUES), select(&EFFECTS[..])), 0..4),
    ) {
        let there = taints.iter().any(|(known, _, its)| *known == key && *its == effect);
        let taint = GateTaint { key, value: Some("waiting".into()), effect };
        let listed: Vec<_> = taints.iter().map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect.as_str()})).collect();
        prop_assert_eq!(says(&not_tainted(&taint), &node(None, &listed)), !there);
    }

    #[test]
    fn a_webhook_is_asked_exactly_when_a_gate_would_taint(
        selectors in collection::vec(selector(), 0..3),
        labels in collection::btree_map(texts(&KEYS), texts(&VALUES), 0..5),
        tainted in any::<bool>(),
    ) {
        let gates: Vec<_> = selectors.into_iter().map(|selector| gate("g", "u", spec(Some(selector), false))).collect();
        let taints: Vec<_> = tainted.then(|| json!({"key": "readiness.k8s.io/edge", "effect": "NoSchedule"})).into_iter().collect();
        let expected = !tainted && gates.iter().any(|gate| gate.spec.selects(|key| labels.get(key).map(String::as_str)));
        let clauses: Vec<_> = gates.iter().filter_map(clause).collect();
        let asked = asked(&clauses).is_some_and(|expression| says(&expression, &node(Some(&labels), &taints)));
        prop_assert_eq!(asked, expected);
    }

    #[test]
    fn any_text_is_one_literal_of_cel(text in any::<String>()) {
        let program = Program::compile(&quote(&text)).unwrap();
        let value = program.execute(&Context::default()).unwrap();
        prop_assert!(matches!(&value, Value::String(same) if **same == text), "{:?} for {:?}", value, text);
    }

    #[test]
    fn a_policy_name_is_valid_whatever_its_gate_is_called(name in "[a-z0-9./-]{0,253}", uid in any::<String>()) {
        let name = policy_name(&gate(&name, &uid, spec(None, true)));
        let form = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        prop_assert!(name.len() <= 60 && name.chars().all(form) && !name.ends_with('-'), "{}", name);
    }
}

const EVERYTHING: Offers = Offers { policies: true, webhook: true };

fn edge() -> Gate {
    let labels = BTreeMap::from([("role".to_owned(), "edge".to_owned())]);
    gate("edge", "0a1b", spec(Some(LabelSelector { match_labels: labels, ..LabelSelector::default() }), false))
}

#[test]
fn a_policy_taints_new_selected_nodes_without_blocking_their_creation() {
    let mut edge = edge();
    edge.spec.taint.value = Some("pending".into());
    let [made] = &policies(&edge, true, EVERYTHING, true)[..] else { panic!("one policy") };
    assert_eq!(made.name, "readiness-gate-edge-".to_owned() + &crds::hash::hex(b"0a1b", 10));
    let record =
        r#"{"g":"edge","k":"readiness.k8s.io/edge","e":"NoSchedule","s":"held","o":"applied","c":"fresh","b":"","m":"","n":1,"t":0}"#;
    let expected = json!({
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"], "scope": "Cluster"},
        ]},
        "matchConditions": [
            {"name": "selected", "expression": "(has(object.metadata.labels) && 'role' in object.metadata.labels && object.metadata.labels['role'] == 'edge')"},
            {"name": "not-tainted", "expression": "!(has(object.spec.taints) && object.spec.taints.exists(t, t.key == 'readiness.k8s.io/edge' && t.effect == 'NoSchedule'))"},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
            "has(object.spec.taints) && size(object.spec.taints) > 0 \
             ? [JSONPatch{op: 'add', path: '/spec/taints/-', value: {'key': 'readiness.k8s.io/edge', 'effect': 'NoSchedule', 'value': 'pending'}}] \
             : [JSONPatch{op: 'add', path: '/spec/taints', value: [{'key': 'readiness.k8s.io/edge', 'effect': 'NoSchedule', 'value': 'pending'}]}]"
        }}, {"patchType": "JSONPatch", "jsonPatch": {"expression": format!(
            "has(object.metadata.annotations) && size(object.metadata.annotations) > 0 \
             ? [JSONPatch{{op: 'add', path: '/metadata/annotations/ingressdaemonsets.mumoshu.github.io~1gate-0a1b', value: '{record}'}}] \
             : [JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{'ingressdaemonsets.mumoshu.github.io/gate-0a1b': '{record}'}}}}]"
        )}}],
    });
    assert_eq!(made.policy["spec"], expected);
    assert_eq!(made.binding["spec"], json!({"policyName": made.name}));
    for object in [&made.policy, &made.binding] {
        assert_eq!(object["metadata"]["labels"][crds::names::GATE_LABEL], "0a1b");
        let owner = json!([{
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "NodeReadinessGate", "name": "edge", "uid": "0a1b", "controller": true,
        }]);
        assert_eq!(object["metadata"]["ownerReferences"], owner);
    }
}

#[test]
fn a_gate_without_a_cluster_object_owns_no_policy() {
    let [made] = &policies(&edge(), true, EVERYTHING, false)[..] else { panic!("one policy") };
    assert!(made.policy["metadata"].get("ownerReferences").is_none() && made.binding["metadata"].get("ownerReferences").is_none());
}

#[test]
fn successive_gates_of_one_name_have_different_policies() {
    let (first, second) = (gate("edge", "a", spec(None, true)), gate("edge", "b", spec(None, true)));
    assert_ne!(policy_name(&first), policy_name(&second));
}

#[test]
fn a_gate_that_taints_no_node_has_no_policy() {
    let none = |change: fn(&mut Gate), enforced: bool, offers: Offers| {
        let mut gate = edge();
        change(&mut gate);
        assert!(policies(&gate, enforced, offers, true).is_empty(), "{gate:?}");
    };
    none(|gate| gate.spec.dry_run = true, true, EVERYTHING);
    none(|gate| gate.deleting = true, true, EVERYTHING);
    none(|gate| gate.spec.admission = Some(Admission { on_create: OnCreate::None }), true, EVERYTHING);
    none(|gate| gate.spec.admission = Some(Admission { on_create: OnCreate::Webhook }), true, EVERYTHING);
    none(|gate| gate.spec.node_selector = Some(LabelSelector::default()), true, EVERYTHING);
    none(|_| {}, false, EVERYTHING);
    none(|_| {}, true, Offers { policies: false, webhook: true });
}

#[test]
fn the_best_allowed_and_available_means_taints_new_nodes() {
    let with = |on_create, policies, webhook| {
        let mut gate = edge();
        gate.spec.admission = Some(Admission { on_create });
        means(&gate, true, Offers { policies, webhook }).condition(Some(SETTLES)).0
    };
    assert_eq!(with(OnCreate::Auto, true, true), "Policy");
    assert_eq!(with(OnCreate::Auto, false, true), "Webhook");
    assert_eq!(with(OnCreate::Auto, false, false), "Reactive");
    assert_eq!(with(OnCreate::Policy, true, true), "Policy");
    assert_eq!(with(OnCreate::Policy, false, true), "Reactive");
    assert_eq!(with(OnCreate::Webhook, true, true), "Webhook");
    assert_eq!(with(OnCreate::Webhook, true, false), "Reactive");
    assert_eq!(with(OnCreate::None, true, true), "Reactive");
    assert_eq!(means(&edge(), true, EVERYTHING), Means::Policy, "Auto where nothing is said");
}

/// The `DaemonSet` controller asks the template, so a toleration that only its pods got would come too late.
#[test]
fn referenced_daemon_sets_get_the_toleration_in_their_template() {
    let mut gate = edge();
    let daemon_set = DaemonSetRequirement { namespace: "kube-system".into(), name: "dns".into(), current_revision: false };
    gate.spec.requirements = vec![Requirement { name: "dns".into(), daemon_set: Some(daemon_set), ..Requirement::default() }];
    assert_eq!(policies(&gate, true, EVERYTHING, true).len(), 1, "only when asked for");
    gate.spec.tolerations = Some(Tolerations { inject: Inject::Referenced });
    let [_, made] = &policies(&gate, true, EVERYTHING, true)[..] else { panic!("two policies") };
    assert_eq!(made.name, format!("{}-t0", policy_name(&gate)));
    assert_eq!(made.policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"], json!(["daemonsets"]));
    let wanted = |namespace: &str, name: &str, tolerations: Json| {
        let mut object = json!({"metadata": {"name": name}, "spec": {"template": {"spec": {}}}});
        if !tolerations.is_null() {
            object["spec"]["template"]["spec"]["tolerations"] = tolerations;
        }
        made.policy["spec"]["matchConditions"].as_array().unwrap().iter().all(|condition| {
            let program = Program::compile(condition["expression"].as_str().unwrap()).unwrap();
            let mut context = Context::default();
            context.add_variable("object", &object).unwrap();
            context.add_variable("request", json!({"namespace": namespace})).unwrap();
            matches!(program.execute(&context), Ok(Value::Bool(true)))
        })
    };
    assert!(wanted("kube-system", "dns", Json::Null));
    assert!(wanted("kube-system", "dns", json!([{"key": "readiness.k8s.io/edge", "operator": "Exists", "effect": "NoExecute"}])));
    assert!(!wanted("default", "dns", Json::Null) && !wanted("kube-system", "dnsmasq", Json::Null));
    for bears in [json!({"effect": "NoSchedule"}), json!({})] {
        let mut bears = bears;
        bears["key"] = "readiness.k8s.io/edge".into();
        bears["operator"] = "Exists".into();
        assert!(!wanted("kube-system", "dns", json!([bears])), "it bears the taint already");
    }
    // What would not be tainted for want of the toleration still gets it: that is how the gate can open.
    assert_eq!(policies(&gate, false, EVERYTHING, true).len(), 1);
}

#[test]
fn a_gate_taints_nothing_until_its_daemon_set_tolerates_it() {
    let mut gate = edge();
    let daemon_set = DaemonSetRequirement { namespace: "kube-system".into(), name: "dns".into(), current_revision: false };
    gate.spec.requirements = vec![Requirement { name: "dns".into(), daemon_set: Some(daemon_set), ..Requirement::default() }];
    gate.spec.tolerations = Some(Tolerations { inject: Inject::Referenced });
    let with = |tolerations: Json| {
        let pod = serde_json::from_value(json!({"containers": [], "tolerations": tolerations})).unwrap();
        let found = Some(Some(DaemonSet { pod, ..DaemonSet::default() }));
        let daemon_sets = BTreeMap::from([(("kube-system".into(), "dns".into()), Source { found, broken: None })]);
        unsatisfiable(&World { daemon_sets, ..World::default() }, &gate).is_none()
    };
    assert!(!with(json!([])));
    assert!(with(json!([{"key": "readiness.k8s.io/edge", "operator": "Exists", "effect": "NoSchedule"}])));
}

#[test]
fn a_record_from_node_creation_has_the_nodes_age() {
    let mut gate = edge();
    gate.spec.requirements = vec![serde_json::from_value(json!({"name": "mark", "nodeAnnotation": {"key": "example.com/ready"}})).unwrap()];
    gate.spec.release = Some(serde_json::from_value(json!({"timeout": {"after": "1m", "action": "Release"}})).unwrap());
    let recorded = policy_objects::record(&gate, 0).text();
    let facts = NodeFacts {
        labels: BTreeMap::from([("role".to_owned(), "edge".to_owned())]).into(),
        annotations: BTreeMap::from([(annotation_key("0a1b"), recorded)]).into(),
        taints: vec![Taint { key: "readiness.k8s.io/edge".into(), effect: "NoSchedule".into(), ..Taint::default() }],
        has_annotations: true,
        created: 1_000,
        ..NodeFacts::default()
    };
    let world = World { gates: BTreeMap::from([("0a1b".to_owned(), gate.into())]), ..World::default() };
    let at = |now| decide(&world, &BTreeSet::new(), "n", &facts, &GateClocks::new(), &mut |_| true, now);
    assert_eq!((at(1_059).patch, at(1_059).recheck_at), (None, Some(1_060)), "held, and nothing to write");
    let released = at(1_061);
    assert_eq!(released.transitions.iter().map(|transition| transition.held_for).collect::<Vec<_>>(), [Some(61)]);
}
