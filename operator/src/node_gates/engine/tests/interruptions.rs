//! Patches that come too late, operators that die, and watches with gaps.

use super::*;
use planner::node_gates::record::{Record, annotation_key, records};

/// Whether the Node is tainted, and what its record says: held, released or nothing.
fn state(server: &Mutex<Server>, name: &str) -> (bool, Option<bool>) {
    let annotations: BTreeMap<String, String> =
        serde_json::from_value(server.lock().unwrap().nodes[name]["metadata"]["annotations"].clone()).unwrap();
    (tainted(server).contains(name), records(&annotations.into()).get("g1").map(Record::is_held))
}

fn other(key: &str) -> Value {
    json!({"key": key, "effect": "NoSchedule"})
}

fn keys(server: &Mutex<Server>) -> Vec<String> {
    let taints = server.lock().unwrap().nodes["n1"]["spec"]["taints"].clone();
    taints.as_array().unwrap().iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

/// Taints that others have written and the watch has not shown yet, before the taint comes and before it goes; the taints then.
#[tokio::test]
async fn a_patch_with_shifted_indices_is_refused_whole_and_rebuilt() {
    for (seen, meanwhile, released) in [
        (json!([other("x"), other("edge")]), json!([other("edge")]), vec![]),
        (json!([other("edge"), other("x")]), json!([other("y"), other("edge"), other("x")]), vec!["y", "x"]),
        (json!([other("edge"), other("x")]), json!([other("x"), other("edge")]), vec!["x"]),
        // The first taint of a node.
        (json!(null), json!([other("x")]), vec!["x", "edge"]),
    ] {
        let server = Arc::new(Mutex::new(Server::default()));
        let mut node = fresh("n1");
        node["spec"]["taints"] = seen.clone();
        server.lock().unwrap().nodes.insert("n1".into(), node);
        let mut engine = started(&server, gate()).await;
        if !seen.is_null() {
            settle(&mut engine).await;
            assert_eq!(state(&server, "n1"), (true, Some(true)));
            say(&engine, &server, "n1", "True");
            engine.sweep();
        }
        server.lock().unwrap().requests.clear();
        server.lock().unwrap().nodes.get_mut("n1").unwrap()["spec"]["taints"] = meanwhile.clone();
        settle(&mut engine).await;
        let asked: Vec<_> = server.lock().unwrap().requests.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
        // Beside events, which no decision waits for.
        let methods: Vec<_> = asked.iter().filter(|request| request.contains("/nodes/")).collect();
        assert_eq!(methods, ["PATCH /api/v1/nodes/n1", "GET /api/v1/nodes/n1", "PATCH /api/v1/nodes/n1"], "{seen} and then {meanwhile}");
        assert_eq!(keys(&server), released, "{seen} and then {meanwhile}");
        let refused = engine.metrics.refused.get_or_create(&crate::metrics::node_gates::Refused { reason: "test" }).get();
        assert_eq!(refused, 1);
    }
}

/// Looks until there is nothing to write. An operator that dies never learns what became of its request: another one goes on.
async fn settle_with_deaths(server: &Arc<Mutex<Server>>, mut engine: Engine) -> Engine {
    let mut work = Work::new();
    loop {
        engine.look(&work);
        let Some(ended) = work.next().await else { return engine };
        if std::mem::take(&mut server.lock().unwrap().died) {
            (engine, work) = (started(server, gate()).await, Work::new());
        } else {
            engine.ended(ended);
        }
    }
}

#[tokio::test]
async fn a_bootstrap_ends_alike_despite_a_crash_at_any_write() {
    // None dies; each write has no effect before the operator dies, and each has one that it never learns of.
    let deaths = (1..=3).flat_map(|number| [Some((number, false)), Some((number, true))]);
    for death in deaths.chain([None]) {
        let server = Arc::new(Mutex::new(Server { dies_at: death, ..Server::default() }));
        server.lock().unwrap().nodes.insert("n1".into(), fresh("n1"));
        let mut engine = started(&server, gate()).await;
        let put_back = |server: &Mutex<Server>| {
            server.lock().unwrap().nodes.get_mut("n1").unwrap()["spec"]["taints"].as_array_mut().unwrap().push(other("edge"));
        };
        for (step, warm, held) in
            [("it comes", "False", true), ("it is ready", "True", false), ("put back", "True", false), ("cold", "False", false)]
        {
            if step == "put back" {
                put_back(&server);
            }
            say(&engine, &server, "n1", warm);
            engine.sweep();
            drop(settle_with_deaths(&server, engine).await);
            assert_eq!(state(&server, "n1"), (held, Some(held)), "{step}, {death:?}");
            // And between two steps.
            engine = settle_with_deaths(&server, started(&server, gate()).await).await;
            assert_eq!(state(&server, "n1"), (held, Some(held)), "{step} and a start, {death:?}");
        }
        let asked = server.lock().unwrap();
        assert!(asked.dies_at.is_none(), "nobody died: {death:?}");
        // One that had no effect is made again, one that had is not.
        let again = usize::from(death.is_some_and(|(_, had_effect)| !had_effect));
        assert_eq!(asked.patches_of_nodes().len(), 3 + again, "{death:?}");
        assert!(asked.nodes["n1"]["metadata"]["annotations"][annotation_key("g1")].is_string());
    }
}

fn pod() -> Value {
    let tolerations = json!([{"operator": "Exists"}]);
    json!({
        "metadata": {"name": "p", "namespace": "ops", "uid": "u-p", "resourceVersion": "1", "labels": {"app": "init"}},
        "spec": {"nodeName": "n1", "containers": [], "tolerations": tolerations},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-03T00:00:00Z"}]},
    })
}

/// Takes in what the watches say until the Node is so.
async fn becomes(engine: &mut Engine, server: &Mutex<Server>, expected: (bool, Option<bool>)) {
    let until = async {
        while state(server, "n1") != expected {
            let changes = engine.state.changes().await;
            engine.note(changes).await;
            settle(engine).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), until).await.unwrap_or_else(|_| panic!("it never is {expected:?}"));
}

#[tokio::test(start_paused = true)]
async fn an_unseen_deletion_of_a_ready_pod_retaints_its_node() {
    let server = Arc::new(Mutex::new(Server { pods: vec![pod()], ..Server::default() }));
    server.lock().unwrap().nodes.insert("n1".into(), fresh("n1"));
    let pods = json!({"name": "pods", "pods": {"namespace": "ops", "selector": {"matchLabels": {"app": "init"}}}});
    let mut engine = started(&server, continuous(&json!({"requirements": [pods]}))).await;
    becomes(&mut engine, &server, (false, Some(false))).await;
    server.lock().unwrap().pods.clear();
    server.lock().unwrap().forgets.notify_one();
    becomes(&mut engine, &server, (true, Some(true))).await;
}

#[tokio::test]
async fn one_pass_writes_everything_and_names_nodes_it_cannot_change() {
    let server = Arc::new(Mutex::new(Server::default()));
    let names = ["n1", "n2"].map(str::to_owned);
    let seen = with_nodes(&server, &names).await.run_once().await;
    assert!(seen.failures.is_empty() && seen.views.values().all(|views| views["g1"].held), "{:?}", seen.views);
    assert_eq!(tainted(&server), BTreeSet::from(names.clone()));
    server.lock().unwrap().refuses = Some(("PATCH", "/api/v1/nodes/n1", 403));
    server.lock().unwrap().nodes.insert("n1".into(), fresh("n1"));
    let seen = started(&server, gate()).await.run_once().await;
    assert_eq!(seen.failures, BTreeMap::from([("n1".to_owned(), "no".to_owned())]));
}
