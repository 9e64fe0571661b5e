//! The health checkers' `DaemonSets`: how they change, and what is said when they cannot have their port.

use crate::world;

use crds::{
    IngressDaemonSet, IngressDaemonSetStatus,
    ledger::{Ledger, ServedPort},
    names::member_label,
};
use k8s_openapi::api::core::v1::Taint;
use planner::{
    Action, Plan, Snapshot, decide,
    facts::{DaemonSetFacts, NodeFacts, OtherResource},
    plan::Supporting,
    snapshot::CheckersRefusal,
    spec::node_rights::NodeRights,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};
use world::{
    World,
    cluster::UID8,
    operator::Operator,
    wish::{Marks, Wish},
};

const PORT: u16 = 10080;

/// A settled resource, to which a health port is added.
fn snapshot() -> Snapshot {
    let mut world = World::new(Wish::new(Marks::Token, 1), 1);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    let mut snapshot = operator.snapshot(&world).unwrap();
    snapshot.resource.spec.health_check_node_ports = vec![PORT.into()];
    snapshot.daemon_sets.clear();
    snapshot.resource.status.as_mut().unwrap().rollout.as_mut().unwrap().served_ports.clear();
    snapshot
}

/// What is written of the `DaemonSet`, if anything.
fn written(plan: &Plan) -> Option<Value> {
    plan.actions.iter().find_map(|action| match action {
        Action::Apply { object: Supporting::DaemonSet(_), body } => Some((**body).clone()),
        _ => None,
    })
}

/// The snapshot after that, when all its pods are new and ready, or not yet.
fn store(snapshot: &mut Snapshot, body: &Value, settled: bool) {
    snapshot.daemon_sets = vec![DaemonSetFacts {
        name: body["metadata"]["name"].as_str().unwrap().into(),
        uid: "u".into(),
        port: PORT,
        spec: Arc::new(body["spec"].clone()),
        observed: true,
        desired: 1,
        updated: i32::from(settled),
        ready: i32::from(settled),
        owned: true,
    }];
}

fn strategy(body: &Value) -> Value {
    body["spec"]["updateStrategy"]["rollingUpdate"].clone()
}

fn surge() -> Value {
    json!({"maxSurge": 1, "maxUnavailable": 0})
}

fn one_ends_first() -> Value {
    json!({"maxSurge": 0, "maxUnavailable": 1})
}

