//! What an update in place leaves on a `ReplicaSet` and on pods: who changed them last, so that a late write of another is
//! refused, and what ran before.

use crate::duration::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The label of a `ReplicaSet`: `<first 8 of the resource's UID>.<id>`.
pub fn token(uid8: &str, id: u64) -> String {
    format!("{uid8}.{id}")
}

/// The id in the label of a `ReplicaSet` of this resource; 0 when there is none, or it is another's.
pub fn token_id(uid8: &str, label: Option<&str>) -> u64 {
    let id = label.and_then(|label| label.strip_prefix(uid8)?.strip_prefix('.')?.parse().ok());
    id.unwrap_or(0)
}

/// The annotation of a pod. Writer: the operator, in the patch that changes the images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Id of the grant under which the pod changed last.
    pub id: u64,
    /// When the images were changed, seconds since 1970 by the operator's clock.
    #[serde(default)]
    pub at: UnixSeconds,
    /// What ran in each container whose image was changed, by its name.
    #[serde(default)]
    pub before: BTreeMap<String, Instance>,
}

/// A run of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Container ID; empty if no run had begun.
    #[serde(default)]
    pub container: String,
    /// The image that it was begun with.
    pub image: String,
    /// The image that its status showed: any name of it.
    #[serde(default)]
    pub shown: String,
    /// The ID that its status showed of that.
    #[serde(default)]
    pub image_id: String,
    /// How often the container had been restarted by then.
    #[serde(default)]
    pub restarts: i32,
}

impl PodRecord {
    /// Reads the annotation; one that cannot be read is none.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        serde_json::from_str(text?).ok()
    }
}

impl std::fmt::Display for PodRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_a_foreign_token_is_ignored() {
        let instance = Instance { container: "containerd://1".into(), image: "app:1".into(), restarts: 2, ..Instance::default() };
        let record = PodRecord { id: 7, at: 1_700_000_000, before: [("app".to_owned(), instance)].into() };
        assert_eq!(PodRecord::parse(Some(&record.to_string())), Some(record));
        assert_eq!(PodRecord::parse(Some("{}")), None);
        assert_eq!(token_id("0a1b2c3d", Some(&token("0a1b2c3d", 7))), 7);
        assert_eq!(token_id("0a1b2c3d", Some(&token("ffffffff", 7))), 0);
    }
}
