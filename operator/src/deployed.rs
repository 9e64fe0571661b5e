//! Options of an operator that runs in the cluster, as its Deployment gives them. The plugin decides with the same options.

use crate::args::{CompatFlags, Run};
use clap::{Args as _, Command, FromArgMatches as _, builder::Resettable};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Container};
use planner::spec::node_rights::NodeRights;
use std::collections::BTreeMap;

/// Chooses the operator's Deployment among those of its namespace.
pub const LABELS: &str = "app.kubernetes.io/name=ingress-daemonset-operator";
/// Options that bear on what is decided about resources, by their ids. Others are not read: they may be of a newer release.
const READ: [&str; 5] = ["allowed_detach_keys", "allowed_node_taints", "legacy_configmap", "preset", "preset_namespace"];
/// Begin of environment variables that bear on it, too.
const CONFIG_MAP: &str = "TAINT_CONFIGMAP";

/// Options of an operator.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// Labels, annotations and taints that resources may have written to Nodes.
    pub node_rights: NodeRights,
    /// Gates from other places than objects.
    pub compat: CompatFlags,
}

impl OperatorOptions {
    /// As the Deployment gives them; or why they cannot be told.
    pub fn of(deployment: &Deployment) -> Result<Self, String> {
        let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let words = |container: &&Container| words(container).any(|word| word == "run");
        let container = pod.and_then(|pod| pod.containers.iter().find(words)).ok_or("it has no container with the argument run")?;
        let command = Run::augment_args(Command::new("run"));
        let variables: BTreeMap<String, String> = command
            .get_arguments()
            .filter(|argument| READ.contains(&argument.get_id().as_str()))
            .filter_map(|argument| Some((argument.get_env()?.to_str()?.to_owned(), argument.get_long()?.to_owned())))
            .collect();
        let environment = environment(container, |name| variables.contains_key(name) || name.starts_with(CONFIG_MAP))?;
        let given = given(&command, container)?;
        let flag = |argument: &String| argument.split_once('=').map_or(argument.as_str(), |(flag, _)| flag).to_owned();
        // The command line comes before the environment.
        let by_environment = environment.iter().filter_map(|(name, value)| Some(format!("--{}={value}", variables.get(name)?)));
        let by_environment: Vec<_> = by_environment.filter(|one| !given.iter().any(|other| flag(other) == flag(one))).collect();
        // The environment of this process says nothing about that one.
        let parsed = command
            .mut_args(|argument| argument.env(Resettable::Reset))
            .try_get_matches_from([String::from("run")].into_iter().chain(given).chain(by_environment))
            .and_then(|matches| Run::from_arg_matches(&matches))
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
        let compat = parsed.compat.clone().or_environment(|name| environment.get(name).cloned())?;
        Ok(Self { node_rights: parsed.node_rights(), compat })
    }
}

fn words(container: &Container) -> impl Iterator<Item = &String> {
    container.command.iter().chain(&container.args).flatten()
}

/// Arguments of the options that are read, each with its value if it has one. Only the operator's own parser knows which need one.
fn given(command: &Command, container: &Container) -> Result<Vec<String>, String> {
    let is_read = |flag: &str| {
        let of_flag = |argument: &&clap::Arg| argument.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long));
        command.get_arguments().find(of_flag).is_some_and(|argument| READ.contains(&argument.get_id().as_str()))
    };
    let (mut given, mut words) = (Vec::new(), words(container).peekable());
    while let Some(word) = words.next() {
        let whole = match word.split_once('=') {
            Some((flag, _)) if is_read(flag) => word.clone(),
            None if is_read(word) => match words.next_if(|next| !next.starts_with("--")) {
                Some(value) => format!("{word}={value}"),
                None => word.clone(),
            },
            _ => continue,
        };
        if whole.contains("$(") {
            return Err(format!("{whole} refers to a variable"));
        }
        given.push(whole);
    }
    Ok(given)
}

