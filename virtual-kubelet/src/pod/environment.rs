//! Resolution of a container's environment, command and arguments; no I/O.
//!
//! A pod controller does this before it gives a pod to a provider. One that is told not to
//! ([`skip_downward_api_resolution`](super::PodControllerConfig::skip_downward_api_resolution)) leaves it to the provider:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//!
//! use k8s_openapi::api::core::v1::{Container, Pod};
//! use virtual_kubelet::pod::environment::{NodeFacts, resolve_noted, wanted};
//! use virtual_kubelet::pod::{Events, references, service_variables};
//!
//! # async fn example(client: kube::Client, events: Events) -> anyhow::Result<()> {
//! # let (pod, container) = (Pod::default(), Container::default());
//! let node = NodeFacts { address: "198.18.0.1".into(), cpu: "8".into(), memory: "16Gi".into() };
//! let references = references::fetch(&client, "web", &wanted(&container)).await?;
//! let services = service_variables::of(&pod, &references::services(&client, "web").await?);
//! let mut notes = Vec::new();
//! let environment = resolve_noted(&container, &pod, &node, &references, &services, &mut notes);
//! for note in notes {
//!     events.warning(&pod, note.reason, note.message);
//! }
//! let environment: BTreeMap<String, String> = environment?;
//! # Ok(())
//! # }
//! ```

mod resource_field;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Node, Pod, ResourceFieldSelector};

use super::references::{References, Wanted};
use resource_field::is_quantity;

/// Why an environment cannot be made (yet).
///
/// ```
/// use virtual_kubelet::pod::environment::EnvironmentError;
///
/// /// Whether waiting may help: somebody may still make it.
/// fn may_come(error: &EnvironmentError) -> bool {
///     matches!(error, EnvironmentError::MissingObject { .. } | EnvironmentError::MissingKey { .. })
/// }
///
/// let error = EnvironmentError::MissingObject { kind: "secret", name: "password".into() };
/// assert!(may_come(&error));
/// assert_eq!(error.to_string(), "secret \"password\" not found");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// A mandatory `ConfigMap` or Secret does not exist.
    #[error("{kind} \"{name}\" not found")]
    MissingObject {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A mandatory key does not exist.
    #[error("couldn't find key {key} in {kind} {name}")]
    MissingKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Namespace and name.
        name: String,
        /// The key.
        key: String,
    },
    /// A field that a node cannot tell.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    /// A resource that cannot be read.
    #[error("unsupported container resource: {0}")]
    UnsupportedResource(String),
    /// A field of the node's address, which [`NodeFacts`] do not have.
    #[error("the node reports no address, which {0} refers to")]
    NoAddress(String),
    /// A limit that is not set and of which [`NodeFacts`] do not say what it is then.
    #[error("the node reports no capacity, which {0} refers to if there is no limit")]
    NoCapacity(String),
}

/// Facts of the node that fields refer to.
///
/// ```
/// # use std::sync::Arc;
/// # use virtual_kubelet::pod::PodControllerConfig;
/// use virtual_kubelet::pod::environment::NodeFacts;
///
/// fn tell<P>(config: &mut PodControllerConfig<P>) {
///     config.node_facts = NodeFacts { address: "198.18.0.1".into(), cpu: "7500m".into(), memory: "15Gi".into() };
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Address of the node and, without a network of their own, of its pods.
    pub address: String,
    /// Allocatable CPUs, as a quantity; what a container without a limit may use.
    pub cpu: String,
    /// Allocatable memory, as a quantity; what a container without a limit may use.
    pub memory: String,
}

