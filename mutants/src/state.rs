//! What is known from earlier runs, so that one that was stopped goes on.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What became of a fault, or how long a scope takes without any.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Known {
    /// Hash of all that it depends on.
    pub key: String,
    /// The scope, and the test or the end that found it; `None`: it survived.
    pub found: Option<(String, String)>,
    /// How long that took.
    pub seconds: f64,
}

/// By name of the fault; scopes have `scope/` before their name.
#[derive(Debug)]
pub struct State {
    file: PathBuf,
    known: BTreeMap<String, Known>,
}

impl State {
    /// Reads the file; one that is missing or of another form is as good as none.
    pub fn read(file: &Path) -> Self {
        let known = std::fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Self { file: file.to_owned(), known }
    }

    /// What is known of the same fault in the same sources.
    pub fn of(&self, name: &str, key: &str) -> Option<&Known> {
        self.known.get(name).filter(|known| known.key == key)
    }

    /// What was known of it whatever has changed since.
    pub fn ever(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    /// Remembers, at once.
    pub fn note(&mut self, name: &str, known: Known) -> Result<()> {
        self.known.insert(name.to_owned(), known);
        // A file that is half written when the run is stopped would be lost.
        let new = self.file.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(&self.known)?).with_context(|| new.display().to_string())?;
        std::fs::rename(&new, &self.file).with_context(|| self.file.display().to_string())
    }
}
