//! What the view of a large cluster costs, and what in it is news to gates.

use super::*;
use crate::gates_shared::GateState;
use crds::names;
use futures::FutureExt as _;
use planner::facts::{DeploymentFacts, Withheld};
use serde_json::{Value, json};

const NODES: usize = 2000;
/// A node, its Deployment, its `ReplicaSet` and two pods, in KiB. Five thousand of them must leave room in 64 MiB for a decision about
/// them.
const MOST_PER_NODE: usize = 8;

/// Memory of this process that belongs to no file.
fn resident_kib() -> usize {
    status_kib("RssAnon:")
}

/// The most memory that this process had, without the part of its program that is in memory now: that only grows, and depends on the machine.
fn peak_kib() -> usize {
    status_kib("VmHWM:").saturating_sub(status_kib("RssFile:"))
}

fn status_kib(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

fn node_name(index: usize) -> String {
    format!("node-{index}.eu-central-1.example.com")
}

fn name(index: usize) -> String {
    format!("edge-{}", node_name(index))
}

fn meta(name: &str, index: usize) -> Value {
    let fields = json!({ "f:metadata": { "f:labels": { ".": {}, "f:app": {} } }, "f:spec": { "f:replicas": {}, "f:template": { "f:spec": { "f:containers": {} } } } });
    json!({
        "name": name, "namespace": "default", "uid": format!("b2c3d4e5-0000-4000-8000-{index:012}"), "resourceVersion": (100_000 + index).to_string(),
        "generation": 1, "creationTimestamp": "2026-11-22T00:00:00Z",
        "labels": {
            names::NODE_LABEL: name, names::RESOURCE_LABEL: "a1b2c3d4", names::NODE_HASH_LABEL: crds::hash::node_hash(&node_name(index)),
            names::TOKEN_LABEL: format!("a1b2c3d4.{index}.Closed.1795219210"),
        },
        "annotations": { names::NODE_NAME_ANNOTATION: node_name(index), "deployment.kubernetes.io/revision": "1" },
        "ownerReferences": [
            { "apiVersion": "v1", "kind": "IngressDaemonSet", "name": "edge", "uid": "a1b2c3d4-0000-4000-8000-000000000000", "controller": true },
        ],
        "managedFields": [{ "manager": "operator", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields }],
    })
}

fn spec(index: usize) -> Value {
    let container = json!({
        "name": "controller", "image": "registry.example.com/controller:1", "args": ["--http-port=8080", "--https-port=8443"],
        "env": [{ "name": "VERSION", "value": "1" }, { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
        "resources": { "requests": { "cpu": "100m" } }, "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent",
    });
    json!({
        "replicas": 2, "selector": { "matchLabels": { names::NODE_LABEL: name(index) } },
        "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": "100%" } },
        "template": {
            "metadata": { "labels": { names::NODE_LABEL: name(index), "app": "edge" } },
            "spec": { "nodeName": node_name(index), "containers": [container] },
        },
    })
}

/// As a list delivers them: page by page.
fn list<K: Observed + Resource + DeserializeOwned>(observer: &Observer, object: impl Fn(usize) -> Value, count: usize) {
    let (mut listing, mut page) = (Vec::new(), Vec::new());
    for index in 0..count {
        let text = object(index).to_string();
        page.push(serde_json::from_str::<K>(&text).unwrap());
        if page.len() == PAGE as usize {
            listing.extend(observer.cut(std::mem::take(&mut page)));
        }
    }
    observer.replace(listing);
}

/// What other tests take meanwhile is not to be counted: the test of this name is run once more, in a process of its own.
fn is_alone(name: &str) -> bool {
    const ALONE: &str = "MEASURED_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = format!("watch::tests::{name}");
    let alone = std::process::Command::new(std::env::current_exe().unwrap()).args(["--exact", &name]).env(ALONE, "1").status();
    assert!(alone.unwrap().success());
    false
}

#[test]
fn many_large_resources_of_a_tenant_take_a_few_mebibytes() {
    const COUNT: usize = 300;
    if !is_alone("many_large_resources_of_a_tenant_take_a_few_mebibytes") {
        return;
    }
    let resource = |namespace: &str, index: usize, characters: usize| -> GuardedResource {
        let text = "x".repeat(characters);
        let container = json!({ "name": "c", "image": "i", "env": [{ "name": "X", "value": text }] });
        let meta = json!({ "namespace": namespace, "name": format!("r{index}"), "uid": format!("{namespace}-{index}"), "annotations": { "a": text } });
        let resource = json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
            "metadata": meta, "spec": { "template": { "spec": { "containers": [container] } } },
        });
        serde_json::from_str(&resource.to_string()).unwrap()
    };
    let observer = Observer::default();
    let before = resident_kib();
    // Those that are too large, and too many of those that are not.
    for (namespace, characters) in [("large", 1 << 18), ("many", 60_000)] {
        let mut listing = Vec::new();
        for index in 0..COUNT {
            listing.extend(observer.cut(vec![resource(namespace, index, characters)]));
            if listing.len().is_multiple_of(PAGE as usize) {
                GuardedResource::thin(&mut listing);
            }
        }
        observer.replace(listing);
        assert_eq!(observer.index().resources.len(), COUNT);
        let grown = resident_kib().saturating_sub(before);
        // A hundred of 60,000 bytes each are 6 MiB, and twice as many are listed for a moment.
        assert!(grown <= 24 << 10, "{namespace}: {grown} KiB");
    }
}

