//! Fleets of simulated nodes against the real API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use virtual_kubelet::fleet::{Fleet, FleetConfig, FleetHandle};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options},
    control_plane,
    eventually::eventually,
    scenario::Scenario,
};

const MINUTE: Duration = Duration::from_mins(1);

/// What a fleet must hold.
pub const PROMISES: Scenario = Scenario {
    name: "a_fleet_keeps_its_promises",
    options: Options::default,
    expected: || Expectations { unjudged: true, ..Expectations::budget(0) },
    body: |bed| Box::pin(promises(bed)),
};

struct Running {
    handle: FleetHandle,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn start(client: Client, config: FleetConfig) -> Result<Running> {
    let fleet = Fleet::new(client, config)?;
    let (handle, cancel) = (fleet.handle(), CancellationToken::new());
    let task = tokio::spawn(fleet.run(cancel.clone()));
    tokio::time::timeout(MINUTE, handle.registered()).await.context("the fleet does not register")?;
    Ok(Running { handle, cancel, task })
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 30,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": "nothing" }],
        },
    })
}

async fn promises(bed: &mut Bed) -> Result<()> {
    let client = control_plane::client_without_retry(&bed.control_plane.admin_kubeconfig_for(&control_plane::server())?).await?;
    let fleet = start(client, FleetConfig { zones: vec!["a".into(), "b".into()], ..FleetConfig::new(200) }).await?;
    bed.say("registered");
    let nodes = Api::<Node>::all(bed.client.clone());
    println!("{}", serde_json::to_string_pretty(&nodes.get("sim-3").await?)?);
    let pods = Api::<Pod>::namespaced(bed.client.clone(), "default");
    let begun = Instant::now();
    for index in 0..200 {
        let pod: Pod = serde_json::from_value(pod(&format!("p{index}"), &format!("sim-{index}")))?;
        pods.create(&PostParams::default(), &pod).await?;
    }
    bed.say(&format!("made in {:?}", begun.elapsed()));
    eventually(MINUTE, "all run", async || {
        let list = pods.list(&ListParams::default()).await?;
        let running = list.items.iter().filter(|pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")).count();
        ensure!(running == 200, "{running}");
        Ok(())
    })
    .await?;
    bed.say(&format!("run after {:?}", begun.elapsed()));
    println!("{}", serde_json::to_string_pretty(&pods.get("p3").await?)?);
    tokio::time::sleep(Duration::from_secs(15)).await;
    println!("{}", fleet.handle.scrape());
    pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    eventually(MINUTE, "all gone", async || {
        let list = pods.list(&ListParams::default()).await?;
        ensure!(list.items.is_empty(), "{}", list.items.len());
        Ok(())
    })
    .await?;
    bed.say("gone");
    println!("{}", fleet.handle.scrape());
    fleet.cancel.cancel();
    Ok(())
}
