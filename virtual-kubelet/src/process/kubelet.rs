//! The provider behind the kubelet's API.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::access::AccessError;
use super::figures::PodFigures;
use super::provider::ProcessProvider;
use super::shim::{self, ExitNote, Input, Output, ShimOrder};
use super::summary::{self, NodeFigures, Sample};
use crate::api::{
    BoxDuplex, BoxRead, BoxWrite, ContainerTarget, Dialer, HandlerError, LogOptions, PodHandlers, PodTarget, Session, SessionIo,
    TerminalSize, logs,
};
use crate::errdefs::ProviderError;
use crate::pod::PodId;

/// How long the size of a client's terminal is waited for before a command begins with the usual one.
const FIRST_SIZE: Duration = Duration::from_millis(500);
/// Size of a terminal that nobody told.
const USUAL_SIZE: TerminalSize = TerminalSize { width: 80, height: 24 };
/// How long a port may take to accept a connection.
const DIAL: Duration = Duration::from_secs(5);

/// A [`ProcessProvider`] as the kubelet's API wants it.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use tokio_util::sync::CancellationToken;
/// use virtual_kubelet::api::{Api, router};
/// use virtual_kubelet::process::{KubeletHandlers, ProcessProvider};
///
/// fn routes(provider: Arc<ProcessProvider>, stop: CancellationToken) -> axum::Router {
///     router(&Api::new(Arc::new(KubeletHandlers::new(provider)), stop), true)
/// }
/// ```
pub struct KubeletHandlers {
    provider: Arc<ProcessProvider>,
    last: Mutex<Option<Sample>>,
}

impl KubeletHandlers {
    /// For the pods of `provider`.
    pub fn new(provider: Arc<ProcessProvider>) -> Self {
        Self { provider, last: Mutex::default() }
    }

    /// The pod that a client means: of several that had the name, the newest.
    fn find(&self, target: &PodTarget) -> Result<(PodId, Arc<Pod>, PodStatus), HandlerError> {
        let all = self.provider.all().into_iter().filter(|(id, ..)| {
            id.namespace == target.namespace && id.name == target.name && target.uid.as_ref().is_none_or(|uid| *uid == id.uid)
        });
        all.max_by_key(|(_, pod, _)| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
            .ok_or_else(|| HandlerError::not_found(format!("pod \"{}\" does not exist", target.name)))
    }

    /// The pod of a container that runs.
    fn running(&self, target: &ContainerTarget) -> Result<PodId, HandlerError> {
        let (id, _, status) = self.find(&target.pod)?;
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        let mut all = all.filter(|shown| shown.name == target.container);
        if all.any(|shown| shown.state.as_ref().is_some_and(|state| state.running.is_some())) {
            return Ok(id);
        }
        Err(ProviderError::Other(anyhow!("container not found (\"{}\")", target.container)).into())
    }

    /// Figures of now; reads many files.
    async fn sample(&self) -> Result<(Sample, Vec<PodFigures>), HandlerError> {
        let provider = self.provider.clone();
        let read = move || {
            let pods = provider.figures();
            NodeFigures::read().map(|node| (Sample::new(node, &pods), pods))
        };
        let read = tokio::task::spawn_blocking(read).await.map_err(|error| ProviderError::Other(error.into()))?;
        Ok(read.map_err(|error| ProviderError::Other(error.into()))?)
    }
}

impl From<AccessError> for HandlerError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::NotFound(text) => Self::not_found(text),
            AccessError::Unavailable(text) => Self::invalid(text),
            AccessError::Session(error) => ProviderError::Other(error.into()).into(),
        }
    }
}

impl PodHandlers for KubeletHandlers {
    fn container_logs<'a>(&'a self, target: &'a ContainerTarget, options: LogOptions) -> BoxFuture<'a, Result<BoxRead, HandlerError>> {
        Box::pin(async move {
            let (id, ..) = self.find(&target.pod)?;
            let files = self.provider.log_files(&id, &target.container, options.previous)?;
            let over: Option<Box<dyn Fn() -> bool + Send + Sync>> = if options.follow && !options.previous {
                let (directory, run) = (self.provider.site().container_dir(&id, &target.container), files.restart_count);
                // The note is written when everything is in the log. Notes of all runs but the last two are cleared away.
                let ended = move || {
                    ExitNote::read(&directory, run).is_some() || ShimOrder::read(&directory).is_none_or(|order| order.restart_count > run)
                };
                Some(Box::new(ended))
            } else {
                None
            };
            Ok(logs::read(&files.current, &options, over).await.map_err(|error| ProviderError::Other(error.into()))?)
        })
    }

    fn exec<'a>(&'a self, target: &'a ContainerTarget, command: Vec<String>) -> BoxFuture<'a, Result<Session, HandlerError>> {
        Box::pin(async move {
            let id = self.running(target)?;
            let (provider, container) = (self.provider.clone(), target.container.clone());
            let session: Session = Box::new(move |mut io| {
                Box::pin(async move {
                    let size = if io.tty { Some(first_size(&mut io.sizes).await) } else { None };
                    let session = provider.exec(&id, &container, command, io.stdin.is_some(), size).await?;
                    carry(session, io).await
                })
            });
            Ok(session)
        })
    }

