//! Taints of others, while a gate adds and removes its own beside three more writers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::{
    auditor::Expectations,
    bed::{Bed, Options},
    cluster::node_gates::{gate, node, refusals, warm},
    eventually::eventually,
    scenario::{Scenario, chance},
};

const NODES: usize = 200;
const WRITERS: usize = 3;
const KEY: &str = "readiness.k8s.io/race";
const RACE: Duration = Duration::from_mins(1);

/// Three writers add, remove and reorder taints for a minute. They know nothing of each other or of the gate.
pub const RACES: Scenario = Scenario {
    name: "three_competing_writers_lose_no_taint_on_200_gated_nodes",
    options: || Options::default().with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(races(bed)),
};

fn name(index: usize) -> String {
    format!("race-{index:03}")
}

/// What the writers did.
#[derive(Debug, Default)]
struct Counts {
    writes: AtomicU64,
    refused: AtomicU64,
}

async fn races(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let spec = json!({
        "mode": "Continuous", "admission": { "onCreate": "None" },
        "retaint": { "failingFor": "0s", "budget": { "maxNodes": "100%", "perMinute": 10000 } },
    });
    bed.apply(&[gate("race", KEY, spec)]).await?;
    let made = (0..NODES).map(|index| {
        let bed = &*bed;
        async move { node(bed, &name(index), &["race"], json!([])).await }
    });
    futures::stream::iter(made).buffer_unordered(16).try_collect::<Vec<_>>().await?;
    let counts = Arc::new(Counts::default());
    let until = Instant::now() + RACE;
    // In which order the writers come is not drawn.
    let mut random = fastrand::Rng::with_seed(chance::seed(bed)?);
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(bed.client.clone(), writer, random.fork(), until, Arc::clone(&counts)))).collect();
    let mut flips = 0;
    while Instant::now() < until {
        let index = random.usize(0..NODES);
        warm(bed, &name(index), if random.bool() { "True" } else { "False" }).await?;
        flips += 1;
    }
    let mut expected = BTreeMap::new();
    for (writer, task) in writers.into_iter().enumerate() {
        expected.insert(writer, task.await.context("a writer panicked")??);
    }
    bed.say(&format!(
        "{} writes of others, {} of them refused and made again, {flips} changes of what the gate waits for",
        counts.writes.load(Ordering::Relaxed),
        counts.refused.load(Ordering::Relaxed)
    ));
    for index in 0..NODES {
        warm(bed, &name(index), "True").await?;
    }
    let api = Api::<Node>::all(bed.client.clone());
    eventually(Duration::from_mins(3), "every node is released, and has what the others wrote last", async || {
        for node in api.list(&kube::api::ListParams::default()).await? {
            let name = node.metadata.name.clone().unwrap_or_default();
            if !name.starts_with("race-") {
                continue;
            }
            let taints = taints(&node);
            ensure!(!taints.iter().any(|taint| taint.key == KEY), "{name} has {taints:?}");
            for (writer, wrote) in &expected {
                let found = own(*writer, &taints);
                ensure!(
                    wrote.get(&name).is_none_or(|wrote| *wrote == found),
                    "{name}: writer {writer} left {:?}, there is {taints:?}",
                    wrote.get(&name)
                );
            }
        }
        Ok(())
    })
    .await?;
    let refusals = refusals(bed).await?;
    let late = refusals.iter().find(|line| line.contains("reason=\"test\"")).context("no patch of the operator came too late")?;
    ensure!(!refusals.iter().any(|line| line.contains("forbidden") || line.contains("other")), "{refusals:?}");
    bed.say(&format!("none was lost; patches of the operator that came too late, and were decided anew: {late}"));
    Ok(())
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Taints of one writer.
fn own(writer: usize, taints: &[Taint]) -> BTreeSet<String> {
    let prefix = format!("writer-{writer}.example.com/");
    taints.iter().filter(|taint| taint.key.starts_with(&prefix)).map(|taint| taint.key.clone()).collect()
}

/// Reads a Node, changes its own taints and the order of all, writes the whole Node with the version that it read, as most
/// controllers do. Fails when its own taints are not as it left them. Returns what it left.
async fn write(
    client: Client,
    writer: usize,
    mut random: fastrand::Rng,
    until: Instant,
    counts: Arc<Counts>,
) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let api = Api::<Node>::all(client);
    let mut wrote: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    while Instant::now() < until {
        let name = name(random.usize(0..NODES));
        let mut node = api.get(&name).await?;
        let mut taints = taints(&node);
        let found = own(writer, &taints);
        if let Some(left) = wrote.get(&name) {
            ensure!(*left == found, "{name}: writer {writer} left {left:?} and finds {taints:?}");
        }
        let key = format!("writer-{writer}.example.com/{}", random.u8(0..3));
        let before = taints.len();
        taints.retain(|taint| taint.key != key);
        if taints.len() == before {
            taints.push(Taint { key, effect: "NoSchedule".into(), ..Taint::default() });
        }
        random.shuffle(&mut taints);
        let after = own(writer, &taints);
        node.spec.get_or_insert_default().taints = Some(taints);
        counts.writes.fetch_add(1, Ordering::Relaxed);
        match api.replace(&name, &PostParams::default(), &node).await {
            Ok(_) => drop(wrote.insert(name, after)),
            Err(kube::Error::Api(status)) if status.code == 409 => drop(counts.refused.fetch_add(1, Ordering::Relaxed)),
            Err(error) => return Err(error).context("replacing a Node"),
        }
    }
    Ok(wrote)
}
