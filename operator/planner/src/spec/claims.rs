//! What a resource may have to share with others on a node: its health ports, and the keys by which it detaches nodes. Two that claim
//! nothing in common have nothing to do with each other, so that of thousands of resources only those few are looked at.

use crate::{
    facts::{OtherResource, Resource},
    spec::ResolvedSpec,
};
use crds::{
    IngressDaemonSet, IngressDaemonSetSpec, IngressDaemonSetStatus, UnixSeconds,
    ledger::{DetachKey, Ledger, ServedPort},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::{cell::LazyCell, collections::BTreeSet};

/// A health port or a detach key that a resource uses on nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// A port of the node.
    Port(u16),
    /// Key of an annotation or a label of the node.
    Key(String),
}

/// Those of a resource, and of what its ledger still holds; also where its spec is not valid.
pub fn claims(resource: &IngressDaemonSet) -> BTreeSet<Claim> {
    of(&resource.spec, resource.status.as_ref().and_then(|status| status.rollout.as_ref()))
}

fn of(spec: &IngressDaemonSetSpec, ledger: Option<&Ledger>) -> BTreeSet<Claim> {
    let served = ledger.into_iter().flat_map(|ledger| &ledger.served_ports).map(|served| served.port);
    let ports = spec.health_ports().chain(served).map(Claim::Port);
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let mark = rolling.and_then(crds::ingress_daemon_set::RollingUpdate::node_mark).map(|mark| Claim::Key(mark.key));
    let granted = ledger.into_iter().flat_map(|ledger| ledger.grants.values());
    let granted = granted.filter_map(|grant| grant.marks.node.as_ref()).map(|mark| Claim::Key(mark.key.clone()));
    ports.chain(mark).chain(granted).collect()
}

/// Since when a resource has had what it claims, by its status: nobody else can write there. 0 before it has used a node, and nothing before
/// the operator has accepted the claim. Objects that are there prove nothing, for whoever may make some can make them look like those of
/// the resource.
pub fn claimed_since(resource: &Resource, claim: &Claim) -> Option<UnixSeconds> {
    since(resource.status.as_ref(), (resource.generation, resource.created, resource.deleting), claim)
}

/// The same of another one.
pub fn other_claims_since(other: &OtherResource, claim: &Claim) -> Option<UnixSeconds> {
    let metadata = &other.resource.metadata;
    let deleting = metadata.deletion_timestamp.is_some();
    since(other.resource.status.as_ref(), (metadata.generation.unwrap_or(0), other.created, deleting), claim)
}

fn since(
    status: Option<&IngressDaemonSetStatus>,
    (generation, created, deleting): (i64, UnixSeconds, bool),
    claim: &Claim,
) -> Option<UnixSeconds> {
    let ledger = status.and_then(|status| status.rollout.as_ref());
    // Earlier releases recorded nothing: they count from the creation. What is claimed during a deletion is not recorded either.
    let accepted = || acceptance(status).filter(|valid| !deleting && valid.observed_generation == Some(generation));
    let unrecorded = || accepted().map(|_| created);
    match claim {
        Claim::Port(port) => {
            let served = ledger.and_then(|ledger| ledger.served_ports.iter().find(|served| served.port == *port));
            served.map(|served| served.since).or_else(unrecorded)
        }
        Claim::Key(key) => match ledger.and_then(|ledger| ledger.detach_key.as_ref()) {
            Some(claimed) => (claimed.key == *key).then_some(claimed.since),
            None => unrecorded(),
        },
    }
}

/// Records what the valid spec of a resource claims; `uses_nodes`: it does so now.
pub fn record(resource: &Resource, settings: &ResolvedSpec, uses_nodes: impl FnOnce() -> bool, now: UnixSeconds, ledger: &mut Ledger) {
    let uses_nodes = LazyCell::new(uses_nodes);
    let since = |claim: &Claim| match claimed_since(resource, claim) {
        Some(since) if since > 0 => since,
        _ if *uses_nodes => now,
        _ => 0,
    };
    ledger.served_ports = settings.ports.iter().map(|port| ServedPort { port: *port, since: since(&Claim::Port(*port)) }).collect();
    let key = settings.node_mark.as_ref().map(|mark| mark.key.clone());
    ledger.detach_key = key.map(|key| DetachKey { since: since(&Claim::Key(key.clone())), key });
}

