//! What a resource of a namespace may have the operator write to Nodes, and whether its health checkers may read them. Nodes belong to
//! everybody: who runs the operator says it, by flags.

use super::SpecProblem;
use crate::facts::Resource;
use crds::{
    names,
    node_readiness_gate::{Effect, GateTaint},
};
use std::str::FromStr;

/// Keys that each namespace may use by default: of Node annotations and labels that take nodes out of load balancers and do nothing else: those of cloud controllers, which read
/// the former one until Kubernetes 1.21, and of node-detacher.
pub const DETACH_KEYS: [&str; 3] = [
    "node.kubernetes.io/exclude-from-external-load-balancers",
    "alpha.service-controller.kubernetes.io/exclude-balancer",
    "node-detacher.variant.run/detached",
];

/// How flags name all namespaces.
pub const EVERY_NAMESPACE: &str = "*";

/// What resources may have the operator write to Nodes, and whose health checkers read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRights {
    /// Keys for `annotateNodeToDetach` and `labelNodeToDetach`.
    pub detach_keys: Vec<NamespaceKeys>,
    /// Taints that `nodeReadinessTaint` may name.
    pub taints: Vec<NamespaceTaints>,
    /// Namespaces whose health checkers may read Nodes; `*` for every one.
    pub readers: Vec<String>,
}

impl Default for NodeRights {
    fn default() -> Self {
        let detach_keys = DETACH_KEYS.map(|key| KeyPattern::One(key.to_owned()).into()).to_vec();
        Self { detach_keys, taints: Vec::new(), readers: Vec::new() }
    }
}

impl NodeRights {
    /// Everything: for whoever only reads, or decides alone.
    pub fn all() -> Self {
        let taints = [None, Some(Effect::NoExecute)].map(|effect| NamespaceTaints { of: KeyPattern::All.into(), effect });
        Self { detach_keys: vec![KeyPattern::All.into()], taints: taints.to_vec(), readers: vec![EVERY_NAMESPACE.to_owned()] }
    }

    /// A resource of this namespace may have this mark, as it is recorded, written to Nodes. Our own keys say something else.
    pub fn allows_mark(&self, namespace: &str, mark: &str) -> bool {
        let key = key_of_mark(mark);
        !is_ours(key) && self.detach_keys.iter().any(|right| right.allow(namespace, key))
    }

    /// Some namespace's resources may write this mark, as it is recorded, to Nodes.
    pub fn names_mark(&self, mark: &str) -> bool {
        let key = key_of_mark(mark);
        !is_ours(key) && self.detach_keys.iter().any(|right| right.keys.contain(key))
    }

    /// A resource of this namespace may put this taint on Nodes.
    pub fn allows_taint(&self, namespace: &str, taint: &GateTaint) -> bool {
        self.taints.iter().any(|right| right.of.allow(namespace, &taint.key) && right.has_effect(taint.effect))
    }

    /// Health checkers of this namespace may read Nodes: then so may every pod of the namespace, which can use their account.
    pub fn allows_reading(&self, namespace: &str) -> bool {
        self.readers.iter().any(|reader| reader == namespace || reader == EVERY_NAMESPACE)
    }

    /// Some namespace's resources may taint Nodes with this key, whatever the effect, by a right that is not about every key.
    pub fn names_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|right| right.of.keys != KeyPattern::All && right.of.keys.contain(key))
    }
}

/// The operator alone writes this key.
fn is_ours(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| domain == names::GROUP)
}

/// The key of the annotation or label that a mark is.
fn key_of_mark(mark: &str) -> &str {
    mark.strip_prefix(names::LABEL_MARK).unwrap_or(mark)
}

/// Keys of labels, annotations or taints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPattern {
    /// Every key, written `*`.
    All,
    /// Every key of a domain, written `example.com/*`; the domain is without the slash.
    Of(String),
    /// Exactly this key.
    One(String),
}

impl KeyPattern {
    fn contain(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(domain) => key.strip_prefix(domain).is_some_and(|rest| rest.starts_with('/')),
            Self::One(one) => key == one,
        }
    }
}

impl FromStr for KeyPattern {
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
            Err(format!("`{text}` must be a key such as example.com/out, all keys of a domain such as example.com/*, or *"))
        }
    }
}

