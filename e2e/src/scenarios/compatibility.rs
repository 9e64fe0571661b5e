//! The example in the README of the original controller.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::IngressDaemonSet;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, node::NodeSpec},
    cluster::product::has_condition,
    eventually::eventually,
    host::images,
    scenario::Scenario,
};

const NAME: &str = "nginx-ingress";
const MINUTE: Duration = Duration::from_mins(1);

/// Accepted as it is, with what cannot run on a kubelet named; without its ports it runs.
pub const ORIGINAL_EXAMPLE: Scenario = Scenario {
    name: "the_original_example_is_accepted_unchanged_and_runs_without_ports",
    options: || {
        let node = |name| NodeSpec::new(name).label("ingress-controller-node", "true");
        Options { nodes: vec![node("n1"), node("n2"), NodeSpec::new("other")], ..Options::default() }.with_infra()
    },
    expected: || Expectations::budget(2),
    body: |bed| Box::pin(original_example(bed)),
};

async fn original_example(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bed.kubectl(&["create", "serviceaccount", "nginx-ingress-serviceaccount"]).await?;
    let file = images::repository().join("e2e/fixtures/original-example.yaml");
    // Client side, as the original's users did: its annotation has room for 256 KiB.
    bed.kubectl(&["apply", "-f", &file.to_string_lossy()]).await?;
    let api = Api::<IngressDaemonSet>::namespaced(bed.client.clone(), "default");
    let message = eventually(MINUTE, "the status names the host port conflict", async || {
        let status = api.get(NAME).await?.status.context("no status")?;
        ensure!(has_condition(&status, "Valid", "False", "HostPortConflict"), "{:?}", status.conditions);
        let valid = status.conditions.into_iter().find(|condition| condition.type_ == "Valid");
        valid.map(|condition| condition.message).context("no condition Valid")
    })
    .await?;
    bed.say(&message);
    ensure!(message.contains("SO_REUSEPORT"), "the message gives no remedy: {message}");
    ensure!(bed.kubectl(&["get", "pods", "-l", "app=ingress-nginx", "-o", "name"]).await?.is_empty(), "pods were created");
    let mut without_ports = api.get(NAME).await?.spec.template;
    let container = &mut without_ports["spec"]["containers"][0];
    container.as_object_mut().context("no container")?.remove("ports");
    // A plain user's namespace maps one id, unless newuidmap has a range: the example's user 33 is none of them.
    if std::fs::read_to_string("/proc/self/uid_map")?.split_whitespace().nth(2) == Some("1") {
        let context = container["securityContext"].as_object_mut().context("the example has no security context")?;
        ensure!(context.remove("runAsUser").is_some(), "the example asks for no user");
        bed.say("it runs as the one user that is mapped here, and not as user 33");
    }
    api.patch(NAME, &PatchParams::default(), &Patch::Merge(json!({ "spec": { "template": without_ports } }))).await?;
    let status = eventually(MINUTE * 2, "both labelled nodes serve", async || {
        let status = api.get(NAME).await?.status.context("no status")?;
        ensure!(status.nodes.desired == 2 && status.nodes.available == 2, "{:?} {:?}", status.nodes, status.node_states);
        Ok(status)
    })
    .await?;
    // Detach mode wins over maxDegradedNodes, and the original's health checker image is not used.
    let valid = status.conditions.iter().find(|condition| condition.type_ == "Valid").context("no condition Valid")?;
    ensure!(
        valid.status == "True" && valid.message.contains("maxUnavailableNodes wins") && valid.message.contains("original's image"),
        "{valid:?}"
    );
    bed.haproxy.serves(MINUTE, &["n1", "n2"]).await?;
    let pods = bed
        .kubectl(&["get", "pods", "-l", "app=ingress-nginx", "--field-selector=spec.nodeName=n1,status.phase=Running", "-o", "name"])
        .await?;
    ensure!(pods.lines().count() == 2, "n1 runs {pods}");
    Ok(())
}
