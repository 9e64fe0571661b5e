//! The operator's `MutatingWebhookConfiguration`: one kind of gates keeps one entry of it, while a gate of that kind needs it.
//!
//! The object has an entry for each kind, and goes with the last one: the `ClusterRole` names it. Each kind writes by a field manager of
//! its own, so neither touches what the other has written.

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use planner::gates_shared::{
    accepted::asked_since,
    policy_objects::{ServedWebhook, WEBHOOKS, configuration},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::{sync::watch, time::Instant};

/// The webhook that the operator serves, as the API server is to know it.
#[derive(Clone, Debug)]
pub struct WebhookService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Where the webhook is below it.
    pub path: &'static str,
    /// Which authorities are to be trusted, in PEM.
    pub trusted: watch::Receiver<Option<String>>,
}

/// An entry that was applied or found.
#[derive(Debug, Default)]
struct KnownEntry {
    /// What it was made from; nothing when somebody else wrote it last, or another operator.
    written: Option<Value>,
    /// Which authorities it trusts.
    trusted: String,
    /// As the API server has it; nothing where the configuration has no entry at all.
    stored: Option<MutatingWebhook>,
}

/// What became of a round.
#[derive(Debug, PartialEq, Eq)]
enum EntryRound {
    /// The entry is as it is wanted.
    Same,
    /// The entry is left as it was, whatever that is.
    Left,
    /// It was written. `before`: the one that it replaces was written by this operator, too, and one of both trusts all authorities of
    /// the other.
    Written {
        /// See above.
        before: bool,
    },
    /// There is none.
    Absent,
    /// The API server refused: its answer.
    Refused(String),
}

/// Keeps the entry of one kind of gates.
pub struct WebhookSync {
    client: Client,
    field_manager: &'static str,
    /// Name of the entry.
    name: &'static str,
    served: Option<WebhookService>,
    known: Option<KnownEntry>,
    /// Since when the webhook is asked for each clause that the entry was wanted for last.
    clauses: BTreeMap<String, std::time::Instant>,
}

impl WebhookSync {
    /// Nothing is known yet. `served`: the operator serves a webhook.
    pub fn new(client: Client, field_manager: &'static str, name: &'static str, served: Option<WebhookService>) -> Self {
        Self { client, field_manager, name, served, known: None, clauses: BTreeMap::new() }
    }

    fn api(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// Whether the entry is as it was written last.
    fn is_written(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.written.is_some())
    }

    /// Since when the webhook is asked for each clause; for none unless the entry is as it was written last.
    pub fn asked(&self) -> BTreeMap<String, std::time::Instant> {
        if self.is_written() { self.clauses.clone() } else { BTreeMap::new() }
    }

