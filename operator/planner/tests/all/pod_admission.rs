//! Readiness gates that pods get as they are created: what the webhook answers, beside what the policies do of themselves.

use super::admission::{KEYS, VALUES, selector, texts};
use cel::{Context, Program, Value};
use crds::label_selector::LabelSelector;
use k8s_openapi::ByteString;
use planner::{
    gates_shared::policy_objects::{ServedWebhook, quote},
    pod_gates::{
        Gate,
        policy_objects::{Means, Offers, clause, means, policy, webhook},
        review::{PodAnswered, is_for_webhook, review},
    },
};
use proptest::{collection, option, prelude::*, sample::select};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, sync::Arc};

/// Few, so that gates ask for the same, and pods list it already.
const TYPES: [&str; 3] = ["example.com/a", "example.com/b", "it's"];
const NAMESPACES: [&str; 2] = ["web", "shop"];
const SERVED: ServedWebhook<'_> = ServedWebhook { namespace: "system", service: "hook", path: "/mutate-pod", trusted: "authority" };

fn gate(namespace: &str, type_: &str, selector: &LabelSelector) -> Gate {
    let spec = json!({
        "conditionType": type_, "source": {"manual": {}}, "selector": serde_json::to_value(selector).unwrap(), "admission": {"onCreate": "Auto"},
    });
    Gate {
        namespace: namespace.into(),
        name: "open".into(),
        uid: "uid".into(),
        generation: 1,
        created: 0,
        deleting: false,
        spec: serde_json::from_value(spec).unwrap(),
    }
}

fn web() -> Gate {
    let match_labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    gate("web", "example.com/a", &LabelSelector { match_labels, ..LabelSelector::default() })
}

fn says(expression: &str, namespace: &str, pod: &Json) -> bool {
    let program = Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let mut context = Context::default();
    context.add_variable("object", pod).unwrap();
    context.add_variable("request", json!({"namespace": namespace})).unwrap();
    match program.execute(&context) {
        Ok(Value::Bool(verdict)) => verdict,
        other => panic!("{expression} of {pod}: {other:?}"),
    }
}

/// As the API server shows it: without a map or list that is empty.
fn pod(labels: Option<&BTreeMap<String, String>>, listed: &[String]) -> Json {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
    if let Some(labels) = labels {
        pod["metadata"]["labels"] = json!(labels);
    }
    if !listed.is_empty() {
        pod["spec"]["readinessGates"] = listed.iter().map(|type_| json!({"conditionType": type_})).collect();
    }
    pod
}

fn types(pod: &Json) -> Vec<String> {
    let listed = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
    listed.iter().map(|gate| gate["conditionType"].as_str().unwrap().to_owned()).collect()
}

/// What the policies of these gates make of a pod, one after the other, as the API server would.
fn by_policies(gates: &[Gate], namespace: &str, mut pod: Json) -> Json {
    for gate in gates {
        let Some(policy) = policy(gate) else { continue };
        let spec = &policy.policy["spec"];
        let wanted = &policy.binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"];
        let conditions = spec["matchConditions"].as_array().unwrap();
        let is_met = |condition: &Json| says(condition["expression"].as_str().unwrap(), namespace, &pod);
        if wanted != namespace || !conditions.iter().all(is_met) {
            continue;
        }
        let type_ = &gate.spec.condition_type;
        let mutation = spec["mutations"][0]["jsonPatch"]["expression"].as_str().unwrap();
        assert!(mutation.contains(&format!("{{'conditionType': {}}}", quote(type_))), "{mutation}");
        let mut listed = types(&pod);
        listed.push(type_.clone());
        pod["spec"]["readinessGates"] = listed.iter().map(|type_| json!({"conditionType": type_})).collect();
    }
    pod
}

fn request(namespace: &str, pod: &Json) -> Json {
    json!({"uid": "r", "operation": "CREATE", "namespace": namespace, "kind": {"group": "", "version": "v1", "kind": "Pod"}, "object": pod})
}

fn ask(request: &Json, gates: &[Gate]) -> (Json, PodAnswered) {
    let gates = gates.iter().cloned().map(Arc::new).collect();
    let (answer, answered) = review(json!({"request": request}).to_string().as_bytes(), |_| gates).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    (answer, answered)
}

