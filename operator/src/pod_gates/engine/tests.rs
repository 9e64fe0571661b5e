use super::*;
use planner::node_gates::GateLinks;
use prometheus_client::registry::Registry;
use serde_json::json;

/// An engine that knows one pod with a gate that its label opens, and how many requests it makes.
fn engine() -> (Engine, Key, Arc<std::sync::atomic::AtomicUsize>) {
    engine_refused_with(500)
}

/// The same, with the code of every answer.
fn engine_refused_with(code: u16) -> (Engine, Key, Arc<std::sync::atomic::AtomicUsize>) {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let client = crate::tests::api_server(move |_, _, _| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some((code, json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": code})))
    });
    let observer = Arc::new(Observer::default());
    let reporter = k8s_controller::events::Reporter { controller: "operator".into(), instance: None };
    let engine = Engine::new(EngineOptions {
        recorder: EventRecorder::new(client.clone(), reporter),
        of_named: client.clone(),
        client,
        state: GateState::of(&observer),
        observer,
        metrics: PodGateMetrics::registered(&mut Registry::default()),
        foreign_objects: Vec::new(),
        webhook: None,
        admission_policies: true,
    });
    let key = ("web".to_owned(), "p".to_owned());
    let object: PodReadinessGate = serde_json::from_value(json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
        "metadata": {"name": "open", "namespace": "web", "uid": "g", "generation": 1},
        "spec": {"conditionType": "example.com/open", "source": {"label": {"key": "open"}}},
    }))
    .unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "web", "uid": "u", "resourceVersion": "1", "labels": {"open": "true"}},
        "spec": {"containers": [], "nodeName": "n1", "readinessGates": [{"conditionType": "example.com/open"}]},
    }))
    .unwrap();
    {
        let mut known = engine.state.known();
        known.world.gates.insert(("web".into(), "open".into()), Arc::new(facts::gate(&object)));
        known.world.pod_sources.insert("web".into(), Source::default());
        let read = known.world.read_of_pods("web");
        known.insert(key.clone(), facts::pod(pod, &read).1);
    }
    (engine, key, asked)
}

#[tokio::test]
async fn specs_of_surplus_gates_are_dropped_until_their_turn() {
    let (mut engine, ..) = engine();
    engine.state.known().world.gates.clear();
    let gate = |index: usize| -> GuardedGate {
        let source = json!({"label": {"key": "open", "values": {"x".repeat(253): "True"}}});
        serde_json::from_value(json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "PodReadinessGate",
            "metadata": {
                "name": format!("g{index:03}"), "namespace": "web", "uid": index.to_string(), "generation": 1,
                "annotations": {"long": "x".repeat(1_000)},
            },
            "spec": {"conditionType": "example.com/open", "source": source},
        }))
        .unwrap()
    };
    let held = |engine: &Engine| engine.known.objects.values().filter(|gate| gate.spec.source.label.is_some()).count();
    let mut listing = BTreeMap::new();
    engine.gate_event(Ok(Event::Init), &mut listing);
    for index in 0..250 {
        engine.gate_event(Ok(Event::InitApply(gate(index))), &mut listing);
    }
    assert_eq!(listing.values().filter(|gate| gate.0.as_ref().unwrap().spec.source.label.is_some()).count(), 150, "while they are listed");
    engine.known.replace(std::mem::take(&mut listing));
    engine.without_spec = std::mem::take(&mut engine.thinned);
    engine.listed = true;
    engine.settle();
    assert_eq!((held(&engine), engine.known.objects.values().filter(|gate| gate.metadata.annotations.is_some()).count()), (100, 0));
    engine.gate_event(Ok(Event::Delete(gate(0))), &mut listing);
    engine.settle();
    let next = ("web".to_owned(), "g100".to_owned());
    assert_eq!(engine.lacking, BTreeSet::from([next.clone()]));
    assert!(!engine.state.known().world.gates.contains_key(&next), "nothing is decided by half of it");
    engine.read((next.clone(), Ok(vec![gate(100)])));
    engine.settle();
    assert!(engine.lacking.is_empty());
    assert!(engine.state.known().world.gates[&next].spec.source.label.is_some());
}

