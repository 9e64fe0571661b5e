//! Pods whose environment is plain values, for providers that do not resolve it themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVar, EphemeralContainer, Pod};

use super::environment::{self, EnvironmentError, NodeFacts, Note};
use super::references::{ReferenceSource, References, Wanted, services_for};
use super::{PodId, service_variables};
use crate::api_call::ApiCallError;

/// Why a pod's environment is not resolved (yet).
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error(transparent)]
    Api(#[from] ApiCallError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
}

/// What an environment needs of an ephemeral container, in the form of the others.
fn as_container(ephemeral: &EphemeralContainer) -> Container {
    Container {
        name: ephemeral.name.clone(),
        env: ephemeral.env.clone(),
        env_from: ephemeral.env_from.clone(),
        resources: ephemeral.resources.clone(),
        ..Container::default()
    }
}

/// The pod with `env` as values and without `envFrom`. Notes say what was missing, also when it failed by that.
pub(super) async fn resolve(
    source: &dyn ReferenceSource,
    pod: &Arc<Pod>,
    node: &NodeFacts,
    notes: &mut Vec<Note>,
) -> Result<Arc<Pod>, ResolveError> {
    let namespace = PodId::of(pod).namespace;
    let mut wanted = Wanted::default();
    let mut want = |container: &Container| {
        let own = environment::wanted(container);
        wanted.config_maps.extend(own.config_maps);
        wanted.secrets.extend(own.secrets);
    };
    if let Some(spec) = &pod.spec {
        spec.init_containers.iter().flatten().chain(&spec.containers).for_each(&mut want);
        spec.ephemeral_containers.iter().flatten().map(as_container).for_each(|container| want(&container));
    }
    let references = read(source, pod, &namespace, wanted, notes).await?;
    let services = service_variables::of(pod, &services_for(source, pod).await?);
    Ok(Arc::new(filled(pod, node, &references, &services, notes)?))
}

/// Reads what is wanted. Whatever cannot be read for now, optional or not, is told and tried again: only what is known not
/// to exist is left out.
async fn read(
    source: &dyn ReferenceSource,
    pod: &Pod,
    namespace: &str,
    wanted: Wanted,
    notes: &mut Vec<Note>,
) -> Result<References, ApiCallError> {
    let mut found = References::default();
    let mut failed = |error: ApiCallError, reasons: [&'static str; 2], mandatory: bool, name: &str| {
        notes.push(Note { reason: reasons[usize::from(mandatory)], message: format!("reading {name}: {error}") });
        error
    };
    for name in wanted.config_maps {
        let reasons = ["FailedToReadOptionalConfigMap", "FailedToReadMandatoryConfigMap"];
        let read = source.config_map(namespace, &name).await;
        let object = read.map_err(|error| failed(error, reasons, is_mandatory(pod, |refers| refers.config_map, &name), &name))?;
        found.config_maps.extend(object.map(|object| (name, object)));
    }
    for name in wanted.secrets {
        let reasons = ["FailedToReadOptionalSecret", "FailedToReadMandatorySecret"];
        let read = source.secret(namespace, &name).await;
        let object = read.map_err(|error| failed(error, reasons, is_mandatory(pod, |refers| refers.secret, &name), &name))?;
        found.secrets.extend(object.map(|object| (name, object)));
    }
    Ok(found)
}

/// The object that something refers to, and whether it may be missing.
type Reference<'a> = Option<(&'a str, bool)>;

struct Refers<'a> {
    config_map: Reference<'a>,
    secret: Reference<'a>,
}

/// Whether one of the pod's references of this kind needs the object.
fn is_mandatory(pod: &Pod, kind: impl for<'a> Fn(Refers<'a>) -> Reference<'a>, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ephemeral: Vec<_> = spec.ephemeral_containers.iter().flatten().map(as_container).collect();
    spec.init_containers.iter().flatten().chain(&spec.containers).chain(&ephemeral).any(|container| {
        let whole = container.env_from.iter().flatten().map(|source| Refers {
            config_map: source.config_map_ref.as_ref().map(|reference| (reference.name.as_str(), reference.optional == Some(true))),
            secret: source.secret_ref.as_ref().map(|reference| (reference.name.as_str(), reference.optional == Some(true))),
        });
        let keys = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()).map(|source| Refers {
            config_map: source.config_map_key_ref.as_ref().map(|reference| (reference.name.as_str(), reference.optional == Some(true))),
            secret: source.secret_key_ref.as_ref().map(|reference| (reference.name.as_str(), reference.optional == Some(true))),
        });
        whole.chain(keys).filter_map(&kind).any(|(of, optional)| of == name && !optional)
    })
}

fn filled(
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
    services: &BTreeMap<String, String>,
    notes: &mut Vec<Note>,
) -> Result<Pod, EnvironmentError> {
    let mut result = pod.clone();
    let Some(spec) = &mut result.spec else { return Ok(result) };
    let mut plain = |container: &Container| -> Result<Vec<EnvVar>, EnvironmentError> {
        let variables = environment::resolve_noted(container, pod, node, references, services, notes)?;
        Ok(variables.into_iter().map(|(name, value)| EnvVar { name, value: Some(value), value_from: None }).collect())
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.env = Some(plain(container)?);
        container.env_from = None;
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        container.env = Some(plain(&as_container(container))?);
        container.env_from = None;
    }
    Ok(result)
}

#[cfg(test)]
#[path = "resolved_tests.rs"]
mod tests;
