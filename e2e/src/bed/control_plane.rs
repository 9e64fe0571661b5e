//! etcd, API server, controller manager and scheduler: the real ones, from one binary.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
};

use crate::{
    bed::rights,
    eventually::eventually,
    host::{
        certificates::{Authority, Credential, Identity, write_private},
        network,
        process::Process,
    },
};

/// How long the whole control plane may take to be ready. It takes 4 s on two idle cores.
const START: Duration = Duration::from_secs(90);
/// The token of the first admin. It opens nothing outside: the server lives in the bed's own network namespace.
const ADMIN_TOKEN: &str = "the-bed-is-not-reachable-from-outside";
const ETCD: &str = "http://127.0.0.1:2379";
/// Where etcd keeps everything, below the bed's state.
const ETCD_DATA: &str = "etcd";
const ETCD_PEERS: &str = "http://127.0.0.1:2380";

/// By how many percent a heap grows before Go collects garbage, instead of 100. At 200 that still was a seventh of what a control plane
/// computes, and the beds of `make test` wait for the processor.
const COLLECTS_AT: &str = "400";
/// The flag by which a component serves nothing. Nobody asks those for health, and each made two RSA keys at its start to serve with.
const SERVES_NOTHING: (&str, &str) = ("secure-port", "0");

/// What differs between beds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// After how many seconds without a lease renewal a node is lost. Kubernetes' default is 50; virtual nodes renew
    /// every 10 s.
    pub node_grace_seconds: u32,
    /// How many seconds pods without a toleration of their own stay on a lost node. Kubernetes' default is 300.
    pub eviction_seconds: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self { node_grace_seconds: 25, eviction_seconds: 300 }
    }
}

/// One of its programs, and how it is started again.
struct Component {
    process: Process,
    arguments: Vec<String>,
}

/// A running control plane.
pub struct ControlPlane {
    authority: Authority,
    components: Vec<Component>,
    binary: PathBuf,
    logs: PathBuf,
    state: PathBuf,
    admin: PathBuf,
}

impl ControlPlane {
    /// Starts everything and waits until the API server is ready and the controllers work. With `critical_needs_quota` it admits pods of
    /// Kubernetes' own priority classes as GKE does: only in namespaces with a `ResourceQuota` for them.
    pub async fn start(state: &Path, timing: &Timing, critical_needs_quota: bool) -> Result<Self> {
        let binary = binary()?;
        let authority = Authority::new(&state.join("pki"))?;
        let admin = state.join("admin.kubeconfig");
        let config = authority.kubeconfig(&server(), Credential::Token(ADMIN_TOKEN))?;
        write_private(&admin, &serde_json::to_string_pretty(&config)?)?;
        let mut this = Self { authority, components: Vec::new(), binary, logs: state.join("logs"), state: state.to_owned(), admin };
        let (signing_key, public_key) = this.authority.service_account_keys()?;
        this.start_etcd()?;
        this.start_api_server(&signing_key, &public_key, timing, critical_needs_quota)?;
        let client = this.admin_client().await?;
        eventually(START, "the API server is ready", async || {
            this.check()?;
            let request = http_get("/readyz")?;
            client.request_text(request).await.map(drop).context("GET /readyz")
        })
        .await?;
        this.start_controller_manager(&signing_key, timing)?;
        this.start_scheduler()?;
        eventually(START, "the controller manager works (namespace default has its ServiceAccount)", async || {
            this.check()?;
            Api::<ServiceAccount>::namespaced(client.clone(), "default").get("default").await.map(drop)?;
            Ok(())
        })
        .await?;
        Ok(this)
    }

    /// Fails when a component has ended.
    pub fn check(&mut self) -> Result<()> {
        self.components.iter_mut().try_for_each(|component| component.process.check())
    }

    /// Sends a signal to a component, such as `SIGSTOP` to `kube-apiserver`.
    pub fn signal(&self, name: &str, signal: nix::sys::signal::Signal) -> Result<()> {
        let component = self.components.iter().find(|component| component.process.name() == name);
        component.with_context(|| format!("the control plane has no component {name}"))?.process.signal(signal)
    }

