//! Which nodes are chosen, what their pods look like, and the times that hold them.

use crate::world;

use crds::{
    IngressDaemonSet, IngressDaemonSetSpec, IngressDaemonSetStatus,
    holders::{self, Entry, EntryPhase, Holders, VALUE_CHARACTERS},
    ledger::{DetachKey, Ledger},
    names,
};
use planner::{
    Reason, Snapshot,
    facts::{NodeFacts, OtherResource, PodFacts, Resource},
    node::breaker,
    objects::render,
    protocol::timing::{self, Marked},
    spec::{node_selection::is_chosen, resolve},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use world::{
    World, api,
    cluster::{Cluster, UID8, deployment_facts},
    operator::Operator,
    wish::{GRACE, KEYS, Marks, STAMP, STAMP_GRACE, Wish, spec},
};

fn chosen(pod: &Value, node: &Value, member: bool) -> bool {
    let mut template = json!({"spec": pod.clone()});
    template["spec"]["containers"] = json!([{"name": "a"}]);
    let spec = spec(json!({"nodeSelector": {"ingress": "true"}, "template": template}));
    let labels: BTreeMap<String, String> = serde_json::from_value(node["labels"].clone()).unwrap_or_default();
    let taints = serde_json::from_value(node["taints"].clone()).unwrap_or_default();
    is_chosen(&spec, &resolve(&spec).unwrap(), "n1", &NodeFacts { labels: labels.into(), taints, ..NodeFacts::default() }, member)
}

#[test]
fn a_node_is_chosen_as_for_a_daemon_set() {
    let plain = json!({"labels": {"ingress": "true", "zone": "a"}});
    let tainted =
        |key: &str, effect: &str| json!({"labels": {"ingress": "true"}, "taints": [{"key": key, "value": "v", "effect": effect}]});
    let affinity = |term: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}});
    let tolerating = json!({"tolerations": [{"key": "k", "operator": "Equal", "value": "v"}]});
    let rows = [
        ("labels match", json!({}), plain.clone(), false, true),
        ("the selector of the spec does not match", json!({}), json!({"labels": {}}), true, false),
        ("the template's does not", json!({"nodeSelector": {"zone": "b"}}), plain.clone(), true, false),
        (
            "affinity by label",
            affinity(json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]})),
            plain.clone(),
            false,
            true,
        ),
        (
            "affinity excludes",
            affinity(json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]})),
            plain.clone(),
            true,
            false,
        ),
        (
            "affinity by name",
            affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})),
            plain.clone(),
            false,
            true,
        ),
        ("an empty term matches nothing", affinity(json!({})), plain, true, false),
        ("NoExecute", json!({}), tainted("k", "NoExecute"), true, false),
        ("NoExecute tolerated", tolerating.clone(), tainted("k", "NoExecute"), false, true),
        ("NoSchedule keeps out", json!({}), tainted("k", "NoSchedule"), false, false),
        ("NoSchedule never makes leave", json!({}), tainted("k", "NoSchedule"), true, true),
        ("NoSchedule tolerated", tolerating, tainted("k", "NoSchedule"), false, true),
        ("not ready", json!({}), tainted("node.kubernetes.io/not-ready", "NoExecute"), false, true),
        ("cordoned", json!({}), tainted("node.kubernetes.io/unschedulable", "NoSchedule"), false, true),
        ("the detacher's", json!({}), tainted(names::DETACHER_TAINT, "NoSchedule"), false, true),
    ];
    for (name, pod, node, member, wanted) in rows {
        assert_eq!(chosen(&pod, &node, member), wanted, "{name}");
    }
}

