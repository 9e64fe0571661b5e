//! Schemas of fields: what the API server checks of a value, and the message for one that it refuses.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Value, json};

/// A phase is any string; the description says what each means.
pub(crate) fn phases(schema: &mut Schema) {
    let known = schema.remove("oneOf").unwrap_or_default();
    let line = |one: &Value| Some(format!("{}: {}", one["const"].as_str()?, one["description"].as_str()?));
    let lines: Vec<_> = schema
        .get("description")
        .and_then(Value::as_str)
        .map(str::to_owned)
        .into_iter()
        .chain(known.as_array().into_iter().flatten().filter_map(line))
        .collect();
    *schema = schemars::json_schema!({ "type": "string", "description": lines.join("\n") });
}

/// Schema of the pod template: structural, with labels and annotations kept.
pub fn pod_template_schema(generator: &mut SchemaGenerator) -> Schema {
    // Its own generator with inlined subschemas: references would not be structural.
    let mut inline = generator.settings().clone();
    inline.inline_subschemas = true;
    let mut schema = inline.into_generator().into_root_schema_for::<PodTemplateSpec>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let strings = json!({"type": "object", "additionalProperties": {"type": "string"}});
        properties.insert(
            "metadata".into(),
            json!({"type": "object", "properties": {"name": {"type": "string"}, "labels": strings, "annotations": strings}}),
        );
    }
    schema["required"] = json!(["spec"]);
    if let Some(containers) = schema.pointer_mut("/properties/spec/properties/containers") {
        containers["minItems"] = 1.into();
    }
    schema.try_into().unwrap_or_default()
}

/// A schema with rules in CEL, each with the message that a user sees beside the field and its value.
pub(crate) fn checked(mut schema: Value, rules: &[(&str, &str)]) -> Schema {
    schema["x-kubernetes-validations"] = rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect();
    schema.try_into().unwrap_or_default()
}

fn int_or_string(rule: (&str, &str)) -> Schema {
    checked(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "maxLength": 16}), &[rule])
}

/// A number, at least 1, or a text, in a field of a list. Kubernetes 1.33 estimates that rules in CEL cost too much there: it takes
/// each text to be as long as a request.
fn listed_int_or_string(maximum: u16, pattern: &str) -> Schema {
    let schema = json!({
        "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 1, "maximum": maximum, "pattern": pattern,
    });
    schema.try_into().unwrap_or_default()
}

/// How many things, or which percentage of them.
pub fn count_or_percent_schema(_: &mut SchemaGenerator) -> Schema {
    int_or_string((
        "type(self) == int ? self >= 0 && self <= 10000 : self.matches('^(100|[1-9]?[0-9])%$')",
        "must be a whole number from 0 to 10000, or a percentage from \"0%\" to \"100%\"",
    ))
}

/// A count or a percentage of at least 1.
pub fn count_or_percent_above_zero_schema(_: &mut SchemaGenerator) -> Schema {
    int_or_string((
        "type(self) == int ? self >= 1 && self <= 10000 : self.matches('^(100|[1-9][0-9]?)%$')",
        "must be a whole number from 1 to 10000, or a percentage from \"1%\" to \"100%\"; remove the field for no separate limit",
    ))
}

/// Schema of the name of a priority class, or an empty text for none.
pub fn priority_class_schema(_: &mut SchemaGenerator) -> Schema {
    let name = (r"self.matches(r'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$')", "must be the name of a PriorityClass, or \"\" for none");
    checked(json!({"type": "string", "maxLength": 253}), &[name])
}

/// Nodes of a step: a count, or a percentage of at least 1.
pub fn step_nodes_schema(_: &mut SchemaGenerator) -> Schema {
    listed_int_or_string(10000, "^(100|[1-9][0-9]?)%$")
}

/// Schema of the key of a label.
pub fn label_key_schema(_: &mut SchemaGenerator) -> Schema {
    checked(json!({"type": "string", "maxLength": 317}), &[IS_LABEL_KEY])
}

/// The form of keys of labels and annotations.
pub(crate) const KEY: &str =
    r"self.matches(r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')";
const IS_LABEL_KEY: (&str, &str) = (KEY, "must be a label key such as topology.kubernetes.io/zone");
const IS_KEY: (&str, &str) = (
    KEY,
    "must be an annotation key such as example.com/detach: an optional DNS domain and slash, and a name of at most 63 letters, digits, '-', '_' and '.'",
);
const IS_NOT_OURS: (&str, &str) = (
    "!self.startsWith('ingressdaemonsets.mumoshu.github.io/')",
    "must not be in the domain ingressdaemonsets.mumoshu.github.io/, which the operator reserves: choose a key of another domain",
);
const IS_NOT_KUBERNETES: (&str, &str) = (
    "!self.startsWith('deployment.kubernetes.io/')",
    "must not be in the domain deployment.kubernetes.io/, which Kubernetes reserves: choose a key of another domain",
);

