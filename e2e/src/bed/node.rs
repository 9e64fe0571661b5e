//! Nodes: a network namespace each, with one node agent in it. A virtual kubelet runs pods as processes; a kubelet runs them in containers,
//! on a machine.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::process::Command;

use crate::{
    bed::machine::{Fittings, Machine},
    eventually::eventually,
    host::{certificates::Credentials, images, network, process::Process},
};

/// How long a node may take to register and become Ready.
const READY: Duration = Duration::from_mins(3);

/// What a node is asked to be.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its name, also of its network namespace.
    pub name: String,
    /// Labels; those that a node may not give itself are put on by the admin.
    pub labels: BTreeMap<String, String>,
    /// Whether it registers with them; else an administrator puts them on.
    pub registers_labels: bool,
    /// Taints that it registers with, each `key=value:Effect`.
    pub taints: Vec<String>,
    /// It requests its serving certificate from the cluster, instead of being given one.
    pub requests_certificate: bool,
}

impl NodeSpec {
    /// A node without labels and taints of its own.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), labels: BTreeMap::new(), registers_labels: false, taints: Vec::new(), requests_certificate: false }
    }

    /// Registering with its labels, as nodes of a pool do, instead of being labelled by an administrator later.
    #[must_use]
    pub fn registering(mut self) -> Self {
        self.registers_labels = true;
        self
    }

    /// With this label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// In this zone.
    #[must_use]
    pub fn zone(self, zone: &str) -> Self {
        self.label("topology.kubernetes.io/zone", zone)
    }

    /// With a serving certificate that it requests from the cluster.
    #[must_use]
    pub fn requests_certificate(mut self) -> Self {
        self.requests_certificate = true;
        self
    }

    /// With this taint, `key=value:Effect`.
    #[must_use]
    pub fn taint(mut self, taint: &str) -> Self {
        self.taints.push(taint.to_owned());
        self
    }
}

/// A node of the bed.
pub struct Node {
    spec: NodeSpec,
    index: u8,
    credentials: Credentials,
    state: PathBuf,
    agent: Option<Process>,
    /// Of a node with a real kubelet.
    machine: Option<Machine>,
    client: Client,
}

impl Node {
    /// Makes what its agent needs: its network, and with `fittings` a machine for a kubelet. Its agent is started by [`Node::start_agent`].
    pub async fn create(
        (spec, index): (NodeSpec, u8),
        credentials: Credentials,
        state: &Path,
        fittings: Option<&Fittings>,
        client: Client,
    ) -> Result<Self> {
        network::create_node(&spec.name, index).await.with_context(|| format!("making the network of node {}", spec.name))?;
        let mut node = Self { spec, index, credentials, state: state.to_owned(), agent: None, machine: None, client };
        if let Some(fittings) = fittings {
            network::route_pods(&node.spec.name, index).await?;
            node.machine = Some(node.new_machine(fittings.clone()).await?);
        }
        Ok(node)
    }

