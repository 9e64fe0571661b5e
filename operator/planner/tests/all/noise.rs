//! P18: noise condemns no sound revision. Pods that people delete and machines that reboot are nothing that a revision has done. How long
//! noise holds a rollout up is measured in `benches/noise.rs`.

use crate::{
    course::on,
    fleet::{Breaks, Fleet, Noise, roll_out},
    world::{
        World, audit,
        cluster::{START, node_of, revision},
    },
};
use crds::token::Phase;
use std::time::Instant;

/// Seconds for which a machine is away that reboots.
const AWAY: usize = 40;
/// Seconds from a Node's first word after that to the first one of its pods.
const LATE: usize = 2;

/// A machine reboots.
struct Reboot {
    node: String,
    /// The second in which it goes.
    goes: usize,
    /// Somebody cordons the Node before, and lets it go on afterwards.
    cordoned: bool,
}

impl Reboot {
    /// What of it comes about in this second.
    fn second(&self, world: &mut World, second: usize) {
        if self.cordoned && (second + 5 == self.goes || second == self.goes + AWAY + 10) {
            let cordons = second < self.goes;
            world.change(|cluster| cluster.edit_node(&self.node, |node| node["spec"]["unschedulable"] = cordons.into()));
        }
        if second == self.goes || second == self.goes + AWAY {
            let back = second > self.goes;
            world.change(|cluster| {
                cluster.edit_node(&self.node, |node| {
                    node["status"]["ready"] = back.into();
                    if back {
                        node["status"]["bootID"] = format!("boot-{second}").into();
                    }
                });
                // Without its container no pod is ready, whatever is heard of its Node.
                let pods = cluster.pods.iter_mut().filter(|pod| pod.node == self.node && !back);
                pods.for_each(|pod| pod.ready_at = i64::MAX);
            });
        }
        if second == self.goes + AWAY + LATE {
            world.change(|cluster| {
                let now = cluster.now;
                for pod in cluster.pods.iter_mut().filter(|pod| pod.node == self.node && pod.is_active()) {
                    pod.ready_at = now + START;
                    pod.crash();
                }
            });
        }
    }
}

/// A node that has the revision of this image and serves.
fn updated(world: &World, image: u8) -> Option<String> {
    let wanted = world.cluster.wish.revision_of(image);
    let mut deployments = world.cluster.deployments.values();
    let found = deployments.find(|deployment| {
        let closed = audit::token(deployment).is_some_and(|token| token.phase == Phase::Closed);
        closed && revision(&deployment["spec"]["template"]) == wanted
    });
    found.map(|deployment| node_of(deployment).to_owned())
}

#[test]
fn a_sound_revision_is_completed_though_pods_are_deleted_and_machines_reboot() {
    let (began, fleet) = (Instant::now(), Fleet { nodes: 100, pods: 3, soak: 2 });
    let (mut world, mut operator) = fleet.at_rest();
    let mut noise = Noise::new(Breaks::Deletions, 20);
    let mut reboots = Vec::new();
    let outcome = roll_out(&mut world, &mut operator, 7200, |world, second| {
        noise.second(world);
        if second % 100 == 50 && second < 1000 {
            let node = format!("n{}", noise.below(fleet.nodes));
            reboots.push(Reboot { node, goes: second + 10, cordoned: true });
        }
        if second == 300 {
            let node = updated(world, 2).expect("some have it");
            reboots.push(Reboot { node: node.clone(), goes: second + 1, cordoned: false });
            reboots.push(Reboot { node, goes: second + 150, cordoned: false });
        }
        for reboot in &reboots {
            reboot.second(world, second);
        }
    });
    println!(
        "{} nodes: complete after {} s, {} pods deleted, {} reboots, {} falls; {:.1} s",
        fleet.nodes,
        outcome.seconds,
        noise.broke,
        reboots.len(),
        outcome.falls,
        began.elapsed().as_secs_f32()
    );
    assert_eq!(outcome.blame, Vec::<String>::new());
    assert!(outcome.is_complete, "{outcome:?}");
    assert_eq!(on(&world, 2), fleet.nodes);
    assert!(noise.broke >= 20 && reboots.len() >= 10, "{} pods were deleted, {} machines rebooted", noise.broke, reboots.len());
}
