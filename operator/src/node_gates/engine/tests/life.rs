//! The life of a gate: its finalizer, the list that shows it or is refused, the end of its dry run, its deletion.

use super::*;
use crate::gates_shared::follow::{BUSY_FOR, REFUSED_FOR};

#[tokio::test]
async fn a_refused_finalizer_is_retried_only_by_the_tick() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    let asked = || server.lock().unwrap().asked("PATCH", "/apis/ingressdaemonsets.mumoshu.github.io/v1alpha1/nodereadinessgates/edge");
    server.lock().unwrap().refuses = Some(("PATCH", "/apis/ingressdaemonsets.mumoshu.github.io", 403));
    let applied = |gate| Ok(Event::Apply(DeserializeGuard(Ok(gate))));
    engine.gate_event(applied(gate()), &mut BTreeMap::new());
    engine.refresh_gates().await;
    assert_eq!((asked(), engine.finalizers), (1, Finalizers::Failed));
    // As after each write of the status of an IngressDaemonSet.
    engine.refresh_gates().await;
    assert_eq!(asked(), 1);
    server.lock().unwrap().refuses = None;
    engine.tick(&mut Writing::new()).await;
    assert_eq!((asked(), engine.finalizers), (2, Finalizers::Kept));
    let (.., body) = server.lock().unwrap().requests.iter().rfind(|(method, ..)| method == "PATCH").cloned().unwrap();
    let expected = json!({"metadata": {"finalizers": [crds::names::FINALIZER], "resourceVersion": "1"}});
    assert_eq!(body, expected, "one that somebody else has added meanwhile is not taken out");
    let mut dry = gate();
    dry.spec.dry_run = true;
    engine.gate_event(applied(dry), &mut BTreeMap::new());
    engine.refresh_gates().await;
    assert_eq!(asked(), 2, "one that only ever ran dry leaves nothing behind");
}

#[tokio::test]
async fn a_gate_without_its_finalizer_does_not_write_to_nodes() {
    let server = Arc::new(Mutex::new(Server::default()));
    server.lock().unwrap().refuses = Some(("PATCH", "/apis/ingressdaemonsets.mumoshu.github.io", 403));
    let mut engine = engine(serve(&server), observer());
    engine.gate_event(Ok(Event::InitDone), &mut BTreeMap::from([("edge".to_owned(), DeserializeGuard(Ok(gate())))]));
    engine.refresh_gates().await;
    settle(&mut engine).await;
    assert_eq!(server.lock().unwrap().patches_of_nodes().len(), 0, "neither a taint nor a record of it goes");
    server.lock().unwrap().refuses = None;
    engine.keep_finalizers().await;
    let changes = engine.state.changes().await;
    assert!(changes.gates);
    engine.note(changes).await;
    assert!(engine.state.world().gates.contains_key("g1"));
}

