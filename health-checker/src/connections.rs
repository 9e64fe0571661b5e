//! Who is connected, and who has to go: a slow, stuck or idle client must not keep others from being answered.

use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
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

/// For so long a client that has connected may take until it asks, before others that asked are preferred to it: a round trip and a lost
/// packet's repetition.
const NEWCOMER: Duration = Duration::from_secs(2);

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
    from: Option<IpAddr>,
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

    /// It has only just connected, and had no time to ask.
    fn is_newcomer(&self, now: u64) -> bool {
        self.answered.load(Relaxed) == 0 && u128::from(now.saturating_sub(self.opened)) <= NEWCOMER.as_millis()
    }

    /// Those that never asked anything go first, then those that asked longest ago; last those that are waited for.
    fn usefulness(&self, now: u64, waits: bool) -> (bool, u64, u64) {
        (waits && self.is_newcomer(now), self.answered.load(Relaxed), self.opened)
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

    /// A new connection. Where the table is full, the least useful one of the address with most of them goes: the newcomer may be the load
    /// balancer, and a crowd from elsewhere must not push it out.
    pub fn enter(self: &Arc<Self>, from: Option<IpAddr>) -> Seat {
        if self.len() >= self.limits.connections {
            self.displace();
        }
        let id = self.next.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection {
            from,
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

    /// Closes the least useful connection of the address that has most of them. Those that have only just connected are waited for while
    /// they hold no more than half of all places.
    pub fn displace(&self) {
        let now = millis(self.started);
        let closed = self.locked(|open| {
            let mut of_address: HashMap<Option<IpAddr>, usize> = HashMap::new();
            for connection in open.values() {
                *of_address.entry(connection.from).or_default() += 1;
            }
            let newcomers = open.values().filter(|connection| connection.is_newcomer(now)).count();
            let waits = 2 * newcomers <= self.limits.connections;
            let most = of_address.values().copied().max().unwrap_or_default();
            let crowded = open.iter().filter(|(_, connection)| of_address[&connection.from] == most);
            let least = crowded.min_by_key(|(id, connection)| (connection.usefulness(now, waits), **id)).map(|(id, _)| *id);
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
        act(&mut self.open.lock())
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

    fn asks(seat: &Seat) {
        seat.connection.bytes_read();
        seat.connection.request_read();
    }

    fn gone(seat: &Seat) -> bool {
        seat.connection.gone.is_cancelled()
    }

    fn enters(table: &Arc<Table>, last: u8) -> Seat {
        table.enter(Some([192, 0, 2, last].into()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_that_never_asked_makes_room_for_the_next() {
        let table = Table::new(limits());
        let silent = enters(&table, 1);
        let useful = enters(&table, 1);
        asks(&useful);
        tokio::time::advance(Duration::from_secs(3)).await;
        let third = enters(&table, 1);
        assert_eq!([gone(&silent), gone(&useful), gone(&third)], [true, false, false]);
        assert_eq!((table.len(), table.displaced.load(Relaxed)), (2, 1));
        drop((silent, useful, third));
        assert!(table.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_that_has_only_just_connected_is_waited_for() {
        let table = Table::new(limits());
        let useful = enters(&table, 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        asks(&useful);
        let new = enters(&table, 1);
        let third = enters(&table, 1);
        assert_eq!([gone(&useful), gone(&new), gone(&third)], [true, false, false]);
        let fourth = enters(&table, 1);
        assert_eq!([gone(&new), gone(&third), gone(&fourth)], [true, false, false], "of those that are all new the first goes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_from_one_address_pushes_nobody_else_out() {
        let table = Table::new(Limits { connections: 4, ..limits() });
        let balancer = enters(&table, 1);
        asks(&balancer);
        tokio::time::advance(Duration::from_mins(1)).await;
        let mut crowd: Vec<_> = (0..3).map(|_| enters(&table, 2)).collect();
        for _ in 0..20 {
            crowd.push(enters(&table, 2));
            crowd.iter().filter(|seat| !gone(seat)).for_each(asks);
        }
        assert!(!gone(&balancer));
        assert_eq!(crowd.iter().filter(|seat| !gone(seat)).count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_silent_and_idle_clients_each_have_a_timeout() {
        let table = Table::new(Limits { connections: 9, ..limits() });
        let (slow, silent, idle) = (table.enter(None), table.enter(None), table.enter(None));
        slow.connection.bytes_read();
        asks(&idle);
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
