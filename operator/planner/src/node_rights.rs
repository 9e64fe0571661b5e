//! What a resource of a namespace may have the operator write to Nodes. Nodes belong to everybody: who runs the operator says it, by flags.

use crate::{settings::Invalid, snapshot::Snapshot};
use crds::{ledger::Annotation, names, node_readiness_gate::GateTaint};
use std::str::FromStr;

/// Keys of Node annotations and labels that take nodes out of load balancers and do nothing else: those of cloud controllers, which read the
/// former one until Kubernetes 1.21, and of node-detacher.
pub const DETACH_KEYS: [&str; 3] = [
    "node.kubernetes.io/exclude-from-external-load-balancers",
    "alpha.service-controller.kubernetes.io/exclude-balancer",
    "node-detacher.variant.run/detached",
];

/// What is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRights {
    /// Keys for `annotateNodeToDetach` and `labelNodeToDetach`, of every namespace.
    pub detach_keys: Vec<Keys>,
    /// Taints for `nodeReadinessTaint`.
    pub taints: Vec<NamespaceTaints>,
}

impl Default for NodeRights {
    fn default() -> Self {
        Self { detach_keys: DETACH_KEYS.map(|key| Keys::One(key.to_owned())).to_vec(), taints: Vec::new() }
    }
}

impl NodeRights {
    /// Everything: for whoever only reads, or decides alone.
    pub fn all() -> Self {
        Self { detach_keys: vec![Keys::All], taints: vec![NamespaceTaints { namespace: None, keys: Keys::All }] }
    }

    /// The mark of a resource may be written to Nodes.
    pub fn allows_mark(&self, mark: &Annotation) -> bool {
        let key = mark.key.strip_prefix(names::LABEL_MARK).unwrap_or(&mark.key);
        self.detach_keys.iter().any(|keys| keys.contain(key))
    }

    /// A resource of this namespace may taint Nodes with this key.
    pub fn allows_taint(&self, namespace: &str, key: &str) -> bool {
        self.taints.iter().any(|right| right.namespace.as_deref().is_none_or(|named| named == namespace) && right.keys.contain(key))
    }

    /// Some namespace's resources may taint Nodes with this key, by a right that is not about every key.
    pub fn names_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|right| right.keys != Keys::All && right.keys.contain(key))
    }
}

/// Keys of labels, annotations or taints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Every key, written `*`.
    All,
    /// Every key of a domain, written `example.com/*`; the domain is without the slash.
    Of(String),
    /// One key.
    One(String),
}

impl Keys {
    fn contain(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(domain) => key.strip_prefix(domain).is_some_and(|rest| rest.starts_with('/')),
            Self::One(one) => key == one,
        }
    }
}

impl FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (keys, sound) = match text.strip_suffix("/*") {
            _ if text == "*" => return Ok(Self::All),
            Some(domain) => (Self::Of(domain.to_owned()), !domain.contains('/')),
            None => (Self::One(text.to_owned()), text.matches('/').count() <= 1),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let whole = text.strip_suffix("/*").unwrap_or(text);
        if sound && !whole.is_empty() && !whole.starts_with('/') && !whole.ends_with('/') && whole.bytes().all(plain) {
            Ok(keys)
        } else {
            Err(format!("`{text}` is neither a key such as example.com/out, nor all keys of a domain such as example.com/*, nor *"))
        }
    }
}

/// Taint keys that the resources of a namespace may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceTaints {
    /// The namespace; `None` for every one.
    pub namespace: Option<String>,
    /// The keys.
    pub keys: Keys,
}

impl FromStr for NamespaceTaints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((namespace, keys)) if !namespace.is_empty() => {
                Ok(Self { namespace: Some(namespace.to_owned()).filter(|namespace| namespace != "*"), keys: keys.parse()? })
            }
            _ => Err(format!("`{text}` is not NAMESPACE=KEY, such as ingress=readiness.k8s.io/*")),
        }
    }
}

