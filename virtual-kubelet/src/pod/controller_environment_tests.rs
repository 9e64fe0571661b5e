//! Environments of pods, and the objects that they refer to.

use super::*;
use crate::pod::references::WatchedReferences;

/// Objects that pods refer to are watched, and not read for each pod.
fn with_watches(config: &mut PodControllerConfig<World>) {
    config.references = Arc::new(WatchedReferences::new(config.client.clone(), config.recoveries.clone()));
}

#[tokio::test(start_paused = true)]
async fn an_unresolvable_environment_is_reported_by_status_and_event() {
    let world = World::new();
    let mut object = pod("web");
    object["spec"]["containers"][0]["env"] = json!([{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "spec.tolerations" } } }]);
    // It may run yet, so it has not failed.
    object["spec"]["restartPolicy"] = "Never".into();
    world.make(object);
    let _controller = world.start(|_| {}).await;
    world.until("an event says so", |state| state.has_event("web", "EnvironmentNotResolved")).await;
    world.until("so does the status", |state| state.status("web")["message"] == "unsupported fieldPath: spec.tolerations").await;
    let status = world.state().status("web");
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("EnvironmentNotResolved")));
    assert!(!world.state().was_called("create web"));
}

#[tokio::test]
async fn a_controller_that_resolves_environments_knows_its_node() {
    let with = |facts: NodeFacts, skip: bool| {
        let mut config = PodControllerConfig::new(World::new().client(), "n1", Arc::new(World::new()));
        (config.node_facts, config.skip_downward_api_resolution) = (facts, skip);
        PodController::new(config)
    };
    assert!(with(facts(), false).is_ok() && with(NodeFacts::default(), true).is_ok());
    let wrong = [
        NodeFacts { address: String::new(), ..facts() },
        NodeFacts { cpu: String::new(), ..facts() },
        NodeFacts { memory: "much".into(), ..facts() },
    ];
    for facts in wrong {
        let refused = with(facts.clone(), false).err();
        assert!(refused.is_some_and(|error| error.is_invalid_input() && error.to_string().contains("node_facts")), "{facts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_service_links_needs_no_list_of_services() {
    let world = World::new();
    world.hang("services");
    let mut object = pod("web");
    object["spec"]["enableServiceLinks"] = false.into();
    world.make(object);
    let _controller = world.start(|_| {}).await;
    world.until("it runs", |state| state.runs("web")).await;
    let had = world.state().had.values().next().unwrap().0.clone();
    let variables = had.spec.as_ref().unwrap().containers[0].env.clone().unwrap();
    assert!(variables.iter().any(|variable| variable.name == "KUBERNETES_SERVICE_HOST"), "{variables:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_config_map_starts_pods_and_is_not_reread() {
    let world = World::new();
    let referring = |name: &str| {
        let mut object = pod(name);
        object["spec"]["containers"][0]["env"] =
            json!([{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "a" } } }]);
        object
    };
    world.make(referring("first"));
    let _controller = world
        .start(|config| {
            with_watches(config);
            config.sync_pods_from_kubernetes = RetryPolicy::fixed(Duration::from_mins(5));
        })
        .await;
    world.until("it waits", |state| state.status("first")["reason"] == "EnvironmentNotResolved").await;
    world.until("what it waits for is watched", |state| state.watches.iter().any(|(kind, _)| *kind == "ConfigMap")).await;
    let made = Instant::now();
    let metadata = json!({ "name": "settings", "namespace": "default" });
    world.make(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "a": "1" } }));
    world.until("it runs", |state| state.runs("first")).await;
    assert!(made.elapsed() < Duration::from_secs(1), "after {:?}", made.elapsed());
    let reads = world.state().reads.len();
    world.make(referring("second"));
    world.until("the second one runs", |state| state.runs("second")).await;
    assert_eq!(world.state().reads.len(), reads, "it was read again");
}

#[tokio::test(start_paused = true)]
async fn services_that_are_watched_are_listed_for_no_pod() {
    let world = World::new();
    world.make(pod("first"));
    let _controller = world.start(with_watches).await;
    world.until("it runs", |state| state.runs("first")).await;
    world.until("services are watched", |state| state.watches.iter().any(|(kind, _)| *kind == "Service")).await;
    let listed = world.state().services_listed;
    for name in ["second", "third"] {
        world.make(pod(name));
        world.until("it runs as well", |state| state.runs(name)).await;
    }
    assert_eq!(world.state().services_listed, listed);
}
