//! Volumes and what they refer to.

use serde_json::{Value, json};

use crate::place::{Place, container, eventually, pod};

fn config_map(name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" }, "data": data })
}

fn secret(name: &str, base64: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "default" }, "data": { "key": base64 } })
}

#[test]
fn a_late_config_map_or_secret_starts_its_waiting_pod() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{
            "name": "c", "image": "shell", "args": ["cat /vk-volume/file; echo; echo $VARIABLE"],
            "env": [{ "name": "VARIABLE", "valueFrom": { "secretKeyRef": { "name": "s", "key": "key" } } }],
            "volumeMounts": [{ "name": "v", "mountPath": "/vk-volume" }],
        }],
        "volumes": [{ "name": "v", "configMap": { "name": "m" } }],
    });
    let id = agent.create(&pod(&place, "p", &spec));
    let put = |path: &str, object: Value| place.objects.lock().unwrap().insert(format!("/api/v1/namespaces/default/{path}"), object);
    agent.until(&id, "it waits for its volume", |status| status.phase.as_deref() == Some("Pending"));
    put("configmaps/m", config_map("m", &json!({ "file": "of the map" })));
    agent.until(&id, "it waits for its Secret", |status| {
        let state = container(status, "c").state.clone().unwrap().waiting.unwrap_or_default();
        state.reason.as_deref() == Some("CreateContainerConfigError")
            && state.message.unwrap_or_default().contains("secret \"s\" not found")
    });
    put("secrets/s", secret("s", "b2YgdGhlIHNlY3JldA=="));
    assert_eq!(agent.ends(&id).phase.as_deref(), Some("Succeeded"));
    assert_eq!(agent.log(&id, "c", false), ["of the map", "of the secret"]);
}

#[test]
fn a_projected_volume_holds_all_sources_and_renews_its_token() {
    let place = Place::new();
    let put = |path: &str, object: Value| place.objects.lock().unwrap().insert(format!("/api/v1/namespaces/default/{path}"), object);
    put("configmaps/m", config_map("m", &json!({ "file": "of the map" })));
    put("secrets/s", secret("s", "b2YgdGhlIHNlY3JldA=="));
    let token = |text: &str, life: i64| {
        let expires = jiff::Timestamp::now().as_second() + life;
        let expires = jiff::Timestamp::from_second(expires).unwrap().to_string();
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": { "audiences": [] },
            "status": { "token": text, "expirationTimestamp": expires },
        })
    };
    put("serviceaccounts/default/token", token("first", 3));
    let agent = place.agent();
    let sources = json!([
        { "configMap": { "name": "m" } },
        { "secret": { "name": "s", "items": [{ "key": "key", "path": "deep/secret", "mode": 0o400 }] } },
        { "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } },
    ]);
    let text = "cd /vk-volume; for f in file deep/secret name token; do cat $f; echo; done; stat -L -c %a deep/secret; \
                until [ \"$(cat token 2> /dev/null)\" = second ]; do sleep 0.01; done; echo renewed";
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "c", "image": "shell", "args": [text], "volumeMounts": [{ "name": "v", "mountPath": "/vk-volume" }] }],
        "volumes": [{ "name": "v", "projected": { "sources": sources } }],
    });
    let id = agent.create(&pod(&place, "p", &spec));
    eventually("the first token was read", || {
        let begun = agent.provider.log_files(&id, "c", false).is_ok();
        (begun && agent.log(&id, "c", false).contains(&"400".to_owned())).then_some(())
    });
    put("serviceaccounts/default/token", token("second", 3600));
    agent.ends(&id);
    assert_eq!(agent.log(&id, "c", false), ["of the map", "of the secret", "p", "first", "400", "renewed"]);
}

