//! What becomes of lists and events: which object is whose, what is news to whom, what a consistent list takes out.

use super::*;
use crds::names;
use serde_json::{Value, json};

pub(super) const UID: &str = "0a1b2c3d-0000-4000-8000-000000000000";

pub(super) fn of<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn resource(name: &str, uid: &str, image: &str) -> GuardedResource {
    of(json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": name, "namespace": "edge", "uid": uid, "resourceVersion": "1", "generation": 1 },
        "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } },
    }))
}

fn unreadable(name: &str) -> GuardedResource {
    of(json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": name, "namespace": "edge", "uid": UID, "resourceVersion": "2" }, "spec": { "podsPerNode": "many" },
    }))
}

pub(super) fn node(name: &str, version: &str) -> Value {
    json!({ "metadata": { "name": name, "uid": format!("node-{name}"), "resourceVersion": version } })
}

/// A Deployment with our labels for the node, of this owner.
fn deployment(namespace: &str, node: &str, version: &str, owner: &str) -> Value {
    let name = planner::objects::render::object_name("web", node, &std::collections::BTreeSet::new());
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("d-{node}"), "resourceVersion": version,
            "labels": { names::RESOURCE_LABEL: names::uid8(UID), names::NODE_HASH_LABEL: crds::hash::node_hash(node) },
            "annotations": { names::NODE_NAME_ANNOTATION: node },
            "ownerReferences": [
                { "apiVersion": "x/v1", "kind": "Other", "name": "beside", "uid": "beside" },
                { "apiVersion": "x/v1", "kind": "IngressDaemonSet", "name": "web", "uid": owner, "controller": true },
            ],
        },
    })
}

pub(super) fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("p-{name}"), "resourceVersion": "5",
            "labels": { names::RESOURCE_LABEL: names::uid8(UID), names::NODE_HASH_LABEL: crds::hash::node_hash(node) },
        },
    })
}

/// A view of one resource and one node, in which all has been listed.
pub(super) fn observer(nodes: Vec<Value>, deployments: Vec<Value>, pods: Vec<Value>) -> Observer {
    let observer = Observer::default();
    observer.take::<GuardedResource>(vec![resource("web", UID, "i:1")]);
    observer.take::<Node>(nodes.into_iter().map(of).collect());
    observer.take::<Deployment>(deployments.into_iter().map(of).collect());
    observer.take::<ReplicaSet>(Vec::new());
    observer.take::<Pod>(pods.into_iter().map(of).collect());
    observer.take::<DaemonSet>(Vec::new());
    observer.take::<Service>(Vec::new());
    observer.take::<ControllerRevision>(Vec::new());
    observer
}

fn snapshot(observer: &Observer) -> Option<Snapshot> {
    observer.snapshot("edge", "web", 1_000, "checker:1")
}

/// Resources that are to be looked at since this was asked last.
fn woken(observer: &Observer) -> Vec<String> {
    use futures::FutureExt as _;
    let mut stream = observer.requeue().stream().boxed();
    let mut names = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        while let Ok(Some(key)) = tokio::time::timeout(Duration::from_secs(1), stream.next()).await {
            names.push(key.name);
        }
        assert!(stream.next().now_or_never().is_none());
    });
    names
}

#[test]
fn there_is_no_snapshot_before_every_kind_was_listed() {
    let observer = Observer::default();
    observer.take::<GuardedResource>(vec![resource("web", UID, "i:1")]);
    assert!(snapshot(&observer).is_none());
    assert_eq!(observer.missing().len(), KINDS.len() - 1);
    assert!(snapshot(&self::observer(Vec::new(), Vec::new(), Vec::new())).is_some());
}

#[test]
fn what_a_new_list_does_not_name_is_gone() {
    let observer = observer(vec![node("a", "1")], vec![deployment("edge", "a", "5", UID), deployment("edge", "b", "6", UID)], Vec::new());
    assert_eq!(snapshot(&observer).unwrap().deployments.len(), 2);
    observer.take::<Deployment>(vec![of(deployment("edge", "a", "5", UID))]);
    assert!(snapshot(&observer).unwrap().deployments.keys().eq(["a"]));
}

