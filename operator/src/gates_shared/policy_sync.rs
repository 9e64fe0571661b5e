//! Admission policies of gates with their bindings: exactly those that are wanted, and no others of ours.

use crate::{
    backoff,
    write::{self, Error},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use planner::gates_shared::{accepted::Accepted, policy_objects::AdmissionPolicy};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// How often it is looked whether somebody else changed or removed a policy, or the API server was replaced by one that has them. A
/// watch of either would be held open for years for what happens at an upgrade, and could not tell of a kind that does not exist yet.
const RESYNC: Duration = Duration::from_mins(1);
/// First and longest wait after a failed round, doubled in between: nothing tells when a server that refused would not.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The two kinds with their plurals; a binding goes before its policy, and comes after it.
const BINDING: (&str, &str) = ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings");
const POLICY: (&str, &str) = ("MutatingAdmissionPolicy", "mutatingadmissionpolicies");

/// API group of both.
const GROUP: &str = "admissionregistration.k8s.io";
/// Versions that an API server may have of both kinds, the best one first: since Kubernetes 1.36 the first, since 1.34 the second, where
/// an administrator has switched it on.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Versions of the policies that an operator may use.
pub type Versions = &'static [&'static str];

/// All versions, or none: with `--admission-policies=false` the operator acts as where the API server has no policies.
pub const fn versions(used: bool) -> Versions {
    if used { &VERSIONS } else { &[] }
}

/// Says what is wanted, where that is something else than before.
pub fn want<T: PartialEq>(wanted: &watch::Sender<Option<T>>, now: T) {
    wanted.send_if_modified(|known| {
        let changed = known.as_ref() != Some(&now);
        *known = Some(now);
        changed
    });
}

/// What the API server refused when it was tried last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refused {
    /// Why a gate's policy is not there, or is still there, by UID.
    pub policies: BTreeMap<String, String>,
    /// Why the entry of the webhook is not as it is wanted.
    pub webhook: Option<String>,
}

/// What conditions tell of policies and of the entry of the webhook.
#[derive(Debug, Default)]
pub struct KnownAdmission {
    /// See [`Refused`].
    pub refused: Refused,
    /// What is as it was written, and when.
    pub accepted: Accepted,
    /// Something has changed that conditions tell.
    pub news: bool,
    /// When that was asked last.
    asked: Option<std::time::Instant>,
}

impl KnownAdmission {
    /// Takes in what a round has found. Whether conditions tell something else of it.
    pub fn replace(&mut self, refused: Refused, accepted: Accepted) -> bool {
        let changed = (&self.refused, &self.accepted) != (&refused, &accepted);
        self.news |= changed;
        (self.refused, self.accepted) = (refused, accepted);
        changed
    }

    /// Whether conditions have changed since this was asked last, if only by the time that has gone by.
    pub fn has_news(&mut self) -> bool {
        let now = Instant::now().into_std();
        let before = self.asked.replace(now);
        std::mem::take(&mut self.news) || self.accepted.has_settled(before, now)
    }
}

/// How long ago that was.
pub fn age(at: std::time::Instant) -> Duration {
    Instant::now().into_std().saturating_duration_since(at)
}

/// Work that is done in rounds.
pub trait Rounds {
    /// One round, with a look at existing policies or without; whether all of it went well.
    async fn round(&mut self, list: bool) -> bool;
    /// Returns when something else is wanted; `false` when nobody can want anything any more.
    async fn changed(&mut self) -> bool;
}

/// A round whenever something else is wanted, and once in a while.
pub async fn run(mut work: impl Rounds) {
    let (mut failures, mut list) = (0, true);
    loop {
        let done = work.round(list).await;
        let wait = if done { RESYNC } else { backoff::pause(BACKOFF, failures) };
        failures = if done { 0 } else { failures.saturating_add(1) };
        list = tokio::select! {
            changed = work.changed() => if changed { !done } else { return },
            () = tokio::time::sleep(wait) => true,
        };
    }
}

/// An object that was applied or found.
#[derive(Debug, Default)]
struct AppliedPolicy {
    uid: String,
    /// What it was made from, and when; nothing when somebody else wrote it last, or another operator.
    written: Option<(Value, Instant)>,
    version: Option<String>,
}

/// Whether an API server has both kinds in a version.
enum Served {
    /// Existing policies of ours, by plural and name.
    Yes(BTreeMap<(&'static str, String), AppliedPolicy>),
    No,
    /// They must not be listed: that is so in each version.
    Refused,
}

/// Policies of one kind of gates.
pub struct PolicySync {
    client: Client,
    /// With the UID of the gate.
    label: &'static str,
    field_manager: &'static str,
    /// By plural and name.
    held: BTreeMap<(&'static str, String), AppliedPolicy>,
    /// The version that the API server has.
    version: &'static str,
    /// Somebody was told that they must not be listed.
    told: bool,
    /// Those that may be used, the best one first.
    versions: Versions,
}

impl PolicySync {
    /// Nothing is known yet.
    pub fn new(client: Client, label: &'static str, field_manager: &'static str, versions: Versions) -> Self {
        Self { client, label, field_manager, held: BTreeMap::new(), version: VERSIONS[0], told: false, versions }
    }

    fn api(&self, (kind, plural): (&str, &str)) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, self.version, kind), plural);
        Api::all_with(self.client.clone(), &resource)
    }