fn is_whole(facts: &DeploymentFacts) -> bool {
    facts.spec.get("template").is_some_and(|template| template.pointer("/spec/containers").is_some())
}

#[test]
fn many_large_objects_stay_within_the_memory_of_a_namespace() {
    /// In KiB: what is known of them, and a list of as many beside it.
    const MOST: usize = 150 << 10;
    const COUNT: usize = 150;
    if !is_alone("many_large_objects_stay_within_the_memory_of_a_namespace") {
        return;
    }
    let mut large = meta("large", 0);
    // One that looks like ours, too.
    let texts = |index: usize| {
        let text = format!("{index}{}", "x".repeat(100 << 10));
        json!({ "a": text, "ingress-daemon-x": text, names::NODE_NAME_ANNOTATION: node_name(index) })
    };
    let mut object = |namespace: &str, index: usize, spec: Value| {
        (large["name"], large["namespace"], large["annotations"]) = (name(index).into(), namespace.into(), texts(index));
        json!({ "metadata": large, "spec": spec })
    };
    let args = json!(vec!["a"; 20_000]);
    let template = |index: usize| json!({ "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": { "labels": { "a": index.to_string() } }, "spec": { "containers": [{ "name": "c", "args": args }] } } });
    let gates: Vec<_> = (0..1000).map(|number| json!({ "conditionType": format!("{number}{}", "x".repeat(300)) })).collect();
    let observer = Observer::default();
    let before = resident_kib();
    // What others have is as it was.
    observer.take::<Partial<Deployment>>(vec![serde_json::from_value(object("other", 0, spec(0))).unwrap()]);
    let mut listing = Listing::new(&observer.listings);
    for index in 0..COUNT {
        let deployment = object("default", index, template(index)).to_string();
        let of_list: Partial<Deployment> = serde_json::from_str(&deployment).unwrap();
        listing.push(Cut::of(of_list, &mut observer.specs.lock()));
        observer.apply::<Partial<Deployment>>(serde_json::from_str(&deployment).unwrap());
        observer.apply::<Partial<Pod>>(
            serde_json::from_value(object("default", index, json!({ "containers": [], "readinessGates": gates }))).unwrap(),
        );
        let revision = json!({ "spec": { "template": template(index)["template"] } });
        let mut recorded = object("default", index, Value::Null);
        (recorded["data"], recorded["revision"]) = (revision, index.into());
        observer.apply::<ControllerRevision>(serde_json::from_value(recorded).unwrap());
        observer.apply::<DaemonSet>(serde_json::from_value(object("default", index, template(index))).unwrap());
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown <= MOST, "{grown} KiB");
    assert!(observer.listings.lock().bytes("default") > 20 << 20);
    drop(listing);
    assert_eq!(observer.listings.lock().bytes("default"), 0);
    let index = observer.index();
    assert_eq!(index.deployments.len(), COUNT + 1);
    assert!(index.revisions.len() < COUNT / 2, "{}", index.revisions.len());
    let whole = index.deployments.values().filter(|entry| is_whole(&entry.facts.1)).count();
    assert!((5..COUNT / 2).contains(&whole), "{whole}");
    assert!(index::of_namespace(&index.deployments, "other").all(|(_, entry)| is_whole(&entry.facts.1)));
    // Whose it is and which revision stays known of each, and its fence.
    assert!(index.deployments.values().all(|entry| {
        let facts = &entry.facts.1;
        facts.labels.contains_key(names::TOKEN_LABEL)
            && facts.annotations.contains_key(names::NODE_NAME_ANNOTATION)
            && facts.spec.has("selector")
    }));
    let last = &index.deployments[&("default".to_owned(), name(COUNT - 1))].facts.1;
    assert_eq!((last.spec.template_label("a"), last.annotations.get("a")), (Some((COUNT - 1).to_string().as_str()), None));
}

