use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::io::DuplexStream;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::api::channels::{ERROR, PROTOCOLS, RESIZE, STDERR, STDIN, STDOUT};
use crate::api::handlers::TerminalSize;
use crate::api::spdy::{Frame, Reader, Writer};

const ALL: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };

/// Gives back its input, then complains, then ends with 7.
fn echo() -> Session {
    Box::new(|io: SessionIo| {
        Box::pin(async move {
            let (mut stdin, mut stdout, mut stderr) = (io.stdin.unwrap(), io.stdout.unwrap(), io.stderr.unwrap());
            tokio::io::copy(&mut stdin, &mut stdout).await.unwrap();
            stderr.write_all(b"done").await.unwrap();
            Ok(7)
        })
    })
}

/// Never ends; tells when it was dropped, and the sizes that it was told.
fn stuck(dropped: Arc<AtomicBool>, size: tokio::sync::mpsc::UnboundedSender<TerminalSize>) -> Session {
    struct Tell(Arc<AtomicBool>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    Box::new(move |io: SessionIo| {
        Box::pin(async move {
            // All of it: an input that was dropped would be one that is closed.
            let (_tell, mut io) = (Tell(dropped), io);
            while io.sizes.changed().await.is_ok() {
                let latest = *io.sizes.borrow_and_update();
                let _ = size.send(latest.unwrap());
            }
            std::future::pending().await
        })
    })
}

async fn client(options: StreamOptions, session: Session) -> (WebSocketStream<DuplexStream>, tokio::task::JoinHandle<()>) {
    let (ours, theirs) = tokio::io::duplex(1024);
    let server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    let task = tokio::spawn(over_websocket(server, PROTOCOLS[0], options, session));
    (WebSocketStream::from_raw_socket(ours, Role::Client, None).await, task)
}

#[tokio::test]
async fn a_websocket_carries_a_commands_streams_and_exit_code() {
    let (mut client, task) = client(ALL, echo()).await;
    let large = vec![b'x'; 200_000];
    let (mut to, mut from) = client.split();
    let sending = async {
        for piece in large.chunks(3000) {
            to.send(Message::binary([&[STDIN], piece].concat())).await.unwrap();
        }
        to.send(Message::binary(vec![255, STDIN])).await.unwrap();
    };
    let reading = async {
        let mut got: [Vec<u8>; 4] = Default::default();
        while let Some(Ok(message)) = from.next().await {
            match message {
                Message::Binary(bytes) => got[usize::from(bytes[0])].extend_from_slice(&bytes[1..]),
                Message::Close(frame) => {
                    assert_eq!(frame.unwrap().code, CloseCode::Normal);
                    break;
                }
                other => assert!(other.is_ping()),
            }
        }
        got
    };
    let ((), got) = tokio::join!(sending, reading);
    client = to.reunite(from).unwrap();
    drop(client);
    assert_eq!(got[usize::from(STDOUT)], large);
    assert_eq!(got[usize::from(STDERR)], b"done");
    let status: serde_json::Value = serde_json::from_slice(&got[usize::from(ERROR)]).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "7");
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_its_client_despite_unread_input() {
    let (dropped, (sizes, mut told)) = (Arc::<AtomicBool>::default(), tokio::sync::mpsc::unbounded_channel());
    let options = StreamOptions { stdin: true, stdout: true, stderr: false, tty: true };
    let (mut client, task) = client(options, stuck(dropped.clone(), sizes)).await;
    client.send(Message::binary([&[RESIZE], &br#"{"Width":100,"Height":40}"#[..]].concat())).await.unwrap();
    assert_eq!(told.recv().await, Some(TerminalSize { width: 100, height: 40 }));
    // More than is taken in for a command that does not read.
    let input = async {
        loop {
            client.send(Message::binary(vec![STDIN; 10_000])).await.unwrap();
        }
    };
    let stuck: Result<(), _> = tokio::time::timeout(Duration::from_secs(1), input).await;
    assert!(stuck.is_err());
    drop(client);
    task.await.unwrap();
    assert!(dropped.load(SeqCst));
}

struct SpdyClient {
    transport: DuplexStream,
    reader: Reader,
    writer: Writer,
}

impl SpdyClient {
    async fn send(&mut self, frame: Frame) {
        let bytes = self.writer.bytes(&frame);
        self.transport.write_all(&bytes).await.unwrap();
    }

    async fn open(&mut self, stream: u32, kind: &str) {
        self.send(Frame::SynStream { stream, fin: false, headers: vec![("streamType".into(), kind.into())] }).await;
    }

    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.reader.take().unwrap() {
                return Some(frame);
            }
            let mut buffer = [0; 4096];
            match self.transport.read(&mut buffer).await {
                Ok(read @ 1..) => self.reader.push(&buffer[..read]),
                _ => return None,
            }
        }
    }
}

fn spdy_client(options: StreamOptions, session: Session) -> (SpdyClient, tokio::task::JoinHandle<()>) {
    let (ours, theirs) = tokio::io::duplex(1024);
    let task = tokio::spawn(over_spdy(theirs, SPDY_PROTOCOLS[1], options, Duration::from_secs(30), session));
    (SpdyClient { transport: ours, reader: Reader::default(), writer: Writer::default() }, task)
}

#[tokio::test]
async fn spdy_carries_a_commands_streams_and_exit_code() {
    let (mut client, task) = spdy_client(ALL, echo());
    for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        client.open(stream, kind).await;
    }
    client.send(Frame::Ping(1)).await;
    client.send(Frame::Data { stream: 3, fin: false, data: b"hello".to_vec() }).await;
    client.send(Frame::Data { stream: 3, fin: true, data: Vec::new() }).await;
    let (mut got, mut replies, mut ended, mut pinged) = (std::collections::HashMap::<u32, Vec<u8>>::new(), 0, Vec::new(), false);
    while let Some(frame) = client.next().await {
        match frame {
            Frame::SynReply { .. } => replies += 1,
            Frame::Data { stream, fin, data } => {
                got.entry(stream).or_default().extend(data);
                if fin {
                    ended.push(stream);
                }
            }
            Frame::Ping(id) => pinged = id == 1,
            Frame::GoAway { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    drop(client);
    task.await.unwrap();
    ended.sort_unstable();
    assert_eq!((replies, pinged, ended.as_slice()), (4, true, &[1, 3, 5, 7][..]));
    assert_eq!((got[&5].as_slice(), got[&7].as_slice()), (&b"hello"[..], &b"done"[..]));
    let status: serde_json::Value = serde_json::from_slice(&got[&1]).unwrap();
    assert_eq!(status["reason"], "NonZeroExitCode");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_opens_too_few_streams_gets_an_error() {
    let (mut client, task) = spdy_client(ALL, echo());
    client.open(1, "error").await;
    client.open(3, "telepathy").await;
    let mut told = Vec::new();
    let mut refused = false;
    while let Some(frame) = client.next().await {
        match frame {
            Frame::Data { stream: 1, data, .. } => told.extend(data),
            Frame::RstStream { stream: 3, .. } => refused = true,
            Frame::GoAway { .. } => break,
            _ => {}
        }
    }
    drop(client);
    task.await.unwrap();
    assert!(refused);
    assert!(String::from_utf8(told).unwrap().contains("timed out waiting for client to create streams"));
}

#[tokio::test]
async fn a_session_over_spdy_is_dropped_when_its_client_leaves() {
    let (dropped, (sizes, mut told)) = (Arc::<AtomicBool>::default(), tokio::sync::mpsc::unbounded_channel());
    let options = StreamOptions { stdin: true, stdout: true, stderr: false, tty: true };
    let (mut client, task) = spdy_client(options, stuck(dropped.clone(), sizes));
    for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")] {
        client.open(stream, kind).await;
    }
    client.send(Frame::Data { stream: 7, fin: false, data: br#"{"Width":9,"Height":8}"#.to_vec() }).await;
    assert_eq!(told.recv().await, Some(TerminalSize { width: 9, height: 8 }));
    drop(client);
    task.await.unwrap();
    assert!(dropped.load(SeqCst));
}