#[test]
fn daemon_sets_are_named_after_their_resource_and_port() {
    let snapshot = snapshot();
    let body = written(&decide(&snapshot)).unwrap();
    assert_eq!(
        (snapshot.resource.name.as_str(), body["kind"].as_str(), body["metadata"]["name"].as_str()),
        ("edge", Some("DaemonSet"), Some("edge-10080"))
    );
    let pod = &body["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert!(pod["containers"][0]["args"].as_array().unwrap().contains(&json!("--port=10080")), "{pod}");
}

#[test]
fn a_new_health_checker_starts_before_the_old_one_ends() {
    let mut snapshot = snapshot();
    let first = written(&decide(&snapshot)).unwrap();
    assert_eq!(strategy(&first), surge());
    assert_eq!(first["spec"]["template"]["spec"]["containers"][0]["ports"], Value::Null, "a declared port would block the surge");
    store(&mut snapshot, &first, true);
    assert_eq!(written(&decide(&snapshot)), None);
    snapshot.health_checker_image = "checker:2".into();
    assert_eq!(strategy(&written(&decide(&snapshot)).unwrap()), surge());
}

/// Changes the template while its pods cannot hand over, and expects two steps.
fn expect_two_steps(snapshot: &mut Snapshot) {
    let first = written(&decide(snapshot)).unwrap();
    assert_eq!(strategy(&first), one_ends_first());
    store(snapshot, &first, false);
    assert_eq!(written(&decide(snapshot)), None, "the strategy waits for the pods");
    store(snapshot, &first, true);
    let second = written(&decide(snapshot)).unwrap();
    assert_eq!(strategy(&second), surge());
    assert_eq!(second["spec"]["template"], first["spec"]["template"]);
    store(snapshot, &second, true);
    assert_eq!(written(&decide(snapshot)), None);
}

#[test]
fn health_checkers_without_hand_over_end_before_new_ones_start() {
    let mut snapshot = snapshot();
    let mut old = written(&decide(&snapshot)).unwrap();
    old["spec"]["updateStrategy"]["rollingUpdate"] = one_ends_first();
    let former = &mut old["spec"]["template"]["spec"]["containers"][0];
    (former["image"], former["env"]) = ("checker:0".into(), json!([former["env"][0]]));
    store(&mut snapshot, &old, true);
    expect_two_steps(&mut snapshot);
}

#[test]
fn a_lost_node_does_not_block_health_checkers_elsewhere() {
    let mut snapshot = snapshot();
    let first = written(&decide(&snapshot)).unwrap();
    let node = NodeFacts::clone(snapshot.nodes.values().next().unwrap());
    Arc::make_mut(&mut snapshot.nodes).insert("lost".into(), NodeFacts { ready: false, silent: true, uid: "lost".into(), ..node }.into());
    // Of three pods one is of the former template, and none of its node is ready.
    let counts = |snapshot: &mut Snapshot, body: &Value, updated: i32, ready: i32| {
        store(snapshot, body, true);
        let set = &mut snapshot.daemon_sets[0];
        (set.desired, set.updated, set.ready) = (3, updated, ready);
    };
    counts(&mut snapshot, &first, 3, 2);
    assert_eq!(written(&decide(&snapshot)), None, "at rest nothing is written for it");
    snapshot.health_checker_image = "checker:2".into();
    let second = written(&decide(&snapshot)).unwrap();
    assert_eq!(strategy(&second), json!({"maxSurge": 2, "maxUnavailable": 0}), "the pod that no kubelet starts takes one");
    counts(&mut snapshot, &second, 1, 2);
    assert_eq!(written(&decide(&snapshot)), None);
    // A port that is not wanted any more goes although its pod on the lost node cannot be replaced.
    snapshot.resource.spec.health_check_node_ports = vec![(PORT + 1).into()];
    let new = written(&decide(&snapshot)).unwrap();
    let set = |body: &Value, port| {
        let name = body["metadata"]["name"].as_str().unwrap().to_owned();
        DaemonSetFacts {
            name,
            uid: "u".into(),
            port,
            spec: Arc::new(body["spec"].clone()),
            observed: true,
            desired: 3,
            updated: 2,
            ready: 2,
            owned: true,
        }
    };
    snapshot.daemon_sets = vec![set(&second, PORT), set(&new, PORT + 1)];
    let gone = decide(&snapshot)
        .actions
        .into_iter()
        .any(|action| matches!(action, Action::Delete { object: Supporting::DaemonSet(name), .. } if name == "edge-10080"));
    assert!(gone, "the new port serves on all nodes that can");
    // Once it is back, its pod counts.
    for node in Arc::make_mut(&mut snapshot.nodes).values_mut() {
        *node = NodeFacts { ready: true, silent: false, ..(**node).clone() }.into();
    }
    let gone =
        decide(&snapshot).actions.into_iter().any(|action| matches!(action, Action::Delete { object: Supporting::DaemonSet(_), .. }));
    assert!(!gone);
}

/// Four nodes; what is said of the last `count`.
fn four_nodes(snapshot: &mut Snapshot, count: usize, change: impl Fn(&mut NodeFacts)) {
    let nodes = Arc::make_mut(&mut snapshot.nodes);
    let node = NodeFacts::clone(nodes.values().next().unwrap());
    nodes.clear();
    for index in 0..4 {
        let mut node = NodeFacts { uid: format!("n{index}"), ..node.clone() };
        if index >= 4 - count {
            change(&mut node);
        }
        nodes.insert(format!("n{index}"), node.into());
    }
}

/// Whether the port of before goes, with these counts of the new one: desired, updated, ready.
fn old_port_goes(snapshot: &Snapshot, counts: [i32; 3]) -> bool {
    let mut snapshot = snapshot.clone();
    let old = written(&decide(&snapshot)).unwrap();
    snapshot.resource.spec.health_check_node_ports = vec![(PORT + 1).into()];
    let new = written(&decide(&snapshot)).unwrap();
    let [desired, updated, ready] = counts;
    let set = |body: &Value, port, updated, ready| {
        let (name, spec) = (body["metadata"]["name"].as_str().unwrap().to_owned(), Arc::new(body["spec"].clone()));
        DaemonSetFacts { name, uid: "u".into(), port, spec, observed: true, desired, updated, ready, owned: true }
    };
    snapshot.daemon_sets = vec![set(&old, PORT, desired, desired), set(&new, PORT + 1, updated, ready)];
    let plan = decide(&snapshot);
    plan.actions.iter().any(|action| matches!(action, Action::Delete { object: Supporting::DaemonSet(name), .. } if name == "edge-10080"))
}

#[test]
fn a_health_port_stays_until_reachable_nodes_serve_its_successor() {
    let silent = |node: &mut NodeFacts| (node.ready, node.silent) = (false, true);
    let unreachable = |node: &mut NodeFacts| {
        silent(node);
        for effect in ["NoSchedule", "NoExecute"] {
            node.taints.push(Taint { key: "node.kubernetes.io/unreachable".into(), effect: effect.into(), ..Taint::default() });
        }
    };
    // Nothing is known of any node.
    let mut all_lost = snapshot();
    four_nodes(&mut all_lost, 4, unreachable);
    assert!(!old_port_goes(&all_lost, [4, 0, 0]) && !old_port_goes(&all_lost, [4, 4, 0]));
    // One joins: its kubelet starts pods, so that its own is one of the three that are ready.
    let mut joining = snapshot();
    four_nodes(&mut joining, 1, |node| node.ready = false);
    assert!(!old_port_goes(&joining, [4, 4, 3]) && old_port_goes(&joining, [4, 4, 4]));
    // One is lost; with the tolerations of the spec the DaemonSet's controller does not count it.
    let mut one_lost = snapshot();
    four_nodes(&mut one_lost, 1, unreachable);
    assert!(!old_port_goes(&one_lost, [4, 3, 2]) && old_port_goes(&one_lost, [4, 3, 3]));
    one_lost.resource.spec.health_checker = serde_json::from_value(json!({"tolerations": []})).unwrap();
    assert!(!old_port_goes(&one_lost, [3, 3, 2]) && old_port_goes(&one_lost, [3, 3, 3]));
}

/// Values of an environment variable of the health checker.
fn variables(body: &Value, name: &str) -> Vec<Value> {
    let all = body["spec"]["template"]["spec"]["containers"][0]["env"].as_array().into_iter().flatten();
    all.filter(|variable| variable["name"] == name).map(|variable| variable["value"].clone()).collect()
}

#[test]
fn health_checkers_of_a_resource_share_one_key() {
    let mut snapshot = snapshot();
    let secrets = |plan: &Plan| {
        let made = |action: &Action| match action {
            Action::Apply { object: object @ Supporting::Secret(_), body } => Some((object.clone(), (**body).clone())),
            _ => None,
        };
        plan.actions.iter().filter_map(made).collect::<Vec<_>>()
    };
    // One that the resource brings has other pods, too.
    snapshot.resource.spec.health_checker = serde_json::from_value(json!({"serviceAccountName": "default"})).unwrap();
    snapshot.asserted.clear();
    let plan = decide(&snapshot);
    let [(object, secret)] = secrets(&plan).try_into().unwrap();
    assert_eq!(secret["data"], Value::Null, "the value is no part of a plan");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], json!(snapshot.resource.uid), "it goes with the resource");
    let checker = written(&plan).unwrap();
    let pod = &checker["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][1]["secret"], json!({"secretName": secret["metadata"]["name"]}), "not optional");
    let mount = &pod["containers"][0]["volumeMounts"][1];
    assert_eq!((&mount["name"], &mount["readOnly"]), (&pod["volumes"][1]["name"], &json!(true)));
    assert_eq!(variables(&checker, "HAND_OVER_KEY"), [json!(format!("{}/key", mount["mountPath"].as_str().unwrap()))]);
    snapshot.asserted.insert(planner::objects::health_checker::assertion(&object, &secret));
    assert_eq!(secrets(&decide(&snapshot)), []);
}

