//! The cluster: the way to it, the resource that is meant, and everything around it at one moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use crds::{IngressDaemonSet, NodeReadinessGate, PodReadinessGate, UnixSeconds, names};
use hyper_util::client::proxy::matcher::Matcher;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet},
    coordination::v1::Lease,
    core::v1::{Node, Pod, Service},
};
use kube::{
    Api, Client, Config, Resource, ResourceExt as _,
    api::ListParams,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError, NoProxyError},
    core::DeserializeGuard,
};
use operator::{
    client::trimming,
    compat,
    deployed::{self, OperatorOptions},
    gates_shared::{CompatGates, definitions},
    pages, pod_gates,
    watch::{GuardedResource, Observed, Observer},
};
use planner::{
    Snapshot,
    gates_shared::Key,
    node_gates::{self, GateLinks},
    pod_gates::{World, links::links},
    spec::node_rights::NodeRights,
};
use serde::de::DeserializeOwned;

use crate::{
    arguments::Global,
    failure::{RuleRequest, Unfound, explain, is_forbidden, is_missing, unknown_kind},
};

/// How long the API server may take to begin an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Name of the lease by which the operator's replicas agree on one that acts.
const LEASE: &str = "ingress-daemonset-operator";
/// Objects of one list request.
const PAGE: u32 = 500;

/// The cluster that the command line means.
#[derive(Clone)]
pub struct Cluster {
    /// API client.
    pub client: Client,
    /// One that asks once: what is behind a proxy of the API server may answer 503 for a reason.
    pub asks_once: Client,
    /// The namespace that is meant.
    pub namespace: String,
    pub(crate) operator_namespace: String,
}

impl Cluster {
    /// By the command line, the kubeconfig, or from inside a pod.
    pub async fn connect(global: &Global) -> Result<Self> {
        // Fails only where a provider was installed before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = config(global).await?;
        config.connect_timeout = Some(PATIENCE);
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = |config: Config| {
            let builder = ClientBuilder::try_from(config).map_err(|error| anyhow!("cannot use the kubeconfig: {error}"))?;
            Ok::<_, anyhow::Error>(trimming(builder).build())
        };
        let mut once = config.clone();
        once.default_retry = false;
        let asks_once = client(once)?;
        let operator_namespace = global.operator_namespace.clone();
        Ok(Self { client: client(config)?, asks_once, namespace, operator_namespace })
    }

    /// Resources of the namespace.
    pub fn resources(&self) -> Api<IngressDaemonSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The resource of this name, or the only one there is.
    pub async fn find(&self, name: Option<&str>) -> Result<IngressDaemonSet> {
        let Some(name) = name else {
            let mut found = self.list_resources().await?;
            return match found.len() {
                1 => Ok(found.remove(0)),
                0 => Err(Unfound::None { namespace: self.namespace.clone(), elsewhere: self.elsewhere().await }.into()),
                _ => {
                    let names = found.iter().map(kube::ResourceExt::name_any).collect();
                    Err(Unfound::Several { namespace: self.namespace.clone(), names }.into())
                }
            };
        };
        match self.resources().get(name).await {
            Err(error) if is_missing(&error) => {
                // Says so itself where the kind is not known.
                let others = self.list_resources().await?.iter().map(kube::ResourceExt::name_any).collect();
                Err(Unfound::NoneNamed { namespace: self.namespace.clone(), name: name.to_owned(), others }.into())
            }
            other => other.map_err(|error| explain(error, RuleRequest::ours("get", &self.namespace))),
        }
    }

