//! The agent's end of a pseudo-terminal.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::pty::openpty;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame::TerminalSize;

/// A terminal that a process uses. Clones are the same terminal.
#[derive(Clone, Debug)]
pub(super) struct Terminal(Arc<AsyncFd<File>>);

impl Terminal {
    /// A new terminal, and the side for the process.
    pub fn open(size: Option<TerminalSize>) -> Result<(Self, OwnedFd)> {
        let pair = openpty(None, None)?;
        for side in [&pair.master, &pair.slave] {
            fcntl(side, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        #[expect(deprecated, reason = "its successor is unsafe, which is forbidden here; the file is owned and never exchanged")]
        let terminal = Self(Arc::new(AsyncFd::new(File::from(pair.master))?));
        if let Some(size) = size {
            terminal.resize(size)?;
        }
        Ok((terminal, pair.slave))
    }

    /// Tells the process a new size.
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        let size = Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(self.0.get_ref(), size)?)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let into = buffer.initialize_unfilled();
            match guard.try_io(|file| file.get_ref().read(into)) {
                Ok(Ok(read)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                // The kernel's way to say that nobody has the other side open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(nix::errno::Errno::EIO as i32) => return Poll::Ready(Ok(())),
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            match guard.try_io(|file| file.get_ref().write(bytes)) {
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Err(Error::from(ErrorKind::Unsupported)))
    }
}