#[test]
fn health_checkers_take_over_from_keyless_ones_without_a_gap() {
    let mut snapshot = snapshot();
    let mut old = written(&decide(&snapshot)).unwrap();
    assert_eq!(variables(&old, "TAKE_UNPROVED"), [Value::Null; 0]);
    let former = &mut old["spec"]["template"]["spec"]["containers"][0];
    former["env"] = json!([former["env"][0]]);
    store(&mut snapshot, &old, true);
    let first = written(&decide(&snapshot)).unwrap();
    assert_eq!((strategy(&first), variables(&first, "TAKE_UNPROVED")), (surge(), vec![json!("true")]));
    store(&mut snapshot, &first, false);
    assert_eq!(written(&decide(&snapshot)), None, "a node may still have the former one");
    store(&mut snapshot, &first, true);
    let second = written(&decide(&snapshot)).unwrap();
    assert_eq!((strategy(&second), variables(&second, "TAKE_UNPROVED")), (surge(), vec![]));
    for settled in [false, true] {
        store(&mut snapshot, &second, settled);
        assert_eq!(written(&decide(&snapshot)), None);
    }
}

#[test]
fn class_secrets_and_tolerations_of_health_checkers_come_from_spec() {
    let pod = |checker: Value| written(&decide(&with_account(checker))).unwrap()["spec"]["template"]["spec"].clone();
    let fields = |pod: &Value| ["priorityClassName", "imagePullSecrets", "tolerations"].map(|field| pod[field].clone());
    let all = json!([{"key": "", "operator": "Exists", "value": "", "effect": "", "tolerationSeconds": null}]);
    assert_eq!(fields(&pod(json!({}))), ["system-node-critical".into(), json!([]), all.clone()]);
    assert_eq!(fields(&pod(json!({"priorityClassName": ""}))), ["".into(), json!([]), all]);
    let own = json!({"priorityClassName": "edge", "imagePullSecrets": [{"name": "registry"}], "tolerations": [{"key": "a", "operator": "Exists"}]});
    assert_eq!(fields(&pod(own.clone()))[..2], ["edge".into(), own["imagePullSecrets"].clone()]);

    // What is taken away is written, too, also where no pod came up; what stands is not written again.
    for (before, after) in [(&own, &json!({})), (&json!({}), &own), (&json!({}), &json!({"priorityClassName": ""}))] {
        for settled in [true, false] {
            let mut snapshot = with_account(before.clone());
            let body = written(&decide(&snapshot)).unwrap();
            store(&mut snapshot, &body, settled);
            assert_eq!(written(&decide(&snapshot)), None, "{before}");
            snapshot.resource.spec.health_checker = with_account(after.clone()).resource.spec.health_checker.clone();
            assert!(written(&decide(&snapshot)).is_some(), "{before} {after} {settled}");
        }
    }
}

