//! What a spec must not say, what its author is told, and that nothing is touched for it.

use crate::world;

use crds::IngressDaemonSetSpec;
use planner::{
    Action, Snapshot, decide,
    rollout::template_check::{TemplateCheck, template_check},
    spec::resolve,
};
use serde_json::{Value, json};
use world::{
    World,
    operator::Operator,
    wish::{Marks, Wish},
};

/// Reason and message of everything that is wrong with a spec of two pods per node after this merge patch.
fn told(change: &Value) -> Vec<(&'static str, String)> {
    resolve(&spec(change)).err().into_iter().flatten().map(|invalid| (invalid.reason, invalid.message)).collect()
}

/// A spec of two pods per node after this merge patch.
fn spec(change: &Value) -> IngressDaemonSetSpec {
    let mut spec = json!({
        "podsPerNode": 2,
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}},
    });
    json_patch::merge(&mut spec, change);
    serde_json::from_value(spec).unwrap()
}

#[test]
fn invalid_labels_are_named_with_their_field() {
    let long = "x".repeat(64);
    for (change, reason, start) in [
        (json!({"nodeSelector": {"a": "b c"}}), "InvalidSpec", "nodeSelector: the value `b c` of `a`"),
        (json!({"nodeSelector": {"a": "b\n"}}), "InvalidSpec", "nodeSelector: the value `b\\n` of `a`"),
        (json!({"nodeSelector": {"a b": ""}}), "InvalidSpec", "nodeSelector: `a b` is not a key"),
        (json!({"selector": {"matchLabels": {"": "x"}}}), "InvalidSpec", "selector.matchLabels: `` is not a key"),
        (json!({"template": {"metadata": {"labels": {"a": "-b"}}}}), "InvalidTemplate", "template.metadata.labels: the value `-b` of `a`"),
        (json!({"template": {"metadata": {"labels": {"a": long}}}}), "InvalidTemplate", "template.metadata.labels: the value `xxx"),
        (
            json!({"template": {"metadata": {"labels": {"A.b/c": "d"}}}}),
            "InvalidTemplate",
            "template.metadata.labels: `A.b/c` is not a key",
        ),
        (
            json!({"template": {"metadata": {"annotations": {"a/": "any text\n"}}}}),
            "InvalidTemplate",
            "template.metadata.annotations: `a/` is not a key",
        ),
    ] {
        let told = told(&change);
        assert!(told.len() == 1 && told[0].0 == reason && told[0].1.starts_with(start), "{change}: {told:?}");
    }
    for good in [
        json!({"nodeSelector": {"node-role.kubernetes.io/edge": ""}}),
        json!({"template": {"metadata": {"labels": {"app.kubernetes.io/version": "v1.2_3"}}}}),
        json!({"template": {"metadata": {"annotations": {"note": "any text\n"}}}}),
    ] {
        assert_eq!(told(&good), [], "{good}");
    }
}

#[test]
fn a_detach_label_must_not_decide_which_nodes_are_meant() {
    let rolling = |more: Value| {
        let mut rolling = json!({"labelNodeToDetach": {"key": "example.com/out", "gracePeriodSeconds": 9}});
        json_patch::merge(&mut rolling, &more);
        json!({"updateStrategy": {"rollingUpdate": rolling}})
    };
    let with = |more: Value| {
        let mut change = rolling(json!({}));
        json_patch::merge(&mut change, &more);
        change
    };
    let selector = || json!({"example.com/out": "false"});
    let expression = json!({"key": "example.com/out", "operator": "DoesNotExist"});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}});
    for (change, field) in [
        (with(json!({"nodeSelector": selector()})), "nodeSelector"),
        (with(json!({"template": {"spec": {"nodeSelector": selector()}}})), "template.spec.nodeSelector"),
        (with(json!({"template": {"spec": {"affinity": affinity}}})), "template.spec.affinity"),
        (rolling(json!({"topology": {"key": "example.com/out"}})), "topology.key"),
        (rolling(json!({"steps": [{"nodeSelector": selector()}]})), "steps"),
    ] {
        let told = told(&change);
        let wanted = format!("labelNodeToDetach.key is `example.com/out`, which {field} asks for");
        assert!(told.len() == 1 && told[0].0 == "InvalidSpec" && told[0].1.starts_with(&wanted), "{change}: {told:?}");
    }
    assert_eq!(told(&with(json!({"nodeSelector": {"example.com/in": ""}}))), []);
}

#[test]
fn the_health_checker_must_be_able_to_listen_and_answer() {
    let port = json!([{"name": "app", "image": "app:1", "ports": [{"containerPort": 80, "hostPort": 10080}]}]);
    let clash = json!({"podsPerNode": 1, "healthCheckNodePorts": [10081, 10080], "template": {"spec": {"containers": port}}});
    assert_eq!(told(&clash).iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), ["HealthCheckPortConflict"]);
    for wrong in ["1.2.3", "10.0.0.1", "127.0.0.1", "::1"] {
        let address = told(&json!({"healthChecker": {"bindAddress": wrong}}));
        assert!(address.len() == 1 && address[0].1.contains(&format!("`{wrong}`")), "{address:?}");
    }
    for right in ["0.0.0.0", "::"] {
        assert_eq!(told(&json!({"healthChecker": {"bindAddress": right}})), []);
    }
    let warned =
        |port: u16| resolve(&spec(&json!({"healthCheckNodePorts": [port]}))).unwrap().warnings.first().map(|warning| warning.reason);
    assert_eq!((warned(80), warned(1023), warned(1024)), (Some("PrivilegedHealthPort"), Some("PrivilegedHealthPort"), None));
    let least = |pods: i32| told(&json!({"podsPerNode": pods, "healthChecker": {"readyPolicy": {"type": "AtLeast", "minReady": 2}}}));
    assert_eq!(least(1).len(), 1);
    assert_eq!(least(2), []);
    assert_eq!(least(0), [], "scaling to nothing is no mistake");
}

