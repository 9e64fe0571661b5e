//! The health checker gives up every privilege but the host's network.

use crate::world;

use planner::{Action, plan::Supporting};
use serde_json::{Value, json};
use world::{
    World,
    operator::Operator,
    wish::{Marks, Wish},
};

/// The health checker's pod spec for a port.
fn pod(port: i32) -> Value {
    let mut world = World::new(Wish::new(Marks::Token, 1), 1);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    operator.catch_up(&world);
    let mut snapshot = operator.snapshot(&world).unwrap();
    snapshot.daemon_sets.clear();
    snapshot.resource.spec.health_check_node_ports = vec![port];
    let plan = planner::decide(&snapshot);
    let mut bodies = plan.actions.iter().filter_map(|action| match action {
        Action::Apply { object: Supporting::DaemonSet(_), body } => Some(&body["spec"]["template"]["spec"]),
        _ => None,
    });
    bodies.next().cloned().unwrap()
}

#[test]
fn a_health_checker_has_no_privilege_but_the_hosts_network() {
    let pod = pod(10080);
    assert_eq!(pod["hostNetwork"], true);
    for field in ["hostPID", "hostIPC", "securityContext"] {
        assert_eq!(pod[field], Value::Null, "{field}");
    }
    let sources = pod["volumes"].as_array().unwrap().iter().flat_map(|volume| volume.as_object().unwrap().keys());
    assert_eq!(sources.filter(|source| *source != "name").collect::<Vec<_>>(), ["emptyDir", "secret"]);
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!((containers.len(), &pod["initContainers"]), (1, &Value::Null));
    let wanted = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(containers[0]["securityContext"], wanted);
}

#[test]
fn a_port_below_1024_takes_no_capability() {
    assert_eq!(pod(80)["containers"][0]["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
}
