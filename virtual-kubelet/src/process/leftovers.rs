//! Ends processes that nobody supervises any more.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::container::bounded;
use super::shim::{self, Open, Session, ShimOrder};

/// Ends every container below `root` (the directory given to a [`Site`](super::Site)) and waits for
/// that: first by its stop signal, after `grace` by force. One that does not end even then is given up after some 5 s, with a
/// warning in the log. For when a node is not to come back.
///
/// ```no_run
/// use std::{path::Path, time::Duration};
///
/// use virtual_kubelet::process::{claim, end_all};
///
/// # async fn example() -> std::io::Result<()> {
/// let root = Path::new("/var/lib/virtual-kubelet");
/// // An agent that still ran would start its containers again.
/// let _claim = claim(root)?;
/// end_all(root, Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
pub async fn end_all(root: &Path, grace: Duration) {
    let pods: Vec<_> = std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    futures::future::join_all(pods.iter().map(|pod| end_pod(pod, grace))).await;
}

/// Ends every container in a pod's directory and waits for that.
pub(super) async fn end_pod(pod: &Path, grace: Duration) {
    let containers: Vec<_> = std::fs::read_dir(pod).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    futures::future::join_all(containers.iter().filter(|path| path.is_dir()).map(|container| end(container, grace))).await;
}

/// Ends the run in a container's directory, if there is one, and waits for that.
async fn end(container: &Path, grace: Duration) {
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let Some(order) = ShimOrder::read(container) else { return };
    let over = || shim::lock(container).map_or(true, |lock| lock.is_some());
    let signal = async |number: i32, everything: bool| {
        if let Ok(session) = Session::open(container, Open::Signal { number, everything }).await {
            let _ = session.collect(0).await;
        }
    };
    if over() {
        return;
    }
    signal(order.stop_signal, false).await;
    let deadline = tokio::time::Instant::now() + bounded(grace);
    while !over() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let mut tries = 0;
    while !over() {
        signal(Signal::SIGKILL as i32, true).await;
        tokio::time::sleep(LOOK_EVERY).await;
        tries += 1;
        if tries > 250 {
            tracing::warn!(container = %container.display(), "a container does not end");
            return;
        }
    }
}