#[tokio::test]
async fn a_removed_undecodable_gate_is_not_waited_for() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &[]).await;
    engine.known.unreadable.insert("broken".into());
    engine.gate_event(Ok(Event::Init), &mut BTreeMap::new());
    engine.gate_event(Ok(Event::InitDone), &mut BTreeMap::new());
    assert!(engine.known.unreadable.is_empty() && engine.known.objects.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_to_list_gates_is_reported_until_listed() {
    let server = Arc::new(Mutex::new(Server::default()));
    let observer = observer();
    let spec = json!({"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let resource = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": {"name": "web", "namespace": "edge", "uid": "u"}, "spec": spec,
    });
    observer.take(vec![serde_json::from_value::<GuardedResource>(resource).unwrap()]);
    let mut engine = engine(serve(&server), Arc::clone(&observer));
    let labels = json!({});
    let unreadable = |engine: &Engine| engine.state.links("edge", "web", &labels).map(|links| links.unreadable);
    assert_eq!(unreadable(&engine), None, "it waits for the first list");
    let mut requeue = observer.requeue().stream().boxed();
    let forbidden = || {
        let status = json!({"kind": "Status", "status": "Failure", "message": "gates is forbidden", "reason": "Forbidden", "code": 403});
        Err(watcher::Error::InitialListFailed(kube::Error::Api(serde_json::from_value(status).unwrap())))
    };
    engine.gate_event(forbidden(), &mut BTreeMap::new());
    assert_eq!(unreadable(&engine), None, "an API server that has just started may not know its rights yet");
    tokio::time::advance(REFUSED_FOR).await;
    engine.gate_event(forbidden(), &mut BTreeMap::new());
    let why = unreadable(&engine).unwrap().unwrap();
    assert!(why.contains("gates is forbidden") && why.contains("install the ClusterRole"), "{why}");
    let marked = tokio::time::timeout(Duration::from_mins(1), requeue.next()).await.unwrap().unwrap();
    assert_eq!(marked.name, "web");
    engine.gate_event(Ok(Event::InitDone), &mut BTreeMap::new());
    engine.refresh_gates().await;
    assert_eq!(unreadable(&engine).flatten(), None, "they were listed");
    // What was read once is what counts from then on.
    engine.gate_event(forbidden(), &mut BTreeMap::new());
    assert_eq!(unreadable(&engine).flatten(), None);
}

#[tokio::test(start_paused = true)]
async fn a_failure_to_list_gates_is_reported_after_a_while() {
    let unreadable = |engine: &Engine| engine.state.links("edge", "web", &json!({})).map(|links| links.unreadable);
    let failed = |code: u16| {
        let status = json!({"kind": "Status", "status": "Failure", "message": "unable to list", "reason": "", "code": code});
        Err(watcher::Error::InitialListFailed(kube::Error::Api(serde_json::from_value(status).unwrap())))
    };
    let second = Duration::from_secs(1);
    for (codes, patience) in [([500, 500], REFUSED_FOR), ([503, 429], BUSY_FOR), ([429, 500], BUSY_FOR)] {
        let mut engine = engine(serve(&Arc::new(Mutex::new(Server::default()))), observer());
        for (code, passed) in [(codes[0], Duration::ZERO), (codes[1], patience.saturating_sub(second))] {
            tokio::time::advance(passed).await;
            engine.gate_event(failed(code), &mut BTreeMap::new());
            assert_eq!(unreadable(&engine), None, "{code} {passed:?}");
        }
        tokio::time::advance(second).await;
        engine.gate_event(failed(codes[1]), &mut BTreeMap::new());
        let why = unreadable(&engine).unwrap().unwrap();
        assert!(why.contains("unable to list") && !why.contains("ClusterRole"), "{why}");
    }
}

#[tokio::test]
async fn the_in_force_time_after_dry_run_survives_a_restart() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &[]).await;
    let mut dry = gate();
    dry.spec.dry_run = true;
    engine.gate_event(Ok(Event::Apply(DeserializeGuard(Ok(dry)))), &mut BTreeMap::new());
    engine.refresh_gates().await;
    settle(&mut engine).await;
    report(&mut engine).await;
    assert_eq!(condition(&server, "Ready").2.get("inForce"), None);
    let mut on = gate();
    on.metadata.generation = Some(2);
    engine.gate_event(Ok(Event::Apply(DeserializeGuard(Ok(on.clone())))), &mut BTreeMap::new());
    engine.refresh_gates().await;
    settle(&mut engine).await;
    report(&mut engine).await;
    let status = condition(&server, "Ready").2;
    let since = status["inForce"]["since"].as_str().unwrap().to_owned();
    assert!(since.as_str() > "2026-01-01T00:00:00Z", "{status}");
    // Another process reads it.
    on.status = Some(serde_json::from_value(status).unwrap());
    let mut another = with_nodes(&server, &["n1".to_owned()]).await;
    another.known.objects.insert("edge".into(), on);
    another.put_in_force();
    assert_eq!(another.in_force["g1"].in_force.as_ref().map(|known| known.since.0.to_string()), Some(since));
}

/// Somebody deletes the gate, of which no policy is left.
async fn delete_gate(engine: &mut Engine) {
    let mut going = gate();
    going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
    going.metadata.finalizers = Some(vec![crds::names::FINALIZER.to_owned()]);
    let sync = NodePolicySync::new(
        engine.client.clone(),
        Arc::clone(&engine.state),
        Arc::clone(&engine.admission),
        None,
        policy_sync::versions(true),
    );
    tokio::spawn(policy_sync::run(sync));
    while engine.admission.is_present("g1") {
        tokio::task::yield_now().await;
    }
    engine.gate_event(Ok(Event::Apply(DeserializeGuard(Ok(going)))), &mut BTreeMap::new());
    engine.refresh_gates().await;
    settle(engine).await;
}

#[tokio::test]
async fn a_blocked_gate_deletion_is_reported_and_completes_once_unblocked() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    settle(&mut engine).await;
    report(&mut engine).await;
    let (.., status) = condition(&server, "Ready");
    assert_eq!(status["taints"], json!([{"key": gate().spec.taint.key, "effect": "NoSchedule"}]), "what it may take from nodes later");
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes", 403));
    delete_gate(&mut engine).await;
    report(&mut engine).await;
    let (ready, reason, status) = condition(&server, "Ready");
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "DeletionBlocked"), "{status}");
    server.lock().unwrap().refuses = None;
    engine.failures.clear();
    engine.sweep();
    settle(&mut engine).await;
    report(&mut engine).await;
    let (.., body) = server.lock().unwrap().requests.iter().rfind(|(method, ..)| method == "PATCH").cloned().unwrap();
    assert_eq!(body["metadata"]["finalizers"], json!([]), "{body}");
}

#[tokio::test]
async fn a_node_being_deleted_does_not_block_a_gates_deletion() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = with_nodes(&server, &["n1".to_owned()]).await;
    settle(&mut engine).await;
    let mut node = server.lock().unwrap().nodes["n1"].clone();
    assert!(node["metadata"]["annotations"].get(annotation_key("g1")).is_some(), "{node}");
    // Somebody's finalizer keeps it.
    node["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    engine.observer.learn(serde_json::from_value(node).unwrap());
    delete_gate(&mut engine).await;
    report(&mut engine).await;
    let (.., body) = server.lock().unwrap().requests.iter().rfind(|(method, ..)| method == "PATCH").cloned().unwrap();
    assert_eq!(body["metadata"]["finalizers"], json!([]), "{body}");
}
