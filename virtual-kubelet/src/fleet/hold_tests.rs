use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::fleet::{Fleet, FleetConfig, FleetError};

/// An API server that has leases of fleets and nothing else, and notes every other request.
#[derive(Clone, Default)]
struct World {
    lease: Arc<Mutex<Option<Value>>>,
    version: Arc<Mutex<u64>>,
    others: watch::Sender<Vec<String>>,
    forbids: bool,
}

impl World {
    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        if !path.contains("/leases") {
            self.others.send_modify(|others| others.push(format!("{method} {path}")));
            return (500, json!({ "code": 500, "message": "none of that here" }));
        }
        if self.forbids {
            return (403, json!({ "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no rights" }));
        }
        let (mut lease, mut version) = (self.lease.lock().unwrap(), self.version.lock().unwrap());
        let current = lease.clone();
        match (method, current) {
            ("GET", Some(current)) => (200, current),
            ("GET" | "PUT", None) => (404, json!({ "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found" })),
            ("POST", Some(_)) => (409, json!({ "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "exists" })),
            ("PUT", Some(current)) if current["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] => {
                (409, json!({ "status": "Failure", "reason": "Conflict", "code": 409, "message": "changed" }))
            }
            _ => {
                *version += 1;
                let mut written = body;
                written["metadata"]["resourceVersion"] = version.to_string().into();
                *lease = Some(written.clone());
                (200, written)
            }
        }
    }

    fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let (code, answer) = world.answer(&method, &path, serde_json::from_slice(&body).unwrap_or_default());
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn holder(&self) -> String {
        let lease = self.lease.lock().unwrap().clone().unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_fleet_waits_until_the_first_has_ended() {
    let world = World::default();
    let (mut first, mut second) = (Hold::new(world.client(), "sim-"), Hold::new(world.client(), "sim-"));
    first.acquire().await;
    let name = world.lease.lock().unwrap().clone().unwrap()["metadata"]["name"].clone();
    assert_eq!(name, "sim-fleet");
    let both = async { tokio::join!(first.keep(), second.acquire()) };
    assert!(tokio::time::timeout(Duration::from_hours(1), both).await.is_err(), "both have it");
    first.release().await;
    let released = Instant::now();
    second.acquire().await;
    assert!(released.elapsed() <= LOOK_EVERY && world.holder() == second.holder);
}

#[tokio::test(start_paused = true)]
async fn the_next_fleet_waits_until_a_dead_fleets_lease_expires() {
    let world = World::default();
    let (mut first, mut second) = (Hold::new(world.client(), "sim-"), Hold::new(world.client(), "sim-"));
    first.acquire().await;
    let died = Instant::now();
    second.acquire().await;
    assert!(died.elapsed() >= LASTS && died.elapsed() <= LASTS + LOOK_EVERY, "{:?}", died.elapsed());
    // Should it be alive after all, it notices.
    assert_eq!(first.keep().await, second.holder);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_acts_only_while_it_holds_its_nodes() {
    let world = World::default();
    let mut other = Hold::new(world.client(), "sim-");
    other.acquire().await;
    let fleet = Fleet::new(world.client(), FleetConfig::new(3)).unwrap();
    let running = tokio::spawn(fleet.run(CancellationToken::new()));
    assert!(tokio::time::timeout(Duration::from_mins(1), other.keep()).await.is_err());
    assert_eq!(*world.others.borrow(), Vec::<String>::new());
    other.release().await;
    let mut others = world.others.subscribe();
    let acts = others.wait_for(|others| !others.is_empty());
    tokio::time::timeout(Duration::from_mins(1), acts).await.expect("it acts").unwrap();
    world.lease.lock().unwrap().as_mut().unwrap()["spec"]["holderIdentity"] = "somebody".into();
    let ended = running.await.unwrap();
    assert!(matches!(&ended, Err(FleetError::TakenOver(by)) if by == "somebody"), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_goes_on_without_the_right_to_its_lease() {
    let world = World { forbids: true, ..World::default() };
    let mut hold = Hold::new(world.client(), "sim-");
    hold.acquire().await;
    assert!(!hold.is_kept && tokio::time::timeout(Duration::from_hours(1), hold.keep()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn only_one_of_two_simultaneous_fleets_acts_at_a_time() {
    let world = World::default();
    let (mut first, mut second) = (Hold::new(world.client(), "sim-"), Hold::new(world.client(), "sim-"));
    let one_of_them = async {
        tokio::select! {
            () = first.acquire() => 0,
            () = second.acquire() => 1,
        }
    };
    let acting = one_of_them.await;
    let (acting, mut waiting) = if acting == 0 { (first, second) } else { (second, first) };
    assert_eq!(world.holder(), acting.holder);
    // While it renews, the other waits; when it does not any more, the other has the lease, and it knows.
    let both = async { tokio::join!(acting.keep(), waiting.acquire()) };
    assert!(tokio::time::timeout(Duration::from_hours(1), both).await.is_err(), "both have it");
    tokio::time::timeout(2 * LASTS, waiting.acquire()).await.expect("it takes over");
    assert_eq!((world.holder(), acting.keep().await), (waiting.holder.clone(), waiting.holder.clone()));
}
