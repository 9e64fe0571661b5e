//! One test per scenario. Each runs `bed scenario <name>`: a bed of its own, in a process of its own.

use std::{
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// A bed takes all cores, and what a scenario waits for is measured in seconds: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run(name: &str) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(env!("CARGO_BIN_EXE_bed"))
        .args(["scenario", name])
        .stdin(Stdio::null())
        .output()
        .expect("the binary was built with this test");
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "scenario {name} failed");
}

macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        $(#[test] fn $name() { run(stringify!($name)); })+

        #[test]
        fn every_scenario_is_a_test() {
            let listed: Vec<_> = e2e::scenarios::ALL.iter().map(|scenario| scenario.name).collect();
            assert_eq!(listed, [$(stringify!($name)),+]);
        }
    };
}

scenarios! {
    a_plain_deployment_serves_through_haproxy,
    three_rollouts_in_a_row_lose_no_request,
}
