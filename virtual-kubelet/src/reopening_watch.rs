//! A watch that never ends, and is opened anew when the connection to the API server has recovered.

use std::fmt::Debug;

use futures::StreamExt;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use tokio::sync::mpsc;

use crate::api_call::Recoveries;

/// Events buffered before the watch waits for its reader.
const BUFFER: usize = 256;

/// Starts the watch; it ends when the receiver is dropped. After a recovery the events start over
/// with `Init`, so that deletions missed meanwhile are noticed.
pub(crate) fn open<K>(api: Api<K>, config: watcher::Config, recoveries: &Recoveries) -> mpsc::Receiver<watcher::Event<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BUFFER);
    let mut recovered = recoveries.subscribe();
    tokio::spawn(async move {
        loop {
            let mut events = watcher(api.clone(), config.clone()).default_backoff().boxed();
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    changed = recovered.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        break;
                    }
                    event = events.next() => match event {
                        Some(Ok(event)) => {
                            if sender.send(event).await.is_err() {
                                return;
                            }
                        }
                        Some(Err(error)) => tracing::warn!(%error, "watch failed, retrying"),
                        None => break,
                    },
                }
            }
        }
    });
    receiver
}
