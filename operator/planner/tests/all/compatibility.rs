//! What a spec means, to the letter: spellings, defaults, contradictions, names, placement.

use crds::{IngressDaemonSetSpec, hash, names};
use planner::{
    objects::{
        health_checker::uses_old_image,
        render::{contains, object_name},
    },
    spec::{Count, DisruptionMode, ResolvedSpec, resolve},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn spec(change: impl FnOnce(&mut Value)) -> IngressDaemonSetSpec {
    let mut spec = json!({"template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}}});
    change(&mut spec);
    serde_json::from_value(spec).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "rows of tables are made in place")]
fn rolling(strategy: Value) -> IngressDaemonSetSpec {
    spec(|spec| spec["updateStrategy"] = json!({"rollingUpdate": strategy}))
}

fn reasons(spec: &IngressDaemonSetSpec) -> Vec<&'static str> {
    resolve(spec).map_or_else(|problems| problems.iter().map(|problem| problem.reason).collect(), |_| Vec::new())
}

fn settings(spec: &IngressDaemonSetSpec) -> ResolvedSpec {
    resolve(spec).unwrap()
}

fn warnings(settings: &ResolvedSpec) -> Vec<&'static str> {
    settings.warnings.iter().map(|remark| remark.reason).collect()
}

#[test]
fn an_empty_strategy_degrades_one_node_at_a_time() {
    let settings = settings(&spec(|_| {}));
    assert_eq!((settings.mode, settings.budget, settings.pods_per_node), (DisruptionMode::Degrade, Count::Number(1), 1));
    assert_eq!((settings.max_unavailable_pods, settings.max_surged_pods), (Count::Number(1), Count::Number(0)));
    assert_eq!((settings.detach_timeout, settings.deployment_grace, settings.attach_soak), (600, 10, 10));
    assert!(settings.ports.is_empty() && settings.deployment_annotation.is_none() && settings.node_mark.is_none());
}

#[test]
fn pods_per_node_of_one_counts_as_unset_beside_replicas() {
    for (pods, replicas, wanted) in [
        (json!(1), json!(3), Ok(3)),
        (json!(3), json!(3), Ok(3)),
        (json!(2), Value::Null, Ok(2)),
        (json!(0), Value::Null, Ok(0)),
        (json!(1), json!(0), Ok(0)),
        (json!(2), json!(3), Err(())),
    ] {
        let spec = spec(|spec| {
            spec["podsPerNode"] = pods.clone();
            if !replicas.is_null() {
                spec["replicas"] = replicas.clone();
            }
        });
        assert_eq!(resolve(&spec).map(|settings| settings.pods_per_node).map_err(|_| ()), wanted, "{pods} {replicas}");
    }
    assert_eq!(
        reasons(&spec(|spec| {
            spec["podsPerNode"] = 2.into();
            spec["replicas"] = 3.into();
        })),
        ["ConflictingAliases"]
    );
}

#[test]
fn every_spelling_of_the_pod_budget_is_read() {
    for spelling in ["maxUnavailablePodsPerNode", "maxUnavailablePodsPerNodes", "maxUnavaiablePodsPerNode"] {
        assert_eq!(settings(&rolling(json!({spelling: 2}))).max_unavailable_pods, Count::Number(2), "{spelling}");
    }
    let same = json!({"maxUnavailablePodsPerNode": "50%", "maxUnavaiablePodsPerNode": "50%"});
    assert_eq!(settings(&rolling(same)).max_unavailable_pods, Count::Percent(50));
    let other = json!({"maxUnavailablePodsPerNodes": 1, "maxUnavaiablePodsPerNode": 2});
    assert_eq!(reasons(&rolling(other)), ["ConflictingAliases"]);
}

