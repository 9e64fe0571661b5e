//! Connections to the ports of a pod: pairs of SPDY streams, SPDY inside a WebSocket, or pairs of a WebSocket's channels.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, copy_bidirectional, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::channels::{Input, Protocol};
use super::handlers::Dialer;
use super::session::join_spdy;
use super::spdy::{self, Headers, Incoming, header};

/// Name of the protocol over SPDY.
pub const SPDY_PROTOCOL: &str = "portforward.k8s.io";
/// Name of the protocol that carries SPDY in the messages of a WebSocket.
pub const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// How much of a tunnel is held for a slow reader.
const HELD: usize = 256 << 10;
/// How often a silent client is asked whether it is there.
const PING: Duration = Duration::from_secs(20);
/// How long a client may take to close after everything was sent.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Data,
    Error,
}

/// What a stream is for; the error says what is wrong with its headers.
fn purpose(headers: &Headers) -> Result<(Part, u16), String> {
    let port = header(headers, "port").filter(|text| !text.is_empty()).ok_or("\"port\" header is required")?;
    let port: u16 = port.parse().map_err(|_| format!("unable to parse {port:?} as a port"))?;
    if port == 0 {
        return Err("port \"0\" must be > 0".into());
    }
    match header(headers, "streamtype").unwrap_or_default() {
        "" => Err("\"streamType\" header is required".into()),
        "data" => Ok((Part::Data, port)),
        "error" => Ok((Part::Error, port)),
        other => Err(format!("invalid stream type {other:?}")),
    }
}

/// Which connection a stream belongs to. Clients that give no id open the error stream first and the data stream next.
fn request_id(part: Part, headers: &Headers, stream: u32) -> String {
    match (header(headers, "requestid").filter(|id| !id.is_empty()), part) {
        (Some(id), _) => id.to_owned(),
        (None, Part::Error) => stream.to_string(),
        (None, Part::Data) => stream.saturating_sub(2).to_string(),
    }
}

#[derive(Default)]
struct Pair {
    data: Option<DuplexStream>,
    error: Option<DuplexStream>,
}

/// What the work on connections tells.
enum Event {
    /// A pair should be whole by now.
    Due(String),
    /// A connection has ended.
    Ended,
}

/// Forwards the connections that the client opens as pairs of SPDY streams, each within `patience`. `pod` is its name in messages.
pub async fn over_spdy<T>(transport: T, dial: Dialer, pod: String, patience: Duration)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (incoming, connection) = spdy::accept(transport, |headers| purpose(headers).is_ok());
    join_spdy(forward_pairs(incoming, dial, pod, patience), connection).await;
}

async fn forward_pairs(mut incoming: mpsc::Receiver<Incoming>, dial: Dialer, pod: String, patience: Duration) {
    let mut pairs: HashMap<String, Pair> = HashMap::new();
    let mut work: FuturesUnordered<futures::future::BoxFuture<'_, Event>> = FuturesUnordered::new();
    loop {
        let new = tokio::select! {
            new = incoming.recv() => match new {
                Some(new) => new,
                None => return,
            },
            Some(event) = work.next() => {
                if let Event::Due(id) = event
                    && let Some(mut error) = pairs.remove(&id).and_then(|pair| pair.error)
                {
                    let text = format!("(request={id}) timed out waiting for streams");
                    work.push(Box::pin(async move {
                        let _ = error.write_all(text.as_bytes()).await;
                        Event::Ended
                    }));
                }
                continue;
            }
        };
        let Ok((kind, port)) = purpose(&new.headers) else { continue };
        let id = request_id(kind, &new.headers, new.id);
        let is_new = !pairs.contains_key(&id);
        let pair = pairs.entry(id.clone()).or_default();
        match kind {
            Part::Data => pair.data = Some(new.stream),
            Part::Error => pair.error = Some(new.stream),
        }
        match (pair.data.take(), pair.error.take()) {
            (Some(data), Some(error)) => {
                pairs.remove(&id);
                work.push(Box::pin(forward(&dial, &pod, port, data, error)));
            }
            (data, error) => {
                *pair = Pair { data, error };
                if is_new {
                    work.push(Box::pin(async move {
                        sleep(patience).await;
                        Event::Due(id)
                    }));
                }
            }
        }
    }
}

async fn forward(dial: &Dialer, pod: &str, port: u16, mut data: DuplexStream, mut error: DuplexStream) -> Event {
    match dial(port).await {
        // A connection that breaks off is the client's to notice.
        Ok(mut connection) => drop(copy_bidirectional(&mut data, &mut connection).await),
        Err(reason) => {
            tracing::info!(pod, port, %reason, "cannot forward a port");
            let _ = error.write_all(format!("error forwarding port {port} to pod {pod}: {reason}").as_bytes()).await;
        }
    }
    Event::Ended
}

