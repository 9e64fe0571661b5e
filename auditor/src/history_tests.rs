//! Small histories, good and bad.
#![allow(clippy::needless_pass_by_value)] // values are built in the call, by `json!`

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use crds::{names, token::Phase};
use serde_json::{Value, json};

use super::{Answer, Expectations, Kind, Observation, Property, TOUCH_ANNOTATION, TOUCHED, audit};

pub(super) const UID8: &str = "0a1b2c3d";

/// Writes a history: time in seconds, objects with just what the auditor reads.
#[derive(Default)]
pub(super) struct Story {
    pub(super) observations: Vec<Observation>,
    answers: Vec<Answer>,
}

impl Story {
    pub(super) fn see(mut self, second: i64, kind: Kind, object: Value) -> Self {
        let revision = self.observations.len() as u64 + 1;
        let at = DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(second);
        self.observations.push(Observation { revision, at, kind, deleted: false, object });
        self
    }

    pub(super) fn gone(mut self, second: i64, kind: Kind, object: Value) -> Self {
        self = self.see(second, kind, object);
        self.observations.last_mut().unwrap().deleted = true;
        self
    }

    /// This, then `other`.
    pub(super) fn and(mut self, other: Self) -> Self {
        for observation in other.observations {
            let revision = self.observations.len() as u64 + 1;
            self.observations.push(Observation { revision, ..observation });
        }
        self
    }

    /// The last answer says this of the token.
    pub(super) fn with_phase(mut self, phase: Phase) -> Self {
        self.answers.last_mut().unwrap().phase = Some(phase);
        self
    }

    /// The health checker of `n1` answers, with a view of that age.
    pub(super) fn answers(mut self, second: i64, reason: &str, age: u64) -> Self {
        let answer = Answer {
            at: DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(second),
            port: 9000,
            resource: ("web".to_owned(), "ids".to_owned()),
            node: "n1".to_owned(),
            serving: reason == "Serving",
            reason: reason.to_owned(),
            phase: Some(match reason {
                "NeverComplete" => Phase::New,
                "DetachRequested" => Phase::Claimed,
                "Updating" => Phase::Updating,
                _ => Phase::Closed,
            }),
            desired: u64::from(reason != "NoReplicasWanted"),
            ready: u64::from(reason == "Serving"),
            age: Some(age),
        };
        self.answers.push(answer);
        self
    }

    /// Nodes `n1` and `n2`, attached and complete at revision `a` with id 1.
    pub(super) fn two_nodes() -> Self {
        Self::two_nodes_of(resource(false, json!({})))
    }

    /// The same of a resource that says something else.
    pub(super) fn two_nodes_of(resource: Value) -> Self {
        let story = Self::default().see(0, Kind::IngressDaemonSet, resource);
        ["n1", "n2"].into_iter().fold(story, |story, name| story.with_node(node(name, None), "a"))
    }

    /// One more node, attached and complete at this revision with id 1.
    pub(super) fn with_node(self, node: Value, revision: &str) -> Self {
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        self.see(0, Kind::Node, node)
            .see(0, Kind::Deployment, deployment(&name, "1.New.0", revision))
            .see(0, Kind::ReplicaSet, replica_set(&name))
            .see(0, Kind::Pod, pod(&name, revision, true))
            .see(1, Kind::Deployment, deployment(&name, "1.Closed.1", revision))
    }

    pub(super) fn violations(&self, expected: &Expectations) -> Vec<Property> {
        audit(&self.observations, self.answers.clone(), expected).violations.into_iter().map(|violation| violation.property).collect()
    }
}

pub(super) fn node(name: &str, entry: Option<(u64, &str)>) -> Value {
    let holders = entry.map(|(id, phase)| json!({ UID8: { "id": id, "phase": phase, "key": "detached", "time": 0 } }).to_string());
    json!({ "metadata": {
        "name": name, "uid": format!("node-{name}"),
        "labels": { names::member_label(UID8): "serving" },
        "annotations": { names::HOLDERS_ANNOTATION: holders },
    } })
}

