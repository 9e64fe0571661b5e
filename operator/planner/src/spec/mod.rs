//! The spec, resolved: aliases merged, defaults filled in, contradictions found.
//!
//! It also says which nodes are chosen and what the administrator's flags allow. It reads one resource and facts about one Node,
//! never the rollout. `Targets` of `objects::revisions` asks it for each revision of the template.

pub mod claims;
mod labels;
pub mod load_balancer;
pub mod node_rights;
pub mod node_selection;
mod rollout_settings;

pub use rollout_settings::{RolloutSettings, StepNodes, StepSettings};

use crate::{
    facts::{RESOURCES_PER_NAMESPACE, SPEC_BYTES, SPEC_MAPPINGS, TOO_MANY_RESOURCES, Withheld},
    spec::load_balancer::Timing,
};
use crds::{
    Duration,
    ingress_daemon_set::{
        AnnotateDeployment, IngressDaemonSetSpec, NotReadyNodes, OnDetachTimeout, Placement, PodUpdate, ReadyPolicy, ReadyPolicyType,
        RollingUpdate, WaitForTimestamp,
    },
    ledger::{Annotation, Marks},
    names,
};
use k8s_openapi::{
    api::core::v1::{PodSpec, PodTemplateSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use rollout_windows::Windows;
use serde::Deserialize as _;
use serde_json::Value;
use std::sync::Arc;

/// Grace of a mark in seconds when neither it nor the load balancer's timing is given: the original's default for the
/// detacher's timestamp, used for all.
pub const DEFAULT_GRACE: i64 = 10;
/// Seconds after an attachment when the load balancer's timing is not given. It takes about as long to look at a node again
/// as it takes to stop sending, and a slot that is free before would let two nodes be out at once.
const DEFAULT_SOAK: i64 = DEFAULT_GRACE;
/// Seconds for a detacher to answer.
const DEFAULT_DETACH_TIMEOUT: u32 = 600;

/// Why a spec is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecProblem {
    /// One word for the condition.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

impl Withheld {
    /// The same as what is wrong with the spec.
    pub fn invalid(self) -> SpecProblem {
        match self {
            Self::TooLarge { bytes, mappings } => SpecProblem {
                reason: "TooLarge",
                message: format!(
                    "the spec is {} KiB long as JSON, with {mappings} mappings in its template; at most {} KiB and {SPEC_MAPPINGS} mappings are \
                     looked after, and the last good state keeps running: move what is long into a ConfigMap",
                    bytes.div_ceil(1024),
                    SPEC_BYTES / 1024,
                ),
            },
            Self::TooMany => SpecProblem {
                reason: TOO_MANY_RESOURCES,
                message: format!(
                    "of a namespace {RESOURCES_PER_NAMESPACE} IngressDaemonSets are looked after, those that run something and then the oldest, and \
                     this is none of them; what it runs keeps running: delete others, or make it in another namespace"
                ),
            },
        }
    }
}

/// A number or a share of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// An absolute number.
    Number(i32),
    /// A percentage of the total.
    Percent(i32),
}

impl Default for Count {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Count {
    /// The count is 0 or 0 %.
    pub fn is_zero(self) -> bool {
        matches!(self, Self::Number(0) | Self::Percent(0))
    }

    /// How many of `total`: a percentage is rounded down, but above 0 it is at least 1.
    pub fn of(self, total: usize) -> usize {
        match self {
            Self::Number(number) => usize::try_from(number).unwrap_or(0),
            Self::Percent(0) => 0,
            Self::Percent(percent) => (total * usize::try_from(percent).unwrap_or(0) / 100).max(1),
        }
    }

    /// How many of `total` at least: a percentage is rounded up.
    pub fn at_least_of(self, total: usize) -> usize {
        match self {
            Self::Number(_) => self.of(total),
            Self::Percent(percent) => (total * usize::try_from(percent).unwrap_or(0)).div_ceil(100),
        }
    }

    /// As the API writes it.
    pub fn to_json(self) -> serde_json::Value {
        match self {
            Self::Number(number) => number.into(),
            Self::Percent(percent) => format!("{percent}%").into(),
        }
    }

    fn parse(field: &str, value: Option<&IntOrString>) -> Result<Option<Self>, SpecProblem> {
        let count = match value {
            None => return Ok(None),
            Some(IntOrString::Int(number)) if *number >= 0 => Self::Number(*number),
            Some(IntOrString::Int(number)) => return Err(not_a_count(field, &number.to_string())),
            Some(IntOrString::String(text)) => match text.strip_suffix('%').and_then(|digits| digits.parse().ok()) {
                Some(percent @ 0..=100) => Self::Percent(percent),
                _ => return Err(not_a_count(field, text)),
            },
        };
        Ok(Some(count))
    }

    /// A field that has more than one spelling. All that are given must say the same.
    fn of_spellings<const N: usize>(spellings: [(&str, &Option<IntOrString>); N]) -> Result<Option<Self>, SpecProblem> {
        let mut found: Option<(&str, Self)> = None;
        for (name, value) in spellings {
            let Some(count) = Self::parse(name, value.as_ref())? else { continue };
            match found {
                Some((other, earlier)) if earlier != count => return Err(aliases(other, earlier.to_json(), name, count.to_json())),
                Some(_) => {}
                None => found = Some((name, count)),
            }
        }
        Ok(found.map(|(_, count)| count))
    }
}

fn not_a_count(field: &str, value: &str) -> SpecProblem {
    SpecProblem {
        reason: "InvalidSpec",
        message: format!("{field}: `{value}` must be a whole number of 0 or more, or a percentage from \"0%\" to \"100%\""),
    }
}

/// Whether nodes leave the load balancer for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisruptionMode {
    /// A node is taken out of the load balancer, then all its pods are updated at once.
    Detach,
    /// Pods are replaced while the node stays attached.
    Degrade,
}

/// Annotation in which a detacher writes when it detached the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Annotation key on the Node.
    pub key: String,
    /// Seconds from the timestamp to the first change of a pod.
    pub grace: i64,
}