#[test]
fn health_checkers_at_another_address_end_before_new_ones_start() {
    let mut snapshot = snapshot();
    let old = written(&decide(&snapshot)).unwrap();
    store(&mut snapshot, &old, true);
    snapshot.resource.spec.health_checker = serde_json::from_value(json!({"bindAddress": "0.0.0.0"})).unwrap();
    expect_two_steps(&mut snapshot);
}

#[test]
fn a_health_port_conflict_is_reported_while_it_lasts() {
    let mut snapshot = snapshot();
    let condition = |snapshot: &Snapshot| {
        let conditions = decide(snapshot).status.conditions;
        conditions.into_iter().find(|condition| condition.type_ == "HealthCheckPortConflict")
    };
    assert_eq!(condition(&snapshot), None);
    snapshot.port_conflicts = BTreeSet::from(["node n1: port 10080 is taken".into(), "node n2: port 10080 is taken".into()]);
    let found = condition(&snapshot).unwrap();
    assert_eq!((found.status.as_str(), found.message.as_str()), ("True", "node n1: port 10080 is taken (and 1 more)"));
    snapshot.port_conflicts.clear();
    assert_eq!(condition(&snapshot), None);
}

#[test]
fn a_service_on_a_served_health_port_holds_nothing() {
    let mut snapshot = snapshot();
    let conditions = |snapshot: &mut Snapshot| std::mem::take(&mut snapshot.resource.status.as_mut().unwrap().conditions);
    let accepted = conditions(&mut snapshot);
    let valid = |snapshot: &Snapshot| {
        let conditions = decide(snapshot).status.conditions;
        let valid = conditions.iter().find(|condition| condition.type_ == "Valid").unwrap().status == "True";
        let conflict = conditions.into_iter().find(|condition| condition.type_ == "HealthCheckPortConflict");
        (valid, conflict.map(|condition| condition.message))
    };
    let body = written(&decide(&snapshot)).unwrap();
    let recorded = decide(&snapshot).status.rollout.unwrap().served_ports;
    let record = |snapshot: &mut Snapshot, ports: &[ServedPort]| {
        snapshot.resource.status.as_mut().unwrap().rollout.as_mut().unwrap().served_ports = ports.to_vec();
    };
    snapshot.service_ports = Arc::new([(PORT, "web/late".to_owned())].into());
    let (is_valid, message) = valid(&snapshot);
    assert!(
        !is_valid && message.is_some_and(|message| message.contains("port 10080 is a node port of a Service of another namespace")),
        "it was there first"
    );
    // Anybody could have made those.
    store(&mut snapshot, &body, true);
    assert!(!valid(&snapshot).0);
    record(&mut snapshot, &recorded);
    let (is_valid, message) = valid(&snapshot);
    let names_nobody = |message: String| message.contains("a Service of another namespace") && !message.contains("web/late");
    assert!(is_valid && message.is_some_and(names_nobody), "what runs goes on");
    // Somebody deleted the health checkers: they are made again.
    snapshot.daemon_sets.clear();
    assert!(valid(&snapshot).0 && written(&decide(&snapshot)).is_some());
    // A release before this one recorded no ports.
    record(&mut snapshot, &[]);
    snapshot.resource.status.as_mut().unwrap().conditions = accepted;
    assert!(valid(&snapshot).0 && written(&decide(&snapshot)).is_some());
    assert_eq!(valid(&Snapshot { service_ports: Arc::default(), ..snapshot }), (true, None));
}

