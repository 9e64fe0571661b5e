//! Updates of `IngressDaemonSets`: one pass after the other for each resource.
//!
//! A pass takes the snapshot of [`watch`](crate::watch), adds what this process remembers and what health ports answer, has the planner
//! decide, and makes the calls of [`write`](mod@crate::write). Gates do not belong here: passes meet them in
//! [`gates_shared`](crate::gates_shared).

mod account;
mod act;
mod health_ports;
mod memory;
mod reconcile;
mod template_check;
mod vanished;

pub use account::ask_rights;
pub use act::Actor;
pub use memory::{Memory, NamedAccount};
pub use reconcile::{Context, back_off, forget, reconcile};
pub use template_check::try_template;
pub use vanished::clean_nodes;
