//! Gates, pods and their owners at random.

use super::{NOW, TYPE, as_condition, by_label, condition, gate, key, labelled, merge, pod, texts, world};
use crds::pod_readiness_gate::RESERVED_CONDITIONS;
use planner::pod_gates::{Pod, decide::decide, owners, world::PodCondition};
use proptest::{collection, prelude::*, sample::select};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What one of three owners does next, and what becomes of its write.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
struct Step {
    owner: usize,
    hold: bool,
    /// The write is lost; or it is made, but its answer is lost, so it is made again.
    lost: bool,
    repeated: bool,
    /// The operator looks, at what was there so many steps ago, and its patch arrives or not.
    looks: bool,
    behind: usize,
    patch_lost: bool,
    restarts: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.1));
    (0..3_usize, 0..3_usize, flags).prop_map(|(owner, behind, (hold, lost, repeated, looks, patch_lost, restarts))| Step {
        owner,
        hold,
        lost,
        repeated,
        looks,
        behind,
        patch_lost,
        restarts,
    })
}

const OWNERS: [&str; 3] = ["in-place", "ops", "tests"];
const HOLDS: &str = crds::names::READINESS_HOLDS_ANNOTATION;

/// Applies an owner's patch to the annotation, as the API server does: all or nothing.
fn write_holds(annotations: &mut Option<String>, operations: &Value) -> bool {
    let mut object = json!({"metadata": {"uid": "pod-uid"}});
    if let Some(text) = annotations.as_deref() {
        object["metadata"]["annotations"] = json!({ HOLDS: text });
    }
    for operation in operations.as_array().unwrap() {
        // To the API server a member that is missing equals null.
        if operation["op"] == "test" && object.pointer(operation["path"].as_str().unwrap()).unwrap_or(&Value::Null) == &operation["value"] {
            continue;
        }
        let one: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
        if json_patch::patch(&mut object, &one).is_err() {
            return false;
        }
    }
    *annotations = object["metadata"]["annotations"].get(HOLDS).and_then(Value::as_str).map(str::to_owned);
    true
}

fn seen(annotations: Option<&String>, conditions: &[Value], restarts: u32) -> Pod {
    let entries: Vec<_> = annotations.into_iter().map(|text| (HOLDS, text.as_str())).collect();
    Pod { annotations: texts(&entries), conditions: conditions.iter().map(as_condition).collect(), restarts, ..pod() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn gates_converge_despite_random_holds_and_lost_writes(
        steps in collection::vec(step(), 1..60),
        reset in any::<bool>(),
    ) {
        let gate = gate("manual", json!({"source": {"manual": {}}, "resetOnRestart": reset}));
        let mut annotations: Option<String> = None;
        let mut conditions = vec![json!({"type": "Ready", "status": "False"}), json!({"type": "example.com/theirs", "status": "True"})];
        let mut restarts = 0;
        let mut wanted = [false; 3];
        let mut history: Vec<Pod> = Vec::new();
        for step in &steps {
            wanted[step.owner] = step.hold;
            restarts += u32::from(step.restarts);
            // Each owner goes on until what it wants is there: a write may be lost, made twice, or based on the past.
            for _ in 0..=usize::from(step.repeated) {
                let before = annotations.clone();
                let after = if step.hold {
                    Some(owners::hold(before.as_deref(), OWNERS[step.owner], "k").unwrap())
                } else {
                    owners::release(before.as_deref(), OWNERS[step.owner], "k").unwrap()
                };
                let Some(patch) = owners::patch("pod-uid", before.is_some(), HOLDS, before.as_deref(), after.as_deref()) else { continue };
                if !step.lost {
                    prop_assert!(write_holds(&mut annotations, &patch));
                    prop_assert!(!write_holds(&mut annotations, &patch), "a write whose answer was lost changes nothing the second time");
                }
            }
            history.push(seen(annotations.as_ref(), &conditions, restarts));
            if step.looks {
                let place = history.len().saturating_sub(1 + step.behind);
                let plan = decide(&world(vec![gate.clone()], history[place].clone()), &key(), None, NOW);
                if let Some(patch) = plan.patch.filter(|_| !step.patch_lost) {
                    only_ours(&patch)?;
                    merge(&mut conditions, &patch);
                }
            }
            one_of_each(&conditions)?;
        }
        // What was lost is made again, and the operator sees what is there.
        for (owner, held) in OWNERS.iter().zip(wanted) {
            let before = annotations.clone();
            let after = if held { Some(owners::hold(before.as_deref(), owner, "k").unwrap()) } else { owners::release(before.as_deref(), owner, "k").unwrap() };
            if let Some(patch) = owners::patch("pod-uid", before.is_some(), HOLDS, before.as_deref(), after.as_deref()) {
                prop_assert!(write_holds(&mut annotations, &patch));
            }
        }
        let was_reset = |conditions: &[Value]| conditions.iter().any(|condition| condition["type"] == TYPE && condition["reason"] == "ContainerRestarted");
        for _ in 0..2 {
            let plan = decide(&world(vec![gate.clone()], seen(annotations.as_ref(), &conditions, restarts)), &key(), None, NOW);
            if let Some(patch) = plan.patch {
                only_ours(&patch)?;
                merge(&mut conditions, &patch);
            }
        }
        let last = decide(&world(vec![gate], seen(annotations.as_ref(), &conditions, restarts)), &key(), None, NOW);
        prop_assert_eq!(last.patch, None, "it settles");
        one_of_each(&conditions)?;
        let status = conditions.iter().find(|condition| condition["type"] == TYPE).map(|condition| condition["status"] == "True");
        prop_assert_eq!(status, Some(!wanted.contains(&true) && !was_reset(&conditions)));
        prop_assert_eq!(annotations.is_some(), wanted.contains(&true), "nothing is left where nobody holds");
    }

    #[test]
    fn no_patch_contains_a_reserved_kubernetes_condition(
        type_ in select([&RESERVED_CONDITIONS[..], &[TYPE]].concat()),
        label in select(&["true", "false", "maybe"][..]),
        default in select(&["True", "False", "Unset"][..]),
        before in select(&["True", "False", "Unknown", ""][..]),
    ) {
        // The definition refuses such a gate; an older one may let it through.
        let mut gate = by_label(json!({"default": default}));
        gate.spec.condition_type = type_.to_owned();
        let conditions = if before.is_empty() { vec![] } else { vec![PodCondition { type_: type_.to_owned(), ..condition(before, "SourceTrue", "") }] };
        let pod = Pod { gates: vec![type_.to_owned()], conditions, ..labelled(label) };
        if let Some(patch) = decide(&world(vec![gate], pod), &key(), None, NOW).patch {
            only_ours(&patch)?;
        }
    }
}

fn only_ours(patch: &Value) -> Result<(), TestCaseError> {
    let types: BTreeSet<_> =
        patch["status"]["conditions"].as_array().unwrap().iter().map(|entry| entry["type"].as_str().unwrap()).collect();
    prop_assert_eq!(types, BTreeSet::from([TYPE]));
    prop_assert_eq!(patch["status"].as_object().unwrap().len(), 1);
    Ok(())
}

fn one_of_each(conditions: &[Value]) -> Result<(), TestCaseError> {
    let types: BTreeSet<_> = conditions.iter().map(|condition| condition["type"].as_str().unwrap()).collect();
    prop_assert_eq!(types.len(), conditions.len());
    prop_assert!(types.contains("example.com/theirs") && types.contains("Ready"));
    Ok(())
}
