//! Packages of the workspace, what they depend on, and the hash of all that their tests are made from.

use crate::tree;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

/// A package of the workspace.
#[derive(Debug)]
struct Package {
    /// From the root.
    folder: PathBuf,
    /// Packages of the workspace that it needs, those of its tests included.
    needs: Vec<String>,
}

/// All packages of the workspace.
#[derive(Debug)]
pub struct Packages {
    all: BTreeMap<String, Package>,
    /// Hash of the files of each.
    hashes: BTreeMap<String, String>,
}

impl Packages {
    /// Reads what Cargo and git say of the tree.
    pub fn read(root: &Path) -> Result<Self> {
        let arguments = ["metadata", "--format-version", "1", "--no-deps", "--locked"];
        let output = Command::new("cargo").args(arguments).current_dir(root).output().context("cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let mut all = BTreeMap::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let name = package["name"].as_str().unwrap_or_default().to_owned();
            let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
            let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok()).unwrap_or(Path::new("")).to_owned();
            let needs = package["dependencies"].as_array().into_iter().flatten().filter(|dependency| dependency["path"].is_string());
            let needs = needs.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned)).collect();
            all.insert(name, Package { folder, needs });
        }
        let hashes = hashes(root, &all)?;
        Ok(Self { all, hashes })
    }

    /// Folder of a package, from the root.
    pub fn folder(&self, package: &str) -> Option<&Path> {
        self.all.get(package).map(|package| package.folder.as_path())
    }

    /// Changes when a file of the package changes, or one of a package that it needs.
    pub fn hash(&self, package: &str) -> String {
        let mut needed = BTreeSet::new();
        let mut open = vec![package.to_owned()];
        while let Some(next) = open.pop() {
            if let Some(found) = self.all.get(&next).filter(|_| needed.insert(next.clone())) {
                open.extend(found.needs.iter().cloned());
            }
        }
        let parts = needed.iter().filter_map(|name| self.hashes.get(name)).map(String::as_str);
        digest(parts.chain(self.hashes.get("").map(String::as_str)).map(str::as_bytes))
    }
}

/// By package; what belongs to none, and concerns all, is under the empty name.
fn hashes(root: &Path, all: &BTreeMap<String, Package>) -> Result<BTreeMap<String, String>> {
    let mut files: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for name in tree::tracked(root)? {
        let owner = all.iter().filter(|(_, package)| Path::new(&name).starts_with(&package.folder));
        let owner = owner.max_by_key(|(_, package)| package.folder.components().count()).map(|(owner, _)| owner.as_str());
        let common = matches!(name.as_str(), "Cargo.toml" | "Cargo.lock" | "rust-toolchain.toml" | ".cargo/config.toml");
        if let Some(owner) = owner.or(common.then_some("")) {
            let content = std::fs::read(root.join(&name))?;
            files.entry(owner.to_owned()).or_default().extend([name.into_bytes(), content]);
        }
    }
    Ok(files.into_iter().map(|(owner, parts)| (owner, digest(parts.iter().map(Vec::as_slice)))).collect())
}

/// Hash of parts, each with its length.
pub fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let mut text = String::new();
    for byte in hash.finalize().iter().take(12) {
        let _ = write!(text, "{byte:02x}"); // writing to a String does not fail
    }
    text
}
