//! What is left in a cluster: of the product after its resources were deleted, which is a defect, and of a scenario, which goes.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::{IngressDaemonSet, names};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams},
    core::Status,
    discovery::{ApiGroup, Discovery, Scope, verbs},
};
use serde_json::json;

use crate::{bed::operator, eventually::eventually};

/// How long the controllers of Kubernetes, and the operator, may take to let go of what was deleted.
const GONE: Duration = Duration::from_mins(2);
/// Between two looks at what is left. It goes by itself: more looks, of up to sixty lists each, would only keep the API server from it.
const BETWEEN_LOOKS: Duration = Duration::from_millis(400);
/// Lists under way at once.
const LISTS: usize = 8;
/// Kinds that Kubernetes' own controllers, nodes and elections write all the time: by group and kind.
const OF_KUBERNETES: [(&str, &str); 5] =
    [("", "Event"), ("events.k8s.io", "Event"), ("coordination.k8s.io", "Lease"), ("", "ComponentStatus"), ("", "Node")];
/// What people write on Nodes, namespaces and pods for the operator; it is theirs to take away.
const OF_PEOPLE: [&str; 5] =
    [names::SKIP_ANNOTATION, names::RETRY_ANNOTATION, names::RELEASE_ANNOTATION, names::INJECT_LABEL, names::READINESS_HOLDS_ANNOTATION];
/// All labels, annotations and finalizers of the product begin with it, in both of its domains.
const OURS: &str = "ingressdaemonsets.mumoshu.github.";

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    group: String,
    kind: String,
    namespace: Option<String>,
    name: String,
}

impl Entry {
    fn stays(&self) -> bool {
        let of_kubernetes = OF_KUBERNETES.iter().any(|(group, kind)| self.group == *group && self.kind == *kind);
        // The bed installs the operator again where a scenario has changed it.
        of_kubernetes || self.namespace.as_deref() == Some(operator::NAMESPACE)
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.kind)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.name)
    }
}

struct Found {
    entry: Entry,
    resource: ApiResource,
    object: PartialObjectMeta<DynamicObject>,
}

impl Found {
    fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &self.entry.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    fn is_ours(&self) -> bool {
        let meta = &self.object.metadata;
        // What is made by `deploy/` stays.
        if meta.namespace.as_deref() == Some(operator::NAMESPACE) || self.entry.kind == "CustomResourceDefinition" {
            return false;
        }
        let of_people = |key: &&String| !OF_PEOPLE.contains(&key.as_str());
        let labels = meta.labels.iter().flat_map(|labels| labels.keys());
        let annotations = meta.annotations.iter().flat_map(|annotations| annotations.keys());
        let owners = meta.owner_references.iter().flatten().map(|owner| &owner.api_version);
        let finalizers = meta.finalizers.iter().flatten();
        labels.chain(annotations).filter(of_people).chain(owners).chain(finalizers).any(|word| word.contains(OURS))
    }
}

/// A kind of objects, and where they live.
type Kind = (ApiResource, Scope);

/// Everything that is there, without what comes and goes by itself: [`OF_KUBERNETES`], and the pods of the operator.
pub async fn inventory(client: &Client) -> Result<BTreeSet<Entry>> {
    let found = everything(client, &kinds(client).await?).await?;
    Ok(found.into_iter().filter(|found| !found.entry.stays()).map(|found| found.entry).collect())
}

/// All kinds of which objects can be listed.
async fn kinds(client: &Client) -> Result<Vec<Kind>> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await.context("asking which kinds there are")?;
    let kinds = discovery.groups().flat_map(ApiGroup::recommended_resources);
    let listed = kinds.filter(|(_, capabilities)| capabilities.supports_operation(verbs::LIST));
    Ok(listed.map(|(resource, capabilities)| (resource, capabilities.scope)).collect())
}