#[test]
fn health_ports_belong_to_the_serving_or_older_resource() {
    let mut snapshot = snapshot();
    let accepted = std::mem::take(&mut snapshot.resource.status.as_mut().unwrap().conditions);
    let valid = |snapshot: &Snapshot| {
        let conditions = decide(snapshot).status.conditions;
        let valid = conditions.into_iter().find(|condition| condition.type_ == "Valid").unwrap();
        (valid.status == "True", valid.reason, valid.message)
    };
    let generation = snapshot.resource.generation;
    // Their spec of this generation was valid; these ports are recorded, each with since when.
    let other = |created: i64, valid: i64, served: &[(u16, i64)]| {
        let mut resource = IngressDaemonSet::new("late", snapshot.resource.spec.clone());
        resource.metadata.generation = Some(generation);
        let mut conditions = accepted.clone();
        for condition in &mut conditions {
            condition.observed_generation = Some(valid);
        }
        let served_ports = served.iter().map(|(port, since)| ServedPort { port: *port, since: *since }).collect();
        let rollout = Some(Ledger { served_ports, ..Ledger::default() });
        resource.status = Some(IngressDaemonSetStatus { conditions, rollout, ..IngressDaemonSetStatus::default() });
        let accepted = valid == generation;
        OtherResource { key: "tenant/late".into(), uid: "ffffffff-0000".into(), created, resource: Arc::new(resource), accepted }
    };
    let uses = |snapshot: &mut Snapshot, uid8: &str, uses: bool| {
        for node in Arc::make_mut(&mut snapshot.nodes).values_mut() {
            let labels = &mut Arc::make_mut(node).labels;
            labels.remove(&member_label(uid8));
            if uses {
                labels.insert(member_label(uid8), String::new());
            }
        }
    };
    let (older, newer) = (snapshot.resource.created - 1, snapshot.resource.created + 1);
    let former = generation - 1;
    let cases = [
        // Neither serves: the older one has it.
        (other(older, former, &[]), None, false),
        (other(newer, former, &[]), None, true),
        // We serve: nobody takes it from us, however old, and whichever nodes it uses.
        (other(older, former, &[]), Some(5), true),
        (other(newer, former, &[]), Some(5), true),
        // They serve: age does not matter either.
        (other(newer, former, &[(PORT, 5)]), None, false),
        (other(newer, generation, &[]), None, false),
        (other(older, generation, &[(PORT, 5)]), None, false),
        // Another port of theirs is none of ours.
        (other(newer, former, &[(PORT + 1, 5)]), None, true),
        // Both do: the one that came later has to go, and it is the same one for both.
        (other(older, generation, &[(PORT, 5)]), Some(6), false),
        (other(older, generation, &[(PORT, 6)]), Some(5), true),
        (other(newer, generation, &[(PORT, 5)]), Some(5), true),
        (other(older, generation, &[(PORT, 5)]), Some(5), false),
    ];
    for (index, (other, serves, wanted)) in cases.into_iter().enumerate() {
        let mut snapshot = Snapshot { others: vec![other], ..snapshot.clone() };
        uses(&mut snapshot, UID8, serves.is_some());
        uses(&mut snapshot, "ffffffff", true);
        snapshot.resource.status.as_mut().unwrap().rollout.as_mut().unwrap().served_ports =
            serves.map(|since| ServedPort { port: PORT, since }).into_iter().collect();
        let (is_valid, reason, message) = valid(&snapshot);
        assert_eq!(is_valid, wanted, "{index}: {message}");
        let names_nobody = message.contains("belongs to a resource of another namespace") && !message.contains("tenant/late");
        assert!(is_valid || reason == "HealthCheckPortConflict" && names_nobody, "{index}: {reason} {message}");
    }
    // Where neither serves it, who has served it elsewhere for longer has it: a claim of an older resource that comes later takes no new node.
    for (served, wanted) in [(&[][..], true), (&[(PORT, 6)], true), (&[(PORT, 4)], false), (&[(PORT, 0)], true)] {
        let mut snapshot = Snapshot { others: vec![other(older, former, served)], ..snapshot.clone() };
        uses(&mut snapshot, UID8, false);
        uses(&mut snapshot, "ffffffff", false);
        snapshot.resource.status.as_mut().unwrap().rollout.as_mut().unwrap().served_ports = vec![ServedPort { port: PORT, since: 5 }];
        assert_eq!(valid(&snapshot).0, wanted, "{served:?}");
    }
    // A port is served from the first node on.
    for (recorded, used, since) in [(None, false, 0), (Some(0), false, 0), (Some(0), true, snapshot.now), (Some(5), false, 5)] {
        let mut snapshot = snapshot.clone();
        uses(&mut snapshot, UID8, used);
        snapshot.resource.status.as_mut().unwrap().rollout.as_mut().unwrap().served_ports =
            recorded.map(|since| ServedPort { port: PORT, since }).into_iter().collect();
        assert_eq!(decide(&snapshot).status.rollout.unwrap().served_ports, [ServedPort { port: PORT, since }], "{recorded:?} {used}");
    }
    // An older one that serves the port elsewhere, and asks for this node, too, does not serve it here.
    let mut snapshot = Snapshot { others: vec![other(older, generation, &[(PORT, 5)])], ..snapshot.clone() };
    snapshot.resource.status.as_mut().unwrap().conditions.clone_from(&accepted);
    uses(&mut snapshot, UID8, true);
    uses(&mut snapshot, "ffffffff", false);
    assert!(valid(&snapshot).0, "{}", valid(&snapshot).2);
    // One that serves the port, and whose spec is not valid any more, keeps what it runs.
    let mut invalid = other(newer, former, &[(PORT, 5)]);
    Arc::make_mut(&mut invalid.resource).spec.template = Value::Null;
    let mut snapshot = Snapshot { others: vec![invalid], ..snapshot };
    snapshot.resource.status.as_mut().unwrap().conditions.clear();
    for (there, wanted) in [(true, false), (false, true)] {
        uses(&mut snapshot, "ffffffff", there);
        assert_eq!(valid(&snapshot).0, wanted);
    }
}

