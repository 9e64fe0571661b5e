//! What the sources of gates say, and what follows where one cannot be read.

use super::{NOW, condition, gate, key, pod, says, settled_in, texts, world};
use crate::gates::standing;
use crds::node_readiness_gate::ConditionStatus;
use k8s_openapi::api::core::v1::Taint;
use planner::{
    facts::{NodeCondition, NodeFacts},
    gates_shared::{ReplicaHealth, Source},
    pod_gates::{
        Pod,
        decide::decide,
        status::status,
        world::{Attachment, ObjectKey, Target},
    },
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[test]
fn an_unreadable_source_keeps_opens_or_closes_by_fail_mode() {
    for (mode, before, wanted) in [
        ("Keep", None, None),
        ("Keep", Some("True"), Some("True")),
        ("Keep", Some("False"), Some("False")),
        ("Open", None, Some("True")),
        ("Open", Some("False"), Some("True")),
        ("Closed", None, Some("False")),
        ("Closed", Some("True"), Some("False")),
    ] {
        let gate = gate("api", json!({"failMode": mode, "source": {"service": {"name": "db"}}}));
        let conditions = before.map(|status| condition(status, "SourceTrue", "")).into_iter().collect();
        let mut world = world(vec![gate.clone()], Pod { conditions, ..pod() });
        let broken = Source { found: Some(3), broken: Some("endpoints cannot be seen".into()) };
        world.services.insert(("web".into(), "db".into()), broken);
        let views = decide(&world, &key(), None, NOW).views;
        let status = status(&world, &gate, &[], views.values().map(|view| ("p", view)), None, None, NOW);
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "SourceUnreadable"));
        assert_eq!(standing(&status.conditions), ["Reconciling"]);
        assert!(ready.message.contains("endpoints cannot be seen") && ready.message.contains(mode), "{}", ready.message);
        let after = settled_in(world, None);
        assert_eq!(says(&after).map(|(status, _)| status), wanted, "{mode}, it was {before:?}");
    }
}

#[test]
fn an_unseen_source_changes_nothing_in_any_fail_mode() {
    for mode in ["Keep", "Open", "Closed"] {
        let gate = gate("api", json!({"failMode": mode, "default": "True", "source": {"service": {"name": "db"}}}));
        let mut world = world(vec![gate], pod());
        assert_eq!(decide(&world, &key(), None, NOW).patch, None);
        world.services.insert(("web".into(), "db".into()), Source::default());
        assert_eq!(decide(&world, &key(), None, NOW).patch, None);
    }
}

fn node(taints: &[(&str, &str)], conditions: &[(&str, ConditionStatus)]) -> NodeFacts {
    let taint = |(key, effect): &(&str, &str)| Taint { key: (*key).into(), effect: (*effect).into(), ..Taint::default() };
    let condition =
        |(type_, status): &(&str, ConditionStatus)| NodeCondition { type_: (*type_).into(), status: *status, heartbeat: 0, transition: 0 };
    NodeFacts { taints: taints.iter().map(taint).collect(), conditions: conditions.iter().map(condition).collect(), ..NodeFacts::default() }
}

#[test]
fn a_gate_follows_conditions_and_taints_of_the_pods_node() {
    let ready = json!({"nodeCondition": {"type": "Ready"}});
    let pressure = json!({"nodeCondition": {"type": "DiskPressure", "status": "False"}});
    let taint = json!({"nodeTaint": {"key": "example.com/out"}});
    let no_execute = json!({"nodeTaint": {"key": "example.com/out", "effect": "NoExecute"}});
    let tainted =
        node(&[("example.com/out", "NoSchedule")], &[("Ready", ConditionStatus::True), ("DiskPressure", ConditionStatus::Unknown)]);
    let plain = node(&[], &[("Ready", ConditionStatus::False), ("DiskPressure", ConditionStatus::False)]);
    for (source, node, wanted) in [
        (&ready, Some(&tainted), Some("True")),
        (&ready, Some(&plain), Some("False")),
        (&ready, None, None),
        (&pressure, Some(&tainted), Some("False")),
        (&pressure, Some(&plain), Some("True")),
        (&taint, Some(&tainted), Some("False")),
        (&taint, Some(&plain), Some("True")),
        (&no_execute, Some(&tainted), Some("True")),
    ] {
        let after = settled_in(world(vec![gate("node", json!({"source": source}))], pod()), node);
        assert_eq!(says(&after).map(|(status, _)| status), wanted, "{source} of {node:?}");
        let nowhere = world(vec![gate("node", json!({"source": source}))], Pod { node: String::new(), ..pod() });
        assert_eq!(decide(&nowhere, &key(), None, NOW).patch, None);
    }
}

