//! One small supervising process per run of a container, so that containers outlive the agent.
//!
//! The agent writes an order into the container's directory and starts its own binary with the subcommand `container-shim`. The shim is the
//! container's parent: it holds its streams or terminal, writes its log, adopts processes that are left behind, and notes how it ended. It
//! needs nothing of the agent, and nothing here knows pods. `files.rs` lists the files, `session.rs` says how streams are reached.

mod files;
mod frame;
mod hub;
mod log_writer;
mod pty;
mod reaper;
mod session;
mod supervisor;

pub use files::{ExitNote, LogFiles, LogRotation, ProcessId, RunNote, ShimOrder, boot_id, order_file};
pub(super) use files::{last_begun, lock, prune, read_json, write_json};
pub use frame::{Input, Open, Output, TerminalSize};
pub use session::{Session, SessionError, SessionReader, SessionWriter};
pub(super) use supervisor::START_ERROR;
pub use supervisor::run;
