//! Keeps exactly the admission policies that gates of pods want, and finds out whether the API server has such policies at all.

use crate::write::{self, Error};
use crds::names;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use planner::pod_gates::{Gate, admission::policy};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// Field manager of policies and bindings.
const FIELD_MANAGER: &str = "ingress-daemonset-operator/pod-admission";
/// How often it is looked whether somebody else changed or removed a policy, or the API server was replaced by one that has them: no
/// watch tells of a kind that is not there yet.
const RESYNC: Duration = Duration::from_mins(1);
/// First and longest wait after a failed round, doubled in between: nothing tells when a server that refused would not.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The two kinds with their plurals; a binding goes before its policy, and comes after it.
const KINDS: [(&str, &str); 2] =
    [("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"), ("MutatingAdmissionPolicy", "mutatingadmissionpolicies")];

/// All gates, as admission sees them.
#[derive(Clone, Debug, Default, PartialEq)]
struct DesiredPolicies {
    gates: Vec<Arc<Gate>>,
    /// There may be gates that cannot be read: what is theirs stays.
    incomplete: bool,
}

/// What is known of policies in the cluster.
#[derive(Debug, Default)]
struct Known {
    /// Nothing before the first list.
    has_policies: Option<bool>,
    /// Why a gate's policy is not there, by UID; nothing where it is.
    kept: BTreeMap<String, Option<String>>,
    /// Something of it has changed that conditions tell.
    news: bool,
}

/// Between the loop, which says what is wanted, and [`PolicySync`], which says what is there.
#[derive(Debug)]
pub struct Admission {
    wish: watch::Sender<Option<DesiredPolicies>>,
    known: Mutex<Known>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { wish: watch::Sender::new(None), known: Mutex::default() }
    }
}

impl Admission {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is wanted. `incomplete`: there may be gates that cannot be read.
    pub fn want(&self, gates: Vec<Arc<Gate>>, incomplete: bool) {
        let wish = Some(DesiredPolicies { gates, incomplete });
        self.wish.send_if_modified(|known| {
            let changed = *known != wish;
            if changed {
                *known = wish;
            }
            changed
        });
    }

    /// Whether conditions have changed since this was asked last.
    pub fn has_news(&self) -> bool {
        std::mem::take(&mut self.known().news)
    }

    /// For condition `AdmissionActive`: a word, whether pods get the gate, and a sentence; nothing where the gate asks for nothing.
    pub fn condition(&self, gate: &Gate) -> Option<(&'static str, bool, String)> {
        if !gate.spec.injects() {
            return None;
        }
        let known = self.known();
        let (namespace, label, value) = (&gate.namespace, names::INJECT_LABEL, names::INJECT_LABEL_VALUE);
        Some(match (known.has_policies, known.kept.get(&gate.uid)) {
            (Some(false), _) => (
                "NoPolicies",
                false,
                "the API server has no MutatingAdmissionPolicies (admissionregistration.k8s.io/v1, Kubernetes 1.36), or the operator must not list them: write the readiness gate into the templates of pods".into(),
            ),
            (_, Some(None)) => (
                "Policy",
                true,
                format!("a MutatingAdmissionPolicy gives the readiness gate to selected pods as they are created, where Namespace {namespace} has the label {label}: {value}"),
            ),
            (_, Some(Some(why))) => ("PolicyRefused", false, format!("the policy was refused: {why}")),
            (_, None) => ("PolicyPending", false, "the policy is being made".into()),
        })
    }
}

/// An object that was applied or found.
#[derive(Debug, Default)]
struct Held {
    uid: String,
    /// What it was made from; nothing when somebody else wrote it last, or another operator.
    body: Option<Value>,
    version: Option<String>,
}

/// Makes the cluster have what is wanted, and nothing else of ours.
pub struct PolicySync {
    client: Client,
    admission: Arc<Admission>,
    wishes: watch::Receiver<Option<DesiredPolicies>>,
    /// By plural and name.
    held: BTreeMap<(&'static str, String), Held>,
}

impl PolicySync {
    /// Nothing is known yet.
    pub fn new(client: Client, admission: Arc<Admission>) -> Self {
        let wishes = admission.wish.subscribe();
        Self { client, admission, wishes, held: BTreeMap::new() }
    }

