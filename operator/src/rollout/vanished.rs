//! What resources that are gone have left on Nodes. Their passes take it away, unless somebody removes the finalizer first: no pass knows
//! them any more then, and whoever may edit resources could fill all Nodes with labels and entries.

use crate::{
    pages,
    watch::{Named, Observer, Partial, SMALL_PAGE},
    write::{Error, classify, json_patch},
};
use crds::names;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PatchParams},
};
use planner::{
    node_gates::{
        World,
        leftovers::{GatesAndResources, Leftovers, MISSING_FOR, gone, missing, of_gone},
    },
    spec::node_rights::KeyPattern,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Between two looks at all Nodes.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// Nodes that are written to after one look.
const NODES: usize = 10;
/// Until the next look where these were not all.
const PAUSE: Duration = Duration::from_secs(10);

/// Removes it for ever: for the replica that leads.
pub async fn clean_nodes(client: Client, observer: Arc<Observer>) {
    let mut vanished = VanishedResources::new(client, observer);
    loop {
        let pause = if vanished.look().await { PAUSE } else { LOOK_EVERY };
        tokio::time::sleep(pause).await;
    }
}

/// Resources that are gone, by the first 8 characters of their UID.
struct VanishedResources {
    client: Client,
    observer: Arc<Observer>,
    /// What may be taken from Nodes.
    known: GatesAndResources,
    began: Instant,
    /// Those that Nodes name and that are missing, and how long after the beginning each was missed first.
    missing: BTreeMap<String, Duration>,
    /// Those that count as gone and that a list did not have, either.
    confirmed: BTreeSet<String>,
    /// When that was: after so long they are listed again, for a database may be restored to an earlier state.
    confirmed_at: Duration,
    /// The last Node that was written to. Those after it come first, so that some that refuse the patch hold up no other.
    last: String,
}

impl VanishedResources {
    fn new(client: Client, observer: Arc<Observer>) -> Self {
        let mut rights = observer.node_rights().clone();
        // A kubelet may forge an entry on its own Node. Of a right to every key, only the keys of live resources are believed.
        rights.detach_keys.retain(|right| right.keys != KeyPattern::All);
        let world = World { rights, ..World::default() };
        Self {
            client,
            observer,
            known: GatesAndResources { world, ..GatesAndResources::default() },
            began: Instant::now(),
            missing: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            confirmed_at: Duration::ZERO,
            last: String::new(),
        }
    }

    /// Looks at all Nodes, and writes to some; whether there may be more to write.
    async fn look(&mut self) -> bool {
        let now = self.began.elapsed();
        let nodes = self.observer.nodes();
        let Some(present) = self.observer.present() else {
            self.missing.clear();
            return false;
        };
        self.missing = missing(nodes.values().map(AsRef::as_ref), &present, &self.missing, now);
        if let Err(error) = self.confirm(gone(&self.missing, now)).await {
            tracing::warn!(%error, "IngressDaemonSets could not be listed; leftovers of deleted ones stay on Nodes");
            return false;
        }
        if self.confirmed.is_empty() {
            return false;
        }
        let after = nodes.range::<str, _>((Bound::Excluded(self.last.as_str()), Bound::Unbounded));
        let all = after.chain(nodes.range::<str, _>((Bound::Unbounded, Bound::Included(self.last.as_str()))));
        let found = all.map(|(name, node)| (name, of_gone(node, &self.confirmed, &self.known)));
        let found: Vec<_> = found.filter(|(_, found)| found.patch.is_some()).take(NODES).collect();
        let mut written = 0_usize;
        for (name, found) in found {
            name.clone_into(&mut self.last);
            written += usize::from(self.write(name, &found).await);
        }
        written == NODES
    }

    /// Lists resources if some of these have not been confirmed: a watch that fails for long shows no new resource, to which another
    /// replica may have given nodes meanwhile.
    async fn confirm(&mut self, mut gone: BTreeSet<String>) -> kube::Result<()> {
        let now = self.began.elapsed();
        if !gone.is_subset(&self.confirmed) || !gone.is_empty() && now.saturating_sub(self.confirmed_at) >= MISSING_FOR {
            let take = |resource: Named| {
                let uid = resource.uid().unwrap_or_default();
                gone.remove(names::uid8(&uid));
                // Its five minutes start again, so that resources are not listed at each look.
                self.missing.remove(names::uid8(&uid));
            };
            pages::pages(&Api::all(self.client.clone()), ListParams::default(), SMALL_PAGE, take).await?;
            self.confirmed_at = now;
        }
        self.confirmed = gone;
        Ok(())
    }

    /// Whether it took effect. The patch tests what was seen: where somebody else was faster, the next look decides.
    async fn write(&self, name: &str, found: &Leftovers) -> bool {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        let patched = match found.patch.as_ref().map(json_patch).transpose() {
            Ok(Some(patch)) => api.patch(name, &PatchParams::default(), &patch).await.map_err(classify),
            Ok(None) => return false,
            Err(error) => Err(error),
        };
        match patched {
            Ok(node) => {
                let (labels, annotations) = (found.labels.len(), &found.annotations);
                tracing::info!(node = name, labels, ?annotations, restored = ?found.restored, "removed leftovers of deleted resources");
                self.observer.learn(node.0);
                true
            }
            Err(Error::Conflict) => false,
            Err(error) => {
                tracing::warn!(node = name, %error, "leftovers of deleted resources could not be removed; trying again");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
