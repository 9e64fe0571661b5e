//! Waits for all children, those that were adopted included.

use std::collections::HashMap;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

type Awaited = Arc<Mutex<HashMap<i32, oneshot::Sender<i32>>>>;

/// The one place that waits for children. A process that nobody asked for is reaped and forgotten.
#[derive(Clone, Debug)]
pub(super) struct Reaper(Awaited);

impl Reaper {
    /// Starts to reap. Only on a runtime of one thread: [`Reaper::exit_of`] has to be called before the
    /// task that reaps gets its turn.
    pub fn start() -> std::io::Result<Self> {
        let awaited = Awaited::default();
        let mut ended = signal(SignalKind::child())?;
        let reaper = Self(awaited);
        let own = reaper.clone();
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                own.reap();
            }
        });
        Ok(reaper)
    }

    /// The exit code of a child that was started just now, 128 + signal when killed.
    pub fn exit_of(&self, pid: i32) -> oneshot::Receiver<i32> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().insert(pid, sender);
        receiver
    }

    fn reap(&self) {
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            self.tell(pid, code);
        }
    }

    fn tell(&self, pid: Pid, code: i32) {
        let waiting = self.0.lock().remove(&pid.as_raw());
        if let Some(waiting) = waiting {
            let _ = waiting.send(code);
        }
    }
}
