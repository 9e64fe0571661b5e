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
fn known_names_are_expanded_and_unknown_names_stay() {
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
fn only_a_missing_mandatory_key_is_an_error() {
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

fn field(name: &str, path: &str) -> EnvVar {
    let selector = ObjectFieldSelector { api_version: None, field_path: path.into() };
    let source = EnvVarSource { field_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: name.into(), value: None, value_from: Some(source) }
}

#[test]
fn references_are_expanded_by_the_grammar_of_kubernetes() {
    let lookup = |name: &str| {
        let value = match name {
            "VAR_A" => "A",
            "VAR_B" => "B",
            "VAR_C" => "C",
            "VAR_REF" => "$(VAR_A)",
            "VAR_EMPTY" => "",
            _ => return None,
        };
        Some(value.to_owned())
    };
    for (text, expected) in [
        ("$(VAR_A)", "A"),
        ("$(VAR_A)-$(VAR_A)", "A-A"),
        ("$(VAR_A)-1", "A-1"),
        ("___$(VAR_B)___", "___B___"),
        ("___$(VAR_C)", "___C"),
        ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
        ("f000-$$VAR_A", "f000-$VAR_A"),
        ("foo\\$(VAR_C)bar", "foo\\Cbar"),
        ("foo\\\\$(VAR_C)bar", "foo\\\\Cbar"),
        ("foo\\\\\\\\$(VAR_A)bar", "foo\\\\\\\\Abar"),
        ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
        ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
        ("f00__(VAR_A)__", "f00__(VAR_A)__"),
        ("$?_boo_$!", "$?_boo_$!"),
        ("$VAR_A", "$VAR_A"),
        ("$(VAR_DNE)", "$(VAR_DNE)"),
        ("$$$$$$(BIG_MONEY)", "$$$(BIG_MONEY)"),
        ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
        ("$$$$$$$(GOOD_ODDS)", "$$$$(GOOD_ODDS)"),
        ("$$$$$$$(VAR_A)", "$$$A"),
        ("$VAR_A)", "$VAR_A)"),
        ("${VAR_A}", "${VAR_A}"),
        ("$(VAR_B)_______$(A", "B_______$(A"),
        ("$(VAR_C)_______$(", "C_______$("),
        ("$(VAR_A)foobarzab$", "Afoobarzab$"),
        ("foo-\\$(VAR_A", "foo-\\$(VAR_A"),
        ("--$($($($($--", "--$($($($($--"),
        ("$($($($($--foo$(", "$($($($($--foo$("),
        ("foo0--$($($($(", "foo0--$($($($("),
        ("$(foo$$var)", "$(foo$$var)"),
        ("\n", "\n"),
    ] {
        assert_eq!(expand(text, lookup), expected, "{text}");
    }
}

#[test]
fn every_field_that_the_original_knows_is_told() {
    use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
    let map = |value: &str| Some([("b".to_owned(), value.to_owned()), ("a".to_owned(), "1".to_owned())].into());
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some("p".into()),
            namespace: Some("ns".into()),
            uid: Some("u".into()),
            labels: map("2"),
            annotations: map("x \"y\"\n\\"),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some("n1".into()),
            service_account_name: Some("sa".into()),
            restart_policy: Some("Never".into()),
            scheduler_name: Some("default-scheduler".into()),
            ..PodSpec::default()
        }),
        status: Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() }),
    };
    for (path, expected) in [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels", "a=\"1\"\nb=\"2\""),
        ("metadata.annotations", "a=\"1\"\nb=\"x \\\"y\\\"\\n\\\\\""),
        ("metadata.labels['b']", "2"),
        ("metadata.annotations['a']", "1"),
        ("metadata.annotations['missing']", ""),
        ("spec.nodeName", "n1"),
        ("spec.host", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("spec.restartPolicy", "Never"),
        ("spec.schedulerName", "default-scheduler"),
        ("status.phase", "Pending"),
        ("status.hostIP", "198.18.0.7"),
        ("status.hostIPs", "198.18.0.7"),
        ("status.podIP", "198.18.0.7"),
        ("status.podIPs", "198.18.0.7"),
    ] {
        assert_eq!(field_value(&pod, "198.18.0.7", path).as_deref(), Ok(expected), "{path}");
    }
    for path in ["", "metadata", "spec.nodeName['a']", "metadata.labels['a'", "status.conditions", "metadata.name['x']"] {
        assert_eq!(field_value(&pod, "", path), Err(EnvironmentError::UnsupportedField(path.into())));
    }
}