    /// Keeps the entry, as [`Self::keep`] does, that asks about the objects of these clauses. Why the API server refused it.
    pub async fn ask(
        &mut self,
        clauses: &[String],
        render: impl FnOnce(&ServedWebhook<'_>) -> Option<Value>,
        spared: bool,
    ) -> Option<String> {
        let before = match self.keep(render, spared).await {
            // Clauses that are too long together leave the entry as it is: it asks for all objects of their namespace already.
            EntryRound::Same | EntryRound::Written { before: true } => std::mem::take(&mut self.clauses),
            EntryRound::Written { before: false } => BTreeMap::new(),
            EntryRound::Left | EntryRound::Absent => return None,
            EntryRound::Refused(why) => return Some(why),
        };
        self.clauses = asked_since(&before, clauses, Instant::now().into_std());
        None
    }

    /// Returns when other authorities are to be trusted; never where no webhook is served.
    pub async fn changed(&mut self) {
        let changed = match &mut self.served {
            Some(served) => served.trusted.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }

    /// What the API server knows of the entry. Whether that could be found out.
    pub async fn find(&mut self) -> bool {
        match self.api().get_opt(WEBHOOKS).await {
            Ok(found) => {
                let entries = found.map(|found| found.webhooks.unwrap_or_default());
                let is_empty = entries.as_ref().is_some_and(Vec::is_empty);
                let stored = entries.into_iter().flatten().find(|entry| entry.name == self.name);
                let is_same = self.known.as_ref().is_some_and(|known| known.stored.is_some() && known.stored == stored);
                if !is_same {
                    // One without entries, as of two operators that removed theirs at once, is to go as well.
                    self.known = (stored.is_some() || is_empty).then(|| KnownEntry { stored, ..KnownEntry::default() });
                }
                true
            }
            // Without the right there is none of ours either.
            Err(kube::Error::Api(status)) if status.code == 403 => true,
            Err(error) => {
                tracing::warn!(%error, "the configuration of the webhook cannot be read; trying again");
                false
            }
        }
    }

    /// Applies the entry, as `render` makes it, or removes it where that makes none, unless `spared`: there may be gates that need it and
    /// cannot be read.
    async fn keep(&mut self, render: impl FnOnce(&ServedWebhook<'_>) -> Option<Value>, spared: bool) -> EntryRound {
        let wanted = self.served.as_mut().and_then(|served| {
            let trusted = served.trusted.borrow_and_update().clone();
            let (namespace, service, path) = (&served.namespace, &served.service, served.path);
            Some((render(&ServedWebhook { namespace, service, path, trusted: trusted.as_deref().unwrap_or_default() })?, trusted))
        });
        let wanted = match wanted {
            // The certificates have not been read yet: another replica may serve with those that the entry knows.
            Some((_, None)) => return if self.known.is_some() { EntryRound::Left } else { EntryRound::Absent },
            Some((entry, Some(trusted))) => Some((entry, trusted)),
            None => None,
        };
        let result = match (wanted, &self.known) {
            (None, None) => return EntryRound::Absent,
            (Some((entry, _)), Some(known)) if known.written.as_ref() == Some(&entry) => return EntryRound::Same,
            (Some((entry, trusted)), _) => self.apply(entry, trusted).await,
            (None, Some(_)) if spared => return EntryRound::Left,
            (None, Some(_)) => self.remove().await,
        };
        result.unwrap_or_else(|error| {
            tracing::warn!(%error, "the configuration of the webhook was not written; trying again");
            EntryRound::Refused(error.to_string())
        })
    }

    async fn apply(&mut self, entry: Value, trusted: String) -> kube::Result<EntryRound> {
        let params = PatchParams::apply(self.field_manager).force();
        let applied = self.api().patch(WEBHOOKS, &params, &Patch::Apply(configuration(&entry))).await?;
        // A renewal adds an authority before the webhook serves by it, and drops one after it has ceased to.
        let agree = |former: &str| !former.is_empty() && !trusted.is_empty() && (trusted.contains(former) || former.contains(&trusted));
        let before = self.known.take().is_some_and(|known| known.written.is_some() && agree(&known.trusted));
        let stored = applied.webhooks.into_iter().flatten().find(|stored| stored.name == self.name);
        self.known = Some(KnownEntry { written: Some(entry), trusted, stored });
        Ok(EntryRound::Written { before })
    }

    /// With the last entry goes the object.
    async fn remove(&mut self) -> kube::Result<EntryRound> {
        let found = self.api().get_opt(WEBHOOKS).await?;
        let version = found.as_ref().and_then(|found| found.metadata.resource_version.clone());
        let entries = found.as_ref().and_then(|found| found.webhooks.as_deref()).unwrap_or_default();
        let place = entries.iter().position(|entry| entry.name == self.name);
        let result = match place {
            // It is gone, or of others alone.
            None if found.is_none() || !entries.is_empty() => Ok(()),
            Some(place) if entries.len() > 1 => {
                let at = format!("/webhooks/{place}");
                // By no apply: that leaves what somebody else has written into the entry.
                let operations = json!([{"op": "test", "path": format!("{at}/name"), "value": self.name}, {"op": "remove", "path": at}]);
                let patch = serde_json::from_value(operations).map_err(kube::Error::SerdeError)?;
                self.api().patch(WEBHOOKS, &PatchParams::default(), &Patch::<()>::Json(patch)).await.map(drop)
            }
            // Not one to which the other kind has added its entry since.
            _ => {
                let preconditions = Some(Preconditions { resource_version: version, uid: None });
                self.api().delete(WEBHOOKS, &DeleteParams { preconditions, ..DeleteParams::default() }).await.map(drop)
            }
        };
        match result {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => other?,
        }
        self.known = None;
        Ok(EntryRound::Absent)
    }
}

#[cfg(test)]
#[path = "webhook_sync_tests.rs"]
mod tests;
