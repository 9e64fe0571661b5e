//! The process provider with real processes.

mod adoption;
mod place;
mod streams;
