//! Logs, attach and exec through the container's supervisor.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt as _;
use virtual_kubelet::api::{ContainerTarget, LogOptions, PodHandlers as _, PodTarget};
use virtual_kubelet::pod::PodId;
use virtual_kubelet::process::shim::{Input, LogFiles, LogRotation, Output, Session, SessionError, TerminalSize};
use virtual_kubelet::process::{AccessError, KubeletHandlers};

use crate::place::{Agent, Place, container, eventually, exit_code, pod, script};

const SIZE: TerminalSize = TerminalSize { width: 101, height: 37 };

fn command(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

async fn open(agent: &Agent, id: &PodId, argv: &[&str], stdin: bool, tty: Option<TerminalSize>) -> Session {
    agent.provider.exec(id, "c", command(argv), stdin, tty).await.unwrap()
}

/// Reads until the output contains `text`.
async fn until(session: &mut Session, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match session.reader.next().await.unwrap() {
            Output::Stdout(bytes) | Output::Stderr(bytes) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    seen
}

fn sleeper(place: &Place, agent: &Agent) -> PodId {
    let id = agent.create(&script(place, "p", "exec sleep 1000"));
    agent.runs(&id);
    id
}

#[test]
fn an_exec_has_its_own_streams_and_exit_code() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    agent.runtime.block_on(async {
        let mut session = open(&agent, &id, &["sh", "-c", "cat; echo error >&2; exit 3"], true, None).await;
        session.writer.send(Input::Stdin(b"hello\n".to_vec())).await.unwrap();
        session.writer.send(Input::CloseStdin).await.unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = loop {
            match session.reader.next().await.unwrap() {
                Output::Stdout(bytes) => out.extend(bytes),
                Output::Stderr(bytes) => err.extend(bytes),
                Output::Exit(code) => break code,
                Output::Refused(reason) => panic!("{reason}"),
            }
        };
        assert_eq!((out.as_slice(), err.as_slice(), code), (&b"hello\n"[..], &b"error\n"[..], 3));
    });
}

#[test]
fn an_exec_carries_a_megabyte_both_ways_without_a_loss() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    agent.runtime.block_on(async {
        let sent: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let session = open(&agent, &id, &["cat"], true, None).await;
        let (writer, bytes) = (session.writer.clone(), sent.clone());
        tokio::spawn(async move {
            writer.send(Input::Stdin(bytes)).await.unwrap();
            writer.send(Input::CloseStdin).await.unwrap();
        });
        let (code, got) = session.collect(usize::MAX).await.unwrap();
        assert!((code, got.len()) == (0, sent.len()) && got == sent);
    });
}

#[test]
fn a_terminal_exec_learns_its_size_and_later_changes() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    agent.runtime.block_on(async {
        let text = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done";
        let mut session = open(&agent, &id, &["sh", "-c", text], true, Some(SIZE)).await;
        assert!(until(&mut session, "ready").await.starts_with("37 101\r\n"));
        session.writer.send(Input::Resize(TerminalSize { width: 80, height: 25 })).await.unwrap();
        until(&mut session, "25 80\r\n").await;
    });
}

#[test]
fn an_exec_ends_when_nobody_listens_any_more() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    let pid = agent.runtime.block_on(async {
        let mut session = open(&agent, &id, &["sh", "-c", "sleep 1000 & echo $!.; wait"], false, None).await;
        until(&mut session, ".").await.trim().trim_end_matches('.').to_owned()
    });
    eventually("the command has ended with its session", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn an_exec_of_a_missing_program_says_so() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    let (code, text) =
        agent.runtime.block_on(async { open(&agent, &id, &["no-such-program"], false, None).await.collect(1000).await }).unwrap();
    assert_eq!(code, 126);
    assert!(String::from_utf8_lossy(&text).contains("executable file not found"), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn a_leaving_client_closes_the_input_only_with_stdin_once() {
    let place = Place::new();
    let agent = place.agent();
    let with = |name: &str, once: bool| {
        let spec = json!({ "restartPolicy": "Never", "containers": [{
            "name": "c", "image": "shell", "args": ["while read line; do echo got $line; done; echo over; exit 4"], "stdin": true, "stdinOnce": once,
        }] });
        let id = agent.create(&pod(&place, name, &spec));
        agent.runs(&id);
        id
    };
    let (once, many) = (with("once", true), with("many", false));
    agent.runtime.block_on(async {
        for (id, text) in [(&many, "one"), (&many, "two"), (&once, "three")] {
            let mut session = agent.provider.attach(id, "c").await.unwrap();
            session.writer.send(Input::Stdin(format!("{text}\n").into_bytes())).await.unwrap();
            until(&mut session, &format!("got {text}\n")).await;
        }
    });
    assert_eq!(exit_code(&agent.ends(&once), "c"), Some(4));
    assert_eq!(agent.log(&once, "c", false), ["got three", "over"]);
    eventually("the other one's output is logged", || (agent.log(&many, "c", false) == ["got one", "got two"]).then_some(()));
    let error = agent.runtime.block_on(agent.provider.attach(&once, "c")).unwrap_err();
    assert!(matches!(error, AccessError::Session(SessionError::NotRunning)), "{error}");
}

#[test]
fn an_attached_client_learns_the_exit_code_after_all_output() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "restartPolicy": "Never", "containers": [{
        "name": "c", "image": "shell", "args": ["read line; seq 1 1000; exit 9"], "stdin": true, "stdinOnce": true,
    }] });
    let id = agent.create(&pod(&place, "p", &spec));
    agent.runs(&id);
    let (code, output) = agent.runtime.block_on(async {
        let session = agent.provider.attach(&id, "c").await.unwrap();
        session.writer.send(Input::Stdin(b"\n".to_vec())).await.unwrap();
        session.collect(usize::MAX).await.unwrap()
    });
    let output = String::from_utf8(output).unwrap();
    assert_eq!(code, 9);
    assert!(output.lines().eq((1..=1000).map(|number| number.to_string())), "{output}");
}

