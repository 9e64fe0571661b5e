//! A connection on which the client opens streams.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::frame::{Frame, Reader, Writer};
use super::headers::Headers;

/// How much of a stream is held for a reader that is slow. What is beyond makes all streams of the connection wait, as the
/// protocol without flow control has it.
const HELD: usize = 64 << 10;
/// Most streams at a time on one connection: port-forward has two for each connection that it forwards.
const STREAMS: usize = 1024;
/// How often a silent client is asked whether it is there.
const PING: Duration = Duration::from_secs(20);
/// How long a client may take to close after everything was sent.
const LINGER: Duration = Duration::from_secs(5);
/// Content of one frame.
const PIECE: usize = 32 << 10;
/// Status of a stream that nobody wants.
const REFUSED: u32 = 3;

/// A stream that the client opened.
pub struct Incoming {
    /// Number of the stream.
    pub id: u32,
    /// What it is for.
    pub headers: Headers,
    /// Its bytes in both directions.
    pub stream: DuplexStream,
}

/// Speaks SPDY on `transport` and takes the streams that are `wanted`, by their headers; others are refused. The future does the work; it
/// ends when the client has gone, or, after all of our streams have ended and the receiver was dropped, when everything was sent.
pub fn accept<T>(transport: T, wanted: fn(&Headers) -> bool) -> (mpsc::Receiver<Incoming>, impl Future<Output = io::Result<()>> + Send)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (opened, incoming) = mpsc::channel(16);
    (incoming, drive(transport, opened, wanted))
}

async fn drive<T>(transport: T, opened: mpsc::Sender<Incoming>, wanted: fn(&Headers) -> bool) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (from, mut to) = split(transport);
    let (frames, mut queue) = mpsc::channel::<Frame>(32);
    let sending = async {
        let mut writer = Writer::default();
        let mut pings = interval_at(Instant::now() + PING, PING);
        let mut ping = 0_u32;
        loop {
            let frame = tokio::select! {
                frame = queue.recv() => match frame {
                    Some(frame) => frame,
                    None => break,
                },
                _ = pings.tick() => {
                    // Even numbers are the server's.
                    ping = ping.wrapping_add(2);
                    Frame::Ping(ping)
                }
            };
            to.write_all(&writer.bytes(&frame)).await?;
            if queue.is_empty() {
                to.flush().await?;
            }
        }
        to.write_all(&writer.bytes(&Frame::GoAway { last: 0, status: 0 })).await?;
        to.flush().await?;
        to.shutdown().await
    };
    let reading = Streams { opened, wanted, frames, open: HashMap::new(), last: 0 }.run(from);
    let (mut sending, mut reading) = (pin!(sending), pin!(reading));
    tokio::select! {
        sent = &mut sending => sent,
        // The client has gone (an error), or nothing will be sent any more: what is waiting still goes out.
        read = &mut reading => match read {
            Err(error) => Err(error),
            Ok(mut from) => {
                sending.await?;
                // Closing a socket with unread bytes would take back what the client has not read yet.
                let mut rest = [0; 4096];
                let _ = timeout(LINGER, async { while matches!(from.read(&mut rest).await, Ok(1..)) {} }).await;
                Ok(())
            }
        },
    }
}

struct Streams {
    opened: mpsc::Sender<Incoming>,
    wanted: fn(&Headers) -> bool,
    frames: mpsc::Sender<Frame>,
    open: HashMap<u32, Open>,
    /// The highest number that a stream had.
    last: u32,
}

struct Open {
    /// What the client sends goes here, until it has ended.
    half: Option<WriteHalf<DuplexStream>>,
    /// Ends the sending as well.
    reset: CancellationToken,
}

/// A stream that begins to be sent.
struct Opened {
    id: u32,
    half: ReadHalf<DuplexStream>,
    frames: mpsc::Sender<Frame>,
    reset: CancellationToken,
}

