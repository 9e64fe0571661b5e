//! The operator as it was before its ledger and its decisions changed, built from the repository's own history: for scenarios in which it
//! and today's take turns on one cluster.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::host::images;

/// "Give the node of an implied gate an agent": the last commit before a revision had to serve for a while to count as good
/// (`docs/decisions/0018`). To its operator a node is good the moment it serves, clocks are times of day, and the ledger has nothing of
/// what was counted since.
pub const COMMIT: &str = "94d74d17c1e4cc9872aa54c623f7859c7890ec51";

/// The program's name in that commit.
const NAME: &str = "ingress-daemonset-operator";

fn directory() -> PathBuf {
    images::repository().join("target/former")
}

/// Where the program is once it was built; another commit's is another file.
fn place() -> PathBuf {
    directory().join(format!("{NAME}-{COMMIT}"))
}

/// The program.
pub fn program() -> Result<PathBuf> {
    let path = place();
    ensure!(path.is_file(), "{} is not there; `bed scenario` builds it before it starts the bed", path.display());
    Ok(path)
}

/// Builds it where that was not done before. Outside of the namespaces: inside there is no network for what cargo may have to fetch.
pub fn build() -> Result<()> {
    if place().is_file() {
        return Ok(());
    }
    let started = Instant::now();
    println!("building the operator of {COMMIT} (about five minutes on two cores, once)");
    let (source, archive, target) = (directory().join(COMMIT), directory().join("source.tar"), directory().join("target"));
    std::fs::create_dir_all(&source).with_context(|| format!("creating {}", source.display()))?;
    let mut export = Command::new("git");
    export.args(["archive", "--format=tar", "--output"]).arg(&archive).arg(COMMIT);
    succeeds(export, images::repository()).context("a checkout without history does not have it: git fetch --unshallow")?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive);
    succeeds(unpack, &source)?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--locked", "-p", "operator", "--bin", NAME, "--target-dir"]).arg(&target);
    succeeds(cargo, &source)?;
    // Only what is whole has the name that is looked for.
    let built = target.join("debug").join(NAME);
    std::fs::rename(&built, place()).with_context(|| format!("moving {}", built.display()))?;
    println!("built it in {:.0} s", started.elapsed().as_secs_f32());
    Ok(())
}

fn succeeds(mut command: Command, directory: &Path) -> Result<()> {
    let status = command.current_dir(directory).status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}
