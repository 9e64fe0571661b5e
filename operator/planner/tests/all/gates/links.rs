//! What gates mean to the `IngressDaemonSets` that they ask for.

use super::life::*;
use planner::node_gates::{Gate, GateLinks, legacy, links::links, preset};
use serde_json::{Value, json};
use std::sync::Arc;

fn asking(uid: &str, during: &str, more: Value) -> Arc<Gate> {
    let wanted = json!({"namespace": "edge", "name": "web", "duringUpdate": during});
    let mut spec = json!({"mode": "Continuous", "requirements": [{"name": "replicas", "ingressDaemonSet": wanted}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Arc::new(gate(uid, spec))
}

fn of(gates: &[Arc<Gate>]) -> GateLinks {
    links(gates, [], |gate| gate.uid == "shut").remove(&("edge".into(), "web".into())).unwrap_or_default()
}

#[test]
fn updates_wait_only_for_gates_that_will_surely_taint() {
    let waits = |gate: Arc<Gate>| of(&[gate]).tainting.len();
    assert_eq!(waits(asking("a", "Taint", json!({}))), 1);
    assert_eq!(waits(asking("a", "Hold", json!({}))), 0);
    assert_eq!(waits(asking("a", "Taint", json!({"mode": "Bootstrap"}))), 0, "a node that has passed stays so");
    assert_eq!(waits(asking("a", "Taint", json!({"dryRun": true}))), 0);
    assert_eq!(waits(asking("shut", "Taint", json!({}))), 0, "it could never open");
    let deleted = Gate { deleting: true, ..Gate::clone(&asking("a", "Taint", json!({}))) };
    assert_eq!(waits(Arc::new(deleted)), 0);
    let mut any = Gate::clone(&asking("a", "Taint", json!({"policy": "AnyOf"})));
    assert_eq!(waits(Arc::new(any.clone())), 1, "there is no other requirement");
    any.spec.requirements.push(serde_json::from_value(json!({"name": "warm", "condition": {"type": "Warm"}})).unwrap());
    assert_eq!(waits(Arc::new(any)), 0, "another one may be met");
}

#[test]
fn gates_give_pods_tolerations_unless_inject_is_none() {
    let evicting = json!({"taint": {"key": KEY, "effect": "NoExecute"}});
    let both = of(&[asking("a", "Hold", json!({})), asking("b", "Hold", evicting.clone())]);
    assert!(both.watched);
    assert_eq!(both.taints, [(KEY.to_owned(), "NoExecute".to_owned()), (KEY.to_owned(), "NoSchedule".to_owned())]);
    assert_eq!(both.evicting.iter().map(|taint| taint.effect.as_str()).collect::<Vec<_>>(), ["NoExecute"]);
    let mut none = evicting;
    none["tolerations"] = json!({"inject": "None"});
    let own = of(&[asking("a", "Hold", none)]);
    assert!(own.watched && own.taints.is_empty() && own.evicting.len() == 1);
    assert_eq!(of(&[Arc::new(gate("a", json!({})))]), GateLinks::default(), "it asks for no replicas");
}

#[test]
fn gates_of_two_resources_do_not_block_each_others_pods() {
    let of_other = json!({"taint": {"key": "other", "effect": "NoSchedule"}, "requirements": [
        {"name": "replicas", "ingressDaemonSet": {"namespace": "edge", "name": "dns"}},
    ]});
    let gates = [asking("a", "Hold", json!({})), Arc::new(gate("b", of_other)), Arc::new(gate("c", json!({"taint": {"key": "cni"}})))];
    let links = links(&gates, [], |_| false);
    let taint = |key: &str| (key.to_owned(), "NoSchedule".to_owned());
    for name in ["web", "dns"] {
        let link = &links[&("edge".to_owned(), name.to_owned())];
        assert_eq!(link.taints, [taint("other"), taint(KEY)], "{name}: not the one that waits for something else");
        assert_eq!(link.passing, [taint("cni"), taint("other"), taint(KEY)], "{name}");
    }
}

#[test]
fn taints_of_config_map_and_preset_count_as_passing() {
    let gates = [
        asking("a", "Hold", json!({})),
        Arc::new(legacy::gate("kube-system", "pods", 0, Vec::new())),
        Arc::new(preset::startup("", false, 0)),
    ];
    let own = of(&gates);
    let keys: Vec<_> = own.passing.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, [legacy::TAINT, KEY, "startup.k8s.io/initializing"]);
    assert_eq!(own.taints, [(KEY.to_owned(), "NoSchedule".to_owned())], "the resource's pods open neither of the other two");
}

#[test]
fn a_resource_followed_by_pod_gates_alone_is_watched() {
    let key = |name: &str| ("edge".to_owned(), name.to_owned());
    let links = links(&[asking("a", "Hold", json!({}))], [key("web"), key("dns")], |_| false);
    assert!(links[&key("web")].watched && !links[&key("web")].taints.is_empty());
    assert_eq!(links[&key("dns")], GateLinks { watched: true, ..GateLinks::default() });
}
