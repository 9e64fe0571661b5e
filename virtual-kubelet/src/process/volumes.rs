//! Contents of a pod's volumes, and how they get into directories.

use std::collections::BTreeMap;
use std::fs::{self, FileType, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume};

use super::container_init::Mount;
use crate::pod::environment::{NodeFacts, container_resource, expand, field_value};
use crate::pod::references::{References, Wanted};

/// Name of the link to the present contents inside a volume.
const PRESENT: &str = "..data";

/// Why a volume cannot be filled (yet).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// Something it refers to is missing.
    #[error("{0}")]
    Missing(String),
    /// A kind of volume that processes cannot have.
    #[error("volume \"{0}\" is of a kind that is not supported")]
    Unsupported(String),
}

/// A service account token that a volume asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenWish {
    /// Audience; the API server's own when empty.
    pub audience: String,
    /// Life asked for, in seconds.
    pub seconds: i64,
}

/// Files by relative path, with their mode.
pub type Files = BTreeMap<String, (Vec<u8>, u32)>;

/// `ConfigMaps` and Secrets that the pod's volumes refer to.
pub fn wanted(pod: &Pod) -> Wanted {
    let mut wanted = Wanted::default();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        wanted.config_maps.extend(volume.config_map.as_ref().map(|source| source.name.clone()));
        wanted.secrets.extend(volume.secret.as_ref().and_then(|source| source.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            wanted.config_maps.extend(source.config_map.as_ref().map(|source| source.name.clone()));
            wanted.secrets.extend(source.secret.as_ref().map(|source| source.name.clone()));
        }
    }
    wanted
}

/// Tokens that the pod's volumes ask for.
pub fn token_wishes(pod: &Pod) -> Vec<TokenWish> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.flat_map(|volume| volume.projected.iter()).flat_map(|projected| projected.sources.iter().flatten());
    let tokens = sources.filter_map(|source| source.service_account_token.as_ref());
    let mut wishes: Vec<_> = tokens
        .map(|token| TokenWish { audience: token.audience.clone().unwrap_or_default(), seconds: token.expiration_seconds.unwrap_or(3600) })
        .collect();
    wishes.sort();
    wishes.dedup();
    wishes
}

fn mode(value: Option<i32>, default: Option<i32>) -> u32 {
    value.or(default).and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644)
}

/// Picks `items` out of `data`, or all of it without items.
fn pick(
    files: &mut Files,
    what: &str,
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
    default_mode: Option<i32>,
) -> Result<(), VolumeError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        files.extend(data.iter().map(|(key, value)| (key.clone(), (value.clone(), mode(None, default_mode)))));
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(value) => {
                files.insert(item.path.clone(), (value.clone(), mode(item.mode, default_mode)));
            }
            None if optional => {}
            None => return Err(VolumeError::Missing(format!("{what} references non-existent key: {}", item.key))),
        }
    }
    Ok(())
}

fn config_map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    text.chain(binary).collect()
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

/// What a source of files is made from.
pub struct Ingredients<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What its volumes refer to.
    pub references: &'a References,
    /// Its tokens.
    pub tokens: &'a BTreeMap<TokenWish, String>,
    /// The node.
    pub node: &'a NodeFacts,
}

