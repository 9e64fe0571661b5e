//! Hands the container's output to those who are attached.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::frame::Output;

/// How long a client that does not read may hold the container up before it is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages that a client may be behind without holding anything up.
const BACKLOG: usize = 64;

/// Everyone who is attached.
#[derive(Debug, Default)]
pub(super) struct Hub(Mutex<Vec<mpsc::Sender<Output>>>);

impl Hub {
    /// A new client, which gets what comes from now on.
    pub fn attach(&self) -> mpsc::Receiver<Output> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.0.lock().push(sender);
        receiver
    }

    /// Ends the output of everyone.
    pub fn close(&self) {
        self.0.lock().clear();
    }

    /// Sends to all, waiting for slow ones.
    pub async fn send(&self, output: &Output) {
        let clients = self.0.lock().clone();
        let mut lost = false;
        for client in &clients {
            match timeout(PATIENCE, client.send(output.clone())).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => lost = true,
                Err(_) => {
                    // Closing the channel is not ours to do; forgetting the sender is.
                    self.forget(client);
                }
            }
        }
        if lost {
            self.0.lock().retain(|client| !client.is_closed());
        }
    }

    fn forget(&self, lost: &mpsc::Sender<Output>) {
        self.0.lock().retain(|client| !client.same_channel(lost));
    }
}
