//! `ConfigMaps`, Secrets and Services that pods refer to, read by name as a node is allowed to.
//!
//! ```no_run
//! use virtual_kubelet::api_call::ApiCallError;
//! use virtual_kubelet::pod::references::{self, References, Wanted};
//!
//! # async fn example(client: kube::Client) -> Result<(), ApiCallError> {
//! let wanted = Wanted { config_maps: ["settings".to_owned()].into(), secrets: ["password".to_owned()].into() };
//! let found: References = references::fetch(&client, "web", &wanted).await?;
//! if !found.secrets.contains_key("password") {
//!     println!("there is no Secret web/password");
//! }
//! for service in references::services(&client, "web").await? {
//!     println!("{:?}", service.metadata.name);
//! }
//! # Ok(())
//! # }
//! ```

mod watched;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::Client;
use kube::api::{Api, ListParams};

use crate::api_call::{ApiCallError, within};
pub use watched::WatchedReferences;

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
///
/// ```
/// use futures::future::BoxFuture;
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
/// use virtual_kubelet::api_call::ApiCallError;
/// use virtual_kubelet::pod::references::{ReferenceSource, Wanted, fetch_from};
///
/// type Answer<'a, T> = BoxFuture<'a, Result<T, ApiCallError>>;
///
/// /// Settings that are the same everywhere, and nothing else.
/// struct Fixed(ConfigMap);
///
/// impl ReferenceSource for Fixed {
///     fn config_map<'a>(&'a self, _namespace: &'a str, name: &'a str) -> Answer<'a, Option<ConfigMap>> {
///         Box::pin(async move { Ok((name == "settings").then(|| self.0.clone())) })
///     }
///
///     fn secret<'a>(&'a self, _namespace: &'a str, _name: &'a str) -> Answer<'a, Option<Secret>> {
///         Box::pin(async { Ok(None) })
///     }
///
///     fn services<'a>(&'a self, _namespace: &'a str) -> Answer<'a, Vec<Service>> {
///         Box::pin(async { Ok(Vec::new()) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), ApiCallError> {
/// let wanted = Wanted { config_maps: ["settings".to_owned(), "other".to_owned()].into(), ..Wanted::default() };
/// let found = fetch_from(&Fixed(ConfigMap::default()), "web", &wanted).await?;
/// assert_eq!(found.config_maps.keys().collect::<Vec<_>>(), ["settings"]);
/// # Ok(())
/// # }
/// ```
///
/// It is given to a controller as [`PodControllerConfig::references`](super::PodControllerConfig::references).
pub trait ReferenceSource: Send + Sync + 'static {
    /// A `ConfigMap`, or nothing when there is none of that name.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<ConfigMap>, ApiCallError>>;

    /// A Secret, or nothing when there is none of that name.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Secret>, ApiCallError>>;

    /// All services that a pod of `namespace` may be told of: those of the namespace, and `default/kubernetes`.
    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, ApiCallError>>;

    /// One service, or nothing when there is none of that name. By default it is looked for in [`ReferenceSource::services`].
    ///
    /// ```
    /// # use virtual_kubelet::{api_call::ApiCallError, pod::references::ReferenceSource};
    /// async fn has_api_server(source: &dyn ReferenceSource) -> Result<bool, ApiCallError> {
    ///     Ok(source.service("default", "kubernetes").await?.is_some())
    /// }
    /// ```
    fn service<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Service>, ApiCallError>> {
        Box::pin(async move {
            let is_it = |service: &Service| {
                service.metadata.namespace.as_deref() == Some(namespace) && service.metadata.name.as_deref() == Some(name)
            };
            Ok(self.services(namespace).await?.into_iter().find(is_it))
        })
    }

    /// Changes when something may be there that was not, for a source that notices it: pods whose environment could not be made
    /// are tried again then. Others are tried again after their pause.
    ///
    /// ```
    /// # use virtual_kubelet::pod::references::ReferenceSource;
    /// fn notices(source: &dyn ReferenceSource) -> bool {
    ///     source.changes().is_some()
    /// }
    /// ```
    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }
}

/// The API server itself, asked each time, by name as the Node authorizer allows: what is read is never of the past, and
/// no copy of other pods' Secrets is kept.
///
/// ```no_run
/// # use virtual_kubelet::api_call::ApiCallError;
/// use virtual_kubelet::pod::references::{ApiReferences, ReferenceSource};
///
/// # async fn example(client: kube::Client) -> Result<(), ApiCallError> {
/// let source = ApiReferences::new(client);
/// let password = source.secret("web", "password").await?;
/// # Ok(())
/// # }
/// ```
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

    fn service<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Service>, ApiCallError>> {
        let api = Api::<Service>::namespaced(self.client.clone(), namespace);
        Box::pin(async move { within(api.get_opt(name)).await })
    }
}

/// The services that `pod` is told of; where it wants no links that is the API server's alone, and no list is needed.
pub(crate) async fn services_for(source: &dyn ReferenceSource, pod: &Pod) -> Result<Vec<Service>, ApiCallError> {
    if pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true) {
        return source.services(pod.metadata.namespace.as_deref().unwrap_or_default()).await;
    }
    Ok(source.service("default", "kubernetes").await?.into_iter().collect())
}

/// Reads what is wanted, one request per object. What does not exist is absent, and no failure.
pub async fn fetch(client: &Client, namespace: &str, wanted: &Wanted) -> Result<References, ApiCallError> {
    fetch_from(&ApiReferences::new(client.clone()), namespace, wanted).await
}

/// Reads what is wanted from `source`; see [`ReferenceSource`] for an example. The first failure ends it.
///
/// ```
/// # use virtual_kubelet::{api_call::ApiCallError, pod::references::{ReferenceSource, References, Wanted, fetch_from}};
/// async fn settings(source: &dyn ReferenceSource) -> Result<References, ApiCallError> {
///     fetch_from(source, "web", &Wanted { config_maps: ["settings".to_owned()].into(), ..Wanted::default() }).await
/// }
/// ```
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
