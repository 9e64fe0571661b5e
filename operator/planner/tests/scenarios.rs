//! Rollouts as people meet them, second by second.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod world;

use world::{World, operator::Operator, wish::{Marks, Wish}};

const ALL_MARKS: [Marks; 6] = [Marks::Token, Marks::Deployment, Marks::Node, Marks::Both, Marks::Timestamp, Marks::Degrade];

fn settled(wish: Wish, nodes: usize) -> (World, Operator) {
    let mut world = World::new(wish, nodes);
    let mut operator = Operator::default();
    world.run_until(&mut operator, 120, World::is_converged).unwrap();
    assert_eq!(world.audit.violations, Vec::<String>::new());
    (world, operator)
}

#[test]
fn a_fresh_resource_gets_through_rebuilding_and_starts_every_node() {
    for marks in ALL_MARKS {
        settled(Wish::new(marks, 1), 3);
    }
}

#[test]
fn a_template_change_reaches_every_node_and_the_ledger_empties() {
    for marks in ALL_MARKS {
        let (mut world, mut operator) = settled(Wish::new(marks, 1), 3);
        world.audit.expects_stamp = marks == Marks::Timestamp;
        world.change(|cluster| cluster.edit_wish(|wish| wish.image = 2));
        let seconds = world.run_until(&mut operator, 300, World::is_converged).unwrap_or_else(|why| panic!("{marks:?} {why}"));
        println!("{marks:?}: {seconds} s");
        assert_eq!(world.audit.violations, Vec::<String>::new());
    }
}