#[test]
fn pods_keep_the_users_template_and_get_tolerations_and_pins() {
    let mut resource = (*Cluster::new(Wish::new(Marks::Token, 1), 1).resource.unwrap()).clone();
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
    resource.spec = spec(json!({"placement": "NodeAffinity", "template": {
        "metadata": {"labels": {"app": "edge"}, "annotations": {"own": "kept"}},
        "spec": {
            "containers": [{"name": "a"}], "tolerations": [{"key": "k", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, term]}}},
        },
    }}));
    let settings = resolve(&resource.spec).unwrap();
    let template = render::template(&resource, &settings, "edge-n1", "n1");
    let labels = &template["metadata"]["labels"];
    assert_eq!(
        (&labels["app"], &labels[names::NODE_LABEL], &labels[names::REVISION_LABEL]),
        (&json!("edge"), &json!("edge-n1"), &json!(settings.revision))
    );
    assert_eq!(template["metadata"]["annotations"]["own"], "kept");
    let terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        .as_array()
        .unwrap();
    assert_eq!(terms.len(), 2);
    for term in terms {
        assert_eq!(term["matchFields"][0]["values"], json!(["n1"]));
        assert_eq!(term["matchExpressions"][0]["key"], "zone");
    }
    let keys: Vec<_> = template["spec"]["tolerations"].as_array().unwrap().iter().map(|toleration| toleration["key"].clone()).collect();
    assert_eq!(keys[0], "k");
    assert!(keys.contains(&json!("node.kubernetes.io/not-ready")) && keys.contains(&json!(names::DETACHER_TAINT)));
    assert!(template["spec"].get("nodeName").is_none());
}

/// Deployment `edge-n1` of the node, as it is made at first.
fn rendered(resource: &Resource, node: &str) -> Value {
    let settings = resolve(&resource.spec).unwrap();
    let token = crds::token::Token { uid8: "00000000".into(), id: 1, phase: crds::token::Phase::New, since: 0, keep_annotation: false };
    let template = render::template(resource, &settings, "edge-n1", node);
    render::deployment(resource, &settings, "edge-n1", node, &token, &template, 1)
}

#[test]
fn the_originals_node_label_is_on_deployments_but_not_pods() {
    let resource = Cluster::new(Wish::new(Marks::Token, 1), 1).resource.unwrap();
    let labels = render::labels(&resource, "edge-n1", "n1.example.com");
    assert_eq!(labels.get("ingress-daemon-for-node").map(String::as_str), Some("n1.example.com"));
    let deployment = rendered(&resource, "n1.example.com");
    assert_eq!(deployment["metadata"]["labels"]["ingress-daemon-for-node"], "n1.example.com");
    let others = [&deployment["spec"]["selector"]["matchLabels"], &deployment["spec"]["template"]["metadata"]["labels"]];
    assert!(others.iter().all(|labels| labels.get("ingress-daemon-for-node").is_none()), "{others:?}");
    let longest = render::labels(&resource, "edge-n1", &"n".repeat(63));
    assert!(longest.contains_key("ingress-daemon-for-node"));
    let longer = render::labels(&resource, "edge-n1", &"n".repeat(64));
    assert!(!longer.contains_key("ingress-daemon-for-node"), "longer than a label may be");
}

#[test]
fn labels_of_the_selector_are_on_deployments_but_not_pods() {
    let mut resource = (*Cluster::new(Wish::new(Marks::Token, 1), 1).resource.unwrap()).clone();
    resource.spec.selector = serde_json::from_value(json!({"matchLabels": {"team": "edge"}})).unwrap();
    let deployment = rendered(&resource, "n1");
    assert_eq!(deployment["metadata"]["labels"]["team"], "edge");
    let others = [&deployment["spec"]["selector"]["matchLabels"], &deployment["spec"]["template"]["metadata"]["labels"]];
    assert!(others.iter().all(|labels| labels.get("team").is_none()), "{others:?}");
}

#[test]
fn the_originals_missing_label_is_added_without_replacing_pods() {
    let mut world = World::new(Wish::new(Marks::Token, 1), 2);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
    let before = world.cluster.deployments["edge-n1"]["spec"].clone();
    let pods = |world: &World| world.cluster.pods.iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>();
    let running = pods(&world);
    world.change(|cluster| {
        cluster.edit_deployment("edge-n1", |deployment| {
            deployment["metadata"]["labels"].as_object_mut().unwrap().remove("ingress-daemon-for-node").unwrap();
        });
    });
    let labelled = |world: &World| world.cluster.deployments["edge-n1"]["metadata"]["labels"]["ingress-daemon-for-node"] == "n1";
    world.run_until(&mut operator, 60, labelled).unwrap();
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
    assert_eq!((&world.cluster.deployments["edge-n1"]["spec"], pods(&world)), (&before, running));
}