pub(super) fn deployment(name: &str, token: &str, revision: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("ids-{name}"), "uid": format!("deployment-{name}"), "generation": 1,
            "labels": { names::TOKEN_LABEL: format!("{UID8}.{token}"), names::RESOURCE_LABEL: UID8 },
            "annotations": { names::NODE_NAME_ANNOTATION: name },
        },
        "spec": { "replicas": 1, "template": { "metadata": { "labels": { names::REVISION_LABEL: revision } } } },
        "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1 },
    })
}

/// The Deployment controller has not looked at the newest write yet.
pub(super) fn incomplete(mut deployment: Value) -> Value {
    deployment["metadata"]["generation"] = 2.into();
    deployment
}

fn replica_set(name: &str) -> Value {
    owned(&format!("rs-{name}"), &format!("deployment-{name}"), json!({}))
}

pub(super) fn pod(name: &str, revision: &str, ready: bool) -> Value {
    let mut pod = owned(&format!("pod-{name}-{revision}"), &format!("rs-{name}"), json!({ names::REVISION_LABEL: revision }));
    let status = if ready { "True" } else { "False" };
    pod["status"] = json!({ "conditions": [{ "type": "Ready", "status": status }] });
    pod
}

pub(super) fn going(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    pod
}

fn owned(name: &str, owner: &str, labels: Value) -> Value {
    json!({ "metadata": { "name": name, "uid": name, "labels": labels, "ownerReferences": [{ "uid": owner, "controller": true }] } })
}

/// The Deployment mark with a grace of 10 s, and no budget that a test does not name.
pub(super) fn resource(paused: bool, grants: Value) -> Value {
    json!({
        "metadata": { "name": "ids", "namespace": "web", "uid": format!("{UID8}-0000"), "generation": 1 },
        "spec": {
            "paused": paused, "template": { "spec": { "containers": [{ "name": "nginx", "image": "nginx" }] } },
            "updateStrategy": { "rollingUpdate": rolling() },
        },
        "status": { "observedGeneration": 1, "nodes": { "desired": 2 }, "rollout": { "nextId": 9, "grants": grants } },
    })
}

fn rolling() -> Value {
    json!({ "maxUnavailableNodes": "100%", "annotateDeploymentToDetach": { "gracePeriodSeconds": 10 } })
}

/// With these fields besides, at this generation; the status speaks of the one that was `observed`.
pub(super) fn saying(more: Value, grants: Value, [generation, observed]: [u64; 2]) -> Value {
    let mut resource = resource(false, grants);
    for (key, value) in more.as_object().unwrap() {
        resource["spec"]["updateStrategy"]["rollingUpdate"][key] = value.clone();
    }
    resource["metadata"]["generation"] = generation.into();
    resource["status"]["observedGeneration"] = observed.into();
    resource
}

/// Somebody has his hands on the node, or not any more.
pub(super) fn touched(name: &str, says: &str) -> Value {
    let mut node = node(name, None);
    node["metadata"]["annotations"][TOUCH_ANNOTATION] = says.into();
    node
}

pub(super) fn of_one() -> Expectations {
    Expectations::budget(1)
}

#[test]
fn an_update_by_the_book_violates_nothing() {
    let story = Story::two_nodes()
        .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
        .see(20, Kind::Deployment, incomplete(deployment("n1", "2.Updating.20", "b")))
        .see(21, Kind::Pod, going(pod("n1", "a", true)))
        .gone(22, Kind::Pod, going(pod("n1", "a", false)))
        .see(23, Kind::Pod, pod("n1", "b", true))
        .see(24, Kind::Deployment, deployment("n1", "2.Updating.20", "b"))
        .see(25, Kind::Deployment, deployment("n1", "2.Closed.25", "b"));
    let verdict = audit(&story.observations, Vec::new(), &of_one());
    assert_eq!(verdict.violations, []);
    assert_eq!(verdict.most_out, 1);
    assert_eq!(verdict.longest_out, Duration::from_secs(15));
}

#[test]
fn two_tokens_at_once_exceed_a_budget_of_one() {
    let story = Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a")).see(
        11,
        Kind::Deployment,
        deployment("n2", "3.Claimed.11", "a"),
    );
    assert_eq!(story.violations(&of_one()), [Property::Budget]);
}

