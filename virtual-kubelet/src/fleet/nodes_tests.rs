use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::fleet::fake::{self, Asked, Log};
use crate::fleet::faults::NodeFault;
use crate::simulated::PodFault;

const NODES: u32 = 100;

struct World {
    log: Log,
    events: mpsc::Sender<Event<SlimNode>>,
    faults: mpsc::UnboundedSender<Told>,
    orders: mpsc::Receiver<Order>,
    registered: watch::Receiver<bool>,
    requests: Arc<Requests>,
    _stop: tokio_util::sync::DropGuard,
}

/// A keeper of [`NODES`] nodes before an API server that has none.
async fn keeper(answer: impl Fn(&Asked) -> Option<u16> + Send + Sync + 'static) -> World {
    keeper_before(move |asked| {
        let written = json!({ "metadata": { "uid": "u", "resourceVersion": "1" } });
        answer(asked).map_or((200, written), |code| (code, json!({ "message": "no" })))
    })
    .await
}

/// The same before one that answers so.
async fn keeper_before(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> World {
    keeper_of(NODES, fake::requests(answer)).await
}

async fn keeper_of(nodes: u32, (requests, log): (Arc<Requests>, Log)) -> World {
    let (events, seen) = mpsc::channel(16);
    let (faults, struck) = mpsc::unbounded_channel();
    let (order, orders) = mpsc::channel(16);
    let (sender, registered) = watch::channel(false);
    let stop = CancellationToken::new();
    let config = Arc::new(FleetConfig::new(nodes));
    let (least, most) = crate::fleet::lease_slots(nodes);
    let (leases, writes) = (Limiter::new(least, most), Limiter::new(4, 64));
    let keeper = Keeper::new(config, requests.clone(), leases, writes, vec![order], sender);
    tokio::spawn(keeper.run(seen, struck, stop.clone()));
    events.send(Event::ListBegins).await.unwrap();
    events.send(Event::ListEnds).await.unwrap();
    World { log, events, faults, orders, registered, requests, _stop: stop.drop_guard() }
}

/// An API server that takes its time for each request, and can stand still.
#[derive(Clone)]
struct Still {
    stands: watch::Sender<bool>,
    /// Renewals that are under way, and the most that were since this was set to 0.
    renewals: Arc<[AtomicUsize; 2]>,
}

/// A renewal that is under way, also if its client has given up.
struct UnderWay(Arc<[AtomicUsize; 2]>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0[0].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Still {
    fn new() -> Self {
        Self { stands: watch::Sender::new(false), renewals: Arc::default() }
    }

    fn answers(&self, takes: Duration) -> (Arc<Requests>, Log) {
        let this = self.clone();
        let first = move |asked: &Asked| -> BoxFuture<'static, ()> {
            let (mut stands, renewals) = (this.stands.subscribe(), this.renewals.clone());
            let counted = asked.what.contains("/leases").then(|| {
                let under_way = renewals[0].fetch_add(1, Ordering::Relaxed) + 1;
                renewals[1].fetch_max(under_way, Ordering::Relaxed);
                UnderWay(renewals)
            });
            async move {
                let _ = stands.wait_for(|stands| !stands).await;
                tokio::time::sleep(takes).await;
                drop(counted);
            }
            .boxed()
        };
        fake::requests_after(first, |_| (200, json!({ "metadata": { "uid": "u", "resourceVersion": "1" } })))
    }
}

/// The nodes in the order in which they were renewed for the first time after `back`: each as its place in the order of the last
/// renewals before `stopped`, and how long it took.
fn order_after(world: &World, stopped: Instant, back: Instant) -> Vec<(usize, Duration)> {
    let mut nodes: Vec<_> = world
        .times("PUT", "/leases")
        .into_values()
        .filter_map(|times| {
            let before = times.iter().copied().filter(|at| *at < stopped).max()?;
            Some((before, times.into_iter().filter(|at| *at >= back).min()?))
        })
        .collect();
    nodes.sort();
    let mut order: Vec<_> = nodes.into_iter().enumerate().map(|(place, (_, after))| (after, place)).collect();
    order.sort();
    order.into_iter().map(|(after, place)| (place, after - back)).collect()
}

impl World {
    /// When each of the requests came that are so, by path.
    fn times(&self, method: &str, part: &str) -> BTreeMap<String, Vec<Instant>> {
        let mut times: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
        for asked in self.log.lock().unwrap().iter().filter(|asked| asked.what.starts_with(method) && asked.what.contains(part)) {
            let name = asked.body["metadata"]["name"].as_str().map_or_else(|| asked.what.clone(), str::to_owned);
            times.entry(name).or_default().push(asked.at);
        }
        times
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_created_once_and_renewed_every_ten_seconds() {
    let mut world = keeper(|_| None).await;
    world.registered.wait_for(|registered| *registered).await.unwrap();
    tokio::time::sleep(Duration::from_mins(2)).await;
    let (nodes, leases) = (world.times("POST", "/nodes"), world.times("POST", "/leases"));
    assert_eq!((nodes.len(), leases.len()), (NODES as usize, NODES as usize));
    assert!(nodes.values().chain(leases.values()).all(|times| times.len() == 1));
    let renewals = world.times("PUT", "/leases");
    for (node, times) in &renewals {
        let pauses: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        assert!(pauses.len() >= 10 && pauses.iter().all(|pause| (9.5..10.5).contains(pause)), "{node}: {pauses:?}");
    }
    // Nodes that were made together renew apart.
    let start = *renewals.values().flatten().min().unwrap();
    let mut seconds = [0; 10];
    for at in renewals.values().flatten() {
        let second = (*at - start).as_secs();
        if (40..50).contains(&second) {
            seconds[usize::try_from(second - 40).unwrap()] += 1;
        }
    }
    // Chance spreads them: more than 30 of 100 in one second come in one of a hundred million runs.
    assert!(seconds.iter().all(|renewals| *renewals <= 30), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn unchanged_statuses_are_reported_every_five_minutes_at_different_times() {
    let world = keeper(|_| None).await;
    tokio::time::sleep(Duration::from_mins(16)).await;
    let beats = world.times("PATCH", "/status");
    assert_eq!(beats.len(), NODES as usize);
    assert!(beats.values().all(|times| (2..=3).contains(&times.len())));
    let first: Vec<_> = beats.values().map(|times| times[0]).collect();
    let spread = *first.iter().max().unwrap() - *first.iter().min().unwrap();
    assert!(spread > Duration::from_mins(4), "{spread:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_makes_no_requests_until_it_is_found() {
    let mut world = keeper(|_| None).await;
    world.registered.wait_for(|registered| *registered).await.unwrap();
    world.faults.send(Told::Node(7, NodeFault::Lost)).unwrap();
    world.faults.send(Told::Node(8, NodeFault::LateLease(Duration::from_secs(30)))).unwrap();
    assert!(matches!(world.orders.recv().await, Some(Order::Silence(7, true))));
    let before = Instant::now();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let after = |world: &World, node: &str| {
        let renewals = world.times("PUT", "/leases");
        renewals[node].iter().filter(|at| **at > before + Duration::from_secs(1)).count()
    };
    let is_of_lost = |what: &str| what.ends_with("/sim-7") || what.contains("/sim-7/");
    let of_lost = world.log.lock().unwrap().iter().filter(|asked| is_of_lost(&asked.what) && asked.at > before).count();
    assert_eq!(of_lost, 0);
    assert!(
        (7..=8).contains(&after(&world, "sim-8")) && (28..=32).contains(&after(&world, "sim-9")),
        "{} {}",
        after(&world, "sim-8"),
        after(&world, "sim-9")
    );
    world.faults.send(Told::Node(7, NodeFault::Found)).unwrap();
    assert!(matches!(world.orders.recv().await, Some(Order::Silence(7, false))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(after(&world, "sim-7") > 0);
    world.faults.send(Told::Pod("n".into(), "a".into(), Some(PodFault::CrashLoop))).unwrap();
    let order = world.orders.recv().await;
    assert!(matches!(&order, Some(Order::PodFault(n, a, Some(PodFault::CrashLoop))) if &**n == "n" && &**a == "a"), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_made_late_is_told_as_late() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let mut world = keeper(move |asked| (asked.what.ends_with("/leases") && is_down.load(Ordering::Relaxed)).then_some(503)).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    down.store(false, Ordering::Relaxed);
    world.registered.wait_for(|registered| *registered).await.unwrap();
    let text = world.requests.metrics.scrape();
    let value = |line: &str| {
        let line = text.lines().find(|known| known.starts_with(&format!("virtual_kubelet_lease_creation_lateness_seconds_{line}")));
        line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse::<f64>().ok())
    };
    assert_eq!((value("count"), value("bucket{le=\"10.0\"}")), (Some(100.0), Some(0.0)), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_leases_are_renewed_first_after_an_outage() {
    let still = Still::new();
    let mut world = keeper_of(NODES, still.answers(Duration::from_millis(40))).await;
    world.registered.wait_for(|registered| *registered).await.unwrap();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let stopped = Instant::now();
    still.stands.send_replace(true);
    // All are overdue, so that there is an order to keep.
    tokio::time::sleep(Duration::from_mins(1)).await;
    still.stands.send_replace(false);
    still.renewals[1].store(0, Ordering::Relaxed);
    let back = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let order = order_after(&world, stopped, back);
    let under_way = still.renewals[1].load(Ordering::Relaxed);
    // Those that were under way when the server came back are answered, and not asked again for a while.
    assert!(order.len() > NODES as usize / 2 && under_way <= 48, "{} renewed, {under_way} at once", order.len());
    assert!(order.is_sorted_by_key(|(place, _)| *place), "{order:?}");
    assert!(world.requests.metrics.scrape().contains("retries_total"));
}

/// The leases of 5,000 nodes after so many seconds without an API server that takes 40 ms per renewal; how old the oldest became.
async fn oldest_of_five_thousand(seconds: u64) -> Duration {
    const MANY: u32 = 5_000;
    let still = Still::new();
    let mut world = keeper_of(MANY, still.answers(Duration::from_millis(40))).await;
    world.registered.wait_for(|registered| *registered).await.unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    let stopped = Instant::now();
    still.stands.send_replace(true);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    still.stands.send_replace(false);
    let back = Instant::now();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let mut oldest = Duration::ZERO;
    for times in world.times("PUT", "/leases").into_values() {
        let before = times.iter().copied().filter(|at| *at < stopped).max().unwrap();
        // One that was under way when the server came back is renewed by that.
        let after = times.iter().copied().filter(|at| *at + Duration::from_secs(10) >= back).find(|at| *at > before).unwrap();
        oldest = oldest.max(after.max(back) - before);
    }
    let order = order_after(&world, stopped, back);
    let jumped = order.iter().enumerate().filter(|(at, (place, _))| place.saturating_sub(*at) > 100).count();
    assert!(order.len() > MANY as usize / 2, "{}", order.len());
    assert_eq!(jumped, 0, "younger leases were renewed before older ones");
    assert!(still.renewals[1].load(Ordering::Relaxed) <= 48);
    oldest
}

#[tokio::test(start_paused = true)]
async fn five_thousand_nodes_stay_within_grace_despite_a_short_outage() {
    let oldest = oldest_of_five_thousand(20).await;
    assert!(oldest < Duration::from_secs(40), "{oldest:?}");
}

#[tokio::test(start_paused = true)]
async fn five_thousand_nodes_renew_within_five_seconds_of_recovery() {
    let oldest = oldest_of_five_thousand(60).await;
    assert!(oldest < Duration::from_secs(60 + 11 + 5), "{oldest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_recreated_and_foreign_changes_are_undone() {
    let mut world = keeper(|_| None).await;
    world.registered.wait_for(|registered| *registered).await.unwrap();
    let node = |status: &str, version: &str| -> SlimNode {
        let mut node = json!(registered(&FleetConfig::new(NODES).node(3, Timestamp::now())));
        node["metadata"]["uid"] = "u".into();
        node["metadata"]["resourceVersion"] = version.into();
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "Ready" {
                condition["status"] = status.into();
            }
        }
        serde_json::from_value(node).unwrap()
    };
    world.events.send(Event::Applied(node("True", "2"))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.times("PATCH", "/sim-3/status").len(), 0);
    world.events.send(Event::Applied(node("Unknown", "3"))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.times("PATCH", "/sim-3/status").values().map(Vec::len).sum::<usize>(), 1);
    world.events.send(Event::Deleted(node("True", "4"))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.times("POST", "/nodes")["sim-3"].len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_leaving_node_is_retried_rarely_and_recreated_once_gone() {
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = gone.clone();
    let leaving = json!({ "metadata": { "name": "sim-0", "uid": "old", "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let shown = leaving.clone();
    let world = keeper_before(move |asked| {
        let of_the_node =
            asked.what.ends_with("/nodes/sim-0") || asked.body["metadata"]["name"] == "sim-0" && asked.what.ends_with("/nodes");
        match (of_the_node && !is_gone.load(Ordering::Relaxed), asked.what.starts_with("GET")) {
            (true, true) => (200, shown.clone()),
            (true, false) => (409, json!({ "message": "AlreadyExists" })),
            _ => (200, json!({ "metadata": { "uid": "u", "resourceVersion": "1" } })),
        }
    })
    .await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    let tries = world.times("POST", "/nodes")["sim-0"].len();
    assert!((3..20).contains(&tries), "{tries} tries in two minutes");
    gone.store(true, Ordering::Relaxed);
    world.events.send(Event::Deleted(serde_json::from_value(leaving).unwrap())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.times("POST", "/nodes")["sim-0"].len(), tries + 1);
    assert!(world.registered.has_changed().unwrap() || *world.registered.borrow());
}