impl Streams {
    /// Returns the reading half when all streams have ended and no further ones are wanted.
    async fn run<T: AsyncRead>(mut self, mut from: ReadHalf<T>) -> io::Result<ReadHalf<T>> {
        let mut reader = Reader::default();
        let mut buffer = vec![0; PIECE];
        let mut outgoing = FuturesUnordered::new();
        loop {
            if self.opened.is_closed() && outgoing.is_empty() {
                return Ok(from);
            }
            let read = tokio::select! {
                read = from.read(&mut buffer) => read?,
                Some(ended) = outgoing.next() => {
                    self.open.remove(&ended);
                    continue;
                }
                () = self.opened.closed(), if !self.opened.is_closed() => continue,
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            reader.push(buffer.get(..read).unwrap_or_default());
            loop {
                let frame = reader.take().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let Some(frame) = frame else { break };
                // Output goes on while the frame waits, or a full pipe in each direction would wait for the other one.
                let mut gone = Vec::new();
                let opened = {
                    let mut taking = pin!(self.take(frame));
                    loop {
                        tokio::select! {
                            opened = &mut taking => break opened?,
                            Some(ended) = outgoing.next() => gone.push(ended),
                        }
                    }
                };
                for ended in gone {
                    self.open.remove(&ended);
                }
                outgoing.extend(opened.map(send_all));
            }
        }
    }

    async fn take(&mut self, frame: Frame) -> io::Result<Option<Opened>> {
        match frame {
            Frame::SynStream { stream: id, fin, headers } => {
                // Streams of clients have odd numbers that grow.
                if id % 2 == 0 || id <= self.last || self.open.len() >= STREAMS || !(self.wanted)(&headers) {
                    self.send(Frame::RstStream { stream: id, status: REFUSED }).await?;
                    return Ok(None);
                }
                self.last = id;
                let (ours, theirs) = tokio::io::duplex(HELD);
                if self.opened.send(Incoming { id, headers, stream: theirs }).await.is_err() {
                    self.send(Frame::RstStream { stream: id, status: REFUSED }).await?;
                    return Ok(None);
                }
                self.send(Frame::SynReply { stream: id, fin: false, headers: Vec::new() }).await?;
                let (half, mut write) = split(ours);
                if fin {
                    let _ = write.shutdown().await;
                }
                let reset = CancellationToken::new();
                self.open.insert(id, Open { half: (!fin).then_some(write), reset: reset.clone() });
                return Ok(Some(Opened { id, half, frames: self.frames.clone(), reset }));
            }
            Frame::Data { stream, fin, data } => {
                let Some(open) = self.open.get_mut(&stream) else { return Ok(None) };
                let Some(half) = &mut open.half else { return Ok(None) };
                // Nobody listens any more: the rest is dropped.
                let wanted = data.is_empty() || half.write_all(&data).await.is_ok();
                if fin || !wanted {
                    let _ = half.shutdown().await;
                    open.half = None;
                }
            }
            Frame::Headers { stream, fin: true, .. } => {
                if let Some(mut half) = self.open.get_mut(&stream).and_then(|open| open.half.take()) {
                    let _ = half.shutdown().await;
                }
            }
            Frame::RstStream { stream, .. } => {
                if let Some(open) = self.open.remove(&stream) {
                    open.reset.cancel();
                }
            }
            // Ours come back with even numbers.
            Frame::Ping(id) if id % 2 == 1 => self.send(Frame::Ping(id)).await?,
            Frame::Ping(_) | Frame::SynReply { .. } | Frame::GoAway { .. } | Frame::Headers { .. } | Frame::Other(_) => {}
        }
        Ok(None)
    }

    async fn send(&self, frame: Frame) -> io::Result<()> {
        self.frames.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Sends what is written to a stream, and its end.
async fn send_all(Opened { id, mut half, frames, reset }: Opened) -> u32 {
    let mut buffer = vec![0; PIECE];
    loop {
        let read = tokio::select! {
            read = half.read(&mut buffer) => read.unwrap_or_default(),
            () = reset.cancelled() => return id,
        };
        let data = buffer.get(..read).unwrap_or_default().to_vec();
        if frames.send(Frame::Data { stream: id, fin: read == 0, data }).await.is_err() || read == 0 {
            return id;
        }
    }
}
