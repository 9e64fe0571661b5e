//! The installed manifest equals the types.

use std::{env, fs, path::Path};

#[test]
fn the_manifests_are_what_the_types_say() {
    for (name, generated) in crds::manifest::files().unwrap() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(name);
        if env::var_os("GENERATE").is_some() {
            fs::write(&path, &generated).unwrap();
        }
        assert!(
            fs::read_to_string(&path).unwrap_or_default() == generated,
            "run `make generate`: {} is not what the types say",
            path.display()
        );
    }
}

#[test]
fn the_manifest_fits_into_the_annotation_of_a_client_side_apply() {
    let json = serde_json::to_string(&crds::manifest::ingress_daemon_set()).unwrap();
    assert!(json.len() < 256 * 1024, "{} bytes", json.len());
}