#[test]
fn the_bytes_of_a_namespace_are_those_of_its_objects() {
    let of = |index: usize, length: usize| {
        let template = json!({ "metadata": {}, "spec": { "containers": [{ "name": "c", "image": "x".repeat(length) }] } });
        let object: Deployment =
            serde_json::from_value(json!({ "metadata": meta(&name(index), index), "spec": { "template": template } })).unwrap();
        object
    };
    let observer = Observer::default();
    let bytes = || observer.index().usages.bytes("default");
    observer.apply(of(0, 200_000));
    let one = bytes();
    assert!((200_000..210_000).contains(&one), "{one}");
    // The same once more, and what has it in common with others, take nothing; what is smaller takes less.
    for (index, length) in [(0, 200_000), (1, 200_000), (2, 200_000)] {
        observer.apply(of(index, length));
        assert_eq!(bytes(), one);
    }
    observer.apply(of(2, 100_000));
    assert!((100_000..110_000).contains(&(bytes() - one)), "{}", bytes());
    observer.apply(of(2, 200_000));
    for index in [2, 0] {
        observer.delete(&of(index, 0));
        assert_eq!(bytes(), one);
    }
    observer.delete(&of(1, 0));
    assert_eq!(bytes(), 0);
    // A fleet of which each has the same takes no more than one of them.
    for index in 0..200 {
        observer.apply(of(index, 200_000));
    }
    assert_eq!(bytes(), one);
    assert!(observer.index().deployments.values().all(|entry| is_whole(&entry.facts.1)));
}

/// After a lost ledger all Nodes are read at once, each of the size of a real one.
#[tokio::test]
async fn listing_two_thousand_nodes_takes_the_memory_of_a_page() {
    if !is_alone("listing_two_thousand_nodes_takes_the_memory_of_a_page") {
        return;
    }
    let image =
        |number: usize| json!({ "names": [format!("registry.example.com/{}@sha256:{number:064}", "x".repeat(200))], "sizeBytes": number });
    let status = json!({ "images": (0..50).map(image).collect::<Vec<_>>(), "conditions": [{ "type": "Ready", "status": "True" }] });
    let client = crate::tests::api_server(move |_, uri, _| {
        let asked = |name: &str| uri.query()?.split('&').find_map(|pair| pair.strip_prefix(name))?.parse::<usize>().ok();
        let (from, limit) = (asked("continue=").unwrap_or(0), asked("limit=").unwrap_or(NODES));
        let to = if uri.path().ends_with("/nodes") { (from + limit).min(NODES) } else { 0 };
        let node = |index: usize| json!({ "metadata": { "name": node_name(index), "resourceVersion": "7" }, "status": status });
        let more = if from < to && to < NODES { to.to_string() } else { String::new() };
        let metadata = json!({ "resourceVersion": "9", "continue": more });
        Some((200, json!({ "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": (from..to).map(node).collect::<Vec<_>>() })))
    });
    let observer = Observer::default();
    let most = peak_kib();
    observer.relist(&client, "default").await.unwrap();
    assert_eq!(observer.nodes().len(), NODES);
    // Their text alone is 34 MiB. The server has a page of it decoded.
    let grown = peak_kib().saturating_sub(most);
    assert!(grown <= 28 << 10, "{grown} KiB");
}

