//! The sockets that answers are given on.

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket, sockopt},
};
use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

/// Connections that may wait to be accepted. A burst of checks beyond it is not refused: TCP tries again.
const BACKLOG: i32 = 1024;

/// The port could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has it.
    #[error(
        "port {port} of this node is in use by another process. Give the health check of this IngressDaemonSet a port that nothing \
         else on its nodes listens on, or stop that process; `ss -ltnp sport = :{port}` on the node names it"
    )]
    InUse {
        /// The port.
        port: u16,
    },
    /// Ports below `net.ipv4.ip_unprivileged_port_start` need a capability.
    #[error("port {port} needs the capability NET_BIND_SERVICE, or a sysctl net.ipv4.ip_unprivileged_port_start of at most {port}")]
    NotPermitted {
        /// The port.
        port: u16,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {cause}")]
    Other {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
}

/// Takes the port for this process alone. `::` means IPv4 as well, and IPv4 alone where the node has no IPv6.
pub fn bind_exclusively(address: SocketAddr) -> Result<TcpListener, BindError> {
    let attempt = match take(address) {
        Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            take(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        attempt => attempt,
    };
    let other = |cause| BindError::Other { address, cause };
    let listener = attempt.map_err(|errno| match errno {
        Errno::EADDRINUSE => BindError::InUse { port: address.port() },
        Errno::EACCES => BindError::NotPermitted { port: address.port() },
        errno => other(errno.into()),
    })?;
    listener.set_nonblocking(true).map_err(other)?;
    TcpListener::from_std(listener).map_err(other)
}

fn take(address: SocketAddr) -> Result<std::net::TcpListener, Errno> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Not SO_REUSEPORT, which a second listener could join; this only skips the wait for old connections.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    match address {
        SocketAddr::V6(address) => {
            setsockopt(&socket, sockopt::Ipv6V6Only, &!address.ip().is_unspecified())?;
            bind(socket.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(*address.ip(), address.port(), 0, address.scope_id())))?;
        }
        SocketAddr::V4(address) => bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(*address.ip(), address.port())))?,
    }
    // nix refuses more than the C library's SOMAXCONN, which is 128 in musl; the kernel has no such bound.
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    Ok(std::net::TcpListener::from(socket))
}

/// Where connections come from.
pub trait Accept: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address of its client.
    fn accept_one(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, from) = self.accept().await?;
        // Answers are one small write each.
        let _ = stream.set_nodelay(true);
        Ok((stream, Some(from.ip().to_canonical())))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, _)| (stream, None))
    }
}

/// Listens on a Unix socket, in the place of one that a killed process left behind.
pub fn bind_unix(path: &std::path::Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists and is not a socket", path.display()))),
        Err(_) => {}
    }
    UnixListener::bind(path)
}
