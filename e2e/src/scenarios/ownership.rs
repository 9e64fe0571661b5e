//! Rights that no request of the operator shows: one is asked for inside the API server, when an owner reference blocks deletion; others an
//! optional policy bounds, and the account that a resource names has its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::IngressDaemonSet;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::{
    auditor::Expectations,
    bed::{Bed, Options, operator},
    cluster::{product, workload},
    eventually::eventually,
    host::images,
    load::{LoadOptions, Traffic},
    scenario::Scenario,
};

/// Owner references that block deletion need the right to set finalizers, which is taken away here.
pub const NEEDS_FINALIZERS: Scenario = Scenario {
    name: "blocking_owner_references_need_the_right_to_set_finalizers",
    options: || Options::default().with_infra(),
    expected: || Expectations::budget(0),
    body: |bed| Box::pin(needs_finalizers(bed)),
};

async fn needs_finalizers(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    let mut deployment = workload::deployment("default", "n1", 0);
    deployment["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet", "name": "edge", "uid": "0a1b2c3d",
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let file = bed.state().join("owned.json");
    tokio::fs::write(&file, deployment.to_string()).await.with_context(|| format!("writing {}", file.display()))?;
    let file = file.to_string_lossy().into_owned();
    let as_operator = format!("--as={}", operator::USER);
    let create = ["create", "--dry-run=server", &as_operator, "-f", &file];
    bed.kubectl(&create).await.context("with every right that deploy/ grants")?;
    let role: Value = serde_json::from_str(&bed.kubectl(&["get", "clusterrole", operator::NAME, "-o", "json"]).await?)?;
    let mut rules = role["rules"].as_array().cloned().context("a role has rules")?;
    let before = rules.len();
    rules.retain(|rule| rule["resources"] != json!(["ingressdaemonsets/finalizers"]));
    ensure!(rules.len() + 1 == before, "one rule is about finalizers: {role}");
    let patch = json!({ "rules": rules }).to_string();
    bed.kubectl(&["patch", "clusterrole", operator::NAME, "--type=merge", "-p", &patch]).await?;
    eventually(Duration::from_mins(1), "the Deployment is refused", async || match bed.kubectl(&create).await {
        Ok(_) => anyhow::bail!("it is accepted"),
        Err(error) => {
            ensure!(error.to_string().contains("cannot set blockOwnerDeletion"), "{error:#}");
            Ok(())
        }
    })
    .await
}

/// The operator does its work under the optional policy, and nobody else can do anything with its identity.
pub const BOUND: Scenario = Scenario {
    name: "the_optional_policy_permits_exactly_the_work_of_the_operator",
    options: || Options::with_nodes(2).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(bound(bed)),
};

const ALLOWED: &str = "ingressdaemonsets.mumoshu.github.io/operator=allowed";
const ELSEWHERE: &str = "elsewhere";
const MINUTE: Duration = Duration::from_mins(1);

async fn bound(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bed.kubectl(&["create", "namespace", ELSEWHERE]).await?;
    bed.kubectl(&["label", "namespace", "default", ALLOWED]).await?;
    bed.apply_path("deploy/optional/operator-policy.yaml").await?;
    eventually(MINUTE, "the policy is in force", async || denied(bed, &["create"], &workload::deployment("default", "n1", 0)).await)
        .await?;
    // Pods and ReplicaSets are written, too.
    let mut strategy = product::rolling_update(1, product::deployment_mark());
    strategy["rollingUpdate"]["podUpdate"] = "InPlaceIfPossible".into();
    product::serve_installed(bed, product::resource("1", &strategy), &["n1", "n2"]).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await?;
    let mut relabelled = product::template("2");
    relabelled["metadata"]["annotations"] = json!({ "example.com/color": "blue" });
    product::change(bed, json!({ "template": relabelled })).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await.context("in place")?;
    bed.say("the product serves, and was updated with new pods and in place");
    can_do_nothing_else(bed).await?;
    bed.kubectl(&["delete", "ids", product::NAME, "--timeout=180s"]).await.context("it takes away what it has made")?;
    bed.kubectl(&["delete", "-f", &images::repository().join("deploy/optional/operator-policy.yaml").to_string_lossy()]).await.map(drop)
}

/// What somebody might do who has the token.
async fn can_do_nothing_else(bed: &Bed) -> Result<()> {
    let (mine, checker) = ("ingress-daemonset-health-checker-0a1b2c3d", "health-checker-0a1b2c3d");
    let (nodes, pods) = ("ingress-daemonset-health-checker-nodes", "ingress-daemonset-health-checker");
    let account = |name: &str| json!({ "kind": "ServiceAccount", "name": name, "namespace": "default" });
    let user = json!({ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "somebody" });
    for refused in [
        workload::deployment("default", "n1", 0),
        owned(workload::deployment("kube-system", "n1", 0)),
        owned(workload::deployment(ELSEWHERE, "n1", 0)),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "own", "namespace": "default" },
            "spec": { "containers": [{ "name": "c", "image": "busybox:1.36" }] },
        }),
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "own", "namespace": "default" } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "own", "namespace": "default" } }),
        // Rights that the operator has itself, so that Kubernetes lets it bind them.
        binding("ClusterRoleBinding", "own", nodes, &account(checker)),
        binding("ClusterRoleBinding", mine, nodes, &account("default")),
        binding("ClusterRoleBinding", mine, nodes, &user),
        binding("ClusterRoleBinding", mine, operator::NAME, &account(checker)),
        owned(binding("RoleBinding", checker, operator::NAME, &account(checker))),
        owned(binding("RoleBinding", checker, pods, &account("default"))),
    ] {
        denied(bed, &["create"], &refused).await?;
    }
    let said = refusal(bed, &["create"], &binding("ClusterRoleBinding", mine, "cluster-admin", &account(checker))).await?;
    ensure!(said.contains("is attempting to grant RBAC permissions not currently held"), "without any policy: {said}");
    let edited = json!({
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
        "metadata": { "name": product::NAME, "namespace": "default" }, "spec": { "podsPerNode": 3 },
    });
    denied(bed, &["apply", "--server-side", "--force-conflicts", "--validate=false"], &edited).await?;
    let as_operator = format!("--as={}", operator::USER);
    for (arguments, what) in [
        (&["delete", "deployment", operator::NAME, "-n", "ingress-daemonset-system"][..], "a Deployment of somebody else"),
        (&["patch", "deployment", "edge-n1", "--type=json", "-p", r#"[{"op":"remove","path":"/metadata/ownerReferences"}]"#], "its owner"),
    ] {
        let all = [arguments, &["--dry-run=server", &as_operator]].concat();
        let said = bed.kubectl(&all).await.err().with_context(|| format!("the operator's identity may change {what}"))?;
        ensure!(format!("{said:#}").contains(POLICY), "{what}: {said:#}");
    }
    bed.say("its identity can write nothing else");
    Ok(())
}

fn owned(mut object: Value) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet", "name": "edge", "uid": "0a1b2c3d",
        "controller": true,
    }]);
    object
}

