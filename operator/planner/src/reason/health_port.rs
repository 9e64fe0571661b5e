//! What is said of a node's health port.

use super::Reason;

/// Seconds for which what leaves waits for a silent port.
pub(crate) const LEAVES_AFTER: i64 = 60;

impl Reason {
    /// What the node's health port says, or does not say.
    pub(super) fn message_of_health_port(&self) -> String {
        match self {
            Self::StillHealthy { port } => format!(
                "port {port} of the node still answers 200 although the node is out of the load balancer. The operator touches no pod until the port answers 503: restart the health checker's pod, or find another process on the port with `ss -ltnp sport = :{port}`"
            ),
            Self::StillUnhealthy { port, phase } => format!(
                "port {port} of the node still answers 503 for phase {} although the node is attached again: restart the health checker's pod, which hangs",
                phase.as_str()
            ),
            Self::HealthPortSilent { address, ports, leaves } => {
                let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
                let (what, why) = match address {
                    Some(address) => (
                        format!("health port {ports} of the node ({address}) does not answer the operator"),
                        "check that a health checker runs on the node and that no network policy or firewall keeps the operator from the port",
                    ),
                    None => (
                        format!(
                            "the Node has no InternalIP address that health checkers listen on, so the operator cannot ask its health port {ports}"
                        ),
                        "repair the writer of the Node's status (kubelet or cloud controller), or remove healthChecker.bindAddress where it is 0.0.0.0 and the Node has no IPv4 address",
                    ),
                };
                if *leaves {
                    return format!("{what}; the node leaves anyway after {LEAVES_AFTER} s");
                }
                format!(
                    "{what}: {why}, or free the node's slot with the Node's annotation {}; the operator touches no pod and frees no slot while it does not know what the load balancer is told",
                    crds::names::RELEASE_ANNOTATION
                )
            }
            _ => "asking the node's health port".into(),
        }
    }
}
