//! What is said of a node's health port.

use super::Reason;
use crate::decide::LEAVES_AFTER;

impl Reason {
    /// What the node's health port says, or does not say.
    pub(super) fn message_of_health_port(&self) -> String {
        match self {
            Self::StillHealthy { port } => format!(
                "port {port} of the node still answers 200 although the node is taken out: its health checker hangs, or something else listens there; no pod is touched until it answers 503 (restart its pod, see `ss -ltnp sport = :{port}`)"
            ),
            Self::StillUnhealthy { port, phase } => format!(
                "port {port} of the node still answers 503 for phase {} although the node is attached again: its health checker hangs; restart its pod",
                phase.as_str()
            ),
            Self::HealthPortSilent { address, ports, leaves } => {
                let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
                let (what, why) = match address {
                    Some(address) => (
                        format!("health port {ports} of the node ({address}) does not answer the operator"),
                        "see whether a health checker runs on it, and whether a network policy or a firewall keeps the operator from the port",
                    ),
                    None => (
                        format!("the Node has no InternalIP address at which its health port {ports} could be asked"),
                        "see to whoever keeps its status (kubelet, cloud controller)",
                    ),
                };
                if *leaves {
                    return format!("{what}: it leaves all the same, after {LEAVES_AFTER} s");
                }
                format!(
                    "{what}, so nobody knows what the load balancer is told: no pod is touched and no place freed until it does; {why}, or free its place with the Node's annotation {}",
                    crds::names::RELEASE_ANNOTATION
                )
            }
            _ => "asking the node's health port".into(),
        }
    }
}
