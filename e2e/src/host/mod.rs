//! The machine that a bed runs on: its programs, namespaces, network, terminals, and the keys made on it.

pub mod certificates;
pub mod images;
pub mod namespaces;
pub mod network;
pub mod process;
pub mod terminal;
