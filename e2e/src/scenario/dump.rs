//! What a failed scenario leaves behind: objects, history and logs. The bed's own files vanish with it.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    auditor::{Answer, Observation},
    bed::Bed,
    host::images,
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

/// A variable: the name of the dump, if it is not that of the scenario. Else runs of one scenario on several versions would share one.
pub const NAME: &str = "BED_DUMP";

/// Where the dump of this name is.
pub fn directory_of(name: &str) -> PathBuf {
    images::repository().join("target/bed/dumps").join(name)
}

/// Whether there is a dump of this name that was written in the last so many seconds: else it is of an earlier run.
pub fn is_of_the_last(seconds: f32, directory: &Path) -> bool {
    let written = fs::metadata(directory).and_then(|metadata| metadata.modified());
    written.is_ok_and(|written| written.elapsed().unwrap_or_default().as_secs_f32() <= seconds)
}

/// Writes the dump, and prints where it is.
pub async fn tell(bed: &Bed, scenario: &str) {
    match write(bed, scenario).await {
        Ok(path) => println!("objects, history and logs are in {}", path.display()),
        Err(error) => println!("writing the dump failed as well: {error:#}"),
    }
}

/// Writes everything to `target/bed/dumps/<scenario>`, or below the name in [`NAME`], and returns that path. What cannot be read is left
/// out.
async fn write(bed: &Bed, scenario: &str) -> Result<PathBuf> {
    let directory = directory_of(&std::env::var(NAME).unwrap_or_else(|_| scenario.to_owned()));
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
    copy_logs(bed.state(), &directory)?;
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

/// Copies every log and configuration below `from`, at the same place below `to`.
fn copy_logs(from: &Path, to: &Path) -> Result<()> {
    for path in files(from, &["log", "cfg"])? {
        let target = to.join(path.strip_prefix(from).unwrap_or(&path));
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(&path, &target).with_context(|| format!("copying {}", path.display()))?;
    }
    Ok(())
}

/// Files with these endings below a directory of the bed, but for volumes of pods, keys and etcd's data. What goes meanwhile is left out:
/// so do directories of pods.
pub(crate) fn files(from: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries.with_context(|| format!("reading {}", from.display()))?,
    };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && name != "etcd" && name != "pki" && name != "volumes" {
            found.extend(files(&path, endings)?);
        } else if kind.is_file() && path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one)) {
            found.push(path);
        }
    }
    Ok(found)
}
