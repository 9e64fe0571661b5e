//! The Secret with the webhook's certificates: every replica reads it, the one that leads writes it.

use super::{Certificates, Serving};
use crate::{gates_shared::WebhookService, metrics::GateMetrics, watch::WATCH_SECONDS};
use anyhow::{Context as _, Result};
use crds::UnixSeconds;
use futures::StreamExt as _;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::watch;

/// How often it is looked whether a certificate is to be replaced: by time alone it grows old, and what its replacement waits for takes
/// much longer.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// Keys of the Secret; those of the leaf are Kubernetes' own.
const KEYS: [&str; 4] = ["ca.crt", "ca.key", "tls.crt", "tls.key"];

/// The Secret of the webhook behind one Service.
#[derive(Clone)]
pub struct Secrets {
    client: Client,
    namespace: String,
    service: String,
    serving: Serving,
    metrics: GateMetrics,
    trusted: watch::Sender<Option<String>>,
}

impl Secrets {
    /// Nothing is known yet. What is read is served by `serving`.
    pub fn new(client: Client, namespace: &str, service: &str, serving: Serving, metrics: GateMetrics) -> Self {
        Self { client, namespace: namespace.into(), service: service.into(), serving, metrics, trusted: watch::Sender::new(None) }
    }

    /// Authorities that the API server is to trust, in PEM, as they were read last.
    pub fn trusted(&self) -> watch::Receiver<Option<String>> {
        self.trusted.subscribe()
    }

    /// The webhook at a path, as the API server is to know it.
    pub fn webhook(&self, path: &'static str) -> WebhookService {
        let (namespace, service) = (self.namespace.clone(), self.service.clone());
        WebhookService { namespace, service, path, trusted: self.trusted() }
    }

    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The only name that API servers know a Service by.
    fn names(&self) -> Vec<String> {
        vec![format!("{}.{}.svc", self.service, self.namespace)]
    }

    /// Serves what the Secret says, whenever it changes. Never ends.
    pub async fn follow(self) {
        let config = watcher::Config::default().timeout(WATCH_SECONDS).fields(&format!("metadata.name={}", self.service));
        let mut events = watcher::watcher(self.api(), config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(secret) | Event::InitApply(secret)) => {
                    if let Err(error) = self.take(&secret) {
                        tracing::warn!(%error, "the webhook's certificates cannot be used; those before stay");
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "watch of the webhook's certificates failed; trying again"),
            }
        }
    }

    fn take(&self, secret: &Secret) -> Result<()> {
        let certificates = certificates(secret)?;
        self.serving.set(&certificates)?;
        self.metrics.webhook_expires(certificates.expires()?);
        self.trusted.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&certificates.trusted);
            *known = Some(certificates.trusted);
            changed
        });
        Ok(())
    }

    /// Makes certificates and replaces them in time. Only for the replica that leads. Never ends.
    pub async fn keep(self) {
        loop {
            if let Err(error) = self.look(chrono::Utc::now().timestamp()).await {
                tracing::warn!(error = format!("{error:#}"), "checking the webhook's certificates failed; retrying");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// One look, and at most one write.
    async fn look(&self, now: UnixSeconds) -> Result<()> {
        let found = self.api().get_opt(&self.service).await.context("reading the Secret")?;
        let Some(found) = found else {
            let secret = Secret {
                metadata: ObjectMeta { name: Some(self.service.clone()), ..ObjectMeta::default() },
                type_: Some("kubernetes.io/tls".into()),
                data: Some(data(Certificates::new(&self.names(), now)?)),
                ..Secret::default()
            };
            self.api().create(&PostParams::default(), &secret).await.context("making the Secret")?;
            return Ok(());
        };
        let next = match certificates(&found).and_then(|certificates| certificates.next(&self.names(), now)) {
            Ok(None) => return Ok(()),
            Ok(Some(next)) => next,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the webhook's certificates cannot be used; creating new ones");
                Certificates::new(&self.names(), now)?
            }
        };
        // Two that lead by mistake must not mix what they made.
        let body = json!({"metadata": {"resourceVersion": found.resource_version()}, "data": data(next)});
        self.api().patch(&self.service, &PatchParams::default(), &Patch::Merge(body)).await.context("writing the Secret")?;
        Ok(())
    }
}

fn data(certificates: Certificates) -> BTreeMap<String, ByteString> {
    let texts = [certificates.trusted, certificates.authority_key, certificates.leaf, certificates.leaf_key];
    KEYS.into_iter().zip(texts).map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
}

fn certificates(secret: &Secret) -> Result<Certificates> {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).with_context(|| format!("the Secret has no {key}"))?;
        String::from_utf8(bytes.0.clone()).with_context(|| format!("{key} is no text"))
    };
    let [trusted, authority_key, leaf, leaf_key] = KEYS.map(text);
    Ok(Certificates { trusted: trusted?, authority_key: authority_key?, leaf: leaf?, leaf_key: leaf_key? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::sync::{Arc, Mutex};

    const START: i64 = 1_767_225_600;
    const DAY: i64 = 24 * 3600;

    /// An API server that has one Secret, or none; what is written is noted.
    fn server(secret: &Arc<Mutex<Option<Value>>>, writes: &Arc<Mutex<Vec<String>>>) -> Client {
        let (secret, writes) = (Arc::clone(secret), Arc::clone(writes));
        crate::tests::api_server(move |method, uri, mut written| {
            let mut secret = secret.lock().unwrap();
            if method != "GET" {
                let version = &written["metadata"]["resourceVersion"];
                writes.lock().unwrap().push(format!("{method} {} {version}", uri.path()));
                written["metadata"] = json!({"name": "hook", "resourceVersion": "7"});
                *secret = Some(written);
            }
            let none = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "none", "code": 404});
            Some(secret.clone().map_or((404, none), |secret| (200, secret)))
        })
    }

    #[tokio::test]
    async fn the_secret_is_renewed_in_time_and_replaced_when_unusable() {
        let (secret, writes) = (Arc::default(), Arc::default());
        let metrics = GateMetrics::registered(&mut prometheus_client::registry::Registry::default());
        let secrets = Secrets::new(server(&secret, &writes), "system", "hook", Serving::default(), metrics);
        let written = || std::mem::take(&mut *writes.lock().unwrap());
        let trusted = || {
            let stored: Secret = serde_json::from_value(secret.lock().unwrap().clone().unwrap()).unwrap();
            secrets.take(&stored).unwrap();
            secrets.trusted().borrow().clone().unwrap()
        };
        secrets.look(START).await.unwrap();
        assert_eq!(written(), ["POST /api/v1/namespaces/system/secrets null"]);
        let first = trusted();
        secrets.look(START + 19 * DAY).await.unwrap();
        assert!(written().is_empty());
        secrets.look(START + 21 * DAY).await.unwrap();
        assert_eq!(written(), [r#"PATCH /api/v1/namespaces/system/secrets/hook "7""#]);
        assert_eq!(trusted(), first, "another leaf of the same authority");
        secret.lock().unwrap().as_mut().unwrap()["data"]["tls.crt"] = "bm8=".into();
        secrets.look(START + 21 * DAY).await.unwrap();
        assert_eq!(written().len(), 1);
        assert_ne!(trusted(), first);
    }
}
