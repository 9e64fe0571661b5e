use serde_json::json;

use super::*;
use crate::fleet::fake;
use crate::simulated::Stages;

/// A shard of a fleet with two addresses.
fn shard() -> Shard {
    let (requests, _) = fake::requests(|_| (200, json!({ "metadata": { "resourceVersion": "2" } })));
    let mut config = FleetConfig::new(10);
    config.pod_cidr = "10.0.0.0/30".parse().unwrap();
    let addresses = Arc::new(Mutex::new(Pool::new(config.pod_cidr)));
    Shard::new(Arc::new(config), requests, Limiter::new(4, 64), addresses)
}

fn pod(name: &str) -> SlimPod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": "1" },
        "spec": { "nodeName": "sim-1", "containers": [{ "name": "main", "image": "i" }] },
    }))
    .unwrap()
}

fn tell(shard: &mut Shard, event: Event<SlimPod>) {
    shard.obey(Order::Pod(Arc::new(event), Instant::now()));
}

fn see(shard: &mut Shard, name: &str) {
    tell(shard, Event::Applied(pod(name)));
}

fn condition<'a>(patch: &'a Value, type_: &str) -> &'a str {
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap()["status"].as_str().unwrap()
}

fn patch(shard: &Shard, name: &str) -> Value {
    match shard.pods[name].write(Site { uid: name, host_ip: "198.19.0.2" }, Timestamp::now()) {
        Some(Write::Patch(patch, _)) => patch,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_an_address_is_counted_once() {
    let mut shard = shard();
    for name in ["a", "b", "c"] {
        see(&mut shard, name);
    }
    for _ in 0..5 {
        shard.try_addresses();
        see(&mut shard, "c");
    }
    assert!(shard.homeless.contains_key("c") && shard.pods.len() == 2);
    tell(&mut shard, Event::Deleted(pod("a")));
    shard.try_addresses();
    assert!(shard.homeless.is_empty() && shard.pods.contains_key("c"));
    assert_eq!(shard.occurrences.next("n", "c"), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_get_addresses_in_the_order_of_their_arrival() {
    let mut shard = shard();
    for name in ["a", "b", "first", "second", "third"] {
        see(&mut shard, name);
    }
    shard.try_addresses();
    for (leaves, comes) in [("a", "first"), ("b", "second"), ("first", "third")] {
        tell(&mut shard, Event::Deleted(pod(leaves)));
        shard.try_addresses();
        assert!(shard.pods.contains_key(comes), "{comes} waits");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unlisted_pod_neither_keeps_nor_awaits_an_address() {
    let mut shard = shard();
    for name in ["a", "b", "gone", "here"] {
        see(&mut shard, name);
    }
    tell(&mut shard, Event::ListBegins);
    for name in ["b", "here"] {
        see(&mut shard, name);
    }
    // An attempt in the middle of the list says nothing about whether the pod is there.
    shard.try_addresses();
    tell(&mut shard, Event::ListEnds);
    assert!(!shard.homeless.contains_key("gone") && !shard.pods.contains_key("gone") && !shard.pods.contains_key("a"));
    shard.try_addresses();
    assert!(shard.pods.contains_key("here") && shard.homeless.is_empty());
}

#[tokio::test(start_paused = true)]
async fn timers_of_pods_that_have_gone_do_not_pile_up() {
    let mut shard = shard();
    shard.config =
        Arc::new(FleetConfig { stages: Stages::from_yaml("pods:\n- ready: 1h\n").unwrap(), ..FleetConfig::clone(&shard.config) });
    shard.addresses = Arc::new(Mutex::new(Pool::new("10.0.0.0/8".parse().unwrap())));
    for index in 0..5_000 {
        let name = index.to_string();
        see(&mut shard, &name);
        assert!(shard.pods[name.as_str()].wake.is_some());
        tell(&mut shard, Event::Deleted(pod(&name)));
    }
    assert!(shard.timers.len() <= STALE_TIMERS + 2, "{} timers", shard.timers.len());
}

#[tokio::test(start_paused = true)]
async fn a_fault_affects_pods_of_its_name_until_revoked() {
    let mut shard = shard();
    see(&mut shard, "a");
    assert_eq!(condition(&patch(&shard, "a"), "Ready"), "True");
    let order = |fault| Order::PodFault("n".into(), "a".into(), fault);
    shard.obey(order(Some(PodFault::NeverReady)));
    assert_eq!(condition(&patch(&shard, "a"), "Ready"), "False");
    // What the API shows of it changes nothing.
    see(&mut shard, "a");
    assert_eq!(condition(&patch(&shard, "a"), "Ready"), "False");
    tell(&mut shard, Event::Deleted(pod("a")));
    see(&mut shard, "a");
    see(&mut shard, "b");
    assert_eq!((condition(&patch(&shard, "a"), "Ready"), condition(&patch(&shard, "b"), "Ready")), ("False", "True"));
    shard.obey(order(None));
    assert_eq!(condition(&patch(&shard, "a"), "Ready"), "True");
}

#[tokio::test(start_paused = true)]
async fn a_call_can_ask_for_each_fault_of_a_pod() {
    for fault in [PodFault::ImagePullError, PodFault::CrashLoop, PodFault::SlowStop] {
        let mut shard = shard();
        shard.obey(Order::PodFault("n".into(), "a".into(), Some(fault)));
        see(&mut shard, "a");
        let begun = patch(&shard, "a");
        let waiting = begun["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str();
        assert_eq!(waiting == Some("ErrImagePull"), fault == PodFault::ImagePullError, "{begun}");
        let machine = shard.pods.get_mut("a").unwrap().machine.as_mut().unwrap();
        let now = Timestamp::now();
        match fault {
            PodFault::CrashLoop => assert!(machine.due().is_some_and(|due| due <= now + Duration::from_secs(2))),
            PodFault::SlowStop => {
                machine.stop(now, Duration::from_secs(30));
                assert!(machine.due().is_some_and(|due| due >= now + Duration::from_secs(29)));
            }
            _ => {}
        }
    }
}
