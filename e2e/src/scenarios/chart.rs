//! The product as Helm installs it.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use crds::token::Phase;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, ResourceExt as _,
    api::{EvictParams, ListParams},
};

use crate::{
    auditor::Expectations,
    bed::{
        Bed, INFRA_LABEL, Options, control_plane,
        operator::{self, NAMESPACE},
        owner_references_are_known,
    },
    cluster::{
        guide::{Guide, HELM_PROGRAM},
        product::{self, deployment_mark, four_nodes, rolling_update},
        workload,
    },
    eventually::{eventually, throughout},
    host::{images, namespaces, process},
    load::{LoadOptions, Traffic},
    scenario::Scenario,
    scenarios::outages::shows,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Name of the release.
const RELEASE: &str = "ingress-daemonset";
/// CRDs of the Prometheus Operator for what the chart has for it.
const MONITORING: &str = "target/bed/monitoring";
const KUBECONFORM: &str = "target/bed/kubeconform";
/// How long what serves is watched without an operator.
const WITHOUT: Duration = Duration::from_secs(10);

/// How long a node is out whose health checker was deleted, and how long an operator takes to end.
const SERVES_AGAIN: Duration = Duration::from_mins(1);

/// `helm install`, `upgrade`, `rollback`, `uninstall` and `install` again: pods serve on without the operator.
pub const HELM: Scenario = Scenario {
    name: "helm_installs_upgrades_rolls_back_and_uninstalls_while_pods_serve",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(helm_installs(bed)),
};

/// Helm deletes no definition while a resource is left; the guide's commands remove everything.
pub const REFUSED: Scenario = Scenario {
    name: "helm_keeps_definitions_in_use_and_documented_commands_remove_everything",
    options: four_nodes,
    // In the end all nodes go at once.
    expected: || Expectations::budget(4),
    body: |bed| Box::pin(refused(bed)),
};

async fn refused(bed: &mut Bed) -> Result<()> {
    let apply = async |command: &str, more: &[&str]| apply_chart(bed, command, RELEASE, more).await;
    apply("install", &["--create-namespace", "--set=crds.keep=false"]).await?;
    owner_references_are_known(&bed.control_plane, bed.state()).await?;
    product::serve_installed(bed, product::resource("1", &rolling_update(1, deployment_mark())), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    let refused = apply("upgrade", &["--set=crds.install=false"]).await.err().context("an upgrade deleted the definitions")?;
    ensure!(format!("{refused:#}").contains("crds.keep=true first"), "{refused:#}");
    let refused = helm(bed, &["uninstall", RELEASE, "--timeout=3m"]).await.err().context("the definitions were deleted")?;
    for word in ["Nothing is uninstalled", "default/edge", "helm rollback"] {
        ensure!(format!("{refused:#}").contains(word), "no {word:?}: {refused:#}");
    }
    bed.say("both were refused");

    // As the refusal says.
    helm(bed, &["rollback", RELEASE, "1", "--wait", "--timeout=3m"]).await?;
    apply("upgrade", &["--set=crds.keep=true"]).await?;
    apply("upgrade", &["--set=crds.install=false"]).await?;
    product::roll_to(bed, "2").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    bed.say("the release keeps the definitions now, and then has none");

    bed.kubectl(&["delete", "ids", "--all", "-A"]).await?;
    let guide = Guide::in_file(bed, "docs/operations.md", Some("Uninstall with Helm"), &NODES)?;
    guide.run_all().await?;
    guide.shell(guide.says("kubectl delete namespace ingress-daemonset-system")?).await?;
    let left =
        bed.kubectl(&["get", "crds,clusterroles,clusterrolebindings,namespaces,mutatingwebhookconfigurations", "-o", "name"]).await?;
    let ours: Vec<_> = left.lines().filter(|name| name.contains("ingress-daemonset") || name.contains("mumoshu")).collect();
    ensure!(ours.is_empty(), "still there: {ours:?}");
    bed.say("nothing is left");
    Ok(())
}

/// The other two ways of the guide to install it, and the way from one of them to Helm.
pub const PLAIN: Scenario = Scenario {
    name: "plain_manifests_move_to_helm_and_kustomize_as_documented",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(plain(bed)),
};

/// What a registry that needs a login asks for, and the guide's own command of Helm.
pub const LOGIN: Scenario = Scenario {
    name: "registry_secrets_of_the_guide_reach_operator_and_health_checkers",
    options: || Options::with_nodes(1).with_infra(),
    expected: Expectations::default,
    body: |bed| Box::pin(login(bed)),
};

async fn login(bed: &mut Bed) -> Result<()> {
    let nodes = &NODES[..1];
    let section = |file: &str, heading: &str| Guide::in_file(bed, file, Some(heading), nodes);
    let secrets = section("docs/install.md", "Registries that need a login")?;
    secrets.run_all().await?;
    let flag = secrets.says("--set 'imagePullSecrets[0].name=registry'")?;
    let [install, label] =
        <[String; 2]>::try_from(section("docs/install.md", "Install with Helm")?.commands()).ok().context("two commands are known")?;
    secrets.shell(&format!("{} {flag} --wait --timeout=3m", install.replace("registry.example.com/", images::PUSHED))).await?;
    secrets.shell(&label).await?;
    owner_references_are_known(&bed.control_plane, bed.state()).await?;
    let example = section("README.md", "First example")?;
    let field = secrets.says("healthChecker: {imagePullSecrets: [{name: registry}]}")?;
    example.write_example("edge.yaml", |text| text.replacen("\nspec:\n", &format!("\nspec:\n  {field}\n"), 1))?;
    example.run_all_as(|command| command.replace("n1 n2 n3 n4", &nodes.join(" "))).await?;
    product::is_complete(bed, nodes.len(), product::ROLLED_OUT).await?;
    let path = "jsonpath={.items[*].spec.imagePullSecrets[*].name}";
    for (namespace, label) in
        [(NAMESPACE, "app.kubernetes.io/name=ingress-daemonset-operator"), ("default", crds::names::HEALTH_CHECKER_LABEL)]
    {
        let named = bed.kubectl(&["get", "pods", "-l", label, "-n", namespace, "-o", path]).await?;
        ensure!(!named.trim().is_empty() && named.split_whitespace().all(|name| name == "registry"), "{label} has {named}");
        bed.kubectl(&["get", "secret", "registry", "-n", namespace]).await?;
    }
    bed.say("both have the Secret");
    Ok(())
}

async fn plain(bed: &mut Bed) -> Result<()> {
    let section = |heading: &str| Guide::in_file(bed, "docs/install.md", Some(heading), &NODES);
    section("Install with plain manifests")?.run_all().await?;
    owner_references_are_known(&bed.control_plane, bed.state()).await?;
    bed.deployment_available(NAMESPACE, operator::NAME).await?;
    product::serve_installed(bed, product::resource("1", &rolling_update(1, deployment_mark())), &NODES).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;

    one_pod_at_a_time_is_evicted(bed).await?;
    product::roll_to(bed, "2").await?;
    let node = shows(bed, Phase::Claimed).await?;
    bed.say(&format!("{node} is claimed; what plain manifests installed moves to Helm"));
    let moves = section("Move from plain manifests to Helm")?;
    // Another registry than in the manifests: Helm takes these fields from kubectl.
    let registry = images::PUSHED;
    let values = format!("image: {{repository: {registry}operator}}\nhealthChecker: {{image: {{repository: {registry}health-checker}}}}\n");
    moves.write("YOUR-VALUES.yaml", &values)?;
    moves.run_all().await?;
    bed.deployment_available(NAMESPACE, operator::NAME).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    // It changes a field that the manifests set, too.
    let upgrade = ["upgrade", RELEASE, "deploy/chart", "--values=YOUR-VALUES.yaml", "--set=logLevel=operator=debug"].join(" ");
    moves.shell(&format!("helm {upgrade} --namespace {NAMESPACE} --wait --timeout=3m")).await.context("an upgrade after the move")?;
    ensure!(arguments_of_the_operator(bed).await?.contains("--log-level=operator=debug"), "the operator was not changed");
    product::roll_to(bed, "3").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("Helm upgrades what it took over");

    helm(bed, &["uninstall", RELEASE, "--wait", "--timeout=3m"]).await?;
    let kustomize = section("Install with kustomize")?;
    kustomize.write_example("edge-operator/kustomization.yaml", |text| text.replace("registry.example.com/", registry))?;
    kustomize.run_all_as(|command| command.replace("FOLDER", "edge-operator")).await?;
    bed.deployment_available(NAMESPACE, operator::NAME).await?;
    product::roll_to(bed, "4").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    bed.say("what kustomize installed rolls out");
    traffic.all_served(bed).await
}

/// As by drains of the nodes of both operators at once.
async fn one_pod_at_a_time_is_evicted(bed: &Bed) -> Result<()> {
    let budgets = Api::<PodDisruptionBudget>::namespaced(bed.client.clone(), NAMESPACE);
    eventually(product::SAID, "the operator's budget allows one eviction", async || {
        let status = budgets.get(operator::NAME).await?.status.context("no status")?;
        ensure!((status.expected_pods, status.disruptions_allowed) == (Some(2), Some(1)), "{status:?}");
        Ok(())
    })
    .await?;
    let kubeconfig = std::fs::read_to_string(bed.control_plane.admin_kubeconfig()).context("reading the admin's kubeconfig")?;
    // A client that asks again would be let through as soon as the first pod is replaced.
    let client = control_plane::client_without_retry(&serde_json::from_str(&kubeconfig)?).await?;
    let pods = Api::<Pod>::namespaced(client, NAMESPACE);
    let all = pods.list(&ListParams::default().labels(&format!("app.kubernetes.io/name={}", operator::NAME))).await?.items;
    let [first, second] = <[Pod; 2]>::try_from(all).ok().context("two pods of the operator are known")?;
    pods.evict(&first.name_any(), &EvictParams::default()).await.context("evicting the first pod")?;
    let refused = pods.evict(&second.name_any(), &EvictParams::default()).await.err().context("both pods were evicted")?;
    let refused = refused.to_string();
    ensure!(refused.contains("disruption budget") && refused.contains("429"), "{refused}");
    bed.deployment_available(NAMESPACE, operator::NAME).await?;
    bed.say("one pod of the operator was evicted and replaced, the other one not");
    Ok(())
}

/// Finds jq, which a command of the guide needs.
pub fn find_jq() -> Result<()> {
    let found = namespaces::find_program("jq");
    found.map(drop).context("jq is not installed: `.ci/deps soak` installs it, or as root: apt-get install --no-install-recommends jq")
}

/// The commands of the guide that wait, after an installation and after a change.
pub const WAITS: Scenario = Scenario {
    name: "helm_kubectl_and_plugin_wait_until_a_rollout_is_complete",
    options: four_nodes,
    expected: || Expectations::budget(1),
    body: |bed| Box::pin(waits(bed)),
};

async fn waits(bed: &mut Bed) -> Result<()> {
    bed.install().await?;
    bed.apply(&[workload::config_map("default")]).await?;
    let guide = Guide::in_file(bed, "docs/rollouts.md", Some("Wait for the end of a rollout"), &NODES)?;
    let [helm, kubectl, plugin] = <[String; 3]>::try_from(guide.commands()).ok().context("three commands are known")?;
    let does_not_wait = helm.replace(" --wait", "");
    rolls_out(bed, &guide, "1", &[&helm]).await?;
    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    rolls_out(bed, &guide, "2", &[&helm]).await?;
    rolls_out(bed, &guide, "3", &[&does_not_wait, &kubectl]).await?;
    rolls_out(bed, &guide, "4", &[&does_not_wait, &plugin]).await?;
    traffic.all_served(bed).await
}

/// When these commands have ended, so has the rollout of a version, which the first of them begins.
async fn rolls_out(bed: &Bed, guide: &Guide, version: &str, commands: &[&str]) -> Result<()> {
    guide.write("edge/Chart.yaml", "apiVersion: v2\nname: edge\nversion: 1.0.0\n")?;
    let resource = product::resource(version, &rolling_update(1, deployment_mark()));
    guide.write("edge/templates/edge.yaml", &resource.to_string())?;
    for (index, command) in commands.iter().enumerate() {
        guide.shell(command).await?;
        if index + 1 < commands.len() {
            let made = product::api(bed).get(product::NAME).await?;
            ensure!(!product::has_ended(&made, NODES.len()), "the rollout was over before anybody waited for it");
        }
    }
    let made = product::api(bed).get(product::NAME).await?;
    ensure!(made.spec.template == product::template(version), "it has another template than version {version}: {}", made.spec.template);
    ensure!(product::has_ended(&made, NODES.len()), "too early: {commands:?}: {}", product::summary(&made.status.unwrap_or_default()));
    bed.say(&format!("version {version} is on all nodes when {:?} has ended", commands.last()));
    Ok(())
}

/// Builds Helm, which this and the tutorial need.
pub fn build_helm() -> Result<()> {
    make(HELM_PROGRAM)
}

/// Fetches the CRDs of the Prometheus Operator, and builds what judges manifests by an API server's schemas.
pub fn fetch_monitoring() -> Result<()> {
    make(MONITORING)?;
    make(KUBECONFORM)
}

fn make(target: &str) -> Result<()> {
    // Beds beside each other may want the same: the others wait, and find it.
    let path = images::repository().join("target/bed/make.lock");
    let lock = std::fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    lock.lock().with_context(|| format!("locking {}", path.display()))?;
    let mut make = std::process::Command::new("make");
    let status = make.args(["--no-print-directory", target]).current_dir(images::repository()).status();
    ensure!(status.context("running make")?.success(), "make {target} failed");
    Ok(())
}

/// `helm`, as a user in the checkout calls it, but for what finds its cluster. What it prints on both streams: hooks are on the second one.
async fn helm(bed: &Bed, arguments: &[&str]) -> Result<String> {
    let mut helm = tokio::process::Command::new(images::repository().join(HELM_PROGRAM));
    helm.args(arguments).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(bed.control_plane.admin_kubeconfig());
    let output = helm.stdin(Stdio::null()).kill_on_drop(true).output().await.context("running helm")?;
    let said = [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned()).concat();
    ensure!(output.status.success(), "helm {arguments:?} failed ({}): {said}", output.status);
    Ok(said)
}

/// `helm install` or `upgrade`, which returns when the operator runs.
async fn apply_chart(bed: &Bed, command: &str, release: &str, more: &[&str]) -> Result<String> {
    let chart = images::repository().join("deploy/chart");
    let (chart, values) = (chart.to_string_lossy(), values());
    let arguments = [&[command, release, &chart, "--wait", "--timeout=3m"][..], more, &values.each_ref().map(String::as_str)].concat();
    helm(bed, &arguments).await
}

/// What every installation in a bed needs.
pub fn values() -> [String; 3] {
    let registry = images::PUSHED;
    [
        format!("--set-string=nodeSelector.{}=", INFRA_LABEL.replace('.', "\\.")),
        // Pods have the network of their node here: beside two operators on two nodes, a third one finds no free port.
        "--set=replicas=1".to_owned(),
        format!("--set=image.repository={registry}operator,healthChecker.image.repository={registry}health-checker"),
    ]
}

/// Values of the chart's own tests.
fn values_file(name: &str) -> String {
    format!("--values={}", images::repository().join("deploy/chart/ci").join(name).display())
}

/// All that the chart offers, but quotas in a namespace that does not exist.
fn everything() -> [String; 3] {
    let version = env!("CARGO_PKG_VERSION");
    [
        values_file("everything.yaml"),
        format!("--set=image.tag={version},healthChecker.image.tag={version}"),
        "--set=resourceQuota.healthCheckerNamespaces={default}".to_owned(),
    ]
}

async fn helm_installs(bed: &mut Bed) -> Result<()> {
    let notes = apply_chart(bed, "install", RELEASE, &["--create-namespace"]).await?;
    ensure!(notes.contains("kubectl"), "no next command in the notes: {notes}");
    owner_references_are_known(&bed.control_plane, bed.state()).await?;
    // All that follows meets the profile that the namespace then enforces, the Job of `helm uninstall` as well.
    let guide = Guide::in_file(bed, "docs/install.md", Some("Install with Helm"), &NODES)?;
    let [_install, label] = <[String; 2]>::try_from(guide.commands()).ok().context("two commands are known")?;
    guide.shell(&label).await?;
    let refused = bed.kubectl(&["run", "other", "--image=busybox:1.36", "--dry-run=server", "-n", NAMESPACE]).await;
    let refused = refused.err().context("the namespace takes any pod")?;
    ensure!(format!("{refused:#}").contains("violates PodSecurity \"restricted"), "{refused:#}");
    bed.say("the operator runs");
    product::serve_installed(bed, product::resource("1", &rolling_update(1, deployment_mark())), &NODES).await?;
    let refused = apply_chart(bed, "install", "other", &[]).await.err().context("a second release was installed")?;
    ensure!(format!("{refused:#}").contains("cannot be imported into the current release"), "{refused:#}");

    let traffic = Traffic::start(&bed.haproxy, &LoadOptions::default()).await?;
    product::roll_to(bed, "2").await?;
    let node = shows(bed, Phase::Claimed).await?;
    bed.say(&format!("{node} is claimed; helm upgrade, with everything that the chart offers"));
    bed.apply_path(MONITORING).await.context("installing the CRDs of the Prometheus Operator")?;
    bed.kubectl(&["wait", "--for=condition=Established", "--timeout=1m", "-f", &images::repository().join(MONITORING).to_string_lossy()])
        .await?;
    conforms(bed).await?;
    let notes = apply_chart(bed, "upgrade", RELEASE, &everything().each_ref().map(String::as_str)).await?;
    // Until then the operator may write nothing in the namespace.
    let label = notes.lines().find_map(|line| line.trim().strip_prefix("kubectl label namespace NAMESPACE "));
    let label = label.with_context(|| format!("the notes name no label for namespaces: {notes}"))?;
    bed.kubectl(&["label", "namespace", "default", label]).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    ensure!(arguments_of_the_operator(bed).await?.contains("--log-level=operator=debug"), "the operator was not changed");
    bed.kubectl(&["get", "networkpolicy,poddisruptionbudget,podmonitor,prometheusrule", "ingress-daemonset-operator", "-n", NAMESPACE])
        .await?;
    product::roll_to(bed, "3").await?;
    let node = shows(bed, Phase::Claimed).await?;
    bed.say(&format!("{node} is claimed; helm rollback"));
    helm(bed, &["rollback", RELEASE, "1", "--wait", "--timeout=3m"]).await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    ensure!(!arguments_of_the_operator(bed).await?.contains("--log-level=operator=debug"), "the operator was not changed back");

    let said = helm(bed, &["uninstall", RELEASE, "--wait", "--timeout=3m"]).await?;
    bed.say(&format!("helm uninstall says: {}", said.trim().replace('\n', " / ")));
    // Helm waits for Deployments, whose pods go in the background.
    eventually(SERVES_AGAIN, "the operator has ended", async || {
        let pods = bed.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "name"]).await?;
        ensure!(pods.is_empty(), "{pods}");
        Ok(())
    })
    .await?;
    let watch = bed.haproxy.watch().await?;
    throughout(WITHOUT, "the resource and its pods are there", async || {
        let pods = bed.kubectl(&["get", "pods", "-l", "app=nginx", "-o", "name"]).await?;
        bed.kubectl(&["get", "ids", product::NAME]).await?;
        ensure!(pods.lines().count() == 2 * NODES.len(), "{pods}");
        Ok(())
    })
    .await?;
    watch.at_least(NODES.len()).await?;
    // Without an operator, too, a health checker that begins may see what it needs.
    let checker = ["delete", "pod", "-l", crds::names::HEALTH_CHECKER_LABEL, "--field-selector", "spec.nodeName=n1"];
    bed.kubectl(&checker).await?;
    let deleted = std::time::Instant::now();
    bed.haproxy.serves(SERVES_AGAIN, &NODES).await.context("without an operator a health checker was made anew")?;
    bed.say(&format!(
        "what was uninstalled serves on; {:.0} s after its health checker was made anew, n1 too",
        deleted.elapsed().as_secs_f32()
    ));

    apply_chart(bed, "install", RELEASE, &[&values_file("minimal.yaml")]).await?;
    product::roll_to(bed, "4").await?;
    product::is_complete(bed, NODES.len(), product::ROLLED_OUT).await?;
    traffic.all_served(bed).await?;
    // Last, because a failure of it says least of what serves.
    for word in ["default/edge", "keep serving", "install the operator again"] {
        ensure!(said.contains(word), "helm uninstall does not say {word:?}: {said}");
    }
    Ok(())
}

/// What the chart renders, by the schemas of the API server itself, those of the CRDs of others included.
async fn conforms(bed: &Bed) -> Result<()> {
    let document = eventually(product::SAID, "the API server tells the schemas of the CRDs", async || {
        let document = bed.kubectl(&["get", "--raw", "/openapi/v2"]).await?;
        ensure!(document.contains(r#""com.coreos.monitoring.v1.PrometheusRule""#), "it has no schema of alerts");
        Ok(document)
    })
    .await?;
    let path = bed.state().join("openapi.json");
    std::fs::write(&path, document).with_context(|| format!("writing {}", path.display()))?;
    let said = process::run(&images::repository().join(".ci/chart"), ["conform", &path.to_string_lossy()]).await?;
    bed.say(&format!("by the schemas of the API server: {}", said.trim().replace('\n', " / ")));
    Ok(())
}

async fn arguments_of_the_operator(bed: &Bed) -> Result<String> {
    let path = "jsonpath={.spec.template.spec.containers[0].args}";
    bed.kubectl(&["get", "deployment", "ingress-daemonset-operator", "-n", NAMESPACE, "-o", path]).await
}
