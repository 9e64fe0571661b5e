//! Takes from every Node what gates, and resources that are gone, have left there, for an operator that is uninstalled.

use crate::{
    args::CleanupNodes,
    gates_shared::definitions,
    leader::holder,
    node_gates::act,
    pages,
    watch::{Guarded, Observer, PAGE},
    write,
};
use anyhow::{Context as _, bail};
use crds::{NodeReadinessGate, names};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration},
    core::v1::Node,
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::{ClusterResourceScope, DeserializeGuard},
};
use planner::node_gates::{
    World,
    leftovers::{GatesAndResources, Leftovers, leftovers},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{
    collections::BTreeSet,
    fmt::{self, Debug},
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

/// Name of the webhook's configuration.
const WEBHOOK: &str = "ingress-daemonset-operator";
/// How long an API server may go by a policy that was deleted: it looks at them about once a second.
const POLICIES_LAST: Duration = Duration::from_secs(3);
/// How often a node is looked at that changes meanwhile.
const ROUNDS: usize = 5;

/// What may be taken from Nodes.
struct Scope {
    /// Resources that are there, by the first 8 characters of their UID.
    present: BTreeSet<String>,
    known: GatesAndResources,
}

/// Cleans up, and prints what it does.
pub async fn run(client: &Client, options: &CleanupNodes) -> anyhow::Result<()> {
    if let Some(holder) = holder(client, &options.lease_namespace, &options.lease_name).await? {
        let lease = format!("{}/{}", options.lease_namespace, options.lease_name);
        if !options.force && !options.dry_run {
            bail!("{holder} holds the lease {lease} and would put back what it has a gate for: stop the operator first, or use --force");
        }
        say(format_args!("{holder} holds the lease {lease}: what it has a gate for may come back"));
    }
    let prefix = if options.dry_run { "would: " } else { "" };
    remove_policies::<MutatingAdmissionPolicyBinding>(client, options.dry_run, prefix).await?;
    remove_policies::<MutatingAdmissionPolicy>(client, options.dry_run, prefix).await?;
    remove_webhook(client, options.dry_run, prefix).await?;
    let gates = definitions::list(client).await?;
    release_gates(client, &gates, options.dry_run, prefix).await?;
    let resources = resources(client).await?;
    let scope = Scope { present: present(&resources), known: known(&gates, &resources, options) };
    remove_bindings(client, &scope.present, options.dry_run, prefix).await?;
    let (mut cleaned, nodes) = clean_all(client, &scope, options.dry_run, prefix).await?;
    if !options.dry_run {
        // What came before the last API server knew that the policies are gone.
        tokio::time::sleep(POLICIES_LAST).await;
        cleaned += clean_all(client, &scope, false, prefix).await?.0;
    }
    say(format_args!("{prefix}{cleaned} of {nodes} nodes cleaned up"));
    Ok(())
}

/// Prints a line. A reader that has seen enough, such as `head`, is no reason to stop half-way.
fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Cleans up every Node that there is now; how many had something of ours, and how many there are.
async fn clean_all(client: &Client, scope: &Scope, dry_run: bool, prefix: &str) -> anyhow::Result<(usize, usize)> {
    let observer = Observer::default();
    observer.take(Api::<Node>::all(client.clone()).list(&ListParams::default()).await.context("listing Nodes")?.items);
    let mut cleaned = 0_usize;
    for name in observer.nodes().keys() {
        cleaned += usize::from(clean(client, &observer, name, scope, dry_run, prefix).await?);
    }
    Ok((cleaned, observer.nodes().len()))
}

/// New nodes would get taints from them that nobody takes off any more. A server that does not know the kind has none.
async fn remove_policies<K>(client: &Client, dry_run: bool, prefix: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let found = match api.list_metadata(&ListParams::default().labels(names::GATE_LABEL)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        result => result.with_context(|| format!("listing {}", K::plural(&())))?,
    };
    for object in found.items {
        let named = format!("{} {}", K::kind(&()), object.name_any());
        say(format_args!("{prefix}{named}: deleted"));
        if !dry_run {
            api.delete(&object.name_any(), &DeleteParams::default())
                .await
                .map(drop)
                .or_else(is_gone)
                .with_context(|| format!("deleting {named}"))?;
        }
    }
    Ok(())
}

async fn remove_webhook(client: &Client, dry_run: bool, prefix: &str) -> anyhow::Result<()> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    if api.get_metadata_opt(WEBHOOK).await.with_context(|| format!("reading MutatingWebhookConfiguration {WEBHOOK}"))?.is_none() {
        return Ok(());
    }
    say(format_args!("{prefix}MutatingWebhookConfiguration {WEBHOOK}: deleted"));
    if !dry_run {
        let deleted = api.delete(WEBHOOK, &DeleteParams::default()).await.map(drop).or_else(is_gone);
        deleted.with_context(|| format!("deleting MutatingWebhookConfiguration {WEBHOOK}"))?;
    }
    Ok(())
}

fn is_gone(error: kube::Error) -> kube::Result<()> {
    match error {
        kube::Error::Api(status) if status.code == 404 => Ok(()),
        error => Err(error),
    }
}

/// Gates could not be deleted any more, once nobody is there to take their finalizer off.
async fn release_gates(client: &Client, gates: &[DeserializeGuard<NodeReadinessGate>], dry_run: bool, prefix: &str) -> anyhow::Result<()> {
    let api: Api<NodeReadinessGate> = Api::all(client.clone());
    for gate in gates.iter().filter(|gate| gate.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER)) {
        let name = gate.name_any();
        say(format_args!("{prefix}NodeReadinessGate {name}: finalizer removed"));
        if dry_run {
            continue;
        }
        let left: Vec<_> = gate.finalizers().iter().filter(|finalizer| *finalizer != names::FINALIZER).collect();
        let body = json!({"metadata": {"finalizers": left, "resourceVersion": gate.meta().resource_version}});
        api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(body))
            .await
            .with_context(|| format!("removing the finalizer of NodeReadinessGate {name}"))?;
    }
    Ok(())
}

