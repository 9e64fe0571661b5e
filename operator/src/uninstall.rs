//! Takes from every Node what gates, and resources that are gone, have left there, for an operator that is uninstalled.

use crate::{
    args::CleanupNodes,
    gates_shared::definitions,
    leader::holder,
    node_gates::act,
    pages, remaining,
    watch::{GuardedResource, Observer, PAGE, Partial},
    write,
};
use anyhow::{Context as _, bail};
use crds::{NodeReadinessGate, PodReadinessGate, names};
use k8s_openapi::api::{
    admissionregistration::{
        v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration},
        v1beta1,
    },
    core::v1::Node,
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::{ClusterResourceScope, DeserializeGuard, PartialObjectMeta},
};
use planner::node_gates::{
    World,
    leftovers::{GatesAndResources, Leftovers, leftovers},
};
use serde::de::DeserializeOwned;
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

/// A kind without namespaces.
trait ClusterKind: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug {}
impl<K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug> ClusterKind for K {}

/// Cleans up, or says what it would do.
struct Cleaner<'c> {
    client: &'c Client,
    dry_run: bool,
    /// What each line begins with.
    prefix: &'static str,
}

/// Cleans up, and prints what it does.
pub async fn run(client: &Client, options: &CleanupNodes) -> anyhow::Result<()> {
    if let Some(holder) = holder(client, &options.lease_namespace, &options.lease_name).await? {
        let lease = format!("{}/{}", options.lease_namespace, options.lease_name);
        if !options.force && !options.dry_run {
            bail!(
                "stop the operator first, or pass --force: {holder} holds the lease {lease} and would restore the taints and admission policies of its gates"
            );
        }
        say(format_args!("{holder} holds the lease {lease}: what it has a gate for may come back"));
    }
    let prefix = if options.dry_run { "would: " } else { "" };
    let cleaner = Cleaner { client, dry_run: options.dry_run, prefix };
    // New nodes would get taints from them, and new pods conditions, that nobody takes off or sets any more.
    for label in [names::GATE_LABEL, names::POD_GATE_LABEL] {
        cleaner.delete(cleaner.list::<MutatingAdmissionPolicyBinding>(label).await?).await?;
        cleaner.delete(cleaner.list::<MutatingAdmissionPolicy>(label).await?).await?;
        // Of an API server that has the first version, too, nothing is left now.
        cleaner.delete(cleaner.list::<v1beta1::MutatingAdmissionPolicyBinding>(label).await?).await?;
        cleaner.delete(cleaner.list::<v1beta1::MutatingAdmissionPolicy>(label).await?).await?;
    }
    for gate in remaining::names::<PodReadinessGate>(client).await.map_err(anyhow::Error::msg).context("listing PodReadinessGates")? {
        say(format_args!("PodReadinessGate {gate} is there: new pods get its conditions from their templates alone, and nobody sets them"));
    }
    let webhook = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_metadata_opt(WEBHOOK).await;
    cleaner.delete(webhook.with_context(|| format!("reading MutatingWebhookConfiguration {WEBHOOK}"))?).await?;
    let gates = definitions::list(client).await?;
    cleaner.release_gates(&gates).await?;
    let resources = resources(client).await?;
    let scope = Scope { present: present(&resources), known: known(&gates, &resources, options) };
    // Rights of health checkers of resources that are gone.
    let mut bindings = cleaner.list::<ClusterRoleBinding>(names::RESOURCE_LABEL).await?;
    bindings.retain(|binding| !binding.labels().get(names::RESOURCE_LABEL).is_some_and(|of| scope.present.contains(of)));
    cleaner.delete(bindings).await?;
    let (mut changed, nodes) = cleaner.clean_all(&scope).await?;
    if !options.dry_run {
        // What came before the last API server knew that the policies are gone.
        tokio::time::sleep(POLICIES_LAST).await;
        changed += cleaner.clean_all(&scope).await?.0;
    }
    say(format_args!("{prefix}{changed} of {nodes} nodes cleaned up"));
    Ok(())
}

/// Prints a line. A reader that has seen enough, such as `head`, is no reason to stop half-way.
fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

