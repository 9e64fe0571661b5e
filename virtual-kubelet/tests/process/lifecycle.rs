//! Starts, restarts, hooks and ends.

use std::fs::{self, File};
use std::io::Read as _;
use std::sync::{Arc, mpsc};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;
use virtual_kubelet::pod::{PodId, PodLifecycleHandler as _};

use crate::place::{DEADLINE, Place, container, eventually, exit_code, pod, script};

fn waiting_reason(status: &k8s_openapi::api::core::v1::PodStatus, name: &str) -> Option<String> {
    container(status, name).state.as_ref()?.waiting.as_ref()?.reason.clone()
}

#[test]
fn a_crashed_container_restarts_at_once_and_then_backs_off() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "containers": [{ "name": "c", "image": "shell", "args": ["echo x >> PLACE/runs; echo run $(wc -l < PLACE/runs); exit 3"] }] });
    let id = agent.create(&pod(&place, "p", &spec));
    let status = agent.until(&id, "back-off", |status| waiting_reason(status, "c").as_deref() == Some("CrashLoopBackOff"));
    let shown = container(&status, "c");
    let message = shown.state.as_ref().unwrap().waiting.as_ref().unwrap().message.clone().unwrap();
    assert_eq!(message, "back-off 10s restarting failed container=c pod=p_default(uid-of-p)");
    assert_eq!((shown.restart_count, shown.last_state.clone().unwrap().terminated.unwrap().exit_code), (1, 3));
    // While it waits, its last run is both the present and the previous one, as with a kubelet.
    assert_eq!((agent.log(&id, "c", false), agent.log(&id, "c", true)), (vec!["run 2".to_owned()], vec!["run 2".to_owned()]));
}

#[test]
fn the_previous_log_belongs_to_the_run_before() {
    let place = Place::new();
    let agent = place.agent();
    let text = "if [ -e PLACE/again ]; then echo second; exec sleep 1000; fi; touch PLACE/again; echo first; exit 1";
    let spec = json!({ "containers": [{ "name": "c", "image": "shell", "args": [text] }] });
    let id = agent.create(&pod(&place, "p", &spec));
    agent.until(&id, "the second run", |status| container(status, "c").restart_count == 1 && container(status, "c").ready);
    eventually("it has printed", || (agent.log(&id, "c", false) == ["second"]).then_some(()));
    assert_eq!(agent.log(&id, "c", true), ["first"]);
}

#[test]
fn init_containers_run_in_order_before_the_main_containers() {
    let place = Place::new();
    let agent = place.agent();
    let step = |name: &str| json!({ "name": name, "image": "shell", "args": [format!("echo {name} >> PLACE/order")] });
    let mut sidecar = step("sidecar");
    sidecar["args"] =
        json!(["echo sidecar >> PLACE/order; trap 'echo sidecar-ends >> PLACE/order; exit 0' TERM; while :; do sleep 0.01; done"]);
    sidecar["restartPolicy"] = "Always".into();
    // It fails by no delay of a busy machine: that would be another start.
    sidecar["startupProbe"] = json!({
        "exec": { "command": ["grep", "-q", "sidecar", "PLACE/order"] },
        "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 60,
    });
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [step("first"), sidecar, step("second")],
        "containers": [step("main")],
    });
    let id = agent.create(&pod(&place, "p", &spec));
    let status = agent.ends(&id);
    assert_eq!(place.read("order"), "first\nsidecar\nsecond\nmain\nsidecar-ends\n");
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
}

#[test]
fn a_failed_init_container_follows_the_restart_policy() {
    let place = Place::new();
    let agent = place.agent();
    let with = |name: &str, policy: &str| {
        let init = json!({ "name": "i", "image": "shell", "args": [format!("[ -e PLACE/{name} ] && exit 0; touch PLACE/{name}; exit 1")] });
        let spec = json!({ "restartPolicy": policy, "initContainers": [init], "containers": [{ "name": "c", "image": "shell", "args": ["true"] }] });
        agent.create(&pod(&place, name, &spec))
    };
    let (never, on_failure) = (with("never", "Never"), with("on-failure", "OnFailure"));
    assert_eq!(agent.ends(&never).phase.as_deref(), Some("Failed"));
    let status = agent.ends(&on_failure);
    assert_eq!((status.phase.as_deref(), container(&status, "i").restart_count), (Some("Succeeded"), 1));
}