impl Ingredients<'_> {
    fn config_map(
        &self,
        files: &mut Files,
        name: &str,
        items: Option<&Vec<KeyToPath>>,
        optional: bool,
        default: Option<i32>,
    ) -> Result<(), VolumeError> {
        match self.references.config_maps.get(name) {
            Some(map) => pick(files, &format!("configmap {name}"), &config_map_data(map), items, optional, default),
            None if optional => Ok(()),
            None => Err(VolumeError::Missing(format!("configmap \"{name}\" not found"))),
        }
    }

    fn secret(
        &self,
        files: &mut Files,
        name: &str,
        items: Option<&Vec<KeyToPath>>,
        optional: bool,
        default: Option<i32>,
    ) -> Result<(), VolumeError> {
        match self.references.secrets.get(name) {
            Some(secret) => pick(files, &format!("secret {name}"), &secret_data(secret), items, optional, default),
            None if optional => Ok(()),
            None => Err(VolumeError::Missing(format!("secret \"{name}\" not found"))),
        }
    }

    fn downward(&self, files: &mut Files, items: Option<&Vec<DownwardAPIVolumeFile>>, default: Option<i32>) -> Result<(), VolumeError> {
        for item in items.into_iter().flatten() {
            let value = if let Some(field) = &item.field_ref {
                field_value(self.pod, &self.node.address, &field.field_path)
            } else if let Some(selector) = &item.resource_field_ref {
                container_resource(self.pod, selector, self.node)
            } else {
                continue;
            };
            let value = value.map_err(|error| VolumeError::Missing(error.to_string()))?;
            files.insert(item.path.clone(), (value.into_bytes(), mode(item.mode, default)));
        }
        Ok(())
    }

    /// The files of a volume; `None` for volumes that are directories of their own.
    pub fn files(&self, volume: &Volume) -> Result<Option<Files>, VolumeError> {
        let mut files = Files::new();
        if let Some(source) = &volume.config_map {
            self.config_map(&mut files, &source.name, source.items.as_ref(), source.optional == Some(true), source.default_mode)?;
        } else if let Some(source) = &volume.secret {
            let name = source.secret_name.as_deref().unwrap_or_default();
            self.secret(&mut files, name, source.items.as_ref(), source.optional == Some(true), source.default_mode)?;
        } else if let Some(source) = &volume.downward_api {
            self.downward(&mut files, source.items.as_ref(), source.default_mode)?;
        } else if let Some(projected) = &volume.projected {
            let default = projected.default_mode;
            for source in projected.sources.iter().flatten() {
                let known = source.config_map.is_some()
                    || source.secret.is_some()
                    || source.downward_api.is_some()
                    || source.service_account_token.is_some();
                if !known {
                    return Err(VolumeError::Unsupported(volume.name.clone()));
                }
                if let Some(map) = &source.config_map {
                    self.config_map(&mut files, &map.name, map.items.as_ref(), map.optional == Some(true), default)?;
                }
                if let Some(secret) = &source.secret {
                    self.secret(&mut files, &secret.name, secret.items.as_ref(), secret.optional == Some(true), default)?;
                }
                if let Some(downward) = &source.downward_api {
                    self.downward(&mut files, downward.items.as_ref(), default)?;
                }
                if let Some(token) = &source.service_account_token {
                    let wish = TokenWish {
                        audience: token.audience.clone().unwrap_or_default(),
                        seconds: token.expiration_seconds.unwrap_or(3600),
                    };
                    let value = self.tokens.get(&wish).ok_or_else(|| VolumeError::Missing("no service account token yet".into()))?;
                    files.insert(token.path.clone(), (value.clone().into_bytes(), mode(None, default)));
                }
            }
        } else if volume.empty_dir.is_some() || volume.host_path.is_some() {
            return Ok(None);
        } else {
            return Err(VolumeError::Unsupported(volume.name.clone()));
        }
        Ok(Some(files))
    }
}

/// Replaces the contents of `directory` in one step: readers see all of the old or all of the new.
pub fn write(directory: &Path, files: &Files) -> Result<()> {
    fs::create_dir_all(directory)?;
    if is_written(directory, files) {
        return Ok(());
    }
    let before = fs::read_link(directory.join(PRESENT)).ok();
    let name = format!("..{}", jiff::Timestamp::now().as_nanosecond());
    let fresh = directory.join(&name);
    fs::create_dir(&fresh)?;
    for (path, (content, mode)) in files {
        let file = fresh.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
        fs::set_permissions(&file, Permissions::from_mode(*mode))?;
    }
    let swap = directory.join("..data_tmp");
    let _ = fs::remove_file(&swap);
    symlink(&name, &swap)?;
    fs::rename(&swap, directory.join(PRESENT))?;
    let tops: std::collections::BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for top in &tops {
        let link = directory.join(top);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(PRESENT).join(top), &link)?;
        }
    }
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !tops.contains(name.as_ref()) {
            fs::remove_file(entry.path())?;
        }
    }
    if let Some(before) = before {
        fs::remove_dir_all(directory.join(before))?;
    }
    Ok(())
}

fn is_written(directory: &Path, files: &Files) -> bool {
    let present = directory.join(PRESENT);
    let count = fs::read_dir(directory)
        .map_or(0, |entries| entries.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with("..")).count());
    let tops: std::collections::BTreeSet<_> = files.keys().filter_map(|path| path.split('/').next()).collect();
    present.exists()
        && count == tops.len()
        && files.iter().all(|(path, (content, _))| fs::read(present.join(path)).is_ok_and(|now| now == *content))
}