#[test]
fn every_spelling_of_a_node_budget_is_read() {
    for spelling in ["maxUnavailableNodes", "maxUnavaiableNodes"] {
        let settings = settings(&rolling(json!({spelling: 2})));
        assert_eq!((settings.mode, settings.budget), (DisruptionMode::Detach, Count::Number(2)), "{spelling}");
    }
    for spelling in ["maxDegradedNodes", "maxDegaradedNodes"] {
        let settings = settings(&rolling(json!({spelling: "50%"})));
        assert_eq!((settings.mode, settings.budget), (DisruptionMode::Degrade, Count::Percent(50)), "{spelling}");
    }
    for (one, other) in [("maxUnavailableNodes", "maxUnavaiableNodes"), ("maxDegradedNodes", "maxDegaradedNodes")] {
        assert_eq!(reasons(&rolling(json!({one: 2, other: 2}))), [] as [&str; 0], "{one}");
        assert_eq!(reasons(&rolling(json!({one: 1, other: 2}))), ["ConflictingAliases"], "{one}");
        assert_eq!(reasons(&rolling(json!({other: "x"}))), ["InvalidSpec"], "{other}");
    }
    assert_eq!(reasons(&rolling(json!({"maxUnavaiableNodes": 0, "maxDegaradedNodes": 0}))), ["InvalidSpec"]);
}

#[test]
fn a_health_port_must_not_contradict_its_alias_or_list() {
    let ports = |ports: Value| {
        let given = spec(|spec| spec.as_object_mut().unwrap().extend(ports.as_object().unwrap().clone()));
        resolve(&given).map(|settings| settings.ports).map_err(|problems| problems[0].reason)
    };
    for name in ["healthCheckNodePort", "healthCheckPort"] {
        assert_eq!(ports(json!({name: 10080})), Ok(vec![10080]), "{name}");
        assert_eq!(ports(json!({name: 10080, "healthCheckNodePorts": [10080]})), Ok(vec![10080]), "{name}");
        assert_eq!(ports(json!({name: 10080, "healthCheckNodePorts": [10081]})), Err("ConflictingAliases"), "{name}");
        assert_eq!(ports(json!({name: 0})), Err("InvalidSpec"), "{name}");
    }
    assert_eq!(ports(json!({"healthCheckNodePort": 10080, "healthCheckPort": 10080})), Ok(vec![10080]));
    assert_eq!(ports(json!({"healthCheckNodePort": 10080, "healthCheckPort": 10081})), Err("ConflictingAliases"));
    let list = |list: Value| ports(json!({"healthCheckNodePorts": list}));
    assert_eq!(list(json!([10080, 10081])), Ok(vec![10080, 10081]));
    for bad in [json!([0]), json!([65536]), json!([-1]), json!([7, 7])] {
        assert_eq!(list(bad.clone()), Err("InvalidSpec"), "{bad}");
    }
}

#[test]
fn selector_expressions_are_accepted_with_a_remark() {
    let settings = settings(&spec(|spec| {
        spec["selector"] =
            json!({"matchLabels": {"app": "edge"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["edge"]}]});
    }));
    assert_eq!(warnings(&settings), ["SelectorIgnored"]);
    let message = &settings.warnings[0].message;
    assert!(message.contains("selector.matchExpressions") && message.contains("matchLabels"), "{message}");
}

#[test]
fn degrade_mode_ignores_marks_with_a_remark() {
    let marks = json!({
        "annotateDeploymentToDetach": {}, "annotateNodeToDetach": {"key": "a/b"}, "waitForDetachmentByAnnotatedTimestamp": {"key": "a/c"},
    });
    let with = |budget: Value| {
        let mut given = marks.clone();
        given.as_object_mut().unwrap().extend(budget.as_object().unwrap().clone());
        settings(&rolling(given))
    };
    let degrades = with(json!({"maxDegradedNodes": 2}));
    assert_eq!(degrades.update_marks(), crds::ledger::Marks::default());
    assert_eq!(warnings(&degrades), ["MarksIgnored"]);
    for word in ["annotateDeploymentToDetach, annotateNodeToDetach, waitForDetachmentByAnnotatedTimestamp", "maxUnavailableNodes"] {
        assert!(degrades.warnings[0].message.contains(word), "{}", degrades.warnings[0].message);
    }
    assert_eq!(warnings(&with(json!({"maxUnavailableNodes": 2}))), [] as [&str; 0]);
    assert_eq!(warnings(&settings(&rolling(json!({"maxDegradedNodes": 2})))), [] as [&str; 0], "a node stays attached");
    let label = settings(&rolling(json!({"labelNodeToDetach": {"gracePeriodSeconds": 9}})));
    assert!(label.warnings[0].message.starts_with("labelNodeToDetach"), "{:?}", label.warnings);
}

