//! Keeps exactly the admission policies that gates of pods want, or the entry of the webhook in their place, and finds out whether the
//! API server has such policies at all.

use crate::gates_shared::{
    WebhookService,
    policy_sync::{self, KnownAdmission, PolicySync, Refused, Rounds, Versions, age},
    webhook_sync::WebhookSync,
};
use crds::names;
use kube::Client;
use parking_lot::Mutex;
use planner::{
    gates_shared::accepted::{Accepted, SETTLING},
    pod_gates::{
        Gate,
        policy_objects::{self, Means, Offers, means},
    },
};
use std::sync::Arc;
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
    admission: KnownAdmission,
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

    /// Whether conditions have changed since this was asked last, if only by the time that has gone by.
    pub fn has_news(&self) -> bool {
        self.known.lock().admission.has_news()
    }

    /// For condition `AdmissionActive`: a word, whether pods get the gate, and a sentence; nothing where the gate asks for nothing.
    pub fn condition(&self, gate: &Gate) -> Option<(&'static str, bool, String)> {
        if !gate.spec.injects() {
            return None;
        }
        let known = self.known.lock();
        let Some(policies) = known.has_policies else {
            return Some((SETTLING, false, "the operator has not seen yet whether the API server has policies".into()));
        };
        let means = means(gate, self.offers(policies));
        let KnownAdmission { refused, accepted, .. } = &known.admission;
        let accepted = means.accepted_at(accepted, gate);
        let refused = match means {
            Means::Policy => refused.policies.get(&gate.uid),
            Means::Webhook => refused.webhook.as_ref(),
            Means::Missing(..) => None,
        };
        Some(means.condition(gate, accepted.map(age), refused.map(String::as_str)))
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
}

impl Rounds for PodPolicySync {
    async fn round(&mut self, list: bool) -> bool {
        if list {
            if !self.webhook.find().await {
                return false;
            }
            let Some(has_policies) = self.policies.list().await else { return false };
            let mut known = self.admission.known.lock();
            known.admission.news |= known.has_policies.replace(has_policies) != Some(has_policies);
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
        let policies = self.policies.sync(&wanted, spares).await;
        let by_webhook: Vec<_> = by(Means::Webhook).collect();
        let clauses: Vec<_> = by_webhook.iter().filter_map(|gate| policy_objects::clause(gate)).collect();
        let gates = by_webhook.iter().map(|gate| &***gate);
        let webhook = self.webhook.ask(&clauses, |served| policy_objects::webhook(served, gates), wish.incomplete).await;
        let refused = Refused { policies, webhook };
        let accepted = Accepted { policies: self.policies.written(), clauses: self.webhook.asked() };
        let done = refused == Refused::default();
        self.admission.known.lock().admission.replace(refused, accepted);
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
