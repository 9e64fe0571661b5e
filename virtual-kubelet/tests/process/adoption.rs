//! Containers outlive the agent.

use std::path::Path;

use serde_json::json;

use crate::place::{Place, container, eventually, exit_code, pod, script};

/// `$$$$` in a container's arguments is the shell's `$$`.
fn alive(pid: &str) -> bool {
    assert!(pid.parse::<i32>().is_ok(), "{pid:?} is no process id");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn the_next_agent_adopts_a_running_container_with_its_log() {
    let place = Place::new();
    let first = place.agent();
    let text = "echo one; echo $$$$ > PLACE/pid; until [ -e PLACE/go ]; do sleep 0.01; done; echo two >&2; exit 7";
    let made = script(&place, "p", &text.replace("PLACE", &place.root.to_string_lossy()));
    let id = first.create(&made);
    let before = first.runs(&id);
    eventually("the program has said who it is", || (!place.read("pid").is_empty()).then_some(()));
    drop(first);
    assert!(alive(place.read("pid").trim()));
    let second = place.agent();
    let after = second.runs(&id);
    assert_eq!(container(&after, "c").container_id, container(&before, "c").container_id);
    assert_eq!(container(&after, "c").state, container(&before, "c").state);
    assert_eq!((container(&after, "c").ready, after.start_time), (true, before.start_time));
    second.retain(&[&id]);
    std::fs::write(place.root.join("go"), "").unwrap();
    let ended = second.ends(&id);
    assert_eq!(exit_code(&ended, "c"), Some(7));
    assert_eq!(second.log(&id, "c", false), ["one", "two"]);
    assert!(!alive(place.read("pid").trim()));
}

#[test]
fn an_end_between_two_agents_is_reported_with_its_code() {
    let place = Place::new();
    let first = place.agent();
    let text = format!("echo run; until [ -e {0}/go ]; do sleep 0.01; done; rm {0}/go; touch {0}/ended; exit 7", place.root.display());
    let never = first.create(&script(&place, "never", &text.replace("go", "go-never")));
    let spec = json!({ "restartPolicy": "Always", "containers": [{ "name": "c", "image": "shell", "args": [text] }] });
    let always = first.create(&pod(&place, "always", &spec));
    first.runs(&never);
    first.runs(&always);
    drop(first);
    std::fs::write(place.root.join("go"), "").unwrap();
    std::fs::write(place.root.join("go-never"), "").unwrap();
    let noted = |name: &str| {
        let path = place.root.join(format!("pods/default_{name}_uid-of-{name}/c/exit-0.json"));
        eventually("the shim has noted the end", || std::fs::read_to_string(&path).ok())
    };
    let note: serde_json::Value = serde_json::from_str(&noted("never")).unwrap();
    noted("always");
    let second = place.agent();
    let ended = second.ends(&never);
    let end = container(&ended, "c").state.clone().unwrap().terminated.unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (7, Some("Error")));
    let finished = serde_json::to_value(end.finished_at).unwrap();
    assert_eq!(note["finishedAt"].as_str().unwrap()[..19], finished.as_str().unwrap()[..19]);
    let seen = second.until(&always, "its end", |status| exit_code(status, "c").is_some());
    assert_eq!((container(&seen, "c").restart_count, exit_code(&seen, "c")), (0, Some(7)), "not started before it is known to be wanted");
    second.retain(&[&always, &never]);
    let again = second.until(&always, "another run", |status| container(status, "c").restart_count == 1);
    assert_eq!(container(&again, "c").last_state.clone().unwrap().terminated.unwrap().exit_code, 7);
    assert_eq!(second.log(&always, "c", true), ["run"]);
    assert_eq!(second.status(&never), ended, "the status of a pod that ended stays");
}

#[test]
fn the_next_agent_ends_a_pod_that_left_the_api() {
    let place = Place::new();
    let first = place.agent();
    let made = script(
        &place,
        "p",
        &format!("trap 'touch {0}/asked; exit 0' TERM; echo $$$$ > {0}/pid; while :; do sleep 0.01; done", place.root.display()),
    );
    let id = first.create(&made);
    eventually("the program has said who it is", || (!place.read("pid").is_empty()).then_some(()));
    drop(first);
    let second = place.agent();
    second.delete(&made, 30);
    second.ends(&id);
    assert!(place.root.join("asked").exists() && !alive(place.read("pid").trim()));
}

#[test]
fn an_ending_pod_goes_on_ending_under_the_next_agent() {
    let place = Place::new();
    let first = place.agent();
    let text = format!("trap 'touch {0}/asked' TERM; touch {0}/up; until [ -e {0}/go ]; do sleep 0.01; done", place.root.display());
    let made = script(&place, "p", &text);
    let id = first.create(&made);
    eventually("it runs", || place.root.join("up").exists().then_some(()));
    first.delete(&made, 600);
    eventually("it was asked to end", || place.root.join("asked").exists().then_some(()));
    drop(first);
    std::fs::remove_file(place.root.join("asked")).unwrap();
    let second = place.agent();
    eventually("it was asked again, by the one who did not see it asked", || place.root.join("asked").exists().then_some(()));
    std::fs::write(place.root.join("go"), "").unwrap();
    second.ends(&id);
}

