use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use super::*;
use crate::simulated::stages::Stages;
use crate::simulated::status::Whereabouts;
use crate::simulated::template::ContainerTemplate;

const START: i64 = 1_000;

fn at(second: f64) -> Timestamp {
    Timestamp::from_second(START).unwrap() + Duration::from_secs_f64(second)
}

fn container(name: &str, role: Role) -> ContainerTemplate {
    let restart_policy = (role == Role::Sidecar).then(|| "Always".into());
    ContainerTemplate { name: name.into(), image: format!("{name}:1").into(), role, restart_policy }
}

fn template(policy: &str, containers: &[ContainerTemplate]) -> Arc<Template> {
    Arc::new(Template {
        containers: containers.into(),
        restart_policy: policy.into(),
        readiness_gates: [].into(),
        grace_seconds: 30,
        host_network: false,
    })
}

fn plan(rule: &str) -> Arc<Plan> {
    Stages::from_yaml(&format!("pods:\n- {{{rule}}}\n")).unwrap().plan("web", None, None)
}

fn one(policy: &str) -> Arc<Template> {
    template(policy, &[container("main", Role::Main)])
}

fn simulated(rule: &str, template: &Arc<Template>) -> SimulatedPod {
    SimulatedPod::new(7, plan(rule), template.clone(), Some(1), at(0.0))
}

fn status(pod: &SimulatedPod) -> PodStatus {
    let gates = vec![None; pod.template.readiness_gates.len()];
    let who = Whereabouts { namespace: "web", name: "a", uid: "u", host_ip: "198.19.0.1", pod_ip: "10.64.0.1", gates: &gates };
    pod.status(&who)
}

/// What somebody sees who looks at one container: state and reason, readiness, restarts, and the pod's phase.
fn seen(pod: &SimulatedPod, name: &str) -> String {
    let status = json!(status(pod));
    let all = [&status["containerStatuses"], &status["initContainerStatuses"]];
    let container = all.into_iter().filter_map(Value::as_array).flatten().find(|container| container["name"] == name).unwrap().clone();
    let (state, detail) = container["state"].as_object().unwrap().iter().next().unwrap();
    let reason = detail["reason"].as_str().unwrap_or_default();
    let ready = if container["ready"] == true { " ready" } else { "" };
    format!("{} {state} {reason}{ready} {}", status["phase"].as_str().unwrap(), container["restartCount"]).replace("  ", " ")
}

/// All that is seen of a container until `seconds`, with the second at which it began.
fn history(pod: &mut SimulatedPod, name: &str, seconds: f64) -> Vec<(f64, String)> {
    let second = |time: Timestamp| time.duration_since(at(0.0)).as_secs_f64();
    let mut now = pod.start_time;
    pod.advance(now);
    let mut history = vec![(second(now), seen(pod, name))];
    while let Some(due) = pod.due().filter(|due| *due <= at(seconds)) {
        now = now.max(due);
        pod.advance(now);
        let seen = seen(pod, name);
        if history.last().is_none_or(|(_, last)| *last != seen) {
            history.push((second(now), seen));
        }
    }
    history
}

fn facts(history: &[(f64, String)]) -> Vec<(f64, &str)> {
    history.iter().map(|(second, seen)| (*second, seen.as_str())).collect()
}

fn condition(status: &PodStatus, type_: &str) -> String {
    let conditions = status.conditions.as_ref().unwrap();
    let condition = conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    format!("{} {}", condition.status, condition.reason.as_deref().unwrap_or_default()).trim().to_owned()
}

#[test]
fn without_delays_a_pod_is_ready_at_once() {
    let mut pod = simulated("", &one("Always"));
    pod.advance(at(0.0));
    assert_eq!((seen(&pod, "main").as_str(), pod.due()), ("Running running ready 0", None));
    let status = status(&pod);
    assert_eq!((status.host_ip.as_deref(), status.pod_ip.as_deref()), (Some("198.19.0.1"), Some("10.64.0.1")));
    for type_ in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled"] {
        assert_eq!(condition(&status, type_), "True", "{type_}");
    }
}

#[test]
fn stages_follow_one_another() {
    let mut pod = simulated("pull: 2s, start: 1s, ready: 4s, run: 10s", &one("Never"));
    let history = history(&mut pod, "main", 100.0);
    let expected = [
        (0.0, "Pending waiting ContainerCreating 0"),
        (3.0, "Running running 0"),
        (7.0, "Running running ready 0"),
        (13.0, "Succeeded terminated Completed 0"),
    ];
    assert_eq!(facts(&history), expected);
    assert!(pod.is_over_for_good());
    assert_eq!(condition(&status(&pod), "Ready"), "False PodCompleted");
    assert_eq!(condition(&status(&pod), "PodReadyToStartContainers"), "False");
}