    /// All resources of the namespace.
    pub async fn list_resources(&self) -> Result<Vec<IngressDaemonSet>> {
        match self.resources().list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(error) if is_missing(&error) => Err(unknown_kind()),
            Err(error) => Err(explain(error, RuleRequest::ours("list", &self.namespace))),
        }
    }

    async fn elsewhere(&self) -> Vec<String> {
        let all = Api::<IngressDaemonSet>::all(self.client.clone()).list(&ListParams::default()).await;
        // Who may not look everywhere gets no hint.
        all.map(|list| list.items.iter().map(|found| format!("{}/{}", found.namespace().unwrap_or_default(), found.name_any())).collect())
            .unwrap_or_default()
    }

    /// What is wrong with the operator, as far as it can be seen: nothing is said where its lease may not be read.
    pub async fn operator_trouble(&self, resource: &IngressDaemonSet) -> Option<String> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), &self.operator_namespace);
        let now = chrono::Utc::now().timestamp();
        let look = format!(
            "see `kubectl get pods -n {}`, or set --operator-namespace if the operator runs in another namespace",
            self.operator_namespace
        );
        let silence = match leases.get(LEASE).await {
            Ok(lease) => silence(&lease, now)?,
            Err(error) if is_missing(&error) => {
                let behind = resource.status.as_ref().and_then(|status| status.observed_generation) != resource.metadata.generation;
                return behind.then(|| {
                    format!(
                        "there is no operator in namespace {}, and the status does not cover the newest spec: {look}",
                        self.operator_namespace
                    )
                });
            }
            Err(_) => return None,
        };
        Some(format!(
            "the operator does not run: it last renewed its lease {} ago; this output may be old, and no rollout continues: {look}",
            crate::output::span(silence)
        ))
    }

    /// Everything around the resources of the namespace, by one list of each kind. `resource`, where given, stands for the stored
    /// one of its name. What may not be read is left out, with a remark.
    pub async fn observe(&self, resource: Option<&IngressDaemonSet>) -> Result<(ClusterView, Vec<String>)> {
        let mut remarks = Vec::new();
        let (rights, compat) = self.flags(&mut remarks).await?;
        let observer = Observer::with(rights);
        let (ours, checkers) = (names::RESOURCE_LABEL, names::HEALTH_CHECKER_LABEL);
        let namespace = self.namespace.as_str();
        let pods: Vec<Pod> =
            self.list(Api::namespaced(self.client.clone(), namespace), ours, RuleRequest::of("list", "", "pods", Some(namespace))).await?;
        let deployments: Vec<Deployment> = self
            .list(Api::namespaced(self.client.clone(), namespace), ours, RuleRequest::of("list", "apps", "deployments", Some(namespace)))
            .await?;
        let nodes: Vec<Node> = self.list(Api::all(self.client.clone()), "", RuleRequest::nodes("list")).await?;
        let timing = crate::forecast::pace::start_times(&pods);
        observer.take(pods);
        observer.take(deployments);
        observer.take(nodes);
        let replica_sets = RuleRequest::of("list", "apps", "replicasets", Some(namespace));
        self.take_if_allowed::<ReplicaSet>(&observer, Api::namespaced(self.client.clone(), namespace), ours, replica_sets, &mut remarks)
            .await?;
        let daemon_sets = RuleRequest::of("list", "apps", "daemonsets", Some(namespace));
        self.take_if_allowed::<DaemonSet>(&observer, Api::namespaced(self.client.clone(), namespace), checkers, daemon_sets, &mut remarks)
            .await?;
        let revisions = RuleRequest::of("list", "apps", "controllerrevisions", Some(namespace));
        self.take_if_allowed::<ControllerRevision>(
            &observer,
            Api::namespaced(self.client.clone(), namespace),
            ours,
            revisions,
            &mut remarks,
        )
        .await?;
        let services = RuleRequest::of("list", "", "services", None);
        self.take_if_allowed::<Service>(&observer, Api::all(self.client.clone()), "", services, &mut remarks).await?;
        let mut resources = self.all_resources(&mut remarks).await?;
        if let Some(resource) = resource {
            resources.retain(|other| other.namespace() != resource.namespace() || other.name_any() != resource.name_any());
            resources.push(DeserializeGuard(Ok(resource.clone())));
        }
        let readable: Vec<_> = resources.iter().filter_map(|guarded| guarded.0.as_ref().ok()).collect();
        let pod_gates = self.pod_gates(&mut remarks).await?;
        let of_nodes = self.node_gates(&readable, &compat, observer.node_rights(), &pod_gates.world, &mut remarks).await?;
        observer.take::<GuardedResource>(resources);
        Ok((ClusterView { observer, of_nodes, pod_gates, timing }, remarks))
    }

    /// What the operator's flags allow, and gates that they stand for, as its Deployment gives them.
    async fn flags(&self, remarks: &mut Vec<String>) -> Result<(NodeRights, CompatGates)> {
        let namespace = self.operator_namespace.as_str();
        let request = RuleRequest::of("list", "apps", "deployments", Some(namespace));
        let found = match list(&Api::<Deployment>::namespaced(self.client.clone(), namespace), deployed::LABELS).await {
            Ok(found) => match found.as_slice() {
                [one] => OperatorOptions::of(one).map_err(|why| format!("Deployment {} in namespace {namespace}: {why}", one.name_any())),
                [] => Err(format!("there is no operator in namespace {namespace} (set --operator-namespace)")),
                _ => Err(format!("there are several operators in namespace {namespace}")),
            },
            Err(error) if is_forbidden(&error) => Err(format!("you may not {request}")),
            Err(error) => return Err(explain(error, request)),
        };
        Ok(match found {
            Ok(options) => (options.node_rights, compat::gates_of_flags(&options.compat)),
            Err(why) => {
                remarks.push(format!(
                    "cannot read the operator's flags: {why}; the plugin assumes that every key and taint is allowed, and ignores gates of a ConfigMap or preset"
                ));
                (NodeRights::all(), CompatGates::default())
            }
        })
    }

    /// The resources of all namespaces: others may use the same nodes. Who may not list them gets those of the namespace.
    async fn all_resources(&self, remarks: &mut Vec<String>) -> Result<Vec<GuardedResource>> {
        let request = RuleRequest { namespace: None, ..RuleRequest::ours("list", "") };
        match list(&Api::<GuardedResource>::all(self.client.clone()), "").await {
            Ok(listed) => Ok(listed),
            Err(error) if is_missing(&error) => Err(unknown_kind()),
            Err(error) if is_forbidden(&error) => {
                remarks.push(
                    "you may not list ingressdaemonsets of other namespaces: the plugin ignores them, even if they use the same nodes"
                        .into(),
                );
                Ok(self.list_resources().await?.into_iter().map(|resource| DeserializeGuard(Ok(resource))).collect())
            }
            Err(error) => Err(explain(error, request)),
        }
    }

    /// How readiness gates of nodes bear on the resources. Those of a newer release, which cannot be read, are left out.
    async fn node_gates(
        &self,
        resources: &[&IngressDaemonSet],
        compat: &CompatGates,
        rights: &NodeRights,
        pod_gates: &World,
        remarks: &mut Vec<String>,
    ) -> Result<BTreeMap<Key, GateLinks>> {
        let (objects, _) = self.gates::<NodeReadinessGate>("nodereadinessgates", remarks).await?;
        let gates: Vec<_> =
            definitions::all(objects.iter(), resources.iter().copied(), compat, rights).into_values().map(Arc::new).collect();
        // The operator has seen what they wait for.
        let says_shut = |object: &&NodeReadinessGate| {
            let conditions = object.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.type_ == "Satisfiable" && condition.status == "False")
        };
        let shut: BTreeSet<_> = objects.iter().filter(says_shut).filter_map(kube::ResourceExt::uid).collect();
        Ok(node_gates::links::links(&gates, pod_gates.wanted_attachments(), |gate| shut.contains(&gate.uid)))
    }

    async fn pod_gates(&self, remarks: &mut Vec<String>) -> Result<PodGates> {
        let (objects, has_all) = self.gates::<PodReadinessGate>("podreadinessgates", remarks).await?;
        let gates = objects.iter().map(|object| Arc::new(pod_gates::gate(object))).map(|gate| (gate.key(), gate)).collect();
        let mut world = World::default();
        world.take_gates(gates);
        Ok(PodGates { world, has_all })
    }

    /// Gates of a kind that can be read, and whether these are all.
    async fn gates<K>(&self, plural: &str, remarks: &mut Vec<String>) -> Result<(Vec<K>, bool)>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let request = RuleRequest::of("list", names::GROUP, plural, None);
        match list(&Api::<DeserializeGuard<K>>::all(self.client.clone()), "").await {
            Ok(listed) => {
                let all = listed.len();
                let readable: Vec<_> = listed.into_iter().filter_map(|guarded| guarded.0.ok()).collect();
                let has_all = readable.len() == all;
                Ok((readable, has_all))
            }
            // Without the definition there are none.
            Err(error) if is_missing(&error) => Ok((Vec::new(), true)),
            Err(error) if is_forbidden(&error) => {
                remarks.push(format!("you may not {request}: the plugin ignores them"));
                Ok((Vec::new(), false))
            }
            Err(error) => Err(explain(error, request)),
        }
    }

    async fn take_if_allowed<K>(
        &self,
        observer: &Observer,
        api: Api<K>,
        labels: &str,
        request: RuleRequest<'_>,
        remarks: &mut Vec<String>,
    ) -> Result<()>
    where
        K: Observed + Resource + Clone + DeserializeOwned + Debug,
    {
        match list(&api, labels).await {
            Ok(found) => observer.take(found),
            Err(error) if is_forbidden(&error) => {
                remarks.push(format!("you may not {request}: the plugin ignores them"));
                observer.take::<K>(Vec::new());
            }
            Err(error) => return Err(explain(error, request)),
        }
        Ok(())
    }

    async fn list<K>(&self, api: Api<K>, labels: &str, request: RuleRequest<'_>) -> Result<Vec<K>>
    where
        K: Resource + Clone + DeserializeOwned,
    {
        list(&api, labels).await.map_err(|error| explain(error, request))
    }
}

