//! The listening socket goes from process to process, so that no check is lost when a health checker is replaced.
//!
//! Whoever answers on the port also listens on the *door*, an abstract Unix socket of the node's network namespace. A
//! newcomer asks there, and gets both listening sockets. Connections that wait to be accepted wait in the kernel's socket,
//! which is the same for old and new, so none is refused or reset at any point.
//!
//! Every process in the host's network can ask there, and listen there. So each side proves first that it is a health
//! checker of the same resource on the same node ([`crate::peer_proof`]).
//!
//! The connection over which a newcomer asked stays open for as long as it lives: the *line*. Who has given the sockets
//! away stops accepting and waits at its end of the line; it keeps its own copies, and goes on at once when the line
//! breaks, however the newcomer ended. A newcomer that gives the sockets to a third passes on the lines to its
//! predecessors as well, so that all of them hear the end of the one who holds the port now.

use crate::{
    listener::{BindError, bind_exclusively},
    peer_proof::{self, Exchange, PeerKey, Side},
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut, Read as _},
    mem::MaybeUninit,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::PathBuf,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpListener, UnixListener, UnixSocket, UnixStream},
    time::{self, Instant},
};
use tracing::{info, warn};

/// Changes only when an older process could not understand a newer one.
const PROTOCOL: u32 = 2;
/// Of releases in which nobody proved anything.
const UNPROVED: u32 = 1;
/// For the whole exchange. Both sides answer without waiting for anything.
const EXCHANGE: Duration = Duration::from_secs(2);
/// Between two attempts to get a port that somebody else has.
const RETRY: Duration = Duration::from_millis(200);
/// Between two attempts to listen on the door, which a stranger may occupy.
const DOOR_RETRY: Duration = Duration::from_secs(5);
/// Names have at most 253 bytes each.
const LONGEST_MESSAGE: usize = 2048;
/// Predecessors that are told; in practice there is one.
const MOST_LINES: usize = 8;
/// The port, the door and the lines.
const MOST_SOCKETS: usize = MOST_LINES + 2;
const TAKEN: &[u8] = b"taken\n";

/// Who answers on a port, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    protocol: u32,
    /// Namespace of the `IngressDaemonSet`.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// First 8 characters of its UID.
    pub uid8: String,
    /// Address that was asked for, not the one that was got: `::` may mean IPv4 alone.
    pub address: IpAddr,
}

impl Party {
    /// A process of this release.
    pub fn new(namespace: &str, name: &str, uid8: &str, address: IpAddr) -> Self {
        Self { protocol: PROTOCOL, namespace: namespace.into(), name: name.into(), uid8: uid8.into(), address }
    }

    /// Why the two cannot follow one another on the port.
    fn refuses(&self, other: &Self) -> Option<Obstacle> {
        if self.uid8 != other.uid8 || self.namespace != other.namespace || self.name != other.name {
            Some(Obstacle::OtherResource(other.to_string()))
        } else if self.protocol != other.protocol {
            Some(Obstacle::OtherProtocol(other.protocol))
        } else if self.address != other.address {
            Some(Obstacle::OtherAddress(other.address))
        } else {
            None
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid8)
    }
}

/// This process, as a health checker of its resource.
#[derive(Clone, Debug)]
pub struct Member {
    /// What it tells others.
    pub party: Party,
    /// The node's name.
    pub node: String,
    /// File with the key that the resource's health checkers have, and nobody else.
    pub key: PathBuf,
    /// Take the port also from a health checker of a release in which nobody proved anything.
    pub takes_unproved: bool,
}

impl Member {
    fn exchange<'a>(&'a self, newcomer: &'a [u8], challenge: &'a [u8], port: u16) -> Exchange<'a> {
        Exchange { newcomer, challenge, node: &self.node, port }
    }
}

/// What a newcomer hears: a refusal, or a challenge and then a gift. The sockets come with it when it says `gives`.
#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    holder: Party,
    gives: bool,
    /// The newcomer is to prove that it belongs here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    challenge: Vec<u8>,
    /// That the holder belongs here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    proof: Vec<u8>,
}

