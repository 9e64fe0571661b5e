//! Keeps exactly the admission policies that gates want, and finds out whether the API server has such policies at all.

use crate::{
    gates_shared::{
        GateState, WebhookService,
        policy_sync::{self, KnownAdmission, PolicySync, Refused, Rounds, Versions, age},
        webhook_sync::WebhookSync,
    },
    write::{self, Error},
};
use crds::names;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use planner::{
    gates_shared::accepted::Accepted,
    node_gates::{
        Gate,
        policy_objects::{self, Means, Offers},
        status::Lingering,
    },
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::watch;

/// Field manager of policies, bindings and the entry of the webhook.
const FIELD_MANAGER: &str = "ingress-daemonset-operator/admission";

/// A gate, as admission sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The gate; it may be shown to nodes as one that stays while it is being deleted.
    pub gate: Arc<Gate>,
    /// It is being deleted.
    pub deleting: bool,
    /// It could open.
    pub enforced: bool,
    /// It is an object that can own policies.
    pub owned: bool,
}

/// All gates, as admission sees them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredPolicies {
    /// The gates, by UID.
    pub gates: BTreeMap<String, Wanted>,
    /// There may be gates that cannot be read: what is theirs stays.
    pub incomplete: bool,
}

/// What is known of policies in the cluster.
#[derive(Debug, Default)]
struct PolicyState {
    /// Nothing before the first list.
    offers: Option<Offers>,
    /// UIDs of gates that something is there of.
    present: BTreeSet<String>,
    admission: KnownAdmission,
}

/// Between the loop, which says what is wanted, and [`NodePolicySync`], which says what exists.
#[derive(Debug)]
pub struct PolicyHandle {
    wish: watch::Sender<Option<DesiredPolicies>>,
    known: Mutex<PolicyState>,
    webhook: bool,
}

impl PolicyHandle {
    /// Nothing is known yet. `webhook`: the operator serves one.
    pub fn new(webhook: bool) -> Self {
        Self { wish: watch::Sender::new(None), known: Mutex::default(), webhook }
    }

    /// There are no policies, and there will be none.
    pub fn rule_out(&self) {
        self.known.lock().offers = Some(Offers::default());
    }

    /// Says what is wanted.
    pub fn want(&self, wish: DesiredPolicies) {
        policy_sync::want(&self.wish, wish);
    }

    /// Something of the gate is there, as far as is known: its nodes are released after that is gone.
    pub fn is_present(&self, uid: &str) -> bool {
        let known = self.known.lock();
        known.offers.is_none() || known.present.contains(uid)
    }

    /// Of a gate that is being deleted: something of it is still there, and why it could not be deleted, if that was tried.
    pub fn lingers(&self, uid: &str) -> Option<Lingering> {
        self.is_present(uid)
            .then(|| self.known.lock().admission.refused.policies.get(uid).cloned().map_or(Lingering::Waits, Lingering::Refused))
    }

    /// Whether conditions have changed since this was asked last, if only by the time that has gone by.
    pub fn has_news(&self) -> bool {
        self.known.lock().admission.has_news()
    }

    /// For condition `AdmissionActive`; nothing before the first look. `gate` as it is now: what was written for it may be older.
    /// `owned`: it is an object that can own policies.
    pub fn condition(&self, gate: &Gate, enforced: bool, owned: bool) -> Option<(&'static str, bool, String)> {
        let known = self.known.lock();
        let means = policy_objects::means(gate, enforced, known.offers?);
        let KnownAdmission { refused, accepted, .. } = &known.admission;
        if means == Means::Policy
            && let Some(why) = refused.policies.get(&gate.uid)
        {
            return Some(reactive("the policy", why));
        }
        let accepted = means.accepted_at(accepted, gate, owned);
        // What was written before stays in force.
        if means == Means::Webhook
            && accepted.is_none()
            && let Some(why) = &refused.webhook
        {
            return Some(reactive("the configuration of the webhook", why));
        }
        Some(means.condition(accepted.map(age)))
    }
}

/// What condition `AdmissionActive` says where the API server refused this.
fn reactive(refused: &str, why: &str) -> (&'static str, bool, String) {
    let message = format!("the operator taints a node a moment after its creation, because the API server refused {refused}: {why}");
    ("Reactive", false, message)
}

/// Makes the cluster have what is wanted, and nothing else of ours.
pub struct NodePolicySync {
    client: Client,
    state: Arc<GateState>,
    admission: Arc<PolicyHandle>,
    wishes: watch::Receiver<Option<DesiredPolicies>>,
    policies: PolicySync,
    webhook: WebhookSync,
}

