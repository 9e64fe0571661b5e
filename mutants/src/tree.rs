//! The copy of the tree in which faults are.

use crate::{list::Fault, rewrite};
use anyhow::{Context as _, Result, bail};
use std::{
    collections::{BTreeMap, BTreeSet},
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

/// Makes `tree` a copy of the tracked files, with every fault that can be chosen at run time, and `alone` for good. What has not
/// changed is not touched: Cargo builds by times of files.
pub fn copy(root: &Path, tree: &Path, faults: &[Fault], alone: Option<&Fault>) -> Result<()> {
    let mut by_file: BTreeMap<&str, Vec<&Fault>> = BTreeMap::new();
    for fault in faults.iter().filter(|fault| !fault.build) {
        by_file.entry(&fault.file).or_default().push(fault);
    }
    let names = tracked(root)?;
    for name in &names {
        let mut content = std::fs::read(root.join(name)).with_context(|| name.clone())?;
        let alone = alone.filter(|fault| fault.file == *name);
        let chosen = by_file.remove(name.as_str());
        if alone.is_some() || chosen.is_some() {
            let mut source = String::from_utf8(content)?;
            if let Some(alone) = alone {
                source = rewrite::broken(&source, alone)?;
            }
            // Others of the same file might be in the place that is broken for good, and none of them is asked for then.
            if let Some(chosen) = chosen.filter(|_| alone.is_none()) {
                source = rewrite::with_choices(&source, &chosen)?;
            }
            content = source.into_bytes();
        }
        let to = tree.join(name);
        if std::fs::read(&to).is_ok_and(|there| there == content) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&to, content).with_context(|| to.display().to_string())?;
        std::fs::set_permissions(&to, std::fs::metadata(root.join(name))?.permissions())?;
    }
    if let Some((file, faults)) = by_file.first_key_value() {
        bail!("{}: there is no file {file}", faults[0].name);
    }
    let names: BTreeSet<PathBuf> = names.iter().map(|name| tree.join(name)).collect();
    remove_others(tree, &names)
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