#[test]
fn an_event_older_than_the_known_object_changes_nothing() {
    let observer = observer(vec![node("a", "9")], vec![deployment("edge", "a", "9", UID)], Vec::new());
    let mut older = deployment("edge", "a", "8", UID);
    older["metadata"]["generation"] = 7.into();
    observer.apply::<Deployment>(of(older.clone()));
    assert_eq!(snapshot(&observer).unwrap().deployments["a"].generation, 0);
    older["metadata"]["resourceVersion"] = "10".into();
    observer.apply::<Deployment>(of(older));
    assert_eq!(snapshot(&observer).unwrap().deployments["a"].generation, 7);
}

/// Lists with an API server that answers with these pages, the first of Deployments, each with what follows it; the requests.
async fn relist(observer: &Observer, pages: Vec<(Value, &str)>) -> Vec<String> {
    let (service, mut server) = tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
    let serve = async {
        let mut asked = Vec::new();
        for (items, more) in pages {
            let (request, reply) = server.next_request().await.unwrap();
            asked.push(request.uri().to_string());
            let metadata = json!({ "resourceVersion": "40", "continue": more });
            let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items });
            reply.send_response(http::Response::new(kube::client::Body::from(serde_json::to_vec(&list).unwrap())));
        }
        asked
    };
    let client = Client::new(service, "default");
    let (relisted, asked) = tokio::join!(observer.relist(&client, "edge"), serve);
    relisted.unwrap();
    asked
}

#[tokio::test]
async fn a_consistent_list_removes_deleted_objects_and_keeps_other_namespaces() {
    let others = [deployment("edge", "gone", "5", UID), deployment("other", "c", "5", UID)];
    let observer = observer(vec![node("a", "5"), node("gone", "6")], others.to_vec(), Vec::new());
    let pages = vec![(json!([deployment("edge", "a", "20", UID)]), ""), (json!([node("a", "21")]), "more"), (json!([node("b", "22")]), "")];
    let asked = relist(&observer, pages).await;
    assert!(asked.iter().all(|uri| !uri.contains("resourceVersion=0")), "no answer from a cache: {asked:?}");
    assert!(asked.iter().all(|uri| uri.contains("limit=")) && asked[2].contains("continue=more"), "page by page: {asked:?}");
    assert!(observer.index().deployments.keys().map(|(namespace, _)| namespace.as_str()).eq(["edge", "other"]));
    assert!(snapshot(&observer).unwrap().deployments.keys().eq(["a"]));
    assert!(observer.nodes().keys().eq(["a", "b"]));
}

#[tokio::test]
async fn an_overtaken_list_removes_nothing_new_and_restores_nothing_deleted() {
    let observer = observer(vec![node("newer", "60"), node("c", "5")], vec![deployment("edge", "newer", "50", UID)], Vec::new());
    // By version 40 there were these, which the watch has shown to be deleted since.
    let pages = vec![(json!([deployment("edge", "a", "20", UID)]), ""), (json!([node("a", "21"), node("c", "5")]), "")];
    relist(&observer, pages).await;
    assert!(snapshot(&observer).unwrap().deployments.keys().eq(["newer"]));
    assert!(observer.nodes().keys().eq(["c", "newer"]));
}

