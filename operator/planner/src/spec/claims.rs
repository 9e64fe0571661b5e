//! What a resource may have to share with others on a node: its health ports, and the keys by which it detaches nodes. Two that claim
//! nothing in common have nothing to do with each other, so that of thousands of resources only those few are looked at.

use crds::{IngressDaemonSet, IngressDaemonSetSpec, ledger::Ledger};
use std::collections::BTreeSet;

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use crds::ledger::{Annotation, Grant, Marks, ServedPort};
    use serde_json::json;

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
