//! Rights: what operator, health checkers and node agents ask of the API server, as its audit log has it, beside what
//! they are granted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{bed::operator, host::images};

/// A fleet of simulated nodes that a scenario starts with the rights of `deploy/virtual-kubelet/fleet.yaml`: what it lacked would fail
/// there.
const FLEET: &str = "system:serviceaccount:virtual-kubelet:fleet";

/// Rights that scenarios need not show, with the reason.
const UNSEEN: [(&str, &str); 5] = [
    (
        "operator: update ingressdaemonsets.mumoshu.github.io/ingressdaemonsets/finalizers",
        "no request of its own: asked for when an object with blockOwnerDeletion is made; `ownership.rs` takes it away and sees",
    ),
    ("operator: get nodes", "only after a patch of a gate that came too late"),
    ("operator: get apps/controllerrevisions", "only when a revision's name is taken: by a process that died, or by somebody else"),
    ("operator: patch secrets ingress-daemonset-operator-webhook", "only when a certificate is two thirds through its life"),
    ("node-agent: get nodes", "only when the Node is there already, or after a conflict"),
];

/// What the API server writes down: requests of nodes and of `ServiceAccounts` that are not Kubernetes' own.
pub fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "None", "userGroups": ["system:serviceaccounts:kube-system"] },
            { "level": "Metadata", "userGroups": ["system:serviceaccounts", "system:nodes"] },
            { "level": "None" },
        ],
    })
}

/// Where the log is, below the bed's state.
pub fn audit_log(state: &Path) -> PathBuf {
    state.join("audit.log")
}

/// A new API server refuses everybody until it has read the roles. Scenarios wait so long for one that starts.
const ROLES_ARE_READ: TimeDelta = TimeDelta::minutes(3);

/// Notes that an API server starts now.
pub fn api_server_starts(state: &Path) -> Result<()> {
    let path = starts(state);
    let mut file = std::fs::File::options().create(true).append(true).open(&path).with_context(|| format!("opening {}", path.display()))?;
    writeln!(file, "{}", Utc::now().to_rfc3339()).with_context(|| format!("writing {}", path.display()))
}

/// When API servers were started, a line each.
fn starts(state: &Path) -> PathBuf {
    state.join("api-server-starts")
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The operator.
    Operator,
    /// A health checker; it may have any `ServiceAccount` of the user's namespace.
    HealthChecker,
    /// A node agent.
    NodeAgent,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operator => "operator",
            Self::HealthChecker => "health-checker",
            Self::NodeAgent => "node-agent",
        })
    }
}

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Use {
    role: Role,
    verb: String,
    group: String,
    /// With its subresource, as in a rule.
    resource: String,
    /// The object's name, where a rule may restrict it: leases, secrets, webhooks and roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.group.is_empty() { "" } else { "/" };
        write!(f, "{}: {} {}{separator}{}", self.role, self.verb, self.group, self.resource)?;
        self.name.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    user: User,
    #[serde(default)]
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    response_status: Option<Answer>,
    #[serde(rename = "requestReceivedTimestamp")]
    at: DateTime<Utc>,
}

#[derive(Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

/// What a scenario's bed was asked for.
#[derive(Debug, Default)]
pub struct Requests {
    /// Requests that were allowed.
    pub used: BTreeSet<Use>,
    /// Requests answered 403: who, what, and why.
    pub forbidden: BTreeMap<Request, String>,
    /// Who was allowed which verb on which resource of which namespace.
    allowed: BTreeSet<(String, String, String)>,
    /// When API servers were started.
    starts: Vec<DateTime<Utc>>,
}

/// One request: user, verb, and the path with its query.
type Request = (String, String, String);

/// Reads the audit log of a bed.
pub fn read(state: &Path) -> Result<Requests> {
    let path = audit_log(state);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let starts = std::fs::read_to_string(starts(state)).context("reading when the API server was started")?;
    let starts = starts.lines().map(str::parse).collect::<Result<_, _>>().context("reading when the API server was started")?;
    let mut requests = Requests { starts, ..Requests::default() };
    // A last line that is only half written is of a request after the scenario.
    for entry in text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok()) {
        requests.note(&entry);
    }
    Ok(requests)
}