#[test]
fn the_hook_before_the_end_comes_before_the_signal() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "containers": [{
        "name": "c", "image": "shell", "args": ["trap 'echo signal >> PLACE/order; exit 0' TERM; touch PLACE/up; while :; do sleep 0.01; done"],
        "lifecycle": { "preStop": { "exec": { "command": ["sh", "-c", "echo hook >> PLACE/order"] } } },
    }] });
    let made = pod(&place, "p", &spec);
    let id = agent.create(&made);
    eventually("it runs", || place.root.join("up").exists().then_some(()));
    agent.runs(&id);
    agent.delete(&made, 30);
    assert_eq!(exit_code(&agent.ends(&id), "c"), Some(0));
    assert_eq!(place.read("order"), "hook\nsignal\n");
}

#[test]
fn a_process_ignoring_its_signal_is_killed_after_the_grace() {
    let place = Place::new();
    let agent = place.agent();
    let text = "trap '' TERM; (trap '' TERM; echo $$$$ > PLACE/up; while :; do sleep 0.01; done) & while :; do sleep 0.01; done";
    let made = script(&place, "p", &text.replace("PLACE", &place.root.to_string_lossy()));
    let id = agent.create(&made);
    eventually("it runs", || (!place.read("up").is_empty()).then_some(()));
    agent.runs(&id);
    let began = std::time::Instant::now();
    agent.delete(&made, 1);
    assert_eq!(exit_code(&agent.ends(&id), "c"), Some(137));
    assert!(began.elapsed().as_millis() >= 1000, "it had its grace");
    assert!(agent.provider.figures().iter().all(|figures| figures.containers.is_empty()));
}

#[test]
fn a_shorter_grace_replaces_an_endless_one() {
    let place = Place::new();
    let agent = place.agent();
    let text = "trap '' TERM; touch PLACE/up; while :; do sleep 0.01; done".replace("PLACE", &place.root.to_string_lossy());
    let made = script(&place, "p", &text);
    let id = agent.create(&made);
    eventually("it runs", || place.root.join("up").exists().then_some(()));
    agent.runs(&id);
    agent.delete(&made, i64::MAX);
    agent.delete(&made, 1);
    assert_eq!(exit_code(&agent.ends(&id), "c"), Some(137));
}

#[test]
fn a_late_post_start_hook_keeps_the_startup_probes_success() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "containers": [{
        "name": "c", "image": "shell", "args": ["while :; do sleep 0.01; done"],
        "startupProbe": { "exec": { "command": ["touch", "PLACE/probed"] }, "periodSeconds": 1 },
        "lifecycle": { "postStart": { "exec": { "command": ["sh", "-c", "until [ -e PLACE/go ]; do sleep 0.01; done"] } } },
    }] });
    let id = agent.create(&pod(&place, "p", &spec));
    eventually("the startup probe has succeeded", || place.root.join("probed").exists().then_some(()));
    std::fs::write(place.root.join("go"), "").unwrap();
    agent.until(&id, "it is ready", |status| container(status, "c").ready);
}

#[test]
fn a_pre_stop_hook_exceeding_the_grace_is_cut_off() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "containers": [{
        "name": "c", "image": "shell", "args": ["exec sleep 1000"], "lifecycle": { "preStop": { "sleep": { "seconds": 1000 } } },
    }] });
    let made = pod(&place, "p", &spec);
    let id = agent.create(&made);
    agent.runs(&id);
    agent.delete(&made, 1);
    agent.ends(&id);
}

#[test]
fn a_failed_hook_after_the_start_ends_the_container() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "restartPolicy": "Never", "containers": [{
        "name": "c", "image": "shell", "args": ["exec sleep 1000"], "lifecycle": { "postStart": { "exec": { "command": ["false"] } } },
    }] });
    let id = agent.create(&pod(&place, "p", &spec));
    assert_eq!(exit_code(&agent.ends(&id), "c"), Some(143));
}

