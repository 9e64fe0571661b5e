//! Image names and the local programs that stand for them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::host::namespaces::find_program;

/// Where the product's images are in `deploy/`: nowhere.
pub const REGISTRY: &str = "registry.invalid/ingress-daemonset/";
/// Where somebody has pushed them to.
pub const PUSHED: &str = "registry.example/";
/// The operator's image in `deploy/`.
pub const OPERATOR: &str = "registry.invalid/ingress-daemonset/operator:0.1.0";
/// The health checker's image, the operator's default.
pub const HEALTH_CHECKER: &str = "registry.invalid/ingress-daemonset/health-checker:0.1.0";
/// The image of the original's example.
pub const INGRESS_CONTROLLER: &str = "quay.io/kubernetes-ingress-controller/nginx-ingress-controller:0.26.1";
/// Unmodified nginx.
pub const NGINX: &str = "nginx:1.22";
/// The same nginx under a newer tag.
pub const NEWER_NGINX: &str = "nginx:1.23";
/// The image of [`NGINX`] under another tag.
pub const SAME_NGINX: &str = "nginx:1.22-bookworm";
/// The image of the first example of README.
pub const README_NGINX: &str = "nginx:1.29";
/// A newer one.
pub const NEWER_README_NGINX: &str = "nginx:1.30";

/// What the images of README's first example have of the original ones, besides nginx itself.
pub const MAIN_CONFIGURATION: &str = "e2e/fixtures/nginx.conf";

/// The checkout that this program was built from.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A directory whose binaries are run instead of those next to this one, where it has them: benchmarks want release builds.
const PROGRAMS: &str = "BED_PROGRAMS";

/// A binary of this workspace, next to the one that is running.
pub fn workspace_binary(name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAMS).map(|directory| repository().join(directory).join(name)).filter(|path| path.is_file()) {
        return Ok(path);
    }
    let own = std::env::current_exe().context("finding this program's own path")?;
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "{} is not there; `cargo build --workspace` builds it", path.display());
    Ok(path)
}

/// Writes the table that tells node agents what to run for an image; returns its path.
pub fn write_table(state: &Path) -> Result<PathBuf> {
    let nginx = find_program("nginx").context("nginx is not installed; `make deps` installs it")?;
    let [old, new] = ["sha256:122", "sha256:123"].map(|digest| json!({ "command": [nginx], "digest": digest }));
    let [readme, newer] = ["sha256:129", "sha256:130"].map(|digest| {
        json!({
            "command": [nginx, "-g", "daemon off;"], "digest": digest, "scratch": ["/run", "/var/lib/nginx", "/var/log/nginx"],
            "files": { "/etc/nginx/nginx.conf": repository().join(MAIN_CONFIGURATION) },
        })
    });
    let [operator, health_checker] = [program("ingress-daemonset-operator")?, program("health-checker")?];
    let table: Value = json!({
        README_NGINX: readme,
        NEWER_README_NGINX: newer,
        NGINX: old,
        SAME_NGINX: old,
        NEWER_NGINX: new,
        (OPERATOR.replace(REGISTRY, PUSHED)): operator,
        (HEALTH_CHECKER.replace(REGISTRY, PUSHED)): health_checker,
        OPERATOR: operator,
        HEALTH_CHECKER: health_checker,
        INGRESS_CONTROLLER: {
            "files": {
                "/nginx-ingress-controller": repository().join("e2e/fixtures/nginx-ingress-controller"),
                "/wait-shutdown": repository().join("e2e/fixtures/wait-shutdown"),
            },
            "scratch": ["/scratch"],
        },
        "busybox:1.36": { "command": ["/bin/sh"] },
        // Of the readiness-gate demo: an image without an entry point, whose arguments are the command.
        "centos": { "command": ["/usr/bin/env"] },
    });
    let path = state.join("images.json");
    std::fs::write(&path, serde_json::to_string_pretty(&table)?).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// An image with one program of the workspace at its root. It is mounted there, because the pod's user may not be
/// allowed into the checkout.
fn program(name: &str) -> Result<Value> {
    let path = format!("/{name}");
    Ok(json!({ "command": [path], "files": { (path.as_str()): workspace_binary(name)? } }))
}
