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
///
/// ```
/// use virtual_kubelet::api::BoxRead;
///
/// let log: BoxRead = Box::new(&b"started\n"[..]);
/// ```
pub type BoxRead = Box<dyn AsyncRead + Send + Unpin>;
/// A place to write bytes to.
///
/// ```
/// use virtual_kubelet::api::BoxWrite;
///
/// let nowhere: BoxWrite = Box::new(tokio::io::sink());
/// ```
pub type BoxWrite = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of a connection: everything that can be read and written is one.
///
/// ```
/// use virtual_kubelet::api::{BoxDuplex, Duplex};
///
/// fn boxed(connection: impl Duplex + 'static) -> BoxDuplex {
///     Box::new(connection)
/// }
/// let (ours, theirs) = tokio::io::duplex(64);
/// boxed(ours);
/// ```
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
/// Both directions of a connection, as a [`Dialer`] gives it.
///
/// ```
/// use tokio::net::TcpStream;
/// use virtual_kubelet::api::BoxDuplex;
///
/// async fn connect(port: u16) -> std::io::Result<BoxDuplex> {
///     Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?))
/// }
/// ```
pub type BoxDuplex = Box<dyn Duplex>;

/// Which pod a client means. Without a UID it is the one that has the name now.
///
/// ```
/// use virtual_kubelet::api::PodTarget;
///
/// let target = PodTarget { namespace: "web".into(), name: "a".into(), uid: None };
/// ```
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
///
/// ```
/// use virtual_kubelet::api::{ContainerTarget, PodTarget};
///
/// let pod = PodTarget { namespace: "web".into(), name: "a".into(), uid: None };
/// assert_eq!(ContainerTarget { pod, container: "nginx".into() }.to_string(), "web/a/nginx");
/// ```
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
///
/// ```
/// use virtual_kubelet::api::TerminalSize;
///
/// let usual = TerminalSize { width: 80, height: 24 };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The client's side of a command or of an attached container. What the client did not ask for is absent.
///
/// ```
/// use tokio::io::AsyncWriteExt;
/// use virtual_kubelet::api::{HandlerError, SessionIo};
///
/// /// Prints the size of the client's terminal each time that it changes.
/// async fn sizes(mut io: SessionIo) -> Result<i32, HandlerError> {
///     let Some(mut stdout) = io.stdout.filter(|_| io.tty) else { return Ok(1) };
///     // Ends with the client.
///     while io.sizes.changed().await.is_ok() {
///         let size = *io.sizes.borrow_and_update();
///         if let Some(size) = size {
///             let _ = stdout.write_all(format!("{} x {}\r\n", size.width, size.height).as_bytes()).await;
///         }
///     }
///     Ok(0)
/// }
/// ```
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
///
/// ```
/// use tokio::io::copy;
/// use virtual_kubelet::api::{HandlerError, Session, SessionIo};
///
/// /// Gives back what it gets, as `cat` does.
/// fn cat() -> Session {
///     Box::new(|io: SessionIo| {
///         Box::pin(async move {
///             let (Some(mut stdin), Some(mut stdout)) = (io.stdin, io.stdout) else {
///                 return Err(HandlerError::invalid("nothing to read, or nowhere to write"));
///             };
///             Ok(if copy(&mut stdin, &mut stdout).await.is_ok() { 0 } else { 1 })
///         })
///     })
/// }
/// ```
pub type Session = Box<dyn FnOnce(SessionIo) -> BoxFuture<'static, Result<i32, HandlerError>> + Send>;

/// Connects to a port of a pod.
///
/// ```
/// use std::sync::Arc;
///
/// use tokio::net::TcpStream;
/// use virtual_kubelet::api::{BoxDuplex, Dialer};
///
/// /// Connects to a pod that has an address of its own.
/// fn dialer(address: std::net::IpAddr) -> Dialer {
///     Arc::new(move |port| {
///         Box::pin(async move {
///             let connection: BoxDuplex = Box::new(TcpStream::connect((address, port)).await?);
///             Ok(connection)
///         })
///     })
/// }
/// ```
pub type Dialer = Arc<dyn Fn(u16) -> BoxFuture<'static, std::io::Result<BoxDuplex>> + Send + Sync>;

/// Why a request is not answered.
///
/// ```
/// use virtual_kubelet::api::HandlerError;
/// use virtual_kubelet::errdefs::ProviderError;
///
/// assert_eq!(HandlerError::not_found("no pod a").answer(), (404, "no pod a".to_owned()));
/// assert_eq!(HandlerError::invalid("the container waits").answer(), (400, "the container waits".to_owned()));
/// assert_eq!(HandlerError::NotImplemented.answer().0, 501);
/// let broken = ProviderError::Other(anyhow::anyhow!("the disk is full"));
/// assert_eq!(HandlerError::from(broken).answer(), (500, "the disk is full".to_owned()));
/// ```
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
    /// A thing that the client named and that does not exist. The text reaches the client as it is.
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
/// use std::sync::Arc;
///
/// use futures::future::BoxFuture;
/// use k8s_openapi::api::core::v1::Pod;
/// use tokio::io::AsyncWriteExt;
/// use tokio::net::TcpStream;
/// use virtual_kubelet::api::{BoxDuplex, BoxRead, ContainerTarget, Dialer, HandlerError, LogOptions, PodHandlers, PodTarget, Session};
///
/// type Answer<'a, T> = BoxFuture<'a, Result<T, HandlerError>>;
///
/// /// Every command prints its own words.
/// struct Echo {
///     pods: Vec<Pod>,
/// }
///
/// impl PodHandlers for Echo {
///     fn exec<'a>(&'a self, _: &'a ContainerTarget, command: Vec<String>) -> Answer<'a, Session> {
///         let session: Session = Box::new(move |io| {
///             Box::pin(async move {
///                 if let Some(mut stdout) = io.stdout {
///                     let _ = stdout.write_all(command.join(" ").as_bytes()).await;
///                 }
///                 Ok(0)
///             })
///         });
///         Box::pin(async { Ok(session) })
///     }
///
///     fn attach<'a>(&'a self, target: &'a ContainerTarget) -> Answer<'a, Session> {
///         self.exec(target, vec!["attached".into()])
///     }
///
///     fn container_logs<'a>(&'a self, target: &'a ContainerTarget, options: LogOptions) -> Answer<'a, BoxRead> {
///         Box::pin(async move {
///             if options.previous {
///                 return Err(HandlerError::not_found(format!("{target} has not been restarted")));
///             }
///             let log: BoxRead = Box::new(&b"nothing happens\n"[..]);
///             Ok(log)
///         })
///     }
///
///     fn port_forward<'a>(&'a self, _: &'a PodTarget) -> Answer<'a, Dialer> {
///         let dialer: Dialer = Arc::new(|port| {
///             Box::pin(async move { Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?) as BoxDuplex) })
///         });
///         Box::pin(async { Ok(dialer) })
///     }
///
///     fn pods(&self) -> Answer<'_, Vec<Pod>> {
///         Box::pin(async { Ok(self.pods.clone()) })
///     }
///
///     fn running_pods(&self) -> Answer<'_, Vec<Pod>> {
///         self.pods()
///     }
///
///     fn stats_summary(&self) -> Answer<'_, serde_json::Value> {
///         Box::pin(async { Ok(serde_json::json!({ "node": { "nodeName": "n1" }, "pods": [] })) })
///     }
///
///     fn resource_metrics(&self) -> Answer<'_, String> {
///         Box::pin(async { Ok("# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n".into()) })
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
