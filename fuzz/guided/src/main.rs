//! One target of `fuzz` under libFuzzer; the environment variable `TARGET` names it.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("TARGET").expect("TARGET names one of the targets");
    fuzz::TARGETS.iter().find(|(known, _)| *known == name).expect("TARGET names one of the targets").1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
