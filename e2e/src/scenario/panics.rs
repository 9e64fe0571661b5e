//! Panics of our programs: a kubelet, a scenario or the program's own runtime goes on after one, and nobody else would notice.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    auditor::{Kind, Observation},
    scenario::dump,
};

/// How Rust begins to tell of a panic, in whatever thread.
const WORDS: &str = "panicked at";
/// How a program of ours ends that does not survive one.
const CODE: i64 = 101;

/// Fails when a log below a directory of the bed tells of a panic.
pub fn in_logs(directory: &Path) -> Result<()> {
    let told = told(directory)?;
    ensure!(told.is_empty(), "a program panicked: {}", told.join("; "));
    Ok(())
}

/// Fails when a container ended by a panic: the logs of pods that are gone are gone, too.
pub fn in_history(history: &[Observation]) -> Result<()> {
    let ended: Vec<_> = history.iter().filter_map(ended).collect();
    ensure!(ended.is_empty(), "a container panicked: {}", ended.join("; "));
    Ok(())
}

/// Lines of logs below a directory that tell of a panic, each with its log.
fn told(directory: &Path) -> Result<Vec<String>> {
    let mut told = Vec::new();
    for path in dump::files(directory, &["log"])? {
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            bytes => bytes.with_context(|| format!("reading {}", path.display()))?,
        };
        let shown = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
        let text = String::from_utf8_lossy(&bytes);
        told.extend(text.lines().filter(|line| line.contains(WORDS)).map(|line| format!("{shown}: {line}")));
    }
    Ok(told)
}

/// The pod, if this shows that a container of it ended by a panic.
fn ended(seen: &Observation) -> Option<String> {
    let pod = &seen.object;
    let containers = pod["status"]["containerStatuses"].as_array().filter(|_| seen.kind == Kind::Pod)?;
    let code = |container: &Value, state: &str| container[state]["terminated"]["exitCode"].as_i64();
    let panicked = |container: &&Value| ["state", "lastState"].iter().any(|state| code(container, state) == Some(CODE));
    let container = containers.iter().find(panicked)?;
    Some(format!("{} of {}", container["name"], pod["metadata"]["name"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::DynamicObject;
    use serde_json::json;

    #[test]
    fn panics_are_found_in_logs_but_not_in_volumes() {
        let directory = std::env::temp_dir().join(format!("panics-{}", std::process::id()));
        let (logs, volumes) = (directory.join("n1/pods/edge"), directory.join("n1/volumes"));
        for place in [&logs, &volumes] {
            fs::create_dir_all(place).unwrap();
            fs::write(place.join("0.log"), "fine\nthread 'main' (1) panicked at src/main.rs:1:1:\n").unwrap();
        }
        let found = told(&directory).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, ["n1/pods/edge/0.log: thread 'main' (1) panicked at src/main.rs:1:1:"]);
    }

    #[test]
    fn a_container_exiting_with_the_panic_code_has_panicked() {
        let pod = |state: Value, last: Value| {
            let object: DynamicObject = serde_json::from_value(json!({
                "metadata": { "name": "operator-1", "resourceVersion": "1" },
                "status": { "containerStatuses": [{ "name": "operator", "state": state, "lastState": last }] },
            }))
            .unwrap();
            ended(&Observation::of(Kind::Pod, false, object))
        };
        let with = |code: i64| json!({ "terminated": { "exitCode": code } });
        let runs = json!({ "running": {} });
        assert_eq!(pod(runs.clone(), with(1)), None);
        assert_eq!(pod(with(0), Value::Null), None);
        assert!(pod(runs, with(101)).is_some());
        assert!(pod(with(101), Value::Null).is_some());
    }
}
