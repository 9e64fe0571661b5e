//! What node and pods use, in the words of the kubelet's API; no I/O but [`NodeFigures::read`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::{SysconfVar, sysconf};
use serde_json::{Value, json};

use super::figures::PodFigures;

/// What the whole machine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Processor time since the machine was started.
    pub cpu: Duration,
    /// Memory that new programs could have.
    pub available_bytes: u64,
    /// Memory that is not free.
    pub usage_bytes: u64,
    /// All memory less what is available.
    pub working_set_bytes: u64,
    /// When the machine was started.
    pub started_at: Timestamp,
}

impl NodeFigures {
    /// Of this machine.
    pub fn read() -> io::Result<Self> {
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(100);
        Ok(parse(&std::fs::read_to_string("/proc/stat")?, &std::fs::read_to_string("/proc/meminfo")?, per_second))
    }
}

fn parse(stat: &str, memory: &str, ticks_per_second: u64) -> NodeFigures {
    let line = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guests are part of user.
    let ticks: Vec<u64> = line("cpu ").split_whitespace().map_while(|text| text.parse().ok()).take(8).collect();
    let busy: u64 = ticks.iter().enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks)| ticks).sum();
    let boot: i64 = line("btime ").trim().parse().unwrap_or_default();
    let bytes = |name: &str| {
        let text = memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        text.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).unwrap_or_default() * 1024
    };
    let (total, available) = (bytes("MemTotal:"), bytes("MemAvailable:"));
    NodeFigures {
        cpu: Duration::from_nanos(busy.saturating_mul(1_000_000_000 / ticks_per_second.max(1))),
        available_bytes: available,
        usage_bytes: total.saturating_sub(bytes("MemFree:")),
        working_set_bytes: total.saturating_sub(available),
        started_at: Timestamp::from_second(boot).unwrap_or_default(),
    }
}

/// Processor times of one moment, for the rate until the next.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Timestamp,
    node: NodeFigures,
    /// By UID of the pod and name of the container.
    containers: HashMap<(String, String), Duration>,
}

impl Sample {
    /// Of now.
    pub fn new(node: NodeFigures, pods: &[PodFigures]) -> Self {
        let containers = pods
            .iter()
            .flat_map(|pod| pod.containers.iter().map(|container| ((pod.id.uid.clone(), container.name.clone()), container.cpu)));
        Self { at: Timestamp::now(), node, containers: containers.collect() }
    }

    /// Processors in use between two samples, in thousandths of a millionth; nothing when time did not pass or went backwards.
    fn rate(&self, before: Option<&Self>, used: Duration, used_before: Option<Duration>) -> Option<u64> {
        let passed = Duration::try_from(self.at.duration_since(before?.at)).ok()?.as_nanos();
        let used = used.checked_sub(used_before?)?.as_nanos();
        u64::try_from((used * 1_000_000_000).checked_div(passed)?).ok()
    }
}

fn cpu(at: Timestamp, used: Duration, rate: Option<u64>) -> Value {
    let mut cpu = json!({ "time": at, "usageCoreNanoSeconds": u64::try_from(used.as_nanos()).unwrap_or(u64::MAX) });
    if let Some(rate) = rate {
        cpu["usageNanoCores"] = rate.into();
    }
    cpu
}

fn memory(at: Timestamp, bytes: u64) -> Value {
    json!({ "time": at, "usageBytes": bytes, "workingSetBytes": bytes, "rssBytes": bytes })
}

/// `Summary` of `stats/v1alpha1`. Rates are there from the second sample on.
pub fn summary(node: &str, now: &Sample, before: Option<&Sample>, pods: &[PodFigures]) -> Value {
    let whole = cpu(now.at, now.node.cpu, now.rate(before, now.node.cpu, before.map(|before| before.node.cpu)));
    let pods: Vec<Value> = pods.iter().map(|pod| of_pod(now, before, pod)).collect();
    json!({
        "node": {
            "nodeName": node,
            "startTime": now.node.started_at,
            "cpu": whole,
            "memory": {
                "time": now.at,
                "availableBytes": now.node.available_bytes,
                "usageBytes": now.node.usage_bytes,
                "workingSetBytes": now.node.working_set_bytes,
            },
        },
        "pods": pods,
    })
}

fn of_pod(now: &Sample, before: Option<&Sample>, pod: &PodFigures) -> Value {
    let mut rates = Some(0_u64);
    let containers: Vec<Value> = pod
        .containers
        .iter()
        .map(|container| {
            let key = (pod.id.uid.clone(), container.name.clone());
            let rate = now.rate(before, container.cpu, before.and_then(|before| before.containers.get(&key)).copied());
            rates = rates.zip(rate).map(|(sum, rate)| sum.saturating_add(rate));
            json!({
                "name": container.name,
                "startTime": container.started_at,
                "cpu": cpu(now.at, container.cpu, rate),
                "memory": memory(now.at, container.resident_bytes),
                "logs": { "time": now.at, "usedBytes": container.log_bytes },
            })
        })
        .collect();
    let used: Duration = pod.containers.iter().map(|container| container.cpu).sum();
    let logs: u64 = pod.containers.iter().map(|container| container.log_bytes).sum();
    json!({
        "podRef": { "name": pod.id.name, "namespace": pod.id.namespace, "uid": pod.id.uid },
        "startTime": pod.started_at,
        "containers": containers,
        "cpu": cpu(now.at, used, rates),
        "memory": memory(now.at, pod.containers.iter().map(|container| container.resident_bytes).sum()),
        "ephemeral-storage": { "time": now.at, "usedBytes": pod.volume_bytes + logs },
        "process_stats": { "process_count": pod.containers.iter().map(|container| container.processes).sum::<u64>() },
    })
}