/// Domains of nodes, by a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Key of the Node label.
    pub key: String,
    /// Nodes of one domain that may be disrupted at once; `None` when only the fleet's budget bounds them.
    pub budget: Option<Count>,
    /// One domain is finished before the next.
    pub one_at_a_time: bool,
}

/// The spec with defaults and aliases resolved.
#[derive(Clone, Debug)]
pub struct ResolvedSpec {
    /// Number of pods on each chosen node.
    pub pods_per_node: i32,
    /// Whether updates detach nodes or degrade them.
    pub mode: DisruptionMode,
    /// Nodes that may be disrupted at once.
    pub budget: Count,
    /// Domains with a budget of their own.
    pub topology: Option<Topology>,
    /// Nodes that must stay available.
    pub min_available: Count,
    /// Nodes whose Node is not Ready leave the budget alone.
    pub ignores_not_ready: bool,
    /// Times at which an update of a node may start.
    pub windows: Windows,
    /// Ports on which health checkers answer the load balancer.
    pub ports: Vec<u16>,
    /// How many ready pods make a node healthy, for the health checker.
    pub ready_policy: ReadyPolicy,
    /// `maxUnavailable` of each node's Deployment.
    pub max_unavailable_pods: Count,
    /// `maxSurge` of each node's Deployment.
    pub max_surged_pods: Count,
    /// Whether pods stay when their images change.
    pub pod_update: PodUpdate,
    /// Images are pulled before a node is taken out of service.
    pub pre_pull: bool,
    /// The user's annotation on the Deployment, when configured.
    pub deployment_annotation: Option<Annotation>,
    /// Grace of the Deployment mark in seconds.
    pub deployment_grace: i64,
    /// The user's annotation or label on the Node, when configured.
    pub node_mark: Option<Annotation>,
    /// Grace of the Node mark in seconds.
    pub node_grace: i64,
    /// The detacher's timestamp, when configured.
    pub timestamp: Option<Timestamp>,
    /// Seconds for the detacher to answer.
    pub detach_timeout: i64,
    /// What the operator does if the detacher does not answer in time.
    pub on_detach_timeout: OnDetachTimeout,
    /// Seconds between attachment and release.
    pub attach_soak: i64,
    /// Pods hold ports of the host.
    pub host_ports: bool,
    /// How pods are bound to their node; never Auto.
    pub placement: Placement,
    /// Taints, by key and effect, of readiness gates that wait for the pods.
    pub gate_taints: Vec<(String, String)>,
    /// Conditions that readiness gates ask to have listed in the pods.
    pub gate_conditions: Vec<String>,
    /// The pod spec, typed, for eligibility.
    pub pod: PodSpec,
    /// The template, as in the spec or in its history.
    pub template: Arc<Value>,
    /// Hash of the template, see [`crds::hash::revision`].
    pub revision: String,
    /// Which nodes come when, and when it is enough.
    pub rollout: RolloutSettings,
    /// Remarks that do not make the spec invalid.
    pub warnings: Vec<SpecProblem>,
}

