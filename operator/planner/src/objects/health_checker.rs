//! The health checkers: one `DaemonSet` per port on the resource's nodes, and the rights that an account of the operator's own gets for
//! them.

use crate::{
    facts::{DaemonSetFacts, NodeFacts, Resource, scheduling::daemon_set_runs},
    objects::render,
    plan::{Action, CheckersRefused, Plan, Supporting},
    snapshot::{REFUSED_AGAIN, Snapshot},
    spec::{
        ResolvedSpec, SpecProblem,
        claims::{Claim, claimed_since, other_claims_since},
        node_selection::is_chosen,
        ready_policy_flag, resolve,
    },
};
use crds::{IngressDaemonSetSpec, UnixSeconds, names};
use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::cell::LazyCell;

/// Where a health checker finds the key of its resource's health checkers.
const KEY: &str = "/run/hand-over/key";
/// Environment variables, not arguments: an older image, which the resource may name, knows none of them and ignores them.
const KEY_VARIABLE: &str = "HAND_OVER_KEY";
const UNPROVED_VARIABLE: &str = "TAKE_UNPROVED";
const WATCH_NODE_VARIABLE: &str = "WATCH_NODE";

/// Seconds for which an operator that has just begun waits at least until health checkers that may read Nodes no more are replaced.
const REVOKED_AFTER: i64 = 600;
/// Seconds for each of these health checkers, which are replaced one after the other: some 6 until the new one has the port, and as much
/// again for a slow start.
const REPLACED_WITHIN: i64 = 12;

/// Images of the original (2020): its health checker does not know tokens, so this release's is used instead.
const OLD_IMAGES: [&str; 2] = ["mumoshu/ingress-daemonset-controller", "mumoshu/ingress-daemonset-node-healthcheck-server"];

/// Where a health checker says why it ended; `Snapshot::port_conflicts` comes from there.
const TERMINATION_LOG: &str = "/run/health-checker/termination-log";

/// The image of the spec is the original's.
pub fn uses_old_image(spec: &IngressDaemonSetSpec) -> bool {
    let image = spec.health_checker.as_ref().and_then(|checker| checker.image.as_deref());
    image.is_some_and(|image| {
        let name = image.split('@').next().unwrap_or(image);
        // A colon before the last slash belongs to the registry's port.
        let name = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name);
        OLD_IMAGES.iter().any(|old| name == *old || name.ends_with(&format!("/{old}")))
    })
}

/// Health checkers listen on addresses of IPv4 alone.
pub fn listens_on_ipv4_alone(spec: &IngressDaemonSetSpec) -> bool {
    let address = spec.health_checker.as_ref().and_then(|checker| checker.bind_address.as_deref());
    address.is_some_and(|address| address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_ipv4()))
}

/// The `ServiceAccount` that the spec names for health checkers that there are to be. It gets no right from the operator: others may use
/// it, too. That of the original's example is used as little as the image beside it.
pub fn named_account(snapshot: &Snapshot) -> Option<&str> {
    let spec = &snapshot.resource.spec;
    let name = named(spec).filter(|_| !snapshot.resource.deleting)?;
    resolve(spec).is_ok_and(|settings| !settings.ports.is_empty()).then_some(name)
}

fn named(spec: &IngressDaemonSetSpec) -> Option<&str> {
    spec.health_checker.as_ref()?.service_account_name.as_deref().filter(|_| !uses_old_image(spec))
}

/// Rights that the resource's health checkers need: verb, API group, resource, and whether cluster-wide. They are those of two
/// `ClusterRoles`, or, where they may not read Nodes, of the first one.
pub fn needed(snapshot: &Snapshot) -> impl Iterator<Item = (&'static str, &'static str, &'static str, bool)> {
    let resources = [("apps", "deployments", false), ("", "pods", false), ("", "nodes", true)];
    let reads_nodes = reads_nodes(snapshot);
    let resources = resources.into_iter().filter(move |(.., everywhere)| reads_nodes || !everywhere);
    resources.flat_map(|(group, resource, everywhere)| ["list", "watch"].map(|verb| (verb, group, resource, everywhere)))
}

fn reads_nodes(snapshot: &Snapshot) -> bool {
    snapshot.node_rights.allows_reading(&snapshot.resource.namespace)
}

