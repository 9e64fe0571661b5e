//! What a fleet consists of; no I/O.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};

use super::addresses::Cidr;
use crate::node::{DEFAULT_LEASE_DURATION, ForeignHolder, MachineFacts, new_node};
use crate::simulated::Stages;

/// Label with the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Why there is no fleet.
///
/// ```
/// # use virtual_kubelet::fleet::{Fleet, FleetConfig, FleetError};
/// # fn example(client: kube::Client) {
/// assert!(matches!(Fleet::new(client, FleetConfig::new(0)), Err(FleetError::Invalid(_))));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// Something of the description is wrong; the text says what, and what to write instead.
    #[error("{0}")]
    Invalid(String),
    /// A part of the fleet has crashed, and all of it has ended: a fault of this crate.
    #[error("a part of the fleet has crashed: {0}")]
    Crashed(String),
    /// Another fleet with nodes of the same names, which is named, has taken them over: it took this one for dead.
    #[error("another fleet has taken over the nodes of these names: {0}")]
    TakenOver(String),
}

/// What a fleet consists of.
///
/// ```
/// use virtual_kubelet::fleet::FleetConfig;
/// use virtual_kubelet::simulated::Stages;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = FleetConfig::new(100);
/// config.zones = vec!["a".into(), "b".into()];
/// config.stages = Stages::from_yaml("pods:\n- ready: uniform 1s 5s\n")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// How many nodes; they are named by [`Self::name_prefix`] and a number from 0.
    pub nodes: u32,
    /// What their names begin with.
    pub name_prefix: String,
    /// Zones, given to one node after the other.
    pub zones: Vec<String>,
    /// Labels of every node.
    pub labels: BTreeMap<String, String>,
    /// Taints that a node is created with; those of a node that exists are left alone.
    pub taints: Vec<Taint>,
    /// CPUs of a node, as a quantity.
    pub cpu: String,
    /// Memory of a node, as a quantity.
    pub memory: String,
    /// Most pods of a node.
    pub pods: String,
    /// How pods behave.
    pub stages: Stages,
    /// What their delays follow from.
    pub seed: u64,
    /// Whether each request is made as `system:node:<name>`, so that the rights of a node apply.
    pub impersonate: bool,
    /// What is done about a lease that somebody else holds.
    pub foreign_holder: ForeignHolder,
    /// How long a lease lasts; it is renewed at a quarter of that.
    pub lease_duration: Duration,
    /// Addresses that nodes say they have.
    pub node_cidr: Cidr,
    /// Addresses that pods say they have.
    pub pod_cidr: Cidr,
    /// Where API servers reach the kubelet API of all nodes, if somebody serves it ([`FleetHandle`](super::FleetHandle) shows how). Every
    /// Node then has this address and port. With an unspecified address (`0.0.0.0`) each keeps its own of [`Self::node_cidr`], which has to
    /// be routed to this machine.
    pub kubelet: Option<SocketAddr>,
}

impl FleetConfig {
    /// So many nodes, with what the flags of the binary default to.
    pub fn new(nodes: u32) -> Self {
        Self {
            nodes,
            name_prefix: "sim-".into(),
            zones: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            cpu: "8".into(),
            memory: "16Gi".into(),
            pods: "110".into(),
            stages: Stages::default(),
            seed: 0,
            impersonate: false,
            foreign_holder: ForeignHolder::TakeOver,
            lease_duration: DEFAULT_LEASE_DURATION,
            node_cidr: Cidr::of_nodes(),
            pod_cidr: Cidr::of_pods(),
            kubelet: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), FleetError> {
        let invalid = |why: String| Err(FleetError::Invalid(why));
        if self.nodes == 0 {
            return invalid("a fleet needs at least one node".into());
        }
        let longest = self.node_name(self.nodes - 1);
        if !is_name(&longest) {
            return invalid(format!(
                "`{longest}` is not a node name: begin the prefix with a letter or digit, use only a-z, 0-9, `-` and `.`, \
                 and at most 253 characters together with the number"
            ));
        }
        if self.nodes > self.node_cidr.capacity() {
            return invalid(format!("{} has no addresses for {} nodes: give a wider range", self.node_cidr, self.nodes));
        }
        for (key, value) in self.labels.iter().map(|(key, value)| (key.as_str(), value)).chain(self.zones.iter().map(|zone| (ZONE, zone))) {
            if !is_label(key, value) {
                return invalid(format!(
                    "`{key}={value}` is not a label: key [prefix/]name and value have at most 63 letters, digits, `-`, `_` and `.`, with a \
                     letter or digit at both ends"
                ));
            }
        }
        for (flag, quantity) in [("cpu", &self.cpu), ("memory", &self.memory), ("pods", &self.pods)] {
            match quantity_of(quantity) {
                None => return invalid(format!("`{quantity}` is not a quantity for {flag}: write it like 8, 500m or 16Gi")),
                Some(pods) if flag == "pods" && pods.fract() != 0.0 => {
                    return invalid(format!("`{quantity}` pods is no whole number: write one, like 110"));
                }
                Some(_) => {}
            }
        }
        if self.kubelet.is_some_and(|kubelet| kubelet.port() == 0) {
            return invalid("the kubelet API cannot use port 0: choose another port, or leave out the address".into());
        }
        self.check_taints()?;
        if self.lease_duration < Duration::from_secs(1) || self.lease_duration > Duration::from_hours(24) {
            return invalid("a lease must last from 1 second to 1 day".into());
        }
        Ok(())
    }

    fn check_taints(&self) -> Result<(), FleetError> {
        let invalid = |why: String| Err(FleetError::Invalid(why));
        for (index, taint) in self.taints.iter().enumerate() {
            let value = taint.value.as_deref().unwrap_or_default();
            let shown = if value.is_empty() { taint.key.clone() } else { format!("{}={value}", taint.key) };
            if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str()) {
                return invalid(format!(
                    "`{shown}:{}` is not a taint: write key[=value]:Effect with one of NoSchedule, PreferNoSchedule and NoExecute",
                    taint.effect
                ));
            }
            if !is_label(&taint.key, value) {
                return invalid(format!(
                    "`{shown}:{}` is not a taint: key [prefix/]name and value have at most 63 letters, digits, `-`, `_` and `.`, with a letter \
                     or digit at both ends",
                    taint.effect
                ));
            }
            if self.taints[..index].iter().any(|other| (&other.key, &other.effect) == (&taint.key, &taint.effect)) {
                return invalid(format!("a node has at most one taint `{}:{}`: remove the others", taint.key, taint.effect));
            }
        }
        Ok(())
    }

