use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, ProjectedVolumeSource, ServiceAccountTokenProjection, VolumeMount, VolumeProjection,
};

use super::*;

fn config(items: Option<Vec<KeyToPath>>, optional: bool) -> Volume {
    let source = ConfigMapVolumeSource { name: "m".into(), items, optional: Some(optional), default_mode: Some(0o600) };
    Volume { name: "v".into(), config_map: Some(source), ..Volume::default() }
}

fn references() -> References {
    let data = [("k".to_owned(), "text".to_owned()), ("l".to_owned(), "other".to_owned())].into();
    References { config_maps: [("m".to_owned(), ConfigMap { data: Some(data), ..ConfigMap::default() })].into(), ..References::default() }
}

fn files(volume: &Volume, references: &References) -> Result<Option<Files>, VolumeError> {
    let tokens = [(TokenWish { audience: String::new(), seconds: 3607 }, "secret-token".to_owned())].into();
    let ingredients = Ingredients { pod: &Pod::default(), references, tokens: &tokens, node: &NodeFacts::default() };
    ingredients.files(volume)
}

#[test]
fn a_volume_holds_its_chosen_items_or_every_key() {
    let all = files(&config(None, false), &references()).unwrap().unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["k", "l"]);
    assert_eq!(all["k"], (b"text".to_vec(), 0o600));
    let item = KeyToPath { key: "k".into(), path: "sub/file".into(), mode: Some(0o400) };
    let chosen = files(&config(Some(vec![item]), false), &references()).unwrap().unwrap();
    assert_eq!(chosen, [("sub/file".to_owned(), (b"text".to_vec(), 0o400))].into());
}

#[test]
fn a_missing_config_map_is_waited_for_unless_optional() {
    let none = References::default();
    assert_eq!(files(&config(None, false), &none).unwrap_err().to_string(), "configmap \"m\" not found");
    assert_eq!(files(&config(None, true), &none).unwrap().unwrap(), Files::new());
}

#[test]
fn a_projected_token_has_the_requested_audience_and_life() {
    let token = ServiceAccountTokenProjection { audience: None, expiration_seconds: Some(3607), path: "token".into() };
    let source = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    let projected = ProjectedVolumeSource { sources: Some(vec![source]), default_mode: None };
    let volume = Volume { name: "v".into(), projected: Some(projected), ..Volume::default() };
    assert_eq!(files(&volume, &References::default()).unwrap().unwrap()["token"].0, b"secret-token");
}

#[test]
fn an_unsupported_kind_of_volume_is_refused() {
    assert!(matches!(files(&Volume::default(), &References::default()), Err(VolumeError::Unsupported(_))));
    let empty = Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
    assert_eq!(files(&empty, &References::default()), Ok(None));
}

#[test]
fn new_contents_replace_the_old_ones_in_place() {
    let directory = std::env::temp_dir().join(format!("vk-volume-{}", std::process::id()));
    let content = |entries: &[(&str, &str)]| -> Files {
        entries.iter().map(|(path, text)| ((*path).to_owned(), (text.as_bytes().to_vec(), 0o644))).collect()
    };
    write(&directory, &content(&[("a", "1"), ("d/b", "2")])).unwrap();
    write(&directory, &content(&[("a", "3")])).unwrap();
    assert_eq!(fs::read_to_string(directory.join("a")).unwrap(), "3");
    assert!(fs::symlink_metadata(directory.join("d")).is_err());
    let versions = fs::read_dir(&directory).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_dir()).count();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(versions, 1);
}

#[test]
fn mounts_are_ordered_by_depth_and_stay_inside_their_volume() {
    let spec = |mounts: Vec<VolumeMount>| Container { volume_mounts: Some(mounts), ..Container::default() };
    let mount = |path: &str, sub: Option<&str>| VolumeMount {
        name: "v".into(),
        mount_path: path.into(),
        sub_path: sub.map(str::to_owned),
        ..VolumeMount::default()
    };
    let pod_spec = k8s_openapi::api::core::v1::PodSpec { volumes: Some(vec![config(None, false)]), ..Default::default() };
    let pod = Pod { spec: Some(pod_spec), ..Pod::default() };
    let volumes = std::env::temp_dir().join(format!("vk-mounts-{}", std::process::id()));
    fs::create_dir_all(&volumes).unwrap();
    let volumes = volumes.canonicalize().unwrap();
    write(&volumes.join("v"), &[("k".to_owned(), (b"text".to_vec(), 0o644))].into()).unwrap();
    let in_volume = volumes.join("v/k").canonicalize().unwrap();
    let planned = |container: &Container| mounts(&pod, container, &volumes, &BTreeMap::new());
    let ordered = planned(&spec(vec![mount("/a/b", Some("k")), mount("/a", None)])).unwrap();
    assert_eq!(ordered[0], Mount { source: volumes.join("v"), target: "/a".into(), read_only: true });
    assert_eq!(ordered[1].source, in_volume);
    assert!(planned(&spec(vec![mount("/a", Some("../x"))])).is_err());
    // The API server sees only the expression.
    let by_expression = VolumeMount { sub_path_expr: Some("$(WHERE)".into()), ..mount("/a", None) };
    let environment = |path: &str| BTreeMap::from([("WHERE".to_owned(), path.to_owned())]);
    let expanded = |path: &str| mounts(&pod, &spec(vec![by_expression.clone()]), &volumes, &environment(path));
    assert_eq!(expanded("k").unwrap()[0].source, in_volume);
    assert!(expanded("/etc").is_err() && expanded("k/../..").is_err());
    fs::remove_dir_all(&volumes).unwrap();
}

#[test]
fn a_host_path_must_match_its_declared_type() {
    let directory = std::env::temp_dir().join(format!("vk-host-path-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (file, socket, none) = (directory.join("file"), directory.join("socket"), directory.join("none"));
    fs::write(&file, "").unwrap();
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let device = Path::new("/dev/null");
    for (path, fitting) in [
        (directory.as_path(), &["", "Directory", "DirectoryOrCreate"][..]),
        (&file, &["", "File", "FileOrCreate"]),
        (&socket, &["", "Socket"]),
        (device, &["", "CharDevice"]),
        (&none, &[""]),
    ] {
        for kind in ["", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice"] {
            if !(path == none && kind.ends_with("OrCreate")) {
                assert_eq!(check_host_path(path, kind).is_ok(), fitting.contains(&kind), "{} as {kind:?}", path.display());
            }
        }
    }
    assert!(check_host_path(&directory.join("a/b"), "FileOrCreate").is_err());
    for kind in ["DirectoryOrCreate", "FileOrCreate"] {
        check_host_path(&directory.join(kind), kind).unwrap();
        assert_eq!(directory.join(kind).is_dir(), kind.starts_with("Directory"));
    }
    fs::remove_dir_all(&directory).unwrap();
}