#[test]
fn detach_mode_that_tells_nobody_is_accepted_with_a_remark() {
    let with = |ports: Value, mark: &str| {
        let mut strategy = json!({"maxUnavailableNodes": 1});
        if !mark.is_empty() {
            strategy[mark] = if mark == "labelNodeToDetach" { json!({"gracePeriodSeconds": 9}) } else { json!({"key": "a/b"}) };
        }
        settings(&spec(|spec| {
            spec["healthCheckNodePorts"] = ports;
            spec["updateStrategy"] = json!({"rollingUpdate": strategy});
        }))
    };
    let nobody = with(json!([]), "");
    assert_eq!(warnings(&nobody), ["NothingDetaches"]);
    for field in ["maxUnavailableNodes", "healthCheckNodePorts", "annotateNodeToDetach", "labelNodeToDetach"] {
        assert!(nobody.warnings[0].message.contains(field), "{}", nobody.warnings[0].message);
    }
    assert_eq!(warnings(&with(json!([10080]), "")), [] as [&str; 0]);
    for mark in ["annotateDeploymentToDetach", "annotateNodeToDetach", "labelNodeToDetach"] {
        assert_eq!(warnings(&with(json!([]), mark)), [] as [&str; 0], "{mark}");
    }
}

#[test]
fn a_health_port_adds_its_own_mark_to_others() {
    let with = |ports: &[u16], strategy: Value| {
        settings(&spec(|spec| {
            spec["healthCheckNodePorts"] = json!(ports);
            spec["loadBalancer"] = json!({"preset": "AwsNlbLbc"});
            spec["updateStrategy"] = json!({"rollingUpdate": strategy});
        }))
    };
    let annotated = json!({"maxUnavailableNodes": 2, "annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 90}});
    let labelled = json!({"maxUnavailableNodes": 2, "labelNodeToDetach": {"gracePeriodSeconds": 90}});
    for strategy in [annotated, labelled] {
        let served = with(&[10080], strategy.clone());
        let marks = served.update_marks();
        assert!(marks.deployment && marks.deployment_keys.is_empty() && marks.node.is_some(), "{marks:?}");
        assert_eq!((served.deployment_grace, served.node_grace), (90, 90), "the mark of which nothing is said keeps nobody waiting");
        assert!(!with(&[], strategy).update_marks().deployment, "nobody would look at it");
    }
    let both = json!({
        "maxUnavailableNodes": 2, "annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 9}, "annotateDeploymentToDetach": {},
    });
    assert_eq!(with(&[10080], both).deployment_grace, 80);
    assert_eq!(with(&[10080], json!({"maxDegradedNodes": 1})).update_marks(), crds::ledger::Marks::default());
}

#[test]
fn given_both_budgets_nodes_are_detached_with_a_remark() {
    let settings = settings(&spec(|spec| {
        spec["healthCheckNodePorts"] = json!([10080]);
        spec["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailableNodes": 2, "maxDegradedNodes": 1}});
    }));
    assert_eq!((settings.mode, settings.budget), (DisruptionMode::Detach, Count::Number(2)));
    assert_eq!(settings.warnings.iter().map(|remark| remark.reason).collect::<Vec<_>>(), ["ConflictingStrategy"]);
    assert_eq!(
        (settings.max_unavailable_pods, settings.max_surged_pods),
        (Count::Percent(100), Count::Number(0)),
        "a detached node is updated at once"
    );
}

