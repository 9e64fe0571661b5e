//! Who is connected, and who has to go: a slow, stuck or idle client must not keep others from being answered.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// What clients may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Simultaneous connections, 1 or more.
    pub connections: usize,
    /// From the first byte of a request to the end of its header.
    pub header: Duration,
    /// From the connection to the first byte.
    pub silence: Duration,
    /// Between two requests on a connection.
    pub idle: Duration,
}

impl Limits {
    /// For the health port. Documented intervals of load balancers go up to 300 s; one that keeps its connection from check to
    /// check must not find it closed.
    pub fn new(connections: usize) -> Self {
        Self { connections, header: Duration::from_secs(5), silence: Duration::from_secs(30), idle: Duration::from_secs(330) }
    }
}

/// One connection, as its task and the table share it. Times are milliseconds since the table was made, plus 1; 0 is never.
#[derive(Debug)]
pub struct Connection {
    started: Instant,
    opened: u64,
    answered: AtomicU64,
    reading: AtomicU64,
    closing: AtomicBool,
    /// Cancelled when the connection has to go.
    pub gone: CancellationToken,
}

impl Connection {
    fn clock(&self) -> u64 {
        millis(self.started)
    }

    /// A request was read completely.
    pub fn request_read(&self) {
        self.reading.store(0, Relaxed);
        self.answered.store(self.clock(), Relaxed);
    }

    fn bytes_read(&self) {
        if self.reading.load(Relaxed) == 0 {
            self.reading.store(self.clock(), Relaxed);
        }
    }

    /// Those that never asked anything go first, then those that asked longest ago.
    fn usefulness(&self) -> (u64, u64) {
        (self.answered.load(Relaxed), self.opened)
    }

    fn overdue(&self, now: u64, limits: &Limits) -> bool {
        let over = |since: u64, limit: Duration| u128::from(now.saturating_sub(since)) > limit.as_millis();
        match (self.reading.load(Relaxed), self.answered.load(Relaxed)) {
            (0, 0) => over(self.opened, limits.silence),
            (0, answered) => over(answered, limits.idle),
            (reading, _) => over(reading, limits.header),
        }
    }

    fn close(&self) -> bool {
        self.gone.cancel();
        !self.closing.swap(true, Relaxed)
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
}

/// Every connection of one listener.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    started: Instant,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Connections closed because they were too slow or idle for too long.
    pub timed_out: AtomicU64,
    /// Connections closed to make room.
    pub displaced: AtomicU64,
}

impl Table {
    /// Empty.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            started: Instant::now(),
            next: AtomicU64::new(0),
            open: Mutex::default(),
            timed_out: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
        })
    }

    /// Open connections.
    pub fn len(&self) -> usize {
        self.locked(|open| open.len())
    }

    /// None is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until none is open.
    pub async fn emptied(&self) {
        while !self.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A new connection. Where the table is full, the least useful one goes: the newcomer may be the load balancer.
    pub fn enter(self: &Arc<Self>) -> Seat {
        if self.len() >= self.limits.connections {
            self.displace();
        }
        let id = self.next.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection {
            started: self.started,
            opened: millis(self.started),
            answered: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            gone: CancellationToken::new(),
        });
        self.locked(|open| open.insert(id, connection.clone()));
        Seat { id, connection, table: self.clone() }
    }

    /// Closes the least useful connection.
    pub fn displace(&self) {
        let closed = self.locked(|open| {
            let least = open.iter().min_by_key(|(_, connection)| connection.usefulness()).map(|(id, _)| *id);
            least.and_then(|id| open.remove(&id)).is_some_and(|connection| connection.close())
        });
        self.displaced.fetch_add(u64::from(closed), Relaxed);
    }

    /// Closes every connection that is over a limit.
    pub fn sweep(&self) {
        let now = millis(self.started);
        let closed = self
            .locked(|open| open.values().filter(|connection| connection.overdue(now, &self.limits)).filter(|late| late.close()).count());
        self.timed_out.fetch_add(u64::try_from(closed).unwrap_or_default(), Relaxed);
    }

    fn locked<T>(&self, act: impl FnOnce(&mut HashMap<u64, Arc<Connection>>) -> T) -> T {
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection's place in the table, given back when dropped.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    /// The connection.
    pub connection: Arc<Connection>,
    table: Arc<Table>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.table.locked(|open| open.remove(&self.id));
    }
}

/// A stream that notes when a request begins to arrive.
#[derive(Debug)]
pub struct Tracked<S> {
    /// The stream itself.
    pub stream: S,
    /// Whom to tell.
    pub connection: Arc<Connection>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Tracked<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.connection.bytes_read();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tracked<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { connections: 2, header: Duration::from_secs(5), silence: Duration::from_secs(30), idle: Duration::from_secs(330) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_that_never_asked_makes_room_for_the_next() {
        let table = Table::new(limits());
        let silent = table.enter();
        let useful = table.enter();
        tokio::time::advance(Duration::from_secs(1)).await;
        useful.connection.bytes_read();
        useful.connection.request_read();
        let third = table.enter();
        assert!(silent.connection.gone.is_cancelled());
        assert!(!useful.connection.gone.is_cancelled() && !third.connection.gone.is_cancelled());
        assert_eq!((table.len(), table.displaced.load(Relaxed)), (2, 1));
        drop((silent, useful, third));
        assert!(table.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_has_five_seconds_a_silent_client_thirty_an_idle_one_more_than_any_interval() {
        let table = Table::new(Limits { connections: 9, ..limits() });
        let (slow, silent, idle) = (table.enter(), table.enter(), table.enter());
        slow.connection.bytes_read();
        idle.connection.bytes_read();
        idle.connection.request_read();
        let gone = |seat: &Seat| seat.connection.gone.is_cancelled();
        let mut seen = Vec::new();
        for seconds in [4, 2, 23, 2, 270, 40] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            table.sweep();
            seen.push((gone(&slow), gone(&silent), gone(&idle)));
        }
        assert_eq!(
            seen,
            [
                (false, false, false),
                (true, false, false),
                (true, false, false),
                (true, true, false),
                (true, true, false),
                (true, true, true)
            ]
        );
        assert_eq!(table.timed_out.load(Relaxed), 3);
    }
}