    /// The process id of a component, while it runs.
    pub fn id(&self, name: &str) -> Option<u32> {
        self.components.iter().find(|component| component.process.name() == name)?.process.id()
    }

    /// Kills all of it and forgets everything, so that another one can start in its place.
    pub async fn end(self) -> Result<()> {
        for Component { process, .. } in self.components.into_iter().rev() {
            process.kill().await?;
        }
        let data = self.state.join(ETCD_DATA);
        std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))
    }

    /// Kills a component (`SIGKILL`); it stays down until [`ControlPlane::start_again`].
    pub async fn kill(&mut self, name: &str) -> Result<Killed> {
        let index = self.components.iter().position(|component| component.process.name() == name);
        let Component { process, arguments } = self.components.remove(index.with_context(|| format!("{name} does not run"))?);
        process.kill().await?;
        Ok(Killed { name: name.to_owned(), arguments })
    }

    /// Starts a component as it was started before.
    pub fn start_again(&mut self, killed: Killed) -> Result<()> {
        self.run(&killed.name, killed.arguments)
    }

    /// Drops what etcd remembers of all revisions before this one.
    pub async fn compact(&self, revision: u64) -> Result<()> {
        let body = serde_json::json!({ "revision": revision.to_string(), "physical": true }).to_string();
        let request =
            format!("POST /v3/kv/compaction HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let mut stream = TcpStream::connect(ETCD.trim_start_matches("http://")).await.context("connecting to etcd")?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.split(' ').nth(1) == Some("200"), "etcd did not compact: {answer}");
        Ok(())
    }

    /// A client that may do everything.
    pub async fn admin_client(&self) -> Result<Client> {
        let text = std::fs::read_to_string(&self.admin).context("reading the admin's kubeconfig")?;
        client(&serde_json::from_str(&text)?).await
    }

    /// The kubeconfig of [`ControlPlane::admin_client`], for `kubectl` inside the bed.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// The admin's kubeconfig for another address of the API server, which must be one of its certificate's.
    pub fn admin_kubeconfig_for(&self, server: &str) -> Result<Value> {
        self.authority.kubeconfig(server, Credential::Token(ADMIN_TOKEN))
    }

    /// Writes the kubeconfig of the node agent of `node` and returns its path.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let identity = self.authority.client(&format!("node-{node}"), &format!("system:node:{node}"), Some("system:nodes"))?;
        self.write_kubeconfig(&format!("node-{node}"), &identity)
    }

    /// Writes the kubeconfig of a user who has the rights that roles are bound for, and returns its path.
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf> {
        let identity = self.authority.client(user, user, None)?;
        self.write_kubeconfig(user, &identity)
    }

    /// The certificate that the node's API serves with, given to it as a file.
    pub fn node_serving(&self, node: &str, address: IpAddr) -> Result<Identity> {
        self.authority.server(&format!("kubelet-{node}"), &[node], &[address])
    }

    /// The certificate of the authority that everything trusts.
    pub fn authority(&self) -> PathBuf {
        self.authority.certificate()
    }

    /// The program that is every component, and with the argument `kubectl` that.
    pub fn program(&self) -> &Path {
        &self.binary
    }

    /// `kubectl` as admin, to be given arguments.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(["kubectl", "--kubeconfig"]).arg(&self.admin).kill_on_drop(true);
        command
    }

    /// Runs `kubectl` as admin and returns what it printed.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.admin.to_string_lossy();
        let all = ["kubectl", "--kubeconfig", &kubeconfig].into_iter().chain(arguments.iter().copied());
        crate::host::process::run(&self.binary, all).await
    }

    /// What Helm and Flux take an object for: a word of kstatus, and a message.
    pub async fn kstatus(&self, object: &Value) -> Result<String> {
        let file = self.state.join("kstatus.json");
        tokio::fs::write(&file, object.to_string()).await?;
        crate::host::process::run(&self.binary, ["kstatus", &file.to_string_lossy()]).await
    }

    fn start_etcd(&mut self) -> Result<()> {
        let data = self.state.join(ETCD_DATA);
        self.component(
            "etcd",
            &[
                ("data-dir", text(&data)),
                ("listen-client-urls", ETCD.into()),
                ("advertise-client-urls", ETCD.into()),
                ("listen-peer-urls", ETCD_PEERS.into()),
                ("initial-advertise-peer-urls", ETCD_PEERS.into()),
                ("initial-cluster", format!("default={ETCD_PEERS}")),
                ("unsafe-no-fsync", "true".into()),
                ("log-level", "warn".into()),
            ],
        )
    }

    fn start_api_server(&mut self, signing_key: &Path, public_key: &Path, timing: &Timing, critical_needs_quota: bool) -> Result<()> {
        let tokens = write_private(&self.state.join("pki/tokens.csv"), &format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
        let addresses = [IpAddr::from(network::BED), IpAddr::from(network::KUBERNETES_SERVICE), IpAddr::from([127, 0, 0, 1])];
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let serving = self.authority.server("kube-apiserver", &names, &addresses)?;
        let kubelet_client = self.authority.client("kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters"))?;
        let authority = self.authority.certificate();
        let policy = write_private(&self.state.join("audit-policy.json"), &rights::audit_policy().to_string())?;
        let flags = [
            ("etcd-servers", ETCD.into()),
            ("bind-address", "0.0.0.0".into()),
            ("secure-port", "443".into()),
            ("advertise-address", network::BED.to_string()),
            ("service-cluster-ip-range", network::SERVICE_RANGE.into()),
            ("tls-cert-file", text(&serving.certificate)),
            ("tls-private-key-file", text(&serving.key)),
            ("client-ca-file", text(&authority)),
            ("token-auth-file", text(&tokens)),
            ("kubelet-client-certificate", text(&kubelet_client.certificate)),
            ("kubelet-client-key", text(&kubelet_client.key)),
            ("kubelet-certificate-authority", text(&authority)),
            // The bed has no DNS that knows nodes by name.
            ("kubelet-preferred-address-types", "InternalIP".into()),
            ("service-account-issuer", "https://kubernetes.default.svc".into()),
            ("service-account-key-file", text(public_key)),
            ("service-account-signing-key-file", text(signing_key)),
            ("authorization-mode", "Node,RBAC".into()),
            ("enable-admission-plugins", "NodeRestriction,OwnerReferencesPermissionEnforcement".into()),
            // Webhooks are reached at their pods: nothing in the bed forwards a Service's address.
            ("enable-aggregator-routing", "true".into()),
            ("audit-policy-file", text(&policy)),
            ("audit-log-path", text(&rights::audit_log(&self.state))),
            ("allow-privileged", "true".into()),
            ("default-not-ready-toleration-seconds", timing.eviction_seconds.to_string()),
            ("default-unreachable-toleration-seconds", timing.eviction_seconds.to_string()),
        ];
        let further = std::env::var(API_SERVER_FLAGS).unwrap_or_default();
        let flags = flags.iter().map(|(flag, value)| format!("--{flag}={value}"));
        let mut flags: Vec<_> = flags.chain(further.split_whitespace().map(str::to_owned)).collect();
        if critical_needs_quota {
            let file = write_private(&self.state.join("admission.json"), &critical_needs_quota_configuration().to_string())?;
            flags.push(format!("--admission-control-config-file={}", file.display()));
        }
        self.run("kube-apiserver", flags)
    }

    fn start_controller_manager(&mut self, signing_key: &Path, timing: &Timing) -> Result<()> {
        let name = "kube-controller-manager";
        let identity = self.authority.client(name, "system:kube-controller-manager", None)?;
        let kubeconfig = self.write_kubeconfig(name, &identity)?;
        let authority = self.authority.certificate();
        self.component(
            name,
            &[
                ("kubeconfig", text(&kubeconfig)),
                ("use-service-account-credentials", "true".into()),
                ("leader-elect", "false".into()),
                ("kube-api-qps", "500".into()),
                ("kube-api-burst", "1000".into()),
                ("service-account-private-key-file", text(signing_key)),
                ("root-ca-file", text(&authority)),
                ("cluster-signing-cert-file", text(&authority)),
                ("cluster-signing-key-file", text(&self.authority.key())),
                (SERVES_NOTHING.0, SERVES_NOTHING.1.into()),
                ("node-monitor-period", "2s".into()),
                ("node-monitor-grace-period", format!("{}s", timing.node_grace_seconds)),
            ],
        )
    }

    fn start_scheduler(&mut self) -> Result<()> {
        let name = "kube-scheduler";
        let identity = self.authority.client(name, "system:kube-scheduler", None)?;
        let kubeconfig = self.write_kubeconfig(name, &identity)?;
        self.component(
            name,
            &[
                ("kubeconfig", text(&kubeconfig)),
                ("authentication-kubeconfig", text(&kubeconfig)),
                ("authorization-kubeconfig", text(&kubeconfig)),
                ("leader-elect", "false".into()),
                ("kube-api-qps", "500".into()),
                ("kube-api-burst", "1000".into()),
                (SERVES_NOTHING.0, SERVES_NOTHING.1.into()),
            ],
        )
    }

    fn component(&mut self, name: &str, flags: &[(&str, String)]) -> Result<()> {
        self.run(name, flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect())
    }

    fn run(&mut self, name: &str, arguments: Vec<String>) -> Result<()> {
        if name == "kube-apiserver" {
            rights::api_server_starts(&self.state)?;
        }
        let mut command = Command::new(&self.binary);
        command.arg(name).current_dir(&self.state).args(&arguments).env("GOGC", COLLECTS_AT);
        self.components.push(Component { process: Process::start(name, &self.logs, command)?, arguments });
        Ok(())
    }

    fn write_kubeconfig(&self, name: &str, identity: &Identity) -> Result<PathBuf> {
        let config = self.authority.kubeconfig(&server(), Credential::Certificate(identity))?;
        write_private(&self.state.join("pki").join(format!("{name}.kubeconfig")), &serde_json::to_string_pretty(&config)?)
    }
}