/// The strategy, the ports and the number of pods are those of the original's README.
#[test]
fn the_originals_example_runs_once_the_named_fields_are_removed() {
    let without = |pods_per_node: u32, fields: &[&str]| {
        let mut strategy = json!({
            "maxUnavailableNodes": 2, "maxUnavaiablePodsPerNode": 3, "maxSurgedPodsPerNode": 1, "maxDegradedNodes": 3,
            "annotateNodeToDetach": {"key": "node-detacher.variant.run/detached", "value": "true", "gracePeriodSeconds": 10},
            "waitForDetachmentByAnnotatedTimestamp": {
                "key": "node-detacher.variant.run/detachment-timestamp", "format": "RFC3339", "gracePeriodSeconds": 30,
            },
        });
        strategy.as_object_mut().unwrap().retain(|field, _| !fields.contains(&field.as_str()));
        spec(|spec| {
            spec["podsPerNode"] = pods_per_node.into();
            spec["healthCheckNodePorts"] = json!([10080]);
            spec["updateStrategy"] = json!({"rollingUpdate": strategy});
            spec["template"]["spec"]["hostNetwork"] = true.into();
            spec["template"]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}, {"containerPort": 443}]);
        })
    };
    assert_eq!(reasons(&without(2, &[])), ["HostPortConflict"]);
    let detaches = settings(&without(1, &["maxDegradedNodes", "waitForDetachmentByAnnotatedTimestamp"]));
    assert_eq!((detaches.mode, warnings(&detaches)), (DisruptionMode::Detach, vec![]));
    let degrades = ["maxUnavailableNodes", "maxSurgedPodsPerNode", "annotateNodeToDetach", "waitForDetachmentByAnnotatedTimestamp"];
    let degrades = settings(&without(1, &degrades));
    assert_eq!((degrades.mode, warnings(&degrades)), (DisruptionMode::Degrade, vec![]));
}

#[test]
fn both_budgets_of_zero_are_refused() {
    assert_eq!(reasons(&rolling(json!({"maxUnavailableNodes": 0, "maxDegradedNodes": 0}))), ["InvalidSpec"]);
    assert_eq!(reasons(&rolling(json!({"maxDegradedNodes": "0%"}))), ["InvalidSpec"]);
    assert_eq!(reasons(&rolling(json!({"maxUnavailableNodes": 1, "maxDegradedNodes": 0}))), [] as [&str; 0]);
}

#[test]
fn a_percentage_above_zero_rounds_down_to_at_least_one() {
    for (count, total, wanted) in [
        (Count::Percent(25), 10, 2),
        (Count::Percent(1), 10, 1),
        (Count::Percent(0), 10, 0),
        (Count::Percent(100), 7, 7),
        (Count::Number(3), 2, 3),
        (Count::Percent(50), 0, 1),
    ] {
        assert_eq!(count.of(total), wanted, "{count:?} of {total}");
    }
    for bad in [json!("x"), json!("101%"), json!("-1%"), json!(-1), json!("5")] {
        assert_eq!(reasons(&rolling(json!({"maxUnavailableNodes": bad}))), ["InvalidSpec"], "{bad}");
    }
}

#[test]
fn an_absent_mark_value_is_read_as_empty() {
    let settings = settings(&rolling(
        json!({"maxUnavailableNodes": 1, "annotateDeploymentToDetach": {}, "annotateNodeToDetach": {"key": "a/b", "gracePeriodSeconds": 7}}),
    ));
    let deployment = settings.deployment_annotation.unwrap();
    assert_eq!((deployment.key.as_str(), deployment.value.as_str()), ("ingressdaemonsets.mumoshu.github.com/to-be-updated", ""));
    let node = settings.node_mark.unwrap();
    assert_eq!((node.key.as_str(), node.value.as_str(), settings.node_grace, settings.deployment_grace), ("a/b", "", 7, 10));
}

#[test]
fn the_label_defaults_to_what_cloud_controllers_know() {
    let marked = |label: Value| settings(&rolling(json!({"maxUnavailableNodes": 1, "labelNodeToDetach": label})));
    let usual = marked(json!({"gracePeriodSeconds": 90}));
    let mark = usual.node_mark.clone().unwrap();
    assert_eq!((mark.key.as_str(), mark.value.as_str()), ("label:node.kubernetes.io/exclude-from-external-load-balancers", "true"));
    assert_eq!(usual.node_grace, 90);
    let marks = usual.detach_marks();
    assert!(!marks.deployment && marks.node.is_some(), "the health check alone is not asked");
    let other = marked(json!({"key": "a/b", "value": "", "gracePeriodSeconds": 0})).node_mark.unwrap();
    assert_eq!((other.key.as_str(), other.value.as_str()), ("label:a/b", ""));
}

