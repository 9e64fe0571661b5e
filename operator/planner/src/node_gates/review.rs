//! What the webhook answers about a Node that is created.

use super::{
    policy_objects::record,
    record::{Record, annotation_key},
    world::Gate,
};
use crate::{gates_shared::review::Request, patch};
use crds::{UnixSeconds, node_readiness_gate::OnCreate};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What an answer says; all of them allow the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answered {
    /// The answer adds taints to the Node.
    Tainted,
    /// The answer adds no taint.
    Unchanged,
    /// The Node cannot be decoded: it is tainted when it is seen, a moment later.
    Undecodable,
}

/// The `AdmissionReview` that answers the one in `body`; `None` when `body` has none. `gates` are those that a webhook may act
/// for; `now` in seconds since 1970.
pub fn review<'a>(body: &[u8], gates: impl Iterator<Item = &'a Gate>, now: UnixSeconds) -> Option<(Value, Answered)> {
    let mut request = Request::read(body)?;
    let object = std::mem::take(&mut request.object);
    let (operations, answered) = match request.creates("Node").then(|| serde_json::from_value::<Node>(object)) {
        Some(Ok(node)) => match mutate(&node, gates, now) {
            operations if operations.is_empty() => (operations, Answered::Unchanged),
            operations => (operations, Answered::Tainted),
        },
        Some(Err(_)) => (Vec::new(), Answered::Undecodable),
        None => (Vec::new(), Answered::Unchanged),
    };
    Some((request.allowed(operations), answered))
}

/// Whether a webhook may act for the gate.
pub fn is_for_webhook(gate: &Gate) -> bool {
    let wanted = gate.spec.admission.as_ref().map_or(OnCreate::Auto, |admission| admission.on_create);
    matches!(wanted, OnCreate::Auto | OnCreate::Webhook) && !gate.deleting && !gate.spec.dry_run
}

