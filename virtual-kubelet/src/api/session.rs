//! Sessions of commands and attached containers over a WebSocket or over SPDY.
//!
//! Session and connection are two futures of one task: when the connection ends, the session is dropped; when the session
//! ends, the connection sends what is left and how it ended. So neither can be left behind.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::channels::{self, Input, Protocol, Sizes};
use super::handlers::{BoxRead, BoxWrite, HandlerError, Session, SessionIo};
use super::options::StreamOptions;
use super::spdy::{self, Headers, header};

/// How much of each stream is held for a slow reader.
const HELD: usize = 64 << 10;
/// How often a silent client is asked whether it is there.
const PING: Duration = Duration::from_secs(20);
/// How long a client may take to fetch the rest of the output.
const REST: Duration = Duration::from_mins(5);
/// How long a client may take to close after everything was sent.
const LINGER: Duration = Duration::from_secs(5);

/// Runs a session whose streams are the channels of a WebSocket.
pub async fn over_websocket<S>(socket: WebSocketStream<S>, protocol: Protocol, options: StreamOptions, session: Session)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let pipe = |wanted: bool| wanted.then(|| tokio::io::duplex(HELD)).unzip();
    let (stdin, stdin_of_session) = pipe(options.stdin);
    let (stdout, stdout_of_session) = pipe(options.stdout);
    let (stderr, stderr_of_session) = pipe(options.stderr);
    let (sizes, sizes_of_session) = watch::channel(None);
    let io = SessionIo {
        stdin: stdin_of_session.map(|pipe| Box::new(pipe) as BoxRead),
        stdout: stdout_of_session.map(|pipe| Box::new(pipe) as BoxWrite),
        stderr: stderr_of_session.map(|pipe| Box::new(pipe) as BoxWrite),
        tty: options.tty,
        sizes: sizes_of_session,
    };
    let (finish, finished) = oneshot::channel();
    let (mut to, from) = socket.split();
    let connection = async {
        let mut incoming = pin!(take_channels(from, protocol, stdin, sizes));
        let sent = tokio::select! {
            () = &mut incoming => return,
            sent = send_channels(&mut to, protocol, stdout, stderr, finished) => sent,
        };
        if sent.is_some() {
            let _ = timeout(LINGER, incoming).await;
        }
    };
    join(session(io), finish, connection).await;
}

/// Runs both until the connection ends.
async fn join(
    session: impl Future<Output = Result<i32, HandlerError>>,
    finish: oneshot::Sender<Result<i32, HandlerError>>,
    connection: impl Future<Output = ()>,
) {
    let mut connection = pin!(connection);
    tokio::select! {
        outcome = session => {
            let _ = finish.send(outcome);
        }
        () = &mut connection => return,
    }
    let _ = timeout(REST, connection).await;
}

async fn take_channels(
    mut from: impl futures::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin,
    protocol: Protocol,
    mut stdin: Option<DuplexStream>,
    sizes: watch::Sender<Option<super::handlers::TerminalSize>>,
) {
    let mut found = Sizes::default();
    while let Some(Ok(message)) = from.next().await {
        let message = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => return,
            _ => continue,
        };
        match protocol.read(&message) {
            Input::Data(channels::STDIN, data) => {
                if let Some(pipe) = &mut stdin
                    && pipe.write_all(&data).await.is_err()
                {
                    stdin = None;
                }
            }
            Input::End(channels::STDIN) => stdin = None,
            Input::Data(channels::RESIZE, data) => {
                if let Some(size) = found.push(&data) {
                    sizes.send_replace(Some(size));
                }
            }
            _ => {}
        }
    }
}

async fn read(from: &mut Option<DuplexStream>, buffer: &mut [u8]) -> usize {
    match from {
        Some(pipe) => pipe.read(buffer).await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

/// Returns nothing when the client does not take it.
async fn send_channels(
    to: &mut (impl futures::Sink<Message> + Unpin),
    protocol: Protocol,
    mut stdout: Option<DuplexStream>,
    mut stderr: Option<DuplexStream>,
    mut finished: oneshot::Receiver<Result<i32, HandlerError>>,
) -> Option<()> {
    let message = |channel: u8, data: &[u8]| {
        let bytes = protocol.write(channel, data);
        if protocol.base64 { Message::text(String::from_utf8_lossy(&bytes).into_owned()) } else { Message::binary(bytes) }
    };
    // Tells that the session has begun.
    let first = [(channels::STDOUT, stdout.is_some()), (channels::STDERR, stderr.is_some())].into_iter().find(|(_, open)| *open);
    to.send(message(first.map_or(channels::ERROR, |(channel, _)| channel), &[])).await.ok()?;
    let (mut out, mut err) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    let mut pings = interval_at(Instant::now() + PING, PING);
    let mut outcome = None;
    while stdout.is_some() || stderr.is_some() || outcome.is_none() {
        tokio::select! {
            read = read(&mut stdout, &mut out) => match out.get(..read) {
                Some(data @ [_, ..]) => to.send(message(channels::STDOUT, data)).await.ok()?,
                _ => stdout = None,
            },
            read = read(&mut stderr, &mut err) => match err.get(..read) {
                Some(data @ [_, ..]) => to.send(message(channels::STDERR, data)).await.ok()?,
                _ => stderr = None,
            },
            ended = &mut finished, if outcome.is_none() => outcome = Some(ended.ok()?),
            _ = pings.tick() => to.send(Message::Ping(Vec::new().into())).await.ok()?,
        }
    }
    if let Some(verdict) = outcome.and_then(|outcome| protocol.verdict(&outcome)) {
        to.send(message(channels::ERROR, &verdict)).await.ok()?;
    }
    to.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))).await.ok()
}