#[test]
fn changes_first_shown_by_a_list_wake_the_resources_concerned() {
    let deployments = [deployment("edge", "a", "5", UID), deployment("edge", "gone", "6", UID)];
    let observer = observer(vec![node("a", "5")], deployments.to_vec(), Vec::new());
    let mut fenced = node("a", "21");
    fenced["metadata"]["annotations"] = json!({ names::HOLDERS_ANNOTATION: "{}" });
    let ours = deployment("edge", "a", "5", UID);
    let both = json!([ours, deployment("edge", "gone", "6", UID)]);
    // The list of one resource shows what another one has just written: the watch has nothing new to say of it then.
    for (deployments, node, concerned) in [
        (both.clone(), node("a", "5"), vec![]),
        (both, fenced.clone(), vec!["web"]),
        (json!([ours]), fenced.clone(), vec!["web"]),
        (json!([deployment("edge", "a", "30", UID)]), fenced.clone(), vec!["web"]),
    ] {
        let listed = relist(&observer, vec![(deployments.clone(), ""), (json!([node]), "")]);
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(listed);
        assert_eq!(woken(&observer), concerned, "{deployments} {node}");
    }
    observer.apply::<Node>(of(fenced));
    assert_eq!(woken(&observer), Vec::<String>::new());
}

#[test]
fn an_unreadable_resource_has_no_snapshot_until_it_is_readable() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.apply::<GuardedResource>(unreadable("web"));
    assert!(snapshot(&observer).is_none() && observer.resource("edge", "web").is_none());
    assert!(observer.unreadable("edge", "web").is_some() && observer.has_unreadable());
    observer.apply::<GuardedResource>(resource("web", UID, "i:2"));
    assert!(snapshot(&observer).is_some() && observer.unreadable("edge", "web").is_none());
}

/// A resource with more in its spec.
fn with(name: &str, uid: &str, image: &str, more: &Value) -> GuardedResource {
    let mut resource = serde_json::to_value(resource(name, uid, image).0.unwrap()).unwrap();
    resource["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    of(resource)
}

const DNS: &str = "ffffffff-0000";

fn with_port(port: u16, image: &str) -> GuardedResource {
    with("dns", DNS, image, &json!({ "healthCheckNodePorts": [port] }))
}

#[test]
fn a_changed_spec_wakes_resources_with_the_same_health_ports() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.apply::<GuardedResource>(with("web", UID, "i:1", &json!({ "healthCheckNodePorts": [80, 81] })));
    assert_eq!(woken(&observer), ["web"]);
    for (port, image, concerned) in [
        (90, "i:1", vec!["dns"]),
        (80, "i:1", vec!["dns", "web"]),
        (80, "i:1", vec!["dns"]),
        (80, "i:2", vec!["dns", "web"]),
        (90, "i:2", vec!["dns", "web"]),
        (90, "i:3", vec!["dns"]),
    ] {
        observer.apply::<GuardedResource>(with_port(port, image));
        assert_eq!(woken(&observer), concerned, "{port} {image}");
        let others: Vec<_> = snapshot(&observer).unwrap().others.into_iter().map(|other| other.key).collect();
        assert_eq!(others, if port == 80 { vec!["edge/dns"] } else { vec![] }, "{port}");
    }
    observer.apply::<GuardedResource>(with_port(81, "i:3"));
    woken(&observer);
    observer.delete::<GuardedResource>(&with_port(81, "i:3"));
    assert_eq!(woken(&observer), ["dns", "web"]);
}

