//! What a rollout did to each node, by the history: to see that nothing took effect twice.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use crds::names;
use serde_json::Value;

use crate::auditor::{Kind, Observation};

/// What came about since a moment.
#[derive(Debug, Default)]
pub struct Effects<'a> {
    /// The template of each node's Deployment at that moment, then those that were written, in order.
    templates: BTreeMap<&'a str, Vec<&'a Value>>,
    /// Ids of the grants of each node.
    grants: BTreeMap<&'a str, BTreeSet<u64>>,
    /// Pods of the operator that were made, by revision.
    pods: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Effects<'a> {
    /// Since so many observations.
    pub fn since(history: &'a [Observation], before: usize) -> Result<Self> {
        let mut effects = Self::default();
        let mut earlier: BTreeSet<&str> = BTreeSet::new();
        for (place, Observation { kind, object, .. }) in history.iter().enumerate() {
            match kind {
                Kind::Deployment => {
                    let Some(node) = object["metadata"]["annotations"][names::NODE_NAME_ANNOTATION].as_str() else { continue };
                    let (seen, template) = (effects.templates.entry(node).or_default(), &object["spec"]["template"]);
                    if place < before {
                        seen.clear();
                    }
                    if seen.last() != Some(&template) {
                        seen.push(template);
                    }
                }
                Kind::IngressDaemonSet if place >= before => {
                    for (node, grant) in object["status"]["rollout"]["grants"].as_object().into_iter().flatten() {
                        effects.grants.entry(node).or_default().insert(grant["id"].as_u64().context("a grant without an id")?);
                    }
                }
                Kind::Pod => {
                    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                    if place < before {
                        earlier.insert(uid);
                    } else if let Some(revision) = object["metadata"]["labels"][names::REVISION_LABEL].as_str()
                        && !earlier.contains(uid)
                    {
                        effects.pods.entry(revision).or_default().insert(uid);
                    }
                }
                _ => {}
            }
        }
        Ok(effects)
    }

    /// Revisions that the node's Deployment had, that of the beginning first.
    pub fn revisions(&self, node: &str) -> Vec<&'a str> {
        self.templates.get(node).into_iter().flatten().map(|template| revision(template)).collect()
    }

    /// Ids of the node's grants.
    pub fn grants(&self, node: &str) -> usize {
        self.grants.get(node).map_or(0, BTreeSet::len)
    }

    /// Nodes that got a grant.
    pub fn granted(&self) -> Vec<&'a str> {
        self.grants.keys().copied().collect()
    }

    /// How many pods were made, by revision.
    pub fn pods(&self) -> BTreeMap<&'a str, usize> {
        self.pods.iter().map(|(revision, pods)| (*revision, pods.len())).collect()
    }

    /// One rollout came about, in which each of `nodes` got one grant, one new template and its two pods once.
    pub fn are_of_one_rollout(&self, nodes: &[&str]) -> Result<()> {
        let grants = &self.grants;
        ensure!(grants.values().all(|ids| ids.len() == 1) && grants.len() == nodes.len(), "grants were {grants:?}");
        self.changed_once(nodes)
    }

    /// The same, though a grant may have taken the place of another on its node. Watches that lag behind each other show a leader the
    /// Node as it was before beside the Deployment as it is now, and a new id is how it makes sure which of them is true.
    pub fn changed_once(&self, nodes: &[&str]) -> Result<()> {
        // The first of each is what it was before.
        let written: BTreeMap<_, _> = self.templates.iter().map(|(node, seen)| (*node, seen.len() - 1)).collect();
        let once = nodes.iter().map(|node| (*node, 1)).collect();
        ensure!(written == once, "templates were written {written:?} times");
        let newest: BTreeSet<_> = self.templates.values().filter_map(|seen| Some(revision(seen.last()?))).collect();
        let made = self.pods();
        ensure!(newest.len() == 1 && made == newest.iter().map(|revision| (*revision, 2 * nodes.len())).collect(), "pods were {made:?}");
        Ok(())
    }
}

fn revision(template: &Value) -> &str {
    template["metadata"]["labels"][names::REVISION_LABEL].as_str().unwrap_or_default()
}
