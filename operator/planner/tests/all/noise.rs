//! P18: noise condemns no sound revision. Pods that people delete and machines that reboot are nothing that a revision has done. How long
//! noise holds a rollout up is measured in `benches/noise.rs`.

use crate::{
    fleet::{Breaks, Fleet, Noise, roll_out},
    rollout_state::{at_rest, edit, on},
    world::{
        World, audit,
        cluster::{START, node_of, revision},
    },
};
use crds::token::Phase;
use serde_json::json;
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

/// A node that serves, with the revision of this image, or with another one.
fn serving(world: &World, image: u8, has_it: bool) -> Option<String> {
    let wanted = world.cluster.wish.revision_of(image);
    let mut deployments = world.cluster.deployments.values();
    let found = deployments.find(|deployment| {
        let closed = audit::token(deployment).is_some_and(|token| token.phase == Phase::Closed);
        closed && (revision(&deployment["spec"]["template"]) == wanted) == has_it
    });
    found.map(|deployment| node_of(deployment).to_owned())
}

/// In a large fleet some pod breaks every few seconds, and a node that is out anyway comes first.
#[test]
fn nodes_out_before_their_update_do_not_delay_the_proof() {
    let (mut world, mut operator) = at_rest(&json!({"provenAfterSeconds": 60}), 30, 2);
    edit(&mut world, |wish| wish.image = 2);
    let wanted = world.cluster.wish.revision_of(2);
    let proved = |world: &World| {
        let rollout = world.cluster.ledger().and_then(|ledger| ledger.rollout_state.as_ref());
        rollout.is_some_and(|rollout| rollout.revision == wanted && rollout.proved)
    };
    let (mut seconds, mut broke) = (0, 0);
    while !proved(&world) {
        if seconds % 15 == 7 {
            world.change(|cluster| {
                let (now, old) = (cluster.now, cluster.wish.revision_of(1));
                let pod = cluster.pods.iter_mut().find(|pod| pod.is_active() && pod.revision() == old).unwrap();
                pod.ready_at = now + START;
                pod.crash();
            });
            broke += 1;
        }
        world.fair_second(&mut operator);
        seconds += 1;
        assert!(seconds < 120, "{:#?}", world.cluster.ledger());
    }
    let reached = on(&world, 2);
    assert!(seconds >= 60 && broke >= 5 && reached > 2, "proved after {seconds} s, {broke} pods broke, {reached} nodes");
    assert_eq!(world.audit.violations, Vec::<String>::new());
}

#[test]
fn a_node_broken_by_the_revision_stays_in_its_proof() {
    let (mut world, mut operator) = at_rest(&json!({"provenAfterSeconds": 60}), 3, 2);
    edit(&mut world, |wish| wish.image = 2);
    world.run_until(&mut operator, 30, |world| on(world, 2) == 2 && world.cluster.ledger().unwrap().grants.is_empty()).unwrap();
    let wanted = world.cluster.wish.revision_of(2);
    let node = serving(&world, 2, true).unwrap();
    world.change(|cluster| {
        let broken = cluster.pods.iter_mut().filter(|pod| pod.node == node);
        broken.for_each(|pod| pod.ready_at = i64::MAX);
        // More pods for each node: a turn of its own for the one that is out.
        cluster.edit_wish(|wish| wish.pods = 3);
    });
    let mut turns = 0;
    for _ in 0..150 {
        world.fair_second(&mut operator);
        let ledger = world.cluster.ledger().unwrap();
        turns += usize::from(ledger.grants.contains_key(&node));
        assert!(!ledger.grants.get(&node).is_some_and(|grant| grant.out_before));
        assert!(!ledger.rollout_state.as_ref().is_some_and(|rollout| rollout.revision == wanted && rollout.proved), "{turns} turns");
    }
    assert!(turns > 0, "it had none");
}

#[test]
fn a_node_is_suspect_for_longer_after_a_second_fall() {
    for (falls, least, most) in [(1, 60, 75), (2, 600, 615)] {
        let (mut world, mut operator) = at_rest(&json!({"provenAfterSeconds": 60, "maxFlaps": 5}), 3, 3);
        edit(&mut world, |wish| wish.image = 2);
        world.run_until(&mut operator, 60, |world| on(world, 2) == 3 && world.cluster.ledger().unwrap().grants.is_empty()).unwrap();
        for _ in 0..falls {
            world.change(|cluster| {
                let now = cluster.now;
                let pod = cluster.pods.iter_mut().find(|pod| pod.node == "n0" && pod.is_active()).unwrap();
                pod.ready_at = now + START;
                pod.crash();
            });
            for _ in 0..20 {
                world.fair_second(&mut operator);
            }
        }
        let seconds = (20..1000).find(|_| world.fair_second(&mut operator).unwrap().sights.suspect("n0").is_none());
        assert!(seconds.is_some_and(|seconds| (least..=most).contains(&seconds)), "{falls} falls: {seconds:?} s after the last");
    }
}

#[test]
fn a_sound_revision_completes_despite_pod_deletions_and_reboots() {
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
        // The power of two machines goes, twice, and one of them has the revision.
        if second == 300 || second == 450 {
            for has_it in [true, false] {
                let node = serving(world, 2, has_it).expect("some have it, and some have not");
                reboots.push(Reboot { node, goes: second + 1, cordoned: false });
            }
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