#[test]
fn a_deleted_resource_wakes_those_that_wait_for_a_name() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.apply::<GuardedResource>(with_port(80, "i:1"));
    let mut waiting = serde_json::to_value(resource("web", UID, "i:1").0.unwrap()).unwrap();
    for (status, concerned) in [("False", vec![]), ("True", vec!["web"])] {
        waiting["status"] = json!({ "conditions": [{
            "type": "NameConflict", "status": status, "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] });
        observer.apply::<GuardedResource>(of(waiting.clone()));
        observer.apply::<GuardedResource>(with_port(80, "i:1"));
        woken(&observer);
        observer.delete::<GuardedResource>(&with_port(80, "i:1"));
        let woken: Vec<_> = woken(&observer).into_iter().filter(|name| name != "dns").collect();
        assert_eq!(woken, concerned, "{status}");
    }
}

#[test]
fn a_node_wakes_resources_that_select_or_occupy_it() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.apply::<GuardedResource>(with("dns", DNS, "i:1", &json!({ "nodeSelector": { "role": "dns" } })));
    woken(&observer);
    let node = |labels: Value, annotations: Value| -> Node {
        of(json!({ "metadata": { "name": "a", "uid": "node-a", "resourceVersion": "5", "labels": labels, "annotations": annotations } }))
    };
    let member = names::member_label(names::uid8(DNS));
    let holders = json!({ names::HOLDERS_ANNOTATION: format!("{{\"{}\":{{}}}}", names::uid8(DNS)) });
    for (labels, annotations, concerned) in [
        (json!({}), json!({}), vec!["web"]),
        (json!({ "role": "dns" }), json!({}), vec!["dns", "web"]),
        (json!({ "role": "web" }), json!({}), vec!["dns", "web"]),
        (json!({ "role": "other" }), json!({}), vec!["web"]),
        (json!({ member: "" }), json!({}), vec!["dns", "web"]),
        (json!({}), json!({}), vec!["dns", "web"]),
        (json!({}), holders, vec!["dns", "web"]),
        (json!({}), json!({}), vec!["dns", "web"]),
        (json!({ "other": "label" }), json!({}), vec!["web"]),
    ] {
        observer.apply::<Node>(node(labels.clone(), annotations));
        assert_eq!(woken(&observer), concerned, "{labels}");
    }
    let mut left = deployment("edge", "a", "6", DNS);
    left["metadata"]["labels"][names::RESOURCE_LABEL] = names::uid8(DNS).into();
    observer.apply::<Deployment>(of(left));
    woken(&observer);
    observer.delete::<Node>(&node(json!({}), json!({})));
    assert_eq!(woken(&observer), ["dns", "web"], "it has a Deployment for the node");
}

#[test]
fn a_service_wakes_resources_whose_health_port_it_uses() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.apply::<GuardedResource>(with_port(30_080, "i:1"));
    woken(&observer);
    let service = |port: u16| -> Service {
        of(
            json!({ "metadata": { "name": "s", "namespace": "a" }, "spec": { "type": "NodePort", "ports": [{ "port": 80, "nodePort": port }] } }),
        )
    };
    for (port, concerned) in [(30_081, vec![]), (30_080, vec!["dns"]), (30_080, vec![]), (30_082, vec!["dns"])] {
        observer.apply::<Service>(service(port));
        assert_eq!(woken(&observer), concerned, "{port}");
    }
}

#[tokio::test]
async fn gates_are_told_of_resources_but_not_of_their_status() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    let state = crate::gates_shared::GateState::of(&observer);
    let told = || async { tokio::time::timeout(Duration::ZERO, state.changes()).await.is_ok_and(|changes| changes.gates) };
    told().await;
    let version = |generation: i64, observed: i64| {
        let mut resource = serde_json::to_value(with_port(80, "i:1").0.unwrap()).unwrap();
        resource["metadata"]["generation"] = generation.into();
        resource["status"] = json!({ "observedGeneration": observed });
        of::<GuardedResource>(resource)
    };
    for (generation, observed, is_news) in [(1, 0, true), (1, 1, false), (2, 1, true), (2, 2, false)] {
        observer.apply::<GuardedResource>(version(generation, observed));
        assert_eq!(told().await, is_news, "generation {generation}, observed {observed}");
    }
    observer.delete::<GuardedResource>(&version(2, 2));
    assert!(told().await);
}

#[test]
fn a_resource_that_is_gone_is_looked_at_once_more() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.delete::<GuardedResource>(&resource("web", UID, "i:1"));
    assert_eq!(woken(&observer), ["web"]);
}

#[test]
fn a_heartbeat_wakes_no_resource_and_a_label_does() {
    let observer = observer(vec![node("a", "1")], Vec::new(), Vec::new());
    observer.apply::<Node>(of(node("a", "2")));
    assert_eq!(woken(&observer), Vec::<String>::new());
    let mut labelled = node("a", "3");
    labelled["metadata"]["labels"] = json!({ "role": "edge" });
    observer.apply::<Node>(of(labelled));
    assert_eq!(woken(&observer), ["web"]);
}