#[test]
fn processes_end_with_their_container_despite_another_session() {
    let place = Place::new();
    let agent = place.agent();
    let daemon = "setsid sh -c 'echo $$$$ > PLACE/daemon; exec sleep 1000' & until [ -s PLACE/daemon ]; do sleep 0.01; done";
    let id = agent.create(&script(&place, "p", &daemon.replace("PLACE", &place.root.to_string_lossy())));
    agent.ends(&id);
    let pid = place.read("daemon");
    assert!(!pid.is_empty() && !alive(pid.trim()));
}

#[test]
fn a_container_whose_supervisor_is_killed_ends_with_unknown_status() {
    let place = Place::new();
    let agent = place.agent();
    let text = "sleep 1000 & echo $! > PLACE/child; wait".replace("PLACE", &place.root.to_string_lossy());
    let id = agent.create(&script(&place, "p", &text));
    agent.runs(&id);
    eventually("the program has a child", || (!place.read("child").is_empty()).then_some(()));
    let note = place.read("pods/default_p_uid-of-p/c/run-0.json");
    let note: serde_json::Value = serde_json::from_str(&note).unwrap();
    let shim = i32::try_from(note["shim"]["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::Signal::SIGKILL).unwrap();
    let ended = agent.ends(&id);
    let end = container(&ended, "c").state.clone().unwrap().terminated.unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    let (child, main) = (place.read("child"), note["main"]["pid"].to_string());
    eventually("nothing is left", || (!alive(child.trim()) && !Path::new(&format!("/proc/{main}/exe")).exists()).then_some(()));
}

#[test]
fn a_start_interrupted_at_any_moment_becomes_exactly_one_run() {
    let place = Place::new();
    // What there is at the moment of death: nothing but the note of the pod, the orders, the shim, the program.
    for (number, moment) in ["pod.json", "c/order.json", "c/shim.json", "c/shim.sock", "c/run-0.json", "ran"].into_iter().enumerate() {
        let name = format!("p{number}");
        let directory = place.root.join(format!("pods/default_{name}_uid-of-{name}"));
        let text = format!("echo ran >> {0}/ran; until [ -e {0}/go ]; do sleep 0.01; done; exit 6", directory.display());
        let first = place.agent();
        let id = first.create(&script(&place, &name, &text));
        eventually(moment, || directory.join(moment).exists().then_some(()));
        drop(first);
        let second = place.agent();
        second.retain(&[&id]);
        second.runs(&id);
        std::fs::write(directory.join("go"), "").unwrap();
        let ended = second.ends(&id);
        assert_eq!((exit_code(&ended, "c"), container(&ended, "c").restart_count), (Some(6), 0), "died at {moment}");
        assert_eq!(std::fs::read_to_string(directory.join("ran")).unwrap(), "ran\n", "died at {moment}");
    }
}

#[test]
fn later_agents_report_a_killed_shim_alike() {
    let place = Place::new();
    let first = place.agent();
    let id = first.create(&script(&place, "p", "exec sleep 1000"));
    first.runs(&id);
    drop(first);
    let note: serde_json::Value = serde_json::from_str(&place.read("pods/default_p_uid-of-p/c/run-0.json")).unwrap();
    let shim = nix::unistd::Pid::from_raw(i32::try_from(note["shim"]["pid"].as_i64().unwrap()).unwrap());
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).unwrap();
    let second = place.agent();
    let ended = second.ends(&id);
    assert_eq!(container(&ended, "c").state.clone().unwrap().terminated.unwrap().reason.as_deref(), Some("ContainerStatusUnknown"));
    drop(second);
    assert_eq!(place.agent().ends(&id), ended);
}

#[test]
fn a_second_agent_at_the_same_directory_is_refused() {
    let place = Place::new();
    let _first = place.agent();
    let error = virtual_kubelet::process::claim(&place.root).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn the_end_pods_command_ends_pods_without_an_agent() {
    let place = Place::new();
    let first = place.agent();
    let text = format!("trap 'touch {0}/asked; exit 0' TERM; echo $$$$ > {0}/pid; while :; do sleep 0.01; done", place.root.display());
    let id = first.create(&script(&place, "p", &text));
    first.runs(&id);
    eventually("the program has said who it is", || (!place.read("pid").is_empty()).then_some(()));
    drop(first);
    let program = env!("CARGO_BIN_EXE_virtual-kubelet");
    let status = std::process::Command::new(program).arg("end-pods").arg("--root-dir").arg(&place.root).status().unwrap();
    assert!(status.success() && place.root.join("asked").exists() && !alive(place.read("pid").trim()));
}
