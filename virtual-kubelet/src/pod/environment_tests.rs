use k8s_openapi::api::core::v1::{ConfigMap, ConfigMapEnvSource, ConfigMapKeySelector, EnvFromSource, EnvVar, ObjectFieldSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn key(name: &str, map: &str, key: &str, optional: bool) -> EnvVar {
    let selector = ConfigMapKeySelector { name: map.into(), key: key.into(), optional: Some(optional) };
    let source = EnvVarSource { config_map_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: name.into(), value: None, value_from: Some(source) }
}

fn map(entries: &[(&str, &str)]) -> References {
    let data = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let object = ConfigMap { data: Some(data), ..ConfigMap::default() };
    References { config_maps: [("m".to_owned(), object)].into(), ..References::default() }
}

fn resolved(container: &Container, references: &References) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some("p".into()),
            namespace: Some("ns".into()),
            labels: Some([("app".to_owned(), "web".to_owned())].into()),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    };
    let node = NodeFacts { address: "198.18.0.7".into(), ..NodeFacts::default() };
    let services = [("DB_SERVICE_HOST".to_owned(), "10.0.0.2".to_owned())].into();
    resolve(container, &pod, &node, references, &services)
}

#[test]
fn known_names_are_replaced_unknown_ones_stay_and_two_dollars_are_one() {
    let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
    assert_eq!(expand("x$(A)y $(B) $$(A) $A $(", lookup), "x1y $(B) $(A) $A $(");
}

#[test]
fn values_see_earlier_values_and_services_but_not_later_ones() {
    let env = vec![plain("A", "1"), plain("B", "$(A)-$(DB_SERVICE_HOST)-$(C)"), plain("C", "3")];
    let container = Container { env: Some(env), ..Container::default() };
    assert_eq!(resolved(&container, &References::default()).unwrap()["B"], "1-10.0.0.2-$(C)");
}

#[test]
fn env_overrides_env_from_which_gets_its_prefix() {
    let source = ConfigMapEnvSource { name: "m".into(), optional: None };
    let from = EnvFromSource { prefix: Some("P_".into()), config_map_ref: Some(source), secret_ref: None };
    let container = Container { env_from: Some(vec![from]), env: Some(vec![plain("P_A", "own")]), ..Container::default() };
    let variables = resolved(&container, &map(&[("A", "map"), ("B", "map")])).unwrap();
    assert_eq!((variables["P_A"].as_str(), variables["P_B"].as_str()), ("own", "map"));
}

#[test]
fn a_missing_mandatory_key_is_an_error_and_an_optional_one_is_left_out() {
    let container = |optional| Container { env: Some(vec![key("A", "m", "k", optional)]), ..Container::default() };
    assert_eq!(resolved(&container(false), &map(&[])).unwrap_err().to_string(), "couldn't find key k in ConfigMap ns/m");
    assert_eq!(resolved(&container(false), &References::default()).unwrap_err().to_string(), "configmap \"m\" not found");
    assert!(!resolved(&container(true), &References::default()).unwrap().contains_key("A"));
}

#[test]
fn fields_of_the_pod_and_its_address_are_told() {
    let field = |name: &str, path: &str| {
        let selector = ObjectFieldSelector { api_version: None, field_path: path.into() };
        let source = EnvVarSource { field_ref: Some(selector), ..EnvVarSource::default() };
        EnvVar { name: name.into(), value: None, value_from: Some(source) }
    };
    let env = vec![
        field("N", "metadata.name"),
        field("L", "metadata.labels['app']"),
        field("IP", "status.podIP"),
        field("ALL", "metadata.labels"),
    ];
    let variables = resolved(&Container { env: Some(env), ..Container::default() }, &References::default()).unwrap();
    assert_eq!(variables["N"], "p");
    assert_eq!(variables["L"], "web");
    assert_eq!(variables["IP"], "198.18.0.7");
    assert_eq!(variables["ALL"], "app=\"web\"");
}
