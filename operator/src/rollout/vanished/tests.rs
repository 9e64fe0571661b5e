//! Which labels and entries are removed from Nodes, when, and by whom.

use super::*;
use crate::{
    args::{Arguments, Command},
    leader::{LeaseTimes, act_while_leading},
    tests::api_server,
    watch::GuardedResource,
};
use clap::Parser as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A resource that exists all the time.
const STAYS: &str = "57a75000-0000-4000-8000-000000000000";
/// One that nobody has any more.
const GONE: &str = "60e00000-0000-4000-8000-000000000000";
const MARK: &str = "node-detacher.variant.run/detached";

/// What an API server has.
#[derive(Default)]
struct Stored {
    nodes: BTreeMap<String, Value>,
    resources: Vec<Value>,
    lease: Value,
    /// Nodes whose patches are refused.
    refused: BTreeSet<String>,
    /// Nodes for which a patch was sent, in order.
    patched: Vec<String>,
    /// How often resources were listed.
    listed: usize,
}

type Cluster = Arc<Mutex<Stored>>;

/// Nodes that one resource uses.
fn cluster(nodes: usize) -> Cluster {
    let names = (0..nodes).map(|index| format!("n{index:02}"));
    let node = |name: &str| {
        let labels = json!({ names::member_label(names::uid8(STAYS)): "serving", "mine": "kept" });
        json!({ "metadata": { "name": name, "uid": format!("node-{name}"), "resourceVersion": "1", "labels": labels, "annotations": {} } })
    };
    let nodes = names.map(|name| (name.clone(), node(&name))).collect();
    Arc::new(Mutex::new(Stored { nodes, resources: vec![resource(STAYS)], ..Stored::default() }))
}

fn resource(uid: &str) -> Value {
    json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": format!("web-{uid}"), "namespace": "edge", "uid": uid, "resourceVersion": "1", "generation": 1 },
        "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "i:1" }] } } },
    })
}

fn unreadable() -> Value {
    let mut unreadable = resource("0bad0000-0000-4000-8000-000000000000");
    unreadable["spec"] = json!({ "podsPerNode": "many" });
    unreadable
}

impl Stored {
    /// The resource uses all Nodes, and holds them detached.
    fn detach(&mut self, uid: &str) {
        let uid8 = names::uid8(uid);
        for node in self.nodes.values_mut() {
            let entry = json!({ uid8: { "id": 7, "phase": "Detached", "key": MARK, "value": "", "time": 20 } });
            node["metadata"]["labels"][names::member_label(uid8)] = "serving".into();
            node["metadata"]["annotations"] = json!({ MARK: "", names::HOLDERS_ANNOTATION: entry.to_string() });
        }
    }

    /// How often resources were listed, and Nodes patched.
    fn asked(&self) -> (usize, usize) {
        (self.listed, self.patched.len())
    }

    /// No Node has anything but what the resource that stays put there.
    fn is_clean(&self) -> bool {
        let labels = json!({ names::member_label(names::uid8(STAYS)): "serving", "mine": "kept" });
        self.nodes.values().all(|node| node["metadata"]["labels"] == labels && node["metadata"]["annotations"] == json!({}))
    }