impl NodeFacts {
    /// What `node` says of itself: its `InternalIP`, and what of it pods may use. What it does not say is empty.
    ///
    /// ```
    /// use virtual_kubelet::node::{MachineFacts, new_node};
    /// use virtual_kubelet::pod::environment::NodeFacts;
    ///
    /// let machine = MachineFacts { name: "n1".into(), internal_ip: "198.18.0.1".into(), cpu: "8".into(), ..MachineFacts::default() };
    /// let facts = NodeFacts::of(&new_node(&machine, jiff::Timestamp::now()));
    /// assert_eq!((facts.address.as_str(), facts.cpu.as_str()), ("198.18.0.1", "8"));
    /// ```
    pub fn of(node: &Node) -> Self {
        let Some(status) = &node.status else { return Self::default() };
        let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP");
        let amount = |name: &str| {
            let resources = status.allocatable.as_ref().or(status.capacity.as_ref());
            resources.and_then(|resources| resources.get(name)).map(|quantity| quantity.0.clone()).unwrap_or_default()
        };
        Self { address: address.map(|address| address.address.clone()).unwrap_or_default(), cpu: amount("cpu"), memory: amount("memory") }
    }

    /// What is missing for pods that refer to it, if something is.
    pub(super) fn lack(&self) -> Option<&'static str> {
        let is_missing = [("address", self.address.is_empty()), ("cpu", !is_quantity(&self.cpu)), ("memory", !is_quantity(&self.memory))];
        is_missing.into_iter().find(|(_, is_missing)| *is_missing).map(|(name, _)| name)
    }
}

/// Something about an environment that a user should know: the event to record.
///
/// ```
/// use virtual_kubelet::pod::environment::Note;
///
/// let note = Note { reason: "OptionalSecretNotFound", message: "secret \"password\" not found".into() };
/// let is_optional = note.reason.starts_with("Optional");
/// assert!(is_optional);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Reason of the event, such as `OptionalSecretNotFound`.
    pub reason: &'static str,
    /// What is meant.
    pub message: String,
}

/// A kind of object that an environment takes values from, with the reasons of its events.
struct Source {
    /// As in messages about the object.
    object: &'static str,
    /// As in messages about a key.
    kind: &'static str,
    /// Reasons for an object and for a key that is missing, when it is optional, and when it is not.
    optional: [&'static str; 2],
    mandatory: [&'static str; 2],
}

const CONFIG_MAP: Source = Source {
    object: "configmap",
    kind: "ConfigMap",
    optional: ["OptionalConfigMapNotFound", "OptionalConfigMapKeyNotFound"],
    mandatory: ["MandatoryConfigMapNotFound", "MandatoryConfigMapKeyNotFound"],
};
const SECRET: Source = Source {
    object: "secret",
    kind: "Secret",
    optional: ["OptionalSecretNotFound", "OptionalSecretKeyNotFound"],
    mandatory: ["MandatorySecretNotFound", "MandatorySecretKeyNotFound"],
};

impl Source {
    /// Something is missing: noted, and an error unless it is optional.
    fn missing(&self, error: EnvironmentError, optional: bool, notes: &mut Vec<Note>) -> Result<(), EnvironmentError> {
        let of_key = usize::from(matches!(error, EnvironmentError::MissingKey { .. }));
        let reason = if optional { self.optional } else { self.mandatory }[of_key];
        notes.push(Note { reason, message: error.to_string() });
        if optional { Ok(()) } else { Err(error) }
    }

    fn no_object(&self, name: &str) -> EnvironmentError {
        EnvironmentError::MissingObject { kind: self.object, name: name.to_owned() }
    }

    fn no_key(&self, pod: &Pod, name: &str, key: &str) -> EnvironmentError {
        let name = format!("{}/{name}", pod.metadata.namespace.as_deref().unwrap_or_default());
        EnvironmentError::MissingKey { kind: self.kind, name, key: key.to_owned() }
    }
}

/// What a container's environment refers to.
///
/// ```
/// use k8s_openapi::api::core::v1::{Container, EnvFromSource, SecretEnvSource};
/// use virtual_kubelet::pod::environment::wanted;
///
/// let secret = SecretEnvSource { name: "password".into(), optional: None };
/// let source = EnvFromSource { secret_ref: Some(secret), ..EnvFromSource::default() };
/// let container = Container { env_from: Some(vec![source]), ..Container::default() };
/// assert!(wanted(&container).secrets.contains("password"));
/// ```
pub fn wanted(container: &Container) -> Wanted {
    let mut wanted = Wanted::default();
    for source in container.env_from.iter().flatten() {
        wanted.config_maps.extend(source.config_map_ref.as_ref().map(|r| r.name.clone()));
        wanted.secrets.extend(source.secret_ref.as_ref().map(|r| r.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        wanted.config_maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.clone()));
        wanted.secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.clone()));
    }
    wanted
}

