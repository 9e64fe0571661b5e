//! Command line and environment.

use clap::{Args, Parser, Subcommand, ValueEnum};
use crds::node_readiness_gate::GateTaint;
use planner::{
    node_gates::legacy,
    spec::node_rights::{DETACH_KEYS, DetachKeys, EVERY_NAMESPACE, NamespaceKeys, NamespaceTaints, NodeRights},
};
use std::net::SocketAddr;

/// Runs N pods on every chosen node behind an external load balancer. Takes each node out of the load balancer before its pods
/// are updated.
#[derive(Debug, Parser)]
#[command(name = "ingress-daemonset-operator", version)]
pub struct Arguments {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator.
    Run(Box<Run>),
    /// Remove from every Node the taints, records, labels and marks that gates and deleted resources have left there. Use it after
    /// you have uninstalled the operator.
    CleanupNodes(CleanupNodes),
    /// Print which resources are left in the cluster, and what happens to them without an operator. The chart runs it before it is
    /// uninstalled.
    Remaining(RemainingOptions),
    /// Print the `CustomResourceDefinition`s as YAML, for `kubectl apply -f -`.
    Crd,
}

/// Options of `remaining`.
#[derive(Clone, Copy, Debug, Args)]
pub struct RemainingOptions {
    /// Fail if a resource is left: what follows would delete it, with its definition, while nobody takes its nodes out of service first.
    #[arg(long)]
    pub refuse: bool,
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Image of the health checker, for resources that do not set healthChecker.image.
    #[arg(long, env = "HEALTH_CHECKER_IMAGE", default_value = concat!("registry.invalid/ingress-daemonset/health-checker:", env!("CARGO_PKG_VERSION")))]
    pub health_checker_image: String,
    /// Address that serves /livez, /readyz and /metrics.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "[::]:8080")]
    pub listen_address: SocketAddr,
    /// Name of the Service by which the API server reaches the operator's webhook, in the namespace of the lease. The webhook taints
    /// nodes, and gives pods readiness gates, at their creation if the API server has no `MutatingAdmissionPolicies`. Without this flag
    /// there is no webhook. The certificates are in a Secret of the same name.
    #[arg(long, env = "WEBHOOK_SERVICE")]
    pub webhook_service: Option<String>,
    /// false: the operator uses no `MutatingAdmissionPolicies`, and does not need the right to write them. It acts as where the API
    /// server has none. Policies that are there stay in force: delete the gates before, or delete the policies yourself.
    #[arg(long, env = "ADMISSION_POLICIES", value_parser = parse_bool, num_args = 0..=1, default_value_t = true, default_missing_value = "true", require_equals = true)]
    pub admission_policies: bool,
    /// Address of the webhook. Port 443 of the Service must lead there.
    #[arg(long, env = "WEBHOOK_ADDRESS", default_value = "[::]:8443")]
    pub webhook_address: SocketAddr,
    /// Namespace of the lease by which replicas of the operator elect the one that acts.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub lease_namespace: String,
    /// Name of the lease.
    #[arg(long, env = "LEASE_NAME", default_value = "ingress-daemonset-operator")]
    pub lease_name: String,
    /// Name of this replica in the lease. It must be unique.
    #[arg(long, env = "POD_NAME", default_value = "ingress-daemonset-operator")]
    pub identity: String,
    /// Maximum failover time in seconds: within it, another replica replaces a leader that was killed or hangs. The lease itself is
    /// shorter by three times --lease-retry-milliseconds, the time to notice. A leader stops if it cannot renew the lease for two
    /// thirds of the lease's duration.
    #[arg(long, env = "LEASE_DURATION_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=300))]
    pub lease_duration_seconds: u64,
    /// Milliseconds between two checks of another replica's lease. With a shorter time, this replica takes over faster from one that
    /// ends orderly.
    #[arg(long, env = "LEASE_RETRY_MILLISECONDS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=900))]
    pub lease_retry_milliseconds: u64,
    /// Act without a lease. The budget stays safe, but two replicas then do the same work twice.
    #[arg(long, env = "NO_LEADER_ELECTION")]
    pub no_leader_election: bool,
    /// Seconds without an answer of the API server after which the operator abandons a request and decides again.
    #[arg(long, env = "REQUEST_TIMEOUT_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10))]
    pub request_timeout_seconds: u64,
    /// Format of the log on standard error.
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log level (error, warn, info, debug, trace), or directives such as operator=debug,kube=info.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// Keys of Node annotations and labels that resources may name in `annotateNodeToDetach` and `labelNodeToDetach`, separated by
    /// commas: `KEY` for every namespace, or `NAMESPACE=KEY`. The key may be all keys of a domain (`ingress=example.com/*`), or all
    /// keys (`*`). The flag replaces the default keys: repeat those that resources use. An empty value (`--allowed-detach-keys=`)
    /// allows no key. Anyone who may edit a resource can have such a key written to every Node, and can take all nodes out of other
    /// load balancers, too. So name only keys that decide nothing else.
    #[arg(long, env = "ALLOWED_DETACH_KEYS", value_name = "[NAMESPACE=]KEY,…", default_values = DETACH_KEYS)]
    pub allowed_detach_keys: Vec<DetachKeys>,
    /// Taints that resources of a namespace may put on Nodes by `nodeReadinessTaint`, separated by commas: `NAMESPACE=KEY` for the
    /// effects `NoSchedule` and `PreferNoSchedule`, or `NAMESPACE=KEY:EFFECT`. Namespace and key may be `*`, and the key may be all
    /// keys of a domain (`ingress=readiness.k8s.io/*`). With `NoExecute`, resources can evict pods from every Node. Default: none. A
    /// `NodeReadinessGate` has no namespace and does not need this flag.
    #[arg(long, env = "ALLOWED_NODE_TAINTS", value_name = "NAMESPACE=KEY[:EFFECT]", value_delimiter = ',')]
    pub allowed_node_taints: Vec<NamespaceTaints>,
    /// Namespaces whose health checkers may read Nodes, separated by commas; `*` for all. Anyone who may create pods there can read all
    /// Nodes, too. In other namespaces a health checker learns from the operator alone that its node is about to be taken away. Default:
    /// none.
    #[arg(long, env = "ALLOWED_NODE_READERS", value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace)]
    pub allowed_node_readers: Vec<String>,
    /// Namespaces whose `PodReadinessGates` may follow, with `objectCondition`, objects of other namespaces and objects without a
    /// namespace. Separated by commas; `*` for all. Anyone who may create gates there learns what those conditions say. Default: none.
    #[arg(long, env = "ALLOWED_FOREIGN_OBJECTS", value_name = "NAMESPACE", value_delimiter = ',')]
    pub allowed_foreign_objects: Vec<String>,
    /// Gates that do not come from a `NodeReadinessGate`.
    #[command(flatten)]
    pub compat: CompatFlags,
}

