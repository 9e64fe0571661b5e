//! Who is connected to a port of the operator. Every pod of the cluster may reach it: none of them keeps the others out, and none costs
//! more than a place.
//!
//! `virtual-kubelet` accepts the connections of the kubelet's API by itself, with clients' certificates, upgrades and keepalives: it is a
//! library of its own that knows nothing of this product.

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
    sync::Notify,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Most connections at a time to one port: API servers and Prometheus keep a few, and open one more for each request that they make
/// meanwhile.
const CONNECTIONS: usize = 256;
/// How long a client may wait for a place, take for the head of each request, and stay without one.
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
    /// One more, if there is a place. At the limit the oldest of the address with most of them gives its place to an address that has
    /// fewer; an address with most of them waits for itself.
    fn enter(&mut self, from: IpAddr) -> Option<(u64, CancellationToken)> {
        if self.open.len() >= CONNECTIONS {
            let mut counts = HashMap::<_, usize>::new();
            self.open.values().for_each(|(from, _)| *counts.entry(*from).or_default() += 1);
            let most = counts.values().copied().max().unwrap_or(0);
            if counts.get(&from).copied().unwrap_or(0) + 1 >= most {
                return None;
            }
            let oldest = self.open.iter().find(|(_, (from, _))| counts.get(from) == Some(&most)).map(|(id, _)| *id);
            if let Some((_, oldest)) = oldest.and_then(|id| self.open.remove(&id)) {
                oldest.cancel();
            }
        }
        let (id, gone) = (self.next, CancellationToken::new());
        self.next += 1;
        self.open.insert(id, (from, gone.clone()));
        Some((id, gone))
    }
}

/// Callers of one port, and word of each place that becomes free.
#[derive(Debug, Default)]
struct PortCallers {
    callers: Mutex<Callers>,
    freed: Notify,
}

/// A place of a connection, until it is dropped.
struct CallerPlace {
    port: Arc<PortCallers>,
    id: u64,
    gone: CancellationToken,
}

impl Drop for CallerPlace {
    fn drop(&mut self) {
        self.port.callers.lock().open.remove(&self.id);
        self.port.freed.notify_waiters();
    }
}

impl CallerPlace {
    async fn of(port: &Arc<PortCallers>, from: IpAddr) -> Self {
        loop {
            let freed = port.freed.notified();
            if let Some((id, gone)) = port.callers.lock().enter(from) {
                return Self { port: Arc::clone(port), id, gone };
            }
            freed.await;
        }
    }
}

/// Accepts connections until `stop`, gives each to `handle`, and returns when these have ended.
pub async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    stop: CancellationToken,
    handle: impl Fn(TcpStream) -> F,
) {
    let port = Arc::<PortCallers>::default();
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
        // As many wait as have a place.
        if tasks.len() >= 2 * CONNECTIONS {
            continue;
        }
        let (handled, port) = (handle(stream), Arc::clone(&port));
        tasks.spawn(async move {
            let Ok(place) = timeout(PATIENCE, CallerPlace::of(&port, from)).await else { return };
            tokio::select! {
                () = place.gone.cancelled() => tracing::debug!(%from, "a connection gave way to a newer one"),
                () = handled => {}
            }
        });
    }
    // Nobody waits for an answer that does not come.
    drop(listener);
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

    fn callers_of(crowd: IpAddr, server: IpAddr) -> (Callers, Vec<CancellationToken>, Vec<CancellationToken>) {
        let mut callers = Callers::default();
        let mut enter = |from: IpAddr, count: usize| -> Vec<_> { (0..count).map(|_| callers.enter(from).unwrap().1).collect() };
        let (kept, of_crowd) = (enter(server, 1), enter(crowd, CONNECTIONS - 1));
        (callers, kept, of_crowd)
    }

    #[test]
    fn at_the_limit_the_busiest_address_loses_its_oldest_connection() {
        let [crowd, server] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let (mut callers, kept, of_crowd) = callers_of(crowd, server);
        assert!(of_crowd.iter().all(|gone| !gone.is_cancelled()), "there was room");
        assert!(callers.enter(crowd).is_none(), "a crowd waits for itself");
        let newest = callers.enter(server).unwrap().1;
        let closed: Vec<_> = of_crowd.iter().map(CancellationToken::is_cancelled).collect();
        assert!(closed[0] && closed.iter().filter(|closed| **closed).count() == 1, "the oldest of the crowd");
        assert!(!kept[0].is_cancelled() && !newest.is_cancelled());
        assert_eq!(callers.open.len(), CONNECTIONS);
    }

    #[test]
    fn two_addresses_end_with_half_of_the_places_each() {
        let [crowd, server] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let (mut callers, ..) = callers_of(crowd, server);
        while callers.enter(server).is_some() {}
        let of = |from: IpAddr| callers.open.values().filter(|(open, _)| *open == from).count();
        assert_eq!((of(crowd), of(server)), (CONNECTIONS / 2, CONNECTIONS / 2));
    }

    #[tokio::test]
    async fn who_waits_is_next_when_a_request_ends() {
        let port = Arc::<PortCallers>::default();
        let from = IpAddr::from([10, 0, 0, 1]);
        let mut places = Vec::new();
        for _ in 0..CONNECTIONS {
            places.push(CallerPlace::of(&port, from).await);
        }
        let (waits, freed) = tokio::join!(timeout(PATIENCE, CallerPlace::of(&port, from)), async { drop(places.pop()) });
        assert!(waits.is_ok(), "{freed:?}");
    }
}