/// The container's variables. Services come first, `envFrom` overrides them, `env` overrides all;
/// `$(NAME)` in a value of `env` sees earlier values of `env` and the services.
///
/// ```
/// use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
/// use virtual_kubelet::pod::environment::{NodeFacts, resolve};
/// use virtual_kubelet::pod::references::References;
///
/// let variable = |name: &str, value: &str| EnvVar { name: name.into(), value: Some(value.into()), value_from: None };
/// let env = vec![variable("HOST", "db"), variable("URL", "http://$(HOST)/")];
/// let container = Container { env: Some(env), ..Container::default() };
/// let resolved = resolve(&container, &Pod::default(), &NodeFacts::default(), &References::default(), &[].into()).unwrap();
/// assert_eq!(resolved["URL"], "http://db/");
/// ```
pub fn resolve(
    container: &Container,
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
    services: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    resolve_noted(container, pod, node, references, services, &mut Vec::new())
}

/// As [`resolve`], and says what was left out or missing, also when it fails by that.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMapEnvSource, Container, EnvFromSource, Pod};
/// use virtual_kubelet::pod::environment::{NodeFacts, resolve_noted};
/// use virtual_kubelet::pod::references::References;
///
/// let map = ConfigMapEnvSource { name: "settings".into(), optional: Some(true) };
/// let source = EnvFromSource { config_map_ref: Some(map), ..EnvFromSource::default() };
/// let container = Container { env_from: Some(vec![source]), ..Container::default() };
/// let (pod, node, mut notes) = (Pod::default(), NodeFacts::default(), Vec::new());
/// let environment = resolve_noted(&container, &pod, &node, &References::default(), &[].into(), &mut notes).unwrap();
/// assert!(environment.is_empty());
/// assert_eq!(notes[0].reason, "OptionalConfigMapNotFound");
/// ```
pub fn resolve_noted(
    container: &Container,
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
    services: &BTreeMap<String, String>,
    notes: &mut Vec<Note>,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut result = services.clone();
    result.extend(from_whole_objects(container, references, notes)?);
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => Some(expand(value, |name| own.get(name).or_else(|| services.get(name)).cloned())),
            (_, Some(source)) => from_source(source, container, pod, node, references, notes)?,
            _ => Some(String::new()),
        };
        if let Some(value) = value {
            own.insert(variable.name.clone(), value);
        }
    }
    result.extend(own);
    Ok(result)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| (' '..='~').contains(&c) && c != '=')
}

/// Variables from whole objects; names that cannot be variables are left out, in one note per object.
fn from_whole_objects(
    container: &Container,
    references: &References,
    notes: &mut Vec<Note>,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut result = BTreeMap::new();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let mut invalid: Vec<String> = Vec::new();
        let mut add = |key: &str, value: String| {
            let name = format!("{prefix}{key}");
            if is_name(&name) {
                result.insert(name, value);
            } else {
                invalid.push(key.to_owned());
            }
        };
        if let Some(reference) = &source.config_map_ref {
            match references.config_maps.get(&reference.name) {
                Some(map) => map.data.iter().flatten().for_each(|(key, value)| add(key, value.clone())),
                None => CONFIG_MAP.missing(CONFIG_MAP.no_object(&reference.name), reference.optional == Some(true), notes)?,
            }
            skipped(&invalid, "ConfigMap", &reference.name, notes);
        } else if let Some(reference) = &source.secret_ref {
            match references.secrets.get(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        add(key, String::from_utf8_lossy(&value.0).into_owned());
                    }
                }
                None => SECRET.missing(SECRET.no_object(&reference.name), reference.optional == Some(true), notes)?,
            }
            skipped(&invalid, "Secret", &reference.name, notes);
        }
    }
    Ok(result)
}

