//! The process provider with real processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod adoption;
mod lifecycle;
mod place;
mod probes;
mod streams;
mod volumes;
