//! Files of the repository that `make generate` writes: a text comes in, and is compared with the file, or written to it. Who makes the
//! text is the test that calls.

use std::{env, fs};

use crate::repository;

/// `name` is what was generated from `source`; with `GENERATE` it becomes that.
pub fn compare(name: &str, generated: &str, source: &str) {
    let path = repository().join(name);
    if env::var_os("GENERATE").is_some() {
        fs::write(&path, generated).expect("the file can be written");
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == generated,
        "run `make generate`: {} is not what {source} says",
        path.display()
    );
}