impl Run {
    /// Labels, annotations and taints that resources may have written to Nodes, and whose health checkers read Nodes.
    pub fn node_rights(&self) -> NodeRights {
        NodeRights {
            detach_keys: flat(&self.allowed_detach_keys),
            taints: self.allowed_node_taints.clone(),
            readers: self.allowed_node_readers.clone(),
        }
    }
}

/// Gates that do not come from a `NodeReadinessGate`.
#[derive(Clone, Debug, Default, Args)]
pub struct CompatFlags {
    /// `ConfigMap` of critical pods, as istio-cni-taint reads it: NAMESPACE/NAME. With NAMESPACE alone: the first that exists of
    /// node.readiness, istio-cni-taint-configmap and istio-cni-taint. Without a value: the same in kube-system. Without the flag:
    /// the values of `TAINT_CONFIGMAP_NAMESPACE` and `TAINT_CONFIGMAP_NAME`, also with hyphens as in `TAINT_CONFIGMAP-NAME`, or no
    /// `ConfigMap` if neither is set.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = ConfigMaps::parse, num_args = 0..=1, default_missing_value = legacy::NAMESPACE)]
    pub legacy_configmap: Option<ConfigMaps>,
    /// false: check every node once, make the needed changes, print a table and exit. The exit code is 1 if a node is held, and 2 if
    /// this could not be determined. Also `TAINT_RUN_AS_DAEMON` or `TAINT_RUN-AS-DAEMON`.
    #[arg(long, value_parser = parse_bool, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub run_as_daemon: Option<bool>,
    /// Built-in gate.
    #[arg(long)]
    pub preset: Option<BuiltInGate>,
    /// Namespace of the preset's pods. Default: any, as in the original. Anyone who may create pods there can release nodes.
    #[arg(long, requires = "preset", default_value = "")]
    pub preset_namespace: String,
    /// The preset taints nodes, too, that were there before this process and are idle. Also `STARTUP_BACKFILL=1`.
    #[arg(long, requires = "preset")]
    pub startup_backfill: bool,
}