#[test]
fn the_load_balancers_timing_gives_grace_and_soak() {
    let spec = spec(|spec| {
        spec["loadBalancer"] =
            json!({"interval": "2s", "timeout": "1s", "unhealthyThreshold": 3, "healthyThreshold": 2, "propagation": "500ms"});
        spec["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailableNodes": 1}});
    });
    let settings = settings(&spec);
    assert_eq!((settings.deployment_grace, settings.attach_soak), (8, 5), "7.5 s and 4.5 s, rounded up");
}

#[test]
fn a_preset_gives_grace_and_soak_unless_specified() {
    let with = |strategy: Value| {
        settings(&spec(|spec| {
            spec["loadBalancer"] = json!({"preset": "AwsNlbLbc"});
            spec["updateStrategy"] = json!({"rollingUpdate": strategy});
        }))
    };
    let given = with(json!({"maxUnavailableNodes": 1, "annotateDeploymentToDetach": {}}));
    assert_eq!((given.deployment_grace, given.node_grace, given.attach_soak), (80, 80, 70));
    assert_eq!(given.warnings, []);
    let short = with(json!({"maxUnavailableNodes": 1, "annotateDeploymentToDetach": {"gracePeriodSeconds": 10}, "attachSoakSeconds": 3}));
    assert_eq!((short.deployment_grace, short.attach_soak), (10, 3), "what is given stays");
    assert_eq!(short.warnings.iter().map(|remark| remark.reason).collect::<Vec<_>>(), ["GracePeriodTooShort"]);
}

#[test]
fn a_load_balancer_without_preset_and_figures_is_refused() {
    assert_eq!(reasons(&spec(|spec| spec["loadBalancer"] = json!({}))), ["InvalidSpec"]);
    assert_eq!(reasons(&spec(|spec| spec["loadBalancer"] = json!({"preset": "AwsNlb", "interval": "soon"}))), ["InvalidSpec"]);
}

#[test]
fn host_ports_take_one_pod_per_node_and_no_surge() {
    let with = |pod: Value, pods: i32, strategy: Value| {
        spec(|spec| {
            spec["podsPerNode"] = pods.into();
            spec["template"]["spec"] = pod;
            spec["updateStrategy"] = json!({"rollingUpdate": strategy});
        })
    };
    let explicit = json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    let shared = json!({"hostNetwork": true, "containers": [{"name": "a", "ports": [{"containerPort": 80}]}]});
    let reuse = json!({"hostNetwork": true, "containers": [{"name": "a"}]});
    for pod in [&explicit, &shared] {
        assert_eq!(reasons(&with(pod.clone(), 2, json!({}))), ["HostPortConflict"]);
        assert_eq!(reasons(&with(pod.clone(), 1, json!({"maxSurgedPodsPerNode": 1}))), ["HostPortConflict"]);
        assert_eq!(reasons(&with(pod.clone(), 1, json!({}))), [] as [&str; 0]);
        assert_eq!(settings(&with(pod.clone(), 1, json!({}))).placement, crds::ingress_daemon_set::Placement::NodeAffinity);
    }
    for none in [json!(0), json!("0%")] {
        let strategy = json!({"maxUnavailablePodsPerNode": none});
        let said = resolve(&with(explicit.clone(), 1, strategy.clone())).unwrap_err();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].reason == "InvalidSpec" && said[0].message.starts_with("maxUnavailablePodsPerNode must not be 0"), "{said:?}");
        let detaches = json!({"maxUnavailableNodes": 1, "maxUnavailablePodsPerNode": none});
        assert_eq!(settings(&with(explicit.clone(), 1, detaches)).max_unavailable_pods, Count::Percent(100));
    }
    let several = with(reuse, 2, json!({}));
    assert_eq!(settings(&several).placement, crds::ingress_daemon_set::Placement::NodeName);
}

#[test]
fn reserved_keys_and_a_pinned_template_are_refused() {
    for (key, reserved) in [
        (names::NODE_LABEL, true),
        (names::TOKEN_LABEL, true),
        ("ingress-daemonset-hc", true),
        ("ingress-daemon-for-node", false),
        ("app", false),
        ("ingressdaemonsets.mumoshu.github.iox/a", false),
    ] {
        let spec = spec(|spec| spec["template"]["metadata"] = json!({"labels": {key: "x"}}));
        assert_eq!(reasons(&spec), if reserved { vec!["ReservedKey"] } else { vec![] }, "{key}");
    }
    let on_deployments = spec(|spec| spec["selector"] = json!({"matchLabels": {"ingress-daemon-for-node": "n1"}}));
    assert_eq!(reasons(&on_deployments), ["ReservedKey"], "the operator puts it on Deployments, and on nothing else");
    assert_eq!(reasons(&spec(|spec| spec["template"]["spec"]["nodeName"] = "n1".into())), ["InvalidTemplate"]);
    assert_eq!(reasons(&spec(|spec| spec["template"]["spec"]["containers"] = json!([]))), ["InvalidTemplate"]);
}

