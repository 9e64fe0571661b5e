//! One small supervising process per run of a container, so that containers outlive the agent.
//!
//! The agent writes what to run into the container's directory and starts its own binary with the
//! subcommand `container-shim`. The shim is the container's parent: it holds its standard streams (or
//! its terminal), writes its log, adopts what the container's processes leave behind, and notes how it
//! ended. It needs nothing of the agent: one that starts later finds the run by its files.
//!
//! # Files in a container's directory
//! | file | writer | content |
//! |---|---|---|
//! | `shim.lock` | agent, handed to the shim | locked from before the shim's first instruction until its end |
//! | `order.json`, `shim.json` | agent | [`StartOrder`](super::container_init::StartOrder), [`ShimOrder`] of the present run |
//! | `run-N.json` | shim | [`RunNote`]: processes and start of the run with restart count N |
//! | `exit-N.json` | shim | [`ExitNote`]: how that run ended; exists before the shim ends |
//! | `N.log`, `N.log.<time>` | shim | its log in CRI format, and rotated parts of it |
//! | `shim.sock` | shim | takes [`Session`]s while the run lives |
//! | `shim.log` | shim | what the shim itself complains about |
//!
//! # The seam for attach, exec and logs
//! [`attach`](super::ProcessProvider::attach) and [`exec`](super::ProcessProvider::exec) of the provider
//! return a [`Session`]: write [`Input`], read [`Output`] until [`Output::Exit`]. Dropping both halves
//! ends an exec's processes and detaches an attach. [`log_files`](super::ProcessProvider::log_files)
//! gives the files of the present or the previous run. Everything goes through the shim, so it works for
//! adopted containers too, and a dead agent leaves no exec behind.

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