#[test]
fn a_lowered_budget_binds_only_later_grants() {
    let told = |budget: u64, grants: Value| saying(json!({ "maxUnavailableNodes": budget }), grants, [1, 1]);
    let grants = |nodes: &[&str]| nodes.iter().map(|node| ((*node).to_owned(), json!({ "id": 2 }))).collect::<Value>();
    let both = |story: Story| {
        story.see(20, Kind::Deployment, deployment("n1", "2.Claimed.20", "a")).see(
            21,
            Kind::Deployment,
            deployment("n2", "3.Claimed.21", "a"),
        )
    };
    let two = Expectations::budget(2);
    let granted = Story::two_nodes().see(10, Kind::IngressDaemonSet, told(2, grants(&["n1", "n2"]))).see(
        11,
        Kind::IngressDaemonSet,
        told(1, grants(&["n1", "n2"])),
    );
    assert_eq!(both(granted).violations(&two), []);
    let afterwards = Story::two_nodes()
        .see(10, Kind::IngressDaemonSet, told(2, grants(&["n1"])))
        .see(11, Kind::IngressDaemonSet, told(1, grants(&["n1"])))
        .see(12, Kind::IngressDaemonSet, told(1, grants(&["n1", "n2"])));
    // Where it was begun, and where both are held.
    assert_eq!(both(afterwards).violations(&two), [Property::Budget; 2]);
}

#[test]
fn the_grace_counts_from_the_mark_that_still_stands() {
    let early = Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a")).see(
        15,
        Kind::Deployment,
        deployment("n1", "2.Updating.15", "b"),
    );
    assert_eq!(early.violations(&of_one()), [Property::DetachFirst]);
    let never = Story::two_nodes().see(15, Kind::Deployment, deployment("n1", "2.Updating.15", "b"));
    assert_eq!(never.violations(&of_one()), [Property::DetachFirst]);
    let retargeted = Story::two_nodes()
        .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
        .see(15, Kind::Deployment, deployment("n1", "3.Claimed.10", "a"))
        .see(20, Kind::Deployment, deployment("n1", "3.Updating.20", "b"));
    assert_eq!(retargeted.violations(&of_one()), []);
}

#[test]
fn a_template_changed_under_a_closed_token_bypasses_the_protocol() {
    let story =
        Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "1.Closed.1", "b")).see(11, Kind::Pod, going(pod("n1", "a", true)));
    assert_eq!(story.violations(&Expectations::budget(1)), [Property::NoBypass, Property::NoBypass]);
}

#[test]
fn a_paused_deployment_replaces_no_pod_changed_in_place() {
    let story = |paused: bool| {
        let mut in_place = deployment("n1", "2.InPlace.20", "a");
        in_place["spec"]["paused"] = paused.into();
        Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a")).see(20, Kind::Deployment, in_place).see(
            22,
            Kind::Pod,
            going(pod("n1", "b", true)),
        )
    };
    assert_eq!(story(true).violations(&of_one()), []);
    assert_eq!(story(false).violations(&of_one()), [Property::NoBypass]);
}

#[test]
fn closing_before_completion_is_found() {
    let story = Story::two_nodes()
        .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
        .see(20, Kind::Deployment, incomplete(deployment("n1", "2.Updating.20", "b")))
        .see(21, Kind::Deployment, incomplete(deployment("n1", "2.Closed.21", "b")));
    assert_eq!(story.violations(&of_one()), [Property::CloseWhenComplete]);
}

#[test]
fn closing_may_raise_the_generation_of_a_complete_deployment() {
    let story = Story::two_nodes()
        .see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a"))
        .see(20, Kind::Deployment, incomplete(deployment("n1", "2.Updating.20", "b")))
        .see(21, Kind::Deployment, deployment("n1", "2.Updating.20", "b"))
        .see(22, Kind::Deployment, incomplete(deployment("n1", "2.Closed.22", "b")));
    assert_eq!(story.violations(&of_one()), []);
}