    fn attach<'a>(&'a self, target: &'a ContainerTarget) -> BoxFuture<'a, Result<Session, HandlerError>> {
        Box::pin(async move {
            let id = self.running(target)?;
            let (provider, container) = (self.provider.clone(), target.container.clone());
            let session: Session = Box::new(move |mut io| {
                Box::pin(async move {
                    let session = provider.attach(&id, &container).await?;
                    if io.tty {
                        // Before any input: a program may look at the size when it gets some.
                        let size = first_size(&mut io.sizes).await;
                        let _ = session.writer.send(Input::Resize(size)).await;
                    }
                    // How the container ended is the pod's status to tell.
                    carry(session, io).await.map(|_| 0)
                })
            });
            Ok(session)
        })
    }

    fn port_forward<'a>(&'a self, target: &'a PodTarget) -> BoxFuture<'a, Result<Dialer, HandlerError>> {
        Box::pin(async move {
            let (_, _, status) = self.find(target)?;
            if !matches!(status.phase.as_deref(), Some("Running")) {
                let text =
                    format!("unable to forward port because pod is not running. Current status={}", status.phase.unwrap_or_default());
                return Err(HandlerError::invalid(text));
            }
            let address = self.provider.site().node.address.clone();
            let dial: Dialer = Arc::new(move |port| {
                let address = address.clone();
                Box::pin(async move {
                    // A kubelet connects to localhost in the pod's network, which here is the node's.
                    let mut outcome = Err(std::io::ErrorKind::ConnectionRefused.into());
                    for host in ["127.0.0.1", "::1", &address] {
                        outcome = timeout(DIAL, TcpStream::connect((host, port))).await.unwrap_or(Err(std::io::ErrorKind::TimedOut.into()));
                        if outcome.is_ok() {
                            break;
                        }
                    }
                    outcome.map(|stream| Box::new(stream) as BoxDuplex)
                })
            });
            Ok(dial)
        })
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, HandlerError>> {
        let all = self.provider.all().into_iter().map(|(_, pod, status)| Pod { status: Some(status), ..(*pod).clone() }).collect();
        Box::pin(std::future::ready(Ok(all)))
    }

    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, HandlerError>> {
        let all = self.provider.all().into_iter().filter(|(.., status)| status.phase.as_deref() == Some("Running"));
        let all = all.map(|(_, pod, _)| Pod { status: None, ..(*pod).clone() }).collect();
        Box::pin(std::future::ready(Ok(all)))
    }

    fn stats_summary(&self) -> BoxFuture<'_, Result<serde_json::Value, HandlerError>> {
        Box::pin(async move {
            let (sample, pods) = self.sample().await?;
            let before = self.last.lock().replace(sample.clone());
            Ok(summary::summary(self.provider.node_name(), &sample, before.as_ref(), &pods))
        })
    }

    fn resource_metrics(&self) -> BoxFuture<'_, Result<String, HandlerError>> {
        Box::pin(async move {
            let (sample, pods) = self.sample().await?;
            Ok(summary::metrics(&sample, &pods))
        })
    }
}

async fn first_size(sizes: &mut watch::Receiver<Option<TerminalSize>>) -> shim::TerminalSize {
    let told = timeout(FIRST_SIZE, sizes.wait_for(Option::is_some)).await;
    shim_size(told.ok().and_then(Result::ok).and_then(|size| *size).unwrap_or(USUAL_SIZE))
}

fn shim_size(size: TerminalSize) -> shim::TerminalSize {
    shim::TerminalSize { width: size.width, height: size.height }
}

/// Carries bytes between a client and a process until the process ends.
async fn carry(session: shim::Session, io: SessionIo) -> Result<i32, HandlerError> {
    let shim::Session { mut reader, writer } = session;
    let SessionIo { stdin, mut stdout, mut stderr, tty, mut sizes } = io;
    let (to, sizes_to) = (writer.clone(), writer);
    let input = async move {
        let Some(mut stdin) = stdin else { return };
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = stdin.read(&mut buffer).await {
            let piece = buffer.get(..read).unwrap_or_default().to_vec();
            if to.send(Input::Stdin(piece)).await.is_err() {
                return;
            }
        }
        let _ = to.send(Input::CloseStdin).await;
    };
    let resizing = async move {
        if !tty {
            return;
        }
        loop {
            let size = *sizes.borrow_and_update();
            if let Some(size) = size
                && sizes_to.send(Input::Resize(shim_size(size))).await.is_err()
            {
                return;
            }
            if sizes.changed().await.is_err() {
                return;
            }
        }
    };
    let output = async move {
        loop {
            match reader.next().await.map_err(|error| ProviderError::Other(error.into()))? {
                Output::Stdout(bytes) => write(&mut stdout, &bytes).await,
                Output::Stderr(bytes) => write(&mut stderr, &bytes).await,
                Output::Exit(code) => return Ok(code),
                Output::Refused(reason) => return Err(ProviderError::Other(anyhow!(reason)).into()),
            }
        }
    };
    let (mut output, mut others) = (pin!(output), pin!(async { tokio::join!(input, resizing) }));
    tokio::select! {
        ended = &mut output => ended,
        _ = &mut others => output.await,
    }
}

/// What the client does not want or take is dropped.
async fn write(to: &mut Option<BoxWrite>, bytes: &[u8]) {
    if let Some(stream) = to
        && (stream.write_all(bytes).await.is_err() || stream.flush().await.is_err())
    {
        *to = None;
    }
}
