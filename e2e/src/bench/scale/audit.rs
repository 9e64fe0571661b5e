//! What the operator writes, as the API server's audit log has it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::rights::{OPERATOR, audit_log};

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
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
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
        let mut file = File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut writes = Writes::new();
        for line in BufReader::new(file).lines() {
            if let Some(kind) = write(&line?) {
                *writes.entry(kind).or_default() += 1;
            }
        }
        Ok(writes)
    }
}

/// Of which kind a write of the operator is; nothing for what is none, or not counted.
fn write(line: &str) -> Option<String> {
    // The last line may be written half.
    let entry: Entry = serde_json::from_str(line).ok()?;
    let Object { resource, subresource } = entry.object?;
    let counted = entry.user.username == OPERATOR
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
    fn a_write_counts_whatever_it_is_written_to() {
        assert_eq!(write(&line(OPERATOR, "patch", "ingressdaemonsets", "status")).as_deref(), Some("patch ingressdaemonsets/status"));
        assert_eq!(write(&line(OPERATOR, "create", "deployments", "")).as_deref(), Some("create deployments"));
    }

    #[test]
    fn reads_events_the_lease_and_others_writes_do_not_count() {
        assert_eq!(write(&line(OPERATOR, "list", "deployments", "")), None);
        assert_eq!(write(&line(OPERATOR, "create", "events", "")), None);
        assert_eq!(write(&line(OPERATOR, "patch", "leases", "")), None);
        assert_eq!(write(&line("system:serviceaccount:default:other", "patch", "deployments", "")), None);
    }

    #[test]
    fn a_line_that_is_cut_off_is_no_write() {
        let line = line(OPERATOR, "patch", "deployments", "");
        assert_eq!(write(&line[..line.len() / 2]), None);
    }
}
