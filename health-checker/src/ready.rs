//! Readiness of this process's own pod, asked by `health-checker check` over a Unix socket. It is not the verdict: a
//! health checker on a detached node is ready too.

use crate::listener::bind_unix;
use std::{io, path::Path, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    time::timeout,
};

/// How far the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Not all watches have listed once.
    Syncing,
    /// Synced, but does not hold the port.
    NoPort,
    /// Synced, and holds the port.
    Ready,
}

impl Readiness {
    /// The word on the socket.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::NoPort => "synced, but does not hold the port",
            Self::Ready => "ready",
        }
    }
}

/// Why `check` fails.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Nobody answers.
    #[error("the serving process does not answer on {path}: {cause}")]
    NoAnswer {
        /// The socket.
        path: String,
        /// What the system said.
        cause: io::Error,
    },
    /// It answers, and is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
}

/// Opens the socket.
pub fn open(path: &Path) -> io::Result<UnixListener> {
    bind_unix(path)
}

/// Tells everybody who connects.
pub async fn tell(listener: UnixListener, state: watch::Receiver<Readiness>) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let word = state.borrow().as_str();
                // So few bytes fit into the socket's buffer at once.
                let _ = timeout(Duration::from_millis(100), stream.write_all(word.as_bytes())).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Asks the serving process.
pub async fn ask(path: &Path, patience: Duration) -> Result<(), CheckError> {
    let answer = async {
        let mut word = String::new();
        UnixStream::connect(path).await?.take(256).read_to_string(&mut word).await?;
        Ok(word)
    };
    let answer = timeout(patience, answer).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match answer {
        Ok(word) if word == Readiness::Ready.as_str() => Ok(()),
        Ok(word) => Err(CheckError::NotReady(word)),
        Err(cause) => Err(CheckError::NoAnswer { path: path.display().to_string(), cause }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readiness_needs_a_synced_process_that_holds_the_port() {
        let directory = std::env::temp_dir().join(format!("health-checker-ready-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("creates");
        let path = directory.join("ready.sock");
        let patience = Duration::from_secs(5);
        assert!(matches!(ask(&path, patience).await, Err(CheckError::NoAnswer { .. })));
        let (change, state) = watch::channel(Readiness::Syncing);
        let task = tokio::spawn(tell(open(&path).expect("opens"), state.clone()));
        assert!(matches!(ask(&path, patience).await, Err(CheckError::NotReady(word)) if word == "syncing"));
        change.send_replace(Readiness::NoPort);
        assert!(ask(&path, patience).await.is_err());
        change.send_replace(Readiness::Ready);
        assert!(ask(&path, patience).await.is_ok());
        task.abort();
        assert!(open(&path).is_ok(), "a socket that was left behind is replaced");
        std::fs::remove_dir_all(directory).expect("removes");
    }
}