impl ResolvedSpec {
    /// Nodes are to have no pods: nothing serves, breaks or proves itself.
    pub fn is_without_pods(&self) -> bool {
        self.pods_per_node == 0
    }

    /// Marks for a disruption that takes a node out of service altogether.
    pub fn detach_marks(&self) -> Marks {
        // Whoever asks a health port is told, whatever else looks at the Node.
        let deployment = self.deployment_annotation.is_some() || self.node_mark.is_none() || !self.ports.is_empty();
        Marks {
            deployment,
            deployment_keys: self.deployment_annotation.iter().map(|annotation| annotation.key.clone()).collect(),
            node: self.node_mark.clone(),
        }
    }

    /// Marks that a node gets for an update; none in degrade mode.
    pub fn update_marks(&self) -> Marks {
        match self.mode {
            DisruptionMode::Detach => self.detach_marks(),
            DisruptionMode::Degrade => Marks::default(),
        }
    }
}

/// What was found, or nothing and why.
fn or_default<T: Default>(errors: &mut Vec<SpecProblem>, result: Result<T, SpecProblem>) -> T {
    result.unwrap_or_else(|invalid| {
        errors.push(invalid);
        T::default()
    })
}

/// Resolves a spec, or says everything that is wrong with it.
pub fn resolve(spec: &IngressDaemonSetSpec) -> Result<ResolvedSpec, Vec<SpecProblem>> {
    resolve_with(spec, &Arc::new(spec.template.clone()))
}

