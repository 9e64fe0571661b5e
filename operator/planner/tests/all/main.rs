//! All tests of the planner but the exhaustive searches, as one program: nineteen of them took minutes to link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod admission;
mod bad_input;
mod breakers;
mod canary;
mod clocks;
mod compatibility;
mod departures;
mod every_order;
mod failures;
mod fleet;
mod gate_originals;
mod gates;
mod guide;
mod hard_cases;
mod health_checker_daemon_sets;
mod health_ports;
mod hostile_input;
mod in_place;
mod in_place_world;
mod judged_revisions;
mod losses;
mod node_rights;
mod noise;
mod outages;
mod placement;
mod places;
mod pod_admission;
mod pod_gates;
mod pod_security;
mod proof;
mod properties;
mod rollout_state;
mod scenarios;
mod schedule;
mod slots;
mod step;
mod world;

use std::{collections::BTreeSet, fs, path::Path};

/// Plans are made of many small pieces: with the allocator of the system the properties take a quarter longer.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// All Rust files below a directory of the repository.
fn rust_files(directory: &str) -> Vec<String> {
    fn below(directory: &Path, texts: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(&path, texts);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.push(fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut texts = Vec::new();
    below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory), &mut texts);
    texts
}

/// Names of all scenarios that run on the real control plane, as their files give them.
fn scenario_names() -> BTreeSet<String> {
    let name = |line: &str| Some(line.trim().strip_prefix("name: \"")?.strip_suffix("\",")?.to_owned());
    let names: BTreeSet<_> = rust_files("e2e/src/scenarios").iter().flat_map(|text| text.lines().filter_map(name)).collect();
    assert!(names.len() > 80, "{names:?}");
    names
}
