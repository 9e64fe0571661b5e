//! How to place a mount where the host may lack the mount point; no I/O.
//!
//! A missing mount point is never made on the host: the deepest directory that exists is covered by a
//! *mirror*, an empty file system with the directory's own children bound into it, and the missing
//! parts are made there.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// Anything else that can be bound over.
    File,
}

/// The existing part of a mount point, links resolved, and what is missing below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Deepest existing path.
    pub existing: PathBuf,
    /// What that is.
    pub kind: Kind,
    /// Names below it that do not exist.
    pub missing: Vec<OsString>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cover a directory by a mirror of itself.
    Mirror(PathBuf),
    /// Make a directory (in a mirror or in a volume).
    MakeDirectory(PathBuf),
    /// Make an empty file (likewise).
    MakeFile(PathBuf),
    /// Bind the source here.
    Bind(PathBuf),
}

/// What earlier mounts left behind.
#[derive(Clone, Debug, Default)]
pub struct Laid {
    /// Directories in which names may be made: mirrors and what was made in them.
    own: HashSet<PathBuf>,
    /// Mounted volumes, and whether they may be written.
    volumes: Vec<(PathBuf, bool)>,
}

impl Laid {
    fn may_make_in(&self, directory: &Path) -> bool {
        let volume = self.volumes.iter().filter(|(at, _)| directory.starts_with(at)).max_by_key(|(at, _)| at.components().count());
        match volume {
            Some((_, writable)) => *writable,
            None => self.own.contains(directory),
        }
    }

    /// The steps that mount a source of `kind` at `place`.
    pub fn plan(&mut self, place: &Place, kind: Kind, writable: bool) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        let mut target = place.existing.clone();
        if place.missing.is_empty() {
            if place.kind != kind {
                return Err(format!("{} exists and is of another kind than the mount", target.display()));
            }
        } else {
            if place.kind != Kind::Directory {
                return Err(format!("{} is not a directory", target.display()));
            }
            if !self.may_make_in(&target) {
                steps.push(Step::Mirror(target.clone()));
                self.own.insert(target.clone());
            }
            let last = place.missing.len() - 1;
            for (index, name) in place.missing.iter().enumerate() {
                target.push(name);
                if index == last && kind == Kind::File {
                    steps.push(Step::MakeFile(target.clone()));
                } else {
                    steps.push(Step::MakeDirectory(target.clone()));
                    self.own.insert(target.clone());
                }
            }
        }
        steps.push(Step::Bind(target.clone()));
        self.volumes.push((target, writable));
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(existing: &str, missing: &[&str]) -> Place {
        Place { existing: existing.into(), kind: Kind::Directory, missing: missing.iter().map(OsString::from).collect() }
    }

    #[test]
    fn an_existing_mount_point_is_bound_over_directly() {
        let steps = Laid::default().plan(&place("/etc/nginx", &[]), Kind::Directory, false).unwrap();
        assert_eq!(steps, [Step::Bind("/etc/nginx".into())]);
    }

    #[test]
    fn a_missing_mount_point_is_made_in_a_mirrored_directory() {
        let steps = Laid::default().plan(&place("/run", &["secrets", "token"]), Kind::Directory, false).unwrap();
        assert_eq!(
            steps,
            [
                Step::Mirror("/run".into()),
                Step::MakeDirectory("/run/secrets".into()),
                Step::MakeDirectory("/run/secrets/token".into()),
                Step::Bind("/run/secrets/token".into()),
            ]
        );
    }

    #[test]
    fn a_host_directory_is_mirrored_once_despite_several_mount_points() {
        let mut laid = Laid::default();
        laid.plan(&place("/run", &["a"]), Kind::Directory, false).unwrap();
        let second = laid.plan(&place("/run", &["b"]), Kind::File, false).unwrap();
        assert_eq!(second, [Step::MakeFile("/run/b".into()), Step::Bind("/run/b".into())]);
        let through = laid.plan(&place("/run/lock", &["c"]), Kind::Directory, false).unwrap();
        assert_eq!(through[0], Step::Mirror("/run/lock".into()));
    }

    #[test]
    fn a_mount_point_in_a_writable_volume_needs_no_mirror() {
        let mut laid = Laid::default();
        laid.plan(&place("/data", &[]), Kind::Directory, true).unwrap();
        let steps = laid.plan(&place("/data", &["sub"]), Kind::Directory, false).unwrap();
        assert_eq!(steps[0], Step::MakeDirectory("/data/sub".into()));
        laid.plan(&place("/conf", &[]), Kind::Directory, false).unwrap();
        assert_eq!(laid.plan(&place("/conf", &["x"]), Kind::File, false).unwrap()[0], Step::Mirror("/conf".into()));
    }

    #[test]
    fn a_directory_is_not_mounted_over_a_file() {
        let file = Place { existing: "/etc/passwd".into(), kind: Kind::File, missing: vec![] };
        assert!(Laid::default().plan(&file, Kind::Directory, false).is_err());
    }
}
