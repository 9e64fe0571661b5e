//! A pseudo-terminal with a program on it, and somebody who types.

use std::{fs::File, os::fd::OwnedFd, process::ExitStatus, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use nix::{
    pty::{Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::termios::{Winsize as Size, tcsetwinsize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    time::timeout,
};

/// How long an expected output may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// A program on a terminal.
pub struct Terminal {
    child: Child,
    master: OwnedFd,
    reader: tokio::fs::File,
    writer: tokio::fs::File,
    seen: String,
}

impl Terminal {
    /// Starts `command` on a terminal of this size.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Result<Self> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).context("opening a pseudo-terminal")?;
        let slave = File::from(pair.slave);
        command.stdin(Stdio::from(slave.try_clone()?)).stdout(Stdio::from(slave.try_clone()?)).stderr(Stdio::from(slave));
        let child = command.spawn().context("starting a program on a terminal")?;
        // The command keeps the terminal's other end; without it, reading ends with the program.
        drop(command);
        let file = || -> Result<tokio::fs::File> { Ok(tokio::fs::File::from_std(File::from(pair.master.try_clone()?))) };
        let (reader, writer) = (file()?, file()?);
        Ok(Self { child, reader, writer, master: pair.master, seen: String::new() })
    }

    /// Types a line.
    pub async fn line(&mut self, text: &str) -> Result<()> {
        self.writer.write_all(format!("{text}\r").as_bytes()).await?;
        self.writer.flush().await.context("typing")
    }

    /// Makes the terminal another size.
    pub fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        tcsetwinsize(&self.master, Size { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let pid = self.child.id().context("the program has ended")?;
        // The kernel tells only programs whose controlling terminal it is.
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGWINCH).context("telling the program")
    }

    /// Waits until `text` appears after what was expected before.
    pub async fn expect(&mut self, text: &str) -> Result<()> {
        let wait = async {
            loop {
                if let Some(at) = self.seen.find(text) {
                    self.seen.drain(..at + text.len());
                    return Ok(());
                }
                if !self.read().await {
                    bail!("the program ended; it showed {:?}", self.seen);
                }
            }
        };
        let outcome = timeout(PATIENCE, wait).await;
        outcome.unwrap_or_else(|_| bail!("{text:?} did not appear; the terminal shows {:?}", self.seen))
    }

    async fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        // At the end of the program the kernel answers with an error.
        let read = self.reader.read(&mut buffer).await.unwrap_or_default();
        self.seen.push_str(&String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()));
        read > 0
    }

    /// Waits for the end of the program and returns what it still showed.
    pub async fn end(mut self) -> Result<(ExitStatus, String)> {
        let wait = async {
            while self.read().await {}
            self.child.wait().await
        };
        match timeout(PATIENCE, wait).await {
            Ok(status) => Ok((status?, self.seen)),
            Err(_) => bail!("the program does not end; the terminal shows {:?}", self.seen),
        }
    }
}