#[tokio::test(start_paused = true)]
async fn failures_to_list_gates_are_reported_unless_transient() {
    const NO: &str = "PodReadinessGates (no";
    let (mut engine, ..) = engine();
    engine.gates.link(BTreeMap::new());
    let told = |engine: &Engine| engine.gates.links("web", "edge", &json!({})).map(|links| links.unreadable.unwrap_or_default());
    for (code, seconds, said) in [(503, 60, None), (403, 9, None), (403, 2, Some(NO)), (500, 0, Some(NO))] {
        let refusal = |message: &str| {
            let status = json!({"status": "Failure", "message": message, "reason": "x", "code": code});
            watcher::Error::InitialListFailed(kube::Error::Api(serde_json::from_value(status).unwrap()))
        };
        engine.gate_event(Err(refusal("no")), &mut BTreeMap::new());
        tokio::time::advance(Duration::from_secs(seconds)).await;
        engine.gate_event(Err(refusal("no")), &mut BTreeMap::new());
        let told = told(&engine);
        assert_eq!(told.as_deref().map(|told| told.split(';').next().unwrap_or_default()), said, "{code} after {seconds} s");
        // Conditions that pods list stay.
        assert!(!engine.state.known().has_all);
    }
}

#[tokio::test]
async fn gates_of_nodes_ask_for_replicas_beside_unreadable_pod_gates() {
    let (engine, ..) = engine();
    let watched = GateLinks { watched: true, ..GateLinks::default() };
    engine.gates.link([(("web".to_owned(), "edge".to_owned()), watched)].into());
    engine.cannot_list(Some("no".to_owned()));
    let links = engine.gates.links("web", "edge", &json!({})).unwrap();
    assert_eq!((links.watched, links.unreadable.as_deref()), (true, Some("no")));
}

#[tokio::test]
async fn namespaces_take_turns_however_many_pods_one_of_them_has() {
    let (mut engine, ..) = engine();
    let key = |namespace: &str, pod: u32| (namespace.to_owned(), format!("p{pod}"));
    engine.due = (0..5).map(|pod| key("a-tenant", pod)).chain([key("web", 0), key("web", 1), key("zone", 0)]).collect();
    engine.under_way.insert(key("web", 0));
    let order: Vec<_> = std::iter::from_fn(|| {
        let next = engine.next()?;
        engine.due.remove(&next);
        engine.served.clone_from(&next.0);
        Some(next)
    })
    .collect();
    let first: Vec<_> = order.iter().take(4).map(|key| key.0.as_str()).collect();
    assert_eq!(first, ["a-tenant", "web", "zone", "a-tenant"]);
    assert_eq!(order.len(), 7, "the one under way is not looked at");
}

#[tokio::test]
async fn a_pod_with_failed_patch_waits_despite_new_observations() {
    let (mut engine, key, asked) = engine();
    let mut work = Work::new();
    let mut settle = async |engine: &mut Engine| {
        engine.look_at(key.clone(), &work);
        while let Some(ended) = work.next().await {
            engine.ended(ended);
        }
        asked.load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(settle(&mut engine).await, 1);
    assert_eq!(settle(&mut engine).await, 1, "it is not tried again at once");
    engine.failures.get_mut(&key).unwrap().1 = Instant::now();
    assert_eq!(settle(&mut engine).await, 2);
}

#[tokio::test]
async fn a_forbidden_pod_patch_is_reported_until_unneeded() {
    let (mut engine, key, _) = engine_refused_with(403);
    let mut work = Work::new();
    engine.reporter.changed(&World::default(), &BTreeMap::new(), &BTreeMap::new(), &engine.admission, &BTreeMap::new());
    engine.look_at(key.clone(), &work);
    engine.ended(work.next().await.unwrap());
    assert!(engine.forbidden[&key].contains("no") && engine.views[&key]["open"].due && engine.reporter.is_due());
    engine.forget(&key);
    assert!(engine.forbidden.is_empty());
}