/// What the named account lacks, and what to do.
pub fn account_lacks(snapshot: &Snapshot) -> Option<String> {
    let (name, namespace) = (named_account(snapshot)?, &snapshot.resource.namespace);
    let lacks = &snapshot.account_lacks;
    let all = format!(" and ClusterRole {} cluster-wide", names::HEALTH_CHECKER_NODE_ROLE);
    (!lacks.is_empty()).then(|| {
        format!(
            "ServiceAccount {namespace}/{name} (healthChecker.serviceAccountName) may not {}: remove the field, or bind ClusterRole {} \
             to the account in its namespace{}; until then health checkers do not change",
            lacks.join(", "),
            names::HEALTH_CHECKER_ROLE,
            if reads_nodes(snapshot) { &all } else { "" },
        )
    })
}

/// What is made, changed and removed now.
pub fn plan(snapshot: &Snapshot, settings: &ResolvedSpec, plan: &mut Plan) {
    let resource = &snapshot.resource;
    if resource.deleting {
        return;
    }
    if !settings.ports.is_empty() {
        rights(snapshot, plan);
    }
    if account_lacks(snapshot).is_some() {
        // New ones would see nothing, and what runs serves.
        hold_refused(snapshot, plan);
        return;
    }
    let silent = SilentNodes::of(snapshot);
    let is_settled = |set: &DaemonSetFacts| set.is_settled(silent.lost(&set.spec));
    let (mut serving, mut written) = (true, false);
    for port in &settings.ports {
        let name = render::object_name(&resource.name, &port.to_string(), &snapshot.taken_names);
        let stored = snapshot.daemon_sets.iter().find(|set| set.name == name);
        let mut body = daemon_set(snapshot, settings, &name, *port);
        let ends_first = stored.is_some_and(|stored| must_end_first(stored, &body, is_settled(stored)));
        // One at a time, beside those on lost nodes, which use their share up until they are back. At rest the share is of no use.
        let idle = stored
            .filter(|stored| !ends_first && is_settled(stored) && render::contains(&stored.spec["template"], &body["spec"]["template"]));
        let share = idle.and_then(surge).filter(|surge| *surge > 0).unwrap_or_else(|| i64::from(silent.lost(&body["spec"])) + 1);
        let (surge, unavailable) = if ends_first { (0, share) } else { (share, 0) };
        body["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        if !ends_first
            && stored.is_some_and(|stored| follows_unproved(stored, is_settled(stored)))
            && let Some(variables) = body["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut()
        {
            variables.push(json!({"name": UNPROVED_VARIABLE, "value": "true"}));
        }
        let object = Supporting::DaemonSet(name.clone());
        match stored {
            // A name that belongs to somebody else is never adopted; status says so.
            None if snapshot.foreign_names.contains(&name) => serving = false,
            None => {
                serving = false;
                plan.actions.push(Action::Apply { object, body: Box::new(body) });
            }
            Some(set) if !set.owned => serving = false,
            Some(set) if !render::contains(&set.spec, &body["spec"]) => {
                serving = false;
                // One at a time: two that change together could silence a node on both ports. One whose pods do not come up changes
                // already, and what is written now may be what mends it.
                let others = || snapshot.daemon_sets.iter().any(|other| !is_settled(other) && other.name != set.name);
                let waits = written || (is_settled(set) || ends_first) && others();
                if !waits {
                    written = true;
                    plan.actions.push(Action::Apply { object, body: Box::new(body) });
                }
            }
            Some(set) => serving &= is_settled(set),
        }
    }
    revoke(snapshot, serving, plan);
    hold_refused(snapshot, plan);
    // A port that is added serves before one that is removed stops.
    let mut unwanted: Vec<_> =
        snapshot.daemon_sets.iter().filter(|set| serving && set.owned && !settings.ports.contains(&set.port)).collect();
    unwanted.sort_by_key(|set| &set.name);
    for set in unwanted {
        plan.actions.push(Action::Delete { object: Supporting::DaemonSet(set.name.clone()), uid: Some(set.uid.clone()) });
    }
}

/// What the API server refuses is tried again after longer and longer pauses. Health checkers are not written without their key and their
/// rights.
fn hold_refused(snapshot: &Snapshot, plan: &mut Plan) {
    let is_checker = |action: &Action| matches!(action, Action::Apply { object: Supporting::DaemonSet(_), .. });
    let refusal = |action: &Action| match action {
        Action::Apply { object, .. } => snapshot.checkers_refusals.get(&object.key()),
        _ => None,
    };
    let mut refused: Vec<_> = plan.actions.iter().filter_map(|action| Some((is_checker(action), refusal(action)?))).collect();
    refused.sort_by_key(|(is_checker, _)| *is_checker);
    let Some((_, first)) = refused.first() else { return };
    let lacks_rights = refused.iter().any(|(is_checker, refusal)| !is_checker && refusal.waits > 0);
    let soonest = refused.iter().map(|(_, refusal)| refusal.waits.max(REFUSED_AGAIN)).min().unwrap_or(REFUSED_AGAIN);
    plan.checkers_refused = Some(CheckersRefused { message: first.message.clone(), holds_up: plan.actions.iter().any(is_checker) });
    let waits = |action: &Action| refusal(action).is_some_and(|refusal| refusal.waits > 0);
    plan.actions.retain(|action| !(waits(action) || lacks_rights && is_checker(action)));
    plan.recheck(snapshot.now.saturating_add(soonest));
}

/// Nodes of the resource whose kubelets say nothing any more: a pod that the controller of a `DaemonSet` makes for one is started by
/// nobody. The kubelet of a node that is not Ready for another reason starts pods.
struct SilentNodes<'a>(Vec<(&'a str, &'a NodeFacts)>);

impl<'a> SilentNodes<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let uid8 = snapshot.resource.uid8();
        let nodes = snapshot.nodes.iter().filter(|(_, node)| node.silent && node.is_used_by(uid8));
        Self(nodes.map(|(name, node)| (name.as_str(), &**node)).collect())
    }

    /// On how many of them a `DaemonSet` with this spec wants a pod, as its controller counts them.
    fn lost(&self, spec: &Value) -> i32 {
        if self.0.is_empty() {
            return 0;
        }
        let Some(pod) = spec.pointer("/template/spec").and_then(|pod| PodSpec::deserialize(pod).ok()) else { return 0 };
        let lost = self.0.iter().filter(|(name, node)| daemon_set_runs(&pod, name, node, |_| false)).count();
        i32::try_from(lost).unwrap_or(i32::MAX)
    }
}