/// One node at rest, as a process sees it that wrote none of it.
fn seen_anew() -> (World, Snapshot) {
    let mut world = World::new(Wish::new(Marks::Token, 1), 1);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 60, World::is_converged).unwrap();
    let mut fresh = Operator::default();
    fresh.catch_up(&world);
    let snapshot = fresh.snapshot(&world).unwrap();
    (world, snapshot)
}

#[test]
fn gate_conditions_come_with_the_next_revision_without_drift() {
    let (world, mut snapshot) = seen_anew();
    snapshot.gates.conditions = vec!["example.com/a".into(), "example.com/b".into()];
    let targets = planner::objects::revisions::Targets::of(&snapshot).unwrap();
    let mut settings = targets.effective.clone();
    let stored = world.cluster.deployments["edge-n0"].clone();
    assert!(!render::Rendered::new(&snapshot, &settings).has_drifted("n0", &deployment_facts(&stored)), "no silent roll");
    let mut template = (*settings.template).clone();
    template["spec"]["readinessGates"] = json!([{"conditionType": "example.com/b"}, {"conditionType": "example.com/own"}]);
    settings.template = Arc::new(template);
    let rendered = render::template(&snapshot.resource, &settings, "edge-n0", "n0");
    let listed: Vec<_> =
        rendered["spec"]["readinessGates"].as_array().unwrap().iter().map(|gate| gate["conditionType"].as_str().unwrap()).collect();
    assert_eq!(listed, ["example.com/b", "example.com/own", "example.com/a"]);
}