impl Cleaner<'_> {
    /// Objects of a kind. A server that does not know the kind has none.
    async fn list<K: ClusterKind>(&self, labels: &str) -> anyhow::Result<Vec<PartialObjectMeta<K>>> {
        match Api::<K>::all(self.client.clone()).list_metadata(&ListParams::default().labels(labels)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            result => Ok(result.with_context(|| format!("listing {}", K::plural(&())))?.items),
        }
    }

    async fn delete<K: ClusterKind>(&self, found: impl IntoIterator<Item = PartialObjectMeta<K>>) -> anyhow::Result<()> {
        let api: Api<K> = Api::all(self.client.clone());
        for object in found {
            let named = format!("{} {}", K::kind(&()), object.name_any());
            say(format_args!("{}{named}: deleted", self.prefix));
            if !self.dry_run {
                let deleted = api.delete(&object.name_any(), &DeleteParams::default()).await.map(drop).or_else(is_gone);
                deleted.with_context(|| format!("deleting {named}"))?;
            }
        }
        Ok(())
    }

    /// Gates could not be deleted any more, once nobody is there to take their finalizer off.
    async fn release_gates(&self, gates: &[DeserializeGuard<NodeReadinessGate>]) -> anyhow::Result<()> {
        let api: Api<NodeReadinessGate> = Api::all(self.client.clone());
        for gate in gates.iter().filter(|gate| gate.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER)) {
            let name = gate.name_any();
            say(format_args!("{}NodeReadinessGate {name}: finalizer removed", self.prefix));
            if self.dry_run {
                continue;
            }
            let left: Vec<_> = gate.finalizers().iter().filter(|finalizer| *finalizer != names::FINALIZER).cloned().collect();
            let body = act::finalizers(&left, gate.meta().resource_version.as_deref());
            api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(body))
                .await
                .with_context(|| format!("removing the finalizer of NodeReadinessGate {name}"))?;
        }
        Ok(())
    }

    /// Cleans up every Node that there is now; how many had something of ours, and how many there are.
    async fn clean_all(&self, scope: &Scope) -> anyhow::Result<(usize, usize)> {
        let observer = Observer::default();
        let nodes = pages::all(&Api::<Partial<Node>>::all(self.client.clone()), ListParams::default(), PAGE).await;
        observer.take(nodes.context("listing Nodes")?);
        let mut cleaned = 0_usize;
        for name in observer.nodes().keys() {
            cleaned += usize::from(self.clean(&observer, name, scope).await?);
        }
        Ok((cleaned, observer.nodes().len()))
    }

    /// Whether there was something to take away.
    async fn clean(&self, observer: &Observer, name: &str, scope: &Scope) -> anyhow::Result<bool> {
        let api: Api<Node> = Api::all(self.client.clone());
        for round in 0..ROUNDS {
            let Some(node) = observer.node(name) else { return Ok(false) };
            let found = leftovers(&node, &scope.present, &scope.known);
            if round == 0 {
                tell(name, &found, self.prefix);
            }
            let Some(operations) = &found.patch else { return Ok(round > 0) };
            if self.dry_run {
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
}

fn is_gone(error: kube::Error) -> kube::Result<()> {
    match error {
        kube::Error::Api(status) if status.code == 404 => Ok(()),
        error => Err(error),
    }
}

/// Resources that are there.
async fn resources(client: &Client) -> anyhow::Result<Vec<GuardedResource>> {
    match pages::all(&Api::<GuardedResource>::all(client.clone()), ListParams::default(), PAGE).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        result => result.context("listing IngressDaemonSets"),
    }
}

/// The same by the first 8 characters of their UID. What is theirs stays, which is said.
fn present(resources: &[GuardedResource]) -> BTreeSet<String> {
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
fn known(gates: &[DeserializeGuard<NodeReadinessGate>], resources: &[GuardedResource], options: &CleanupNodes) -> GatesAndResources {
    let mut world = World { rights: options.node_rights(), ..World::default() };
    let gates = gates.iter().filter_map(|gate| gate.0.as_ref().ok());
    world.gates = gates.clone().map(definitions::gate).map(|gate| (gate.uid.clone(), Arc::new(gate))).collect();
    let of_gates = gates.filter_map(|gate| Some((gate.uid()?, gate.status.clone()?.taints)));
    let resources = resources.iter().filter_map(|resource| resource.0.as_ref().ok());
    let of_resources = resources.filter_map(definitions::said_of_implied).map(|(uid, said)| (uid, said.taints));
    world.remember_taints(of_gates.chain(of_resources), |_| true);
    GatesAndResources { world, named: options.taint.clone() }
}

fn tell(name: &str, found: &Leftovers, prefix: &str) {
    let say = |what: String| say(format_args!("{prefix}node {name}: {what}"));
    for taint in &found.taints {
        say(format!("taint {taint} removed"));
    }
    for taint in &found.adopted {
        say(format!("taint {taint} left: it was there before the operator; kubectl taint node {name} {taint}- removes it"));
    }
    for taint in &found.unknown {
        let why = "a record says that a gate put it there, and no gate that is there is known to have had it";
        say(format!("taint {taint} left: {why}; if one had, --taint={taint} removes it"));
    }
    for mark in &found.unknown_marks {
        let why = "it is recorded as a resource's, and no resource may hold a node by it";
        say(format!("{mark} left: {why}; if the operator had --allowed-detach-keys for it, give the same here"));
    }
    for annotation in &found.annotations {
        say(format!("annotation {annotation} removed"));
    }
    for restored in &found.restored {
        say(format!("removed from {restored} what a deleted resource wrote"));
    }
    for label in &found.labels {
        say(format!("label {label} removed"));
    }
}
