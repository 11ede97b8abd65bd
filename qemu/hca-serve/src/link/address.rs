//! Addresses at which servers connect.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::stream::Stream;
use crate::server::listener::{SocketFile, listen};

/// Address in the form of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `unix:PATH`, or only a path.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`.
    Tcp(String),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            Ok(Self::Unix(path.into()))
        } else if let Some(place) = text.strip_prefix("tcp:") {
            let port = place.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            match port {
                Some(Ok(_)) => Ok(Self::Tcp(place.to_owned())),
                _ => Err(Error::Usage(format!("{text}: give tcp:HOST:PORT"))),
            }
        } else if text.contains('/') {
            Ok(Self::Unix(text.into()))
        } else {
            Err(Error::Usage(format!("{text}: give unix:PATH or tcp:HOST:PORT")))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(place) => write!(f, "tcp:{place}"),
        }
    }
}

/// Returns the first address of `HOST:PORT`. Errors name the option's value `text`.
///
/// # Errors
/// The host is unknown.
pub fn resolve(text: &impl fmt::Display, place: &str) -> Result<SocketAddr> {
    let mut found = place.to_socket_addrs().map_err(|error| Error::Serve(format!("{text}: {error}")))?;
    found.next().ok_or_else(|| Error::Serve(format!("{text}: there is no such host")))
}

/// Checks that only this machine reaches an address, unless `anywhere`.
///
/// # Errors
/// Others may reach it.
pub fn refuse_open(text: &impl fmt::Display, address: SocketAddr, anywhere: bool) -> Result<()> {
    if address.ip().is_loopback() || anywhere {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{text}: whoever can reach it is part of the network; use a tunnel to a local address, or add \
         --listen-anywhere"
    )))
}

/// Time limit of a connection attempt.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

impl Address {
    /// Listens at the address. TCP addresses that are reachable from other machines need
    /// `anywhere`.
    ///
    /// # Errors
    /// The address is reachable from other machines without `anywhere`, or the system call fails.
    pub fn listen(&self, anywhere: bool) -> Result<Listener> {
        let cannot = |error: std::io::Error| Error::Serve(format!("cannot listen at {self}: {error}"));
        let listener = match self {
            Self::Unix(path) => {
                let (listener, file) = listen(path, None)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                Listener::Unix(listener, file)
            }
            Self::Tcp(place) => {
                let address = resolve(self, place)?;
                refuse_open(self, address, anywhere)?;
                let listener = TcpListener::bind(address).map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                Listener::Tcp(listener)
            }
        };
        Ok(listener)
    }

    /// Connects to the address.
    ///
    /// # Errors
    /// No server listens there, or it does not reply in time.
    pub fn connect(&self) -> Result<Stream> {
        let cannot = |error: std::io::Error| Error::Serve(format!("cannot connect to {self}: {error}"));
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix).map_err(cannot),
            Self::Tcp(place) => {
                let stream =
                    TcpStream::connect_timeout(&resolve(self, place)?, CONNECT_LIMIT).map_err(cannot)?;
                stream.set_nodelay(true).map_err(cannot)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

/// Listener for other servers.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket and its file.
    Unix(UnixListener, SocketFile),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// Returns the next connection, without waiting.
    ///
    /// # Errors
    /// Errors of the system; `WouldBlock` if there is no connection.
    pub fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_others_kept_out() {
        for (text, address) in [
            ("unix:/a/b", Address::Unix("/a/b".into())),
            ("./b", Address::Unix("./b".into())),
            ("tcp:127.0.0.1:7", Address::Tcp("127.0.0.1:7".into())),
            ("tcp:[::1]:7", Address::Tcp("[::1]:7".into())),
        ] {
            assert_eq!(text.parse::<Address>().expect("right"), address);
        }
        for text in ["", "host:7", "tcp:host", "tcp:host:port", "tcp:host:70000"] {
            let error = text.parse::<Address>().expect_err("wrong").to_string();
            assert!(error.contains("tcp:HOST:PORT"), "{error}");
        }
        let open = Address::Tcp("0.0.0.0:0".into());
        let refused = open.listen(false).expect_err("open to all").to_string();
        assert!(refused.contains("--listen-anywhere"), "{refused}");
        assert!(open.listen(true).is_ok());
        assert!(Address::Tcp("127.0.0.1:0".into()).listen(false).is_ok());
    }
}
