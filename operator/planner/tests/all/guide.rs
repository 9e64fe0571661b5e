//! The guide to rollouts, `docs/architecture.md` and README say what is so: examples are valid and complete, words are the operator's,
//! figures come out, files and functions exist.

use crds::{Duration, IngressDaemonSet, manifest, names};
use planner::spec::{
    load_balancer::{PRESETS, Preset},
    resolve,
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, fs, path::Path};

/// A file, by its path from the root of the repository.
fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages of the guide: how to configure rollouts, what fails, and how pods that serve already move to the product.
const GUIDE: [&str; 3] = ["docs/rollouts.md", "docs/failures.md", "docs/migration.md"];

fn guide() -> String {
    GUIDE.map(file).concat()
}

/// The blocks of YAML, with the line on which each begins.
fn examples(text: &str) -> Vec<(usize, Value)> {
    let mut found = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((_, number)) = lines.by_ref().find(|(line, _)| *line == "```yaml") {
        let block: Vec<&str> = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```").collect();
        let value = serde_saphyr::from_str(&block.join("\n")).unwrap_or_else(|error| panic!("line {number}: {error}"));
        found.push((number, value));
    }
    found
}

/// The examples of the guide, with the page and the line on which each begins.
fn guided() -> Vec<(String, Value)> {
    let of = |page: &'static str| examples(&file(page)).into_iter().map(move |(line, example)| (format!("{page}:{line}"), example));
    GUIDE.into_iter().flat_map(of).collect()
}

/// Two programs that do not share a port would meet on it: the new one fails to bind while the old one still ends.
#[test]
fn examples_with_one_host_network_pod_declare_the_port() {
    let mut seen = 0;
    for (place, example) in guided() {
        let (spec, pod) = (&example["spec"], &example["spec"]["template"]["spec"]);
        if example["kind"] != "IngressDaemonSet" || pod["hostNetwork"] != true || spec["podsPerNode"].as_u64().unwrap_or(1) != 1 {
            continue;
        }
        seen += 1;
        assert!(pod["containers"][0]["ports"][0]["containerPort"].is_u64(), "the example at {place} declares no port");
    }
    assert!(seen > 5, "{seen} examples");
}

/// The schema of a spec.
fn schema() -> Value {
    manifest::ingress_daemon_set()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Fields that the schema does not know, by their path.
fn unknown(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
            let below = |(key, value): (&String, &Value)| {
                let path = format!("{path}.{key}");
                properties.get(key).map_or_else(|| vec![path.clone()], |schema| unknown(value, schema, &path))
            };
            fields.iter().flat_map(below).collect()
        }
        Value::Array(items) => items.iter().flat_map(|item| unknown(item, &schema["items"], path)).collect(),
        _ => Vec::new(),
    }
}

/// Paths of all fields in a value; items of lists have no index.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = format!("{path}.{key}");
                fields(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, path, found)),
        _ => {}
    }
}

/// Paths of all fields in a schema, but for older spellings of others and below maps.
fn declared(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let nothing = Map::new();
    for (key, schema) in schema["properties"].as_object().unwrap_or(&nothing) {
        if schema["description"].as_str().is_some_and(|description| description.starts_with("Older ")) {
            continue;
        }
        let path = format!("{path}.{key}");
        declared(schema, &path, found);
        declared(&schema["items"], &path, found);
        found.insert(path);
    }
}

#[test]
fn every_example_is_a_complete_valid_resource_without_warnings() {
    let (first, schema) = (examples(&file("README.md")), schema());
    assert_eq!(first.len(), 1, "README shows one resource");
    let first = first.into_iter().map(|(line, example)| (format!("README.md:{line}"), example));
    let guided = guided();
    assert!(guided.len() >= 12, "{} examples", guided.len());
    for (place, example) in first.chain(guided) {
        assert_eq!(example["apiVersion"], format!("{}/{}", names::GROUP, names::VERSION), "{place}");
        assert_eq!(example["kind"], "IngressDaemonSet", "{place}");
        let parts: Vec<&String> = example.as_object().unwrap().keys().collect();
        assert_eq!(parts, ["apiVersion", "kind", "metadata", "spec"], "{place}");
        assert_eq!(unknown(&example["spec"], &schema, ""), Vec::<String>::new(), "{place}");
        let resource: IngressDaemonSet = serde_json::from_value(example).unwrap_or_else(|error| panic!("{place}: {error}"));
        let settings = resolve(&resource.spec).unwrap_or_else(|problems| panic!("{place}: {problems:?}"));
        assert_eq!(settings.warnings, [], "{place}");
    }
}

/// The edit of README's example that the tutorial asks for, and the figures that it names.
#[test]
fn the_aws_edit_of_the_tutorial_yields_its_stated_figures() {
    let text = file("docs/tutorial.md").replace('\n', " ");
    let edit =
        "set `loadBalancer: {preset: AwsNlbLbc}` below `spec`, write `annotateDeploymentToDetach: {}`, and remove `attachSoakSeconds`";
    assert!(text.contains(edit) && text.contains("(grace 80 s, soak 70 s)"), "the tutorial asks for something else");
    let mut example = examples(&file("README.md")).remove(0).1;
    let spec = example["spec"].as_object_mut().unwrap();
    spec.insert("loadBalancer".into(), json!({"preset": "AwsNlbLbc"}));
    let rolling = spec["updateStrategy"]["rollingUpdate"].as_object_mut().unwrap();
    assert!(rolling.insert("annotateDeploymentToDetach".into(), json!({})).is_some() && rolling.remove("attachSoakSeconds").is_some());
    let resource: IngressDaemonSet = serde_json::from_value(example).unwrap();
    let settings = resolve(&resource.spec).unwrap();
    assert_eq!((settings.deployment_grace, settings.attach_soak, settings.warnings.len()), (80, 70, 0));
}

#[test]
fn every_field_is_in_an_example() {
    let mut shown = BTreeSet::new();
    for (_, example) in &guided() {
        fields(&example["spec"], "", &mut shown);
    }
    let spec = schema();
    let mut wanted = BTreeSet::new();
    declared(&spec, "", &mut wanted);
    // Kubernetes documents these.
    wanted.retain(|path| !path.starts_with(".template.") && !path.starts_with(".healthChecker.resources.claims"));
    assert!(wanted.len() > 70 && wanted.contains(".updateStrategy.rollingUpdate.steps.maxRestarts"), "{wanted:?}");
    let missing: Vec<_> = wanted.difference(&shown).collect();
    assert!(missing.is_empty(), "in no example: {missing:?}");
}

/// Cells of the tables whose head has this column: the cell below it, row by row.
fn column(text: &str, head: &str) -> Vec<String> {
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut found = Vec::new();
    let mut at = None;
    for line in text.lines() {
        match (line.starts_with('|'), at) {
            (false, _) => at = None,
            (true, None) => at = Some(cells(line).iter().position(|cell| cell == head)),
            (true, Some(Some(index))) if !line.starts_with("|---") => found.extend(cells(line).into_iter().nth(index)),
            (true, Some(_)) => {}
        }
    }
    found
}

/// What stands in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_reason_in_the_failure_tables_exists_for_nodes() {
    let reason = file("operator/planner/src/reason/mod.rs");
    let mut words = 0;
    for (path, head) in [("docs/failures.md", "reason"), ("docs/operations.md", "reason of a node")] {
        for word in column(&file(path), head).iter().flat_map(|cell| quoted(cell)) {
            assert!(reason.contains(&format!("\"{word}\"")), "{path}: no node has the reason `{word}`");
            words += 1;
        }
    }
    assert!(words > 60, "{words} words");
}

#[test]
fn every_reason_of_a_node_is_explained_in_docs() {
    let reason = file("operator/planner/src/reason/mod.rs");
    let (_, reasons) = reason.split_once("pub fn word(&self)").unwrap();
    let (reasons, _) = reasons.split_once("pub fn message(&self)").unwrap();
    let explained = file("docs/operations.md") + &guide();
    let words: Vec<&str> = reasons.lines().filter_map(|line| line.split("=> \"").nth(1)?.split('"').next()).collect();
    assert!(words.len() > 30, "{words:?}");
    let missing: Vec<_> = words.iter().filter(|word| !explained.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "explained nowhere: {missing:?}");
}

#[test]
fn every_scenario_that_is_named_runs_in_the_tests() {
    let scenarios = crate::scenario_names();
    let guide = guide();
    let named: Vec<String> = column(&guide, "scenario");
    assert!(named.len() > 10, "{named:?}");
    for cell in &named {
        let words = quoted(cell);
        assert!(!words.is_empty(), "{cell}");
        for name in words {
            assert!(scenarios.contains(name), "{name} is no scenario");
        }
    }
}

#[test]
fn annotations_for_people_are_spelled_as_the_operator_reads_them() {
    let guide = guide();
    for name in [names::SKIP_ANNOTATION, names::RETRY_ANNOTATION, names::RELEASE_ANNOTATION] {
        assert!(guide.contains(&format!("{name}=")), "{name}");
    }
    let known = file("crds/src/names.rs");
    for rest in guide.split("ingressdaemonsets.mumoshu.github.io/").skip(1) {
        let name: String = rest.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
        let name = name.trim_end_matches('-');
        assert!(name == names::VERSION || known.contains(&format!("\"ingressdaemonsets.mumoshu.github.io/{name}\"")), "{name}");
    }
}

#[test]
fn documented_departure_taints_match_those_of_the_operator() {
    let rows = column(&guide(), "taint");
    let told: BTreeSet<&str> = rows.iter().flat_map(|row| quoted(row)).collect();
    assert_eq!(told, BTreeSet::from(names::DEPARTURE_TAINTS));
}

#[test]
fn the_times_of_presets_are_those_that_the_operator_waits() {
    let text = guide();
    let presets = column(&text, "preset").into_iter().zip(column(&text, "until out")).zip(column(&text, "until back"));
    let mut seen = BTreeSet::new();
    for ((preset, out), back) in presets {
        let preset = preset.trim_matches('`').to_owned();
        if preset != "Custom" {
            let spec = json!({
                "template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}},
                "loadBalancer": {"preset": preset},
                "updateStrategy": {"rollingUpdate": {"maxUnavailableNodes": 1}},
            });
            let settings = resolve(&serde_json::from_value(spec).unwrap()).unwrap();
            let times = [settings.deployment_grace, settings.attach_soak].map(|seconds| format!("{seconds} s"));
            assert_eq!([out, back], times, "{preset}");
        }
        seen.insert(preset);
    }
    let schema = schema();
    let known = schema.pointer("/properties/loadBalancer/properties/preset").unwrap();
    let known: BTreeSet<String> = serde_json::from_value(known["enum"].clone()).unwrap();
    assert_eq!(seen, known);
}