/// How many nodes may have two health checkers on a port, while one takes it from the other.
fn surge(stored: &DaemonSetFacts) -> Option<i64> {
    stored.spec.pointer("/updateStrategy/rollingUpdate/maxSurge")?.as_i64()
}

/// The pods that run cannot hand the port over to those that are to come: they listen on another address, or they are of
/// a release before hand-overs. Once the pods are new, the strategy follows.
fn must_end_first(stored: &DaemonSetFacts, body: &Value, is_settled: bool) -> bool {
    let address = |spec: &Value| {
        let args = spec.pointer("/template/spec/containers/0/args").and_then(Value::as_array);
        args.into_iter().flatten().find(|arg| arg.as_str().is_some_and(|arg| arg.starts_with("--bind-address="))).cloned()
    };
    let (template, wanted) = (&stored.spec["template"], &body["spec"]["template"]);
    let surges = surge(stored).is_some_and(|surge| surge > 0);
    let is_new = is_settled && render::contains(template, wanted);
    address(&stored.spec) != address(&body["spec"]) || !surges && !is_new
}

/// The pods that run are of a release in which health checkers proved nothing to one another: those that are to come take the
/// port from them all the same. Once all pods are new, the template follows.
fn follows_unproved(stored: &DaemonSetFacts, is_settled: bool) -> bool {
    let variables = stored.spec.pointer("/template/spec/containers/0/env").and_then(Value::as_array);
    let has = |name| variables.into_iter().flatten().any(|variable| variable["name"] == name);
    !has(KEY_VARIABLE) || has(UNPROVED_VARIABLE) && !is_settled
}

/// What no owner reference can clean up.
pub fn clean(snapshot: &Snapshot, plan: &mut Plan) {
    plan.actions.push(Action::Delete { object: Supporting::ClusterRoleBinding(cluster_binding_name(&snapshot.resource)), uid: None });
}