/// What the webhook makes of it.
fn by_webhook(gates: &[Gate], namespace: &str, mut pod: Json) -> Json {
    let (answer, answered) = ask(&request(namespace, &pod), gates);
    let patch = &answer["response"]["patch"];
    assert_eq!(answered, if patch.is_null() { PodAnswered::Unchanged } else { PodAnswered::Injected });
    if !patch.is_null() {
        let patch: ByteString = serde_json::from_value(patch.clone()).unwrap();
        json_patch::patch(&mut pod, &serde_json::from_slice::<json_patch::Patch>(&patch.0).unwrap()).unwrap();
    }
    pod
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn policies_and_webhook_give_pods_the_same_conditions(
        asking in collection::vec((select(&NAMESPACES[..]), select(&TYPES[..]), selector()), 0..4),
        namespace in select(&NAMESPACES[..]),
        labels in option::weighted(0.9, collection::btree_map(texts(&KEYS), texts(&VALUES), 0..5)),
        listed in collection::btree_set(texts(&TYPES), 0..3),
    ) {
        let gates: Vec<_> = asking.iter().map(|(namespace, type_, selector)| gate(namespace, type_, selector)).collect();
        let listed: Vec<_> = listed.into_iter().collect();
        let pod = pod(labels.as_ref(), &listed);
        let ours = by_webhook(&gates, namespace, pod.clone());
        let theirs = by_policies(&gates, namespace, pod.clone());
        let sorted = |pod: &Json| {
            let mut types = types(pod);
            types.sort();
            types
        };
        prop_assert_eq!(sorted(&ours), sorted(&theirs));
        prop_assert_eq!(&types(&ours)[..listed.len()], &listed[..], "its own come first");
        prop_assert_eq!(&by_webhook(&gates, namespace, ours.clone()), &ours, "asked again, it changes nothing");
        let asked = webhook(&SERVED, gates.iter()).is_some_and(|entry| {
            let expression = entry["matchConditions"][0]["expression"].as_str().unwrap();
            says(expression, namespace, &pod)
        });
        prop_assert_eq!(asked, ours != pod);
    }
}

#[test]
fn the_webhook_sees_only_new_pods_of_labelled_namespaces() {
    let gates = [web(), Gate { namespace: "shop".into(), ..web() }, Gate { deleting: true, namespace: "gone".into(), ..web() }];
    let expression = |namespace: &str| {
        format!(
            "request.namespace == '{namespace}' && ((has(object.metadata.labels) && 'app' in object.metadata.labels && object.metadata.labels['app'] == 'web')) && !(has(object.spec.readinessGates) && object.spec.readinessGates.exists(gate, gate.conditionType == 'example.com/a'))"
        )
    };
    let expected = json!({
        "name": "pods.ingressdaemonsets.mumoshu.github.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"namespace": "system", "name": "hook", "path": "/mutate-pod", "port": 443}, "caBundle": ByteString(b"authority".to_vec()),
        },
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
        "matchPolicy": "Equivalent",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}],
        "namespaceSelector": {
            "matchLabels": {crds::names::INJECT_LABEL: "enabled"},
            "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["shop", "web"]}],
        },
        "matchConditions": [{"name": "selected-and-not-listed", "expression": format!("{} || {}", expression("shop"), expression("web"))}],
    });
    assert_eq!(webhook(&SERVED, gates.iter()).unwrap(), expected);
    assert_eq!(webhook(&SERVED, [].into_iter()), None);
    assert_eq!(clause(&Gate { deleting: true, ..web() }), None);
}

#[test]
fn long_selectors_of_one_namespace_take_no_room_of_others() {
    let long = |namespace: &str, index: usize| {
        let match_labels = BTreeMap::from([(format!("l{index}"), "x".repeat(63))]);
        gate(namespace, "example.com/a", &LabelSelector { match_labels, ..LabelSelector::default() })
    };
    let expression = |gates: &[Gate]| {
        let entry = webhook(&SERVED, gates.iter()).unwrap();
        entry["matchConditions"][0]["expression"].as_str().map(str::to_owned)
    };
    let mut gates: Vec<_> = (0..100).map(|index| long("greedy", index)).collect();
    gates.push(web());
    let said = expression(&gates).unwrap();
    assert_eq!(said, format!("request.namespace == 'greedy' || {}", clause(&web()).unwrap()));
    assert!(says(&said, "greedy", &pod(None, &[])) && !says(&said, "web", &pod(None, &[])));
    // Many namespaces that are long together take no room of one that is short.
    let mut together: Vec<_> = (0..16 * 24).map(|index| long(&format!("ns{:02}", index / 24), index)).collect();
    together.push(web());
    let exact: usize = together.iter().map(|gate| clause(gate).unwrap().len() + " || ".len()).sum();
    assert!(exact > 90_000 && exact / 16 < 8_000, "{exact} bytes");
    let said = expression(&together).unwrap();
    assert!(said.len() <= 90_000 && said.contains(&clause(&web()).unwrap()), "{} bytes", said.len());
    assert!(!says(&said, "web", &pod(None, &[])) && said.contains("'l0'"), "no more than has to give way");
    let many: Vec<_> = (0..5_000).map(|index| long(&format!("ns{index}"), index)).collect();
    assert_eq!(expression(&many), None, "an API server would refuse it, and all gates would go without");
    assert_eq!(
        webhook(&SERVED, many.iter()).unwrap()["namespaceSelector"]["matchExpressions"][0]["values"].as_array().unwrap().len(),
        5_000
    );
}

