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
fn a_config_map_or_secret_that_appears_later_starts_the_pod_that_waits_for_it() {
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
fn a_projected_volume_holds_every_kind_of_source_and_its_token_is_renewed() {
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
                until [ $(cat token) = second ]; do sleep 0.01; done; echo renewed";
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