    /// Finds the existing policies of ours, and whether there are such kinds at all; `None` if it could not find out.
    pub async fn list(&mut self) -> Option<bool> {
        for version in self.versions {
            self.version = version;
            match self.list_version().await {
                Ok(Served::Yes(found)) => {
                    self.found(found);
                    return Some(true);
                }
                Ok(Served::No) => {}
                Ok(Served::Refused) => break,
                Err(error) => {
                    tracing::warn!(%error, "admission policies cannot be listed; trying again");
                    return None;
                }
            }
        }
        self.held.clear();
        Some(false)
    }

    async fn list_version(&mut self) -> kube::Result<Served> {
        let mut served = Served::Yes(BTreeMap::new());
        // Both are asked for: each right that is missing is told of.
        for kind in [BINDING, POLICY] {
            match self.api(kind).list(&ListParams::default().labels(self.label)).await {
                Ok(listed) => {
                    let Served::Yes(found) = &mut served else { continue };
                    found.extend(listed.items.into_iter().map(|object| {
                        let uid = object.labels().get(self.label).cloned().unwrap_or_default();
                        ((kind.1, object.name_any()), AppliedPolicy { uid, written: None, version: object.metadata.resource_version })
                    }));
                }
                Err(kube::Error::Api(status)) if status.code == 404 => served = Served::No,
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    if !std::mem::replace(&mut self.told, true) {
                        let message = status.message;
                        tracing::warn!(
                            message,
                            "no admission policies without the right to list them: install the ClusterRole of this release again"
                        );
                    }
                    served = Served::Refused;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(served)
    }

    /// Remembers which policies exist.
    fn found(&mut self, mut found: BTreeMap<(&'static str, String), AppliedPolicy>) {
        for (key, held) in &mut found {
            // As it was left: it need not be written again.
            let before = self.held.remove(key).filter(|before| before.version == held.version && before.version.is_some());
            held.written = before.and_then(|before| before.written);
        }
        self.held = found;
    }

    /// Applies what differs from what was last applied, and deletes what nobody wants, unless its gate may be one that cannot be read, as
    /// `spares` says. What was refused, by UID of the gate.
    pub async fn sync(&mut self, wanted: &[(String, AdmissionPolicy)], spares: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        let mut refused = BTreeMap::new();
        for (uid, policy) in wanted {
            if let Err(error) = self.apply(uid, policy).await {
                tracing::warn!(policy = policy.name, %error, "admission policy not written; trying again");
                refused.insert(uid.clone(), error.to_string());
            }
        }
        let names: BTreeSet<_> = wanted.iter().map(|(_, policy)| policy.name.as_str()).collect();
        let is_other = |name: &str, held: &AppliedPolicy| !names.contains(name) && !spares(&held.uid);
        let others = self.held.iter().filter(|((_, name), held)| is_other(name, held)).map(|(key, held)| (key.clone(), held.uid.clone()));
        let others: Vec<_> = others.collect();
        for kind in [BINDING, POLICY] {
            for ((plural, name), uid) in others.iter().filter(|((plural, _), _)| *plural == kind.1) {
                match self.api(kind).delete(name, &DeleteParams::default()).await.map_err(write::classify) {
                    Ok(_) | Err(Error::Conflict) => drop(self.held.remove(&(*plural, name.clone()))),
                    Err(error) => {
                        tracing::warn!(kind = kind.0, name, %error, "not deleted; trying again");
                        refused.insert(uid.clone(), format!("{} {name}: {error}", kind.0));
                    }
                }
            }
        }
        refused
    }

    /// The policy before the binding that puts it in force.
    async fn apply(&mut self, uid: &str, policy: &AdmissionPolicy) -> kube::Result<()> {
        for (kind, body) in [(POLICY, &policy.policy), (BINDING, &policy.binding)] {
            let key = (kind.1, policy.name.clone());
            let is_written = |held: &AppliedPolicy| held.written.as_ref().is_some_and(|(written, _)| written == body);
            if self.held.get(&key).is_some_and(is_written) {
                continue;
            }
            let params = PatchParams::apply(self.field_manager).force();
            // All versions have the same fields.
            let mut versioned = body.clone();
            versioned["apiVersion"] = format!("{GROUP}/{}", self.version).into();
            let applied = self.api(kind).patch(&policy.name, &params, &Patch::Apply(&versioned)).await?;
            let written = Some((body.clone(), Instant::now()));
            self.held.insert(key, AppliedPolicy { uid: uid.to_owned(), written, version: applied.metadata.resource_version });
        }
        Ok(())
    }

    /// UIDs of gates that something is there of.
    pub fn present(&self) -> BTreeSet<String> {
        self.held.values().map(|held| held.uid.clone()).collect()
    }

    /// Policies that are as they were written, with their bindings, by name, and when the last of the two was written.
    pub fn written(&self) -> BTreeMap<String, (AdmissionPolicy, std::time::Instant)> {
        let written = |kind: (&str, &'static str), name: &String| self.held.get(&(kind.1, name.clone()))?.written.as_ref();
        let names = self.held.keys().filter(|(plural, _)| *plural == POLICY.1).map(|(_, name)| name);
        let both = names.filter_map(|name| {
            let ((policy, one), (binding, other)) = written(POLICY, name).zip(written(BINDING, name))?;
            let policy = AdmissionPolicy { name: name.clone(), policy: policy.clone(), binding: binding.clone() };
            Some((name.clone(), (policy, one.max(other).into_std())))
        });
        both.collect()
    }
}