/// The same with another template: a former one.
pub fn resolve_with(spec: &IngressDaemonSetSpec, template: &Arc<Value>) -> Result<ResolvedSpec, Vec<SpecProblem>> {
    let stored = template;
    let mut errors = Vec::new();
    let mut keep = |result| or_default(&mut errors, result);
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
    let unavailable_nodes = keep(Count::of_spellings([
        ("maxUnavailableNodes", &rolling.max_unavailable_nodes),
        ("maxUnavaiableNodes", &rolling.max_unavaiable_nodes),
    ]))
    .unwrap_or(Count::Number(0));
    let degraded_given =
        keep(Count::of_spellings([("maxDegradedNodes", &rolling.max_degraded_nodes), ("maxDegaradedNodes", &rolling.max_degaraded_nodes)]));
    let degraded_nodes = degraded_given.unwrap_or(Count::Number(1));
    let min_available = keep(Count::parse("minAvailableNodes", rolling.min_available_nodes.as_ref())).unwrap_or(Count::Number(0));
    let surged = keep(Count::parse("maxSurgedPodsPerNode", rolling.max_surged_pods_per_node.as_ref()));
    let unavailable_pods = keep(Count::of_spellings([
        ("maxUnavailablePodsPerNode", &rolling.max_unavailable_pods_per_node),
        ("maxUnavailablePodsPerNodes", &rolling.max_unavailable_pods_per_nodes),
        ("maxUnavaiablePodsPerNode", &rolling.max_unavaiable_pods_per_node),
    ]));
    let degrades = unavailable_nodes.is_zero();
    if degrades && degraded_nodes.is_zero() {
        errors.push(both_zero("maxUnavailableNodes", "maxDegradedNodes", "no node can be updated"));
    }
    let topology = or_default(&mut errors, topology(&rolling));
    let windows = Windows::parse(&rolling.windows).map_err(|message| SpecProblem { reason: "InvalidSpec", message });
    let windows = or_default(&mut errors, windows);
    let mut warnings = Vec::new();
    if !degrades && degraded_given.is_some_and(|count| !count.is_zero()) {
        warnings.push(SpecProblem {
            reason: "ConflictingStrategy",
            message: "maxUnavailableNodes and maxDegradedNodes are both above 0: maxUnavailableNodes wins and nodes are detached; set maxDegradedNodes to 0".into(),
        });
    }
    warnings.extend(ignored_selector(spec));
    warnings.extend(degrades.then(|| ignored_marks(&rolling)).flatten());
    let pods_per_node = or_default(&mut errors, pods_per_node(spec));
    let ports = or_default(&mut errors, health_ports(spec));
    let template = or_default(&mut errors, parse_template(stored));
    errors.extend(labels::check(spec, &template));
    let pod = template.spec.unwrap_or_default();
    errors.extend(pod_problems(&pod));
    errors.extend(health_checker_problems(spec, pods_per_node));
    let host_ports = held_host_ports(&pod).next().is_some();
    if host_ports && (pods_per_node > 1 || degrades && surged.is_some_and(|count| !count.is_zero())) {
        errors.push(host_port_conflict(&pod));
    }
    errors.extend(held_health_port(&pod, &ports));
    warnings.extend((!degrades && ports.is_empty()).then(|| without_marks(&rolling)).flatten());
    warnings.extend(privileged_health_port(&ports));
    let timing = or_default(&mut errors, spec.load_balancer.as_ref().map(Timing::of).transpose());
    warnings.extend(timing.and_then(|timing| timing.outlasts_grace(&rolling)));
    if degrades && unavailable_pods.is_some_and(Count::is_zero) && surged.is_none_or(Count::is_zero) {
        errors.push(no_pod_could_be_replaced(host_ports));
    }
    let attach_soak = rolling.attach_soak_seconds.map_or_else(|| timing.map_or(DEFAULT_SOAK, Timing::attach_time), i64::from);
    let rollout = or_default(&mut errors, RolloutSettings::of(spec, &rolling, attach_soak));
    if !errors.is_empty() {
        return Err(errors);
    }
    let grace = timing.map_or(DEFAULT_GRACE, Timing::detach_time);
    let seconds = |given: Option<u32>| given.map_or(grace, i64::from);
    let deployment = rolling.annotate_deployment_to_detach.as_ref();
    let label = rolling.label_node_to_detach.as_ref().map(|mark| mark.grace_period_seconds);
    let node = rolling.annotate_node_to_detach.as_ref().and_then(|mark| mark.grace_period_seconds).or(label);
    Ok(ResolvedSpec {
        pods_per_node,
        mode: if degrades { DisruptionMode::Degrade } else { DisruptionMode::Detach },
        budget: if degrades { degraded_nodes } else { unavailable_nodes },
        topology,
        min_available,
        ignores_not_ready: rolling.not_ready_nodes == NotReadyNodes::Ignore,
        windows,
        ports,
        ready_policy: spec.health_checker.as_ref().and_then(|checker| checker.ready_policy).unwrap_or_default(),
        max_unavailable_pods: if degrades { unavailable_pods.unwrap_or(Count::Number(1)) } else { Count::Percent(100) },
        max_surged_pods: if !degrades || host_ports { Count::Number(0) } else { surged.unwrap_or(Count::Number(0)) },
        pod_update: rolling.pod_update,
        pre_pull: rolling.pre_pull,
        deployment_annotation: deployment.map(on_deployment),
        // A health check that fails beside a mark of which something is said keeps nobody waiting.
        deployment_grace: seconds(deployment.map_or(node, |annotation| annotation.grace_period_seconds)),
        node_mark: rolling.node_mark(),
        node_grace: seconds(node),
        timestamp: rolling.wait_for_detachment_by_annotated_timestamp.as_ref().map(timestamp),
        detach_timeout: i64::from(rolling.detach_timeout_seconds.unwrap_or(DEFAULT_DETACH_TIMEOUT)),
        on_detach_timeout: rolling.on_detach_timeout,
        attach_soak,
        host_ports,
        gate_taints: Vec::new(),
        gate_conditions: Vec::new(),
        placement: match spec.placement {
            Placement::Auto if host_ports => Placement::NodeAffinity,
            Placement::Auto => Placement::NodeName,
            given => given,
        },
        pod,
        revision: crds::hash::revision(stored),
        template: Arc::clone(stored),
        rollout,
        warnings,
    })
}