fn binding(kind: &str, name: &str, role: &str, subject: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role }, "subjects": [subject],
    });
    if kind == "RoleBinding" {
        object["metadata"]["namespace"] = "default".into();
    }
    object
}

/// What the API server names when the policy denies a request.
const POLICY: &str = "ValidatingAdmissionPolicy 'ingress-daemonset-operator'";

/// The policy denies this to the operator's identity.
async fn denied(bed: &Bed, command: &[&str], object: &Value) -> Result<()> {
    let said = refusal(bed, command, object).await?;
    ensure!(said.contains(POLICY), "{} {}: {said}", object["kind"], object["metadata"]["name"]);
    Ok(())
}

/// Why the API server refuses an object to the operator's identity.
async fn refusal(bed: &Bed, command: &[&str], object: &Value) -> Result<String> {
    let file = bed.state().join("refused.json");
    tokio::fs::write(&file, object.to_string()).await.with_context(|| format!("writing {}", file.display()))?;
    let (file, as_operator) = (file.to_string_lossy().into_owned(), format!("--as={}", operator::USER));
    let arguments = [command, &["--dry-run=server", &as_operator, "-f", &file]].concat();
    match bed.kubectl(&arguments).await {
        Ok(_) => anyhow::bail!("the operator's identity may write {object}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

/// The resource names an account for its health checkers. The operator does not bind it and reports what the account lacks until somebody
/// binds it.
pub const NAMED_ACCOUNT: Scenario = Scenario {
    name: "rights_that_a_named_account_lacks_are_reported_not_given",
    options: || Options::with_nodes(2).with_infra(),
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(named_account(bed)),
};

async fn named_account(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bed.kubectl(&["create", "serviceaccount", "checker"]).await?;
    let mut resource = product::resource("1", &product::rolling_update(1, product::deployment_mark()));
    resource["spec"]["healthChecker"] = json!({ "serviceAccountName": "checker" });
    bed.apply(&[workload::config_map("default"), resource]).await?;
    let status = product::status_says(bed, "rights are missing", product::SAID, |status| {
        product::has_condition(status, "HealthCheckersReady", "False", "ServiceAccountLacksRights")
    })
    .await?;
    let said = status.conditions.into_iter().find(|condition| condition.type_ == "HealthCheckersReady").context("no condition")?;
    bed.say(&said.message);
    for right in ["list deployments.apps", "watch pods", "list nodes"] {
        ensure!(said.message.contains(right), "{right} is missing: {}", said.message);
    }
    let bindings = bed.kubectl(&["get", "rolebindings,clusterrolebindings", "-A", "-o", "jsonpath={.items[*].subjects[*].name}"]).await?;
    ensure!(!bindings.split_whitespace().any(|name| name == "checker"), "{bindings}");
    for (kind, role) in
        [("rolebinding", "ingress-daemonset-health-checker"), ("clusterrolebinding", "ingress-daemonset-health-checker-nodes")]
    {
        bed.kubectl(&["create", kind, "checker", &format!("--clusterrole={role}"), "--serviceaccount=default:checker"]).await?;
    }
    bed.haproxy.serves(MINUTE * 3, &["n1", "n2"]).await?;
    product::is_complete(bed, 2, product::ROLLED_OUT).await
}

/// A namespace loses the permission to let health checkers read Nodes. A node that departs is detached all the same.
pub const NODE_READERS: Scenario = Scenario {
    name: "replaced_health_checkers_lose_the_right_to_read_nodes",
    options: product::four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(node_readers(bed)),
};

async fn node_readers(bed: &mut Bed) -> Result<()> {
    const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
    product::serve(bed, product::rolling_update(1, product::deployment_mark()), &NODES).await?;
    let uid = Api::<IngressDaemonSet>::default_namespaced(bed.client.clone()).get(product::NAME).await?.metadata.uid.context("no UID")?;
    let account = format!("system:serviceaccount:default:health-checker-{}", crds::names::uid8(&uid));
    ensure!(may_list_nodes(bed, &account).await?, "health checkers of a namespace that is allowed to read Nodes");
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let deployment = format!("deployment/{}", operator::NAME);
    // In a bed a pod of the operator cannot listen beside another one on the same node.
    let strategy = r#"{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}"#;
    bed.kubectl(&["patch", &deployment, "-n", operator::NAMESPACE, "--type=merge", "-p", strategy]).await?;
    bed.kubectl(&["set", "env", &deployment, "-n", operator::NAMESPACE, "ALLOWED_NODE_READERS=another"]).await?;
    eventually(MINUTE * 3, "the account may not list Nodes", async || {
        ensure!(!may_list_nodes(bed, &account).await?, "it may");
        Ok(())
    })
    .await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("the health checkers were replaced, lost the right, and take nodes out and in as before");
    bed.kubectl(&["taint", "node", "n4", &format!("{}=now:NoSchedule", crds::names::DEPARTURE_TAINTS[0])]).await?;
    bed.haproxy.serves(MINUTE, &NODES[..3]).await?;
    bed.say("a node that an autoscaler takes was taken out by the operator");
    traffic.all_served(bed).await
}

async fn may_list_nodes(bed: &Bed, user: &str) -> Result<bool> {
    is_allowed(bed, user, &json!({ "verb": "list", "resource": "nodes" })).await
}

/// Whether the API server lets a user do what these attributes of a `SubjectAccessReview` say.
pub(super) async fn is_allowed(bed: &Bed, user: &str, attributes: &Value) -> Result<bool> {
    let asks = json!({ "spec": { "user": user, "resourceAttributes": attributes } });
    let reviews = Api::<SubjectAccessReview>::all(bed.client.clone());
    let answer = reviews.create(&PostParams::default(), &serde_json::from_value(asks)?).await?;
    Ok(answer.status.context("no answer")?.allowed)
}
