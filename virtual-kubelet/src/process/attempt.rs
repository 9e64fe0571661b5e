//! Single attempts of probes and hooks: an HTTP request, a connection, a command.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Request;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::probe::port;
use super::shim::{Open, Session};
use super::{any_certificate, grpc_health};

/// A running container, as probes and hooks need it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its spec.
    pub container: Container,
    /// Its directory.
    pub dir: PathBuf,
    /// Address that its ports are reached at.
    pub address: String,
}

impl Target {
    /// One attempt of a probe, at most `timeout` long; an error is its failure.
    pub async fn probe(&self, probe: &Probe, timeout: Duration) -> Result<(), String> {
        let attempt = async {
            if let Some(http) = &probe.http_get {
                self.http(http).await
            } else if let Some(tcp) = &probe.tcp_socket {
                self.connect(tcp.host.as_deref(), &tcp.port).await.map(drop)
            } else if let Some(exec) = &probe.exec {
                self.exec(exec).await
            } else if let Some(grpc) = &probe.grpc {
                let stream = self.connect(None, &IntOrString::Int(grpc.port)).await?;
                let peer = stream.peer_addr().map_err(|error| error.to_string())?.to_string();
                grpc_health::check(stream, &peer, grpc.service.as_deref().unwrap_or_default()).await
            } else {
                Err("a probe of this kind is not supported".into())
            }
        };
        tokio::time::timeout(timeout, attempt).await.unwrap_or_else(|_| Err(format!("no answer within {} s", timeout.as_secs())))
    }

    /// Runs a hook to its end.
    pub async fn hook(&self, handler: &LifecycleHandler) -> Result<(), String> {
        if let Some(sleep) = &handler.sleep {
            tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default())).await;
            return Ok(());
        }
        match (&handler.exec, &handler.http_get) {
            (Some(exec), _) => self.exec(exec).await,
            (_, Some(http)) => self.http(http).await,
            _ => Err("a hook of this kind is not supported".into()),
        }
    }

    async fn connect(&self, host: Option<&str>, wanted: &IntOrString) -> Result<TcpStream, String> {
        let port = port(&self.container, wanted).ok_or_else(|| format!("no port {wanted:?}"))?;
        let host = host.filter(|host| !host.is_empty()).unwrap_or(&self.address);
        TcpStream::connect((host, port)).await.map_err(|error| format!("{host}:{port}: {error}"))
    }

    async fn http(&self, action: &HTTPGetAction) -> Result<(), String> {
        let stream = self.connect(action.host.as_deref(), &action.port).await?;
        let peer = stream.peer_addr().map_err(|error| error.to_string())?;
        if action.scheme.as_deref() == Some("HTTPS") {
            let host = action.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| peer.ip().to_string());
            return http_get(any_certificate::connect(stream, &host).await?, &peer.to_string(), action).await;
        }
        http_get(stream, &peer.to_string(), action).await
    }

    async fn exec(&self, action: &ExecAction) -> Result<(), String> {
        /// As much of the output as a kubelet looks at.
        const KEPT: usize = 10 * 1024;
        let argv = action.command.clone().unwrap_or_default();
        // Dropping the session, for example when the time is up, ends the command.
        let session = Session::open(&self.dir, Open::Exec { argv, stdin: false, tty: None }).await.map_err(|error| error.to_string())?;
        match session.collect(KEPT).await {
            Ok((0, _)) => Ok(()),
            Ok((code, output)) => Err(format!("command failed (exit code {code}): {}", String::from_utf8_lossy(&output).trim())),
            Err(error) => Err(error.to_string()),
        }
    }
}

async fn http_get(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    authority: &str,
    action: &HTTPGetAction,
) -> Result<(), String> {
    let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut request = Request::get(path).header("connection", "close");
    let mut defaults = vec![("host", authority), ("user-agent", "kube-probe/1.36"), ("accept", "*/*")];
    for header in action.http_headers.iter().flatten() {
        defaults.retain(|(name, _)| !header.name.eq_ignore_ascii_case(name));
        request = request.header(&header.name, &header.value);
    }
    for (name, value) in defaults {
        request = request.header(name, value);
    }
    let request = request.body(String::new()).map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    // The connection may end in the very moment it delivers the answer.
    let response = tokio::select! {
        answer = &mut answer => answer,
        _ = connection => answer.await,
    };
    let response = response.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    if (200..400).contains(&status) { Ok(()) } else { Err(format!("HTTP probe failed with statuscode: {status}")) }
}
