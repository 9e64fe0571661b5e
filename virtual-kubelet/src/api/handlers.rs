//! What a provider offers to the API: one trait, each method of which has a default that says "not implemented".

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::options::LogOptions;
use crate::errdefs::ProviderError;

/// Bytes to read.
pub type BoxRead = Box<dyn AsyncRead + Send + Unpin>;
/// A place to write bytes to.
pub type BoxWrite = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
/// Both directions of a connection.
pub type BoxDuplex = Box<dyn Duplex>;

/// Which pod a client means. Without a UID it is the one that has the name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTarget {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod, where the client gave one.
    pub uid: Option<String>,
}

/// Which container a client means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerTarget {
    /// Its pod.
    pub pod: PodTarget,
    /// Name of the container.
    pub container: String,
}

impl fmt::Display for ContainerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.pod.namespace, self.pod.name, self.container)
    }
}

/// Size of a client's terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The client's side of a command or of an attached container. What the client did not ask for is absent.
pub struct SessionIo {
    /// What the client sends; ends when the client's input does.
    pub stdin: Option<BoxRead>,
    /// Where output goes; dropping it ends it.
    pub stdout: Option<BoxWrite>,
    /// Where errors go; never with `tty`.
    pub stderr: Option<BoxWrite>,
    /// Whether the client wants a terminal.
    pub tty: bool,
    /// The latest size of the client's terminal, once it told one.
    pub sizes: watch::Receiver<Option<TerminalSize>>,
}

/// A session that may begin. It ends with an exit code, with an error, or by being dropped: then the client has gone, and
/// nothing of the session may be left.
pub type Session = Box<dyn FnOnce(SessionIo) -> BoxFuture<'static, Result<i32, HandlerError>> + Send>;

/// Connects to a port of a pod.
pub type Dialer = Arc<dyn Fn(u16) -> BoxFuture<'static, std::io::Result<BoxDuplex>> + Send + Sync>;

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// The provider does not have this: 501.
    #[error("501 not implemented")]
    NotImplemented,
    /// Not found is 404, invalid input 400, anything else 500.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

impl HandlerError {
    /// A thing that the client named and that is not there. The text reaches the client as it is.
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::Provider(ProviderError::NotFound(text.into()))
    }

    /// A request that cannot be granted as it stands. The text reaches the client as it is.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Provider(ProviderError::InvalidInput(text.into()))
    }

    /// The status code of the answer and its text.
    pub fn answer(&self) -> (u16, String) {
        match self {
            Self::NotImplemented => (501, self.to_string()),
            Self::Provider(ProviderError::NotFound(text)) => (404, text.clone()),
            Self::Provider(ProviderError::InvalidInput(text)) => (400, text.clone()),
            Self::Provider(error @ ProviderError::Other(_)) => (error.http_status(), format!("{error:#}")),
        }
    }
}

fn not_implemented<T: Send + 'static>() -> BoxFuture<'static, Result<T, HandlerError>> {
    Box::pin(std::future::ready(Err(HandlerError::NotImplemented)))
}

/// A provider as the API server sees it. A method that is left out answers 501.
///
/// ```
/// use futures::future::BoxFuture;
/// use virtual_kubelet::api::{ContainerTarget, HandlerError, PodHandlers, Session};
///
/// /// Every command prints its own words.
/// struct Echo;
///
/// impl PodHandlers for Echo {
///     fn exec<'a>(&'a self, _: &'a ContainerTarget, command: Vec<String>) -> BoxFuture<'a, Result<Session, HandlerError>> {
///         Box::pin(async move {
///             let session: Session = Box::new(move |io| {
///                 Box::pin(async move {
///                     if let Some(mut stdout) = io.stdout {
///                         let _ = tokio::io::AsyncWriteExt::write_all(&mut stdout, command.join(" ").as_bytes()).await;
///                     }
///                     Ok(0)
///                 })
///             });
///             Ok(session)
///         })
///     }
/// }
/// ```
pub trait PodHandlers: Send + Sync + 'static {
    /// The log of a container, as the options say. Dropping the reader ends it.
    fn container_logs<'a>(&'a self, target: &'a ContainerTarget, options: LogOptions) -> BoxFuture<'a, Result<BoxRead, HandlerError>> {
        let _ = (target, options);
        not_implemented()
    }

    /// Prepares to run a command in a container.
    fn exec<'a>(&'a self, target: &'a ContainerTarget, command: Vec<String>) -> BoxFuture<'a, Result<Session, HandlerError>> {
        let _ = (target, command);
        not_implemented()
    }

    /// Prepares to attach to a container's own streams.
    fn attach<'a>(&'a self, target: &'a ContainerTarget) -> BoxFuture<'a, Result<Session, HandlerError>> {
        let _ = target;
        not_implemented()
    }

    /// Prepares to forward connections to ports of a pod.
    fn port_forward<'a>(&'a self, target: &'a PodTarget) -> BoxFuture<'a, Result<Dialer, HandlerError>> {
        let _ = target;
        not_implemented()
    }

    /// The pods that the API server assigned to the node.
    fn pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, HandlerError>> {
        not_implemented()
    }

    /// The pods that run.
    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, HandlerError>> {
        not_implemented()
    }

    /// What the node and its pods use, as `Summary` of the kubelet's API `stats/v1alpha1`.
    fn stats_summary(&self) -> BoxFuture<'_, Result<serde_json::Value, HandlerError>> {
        not_implemented()
    }

    /// The same as metrics in Prometheus' text format.
    fn resource_metrics(&self) -> BoxFuture<'_, Result<String, HandlerError>> {
        not_implemented()
    }
}
