//! The bed's network: one bridge, and one network namespace per node joined to it.
//!
//! The addresses are from 198.18.0.0/15, which is set aside for benchmarks and routed nowhere.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::host::process::run;

/// The bed itself on the bridge: API server, `HAProxy`, load.
pub const BED: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The `kubernetes` Service. It is an address of the bed's loopback, so that pods reach the API server by the address
/// that Kubernetes gives them, without kube-proxy.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// Cluster IPs of Services.
pub const SERVICE_RANGE: &str = "198.19.0.0/24";
const BRIDGE: &str = "br0";
/// Locally administered.
const BRIDGE_ADDRESS: &str = "02:00:c6:12:00:01";

/// The address of node number `index`, counted from 1.
pub fn node_address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 1, index)
}

/// Whether it is one of these.
pub fn is_node_address(address: Ipv4Addr) -> bool {
    address.octets().starts_with(&[198, 18, 1])
}

/// The addresses of pods without `hostNetwork` on a machine.
pub fn pod_network(index: u8) -> String {
    format!("198.19.{index}.0/24")
}

/// Leads to the pods of a machine, and lets them reach each other.
pub async fn route_pods(name: &str, index: u8) -> Result<()> {
    let forward = ["-qw", "net.ipv4.ip_forward=1"];
    run("sysctl", forward).await?;
    ip(&[&["netns", "exec", name, "sysctl"][..], &forward].concat()).await?;
    ip(&["route", "replace", &pod_network(index), "via", &node_address(index).to_string()]).await
}

/// Has the node at this address answer at another one, too.
pub async fn lend_address(name: &str, at: Ipv4Addr, other: Ipv4Addr) -> Result<()> {
    ip(&["-n", name, "addr", "add", &format!("{other}/32"), "dev", "lo"]).await?;
    ip(&["route", "add", &other.to_string(), "via", &at.to_string()]).await
}

/// Makes the bridge and the bed's own addresses.
pub async fn create() -> Result<()> {
    ip(&["link", "set", "lo", "up"]).await?;
    ip(&["addr", "add", &format!("{KUBERNETES_SERVICE}/32"), "dev", "lo"]).await?;
    // A bridge without an address of its own takes the lowest of its ports', and another one with a new port: nodes that
    // know the old one then talk to nobody for half a minute.
    ip(&["link", "add", BRIDGE, "address", BRIDGE_ADDRESS, "type", "bridge"]).await?;
    ip(&["addr", "add", &format!("{BED}/16"), "dev", BRIDGE]).await?;
    ip(&["link", "set", BRIDGE, "up"]).await
}

/// Makes the network namespace `name` of node number `index` and joins it to the bridge.
pub async fn create_node(name: &str, index: u8) -> Result<()> {
    let port = port(index);
    ip(&["netns", "add", name]).await?;
    ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name]).await?;
    ip(&["link", "set", &port, "master", BRIDGE, "up"]).await?;
    ip(&["-n", name, "link", "set", "lo", "up"]).await?;
    ip(&["-n", name, "addr", "add", &format!("{}/16", node_address(index)), "dev", "eth0"]).await?;
    // Container runtimes set this, so that programs that are not root can listen on ports below 1024.
    let unprivileged = ["netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0"];
    ip(&unprivileged).await?;
    ip(&["-n", name, "link", "set", "eth0", "up"]).await?;
    ip(&["-n", name, "route", "add", "default", "via", &BED.to_string()]).await
}

/// Takes the network namespace of node number `index` away, with every process in it: its agent, and its pods.
pub async fn remove_node(name: &str, index: u8) -> Result<()> {
    end_processes(name).await?;
    ip(&["link", "del", &port(index)]).await?;
    ip(&["netns", "del", name]).await
}

/// Kills every process in the network namespace of a node.
pub async fn end_processes(name: &str) -> Result<()> {
    let pids = run("ip", ["netns", "pids", name]).await?;
    for pid in pids.split_whitespace() {
        let pid = pid.parse().with_context(|| format!("not a process id: {pid}"))?;
        // It may end by itself meanwhile.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(())
}

/// Pulls (`up` false) or plugs the cable of node number `index`.
pub async fn set_link(index: u8, up: bool) -> Result<()> {
    ip(&["link", "set", &port(index), if up { "up" } else { "down" }]).await
}

/// The file that `nsenter --net=` takes for the node.
pub fn namespace_file(name: &str) -> String {
    format!("/run/netns/{name}")
}

/// The bridge's side of the node's cable.
fn port(index: u8) -> String {
    format!("node{index}")
}

async fn ip(arguments: &[&str]) -> Result<()> {
    run("ip", arguments).await.map(drop)
}
