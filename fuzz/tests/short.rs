//! Every target with bytes that are made up, the same ones each time, and with those that once were a finding.

use std::{
    cell::Cell,
    fs,
    panic::{set_hook, take_hook},
    path::Path,
};

use fuzz::TARGETS;

thread_local! {
    /// A task of a server may panic without anybody waiting for it; all tasks of a target run on its thread.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.next() % 600;
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// Mostly the characters that mean something in an expansion.
    fn syntax(&mut self) -> Vec<u8> {
        let length = self.next() % 60;
        (0..length).map(|_| b"$$$$(()))AB=\n\xc3\xa9"[usize::from(self.next().to_le_bytes()[0]) % 15]).collect()
    }
}

fn run(name: &str, times: u64) {
    let before = take_hook();
    set_hook(Box::new(move |info| {
        PANICS.set(PANICS.get() + 1);
        before(info);
    }));
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&corpus).expect("a corpus").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    for file in files {
        println!("{}", file.display());
        target(&fs::read(file).expect("readable"));
    }
    let mut random = Random(1);
    for _ in 0..times {
        let bytes = if name == "expansion" { random.syntax() } else { random.bytes() };
        target(&bytes);
        assert_eq!(PANICS.get(), 0, "panicked with {bytes:?}");
    }
}

#[test]
fn no_resource_makes_the_operator_panic() {
    run("spec", 2000);
}

#[test]
fn no_snapshot_makes_the_planner_panic() {
    run("snapshot", 3000);
}

#[test]
fn no_bytes_stop_health_checkers_from_answering_others() {
    run("http", 1000);
}

#[test]
fn no_text_makes_a_parser_panic() {
    run("formats", 5000);
}

#[test]
fn every_text_is_expanded_as_kubernetes_does() {
    run("expansion", 20_000);
}

#[test]
fn no_spdy_makes_a_session_panic_or_stay() {
    run("spdy", 1000);
}

#[test]
fn no_websocket_makes_a_session_panic_or_stay() {
    run("websocket", 1000);
}

#[test]
fn no_query_and_no_log_makes_a_reader_panic() {
    run("logs", 5000);
}