/// Keys that the resources of a namespace may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceKeys {
    /// The namespace; `None` for every one.
    pub namespace: Option<String>,
    /// Keys that these resources may use.
    pub keys: KeyPattern,
}

impl NamespaceKeys {
    fn allow(&self, namespace: &str, key: &str) -> bool {
        self.namespace.as_deref().is_none_or(|named| named == namespace) && self.keys.contain(key)
    }
}

impl From<KeyPattern> for NamespaceKeys {
    fn from(keys: KeyPattern) -> Self {
        Self { namespace: None, keys }
    }
}

/// Written `NAMESPACE=KEY`, or `KEY` for every namespace.
impl FromStr for NamespaceKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("", _)) => Err(format!("`{text}` has no namespace before `=`")),
            Some((namespace, keys)) => {
                Ok(Self { namespace: Some(namespace.to_owned()).filter(|namespace| namespace != "*"), keys: keys.parse()? })
            }
            None => Ok(text.parse::<KeyPattern>()?.into()),
        }
    }
}

/// Several, with commas in between; nothing stands for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetachKeys(pub Vec<NamespaceKeys>);

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = text.split(',').filter(|_| !text.is_empty());
        all.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// Taints that the resources of a namespace may put on Nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceTaints {
    /// Namespace and keys of the taints.
    pub of: NamespaceKeys,
    /// Effect of the taints; `None`: both effects that evict nobody.
    pub effect: Option<Effect>,
}

impl NamespaceTaints {
    fn has_effect(&self, effect: Effect) -> bool {
        self.effect.map_or(effect != Effect::NoExecute, |allowed| allowed == effect)
    }
}

/// Written `NAMESPACE=KEY`, or `NAMESPACE=KEY:EFFECT`.
impl FromStr for NamespaceTaints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (of, effect) = text.split_once(':').map_or((text, None), |(of, effect)| (of, Some(effect)));
        if !of.contains('=') {
            return Err(format!("`{text}` must be NAMESPACE=KEY, such as ingress=readiness.k8s.io/*, or NAMESPACE=KEY:EFFECT"));
        }
        Ok(Self { of: of.parse()?, effect: effect.map(str::parse).transpose()? })
    }
}

/// The mark of the spec may not be written.
pub fn refused_mark(rights: &NodeRights, resource: &Resource) -> Option<SpecProblem> {
    let spec = &resource.spec;
    let rolling = spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    let namespace = &resource.namespace;
    let mark = rolling.node_mark().filter(|mark| !rights.allows_mark(namespace, &mark.key))?;
    let (field, key) = match mark.key.strip_prefix(names::LABEL_MARK) {
        Some(key) => ("labelNodeToDetach", key),
        None => ("annotateNodeToDetach", mark.key.as_str()),
    };
    Some(SpecProblem {
        reason: "DetachKeyNotAllowed",
        message: format!(
            "{field}.key is `{key}`, but the operator may not write this key to Nodes for this namespace: {}, and to keep the keys in use there: the flag replaces the default ones",
            ask_for("--allowed-detach-keys", &format!("{namespace}={key}"))
        ),
    })
}

/// The taint of the spec that is not put on Nodes, because nobody allowed it. Pods bear it all the same, for it may be there.
pub fn forbidden_taint<'r>(rights: &NodeRights, resource: &'r Resource) -> Option<&'r GateTaint> {
    let taint = resource.spec.node_readiness_taint.as_ref();
    taint.filter(|taint| !rights.allows_taint(&resource.namespace, taint))
}

/// The taint of the spec that the operator may not write, as a problem of the spec.
pub fn refused_taint(rights: &NodeRights, resource: &Resource) -> Option<SpecProblem> {
    let GateTaint { key, effect, .. } = forbidden_taint(rights, resource)?;
    let named = if *effect == Effect::NoExecute { ":NoExecute" } else { "" };
    let flag = ask_for("--allowed-node-taints", &format!("{}={key}{named}", resource.namespace));
    Some(SpecProblem {
        reason: "TaintNotAllowed",
        message: format!(
            "nodeReadinessTaint.key is `{key}`{}, but resources of this namespace may not taint Nodes with it: {flag}, or to create a NodeReadinessGate; until then no node is held, and taints already there stay",
            if named.is_empty() { "" } else { " and its effect is NoExecute" }
        ),
    })
}