    /// Works for ever.
    pub async fn run(mut self) {
        let (mut failures, mut list) = (0_u32, true);
        loop {
            let done = self.round(list).await;
            let wait = if done { RESYNC } else { BACKOFF.0.saturating_mul(1 << failures.min(10)).min(BACKOFF.1) };
            failures = if done { 0 } else { failures.saturating_add(1) };
            list = tokio::select! {
                changed = self.wishes.changed() => match changed {
                    Ok(()) => !done,
                    Err(_) => return, // nobody can wish anything any more
                },
                () = tokio::time::sleep(wait) => true,
            };
        }
    }

    fn api(&self, (kind, plural): (&str, &str)) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind), plural);
        Api::all_with(self.client.clone(), &resource)
    }

    /// One look, and what follows from it; whether all of it went well.
    async fn round(&mut self, list: bool) -> bool {
        if list && !self.list().await {
            return false;
        }
        let Some(wish) = self.wishes.borrow_and_update().clone() else { return true };
        if self.admission.known().has_policies != Some(true) {
            return true;
        }
        let (mut kept, mut names) = (BTreeMap::new(), BTreeSet::new());
        for gate in &wish.gates {
            let Some(policy) = policy(gate) else { continue };
            let mut refused = None;
            for (kind, body) in [(KINDS[1], &policy.policy), (KINDS[0], &policy.binding)] {
                if let Err(error) = self.keep(kind, &policy.name, &gate.uid, body).await {
                    tracing::warn!(policy = policy.name, %error, "admission policy not written; trying again");
                    refused = Some(error.to_string());
                    break;
                }
            }
            kept.insert(gate.uid.clone(), refused);
            names.insert(policy.name);
        }
        let mut done = kept.values().all(Option::is_none);
        for kind in KINDS {
            done &= self.remove_others(kind, &names, &wish).await;
        }
        let mut known = self.admission.known();
        known.news |= known.kept != kept;
        known.kept = kept;
        done
    }

    /// What is there of ours. Whether that could be found out.
    async fn list(&mut self) -> bool {
        let mut found = BTreeMap::new();
        let mut has_policies = true;
        for kind in KINDS {
            match self.api(kind).list(&ListParams::default().labels(names::POD_GATE_LABEL)).await {
                Ok(listed) => found.extend(listed.items.into_iter().map(|object| {
                    let uid = object.labels().get(names::POD_GATE_LABEL).cloned().unwrap_or_default();
                    ((kind.1, object.name_any()), Held { uid, body: None, version: object.metadata.resource_version })
                })),
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => has_policies = false,
                Err(error) => {
                    tracing::warn!(%error, "admission policies cannot be listed; trying again");
                    return false;
                }
            }
        }
        for (key, held) in &mut found {
            // As it was left: it need not be written again.
            let before = self.held.remove(key).filter(|before| before.version == held.version && before.version.is_some());
            held.body = before.and_then(|before| before.body);
        }
        self.held = found;
        let mut known = self.admission.known();
        known.news |= known.has_policies != Some(has_policies);
        known.has_policies = Some(has_policies);
        true
    }

    /// Applies what differs from what was last applied.
    async fn keep(&mut self, kind: (&'static str, &'static str), name: &str, uid: &str, body: &Value) -> kube::Result<()> {
        let key = (kind.1, name.to_owned());
        if self.held.get(&key).is_some_and(|held| held.body.as_ref() == Some(body)) {
            return Ok(());
        }
        let applied = self.api(kind).patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(body)).await?;
        self.held.insert(key, Held { uid: uid.to_owned(), body: Some(body.clone()), version: applied.metadata.resource_version });
        Ok(())
    }

    /// Deletes what nobody wants, unless its gate may be one that cannot be read. Whether it is all gone.
    async fn remove_others(&mut self, kind: (&'static str, &'static str), names: &BTreeSet<String>, wish: &DesiredPolicies) -> bool {
        let spared = |held: &Held| wish.incomplete && !wish.gates.iter().any(|gate| gate.uid == held.uid);
        let others: Vec<_> = self
            .held
            .iter()
            .filter(|((plural, name), held)| *plural == kind.1 && !names.contains(name) && !spared(held))
            .map(|(key, _)| key.clone())
            .collect();
        let mut done = true;
        for key in others {
            match self.api(kind).delete(&key.1, &DeleteParams::default()).await.map_err(write::classify) {
                Ok(_) | Err(Error::Conflict) => drop(self.held.remove(&key)),
                Err(error) => {
                    tracing::warn!(kind = kind.0, name = key.1, %error, "not deleted; trying again");
                    done = false;
                }
            }
        }
        done
    }
}