#[test]
fn a_field_of_another_api_version_is_refused() {
    let mut variable = field("A", "metadata.name");
    let version = |variable: &mut EnvVar, version: &str| {
        variable.value_from.as_mut().unwrap().field_ref.as_mut().unwrap().api_version = Some(version.into());
    };
    version(&mut variable, "v1");
    let container = |variable: &EnvVar| Container { env: Some(vec![variable.clone()]), ..Container::default() };
    assert_eq!(resolved(&container(&variable), &References::default()).unwrap()["A"], "p");
    version(&mut variable, "v2");
    assert!(resolved(&container(&variable), &References::default()).is_err());
}

#[test]
fn texts_are_quoted_as_go_does() {
    for (text, expected) in [
        ("plain", "\"plain\""),
        ("\u{7}\u{8}\u{c}\n\r\t\u{b}", "\"\\a\\b\\f\\n\\r\\t\\v\""),
        ("\u{0}\u{7f}", "\"\\x00\\x7f\""),
        ("é'", "\"é'\""),
        ("\u{85}\u{2028}", "\"\\u0085\\u2028\""),
    ] {
        assert_eq!(quoted(text), expected);
    }
}

#[test]
fn a_resource_of_another_container_is_told() {
    use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    let limits = |cpu: &str| ResourceRequirements { limits: Some([("cpu".to_owned(), Quantity(cpu.into()))].into()), ..Default::default() };
    let other = Container { name: "other".into(), resources: Some(limits("3")), ..Container::default() };
    let selector = |name: Option<&str>| {
        let selector = ResourceFieldSelector { container_name: name.map(Into::into), resource: "limits.cpu".into(), divisor: None };
        EnvVarSource { resource_field_ref: Some(selector), ..EnvVarSource::default() }
    };
    let variable = |name: &str, of: Option<&str>| EnvVar { name: name.into(), value: None, value_from: Some(selector(of)) };
    let env = vec![variable("OWN", None), variable("OTHER", Some("other"))];
    let main = Container { name: "main".into(), env: Some(env), resources: Some(limits("2")), ..Container::default() };
    let pod = Pod { spec: Some(PodSpec { containers: vec![main.clone(), other], ..PodSpec::default() }), ..Pod::default() };
    let values = resolve(&main, &pod, &NodeFacts::default(), &References::default(), &BTreeMap::new()).unwrap();
    assert_eq!((values["OWN"].as_str(), values["OTHER"].as_str()), ("2", "3"));
}

#[test]
fn a_reference_to_an_unreported_node_fact_is_an_error() {
    for path in ["status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"] {
        let error = field_value(&Pod::default(), "", path).unwrap_err().to_string();
        assert_eq!(error, format!("the node reports no address, which {path} refers to"));
    }
    for resource in ["limits.cpu", "limits.memory"] {
        let selector = ResourceFieldSelector { resource: resource.into(), ..ResourceFieldSelector::default() };
        let source = EnvVarSource { resource_field_ref: Some(selector), ..EnvVarSource::default() };
        let variable = EnvVar { name: "A".into(), value_from: Some(source), value: None };
        let main = Container { env: Some(vec![variable]), ..Container::default() };
        let error = resolve(&main, &Pod::default(), &NodeFacts::default(), &References::default(), &BTreeMap::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("the node reports no capacity, which {resource} refers to if there is no limit"));
    }
}
