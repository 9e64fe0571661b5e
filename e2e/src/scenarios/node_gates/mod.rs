//! Readiness gates of nodes on the real API server.

pub mod admission;
mod budget;
pub mod life;
pub mod once;
pub mod originals;
pub mod races;
pub mod startup;
mod upstream;
