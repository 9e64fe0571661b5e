//! The client's side of a shim's socket: the seam for attach, exec and logs.
//!
//! [`attach`](crate::process::ProcessProvider::attach) and [`exec`](crate::process::ProcessProvider::exec) of the provider return a
//! [`Session`]: write [`Input`], read [`Output`] until [`Output::Exit`]. Dropping both halves ends an exec's processes and detaches an
//! attach. [`log_files`](crate::process::ProcessProvider::log_files) gives the files of the present or the previous run. Everything goes
//! through the shim, so it works for adopted containers too, and a dead agent leaves no exec behind.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;

use super::frame::{CHUNK, Input, Message, MessageReader, Open, Output};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The container does not run, so it has no streams.
    #[error("the container is not running")]
    NotRunning,
    /// The shim refused, for example because the program could not be started.
    #[error("{0}")]
    Refused(String),
    /// The connection to the shim broke: the container ended, or its shim was killed.
    #[error("the connection to the container broke: {0}")]
    Broken(#[from] std::io::Error),
}

/// An open connection to the streams of a process in a container. It lasts as long as one half does.
#[derive(Debug)]
pub struct Session {
    /// Output of the process.
    pub reader: SessionReader,
    /// Input of the process.
    pub writer: SessionWriter,
}

/// The output of a session.
#[derive(Debug)]
pub struct SessionReader {
    messages: MessageReader<OwnedReadHalf>,
    // Closing the other direction would end the session.
    _open: Arc<Mutex<OwnedWriteHalf>>,
}

/// The input of a session. Clones write to the same.
#[derive(Clone, Debug)]
pub struct SessionWriter(Arc<Mutex<OwnedWriteHalf>>);

impl Session {
    /// Opens a session with the shim of the container in `directory`.
    pub async fn open(directory: &Path, open: Open) -> Result<Self, SessionError> {
        // By way of the open directory: the path itself may be longer than a socket's address can be.
        let opened = File::open(directory).map_err(|_| SessionError::NotRunning)?;
        let path = format!("/proc/self/fd/{}/{}", opened.as_raw_fd(), super::files::SOCKET);
        let stream = UnixStream::connect(path).await.map_err(|_| SessionError::NotRunning)?;
        let (reader, mut writer) = stream.into_split();
        Message::Open(open).write(&mut writer).await?;
        let writer = Arc::new(Mutex::new(writer));
        Ok(Self { reader: SessionReader { messages: MessageReader::new(reader), _open: writer.clone() }, writer: SessionWriter(writer) })
    }

    /// Reads to the end; at most `limit` bytes of the output are kept.
    pub async fn collect(mut self, limit: usize) -> Result<(i32, Vec<u8>), SessionError> {
        let mut kept = Vec::new();
        loop {
            match self.reader.next().await? {
                Output::Stdout(bytes) | Output::Stderr(bytes) => {
                    let room = limit.saturating_sub(kept.len()).min(bytes.len());
                    kept.extend_from_slice(&bytes[..room]);
                }
                Output::Exit(code) => return Ok((code, kept)),
                Output::Refused(reason) => return Err(SessionError::Refused(reason)),
            }
        }
    }
}

impl SessionReader {
    /// The next output. After [`Output::Exit`] or [`Output::Refused`] there is none. May be cancelled.
    pub async fn next(&mut self) -> Result<Output, SessionError> {
        loop {
            return match self.messages.next().await? {
                // Only asks whether this end is still there.
                Some(Message::Output(Output::Stdout(bytes))) if bytes.is_empty() => continue,
                Some(Message::Output(output)) => Ok(output),
                Some(_) => Err(std::io::Error::other("a shim sent a message that only clients send").into()),
                None => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            };
        }
    }
}

impl SessionWriter {
    /// Sends input; waits while the process does not read.
    pub async fn send(&self, input: Input) -> Result<(), SessionError> {
        let mut stream = self.0.lock().await;
        match input {
            Input::Stdin(bytes) => {
                for chunk in bytes.chunks(CHUNK) {
                    Message::Input(Input::Stdin(chunk.to_vec())).write(&mut *stream).await?;
                }
            }
            other => Message::Input(other).write(&mut *stream).await?,
        }
        Ok(())
    }
}
