//! The status of a simulated pod; no I/O.

use k8s_openapi::api::core::v1::{Container, HostIP, Pod, PodCondition, PodIP, PodReadinessGate, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

use super::pod::SimulatedPod;
use crate::process::status::{PodView, pod_status};

/// Who a pod is, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whereabouts<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub host_ip: &'a str,
    pub pod_ip: &'a str,
    /// Status of the condition of each readiness gate, in the order of the template; none where there is no condition.
    pub gates: &'a [Option<Box<str>>],
}

impl SimulatedPod {
    /// What a kubelet would say of it now.
    pub fn status(&self, pod: &Whereabouts<'_>) -> PodStatus {
        let initializing = self.template.has_init_containers();
        let named = format!("{}_{}({})", pod.name, pod.namespace, pod.uid);
        let error = self.plan.error.as_deref();
        let containers: Vec<_> = self
            .containers
            .iter()
            .zip(&self.template.containers)
            .map(|(container, template)| container.record(template, initializing, &named, error))
            .collect();
        let view = self.as_pod(pod.gates);
        let mut status = pod_status(&PodView {
            pod: &view,
            containers: &containers,
            address: pod.host_ip,
            start_time: self.start_time,
            prepared: true,
            ended: self.is_over_for_good(),
            past_deadline: false,
        });
        status.host_ips = Some(vec![HostIP { ip: pod.host_ip.into() }]);
        if !self.template.host_network {
            status.pod_ip = Some(pod.pod_ip.into());
            status.pod_ips = Some(vec![PodIP { ip: pod.pod_ip.into() }]);
        }
        for shown in status.init_container_statuses.iter_mut().chain(&mut status.container_statuses).flatten() {
            if !shown.image_id.is_empty() {
                shown.image_id = image_id(&shown.image);
            }
        }
        status
    }

    /// As much of a Pod as its status follows from.
    fn as_pod(&self, gates: &[Option<Box<str>>]) -> Pod {
        let own_policies = self.template.containers.iter().filter_map(|container| {
            let restart_policy = Some(container.restart_policy.as_deref()?.to_owned());
            Some(Container { name: container.name.to_string(), restart_policy, ..Container::default() })
        });
        let names = || self.template.readiness_gates.iter().map(ToString::to_string);
        let conditions = names()
            .zip(gates)
            .filter_map(|(type_, status)| Some(PodCondition { type_, status: status.as_deref()?.to_owned(), ..PodCondition::default() }));
        let spec = PodSpec {
            restart_policy: Some(self.template.restart_policy.to_string()),
            containers: own_policies.collect(),
            readiness_gates: Some(names().map(|condition_type| PodReadinessGate { condition_type }).collect()),
            ..PodSpec::default()
        };
        Pod {
            metadata: ObjectMeta { generation: self.generation, ..ObjectMeta::default() },
            spec: Some(spec),
            status: Some(PodStatus { conditions: Some(conditions.collect()), ..PodStatus::default() }),
        }
    }
}

/// Another image has another id, on every node the same; names that give one digest are one image.
fn image_id(image: &str) -> String {
    let (name, given) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let repository = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    };
    if let Some(digest) = given {
        return format!("{repository}@{digest}");
    }
    let digest = Sha256::digest(image);
    let number = |half: &[u8]| half.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let (first, second) = digest.split_at(16);
    format!("{repository}@sha256:{:032x}{:032x}", number(first), number(second))
}