impl Rounds for NodePolicySync {
    async fn round(&mut self, list: bool) -> bool {
        if (list || self.admission.known.lock().offers.is_none()) && !(self.webhook.find().await && self.list().await) {
            return false;
        }
        let wish = self.wishes.borrow_and_update().clone();
        let Some((wish, offers)) = wish.zip(self.admission.known.lock().offers) else { return true };
        let stay = wish.gates.iter().filter(|(_, wanted)| !wanted.deleting);
        let wanted = stay.flat_map(|(uid, wanted)| {
            let policies = policy_objects::policies(&wanted.gate, wanted.enforced, offers, wanted.owned);
            policies.into_iter().map(move |policy| (uid.clone(), policy))
        });
        let wanted: Vec<_> = wanted.collect();
        let policies = self.policies.sync(&wanted, |uid| wish.incomplete && !wish.gates.contains_key(uid)).await;
        let touched = self.touch(&wish, offers).await;
        let refused = Refused { policies, webhook: self.keep_webhook(&wish, offers).await };
        let done = touched && refused == Refused::default();
        self.tell(offers, Some(refused));
        done
    }

    async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.wishes.changed() => changed.is_ok(),
            () = self.webhook.changed() => true,
        }
    }
}

impl NodePolicySync {
    /// Nothing is known yet.
    pub fn new(
        client: Client,
        state: Arc<GateState>,
        admission: Arc<PolicyHandle>,
        served: Option<WebhookService>,
        versions: Versions,
    ) -> Self {
        let wishes = admission.wish.subscribe();
        let policies = PolicySync::new(client.clone(), names::GATE_LABEL, FIELD_MANAGER, versions);
        let webhook = WebhookSync::new(client.clone(), FIELD_MANAGER, policy_objects::WEBHOOK, served);
        Self { client, state, admission, wishes, policies, webhook }
    }

    /// Finds the existing policies of ours. Whether that could be found out.
    async fn list(&mut self) -> bool {
        let Some(policies) = self.policies.list().await else { return false };
        let webhook = self.admission.known.lock().admission.refused.webhook.clone();
        let refused = (!policies).then(|| Refused { policies: BTreeMap::new(), webhook });
        self.tell(Offers { policies, webhook: self.admission.webhook }, refused);
        true
    }

    /// Applies the entry of the webhook, or removes it when no gate needs it. Why that was refused.
    async fn keep_webhook(&mut self, wish: &DesiredPolicies, offers: Offers) -> Option<String> {
        let by_webhook =
            |wanted: &&Wanted| !wanted.deleting && policy_objects::means(&wanted.gate, wanted.enforced, offers) == Means::Webhook;
        let clauses: Vec<_> = wish.gates.values().filter(by_webhook).filter_map(|wanted| policy_objects::clause(&wanted.gate)).collect();
        let asked = policy_objects::asked(&clauses);
        self.webhook.ask(&clauses, |served| Some(policy_objects::webhook(served, &asked?)), wish.incomplete).await
    }

    /// Has `DaemonSets` written that gates could not open for: a policy gives them the toleration then. Whether all have it.
    async fn touch(&self, wish: &DesiredPolicies, offers: Offers) -> bool {
        let shut =
            wish.gates.values().filter(|wanted| offers.policies && !wanted.enforced && !wanted.deleting && !wanted.gate.spec.dry_run);
        let mut done = true;
        for (gate, (namespace, name)) in
            shut.flat_map(|wanted| policy_objects::injected(&wanted.gate).into_iter().map(move |key| (&wanted.gate, key)))
        {
            let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &namespace);
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(json!({}))).await.map_err(write::classify) {
                Ok(found) => {
                    let template = found.spec.and_then(|spec| spec.template.spec).and_then(|pod| pod.tolerations).unwrap_or_default();
                    done &= template.iter().any(|toleration| toleration.key.as_deref() == Some(gate.spec.taint.key.as_str()));
                }
                Err(Error::Conflict) => {}
                Err(error) => {
                    tracing::warn!(namespace, name, %error, "the DaemonSet that a gate waits for cannot be written; trying again");
                    done = false;
                }
            }
        }
        done
    }

    /// Says what exists and what was refused, where that was tried again, and wakes the loop when nodes may be released for it.
    fn tell(&self, offers: Offers, refused: Option<Refused>) {
        let present = self.policies.present();
        let mut known = self.admission.known.lock();
        let refused = refused.unwrap_or_else(|| known.admission.refused.clone());
        let accepted = Accepted { policies: self.policies.written(), clauses: self.webhook.asked() };
        let changed = known.admission.replace(refused, accepted);
        if !changed && known.offers == Some(offers) && known.present == present {
            return;
        }
        known.admission.news = true;
        let frees = known.offers.is_none() || !known.present.is_subset(&present);
        (known.offers, known.present) = (Some(offers), present);
        drop(known);
        if frees {
            // Nodes of a gate that is being deleted may be released now.
            self.state.gates();
        }
    }
}

#[cfg(test)]
#[path = "policy_sync_tests.rs"]
mod tests;