/// Gates of pods.
struct PodGates {
    world: World,
    /// There are no others.
    has_all: bool,
}

/// A moment of the cluster.
pub struct ClusterView {
    observer: Observer,
    of_nodes: BTreeMap<Key, GateLinks>,
    pod_gates: PodGates,
    /// Seconds that pods took to be ready, by the first 8 characters of their resource's UID.
    pub timing: BTreeMap<String, Vec<i64>>,
}

impl ClusterView {
    /// The planner's input for a resource, as if it were decided on now.
    pub fn snapshot(&self, resource: &IngressDaemonSet) -> Result<Snapshot> {
        let (namespace, name) = (resource.namespace().unwrap_or_default(), resource.name_any());
        let now = chrono::Utc::now().timestamp();
        let snapshot = self.observer.snapshot(&namespace, &name, now, "").context("the resource was deleted")?;
        let of_nodes = self.of_nodes.get(&(namespace.clone(), name)).cloned().unwrap_or_default();
        let labels = &snapshot.resource.spec.template["metadata"]["labels"];
        let gates = links(of_nodes, &self.pod_gates.world, self.pod_gates.has_all, &namespace, labels);
        Ok(Snapshot { gates, ..snapshot })
    }
}

/// All objects, page by page.
async fn list<K: Resource + Clone + DeserializeOwned>(api: &Api<K>, labels: &str) -> kube::Result<Vec<K>> {
    pages::all(api, ListParams::default().labels(labels), PAGE).await
}