/// The variables that are read.
fn environment(container: &Container, is_read: impl Fn(&str) -> bool) -> Result<BTreeMap<String, String>, String> {
    if container.env_from.iter().flatten().next().is_some() {
        return Err("a part of its environment is in a ConfigMap or Secret (envFrom)".into());
    }
    let read = container.env.iter().flatten().filter(|variable| is_read(&variable.name));
    read.map(|variable| match &variable.value {
        _ if variable.value_from.is_some() => Err(format!("the value of variable {} is in another object (valueFrom)", variable.name)),
        Some(value) if value.contains("$(") => Err(format!("variable {} refers to another variable", variable.name)),
        value => Ok((variable.name.clone(), value.clone().unwrap_or_default())),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{BuiltInGate, ConfigMaps};
    use crds::node_readiness_gate::{Effect, GateTaint};
    use planner::spec::node_rights::{KeyPattern, NamespaceKeys};
    use serde_json::{Value, json};

    fn options(arguments: &[&str], environment: &Value, more: &Value) -> Result<OperatorOptions, String> {
        let mut container = json!({"name": "c", "command": ["/ingress-daemonset-operator"], "args": arguments, "env": environment});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let pod = json!({"containers": [{"name": "sidecar", "args": ["--allowed-detach-keys=*"]}, container]});
        let deployment = json!({"metadata": {"name": "o"}, "spec": {"selector": {}, "template": {"metadata": {}, "spec": pod}}});
        OperatorOptions::of(&serde_json::from_value(deployment).unwrap())
    }

    fn by(arguments: &[&str], environment: &Value) -> OperatorOptions {
        options(arguments, environment, &json!({})).unwrap()
    }

    #[test]
    fn options_come_from_command_line_then_environment_then_default() {
        assert_eq!(by(&["run"], &json!([])).node_rights, NodeRights::default());
        let keys = |options: OperatorOptions| options.node_rights.detach_keys;
        let (one, two): (NamespaceKeys, NamespaceKeys) = (KeyPattern::One("a/b".into()).into(), KeyPattern::Of("c".into()).into());
        let variable = json!([{"name": "ALLOWED_DETACH_KEYS", "value": "a/b,c/*"}]);
        assert_eq!(keys(by(&["run"], &variable)), [one.clone(), two.clone()]);
        assert_eq!(keys(by(&["run", "--allowed-detach-keys=c/*"], &variable)), std::slice::from_ref(&two));
        assert_eq!(keys(by(&["run", "--allowed-detach-keys", "a/b", "--allowed-detach-keys", "c/*"], &variable)), [one, two]);
        let taints = by(&["run"], &json!([{"name": "ALLOWED_NODE_TAINTS", "value": "web=example.com/*"}])).node_rights;
        let taint = GateTaint { key: "example.com/edge".into(), value: None, effect: Effect::default() };
        assert!(taints.allows_taint("web", &taint) && !taints.allows_taint("dns", &taint));
        assert_eq!(keys(by(&["run", "--allowed-detach-keys="], &variable)), []);
    }

    #[test]
    fn config_map_and_preset_gates_are_read_in_each_spelling() {
        let compat = by(&["run", "--preset=startup.k8s.io", "--preset-namespace", "ops"], &json!([])).compat;
        assert_eq!((compat.preset, compat.preset_namespace.as_str()), (Some(BuiltInGate::Startup), "ops"));
        for arguments in [&["run", "--legacy-configmap"][..], &["run", "--legacy-configmap", "--preset=startup.k8s.io"]] {
            let compat = by(arguments, &json!([])).compat;
            assert_eq!(compat.legacy_configmap.map(|at| at.namespace).as_deref(), Some("kube-system"), "{arguments:?}");
            assert_eq!(compat.preset.is_some(), arguments.len() > 2, "{arguments:?}");
        }
        let compat = by(&["run"], &json!([{"name": "TAINT_CONFIGMAP-NAME", "value": "pods"}])).compat;
        assert_eq!(compat.legacy_configmap, Some(ConfigMaps { namespace: "kube-system".into(), names: vec!["pods".into()] }));
    }

    #[test]
    fn other_options_are_ignored_even_from_newer_releases() {
        let arguments = ["run", "--listen-address=$(POD_IP):8080", "--newer", "x", "--no-leader-election", "--allowed-detach-keys=a/b"];
        let variables =
            json!([{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "LOG_FORMAT", "value": "?"}]);
        assert_eq!(by(&arguments, &variables).node_rights.detach_keys, [KeyPattern::One("a/b".into()).into()]);
    }

    #[test]
    fn what_cannot_be_told_is_said_and_not_guessed() {
        let from = |kind: &str| json!([{"name": "ALLOWED_NODE_TAINTS", "valueFrom": {kind: {"name": "m", "key": "k"}}}]);
        for (arguments, environment, more, why) in [
            (&["run", "--allowed-detach-keys=$(KEYS)"][..], json!([]), json!({}), "refers to a variable"),
            (&["run"], from("configMapKeyRef"), json!({}), "ALLOWED_NODE_TAINTS is in another object"),
            (&["run"], json!([]), json!({"envFrom": [{"configMapRef": {"name": "m"}}]}), "envFrom"),
            (&["run", "--allowed-detach-keys=a b"], json!([]), json!({}), "a b"),
            (&["serve"], json!([]), json!({}), "no container with the argument run"),
        ] {
            let said = options(arguments, &environment, &more).unwrap_err();
            assert!(said.contains(why), "{arguments:?}: {said}");
        }
    }
}