#[test]
fn what_is_noticed_late_still_happened_in_its_time() {
    let mut stepwise = simulated("pull: 2s, start: 1s, run: 3s", &one("Always"));
    let mut late = stepwise.clone();
    history(&mut stepwise, "main", 60.0);
    late.advance(at(60.0));
    assert_eq!(status(&stepwise), status(&late));
}

#[test]
fn a_restart_policy_decides_what_an_end_means() {
    let end = |policy: &str, code: &str| {
        let mut pod = simulated(&format!("run: 5s, exitCode: {code}"), &one(policy));
        pod.advance(at(5.5));
        seen(&pod, "main")
    };
    assert_eq!(end("Never", "0"), "Succeeded terminated Completed 0");
    assert_eq!(end("Never", "3"), "Failed terminated Error 0");
    assert_eq!(end("OnFailure", "0"), "Succeeded terminated Completed 0");
    assert_eq!(end("OnFailure", "3"), "Running terminated Error 0");
    assert_eq!(end("Always", "0"), "Running terminated Completed 0");
}

#[test]
fn a_crash_loop_backs_off_as_a_kubelet_does() {
    let mut pod = simulated("fault: crash-loop", &one("Always"));
    let history = history(&mut pod, "main", 40.0);
    let expected = [
        (0.0, "Running running ready 0"),
        (1.0, "Running terminated Error 0"),
        (2.0, "Running running ready 1"),
        (3.0, "Running terminated Error 1"),
        (4.0, "Running waiting CrashLoopBackOff 1"),
        (13.0, "Running running ready 2"),
        (14.0, "Running terminated Error 2"),
        (15.0, "Running waiting CrashLoopBackOff 2"),
        (34.0, "Running running ready 3"),
        (35.0, "Running terminated Error 3"),
        (36.0, "Running waiting CrashLoopBackOff 3"),
    ];
    assert_eq!(facts(&history), expected);
    let status = json!(status(&pod));
    let container = &status["containerStatuses"][0];
    assert_eq!(container["state"]["waiting"]["message"], "back-off 40s restarting failed container=main pod=a_web(u)");
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 1);
}

#[test]
fn a_failing_image_pull_is_retried_until_the_fault_ends() {
    let template = one("Always");
    let mut pod = simulated("pull: 2s, fault: image-pull-error", &template);
    let before = history(&mut pod, "main", 40.0);
    let expected = [
        (0.0, "Pending waiting ContainerCreating 0"),
        (2.0, "Pending waiting ErrImagePull 0"),
        (3.0, "Pending waiting ImagePullBackOff 0"),
        (14.0, "Pending waiting ErrImagePull 0"),
        (15.0, "Pending waiting ImagePullBackOff 0"),
        (36.0, "Pending waiting ErrImagePull 0"),
        (37.0, "Pending waiting ImagePullBackOff 0"),
    ];
    assert_eq!(facts(&before), expected);
    assert!(pod.update(plan("pull: 2s"), template, Some(1), at(40.0)));
    pod.advance(at(78.1));
    assert_eq!(seen(&pod, "main"), "Running running ready 0");
}

#[test]
fn init_containers_run_in_order_and_sidecars_outlast_main_containers() {
    let containers =
        [container("first", Role::Init), container("proxy", Role::Sidecar), container("second", Role::Init), container("main", Role::Main)];
    let mut pod = simulated("init: 2s, start: 1s, run: 10s, stop: 3s", &template("Never", &containers));
    pod.advance(at(0.5));
    assert_eq!(seen(&pod, "main"), "Pending waiting PodInitializing 0");
    assert_eq!(condition(&status(&pod), "Initialized"), "False ContainersNotInitialized");
    pod.advance(at(3.5));
    assert_eq!(
        (seen(&pod, "first").as_str(), seen(&pod, "proxy").as_str()),
        ("Pending terminated Completed ready 0", "Pending waiting PodInitializing 0")
    );
    pod.advance(at(5.5));
    assert_eq!((seen(&pod, "proxy").as_str(), seen(&pod, "second").as_str()), ("Pending running ready 0", "Pending running 0"));
    pod.advance(at(8.5));
    assert_eq!((seen(&pod, "main").as_str(), condition(&status(&pod), "Ready").as_str()), ("Running running ready 0", "True"));
    pod.advance(at(19.0));
    assert_eq!((seen(&pod, "main").as_str(), seen(&pod, "proxy").as_str()), ("Running terminated Completed 0", "Running running ready 0"));
    pod.advance(at(21.5));
    assert_eq!(seen(&pod, "proxy"), "Succeeded terminated Completed 0");
    assert!(pod.is_over_for_good());
}