#[test]
fn foreign_pod_changes_are_drift_unlike_api_server_defaults() {
    let (world, snapshot) = seen_anew();
    let settings = resolve(&snapshot.resource.spec).unwrap();
    let stored = world.cluster.deployments["edge-n0"].clone();
    let drifted = |deployment: &Value| render::Rendered::new(&snapshot, &settings).has_drifted("n0", &deployment_facts(deployment));
    assert!(!drifted(&stored));
    let mut changed = stored.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1".into();
    assert!(drifted(&changed));
    let mut paused = stored.clone();
    paused["spec"]["paused"] = true.into();
    assert!(drifted(&paused));
    let mut defaults = stored;
    api::add_defaults(&mut defaults);
    defaults["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
    assert!(!drifted(&defaults));
}

#[test]
fn another_placement_is_no_drift_despite_the_templates_affinity() {
    let (world, snapshot) = seen_anew();
    let mut spec = IngressDaemonSetSpec::clone(&snapshot.resource.spec);
    // The pin comes beside what the term asks of the node's name.
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0", "n1"]}]});
    spec.template["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    let mut placed = |placement: &str| {
        spec.placement = serde_json::from_value(placement.into()).unwrap();
        resolve(&spec).unwrap()
    };
    let (before, after) = (placed("NodeAffinity"), placed("NodeName"));
    let mut stored = world.cluster.deployments["edge-n0"].clone();
    stored["spec"]["template"] = render::template(&snapshot.resource, &before, "edge-n0", "n0");
    let drifted = |stored: &Value| render::Rendered::new(&snapshot, &after).has_drifted("n0", &deployment_facts(stored));
    assert!(!drifted(&stored), "no silent roll");
    stored["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1".into();
    assert!(drifted(&stored));
}

fn settings_with(marks: Marks, policy: &'static str) -> planner::spec::ResolvedSpec {
    resolve(&Wish { on_timeout: policy, attach_soak: 5, ..Wish::new(marks, 1) }.spec()).unwrap()
}

fn entry(time: i64) -> Entry {
    Entry { id: 7, phase: EntryPhase::Detached, key: "k".into(), value: String::new(), previous: None, time }
}

fn stamped(time: Option<&str>) -> NodeFacts {
    NodeFacts {
        annotations: time.map(|time| (STAMP.to_owned(), time.to_owned())).into_iter().collect::<BTreeMap<_, _>>().into(),
        ..NodeFacts::default()
    }
}

/// Whole seconds are counted, so every period below ends a second later than it lasts.
#[test]
fn grace_ends_by_the_mark_that_was_seen_last() {
    let settings = settings_with(Marks::Both, "Halt");
    let grace = |by_token, by_entry| {
        timing::grace(&settings, &Marked { now: 100, token: Some(by_token), entry: Some((&entry(99), by_entry)), node: None })
    };
    assert_eq!(grace(1, 2), Some(Reason::GracePeriod { until: 100 + GRACE }));
    assert_eq!(grace(2, 1), Some(Reason::GracePeriod { until: 100 + GRACE }));
    assert_eq!(grace(GRACE, GRACE + 1), Some(Reason::GracePeriod { until: 101 }));
    assert_eq!(grace(GRACE + 1, GRACE + 1), None);
    assert_eq!(grace(i64::MAX, i64::MAX), None);
}

#[test]
fn a_detachers_timestamp_counts_only_if_newer_than_the_mark() {
    let at = |seconds: i64| chrono::DateTime::from_timestamp(seconds, 0).unwrap().to_rfc3339();
    let grace = |policy, now, stamp: Option<&str>| {
        let node = stamped(stamp);
        timing::grace(
            &settings_with(Marks::Timestamp, policy),
            &Marked { now, token: None, entry: Some((&entry(1000), now - 1000)), node: Some(&node) },
        )
    };
    let waiting = Some(Reason::WaitingForDetacher { until: 1030 });
    assert_eq!(grace("Halt", 1010, None), waiting);
    assert_eq!(grace("Halt", 1010, Some(&at(994))), waiting, "of an earlier detachment");
    assert_eq!(grace("Halt", 1010, Some(&at(995))), None, "within the skew of clocks");
    assert_eq!(grace("Halt", 1010, Some(&at(1009))), Some(Reason::GracePeriod { until: 1010 + STAMP_GRACE }));
    let unreadable = grace("Halt", 1010, Some("yesterday")).unwrap();
    assert_eq!(unreadable, Reason::BadTimestamp(STAMP.into()));
    assert!(!unreadable.message().contains("yesterday"), "what other annotations of Nodes say is no matter of a namespace");
    assert_eq!(grace("Halt", 1030, None), Some(Reason::DetachTimeout));
    assert_eq!(grace("Abort", 1030, None), Some(Reason::DetachTimeout));
    assert_eq!(grace("Proceed", 1030, None), None);
}

#[test]
fn a_deletion_with_invalid_spec_waits_for_default_grace() {
    assert_eq!(timing::default_grace(105, 5), Some(Reason::GracePeriod { until: 111 }));
    assert_eq!(timing::default_grace(111, 11), None);
    assert_eq!(timing::default_grace(105, i64::MAX), None);
}

#[test]
fn a_slot_is_free_after_soak_and_the_detachers_release() {
    let settings = settings_with(Marks::Timestamp, "Halt");
    let attached = Entry { phase: EntryPhase::Attached, ..entry(100) };
    let soak = |now, alone, stamp: Option<&str>| timing::soak(&settings, now, now - 100, Some(&attached), alone, Some(&stamped(stamp)));
    assert_eq!(soak(105, true, None), Some(Reason::AttachSoak { until: 106 }));
    assert_eq!(soak(106, true, None), None);
    assert_eq!(soak(106, true, Some("x")), Some(Reason::WaitingForAttachment));
    assert_eq!(soak(106, false, Some("x")), None, "another resource holds the node");
    assert_eq!(soak(130, true, Some("x")), None, "bounded by the detach timeout");
}

fn refused_at(at: i64) -> Arc<PodFacts> {
    Arc::new(PodFacts { rejected_at: Some(at), name: at.to_string(), ..PodFacts::default() })
}

#[test]
fn three_refusals_in_a_minute_open_the_breaker_with_backoff() {
    let mut world = World::new(Wish::new(Marks::Token, 1), 1);
    world.run_until(&mut Operator::default(), 60, World::is_converged).unwrap();
    let mut deployment = deployment_facts(&world.cluster.deployments["edge-n0"]);
    let refused = |at: &[i64]| at.iter().copied().map(refused_at).collect::<Vec<_>>();
    assert_eq!(breaker::opens(&deployment, &refused(&[950, 990]), 1000), None);
    assert_eq!(breaker::opens(&deployment, &refused(&[900, 950, 990]), 1000), None, "one is more than a minute old");
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let opened = breaker::opens(&deployment, &refused(&[950, 960, 990]), 1000).unwrap();
        pauses.push(opened.until - 1000);
        deployment.labels.insert(names::BREAKER_LABEL.into(), planner::node::breaker::Breaker { until: 1000, ..opened }.to_string());
    }
    assert_eq!(pauses, [60, 120, 240, 480, 900, 900]);
    deployment.labels.insert(names::BREAKER_LABEL.into(), "1.1050".into());
    assert_eq!(breaker::opens(&deployment, &refused(&[950, 960, 990]), 1000), None, "it is open");
    assert_eq!(breaker::leftovers(&refused(&[930, 990]), 1000).into_iter().collect::<Vec<_>>(), ["930"]);
}

#[test]
fn a_clock_set_back_extends_no_breaker_beyond_its_limit() {
    let mut world = World::new(Wish::new(Marks::Token, 1), 1);
    world.run_until(&mut Operator::default(), 60, World::is_converged).unwrap();
    let mut deployment = deployment_facts(&world.cluster.deployments["edge-n0"]);
    let pods = [4590, 4595, 4600].map(refused_at);
    assert_eq!(breaker::opens(&deployment, &pods, 1000), None, "refused an hour ahead");
    assert_eq!(breaker::leftovers(&pods, 1000).len(), 3);
    for (until, open) in [(1900, true), (1901, false), (4660, false)] {
        deployment.labels.insert(names::BREAKER_LABEL.into(), format!("1.{until}"));
        assert_eq!(breaker::open(&deployment, 1000).is_some(), open, "until {until}");
    }
}

#[test]
fn another_detach_value_holds_only_the_shared_nodes() {
    let mut world = World::new(Wish::new(Marks::Node, 3), 3);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    world.change(|cluster| {
        cluster.edit_wish(|wish| wish.image = 2);
        cluster.edit_node("n1", |node| node["metadata"]["labels"]["shared"] = "yes".into());
    });
    operator.catch_up(&world);
    let mut snapshot = operator.snapshot(&world).unwrap();
    let mark = |value: &str| json!({"rollingUpdate": {"maxUnavailableNodes": 1, "annotateNodeToDetach": {"key": KEYS[0], "value": value}}});
    let other = |value: &str| OtherResource {
        key: "default/other".into(),
        uid: "ffffffff-0000".into(),
        created: 1,
        resource: Arc::new(IngressDaemonSet::new(
            "other",
            spec(json!({
                "nodeSelector": {"shared": "yes"}, "updateStrategy": mark(value), "template": {"spec": {"containers": [{"name": "a"}]}},
            })),
        )),
        accepted: true,
    };
    let granted = |snapshot: &planner::Snapshot| {
        let plan = planner::decide(snapshot);
        let conflict = plan.status.conditions.iter().any(|condition| condition.type_ == "DetachAnnotationConflict");
        let state = plan
            .node_states
            .get("n1")
            .is_some_and(|state| state.reason == Reason::DetachAnnotationConflict("resource default/other".into()));
        (plan.status.rollout.unwrap().grants.into_keys().collect::<Vec<_>>(), state, conflict)
    };
    let all = ["n0", "n1", "n2"].map(str::to_owned).to_vec();
    assert_eq!(granted(&snapshot), (all.clone(), false, false), "no other resource");
    snapshot.others = vec![other("")];
    assert_eq!(granted(&snapshot), (all.clone(), false, false), "the same value");
    snapshot.others = vec![other("another")];
    assert_eq!(granted(&snapshot), (all.clone(), false, false), "another value, of an older resource that does not use the node");
    let node = Arc::make_mut(Arc::make_mut(&mut snapshot.nodes).get_mut("n1").unwrap());
    node.labels.insert(names::member_label("ffffffff"), String::new());
    let waits = (vec!["n0".to_owned(), "n2".to_owned()], true, true);
    assert_eq!(granted(&snapshot), (all.clone(), false, false), "an older one that has asked for the key only now");
    let ours = snapshot.resource.status.as_ref().unwrap().rollout.as_ref().unwrap().detach_key.clone().unwrap();
    assert!(ours.key == KEYS[0] && ours.since > 0, "{ours:?}");
    let key_of = |since: i64| {
        let rollout = Some(Ledger { detach_key: Some(DetachKey { since, ..ours.clone() }), ..Ledger::default() });
        Some(IngressDaemonSetStatus { rollout, ..IngressDaemonSetStatus::default() })
    };
    let record = |snapshot: &mut planner::Snapshot, since: i64| Arc::make_mut(&mut snapshot.others[0].resource).status = key_of(since);
    // Who has had the key for longer comes first, of two of one age the older resource; one that used no node yet has it since never.
    for (since, created, expected) in [
        (ours.since - 1, i64::MAX, waits.clone()),
        (ours.since, 1, waits.clone()),
        (ours.since, i64::MAX, (all.clone(), false, false)),
        (ours.since + 1, 1, (all.clone(), false, false)),
        (0, 1, (all.clone(), false, false)),
    ] {
        record(&mut snapshot, since);
        snapshot.others[0].created = created;
        assert_eq!(granted(&snapshot), expected, "{since} {created}");
    }
    snapshot.others[0].created = 1;
    record(&mut snapshot, 1);
    let of_another_key = |status: &mut IngressDaemonSetStatus| {
        status.rollout.as_mut().unwrap().detach_key.as_mut().unwrap().key = KEYS[1].into();
    };
    of_another_key(Arc::make_mut(&mut snapshot.others[0].resource).status.as_mut().unwrap());
    assert_eq!(granted(&snapshot), (all.clone(), false, false), "what it has had is another key");
    record(&mut snapshot, ours.since);
    // So does one that asks for it only now, where we have detached the node by it before.
    let entry = |phase, value: &str| Entry { id: 7, phase, key: KEYS[0].into(), value: value.into(), previous: None, time: 1 };
    let enter = |snapshot: &mut planner::Snapshot, uid8: &str, entry: Entry| {
        let node = Arc::make_mut(Arc::make_mut(&mut snapshot.nodes).get_mut("n1").unwrap());
        let mut holders = node.holders().unwrap();
        holders.insert(uid8.into(), entry);
        node.annotations.insert(names::HOLDERS_ANNOTATION.into(), serde_json::to_string(&holders).unwrap());
    };
    enter(&mut snapshot, UID8, entry(EntryPhase::Attached, ""));
    assert_eq!(granted(&snapshot), (all, false, false), "an older resource that has never used it");
    enter(&mut snapshot, "ffffffff", entry(EntryPhase::Attached, "another"));
    assert_eq!(granted(&snapshot), waits, "both have used it");
    snapshot.others[0].accepted = false;
    assert!(!granted(&snapshot).1, "one that is refused detaches nothing");
    // The other one was given another value meanwhile, and still holds the node with the former.
    snapshot.others = vec![other("")];
    enter(&mut snapshot, "ffffffff", entry(EntryPhase::Detached, "former"));
    let (granted, _, conflict) = granted(&snapshot);
    assert_eq!((granted, conflict), (vec!["n0".to_owned(), "n2".to_owned()], true), "a former value that still holds");
}

#[test]
fn a_node_takes_entries_only_while_its_annotations_have_room() {
    let mut world = World::new(Wish::new(Marks::Node, 1), 2);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
    operator.catch_up(&world);
    let snapshot = operator.snapshot(&world).unwrap();
    let value = "\u{10FFFF}".repeat(VALUE_CHARACTERS);
    let entry = Entry { id: 1, phase: EntryPhase::Attached, key: "k".repeat(323), value, previous: None, time: 1 };
    for (entries, taken) in [(100, true), (300, false)] {
        let mut snapshot = snapshot.clone();
        let all: Holders = (0..entries).map(|index| (format!("{index:08x}"), entry.clone())).collect();
        for node in Arc::make_mut(&mut snapshot.nodes).values_mut() {
            Arc::make_mut(node).annotations.insert(names::HOLDERS_ANNOTATION.to_owned(), holders::text(&all));
        }
        let plan = planner::decide(&snapshot);
        assert_eq!(plan.status.rollout.unwrap().grants.len(), usize::from(taken), "{entries}");
        assert_eq!(
            plan.node_states.values().filter(|state| state.reason == Reason::HoldersFull).count(),
            if taken { 0 } else { 2 },
            "{entries}"
        );
    }
}