/// Operations of a JSON Patch: a taint, by key and effect, once for all gates that claim it, and what each of them records.
fn mutate<'a>(node: &Node, gates: impl Iterator<Item = &'a Gate>, now: UnixSeconds) -> Vec<Value> {
    let labels = node.metadata.labels.as_ref();
    let there = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let mut taints: BTreeMap<(&str, &str), Value> = BTreeMap::new();
    let mut records = Map::new();
    for gate in gates.filter(|gate| gate.spec.selects(|key| labels.and_then(|labels| labels.get(key)).map(String::as_str))) {
        if there.iter().any(|taint| gate.has_taint(&taint.key, &taint.effect)) {
            continue;
        }
        let taint = &gate.spec.taint;
        let mut added = json!({"key": taint.key, "effect": taint.effect.as_str()});
        if let Some(value) = taint.value.as_ref().filter(|value| !value.is_empty()) {
            added["value"] = value.as_str().into();
        }
        taints.entry((&taint.key, taint.effect.as_str())).or_insert(added);
        records.insert(annotation_key(&gate.uid), Record::text(&record(gate, now)).into());
    }
    if taints.is_empty() {
        return Vec::new();
    }
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let mut operations = Vec::new();
    if node.spec.is_none() {
        operations.push(add("/spec", json!({"taints": taints.into_values().collect::<Value>()})));
    } else if there.is_empty() {
        operations.push(add("/spec/taints", taints.into_values().collect()));
    } else {
        operations.extend(taints.into_values().map(|taint| add("/spec/taints/-", taint)));
    }
    if node.metadata.annotations.as_ref().is_none_or(BTreeMap::is_empty) {
        operations.push(add("/metadata/annotations", records.into()));
    } else {
        operations.extend(records.into_iter().map(|(key, record)| add(&patch::annotation(&key), record)));
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::node_readiness_gate::NodeReadinessGateSpec;
    use k8s_openapi::ByteString;

    /// As the presets of the original: every node but those of the cloud's own pool.
    fn startup() -> Gate {
        let spec = json!({
            "nodeSelector": {"matchExpressions": [{"key": "kubernetes.azure.com/mode", "operator": "NotIn", "values": ["system"]}]},
            "taint": {"key": "startup.k8s.io/initializing", "value": "wait"},
            "requirements": [],
        });
        let spec: NodeReadinessGateSpec = serde_json::from_value(spec).unwrap();
        Gate {
            name: "startup".into(),
            uid: "u".into(),
            generation: 1,
            created: 0,
            edited: None,
            deleting: false,
            spec,
            completion_annotation: None,
        }
    }

    fn ask(request: &Value, gates: &[Gate]) -> (Value, Answered) {
        review(json!({"request": request}).to_string().as_bytes(), gates.iter(), 1_000).unwrap()
    }

    fn request(node: &Value) -> Value {
        json!({"uid": "r", "operation": "CREATE", "kind": {"group": "", "version": "v1", "kind": "Node"}, "object": node})
    }

    /// The operations about taints, and what the node becomes with all operations.
    fn patched(node: &Value, gates: &[Gate]) -> (Vec<Value>, Value) {
        let (answer, answered) = ask(&request(node), gates);
        assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"], answered), (&json!("r"), &json!(true), Answered::Tainted));
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        let patch: ByteString = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
        let operations: Vec<Value> = serde_json::from_slice(&patch.0).unwrap();
        let mut node = node.clone();
        json_patch::patch(&mut node, &serde_json::from_slice::<json_patch::Patch>(&patch.0).unwrap()).unwrap();
        (operations.into_iter().filter(|operation| operation["path"].as_str().unwrap().starts_with("/spec")).collect(), node)
    }

    fn is_unchanged(request: &Value) {
        let (answer, answered) = ask(request, &[startup()]);
        assert_eq!(answer["response"]["allowed"], true);
        assert!(answer["response"].get("patch").is_none(), "{answer}");
        assert_eq!(answered, Answered::Unchanged);
    }

    #[test]
    fn an_untainted_node_gets_all_taints_in_one_operation() {
        let (operations, node) = patched(&json!({"metadata": {"name": "n"}, "spec": {}}), &[startup()]);
        let taint = json!({"key": "startup.k8s.io/initializing", "value": "wait", "effect": "NoSchedule"});
        assert_eq!(operations, [json!({"op": "add", "path": "/spec/taints", "value": [taint]})]);
        let annotations: BTreeMap<String, String> = serde_json::from_value(node["metadata"]["annotations"].clone()).unwrap();
        let recorded = super::super::record::records(&annotations.into());
        assert_eq!(recorded["u"], record(&startup(), 1_000));
    }

    #[test]
    fn a_gates_taint_is_appended_to_existing_taints() {
        let other = json!({"key": "other", "effect": "NoExecute"});
        let theirs = json!({"metadata": {"name": "n", "annotations": {"a/b": "c"}}, "spec": {"taints": [other]}});
        let (operations, node) = patched(&theirs, &[startup()]);
        assert_eq!(operations.len(), 1);
        assert_eq!(operations[0]["path"], "/spec/taints/-");
        assert_eq!(node["spec"]["taints"].as_array().unwrap().len(), 2);
        assert_eq!((&node["spec"]["taints"][0], &node["metadata"]["annotations"]["a/b"]), (&other, &json!("c")));
    }

    #[test]
    fn gates_that_share_a_taint_add_it_only_once() {
        let twin = Gate { name: "twin".into(), uid: "w".into(), ..startup() };
        let (operations, node) = patched(&json!({"metadata": {"name": "n"}, "spec": {}}), &[startup(), twin]);
        assert_eq!(operations[0]["value"].as_array().unwrap().len(), 1);
        assert_eq!(node["metadata"]["annotations"].as_object().unwrap().len(), 2);
    }

    #[test]
    fn a_node_that_has_the_taint_is_left_alone() {
        let taints = json!([{"key": "startup.k8s.io/initializing", "value": "wait", "effect": "NoSchedule"}]);
        is_unchanged(&request(&json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})));
    }

    #[test]
    fn an_update_is_left_alone() {
        let mut update = request(&json!({"metadata": {"name": "n"}}));
        update["operation"] = "UPDATE".into();
        is_unchanged(&update);
    }

    #[test]
    fn what_is_no_node_is_left_alone() {
        let mut pod = request(&json!({"metadata": {"name": "n"}}));
        pod["kind"]["kind"] = "Pod".into();
        is_unchanged(&pod);
    }

    #[test]
    fn a_node_of_the_clouds_system_pool_stays_unchanged() {
        is_unchanged(&request(&json!({"metadata": {"name": "n", "labels": {"kubernetes.azure.com/mode": "system"}}})));
    }

    #[test]
    fn a_body_that_is_no_review_has_no_answer() {
        for body in ["", "{", "no", "7", "\"x\""] {
            assert!(review(body.as_bytes(), [].into_iter(), 0).is_none(), "{body}");
        }
    }

    #[test]
    fn a_review_without_a_request_is_allowed() {
        let (answer, answered) = review(b"{}", [].into_iter(), 0).unwrap();
        assert_eq!((&answer["response"]["allowed"], answered), (&json!(true), Answered::Unchanged));
        assert!(answer["response"].get("patch").is_none());
    }

    #[test]
    fn a_node_that_cannot_be_decoded_is_allowed_and_counted() {
        let (answer, answered) = ask(&request(&json!({"metadata": {"labels": 7}})), &[startup()]);
        assert_eq!((&answer["response"]["allowed"], answered), (&json!(true), Answered::Undecodable));
        assert!(answer["response"].get("patch").is_none());
    }

    #[test]
    fn a_webhook_acts_only_for_gates_that_allow_it() {
        let with = |change: fn(&mut Gate)| {
            let mut gate = startup();
            change(&mut gate);
            is_for_webhook(&gate)
        };
        let on_create = |on_create| Some(crds::node_readiness_gate::Admission { on_create });
        assert!(with(|_| {}));
        assert!(is_for_webhook(&Gate {
            spec: NodeReadinessGateSpec { admission: on_create(OnCreate::Webhook), ..startup().spec },
            ..startup()
        }));
        assert!(!is_for_webhook(&Gate {
            spec: NodeReadinessGateSpec { admission: on_create(OnCreate::Policy), ..startup().spec },
            ..startup()
        }));
        assert!(!is_for_webhook(&Gate {
            spec: NodeReadinessGateSpec { admission: on_create(OnCreate::None), ..startup().spec },
            ..startup()
        }));
        assert!(!with(|gate| gate.deleting = true) && !with(|gate| gate.spec.dry_run = true));
    }
}