#[test]
fn a_container_with_a_terminal_is_attached_to_and_logged() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "restartPolicy": "Never", "containers": [{
        "name": "c", "image": "shell", "args": ["test -t 0 && test -t 1 && echo terminal $TERM; read word; stty size; echo $word; exit 5"],
        "stdin": true, "stdinOnce": true, "tty": true,
    }] });
    let id = agent.create(&pod(&place, "p", &spec));
    agent.runs(&id);
    // The terminal shows what is typed as soon as it is.
    eventually("it has spoken", || agent.log(&id, "c", false).iter().any(|line| line.starts_with("terminal")).then_some(()));
    agent.runtime.block_on(async {
        let session = agent.provider.attach(&id, "c").await.unwrap();
        session.writer.send(Input::Resize(SIZE)).await.unwrap();
        session.writer.send(Input::Stdin(b"word\n".to_vec())).await.unwrap();
        let (code, _) = session.collect(usize::MAX).await.unwrap();
        assert_eq!(code, 5);
    });
    agent.ends(&id);
    let log: Vec<String> = agent.log(&id, "c", false).iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(log, ["terminal xterm", "word", "37 101", "word"]);
}

#[test]
fn a_log_rotated_by_size_keeps_its_newest_parts() {
    let mut place = Place::new();
    place.log_rotation = LogRotation { max_bytes: 1000, max_files: 3 };
    let agent = place.agent();
    let id = agent.create(&script(&place, "p", "seq 1 500"));
    agent.ends(&id);
    let files: LogFiles = agent.provider.log_files(&id, "c", false).unwrap();
    assert_eq!(files.rotated.len(), 2);
    let lines = crate::place::log(&files);
    let wanted: Vec<String> = (501 - lines.len()..=500).map(|number| number.to_string()).collect();
    assert!(lines.len() > 20 && lines == wanted, "{lines:?}");
}

#[test]
fn what_a_container_uses_is_counted_with_all_its_processes() {
    let place = Place::new();
    let agent = place.agent();
    let text = format!("( while :; do [ -e {0}/stop ] && break; done ); sh -c 'exec sleep 1000'; true", place.root.display());
    let id = agent.create(&script(&place, "p", &text));
    agent.runs(&id);
    let figures = || agent.provider.figures().into_iter().find(|figures| figures.id == id).and_then(|mut pod| pod.containers.pop());
    // The start itself may take as long, with one process.
    let busy =
        eventually("processor time is counted", || figures().filter(|figures| figures.cpu.as_millis() >= 100 && figures.processes == 2));
    assert!(busy.processes == 2 && busy.resident_bytes > 100_000 && busy.virtual_bytes >= busy.resident_bytes, "{busy:?}");
    std::fs::write(place.root.join("stop"), "").unwrap();
    let after = eventually("the busy child has ended", || figures().filter(|figures| figures.processes == 2 && figures.cpu >= busy.cpu));
    assert!(after.cpu >= busy.cpu, "time of ended processes stays counted");
}

