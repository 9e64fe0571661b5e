//! Bytes from clients of the kubelet API: whatever they are, nothing panics, and the session ends with its client.

use std::{sync::LazyLock, time::Duration};

use futures::SinkExt as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    runtime::{Builder, Runtime},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};
use virtual_kubelet::api::{
    SPDY_PROTOCOLS, Session, SessionIo, StreamOptions,
    channels::{PROTOCOLS, Sizes, UNNAMED},
    log_options,
    logs::{Selector, entry},
    query, session_over_spdy, session_over_websocket,
    spdy::{Frame, Reader, Writer},
    stream_options,
};

const DEADLINE: Duration = Duration::from_secs(10);
const ALL: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// Gives back its input and ends with it.
fn echo() -> Session {
    Box::new(|io: SessionIo| {
        Box::pin(async move {
            if let (Some(mut stdin), Some(mut stdout)) = (io.stdin, io.stdout) {
                let _ = tokio::io::copy(&mut stdin, &mut stdout).await;
            }
            Ok(0)
        })
    })
}

/// A client that sends bytes, in two pieces, reads what comes and leaves.
async fn client(stream: DuplexStream, data: &[u8]) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (first, rest) = data.split_at(data.first().map_or(0, |length| usize::from(*length).min(data.len())));
    let send = async {
        for piece in [first, rest] {
            // The server may have had enough.
            if writer.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = writer.shutdown().await;
    };
    let read = async {
        let mut rest = Vec::new();
        let _ = reader.read_to_end(&mut rest).await;
    };
    tokio::join!(send, read);
}

/// Frames that the bytes stand for, three bytes each at least.
fn frames(data: &[u8]) -> Vec<Frame> {
    let mut rest = data;
    let mut frames = Vec::new();
    while let [kind, stream, length, after @ ..] = rest {
        let (content, after) = after.split_at(usize::from(*length).min(after.len()));
        let (stream, fin) = (u32::from(stream % 16), kind & 128 != 0);
        let text = String::from_utf8_lossy(content).into_owned();
        let name = ["error", "stdin", "stdout", "stderr", "resize"].get(content.len() % 6).map_or(text.as_str(), |name| name);
        let headers = vec![("streamtype".to_owned(), name.to_owned())];
        frames.push(match kind % 8 {
            0 | 1 => Frame::SynStream { stream, fin, headers },
            2 => Frame::RstStream { stream, status: 1 },
            3 => Frame::Ping(stream),
            4 => Frame::GoAway { last: stream, status: 0 },
            5 => Frame::Headers { stream, fin, headers },
            _ => Frame::Data { stream, fin, data: content.to_vec() },
        });
        rest = after;
    }
    frames
}

/// SPDY: frames are read as they were written, and a session of whatever frames ends with its client.
pub fn spdy(data: &[u8]) {
    let (mut reader, mut writer, mut again) = (Reader::default(), Writer::default(), Reader::default());
    reader.push(data);
    while let Ok(Some(frame)) = reader.take() {
        again.push(&writer.bytes(&frame));
        if !matches!(frame, Frame::Other(_)) {
            assert_eq!(again.take(), Ok(Some(frame)));
        }
    }
    let mut writer = Writer::default();
    let valid: Vec<u8> = frames(data).iter().flat_map(|frame| writer.bytes(frame)).collect();
    RUNTIME.block_on(async {
        for bytes in [data, &valid] {
            let (ours, theirs) = tokio::io::duplex(64);
            let serve = session_over_spdy(theirs, SPDY_PROTOCOLS[0], ALL, Duration::from_millis(1), echo());
            let both = Box::pin(async { tokio::join!(serve, client(ours, bytes)) });
            timeout(DEADLINE, both).await.expect("the session ends");
        }
    });
}

/// The channels of a WebSocket: raw bytes, and messages made of them.
pub fn websocket(data: &[u8]) {
    let mut sizes = Sizes::default();
    for piece in data.chunks(7) {
        sizes.push(piece);
    }
    for protocol in PROTOCOLS.into_iter().chain([UNNAMED]) {
        protocol.read(data);
    }
    RUNTIME.block_on(async {
        let protocol = PROTOCOLS[data.first().map_or(0, |first| usize::from(*first) % PROTOCOLS.len())];
        let (ours, theirs) = tokio::io::duplex(64);
        let serve = async {
            session_over_websocket(WebSocketStream::from_raw_socket(theirs, Role::Server, None).await, protocol, ALL, echo()).await;
        };
        let both = async { tokio::join!(serve, client(ours, data)) };
        timeout(DEADLINE, both).await.expect("the session ends");
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let serve = async {
            session_over_websocket(WebSocketStream::from_raw_socket(theirs, Role::Server, None).await, protocol, ALL, echo()).await;
        };
        let send = async {
            let mut socket = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
            for piece in data.chunks(11) {
                let message = if protocol.base64 {
                    Message::text(String::from_utf8_lossy(piece).into_owned())
                } else {
                    Message::binary(piece.to_vec())
                };
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        };
        let both = async { tokio::join!(serve, send) };
        timeout(DEADLINE, both).await.expect("the session ends");
    });
}

/// The query of a request for a log, and the log itself: the first line is the one, the rest the other.
pub fn logs(data: &[u8]) {
    let (first, rest) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len()));
    let query = query(&String::from_utf8_lossy(first));
    let _ = stream_options(&query);
    let Ok(options) = log_options(&query) else { return };
    let mut selector = Selector::new(&options, "2026-01-01T00:00:00Z".parse().expect("a time"));
    let mut out = Vec::new();
    for line in rest.split(|byte| *byte == b'\n') {
        if let Some(entry) = entry(line) {
            assert!(line.ends_with(entry.text));
        }
        selector.take(line, &mut out);
    }
    assert!(options.limit_bytes.is_none_or(|limit| out.len() as u64 <= limit));
}
