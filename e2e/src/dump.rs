//! What a failed scenario leaves behind: objects, history and logs. The bed's own files vanish with it.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    auditor::{Answer, Observation},
    bed::Bed,
    images,
};

/// Kinds whose objects are written down, in files of that name.
const KINDS: [&str; 14] = [
    "ingressdaemonsets",
    "nodereadinessgates",
    "podreadinessgates",
    "nodes",
    "pods",
    "deployments",
    "replicasets",
    "daemonsets",
    "controllerrevisions",
    "configmaps",
    "events",
    "leases",
    "clusterrolebindings",
    "rolebindings",
];

/// Writes everything to `target/bed/dumps/<scenario>` and returns that path. What cannot be read is left out.
pub async fn write(bed: &Bed, scenario: &str) -> Result<PathBuf> {
    let directory = images::repository().join("target/bed/dumps").join(scenario);
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("removing the dump of an earlier run, {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    for kind in KINDS {
        let text = bed.kubectl(&["get", kind, "--all-namespaces", "-o", "yaml", "--request-timeout=10s"]).await;
        // Some kinds exist only where the operator is installed.
        if let Ok(text) = text {
            fs::write(directory.join(format!("{kind}.yaml")), text)?;
        }
    }
    copy_logs(bed.state(), bed.state(), &directory)?;
    fs::write(directory.join("answers.txt"), written(&bed.recorder.answers()))?;
    match bed.recorder.history().await {
        Ok(history) => write_history(&directory.join("history.jsonl"), &history)?,
        Err(error) => fs::write(directory.join("history.error"), format!("{error:#}\n"))?,
    }
    Ok(directory)
}

/// One line per answer of a health checker.
fn written(answers: &[Answer]) -> String {
    let line = |answer: &Answer| {
        let (namespace, name) = &answer.resource;
        let (at, code, age) = (answer.at.to_rfc3339(), if answer.serving { 200 } else { 503 }, answer.age);
        format!("{at} {namespace}/{name} {} {} {code} {} {age:?}\n", answer.node, answer.port, answer.reason)
    };
    answers.iter().map(line).collect()
}

/// One line per observation, as the auditor got them.
fn write_history(path: &Path, history: &[Observation]) -> Result<()> {
    let mut file = std::io::BufWriter::new(fs::File::create(path)?);
    for observation in history {
        let line = serde_json::json!({
            "revision": observation.revision,
            "at": observation.at.to_rfc3339(),
            "kind": observation.kind.as_str(),
            "deleted": observation.deleted,
            "object": observation.object,
        });
        writeln!(file, "{line}")?;
    }
    file.flush().context("writing the history")
}

/// Copies every log and configuration below `from`, at the same place below `to`. Volumes of pods, keys and etcd's
/// data stay.
fn copy_logs(root: &Path, from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        if kind.is_dir() {
            if name != "etcd" && name != "pki" && name != "volumes" {
                copy_logs(root, &path, to)?;
            }
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "log" || extension == "cfg") {
            let target = to.join(path.strip_prefix(root).unwrap_or(&path));
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(&path, &target).with_context(|| format!("copying {}", path.display()))?;
        }
    }
    Ok(())
}