/// Schema of a map of labels.
pub fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    let value = json!({"type": "string", "maxLength": 63});
    checked(
        json!({"type": "object", "additionalProperties": value, "maxProperties": 16}),
        &[(&format!("self.all(key, size(key) <= 317 && {})", KEY.replace("self.", "key.")), IS_LABEL_KEY.1)],
    )
}

/// Value of a label or taint.
pub fn label_value_schema(_: &mut SchemaGenerator) -> Schema {
    let value = (
        "self.matches(r'^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$')",
        "must be a value of at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    );
    checked(json!({"type": "string", "maxLength": 63}), &[value])
}

/// Key of a taint that nobody else owns.
pub fn taint_key_schema(_: &mut SchemaGenerator) -> Schema {
    let key = (KEY, "must be the key of a taint such as readiness.k8s.io/ingress");
    let foreign = (
        "!['node.kubernetes.io/', 'node-role.kubernetes.io/', 'node.cloudprovider.kubernetes.io/', 'karpenter.sh/', 'ingressdaemonsets.mumoshu.github.io/', \
         'ToBeDeletedByClusterAutoscaler', 'DeletionCandidateOfClusterAutoscaler', 'aws-node-termination-handler/', \
         'cloud.google.com/impending-node-termination'].exists(owned, self.startsWith(owned))",
        "must not be a taint of Kubernetes, Karpenter, cluster-autoscaler, a termination handler of a cloud or this operator, which manage it themselves: choose a key such as readiness.k8s.io/ingress",
    );
    checked(json!({"type": "string", "minLength": 1, "maxLength": 317}), &[key, foreign])
}

/// Key of a taint, whoever owns it.
pub fn any_taint_key_schema(_: &mut SchemaGenerator) -> Schema {
    let key = (KEY, "must be the key of a taint such as node.kubernetes.io/unschedulable");
    checked(json!({"type": "string", "minLength": 1, "maxLength": 317}), &[key])
}

/// Schema of a gate's map from values to True or False.
pub fn gate_values_schema(_: &mut SchemaGenerator) -> Schema {
    let value = json!({"type": "string", "enum": ["True", "False"]});
    let values = json!({
        "type": "object", "additionalProperties": value, "minProperties": 1, "maxProperties": 32,
        "default": {"true": "True", "false": "False"},
    });
    checked(values, &[("self.all(value, size(value) <= 253)", "values must have at most 253 characters")])
}

/// An API version with its group, if it has one.
pub fn api_version_schema(_: &mut SchemaGenerator) -> Schema {
    let version = (r"self.matches(r'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*$')", "must be an apiVersion such as v1 or apps/v1");
    checked(json!({"type": "string", "maxLength": 253}), &[version])
}

/// Schema of the kind of an object.
pub fn kind_schema(_: &mut SchemaGenerator) -> Schema {
    let kind = (r"self.matches(r'^[A-Z][A-Za-z0-9]*$')", "must be a kind of the apiVersion, such as Deployment");
    checked(json!({"type": "string", "maxLength": 63}), &[kind])
}

/// An address that is asked by HTTP.
pub fn http_url_schema(_: &mut SchemaGenerator) -> Schema {
    let url = (
        r"self.matches(r'^http://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-~]*)?$')",
        "must be a URL such as http://config.tools.svc:8080/ready; there is no https support",
    );
    checked(json!({"type": "string", "maxLength": 1024}), &[url])
}

/// A path that is asked for by HTTP.
pub fn http_path_schema(_: &mut SchemaGenerator) -> Schema {
    let path = ("self.matches(r'^/[!-~]*$')", "must be a path such as /ready, without spaces");
    checked(json!({"type": "string", "maxLength": 1024}), &[path])
}

/// How often somebody is asked.
pub fn period_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("{DURATION} && duration(self) >= duration('1s') && duration(self) <= duration('1h')");
    checked(json!({"type": "string", "maxLength": 32}), &[(rule.as_str(), "must be a duration from 1s to 1h, such as 10s")])
}

/// How long somebody is waited for.
pub fn timeout_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("{DURATION} && duration(self) >= duration('100ms') && duration(self) <= duration('30s')");
    checked(json!({"type": "string", "maxLength": 32}), &[(rule.as_str(), "must be a duration from 100ms to 30s, such as 1s")])
}

/// A name of a few letters.
pub fn short_name_schema(_: &mut SchemaGenerator) -> Schema {
    let name = (
        "self.matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
        "must be a name of at most 63 lowercase letters, digits and '-', beginning and ending with a letter or digit",
    );
    checked(json!({"type": "string", "maxLength": 63}), &[name])
}

