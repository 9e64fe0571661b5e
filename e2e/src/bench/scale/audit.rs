//! What the operator writes, as the API server's audit log has it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use crate::bed::{operator, rights::audit_log};

/// Requests by verb and resource, such as `patch deployments`.
pub type Writes = BTreeMap<String, usize>;

/// The log from a moment on.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
}

#[derive(Deserialize)]
struct Entry {
    verb: String,
    user: User,
    #[serde(rename = "objectRef")]
    object: Option<Object>,
    #[serde(rename = "responseStatus", default)]
    response: Response,
    /// When the stage was reached that the entry is about: writes have one, the last.
    #[serde(rename = "stageTimestamp", default)]
    at: Timestamp,
}

#[derive(Default, Deserialize)]
struct Response {
    code: u16,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    name: String,
    resource: String,
    subresource: String,
}

impl AuditLog {
    /// What is written from now on.
    pub fn from_now(state: &Path) -> Result<Self> {
        let path = audit_log(state);
        let from = std::fs::metadata(&path).with_context(|| format!("looking at {}", path.display()))?.len();
        Ok(Self { path, from })
    }

    /// The operator's writes since then.
    pub fn writes(&self) -> Result<Writes> {
        let mut writes = Writes::new();
        for line in self.lines()? {
            if let Some(kind) = write(&line?) {
                *writes.entry(kind).or_default() += 1;
            }
        }
        Ok(writes)
    }

    /// When the first patch of each Node by the operator since then, that took effect, was done.
    pub fn patched_nodes(&self) -> Result<BTreeMap<String, Timestamp>> {
        let mut patched = BTreeMap::new();
        for line in self.lines()? {
            if let Some((name, at)) = patched_node(&line?) {
                patched.entry(name).or_insert(at);
            }
        }
        Ok(patched)
    }

    fn lines(&self) -> Result<impl Iterator<Item = std::io::Result<String>>> {
        let mut file = File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.from))?;
        Ok(BufReader::new(file).lines())
    }
}

fn patched_node(line: &str) -> Option<(String, Timestamp)> {
    let entry: Entry = serde_json::from_str(line).ok()?;
    let object = entry.object?;
    let is_one =
        entry.user.username == operator::USER && entry.verb == "patch" && object.resource == "nodes" && object.subresource.is_empty();
    (is_one && entry.response.code == 200).then_some((object.name, entry.at))
}

/// Of which kind a write of the operator is; nothing for what is none, or not counted.
fn write(line: &str) -> Option<String> {
    // The last line may be written half.
    let entry: Entry = serde_json::from_str(line).ok()?;
    let Object { resource, subresource, .. } = entry.object?;
    let counted = entry.user.username == operator::USER
        && ["create", "update", "patch", "delete"].contains(&entry.verb.as_str())
        && !["events", "leases"].contains(&resource.as_str());
    let slash = if subresource.is_empty() { "" } else { "/" };
    counted.then(|| format!("{} {resource}{slash}{subresource}", entry.verb))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, verb: &str, resource: &str, subresource: &str) -> String {
        let object = serde_json::json!({ "resource": resource, "subresource": subresource, "name": "edge" });
        serde_json::json!({ "kind": "Event", "verb": verb, "user": { "username": user, "groups": [] }, "objectRef": object }).to_string()
    }

    #[test]
    fn a_node_is_patched_when_the_operators_patch_took_effect() {
        let entry = |user: &str, subresource: &str, code: u16| {
            let object = serde_json::json!({ "resource": "nodes", "subresource": subresource, "name": "n1" });
            let at = "2026-11-23T06:28:14.650498Z";
            serde_json::json!({ "verb": "patch", "user": { "username": user }, "objectRef": object, "responseStatus": { "code": code }, "stageTimestamp": at })
                .to_string()
        };
        let patched = patched_node(&entry(operator::USER, "", 200)).expect("it is");
        assert_eq!((patched.0.as_str(), patched.1.to_string().as_str()), ("n1", "2026-11-23T06:28:14.650498Z"));
        for other in [entry("admin", "", 200), entry(operator::USER, "status", 200), entry(operator::USER, "", 422)] {
            assert!(patched_node(&other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_write_counts_whatever_it_is_written_to() {
        assert_eq!(write(&line(operator::USER, "patch", "ingressdaemonsets", "status")).as_deref(), Some("patch ingressdaemonsets/status"));
        assert_eq!(write(&line(operator::USER, "create", "deployments", "")).as_deref(), Some("create deployments"));
    }

    #[test]
    fn reads_events_the_lease_and_others_writes_do_not_count() {
        assert_eq!(write(&line(operator::USER, "list", "deployments", "")), None);
        assert_eq!(write(&line(operator::USER, "create", "events", "")), None);
        assert_eq!(write(&line(operator::USER, "patch", "leases", "")), None);
        assert_eq!(write(&line("system:serviceaccount:default:other", "patch", "deployments", "")), None);
    }

    #[test]
    fn a_line_that_is_cut_off_is_no_write() {
        let line = line(operator::USER, "patch", "deployments", "");
        assert_eq!(write(&line[..line.len() / 2]), None);
    }
}
