use std::sync::Arc;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt as _;

use super::*;
use crate::api::{Api, TerminalSize, router};
use crate::fleet::addresses::Pool;
use crate::fleet::limiter::Limiter;
use crate::fleet::nodes::Keeper;
use crate::fleet::shard::{Order, Shard};
use crate::fleet::slim::SlimPod;
use crate::fleet::watch::Event;
use crate::fleet::{FleetConfig, NodeFault, fake};
use crate::simulated::Stages;

/// A fleet of three nodes that runs, with all its pods in one share.
struct World {
    fleet: FleetHandle,
    pods: mpsc::Sender<Order>,
    stop: DropGuard,
}

impl World {
    fn new(stages: &str) -> Self {
        let (requests, _) = fake::requests(|_| (200, json!({ "metadata": { "uid": "u", "resourceVersion": "2" } })));
        let config = Arc::new(FleetConfig { stages: Stages::from_yaml(stages).unwrap(), ..FleetConfig::new(3) });
        let (faults, told) = mpsc::unbounded_channel();
        let (pods, orders) = mpsc::channel(16);
        let (writes, stop) = (Limiter::new(4, 64), CancellationToken::new());
        let addresses = Arc::new(Mutex::new(Pool::new(config.pod_cidr)));
        let shard = Shard::new(config.clone(), requests.clone(), writes.clone(), addresses);
        tokio::spawn(shard.run(orders, stop.clone()));
        let registered = watch::Sender::new(false);
        let shards = vec![pods.clone()];
        let keeper = Keeper::new(config.clone(), requests.clone(), Limiter::new(4, 48), writes, shards, registered.clone());
        tokio::spawn(keeper.run(mpsc::channel(1).1, told, stop.clone()));
        Self { fleet: FleetHandle { config, requests, registered, faults }, pods, stop: stop.drop_guard() }
    }

    /// The API shows the pod `a` of the node `sim-1`.
    async fn see(&self, more: Value) {
        self.tell(Event::Applied, more).await;
    }

    async fn tell(&self, event: fn(SlimPod) -> Event<SlimPod>, more: Value) {
        let mut pod = json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1" },
            "spec": { "nodeName": "sim-1", "containers": [{ "name": "main", "image": "i:1" }] },
        });
        for (key, value) in more.as_object().unwrap() {
            for (field, value) in value.as_object().unwrap() {
                pod[key][field] = value.clone();
            }
        }
        let event = event(serde_json::from_value(pod).unwrap());
        self.pods.send(Order::Pod(Arc::new(event), Instant::now())).await.unwrap();
    }

    /// What a client of the kubelet API is answered.
    async fn ask(&self, path: &str) -> (u16, String) {
        let routes = router(&Api::new(Arc::new(self.fleet.clone()), CancellationToken::new()), false);
        let request = Request::get(path).header("connection", "upgrade").header("upgrade", "SPDY/3.1").body(Body::empty());
        let answer = routes.oneshot(request.unwrap()).await.unwrap();
        let (status, body) = (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes());
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn log(&self, query: &str) -> (u16, String) {
        self.ask(&format!("/containerLogs/n/a/main{query}")).await
    }
}

