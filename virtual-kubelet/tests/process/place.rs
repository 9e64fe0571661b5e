//! A place for pods of real processes, with an API server of a few objects and agents that may die.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Request, Response};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use virtual_kubelet::pod::environment::NodeFacts;
use virtual_kubelet::pod::{Events, PodId, PodLifecycleHandler, PodNotifier, PodStatusSink};
use virtual_kubelet::process::shim::{LogFiles, LogRotation};
use virtual_kubelet::process::{ImageTable, Powers, ProcessProvider, Site};

pub const DEADLINE: Duration = Duration::from_mins(1);

/// Objects by the path that they are read at.
pub type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// A directory where pods run; they end with it.
pub struct Place {
    pub root: PathBuf,
    pub objects: Objects,
    pub log_rotation: LogRotation,
}

/// A node agent. Dropping it is its sudden death: nothing of it goes on, and nothing is put in order.
pub struct Agent {
    pub runtime: Runtime,
    pub provider: Arc<ProcessProvider>,
}

fn answer(objects: &Objects, request: &Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    let found = objects.lock().unwrap().get(path).cloned();
    let (code, value) = if let Some(value) = found {
        (200, value)
    } else if path.ends_with("/token") {
        let status = json!({ "token": "a-token", "expirationTimestamp": "2100-01-01T00:00:00Z" });
        (
            201,
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": { "audiences": [] }, "status": status }),
        )
    } else if path.ends_with("/services") {
        (200, json!({ "apiVersion": "v1", "kind": "ServiceList", "metadata": {}, "items": [] }))
    } else {
        (
            404,
            json!({ "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404 }),
        )
    };
    Response::builder().status(code).body(Body::from(value.to_string().into_bytes())).unwrap()
}

impl Place {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("vk-process-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let mut images = json!({ "shell": { "command": ["/bin/sh", "-c"] }, "other-shell": { "command": ["/bin/sh", "-c"] } });
        for name in ["a-shell", "a-shell-too"] {
            images[name] = json!({ "command": ["/bin/sh", "-c"], "digest": "sha256:0" });
        }
        fs::write(root.join("images.json"), images.to_string()).unwrap();
        // What a plain user has: mounts in a user namespace with one id.
        let program = root.join("virtual-kubelet");
        let script = format!("#!/bin/sh\nexec unshare --user --map-root-user {} \"$@\"\n", env!("CARGO_BIN_EXE_virtual-kubelet"));
        // Another process writes it: a descriptor of this one could be on its way into a child of another test, and a program that
        // somebody may write to cannot be started.
        let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        assert!(Command::new("/bin/sh").args(["-c", write]).arg(&program).arg(script).status().unwrap().success());
        Self { root, objects: Objects::default(), log_rotation: LogRotation::default() }
    }

    pub fn agent(&self) -> Agent {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let provider = runtime.block_on(async {
            let objects = self.objects.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let answer = answer(&objects, &request);
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            let site = Site {
                client: Client::new(service, "default"),
                events: Events::none(),
                node: NodeFacts { address: "127.0.0.1".into(), cpu: "1".into(), memory: "1Gi".into() },
                root: self.root.clone(),
                images: ImageTable::new(self.root.join("images.json")),
                powers: Powers { own_user: 0, mapped: 1 },
                init_program: self.root.join("virtual-kubelet"),
                log_rotation: self.log_rotation,
            };
            let (_, node) = tokio::sync::watch::channel(None);
            let provider = ProcessProvider::new(site, "n1".into(), node).unwrap();
            provider.notify_pods(PodStatusSink::default());
            Arc::new(provider)
        });
        Agent { runtime, provider }
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.join(name)).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(virtual_kubelet::process::end_all(&self.root, Duration::ZERO));
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Waits for a fact.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(started.elapsed() < DEADLINE, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A pod of this spec; `PLACE` in it stands for the directory of the place.
pub fn pod(place: &Place, name: &str, spec: &Value) -> Pod {
    let text = spec.to_string().replace("PLACE", &place.root.to_string_lossy());
    let spec: Value = serde_json::from_str(&text).unwrap();
    let metadata = json!({ "namespace": "default", "name": name, "uid": format!("uid-of-{name}"), "generation": 1 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// A pod of one container `c` that runs `script`.
pub fn script(place: &Place, name: &str, script: &str) -> Pod {
    pod(place, name, &json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "shell", "args": [script] }] }))
}

impl Agent {
    pub fn create(&self, pod: &Pod) -> PodId {
        self.runtime.block_on(self.provider.create_pod(Arc::new(pod.clone()))).unwrap();
        PodId::of(pod)
    }

    pub fn update(&self, pod: &Pod) {
        self.runtime.block_on(self.provider.update_pod(Arc::new(pod.clone()))).unwrap();
    }

    pub fn delete(&self, pod: &Pod, grace: i64) {
        self.runtime.block_on(self.provider.delete_pod(Arc::new(pod.clone()), grace)).unwrap();
    }

    /// The list of the API is complete, and has these pods.
    pub fn retain(&self, present: &[&PodId]) {
        let present: HashSet<PodId> = present.iter().map(|id| (*id).clone()).collect();
        self.runtime.block_on(self.provider.retain(&present));
    }

    pub fn status(&self, id: &PodId) -> PodStatus {
        self.runtime.block_on(self.provider.get_pod_status(id)).unwrap().unwrap_or_default()
    }

    /// Waits until the status of a pod satisfies `is_so`.
    pub fn until(&self, id: &PodId, what: &str, is_so: impl Fn(&PodStatus) -> bool) -> PodStatus {
        let last = std::cell::RefCell::new(PodStatus::default());
        let look = || {
            let status = self.status(id);
            // A pod has no status in the first moment.
            let so = status.phase.is_some() && is_so(&status);
            last.replace(status.clone());
            so.then_some(status)
        };
        let started = Instant::now();
        loop {
            if let Some(status) = look() {
                return status;
            }
            assert!(started.elapsed() < DEADLINE, "not seen: {what}: {}", serde_json::to_string_pretty(&*last.borrow()).unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn runs(&self, id: &PodId) -> PodStatus {
        self.until(id, "the pod runs", |status| status.phase.as_deref() == Some("Running"))
    }

    pub fn ends(&self, id: &PodId) -> PodStatus {
        self.until(id, "the pod has ended", |status| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")))
    }

    pub fn log(&self, id: &PodId, container: &str, previous: bool) -> Vec<String> {
        log(&self.provider.log_files(id, container, previous).unwrap())
    }
}

/// Texts of a log, without times.
pub fn log(files: &LogFiles) -> Vec<String> {
    let all = files.rotated.iter().chain([&files.current]);
    let text: String = all.map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
    text.lines().filter_map(|line| line.splitn(4, ' ').nth(3).map(str::to_owned)).collect()
}

/// A container's status by its name.
pub fn container<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.into_iter().find(|status| status.name == name).unwrap_or_else(|| panic!("no container {name} in {status:?}"))
}

/// Exit code of a container that has ended.
pub fn exit_code(status: &PodStatus, name: &str) -> Option<i32> {
    container(status, name).state.as_ref()?.terminated.as_ref().map(|end| end.exit_code)
}
