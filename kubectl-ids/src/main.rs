//! `kubectl-ids`: on the PATH, `kubectl ids` runs it.

fn main() {}