/// Somebody has the port and does not give it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The health checker of another resource.
    #[error(
        "the health checker of IngressDaemonSet {0} has the port: choose another healthCheckNodePort, or other nodes, for one of the two"
    )]
    OtherResource(String),
    /// A health checker of a release that hands over differently.
    #[error("a health checker has the port and hands over by protocol {0}, this one by protocol {PROTOCOL}: delete the pod of that one")]
    OtherProtocol(u32),
    /// A health checker of the same resource at another address.
    #[error("a health checker listens on address {0} and must end before this one can use another address")]
    OtherAddress(IpAddr),
    /// The peer's user is neither this process's nor root.
    #[error("the process at the hand-over socket runs as user {0}, whom this process does not trust: use one user for both")]
    OtherUser(u32),
    /// One of the two has no key, or another one.
    #[error(
        "the process at the hand-over socket and this process did not prove to each other that they are health checkers of the \
         same resource. Find the other process with `ss -lxp` on the node: if it is a health checker, delete its pod, which has \
         another key; else stop the process"
    )]
    Unproved,
    /// Without its key this process can neither prove anything nor believe anybody.
    #[error("cannot read the key of this resource's health checkers: {0}")]
    NoKey(String),
    /// Something that is no health checker, or one without hand-over.
    #[error(
        "another process uses the port: choose another healthCheckNodePort, or stop that process; \
         `ss -ltnp sport = :{0}` on the node names it"
    )]
    Stranger(u16),
    /// The holder does not answer, or not in words that make sense.
    #[error("the process that has the port does not hand it over: {0}")]
    NoAnswer(String),
}

/// The port was not got.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Somebody else has it, and kept it for as long as patience lasted.
    #[error("port {port} is taken: {obstacle}")]
    Conflict {
        /// The port.
        port: u16,
        /// Who has it.
        obstacle: Obstacle,
    },
    /// Nobody has it, and still it cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// The port, and what it takes to give it away.
#[derive(Debug)]
pub struct Held {
    /// Accepts checks.
    pub port: TcpListener,
    /// Where newcomers ask.
    pub door: Door,
}

impl Held {
    /// It was handed over by another process.
    pub fn from_another(&self) -> bool {
        !self.door.lines.is_empty()
    }
}

/// Where newcomers ask for the port.
#[derive(Debug)]
pub struct Door {
    me: Member,
    port: u16,
    listener: Option<UnixListener>,
    /// To predecessors: this process's end of each closes when it ends.
    lines: Vec<StdUnixStream>,
    /// Why somebody was refused last. It asks again and again, and is named once.
    refused: String,
}

/// To the process that has the port now.
#[derive(Debug)]
pub struct HolderLink(UnixStream);

impl HolderLink {
    /// Waits until the process at the other end, and every one that it gave the port to, has ended.
    pub async fn broken(&mut self) {
        let mut ignored = [0; 16];
        while self.0.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
    }
}

/// Gets the port: from the process that has it, or by taking it where nobody does. What stands in the way may go away
/// within `patience`.
pub async fn take(me: &Member, port: u16, patience: Duration) -> Result<Held, TakeError> {
    let deadline = Instant::now() + patience;
    let mut known = None;
    loop {
        let obstacle = match attempt(me, port).await? {
            Ok(held) => return Ok(held),
            Err(obstacle) => obstacle,
        };
        if Instant::now() >= deadline {
            return Err(TakeError::Conflict { port, obstacle });
        }
        if known.as_ref() != Some(&obstacle) {
            warn!(port, %obstacle, ?patience, "the port is taken; retrying");
            known = Some(obstacle);
        }
        time::sleep(RETRY).await;
    }
}

async fn attempt(me: &Member, port: u16) -> Result<Result<Held, Obstacle>, BindError> {
    let asked = match ask(me, PROTOCOL, port).await {
        Err(Obstacle::OtherProtocol(UNPROVED)) if me.takes_unproved => ask(me, UNPROVED, port).await,
        asked => asked,
    };
    let asked = match asked {
        Ok(Some(held)) => return Ok(Ok(held)),
        Ok(None) => None,
        Err(obstacle) => Some(obstacle),
    };
    // Whoever listens at the door of a port without having it shall not keep it from being served.
    match bind_exclusively(SocketAddr::new(me.party.address, port)) {
        Ok(listener) => {
            Ok(Ok(Held { port: listener, door: Door { me: me.clone(), port, listener: None, lines: Vec::new(), refused: String::new() } }))
        }
        Err(BindError::InUse { .. }) => Ok(Err(asked.unwrap_or(Obstacle::Stranger(port)))),
        Err(error) => Err(error),
    }
}

fn door_name(port: u16) -> String {
    format!("\0ingress-daemonset-health-checker/{port}")
}

/// Asks whoever listens on the door; `None` where nobody does.
async fn ask(me: &Member, protocol: u32, port: u16) -> Result<Option<Held>, Obstacle> {
    let stream = match connect(&door_name(port)).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(no_answer(error)),
    };
    match time::timeout(EXCHANGE, ask_holder(stream, me, protocol, port)).await {
        Ok(held) => held.map(Some),
        Err(_) => Err(Obstacle::NoAnswer(format!("no answer within {EXCHANGE:?}"))),
    }
}

