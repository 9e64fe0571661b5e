//! The copy of the tree in which faults are.

use crate::{list::Fault, rewrite};
use anyhow::{Context as _, Result, bail};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs::Permissions,
    path::{Path, PathBuf},
    process::Command,
};

/// Files that git tracks and that are there, as paths from the root.
pub fn tracked(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split('\0').filter(|name| !name.is_empty() && root.join(name).is_file()).map(str::to_owned).collect())
}

/// The tracked files as they were when a run began, which takes long: an edit meanwhile changes nothing that it tests.
pub struct Sources(BTreeMap<String, (Vec<u8>, Permissions)>);

impl Sources {
    /// Reads all of them.
    pub fn read(root: &Path) -> Result<Self> {
        let file = |name: String| {
            let path = root.join(&name);
            let content = std::fs::read(&path).with_context(|| name.clone())?;
            let permissions = std::fs::metadata(&path).with_context(|| name.clone())?.permissions();
            Ok((name, (content, permissions)))
        };
        Ok(Self(tracked(root)?.into_iter().map(file).collect::<Result<_>>()?))
    }

    /// Makes `tree` a copy of them, with every fault that can be chosen at run time, and `alone` for good. What has not changed is not
    /// touched: Cargo builds by times of files.
    pub fn copy_to(&self, tree: &Path, faults: &[Fault], alone: Option<&Fault>) -> Result<()> {
        let mut by_file: BTreeMap<&str, Vec<&Fault>> = BTreeMap::new();
        for fault in faults.iter().filter(|fault| !fault.build) {
            by_file.entry(&fault.file).or_default().push(fault);
        }
        for (name, (content, permissions)) in &self.0 {
            let alone = alone.filter(|fault| fault.file == *name);
            let chosen = by_file.remove(name.as_str());
            let content = match (alone, chosen) {
                (None, None) => Cow::Borrowed(content.as_slice()),
                // Others of the same file might be in the place that is broken for good, and none of them is asked for then.
                (Some(alone), _) => Cow::Owned(rewrite::broken(str::from_utf8(content)?, alone)?.into_bytes()),
                (None, Some(chosen)) => Cow::Owned(rewrite::with_choices(str::from_utf8(content)?, &chosen)?.into_bytes()),
            };
            let to = tree.join(name);
            if std::fs::read(&to).is_ok_and(|there| content == there) {
                continue;
            }
            if let Some(folder) = to.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&to, content).with_context(|| to.display().to_string())?;
            std::fs::set_permissions(&to, permissions.clone())?;
        }
        if let Some((file, faults)) = by_file.first_key_value() {
            bail!("{}: there is no file {file}", faults[0].name);
        }
        remove_others(tree, &self.0.keys().map(|name| tree.join(name)).collect())
    }
}

/// What tests have written into the copy, and what is no longer tracked.
fn remove_others(folder: &Path, names: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), names)?;
        } else if !names.contains(&entry.path()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