/// Built-in gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BuiltInGate {
    /// As nodetaintshandler: startup.k8s.io/initializing=wait:NoSchedule until a pod startup.k8s.io/component=init is ready.
    #[value(name = "startup.k8s.io")]
    Startup,
}

/// Where a `ConfigMap` is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMaps {
    /// Its namespace.
    pub namespace: String,
    /// Its names; the first that there is counts.
    pub names: Vec<String>,
}

impl ConfigMaps {
    fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or((text, ""));
        if namespace.is_empty() || name.contains('/') {
            return Err("it must be NAMESPACE/NAME, or NAMESPACE".into());
        }
        Ok(Self::of(Some(namespace), Some(name).filter(|name| !name.is_empty())))
    }

    fn of(namespace: Option<&str>, name: Option<&str>) -> Self {
        let names = name.map_or_else(|| legacy::NAMES.map(str::to_owned).to_vec(), |name| vec![name.to_owned()]);
        Self { namespace: namespace.unwrap_or(legacy::NAMESPACE).to_owned(), names }
    }
}

/// Go's spellings, which the original took.
fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it must be true or false".into()),
    }
}

impl CompatFlags {
    /// With what the environment says where the command line does not: the names of istio-cni-taint, which have hyphens and can be
    /// set in a pod only, and the same names as a shell can set them, which come first.
    pub fn or_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let of = |posix: &str, original: &str| [posix, original].iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let namespace = of("TAINT_CONFIGMAP_NAMESPACE", "TAINT_CONFIGMAP-NAMESPACE");
        let name = of("TAINT_CONFIGMAP_NAME", "TAINT_CONFIGMAP-NAME");
        if self.legacy_configmap.is_none() && (namespace.is_some() || name.is_some()) {
            self.legacy_configmap = Some(ConfigMaps::of(namespace.as_deref(), name.as_deref()));
        }
        if let (None, Some(text)) = (self.run_as_daemon, of("TAINT_RUN_AS_DAEMON", "TAINT_RUN-AS-DAEMON")) {
            self.run_as_daemon = Some(parse_bool(&text).map_err(|error| format!("TAINT_RUN_AS_DAEMON={text}: {error}"))?);
        }
        self.startup_backfill |= variable("STARTUP_BACKFILL").as_deref() == Some("1");
        Ok(self)
    }
}

/// Options of `cleanup-nodes`.
#[derive(Clone, Debug, Args)]
pub struct CleanupNodes {
    /// Print the changes, but make none.
    #[arg(long)]
    pub dry_run: bool,
    /// Clean up although an operator holds the lease. That operator would restore the taints and admission policies of its gates.
    #[arg(long)]
    pub force: bool,
    /// Namespace of the operator's lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "ingress-daemonset-system")]
    pub lease_namespace: String,
    /// Name of the lease.
    #[arg(long, env = "LEASE_NAME", default_value = "ingress-daemonset-operator")]
    pub lease_name: String,
    /// Taints of deleted gates, separated by commas: `KEY:EFFECT`. Other taints are removed only if an existing gate has or had them,
    /// because a kubelet may write the operator's records on its Node.
    #[arg(long, value_name = "KEY:EFFECT", value_delimiter = ',', value_parser = parse_taint)]
    pub taint: Vec<GateTaint>,
    /// Keys by which resources may keep nodes detached, with the value of the operator's flag. Other keys are neither removed nor
    /// restored to their earlier value.
    #[arg(long, env = "ALLOWED_DETACH_KEYS", value_name = "[NAMESPACE=]KEY,…", default_values = DETACH_KEYS)]
    pub allowed_detach_keys: Vec<DetachKeys>,
}

/// All keys of a flag that is given more than once.
fn flat(keys: &[DetachKeys]) -> Vec<NamespaceKeys> {
    keys.iter().flat_map(|keys| keys.0.iter().cloned()).collect()
}

impl CleanupNodes {
    /// Labels and annotations that resources could have written to Nodes.
    pub fn node_rights(&self) -> NodeRights {
        NodeRights { detach_keys: flat(&self.allowed_detach_keys), ..NodeRights::default() }
    }
}

/// A namespace, or all, or none.
fn namespace(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-') && text.len() <= 63;
    if is_name || text == EVERY_NAMESPACE { Ok(text.to_owned()) } else { Err("it must be the name of a namespace, or *".to_owned()) }
}