#[test]
fn every_event_of_a_node_is_explained() {
    let source = file("operator/src/write/events.rs");
    let (source, _) = source.split_once("#[cfg(test)]").unwrap();
    let mut known: BTreeSet<&str> = source.split('"').skip(1).step_by(2).filter(|text| text.starts_with("Node")).collect();
    assert!(known.len() >= 6, "{known:?}");
    known.extend(["AdmissionRejected", "RolloutHalted", "RolledBack", "WriteRefused"]);
    let text = file("docs/operations.md");
    let (_, text) = text.split_once("### Events").unwrap();
    let explained = column(text, "event").join(" ");
    let missing: Vec<_> = known.into_iter().filter(|event| !explained.contains(&format!("`{event}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn documented_preset_figures_match_those_of_the_operator() {
    let text = file("docs/operations.md");
    let (_, text) = text.split_once("## Detach and attach timing").unwrap();
    let shown: Vec<Vec<String>> =
        ["preset", "interval", "timeout", "unhealthy, healthy", "propagation"].map(|name| column(text, name)).into();
    let known = |preset: &Preset| {
        let time = |given: &Duration| given.milliseconds().map(|time| if time == 0 { "none".into() } else { format!("{} s", time / 1000) });
        let counts = format!("{}, {}", preset.unhealthy_threshold, preset.healthy_threshold);
        [time(&preset.interval).unwrap(), time(&preset.timeout).unwrap(), counts, time(&preset.propagation).unwrap()]
    };
    let mut seen = 0;
    for (row, name) in shown[0].iter().enumerate() {
        let name = name.split('`').nth(1).unwrap();
        let Some(preset) = PRESETS.get(&serde_json::from_value(name.into()).unwrap()) else {
            assert_eq!(name, "Custom");
            continue;
        };
        for (column, figure) in shown[1..].iter().zip(known(preset)) {
            assert!(column[row].starts_with(&figure), "{name}: {figure}, not {}", column[row]);
        }
        seen += 1;
    }
    assert_eq!(seen, PRESETS.len());
}

#[test]
fn pod_readiness_examples_use_only_fields_of_the_schema() {
    let text = file("docs/pod-readiness.md");
    let schema = manifest::pod_readiness_gate()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone();
    let gates: Vec<_> = examples(&text).into_iter().filter(|(_, example)| example["kind"] == "PodReadinessGate").collect();
    assert!(gates.len() >= 5, "{}", gates.len());
    for (line, example) in &gates {
        assert_eq!(unknown(&example["spec"], &schema, "spec"), Vec::<String>::new(), "line {line}");
        serde_json::from_value::<crds::PodReadinessGate>(example.clone()).unwrap_or_else(|error| panic!("line {line}: {error}"));
    }
    for source in schema["properties"]["source"]["properties"].as_object().unwrap().keys() {
        assert!(text.contains(&format!("| `{source}`")) || text.contains(&format!(", `{source}` |")), "{source} is not in the table");
    }
    for name in [names::READINESS_HOLDS_ANNOTATION, names::INJECT_LABEL] {
        assert!(text.contains(name), "{name}");
    }
}

/// Folders of files that `docs/architecture.md` names without a path.
const FOLDERS: [&str; 7] = [
    "",
    "operator/planner/src/",
    "operator/planner/tests/all/",
    "operator/planner/tests/",
    "auditor/src/",
    "e2e/src/scenarios/bad_input/",
    "docs/",
];

/// Paths of the files that the page names in this line, with their text; of a folder, all that lie in it.
fn named_files(line: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folder = String::new();
    let mut found = Vec::new();
    for word in line.split(|c: char| !(c.is_alphanumeric() || "_-./:".contains(c))).map(|word| word.trim_end_matches(['.', ':'])) {
        let is_file = [".rs", ".yaml", ".md"].iter().any(|end| word.ends_with(end)) && !word.starts_with('.');
        if word.contains('/') && root.join(word).is_dir() {
            folder = format!("{}/", word.trim_end_matches('/'));
            let paths = fs::read_dir(root.join(word)).unwrap().map(|entry| entry.unwrap().path());
            let rust = paths.filter(|path| path.extension().is_some_and(|end| end == "rs"));
            found.extend(rust.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())));
        } else if is_file {
            let path = std::iter::once(folder.as_str()).chain(FOLDERS).map(|folder| format!("{folder}{word}"));
            let path = path.into_iter().find(|path| root.join(path).is_file()).unwrap_or_else(|| panic!("{word} does not exist: {line}"));
            if let Some((of, _)) = path.rsplit_once('/') {
                folder = format!("{of}/");
            }
            found.push((path.clone(), file(&path)));
        }
    }
    found
}

#[test]
fn the_architecture_names_files_and_functions_that_exist() {
    let page = file("docs/architecture.md");
    let mut functions = 0;
    for line in page.lines() {
        let files = named_files(line);
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        // Rows of the table that follows one update: step, what happens, functions, files.
        if cells.len() == 6 && !cells[3].is_empty() && !cells[3].starts_with('-') && cells[3].starts_with('`') {
            for function in cells[3].split('`').filter(|word| word.chars().next().is_some_and(char::is_alphabetic)) {
                let name = function.rsplit("::").next().unwrap_or(function);
                // A variant of an enum begins with a capital letter.
                let function = if name.starts_with(char::is_uppercase) { format!("    {name}") } else { format!("fn {name}") };
                let defined = |text: &String| [",", "(", "<", " {"].iter().any(|next| text.contains(&format!("{function}{next}")));
                assert!(files.iter().any(|(_, text)| defined(text)), "no {name} in {:?}: {line}", cells[4]);
                functions += 1;
            }
        }
    }
    assert!(functions > 20, "{functions} functions");
}
