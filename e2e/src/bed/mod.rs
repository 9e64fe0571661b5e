//! A bed: the control plane, the nodes, the load balancer, the recorder, and the operator as `deploy/` installs it.
//! Load, faults and scenarios are above it.
//! What a bed consists of comes from its [`Options`]. It hands out clients of the API, nodes, counters of the load balancer, and the
//! history of all objects.

pub mod control_plane;
pub mod haproxy;
pub mod health_check;
pub mod leftovers;
pub mod listener;
pub mod machine;
pub mod node;
pub mod operator;
pub mod recorder;
pub mod rights;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{
    bed::{
        control_plane::{ControlPlane, Timing},
        haproxy::{Check, HaProxy},
        leftovers::Entry,
        machine::Fittings,
        node::{Node, NodeSpec},
        recorder::Recorder,
    },
    eventually::eventually,
    host::{certificates::Credentials, images, namespaces, network, process::Process},
};

/// The nodes that the operator's pods run on, one each. They get no traffic.
pub const INFRA_NODES: [&str; 2] = ["infra1", "infra2"];
/// The label of [`INFRA_NODES`].
pub const INFRA_LABEL: &str = "node-role.kubernetes.io/infra";

/// How long a Deployment may take to become available. It takes seconds on a machine that is idle.
const AVAILABLE: Duration = Duration::from_mins(3);

/// What a bed consists of.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the cluster")]
pub struct Options {
    /// Nodes behind the load balancer.
    pub nodes: Vec<NodeSpec>,
    /// Whether there are also [`INFRA_NODES`], for pods that are not to share the fate of the others.
    pub infra: bool,
    /// Whether nodes are machines with real kubelets and containerd. [`machine::ON_MACHINES`] has the same effect.
    pub kubelets: bool,
    /// How `HAProxy` checks the nodes.
    pub check: Check,
    /// Delays of the control plane.
    pub timing: Timing,
    /// Whether pods of Kubernetes' own priority classes need a quota, as on GKE.
    pub critical_needs_quota: bool,
    /// The scenario takes rights away: a request that is forbidden does not fail it.
    pub takes_rights_away: bool,
}

impl Options {
    /// `count` nodes named `n1`, `n2`, …, with the label `ingress=true`, alternating between the zones `a` and `b`.
    pub fn with_nodes(count: u8) -> Self {
        let node = |index: u8| NodeSpec::new(&format!("n{index}")).label("ingress", "true").zone(if index % 2 == 1 { "a" } else { "b" });
        Self { nodes: (1..=count).map(node).collect(), ..Self::default() }
    }

    /// With [`INFRA_NODES`].
    #[must_use]
    pub fn with_infra(mut self) -> Self {
        self.infra = true;
        self
    }

    /// With real kubelets.
    #[must_use]
    pub fn with_kubelets(mut self) -> Self {
        self.kubelets = true;
        self
    }

    /// With another health check.
    #[must_use]
    pub fn with_check(mut self, check: Check) -> Self {
        self.check = check;
        self
    }
}

/// A running bed. It ends with the process that started it.
///
/// Scenarios that share one have the control plane and the operator in common, one after the other; nodes, load balancer and recorder
/// are each one's own.
pub struct Bed {
    /// The API as admin.
    pub client: Client,
    /// The load balancer.
    pub haproxy: HaProxy,
    /// The control plane.
    pub control_plane: ControlPlane,
    /// Everything that happened, for the auditor.
    pub recorder: Recorder,
    nodes: BTreeMap<String, Node>,
    /// With real kubelets.
    fittings: Option<Fittings>,
    haproxy_process: Process,
    state: PathBuf,
    next_index: u8,
    started: Instant,
    /// What a new cluster has, and of the product what `deploy/` made of it.
    first: BTreeSet<Entry>,
}

impl Bed {
    /// Starts everything and waits until all nodes are Ready. Only inside the namespaces.
    pub async fn start(options: Options) -> Result<Self> {
        let started = Instant::now();
        namespaces::check_tools(&["haproxy", "nginx", "wrk"])?;
        let state = PathBuf::from(namespaces::STATE);
        images::write_table(&state)?;
        let kubelets = options.kubelets || std::env::var_os(machine::ON_MACHINES).is_some();
        let fittings = if kubelets { Some(Fittings::make(&state).await?) } else { None };
        network::create().await.context("making the bed's network")?;
        say(started, "starting the control plane");
        let control_plane = ControlPlane::start(&state, &options.timing, options.critical_needs_quota).await?;
        say(started, "the control plane is ready");
        let client = control_plane.admin_client().await?;
        let recorder = Recorder::start(&client);
        let (haproxy, haproxy_process) = HaProxy::start(&state, &servers(1, &options), options.check.clone()).await?;
        let first = BTreeSet::new();
        let mut bed = Self {
            client,
            haproxy,
            control_plane,
            recorder,
            nodes: BTreeMap::new(),
            fittings,
            haproxy_process,
            state,
            next_index: 1,
            started,
            first,
        };
        bed.create_nodes(options).await?;
        Ok(bed)
    }