#[test]
fn a_deployment_with_our_labels_and_another_owner_is_foreign() {
    let observer = observer(vec![node("a", "1")], vec![deployment("edge", "a", "5", "another")], Vec::new());
    let snapshot = snapshot(&observer).unwrap();
    assert!(snapshot.deployments.is_empty());
    assert!(snapshot.foreign_names.iter().eq([&planner::objects::render::object_name("web", "a", &std::collections::BTreeSet::new())]));
}

#[test]
fn a_deployments_name_decides_its_node_despite_its_annotation() {
    let mut edited = deployment("edge", "a", "5", UID);
    edited["metadata"]["annotations"][names::NODE_NAME_ANNOTATION] = "b".into();
    let observer = observer(vec![node("a", "1"), node("b", "2")], vec![edited], Vec::new());
    assert!(snapshot(&observer).unwrap().deployments.keys().eq(["a"]));
}

/// Of a Deployment that somebody deleted, and not its pods, in the middle of an update.
#[test]
fn of_orphaned_replica_sets_the_one_with_pods_counts() {
    for names in [["a-1", "a-2"], ["a-2", "a-1"]] {
        let observer = observer(vec![node("a", "1")], Vec::new(), Vec::new());
        let sets = names.iter().zip([(2, 2, "new"), (0, 0, "former")]).map(|(name, (wanted, has, image))| {
            let mut set = pod("edge", name, "a");
            set["spec"] = json!({
                "replicas": wanted, "selector": {}, "template": { "spec": { "containers": [{ "name": "c", "image": image }] } },
            });
            set["status"] = json!({ "replicas": has });
            of(set)
        });
        observer.take::<ReplicaSet>(sets.collect());
        let snapshot = snapshot(&observer).unwrap();
        let template = snapshot.orphans["a"].get("template").unwrap();
        assert_eq!(template["spec"]["containers"][0]["image"], "new", "{names:?}");
    }
}

#[test]
fn pods_of_another_namespace_are_none_of_ours() {
    let observer = observer(
        vec![node("a", "1")],
        vec![deployment("edge", "a", "5", UID)],
        vec![pod("edge", "ours", "a"), pod("other", "theirs", "a")],
    );
    let snapshot = snapshot(&observer).unwrap();
    assert!(snapshot.pods_on("a").iter().map(|pod| pod.name.as_str()).eq(["ours"]));
}

#[test]
fn only_a_list_that_was_made_for_this_rebuilding_counts() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    let mut rebuilding = serde_json::to_value(resource("web", UID, "i:1").0.unwrap()).unwrap();
    rebuilding["metadata"]["resourceVersion"] = "3".into();
    rebuilding["status"] = json!({ "rollout": { "nextId": 7, "rebuilding": 7 } });
    observer.apply::<GuardedResource>(of(rebuilding));
    let listed = |listed_for| {
        let mut snapshot = observer.snapshot("edge", "web", 1_000, "checker:1").unwrap();
        let mut memory = crate::rollout::Memory::default();
        memory.listed_for = listed_for;
        memory.complete(&mut snapshot);
        snapshot.listed_since_rebuild
    };
    assert_eq!([None, Some(6), Some(7)].map(listed), [false, false, true]);
}

#[test]
fn a_node_name_is_forgotten_with_its_last_object() {
    let observer = observer(
        vec![node("a", "1"), node("b", "1")],
        vec![deployment("edge", "a", "5", UID), deployment("edge", "b", "6", UID)],
        Vec::new(),
    );
    let names = || observer.index().node_names.values().cloned().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(names().len(), 2);
    observer.delete::<Node>(&of(node("a", "1")));
    assert_eq!(names().len(), 2, "there is a Deployment for it");
    observer.delete::<Deployment>(&of(deployment("edge", "a", "5", UID)));
    observer.delete::<Deployment>(&of(deployment("edge", "b", "6", UID)));
    assert!(names().iter().eq(["b"]));
}