impl Requests {
    /// Writes down what a scenario used, for [`check`].
    pub fn note_down(&self, scenario: &str) -> Result<()> {
        let path = directory().join(format!("{scenario}.json"));
        std::fs::create_dir_all(directory()).with_context(|| format!("creating {}", directory().display()))?;
        std::fs::write(&path, serde_json::to_vec_pretty(&self.used)?).with_context(|| format!("writing {}", path.display()))
    }

    /// What kubelets of Kubernetes ask for is no matter of this project.
    pub fn forget_nodes(&mut self) {
        self.used.retain(|one| one.role != Role::NodeAgent);
        self.forbidden.retain(|(user, ..), _| role(user) != Role::NodeAgent);
    }

    /// Fails when something was forbidden.
    pub fn expect_none_forbidden(&self) -> Result<()> {
        let forbidden: BTreeSet<_> =
            self.forbidden.iter().map(|((user, verb, uri), message)| format!("{user} {verb} {uri}: {message}")).collect();
        ensure!(forbidden.is_empty(), "requests were forbidden:\n{}", lines(&forbidden));
        Ok(())
    }

    fn note(&mut self, entry: &Entry) {
        if entry.user.username == FLEET {
            return;
        }
        let role = role(&entry.user.username);
        let answer = entry.response_status.as_ref();
        let request = (entry.user.username.clone(), entry.verb.clone(), entry.uri.clone());
        let resource = entry.object_ref.as_ref().map(|object| {
            let ObjectRef { api_group, resource, subresource, namespace, .. } = object;
            format!("{namespace}/{api_group}/{resource}/{subresource}")
        });
        let right = (entry.user.username.clone(), entry.verb.clone(), resource.unwrap_or_default());
        if let Some(answer) = answer.filter(|answer| answer.code == 403) {
            let is_new = self.starts.iter().any(|start| (TimeDelta::zero()..ROLES_ARE_READ).contains(&(entry.at - start)));
            // The Node authorizer decides for each object, and lags behind the pods that give a node its rights.
            if !((is_new || role == Role::NodeAgent) && self.allowed.contains(&right)) {
                self.forbidden.insert(request, answer.message.clone());
            }
            return;
        }
        self.allowed.insert(right);
        if role == Role::NodeAgent {
            // The Node authorizer learns a moment late of the pods that give a node its rights.
            self.forbidden.remove(&request);
        }
        // Without an object it is discovery or a health check, which everybody may ask for.
        let Some(object) = entry.object_ref.as_ref().filter(|object| !object.resource.is_empty()) else { return };
        let named = matches!(object.resource.as_str(), "leases" | "secrets" | "mutatingwebhookconfigurations");
        let name = (named && !object.name.is_empty() && role == Role::Operator).then(|| object.name.clone());
        let resource =
            if object.subresource.is_empty() { object.resource.clone() } else { format!("{}/{}", object.resource, object.subresource) };
        let used = Use { role, verb: entry.verb.clone(), group: object.api_group.clone(), resource, name };
        if entry.verb == "patch" && answer.is_some_and(|answer| answer.code == 201) {
            // Server-side apply of something new takes both.
            self.used.insert(Use { verb: "create".to_owned(), ..used.clone() });
        }
        self.used.insert(used);
    }
}

fn role(user: &str) -> Role {
    if user == operator::USER {
        Role::Operator
    } else if user.starts_with("system:node:") {
        Role::NodeAgent
    } else {
        Role::HealthChecker
    }
}

/// Compares what these scenarios used with what is granted. They must have run.
pub fn check(scenarios: &[&str]) -> Result<()> {
    let mut used = BTreeMap::new();
    let mut missing = Vec::new();
    for scenario in scenarios {
        match std::fs::read(directory().join(format!("{scenario}.json"))) {
            Ok(bytes) => {
                let requests: Vec<Use> = serde_json::from_slice(&bytes).with_context(|| format!("reading what {scenario} used"))?;
                used.extend(requests.into_iter().map(|one| (one, *scenario)));
            }
            Err(_) => missing.push(*scenario),
        }
    }
    ensure!(missing.is_empty(), "these scenarios have not run: {}", missing.join(", "));
    let granted = granted()?;
    let spare: BTreeSet<String> = granted
        .iter()
        .filter(|right| !used.keys().any(|one| grants(right, one)))
        .map(ToString::to_string)
        .filter(|right| !UNSEEN.iter().any(|(known, _)| known == right))
        .collect();
    let borrowed: BTreeSet<String> = used
        .iter()
        .filter(|(one, _)| !granted.iter().any(|right| grants(right, one)))
        .map(|(one, scenario)| format!("{one} ({scenario})"))
        .collect();
    println!("{} kinds of requests in {} scenarios, {} rights", used.len(), scenarios.len(), granted.len());
    if !spare.is_empty() || !borrowed.is_empty() {
        bail!("granted and used by no scenario:\n{}\nused and granted elsewhere:\n{}", lines(&spare), lines(&borrowed));
    }
    Ok(())
}

