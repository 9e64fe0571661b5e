use std::sync::Mutex;

use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapEnvSource, ConfigMapKeySelector, EnvFromSource, EnvVarSource, PodSpec, Secret, SecretEnvSource, SecretKeySelector,
    Service, ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

/// Objects of the namespace `ns`, and what was asked for.
#[derive(Default)]
struct Objects {
    config_maps: BTreeMap<String, ConfigMap>,
    secrets: BTreeMap<String, Secret>,
    services: Vec<Service>,
    asked: Mutex<Vec<String>>,
    /// Nothing can be read for now.
    down: bool,
}

impl Objects {
    fn config_map(mut self, name: &str, data: &[(&str, &str)]) -> Self {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.config_maps.insert(name.into(), ConfigMap { data: Some(data), ..ConfigMap::default() });
        self
    }

    fn secret(mut self, name: &str, data: &[(&str, &str)]) -> Self {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString((*value).as_bytes().to_vec()))).collect();
        self.secrets.insert(name.into(), Secret { data: Some(data), ..Secret::default() });
        self
    }

    fn service(mut self, namespace: &str, name: &str, address: &str) -> Self {
        self.services.push(Service {
            metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
            spec: Some(ServiceSpec {
                cluster_ip: Some(address.into()),
                ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        });
        self
    }
}

impl Objects {
    fn up(&self) -> Result<(), ApiCallError> {
        if self.down { Err(ApiCallError::Transient("no answer".into())) } else { Ok(()) }
    }
}

impl ReferenceSource for Objects {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<ConfigMap>, ApiCallError>> {
        self.asked.lock().unwrap().push(format!("configmap {namespace}/{name}"));
        Box::pin(std::future::ready(self.up().map(|()| self.config_maps.get(name).cloned())))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Secret>, ApiCallError>> {
        self.asked.lock().unwrap().push(format!("secret {namespace}/{name}"));
        Box::pin(std::future::ready(self.up().map(|()| self.secrets.get(name).cloned())))
    }

    fn services<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<Service>, ApiCallError>> {
        Box::pin(std::future::ready(Ok(self.services.clone())))
    }
}

fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn from_config_map(name: &str, prefix: &str, optional: bool) -> EnvFromSource {
    let reference = ConfigMapEnvSource { name: name.into(), optional: Some(optional) };
    EnvFromSource { prefix: Some(prefix.into()), config_map_ref: Some(reference), secret_ref: None }
}

fn from_secret(name: &str, prefix: &str, optional: bool) -> EnvFromSource {
    let reference = SecretEnvSource { name: name.into(), optional: Some(optional) };
    EnvFromSource { prefix: Some(prefix.into()), config_map_ref: None, secret_ref: Some(reference) }
}

fn config_map_key(variable: &str, name: &str, key: &str, optional: bool) -> EnvVar {
    let selector = ConfigMapKeySelector { name: name.into(), key: key.into(), optional: Some(optional) };
    let source = EnvVarSource { config_map_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: variable.into(), value: None, value_from: Some(source) }
}

fn secret_key(variable: &str, name: &str, key: &str, optional: bool) -> EnvVar {
    let selector = SecretKeySelector { name: name.into(), key: key.into(), optional: Some(optional) };
    let source = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: variable.into(), value: None, value_from: Some(source) }
}

/// A pod with one container.
fn pod(env: &[EnvVar], env_from: &[EnvFromSource]) -> Arc<Pod> {
    let container = Container { name: "main".into(), env: Some(env.to_vec()), env_from: Some(env_from.to_vec()), ..Container::default() };
    Arc::new(Pod {
        metadata: ObjectMeta { name: Some("p".into()), namespace: Some("ns".into()), ..ObjectMeta::default() },
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
        status: None,
    })
}

/// Variables of the first container or the error, and the reasons of the notes.
async fn resolved(objects: &Objects, pod: &Arc<Pod>) -> (Result<Vec<(String, String)>, String>, Vec<&'static str>) {
    let mut notes = Vec::new();
    let result = resolve(objects, pod, &NodeFacts::default(), &mut notes).await.map_err(|error| error.to_string());
    let values = result.map(|pod| {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        assert!(container.env_from.is_none());
        values(container.env.as_ref())
    });
    (values, notes.iter().map(|note| note.reason).collect())
}

fn values(env: Option<&Vec<EnvVar>>) -> Vec<(String, String)> {
    env.unwrap().iter().map(|variable| (variable.name.clone(), variable.value.clone().unwrap())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn every_kind_of_container_gets_plain_values() {
    let container = Container { env: Some(vec![plain("A", "$(S_SERVICE_HOST)!")]), ..Container::default() };
    let ephemeral = EphemeralContainer {
        env: Some(vec![plain("A", "$(S_SERVICE_HOST)!"), config_map_key("K", "m", "k", false)]),
        env_from: Some(vec![from_secret("s", "", false)]),
        ..EphemeralContainer::default()
    };
    let mut pod = Pod::clone(&pod(&[], &[]));
    let spec = pod.spec.as_mut().unwrap();
    (spec.init_containers, spec.containers) = (Some(vec![container.clone()]), vec![container]);
    spec.ephemeral_containers = Some(vec![ephemeral]);
    let objects = Objects::default().service("ns", "s", "10.0.0.9").config_map("m", &[("k", "v")]).secret("s", &[("T", "t")]);
    let filled = resolve(&objects, &Arc::new(pod), &NodeFacts::default(), &mut Vec::new()).await.unwrap();
    let spec = filled.spec.as_ref().unwrap();
    for env in [&spec.init_containers.as_ref().unwrap()[0].env, &spec.containers[0].env] {
        assert!(values(env.as_ref()).contains(&("A".into(), "10.0.0.9!".into())));
    }
    let ephemeral = &spec.ephemeral_containers.as_ref().unwrap()[0];
    let values = values(ephemeral.env.as_ref());
    for expected in pairs(&[("A", "10.0.0.9!"), ("K", "v"), ("T", "t"), ("S_SERVICE_HOST", "10.0.0.9")]) {
        assert!(values.contains(&expected), "{expected:?}");
    }
    assert!(ephemeral.env_from.is_none());
}

#[tokio::test]
async fn later_sources_win_over_earlier_ones_with_their_prefixes() {
    let objects = Objects::default()
        .config_map("m1", &[("A", "m1"), ("B", "m1")])
        .config_map("m2", &[("B", "m2"), ("C", "m2")])
        .secret("s", &[("C", "s"), ("D", "s")]);
    let sources =
        [from_config_map("m1", "", false), from_config_map("m2", "", false), from_secret("s", "", false), from_secret("s", "P_", false)];
    let (values, notes) = resolved(&objects, &pod(&[], &sources)).await;
    assert_eq!(values.unwrap(), pairs(&[("A", "m1"), ("B", "m2"), ("C", "s"), ("D", "s"), ("P_C", "s"), ("P_D", "s")]));
    assert!(notes.is_empty());
    let asked = objects.asked.lock().unwrap();
    assert_eq!(*asked, ["configmap ns/m1", "configmap ns/m2", "secret ns/s"]);
}

#[tokio::test]
async fn invalid_variable_names_are_skipped_with_one_event_per_object() {
    let objects = Objects::default().config_map("m", &[("z=", "1"), ("A", "1"), ("=b", "1")]).secret("s", &[("c=", "1")]);
    let pod = pod(&[], &[from_config_map("m", "", false), from_secret("s", "", false)]);
    let mut notes = Vec::new();
    let filled = resolve(&objects, &pod, &NodeFacts::default(), &mut notes).await.unwrap();
    assert_eq!(values(filled.spec.as_ref().unwrap().containers[0].env.as_ref()), pairs(&[("A", "1")]));
    assert!(notes.iter().all(|note| note.reason == "InvalidEnvironmentVariableNames"));
    assert_eq!(notes.len(), 2);
    assert!(notes[0].message.starts_with("keys [=b, z=] of ConfigMap m"), "{}", notes[0].message);
}

#[tokio::test]
async fn env_wins_over_env_from() {
    let objects = Objects::default().config_map("m", &[("A", "map"), ("B", "map")]);
    let (values, _) = resolved(&objects, &pod(&[plain("A", "own")], &[from_config_map("m", "", false)])).await;
    assert_eq!(values.unwrap(), pairs(&[("A", "own"), ("B", "map")]));
}

#[tokio::test]
async fn what_is_optional_and_missing_is_left_out_and_told() {
    let objects = Objects::default().config_map("m", &[]).secret("s", &[]);
    for (env, env_from, reason) in [
        (vec![], vec![from_config_map("no", "", true)], "OptionalConfigMapNotFound"),
        (vec![], vec![from_secret("no", "", true)], "OptionalSecretNotFound"),
        (vec![config_map_key("A", "no", "k", true)], vec![], "OptionalConfigMapNotFound"),
        (vec![secret_key("A", "no", "k", true)], vec![], "OptionalSecretNotFound"),
        (vec![config_map_key("A", "m", "no", true)], vec![], "OptionalConfigMapKeyNotFound"),
        (vec![secret_key("A", "s", "no", true)], vec![], "OptionalSecretKeyNotFound"),
    ] {
        let (values, notes) = resolved(&objects, &pod(&env, &env_from)).await;
        assert_eq!((values, notes), (Ok(vec![]), vec![reason]));
    }
}

#[tokio::test]
async fn what_is_mandatory_and_missing_is_an_error_and_told() {
    let objects = Objects::default().config_map("m", &[]).secret("s", &[]);
    for (env, env_from, reason, error) in [
        (vec![], vec![from_config_map("no", "", false)], "MandatoryConfigMapNotFound", "configmap \"no\" not found"),
        (vec![], vec![from_secret("no", "", false)], "MandatorySecretNotFound", "secret \"no\" not found"),
        (vec![config_map_key("A", "no", "k", false)], vec![], "MandatoryConfigMapNotFound", "configmap \"no\" not found"),
        (vec![secret_key("A", "no", "k", false)], vec![], "MandatorySecretNotFound", "secret \"no\" not found"),
        (vec![config_map_key("A", "m", "no", false)], vec![], "MandatoryConfigMapKeyNotFound", "couldn't find key no in ConfigMap ns/m"),
        (vec![secret_key("A", "s", "no", false)], vec![], "MandatorySecretKeyNotFound", "couldn't find key no in Secret ns/s"),
    ] {
        let (values, notes) = resolved(&objects, &pod(&env, &env_from)).await;
        assert_eq!((values, notes), (Err(error.to_owned()), vec![reason]));
    }
}

#[tokio::test]
async fn a_transient_read_failure_is_an_error_even_if_optional() {
    let objects = Objects { down: true, ..Objects::default() };
    for (env, env_from, reason) in [
        (vec![], vec![from_config_map("m", "", true)], "FailedToReadOptionalConfigMap"),
        (vec![], vec![from_config_map("m", "", false)], "FailedToReadMandatoryConfigMap"),
        (vec![], vec![from_secret("s", "", true)], "FailedToReadOptionalSecret"),
        (vec![secret_key("A", "s", "k", false)], vec![], "FailedToReadMandatorySecret"),
        (vec![config_map_key("A", "m", "k", true)], vec![], "FailedToReadOptionalConfigMap"),
        (vec![config_map_key("A", "m", "k", true)], vec![from_config_map("m", "", false)], "FailedToReadMandatoryConfigMap"),
    ] {
        let (values, notes) = resolved(&objects, &pod(&env, &env_from)).await;
        assert_eq!((values, notes), (Err("transient: no answer".to_owned()), vec![reason]));
    }
}

#[tokio::test]
async fn pods_without_service_links_learn_only_the_api_servers_address() {
    let objects = Objects::default().service("ns", "db", "10.0.0.2").service("default", "kubernetes", "10.0.0.1");
    let with = pod(&[plain("URL", "http://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)")], &[]);
    let (values, _) = resolved(&objects, &with).await;
    let values = values.unwrap();
    assert!(values.contains(&("URL".into(), "http://10.0.0.2:80".into())));
    assert!(values.iter().any(|(name, _)| name == "KUBERNETES_SERVICE_HOST"));
    let mut without = Pod::clone(&with);
    without.spec.as_mut().unwrap().enable_service_links = Some(false);
    let (values, _) = resolved(&objects, &Arc::new(without)).await;
    let values = values.unwrap();
    assert!(values.contains(&("URL".into(), "http://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)".into())));
    assert!(values.iter().any(|(name, _)| name == "KUBERNETES_SERVICE_HOST"));
    assert!(!values.iter().any(|(name, _)| name == "DB_SERVICE_HOST"));
}

#[tokio::test]
async fn a_variable_may_refer_to_earlier_variables() {
    let env = [plain("A", "1"), plain("B", "$(A)$(A)"), plain("E", ""), plain("C", "<$(B)$(E)>")];
    let (values, _) = resolved(&Objects::default(), &pod(&env, &[])).await;
    assert_eq!(values.unwrap(), pairs(&[("A", "1"), ("B", "11"), ("C", "<11>"), ("E", "")]));
}

#[tokio::test]
async fn the_order_of_a_resolved_environment_is_always_the_same() {
    let names: Vec<String> = (0..50).map(|index| format!("V{:02}", (index * 7) % 50)).collect();
    let env: Vec<EnvVar> = names.iter().map(|name| plain(name, "1")).collect();
    let (values, _) = resolved(&Objects::default(), &pod(&env, &[])).await;
    let values = values.unwrap();
    assert!(values.is_sorted());
    assert_eq!(values.len(), 50);
}
