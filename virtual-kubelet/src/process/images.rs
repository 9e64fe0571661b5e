//! The table from image names to local programs.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;
use serde::Deserialize;

use crate::pod::environment::expand;

/// What an image stands for.
///
/// ```
/// use virtual_kubelet::process::Image;
///
/// let image: Image = serde_json::from_str(r#"{"command": ["/usr/sbin/nginx", "-g", "daemon off;"], "stopSignal": "SIGQUIT"}"#)?;
/// assert_eq!(image.command[0], "/usr/sbin/nginx");
/// assert_eq!((image.user, image.working_dir), (None, None));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The entry point, replaced by a container's `command`.
    #[serde(default)]
    pub command: Vec<String>,
    /// Default arguments, replaced by a container's `args` and dropped when it has a `command`.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables below those of the container.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; `/` without one.
    #[serde(default)]
    pub working_dir: Option<PathBuf>,
    /// User id when the container names none; unknown without one.
    #[serde(default)]
    pub user: Option<u32>,
    /// Signal that asks the program to end, such as `SIGQUIT`; `SIGTERM` without one.
    #[serde(default)]
    pub stop_signal: Option<String>,
    /// Directories that are empty and private at each start of a container.
    #[serde(default)]
    pub scratch: Vec<PathBuf>,
    /// Path in the container -> file or directory of the host, read-only.
    #[serde(default)]
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// What the image is whatever it is called, such as `sha256:` and a number: names of one digest are one image. Without one each
    /// name is an image of its own.
    #[serde(default)]
    pub digest: Option<String>,
}

/// What a status shows of an image that runs.
///
/// ```
/// use virtual_kubelet::process::{ImageTable, Shown};
///
/// let shown = ImageTable::new("/nowhere/images.json".into()).shown("nginx:1.22");
/// assert_eq!(shown, Shown { image: "nginx:1.22".into(), id: "process-image://nginx:1.22".into() });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shown {
    /// A name of the image, not always the one that the pod has.
    pub image: String,
    /// Its ID, the same for all names of one digest.
    pub id: String,
}

/// Why an image cannot be had.
///
/// ```
/// use virtual_kubelet::process::{ImageError, ImageTable};
///
/// let missing = ImageTable::new("/nowhere/images.json".into()).find("nginx:1.22");
/// assert!(matches!(missing, Err(ImageError::Table { path, .. }) if path == "/nowhere/images.json"));
/// assert!(ImageError::Unknown("nginx:1.22".into()).to_string().starts_with("failed to pull image"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The table itself is unusable.
    #[error("reading {path}: {reason}")]
    Table {
        /// The table's file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The table has no such image.
    #[error("failed to pull image \"{0}\": not in the table of images")]
    Unknown(String),
}

/// The table as a file, read anew at each look so that an image added later is found at the next pull.
///
/// ```
/// use virtual_kubelet::process::{ImageError, ImageTable};
///
/// let file = std::env::temp_dir().join(format!("images-{}.json", std::process::id()));
/// std::fs::write(&file, r#"{"pause:3": {"command": ["/bin/sleep", "infinity"]}}"#)?;
/// let table = ImageTable::new(file.clone());
/// assert_eq!(table.find("pause:3")?.command, ["/bin/sleep", "infinity"]);
/// assert!(matches!(table.find("pause"), Err(ImageError::Unknown(_))));
/// assert_eq!(table.read()?.len(), 1);
/// # std::fs::remove_file(file)?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageTable(PathBuf);

impl ImageTable {
    /// The table in the JSON file at `path`: image name -> [`Image`].
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Reads the whole table. [`ImageError::Table`] when that cannot be done.
    pub fn read(&self) -> Result<HashMap<String, Image>, ImageError> {
        let failed = |reason: String| ImageError::Table { path: self.0.display().to_string(), reason };
        let text = std::fs::read(&self.0).map_err(|error| failed(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))
    }

    /// What a status shows of the image of this name. Of several names of one digest that is the first: containerd, too, shows the
    /// first name that it knows of an image, whichever the pod has.
    ///
    /// ```
    /// # let file = std::env::temp_dir().join(format!("images-shown-{}.json", std::process::id()));
    /// use virtual_kubelet::process::ImageTable;
    ///
    /// std::fs::write(&file, r#"{"web:1": {"command": ["w"], "digest": "sha256:1"}, "web:1.0": {"command": ["w"], "digest":
    /// "sha256:1"}}"#)?; let shown = ImageTable::new(file.clone()).shown("web:1.0"); assert_eq!((shown.image.as_str(), shown.id.as_str()),
    /// ("web:1", "process-image://sha256:1"));
    /// # std::fs::remove_file(file)?;
    /// # Ok::<_, std::io::Error>(())
    /// ```
    pub fn shown(&self, name: &str) -> Shown {
        let table = self.read().unwrap_or_default();
        let Some(digest) = table.get(name).and_then(|image| image.digest.as_deref()) else {
            return Shown { image: name.to_owned(), id: format!("process-image://{name}") };
        };
        let same = table.iter().filter(|(_, image)| image.digest.as_deref() == Some(digest)).map(|(name, _)| name.as_str());
        Shown { image: same.min().unwrap_or(name).to_owned(), id: format!("process-image://{digest}") }
    }

    /// The image of exactly this name; [`ImageError::Unknown`] without one.
    pub fn find(&self, name: &str) -> Result<Image, ImageError> {
        self.read()?.remove(name).ok_or_else(|| ImageError::Unknown(name.to_owned()))
    }
}

/// The words to run: `command` replaces the image's entry point and its arguments, `args` only those.
pub fn argv(image: &Image, container: &Container, environment: &BTreeMap<String, String>) -> Vec<String> {
    let own = |words: &Option<Vec<String>>| -> Option<Vec<String>> {
        let words = words.as_ref().filter(|words| !words.is_empty())?;
        Some(words.iter().map(|word| expand(word, |name| environment.get(name).cloned())).collect())
    };
    let (command, args) = (own(&container.command), own(&container.args));
    let default_args = if command.is_some() { Vec::new() } else { image.args.clone() };
    let mut words = command.unwrap_or_else(|| image.command.clone());
    words.extend(args.unwrap_or(default_args));
    words
}

/// The first directory of `path_variable` that has `program`; `program` itself when it has a slash.
pub fn find_program(program: &str, path_variable: &str, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    path_variable.split(':').map(|dir| Path::new(dir).join(program)).find(|path| exists(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    fn container(command: &[&str], args: &[&str]) -> Container {
        Container { command: Some(words(command)), args: Some(words(args)), ..Container::default() }
    }

    #[test]
    fn command_replaces_entry_point_and_arguments_but_args_only_arguments() {
        let image = Image { command: words(&["/bin/a"]), args: words(&["-x"]), ..Image::default() };
        let env = [("V".to_owned(), "1".to_owned())].into();
        assert_eq!(argv(&image, &container(&[], &[]), &env), words(&["/bin/a", "-x"]));
        assert_eq!(argv(&image, &container(&[], &["$(V)"]), &env), words(&["/bin/a", "1"]));
        assert_eq!(argv(&image, &container(&["b"], &[]), &env), words(&["b"]));
        assert_eq!(argv(&image, &container(&["b"], &["c"]), &env), words(&["b", "c"]));
    }

    #[test]
    fn a_program_without_slash_is_looked_up_in_the_path() {
        let found = find_program("sh", "/usr/bin:/bin", |path| path == Path::new("/bin/sh"));
        assert_eq!(found, Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("nope", "/bin", |_| false), None);
    }
}