#[test]
fn services_objects_and_http_servers_are_followed() {
    let object = json!({"objectCondition": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "db", "type": "Available"}});
    let object_key = ObjectKey {
        asked_by: "web".into(),
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        namespace: "web".into(),
        name: "db".into(),
    };
    let found = |found| Source { found: Some(found), broken: None };
    for (conditions, wanted) in [
        (None, None),
        (Some(vec![]), None),
        (Some(vec![("Available", "False")]), Some("False")),
        (Some(vec![("Available", "True")]), Some("True")),
    ] {
        let mut world = world(vec![gate("object", json!({"source": object}))], pod());
        let conditions = conditions.map(|list| list.into_iter().map(|(type_, status)| (type_.to_owned(), status.to_owned())).collect());
        world.objects.insert(object_key.clone(), found(conditions.clone()));
        assert_eq!(says(&settled_in(world, None)).map(|(status, _)| status), wanted, "{conditions:?}");
    }
    for (endpoints, wanted) in [(0, "False"), (1, "True"), (9, "True")] {
        let mut world = world(vec![gate("service", json!({"source": {"service": {"name": "db"}}}))], pod());
        world.services.insert(("web".into(), "db".into()), Source { found: Some(endpoints), broken: None });
        assert_eq!(says(&settled_in(world, None)).map(|(status, _)| status), Some(wanted), "{endpoints}");
    }
    for (expected, answered, wanted) in [(None, 204, "True"), (None, 302, "False"), (Some(302), 302, "True"), (Some(200), 204, "False")] {
        let mut http = json!({"port": 8080, "path": "/ready"});
        http["expectedStatus"] = expected.into();
        let mut world = world(vec![gate("http", json!({"source": {"http": http}}))], pod());
        let target = Target { namespace: "web".into(), url: "http://10.0.0.1:8080/ready".into(), period: 10_000, timeout: 1_000 };
        assert_eq!(world.wanted_answers(), BTreeSet::from([target.clone()]));
        world.answers.insert(target, Source { found: Some(answered), broken: None });
        assert_eq!(says(&settled_in(world, None)).map(|(status, _)| status), Some(wanted), "{expected:?} {answered}");
    }
}

#[test]
fn a_detached_node_holds_other_pods_but_not_its_replicas() {
    let follows = || vec![gate("edge", json!({"source": {"ingressDaemonSet": {"name": "edge"}}}))];
    let is = |detached, invalid| {
        let nodes = BTreeMap::from([("n1".to_owned(), ReplicaHealth { chosen: true, detached, ..ReplicaHealth::default() })]);
        Source { found: Some(Some(Attachment { uid8: "0a1b2c3d".into(), invalid, nodes: Arc::new(nodes) })), broken: None }
    };
    let resource = |detached| is(detached, false);
    let own = Pod { labels: texts(&[(crds::names::RESOURCE_LABEL, "0a1b2c3d")]), ..pod() };
    let elsewhere = Pod { node: "n2".into(), ..pod() };
    for (source, pod, wanted) in [
        (resource(false), pod(), Some("True")),
        (resource(true), pod(), Some("False")),
        (resource(true), own, Some("True")),
        (resource(true), elsewhere.clone(), None),
        (Source { found: Some(None), broken: None }, pod(), None),
    ] {
        let mut world = world(follows(), pod.clone());
        world.attachments.insert(("web".into(), "edge".into()), source);
        assert_eq!(says(&settled_in(world, None)).map(|(status, _)| status), wanted, "{pod:?}");
    }
    // While its spec is not valid nothing is known of nodes that it does not use already.
    let closed = || vec![gate("edge", json!({"source": {"ingressDaemonSet": {"name": "edge"}}, "failMode": "Closed"}))];
    for (pod, wanted) in [(pod(), ("True", "SourceTrue")), (elsewhere, ("False", "SourceUnreadable"))] {
        let mut world = world(closed(), pod);
        world.attachments.insert(("web".into(), "edge".into()), is(false, true));
        assert_eq!(says(&settled_in(world, None)), Some(wanted));
    }
}