/// Added, since the flag replaces the keys that are allowed by default.
fn ask_for(flag: &str, value: &str) -> String {
    format!("ask the operator's administrator to add {value} to {flag}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn keys_are_one_or_all_of_a_domain_or_all() {
        let contain = |keys: &str, key: &str| keys.parse::<KeyPattern>().unwrap().contain(key);
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
            let said = wrong.parse::<KeyPattern>().unwrap_err();
            assert!(said.contains("example.com/*"), "{wrong}: {said}");
        }
    }

    #[test]
    fn taints_are_allowed_to_namespaces() {
        let allows_effect = |flag: &str, namespace: &str, key: &str, effect: Effect| {
            let rights = NodeRights { taints: vec![flag.parse().unwrap()], ..NodeRights::default() };
            rights.allows_taint(namespace, &GateTaint { key: key.to_owned(), value: None, effect })
        };
        let allows = |flag: &str, namespace: &str, key: &str| allows_effect(flag, namespace, key, Effect::NoSchedule);
        for (flag, allowed) in [
            ("edge=a/b", [true, true, false]),
            ("*=*", [true, true, false]),
            ("edge=a/*:NoExecute", [false, false, true]),
            ("edge=a/b:PreferNoSchedule", [false, true, false]),
        ] {
            let effects = [Effect::NoSchedule, Effect::PreferNoSchedule, Effect::NoExecute];
            assert_eq!(effects.map(|effect| allows_effect(flag, "edge", "a/b", effect)), allowed, "{flag}: only a name lets evict");
        }
        assert!(allows("ingress=readiness.k8s.io/*", "ingress", "readiness.k8s.io/web"));
        assert!(!allows("ingress=readiness.k8s.io/*", "ingress2", "readiness.k8s.io/web"));
        assert!(!allows("ingress=readiness.k8s.io/*", "ingress", "node-role.kubernetes.io/web"));
        assert!(allows("*=readiness.k8s.io/web", "any", "readiness.k8s.io/web"));
        assert!(allows("ingress=*", "ingress", "a"));
        let taint = GateTaint { key: "readiness.k8s.io/web".into(), value: None, effect: Effect::NoSchedule };
        assert!(!NodeRights::default().allows_taint("ingress", &taint) && NodeRights::all().allows_taint("any", &taint));
        for wrong in ["", "ingress", "=a", "ingress=", "ingress=a/b/c", "ingress=a:", "ingress=a:Evict", "a:NoExecute"] {
            assert!(wrong.parse::<NamespaceTaints>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn detach_keys_are_allowed_for_some_all_or_no_namespaces() {
        let allows = |flag: &str, namespace: &str, key: &str| {
            let rights = NodeRights { detach_keys: flag.parse::<DetachKeys>().unwrap().0, ..NodeRights::default() };
            rights.allows_mark(namespace, key)
        };
        for (flag, of_edge, of_tenant) in
            [("a/b", true, true), ("*=a/b", true, true), ("edge=a/*", true, false), ("tenant=c,edge=a/b", true, false), ("", false, false)]
        {
            assert_eq!((allows(flag, "edge", "a/b"), allows(flag, "tenant", "a/b")), (of_edge, of_tenant), "{flag}");
        }
        for wrong in ["=a", "edge=", "edge=a b", "a,,b", ","] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_known_detach_keys_are_allowed_by_default() {
        let allows = |key: &str| NodeRights::default().allows_mark("any", key);
        for key in DETACH_KEYS {
            assert!(allows(key) && allows(&format!("{}{key}", names::LABEL_MARK)), "{key}");
        }
        for key in ["node-role.kubernetes.io/control-plane", "kubernetes.io/hostname", "node-detacher.variant.run/cached", "app"] {
            assert!(!allows(key) && !allows(&format!("{}{key}", names::LABEL_MARK)), "{key}");
        }
    }

    #[test]
    fn no_flag_allows_the_operators_own_keys() {
        for key in [names::HOLDERS_ANNOTATION.to_owned(), format!("{}{}/x", names::LABEL_MARK, names::GROUP)] {
            assert!(!NodeRights::all().allows_mark("any", &key), "{key}");
        }
        assert!(NodeRights::all().allows_mark("any", &format!("{}.example.com/x", names::GROUP)));
    }
}
