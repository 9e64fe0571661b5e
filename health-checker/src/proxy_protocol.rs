//! The header of the PROXY protocol, which a load balancer with that switched on may send before its health checks as well: it is read and
//! dropped. Who asks is known from the connection.
//!
//! Source: `doc/proxy-protocol.txt` of `HAProxy`, version 1 and 2.

use std::{
    io::{Error, ErrorKind, Result},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What version 2 begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// After the signature: version and command, family, length.
const FIXED: usize = 16;
/// The longest header of version 2 that is taken. Addresses are 216 bytes at most; the rest is for the extensions of clouds, which are some
/// tens of bytes.
const LONGEST_V2: usize = 1024;
/// What version 1 begins with, and the longest such line, with its end.
const V1: &[u8; 6] = b"PROXY ";
const LONGEST_V1: usize = 107;

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
enum First {
    /// A header of so many bytes.
    Header(usize),
    /// No header.
    Request,
    /// It depends on what follows.
    Unknown,
    /// The beginning of a header that is none, or too long.
    Bad(&'static str),
}

fn look(bytes: &[u8]) -> First {
    let begins = |with: &[u8]| bytes.len() >= with.len() && bytes.starts_with(with);
    let may_begin = |with: &[u8]| with.starts_with(&bytes[..bytes.len().min(with.len())]);
    if begins(SIGNATURE) {
        if bytes.len() < FIXED {
            return First::Unknown;
        }
        let whole = FIXED + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        return match (bytes[12] >> 4, whole) {
            (2, ..=LONGEST_V2) if bytes.len() >= whole => First::Header(whole),
            (2, ..=LONGEST_V2) => First::Unknown,
            (2, _) => First::Bad("a PROXY protocol header of more than 1,024 bytes"),
            _ => First::Bad("a PROXY protocol header of a version other than 2"),
        };
    }
    if begins(V1) {
        let line = &bytes[..bytes.len().min(LONGEST_V1)];
        return match line.windows(2).position(|two| two == b"\r\n") {
            Some(at) => First::Header(at + 2),
            None if bytes.len() < LONGEST_V1 => First::Unknown,
            None => First::Bad("a PROXY protocol line of more than 107 bytes"),
        };
    }
    if may_begin(SIGNATURE) || may_begin(V1) { First::Unknown } else { First::Request }
}

/// A stream without the header that it may begin with.
#[derive(Debug)]
pub struct Unwrapped<S> {
    stream: S,
    /// What was read and not passed on.
    held: Vec<u8>,
    /// What comes next is to be passed on as it is.
    known: bool,
}

impl<S> Unwrapped<S> {
    /// The stream of a connection that has just been accepted.
    pub fn new(stream: S) -> Self {
        Self { stream, held: Vec::new(), known: false }
    }

    /// Gives what is held, as far as there is room.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let given = self.held.len().min(buffer.remaining());
        buffer.put_slice(&self.held[..given]);
        self.held.drain(..given);
        if self.held.is_empty() {
            self.held = Vec::new();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unwrapped<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        while !this.known {
            let mut bytes = [0; LONGEST_V2];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            this.held.extend_from_slice(read.filled());
            let ended = read.filled().is_empty();
            match look(&this.held) {
                First::Header(length) => drop(this.held.drain(..length)),
                First::Bad(why) => return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, why))),
                First::Unknown if !ended => continue,
                // What breaks off is no header.
                First::Request | First::Unknown => {}
            }
            this.known = true;
            if ended {
                this.give(buffer);
                return Poll::Ready(Ok(()));
            }
        }
        if this.held.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        this.give(buffer);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unwrapped<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[std::io::IoSlice<'_>]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    fn v2(command: u8, length: usize) -> Vec<u8> {
        let length = u16::try_from(length).expect("a length");
        [SIGNATURE, &[command, 0x11][..], &length.to_be_bytes(), &vec![0; length.into()]].concat()
    }

    fn headers() -> Vec<Vec<u8>> {
        let v1 = ["PROXY UNKNOWN\r\n", "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n"].map(|line| line.as_bytes().to_vec());
        let v2 = [v2(0x20, 0), v2(0x21, 12), v2(0x21, 36 + 60), v2(0x20, LONGEST_V2 - FIXED)];
        v1.into_iter().chain(v2).chain([Vec::new()]).collect()
    }

    /// What comes through when the bytes arrive in pieces of this size.
    async fn through(bytes: &[u8], piece: usize) -> Result<Vec<u8>> {
        let (mut client, server) = duplex(piece);
        let sent = bytes.to_vec();
        let sends = tokio::spawn(async move {
            // The other side may have had enough of it.
            let _ = client.write_all(&sent).await;
        });
        let mut received = Vec::new();
        let end = Unwrapped::new(server).read_to_end(&mut received).await;
        sends.await.expect("it sends");
        end.map(|_| received)
    }

    #[tokio::test]
    async fn only_the_header_is_dropped_however_bytes_are_split() {
        for header in headers() {
            for piece in [1, 2, 11, 16, 4096] {
                let received = through(&[&header, REQUEST].concat(), piece).await.expect("it is read");
                assert_eq!(received, REQUEST, "{header:?} in pieces of {piece}");
            }
        }
    }

    #[tokio::test]
    async fn an_invalid_header_ends_the_connection_but_lookalikes_pass() {
        for bytes in [&b"PROPFIND / HTTP/1.1\r\n\r\n"[..], b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", b"PRO", b"\r\n", b"", REQUEST] {
            assert_eq!(through(bytes, 3).await.expect("it is read"), bytes);
        }
        let long_line = [&b"PROXY TCP6 "[..], &[b'1'; LONGEST_V1]].concat();
        for bytes in [v2(0x11, 12), v2(0x21, LONGEST_V2 - FIXED + 1), long_line] {
            assert!(through(&bytes, 64).await.is_err(), "{bytes:?}");
        }
    }
}