fn skipped(keys: &[String], kind: &str, name: &str, notes: &mut Vec<Note>) {
    if !keys.is_empty() {
        let keys = keys.join(", ");
        let message = format!("keys [{keys}] of {kind} {name} were skipped since they are not valid names of environment variables");
        notes.push(Note { reason: "InvalidEnvironmentVariableNames", message });
    }
}

fn from_source(
    source: &EnvVarSource,
    container: &Container,
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
    notes: &mut Vec<Note>,
) -> Result<Option<String>, EnvironmentError> {
    if let Some(field) = &source.field_ref {
        if let Some(version) = field.api_version.as_deref().filter(|version| !version.is_empty() && *version != "v1") {
            return Err(EnvironmentError::UnsupportedField(format!("{} of {version}", field.field_path)));
        }
        return field_value(pod, &node.address, &field.field_path).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return match selector.container_name.as_deref() {
            Some(name) if !name.is_empty() && name != container.name => container_resource(pod, selector, node).map(Some),
            _ => resource_field::value(container, selector, node).map(Some),
        };
    }
    if let Some(key) = &source.config_map_key_ref {
        let Some(map) = references.config_maps.get(&key.name) else {
            return CONFIG_MAP.missing(CONFIG_MAP.no_object(&key.name), key.optional == Some(true), notes).map(|()| None);
        };
        return match map.data.as_ref().and_then(|data| data.get(&key.key)) {
            Some(value) => Ok(Some(value.clone())),
            None => CONFIG_MAP.missing(CONFIG_MAP.no_key(pod, &key.name, &key.key), key.optional == Some(true), notes).map(|()| None),
        };
    }
    if let Some(key) = &source.secret_key_ref {
        let Some(secret) = references.secrets.get(&key.name) else {
            return SECRET.missing(SECRET.no_object(&key.name), key.optional == Some(true), notes).map(|()| None);
        };
        return match secret.data.as_ref().and_then(|data| data.get(&key.key)) {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None => SECRET.missing(SECRET.no_key(pod, &key.name, &key.key), key.optional == Some(true), notes).map(|()| None),
        };
    }
    Ok(Some(String::new()))
}

/// A text as Go quotes it (`%q`), which is what a kubelet writes for maps.
fn quoted(text: &str) -> String {
    let mut result = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => result.push_str("\\\""),
            '\\' => result.push_str("\\\\"),
            '\u{7}' => result.push_str("\\a"),
            '\u{8}' => result.push_str("\\b"),
            '\u{c}' => result.push_str("\\f"),
            '\n' => result.push_str("\\n"),
            '\r' => result.push_str("\\r"),
            '\t' => result.push_str("\\t"),
            '\u{b}' => result.push_str("\\v"),
            ' '..='~' => result.push(character),
            character if character.is_ascii() => result.extend(["\\x".to_owned(), format!("{:02x}", u32::from(character))]),
            character if !character.is_control() && !character.is_whitespace() => result.push(character),
            character if u32::from(character) < 0x1_0000 => result.extend(["\\u".to_owned(), format!("{:04x}", u32::from(character))]),
            character => result.extend(["\\U".to_owned(), format!("{:08x}", u32::from(character))]),
        }
    }
    result.push('"');
    result
}

