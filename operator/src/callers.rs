//! Who is connected to a port of the operator. Every pod of the cluster may reach it: none of them keeps the others out, and none costs
//! more than a place.

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Most connections at a time to one port: API servers and Prometheus keep a few, and open one more for each request that they make
/// meanwhile.
const CONNECTIONS: usize = 256;
/// How long a client may take for the head of each request, and stay without one.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How long an accept that failed is followed by none: it fails for want of descriptors or memory, and nothing tells when there is some
/// again.
const PAUSE: Duration = Duration::from_millis(100);

/// Open connections, in the order in which they came.
#[derive(Debug, Default)]
struct Callers {
    next: u64,
    open: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

impl Callers {
    /// One more. At the limit, the oldest of the address with most of them is closed: a crowd from one address keeps nobody else out.
    fn enter(&mut self, from: IpAddr) -> (u64, CancellationToken) {
        let (id, gone) = (self.next, CancellationToken::new());
        self.next += 1;
        self.open.insert(id, (from, gone.clone()));
        if self.open.len() > CONNECTIONS {
            let mut counts = HashMap::<_, usize>::new();
            self.open.values().for_each(|(from, _)| *counts.entry(*from).or_default() += 1);
            let most = self.open.iter().rev().max_by_key(|(_, (from, _))| counts.get(from)).map(|(id, _)| *id);
            if let Some((_, oldest)) = most.and_then(|id| self.open.remove(&id)) {
                oldest.cancel();
            }
        }
        (id, gone)
    }

    fn leave(&mut self, id: u64) {
        self.open.remove(&id);
    }
}

/// Accepts connections until `stop`, gives each to `handle`, and returns when these have ended.
pub async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    stop: CancellationToken,
    handle: impl Fn(TcpStream) -> F,
) {
    let callers = Arc::<Mutex<Callers>>::default();
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok((stream, from)) => (stream, from.ip()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (id, gone) = callers.lock().enter(from);
        let (handled, callers) = (handle(stream), Arc::clone(&callers));
        tasks.spawn(async move {
            tokio::select! {
                () = gone.cancelled() => tracing::debug!(%from, "a connection gave way to a newer one"),
                () = handled => {}
            }
            callers.lock().leave(id);
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// Answers the requests of a connection; after `stop` none but the one that it has begun.
pub async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router, stop: CancellationToken) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_the_oldest_connection_of_the_address_with_most_of_them_gives_way() {
        let [crowd, server] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut callers = Callers::default();
        let (first, kept) = callers.enter(server);
        let mut of_crowd: Vec<_> = (1..CONNECTIONS).map(|_| callers.enter(crowd).1).collect();
        assert!(of_crowd.iter().all(|gone| !gone.is_cancelled()), "there was room");
        let newest = callers.enter(server).1;
        of_crowd.push(callers.enter(crowd).1);
        let closed: Vec<_> = of_crowd.iter().map(CancellationToken::is_cancelled).collect();
        assert_eq!(closed.iter().filter(|closed| **closed).count(), 2);
        assert!(closed[0] && closed[1], "the oldest two of the crowd");
        assert!(!kept.is_cancelled() && !newest.is_cancelled());
        callers.leave(first);
        assert!(!callers.enter(crowd).1.is_cancelled(), "what left gave its place back");
        assert_eq!(callers.open.len(), CONNECTIONS);
        assert_eq!(of_crowd.iter().filter(|gone| gone.is_cancelled()).count(), 2);
    }
}