/// What the original's resources may say in `selector` and nothing goes by.
fn ignored_selector(spec: &IngressDaemonSetSpec) -> Option<SpecProblem> {
    let selector = spec.selector.as_ref().filter(|selector| !selector.match_expressions.is_empty());
    selector.map(|_| SpecProblem {
        reason: "SelectorIgnored",
        message: "selector.matchExpressions has no effect: remove it; the operator finds pods by its own labels and copies only selector.matchLabels to the Deployments".into(),
    })
}

/// Nodes count as taken out, and nobody outside of the operator is told. `rolling`: of a spec in detach mode, without health ports.
fn without_marks(rolling: &RollingUpdate) -> Option<SpecProblem> {
    let RollingUpdate { annotate_deployment_to_detach, annotate_node_to_detach, label_node_to_detach, .. } = rolling;
    let marks = annotate_deployment_to_detach.is_some() || annotate_node_to_detach.is_some() || label_node_to_detach.is_some();
    (!marks).then(|| SpecProblem {
        reason: "NothingDetaches",
        message: "maxUnavailableNodes is above 0, but nothing takes a node out of the load balancer before its pods end: set healthCheckNodePorts, annotateNodeToDetach or labelNodeToDetach".into(),
    })
}

/// Marks that no update uses, since nodes stay attached.
fn ignored_marks(rolling: &RollingUpdate) -> Option<SpecProblem> {
    let given = [
        ("annotateDeploymentToDetach", rolling.annotate_deployment_to_detach.is_some()),
        ("annotateNodeToDetach", rolling.annotate_node_to_detach.is_some()),
        ("labelNodeToDetach", rolling.label_node_to_detach.is_some()),
        ("waitForDetachmentByAnnotatedTimestamp", rolling.wait_for_detachment_by_annotated_timestamp.is_some()),
    ];
    let marks: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
    (!marks.is_empty()).then(|| SpecProblem {
        reason: "MarksIgnored",
        message: format!(
            "{}: updates ignore this while maxUnavailableNodes is 0: set maxUnavailableNodes to 1 or more, or remove the field; nodes stay attached during updates, only nodes that leave are detached",
            marks.join(", ")
        ),
    })
}

fn no_pod_could_be_replaced(host_ports: bool) -> SpecProblem {
    if !host_ports {
        return both_zero("maxUnavailablePodsPerNode", "maxSurgedPodsPerNode", "no pod can be replaced");
    }
    let message = "maxUnavailablePodsPerNode must not be 0 if pods hold host ports, or no pod can be replaced: set it to 1; a new pod needs the port of the old one";
    SpecProblem { reason: "InvalidSpec", message: message.into() }
}