#[test]
fn tokens_that_go_back_or_repeat_are_found() {
    let back = Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "3.Claimed.10", "a")).see(
        11,
        Kind::Deployment,
        deployment("n1", "2.Claimed.11", "a"),
    );
    assert_eq!(back.violations(&of_one()), [Property::Monotone]);
    let again = Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "2.Claimed.10", "a")).see(
        11,
        Kind::Deployment,
        deployment("n1", "2.Claimed.11", "a"),
    );
    assert_eq!(again.violations(&of_one()), [Property::OnlyOnce]);
    // The phase goes back, with the same id.
    let reopened = Story::two_nodes().see(10, Kind::Deployment, deployment("n1", "1.Claimed.10", "a"));
    assert_eq!(reopened.violations(&of_one()), [Property::Monotone]);
}

#[test]
fn detaching_again_under_the_old_id_is_found() {
    let story = Story::two_nodes()
        .see(10, Kind::Node, node("n1", Some((2, "Detached"))))
        .see(11, Kind::Node, node("n1", Some((2, "Attached"))))
        .see(12, Kind::Node, node("n1", Some((2, "Detached"))));
    assert_eq!(story.violations(&of_one()), [Property::Monotone]);
}

#[test]
fn only_a_new_grant_while_paused_is_found() {
    let grant = json!({ "n1": { "id": 2, "kind": "Update" } });
    let new = Story::default().see(0, Kind::IngressDaemonSet, resource(true, json!({}))).see(
        1,
        Kind::IngressDaemonSet,
        resource(true, grant.clone()),
    );
    assert_eq!(new.violations(&of_one()), [Property::HeldStartsNothing]);
    let old = Story::default()
        .see(0, Kind::IngressDaemonSet, resource(false, grant.clone()))
        .see(1, Kind::IngressDaemonSet, resource(true, grant.clone()))
        .see(2, Kind::IngressDaemonSet, resource(true, grant));
    assert_eq!(old.violations(&of_one()), []);
}

#[test]
fn labels_bindings_and_deployments_of_a_deleted_resource_are_found() {
    let binding = json!({ "metadata": { "name": "checker", "uid": "b", "labels": { names::RESOURCE_LABEL: UID8 } } });
    let story = Story::two_nodes().see(5, Kind::ClusterRoleBinding, binding).gone(6, Kind::IngressDaemonSet, resource(false, json!({})));
    assert_eq!(story.violations(&of_one()), [Property::NothingRemains, Property::NothingRemains]);
}

#[test]
fn a_history_out_of_order_is_not_trusted() {
    let mut story = Story::two_nodes();
    story.observations.swap(0, 1);
    assert!(story.violations(&of_one()).contains(&Property::History));
}

const ZONE: &str = "topology.kubernetes.io/zone";