/// How many pods, or all of them.
pub fn min_ready_schema(_: &mut SchemaGenerator) -> Schema {
    listed_int_or_string(1000, "^All$")
}

/// How many replicas, or which share of them, or all.
pub fn min_ready_or_percent_schema(_: &mut SchemaGenerator) -> Schema {
    listed_int_or_string(100, "^(All|(100|[1-9][0-9]?)%)$")
}

/// Key of an annotation, whoever writes it.
pub fn any_annotation_key_schema(_: &mut SchemaGenerator) -> Schema {
    checked(json!({"type": "string", "maxLength": 317}), &[IS_KEY])
}

/// Key of an annotation on a Node.
pub fn node_annotation_key_schema(_: &mut SchemaGenerator) -> Schema {
    checked(json!({"type": "string", "maxLength": 317}), &[IS_KEY, IS_NOT_OURS])
}

/// Key of a label on a Node.
pub fn node_label_key_schema(_: &mut SchemaGenerator) -> Schema {
    checked(json!({"type": "string", "maxLength": 317}), &[IS_LABEL_KEY, IS_NOT_OURS])
}

/// Key of an annotation on a Deployment.
pub fn deployment_annotation_key_schema(_: &mut SchemaGenerator) -> Schema {
    checked(json!({"type": "string", "maxLength": 317}), &[IS_KEY, IS_NOT_OURS, IS_NOT_KUBERNETES])
}

/// Schema of the value of an annotation.
pub fn annotation_value_schema(_: &mut SchemaGenerator) -> Schema {
    let printable = (r"!self.matches(r'[\x00-\x1f\x7f]')", "must not contain control characters, such as a line break at the end");
    checked(json!({"type": "string", "maxLength": 1024}), &[printable])
}

/// Value of an annotation of a Node.
pub fn node_annotation_value_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = annotation_value_schema(generator);
    schema.insert("maxLength".into(), crate::holders::VALUE_CHARACTERS.into());
    schema
}

/// The form of a duration as Go writes it.
const DURATION: &str = r"self.matches(r'^([0-9]{1,8}(\.[0-9]{1,3})?(ms|s|m|h))+$')";

/// A time span of a minute to a month.
pub fn window_duration_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("{DURATION} && duration(self) >= duration('1m') && duration(self) <= duration('744h')");
    let duration = (rule.as_str(), "must be a duration from 1m to 744h, such as 3h or 1h30m");
    checked(json!({"type": "string", "maxLength": 32}), &[duration])
}

/// A schedule of cron. What its fields say is checked by the operator.
pub fn schedule_schema(_: &mut SchemaGenerator) -> Schema {
    let schedule = (
        r"self.matches(r'^(@[a-z]+|[^ @=]+( +[^ @=]+){4})$')",
        "must be a schedule of five fields such as \"0 2 * * 1-5\" (minute, hour, day of month, month, day of week), or @daily",
    );
    checked(json!({"type": "string", "maxLength": 128}), &[schedule])
}

/// A time span of at most a day, as Go writes it.
pub fn duration_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("{DURATION} && duration(self) <= duration('24h')");
    let duration = (rule.as_str(), "must be a duration of at most 24h, such as 2s, 500ms or 1m30s");
    checked(json!({"type": "string", "maxLength": 32}), &[duration])
}

/// The hash of a template.
pub fn revision_schema(_: &mut SchemaGenerator) -> Schema {
    let revision = ("self.matches('^[0-9a-f]{10}$')", "must be a revision as in status.revisions.update: 10 lowercase hexadecimal digits");
    checked(json!({"type": "string", "maxLength": 10}), &[revision])
}

/// The address of an interface.
pub fn address_schema(_: &mut SchemaGenerator) -> Schema {
    let address = ("self.matches('^[0-9a-fA-F.:]+$')", "must be an IPv4 or IPv6 address such as 0.0.0.0 or ::, without a port");
    checked(json!({"type": "string", "maxLength": 64}), &[address])
}

/// The name of an image.
pub fn image_schema(_: &mut SchemaGenerator) -> Schema {
    let image = (
        r"self.matches(r'^\S+$')",
        "must be the name of an image without spaces; remove the field to use the image of the operator's release",
    );
    checked(json!({"type": "string", "maxLength": 512}), &[image])
}

/// The name of an object.
pub fn object_name_schema(_: &mut SchemaGenerator) -> Schema {
    let name = (
        r"self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        "must be the name of an object: lowercase letters, digits, '-' and '.', beginning and ending with a letter or digit",
    );
    checked(json!({"type": "string", "maxLength": 253}), &[name])
}
