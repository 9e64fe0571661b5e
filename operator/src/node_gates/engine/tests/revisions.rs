//! Gates that wait for the newest revision of a `DaemonSet`: who is asked for it may not answer, and a gate may begin to ask at any time.

use super::*;

const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/ops/daemonsets";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ops/controllerrevisions";

/// The pod of the `DaemonSet` on a node, which is ready.
fn pod(node: &str, revision: &str) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cni", "uid": "ds", "controller": true});
    json!({
        "metadata": {
            "name": format!("cni-{node}"), "namespace": "ops", "uid": format!("u-cni-{node}"), "resourceVersion": "1",
            "labels": {"app": "cni", "controller-revision-hash": revision}, "ownerReferences": [owner],
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-03T00:00:00Z"}]},
    })
}

/// An API server with a `DaemonSet` whose pod on n1 is of the newest revision, and on n2 of the one before.
fn server() -> Arc<Mutex<Server>> {
    let template = json!({"metadata": {"labels": {"app": "cni"}}, "spec": {"containers": [], "tolerations": [{"operator": "Exists"}]}});
    let daemon_set = json!({
        "metadata": {"name": "cni", "namespace": "ops", "uid": "ds", "resourceVersion": "1"},
        "spec": {"selector": {"matchLabels": {"app": "cni"}}, "template": template},
    });
    let revision = |(number, hash): (u32, &str)| {
        let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cni", "uid": "ds", "controller": true});
        let labels = json!({"app": "cni", "controller-revision-hash": hash});
        json!({"metadata": {"name": hash, "namespace": "ops", "labels": labels, "ownerReferences": [owner]}, "revision": number})
    };
    let revisions = [(1, "former"), (2, "newest")].map(revision).to_vec();
    Arc::new(Mutex::new(Server {
        nodes: ["n1", "n2"].map(|name| (name.to_owned(), fresh(name))).into(),
        pods: vec![pod("n1", "newest"), pod("n2", "former")],
        lists: [(DAEMON_SETS, vec![daemon_set]), (REVISIONS, revisions)].into(),
        ..Server::default()
    }))
}

fn waiting_for(newest: bool) -> NodeReadinessGate {
    let daemon_set = json!({"namespace": "ops", "name": "cni", "currentRevision": newest});
    continuous(&json!({"requirements": [{"name": "cni", "daemonSet": daemon_set}]}))
}

/// Takes in what there is to know until this is so. `always`: what holds at every moment until then.
async fn until(engine: &mut Engine, done: impl Fn(&Engine) -> bool, always: impl Fn()) {
    let until = async {
        while !done(engine) {
            // Whether the API server was asked once more tells nobody.
            if let Ok(changes) = tokio::time::timeout(Duration::from_millis(100), engine.state.changes()).await {
                engine.note(changes).await;
            }
            settle(engine).await;
            always();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), until).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn gates_taint_no_node_until_the_newest_revision_is_known() {
    let server = server();
    let mut engine = started(&server, waiting_for(false)).await;
    let released = |engine: &Engine| engine.views.len() == 2 && engine.views.values().flat_map(BTreeMap::values).all(|view| view.released);
    until(&mut engine, released, || {}).await;
    assert!(tainted(&server).is_empty());
    let asked = || server.lock().unwrap().asked("GET", REVISIONS);
    assert_eq!(asked(), 0, "nobody wants to know");

    server.lock().unwrap().refuses = Some(("GET", REVISIONS, 429));
    let mut edited = waiting_for(true);
    edited.metadata.generation = Some(2);
    engine.gate_event(Ok(Event::Apply(DeserializeGuard(Ok(edited)))), &mut BTreeMap::new());
    let nobody = || assert!(tainted(&server).is_empty(), "what is not known is no older revision");
    engine.refresh_gates().await;
    engine.sweep();
    until(&mut engine, |_| asked() == 3, nobody).await;

    server.lock().unwrap().refuses = None;
    until(&mut engine, |_| !tainted(&server).is_empty(), || {}).await;
    assert_eq!(tainted(&server), BTreeSet::from(["n2".to_owned()]), "the pod of the other is of the newest");
}