/// A Node of a zone, which its kubelet reports to be well.
pub(super) fn zoned(name: &str, zone: &str, entry: Option<(u64, &str)>) -> Value {
    let mut node = node(name, entry);
    node["metadata"]["labels"][ZONE] = zone.into();
    node["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
    node
}

/// Nodes `n1` and `n2` in these zones, at rest since second 2.
pub(super) fn in_zones(zones: [&str; 2]) -> Story {
    let mut story = Story::two_nodes();
    for (name, zone) in ["n1", "n2"].into_iter().zip(zones) {
        story = story.see(2, Kind::Node, zoned(name, zone, None));
    }
    story
}

/// A resource that says this of its rollout, with updates under way on these nodes, each in its zone.
fn telling(rolling: Value, grants: &[(&str, &str)]) -> Value {
    let grant = |(node, zone): &(&str, &str)| {
        ((*node).to_owned(), json!({ "id": 2, "kind": "Update", "revision": "b", "domain": zone, "marks": { "deployment": true } }))
    };
    saying(rolling, grants.iter().map(grant).collect(), [1, 1])
}

/// And then both nodes are held, whatever the ledger says.
fn both_held(story: Story) -> Story {
    story.see(20, Kind::Deployment, deployment("n1", "2.Claimed.20", "a")).see(21, Kind::Deployment, deployment("n2", "3.Claimed.21", "a"))
}

fn of_two() -> Expectations {
    Expectations::budget(2)
}

#[test]
fn a_domain_is_held_to_the_specs_budget() {
    let one = || json!({ "topology": { "key": ZONE, "maxUnavailableNodes": 1 } });
    let story = |zones: [&'static str; 2]| {
        let story = in_zones(zones).see(3, Kind::IngressDaemonSet, telling(one(), &[]));
        let n1 = ("n1", zones[0]);
        both_held(story.see(10, Kind::IngressDaemonSet, telling(one(), &[n1])).see(
            11,
            Kind::IngressDaemonSet,
            telling(one(), &[n1, ("n2", zones[1])]),
        ))
    };
    assert_eq!(story(["a", "b"]).violations(&of_two()), []);
    // Where it was begun, and where both are held.
    assert_eq!(story(["a", "a"]).violations(&of_two()), [Property::DomainBudget; 2]);
    let unknown = both_held(in_zones(["a", "a"]).see(3, Kind::IngressDaemonSet, telling(one(), &[])));
    assert_eq!(unknown.violations(&of_two()), [Property::DomainBudget], "the ledger need not say so");
    let half = || json!({ "topology": { "key": ZONE, "maxUnavailableNodes": "50%" } });
    let share = in_zones(["a", "a"]).see(3, Kind::IngressDaemonSet, telling(half(), &[])).see(
        10,
        Kind::IngressDaemonSet,
        telling(half(), &[("n1", "a"), ("n2", "a")]),
    );
    assert_eq!(share.violations(&of_two()), [Property::DomainBudget; 2]);
}

#[test]
fn a_lowered_domain_budget_binds_only_later_grants() {
    let (n1, n2) = (("n1", "a"), ("n2", "a"));
    let told = |budget: Value| json!({ "topology": { "key": ZONE, "maxUnavailableNodes": budget } });
    for earlier in [told(2.into()), json!({}), json!({ "topology": { "key": ZONE } })] {
        let granted = in_zones(["a", "a"]).see(3, Kind::IngressDaemonSet, telling(earlier.clone(), &[n1, n2])).see(
            4,
            Kind::IngressDaemonSet,
            telling(told(1.into()), &[n1, n2]),
        );
        assert_eq!(both_held(granted).violations(&of_two()), [], "{earlier}");
        let afterwards = in_zones(["a", "a"])
            .see(3, Kind::IngressDaemonSet, telling(earlier.clone(), &[n1]))
            .see(4, Kind::IngressDaemonSet, telling(told(1.into()), &[n1]))
            .see(5, Kind::IngressDaemonSet, telling(told(1.into()), &[n1, n2]));
        assert_eq!(both_held(afterwards).violations(&of_two()), [Property::DomainBudget; 2], "{earlier}");
    }
}

#[test]
fn a_node_changing_domain_while_out_exceeds_neither_budget() {
    let one = || json!({ "topology": { "key": ZONE, "maxUnavailableNodes": 1 } });
    let story = in_zones(["a", "b"])
        .see(3, Kind::IngressDaemonSet, telling(one(), &[]))
        .see(10, Kind::IngressDaemonSet, telling(one(), &[("n1", "a"), ("n2", "b")]))
        .see(11, Kind::Deployment, deployment("n1", "2.Claimed.11", "a"))
        .see(12, Kind::Node, zoned("n1", "b", None))
        .see(13, Kind::Deployment, deployment("n2", "3.Claimed.13", "a"));
    assert_eq!(story.violations(&of_two()), []);
}

#[test]
fn a_drained_node_that_comes_back_crowds_nobody() {
    let one = || json!({ "topology": { "key": ZONE, "maxUnavailableNodes": 1, "oneDomainAtATime": true } });
    let drained = |kind: &str, more: &[(&str, &str)]| {
        let mut resource = telling(one(), &[&[("n1", "a")][..], more].concat());
        resource["status"]["rollout"]["grants"]["n1"]["kind"] = kind.into();
        resource
    };
    let story = in_zones(["a", "b"])
        .see(3, Kind::IngressDaemonSet, telling(one(), &[]))
        .see(4, Kind::IngressDaemonSet, drained("Drain", &[]))
        .see(5, Kind::IngressDaemonSet, drained("Update", &[("n2", "b")]));
    assert_eq!(story.violations(&of_two()), []);
}

#[test]
fn one_domain_at_a_time_is_what_it_says() {
    let turns = || json!({ "topology": { "key": ZONE, "oneDomainAtATime": true } });
    let story = |second: &'static str| {
        in_zones(["a", second])
            .see(3, Kind::IngressDaemonSet, telling(turns(), &[]))
            .see(4, Kind::IngressDaemonSet, telling(turns(), &[("n1", "a")]))
            .see(5, Kind::IngressDaemonSet, telling(turns(), &[("n1", "a"), ("n2", second)]))
    };
    assert_eq!(story("a").violations(&of_two()), []);
    assert_eq!(story("b").violations(&of_two()), [Property::DomainBudget]);
    let handed_over = in_zones(["a", "b"]).see(3, Kind::IngressDaemonSet, telling(turns(), &[("n1", "a")])).see(
        5,
        Kind::IngressDaemonSet,
        telling(turns(), &[("n2", "b")]),
    );
    assert_eq!(handed_over.violations(&of_two()), []);
    let later = in_zones(["a", "b"]).see(3, Kind::IngressDaemonSet, telling(json!({}), &[("n1", "a"), ("n2", "b")])).see(
        4,
        Kind::IngressDaemonSet,
        telling(turns(), &[("n1", "a"), ("n2", "b")]),
    );
    assert_eq!(later.violations(&of_two()), []);
}

