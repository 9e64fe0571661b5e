//! Fills a pod's volumes and keeps them true while the pod lives.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::site::Site;
use super::token::Tokens;
use super::volumes::{self, Ingredients};
use crate::api_call::retry_delay;
use crate::pod::{PodId, references};

/// How often changes of `ConfigMaps` and Secrets are looked for, and tokens renewed.
const REFRESH: Duration = Duration::from_secs(20);
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_CAP: Duration = Duration::from_secs(5);

/// Runs until `cancel`; calls `filled` once, when all volumes are there.
pub(super) async fn keep(site: Arc<Site>, mut pod: watch::Receiver<Arc<Pod>>, filled: impl FnOnce() + Send, cancel: CancellationToken) {
    let mut tokens = Tokens::default();
    let mut filled = Some(filled);
    let mut failures = 0;
    loop {
        let present = pod.borrow_and_update().clone();
        let pause = tokio::select! {
            () = cancel.cancelled() => return,
            outcome = fill(&site, &present, &mut tokens) => match outcome {
                Ok(()) => {
                    failures = 0;
                    if let Some(filled) = filled.take() {
                        filled();
                    }
                    until_renewal(&tokens, Timestamp::now())
                }
                Err(error) => {
                    failures += 1;
                    site.events.warning(&present, "FailedMount", format!("{error:#}"));
                    tracing::warn!(pod = %PodId::of(&present), "volumes are not ready: {error:#}");
                    retry_delay(failures, RETRY_FIRST, if filled.is_some() { RETRY_CAP } else { REFRESH })
                }
            },
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            changed = pod.changed() => if changed.is_err() { return },
        }
    }
}

/// Tokens that are renewed sooner than everything is looked at are not late.
fn until_renewal(tokens: &Tokens, now: Timestamp) -> Duration {
    let left = tokens.next_renewal().map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    left.map_or(REFRESH, |left| left.clamp(RETRY_FIRST, REFRESH))
}

async fn fill(site: &Site, pod: &Pod, tokens: &mut Tokens) -> Result<()> {
    let id = PodId::of(pod);
    let references = references::fetch(&site.client, &id.namespace, &volumes::wanted(pod)).await?;
    let tokens = tokens.refresh(&site.client, pod, &volumes::token_wishes(pod)).await?;
    let ingredients = Ingredients { pod, references: &references, tokens: &tokens, node: &site.node };
    // One that cannot be filled keeps no other from being true: tokens are renewed whatever else is missing.
    let mut problems = Vec::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let directory = site.volumes_dir(&id).join(&volume.name);
        let filled = ingredients.files(volume).map_err(anyhow::Error::from).and_then(|files| match files {
            Some(files) => volumes::write(&directory, &files),
            None => volumes::make_directory(volume, &directory),
        });
        problems.extend(filled.err().map(|error| format!("{error:#}")));
    }
    anyhow::ensure!(problems.is_empty(), problems.join("; "));
    Ok(())
}