/// What is asked of the health checkers, with this in the spec.
fn with_account(checker: Value) -> Snapshot {
    let mut snapshot = snapshot();
    snapshot.resource.spec.health_checker = serde_json::from_value(checker).unwrap();
    snapshot.asserted.clear();
    snapshot
}

/// Accounts that are made or bound, by kind of object.
fn accounts(plan: &Plan) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for action in &plan.actions {
        let Action::Apply { object, body } = action else { continue };
        let subject = || body["subjects"][0]["name"].as_str().unwrap().to_owned();
        match object {
            Supporting::ServiceAccount(name) => found.push(("account", name.clone())),
            Supporting::RoleBinding(_) => found.push(("in the namespace", subject())),
            Supporting::ClusterRoleBinding(_) => found.push(("everywhere", subject())),
            _ => {}
        }
    }
    found
}

fn account_of(body: &Value) -> &str {
    body["spec"]["template"]["spec"]["serviceAccountName"].as_str().unwrap()
}

#[test]
fn the_operator_gives_rights_only_to_its_own_account() {
    let own = format!("health-checker-{UID8}");
    // With the original's image neither the image nor its account is used.
    for checker in [json!({}), json!({"image": "mumoshu/ingress-daemonset-controller:latest", "serviceAccountName": "default"})] {
        let plan = decide(&with_account(checker));
        let wanted = ["account", "in the namespace", "everywhere"].map(|kind| (kind, own.clone()));
        assert_eq!(accounts(&plan), wanted);
        assert_eq!(account_of(&written(&plan).unwrap()), own);
    }
    let plan = decide(&with_account(json!({"serviceAccountName": "default"})));
    assert_eq!(accounts(&plan), [], "every pod of the namespace without another account has this one");
    assert_eq!(account_of(&written(&plan).unwrap()), "default");
}

/// A resource of a namespace whose health checkers may not read Nodes.
fn without_nodes(checker: Value) -> Snapshot {
    let readers = vec!["another".to_owned()];
    Snapshot { node_rights: Arc::new(NodeRights { readers, ..NodeRights::default() }), ..with_account(checker) }
}

/// `ClusterRoleBindings` that are deleted.
fn revoked(plan: &Plan) -> usize {
    plan.actions.iter().filter(|action| matches!(action, Action::Delete { object: Supporting::ClusterRoleBinding(_), .. })).count()
}