#[test]
fn the_best_allowed_means_gives_pods_the_readiness_gate() {
    let with = |on_create: &str, policies: bool, webhook: Option<&str>| {
        let mut gate = web();
        gate.spec.admission = serde_json::from_value(json!({"onCreate": on_create})).unwrap();
        match means(&gate, Offers { policies, webhook }) {
            Means::Policy => "Policy",
            Means::Webhook => "Webhook",
            Means::Missing(reason, _) => reason,
        }
    };
    let served = Some("system");
    for (on_create, policies, webhook, expected) in [
        ("Auto", true, served, "Policy"),
        ("Auto", false, served, "Webhook"),
        ("Auto", false, None, "NoPolicies"),
        ("Auto", true, Some("web"), "Policy"),
        ("Auto", false, Some("web"), "OperatorNamespace"),
        ("Policy", true, served, "Policy"),
        ("Policy", false, served, "NoPolicies"),
        ("Webhook", true, served, "Webhook"),
        ("Webhook", true, Some("web"), "OperatorNamespace"),
        ("Webhook", true, None, "NoWebhook"),
    ] {
        assert_eq!(with(on_create, policies, webhook), expected, "{on_create} {policies} {webhook:?}");
    }
}

#[test]
fn a_webhook_acts_only_for_selecting_gates_that_allow_it() {
    let with = |on_create: &str| {
        let mut gate = web();
        gate.spec.admission = serde_json::from_value(json!({"onCreate": on_create})).unwrap();
        is_for_webhook(&gate)
    };
    assert!(with("Auto") && with("Webhook") && !with("Policy") && !with("None"));
    assert!(!is_for_webhook(&Gate { deleting: true, ..web() }));
    let mut everything = web();
    everything.spec.selector = Some(LabelSelector::default());
    assert!(!is_for_webhook(&everything), "it would be for every pod");
}

#[test]
fn requests_without_new_pods_change_nothing_and_undecodable_ones_pass() {
    let selected = pod(Some(&BTreeMap::from([("app".to_owned(), "web".to_owned())])), &[]);
    let changed = |key: &str, value: Json| {
        let mut request = request("web", &selected);
        request[key] = value;
        let (answer, answered) = ask(&request, &[web()]);
        assert_eq!(answer["response"].get("patch").is_some(), answered == PodAnswered::Injected, "{answer}");
        answered
    };
    assert_eq!(changed("uid", "r".into()), PodAnswered::Injected);
    assert_eq!(changed("operation", "UPDATE".into()), PodAnswered::Unchanged);
    assert_eq!(changed("kind", json!({"group": "", "version": "v1", "kind": "Node"})), PodAnswered::Unchanged);
    assert_eq!(changed("kind", json!({"group": "metrics.k8s.io", "version": "v1", "kind": "Pod"})), PodAnswered::Unchanged);
    assert_eq!(changed("namespace", "shop".into()), PodAnswered::Unchanged);
    assert_eq!(changed("object", json!({"metadata": {"labels": {"app": "web"}}})), PodAnswered::Unchanged, "no spec to add it to");
    assert_eq!(changed("object", json!({"metadata": {"labels": 7}})), PodAnswered::Undecodable);
    assert_eq!(changed("object", json!({"metadata": {"labels": null}, "spec": {"readinessGates": null}})), PodAnswered::Unchanged);
    for body in ["", "{", "no", "7", "\"x\""] {
        assert!(review(body.as_bytes(), |_| Vec::new()).is_none(), "{body}");
    }
    let (answer, answered) = review(b"{}", |_| Vec::new()).unwrap();
    assert_eq!((&answer["response"]["allowed"], answered), (&json!(true), PodAnswered::Unchanged));
}