#[test]
fn nodes_down_for_long_count_against_domain_and_minimum() {
    let begun = |rolling: Value, second: i64| {
        in_zones(["a", "a"]).see(3, Kind::IngressDaemonSet, telling(rolling.clone(), &[])).see(10, Kind::Pod, pod("n2", "a", false)).see(
            second,
            Kind::IngressDaemonSet,
            telling(rolling, &[("n1", "a")]),
        )
    };
    let expected = of_two();
    let domain = || json!({ "topology": { "key": ZONE, "maxUnavailableNodes": 1 } });
    assert_eq!(begun(domain(), 19).violations(&expected), [], "the operator may not have seen it yet");
    assert_eq!(begun(domain(), 20).violations(&expected), [Property::DomainBudget]);
    let minimum = || json!({ "minAvailableNodes": 1 });
    assert_eq!(begun(minimum(), 19).violations(&expected), []);
    assert_eq!(begun(minimum(), 20).violations(&expected), [Property::Budget]);
    let hung = of_two().watches_hang();
    assert_eq!(begun(minimum(), 129).violations(&hung), [], "its watches may have hung");
    assert_eq!(begun(minimum(), 130).violations(&hung), [Property::Budget]);
}

#[test]
fn a_down_node_may_begin_despite_other_down_nodes() {
    let both = || json!({ "topology": { "key": ZONE, "maxUnavailableNodes": 1 }, "minAvailableNodes": 2 });
    let story = in_zones(["a", "a"])
        .see(3, Kind::IngressDaemonSet, telling(both(), &[]))
        .see(10, Kind::Pod, pod("n1", "a", false))
        .see(10, Kind::Pod, pod("n2", "a", false))
        .see(200, Kind::IngressDaemonSet, telling(both(), &[("n1", "a")]));
    assert_eq!(story.violations(&of_two()), []);
}

#[test]
fn as_many_nodes_as_must_be_stay_available() {
    let story = |minimum: Value, grants: &[(&str, &str)]| {
        let told = || json!({ "minAvailableNodes": minimum });
        in_zones(["a", "b"]).see(3, Kind::IngressDaemonSet, telling(told(), &[("n1", "a")])).see(
            4,
            Kind::IngressDaemonSet,
            telling(told(), grants),
        )
    };
    for one in [json!(1), json!("50%")] {
        assert_eq!(story(one.clone(), &[("n2", "b")]).violations(&of_two()), [], "the place was handed over");
        assert_eq!(story(one, &[("n1", "a"), ("n2", "b")]).violations(&of_two()), [Property::Budget]);
    }
    assert_eq!(story(json!("51%"), &[("n2", "b")]).violations(&of_two()), [Property::Budget], "a percentage is rounded up");
    assert_eq!(story(json!(0), &[("n1", "a"), ("n2", "b")]).violations(&of_two()), []);
}