#[test]
fn health_checkers_watch_no_nodes_where_reading_is_forbidden() {
    let plan = decide(&without_nodes(json!({})));
    assert_eq!(accounts(&plan).iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["account", "in the namespace"]);
    assert_eq!(variables(&written(&plan).unwrap(), "WATCH_NODE"), [json!("false")]);
    let namespace = snapshot().resource.namespace;
    for readers in [vec![namespace], vec!["another".to_owned(), "*".to_owned()]] {
        let node_rights = Arc::new(NodeRights { readers, ..NodeRights::default() });
        let plan = decide(&Snapshot { node_rights, ..with_account(json!({})) });
        assert_eq!((accounts(&plan).len(), variables(&written(&plan).unwrap(), "WATCH_NODE")), (3, vec![]));
    }
}

#[test]
fn the_right_to_read_nodes_is_removed_once_unneeded() {
    let former = written(&decide(&with_account(json!({})))).unwrap();
    let mut snapshot = without_nodes(json!({}));
    store(&mut snapshot, &former, true);
    let first = decide(&snapshot);
    assert_eq!((revoked(&first), variables(&written(&first).unwrap(), "WATCH_NODE")), (0, vec![json!("false")]));
    store(&mut snapshot, &written(&first).unwrap(), false);
    assert_eq!(revoked(&decide(&snapshot)), 0, "a node may still have the former one");
    store(&mut snapshot, &written(&first).unwrap(), true);
    let last = decide(&snapshot);
    assert_eq!(revoked(&last), 1);
    let object = last.actions.iter().find_map(|action| match action {
        Action::Delete { object, .. } => Some(object.clone()),
        _ => None,
    });
    snapshot.asserted.insert(planner::objects::health_checker::assertion(&object.unwrap(), &Value::Null));
    assert_eq!(revoked(&decide(&snapshot)), 0, "it is not asked for in each pass");
    // One without health ports has no use for it either.
    snapshot.asserted.clear();
    snapshot.daemon_sets.clear();
    snapshot.resource.spec.health_check_node_ports.clear();
    assert_eq!(revoked(&decide(&snapshot)), 1);
    assert_eq!(revoked(&decide(&with_account(json!({})))), 0);
}

#[test]
fn stuck_health_checkers_lose_node_rights_after_a_deadline() {
    let named = json!({"serviceAccountName": "nosuch"});
    let lacking = Snapshot { account_lacks: vec!["list pods".into()], ..without_nodes(named) };
    let mut refused = without_nodes(json!({}));
    refused.resource.spec.template = Value::Null;
    assert!(decide(&refused).status.conditions.iter().any(|condition| condition.type_ == "Valid" && condition.status == "False"));
    let mut deleted = without_nodes(json!({}));
    deleted.resource.deleting = true;
    let mut unsettled = without_nodes(json!({"image": "nosuch"}));
    let first = written(&decide(&unsettled)).unwrap();
    store(&mut unsettled, &first, false);
    // Those of many nodes are replaced one after the other.
    let mut many = unsettled.clone();
    many.daemon_sets[0].desired = 1000;
    // Somebody makes another that looks like ours.
    many.daemon_sets.push(DaemonSetFacts { name: "like-ours".into(), uid: "v".into(), ..many.daemon_sets[0].clone() });
    for (known_for, times) in [(11_999, 0), (12_000, 1)] {
        assert_eq!(revoked(&decide(&Snapshot { known_for, ..many.clone() })), times, "{known_for} s");
    }
    for (case, snapshot) in [("lacking", lacking), ("refused", refused), ("deleted", deleted), ("unsettled", unsettled)] {
        for (known_for, times) in [(599, 0), (600, 1)] {
            assert_eq!(revoked(&decide(&Snapshot { known_for, ..snapshot.clone() })), times, "{case}: {known_for} s");
        }
    }
    assert_eq!(revoked(&decide(&Snapshot { known_for: 600, ..with_account(json!({})) })), 0, "it may read them");
}