/// How long a lease has been silent for, when that is too long.
fn silence(lease: &Lease, now: UnixSeconds) -> Option<i64> {
    let spec = lease.spec.as_ref()?;
    let renewed = spec.renew_time.as_ref().map_or(0, |time| time.0.as_second());
    let silent = now.saturating_sub(renewed);
    // Another replica takes over within the lease's duration, or at once when it was given back; twice that is no hand-over any more.
    let given_back = spec.holder_identity.as_ref().is_none_or(String::is_empty);
    let duration = if given_back { 0 } else { i64::from(spec.lease_duration_seconds.unwrap_or(15)) };
    (silent > 2 * duration + 5).then_some(silent)
}

async fn config(global: &Global) -> Result<Config> {
    let explicit = global.kubeconfig.is_some() || global.context.is_some();
    let read = match &global.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match read {
        Ok(kubeconfig) => kubeconfig,
        Err(_) if !explicit && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
            return Config::incluster().context("using the pod's own access to the cluster");
        }
        Err(error) => return Err(anyhow!("no kubeconfig: {error}; set KUBECONFIG or --kubeconfig")),
    };
    let contexts: Vec<_> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    let options = KubeConfigOptions { context: global.context.clone(), ..KubeConfigOptions::default() };
    if let Some(context) = global.context.as_ref().filter(|context| !contexts.contains(context)) {
        return Err(anyhow!("the kubeconfig has no context {context}; it has {}", crate::failure::listed(&contexts)));
    }
    let named = named_proxy(&kubeconfig, global.context.as_ref());
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| cannot_use(&error, &contexts))?;
    // kube compares NO_PROXY with the address of the proxy.
    config.proxy_url = named.or_else(|| proxy(&ProxyVariables::read(|name| std::env::var(name).ok()), &config.cluster_url));
    Ok(config)
}