    fn answer(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        if path.ends_with("/ingressdaemonsets") {
            self.listed += 1;
            return (200, json!({ "metadata": { "resourceVersion": "1" }, "items": self.resources }));
        }
        let Some(name) = path.strip_prefix("/api/v1/nodes/") else {
            if method == "PUT" {
                self.lease = body;
            }
            return (200, self.lease.clone());
        };
        self.patched.push(name.to_owned());
        if self.refused.contains(name) {
            return (403, json!({ "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403 }));
        }
        let node = self.nodes.get_mut(name).unwrap();
        let operations: json_patch::Patch = serde_json::from_value(body).unwrap();
        json_patch::patch(node, &operations).unwrap();
        node["metadata"]["resourceVersion"] = "2".into();
        (200, node.clone())
    }
}

fn client(cluster: &Cluster) -> Client {
    let cluster = Arc::clone(cluster);
    api_server(move |method, uri, body| Some(cluster.lock().answer(method.as_str(), uri.path(), body)))
}

/// The watches show all Nodes, and these resources.
fn show(observer: &Observer, cluster: &Cluster, resources: &[Value]) {
    let of = |value: &Value| serde_json::from_value::<GuardedResource>(value.clone()).unwrap();
    observer.take::<GuardedResource>(resources.iter().map(of).collect());
    show_nodes(observer, cluster);
}

/// They show all Nodes, and that no resource has any object.
fn show_nodes(observer: &Observer, cluster: &Cluster) {
    let nodes = cluster.lock().nodes.values().map(|node| serde_json::from_value(node.clone()).unwrap()).collect();
    observer.take::<Node>(nodes);
    observer.take_no_objects();
}

/// What looks, and has seen what there is.
fn looking(cluster: &Cluster) -> VanishedResources {
    let observer = Arc::new(Observer::default());
    let resources = cluster.lock().resources.clone();
    show(&observer, cluster, &resources);
    VanishedResources::new(client(cluster), observer)
}

#[tokio::test(start_paused = true)]
async fn what_a_vanished_resource_left_goes_after_five_minutes() {
    let cluster = cluster(2);
    let mut vanished = looking(&cluster);
    let stays = cluster.lock().resources.clone();
    for round in 1..=3 {
        let uid = format!("{round}{GONE}");
        cluster.lock().detach(&uid);
        show(&vanished.observer, &cluster, &[stays.as_slice(), &[resource(&uid)]].concat());
        tokio::time::advance(MISSING_FOR).await;
        assert!(!vanished.look().await);
        show(&vanished.observer, &cluster, &stays);
        assert!(!vanished.look().await);
        tokio::time::advance(MISSING_FOR.saturating_sub(Duration::from_secs(1))).await;
        assert!(!vanished.look().await);
        assert_eq!(cluster.lock().asked(), (round - 1, 2 * (round - 1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..2 {
            assert!(!vanished.look().await);
            assert_eq!(cluster.lock().asked(), (round, 2 * round));
            assert!(cluster.lock().is_clean());
        }
    }
    assert_eq!(cluster.lock().patched, ["n00", "n01"].repeat(3));
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_a_list_shows_keeps_its_labels() {
    let cluster = cluster(1);
    let mut vanished = looking(&cluster);
    cluster.lock().detach(GONE);
    show_nodes(&vanished.observer, &cluster);
    cluster.lock().resources.push(resource(GONE));
    for listed in [0, 1, 1, 2] {
        vanished.look().await;
        assert_eq!(cluster.lock().asked(), (listed, 0));
        tokio::time::advance(MISSING_FOR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_removed_while_some_resource_may_be_unknown() {
    let cluster = cluster(1);
    cluster.lock().detach(GONE);
    let mut vanished = looking(&cluster);
    let stays = cluster.lock().resources.clone();
    vanished.look().await;
    show(&vanished.observer, &cluster, &[stays.as_slice(), &[unreadable()]].concat());
    for _ in 0..3 {
        tokio::time::advance(MISSING_FOR).await;
        vanished.look().await;
    }
    show(&vanished.observer, &cluster, &stays);
    vanished.look().await;
    assert_eq!(cluster.lock().asked(), (0, 0), "the five minutes start again");
    tokio::time::advance(MISSING_FOR).await;
    vanished.look().await;
    assert!(cluster.lock().is_clean());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_removed_before_resources_and_nodes_are_listed() {
    let cluster = cluster(1);
    cluster.lock().detach(GONE);
    let observer = Arc::new(Observer::default());
    let mut vanished = VanishedResources::new(client(&cluster), Arc::clone(&observer));
    for without_resources in [false, true] {
        if without_resources {
            show_nodes(&observer, &cluster);
        }
        for _ in 0..3 {
            assert!(!vanished.look().await);
            tokio::time::advance(MISSING_FOR).await;
        }
        assert_eq!(cluster.lock().asked(), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn each_look_writes_to_the_next_ten_nodes() {
    let cluster = cluster(25);
    cluster.lock().detach(GONE);
    cluster.lock().refused = (0..10).map(|index| format!("n{index:02}")).collect();
    let mut vanished = looking(&cluster);
    vanished.look().await;
    tokio::time::advance(MISSING_FOR).await;
    for (more, patched) in [(false, 10), (true, 20), (false, 30)] {
        assert_eq!(vanished.look().await, more);
        assert_eq!(cluster.lock().asked(), (1, patched), "a UID does not come back");
    }
    assert_eq!(cluster.lock().patched.iter().collect::<BTreeSet<_>>().len(), 25);
    cluster.lock().refused.clear();
    vanished.look().await;
    assert!(cluster.lock().is_clean());
}

#[tokio::test(start_paused = true)]
async fn only_the_replica_with_the_lease_removes_anything() {
    let Command::Run(run) = Arguments::parse_from(["operator", "run", "--identity=a"]).command else { unreachable!("asked for") };
    for (holder, removes) in [("b", false), ("", true)] {
        let cluster = cluster(1);
        cluster.lock().detach(GONE);
        cluster.lock().lease = json!({ "metadata": { "name": "operator", "resourceVersion": "1" }, "spec": { "holderIdentity": holder } });
        let vanished = looking(&cluster);
        let work = clean_nodes(vanished.client.clone(), Arc::clone(&vanished.observer));
        let leads = act_while_leading(vanished.client, &run, LeaseTimes::of(&run).unwrap(), CancellationToken::new(), work);
        assert!(tokio::time::timeout(2 * MISSING_FOR, Box::pin(leads)).await.is_err());
        let cluster = cluster.lock();
        assert_eq!((cluster.patched.len(), cluster.is_clean()), (usize::from(removes), removes));
    }
}