/// A component that was killed and can be started again.
#[derive(Debug)]
pub struct Killed {
    name: String,
    arguments: Vec<String>,
}

fn critical_needs_quota_configuration() -> Value {
    let classes = json!({
        "scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical", "system-node-critical"],
    });
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
                "limitedResources": [{ "resource": "pods", "matchScopes": [classes] }],
            },
        }],
    })
}

/// Another binary of the control plane: a path in the repository.
pub const BINARY: &str = "BED_CONTROL_PLANE";
/// Further flags of the API server, with blanks in between.
pub const API_SERVER_FLAGS: &str = "BED_API_SERVER_FLAGS";

/// The control plane's binary, which `make control-plane` builds.
fn binary() -> Result<PathBuf> {
    let path = std::env::var(BINARY).unwrap_or_else(|_| "target/bed/control-plane".to_owned());
    let path = crate::host::images::repository().join(path);
    ensure!(path.is_file(), "{} is not there; `make control-plane` builds it (5 minutes, once)", path.display());
    Ok(path)
}

/// A client for what a kubeconfig describes.
pub async fn client(kubeconfig: &Value) -> Result<Client> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig.clone()).context("reading a kubeconfig")?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Client::try_from(config).context("building a client")
}

/// As [`client`], but a request that fails is not repeated: that is decided where it is made.
pub async fn client_without_retry(kubeconfig: &Value) -> Result<Client> {
    Client::try_from(config_without_retry(kubeconfig).await?).context("building a client")
}

/// What [`client_without_retry`] is made of.
pub async fn config_without_retry(kubeconfig: &Value) -> Result<Config> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig.clone()).context("reading a kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(config)
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path).body(Vec::new()).context("building a request")
}

/// The API server's address.
pub fn server() -> String {
    format!("https://{}", network::BED)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
