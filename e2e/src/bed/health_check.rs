//! A health check as load balancers make it.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Checks one node, one check after the other.
pub struct Client {
    address: SocketAddr,
    keeps: bool,
    kept: Option<TcpStream>,
}

impl Client {
    /// One that keeps its connection from check to check, or one that does not.
    pub fn new(address: SocketAddr, keeps: bool) -> Self {
        Self { address, keeps, kept: None }
    }

    /// The answer to a check, head and body.
    pub async fn check(&mut self) -> Result<String> {
        let kept = self.kept.take();
        let mut stream = if let Some(stream) = kept { stream } else { TcpStream::connect(self.address).await? };
        stream.set_nodelay(true)?;
        let connection = if self.keeps { "keep-alive" } else { "close" };
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: node\r\nConnection: {connection}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        while !answer.ends_with('}') {
            let mut piece = [0; 2048];
            let read = stream.read(&mut piece).await?;
            ensure!(read > 0, "closed after {answer:?}");
            answer.push_str(&String::from_utf8_lossy(piece.get(..read).unwrap_or_default()));
        }
        if self.keeps && !answer.contains("connection: close") {
            self.kept = Some(stream);
        }
        Ok(answer)
    }
}