    pub(super) fn node_name(&self, index: u32) -> String {
        format!("{}{index}", self.name_prefix)
    }

    /// The number of a node of this fleet.
    pub(super) fn index_of(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(&self.name_prefix)?;
        let canonical = digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits.parse().ok().filter(|index| canonical && *index < self.nodes)
    }

    pub(super) fn node_ip(&self, index: u32) -> String {
        if let Some(shared) = self.kubelet.filter(|kubelet| !kubelet.ip().is_unspecified()) {
            return shared.ip().to_string();
        }
        self.node_cidr.nth(index).map(|address| address.to_string()).unwrap_or_default()
    }

    /// The Node number `index`, ready as of `now`.
    pub(super) fn node(&self, index: u32, now: Timestamp) -> Node {
        let mut labels = self.labels.clone();
        if let Some(zone) = self.zones.get(index as usize % self.zones.len().max(1)) {
            labels.insert(ZONE.into(), zone.clone());
        }
        let facts = MachineFacts {
            name: self.node_name(index),
            internal_ip: self.node_ip(index),
            labels,
            taints: self.taints.clone(),
            cpu: self.cpu.clone(),
            memory: self.memory.clone(),
            pods: self.pods.clone(),
            kubelet_port: self.kubelet.map(|kubelet| kubelet.port()),
            container_runtime_version: concat!("simulated://", env!("CARGO_PKG_VERSION")).into(),
            ..MachineFacts::default()
        };
        new_node(&facts, now)
    }
}

fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let part = |part: &str| end(part.bytes().next()) && end(part.bytes().last());
    name.len() <= 253 && name.bytes().all(inner) && name.split('.').all(part)
}

fn is_label(key: &str, value: &str) -> bool {
    let word = |word: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        word.len() <= 63 && word.bytes().all(inner) && end(word.bytes().next()) && end(word.bytes().last())
    };
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_name) && word(name) && (value.is_empty() || word(value))
}

