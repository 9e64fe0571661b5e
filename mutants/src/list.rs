//! The list of faults, and what each scope of tests is.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// One fault of production code.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Unique; its beginning groups faults.
    pub name: String,
    /// Path from the root of the repository.
    pub file: String,
    /// Text that surrounds it, where `original` alone would be found more than once.
    #[serde(default)]
    pub within: Option<String>,
    /// An expression, or statements, as in the file but for white space.
    pub original: String,
    /// What stands in its place.
    pub broken: String,
    /// Scopes whose tests are expected to find it, the likeliest first.
    pub tests: Vec<String>,
    /// Why no test finds it.
    #[serde(default)]
    pub survives: Option<String>,
    /// It cannot be chosen at run time (a constant, an attribute): built alone.
    #[serde(default)]
    pub build: bool,
}

/// Tests of one executable.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Cargo package.
    pub package: String,
    /// Its test target: `lib`, or the name of one below `tests`.
    pub target: String,
    /// Parts of names of tests; all tests without.
    #[serde(default)]
    pub filter: Vec<String>,
    /// Parts of names of tests that are left out.
    #[serde(default)]
    pub skip: Vec<String>,
    /// Variables that the tests read.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// All faults, and all scopes by name.
#[derive(Debug)]
pub struct List {
    /// In the order of the files and of their lines.
    pub faults: Vec<Fault>,
    /// By name.
    pub scopes: BTreeMap<String, Scope>,
}

impl List {
    /// Reads `scopes.yaml` and `faults/*.yaml` in this folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let scopes: BTreeMap<String, Scope> = yaml(&folder.join("scopes.yaml"))?;
        let entries = std::fs::read_dir(folder.join("faults"))?.collect::<std::io::Result<Vec<_>>>()?;
        let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
        files.sort();
        let mut faults = Vec::new();
        for file in files {
            faults.extend(yaml::<Vec<Fault>>(&file)?);
        }
        let list = Self { faults, scopes };
        list.check()?;
        Ok(list)
    }

    fn check(&self) -> Result<()> {
        if let Some(idle) = self.scopes.keys().find(|scope| !self.faults.iter().any(|fault| fault.tests.contains(scope))) {
            bail!("{idle}: no fault names this scope of scopes.yaml");
        }
        let mut names = BTreeSet::new();
        for fault in &self.faults {
            if !names.insert(&fault.name) {
                bail!("{}: two faults have this name", fault.name);
            }
            if fault.tests.is_empty() {
                bail!("{}: no tests are named", fault.name);
            }
            if let Some(unknown) = fault.tests.iter().find(|scope| !self.scopes.contains_key(*scope)) {
                bail!("{}: there is no scope {unknown} in scopes.yaml", fault.name);
            }
        }
        Ok(())
    }

    /// Test targets that one fault needs.
    pub fn targets(&self, fault: &Fault) -> BTreeSet<&str> {
        fault.tests.iter().map(|scope| self.scopes[scope].target.as_str()).collect()
    }

    /// Packages whose tests are built: always all, for Cargo unites their features.
    pub fn packages(&self) -> BTreeSet<&str> {
        let used: BTreeSet<_> = self.faults.iter().flat_map(|fault| &fault.tests).collect();
        used.into_iter().map(|scope| self.scopes[scope].package.as_str()).collect()
    }
}

fn yaml<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| file.display().to_string())
}