/// Pods of `n1`, made at these seconds; each in the place of one that `ends`.
fn made(seconds: impl Iterator<Item = i64>, ends: impl Fn(Value) -> Value) -> Story {
    made_after(Story::two_nodes(), seconds, ends)
}

fn made_after(story: Story, seconds: impl Iterator<Item = i64>, ends: impl Fn(Value) -> Value) -> Story {
    let mut story = story.gone(5, Kind::Pod, pod("n1", "a", true));
    for (number, second) in seconds.enumerate() {
        let mut pod = owned(
            &format!("pod-{number}"),
            "rs-n1",
            json!({ names::REVISION_LABEL: "a", names::RESOURCE_LABEL: UID8, names::NODE_LABEL: "ids-n1" }),
        );
        pod["metadata"]["creationTimestamp"] = (DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(second)).to_rfc3339().into();
        story = story.see(second, Kind::Pod, pod.clone()).see(second, Kind::Pod, ends(pod.clone())).gone(second, Kind::Pod, ends(pod));
    }
    story
}

#[test]
fn too_many_pods_in_a_short_time_are_found() {
    let refused = |mut pod: Value| {
        pod["status"] = json!({ "phase": "Failed" });
        pod
    };
    let expected = of_one();
    assert_eq!(made((0..50).map(|_| 10), refused).violations(&expected), []);
    assert_eq!(made((0..60).map(|number| 10 + number / 3), refused).violations(&expected), [Property::BoundedCreation]);
    assert_eq!(made((0..500).map(|number| 10 + 2 * number), refused).violations(&expected), []);
    let by_hand = Story::two_nodes().see(4, Kind::Node, touched("n1", TOUCHED));
    assert_eq!(made_after(by_hand, (0..60).map(|_| 10), refused).violations(&expected), []);
}

#[test]
fn pods_that_somebody_takes_away_may_be_made_again() {
    let expected = of_one();
    assert_eq!(made((0..200).map(|number| 10 + number / 10), going).violations(&expected), []);
}

#[test]
fn a_rolled_back_revision_begins_again_only_on_request() {
    let story = |edit: fn(&mut Value)| {
        let said = |grants: Value| {
            let mut resource = resource(false, grants);
            resource["status"]["rollout"]["rolledBack"] = json!({ "from": "b", "to": "a", "at": 0, "reason": "" });
            resource["status"]["revisions"] = json!({ "update": "b" });
            edit(&mut resource);
            resource
        };
        let grant = json!({ "n1": { "id": 2, "kind": "Update", "revision": "b" } });
        Story::two_nodes().see(3, Kind::IngressDaemonSet, said(json!({}))).see(4, Kind::IngressDaemonSet, said(grant))
    };
    assert_eq!(story(|_| {}).violations(&of_one()), [Property::FailedOnce]);
    assert_eq!(story(|resource| resource["spec"]["rollbackTo"] = json!({ "revision": 2 })).violations(&of_one()), []);
    assert_eq!(story(|resource| resource["status"]["revisions"]["update"] = "c".into()).violations(&of_one()), []);
}

#[test]
fn failed_revisions_return_to_their_node_only_on_retry() {
    let said = |failed: &[&str], grants: Value| {
        let mut resource = resource(false, grants);
        resource["spec"]["updateStrategy"] = json!({ "rollingUpdate": { "maxFailedNodes": 3 } });
        let failed: Value = failed.iter().map(|node| ((*node).to_owned(), json!({ "at": 0, "reason": "ImagePull" }))).collect();
        resource["status"]["rollout"]["course"] = json!({ "revision": "b", "failed": failed });
        resource
    };
    let grant = || json!({ "n1": { "id": 2, "kind": "Update", "revision": "b" } });
    let story = |before: &[&str], after: &[&str]| {
        Story::two_nodes().see(3, Kind::IngressDaemonSet, said(before, json!({}))).see(4, Kind::IngressDaemonSet, said(after, grant()))
    };
    assert_eq!(story(&["n1"], &["n1"]).violations(&of_one()), [Property::FailedOnce]);
    assert_eq!(story(&["n1"], &[]).violations(&of_one()), [], "somebody asked for it");
    assert_eq!(story(&["n2"], &["n2"]).violations(&of_one()), []);
}
