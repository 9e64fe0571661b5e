//! Archives of container images for machines: nginx and busybox of this machine with the libraries that they need, and those of the
//! product, as they would be published.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{images, namespaces::find_program, process::run};

/// A program of Debian's `busybox-static`.
pub const BUSYBOX: &str = "/bin/busybox";
/// What holds a pod's namespaces.
pub const PAUSE: &str = "bed.invalid/pause:1";
/// Users that processes in containers are, or run as.
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\nwww-data:x:33:33:www-data:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\nwww-data:x:33:\n";

/// Makes all that the scenarios use; returns them.
pub async fn make(state: &Path) -> Result<Vec<PathBuf>> {
    let directory = state.join("archives");
    let nginx = find_program("nginx").context("nginx is not installed; `make deps` installs it")?;
    let nginx = nginx.to_str().context("a path that is no text")?;
    let mut archives = Vec::new();
    for (number, names) in [&[images::NGINX, images::SAME_NGINX][..], &[images::NEWER_NGINX]].into_iter().enumerate() {
        let root = directory.join(format!("nginx-{number}"));
        program(&root, nginx).await?;
        // Two images of one program differ in what they say of themselves.
        let configuration = json!({ "Entrypoint": [nginx], "Env": [format!("IMAGE={}", names[0])] });
        archives.push(pack(&root, names, &configuration).await?);
    }
    for name in [images::README_NGINX, images::NEWER_README_NGINX] {
        let root = directory.join(name.replace([':', '.'], "-"));
        program(&root, nginx).await?;
        // The probe of the first example.
        program(&root, BUSYBOX).await?;
        symlink("busybox", root.join("bin/test"))?;
        fs::create_dir_all(root.join("etc/nginx"))?;
        fs::copy(images::repository().join(images::MAIN_CONFIGURATION), root.join("etc/nginx/nginx.conf"))?;
        let configuration = json!({ "Entrypoint": [nginx], "Cmd": ["-g", "daemon off;"], "Env": [format!("IMAGE={name}")] });
        archives.push(pack(&root, &[name], &configuration).await?);
    }
    let root = directory.join("busybox");
    program(&root, BUSYBOX).await?;
    for applet in run(BUSYBOX, ["--list"]).await?.split_whitespace().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    archives.push(pack(&root, &["busybox:1.36"], &json!({ "Entrypoint": ["/bin/sh"] })).await?);
    let root = directory.join("pause");
    program(&root, BUSYBOX).await?;
    archives.push(pack(&root, &[PAUSE], &json!({ "Entrypoint": [BUSYBOX, "sleep", "2147483647"] })).await?);
    archives.extend(of_product());
    Ok(archives)
}

/// Programs of the product on machines, and their images as `.ci/images` makes them.
const PRODUCT: [(&str, &str); 4] = [
    ("ingress-daemonset-operator", "operator.tar"),
    ("health-checker", "health-checker.tar"),
    ("kubectl-ids", "kubectl-ids.tar"),
    ("virtual-kubelet", "virtual-kubelet.tar"),
];

/// The images of the product.
pub fn of_product() -> [PathBuf; 4] {
    PRODUCT.map(|(_, archive)| images::repository().join("target/machine-images").join(archive))
}

/// Those that were made before the program was built that virtual kubelets would run.
pub fn older_than_programs() -> Vec<PathBuf> {
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let is_old = |program: &str, archive: &Path| {
        let program = images::workspace_binary(program).ok().and_then(|path| changed(&path));
        program.zip(changed(archive)).is_some_and(|(program, archive)| archive < program)
    };
    let all = PRODUCT.into_iter().zip(of_product());
    all.filter(|((program, _), archive)| is_old(program, archive)).map(|(_, archive)| archive).collect()
}

/// A program with its libraries, and the directories that programs expect.
async fn program(root: &Path, path: &str) -> Result<()> {
    for directory in ["etc", "run", "tmp", "var/log/nginx", "var/lib/nginx"] {
        fs::create_dir_all(root.join(directory)).with_context(|| format!("making {directory} of an image"))?;
    }
    fs::write(root.join("etc/passwd"), PASSWD)?;
    fs::write(root.join("etc/group"), GROUP)?;
    // It fails for a program that needs none.
    let listed = run("ldd", [path]).await.unwrap_or_default();
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([path]).collect::<BTreeSet<_>>() {
        let place = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap_or(root))?;
        fs::copy(file, &place).with_context(|| format!("copying {file} into an image"))?;
    }
    Ok(())
}

/// An archive as `docker save` writes it, of one layer.
async fn pack(root: &Path, names: &[&str], configuration: &Value) -> Result<PathBuf> {
    let made = root.with_extension("made");
    fs::create_dir_all(&made)?;
    let layer = made.join("layer.tar");
    let owners = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--mtime=@0"];
    let (root, target) = (root.to_string_lossy(), layer.to_string_lossy());
    run("tar", owners.into_iter().chain(["-C", &root, "-cf", &target, "."])).await?;
    let digest = format!("sha256:{:x}", Sha256::digest(fs::read(&layer)?));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let image = json!({
        "architecture": architecture, "os": "linux", "config": configuration, "rootfs": { "type": "layers", "diff_ids": [digest] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }]);
    fs::write(made.join("config.json"), image.to_string())?;
    fs::write(made.join("manifest.json"), manifest.to_string())?;
    let archive = made.with_extension("tar");
    let (made, target) = (made.to_string_lossy(), archive.to_string_lossy());
    run("tar", ["-C", &made, "-cf", &target, "manifest.json", "config.json", "layer.tar"]).await?;
    Ok(archive)
}
