//! A way in from outside: ports of 127.0.0.1 that lead to the API server and to `HAProxy` of a bed.
//!
//! Outside, [`Front`] listens; inside, [`serve`] does, on Unix sockets of the bed's own file system, which the outside
//! reaches through `/proc`. So there is nothing to clean up.

use std::{
    io::copy,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result};

use crate::host::{namespaces, network};

/// What can be reached: the name of its socket, and its port in the bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The API server.
    Api,
    /// `HAProxy`.
    Web,
}

impl Door {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Api, Self::Web];

    fn port(self) -> u16 {
        match self {
            Self::Api => 443,
            Self::Web => 80,
        }
    }

    fn socket(self) -> PathBuf {
        let name = match self {
            Self::Api => "api.sock",
            Self::Web => "web.sock",
        };
        Path::new(namespaces::STATE).join("front").join(name)
    }
}

/// A port outside that is taken and not served yet.
#[derive(Debug)]
pub struct Front {
    listener: TcpListener,
    door: Door,
}

impl Front {
    /// Takes `port` of 127.0.0.1; 0 takes any that is free.
    pub fn take(door: Door, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("port {port} of 127.0.0.1 is in use: choose another, or none to get one that is free"))?;
        Ok(Self { listener, door })
    }

    /// Its port.
    pub fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr().context("asking for the port that was taken")?.port())
    }

    /// Forwards each connection into the bed whose file system is at `root`, as long as this process lives.
    pub fn forward(self, root: &Path) {
        let inside = self.door.socket();
        let socket = root.join(inside.strip_prefix("/").unwrap_or(&inside));
        thread::spawn(move || {
            for client in self.listener.incoming().flatten() {
                // Until the bed listens, a client is told so in the only way there is: the connection closes.
                if let Ok(server) = UnixStream::connect(&socket) {
                    thread::spawn(move || pump(client, server));
                }
            }
        });
    }
}

/// Copies both ways until both ends have said all.
fn pump(client: TcpStream, server: UnixStream) {
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let there = thread::spawn(move || {
        // An end of the connection ends the copy; there is nobody to tell.
        let _ = copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    let _ = copy(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Write);
    let _ = there.join();
}

/// Inside: forwards from the Unix sockets to the bed's own ports, as long as this process lives.
pub fn serve() -> Result<()> {
    for door in Door::ALL {
        let socket = door.socket();
        if let Some(directory) = socket.parent() {
            std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        }
        let listener = tokio::net::UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut server) = tokio::net::TcpStream::connect((network::BED, door.port())).await {
                        // Either end may break off at any time.
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
    }
    Ok(())
}
