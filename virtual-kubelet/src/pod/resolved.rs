//! Pods whose environment is plain values, for providers that do not resolve it themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVar, EphemeralContainer, Pod};

use super::environment::{self, EnvironmentError, NodeFacts, Note};
use super::references::{ReferenceSource, References, Wanted};
use super::{PodId, references, service_variables};
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
    let references = references::fetch_from(source, &namespace, &wanted).await?;
    let services = service_variables::of(pod, &source.services(&namespace).await?);
    Ok(Arc::new(filled(pod, node, &references, &services, notes)?))
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