fn lines(texts: &BTreeSet<String>) -> String {
    texts.iter().flat_map(|text| ["  ", text, "\n"]).collect()
}

/// Forgets what scenarios used that have run.
pub fn forget() -> Result<()> {
    match std::fs::remove_dir_all(directory()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context("forgetting what former scenarios used"),
        _ => Ok(()),
    }
}

fn directory() -> PathBuf {
    images::repository().join("target/bed/rights")
}

/// A right without a name is for all names.
fn grants(right: &Use, one: &Use) -> bool {
    let same = |right: &Use, one: &Use| {
        (right.role, &right.verb, &right.group, &right.resource) == (one.role, &one.verb, &one.group, &one.resource)
    };
    same(right, one) && (right.name.is_none() || right.name == one.name)
}

/// What `deploy/` grants, and what a node agent says it needs.
fn granted() -> Result<BTreeSet<Use>> {
    let mut granted = BTreeSet::new();
    for (file, named) in [("deploy/10-rbac.yaml", true), ("deploy/optional/legacy-configmap.yaml", false)] {
        let path = images::repository().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for object in serde_saphyr::from_multiple::<Value>(&text).context("reading the rights")? {
            let is_operator = object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("ingress-daemonset-operator"));
            let role = if is_operator { Role::Operator } else { Role::HealthChecker };
            if matches!(object["kind"].as_str(), Some("ClusterRole" | "Role")) {
                let mut rules: Vec<PolicyRule> = serde_json::from_value(object["rules"].clone()).context("reading the rules")?;
                // Which names there are is the user's choice.
                rules.iter_mut().filter(|_| !named).for_each(|rule| rule.resource_names = None);
                granted.extend(rules.iter().flat_map(|rule| rights(role, rule)));
            }
        }
    }
    granted.extend(node_agent()?);
    Ok(granted)
}

fn rights(role: Role, granted: &PolicyRule) -> Vec<Use> {
    let names: Vec<_> = match granted.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().cloned().map(Some).collect(),
    };
    let mut rights = Vec::new();
    for group in granted.api_groups.iter().flatten() {
        for resource in granted.resources.iter().flatten() {
            for verb in &granted.verbs {
                let right = |name: &Option<String>| Use {
                    role,
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.clone(),
                };
                rights.extend(names.iter().map(right));
            }
        }
    }
    rights
}