/// Takes the right to read Nodes from health checkers of a namespace that may not read them, once all are replaced: one of before would not
/// begin to serve without it. What holds their replacement up may be the work of whoever edits the resource, so it does not wait for ever.
pub fn revoke(snapshot: &Snapshot, replaced: bool, plan: &mut Plan) {
    if reads_nodes(snapshot) {
        return;
    }
    // Not their sum: whoever edits the resource can make more that look like ours.
    let nodes = snapshot.daemon_sets.iter().filter(|set| set.owned).map(|set| i64::from(set.desired)).max().unwrap_or(0);
    let ports = i64::try_from(snapshot.resource.spec.health_ports().count()).unwrap_or(i64::MAX);
    let all = nodes.saturating_mul(ports).saturating_mul(REPLACED_WITHIN);
    let waits = REVOKED_AFTER.max(all).saturating_sub(snapshot.known_for);
    if !replaced && waits > 0 {
        plan.recheck(snapshot.now.saturating_add(waits));
        return;
    }
    let object = Supporting::ClusterRoleBinding(cluster_binding_name(&snapshot.resource));
    let delete = Action::Delete { object: object.clone(), uid: None };
    if !snapshot.asserted.contains(&assertion(&object, &Value::Null)) && !plan.actions.contains(&delete) {
        plan.actions.push(delete);
    }
}

fn account_name(resource: &Resource) -> String {
    format!("health-checker-{}", resource.uid8())
}

fn cluster_binding_name(resource: &Resource) -> String {
    format!("ingress-daemonset-health-checker-{}", resource.uid)
}

/// The Secret; and, unless the spec names one, the `ServiceAccount` with its rights: read pods and Deployments of the namespace, and Nodes
/// where that is allowed.
fn rights(snapshot: &Snapshot, plan: &mut Plan) {
    let resource = &snapshot.resource;
    let account = account_name(resource);
    let mut objects = vec![Supporting::Secret(account.clone())];
    if named(&resource.spec).is_none() {
        objects.extend([Supporting::ServiceAccount(account.clone()), Supporting::RoleBinding(account.clone())]);
        objects.extend(reads_nodes(snapshot).then(|| Supporting::ClusterRoleBinding(cluster_binding_name(resource))));
    }
    for object in objects {
        // These are not watched: each process writes them once in a while, which repairs what somebody changed.
        if !snapshot.asserted.contains(&assertion_of(&object, &account)) {
            let body = Box::new(right(resource, &object, &account));
            plan.actions.push(Action::Apply { object, body });
        }
    }
}

/// One object of the account of a resource's health checkers.
fn right(resource: &Resource, object: &Supporting, account: &str) -> Value {
    let owned = json!({"name": account, "namespace": resource.namespace, "labels": {names::RESOURCE_LABEL: resource.uid8()}, "ownerReferences": [render::owner_reference(resource)]});
    let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": resource.namespace}]);
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    match object {
        Supporting::Secret(_) => json!({"apiVersion": "v1", "kind": "Secret", "metadata": owned, "type": "Opaque"}),
        Supporting::RoleBinding(_) => json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": owned,
            "roleRef": role(names::HEALTH_CHECKER_ROLE), "subjects": subjects,
        }),
        Supporting::ClusterRoleBinding(binding) => json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": binding, "labels": {names::RESOURCE_LABEL: resource.uid8()}, "annotations": {"ingressdaemonsets.mumoshu.github.io/of": resource.key()}},
            "roleRef": role(names::HEALTH_CHECKER_NODE_ROLE), "subjects": subjects,
        }),
        _ => json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": owned}),
    }
}

/// What is remembered of a supporting object that was written, or of one that was deleted, without a body: its key and the account it
/// speaks of.
pub fn assertion(object: &Supporting, body: &Value) -> String {
    assertion_of(object, body["subjects"][0]["name"].as_str().or_else(|| body["metadata"]["name"].as_str()).unwrap_or_default())
}

fn assertion_of(object: &Supporting, account: &str) -> String {
    format!("{}={account}", object.key())
}

