//! Repeats a readiness probe of the kubelet from the node.

use std::{io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A readiness probe that needs no process inside the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadinessProbe {
    /// What to connect to.
    pub target: ProbeTarget,
    /// Between two attempts.
    pub period: Duration,
    /// For one attempt.
    pub timeout: Duration,
    /// Failures in a row that count, 1 or more.
    pub failure_threshold: u32,
}

/// What a probe connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// Passes when a connection is made. HTTPS probes too: without the handshake this misses some failures and
    /// invents none.
    Tcp {
        /// Address or name.
        host: String,
        /// Port.
        port: u16,
    },
    /// Passes with a status from 200 to 399, as for the kubelet.
    Http {
        /// Address or name.
        host: String,
        /// Port.
        port: u16,
        /// Path and query.
        path: String,
        /// Additional headers.
        headers: Vec<(String, String)>,
    },
}

/// One attempt.
pub async fn passes(probe: &ReadinessProbe) -> bool {
    let attempt = async {
        match &probe.target {
            ProbeTarget::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).await.map(|_| true),
            ProbeTarget::Http { host, port, path, headers } => get(host, *port, path, headers).await,
        }
    };
    matches!(timeout(probe.timeout, attempt).await, Ok(Ok(true)))
}

async fn get(host: &str, port: u16, path: &str, headers: &[(String, String)]) -> io::Result<bool> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(request(host, port, path, headers).as_bytes()).await?;
    // "HTTP/1.1 200" is all that is needed.
    let mut line = [0; 12];
    stream.read_exact(&mut line).await?;
    Ok(status(&line).is_some_and(|status| (200..400).contains(&status)))
}

fn request(host: &str, port: u16, path: &str, headers: &[(String, String)]) -> String {
    let mut lines = vec![format!("GET {path} HTTP/1.1")];
    let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !given("host") {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        lines.push(format!("Host: {host}:{port}"));
    }
    if !given("user-agent") {
        lines.push(concat!("User-Agent: ingress-daemonset-health-checker/", env!("CARGO_PKG_VERSION")).into());
    }
    lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
    lines.extend(["Accept: */*", "Connection: close", "", ""].map(str::to_owned));
    lines.join("\r\n")
}

fn status(line: &[u8; 12]) -> Option<u16> {
    let line = std::str::from_utf8(line).ok()?;
    let (version, status) = line.split_once(' ')?;
    version.starts_with("HTTP/1.").then(|| status.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn against(answer: &'static str) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        let target = ProbeTarget::Http { host: "127.0.0.1".into(), port, path: "/".into(), headers: vec![] };
        passes(&ReadinessProbe { target, period: Duration::from_secs(1), timeout: Duration::from_secs(5), failure_threshold: 1 }).await
    }

    #[tokio::test]
    async fn a_status_from_200_to_399_passes_anything_else_fails() {
        assert!(against("HTTP/1.1 204 No Content\r\n\r\n").await);
        assert!(against("HTTP/1.0 302 Found\r\n\r\n").await);
        assert!(!against("HTTP/1.1 503 Service Unavailable\r\n\r\n").await);
        assert!(!against("SSH-2.0-OpenSSH_9.9\r\n").await);
        assert!(!against("").await);
    }

    #[test]
    fn headers_of_the_probe_replace_ours() {
        let text = request("fd00::1", 80, "/x", &[("Host".into(), "example.com".into())]);
        assert!(text.contains("\r\nHost: example.com\r\n") && !text.contains("fd00"), "{text}");
        assert!(request("fd00::1", 80, "/x", &[]).contains("\r\nHost: [fd00::1]:80\r\n"));
    }
}