#[test]
fn health_checkers_stay_unchanged_while_their_account_lacks_rights() {
    let mut snapshot = with_account(json!({"serviceAccountName": "checker"}));
    snapshot.account_lacks = vec!["list nodes".into(), "watch deployments.apps".into()];
    let plan = decide(&snapshot);
    assert_eq!(written(&plan), None);
    let said = plan.status.conditions.iter().find(|condition| condition.type_ == "HealthCheckersReady").unwrap();
    assert_eq!((said.status.as_str(), said.reason.as_str()), ("False", "ServiceAccountLacksRights"));
    let account = format!("{}/checker", snapshot.resource.namespace);
    for part in [account.as_str(), "list nodes, watch deployments.apps", "ingress-daemonset-health-checker-nodes", "remove the field"] {
        assert!(said.message.contains(part), "{part}: {}", said.message);
    }
    snapshot.account_lacks.clear();
    assert!(written(&decide(&snapshot)).is_some());
    // Nobody is to bind what the namespace may not have.
    let mut snapshot = without_nodes(json!({"serviceAccountName": "checker"}));
    snapshot.account_lacks = vec!["list pods".into()];
    let plan = decide(&snapshot);
    let said = plan.status.conditions.iter().find(|condition| condition.type_ == "HealthCheckersReady").unwrap();
    assert!(said.message.contains("list pods") && !said.message.contains("cluster-wide"), "{}", said.message);
}

#[test]
fn refused_health_checkers_are_retried_later_and_reported() {
    let mut snapshot = with_account(json!({}));
    let condition = |plan: &Plan, says: &str| {
        let said = plan.status.conditions.iter().find(|condition| condition.type_ == "HealthCheckersReady").unwrap();
        (said.status.clone(), said.reason.clone(), said.message.contains(says))
    };
    let body = written(&decide(&snapshot)).unwrap();
    let message = "spec.template.spec.tolerations[0].operator: Invalid value";
    let key = |kind: &str| {
        let applied = |action: &Action| if let Action::Apply { object, .. } = action { Some(object.key()) } else { None };
        decide(&with_account(json!({}))).actions.iter().filter_map(applied).find(|key| key.starts_with(kind)).unwrap()
    };
    let (checker, secret) = (key("DaemonSet/"), key("Secret/"));
    let applied = |plan: &Plan| plan.actions.iter().filter(|action| matches!(action, Action::Apply { .. })).count();
    let rights = applied(&decide(&snapshot)) - 1;
    assert!(rights > 1, "the key, the account and its rights");
    let refuse = |snapshot: &mut Snapshot, refused: &[(&str, &str, i64)]| {
        let refusal = |message: &str, waits: i64| CheckersRefusal { message: message.into(), waits };
        snapshot.checkers_refusals = refused.iter().map(|(key, said, waits)| ((*key).to_owned(), refusal(said, *waits))).collect();
    };
    // Each refused object waits for itself, and health checkers wait for what they need.
    for (refused, is_written, tried, again, says) in [
        (&[(checker.as_str(), message, 7)][..], false, rights, 7, message),
        (&[(&checker, message, 0)], true, rights + 1, 5, message),
        (&[(&secret, "no secrets", 7)], false, rights - 1, 7, "no secrets"),
        (&[(&secret, "no secrets", 0)], true, rights + 1, 5, "no secrets"),
        (&[(&checker, message, 90), (&secret, "no secrets", 40)], false, rights - 1, 40, "no secrets"),
        (&[(&checker, message, 90), (&secret, "no secrets", 0)], false, rights, 5, "no secrets"),
    ] {
        refuse(&mut snapshot, refused);
        let plan = decide(&snapshot);
        assert_eq!((written(&plan).is_some(), applied(&plan)), (is_written, tried), "{refused:?}");
        assert_eq!(plan.recheck_at, Some(snapshot.now + again), "{refused:?}");
        assert_eq!(condition(&plan, says), ("False".into(), "HealthCheckersRefused".into(), true), "{refused:?}");
    }
    // The same where the account that the spec names lacks rights.
    let mut named = Snapshot { account_lacks: vec!["list pods".into()], ..with_account(json!({"serviceAccountName": "checker"})) };
    assert_eq!(applied(&decide(&named)), 1, "the key");
    refuse(&mut named, &[(&secret, "no secrets", 7)]);
    assert_eq!(applied(&decide(&named)), 0);
    // Somebody else wrote what was refused. Those that serve go on, and what is refused beside them is said.
    store(&mut snapshot, &body, true);
    for (refused, tried, is_said) in [(&[(checker.as_str(), message, 7)][..], rights, false), (&[(&secret, message, 7)], rights - 1, true)]
    {
        refuse(&mut snapshot, refused);
        let plan = decide(&snapshot);
        let ready = ("True".into(), "HealthCheckersReady".into(), is_said);
        assert_eq!((condition(&plan, message), applied(&plan)), (ready, tried), "{refused:?}");
    }
}
