//! All tests of the planner but the exhaustive searches, as one program: nineteen of them took minutes to link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod admission;
mod bad_input;
mod breakers;
mod clocks;
mod compatibility;
mod course;
mod departures;
mod failures;
mod gate_originals;
mod gates;
mod guide;
mod health_checkers;
mod health_ports;
mod hostile_input;
mod in_place;
mod in_place_world;
mod placement;
mod pod_gates;
mod pod_security;
mod proof;
mod properties;
mod room;
mod scenarios;
mod schedule;
mod step;
mod world;

use std::{collections::BTreeSet, fs, path::Path};

/// Names of all scenarios that run on the real control plane, as their files give them.
fn scenario_names() -> BTreeSet<String> {
    fn below(directory: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                names.extend(text.lines().filter_map(|line| Some(line.trim().strip_prefix("name: \"")?.strip_suffix("\",")?.to_owned())));
            }
        }
    }
    let mut names = BTreeSet::new();
    below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/src/scenarios"), &mut names);
    assert!(names.len() > 80, "{names:?}");
    names
}