/// A quantity that is not negative, as Kubernetes writes them: a number and, at most, a unit or an exponent.
fn quantity_of(text: &str) -> Option<f64> {
    let unit = text.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let decimal = [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    let factor = if let Some(power) = binary.iter().position(|known| *known == unit) {
        1024_f64.powi(i32::try_from(power).ok()? + 1)
    } else if let Some((_, power)) = decimal.iter().find(|(known, _)| *known == unit) {
        10_f64.powi(*power)
    } else {
        10_f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok().filter(|power: &i32| power.abs() <= 18)?)
    };
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    // A division where it can be one: 1500m is 1.5, and 2000m is 2.
    Some(if factor < 1.0 { number / (1.0 / factor).round() } else { number * factor })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut FleetConfig)) -> String {
        let mut config = FleetConfig::new(10);
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn only_names_of_the_fleets_nodes_have_a_number() {
        let config = FleetConfig::new(20);
        assert_eq!((0..20).map(|index| config.index_of(&config.node_name(index))).collect::<Option<Vec<_>>>(), Some((0..20).collect()));
        for other in ["sim-20", "sim-", "sim-01", "sim-+1", "sim--1", "other-1", "sim-1x", "sim-99999999999"] {
            assert_eq!(config.index_of(other), None, "{other}");
        }
    }

    #[test]
    fn zones_go_round_and_labels_are_on_every_node() {
        let mut config = FleetConfig::new(4);
        config.zones = vec!["a".into(), "b".into(), "c".into()];
        config.labels = [("ingress".to_owned(), "true".to_owned())].into();
        let zone = |index| {
            let labels = config.node(index, Timestamp::UNIX_EPOCH).metadata.labels.unwrap();
            assert_eq!(labels["ingress"], "true");
            labels[ZONE].clone()
        };
        assert_eq!([0, 1, 2, 3].map(zone), ["a", "b", "c", "a"]);
        assert!(config.check().is_ok());
    }

    #[test]
    fn nodes_share_the_kubelet_apis_address_unless_it_is_unspecified() {
        let told = |kubelet: Option<&str>| {
            let config = FleetConfig { kubelet: kubelet.map(|text| text.parse().unwrap()), ..FleetConfig::new(2) };
            assert_eq!(config.check(), Ok(()));
            let status = config.node(1, Timestamp::UNIX_EPOCH).status.unwrap();
            let port = status.daemon_endpoints.unwrap().kubelet_endpoint.map(|endpoint| endpoint.port);
            (status.addresses.unwrap()[0].address.clone(), port)
        };
        let own = config_ip(1);
        assert_eq!(told(None), (own.clone(), None));
        assert_eq!(told(Some("192.0.2.7:10250")), ("192.0.2.7".to_owned(), Some(10250)));
        assert_eq!(told(Some("0.0.0.0:10251")), (own, Some(10251)));
        assert!(refused(|config| config.kubelet = Some("192.0.2.7:0".parse().unwrap())).contains("port 0"));
    }

    fn config_ip(index: u32) -> String {
        FleetConfig::new(2).node_ip(index)
    }

    #[test]
    fn a_wrong_description_is_refused_with_what_to_write() {
        assert!(refused(|config| config.nodes = 0).contains("at least one node"));
        assert!(refused(|config| config.name_prefix = "Sim_".into()).contains("a-z"));
        assert!(refused(|config| config.name_prefix = "a".repeat(253)).contains("253"));
        assert!(refused(|config| config.node_cidr = "10.0.0.0/30".parse().unwrap()).contains("wider range"));
        assert!(refused(|config| config.zones = vec!["a b".into()]).contains("not a label"));
        assert!(refused(|config| config.labels = [("/x".to_owned(), String::new())].into()).contains("not a label"));
        assert!(refused(|config| config.memory = "much".into()).contains("16Gi"));
        let taint = Taint { key: "a".into(), effect: "No".into(), ..Taint::default() };
        assert!(refused(|config| config.taints = vec![taint]).contains("NoExecute"));
    }

    #[test]
    fn a_taint_that_the_api_server_would_refuse_is_refused() {
        let taint = |key: &str, value: &str| Taint {
            key: key.into(),
            value: Some(value.into()).filter(|value: &String| !value.is_empty()),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let long = "x".repeat(64);
        for (key, value) in [("", ""), ("a b", ""), ("-a", ""), ("A/b", ""), ("/a", ""), ("a", "b c"), ("a", long.as_str())] {
            let why = refused(|config| config.taints = vec![taint(key, value)]);
            assert!(why.contains("at most 63 letters"), "{key}={value}: {why}");
        }
        assert!(refused(|config| config.taints = vec![taint("a", "1"), taint("a", "2")]).contains("one taint `a:NoSchedule`"));
        let other = Taint { effect: "NoExecute".into(), ..taint("example.com/a", "1") };
        let config = FleetConfig { taints: vec![taint("example.com/a", "1"), other], ..FleetConfig::new(1) };
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn quantities_are_those_of_kubernetes_and_pods_are_whole() {
        for right in ["8", "0.5", "500m", "1.5Gi", "16Gi", "1e3", "2E", "1E3", "100n", ".5", "1."] {
            assert!(quantity_of(right).is_some(), "{right}");
            let config = FleetConfig { cpu: right.into(), memory: right.into(), ..FleetConfig::new(1) };
            assert_eq!(config.check(), Ok(()));
        }
        for wrong in ["", "m", "-1", "1 Gi", "1gi", "1KB", "1e", "1ee3", "inf", "NaN", "0x10", "1_000", "1e99", "8 "] {
            assert!(quantity_of(wrong).is_none(), "{wrong}");
            assert!(refused(|config| config.cpu = wrong.into()).contains("not a quantity for cpu"), "{wrong}");
        }
        for wrong in ["1.5", "1500m", "0.1k1", "500m"] {
            let why = refused(|config| config.pods = wrong.into());
            assert!(why.contains("pods"), "{why}");
        }
        for right in ["110", "0", "1k", "1.5k", "2000m"] {
            assert_eq!(FleetConfig { pods: right.into(), ..FleetConfig::new(1) }.check(), Ok(()), "{right}");
        }
    }
}