/// Makes the directory of a volume that is one by itself: `emptyDir`, or a `hostPath` to be created.
pub fn make_directory(volume: &Volume, directory: &Path) -> Result<()> {
    // Once: what a program makes of its permissions is its own affair.
    if volume.empty_dir.is_some() && !directory.exists() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o777))?;
    }
    if let Some(host) = &volume.host_path {
        check_host_path(Path::new(&host.path), host.type_.as_deref().unwrap_or_default())?;
    }
    Ok(())
}

/// Makes and checks a path of the machine as its `type` says; without one, nothing is.
fn check_host_path(path: &Path, kind: &str) -> Result<()> {
    if !path.exists() {
        match kind {
            "DirectoryOrCreate" => fs::create_dir_all(path)?,
            // Its directory must be there, as with a kubelet.
            "FileOrCreate" => drop(fs::File::create(path).with_context(|| format!("making {}", path.display()))?),
            _ => {}
        }
    }
    let found = fs::metadata(path).map(|metadata| metadata.file_type()).ok();
    let is = |matches: fn(&FileType) -> bool| found.as_ref().is_some_and(matches);
    let fits = match kind {
        "" => true,
        "Directory" | "DirectoryOrCreate" => is(FileType::is_dir),
        "File" | "FileOrCreate" => is(FileType::is_file),
        "Socket" => is(FileTypeExt::is_socket),
        "CharDevice" => is(FileTypeExt::is_char_device),
        "BlockDevice" => is(FileTypeExt::is_block_device),
        other => anyhow::bail!("hostPath type {other} is unknown"),
    };
    anyhow::ensure!(fits, "hostPath type check failed: {} is not a {}", path.display(), kind.trim_end_matches("OrCreate"));
    Ok(())
}

/// The path `inside` a volume whose root is `base`. Links in the volume are whatever its users made them: they do not lead out of it. With
/// `make` a directory that is missing is made, with the permissions of the volume's root.
fn sub_path(base: &Path, inside: &str, make: bool) -> Result<PathBuf> {
    let leaves = || format!("subPath {inside} leaves its volume");
    anyhow::ensure!(!inside.starts_with('/') && !inside.split('/').any(|part| part == ".."), leaves());
    let base = base.canonicalize().with_context(|| format!("{} of a subPath", base.display()))?;
    let mut at = base.clone();
    for part in Path::new(inside).components() {
        let next = at.join(part);
        if make && fs::symlink_metadata(&next).is_err() {
            fs::create_dir(&next)?;
            fs::set_permissions(&next, fs::metadata(&base)?.permissions())?;
        }
        at = next.canonicalize().with_context(|| format!("subPath {inside}"))?;
        anyhow::ensure!(at.starts_with(&base), leaves());
    }
    Ok(at)
}

/// The mounts of a container, shallow paths first.
pub fn mounts(pod: &Pod, container: &Container, volumes: &Path, environment: &BTreeMap<String, String>) -> Result<Vec<Mount>> {
    let all = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mut mounts = Vec::new();
    for wanted in container.volume_mounts.iter().flatten() {
        let volume = all.iter().find(|volume| volume.name == wanted.name).with_context(|| format!("no volume {}", wanted.name))?;
        let base = volume.host_path.as_ref().map_or_else(|| volumes.join(&volume.name), |host| PathBuf::from(&host.path));
        let by_expression = wanted.sub_path_expr.as_ref().map(|path| expand(path, |name| environment.get(name).cloned()));
        let inside = by_expression.or_else(|| wanted.sub_path.clone()).filter(|path| !path.is_empty());
        let source = match inside {
            Some(inside) => sub_path(&base, &inside, volume.empty_dir.is_some() || volume.host_path.is_some())?,
            None => base,
        };
        let projected =
            volume.config_map.is_some() || volume.secret.is_some() || volume.projected.is_some() || volume.downward_api.is_some();
        mounts.push(Mount { source, target: wanted.mount_path.clone().into(), read_only: projected || wanted.read_only == Some(true) });
    }
    mounts.sort_by_key(|mount| mount.target.components().count());
    Ok(mounts)
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
