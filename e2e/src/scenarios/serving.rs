//! That the bed itself works: what is ready is served.

use std::time::Duration;

use anyhow::Result;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, haproxy::Check},
    cluster::workload,
    eventually::throughout,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

/// Two pods on each of two nodes, without the operator.
pub const A_PLAIN_DEPLOYMENT: Scenario = Scenario {
    name: "a_plain_deployment_serves_through_haproxy",
    options: || Options::with_nodes(2).with_check(Check::on_port(workload::PORT)),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(a_plain_deployment_serves_through_haproxy(bed)),
};

async fn a_plain_deployment_serves_through_haproxy(bed: &mut Bed) -> Result<()> {
    let names = ["n1", "n2"];
    let mut objects = vec![workload::config_map("default")];
    objects.extend(names.iter().map(|node| workload::deployment("default", node, 2)));
    bed.apply(&objects).await?;
    for node in names {
        bed.deployment_available("default", &format!("nginx-{node}")).await?;
    }
    bed.haproxy.serves(Duration::from_mins(1), &names).await?;
    bed.say("both nodes serve; load for 5 s");
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    throughout(Duration::from_secs(5), "the bed is whole", async || bed.check()).await?;
    traffic.reaches(2000, Duration::from_mins(1)).await?;
    traffic.all_served(bed).await
}
