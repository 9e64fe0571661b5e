//! The flags of the kubelet API, and how it is served.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use virtual_kubelet::api::{self, ApiReviews, Auth, NodeIdentity, PodHandlers, ServingCertificate, WebhookAuth};

/// Authentication of clients of the kubelet API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Authentication {
    /// By certificate (`--client-ca-file`) or token. The API server decides on their rights (`TokenReview`, `SubjectAccessReview`).
    Webhook,
    /// No authentication: anyone who reaches the port may run commands in every container.
    None,
}

/// Flags of the kubelet API.
#[derive(Args, Debug)]
pub struct ApiArgs {
    /// Port of the kubelet API on the node's address: logs, exec, attach, port-forward, stats. 0: no kubelet API.
    #[arg(long, env = "KUBELET_PORT", default_value_t = 10250)]
    kubelet_port: u16,
    /// Serving certificate in PEM format, read again each minute. Without it, a node requests a certificate from the cluster (signer
    /// kubernetes.io/kubelet-serving), which somebody must approve; a fleet signs its own.
    #[arg(long, env = "TLS_CERT_FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Private key of the serving certificate.
    #[arg(long, env = "TLS_PRIVATE_KEY_FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Authorities of client certificates in PEM format: usually that of the cluster, which signed the API server's kubelet client
    /// certificate.
    #[arg(long, env = "CLIENT_CA_FILE")]
    client_ca_file: Option<PathBuf>,
    /// Authentication of clients of the kubelet API.
    #[arg(long, env = "KUBELET_AUTHENTICATION", value_enum, default_value_t = Authentication::Webhook)]
    kubelet_authentication: Authentication,
}

impl ApiArgs {
    /// The port that the Node tells, if the API is served.
    pub fn port(&self) -> Option<u16> {
        (self.kubelet_port != 0).then_some(self.kubelet_port)
    }

    /// Serves the API of a node, or of all, until `stop` is cancelled. Without a directory for a certificate that is requested one is made.
    /// Fails when it cannot begin to.
    pub async fn serve(
        &self,
        client: Client,
        node: Option<&str>,
        address: IpAddr,
        pki: Option<PathBuf>,
        handlers: Arc<dyn PodHandlers>,
        stop: CancellationToken,
    ) -> Result<()> {
        let Some(port) = self.port() else {
            tracing::warn!("the kubelet API is off: logs, exec and the like do not work on this node");
            return Ok(());
        };
        let listener = TcpListener::bind(SocketAddr::new(address, port)).await;
        let listener = listener.with_context(|| format!("listening on {address}:{port} for the kubelet API"))?;
        let report = |text: &str| tracing::warn!("{text}");
        let certificate = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(file), Some(key)) => {
                let certificate = ServingCertificate::from_files(file, key)?;
                let keeping = certificate.clone().keep_files(file.clone(), key.clone(), report);
                tokio::spawn(stop.clone().run_until_cancelled_owned(keeping));
                certificate
            }
            (None, None) => {
                let identity = NodeIdentity { name: node.unwrap_or("fleet").to_owned(), addresses: vec![address] };
                match pki {
                    None => ServingCertificate::self_signed(&identity)?,
                    Some(directory) => {
                        let certificate = ServingCertificate::default();
                        let keeping = certificate.clone().keep_requested(client.clone(), identity, directory, report);
                        tokio::spawn(stop.clone().run_until_cancelled_owned(keeping));
                        certificate
                    }
                }
            }
            _ => bail!("set both --tls-cert-file and --tls-private-key-file, or neither"),
        };
        let auth = match self.kubelet_authentication {
            Authentication::Webhook => {
                if self.client_ca_file.is_none() {
                    tracing::warn!(
                        "the kubelet API identifies clients only by tokens: without --client-ca-file it answers 401 to API servers"
                    );
                }
                Auth::Webhook(Arc::new(WebhookAuth::new(ApiReviews { client, node: node.unwrap_or_default().to_owned() })))
            }
            Authentication::None => {
                tracing::warn!("the kubelet API authenticates nobody: everyone who reaches {address}:{port} may run commands");
                Auth::None
            }
        };
        let tls = api::tls(Arc::new(certificate), self.client_ca_file.as_deref())?;
        let routes = api::router(&api::Api::new(handlers, stop.clone()), true);
        let routes = routes.layer(axum::middleware::from_fn_with_state(auth, api::authorize));
        tokio::spawn(api::serve(listener, tls, routes, stop));
        tracing::info!(%address, port, "serving the kubelet API");
        Ok(())
    }
}
