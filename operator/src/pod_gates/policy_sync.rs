//! Keeps exactly the admission policies that gates of pods want, and finds out whether the API server has such policies at all.

use crate::gates_shared::policy_sync::{self, PolicySync, Rounds, Versions};
use crds::names;
use kube::Client;
use parking_lot::Mutex;
use planner::pod_gates::{Gate, policy_objects::policy};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;

/// Field manager of policies and bindings.
const FIELD_MANAGER: &str = "ingress-daemonset-operator/pod-admission";

/// All gates, as admission sees them.
#[derive(Clone, Debug, Default, PartialEq)]
struct DesiredPolicies {
    gates: Vec<Arc<Gate>>,
    /// There may be gates that cannot be read: what is theirs stays.
    incomplete: bool,
}

/// What is known of policies in the cluster.
#[derive(Debug, Default)]
struct PolicyState {
    /// Nothing before the first list.
    has_policies: Option<bool>,
    /// Why a gate's policy is not there, by UID; nothing where it is.
    kept: BTreeMap<String, Option<String>>,
    /// Something of it has changed that conditions tell.
    news: bool,
}

/// Between the loop, which says what is wanted, and [`PodPolicySync`], which says what is there.
#[derive(Debug)]
pub struct PolicyHandle {
    wish: watch::Sender<Option<DesiredPolicies>>,
    known: Mutex<PolicyState>,
}

impl Default for PolicyHandle {
    fn default() -> Self {
        Self { wish: watch::Sender::new(None), known: Mutex::default() }
    }
}

impl PolicyHandle {
    /// Says what is wanted. `incomplete`: there may be gates that cannot be read.
    pub fn want(&self, gates: Vec<Arc<Gate>>, incomplete: bool) {
        policy_sync::want(&self.wish, DesiredPolicies { gates, incomplete });
    }

    /// Whether conditions have changed since this was asked last.
    pub fn has_news(&self) -> bool {
        std::mem::take(&mut self.known.lock().news)
    }

    /// For condition `AdmissionActive`: a word, whether pods get the gate, and a sentence; nothing where the gate asks for nothing.
    pub fn condition(&self, gate: &Gate) -> Option<(&'static str, bool, String)> {
        if !gate.spec.injects() {
            return None;
        }
        let known = self.known.lock();
        let (namespace, label, value) = (&gate.namespace, names::INJECT_LABEL, names::INJECT_LABEL_VALUE);
        Some(match (known.has_policies, known.kept.get(&gate.uid)) {
            (Some(false), _) => (
                "NoPolicies",
                false,
                "the API server has no MutatingAdmissionPolicies (admissionregistration.k8s.io/v1 since Kubernetes 1.36, v1beta1 since 1.34 if switched on), or the operator may not list or use them: add the readiness gate to the templates of pods".into(),
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

/// Makes the cluster have what is wanted, and nothing else of ours.
pub struct PodPolicySync {
    admission: Arc<PolicyHandle>,
    wishes: watch::Receiver<Option<DesiredPolicies>>,
    policies: PolicySync,
}

impl PodPolicySync {
    /// Nothing is known yet.
    pub fn new(client: Client, admission: Arc<PolicyHandle>, versions: Versions) -> Self {
        let wishes = admission.wish.subscribe();
        Self { admission, wishes, policies: PolicySync::new(client, names::POD_GATE_LABEL, FIELD_MANAGER, versions) }
    }
}

impl Rounds for PodPolicySync {
    async fn round(&mut self, list: bool) -> bool {
        if list {
            let Some(has_policies) = self.policies.list().await else { return false };
            let mut known = self.admission.known.lock();
            known.news |= known.has_policies.replace(has_policies) != Some(has_policies);
        }
        let Some(wish) = self.wishes.borrow_and_update().clone() else { return true };
        if self.admission.known.lock().has_policies != Some(true) {
            return true;
        }
        let wanted: Vec<_> = wish.gates.iter().filter_map(|gate| Some((gate.uid.clone(), policy(gate)?))).collect();
        let spares = |uid: &str| wish.incomplete && !wish.gates.iter().any(|gate| gate.uid == uid);
        let refused = self.policies.sync(&wanted, spares).await;
        let kept = wanted.into_iter().map(|(uid, _)| (uid.clone(), refused.get(&uid).cloned())).collect();
        let mut known = self.admission.known.lock();
        known.news |= known.kept != kept;
        known.kept = kept;
        refused.is_empty()
    }

    async fn changed(&mut self) -> bool {
        self.wishes.changed().await.is_ok()
    }
}