#[test]
fn only_current_node_names_of_a_deployment_are_kept() {
    let observer = observer(Vec::new(), vec![deployment("edge", "a", "1", UID)], Vec::new());
    let names = || observer.index().node_names.values().cloned().collect::<std::collections::BTreeSet<_>>();
    let mut edited = deployment("edge", "a", "1", UID);
    for version in 2..100 {
        edited["metadata"]["annotations"][names::NODE_NAME_ANNOTATION] = format!("forged-{version}").into();
        edited["metadata"]["resourceVersion"] = version.to_string().into();
        observer.apply::<Deployment>(of(edited.clone()));
    }
    assert!(names().iter().eq(["a", "forged-99"]), "{:?}", names());
    assert!(snapshot(&observer).unwrap().deployments.keys().eq(["a"]), "its name was made for that node");
    edited["metadata"]["annotations"][names::NODE_NAME_ANNOTATION] = "x".repeat(254).into();
    edited["metadata"]["resourceVersion"] = "100".into();
    observer.apply::<Deployment>(of(edited.clone()));
    assert!(names().iter().eq(["a"]), "no Node has so long a name");
    observer.delete::<Deployment>(&of(edited));
    assert!(names().is_empty());
}

#[test]
fn foreign_deployments_and_health_checkers_are_kept_as_names() {
    let mut strangers = deployment("edge", "a", "5", "another");
    strangers["metadata"]["ownerReferences"][1]["kind"] = "Other".into();
    strangers["metadata"]["ownerReferences"][1]["uid"] = "x".repeat(100_000).into();
    strangers["metadata"]["annotations"]["example.com/long"] = "x".repeat(100_000).into();
    strangers["spec"] =
        json!({ "selector": {}, "template": { "spec": { "containers": [{ "name": "c", "image": "x".repeat(100_000) }] } } });
    let observer = observer(vec![node("b", "1")], vec![strangers.clone()], Vec::new());
    observer.take::<DaemonSet>(vec![of(strangers)]);
    assert!(snapshot(&observer).unwrap().foreign_names.len() == 1);
    let kept = format!("{:?}", observer.index());
    assert!(kept.len() < 20_000 && !kept.contains("xxxxx"), "{kept}");
}

/// A resource of a namespace with a health port, made at this second; its spec of generation `valid` was found to be valid.
fn serving(namespace: &str, uid: &str, created: &str, generation: i64, valid: i64, recorded: &Value) -> GuardedResource {
    let accepted = json!([{
        "type": "Valid", "status": "True", "reason": "Valid", "message": "", "observedGeneration": valid, "lastTransitionTime": created,
    }]);
    let mut resource = serde_json::to_value(with("web", uid, "i:1", &json!({ "healthCheckNodePorts": [10080] })).0.unwrap()).unwrap();
    let meta = &mut resource["metadata"];
    (meta["namespace"], meta["creationTimestamp"], meta["generation"]) = (namespace.into(), created.into(), generation.into());
    meta["finalizers"] = json!([names::FINALIZER]);
    resource["status"] = json!({ "conditions": accepted, "rollout": { "nextId": 1, "servedPorts": recorded } });
    of(resource)
}

/// Else it would lose to another what it uses until the operator has looked at it again.
#[test]
fn a_resource_stays_accepted_just_after_an_edit() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    for generation in [1, 2] {
        let edited = serving("tenant", DNS, "1970-01-01T00:01:00Z", generation, 1, &json!([]));
        observer.take::<GuardedResource>(vec![serving("edge", UID, "1970-01-01T00:05:00Z", 1, 1, &json!([])), edited]);
        let others = observer.snapshot("edge", "web", 1_000, "checker:1").unwrap().others;
        assert!(others[0].accepted, "generation {generation}");
    }
}