#[test]
fn an_image_change_restarts_only_its_container_and_reports_generation() {
    let place = Place::new();
    let agent = place.agent();
    let one = |name: &str| {
        let args =
            [format!("echo {name} >> PLACE/volume-seen; cat /vk-shared/kept 2> /dev/null; echo kept > /vk-shared/kept; exec sleep 1000")];
        json!({ "name": name, "image": "shell", "args": args, "volumeMounts": [{ "name": "v", "mountPath": "/vk-shared" }] })
    };
    let spec =
        json!({ "containers": [one("a"), one("b")], "volumes": [{ "name": "v", "emptyDir": {} }], "terminationGracePeriodSeconds": 1 });
    let mut made = pod(&place, "p", &spec);
    let id = agent.create(&made);
    let before = agent.until(&id, "both are ready", |status| container(status, "a").ready && container(status, "b").ready);
    eventually("the volume was written", || (place.read("volume-seen").lines().count() == 2).then_some(()));
    made.spec.as_mut().unwrap().containers[0].image = Some("other-shell".into());
    made.metadata.generation = Some(2);
    agent.update(&made);
    let after = agent.until(&id, "the new image runs", |status| {
        let a = container(status, "a");
        a.image == "other-shell" && a.ready && a.restart_count == 1
    });
    assert_eq!(container(&after, "b").container_id, container(&before, "b").container_id);
    assert_eq!((&after.pod_ip, &after.start_time, after.observed_generation), (&before.pod_ip, &before.start_time, Some(2)));
    eventually("the volume stayed", || (agent.log(&id, "a", false) == ["kept"]).then_some(()));
}

#[test]
fn another_name_of_one_image_restarts_its_container() {
    let place = Place::new();
    let agent = place.agent();
    let spec =
        json!({ "containers": [{ "name": "c", "image": "a-shell", "args": ["exec sleep 1000"] }], "terminationGracePeriodSeconds": 1 });
    let mut made = pod(&place, "p", &spec);
    let id = agent.create(&made);
    let before = agent.until(&id, "it runs", |status| container(status, "c").ready);
    made.spec.as_mut().unwrap().containers[0].image = Some("a-shell-too".into());
    agent.update(&made);
    let after = agent.until(&id, "another run", |status| container(status, "c").ready && container(status, "c").restart_count == 1);
    let (before, after) = (container(&before, "c"), container(&after, "c"));
    assert_eq!((&after.image, &after.image_id), (&before.image, &before.image_id));
    assert_eq!((after.image.as_str(), after.image_id.as_str()), ("a-shell", "process-image://sha256:0"));
    assert_ne!(after.container_id, before.container_id);
}

#[test]
fn the_next_agent_applies_an_image_changed_in_between() {
    let place = Place::new();
    let first = place.agent();
    let spec =
        json!({ "containers": [{ "name": "c", "image": "shell", "args": ["exec sleep 1000"] }], "terminationGracePeriodSeconds": 1 });
    let mut made = pod(&place, "p", &spec);
    let id = first.create(&made);
    first.runs(&id);
    drop(first);
    let second = place.agent();
    made.spec.as_mut().unwrap().containers[0].image = Some("other-shell".into());
    second.update(&made);
    second.retain(&[&id]);
    second.until(&id, "the new image runs", |status| {
        container(status, "c").image == "other-shell" && container(status, "c").restart_count == 1
    });
}

#[test]
fn a_pod_ends_at_its_deadline_and_keeps_that_reason() {
    let place = Place::new();
    let first = place.agent();
    let spec = json!({ "activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1, "containers": [{ "name": "c", "image": "shell", "args": ["exec sleep 1000"] }] });
    let id = first.create(&pod(&place, "p", &spec));
    let ended = first.ends(&id);
    assert_eq!((ended.phase.as_deref(), ended.reason.as_deref()), (Some("Failed"), Some("DeadlineExceeded")));
    assert_eq!(ended.message.as_deref(), Some("Pod was active on the node longer than the specified deadline"));
    drop(first);
    assert_eq!(place.agent().ends(&id), ended, "the status of a pod that ended stays");
}

#[test]
fn a_termination_message_comes_from_file_or_log() {
    let place = Place::new();
    let agent = place.agent();
    let with = |name: &str, more: &serde_json::Value, text: &str| {
        let mut container = json!({ "name": "c", "image": "shell", "args": [text] });
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        agent.create(&pod(&place, name, &json!({ "restartPolicy": "Never", "containers": [container] })))
    };
    let message = |id| container(&agent.ends(&id), "c").state.clone().unwrap().terminated.unwrap().message;
    let file = with("file", &json!({ "terminationMessagePath": "/vk-end" }), "echo -n because > /vk-end; exit 1");
    let log = with("log", &json!({ "terminationMessagePolicy": "FallbackToLogsOnError" }), "echo last words; exit 1");
    let success = with("success", &json!({ "terminationMessagePolicy": "FallbackToLogsOnError" }), "echo last words");
    assert_eq!([message(file), message(log), message(success)], [Some("because".into()), Some("last words\n".into()), None]);
}

#[test]
fn a_host_port_stays_taken_after_its_pod_is_adopted() {
    let place = Place::new();
    let first = place.agent();
    let spec = json!({ "containers": [{ "name": "c", "image": "shell", "args": ["exec sleep 1000"], "ports": [{ "containerPort": 80, "hostPort": 8080 }] }] });
    let holder = first.create(&pod(&place, "holder", &spec));
    first.runs(&holder);
    drop(first);
    let second = place.agent();
    let refused = second.create(&pod(&place, "refused", &spec));
    let status = second.ends(&refused);
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("NodePorts")));
    second.runs(&holder);
}

