//! Keeps exactly the admission policies that gates of pods want, or the entry of the webhook in their place, and finds out whether the
//! API server has such policies at all.

use crate::gates_shared::{
    WebhookService,
    policy_sync::{self, PolicySync, Rounds, Versions},
    webhook_sync::{EntryRound, WebhookSync},
};
use crds::names;
use kube::Client;
use parking_lot::Mutex;
use planner::pod_gates::{
    Gate,
    policy_objects::{self, Means, Offers, means},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::watch;

/// Field manager of policies, bindings and the entry of the webhook.
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
    /// For which pods the webhook is asked, by the clause of each gate.
    asked: BTreeSet<String>,
    /// Why the entry of the webhook could not be written or removed.
    refused: Option<String>,
    /// Something of it has changed that conditions tell.
    news: bool,
}

/// Between the loop, which says what is wanted, and [`PodPolicySync`], which says what exists.
#[derive(Debug)]
pub struct PolicyHandle {
    wish: watch::Sender<Option<DesiredPolicies>>,
    known: Mutex<PolicyState>,
    /// Namespace of the webhook that the operator serves.
    webhook: Option<String>,
}

impl PolicyHandle {
    /// Nothing is known yet. `webhook`: the namespace of the one that the operator serves.
    pub fn new(webhook: Option<String>) -> Self {
        Self { wish: watch::Sender::new(None), known: Mutex::default(), webhook }
    }

    fn offers(&self, policies: bool) -> Offers<'_> {
        Offers { policies, webhook: self.webhook.as_deref() }
    }

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
        let Some(policies) = known.has_policies else {
            return Some(("PolicyPending", false, "the operator has not seen yet whether the API server has policies".into()));
        };
        let agreed = format!("where Namespace {} has the label {}: {}", gate.namespace, names::INJECT_LABEL, names::INJECT_LABEL_VALUE);
        Some(match means(gate, self.offers(policies)) {
            Means::Missing(reason, why) => (reason, false, why.into()),
            Means::Policy => match known.kept.get(&gate.uid) {
                Some(None) => (
                    "Policy",
                    true,
                    format!("a MutatingAdmissionPolicy gives the readiness gate to selected pods as they are created, {agreed}"),
                ),
                Some(Some(why)) => ("PolicyRefused", false, format!("the policy was refused: {why}")),
                None => ("PolicyPending", false, "the policy is being made".into()),
            },
            Means::Webhook if policy_objects::clause(gate).is_some_and(|clause| known.asked.contains(&clause)) => (
                "Webhook",
                true,
                format!(
                    "the operator's webhook gives the readiness gate to selected pods as they are created, {agreed}, and while the API server can reach the operator"
                ),
            ),
            Means::Webhook => match &known.refused {
                Some(why) => ("WebhookRefused", false, format!("the configuration of the webhook was refused: {why}")),
                None => ("WebhookPending", false, "the operator is creating the configuration of the webhook and its certificates".into()),
            },
        })
    }
}

/// Makes the cluster have what is wanted, and nothing else of ours.
pub struct PodPolicySync {
    admission: Arc<PolicyHandle>,
    wishes: watch::Receiver<Option<DesiredPolicies>>,
    policies: PolicySync,
    webhook: WebhookSync,
}

impl PodPolicySync {
    /// Nothing is known yet.
    pub fn new(client: Client, admission: Arc<PolicyHandle>, served: Option<WebhookService>, versions: Versions) -> Self {
        let wishes = admission.wish.subscribe();
        let webhook = WebhookSync::new(client.clone(), FIELD_MANAGER, policy_objects::WEBHOOK, served);
        Self { admission, wishes, policies: PolicySync::new(client, names::POD_GATE_LABEL, FIELD_MANAGER, versions), webhook }
    }

    /// Applies the entry of the webhook for these gates, or removes it where there are none: for which pods the webhook is asked now, and
    /// why not for those that it should be asked for.
    async fn keep_webhook(&mut self, gates: &[&Arc<Gate>], spared: bool) -> (BTreeSet<String>, Option<String>) {
        let all = || gates.iter().map(|gate| &***gate);
        match self.webhook.keep(|served| policy_objects::webhook(served, all()), spared).await {
            EntryRound::Refused(why) => (BTreeSet::new(), Some(why)),
            EntryRound::Same | EntryRound::Written { .. } if self.webhook.is_written() => {
                (all().filter_map(policy_objects::clause).collect(), None)
            }
            EntryRound::Same | EntryRound::Written { .. } | EntryRound::Absent => (BTreeSet::new(), None),
        }
    }
}

impl Rounds for PodPolicySync {
    async fn round(&mut self, list: bool) -> bool {
        if list {
            if !self.webhook.find().await {
                return false;
            }
            let Some(has_policies) = self.policies.list().await else { return false };
            let mut known = self.admission.known.lock();
            known.news |= known.has_policies.replace(has_policies) != Some(has_policies);
        }
        let wish = self.wishes.borrow_and_update().clone();
        let has_policies = self.admission.known.lock().has_policies;
        let Some((wish, has_policies)) = wish.zip(has_policies) else { return true };
        let admission = Arc::clone(&self.admission);
        let offers = admission.offers(has_policies);
        let by = |way: Means| wish.gates.iter().filter(move |gate| gate.injects() && means(gate, offers) == way);
        let wanted: Vec<_> = by(Means::Policy).filter_map(|gate| Some((gate.uid.clone(), policy_objects::policy(gate)?))).collect();
        let spares = |uid: &str| wish.incomplete && !wish.gates.iter().any(|gate| gate.uid == uid);
        // Where there are no policies, none of ours is known, and nothing is wanted.
        let refused = self.policies.sync(&wanted, spares).await;
        let kept: BTreeMap<_, _> = wanted.into_iter().map(|(uid, _)| (uid.clone(), refused.get(&uid).cloned())).collect();
        let by_webhook: Vec<_> = by(Means::Webhook).collect();
        let (asked, webhook_refused) = self.keep_webhook(&by_webhook, wish.incomplete).await;
        let mut known = self.admission.known.lock();
        known.news |= (&known.kept, &known.asked, &known.refused) != (&kept, &asked, &webhook_refused);
        let done = refused.is_empty() && webhook_refused.is_none();
        (known.kept, known.asked, known.refused) = (kept, asked, webhook_refused);
        done
    }

    async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.wishes.changed() => changed.is_ok(),
            () = self.webhook.changed() => true,
        }
    }
}

#[cfg(test)]
#[path = "policy_sync_tests.rs"]
mod tests;