#[test]
fn forged_health_checkers_take_no_port_from_a_serving_neighbour() {
    let mut both = node("a", "1");
    both["metadata"]["labels"] = json!({ names::member_label(names::uid8(UID)): "true", names::member_label("ffffffff"): "true" });
    let observer = observer(vec![both], Vec::new(), Vec::new());
    let neighbour = |generation: i64| {
        let recorded = json!([{ "port": 10080, "since": 500 }]);
        serving("edge", UID, "1970-01-01T00:05:00Z", generation, 1, &recorded)
    };
    // The older one adds the port, and makes the DaemonSet that the operator would make.
    let tenant = || serving("tenant", DNS, "1970-01-01T00:01:00Z", 2, 1, &json!([]));
    let forged = json!({ "metadata": {
        "name": "web-10080", "namespace": "tenant", "uid": "forged", "annotations": { names::HEALTH_PORT_ANNOTATION: "10080" },
        "labels": { names::RESOURCE_LABEL: "ffffffff", names::HEALTH_CHECKER_LABEL: "web-10080" },
        "ownerReferences": [{ "apiVersion": "x/v1", "kind": "IngressDaemonSet", "name": "web", "uid": DNS, "controller": true }],
    } });
    observer.take::<DaemonSet>(vec![of(forged)]);
    // The neighbour's own spec may have just been edited, too.
    for generation in [1, 2] {
        observer.take::<GuardedResource>(vec![neighbour(generation), tenant()]);
        let valid = |namespace: &str| {
            let snapshot = observer.snapshot(namespace, "web", 1_000, "checker:1").unwrap();
            let mut conditions = planner::decide(&snapshot).status.conditions.into_iter();
            conditions.find(|condition| condition.type_ == "Valid").map(|valid| (valid.status == "True", valid.reason)).unwrap()
        };
        assert_eq!(valid("edge"), (true, "Accepted".to_owned()), "{generation}");
        assert_eq!(valid("tenant"), (false, "HealthCheckPortConflict".to_owned()), "{generation}");
    }
}

/// A resource of that age, counted from the newest, with so many characters in its template, which runs on so many nodes.
fn bulky(name: &str, made: usize, characters: usize, nodes: u32) -> GuardedResource {
    let text = "x".repeat(characters);
    let mut resource = serde_json::to_value(resource(name, &format!("{made:08}-0000"), "i:1").0.unwrap()).unwrap();
    let meta = &mut resource["metadata"];
    meta["creationTimestamp"] = format!("1970-01-01T00:{:02}:{:02}Z", made / 60, made % 60).into();
    meta["finalizers"] = json!([names::FINALIZER]);
    meta["annotations"] = json!({ "notes": text });
    resource["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{ "name": "X", "value": text }]);
    let counts = crds::status::NodeCounts { current: nodes, ..Default::default() };
    resource["status"] = json!({ "nodes": counts, "rollout": { "nextId": 1 } });
    of(resource)
}

/// What is said of the spec of a resource.
fn verdict(observer: &Observer, name: &str) -> String {
    let snapshot = observer.snapshot("edge", name, 1_000, "checker:1").unwrap();
    let mut conditions = planner::decide(&snapshot).status.conditions.into_iter();
    conditions.find(|condition| condition.type_ == "Valid").unwrap().reason
}

#[test]
fn only_running_and_oldest_resources_of_a_namespace_are_held() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    // The newest by name come first, and the last of all runs something.
    let all = (1..=120).map(|made| bulky(&format!("r{:03}", 120 - made), made, 10, u32::from(made == 120)));
    observer.take::<GuardedResource>(all.collect());
    let verdicts = |names: [&str; 4]| names.map(|name| verdict(&observer, name));
    assert_eq!(verdicts(["r119", "r021", "r020", "r000"]), ["Accepted", "Accepted", "TooManyResources", "Accepted"]);
    assert!(observer.resource("edge", "r020").unwrap().spec.template.is_null());
    assert!(!observer.lacks_spec("edge", "r020"));
    woken(&observer);
    observer.delete::<GuardedResource>(&bulky("r119", 1, 10, 0));
    assert_eq!(woken(&observer), ["r020", "r119"], "the next has its turn");
    assert!(observer.lacks_spec("edge", "r020") && !observer.lacks_spec("edge", "r019"));
    observer.apply::<GuardedResource>(bulky("r020", 100, 10, 0));
    assert_eq!(verdict(&observer, "r020"), "Accepted");
    assert!(!observer.lacks_spec("edge", "r020"));
    woken(&observer);
    // As after a restore of a backup: older than any other.
    observer.apply::<GuardedResource>(bulky("restored", 0, 10, 0));
    assert_eq!(woken(&observer), ["r020", "restored"]);
    assert_eq!(verdicts(["restored", "r021", "r020", "r000"]), ["Accepted", "Accepted", "TooManyResources", "Accepted"]);
    // A status that was written is no reason to hold the spec.
    observer.apply::<GuardedResource>(bulky("r020", 100, 10, 0));
    assert!(observer.resource("edge", "r020").unwrap().spec.template.is_null());
}