#[test]
fn an_image_change_restarts_a_container_despite_restart_policy_never() {
    let place = Place::new();
    let agent = place.agent();
    let mut made = script(&place, "p", "trap 'exit 0' TERM; while :; do sleep 0.01; done");
    let id = agent.create(&made);
    agent.runs(&id);
    made.spec.as_mut().unwrap().containers[0].image = Some("other-shell".into());
    agent.update(&made);
    let seen = agent.until(&id, "the new image runs, or the pod has ended", |status| {
        container(status, "c").image == "other-shell" && container(status, "c").ready || status.phase.as_deref() != Some("Running")
    });
    assert_eq!((seen.phase.as_deref(), container(&seen, "c").restart_count), (Some("Running"), 1));
}

#[test]
fn probes_and_later_containers_wait_for_the_post_start_hook() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "containers": [
        {
            "name": "first", "image": "shell", "args": ["exec sleep 1000"],
            "livenessProbe": { "exec": { "command": ["touch", "PLACE/probed"] }, "periodSeconds": 1 },
            "lifecycle": { "postStart": { "exec": { "command": ["sh", "-c",
                "sleep 1.5; [ -e PLACE/probed ] || [ -e PLACE/second ] || touch PLACE/in-order"] } } },
        },
        { "name": "second", "image": "shell", "args": ["touch PLACE/second; exec sleep 1000"] },
    ] });
    let id = agent.create(&pod(&place, "p", &spec));
    agent.until(&id, "both are ready", |status| container(status, "first").ready && container(status, "second").ready);
    eventually("it is probed", || place.root.join("probed").exists().then_some(()));
    assert!(place.root.join("in-order").exists());
}

#[test]
fn slow_creation_of_pod_files_blocks_no_query_or_deletion() {
    let place = Place::new();
    let agent = place.agent();
    let other = agent.create(&script(&place, "other", "sleep 1000"));
    agent.runs(&other);
    let slow = script(&place, "slow", "sleep 1000");
    let directory = place.root.join("pods/default_slow_uid-of-slow");
    fs::create_dir_all(&directory).unwrap();
    // Its note is written when somebody reads it.
    let note = directory.join("pod.json.new");
    mkfifo(&note, Mode::S_IRWXU).unwrap();
    let (provider, given) = (agent.provider.clone(), Arc::new(slow.clone()));
    let creating = agent.runtime.spawn(async move { provider.create_pod(given).await });
    eventually("its files are made", || directory.join("c").exists().then_some(()));
    let (sender, answer) = mpsc::channel();
    let provider = agent.provider.clone();
    std::thread::spawn(move || {
        let status = futures::executor::block_on(provider.get_pod_status(&other)).unwrap();
        sender.send(status.and_then(|status| status.phase)).unwrap();
    });
    let phase = answer.recv_timeout(DEADLINE).ok().flatten();
    if phase.is_some() {
        agent.delete(&slow, 1);
    }
    File::open(&note).unwrap().read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(phase.as_deref(), Some("Running"), "it was not told");
    agent.runtime.block_on(creating).unwrap().unwrap();
    agent.ends(&PodId::of(&slow));
}
