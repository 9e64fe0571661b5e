//! Pods whose environment is plain values, for providers that do not resolve it themselves.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use kube::Client;

use super::environment::{self, EnvironmentError, NodeFacts};
use super::references::{References, Wanted};
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

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// The pod with `env` as values and without `envFrom`.
pub(super) async fn resolve(client: &Client, pod: &Arc<Pod>, node: &NodeFacts) -> Result<Arc<Pod>, ResolveError> {
    let namespace = PodId::of(pod).namespace;
    let mut wanted = Wanted::default();
    for container in containers(pod) {
        let own = environment::wanted(container);
        wanted.config_maps.extend(own.config_maps);
        wanted.secrets.extend(own.secrets);
    }
    let references = references::fetch(client, &namespace, &wanted).await?;
    let services = service_variables::of(pod, &references::services(client, &namespace).await?);
    Ok(Arc::new(filled(pod, node, &references, &services)?))
}

fn filled(
    pod: &Pod,
    node: &NodeFacts,
    references: &References,
    services: &std::collections::BTreeMap<String, String>,
) -> Result<Pod, EnvironmentError> {
    let mut result = pod.clone();
    let Some(spec) = &mut result.spec else { return Ok(result) };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let variables = environment::resolve(container, pod, node, references, services)?;
        let plain = variables.into_iter().map(|(name, value)| EnvVar { name, value: Some(value), value_from: None });
        container.env = Some(plain.collect());
        container.env_from = None;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    #[test]
    fn every_container_gets_plain_values() {
        let variable = EnvVar { name: "A".into(), value: Some("$(S)!".into()), value_from: None };
        let container = Container { env: Some(vec![variable]), ..Container::default() };
        let spec = PodSpec { init_containers: Some(vec![container.clone()]), containers: vec![container], ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        let services = [("S".to_owned(), "1".to_owned())].into();
        let filled = filled(&pod, &NodeFacts::default(), &References::default(), &services).unwrap();
        for container in containers(&filled) {
            let values: Vec<_> = container.env.iter().flatten().map(|v| (v.name.as_str(), v.value.as_deref())).collect();
            assert_eq!(values, [("A", Some("1!")), ("S", Some("1"))]);
        }
    }
}