    /// Installs the product and remembers which objects exist, for [`Bed::clear`]: several scenarios will share it.
    pub async fn share(&mut self) -> Result<()> {
        self.apply_product().await?;
        self.first = leftovers::inventory(&self.client).await.context("listing what a new cluster has")?;
        Ok(())
    }

    /// Makes an end of a scenario in a bed that is shared: deletes the product's resources as a user would, fails when anything of the
    /// product is left, takes away all that the scenario made, and its nodes.
    pub async fn clear(&mut self) -> Result<()> {
        let started = Instant::now();
        self.delete_resources().await?;
        // Their agents are still there to end pods; the operator's nodes stay.
        leftovers::delete_all_but(&self.client, &self.first).await?;
        let names: Vec<_> = self.nodes.keys().filter(|name| !INFRA_NODES.contains(&name.as_str())).cloned().collect();
        for name in names {
            if let Some(node) = self.nodes.remove(&name) {
                node.destroy().await?;
            }
        }
        leftovers::delete_nodes_but(&self.client, &INFRA_NODES).await?;
        self.say(&format!(
            "nothing of the product was left, and the scenario's objects are gone: {:.1} s",
            started.elapsed().as_secs_f32()
        ));
        Ok(())
    }

    /// Deletes the product's resources as a user would, and fails when anything of the product is left.
    pub async fn delete_resources(&self) -> Result<()> {
        // A scenario may have stopped it, or changed its arguments.
        self.apply_product().await.context("making the operator what it was")?;
        leftovers::delete_resources(&self.client).await
    }

    /// Makes a beginning of the next scenario in a bed that is shared: load balancer, recorder and nodes are new.
    pub async fn begin(&mut self, options: Options) -> Result<()> {
        self.started = Instant::now();
        self.haproxy_process.end().await?;
        // Addresses are not used again: others know them with the hardware address of the node that is gone.
        self.recorder = Recorder::start(&self.client);
        let servers = servers(self.next_index, &options);
        (self.haproxy, self.haproxy_process) = HaProxy::start(&self.state, &servers, options.check.clone()).await?;
        self.create_nodes(options).await
    }

    async fn create_nodes(&mut self, options: Options) -> Result<()> {
        let names: Vec<_> = options.nodes.iter().map(|node| node.name.clone()).collect();
        for spec in options.nodes {
            self.create_node(spec).await?;
        }
        if options.infra {
            for name in INFRA_NODES {
                if !self.nodes.contains_key(name) {
                    self.create_node(NodeSpec::new(name).label(INFRA_LABEL, "")).await?;
                }
            }
        }
        for node in self.nodes.values_mut() {
            node.ready().await?;
        }
        self.say(&format!("nodes are ready: {}", names.join(", ")));
        Ok(())
    }

    /// Prints a line of progress with the time since the bed was started.
    pub fn say(&self, line: &str) {
        say(self.started, line);
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether its nodes are machines with real kubelets.
    pub fn has_kubelets(&self) -> bool {
        self.fittings.is_some()
    }

    /// A node by its name.
    pub fn node(&mut self, name: &str) -> Result<&mut Node> {
        self.nodes.get_mut(name).with_context(|| format!("the bed has no node {name}"))
    }

    /// The nodes by name, the infra nodes included.
    pub fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes
    }

    /// A node's address on the bridge.
    pub fn address(&self, node: &str) -> Result<Ipv4Addr> {
        Ok(self.nodes.get(node).with_context(|| format!("the bed has no node {node}"))?.address())
    }

    /// Adds a node behind the load balancer and waits until it is Ready.
    pub async fn add_node(&mut self, spec: NodeSpec) -> Result<()> {
        let (name, address) = self.create_node(spec).await?;
        self.haproxy.add(&name, address).await?;
        self.node(&name)?.ready().await
    }

    /// Fails, with the end of the log, when a part of the bed has crashed, or when load through it was never judged.
    pub fn check(&mut self) -> Result<()> {
        self.control_plane.check()?;
        self.haproxy.check()?;
        self.haproxy_process.check()
    }

