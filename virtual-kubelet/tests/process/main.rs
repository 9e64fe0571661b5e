//! The process provider with real processes.

mod adoption;
mod lifecycle;
mod place;
mod probes;
mod streams;
mod volumes;