fn ok(text: &str) -> (u16, String) {
    (200, text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_log_tells_a_containers_history_by_its_options() {
    let world = World::new("");
    world.see(json!({})).await;
    assert_eq!(world.log("").await, ok("pulling image i:1\nthe image is present\nstarted, run 1\nready\n"));
    assert_eq!(world.log("?tailLines=1").await, ok("ready\n"));
    assert_eq!(world.log("?limitBytes=7").await, ok("pulling"));
    assert_eq!(world.log("?sinceTime=2999-01-01T00:00:00Z").await, ok(""));
    let stamped = world.log("?timestamps=true&tailLines=1").await.1;
    let (time, text) = stamped.split_once(' ').unwrap();
    assert!(time.parse::<Timestamp>().is_ok() && text == "ready\n", "{stamped}");
    let none = (400, "previous terminated container \"main\" in pod \"a\" not found".to_owned());
    assert_eq!(world.log("?previous=true").await, none);
    assert_eq!(world.ask("/containerLogs/n/a/other").await, (404, "container other not found in pod a".to_owned()));
    assert_eq!(world.ask("/containerLogs/n/b/main").await, (404, "pod \"b\" does not exist".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn the_log_of_an_inherited_pod_begins_with_its_status() {
    let world = World::new("");
    let container = json!({
        "name": "main", "image": "i:1", "imageID": "", "ready": true, "restartCount": 3, "containerID": "simulated://1",
        "state": { "running": { "startedAt": "2026-01-01T00:00:09Z" } },
        "lastState": { "terminated": { "exitCode": 3, "finishedAt": "2026-01-01T00:00:05Z" } },
    });
    world.see(json!({ "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [container] } })).await;
    assert_eq!(world.log("?previous=true").await, ok("ended with code 3\n"));
    let log = "2026-01-01T00:00:05Z ended with code 3\n2026-01-01T00:00:09Z started, run 4\n";
    assert_eq!(world.log("?timestamps=true").await, ok(log));
}

#[tokio::test(start_paused = true)]
async fn a_log_is_followed_until_its_container_has_ended() {
    let world = World::new("");
    world.see(json!({})).await;
    let pod = PodTarget { namespace: "n".into(), name: "a".into(), uid: None };
    let target = ContainerTarget { pod, container: "main".into() };
    let options = LogOptions { follow: true, tail: Some(1), ..LogOptions::default() };
    let mut log = world.fleet.container_logs(&target, options).await.ok().unwrap();
    let mut first = [0; 6];
    log.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"ready\n");
    let mut rest = String::new();
    assert!(timeout(Duration::from_mins(1), log.read_to_string(&mut rest)).await.is_err(), "it ended with {rest}");
    world.see(json!({ "metadata": { "resourceVersion": "3", "deletionTimestamp": "2026-01-01T00:00:00Z" } })).await;
    // It leaves before anybody looks again.
    world.tell(Event::Deleted, json!({})).await;
    timeout(Duration::from_mins(1), log.read_to_string(&mut rest)).await.expect("it ends").unwrap();
    assert_eq!(rest, "stopping\nended with code 0\n");
    assert_eq!(world.log("").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn commands_print_the_pods_annotation_or_are_refused_with_advice() {
    let world = World::new("");
    world.see(json!({})).await;
    let (code, why) = world.ask("/exec/n/a/main?command=ls&output=1").await;
    assert_eq!(code, 400);
    assert!(why.starts_with("pod a is simulated: it has no process") && why.contains("sim.virtual-kubelet.io/exec=TEXT"), "{why}");
    assert!(world.ask("/attach/n/a/main?output=1").await.1.contains("kubectl logs --follow"));
    assert_eq!(world.ask("/portForward/n/a").await, (400, "pod a is simulated: nothing listens on its ports".to_owned()));
    world.see(json!({ "metadata": { "resourceVersion": "3", "annotations": { "sim.virtual-kubelet.io/exec": "hello\n" } } })).await;
    let pod = PodTarget { namespace: "n".into(), name: "a".into(), uid: Some("u".into()) };
    let target = ContainerTarget { pod, container: "main".into() };
    let session = world.fleet.exec(&target, vec!["ls".into()]).await.ok().unwrap();
    let (mut reads, stdout) = tokio::io::duplex(64);
    let sizes = watch::channel(None::<TerminalSize>).1;
    let ended = session(SessionIo { stdin: None, stdout: Some(Box::new(stdout)), stderr: None, tty: false, sizes }).await;
    let mut text = String::new();
    reads.read_to_string(&mut text).await.unwrap();
    assert_eq!((ended.ok(), text.as_str()), (Some(0), "hello\n"));
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_or_ended_fleet_says_so_at_once() {
    let world = World::new("");
    world.see(json!({})).await;
    world.fleet.inject("sim-1", NodeFault::Lost).unwrap();
    assert_eq!(world.log("").await, (500, "node sim-1 is lost (simulated fault)".to_owned()));
    let (fleet, before) = (world.fleet.clone(), Instant::now());
    drop(world.stop);
    let ended = World { fleet, stop: CancellationToken::new().drop_guard(), pods: world.pods };
    let (code, why) = ended.log("").await;
    assert!(code == 500 && why.starts_with("the fleet does not answer"), "{code} {why}");
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}
