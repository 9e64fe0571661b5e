//! An API server that keeps policies and the configuration of webhooks.

use super::api_server;
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Where the configuration of webhooks is.
pub const WEBHOOKS: &str = "mutatingwebhookconfigurations/ingress-daemonset-operator";

/// What it has, and each call that changed something, as `METHOD path`.
#[derive(Clone, Default)]
pub struct AdmissionServer {
    pub objects: Arc<Mutex<BTreeMap<String, Value>>>,
    pub calls: Arc<Mutex<Vec<String>>>,
    /// It has no `MutatingAdmissionPolicies`.
    pub without_policies: bool,
    /// Whatever is to be written.
    pub refuses: Arc<Mutex<bool>>,
    /// Entries that somebody adds between a look at the configuration and its deletion.
    pub raced: Arc<Mutex<Option<Value>>>,
}

impl AdmissionServer {
    pub fn client(&self) -> Client {
        let this = self.clone();
        api_server(move |method, uri, body| {
            let path = uri.path().strip_prefix("/apis/admissionregistration.k8s.io/v1/").map(str::to_owned);
            let is_apply = method == "PATCH" && uri.query().is_some_and(|query| query.contains("fieldManager="));
            Some(path.map_or_else(|| status(404), |path| this.answer(method.as_str(), &path, is_apply, &body)))
        })
    }

    fn answer(&self, method: &str, path: &str, is_apply: bool, body: &Value) -> (u16, Value) {
        let is_policy = path.starts_with("mutatingadmission");
        if is_policy && self.without_policies {
            return status(404);
        }
        let mut objects = self.objects.lock().unwrap();
        if method == "GET" {
            let items: Vec<_> = objects.iter().filter(|(key, _)| key.starts_with(&format!("{path}/"))).map(|(_, it)| it.clone()).collect();
            let list = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "List", "metadata": {}, "items": items});
            return if is_policy { (200, list) } else { objects.get(path).map_or_else(|| status(404), |it| (200, it.clone())) };
        }
        if *self.refuses.lock().unwrap() {
            return status(403);
        }
        self.calls.lock().unwrap().push(format!("{method} {path}"));
        let version = self.calls.lock().unwrap().len().to_string();
        if method == "DELETE" {
            if let (Some(entry), Some(object)) = (self.raced.lock().unwrap().take(), objects.get_mut(path)) {
                object["webhooks"].as_array_mut().unwrap().push(entry);
                object["metadata"]["resourceVersion"] = "raced".into();
            }
            let Some(object) = objects.get(path) else { return status(404) };
            let wanted = &body["preconditions"]["resourceVersion"];
            if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                return status(409);
            }
            objects.remove(path);
            return (200, json!({"kind": "Status", "status": "Success"}));
        }
        let mut object = objects.get(path).cloned().unwrap_or_else(|| body.clone());
        match body["webhooks"].as_array() {
            // A list by name.
            Some(new) if is_apply => {
                let entries = object["webhooks"].as_array_mut().unwrap();
                for entry in new {
                    entries.retain(|known| known["name"] != entry["name"]);
                    entries.push(entry.clone());
                }
            }
            _ if is_apply => object = body.clone(),
            _ => {
                if json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(body.clone()).unwrap()).is_err() {
                    return status(422);
                }
            }
        }
        object["metadata"]["resourceVersion"] = version.into();
        objects.insert(path.to_owned(), object.clone());
        (200, object)
    }

    /// The calls since this was asked last.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Entries of the configuration of webhooks, by name; nothing where there is no such object.
    pub fn entries(&self) -> Option<BTreeMap<String, Value>> {
        let objects = self.objects.lock().unwrap();
        let entries = objects.get(WEBHOOKS)?["webhooks"].as_array().unwrap();
        Some(entries.iter().map(|entry| (entry["name"].as_str().unwrap().to_owned(), entry.clone())).collect())
    }
}

fn status(code: u16) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "Invalid",
    };
    (code, json!({"kind": "Status", "status": "Failure", "reason": reason, "message": "no", "code": code}))
}
