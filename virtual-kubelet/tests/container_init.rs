//! The first moments of a container, in a user namespace with a single id: what a plain user has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use virtual_kubelet::process::container_init::{Credentials, Mount, StartOrder};

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vk-init-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("staging")).expect("the temporary directory can be written");
        fs::create_dir_all(path.join("volume")).expect("the temporary directory can be written");
        fs::write(path.join("volume/file"), "content").expect("the temporary directory can be written");
        Self(path)
    }

    fn run(&self, script: &str, targets: &[(&str, &str, bool)], credentials: Option<Credentials>) -> Output {
        let mount = |(source, target, read_only): &(&str, &str, bool)| Mount {
            source: self.0.join(source),
            target: target.into(),
            read_only: *read_only,
        };
        let order = StartOrder {
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("NAME".to_owned(), "value".to_owned())]),
            working_dir: "/".into(),
            credentials,
            mounts: targets.iter().map(mount).collect(),
            staging: self.0.join("staging"),
            error_file: self.0.join("start-error"),
        };
        let file = self.0.join("order.json");
        fs::write(&file, serde_json::to_vec(&order).expect("an order is plain data")).expect("the temporary directory can be written");
        let program = env!("CARGO_BIN_EXE_virtual-kubelet");
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", program, "container-init"])
            .arg(&file)
            .output()
            .expect("util-linux' unshare is installed");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!complaint.contains("unshare failed"), "user namespaces are forbidden here: {complaint}");
        output
    }

    fn start_error(&self) -> String {
        fs::read_to_string(self.0.join("start-error")).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_volume_at_a_missing_path_leaves_the_host_unchanged() {
    let place = Place::new("root");
    let output = place.run("cat /vk-test-only/deep/file; ls /vk-test-only; ls -d /usr", &[("volume", "/vk-test-only/deep", true)], None);
    assert_eq!(text(&output), "contentdeep\n/usr\n");
    assert!(!Path::new("/vk-test-only").exists());
}

#[test]
fn a_volume_covering_the_agents_directory_hides_no_other_volume() {
    let place = Place::new("covers");
    let above = std::env::temp_dir().to_string_lossy().into_owned();
    let targets = [("volume", "/vk-test-only", true), ("volume", above.as_str(), true), ("volume", "/etc/vk-test-only", true)];
    let output = place.run(&format!("cat {above}/file /vk-test-only/file /etc/vk-test-only/file"), &targets, None);
    assert_eq!(text(&output), "contentcontentcontent");
}

#[test]
fn a_missing_mount_path_keeps_its_directorys_other_entries() {
    let place = Place::new("etc");
    let script = "cat /etc/vk-test-only/file; cat /etc/passwd > /dev/null && echo passwd";
    let output = place.run(script, &[("volume", "/etc/vk-test-only", true)], None);
    assert_eq!(text(&output), "contentpasswd\n");
    assert!(!Path::new("/etc/vk-test-only").exists());
}

#[test]
fn a_single_file_can_be_mounted_read_only() {
    let place = Place::new("file");
    let script =
        "cat /etc/vk-test-file; (echo x > /etc/vk-test-file) 2>/dev/null || echo refused; echo y > /vk-test-rw/new && echo written";
    let output = place.run(script, &[("volume/file", "/etc/vk-test-file", true), ("volume", "/vk-test-rw", false)], None);
    assert_eq!(text(&output), "contentrefused\nwritten\n");
    assert_eq!(fs::read_to_string(place.0.join("volume/new")).unwrap(), "y\n");
}

#[test]
fn a_container_has_exactly_its_own_variables_and_a_path() {
    let place = Place::new("env");
    let output = place.run("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | cut -d= -f1 | sort", &[], None);
    assert_eq!(text(&output), "NAME\nPATH\n");
}

#[test]
fn a_program_that_cannot_start_leaves_the_reason() {
    let place = Place::new("missing");
    let output = place.run("true", &[("nowhere", "/vk-test-only", true)], None);
    assert_eq!(output.status.code(), Some(128));
    assert!(place.start_error().contains("mount source"), "{}", place.start_error());
}

#[test]
fn another_user_cannot_be_had_with_one_id() {
    let place = Place::new("user");
    let output = place.run("true", &[], Some(Credentials { user: 101, group: 0, groups: vec![] }));
    assert_eq!(output.status.code(), Some(128));
    assert!(place.start_error().contains("setting groups"), "{}", place.start_error());
}
