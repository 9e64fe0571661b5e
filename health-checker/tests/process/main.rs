//! The real process, beside others of its kind and before an API server that does what the tests want.

mod agent;
mod api;
mod handover;
mod limits;
mod load;
mod watches;