/// A label's value in Prometheus' text format.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The metrics of `/metrics/resource`.
pub fn metrics(now: &Sample, pods: &[PodFigures]) -> String {
    let mut text = String::new();
    let at = now.at.as_millisecond();
    let mut family = |name: &str, help: &str, kind: &str, values: &mut dyn Iterator<Item = (String, f64)>| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value} {at}");
        }
    };
    #[allow(clippy::cast_precision_loss, reason = "a metric is a double")]
    let bytes = |bytes: u64| bytes as f64;
    let pod_labels = |pod: &PodFigures| format!("namespace={},pod={}", quoted(&pod.id.namespace), quoted(&pod.id.name));
    let of_pod = |value: fn(&PodFigures) -> f64| pods.iter().map(move |pod| (format!("{{{}}}", pod_labels(pod)), value(pod)));
    let containers = || {
        pods.iter()
            .flat_map(|pod| pod.containers.iter().map(move |one| (format!("{{container={},{}}}", quoted(&one.name), pod_labels(pod)), one)))
    };
    let seconds = "counter";
    family(
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the container in core-seconds",
        seconds,
        &mut containers().map(|(labels, one)| (labels, one.cpu.as_secs_f64())),
    );
    family(
        "container_memory_working_set_bytes",
        "Current working set of the container in bytes",
        "gauge",
        &mut containers().map(|(labels, one)| (labels, bytes(one.resident_bytes))),
    );
    family(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds",
        "gauge",
        &mut containers().map(|(labels, one)| (labels, one.started_at.as_duration().as_secs_f64())),
    );
    family(
        "node_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the node in core-seconds",
        seconds,
        &mut std::iter::once((String::new(), now.node.cpu.as_secs_f64())),
    );
    family(
        "node_memory_working_set_bytes",
        "Current working set of the node in bytes",
        "gauge",
        &mut std::iter::once((String::new(), bytes(now.node.working_set_bytes))),
    );
    family(
        "pod_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the pod in core-seconds",
        seconds,
        &mut of_pod(|pod| pod.containers.iter().map(|one| one.cpu.as_secs_f64()).sum()),
    );
    #[allow(clippy::cast_precision_loss, reason = "a metric is a double")]
    family(
        "pod_memory_working_set_bytes",
        "Current working set of the pod in bytes",
        "gauge",
        &mut of_pod(|pod| pod.containers.iter().map(|one| one.resident_bytes).sum::<u64>() as f64),
    );
    text.push_str("# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise\n");
    text.push_str("# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PodId;
    use crate::process::figures::ContainerFigures;

    fn pods(cpu: u64) -> Vec<PodFigures> {
        let container = ContainerFigures {
            name: "c".into(),
            started_at: Timestamp::UNIX_EPOCH,
            cpu: Duration::from_millis(cpu),
            resident_bytes: 1 << 20,
            virtual_bytes: 1 << 22,
            processes: 2,
            log_bytes: 10,
        };
        let id = PodId { namespace: "edge".into(), name: "web".into(), uid: "u".into() };
        vec![PodFigures { id, started_at: Some(Timestamp::UNIX_EPOCH), containers: vec![container], volume_bytes: 5 }]
    }

    #[test]
    fn a_summary_has_cpu_rates_from_the_second_sample_on() {
        let node = parse("cpu  100 0 100 5000 7 0 0 0 0 0\nbtime 1000\n", "MemTotal: 8 kB\nMemFree: 2 kB\nMemAvailable: 5 kB\n", 100);
        assert_eq!((node.cpu, node.usage_bytes, node.working_set_bytes), (Duration::from_secs(2), 6 * 1024, 3 * 1024));
        let mut first = Sample::new(node, &pods(1000));
        first.at = "2026-01-01T00:00:00Z".parse().unwrap();
        let told = summary("n1", &first, None, &pods(1000));
        assert_eq!(told["pods"][0]["containers"][0]["cpu"]["usageCoreNanoSeconds"], 1_000_000_000);
        assert_eq!(told["pods"][0]["containers"][0]["cpu"].get("usageNanoCores"), None);
        let mut second = Sample::new(node, &pods(1500));
        second.at = "2026-01-01T00:00:10Z".parse().unwrap();
        let told = summary("n1", &second, Some(&first), &pods(1500));
        assert_eq!(told["pods"][0]["containers"][0]["cpu"]["usageNanoCores"], 50_000_000);
        assert_eq!(told["pods"][0]["cpu"]["usageNanoCores"], 50_000_000);
        assert_eq!(told["node"]["cpu"]["usageNanoCores"], 0);
        assert_eq!(told["pods"][0]["ephemeral-storage"]["usedBytes"], 15);
        // A container that was restarted has used less than before: no rate is better than a wrong one.
        let told = summary("n1", &first, Some(&second), &pods(1000));
        assert_eq!(told["pods"][0]["cpu"].get("usageNanoCores"), None);
    }

    #[test]
    fn metrics_have_one_line_for_each_container_and_pod() {
        let text = metrics(&Sample::new(NodeFigures::default(), &pods(1500)), &pods(1500));
        assert!(text.contains("\ncontainer_cpu_usage_seconds_total{container=\"c\",namespace=\"edge\",pod=\"web\"} 1.5 "), "{text}");
        assert!(text.contains("\npod_memory_working_set_bytes{namespace=\"edge\",pod=\"web\"} 1048576 "), "{text}");
        assert!(text.contains("\nnode_cpu_usage_seconds_total 0 "), "{text}");
    }
}