/// What to do about a kubeconfig, or about variables that are read with it.
fn cannot_use(error: &KubeconfigError, contexts: &[String]) -> anyhow::Error {
    match error {
        KubeconfigError::ParseNoProxy(NoProxyError::EmptyValue) => {
            anyhow!("the variable NO_PROXY or no_proxy has an empty entry, such as after a comma at its end: remove that comma")
        }
        KubeconfigError::ParseNoProxy(error) => {
            anyhow!("cannot use the variable NO_PROXY or no_proxy: {error}; correct that entry")
        }
        _ => {
            let contexts = crate::failure::listed(contexts);
            anyhow!("cannot use the kubeconfig: {error}; choose a context with --context ({contexts})")
        }
    }
}

/// The proxy that the kubeconfig itself names for this context: it is used for every API server, as by kubectl.
fn named_proxy(kubeconfig: &Kubeconfig, context: Option<&String>) -> Option<http::Uri> {
    let used = context.or(kubeconfig.current_context.as_ref());
    let context = kubeconfig.contexts.iter().find(|named| Some(&named.name) == used).and_then(|named| named.context.as_ref());
    let cluster = kubeconfig.clusters.iter().find(|named| context.is_some_and(|context| context.cluster == named.name));
    // What cannot be read is refused where the whole is read.
    cluster.and_then(|named| named.cluster.as_ref()?.proxy_url.as_ref()).filter(|proxy| !proxy.is_empty())?.parse().ok()
}

/// What the environment says of proxies, as kubectl reads it: `ALL_PROXY` is none of these variables.
struct ProxyVariables {
    http: String,
    https: String,
    no: String,
}

impl ProxyVariables {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let of = |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty()).unwrap_or_default();
        Self { http: of(["HTTP_PROXY", "http_proxy"]), https: of(["HTTPS_PROXY", "https_proxy"]), no: of(["NO_PROXY", "no_proxy"]) }
    }
}

/// The proxy of the environment for this API server, as kubectl takes it.
fn proxy(variables: &ProxyVariables, api_server: &http::Uri) -> Option<http::Uri> {
    let host = api_server.host()?.trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()) {
        return None;
    }
    let (proxy, port) = match api_server.scheme_str() {
        Some("http") => (&variables.http, 80),
        _ => (&variables.https, 443),
    };
    let exceptions = exceptions(&variables.no, host, api_server.port_u16().unwrap_or(port));
    if exceptions.contains(&"*") {
        return None;
    }
    let found = Matcher::builder().http(proxy).https(proxy).no(exceptions.join(",")).build().intercept(api_server)?;
    // Who it is for the proxy stands in its URL.
    let authority = proxy.parse::<http::Uri>().ok()?.authority()?.clone();
    http::Uri::builder().scheme(found.uri().scheme()?.clone()).authority(authority).path_and_query("/").build().ok()
}

/// Entries of `NO_PROXY` that may speak of this API server, without what kubectl reads in them and the matcher does not: a port, and a
/// dot or `*.` in front, which stands for the subdomains of a domain alone.
fn exceptions<'a>(no_proxy: &'a str, host: &str, port: u16) -> Vec<&'a str> {
    let mut entries = Vec::new();
    for entry in no_proxy.split(',').map(str::trim) {
        let (name, of_port) = match entry.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.starts_with('[') && name.ends_with(']') => {
                (name.trim_matches(['[', ']']), port)
            }
            _ => (entry, ""),
        };
        let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        let is_its_parent = name.strip_prefix('.').is_some_and(|domain| domain.eq_ignore_ascii_case(host));
        if !name.is_empty() && !is_its_parent && (of_port.is_empty() || of_port == port.to_string()) {
            entries.push(name);
        }
    }
    entries
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod observed;

#[cfg(test)]
mod tests {
    use super::*;
    use http::Uri;
    use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

    #[test]
    fn an_operator_is_missed_after_two_lease_durations() {
        let lease = |holder: &str| {
            let spec = LeaseSpec {
                holder_identity: Some(holder.into()),
                renew_time: Some(MicroTime(jiff::Timestamp::from_second(1000).unwrap())),
                lease_duration_seconds: Some(15),
                ..LeaseSpec::default()
            };
            Lease { spec: Some(spec), ..Lease::default() }
        };
        assert_eq!([1035, 1036].map(|now| silence(&lease("operator-0"), now)), [None, Some(36)]);
        assert_eq!([1005, 1006].map(|now| silence(&lease(""), now)), [None, Some(6)]);
    }