fn daemon_set(snapshot: &Snapshot, settings: &ResolvedSpec, name: &str, port: u16) -> Value {
    let resource = &snapshot.resource;
    let checker = resource.spec.health_checker.clone().unwrap_or_default();
    let labels = json!({names::HEALTH_CHECKER_LABEL: name, names::RESOURCE_LABEL: resource.uid8()});
    let image = checker.image.filter(|_| !uses_old_image(&resource.spec)).unwrap_or_else(|| snapshot.health_checker_image.clone());
    let mut args = vec![
        "run".to_owned(),
        format!("--namespace={}", resource.namespace),
        format!("--ingress-daemonset={}", resource.name),
        format!("--resource-uid8={}", resource.uid8()),
        format!("--port={port}"),
        format!("--ready-policy={}", ready_policy_flag(settings.ready_policy)),
        "--ready-socket=/run/health-checker/ready.sock".to_owned(),
        format!("--termination-log={TERMINATION_LOG}"),
    ];
    args.extend(checker.bind_address.map(|address| format!("--bind-address={address}")));
    let mut variables = vec![
        json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        json!({"name": KEY_VARIABLE, "value": KEY}),
    ];
    variables.extend((!reads_nodes(snapshot)).then(|| json!({"name": WATCH_NODE_VARIABLE, "value": "false"})));
    let mut container = json!({
        "name": "health-checker",
        "image": image,
        "imagePullPolicy": checker.image_pull_policy.unwrap_or_else(|| "IfNotPresent".into()),
        "command": ["/health-checker"],
        "args": args,
        "env": variables,
        "readinessProbe": {
            "exec": {"command": ["/health-checker", "check", "--ready-socket=/run/health-checker/ready.sock"]},
            "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePath": TERMINATION_LOG,
        "volumeMounts": [
            {"name": "run", "mountPath": "/run/health-checker"},
            {"name": "hand-over", "mountPath": "/run/hand-over", "readOnly": true},
        ],
    });
    if let Some(resources) = checker.resources.and_then(|resources| serde_json::to_value(resources).ok()) {
        container["resources"] = resources;
    }
    let priority = checker.priority_class_name.unwrap_or_else(|| "system-node-critical".into());
    let everything = || vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }];
    let tolerations: Vec<_> = checker.tolerations.unwrap_or_else(everything).iter().map(toleration).collect();
    let member = json!([{"matchExpressions": [{"key": names::member_label(resource.uid8()), "operator": "Exists"}]}]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name, "namespace": resource.namespace, "labels": labels,
            "annotations": {names::HEALTH_PORT_ANNOTATION: port.to_string()},
            "ownerReferences": [render::owner_reference(resource)],
        },
        "spec": {
            "selector": {"matchLabels": {names::HEALTH_CHECKER_LABEL: name}},
            "revisionHistoryLimit": 1,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": true,
                    "dnsPolicy": "ClusterFirstWithHostNet",
                    "serviceAccountName": named(&resource.spec).map_or_else(|| account_name(resource), str::to_owned),
                    "priorityClassName": priority,
                    "imagePullSecrets": checker.image_pull_secrets.unwrap_or_default(),
                    "tolerations": tolerations,
                    "terminationGracePeriodSeconds": 10,
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": member}}},
                    "volumes": [
                        {"name": "run", "emptyDir": {}},
                        {"name": "hand-over", "secret": {"secretName": account_name(resource)}},
                    ],
                    "containers": [container],
                },
            },
        },
    })
}

/// With what it lacks, too: what is stored is compared with what is wanted, and more may be stored.
fn toleration(given: &Toleration) -> Value {
    let Toleration { key, operator, value, effect, toleration_seconds } = given;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    json!({
        "key": text(key), "operator": text(operator), "value": text(value), "effect": text(effect), "tolerationSeconds": toleration_seconds,
    })
}

/// Since when the operator has had this port for the resource; 0 before the resource has used a node.
fn we_serve_since(snapshot: &Snapshot, port: u16) -> Option<UnixSeconds> {
    claimed_since(&snapshot.resource, &Claim::Port(port))
}

/// A Service's node port that is a health port of ours, too, and the Service; `served`: of ports that are served already.
fn service_port<'a>(snapshot: &'a Snapshot, settings: &ResolvedSpec, served: bool) -> Option<(u16, &'a str)> {
    let taken = |port: &u16| Some((*port, snapshot.service_ports.get(port)?.as_str()));
    settings.ports.iter().filter(|port| we_serve_since(snapshot, **port).is_some() == served).find_map(taken)
}

