//! A rollout in fleets of 200 and 2,000 nodes whose pods restart by chance, beside the same one without: `cargo bench -p planner --bench
//! noise`. All of it is simulated, in virtual time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a simulation that cannot go on says where")]

#[path = "../tests/all/fleet.rs"]
mod fleet;
#[path = "../tests/all/world/mod.rs"]
mod world;

use fleet::Fleet;
use std::process::ExitCode;

fn main() -> ExitCode {
    // With how many falls at least the figure means something.
    let fleets = [(Fleet { nodes: 200, pods: 5, soak: 20 }, 4, 10), (Fleet { nodes: 2000, pods: 10, soak: 10 }, 1, 50)];
    let met = fleets.map(|(fleet, percent, falls)| {
        let measured = fleet::measure(fleet, percent);
        let met = measured.is_met() && measured.noisy.falls >= falls;
        println!("{measured}\n{}\n", if met { "met" } else { "MISSED" });
        met
    });
    if met.into_iter().all(|met| met) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
