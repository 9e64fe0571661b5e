//! What goes over a shim's socket: one byte of kind, four bytes of length (big endian), content.

use std::io::{Error, ErrorKind, Result};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest content; a peer that announces more is cut off.
const LONGEST: usize = 1 << 20;
/// Kind and length.
const HEAD: usize = 5;
/// Bytes of a stream sent at once.
pub(super) const CHUNK: usize = 16 * 1024;

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// What a session is for; its first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Open {
    /// The container's own streams, from now on.
    Attach,
    /// A further process in the container's mounts.
    #[serde(rename_all = "camelCase")]
    Exec {
        /// Program and arguments.
        argv: Vec<String>,
        /// Whether it gets a standard input; empty otherwise.
        stdin: bool,
        /// Whether its streams are a terminal of this size.
        tty: Option<TerminalSize>,
    },
    /// Signals; answered by [`Output::Exit`] with 0.
    #[serde(rename_all = "camelCase")]
    Signal {
        /// Number of the signal.
        number: i32,
        /// All of the container's processes instead of the first one.
        everything: bool,
    },
}

/// From the client to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Bytes for the standard input.
    Stdin(Vec<u8>),
    /// The end of the standard input. Ignored by an attach unless the container has `stdinOnce`.
    CloseStdin,
    /// The terminal's new size; ignored without a terminal.
    Resize(TerminalSize),
}

/// From the container to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Bytes of the standard output, or of the terminal.
    Stdout(Vec<u8>),
    /// Bytes of the standard error.
    Stderr(Vec<u8>),
    /// The process ended: its exit code, 128 + signal when killed. The last message.
    Exit(i32),
    /// The session was refused. The last message.
    Refused(String),
}

impl Output {
    /// Bytes of the process that are in it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) => bytes.len(),
            Self::Exit(_) | Self::Refused(_) => 0,
        }
    }
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Open(Open),
    Input(Input),
    Output(Output),
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

impl Message {
    fn encode(&self) -> Result<(u8, Vec<u8>)> {
        Ok(match self {
            Self::Open(open) => (0, serde_json::to_vec(open)?),
            Self::Input(Input::Stdin(bytes)) => (1, bytes.clone()),
            Self::Input(Input::CloseStdin) => (2, Vec::new()),
            Self::Input(Input::Resize(size)) => (3, serde_json::to_vec(size)?),
            Self::Output(Output::Stdout(bytes)) => (16, bytes.clone()),
            Self::Output(Output::Stderr(bytes)) => (17, bytes.clone()),
            Self::Output(Output::Exit(code)) => (18, code.to_be_bytes().to_vec()),
            Self::Output(Output::Refused(reason)) => (19, reason.clone().into_bytes()),
        })
    }

    fn decode(kind: u8, content: Vec<u8>) -> Result<Self> {
        Ok(match kind {
            0 => Self::Open(serde_json::from_slice(&content)?),
            1 => Self::Input(Input::Stdin(content)),
            2 => Self::Input(Input::CloseStdin),
            3 => Self::Input(Input::Resize(serde_json::from_slice(&content)?)),
            16 => Self::Output(Output::Stdout(content)),
            17 => Self::Output(Output::Stderr(content)),
            18 => Self::Output(Output::Exit(i32::from_be_bytes(content.try_into().map_err(|_| invalid("no exit code"))?))),
            19 => Self::Output(Output::Refused(String::from_utf8_lossy(&content).into_owned())),
            other => return Err(invalid(format!("unknown kind of message {other}"))),
        })
    }

    /// Writes one message.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        let (kind, content) = self.encode()?;
        let length = u32::try_from(content.len()).ok().filter(|length| *length as usize <= LONGEST);
        let length = length.ok_or_else(|| invalid("message too long"))?;
        let mut bytes = Vec::with_capacity(content.len() + HEAD);
        bytes.push(kind);
        bytes.extend(length.to_be_bytes());
        bytes.extend(content);
        to.write_all(&bytes).await
    }
}

/// Reads messages one after the other.
#[derive(Debug)]
pub(super) struct MessageReader<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Reads from `from`.
    pub fn new(from: R) -> Self {
        Self { from, buffer: Vec::new() }
    }

    /// The next message; `None` at the end of the stream. May be cancelled: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Takes a complete message out of what has been read.
    fn take(&mut self) -> Result<Option<Message>> {
        let [kind, a, b, c, d, ..] = self.buffer[..] else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LONGEST {
            return Err(invalid(format!("a message of {length} bytes")));
        }
        if self.buffer.len() < length + HEAD {
            return Ok(None);
        }
        let content = self.buffer[HEAD..HEAD + length].to_vec();
        self.buffer.drain(..HEAD + length);
        Message::decode(kind, content).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_message_comes_out_as_it_went_in() {
        let messages = [
            Message::Open(Open::Exec { argv: vec!["sh".into()], stdin: true, tty: Some(TerminalSize { width: 80, height: 24 }) }),
            Message::Open(Open::Attach),
            Message::Open(Open::Signal { number: 15, everything: true }),
            Message::Input(Input::Stdin(b"\0\xff".to_vec())),
            Message::Input(Input::CloseStdin),
            Message::Input(Input::Resize(TerminalSize { width: 1, height: 2 })),
            Message::Output(Output::Stdout(Vec::new())),
            Message::Output(Output::Stderr(b"x".to_vec())),
            Message::Output(Output::Exit(-1)),
            Message::Output(Output::Refused("why".into())),
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            message.write(&mut bytes).await.unwrap();
        }
        let mut from = MessageReader::new(bytes.as_slice());
        for message in messages {
            assert_eq!(from.next().await.unwrap(), Some(message));
        }
        assert_eq!(from.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_malformed_or_oversized_frame_is_an_error() {
        for bytes in [&[1, 255, 255, 255, 255][..], &[99, 0, 0, 0, 0], &[18, 0, 0, 0, 1, 0], &[0, 0, 0, 0, 1, b'{'], &[1, 0, 0, 0, 9, 1]] {
            assert!(MessageReader::new(bytes).next().await.is_err(), "{bytes:?}");
        }
    }
}
