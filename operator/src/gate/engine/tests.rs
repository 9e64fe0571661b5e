use super::*;
use crate::observe::Guarded;
use k8s_controller::events::Reporter;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
    core::v1::{Pod, Service},
};
use kube::client::Body;
use prometheus_client::registry::Registry;

/// A node that a gate holds, and nothing else.
fn observer() -> Arc<Observer> {
    let record = json!({"g": "edge", "k": "edge", "e": "NoSchedule", "s": "held", "o": "applied", "c": "fresh", "t": 1});
    let node = json!({
        "metadata": {"name": "n1", "uid": "u1", "annotations": {planner::gate::record::annotation_key("g1"): record.to_string()}},
        "spec": {"taints": [{"key": "edge", "effect": "NoSchedule"}]},
    });
    let observer = Observer::default();
    observer.take::<Node>(vec![serde_json::from_value(node).unwrap()]);
    observer.take::<Guarded>(Vec::new());
    observer.take::<Deployment>(Vec::new());
    observer.take::<ReplicaSet>(Vec::new());
    observer.take::<ControllerRevision>(Vec::new());
    observer.take::<Pod>(Vec::new());
    observer.take::<DaemonSet>(Vec::new());
    observer.take::<Service>(Vec::new());
    Arc::new(observer)
}

#[tokio::test]
async fn a_record_is_not_taken_for_that_of_a_gate_that_is_gone_before_gates_were_made() {
    let (service, _server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let (client, observer) = (Client::new(service, "default"), observer());
    let reporter = Reporter { controller: "operator".into(), instance: None };
    let mut engine = Engine::new(Options {
        recorder: EventRecorder::new(client.clone(), reporter),
        client,
        hub: observer.hub(),
        observer,
        metrics: GateMetrics::registered(&mut Registry::default()),
        webhook: None,
    });
    let work = Work::new();
    engine.urgent.insert("n1".into());
    engine.look(&work);
    assert_eq!(work.len(), 0, "gates were not listed");
    engine.gate_event(Ok(Event::InitDone), &mut BTreeMap::new());
    engine.look(&work);
    assert_eq!(work.len(), 0, "they were listed, and not made yet");
    engine.hub.change_fronts(|fronts| fronts.awaited = true);
    engine.refresh_gates().await;
    engine.look(&work);
    assert_eq!(work.len(), 0, "one may come from the command line");
    engine.hub.change_fronts(|fronts| fronts.awaited = false);
    engine.refresh_gates().await;
    engine.look(&work);
    assert_eq!(work.len(), 1, "there is none: what it left goes");
}