/// Resources that are there.
async fn resources(client: &Client) -> anyhow::Result<Vec<Guarded>> {
    match pages::all(&Api::<Guarded>::all(client.clone()), ListParams::default(), PAGE).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        result => result.context("listing IngressDaemonSets"),
    }
}

/// The same by the first 8 characters of their UID. What is theirs stays, which is said.
fn present(resources: &[Guarded]) -> BTreeSet<String> {
    for resource in resources {
        let named = format!("{}/{}", resource.namespace().unwrap_or_default(), resource.name_any());
        say(format_args!(
            "IngressDaemonSet {named} is there: its labels and marks on nodes are left. Delete it while an operator runs; \
             without one, delete it and take its finalizer off, then run this again"
        ));
    }
    resources.iter().map(|resource| names::uid8(&resource.uid().unwrap_or_default()).to_owned()).collect()
}

/// What gates and resources that are there have or had put on nodes, as far as they can be decoded, and what the command line names.
fn known(gates: &[DeserializeGuard<NodeReadinessGate>], resources: &[Guarded], options: &CleanupNodes) -> GatesAndResources {
    let mut world = World { rights: options.node_rights(), ..World::default() };
    let gates = gates.iter().filter_map(|gate| gate.0.as_ref().ok());
    world.gates = gates.clone().map(definitions::gate).map(|gate| (gate.uid.clone(), Arc::new(gate))).collect();
    let of_gates = gates.filter_map(|gate| Some((gate.uid()?, gate.status.clone()?.taints)));
    let resources = resources.iter().filter_map(|resource| resource.0.as_ref().ok());
    let of_resources = resources.filter_map(definitions::said_of_implied).map(|(uid, said)| (uid, said.taints));
    world.remember_taints(of_gates.chain(of_resources), |_| true);
    GatesAndResources { world, named: options.taint.clone() }
}

/// Rights of health checkers of resources that are gone.
async fn remove_bindings(client: &Client, present: &BTreeSet<String>, dry_run: bool, prefix: &str) -> anyhow::Result<()> {
    let api: Api<ClusterRoleBinding> = Api::all(client.clone());
    let found = api.list_metadata(&ListParams::default().labels(names::RESOURCE_LABEL)).await.context("listing ClusterRoleBindings")?;
    let gone = found.items.iter().filter(|binding| !binding.labels().get(names::RESOURCE_LABEL).is_some_and(|of| present.contains(of)));
    for binding in gone {
        let name = binding.name_any();
        say(format_args!("{prefix}ClusterRoleBinding {name}: deleted"));
        if !dry_run {
            let deleted = api.delete(&name, &DeleteParams::default()).await.map(drop).or_else(is_gone);
            deleted.with_context(|| format!("deleting ClusterRoleBinding {name}"))?;
        }
    }
    Ok(())
}

/// Whether there was something to take away.
async fn clean(client: &Client, observer: &Observer, name: &str, scope: &Scope, dry_run: bool, prefix: &str) -> anyhow::Result<bool> {
    let api: Api<Node> = Api::all(client.clone());
    for round in 0..ROUNDS {
        let Some(node) = observer.node(name) else { return Ok(false) };
        let found = leftovers(&node, &scope.present, &scope.known);
        if round == 0 {
            tell(name, &found, prefix);
        }
        let Some(operations) = &found.patch else { return Ok(round > 0) };
        if dry_run {
            return Ok(true);
        }
        let patch = write::json_patch(operations).with_context(|| format!("the patch of node {name}"))?;
        match api.patch(name, &act::params(), &patch).await.map_err(write::classify) {
            Ok(_) => return Ok(true),
            // Somebody else has changed taints or records meanwhile.
            Err(write::Error::Conflict | write::Error::Invalid(_)) => match api.get_opt(name).await {
                Ok(Some(now)) => observer.learn(now),
                Ok(None) => return Ok(false),
                Err(error) => return Err(error).with_context(|| format!("reading node {name}")),
            },
            Err(error) => return Err(error).with_context(|| format!("patching node {name}")),
        }
    }
    bail!("node {name} changes faster than it can be cleaned up: run it again")
}

fn tell(name: &str, found: &Leftovers, prefix: &str) {
    for taint in &found.taints {
        say(format_args!("{prefix}node {name}: taint {taint} removed"));
    }
    for taint in &found.adopted {
        say(format_args!(
            "{prefix}node {name}: taint {taint} left: it was there before the operator; kubectl taint node {name} {taint}- removes it"
        ));
    }
    for taint in &found.unknown {
        say(format_args!(
            "{prefix}node {name}: taint {taint} left: a record says that a gate put it there, and no gate that is there is known to have had it; \
             if one had, --taint={taint} removes it"
        ));
    }
    for mark in &found.unknown_marks {
        say(format_args!(
            "{prefix}node {name}: {mark} left: it is recorded as a resource's, and no resource may hold a node by it; \
             if the operator had --allowed-detach-keys for it, give the same here"
        ));
    }
    for annotation in &found.annotations {
        say(format_args!("{prefix}node {name}: annotation {annotation} removed"));
    }
    for restored in &found.restored {
        say(format_args!("{prefix}node {name}: {restored} without what a resource that is gone has written"));
    }
    for label in &found.labels {
        say(format_args!("{prefix}node {name}: label {label} removed"));
    }
}
