//! What `deploy/` says of security; that the API server enforces it is seen in every scenario.

use crate::repository;
use anyhow::{Context, Result, anyhow};
use mlua::LuaSerdeExt as _;
use serde_json::{Value, json};

fn objects(file: &str) -> Result<Vec<Value>> {
    let path = repository().join("deploy").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("reading {}", path.display()))
}

#[test]
fn the_operators_namespace_enforces_the_restricted_profile() {
    let namespace = &objects("00-namespace.yaml").unwrap()[0];
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn the_operators_pods_give_up_every_privilege() {
    let objects = objects("20-operator.yaml").unwrap();
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    for field in ["hostNetwork", "hostPID", "hostIPC", "volumes", "initContainers"] {
        assert_eq!(pod[field], Value::Null, "{field}");
    }
    assert_eq!(pod["securityContext"], json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } }));
    for container in pod["containers"].as_array().unwrap() {
        let wanted = json!({ "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] } });
        assert_eq!(container["securityContext"], wanted, "{}", container["name"]);
        assert!(container["ports"].as_array().into_iter().flatten().all(|port| port["hostPort"].is_null()), "{}", container["name"]);
    }
}

#[test]
fn no_right_is_for_everything() {
    for object in objects("10-rbac.yaml").unwrap() {
        for rule in object["rules"].as_array().into_iter().flatten() {
            for field in ["apiGroups", "resources", "verbs"] {
                assert!(rule[field].as_array().is_some_and(|all| !all.is_empty() && !all.contains(&"*".into())), "{rule}");
            }
            let verbs = rule["verbs"].as_array().into_iter().flatten();
            assert!(verbs.clone().all(|verb| !["escalate", "bind", "impersonate"].iter().any(|word| verb == word)), "{rule}");
        }
    }
}

/// The script that Argo CD has for objects of the kind.
fn argo_cd_script(kind: &str) -> Result<String> {
    let keys = &objects("optional/argocd-health.yaml")?[0]["data"];
    let script = keys[format!("resource.customizations.health.ingressdaemonsets.mumoshu.github.io_{kind}")].as_str();
    Ok(script.context("no key for the kind")?.to_owned())
}

/// What a script of Argo CD returns for an object.
fn evaluated(script: &str, object: &Value) -> mlua::Result<Value> {
    let lua = mlua::Lua::new();
    lua.globals().set("obj", lua.to_value(object)?)?;
    lua.from_value(lua.load(script).eval()?)
}

/// What Argo CD shows of an object of the kind: a word, and a message.
fn argo_cd_shows(kind: &str, object: &Value) -> Result<String> {
    let health = evaluated(&argo_cd_script(kind)?, object).map_err(|error| anyhow!("{error}"))?;
    let [word, message] = ["status", "message"].map(|field| health[field].as_str().unwrap_or_default());
    Ok(format!("{word}: {message}"))
}

#[test]
fn argo_cd_shows_what_the_conditions_say() {
    for kind in ["NodeReadinessGate", "PodReadinessGate"] {
        assert_eq!(argo_cd_script(kind).unwrap(), argo_cd_script("IngressDaemonSet").unwrap(), "their conditions say it in the same way");
    }
    let health = |object: Value| argo_cd_shows("IngressDaemonSet", &object).unwrap();
    let with = |observed: u8, conditions: &[(&str, &str, &str)]| {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(type_, status, reason)| json!({ "type": type_, "status": status, "reason": reason, "message": format!("{type_} {reason}") }))
            .collect();
        health(json!({ "metadata": { "generation": 2 }, "status": { "observedGeneration": observed, "conditions": conditions } }))
    };
    let unseen = "Progressing: the operator has not looked at the resource yet";
    assert_eq!(health(json!({ "metadata": { "generation": 1 } })), unseen);
    assert_eq!(health(json!({ "metadata": { "generation": 1 }, "status": { "observedGeneration": -1 } })), unseen);
    assert_eq!(with(1, &[("Ready", "True", "Complete")]), unseen, "an earlier spec was ready");
    assert_eq!(with(2, &[("Valid", "True", "Accepted"), ("Ready", "True", "Complete")]), "Healthy: Ready Complete");
    assert_eq!(with(2, &[("Ready", "False", "RollingOut"), ("Reconciling", "True", "RollingOut")]), "Progressing: Ready RollingOut");
    // The operator's own words: the guide names each, and is compared with the code.
    let guide = std::fs::read_to_string(repository().join("docs/operations.md")).unwrap();
    let script = argo_cd_script("IngressDaemonSet").unwrap();
    let suspended = script.lines().find(|line| line.contains("local suspended")).unwrap();
    let reasons: Vec<_> =
        suspended.split(['{', ',']).filter_map(|part| part.trim().split_once(" = true")).map(|(reason, _)| reason).collect();
    assert_eq!(reasons.len(), 3, "{suspended}");
    for reason in reasons {
        assert!(guide.contains(&format!("| `{reason}` |")), "the operator never says {reason}");
        let shown = with(2, &[("Ready", "False", reason), ("Reconciling", "True", reason)]);
        assert_eq!(shown, format!("Suspended: Ready {reason}"));
    }
    assert_eq!(with(2, &[("Ready", "False", "RolledBack"), ("Stalled", "True", "RolledBack")]), "Degraded: Stalled RolledBack");
}