#[test]
fn a_log_exists_only_for_a_run_that_has_begun() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({ "containers": [{ "name": "c", "image": "unknown" }] });
    let waiting = agent.create(&pod(&place, "waiting", &spec));
    agent.until(&waiting, "the pull fails", |status| format!("{status:?}").contains("ErrImagePull"));
    let text = "container \"c\" in pod \"waiting\" is waiting to start: ErrImagePull";
    // It backs off 2 s later, and tries again.
    eventually("it is said why", || (agent.provider.log_files(&waiting, "c", false).unwrap_err().to_string() == text).then_some(()));
    let running = sleeper(&place, &agent);
    let text = agent.provider.log_files(&running, "c", true).unwrap_err().to_string();
    assert_eq!(text, "previous terminated container \"c\" in pod \"p\" not found");
    assert!(matches!(agent.provider.log_files(&running, "x", false), Err(AccessError::NotFound(_))));
}

#[test]
fn stuck_sessions_and_followers_leave_no_task_process_or_descriptor() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    let note: serde_json::Value = serde_json::from_str(&place.read("pods/default_p_uid-of-p/c/run-0.json")).unwrap();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", note["shim"]["pid"])).unwrap().count();
    let processes = || agent.provider.figures().iter().flat_map(|pod| &pod.containers).map(|figures| figures.processes).sum::<u64>();
    let tasks = || agent.runtime.metrics().num_alive_tasks();
    // The agent's own files, which the followers open, are of this process; so only one test at a time could count all of them.
    let open_logs = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        open.filter(|path| path.starts_with(place.root.join("pods"))).count()
    };
    let before = (descriptors(), processes(), tasks(), open_logs());
    let handlers = KubeletHandlers::new(agent.provider.clone());
    let target = ContainerTarget { pod: PodTarget { namespace: "default".into(), name: "p".into(), uid: None }, container: "c".into() };
    agent.runtime.block_on(async {
        let (mut sessions, mut followers) = (Vec::new(), Vec::new());
        for number in 0..50 {
            let mut follower = handlers.container_logs(&target, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
            followers.push(agent.runtime.spawn(async move { follower.read_u8().await }));
            // Neither reads its input nor ends, with and without a terminal.
            let mut stuck = open(&agent, &id, &["sh", "-c", "echo up; exec sleep 1000"], true, (number % 2 == 0).then_some(SIZE)).await;
            until(&mut stuck, "up").await;
            stuck.writer.send(Input::Stdin(vec![b'x'; 4096])).await.unwrap();
            sessions.push(stuck);
            sessions.push(agent.provider.attach(&id, "c").await.unwrap());
        }
        eventually("all are there", || {
            let held = descriptors() > before.0 + 100 && processes() == before.1 + 50;
            (held && tasks() >= before.2 + 50 && open_logs() >= before.3 + 50).then_some(())
        });
        followers.iter().for_each(tokio::task::JoinHandle::abort);
    });
    // What ended since the first look is no loss.
    eventually("all is gone", || {
        let gone = descriptors() <= before.0 && processes() <= before.1 && tasks() <= before.2 && open_logs() <= before.3;
        gone.then_some(())
    });
}

#[test]
fn an_exec_ends_with_its_command_despite_a_flooding_child() {
    let place = Place::new();
    let agent = place.agent();
    let id = sleeper(&place, &agent);
    agent.runtime.block_on(async {
        let session = open(&agent, &id, &["sh", "-c", "yes & exit 3"], false, None).await;
        let ended = tokio::time::timeout(Duration::from_mins(1), session.collect(1 << 10)).await.expect("it goes on");
        assert_eq!(ended.unwrap().0, 3);
    });
}

#[test]
fn a_follower_that_slept_through_two_restarts_ends() {
    let place = Place::new();
    let agent = place.agent();
    let spec = json!({
        "containers": [{ "name": "c", "image": "shell", "args": ["echo up; exec sleep 1000"] }], "terminationGracePeriodSeconds": 1,
    });
    let mut made = pod(&place, "p", &spec);
    let id = agent.create(&made);
    agent.runs(&id);
    eventually("it has spoken", || (agent.log(&id, "c", false) == ["up"]).then_some(()));
    let target = ContainerTarget { pod: PodTarget { namespace: "default".into(), name: "p".into(), uid: None }, container: "c".into() };
    let handlers = KubeletHandlers::new(agent.provider.clone());
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let mut following = agent.runtime.block_on(handlers.container_logs(&target, options)).unwrap();
    for (restarts, image) in (1..).zip(["other-shell", "shell"]) {
        made.spec.as_mut().unwrap().containers[0].image = Some(image.into());
        agent.update(&made);
        agent.until(&id, "it was restarted", |status| container(status, "c").restart_count == restarts && container(status, "c").ready);
    }
    let mut seen = String::new();
    let read = async { tokio::time::timeout(Duration::from_mins(1), following.read_to_string(&mut seen)).await };
    agent.runtime.block_on(read).expect("it goes on").unwrap();
    assert_eq!(seen, "up\n");
}