/// The mark of the spec may not be written.
pub fn refused_mark(snapshot: &Snapshot) -> Option<Invalid> {
    let spec = &snapshot.resource.spec;
    let rolling = spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    let mark = rolling.node_mark().filter(|mark| !snapshot.node_rights.allows_mark(mark))?;
    let (field, key) = match mark.key.strip_prefix(names::LABEL_MARK) {
        Some(key) => ("labelNodeToDetach", key),
        None => ("annotateNodeToDetach", mark.key.as_str()),
    };
    Some(Invalid {
        reason: "DetachKeyNotAllowed",
        message: format!("{field}.key is `{key}`, which this operator may not write to Nodes: {}", ask_for("--allowed-detach-keys", key)),
    })
}

/// The taint of the spec that is not put on Nodes, because nobody allowed it. Pods bear it all the same, for it may be there.
pub fn forbidden_taint(snapshot: &Snapshot) -> Option<&GateTaint> {
    let resource = &snapshot.resource;
    let taint = resource.spec.node_readiness_taint.as_ref();
    taint.filter(|taint| !snapshot.node_rights.allows_taint(&resource.namespace, &taint.key))
}

/// The same in words.
pub fn refused_taint(snapshot: &Snapshot) -> Option<Invalid> {
    let key = &forbidden_taint(snapshot)?.key;
    let flag = ask_for("--allowed-node-taints", &format!("{}={key}", snapshot.resource.namespace));
    Some(Invalid {
        reason: "TaintNotAllowed",
        message: format!(
            "nodeReadinessTaint.key is `{key}`, with which resources of this namespace may not taint Nodes, so no node is held, and a taint that is there stays: {flag}; or have a NodeReadinessGate made"
        ),
    })
}

fn ask_for(flag: &str, value: &str) -> String {
    format!("ask whoever runs the operator for {flag}={value}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn keys_are_one_or_all_of_a_domain_or_all() {
        let contain = |keys: &str, key: &str| keys.parse::<Keys>().unwrap().contain(key);
        assert!(contain("*", "node-role.kubernetes.io/control-plane"));
        assert!(contain("example.com/*", "example.com/out"));
        assert!(contain("example.com/out", "example.com/out"));
        assert!(contain("out", "out"));
        for (keys, key) in [
            ("example.com/*", "example.com"),
            ("example.com/*", "example.community/out"),
            ("example.com/*", "x.example.com/out"),
            ("example.com/out", "example.com/outside"),
            ("out", "example.com/out"),
        ] {
            assert!(!contain(keys, key), "{keys} {key}");
        }
        for wrong in ["", "/", "/*", "a/", "a/b/c", "a/b/*", "*/out", "a b", "*.com/out", "**"] {
            let said = wrong.parse::<Keys>().unwrap_err();
            assert!(said.contains("example.com/*"), "{wrong}: {said}");
        }
    }

    #[test]
    fn taints_are_allowed_to_namespaces() {
        let allows = |flag: &str, namespace: &str, key: &str| {
            NodeRights { taints: vec![flag.parse().unwrap()], ..NodeRights::default() }.allows_taint(namespace, key)
        };
        assert!(allows("ingress=readiness.k8s.io/*", "ingress", "readiness.k8s.io/web"));
        assert!(!allows("ingress=readiness.k8s.io/*", "ingress2", "readiness.k8s.io/web"));
        assert!(!allows("ingress=readiness.k8s.io/*", "ingress", "node-role.kubernetes.io/web"));
        assert!(allows("*=readiness.k8s.io/web", "any", "readiness.k8s.io/web"));
        assert!(allows("ingress=*", "ingress", "a"));
        assert!(!NodeRights::default().allows_taint("ingress", "readiness.k8s.io/web"));
        for wrong in ["", "ingress", "=a", "ingress=", "ingress=a/b/c"] {
            assert!(wrong.parse::<NamespaceTaints>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_clouds_and_node_detacher_look_at_is_allowed_by_default() {
        let allows = |key: &str| NodeRights::default().allows_mark(&Annotation { key: key.to_owned(), value: String::new() });
        for key in DETACH_KEYS {
            assert!(allows(key) && allows(&format!("{}{key}", names::LABEL_MARK)), "{key}");
        }
        for key in ["node-role.kubernetes.io/control-plane", "kubernetes.io/hostname", "node-detacher.variant.run/cached", "app"] {
            assert!(!allows(key) && !allows(&format!("{}{key}", names::LABEL_MARK)), "{key}");
        }
    }
}