/// A Service that came to a health port which is served already: nothing is held for it.
pub fn late_service(snapshot: &Snapshot, settings: &ResolvedSpec) -> Option<String> {
    let (port, service) = service_port(snapshot, settings, true)?;
    let service = snapshot.resource.name_for_its_readers("Service", service);
    Some(format!(
        "port {port} is also a node port of {service}, which came later: choose another node port for the Service, \
         or another healthCheckNodePort; load balancers may reach the Service on this port instead"
    ))
}

/// Another resource or a Service has a health port of ours on a node of ours. Of two resources the one that serves the port there has it.
/// Of two that do, it is the one that has done so for longer. Of two that do not, it is the one that has served the port elsewhere for
/// longer, else the older one.
pub fn port_conflict(snapshot: &Snapshot, settings: &ResolvedSpec) -> Option<SpecProblem> {
    let invalid = |message| Some(SpecProblem { reason: "HealthCheckPortConflict", message });
    let resource = &snapshot.resource;
    if let Some((port, service)) = service_port(snapshot, settings, false) {
        let service = resource.name_for_its_readers("Service", service);
        return invalid(format!("port {port} is a node port of {service}: choose another healthCheckNodePort"));
    }
    let mut others: Vec<_> = snapshot.others.iter().collect();
    others.sort_by_key(|other| (other.created, &other.uid));
    let chosen = LazyCell::new(|| {
        let ours = snapshot.nodes.iter().filter(|(name, node)| is_chosen(&resource.spec, settings, name, node, true));
        ours.collect::<Vec<_>>()
    });
    for other in others {
        // While its spec is not valid, its last good state keeps running.
        let recorded: Vec<_> =
            other.resource.ledger().into_iter().flat_map(|ledger| &ledger.served_ports).map(|served| served.port).collect();
        let claimed: Vec<_> = other.resource.spec.health_ports().collect();
        // A port that was only claimed so far is served by nobody.
        let begun = |since: Option<UnixSeconds>| since.filter(|since| *since > 0);
        // Each with since when they and we serve it anywhere.
        let served = |port: u16| (port, begun(other_claims_since(other, &Claim::Port(port))), begun(we_serve_since(snapshot, port)));
        let shared = settings.ports.iter().filter(|port| claimed.contains(port) || recorded.contains(port));
        let mut ports: Vec<_> = shared.map(|port| served(*port)).collect();
        let they = names::uid8(&other.uid);
        // Who serves elsewhere does not serve here.
        let comes_first = |node: &NodeFacts, they_serve: Option<UnixSeconds>, we_serve: Option<UnixSeconds>| {
            let theirs = they_serve.filter(|_| node.is_used_by(they));
            let ours = we_serve.filter(|_| node.is_used_by(resource.uid8()));
            (theirs.is_none(), theirs, they_serve.is_none(), they_serve, other.created, &other.uid)
                < (ours.is_none(), ours, we_serve.is_none(), we_serve, resource.created, &resource.uid)
        };
        let first_port = |node: &NodeFacts, ports: &[_]| ports.iter().find(|(_, they, we)| comes_first(node, *they, *we)).copied();
        // Anybody may claim our port, and what they choose takes long to find out: it matters only where they come first.
        if ports.is_empty() || !chosen.iter().any(|(_, node)| first_port(node, &ports).is_some()) {
            continue;
        }
        let theirs = resolve(&other.resource.spec).ok();
        ports.retain(|(port, ..)| theirs.as_ref().map_or(&recorded, |theirs| &theirs.ports).contains(port));
        let they_choose = |name: &str, node: &NodeFacts| match &theirs {
            Some(theirs) => is_chosen(&other.resource.spec, theirs, name, node, true),
            None => node.is_used_by(they),
        };
        let lost = chosen.iter().find_map(|(name, node)| {
            let port = first_port(node, &ports)?;
            they_choose(name, node).then_some((name, port))
        });
        if let Some((node, (port, ..))) = lost {
            return invalid(format!(
                "port {port} on node {node} belongs to {}, which had it first: choose another healthCheckNodePort or other nodes",
                resource.name_for_its_readers("resource", &other.key)
            ));
        }
    }
    None
}