async fn everything(client: &Client, kinds: &[Kind]) -> Result<Vec<Found>> {
    let lists = kinds.iter().map(|(resource, scope)| async move {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        let list = match api.list_metadata(&ListParams::default()).await {
            // Its CustomResourceDefinition went meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            other => other.with_context(|| format!("listing every {}", resource.kind))?,
        };
        let found = list.items.into_iter().map(|object| {
            let entry = Entry {
                group: resource.group.clone(),
                kind: resource.kind.clone(),
                namespace: if *scope == Scope::Namespaced { object.namespace() } else { None },
                name: object.name_any(),
            };
            Found { entry, resource: resource.clone(), object }
        });
        Ok::<_, anyhow::Error>(found.collect())
    });
    let lists: Vec<Vec<Found>> = stream::iter(lists).buffer_unordered(LISTS).try_collect().await?;
    Ok(lists.into_iter().flatten().collect())
}

/// Waits until no object of any kind `counts`, after `act` on each that does. A look at every kind costs the API server some sixty lists:
/// between two of them only those kinds are looked at that had such an object.
async fn until_none(client: &Client, what: &str, counts: impl Fn(&Found) -> bool, act: impl AsyncFn(&Found) -> Result<()>) -> Result<()> {
    let all = kinds(client).await?;
    let mut looked_at = all.clone();
    eventually(GONE, what, async || {
        let left: Vec<_> = everything(client, &looked_at).await?.into_iter().filter(&counts).collect();
        for found in &left {
            act(found).await?;
        }
        let is_left = |(kind, _): &&Kind| left.iter().any(|found| found.resource == *kind);
        let looked = looked_at.len();
        looked_at = all.iter().filter(|kind| left.is_empty() || is_left(kind)).cloned().collect();
        let left: Vec<_> = left.iter().map(|found| found.entry.to_string()).collect();
        if !left.is_empty() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        ensure!(left.is_empty() && looked == all.len(), "left are {}", left.join(", "));
        Ok(())
    })
    .await
}

/// Deletes every resource of the product's kinds as a user would, and waits until nothing of the product is left but what `deploy/` made.
pub async fn delete_resources(client: &Client) -> Result<()> {
    for found in everything(client, &kinds(client).await?).await?.into_iter().filter(|found| found.entry.group == names::GROUP) {
        if found.entry.kind == IngressDaemonSet::kind(&()) {
            // The detacher for which it would wait has ended with the scenario.
            let alone = Patch::Merge(json!({ "spec": { "updateStrategy": { "rollingUpdate": {
                "annotateNodeToDetach": null, "waitForDetachmentByAnnotatedTimestamp": null,
            } } } }));
            let patched = found.api(client).patch(&found.entry.name, &PatchParams::default(), &alone).await;
            patched.with_context(|| format!("changing {}", found.entry))?;
        }
        delete(client, &found, &DeleteParams::default()).await?;
    }
    until_none(client, "nothing of the product is left after its resources were deleted", Found::is_ours, async |_| Ok(())).await
}

/// Deletes all that was not there at `first`, and waits until it is gone.
pub async fn delete_all_but(client: &Client, first: &BTreeSet<Entry>) -> Result<()> {
    // Pods are given no time: whoever looks at how they end has done so.
    let now = DeleteParams::default().grace_period(0);
    let is_new = |found: &Found| !found.entry.stays() && !first.contains(&found.entry);
    until_none(client, "all that a scenario made is gone", is_new, async |found| delete(client, found, &now).await).await
}

/// Deletes all Nodes but these, also those that have no machine, and what people wrote on the namespace that stays.
pub async fn delete_nodes_but(client: &Client, stay: &[&str]) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    for node in nodes.list_metadata(&ListParams::default()).await.context("listing Nodes")?.items {
        let name = node.name_any();
        if !stay.contains(&name.as_str()) {
            match nodes.delete(&name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => other.map(drop).with_context(|| format!("deleting Node {name}"))?,
            }
        }
    }
    let labels = Patch::Merge(json!({ "metadata": { "labels": { names::INJECT_LABEL: null } } }));
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.patch("default", &PatchParams::default(), &labels).await.context("the labels of namespace default").map(drop)
}

async fn delete(client: &Client, found: &Found, parameters: &DeleteParams) -> Result<()> {
    if found.object.metadata.deletion_timestamp.is_some() && found.entry.kind != "Pod" {
        return Ok(());
    }
    match found.api(client).delete(&found.entry.name, parameters).await {
        Err(kube::Error::Api(status)) if matches!(*status, Status { code: 404 | 409, .. }) => Ok(()),
        other => other.map(drop).with_context(|| format!("deleting {}", found.entry)),
    }
}
