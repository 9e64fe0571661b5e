//! What has changed, until somebody takes it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// What has changed.
#[derive(Debug, Default)]
pub struct ChangeQueue<T> {
    changes: Mutex<T>,
    /// Somebody takes it. Nobody does on a standby, which sees nodes come and go for weeks.
    heard: AtomicBool,
    wake: Notify,
}

impl<T: Default + PartialEq> ChangeQueue<T> {
    /// Something has changed.
    pub fn tell(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.changes.lock());
        self.wake.notify_one();
    }

    /// Whether somebody takes it.
    pub fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Acquire)
    }

    /// All of it; waits until there is something.
    pub async fn take(&self) -> T {
        loop {
            {
                let mut changes = self.changes.lock();
                self.heard.store(true, Ordering::Release);
                if *changes != T::default() {
                    return std::mem::take(&mut *changes);
                }
            }
            self.wake.notified().await;
        }
    }
}