/// This end of the connection gets a name that nobody could take before.
async fn connect(door: &str) -> io::Result<UnixStream> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(format!("{door}/{:032x}", u128::from_ne_bytes(peer_proof::random()?)))?;
    socket.connect(door).await
}

async fn ask_holder(mut stream: UnixStream, me: &Member, protocol: u32, port: u16) -> Result<Held, Obstacle> {
    let user = peer(&stream).map_err(no_answer)?;
    if !is_trusted(user) {
        return Err(Obstacle::OtherUser(user));
    }
    stream.write_all(&message(&Party { protocol, ..me.party.clone() })).await.map_err(no_answer)?;
    let (reply, mut sockets) = receive(&stream).await.map_err(no_answer)?;
    if !reply.gives && reply.challenge.is_empty() {
        return Err(me.party.refuses(&reply.holder).unwrap_or_else(|| Obstacle::NoAnswer(format!("{} refuses", reply.holder))));
    }
    if protocol == PROTOCOL {
        sockets = prove(&mut stream, me, &reply.challenge, port).await?;
    }
    let held = unpack(sockets, me, port).map_err(no_answer)?;
    stream.write_all(TAKEN).await.map_err(no_answer)?;
    let Held { port, mut door } = held;
    door.lines.push(stream.into_std().map_err(no_answer)?);
    Ok(Held { port, door })
}

/// Proves that this process may have the sockets, and gets them from a holder that proves that it may give them.
async fn prove(stream: &mut UnixStream, me: &Member, challenge: &[u8], port: u16) -> Result<Vec<OwnedFd>, Obstacle> {
    let key = PeerKey::read(&me.key).map_err(|error| Obstacle::NoKey(error.to_string()))?;
    let name = name_of(stream.local_addr()).map_err(no_answer)?;
    let exchange = me.exchange(&name, challenge, port);
    stream.write_all(&message(&key.prove(Side::Newcomer, &exchange))).await.map_err(no_answer)?;
    let (reply, sockets) = receive(stream).await.map_err(no_answer)?;
    let is_proved = reply.gives && key.is_proved(Side::Holder, &exchange, &reply.proof);
    if is_proved { Ok(sockets) } else { Err(Obstacle::Unproved) }
}

/// Empty for a socket without a name.
fn name_of(address: io::Result<tokio::net::unix::SocketAddr>) -> io::Result<Vec<u8>> {
    Ok(address?.as_abstract_name().unwrap_or_default().to_vec())
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err wants it")]
fn no_answer(error: io::Error) -> Obstacle {
    Obstacle::NoAnswer(error.to_string())
}

fn peer(stream: &UnixStream) -> io::Result<u32> {
    stream.peer_cred().map(|credentials| credentials.uid())
}

/// A first look, so that other users take nobody's time. Any container can be root or have this user: it proves nothing.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

fn message(content: &impl Serialize) -> Vec<u8> {
    let mut message = serde_json::to_vec(content).unwrap_or_default();
    message.push(b'\n');
    message
}

/// The reply in one piece, and the sockets with it.
async fn receive(stream: &UnixStream) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let mut bytes = [0; LONGEST_MESSAGE];
    let (read, sockets) = stream
        .async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let sockets: Vec<OwnedFd> = control
                .drain()
                .filter_map(|message| if let RecvAncillaryMessage::ScmRights(sockets) = message { Some(sockets) } else { None })
                .flatten()
                .collect();
            Ok((received.bytes, sockets))
        })
        .await?;
    let reply = bytes.get(..read).and_then(|line| line.strip_suffix(b"\n")).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((serde_json::from_slice(reply)?, sockets))
}

/// Makes sure that the sockets are what they are said to be.
fn unpack(sockets: Vec<OwnedFd>, me: &Member, port: u16) -> io::Result<Held> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("it sent {what}"));
    let mut sockets = sockets.into_iter();
    let (Some(listener), Some(door)) = (sockets.next(), sockets.next()) else { return Err(wrong("no sockets")) };
    if !sockopt::socket_acceptconn(&listener)? || !sockopt::socket_acceptconn(&door)? {
        return Err(wrong("sockets that do not listen"));
    }
    let listener = std::net::TcpListener::from(listener);
    if listener.local_addr()?.port() != port {
        return Err(wrong("the socket of another port"));
    }
    listener.set_nonblocking(true)?;
    let door = std::os::unix::net::UnixListener::from(door);
    door.set_nonblocking(true)?;
    let lines = sockets.map(StdUnixStream::from).collect();
    let door = Door { me: me.clone(), port, listener: Some(UnixListener::from_std(door)?), lines, refused: String::new() };
    Ok(Held { port: TcpListener::from_std(listener)?, door })
}