#[tokio::test]
async fn a_resource_that_gets_its_turn_is_read_unless_deleted() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    observer.take::<GuardedResource>((1..=101).map(|made| bulky(&format!("r{made:03}"), made, 10, 0)).collect());
    observer.delete::<GuardedResource>(&bulky("r001", 1, 10, 0));
    assert!(observer.lacks_spec("edge", "r101"));
    for gone in [false, true] {
        if gone {
            observer.delete::<GuardedResource>(&bulky("r101", 101, 10, 0));
        }
        let (service, mut server) = tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
        let client = Client::new(service, "default");
        let serve = async {
            let (request, reply) = server.next_request().await.unwrap();
            let items = [bulky("r101", 101, 10, 0).0.unwrap()];
            let list = json!({ "apiVersion": "x/v1", "kind": "List", "metadata": { "resourceVersion": "9" }, "items": items });
            reply.send_response(http::Response::new(kube::client::Body::from(serde_json::to_vec(&list).unwrap())));
            request.uri().to_string()
        };
        let (read, uri) = tokio::join!(observer.read_spec(&client, "edge", "r101"), serve);
        read.unwrap();
        assert!(uri.contains("/namespaces/edge/ingressdaemonsets?") && uri.contains("fieldSelector=metadata.name%3Dr101"), "{uri}");
        assert_eq!(observer.resource("edge", "r101").is_some(), !gone);
        assert!(gone || verdict(&observer, "r101") == "Accepted");
    }
}

#[test]
fn an_oversized_spec_is_refused_and_its_large_parts_dropped() {
    let observer = observer(Vec::new(), Vec::new(), Vec::new());
    let mut mappings = serde_json::to_value(bulky("web", 1, 10, 0).0.unwrap()).unwrap();
    mappings["spec"]["template"]["spec"]["containers"][0]["env"] = (0..1_000).map(|_| json!({})).collect();
    let mut selector = serde_json::to_value(bulky("web", 1, 70_000, 0).0.unwrap()).unwrap();
    selector["spec"]["template"]["spec"]["nodeSelector"] = json!({ "role": "edge" });
    for (large, kept) in [(of(mappings), false), (of(selector), true)] {
        observer.apply::<GuardedResource>(large);
        assert_eq!(verdict(&observer, "web"), "TooLarge");
        let held = observer.resource("edge", "web").unwrap();
        assert!(serde_json::to_vec(&*held).unwrap().len() < 2_000);
        assert_eq!(held.spec.template["spec"]["nodeSelector"]["role"] == "edge", kept);
    }
    observer.apply::<GuardedResource>(bulky("web", 1, 50_000, 0));
    assert_eq!(verdict(&observer, "web"), "Accepted");
    assert!(observer.resource("edge", "web").unwrap().metadata.annotations.is_none());
}