fn parse_taint(text: &str) -> Result<GateTaint, String> {
    let (key, effect) = text.split_once(':').filter(|(key, _)| !key.is_empty()).ok_or("it must be KEY:EFFECT")?;
    Ok(GateTaint { key: key.to_owned(), value: None, effect: effect.parse()? })
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use crds::node_readiness_gate::Effect;
    use planner::spec::node_rights::KeyPattern;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    fn compat(arguments: &[&str], environment: &[(&str, &str)]) -> Result<CompatFlags, String> {
        let line = ["operator", "run"].iter().chain(arguments);
        let Command::Run(run) = Arguments::try_parse_from(line).map_err(|error| error.to_string())?.command else { unreachable!() };
        run.compat.or_environment(|name| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn flags_decide_what_may_be_written_to_nodes() {
        let rights = |arguments: &[&str]| {
            let line = ["operator", "run"].iter().chain(arguments);
            let Command::Run(run) = Arguments::try_parse_from(line).map_err(|error| error.to_string())?.command else { unreachable!() };
            Ok::<_, String>(run.node_rights())
        };
        assert_eq!(rights(&[]).unwrap(), NodeRights::default());
        let given = rights(&["--allowed-detach-keys=example.com/out,a/*", "--allowed-node-taints=web=b/*,*=c"]).unwrap();
        assert_eq!(given.detach_keys, [KeyPattern::One("example.com/out".into()).into(), KeyPattern::Of("a".into()).into()]);
        let taint = |key: &str, effect| GateTaint { key: key.to_owned(), value: None, effect };
        let plain = |key| taint(key, Effect::NoSchedule);
        assert!(
            given.allows_taint("web", &plain("b/x")) && given.allows_taint("dns", &plain("c")) && !given.allows_taint("dns", &plain("b/x"))
        );
        let given = rights(&["--allowed-node-taints=web=b/*:NoExecute,*=c"]).unwrap();
        assert!(given.allows_taint("web", &taint("b/x", Effect::NoExecute)) && !given.allows_taint("web", &taint("c", Effect::NoExecute)));
        assert_eq!(rights(&["--allowed-detach-keys="]).unwrap().detach_keys, []);
        let given = rights(&["--allowed-detach-keys=web=a/*", "--allowed-detach-keys", "b"]).unwrap().detach_keys;
        assert_eq!(given, ["web=a/*".parse().unwrap(), KeyPattern::One("b".into()).into()]);
        assert!(rights(&["--allowed-detach-keys=a b"]).unwrap_err().contains("must be a key such as"));
        assert!(rights(&["--allowed-node-taints=b/x"]).unwrap_err().contains("NAMESPACE=KEY"));
        let reading = |arguments: &[&str]| {
            let rights = rights(arguments).unwrap();
            ["web", "dns", "tenant", ""].map(|namespace| rights.allows_reading(namespace))
        };
        assert_eq!(reading(&[]), [false; 4], "what nobody allowed is not given");
        assert_eq!(reading(&["--allowed-node-readers=*"]), [true; 4]);
        assert_eq!(reading(&["--allowed-node-readers=web,dns"]), [true, true, false, false]);
        assert_eq!(reading(&["--allowed-node-readers="])[..3], [false; 3]);
        for wrong in ["web, dns", "Web", "web/*", "-web"] {
            assert!(rights(&[&format!("--allowed-node-readers={wrong}")]).unwrap_err().contains("name of a namespace"), "{wrong}");
        }
    }

    #[test]
    fn whoever_cleans_up_names_taints_of_gates_that_are_gone() {
        let options = |arguments: &[&str]| {
            let line = ["operator", "cleanup-nodes"].iter().chain(arguments);
            match Arguments::try_parse_from(line).map_err(|error| error.to_string())?.command {
                Command::CleanupNodes(options) => Ok::<_, String>(options),
                _ => unreachable!(),
            }
        };
        let given = options(&["--taint=a/b:NoExecute,c:NoSchedule", "--allowed-detach-keys=example.com/out"]).unwrap();
        let taint = |key: &str, effect| GateTaint { key: key.into(), value: None, effect };
        assert_eq!(given.taint, [taint("a/b", Effect::NoExecute), taint("c", Effect::NoSchedule)]);
        assert_eq!(given.node_rights().detach_keys, [KeyPattern::One("example.com/out".into()).into()]);
        assert_eq!(options(&[]).unwrap().node_rights(), NodeRights::default());
        for wrong in ["--taint=a", "--taint=:NoSchedule", "--taint=a:Never", "--taint="] {
            assert!(options(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn backfill_is_requested_by_flag_or_original_variable() {
        let asked = |arguments: &[&str], value: Option<&str>| {
            let environment: Vec<_> = value.map(|value| ("STARTUP_BACKFILL", value)).into_iter().collect();
            compat(arguments, &environment).map(|flags| flags.startup_backfill)
        };
        assert_eq!(asked(&["--preset=startup.k8s.io", "--startup-backfill"], None), Ok(true));
        assert_eq!(asked(&["--preset=startup.k8s.io"], Some("1")), Ok(true));
        assert_eq!(asked(&["--preset=startup.k8s.io"], Some("true")), Ok(false));
        assert_eq!(asked(&["--preset=startup.k8s.io"], None), Ok(false));
        assert!(asked(&["--startup-backfill"], None).unwrap_err().contains("--preset"));
    }

    #[test]
    fn flag_or_environment_in_either_spelling_names_a_config_map() {
        let maps = |namespace: &str, names: &[&str]| {
            Some(ConfigMaps { namespace: namespace.into(), names: names.iter().map(ToString::to_string).collect() })
        };
        let known = ["node.readiness", "istio-cni-taint-configmap", "istio-cni-taint"];
        for (arguments, environment, wanted) in [
            (&[][..], &[][..], None),
            (&["--legacy-configmap=istio-system/pods"], &[("TAINT_CONFIGMAP_NAME", "other")], maps("istio-system", &["pods"])),
            (&["--legacy-configmap=kube-system"], &[], maps("kube-system", &known)),
            (&["--legacy-configmap"], &[], maps("kube-system", &known)),
            (&["--legacy-configmap", "--log-format=json"], &[], maps("kube-system", &known)),
            (&["--legacy-configmap", "istio-system"], &[], maps("istio-system", &known)),
            (&[], &[("TAINT_CONFIGMAP-NAME", "single")], maps("kube-system", &["single"])),
            (&[], &[("TAINT_CONFIGMAP-NAME", "single"), ("TAINT_CONFIGMAP_NAME", "other")], maps("kube-system", &["other"])),
            (&[], &[("TAINT_CONFIGMAP-NAMESPACE", "istio-system")], maps("istio-system", &known)),
            (
                &[],
                &[("TAINT_CONFIGMAP-NAMESPACE", "istio-system"), ("TAINT_CONFIGMAP-NAME", "istio-cni-taint-configmap")],
                maps("istio-system", &["istio-cni-taint-configmap"]),
            ),
        ] {
            assert_eq!(compat(arguments, environment).unwrap().legacy_configmap, wanted, "{arguments:?} {environment:?}");
        }
        for wrong in ["--legacy-configmap=/name", "--legacy-configmap=a/b/c", "--legacy-configmap="] {
            assert!(compat(&[wrong], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flag_or_environment_in_either_spelling_requests_one_pass() {
        for (arguments, environment, wanted) in [
            (&[][..], &[][..], None),
            (&["--run-as-daemon=false"], &[("TAINT_RUN_AS_DAEMON", "true")], Some(false)),
            (&["--run-as-daemon"], &[], Some(true)),
            (&[], &[("TAINT_RUN-AS-DAEMON", "False")], Some(false)),
            (&[], &[("TAINT_RUN_AS_DAEMON", "0")], Some(false)),
        ] {
            assert_eq!(compat(arguments, environment).unwrap().run_as_daemon, wanted, "{arguments:?} {environment:?}");
        }
        assert!(compat(&[], &[("TAINT_RUN_AS_DAEMON", "no")]).unwrap_err().contains("TAINT_RUN_AS_DAEMON=no"));
        assert!(compat(&["--run-as-daemon=no"], &[]).is_err());
    }

    #[test]
    fn a_preset_is_named_and_its_namespace_needs_it() {
        let given = compat(&["--preset=startup.k8s.io", "--preset-namespace=ops"], &[]).unwrap();
        assert_eq!((given.preset, given.preset_namespace.as_str()), (Some(BuiltInGate::Startup), "ops"));
        assert!(compat(&["--preset=other"], &[]).is_err());
        assert!(compat(&["--preset-namespace=ops"], &[]).is_err());
    }
}