    type Variables<'v> = &'v [(&'v str, &'v str)];

    #[test]
    fn the_environment_sets_the_proxy_except_for_no_proxy_hosts() {
        let taken = |variables: &[(&str, &str)], api_server: &'static str| {
            let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            proxy(&ProxyVariables::read(variable), &Uri::from_static(api_server)).map(|uri| uri.to_string())
        };
        let (other, plain) = ("https://api.example.com:6443/", "http://proxy.example.com:3128/");
        let cases: [(Variables<'_>, &str, Option<&str>); 10] = [
            (&[("HTTPS_PROXY", "http://proxy.example.com:3128")], other, Some(plain)),
            (&[("https_proxy", "proxy.example.com:3128"), ("HTTPS_PROXY", "")], other, Some(plain)),
            (&[("HTTPS_PROXY", "http://me:secret@proxy.example.com:3128")], other, Some("http://me:secret@proxy.example.com:3128/")),
            (&[("HTTPS_PROXY", "me:secret@proxy.example.com:3128")], other, Some("http://me:secret@proxy.example.com:3128/")),
            (&[("HTTPS_PROXY", "socks5://me:secret@proxy.example.com:1080")], other, Some("socks5://me:secret@proxy.example.com:1080/")),
            (&[("HTTPS_PROXY", plain)], "http://api.example.com:8080/", None),
            (&[("HTTP_PROXY", plain)], "http://api.example.com:8080/", Some(plain)),
            (&[("HTTP_PROXY", plain)], other, None),
            (&[("ALL_PROXY", plain), ("all_proxy", plain)], other, None),
            (&[], other, None),
        ];
        for (variables, api_server, found) in cases {
            assert_eq!(taken(variables, api_server).as_deref(), found, "{variables:?} {api_server}");
        }
        let is_excepted = |no: &str, api_server| taken(&[("HTTPS_PROXY", plain), ("no_proxy", no)], api_server).is_none();
        let usual = "10.0.0.0/8,.cluster.example.com,";
        for (no, api_server, wanted) in [
            (usual, "https://10.1.2.3:6443/", true),
            (usual, "https://11.1.2.3:6443/", false),
            (usual, "https://api.cluster.example.com/", true),
            (usual, "https://cluster.example.com/", false),
            (usual, "https://127.0.0.1:6443/", true),
            (usual, "https://[::1]:6443/", true),
            (usual, "https://localhost:6443/", true),
            ("*", other, true),
            ("a.example.com, *", "https://10.1.2.3:6443/", true),
            ("*.example.com", other, true),
            ("*.example.com", "https://example.com/", false),
            ("example.com", other, true),
            ("API.example.com:6443", other, true),
            ("api.example.com:443", other, false),
            ("api.example.com:443", "https://api.example.com/", true),
            ("10.1.2.3:6443", "https://10.1.2.3:6443/", true),
            ("10.1.2.3:443", "https://10.1.2.3:6443/", false),
            ("[fd00::1]:6443", "https://[fd00::1]:6443/", true),
            ("fd00::/8", "https://[fd00::1]:6443/", true),
        ] {
            assert_eq!(is_excepted(no, api_server), wanted, "{no} {api_server}");
        }
    }

    #[test]
    fn what_is_wrong_with_no_proxy_is_told_as_such() {
        let told = |error| cannot_use(&KubeconfigError::ParseNoProxy(error), &[]).to_string();
        let empty = told(NoProxyError::EmptyValue);
        assert!(empty.contains("NO_PROXY") && empty.contains("empty entry"), "{empty}");
        let other = told(NoProxyError::ParseMatcher { input: "a b".into() });
        assert!(other.contains("NO_PROXY") && other.contains("\"a b\""), "{other}");
    }

    #[test]
    fn a_proxy_of_the_kubeconfig_comes_first() {
        let text = "{current-context: b, contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}], \
                     clusters: [{name: a, cluster: {server: 'https://a', proxy-url: 'socks5://p:1'}}, {name: b, cluster: {server: 'https://b'}}]}";
        let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
        let found = |context: Option<&str>| named_proxy(&kubeconfig, context.map(str::to_owned).as_ref()).map(|uri| uri.to_string());
        assert_eq!((found(None), found(Some("a")).as_deref()), (None, Some("socks5://p:1/")));
    }
}