#[test]
fn the_originals_health_checker_images_are_known() {
    for (image, old) in [
        ("mumoshu/ingress-daemonset-node-healthcheck-server:latest", true),
        ("mumoshu/ingress-daemonset-controller", true),
        ("docker.io/mumoshu/ingress-daemonset-controller:v0.1", true),
        ("docker.io/mumoshu/ingress-daemonset-controller@sha256:00", true),
        ("registry.example.com:5000/mumoshu/ingress-daemonset-controller:v1", true),
        ("example.com/checker:1", false),
        ("mumoshu/ingress-daemonset-controller-plus:1", false),
    ] {
        assert_eq!(uses_old_image(&spec(|spec| spec["healthChecker"] = json!({"image": image}))), old, "{image}");
    }
}

#[test]
fn names_are_plain_while_they_fit_and_never_clash() {
    let none = BTreeSet::new();
    assert_eq!(object_name("edge", "node-1.example.com", &none), "edge-node-1.example.com");
    let long = object_name("edge", &"n".repeat(80), &none);
    assert!(long.len() <= 52 && long.starts_with("edge-nnn"), "{long}");
    let dotted = object_name("edge", &format!("{}.example.com", "a.b".repeat(20)), &none);
    assert!(!dotted.contains('.') && dotted.len() <= 52, "{dotted}");
    assert_eq!(object_name("a", "b-c", &none), object_name("a-b", "c", &none), "this is the clash");
    let taken = BTreeSet::from(["a-b-c".to_owned()]);
    assert_ne!(object_name("a", "b-c", &taken), object_name("a-b", "c", &taken));
    assert_eq!(hash::node_hash(&"n".repeat(253)).len(), 16);
}

#[test]
fn what_the_api_server_adds_or_rewrites_is_no_drift() {
    let same = [
        (json!({"a": 1, "restartPolicy": "Always"}), json!({"a": 1})),
        (json!({"cpu": "1"}), json!({"cpu": "1000m"})),
        (json!({"cpu": "1"}), json!({"cpu": 1})),
        (json!({"cpu": "1500m"}), json!({"cpu": "1.5"})),
        (json!({"memory": "1Gi"}), json!({"memory": "1024Mi"})),
        (json!({}), json!({"env": [], "tty": false, "x": null, "s": ""})),
    ];
    for (stored, wanted) in same {
        assert!(contains(&stored, &wanted), "{stored} {wanted}");
    }
    let other = [
        (json!({"image": "a:2"}), json!({"image": "a:1"})),
        (json!({"args": ["a"]}), json!({"args": ["a", "b"]})),
        (json!({"cpu": "1"}), json!({"cpu": "2"})),
        (json!({}), json!({"a": "b"})),
        (json!({"tag": "1.0"}), json!({"tag": "a"})),
    ];
    for (stored, wanted) in other {
        assert!(!contains(&stored, &wanted), "{stored} {wanted}");
    }
}

#[test]
fn windows_are_read_and_one_that_cannot_be_is_refused() {
    let window = |schedule: &str| json!({"windows": [{"schedule": schedule, "duration": "3h", "timeZone": "Europe/Berlin"}]});
    let night = chrono::DateTime::from_timestamp(1_780_617_600, 0).unwrap();
    assert!(settings(&rolling(json!({}))).windows.at(night).open);
    assert!(settings(&rolling(window("0 2 * * *"))).windows.at(night).open, "{night} is 02:00 in Berlin");
    assert!(!settings(&rolling(window("0 3 * * *"))).windows.at(night).open);
    assert_eq!(reasons(&rolling(window("0 25 * * *"))), ["InvalidSpec"]);
}
