//! `ConfigMaps`, Secrets and Services that pods refer to, read by name as a node is allowed to.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::Client;
use kube::api::{Api, ListParams};

use crate::api_call::{ApiCallError, within};

/// Names of `ConfigMaps` and Secrets of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `ConfigMaps` by name.
    pub config_maps: BTreeSet<String>,
    /// Secrets by name.
    pub secrets: BTreeSet<String>,
}

/// The objects themselves; what does not exist is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    /// `ConfigMaps` by name.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Secret>,
}

/// Reads what is wanted, one request per object.
pub async fn fetch(client: &Client, namespace: &str, wanted: &Wanted) -> Result<References, ApiCallError> {
    let mut found = References::default();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    for name in &wanted.config_maps {
        if let Some(object) = within(config_maps.get_opt(name)).await? {
            found.config_maps.insert(name.clone(), object);
        }
    }
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    for name in &wanted.secrets {
        if let Some(object) = within(secrets.get_opt(name)).await? {
            found.secrets.insert(name.clone(), object);
        }
    }
    Ok(found)
}

/// All services that a pod of `namespace` may be told of.
pub async fn services(client: &Client, namespace: &str) -> Result<Vec<Service>, ApiCallError> {
    let mut services = within(Api::<Service>::namespaced(client.clone(), namespace).list(&ListParams::default())).await?.items;
    if namespace != "default" {
        let default = Api::<Service>::namespaced(client.clone(), "default");
        services.extend(within(default.get_opt("kubernetes")).await?);
    }
    Ok(services)
}