/// The table of `virtual-kubelet/README.md`: `| group/resource | verbs |`.
fn node_agent() -> Result<Vec<Use>> {
    let path = images::repository().join("virtual-kubelet/README.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let section = text.split("## Rights").nth(1).context("virtual-kubelet/README.md has no section `Rights`")?;
    let rows = section.lines().skip(1).take_while(|line| !line.starts_with("## ")).filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let resource = cells.next()?.trim().trim_matches('`');
        Some((resource.to_owned(), cells.next()?.trim().to_owned()))
    });
    let mut rights = Vec::new();
    for (resource, verbs) in rows {
        // Groups have dots, unless it is the core or apps.
        let (group, resource) = match resource.split_once('/') {
            Some((group, rest)) if group.contains('.') => (group.to_owned(), rest.to_owned()),
            _ => (String::new(), resource),
        };
        let right =
            |verb: &str| Use { role: Role::NodeAgent, verb: verb.to_owned(), group: group.clone(), resource: resource.clone(), name: None };
        rights.extend(verbs.split(", ").map(right));
    }
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str, verb: &str, object: &Value, code: u16) -> Entry {
        let entry = json!({
            "verb": verb, "requestURI": "/apis/x", "user": { "username": user }, "objectRef": object,
            "responseStatus": { "code": code, "message": "no" }, "requestReceivedTimestamp": "2026-01-01T00:02:00.000000Z",
        });
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn requests_are_told_apart_by_user_and_answer() {
        let mut requests = Requests::default();
        let lease = json!({ "apiGroup": "coordination.k8s.io", "resource": "leases", "name": "l", "namespace": "n" });
        requests.note(&entry(operator::USER, "update", &lease, 200));
        requests.note(&entry("system:node:n1", "update", &lease, 409));
        requests.note(&entry("system:serviceaccount:default:health-checker-1", "list", &json!({ "resource": "pods" }), 403));
        let told: Vec<_> = requests.used.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["operator: update coordination.k8s.io/leases l", "node-agent: update coordination.k8s.io/leases"]);
        assert_eq!(requests.forbidden.len(), 1);
    }

    #[test]
    fn a_lagging_authorizer_excuses_node_agents_and_new_api_servers() {
        let mut requests = Requests::default();
        for user in ["system:node:n1", operator::USER] {
            for code in [403, 200] {
                requests.note(&entry(user, "get", &json!({ "resource": "configmaps", "name": "c" }), code));
            }
        }
        assert_eq!(requests.forbidden.keys().map(|(user, ..)| user.as_str()).collect::<Vec<_>>(), [operator::USER]);
        let forbidden_after = |requests: &mut Requests, start: &str| {
            requests.forbidden.clear();
            requests.starts = vec![start.parse().unwrap()];
            requests.note(&entry(operator::USER, "get", &json!({ "resource": "configmaps", "name": "c" }), 403));
            requests.forbidden.len()
        };
        assert_eq!(forbidden_after(&mut requests, "2025-12-31T23:50:00Z"), 1, "what was allowed before is forbidden now");
        assert_eq!(forbidden_after(&mut requests, "2026-01-01T00:01:30Z"), 0, "it was allowed before: the API server is new");
        requests.note(&entry(operator::USER, "get", &json!({ "resource": "configmaps", "name": "c", "namespace": "other" }), 403));
        assert_eq!(requests.forbidden.len(), 1, "in another namespace");
    }

    #[test]
    fn a_right_for_a_name_is_not_one_for_another() {
        let rule = PolicyRule {
            api_groups: Some(vec!["g".into()]),
            resources: Some(vec!["things".into()]),
            resource_names: Some(vec!["a".into(), "b".into()]),
            verbs: vec!["get".into(), "update".into()],
            ..PolicyRule::default()
        };
        let rights = rights(Role::Operator, &rule);
        assert_eq!(rights.len(), 4);
        let asked = |name: &str| Use { name: Some(name.into()), ..rights[0].clone() };
        assert!(grants(&rights[0], &asked("a")) && !grants(&rights[0], &asked("c")));
    }

    #[test]
    fn the_node_agents_manifest_grants_what_its_readme_says() {
        let path = images::repository().join("deploy/virtual-kubelet/rbac.yaml");
        let objects = serde_saphyr::from_multiple::<Value>(&std::fs::read_to_string(path).unwrap()).unwrap();
        let rules = objects.iter().filter(|object| object["rules"].is_array()).flat_map(|object| object["rules"].as_array().unwrap());
        let rules = rules.map(|rule| serde_json::from_value::<PolicyRule>(rule.clone()).unwrap());
        let in_manifest: BTreeSet<_> = rules.flat_map(|rule| super::rights(Role::NodeAgent, &rule)).collect();
        // Serving certificates are signed for `system:node:<name>` only, who needs no manifest.
        let said = node_agent().unwrap().into_iter().filter(|right| right.resource != "certificatesigningrequests");
        let lines = |rights: BTreeSet<Use>| rights.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(lines(in_manifest), lines(said.collect()));
    }

    #[test]
    fn the_rights_in_the_repository_can_be_read() {
        let granted = granted().unwrap();
        for role in [Role::Operator, Role::HealthChecker, Role::NodeAgent] {
            assert!(granted.iter().any(|right| right.role == role), "{role}");
        }
        for (known, _) in UNSEEN {
            assert!(granted.iter().any(|right| right.to_string() == known), "`{known}` is not granted");
        }
    }
}