#[test]
fn a_pod_ends_within_its_grace_and_sidecars_end_last() {
    let containers = [container("proxy", Role::Sidecar), container("main", Role::Main)];
    let both = template("Always", &containers);
    let mut pod = simulated("stop: 4s", &both);
    pod.advance(at(1.0));
    assert!(pod.stop(at(10.0), Duration::from_secs(30)));
    pod.advance(at(13.0));
    assert_eq!(seen(&pod, "main"), "Running running ready 0");
    pod.advance(at(14.0));
    assert_eq!((seen(&pod, "main").as_str(), seen(&pod, "proxy").as_str()), ("Running terminated Completed 0", "Running running ready 0"));
    assert!(!pod.is_over_for_good());
    pod.advance(at(18.0));
    assert_eq!((pod.is_over_for_good(), seen(&pod, "proxy").as_str()), (true, "Succeeded terminated Completed 0"));
}

#[test]
fn a_slow_stop_uses_the_whole_grace_unless_shortened() {
    let mut pod = simulated("fault: slow-stop", &one("Always"));
    pod.advance(at(1.0));
    pod.stop(at(10.0), Duration::from_secs(30));
    assert_eq!(pod.due(), Some(at(40.0)));
    assert!(!pod.stop(at(11.0), Duration::from_mins(1)), "a longer grace changes nothing");
    assert!(pod.stop(at(12.0), Duration::from_secs(5)));
    assert_eq!(pod.due(), Some(at(17.0)));
    pod.advance(at(17.0));
    assert_eq!((seen(&pod, "main").as_str(), pod.is_over_for_good()), ("Failed terminated Error 0", true));
    assert_eq!(json!(status(&pod))["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
}

#[test]
fn a_never_ready_pod_becomes_ready_after_the_fault() {
    let template = one("Always");
    let mut pod = simulated("ready: 3s, fault: never-ready", &template);
    pod.advance(at(1_000.0));
    assert_eq!(seen(&pod, "main"), "Running running 0");
    assert_eq!(condition(&status(&pod), "Ready"), "False ContainersNotReady");
    pod.update(plan("ready: 3s"), template, Some(1), at(1_000.0));
    pod.advance(at(1_003.0));
    assert_eq!(seen(&pod, "main"), "Running running ready 0");
}

#[test]
fn a_restarted_agent_makes_pods_briefly_unready_without_restarts() {
    let mut pod = simulated("ready: 2s", &one("Always"));
    pod.advance(at(100.0));
    assert!(pod.forget_readiness(at(100.0), Duration::from_secs(10)));
    pod.advance(at(111.0));
    assert_eq!(condition(&status(&pod), "Ready"), "False ContainersNotReady");
    pod.advance(at(112.0));
    assert_eq!((seen(&pod, "main").as_str(), condition(&status(&pod), "Ready").as_str()), ("Running running ready 0", "True"));
}

#[test]
fn an_image_change_ends_only_its_container_before_pulling() {
    let main = |image: &str| ContainerTemplate { image: image.into(), ..container("main", Role::Main) };
    let before = template("Always", &[main("main:1"), container("other", Role::Main)]);
    let after = template("Always", &[main("main:2"), container("other", Role::Main)]);
    let mut pod = simulated("pull: 2s, start: 1s, ready: 1s, stop: 3s", &before);
    pod.advance(at(50.0));
    let first = json!(status(&pod));
    assert!(pod.update(pod.plan.clone(), after, Some(2), at(50.0)));
    assert_eq!(json!(status(&pod))["observedGeneration"], 2);
    pod.advance(at(53.0));
    let ended = json!(status(&pod));
    assert_eq!(
        (seen(&pod, "main").as_str(), ended["containerStatuses"][0]["image"].as_str()),
        ("Running terminated Completed 0", Some("main:1"))
    );
    pod.advance(at(55.9));
    assert_eq!(seen(&pod, "main"), "Running terminated Completed 0");
    pod.advance(at(57.0));
    assert_eq!((seen(&pod, "main").as_str(), seen(&pod, "other").as_str()), ("Running running ready 1", "Running running ready 0"));
    let second = json!(status(&pod));
    for field in ["containerID", "imageID", "image"] {
        assert_ne!(first["containerStatuses"][0][field], second["containerStatuses"][0][field], "{field}");
    }
    assert_eq!(second["containerStatuses"][0]["lastState"]["terminated"]["containerID"], first["containerStatuses"][0]["containerID"]);
    assert_eq!(first["containerStatuses"][1], second["containerStatuses"][1]);
    assert_eq!((&first["podIP"], &first["startTime"]), (&second["podIP"], &second["startTime"]));
}

#[test]
fn another_tag_of_the_same_digest_restarts_the_container() {
    let with = |image: &str| template("Always", &[ContainerTemplate { image: image.into(), ..container("main", Role::Main) }]);
    let mut pod = simulated("stop: 1s", &with("main:1@sha256:ab"));
    pod.advance(at(5.0));
    let before = json!(status(&pod))["containerStatuses"][0].clone();
    pod.update(pod.plan.clone(), with("main:2@sha256:ab"), Some(2), at(5.0));
    pod.advance(at(10.0));
    let after = json!(status(&pod))["containerStatuses"][0].clone();
    assert_eq!((&before["imageID"], &after["imageID"]), (&json!("main@sha256:ab"), &json!("main@sha256:ab")));
    assert_eq!((after["image"].as_str(), after["restartCount"].as_i64()), (Some("main:2@sha256:ab"), Some(1)));
    assert_ne!(before["containerID"], after["containerID"]);
}

#[test]
fn an_image_change_does_not_end_a_never_restarted_pod() {
    let with = |image: &str| template("Never", &[ContainerTemplate { image: image.into(), ..container("main", Role::Main) }]);
    let mut pod = simulated("pull: 2s, stop: 3s", &with("main:1"));
    pod.advance(at(50.0));
    pod.update(pod.plan.clone(), with("main:2"), Some(2), at(50.0));
    for second in [52.0, 53.0, 54.0, 56.0] {
        pod.advance(at(second));
        assert!(seen(&pod, "main").starts_with("Running") && !pod.is_over_for_good(), "{} at {second}", seen(&pod, "main"));
    }
    assert_eq!(seen(&pod, "main"), "Running running ready 1");
}

#[test]
fn a_corrected_image_is_pulled_at_once_despite_back_off() {
    let mut pod = simulated("pull: 1s, fault: image-pull-error", &one("Always"));
    pod.advance(at(100.0));
    assert!(seen(&pod, "main").starts_with("Pending waiting"));
    let other = template("Always", &[ContainerTemplate { image: "main:2".into(), ..container("main", Role::Main) }]);
    pod.update(plan("pull: 1s"), other, Some(2), at(100.0));
    pod.advance(at(101.1));
    assert_eq!(seen(&pod, "main"), "Running running ready 0");
}

#[test]
fn a_closed_readiness_gate_keeps_a_pod_unready() {
    let gated = Arc::new(Template { readiness_gates: ["example.com/open".into()].into(), ..Template::clone(&one("Always")) });
    let mut pod = simulated("", &gated);
    pod.advance(at(0.0));
    let with = |gate: Option<&str>| {
        let states = [gate.map(Into::into)];
        let who = Whereabouts { namespace: "web", name: "a", uid: "u", host_ip: "h", pod_ip: "p", gates: &states };
        condition(&pod.status(&who), "Ready")
    };
    assert_eq!(
        [with(None), with(Some("False")), with(Some("True"))],
        ["False ReadinessGatesNotReady", "False ReadinessGatesNotReady", "True"]
    );
}

#[test]
fn wrong_annotations_are_shown_and_corrected_ones_start_the_pod() {
    let template = one("Always");
    let annotations = [("sim.virtual-kubelet.io/ready".to_owned(), "soon".to_owned())].into();
    let wrong = Stages::default().plan("web", None, Some(&annotations));
    let mut pod = SimulatedPod::new(7, wrong, template.clone(), Some(1), at(0.0));
    pod.advance(at(100.0));
    assert_eq!(seen(&pod, "main"), "Pending waiting CreateContainerConfigError 0");
    let message = json!(status(&pod))["containerStatuses"][0]["state"]["waiting"]["message"].to_string();
    assert!(message.contains("sim.virtual-kubelet.io/ready") && message.contains("uniform MIN MAX"), "{message}");
    pod.update(plan(""), template, Some(1), at(100.0));
    pod.advance(at(100.0));
    assert_eq!(seen(&pod, "main"), "Running running ready 0");
}

#[test]
fn only_the_same_seed_gives_the_same_history() {
    let rule = "pull: exponential 3s, start: uniform 1s 2s, ready: uniform 0s 5s, run: exponential 20s, exitCode: 1";
    let run = |seed: u64| {
        let mut pod = SimulatedPod::new(seed, plan(rule), one("Always"), Some(1), at(0.0));
        history(&mut pod, "main", 600.0)
    };
    let seed = |seed: u64, name: &str, occurrence: u32| pod_seed(seed, "web", name, occurrence);
    assert_eq!(run(seed(1, "a", 0)), run(seed(1, "a", 0)));
    for other in [seed(2, "a", 0), seed(1, "b", 0), seed(1, "a", 1)] {
        assert_ne!(run(seed(1, "a", 0)), run(other));
    }
    // Written down: another release must not change what a seed means without saying so.
    assert_eq!(seed(1, "a", 0), 6_424_874_037_024_852_607);
}

#[test]
fn a_pod_of_an_earlier_process_continues_as_it_was() {
    let template = template("Always", &[container("first", Role::Init), container("main", Role::Main)]);
    for (rule, seconds) in
        [("init: 1s, pull: 1s", 60.0), ("fault: crash-loop", 40.2), ("init: 1s, ready: 9s", 3.0), ("fault: image-pull-error", 9.0)]
    {
        let mut before = simulated(rule, &template);
        before.advance(at(seconds));
        let shown = status(&before);
        let mut after = SimulatedPod::adopt(7, plan(rule), template.clone(), Some(1), &shown, at(seconds));
        if rule != "fault: image-pull-error" && rule != "fault: crash-loop" {
            assert!(crate::pod::is_shown(&shown, &status(&after)), "{rule}: {:?} {:?}", json!(shown), json!(status(&after)));
        }
        after.advance(at(1_000.0));
        before.advance(at(1_000.0));
        assert_eq!(status(&after).phase, status(&before).phase, "{rule}");
    }
}

/// What the log of a container says until `seconds`, with the second of each line.
fn log(pod: &mut SimulatedPod, name: &str, seconds: f64) -> Vec<String> {
    pod.advance(at(seconds));
    let line = |line: &String| {
        let (time, text) = line.split_once(" stdout F ").unwrap();
        format!("{} {text}", time.parse::<Timestamp>().unwrap().duration_since(at(0.0)).as_secs_f64())
    };
    pod.log(name).unwrap().lines.iter().map(line).collect()
}

#[test]
fn a_late_noticed_stage_is_logged_at_its_own_time() {
    let mut pod = simulated("pull: 2s, start: 1s, ready: 4s, stop: 3s", &one("Always"));
    let begins = ["0 pulling image main:1", "2 the image is present", "3 started, run 1", "7 ready"];
    assert_eq!(log(&mut pod, "main", 60.0), begins);
    assert!(!pod.log("main").unwrap().over && pod.log("other").is_none());
    pod.forget_readiness(at(60.0), Duration::from_secs(10));
    pod.stop(at(70.0), Duration::from_secs(2));
    let ends = ["60 no longer ready", "70 stopping", "72 killed after the grace period, code 137"];
    assert_eq!(log(&mut pod, "main", 99.0)[4..], ends);
    assert!(pod.log("main").unwrap().over);
}

#[test]
fn a_log_reports_crashes_back_offs_and_failed_pulls() {
    let mut pod = simulated("run: 1s, exitCode: 3", &one("Always"));
    let log_of_crashes = log(&mut pod, "main", 4.0);
    let run = ["ready", "ended with code 3"];
    for line in run {
        assert_eq!(log_of_crashes.iter().filter(|logged| logged.ends_with(line)).count(), 2, "{log_of_crashes:?}");
    }
    assert!(log_of_crashes.last().unwrap().ends_with("starts again after 10s"), "{log_of_crashes:?}");
    let log_of_crashes = pod.log("main").unwrap();
    let previous = log_of_crashes.previous.unwrap();
    assert!(log_of_crashes.lines[previous - 1].ends_with("ended with code 3") && log_of_crashes.lines[previous].ends_with("run 2"));
    let mut pod = simulated("fault: image-pull-error", &one("Always"));
    assert_eq!(log(&mut pod, "main", 0.5), ["0 pulling image main:1", "0 cannot pull the image"]);
}
