//! Resolution of a container's environment, command and arguments; no I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod, ResourceFieldSelector};

use super::references::{References, Wanted};
use crate::pod::resource_field;

/// Why an environment cannot be made (yet).
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
}

/// Facts of the node that fields refer to.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Address of the node and, without a network of their own, of its pods.
    pub address: String,
    /// Allocatable CPUs, as a quantity; what a container without a limit may use.
    pub cpu: String,
    /// Allocatable memory, as a quantity.
    pub memory: String,
}

/// What a container's environment refers to.
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
pub fn resolve(
    container: &Container,
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
    services: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut result = services.clone();
    result.extend(from_whole_objects(container, references)?);
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => Some(expand(value, |name| own.get(name).or_else(|| services.get(name)).cloned())),
            (_, Some(source)) => from_source(source, container, pod, node, references)?,
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

fn from_whole_objects(container: &Container, references: &References) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut result = BTreeMap::new();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let mut add = |key: &str, value: String| {
            let name = format!("{prefix}{key}");
            if is_name(&name) {
                result.insert(name, value);
            }
        };
        if let Some(reference) = &source.config_map_ref {
            match references.config_maps.get(&reference.name) {
                Some(map) => map.data.iter().flatten().for_each(|(key, value)| add(key, value.clone())),
                None if reference.optional == Some(true) => {}
                None => return Err(EnvironmentError::MissingObject { kind: "configmap", name: reference.name.clone() }),
            }
        }
        if let Some(reference) = &source.secret_ref {
            match references.secrets.get(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        add(key, String::from_utf8_lossy(&value.0).into_owned());
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(EnvironmentError::MissingObject { kind: "secret", name: reference.name.clone() }),
            }
        }
    }
    Ok(result)
}

fn from_source(
    source: &EnvVarSource,
    container: &Container,
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
) -> Result<Option<String>, EnvironmentError> {
    let full_name = |name: &str| format!("{}/{name}", pod.metadata.namespace.as_deref().unwrap_or_default());
    if let Some(field) = &source.field_ref {
        return field_value(pod, &node.address, &field.field_path).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource_field::value(container, selector, node).map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        let optional = key.optional == Some(true);
        return match references.config_maps.get(&key.name) {
            None if optional => Ok(None),
            None => Err(EnvironmentError::MissingObject { kind: "configmap", name: key.name.clone() }),
            Some(map) => match map.data.as_ref().and_then(|data| data.get(&key.key)) {
                Some(value) => Ok(Some(value.clone())),
                None if optional => Ok(None),
                None => Err(EnvironmentError::MissingKey { kind: "ConfigMap", name: full_name(&key.name), key: key.key.clone() }),
            },
        };
    }
    if let Some(key) = &source.secret_key_ref {
        let optional = key.optional == Some(true);
        return match references.secrets.get(&key.name) {
            None if optional => Ok(None),
            None => Err(EnvironmentError::MissingObject { kind: "secret", name: key.name.clone() }),
            Some(secret) => match secret.data.as_ref().and_then(|data| data.get(&key.key)) {
                Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
                None if optional => Ok(None),
                None => Err(EnvironmentError::MissingKey { kind: "Secret", name: full_name(&key.name), key: key.key.clone() }),
            },
        };
    }
    Ok(Some(String::new()))
}

/// The value of a downward API field.
pub fn field_value(pod: &Pod, address: &str, path: &str) -> Result<String, EnvironmentError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    let lines = |map: &Option<BTreeMap<String, String>>| {
        map.iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
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
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => address.to_owned(),
        _ => return Err(EnvironmentError::UnsupportedField(path.into())),
    })
}

/// The number that a volume asks for about a container of the pod.
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