/// The value of a downward API field; `address` is the node's and the pod's. A label or annotation that is missing is
/// empty; a path that a node cannot tell is [`EnvironmentError::UnsupportedField`], and an address that is empty is
/// [`EnvironmentError::NoAddress`].
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use virtual_kubelet::pod::environment::{EnvironmentError, field_value};
///
/// let mut pod = Pod::default();
/// pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
/// assert_eq!(field_value(&pod, "198.18.0.1", "metadata.labels['app']").unwrap(), "web");
/// assert_eq!(field_value(&pod, "198.18.0.1", "status.podIP").unwrap(), "198.18.0.1");
/// assert!(matches!(field_value(&pod, "198.18.0.1", "spec.tolerations"), Err(EnvironmentError::UnsupportedField(_))));
/// ```
pub fn field_value(pod: &Pod, address: &str, path: &str) -> Result<String, EnvironmentError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    let lines = |map: &Option<BTreeMap<String, String>>| {
        map.iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join("\n")
    };
    if let Some((map, key)) = subscript(path) {
        return match map {
            "metadata.labels" => Ok(text(meta.labels.as_ref().and_then(|labels| labels.get(key)))),
            "metadata.annotations" => Ok(text(meta.annotations.as_ref().and_then(|annotations| annotations.get(key)))),
            _ => Err(EnvironmentError::UnsupportedField(path.into())),
        };
    }
    Ok(match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => lines(&meta.labels),
        "metadata.annotations" => lines(&meta.annotations),
        "spec.nodeName" | "spec.host" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "spec.restartPolicy" => text(spec.and_then(|spec| spec.restart_policy.as_ref())),
        "spec.schedulerName" => text(spec.and_then(|spec| spec.scheduler_name.as_ref())),
        "status.phase" => text(pod.status.as_ref().and_then(|status| status.phase.as_ref())),
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" if address.is_empty() => {
            return Err(EnvironmentError::NoAddress(path.into()));
        }
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => address.to_owned(),
        _ => return Err(EnvironmentError::UnsupportedField(path.into())),
    })
}

/// The number that a volume asks for about a container of the pod, in units of its divisor and rounded up. A limit of CPU or
/// memory that is not set is what `node` has, and anything else that is not set is 0.
///
/// ```
/// use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceFieldSelector};
/// use virtual_kubelet::pod::environment::{NodeFacts, container_resource};
///
/// let web = Container { name: "web".into(), ..Container::default() };
/// let pod = Pod { spec: Some(PodSpec { containers: vec![web], ..PodSpec::default() }), ..Pod::default() };
/// let node = NodeFacts { cpu: "7500m".into(), ..NodeFacts::default() };
/// let selector = |container: &str| ResourceFieldSelector {
///     container_name: Some(container.into()),
///     resource: "limits.cpu".into(),
///     ..ResourceFieldSelector::default()
/// };
/// assert_eq!(container_resource(&pod, &selector("web"), &node).unwrap(), "8");
/// assert!(container_resource(&pod, &selector("db"), &node).is_err());
/// ```
pub fn container_resource(pod: &Pod, selector: &ResourceFieldSelector, node: &NodeFacts) -> Result<String, EnvironmentError> {
    let wanted = selector.container_name.as_deref().unwrap_or_default();
    let containers = pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let container = containers.into_iter().find(|container| container.name == wanted);
    let container = container.ok_or_else(|| EnvironmentError::UnsupportedResource(format!("container {wanted}")))?;
    resource_field::value(container, selector, node)
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    Some((map, key))
}

/// Replaces `$(NAME)` by what `lookup` knows and `$$` by `$`; unknown names stay as they are.
///
/// ```
/// use virtual_kubelet::pod::environment::expand;
///
/// let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
/// assert_eq!(expand("$(A) $(B) $$(A)", lookup), "1 $(B) $(A)");
/// ```
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            if let Some(value) = lookup(name) {
                result.push_str(&value);
            } else {
                result.push_str("$(");
                result.push_str(name);
                result.push(')');
            }
            rest = after;
        } else {
            result.push('$');
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