/// A converged world, and then another template.
fn wished_anew() -> (World, Operator) {
    let mut world = World::new(Wish::new(Marks::Token, 2), 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    operator.catch_up(&world);
    (world, operator)
}

fn snapshot(world: &World, operator: &mut Operator) -> Snapshot {
    operator.snapshot(world).unwrap()
}

#[test]
fn a_template_is_tried_while_it_runs_nowhere() {
    let (mut world, mut operator) = wished_anew();
    let before = snapshot(&world, &mut operator);
    let Some(TemplateCheck::Patch { name, patch }) = template_check(&before) else { unreachable!("a Deployment is there") };
    assert!(before.deployments.values().any(|deployment| deployment.name == name));
    assert_eq!(patch[0]["path"], "/metadata/uid");
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    operator.catch_up(&world);
    let mut after = snapshot(&world, &mut operator);
    assert_eq!(template_check(&after), None);
    after.deployments.clear();
    assert!(matches!(template_check(&after), Some(TemplateCheck::Create(_))));
    after.resource.deleting = true;
    assert_eq!(template_check(&after), None);
}

#[test]
fn a_template_that_the_api_server_refuses_disturbs_nothing() {
    let (world, mut operator) = wished_anew();
    let mut snapshot = snapshot(&world, &mut operator);
    let disturbs = |action: &Action| !matches!(action, Action::WriteStatus { .. });
    let granted = decide(&snapshot);
    assert_eq!(granted.status.rollout.map(|ledger| ledger.grants.len()), Some(2), "without a refusal nodes are granted");
    let said = format!("Deployment.apps \"web-a\" is invalid: spec.template: {} because", "x".repeat(5000));
    snapshot.template_refusal = Some(said);
    let plan = decide(&snapshot);
    assert!(!plan.actions.iter().any(disturbs), "{:?}", plan.actions);
    assert_eq!(plan.status.rollout.map(|ledger| ledger.grants.len()), Some(0));
    let valid = plan.status.conditions.iter().find(|condition| condition.type_ == "Valid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "TemplateRefused"));
    assert!(valid.message.contains("spec.template: xxx") && valid.message.ends_with("because"), "{}", valid.message);
    assert!(plan.recheck_at <= Some(snapshot.now + 10), "it is tried again");
}

#[test]
fn a_grace_period_that_is_too_short_only_warns() {
    let (world, mut operator) = wished_anew();
    let mut snapshot = snapshot(&world, &mut operator);
    let mark = json!({"annotateDeploymentToDetach": {"gracePeriodSeconds": 5}});
    let rolling = snapshot.resource.spec.update_strategy.as_mut().and_then(|strategy| strategy.rolling_update.as_mut()).unwrap();
    let mut changed = serde_json::to_value(&*rolling).unwrap();
    json_patch::merge(&mut changed, &mark);
    *rolling = serde_json::from_value(changed).unwrap();
    snapshot.resource.spec.load_balancer = serde_json::from_value(json!({"preset": "GcpPassthrough"})).unwrap();
    let plan = decide(&snapshot);
    let valid = plan.status.conditions.iter().find(|condition| condition.type_ == "Valid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("True", "GracePeriodTooShort"));
    assert!(
        valid.message.contains("gracePeriodSeconds is 5, but the load balancer may send requests to a node for 25 s")
            && valid.message.contains("set it to 25 or more"),
        "{}",
        valid.message
    );
    assert_eq!(plan.status.rollout.map(|ledger| ledger.grants.len()), Some(2), "nodes are granted as before");
}

#[test]
fn a_budget_that_covers_all_nodes_warns_without_a_minimum() {
    let reason = |budget: Value, minimum: Value| {
        let (world, mut operator) = wished_anew();
        let mut snapshot = snapshot(&world, &mut operator);
        let rolling = snapshot.resource.spec.update_strategy.as_mut().and_then(|strategy| strategy.rolling_update.as_mut()).unwrap();
        let mut changed = serde_json::to_value(&*rolling).unwrap();
        json_patch::merge(&mut changed, &json!({ "maxUnavailableNodes": budget, "minAvailableNodes": minimum }));
        *rolling = serde_json::from_value(changed).unwrap();
        let conditions = decide(&snapshot).status.conditions;
        let valid = conditions.into_iter().find(|condition| condition.type_ == "Valid").unwrap();
        assert_eq!(valid.status, "True");
        (valid.reason, valid.message)
    };
    assert_eq!(reason(json!(2), Value::Null).0, "Accepted", "of three nodes");
    let (covers, message) = reason(json!(3), Value::Null);
    assert_eq!(covers, "BudgetCoversAllNodes");
    assert!(message.contains("allows 3 and 3 are chosen"), "{message}");
    assert_eq!(reason(json!("100%"), Value::Null).0, "BudgetCoversAllNodes");
    assert_eq!(reason(json!(3), json!(1)).0, "Accepted");
}