    /// Applies objects (server side, as field manager `bed`).
    pub async fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let path = self.state.join("apply.json");
        tokio::fs::write(&path, serde_json::to_vec(&list)?).await.with_context(|| format!("writing {}", path.display()))?;
        let path = path.to_string_lossy();
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=bed", "-f", &path];
        self.control_plane.kubectl(&apply).await.map(drop)
    }

    /// Applies a file, or all files of a directory, of the repository.
    pub async fn apply_path(&self, path: &str) -> Result<()> {
        let path = images::repository().join(path);
        self.control_plane.kubectl(&["apply", "--server-side", "-f", &path.to_string_lossy()]).await.map(drop)
    }

    /// Installs the product as a user would: the CRDs, then everything in `deploy/`, and waits until it is available.
    ///
    /// Its pods run on [`INFRA_NODES`] here, because scenarios break the other nodes.
    pub async fn install(&self) -> Result<()> {
        // In a bed that is shared, [`Bed::clear`] has just done so.
        if self.first.is_empty() { self.apply_product().await } else { Ok(()) }
    }

    async fn apply_product(&self) -> Result<()> {
        self.apply_path("crds/manifests").await.context("installing the CRDs")?;
        let path = images::repository().join("deploy");
        let rendered = self.kubectl(&["create", "--dry-run=client", "-o", "json", "-f", &path.to_string_lossy()]).await?;
        let mut objects: Vec<Value> = Vec::new();
        for value in serde_json::Deserializer::from_str(&rendered).into_iter::<Value>() {
            let value = value.context("reading the objects in deploy/")?;
            match value["items"].as_array() {
                Some(items) => objects.extend(items.iter().cloned()),
                None => objects.push(value),
            }
        }
        for deployment in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
            let pod = &mut deployment["spec"]["template"]["spec"];
            pod["nodeSelector"][INFRA_LABEL] = "".into();
            // As whoever installs it says what the namespace `default` may have of nodes.
            if let Some(environment) = pod["containers"][0]["env"].as_array_mut() {
                environment
                    .extend([operator::NODE_TAINTS, operator::NODE_READERS].map(|(name, value)| json!({ "name": name, "value": value })));
            }
        }
        // Namespaces and accounts come before what lives in them.
        objects.sort_by_key(|object| match object["kind"].as_str() {
            Some("Namespace") => 0,
            Some("Deployment") => 2,
            _ => 1,
        });
        self.apply(&objects).await.context("installing the operator")?;
        owner_references_are_known(&self.control_plane, &self.state).await?;
        for deployment in objects.iter().filter(|object| object["kind"] == "Deployment") {
            let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
            let namespace = deployment["metadata"]["namespace"].as_str().unwrap_or("default");
            self.deployment_available(namespace, name).await?;
        }
        Ok(())
    }

    /// Waits until a Deployment has all its replicas available.
    pub async fn deployment_available(&self, namespace: &str, name: &str) -> Result<()> {
        let api = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        eventually(AVAILABLE, &format!("Deployment {namespace}/{name} is available"), async || {
            let deployment = api.get(name).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            let status = deployment.status.unwrap_or_default();
            let available = status.available_replicas.unwrap_or(0);
            let current = status.observed_generation >= deployment.metadata.generation;
            ensure!(current && available == wanted, "{available} of {wanted} replicas are available");
            Ok(())
        })
        .await
    }

    /// Runs `kubectl` as admin.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.control_plane.kubectl(arguments).await
    }

    /// Helm and Flux take an object for this: `Current`, `InProgress`, `Failed`, or another word of kstatus.
    pub async fn kstatus_says(&self, kind: &str, name: &str, word: &str) -> Result<()> {
        let object = self.kubectl(&["get", kind, name, "-o", "json"]).await?;
        let answer = self.control_plane.kstatus(&serde_json::from_str(&object).context("reading the object")?).await?;
        ensure!(answer.starts_with(&format!("{word}: ")), "{answer} of {object}");
        Ok(())
    }

    /// Where the bed keeps everything, logs included. It vanishes with the bed.
    pub fn state(&self) -> &Path {
        &self.state
    }

    async fn create_node(&mut self, spec: NodeSpec) -> Result<(String, Ipv4Addr)> {
        let index = self.next_index;
        self.next_index = index.checked_add(1).context("the bed has addresses for 254 nodes")?;
        let kubeconfig = self.control_plane.node_kubeconfig(&spec.name)?;
        let serving = self.control_plane.node_serving(&spec.name, network::node_address(index).into())?;
        let credentials = Credentials {
            kubeconfig,
            serving: (!spec.requests_certificate).then_some(serving),
            client_authority: self.control_plane.authority(),
        };
        let mut node = Node::create((spec, index), credentials, &self.state, self.fittings.as_ref(), self.client.clone()).await?;
        node.start_agent()?;
        let named = (node.name().to_owned(), node.address());
        self.nodes.insert(named.0.clone(), node);
        Ok(named)
    }
}

/// The nodes as the load balancer knows them: the first one has the number `first`.
fn servers(first: u8, options: &Options) -> Vec<(String, Ipv4Addr)> {
    (first..).zip(&options.nodes).map(|(index, node)| (node.name.clone(), network::node_address(index))).collect()
}

/// The admission plugin that checks owner references learns of a new kind seconds after its CRD is there, and refuses them
/// until then; in scenarios, that would be a right that is missing.
pub(crate) async fn owner_references_are_known(control_plane: &ControlPlane, state: &Path) -> Result<()> {
    let owned = serde_json::json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "owned", "namespace": "default", "ownerReferences": [{
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet", "name": "owner", "uid": "0a1b2c3d",
            "controller": true, "blockOwnerDeletion": true,
        }] },
    });
    let path = state.join("owned.json");
    tokio::fs::write(&path, owned.to_string()).await.with_context(|| format!("writing {}", path.display()))?;
    let (user, path) = (format!("--as={}", operator::USER), path.to_string_lossy());
    let create = ["create", "--dry-run=server", &user, "-f", &path];
    eventually(AVAILABLE, "the API server takes owner references", async || control_plane.kubectl(&create).await.map(drop)).await
}

fn say(started: Instant, line: &str) {
    println!("{:6.1}s {line}", started.elapsed().as_secs_f32());
}