/// The bytes in the messages of a WebSocket as a stream, and the future that carries them.
pub fn tunnel<S>(socket: WebSocketStream<S>) -> (DuplexStream, impl Future<Output = ()> + Send)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (ours, theirs) = tokio::io::duplex(HELD);
    let carry = async move {
        let (mut to, mut from) = socket.split();
        let (mut read, mut write) = split(ours);
        let incoming = async {
            while let Some(Ok(message)) = from.next().await {
                match message {
                    Message::Binary(bytes) if write.write_all(&bytes).await.is_err() => return,
                    Message::Close(_) => break,
                    _ => {}
                }
            }
            let _ = write.shutdown().await;
        };
        let outgoing = async {
            let mut buffer = vec![0; 32 << 10];
            let mut pings = interval_at(Instant::now() + PING, PING);
            loop {
                let message = tokio::select! {
                    read = read.read(&mut buffer) => match buffer.get(..read.unwrap_or_default()) {
                        Some(data @ [_, ..]) => Message::binary(data.to_vec()),
                        _ => break,
                    },
                    _ = pings.tick() => Message::Ping(Vec::new().into()),
                };
                if to.send(message).await.is_err() {
                    return;
                }
            }
            let _ = to.close().await;
        };
        let mut incoming = pin!(incoming);
        tokio::select! {
            () = &mut incoming => {}
            () = outgoing => drop(timeout(LINGER, incoming).await),
        }
    };
    (theirs, carry)
}

/// Forwards one connection to each of `ports`: two channels each, for data and for an error, both of which begin with the port.
pub async fn over_channels<S>(socket: WebSocketStream<S>, protocol: Protocol, ports: Vec<u16>, dial: Dialer, pod: String)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (mut to, mut from) = socket.split();
    let (out, mut outgoing) = mpsc::channel::<(u8, Vec<u8>)>(16);
    let (mut inputs, mut connections) = (Vec::new(), FuturesUnordered::new());
    // Channels are bytes.
    for (index, port) in (0..128_u8).zip(ports) {
        let (ours, theirs) = tokio::io::duplex(HELD);
        inputs.push(Some(ours));
        connections.push(forward_channels(&dial, &pod, port, index * 2, theirs, out.clone()));
    }
    drop(out);
    let incoming = async {
        while let Some(Ok(message)) = from.next().await {
            let bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                Message::Close(_) => return,
                _ => continue,
            };
            let Input::Data(channel, data) = protocol.read(&bytes) else { continue };
            if channel % 2 == 0
                && let Some(input) = inputs.get_mut(usize::from(channel / 2))
                && let Some(pipe) = input
                && pipe.write_all(&data).await.is_err()
            {
                *input = None;
            }
        }
    };
    let sending = async {
        let mut pings = interval_at(Instant::now() + PING, PING);
        loop {
            let message = tokio::select! {
                next = outgoing.recv() => {
                    let Some((channel, data)) = next else { break };
                    let bytes = protocol.write(channel, &data);
                    if protocol.base64 { Message::text(String::from_utf8_lossy(&bytes).into_owned()) } else { Message::binary(bytes) }
                }
                _ = pings.tick() => Message::Ping(Vec::new().into()),
            };
            if to.send(message).await.is_err() {
                return;
            }
        }
        let _ = to.close().await;
    };
    let forwarding = async {
        while connections.next().await.is_some() {}
        std::future::pending::<()>().await;
    };
    let mut incoming = pin!(incoming);
    tokio::select! {
        () = &mut incoming => {}
        () = forwarding => {}
        () = sending => drop(timeout(LINGER, incoming).await),
    }
}

async fn forward_channels(dial: &Dialer, pod: &str, port: u16, channel: u8, input: DuplexStream, out: mpsc::Sender<(u8, Vec<u8>)>) {
    let error = channel + 1;
    for channel in [channel, error] {
        let _ = out.send((channel, port.to_le_bytes().to_vec())).await;
    }
    let connection = match dial(port).await {
        Ok(connection) => connection,
        Err(reason) => {
            let text = format!("error forwarding port {port} to pod {pod}: {reason}");
            let _ = out.send((error, text.into_bytes())).await;
            return;
        }
    };
    let (mut from_pod, mut to_pod) = split(connection);
    let (mut input, _unused) = split(input);
    let upwards = async {
        let _ = tokio::io::copy(&mut input, &mut to_pod).await;
        let _ = to_pod.shutdown().await;
        std::future::pending::<()>().await;
    };
    let downwards = async {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(read @ 1..) = from_pod.read(&mut buffer).await {
            if out.send((channel, buffer.get(..read).unwrap_or_default().to_vec())).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = upwards => {}
        () = downwards => {}
    }
}

#[cfg(test)]
#[path = "port_forward_tests.rs"]
mod tests;