/// A template of the API server's limit for an object: of mappings, each of which takes hundreds of bytes, and of more levels than a decoder
/// goes. Neither ends the watch for the neighbours.
#[tokio::test]
async fn an_undecodable_resource_hides_no_neighbour_and_costs_little() {
    if !is_alone("an_undecodable_resource_hides_no_neighbour_and_costs_little") {
        return;
    }
    let resource = |name: &str, template: &str| {
        format!(
            r#"{{"apiVersion":"ingressdaemonsets.mumoshu.github.io/v1alpha1","kind":"IngressDaemonSet",
                "metadata":{{"name":"{name}","namespace":"web","uid":"{name}","resourceVersion":"1"}},"spec":{{"template":{template}}}}}"#
        )
    };
    let small = r#"{"spec":{"containers":[]}}"#.to_owned();
    let wide = format!(r#"{{"x":[{}0]}}"#, r#"{"a":0},"#.repeat(180_000));
    let deep = format!("{}{}", r#"{"a":"#.repeat(1000) + "0", "}".repeat(1000));
    let items = [("a", &small), ("b", &wide), ("c", &deep), ("d", &small)].map(|(name, template)| resource(name, template));
    let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#, items.join(","));
    let (service, mut server) = tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
    let serve = async move {
        let (_, reply) = server.next_request().await.unwrap();
        let answer = http::Response::builder().header("content-type", "application/json").body(list.into_bytes().into());
        reply.send_response(answer.unwrap());
    };
    let client =
        crate::client::layered(kube::client::ClientBuilder::new(service, "default"), Duration::from_secs(9), crate::trim::trim).build();
    let observer = Observer::default();
    let most = peak_kib();
    let api = Api::<GuardedResource>::all(client);
    let (listed, ()) = tokio::join!(pages::all(&api, ListParams::default(), SMALL_PAGE), serve);
    observer.take(listed.unwrap());
    assert_eq!(observer.resources().len(), 4);
    let withheld: Vec<_> = observer.index().withheld.iter().map(|((_, name), why)| (name.clone(), *why)).collect();
    let too_large = |name: &str, bytes, mappings| (name.to_owned(), Withheld::TooLarge { bytes, mappings });
    // With the `{"template":` around them.
    assert_eq!(withheld, [too_large("b", wide.len() + 13, 180_002), too_large("c", deep.len() + 13, 1001)]);
    // The answer's text and a few copies of its longest object.
    let grown = peak_kib().saturating_sub(most);
    assert!(grown <= 24 << 10, "{grown} KiB");
}

#[test]
fn a_node_with_its_objects_takes_a_few_kibibytes() {
    if !is_alone("a_node_with_its_objects_takes_a_few_kibibytes") {
        return;
    }
    let observer = Observer::default();
    let before = resident_kib();
    let status =
        json!({ "conditions": [{ "type": "Ready", "status": "True" }], "addresses": [{ "type": "InternalIP", "address": "198.19.1.1" }] });
    list::<Node>(&observer, |index| json!({ "metadata": meta(&node_name(index), index), "spec": {}, "status": status }), NODES);
    list::<Deployment>(&observer, |index| json!({ "metadata": meta(&name(index), index), "spec": spec(index) }), NODES);
    list::<ReplicaSet>(
        &observer,
        |index| json!({ "metadata": meta(&format!("{}-7d6f8d9c4b", name(index)), index), "spec": spec(index) }),
        NODES,
    );
    let pod = |index: usize| {
        let name = format!("{}-7d6f8d9c4b-{index:05}", name(index / 2));
        json!({ "metadata": meta(&name, index / 2), "spec": { "containers": [] }, "status": { "phase": "Running", "conditions": status["conditions"] } })
    };
    list::<Pod>(&observer, pod, 2 * NODES);
    let each = resident_kib().saturating_sub(before) / NODES;
    assert!(each <= MOST_PER_NODE, "{each} KiB");
    assert_eq!(observer.index().pods.len(), 2 * NODES);
}

#[test]
fn a_heartbeat_wakes_no_gate_and_a_changed_condition_does() {
    let node = |beat: u32, change: &dyn Fn(&mut Value)| -> Node {
        let at = format!("2026-01-01T00:00:{beat:02}Z");
        let mut node = json!({
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": beat.to_string()},
            "status": {"conditions": [{"type": "Warm", "status": "True", "lastHeartbeatTime": at, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    };
    let observer = Observer::default();
    let state = GateState::of(&observer);
    assert!(state.changes().now_or_never().is_none(), "from now on somebody takes news");
    let is_news = |node| {
        observer.learn(node);
        // Nothing to wait for: what is known is told at once.
        state.changes().now_or_never().is_some_and(|changes| changes.nodes.contains("n1"))
    };
    assert!(is_news(node(1, &|_| {})), "it is new");
    assert!(!is_news(node(2, &|_| {})), "a heartbeat");
    assert!(is_news(node(3, &|node| node["status"]["conditions"][0]["status"] = "False".into())));
    assert!(is_news(node(4, &|_| {})));
    assert!(is_news(node(5, &|node| node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]))));
    assert!(is_news(node(6, &|_| {})));
    assert!(is_news(node(7, &|node| node["metadata"]["labels"] = json!({"role": "edge"}))));
    assert!(is_news(node(8, &|_| {})), "a label that goes, too");
}

#[test]
fn a_standby_keeps_no_news_and_begins_with_all_nodes() {
    let observer = Observer::default();
    let state = GateState::of(&observer);
    let node = |index: usize| -> Node {
        serde_json::from_value(json!({"metadata": {"name": node_name(index), "uid": index.to_string()}})).unwrap()
    };
    (0..100).for_each(|index| observer.learn(node(index)));
    let first = state.changes().now_or_never().unwrap();
    assert_eq!((first.nodes.len(), first.all), (0, true));
    observer.learn(node(100));
    let next = state.changes().now_or_never().unwrap();
    assert_eq!((next.nodes.len(), next.all), (1, false));
    let pods = GateState::default().pods();
    pods.nodes([node_name(0)]);
    assert!(pods.changes().now_or_never().is_none());
    pods.nodes([node_name(1)]);
    assert_eq!(pods.changes().now_or_never().unwrap().nodes.len(), 1);
}