#[test]
fn a_host_path_is_mounted_once_it_has_its_type() {
    let place = Place::new();
    let agent = place.agent();
    let volume =
        |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": format!("PLACE/{path}"), "type": kind } });
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/vk-{name}") });
    std::fs::create_dir(place.root.join("there")).unwrap();
    std::fs::write(place.root.join("there/file"), "of the machine\n").unwrap();
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{
            "name": "c", "image": "shell",
            "args": ["cat /vk-there/file /vk-file; echo written > /vk-made/by-the-pod; echo more >> /vk-made-file; echo sub > /vk-sub/file"],
            "volumeMounts": [
                mount("there"), mount("file"), mount("made"), mount("made-file"),
                { "name": "made", "mountPath": "/vk-sub", "subPath": "deep/er" },
            ],
        }],
        "volumes": [
            volume("there", "there", "Directory"), volume("file", "there/file", "File"),
            volume("made", "made/here", "DirectoryOrCreate"), volume("made-file", "made-file", "FileOrCreate"),
        ],
    });
    let id = agent.create(&pod(&place, "p", &spec));
    assert_eq!(agent.ends(&id).phase.as_deref(), Some("Succeeded"));
    assert_eq!(agent.log(&id, "c", false), ["of the machine", "of the machine"]);
    assert_eq!(
        [place.read("made/here/by-the-pod"), place.read("made-file"), place.read("made/here/deep/er/file")],
        ["written\n", "more\n", "sub\n"]
    );

    // It is there, but no directory; it starts when it is one.
    std::fs::write(place.root.join("late"), "").unwrap();
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "c", "image": "shell", "args": ["echo up"], "volumeMounts": [mount("late")] }],
        "volumes": [volume("late", "late", "Directory")],
    });
    let id = agent.create(&pod(&place, "q", &spec));
    agent.until(&id, "it waits", |status| status.phase.as_deref() == Some("Pending"));
    std::fs::remove_file(place.root.join("late")).unwrap();
    std::fs::create_dir(place.root.join("late")).unwrap();
    assert_eq!(agent.ends(&id).phase.as_deref(), Some("Succeeded"));
}

#[test]
fn a_sub_path_cannot_leave_its_volume_through_a_link() {
    let place = Place::new();
    let agent = place.agent();
    std::fs::create_dir(place.root.join("outside")).unwrap();
    let mount = |path: &str, sub: Option<&str>| json!({ "name": "v", "mountPath": path, "subPath": sub });
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{
            "name": "links", "image": "shell", "args": ["ln -s PLACE/outside /vk-v/away; mkdir /vk-v/inside; ln -s inside /vk-v/near"],
            "volumeMounts": [mount("/vk-v", None)],
        }],
        "containers": [
            { "name": "away", "image": "shell", "args": ["true"], "volumeMounts": [mount("/vk-v", Some("away/new"))] },
            { "name": "near", "image": "shell", "args": ["touch /vk-v/file"], "volumeMounts": [mount("/vk-v", Some("near"))] },
        ],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    let id = agent.create(&pod(&place, "p", &spec));
    let status = agent.until(&id, "one waits, the other has ended", |status| {
        let has = |name: &str| status.container_statuses.as_ref().and_then(|all| all.iter().find(|one| one.name == name)?.state.clone());
        has("away")
            .is_some_and(|state| state.waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CreateContainerConfigError")))
            && has("near").is_some_and(|state| state.terminated.is_some_and(|end| end.exit_code == 0))
    });
    let message = container(&status, "away").state.clone().unwrap().waiting.unwrap().message.unwrap_or_default();
    assert!(message.contains("subPath away/new leaves its volume"), "{message}");
    assert_eq!(std::fs::read_dir(place.root.join("outside")).unwrap().count(), 0);
}

#[test]
fn a_token_is_renewed_also_while_something_else_is_missing() {
    let place = Place::new();
    let put = |path: &str, object: Value| place.objects.lock().unwrap().insert(format!("/api/v1/namespaces/default/{path}"), object);
    put("configmaps/m", config_map("m", &json!({ "file": "of the map" })));
    let token = |text: &str, life: i64| {
        let expires = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + life).unwrap().to_string();
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": { "audiences": [] },
            "status": { "token": text, "expirationTimestamp": expires },
        })
    };
    put("serviceaccounts/default/token", token("first", 3));
    let agent = place.agent();
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{
            "name": "c", "image": "shell", "args": ["touch PLACE/up; until [ $(cat /vk-token/token) = second ]; do sleep 0.01; done"],
            "volumeMounts": [{ "name": "map", "mountPath": "/vk-map" }, { "name": "token", "mountPath": "/vk-token" }],
        }],
        "volumes": [
            { "name": "map", "configMap": { "name": "m" } },
            { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } }] } },
        ],
    });
    let id = agent.create(&pod(&place, "p", &spec));
    eventually("it runs", || place.root.join("up").exists().then_some(()));
    place.objects.lock().unwrap().remove("/api/v1/namespaces/default/configmaps/m");
    put("serviceaccounts/default/token", token("second", 3600));
    assert_eq!(agent.ends(&id).phase.as_deref(), Some("Succeeded"));
}