    /// A machine with an empty disk, switched on.
    async fn new_machine(&self, fittings: Fittings) -> Result<Machine> {
        let (root, logs) = (self.root(), self.state.join("logs"));
        let mut machine = Machine::create(&self.spec.name, self.index, &self.credentials, (&root, &logs), fittings)?;
        machine.boot().await?;
        Ok(machine)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its address on the bridge. It is also the address of its pods, but for those that a real kubelet gives a network of their own.
    pub fn address(&self) -> Ipv4Addr {
        network::node_address(self.index)
    }

    /// Starts the node agent. It finds the pods that a killed predecessor left.
    pub fn start_agent(&mut self) -> Result<()> {
        ensure!(self.agent.is_none(), "the agent of node {} is running already", self.spec.name);
        let command = match &self.machine {
            Some(machine) => machine.kubelet(&self.kubelet_flags())?,
            None => self.virtual_kubelet()?,
        };
        self.agent = Some(Process::start(&format!("node-{}", self.spec.name), &self.state.join("logs"), command)?);
        Ok(())
    }

    fn kubelet_flags(&self) -> Vec<String> {
        let (own, _) = self.labels_by_writer();
        let mut flags = vec![format!("--hostname-override={}", self.spec.name), format!("--node-ip={}", self.address())];
        if !own.is_empty() {
            flags.push(format!("--node-labels={}", own.join(",")));
        }
        if !self.spec.taints.is_empty() {
            flags.push(format!("--register-with-taints={}", self.spec.taints.join(",")));
        }
        flags
    }

    fn virtual_kubelet(&self) -> Result<Command> {
        let (own, _) = self.labels_by_writer();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", network::namespace_file(&self.spec.name)))
            .arg(images::workspace_binary("virtual-kubelet")?)
            .args(["run", "--node-name", &self.spec.name, "--node-ip", &self.address().to_string()])
            .arg("--kubeconfig")
            .arg(&self.credentials.kubeconfig)
            .arg("--client-ca-file")
            .arg(&self.credentials.client_authority)
            .arg("--images")
            .arg(self.state.join("images.json"))
            .arg("--root-dir")
            .arg(self.root());
        if let Some(serving) = &self.credentials.serving {
            command.arg("--tls-cert-file").arg(&serving.certificate).arg("--tls-private-key-file").arg(&serving.key);
        }
        if !own.is_empty() {
            command.args(["--labels", &own.join(",")]);
        }
        if !self.spec.taints.is_empty() {
            command.args(["--taints", &self.spec.taints.join(",")]);
        }
        Ok(command)
    }

    /// The machine of a node with a real kubelet.
    pub fn machine(&mut self) -> Result<&mut Machine> {
        self.machine.as_mut().with_context(|| format!("node {} has no machine", self.spec.name))
    }

    /// Waits until the Node is Ready, and puts on the labels that it may not give itself.
    pub async fn ready(&mut self) -> Result<()> {
        let api = Api::<ApiNode>::all(self.client.clone());
        let name = self.spec.name.clone();
        eventually(READY, &format!("node {name} is Ready"), async || {
            if let Some(agent) = &mut self.agent {
                agent.check()?;
            }
            let node = api.get(&name).await.with_context(|| self.agent.as_ref().map(Process::tail).unwrap_or_default())?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            ensure!(conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"), "its condition Ready is not True");
            // The API server adds this taint to each new Node; the node lifecycle controller removes it once it is Ready.
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            ensure!(taints.iter().all(|taint| taint.key != "node.kubernetes.io/not-ready"), "it still has the not-ready taint");
            Ok(())
        })
        .await?;
        let (_, of_admin) = self.labels_by_writer();
        if !of_admin.is_empty() {
            let patch = json!({ "metadata": { "labels": of_admin } });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.context("labelling the Node")?;
        }
        Ok(())
    }

    /// The agent's process id.
    pub fn agent_pid(&self) -> Result<u32> {
        ensure!(self.machine.is_none(), "nobody knows the process id of the kubelet of {} outside of its machine", self.spec.name);
        self.agent.as_ref().and_then(Process::id).with_context(|| format!("the agent of node {} is not running", self.spec.name))
    }

    /// Kills the agent (`SIGKILL`), as a crash would; its pods go on serving.
    pub async fn stop_agent(&mut self) -> Result<()> {
        self.agent.take().with_context(|| format!("the agent of node {} is not running", self.spec.name))?.kill().await
    }

    /// Kills the agent and starts it again.
    pub async fn restart_agent(&mut self) -> Result<()> {
        self.stop_agent().await?;
        self.start_agent()
    }

    /// Lets a virtual kubelet report every pod as unready once, as a kubelet does when it restarts.
    pub fn forget_readiness(&self) -> Result<()> {
        ensure!(self.machine.is_none(), "no signal lets the kubelet of {} forget", self.spec.name);
        self.agent.as_ref().with_context(|| format!("the agent of node {} is not running", self.spec.name))?.signal(Signal::SIGHUP)
    }

    /// Pulls the cable: nothing reaches the node, and it reaches nothing.
    pub async fn cut(&self) -> Result<()> {
        network::set_link(self.index, false).await
    }

    /// Plugs the cable in again.
    pub async fn heal(&self) -> Result<()> {
        network::set_link(self.index, true).await
    }

    /// The machine dies: nothing reaches it, and its agent is gone. On a machine with a real kubelet so is all else that ran.
    pub async fn die(&mut self) -> Result<()> {
        self.cut().await?;
        match &mut self.machine {
            Some(machine) => {
                machine.power_off().await?;
                self.agent = None;
                Ok(())
            }
            None => self.stop_agent().await,
        }
    }

    /// A machine that has died is switched on again.
    pub async fn come_back(&mut self) -> Result<()> {
        self.heal().await?;
        if let Some(machine) = &mut self.machine {
            machine.boot().await?;
        }
        self.start_agent()
    }

    /// Deletes the Node object and waits until the agent has registered the node again under its name, as when a
    /// machine is replaced by another of the same name. A real kubelet registers only when it starts: it is restarted. Returns the new UID.
    pub async fn re_register(&mut self) -> Result<String> {
        let api = Api::<ApiNode>::all(self.client.clone());
        let old = api.get(&self.spec.name).await?.metadata.uid;
        api.delete(&self.spec.name, &DeleteParams::default()).await?;
        if self.machine.is_some() {
            self.restart_agent().await?;
        }
        let name = self.spec.name.clone();
        let uid = eventually(READY, &format!("node {name} is registered again"), async || {
            let uid = api.get(&name).await?.metadata.uid;
            ensure!(uid != old, "the old Node is still there");
            uid.context("the new Node has no UID")
        })
        .await?;
        self.ready().await?;
        Ok(uid)
    }

    /// The machine is gone: no cable, no agent, no Node object. Its processes end with the bed.
    pub async fn remove(&mut self) -> Result<()> {
        self.cut().await?;
        if self.agent.is_some() {
            self.stop_agent().await?;
        }
        Api::<ApiNode>::all(self.client.clone()).delete(&self.spec.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// It has left nothing: no Node object, no process, no network, no file.
    pub async fn destroy(mut self) -> Result<()> {
        if let Some(agent) = self.agent.take() {
            agent.kill().await?;
        }
        if let Some(machine) = &mut self.machine {
            machine.power_off().await?;
        }
        network::remove_node(&self.spec.name, self.index).await.with_context(|| format!("taking node {} away", self.spec.name))?;
        match Api::<ApiNode>::all(self.client.clone()).delete(&self.spec.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => other.map(drop).with_context(|| format!("deleting Node {}", self.spec.name))?,
        }
        self.wipe().await
    }

    /// Another machine comes in the place of one that is gone ([`Node::remove`]), with its name and address: none of its processes is
    /// left, and its disk is empty.
    pub async fn replace(&mut self) -> Result<()> {
        match &mut self.machine {
            Some(machine) => machine.power_off().await?,
            None => {
                network::end_processes(&self.spec.name).await.with_context(|| format!("ending what ran on node {}", self.spec.name))?;
            }
        }
        self.wipe().await?;
        if let Some(gone) = self.machine.take() {
            self.machine = Some(self.new_machine(gone.fittings().clone()).await?);
        }
        self.start_agent()?;
        self.heal().await?;
        self.ready().await
    }

    async fn wipe(&self) -> Result<()> {
        let root = self.root();
        if let Some(machine) = &self.machine {
            machine.scrap().await?;
        }
        // Its processes were killed, and may take a moment to end.
        eventually(READY, &format!("{} is removed", root.display()), async || match std::fs::remove_dir_all(&root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        })
        .await
    }

    /// Where the agent keeps its pods and their logs.
    pub fn root(&self) -> PathBuf {
        self.state.join("nodes").join(&self.spec.name)
    }

    /// Labels that the node registers with (`key=value`), and those that only an admin may put on it.
    fn labels_by_writer(&self) -> (Vec<String>, BTreeMap<String, String>) {
        let mut own = Vec::new();
        let mut of_admin = BTreeMap::new();
        for (key, value) in &self.spec.labels {
            if self.spec.registers_labels || may_label_itself(key) {
                own.push(format!("{key}={value}"));
            } else {
                of_admin.insert(key.clone(), value.clone());
            }
        }
        (own, of_admin)
    }
}

/// Labels that the agent itself sets. All others are the administrator's, as on a real cluster where somebody may take
/// them away again: an agent would put its own back.
fn may_label_itself(key: &str) -> bool {
    key.starts_with("topology.kubernetes.io/")
}
