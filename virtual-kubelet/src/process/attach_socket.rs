//! What the agent and the keeper of a container's streams say to each other over the socket [`SOCKET`] in the
//! container's directory, so that an attached client sees output and gives input, whichever agent lives by then.
//!
//! Each message is a byte for its kind, four bytes of length (big endian) and so many bytes. The keeper sends what
//! the container prints from the moment of the connection on, and closes the connection when the container has
//! ended and all was sent. Several connections at a time are fine: all see the output, the input is merged. A
//! connection that does not read is dropped, never waited for.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Name of the socket in a container's directory.
pub const SOCKET: &str = "attach.sock";
/// Longest content of a message that is taken.
const LONGEST: usize = 1 << 20;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the container's standard input.
    Stdin(Vec<u8>),
    /// The client's input has ended: the container's is closed when its `stdinOnce` says so.
    StdinEnd,
    /// The client's terminal has this many columns and rows; only with `tty`.
    Resize(u16, u16),
    /// The container printed this on its standard output, or on its terminal.
    Stdout(Vec<u8>),
    /// The container printed this on its standard error.
    Stderr(Vec<u8>),
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let (kind, content) = match self {
            Self::Stdin(data) => (0, data.clone()),
            Self::Stdout(data) => (1, data.clone()),
            Self::Stderr(data) => (2, data.clone()),
            Self::StdinEnd => (3, Vec::new()),
            Self::Resize(width, height) => (4, [width.to_be_bytes(), height.to_be_bytes()].concat()),
        };
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        [&[kind], &length.to_be_bytes()[..], &content].concat()
    }

    fn of(kind: u8, content: Vec<u8>) -> io::Result<Self> {
        Ok(match (kind, content.as_slice()) {
            (0, _) => Self::Stdin(content),
            (1, _) => Self::Stdout(content),
            (2, _) => Self::Stderr(content),
            (3, []) => Self::StdinEnd,
            (4, &[w1, w2, h1, h2]) => Self::Resize(u16::from_be_bytes([w1, w2]), u16::from_be_bytes([h1, h2])),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("no message of kind {kind}"))),
        })
    }

    /// Sends it.
    pub async fn send(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.bytes()).await
    }

    /// The next message, or nothing at the end.
    pub async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let kind = match from.read_u8().await {
            Ok(kind) => kind,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = usize::try_from(from.read_u32().await?).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
        }
        let mut content = vec![0; length];
        from.read_exact(&mut content).await?;
        Self::of(kind, content).map(Some)
    }
}

/// The kernel takes socket names of 107 bytes only, and directories of containers are longer.
fn short(dir: &Path) -> io::Result<(std::fs::File, PathBuf)> {
    let held = std::fs::File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", held.as_raw_fd()));
    Ok((held, path))
}

/// Waits for connections on the socket in `dir`, in place of one that an earlier keeper left.
pub fn listen(dir: &Path) -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(dir.join(SOCKET));
    let (_held, path) = short(dir)?;
    UnixListener::bind(path)
}

/// Connects to the socket in `dir`.
pub async fn connect(dir: &Path) -> io::Result<UnixStream> {
    let (_held, path) = short(dir)?;
    UnixStream::connect(path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_arrive_as_they_were_sent_through_a_socket_in_a_directory_of_any_length() {
        let dir = std::env::temp_dir().join(format!("attach-{}-{}", std::process::id(), "long-".repeat(30)));
        std::fs::create_dir_all(&dir).unwrap();
        let listener = listen(&dir).unwrap();
        let mut client = connect(&dir).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let all = [
            Message::Stdin(b"a".into()),
            Message::StdinEnd,
            Message::Resize(80, 24),
            Message::Stdout(vec![]),
            Message::Stderr(b"e".into()),
        ];
        for message in &all {
            message.send(&mut client).await.unwrap();
        }
        drop(client);
        for message in &all {
            assert_eq!(Message::receive(&mut server).await.unwrap().as_ref(), Some(message));
        }
        assert_eq!(Message::receive(&mut server).await.unwrap(), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn bytes_that_are_no_message_are_an_error_and_not_waited_for() {
        for bytes in [&[9, 0, 0, 0, 0][..], &[0, 255, 255, 255, 255], &[4, 0, 0, 0, 1, 7], &[0, 0]] {
            assert!(Message::receive(&mut &*bytes).await.is_err(), "{bytes:?}");
        }
    }
}