/// What says that the spec was valid when the operator last looked.
pub fn acceptance(status: Option<&IngressDaemonSetStatus>) -> Option<&Condition> {
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    conditions.find(|condition| condition.type_ == "Valid" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use crate::spec::resolve;
    use crds::ledger::{Annotation, Grant, Marks};
    use serde_json::json;

    /// Made at 3, with a spec of generation 2 that claims this key and this port.
    fn resource((key, port): (&str, u16), ledger: Option<&Ledger>, accepted: i64) -> Resource {
        let spec = json!({
            "healthCheckNodePorts": [port], "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
            "updateStrategy": {"rollingUpdate": {
                "maxUnavailableNodes": 1, "annotateNodeToDetach": {"key": key, "value": "true", "gracePeriodSeconds": 10},
            }},
        });
        let valid = json!({
            "type": "Valid", "status": "True", "reason": "", "message": "", "lastTransitionTime": "2026-11-28T00:00:00Z",
            "observedGeneration": accepted,
        });
        let conditions = vec![serde_json::from_value(valid).unwrap()];
        let status = IngressDaemonSetStatus { rollout: ledger.cloned(), conditions, ..IngressDaemonSetStatus::default() };
        let spec = serde_json::from_value(spec).unwrap();
        Resource { generation: 2, status: Some(status), ..Resource::created(("web", "edge"), "0a1b2c3d-0000", spec, 3) }
    }

    fn ledger(key: &str, port: u16, since: (UnixSeconds, UnixSeconds)) -> Ledger {
        let detach_key = Some(DetachKey { key: key.to_owned(), since: since.0 });
        Ledger { detach_key, served_ports: vec![ServedPort { port, since: since.1 }], ..Ledger::default() }
    }

    #[test]
    fn a_claim_counts_from_its_first_node_and_another_anew() {
        let (recorded, unused, former) = (ledger("a/b", 1, (5, 7)), ledger("a/b", 1, (0, 0)), Ledger::default());
        for (stored, accepted, claims, uses_nodes, since) in [
            (Some(&recorded), 1, ("a/b", 1), false, (5, 7)),
            (Some(&recorded), 1, ("a/c", 2), true, (9, 9)),
            (Some(&recorded), 2, ("a/c", 1), false, (0, 7)),
            (Some(&unused), 2, ("a/b", 1), false, (0, 0)),
            (Some(&unused), 2, ("a/b", 1), true, (9, 9)),
            // Of an earlier release: a spec that was accepted has had all that it claims.
            (Some(&former), 2, ("a/b", 1), true, (3, 3)),
            (Some(&former), 1, ("a/b", 1), true, (9, 9)),
            (None, 2, ("a/b", 1), true, (3, 3)),
        ] {
            let (resource, mut now) = (resource(claims, stored, accepted), Ledger::default());
            record(&resource, &resolve(&resource.spec).unwrap(), || uses_nodes, 9, &mut now);
            assert_eq!(now, ledger(claims.0, claims.1, since), "{stored:?} {accepted} {claims:?} {uses_nodes}");
        }
        // While a resource is deleted nothing is recorded, and what it asks for then is not what it has had.
        for (stored, since) in [(&recorded, Some(5)), (&former, None)] {
            let resource = Resource { deleting: true, ..resource(("a/b", 1), Some(stored), 2) };
            assert_eq!(claimed_since(&resource, &Claim::Key("a/b".into())), since);
        }
    }

    #[test]
    fn ports_and_marks_of_spec_and_ledger_are_claimed() {
        let spec = |more: serde_json::Value| -> IngressDaemonSetSpec {
            let mut spec = json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(spec).unwrap()
        };
        let rolling = |field: &str, key: &str| {
            let mut mark = json!({"key": key, "gracePeriodSeconds": 10});
            if field == "annotateNodeToDetach" {
                mark["value"] = "true".into();
            }
            json!({"updateStrategy": {"rollingUpdate": {"maxUnavailableNodes": 1, field: mark}}})
        };
        let key = |key: &str| Claim::Key(key.to_owned());
        let label = format!("{}a/b", crds::names::LABEL_MARK);
        for (more, claimed) in [
            (json!({}), vec![]),
            (json!({"healthCheckNodePorts": [1, 2]}), vec![Claim::Port(1), Claim::Port(2)]),
            (json!({"healthCheckNodePort": 3}), vec![Claim::Port(3)]),
            (json!({"healthCheckPort": 4}), vec![Claim::Port(4)]),
            (json!({"healthCheckNodePorts": [70_000]}), vec![]),
            (rolling("annotateNodeToDetach", "a/b"), vec![key("a/b")]),
            (rolling("labelNodeToDetach", "a/b"), vec![key(&label)]),
        ] {
            assert_eq!(of(&spec(more.clone()), None).into_iter().collect::<Vec<_>>(), claimed, "{more}");
        }
        let node = Annotation { key: "former/key".into(), value: "true".into() };
        let grant = Grant { marks: Marks { node: Some(node), ..Marks::default() }, ..Grant::default() };
        let served_ports = vec![ServedPort { port: 5, since: 0 }];
        let ledger = Ledger { grants: [("n1".to_owned(), grant)].into(), served_ports, ..Ledger::default() };
        assert_eq!(of(&spec(json!({})), Some(&ledger)), BTreeSet::from([key("former/key"), Claim::Port(5)]));
    }
}