fn both_zero(field: &str, other: &str, else_what: &str) -> SpecProblem {
    let message = format!("{field} and {other} must not both be 0, or {else_what}: set one of them to 1 or more");
    SpecProblem { reason: "InvalidSpec", message }
}

fn on_deployment(annotation: &AnnotateDeployment) -> Annotation {
    Annotation {
        key: annotation.key.clone().unwrap_or_else(|| names::TO_BE_UPDATED_ANNOTATION.to_owned()),
        value: annotation.value.clone().unwrap_or_default(),
    }
}

fn timestamp(wait: &WaitForTimestamp) -> Timestamp {
    Timestamp { key: wait.key.clone(), grace: wait.grace_period_seconds.map_or(DEFAULT_GRACE, i64::from) }
}

fn topology(rolling: &RollingUpdate) -> Result<Option<Topology>, SpecProblem> {
    let Some(topology) = &rolling.topology else { return Ok(None) };
    let budget = Count::parse("topology.maxUnavailableNodes", topology.max_unavailable_nodes.as_ref())?;
    if budget.is_some_and(Count::is_zero) {
        let message = "topology.maxUnavailableNodes must not be 0, or no node can be updated: set it to 1 or more, or remove it";
        return Err(SpecProblem { reason: "InvalidSpec", message: message.into() });
    }
    Ok(Some(Topology { key: topology.key.clone(), budget, one_at_a_time: topology.one_domain_at_a_time }))
}

/// `podsPerNode: 1` cannot be told from the schema's default, so it counts as unset beside `replicas`.
pub(crate) fn pods_per_node(spec: &IngressDaemonSetSpec) -> Result<i32, SpecProblem> {
    match (spec.pods_per_node, spec.replicas) {
        (given, None) => Ok(given),
        (1, Some(alias)) => Ok(alias),
        (given, Some(alias)) if given == alias => Ok(given),
        (given, Some(alias)) => Err(aliases("podsPerNode", given, "replicas", alias)),
    }
}

fn health_ports(spec: &IngressDaemonSetSpec) -> Result<Vec<u16>, SpecProblem> {
    let mut ports = spec.health_check_node_ports.clone();
    let mut given = "healthCheckNodePorts";
    for (name, port) in [("healthCheckNodePort", spec.health_check_node_port), ("healthCheckPort", spec.health_check_port)] {
        match port {
            Some(port) if ports.is_empty() => (given, ports) = (name, vec![port]),
            Some(port) if ports != [port] => return Err(aliases(given, format!("{ports:?}"), name, port)),
            Some(_) | None => {}
        }
    }
    let mut valid = Vec::new();
    for port in ports {
        match u16::try_from(port) {
            Ok(port) if port > 0 && !valid.contains(&port) => valid.push(port),
            _ => {
                return Err(SpecProblem {
                    reason: "InvalidSpec",
                    message: format!("healthCheckNodePorts: {port} must be a port from 1 to 65535, listed once"),
                });
            }
        }
    }
    Ok(valid)
}

fn aliases(name: &str, value: impl std::fmt::Display, alias: &str, other: impl std::fmt::Display) -> SpecProblem {
    SpecProblem { reason: "ConflictingAliases", message: format!("{name} is {value} and its alias {alias} is {other}: remove {alias}") }
}

fn parse_template(template: &Value) -> Result<PodTemplateSpec, SpecProblem> {
    PodTemplateSpec::deserialize(template).map_err(|error| SpecProblem { reason: "InvalidTemplate", message: format!("template: {error}") })
}

fn pod_problems(pod: &PodSpec) -> Vec<SpecProblem> {
    let mut found = Vec::new();
    if pod.containers.is_empty() {
        found.push(SpecProblem { reason: "InvalidTemplate", message: "template.spec.containers must name at least one container".into() });
    }
    if pod.node_name.is_some() {
        found.push(SpecProblem {
            reason: "InvalidTemplate",
            message: "template.spec.nodeName must not be set: choose nodes with nodeSelector; the operator assigns pods to nodes".into(),
        });
    }
    found
}