/// A protocol for sessions over SPDY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpdyProtocol {
    /// Name in the handshake.
    pub name: &'static str,
    status: bool,
    resize: bool,
}

/// All of them, best first. The second has what the first lacks in bugs only.
pub const SPDY_PROTOCOLS: [SpdyProtocol; 5] = [
    SpdyProtocol { name: "v5.channel.k8s.io", status: true, resize: true },
    SpdyProtocol { name: "v4.channel.k8s.io", status: true, resize: true },
    SpdyProtocol { name: "v3.channel.k8s.io", status: false, resize: true },
    SpdyProtocol { name: "v2.channel.k8s.io", status: false, resize: false },
    SpdyProtocol { name: "channel.k8s.io", status: false, resize: false },
];

/// The first of the client's protocols that is known; a client that names none speaks the oldest.
pub fn negotiate_spdy<'a>(mut offered: impl Iterator<Item = &'a str> + Clone) -> Option<SpdyProtocol> {
    if offered.clone().next().is_none() {
        return SPDY_PROTOCOLS.into_iter().next_back();
    }
    offered.find_map(|name| SPDY_PROTOCOLS.into_iter().find(|protocol| protocol.name == name))
}

/// Name of the header that says what a stream is for.
const STREAM_TYPE: &str = "streamtype";

fn is_session_stream(headers: &Headers) -> bool {
    matches!(header(headers, STREAM_TYPE), Some("error" | "stdin" | "stdout" | "stderr" | "resize"))
}

/// Runs a session whose streams the client opens within `patience`.
pub async fn over_spdy<T>(transport: T, protocol: SpdyProtocol, options: StreamOptions, patience: Duration, session: Session)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut incoming, connection) = spdy::accept(transport, is_session_stream);
    let wants = [
        ("error", true),
        ("stdin", options.stdin),
        ("stdout", options.stdout),
        ("stderr", options.stderr),
        ("resize", options.tty && protocol.resize),
    ];
    let work = async move {
        let mut streams: [Option<DuplexStream>; 5] = [None, None, None, None, None];
        let collect = async {
            while let Some(new) = incoming.recv().await {
                let place = wants.iter().position(|(name, wanted)| *wanted && header(&new.headers, STREAM_TYPE) == Some(name));
                if let Some(place) = place.and_then(|place| streams.get_mut(place)) {
                    *place = Some(new.stream);
                }
                if wants.iter().zip(&streams).all(|((_, wanted), stream)| stream.is_some() || !wanted) {
                    return;
                }
            }
        };
        let outcome = timeout(patience, collect).await;
        drop(incoming);
        let [error, stdin, stdout, stderr, resize] = streams;
        let (sizes, sizes_of_session) = watch::channel(None);
        let outcome = if outcome.is_ok() {
            let io = SessionIo {
                stdin: stdin.map(|stream| Box::new(stream) as BoxRead),
                stdout: stdout.map(|stream| Box::new(stream) as BoxWrite),
                stderr: stderr.map(|stream| Box::new(stream) as BoxWrite),
                tty: options.tty,
                sizes: sizes_of_session,
            };
            tokio::select! {
                outcome = session(io) => outcome,
                () = take_sizes(resize, sizes) => Ok(0),
            }
        } else {
            Err(HandlerError::invalid("timed out waiting for client to create streams"))
        };
        if let (Some(mut error), Some(verdict)) = (error, channels::verdict(protocol.status, &outcome)) {
            let _ = error.write_all(&verdict).await;
        }
    };
    join_spdy(work, connection).await;
}

/// Runs both until the connection ends.
pub(super) async fn join_spdy(work: impl Future<Output = ()>, connection: impl Future<Output = std::io::Result<()>>) {
    let mut connection = pin!(connection);
    tokio::select! {
        () = work => {}
        _ = &mut connection => return,
    }
    let _ = timeout(REST, connection).await;
}

/// Never ends.
async fn take_sizes(stream: Option<DuplexStream>, sizes: watch::Sender<Option<super::handlers::TerminalSize>>) {
    if let Some(mut stream) = stream {
        let (mut found, mut buffer) = (Sizes::default(), [0; 256]);
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            if let Some(size) = found.push(buffer.get(..read).unwrap_or_default()) {
                sizes.send_replace(Some(size));
            }
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