impl Door {
    /// Waits until a newcomer has taken the port. From then on it accepts, and this process shall not.
    pub async fn give(&mut self, port: &TcpListener) -> HolderLink {
        loop {
            let stream = self.knock().await;
            match time::timeout(EXCHANGE, self.answer(stream, port)).await {
                Ok(Ok(Some(line))) => return line,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => self.note(&error.to_string()),
                Err(_) => self.note(&format!("the exchange took longer than {EXCHANGE:?}")),
            }
        }
    }

    /// Somebody asked and did not get the port.
    fn note(&mut self, why: &str) {
        if self.refused != why {
            warn!(port = self.port, why, "another process asked for the port and did not get it");
            why.clone_into(&mut self.refused);
        }
    }

    async fn knock(&mut self) -> UnixStream {
        loop {
            if self.listener.is_none() {
                match UnixListener::bind(door_name(self.port)) {
                    Ok(listener) => self.listener = Some(listener),
                    Err(error) => {
                        warn!(port = self.port, %error, "another process listens on the hand-over socket; no successor can get the port");
                        time::sleep(DOOR_RETRY).await;
                        continue;
                    }
                }
            }
            let Some(listener) = &self.listener else { continue };
            match listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(_) => time::sleep(RETRY).await,
            }
        }
    }

    /// Answers a newcomer; `None` when it is told to keep off.
    async fn answer(&mut self, mut stream: UnixStream, port: &TcpListener) -> io::Result<Option<HolderLink>> {
        let user = peer(&stream)?;
        if !is_trusted(user) {
            self.note(&format!("the other process runs as user {user}, whom this process does not trust"));
            return Ok(None);
        }
        // A socket gets a name once. It has it before the challenge is made, so that whoever answers the challenge for this
        // name is at the other end.
        let name = name_of(stream.peer_addr())?;
        let asker: Party = serde_json::from_slice(&read_line(&mut stream).await?)?;
        let reply = |gives, challenge, proof| message(&Reply { holder: self.me.party.clone(), gives, challenge, proof });
        if name.is_empty() || self.me.party.refuses(&asker).is_some() {
            stream.write_all(&reply(false, Vec::new(), Vec::new())).await?;
            self.note(&format!("{asker} with protocol {} at {} cannot take over", asker.protocol, asker.address));
            return Ok(None);
        }
        let key = PeerKey::read(&self.me.key)?;
        let challenge = peer_proof::random()?;
        let exchange = self.me.exchange(&name, &challenge, self.port);
        stream.write_all(&reply(false, challenge.to_vec(), Vec::new())).await?;
        let proof: Vec<u8> = serde_json::from_slice(&read_line(&mut stream).await?)?;
        if !key.is_proved(Side::Newcomer, &exchange, &proof) {
            stream.write_all(&reply(false, Vec::new(), Vec::new())).await?;
            self.note("the other process does not have the key of this resource's health checkers");
            return Ok(None);
        }
        let reply = reply(true, Vec::new(), key.prove(Side::Holder, &exchange));
        self.forget_broken_lines();
        let Some(door) = &self.listener else { return Ok(None) };
        let mut sockets = vec![port.as_fd(), door.as_fd()];
        sockets.extend(self.lines.iter().map(AsFd::as_fd));
        send(&stream, &reply, &sockets).await?;
        let taken = read_line(&mut stream).await?;
        if taken != TAKEN {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.lines.clear();
        info!(port = self.port, "handed the port over");
        Ok(Some(HolderLink(stream)))
    }

    fn forget_broken_lines(&mut self) {
        let is_alive = |line: &StdUnixStream| {
            let read = line.set_nonblocking(true).and_then(|()| { line }.read(&mut [0; 16]));
            matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        };
        self.lines.retain(is_alive);
        // The oldest go on accepting then, which does no harm.
        let surplus = self.lines.len().saturating_sub(MOST_LINES);
        self.lines.drain(..surplus);
    }
}

async fn send(stream: &UnixStream, message: &[u8], sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(sockets)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Ok(sendmsg(stream, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?)
        })
        .await?;
    // So few bytes fit into the buffer of a socket that nothing was written to.
    if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Up to and with the end of the line.
async fn read_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if line.len() >= LONGEST_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message has no end"));
        }
        line.push(stream.read_u8().await?);
    }
    Ok(line)
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
