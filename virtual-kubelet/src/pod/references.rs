//! `ConfigMaps`, Secrets and Services that pods refer to, read by name as a node is allowed to.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
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

/// Where `ConfigMaps`, Secrets and services come from.
pub trait ReferenceSource: Send + Sync + 'static {
    /// A `ConfigMap`, or nothing when there is none of that name.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<ConfigMap>, ApiCallError>>;

    /// A Secret, or nothing when there is none of that name.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Secret>, ApiCallError>>;

    /// All services that a pod of `namespace` may be told of: those of the namespace, and `default/kubernetes`.
    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, ApiCallError>>;
}

/// The API server itself, asked each time, by name as the Node authorizer allows: what is read is never of the past, and
/// no copy of other pods' Secrets is kept.
#[derive(Clone)]
pub struct ApiReferences {
    client: Client,
}

impl ApiReferences {
    /// Asks with this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl ReferenceSource for ApiReferences {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<ConfigMap>, ApiCallError>> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
        Box::pin(async move { within(api.get_opt(name)).await })
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Secret>, ApiCallError>> {
        let api = Api::<Secret>::namespaced(self.client.clone(), namespace);
        Box::pin(async move { within(api.get_opt(name)).await })
    }

    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, ApiCallError>> {
        Box::pin(services(&self.client, namespace))
    }
}

/// Reads what is wanted, one request per object.
pub async fn fetch(client: &Client, namespace: &str, wanted: &Wanted) -> Result<References, ApiCallError> {
    fetch_from(&ApiReferences::new(client.clone()), namespace, wanted).await
}

/// Reads what is wanted from `source`.
pub async fn fetch_from(source: &dyn ReferenceSource, namespace: &str, wanted: &Wanted) -> Result<References, ApiCallError> {
    let mut found = References::default();
    for name in &wanted.config_maps {
        if let Some(object) = source.config_map(namespace, name).await? {
            found.config_maps.insert(name.clone(), object);
        }
    }
    for name in &wanted.secrets {
        if let Some(object) = source.secret(namespace, name).await? {
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
