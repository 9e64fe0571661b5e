//! A fleet behind the kubelet API: one listener for all of its nodes, since pods are named without them.

use std::io;
use std::time::Duration;

use anyhow::anyhow;
use futures::future::BoxFuture;
use futures::stream::unfold;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::io::StreamReader;

use super::FleetHandle;
use super::faults::Told;
use super::shard::{Look, View};
use crate::api::logs::Selector;
use crate::api::{BoxRead, ContainerTarget, Dialer, HandlerError, LogOptions, PodHandlers, PodTarget, Session, SessionIo};
use crate::errdefs::ProviderError;
use crate::simulated::ANNOTATION_PREFIX;

/// How long a fleet that runs takes to answer, at most.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How often a followed log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl FleetHandle {
    /// What there is to see of a container now.
    async fn look(&self, target: &ContainerTarget) -> Result<View, HandlerError> {
        let (reply, mut answer) = mpsc::channel(1);
        // A fleet that has ended drops the reply.
        let _ = self.faults.send(Told::Look(Look { target: target.clone(), reply }));
        timeout(ANSWERS_WITHIN, answer.recv()).await.ok().flatten().unwrap_or_else(|| {
            let why = "the fleet does not answer: it ended, or another fleet with the same node names runs";
            Err(ProviderError::Other(anyhow!(why)).into())
        })
    }
}

/// The rest of a log that is followed.
struct Following {
    fleet: FleetHandle,
    target: ContainerTarget,
    selector: Selector,
    /// How many lines are through.
    seen: u64,
    over: bool,
}

/// How many of a view's lines were seen already.
fn seen_of(view: &View, seen: u64) -> usize {
    usize::try_from(seen.saturating_sub(view.log.before)).unwrap_or(usize::MAX)
}

fn end_of(view: &View) -> u64 {
    view.log.before + view.log.lines.len() as u64
}

impl Following {
    /// The next piece that the client sees; nothing at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        while !self.over && !self.selector.is_full() {
            sleep(LOOK_EVERY).await;
            // The pod is gone, or the fleet.
            let view = self.fleet.look(&self.target).await.ok()?;
            let mut out = Vec::new();
            for line in view.log.lines.iter().skip(seen_of(&view, self.seen)) {
                self.selector.take(line.as_bytes(), &mut out);
            }
            (self.seen, self.over) = (end_of(&view), view.log.over);
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }
}

fn refused<T: Send + 'static>(pod: &PodTarget, why: &str) -> BoxFuture<'static, Result<T, HandlerError>> {
    let error = HandlerError::invalid(format!("pod {} is simulated: {why}", pod.name));
    Box::pin(std::future::ready(Err(error)))
}

/// The pods of all nodes, wherever they are: logs tell what their containers went through, commands print what the pod's rule or annotation
/// says. Everything else is refused, with words that say why.
impl PodHandlers for FleetHandle {
    fn container_logs<'a>(&'a self, target: &'a ContainerTarget, options: LogOptions) -> BoxFuture<'a, Result<BoxRead, HandlerError>> {
        Box::pin(async move {
            let view = self.look(target).await?;
            let until = if options.previous {
                view.log.previous.ok_or_else(|| {
                    let (container, pod) = (&target.container, &target.pod.name);
                    HandlerError::invalid(format!("previous terminated container \"{container}\" in pod \"{pod}\" not found"))
                })?
            } else {
                view.log.lines.len()
            };
            let tail = options.tail.map_or(until, |tail| usize::try_from(tail).unwrap_or(usize::MAX));
            let (mut selector, mut text) = (Selector::new(&options, Timestamp::now()), Vec::new());
            for line in view.log.lines.iter().take(until).skip(until.saturating_sub(tail)) {
                selector.take(line.as_bytes(), &mut text);
            }
            let text = io::Cursor::new(text);
            if !options.follow || options.previous {
                return Ok(Box::new(text) as BoxRead);
            }
            // Of this very pod, and of none that has its name later.
            let pod = PodTarget { uid: Some(view.uid.to_string()), ..target.pod.clone() };
            let target = ContainerTarget { pod, container: target.container.clone() };
            let following = Following { fleet: self.clone(), target, selector, seen: end_of(&view), over: view.log.over };
            let pieces = unfold(following, |mut following| async move {
                let piece = following.next().await?;
                Some((Ok::<_, io::Error>(io::Cursor::new(piece)), following))
            });
            Ok(Box::new(text.chain(StreamReader::new(Box::pin(pieces)))) as BoxRead)
        })
    }

    fn exec<'a>(&'a self, target: &'a ContainerTarget, _: Vec<String>) -> BoxFuture<'a, Result<Session, HandlerError>> {
        Box::pin(async move {
            let view = self.look(target).await?;
            if !view.is_running {
                return Err(ProviderError::Other(anyhow!("container not found (\"{}\")", target.container)).into());
            }
            let Some(text) = view.exec else {
                let why = format!(
                    "it has no process that could run a command; to make commands print TEXT, set the pod's annotation \
                     {ANNOTATION_PREFIX}exec=TEXT, or `exec: TEXT` in its rule in the fleet's stages"
                );
                return refused(&target.pod, &why).await;
            };
            let session: Session = Box::new(move |io: SessionIo| {
                Box::pin(async move {
                    if let Some(mut stdout) = io.stdout {
                        // The client has gone.
                        let _ = stdout.write_all(text.as_bytes()).await;
                        let _ = stdout.shutdown().await;
                    }
                    Ok(0)
                })
            });
            Ok(session)
        })
    }

    fn attach<'a>(&'a self, target: &'a ContainerTarget) -> BoxFuture<'a, Result<Session, HandlerError>> {
        refused(&target.pod, "it has no process to attach to; kubectl logs --follow shows the history of its containers")
    }

    fn port_forward<'a>(&'a self, target: &'a PodTarget) -> BoxFuture<'a, Result<Dialer, HandlerError>> {
        refused(target, "nothing listens on its ports")
    }
}

#[cfg(test)]
#[path = "kubelet_tests.rs"]
mod tests;