/// The health checker runs without root, and a capability that a container is given does not reach its process then.
fn privileged_health_port(ports: &[u16]) -> Option<SpecProblem> {
    let port = ports.iter().find(|port| **port < UNPRIVILEGED_PORT)?;
    Some(SpecProblem {
        reason: "PrivilegedHealthPort",
        message: format!(
            "health port {port} is below {UNPRIVILEGED_PORT}, and health checkers run without root: choose a higher port, or set sysctl net.ipv4.ip_unprivileged_port_start to {port} or less on the nodes"
        ),
    })
}

/// The lowest port that every process may listen on, unless the node's sysctl `net.ipv4.ip_unprivileged_port_start` says otherwise.
const UNPRIVILEGED_PORT: u16 = 1024;

fn health_checker_problems(spec: &IngressDaemonSetSpec, pods_per_node: i32) -> Vec<SpecProblem> {
    let Some(checker) = &spec.health_checker else { return Vec::new() };
    let mut messages = Vec::new();
    let is_every_address = |address: &&str| address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified());
    if let Some(address) = checker.bind_address.as_deref().filter(|address| !is_every_address(address)) {
        messages.push(format!(
            "healthChecker.bindAddress: `{address}` is neither 0.0.0.0 nor ::, and the operator asks each health port at the address of its Node: use one of them, or remove the field"
        ));
    }
    let policy = checker.ready_policy.unwrap_or_default();
    if let Some(least) =
        policy.min_ready.filter(|least| policy.type_ == ReadyPolicyType::AtLeast && 0 < pods_per_node && pods_per_node < *least)
    {
        messages.push(format!(
            "healthChecker.readyPolicy.minReady is {least}, but podsPerNode is {pods_per_node}: set minReady to {pods_per_node} or less"
        ));
    }
    messages.into_iter().map(|message| SpecProblem { reason: "InvalidSpec", message }).collect()
}

/// Ports of the host. With host networking every declared container port is one.
fn held_host_ports(pod: &PodSpec) -> impl Iterator<Item = i32> {
    let host_network = pod.host_network.unwrap_or(false);
    let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(move |port| if host_network { Some(port.container_port) } else { port.host_port.filter(|port| *port > 0) })
}

fn held_health_port(pod: &PodSpec, health_ports: &[u16]) -> Option<SpecProblem> {
    let port = held_host_ports(pod).find(|held| health_ports.iter().any(|port| i32::from(*port) == *held))?;
    let message = format!("healthCheckNodePorts: the template's containers hold port {port} of the node: choose another health port");
    Some(SpecProblem { reason: "HealthCheckPortConflict", message })
}

fn host_port_conflict(pod: &PodSpec) -> SpecProblem {
    let remedy = if pod.host_network.unwrap_or(false) {
        "with hostNetwork, remove `ports` from the containers and let the program listen with SO_REUSEPORT; or set podsPerNode to 1 and maxSurgedPodsPerNode to 0"
    } else {
        "remove hostPort, or set podsPerNode to 1 and maxSurgedPodsPerNode to 0"
    };
    SpecProblem {
        reason: "HostPortConflict",
        message: format!("a kubelet refuses several pods with the same host port on one node: {remedy}"),
    }
}

/// A duration of a day at the most.
pub(crate) fn milliseconds(field: &str, given: &Duration) -> Result<i64, SpecProblem> {
    given.milliseconds().filter(|millis| (0..=86_400_000).contains(millis)).ok_or_else(|| SpecProblem {
        reason: "InvalidSpec",
        message: format!("{field}: `{given}` is not a duration of at most 1 day, such as 2s, 500ms or 1m30s"),
    })
}

/// Ready pods that the health checker asks for, as its flag.
pub fn ready_policy_flag(policy: ReadyPolicy) -> String {
    match policy.type_ {
        ReadyPolicyType::All => "all".into(),
        ReadyPolicyType::AtLeast => format!("at-least={}", policy.min_ready.unwrap_or(1)),
    }
}
