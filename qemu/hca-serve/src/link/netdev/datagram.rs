//! Datagram sockets of QEMU's `-netdev dgram`: each datagram is a frame.

use super::socket::LONGEST;
use crate::error::{self, Error, IoContext};
use crate::link::address::{refuse_open, resolve};
use crate::link::stream::Broken;
use crate::server::listener::{SocketFile, clear_way};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Datagrams of strangers that are skipped at once.
const STRANGERS: usize = 64;

/// The two addresses of a network device: this server's and QEMU's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// `unix:PATH`, or only a path, twice.
    Unix {
        /// Where this server receives.
        local: PathBuf,
        /// Where QEMU receives.
        remote: PathBuf,
    },
    /// `udp:HOST:PORT`, twice.
    Udp {
        /// Where this server receives.
        local: String,
        /// Where QEMU receives. Datagrams from all other addresses are dropped.
        remote: String,
    },
}

impl FromStr for Ends {
    type Err = Error;

    fn from_str(text: &str) -> error::Result<Self> {
        let path = |text: &str| {
            let path = text.strip_prefix("unix:").or_else(|| text.contains('/').then_some(text))?;
            Some(PathBuf::from(path))
        };
        let place = |text: &str| {
            let place = text.strip_prefix("udp:")?;
            place.rsplit_once(':')?.1.parse::<u16>().ok().map(|_| place.to_owned())
        };
        let ends = text.split_once(',').and_then(|(local, remote)| {
            let unix = path(local).zip(path(remote)).map(|(local, remote)| Self::Unix { local, remote });
            unix.or_else(|| {
                place(local).zip(place(remote)).map(|(local, remote)| Self::Udp { local, remote })
            })
        });
        ends.ok_or_else(|| {
            Error::Usage(format!("{text}: give unix:PATH,unix:PATH or udp:HOST:PORT,udp:HOST:PORT"))
        })
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { local, remote } => write!(f, "unix:{},unix:{}", local.display(), remote.display()),
            Self::Udp { local, remote } => write!(f, "udp:{local},udp:{remote}"),
        }
    }
}

impl Ends {
    /// Binds this server's end. UDP addresses that other machines reach need `anywhere`.
    ///
    /// # Errors
    /// The address is in use or reachable from other machines, or a system call fails.
    pub fn bind(&self, anywhere: bool) -> error::Result<Datagrams> {
        let socket = match self {
            Self::Unix { local, remote } => {
                let is_live = |path: &Path| UnixDatagram::unbound().and_then(|socket| socket.connect(path));
                clear_way(local, is_live)?;
                let socket = UnixDatagram::bind(local).context("cannot make the socket", local)?;
                socket.set_nonblocking(true).context("cannot use the socket", local)?;
                let file = SocketFile::new(local);
                Socket::Unix { socket, remote: remote.clone(), out: None, followed: None, _file: file }
            }
            Self::Udp { local, remote } => {
                let cannot = |error: io::Error| Error::Serve(format!("cannot use {self}: {error}"));
                let (local, remote) = (resolve(self, local)?, resolve(self, remote)?);
                refuse_open(self, local, anywhere)?;
                let socket = UdpSocket::bind(local).map_err(cannot)?;
                socket.set_nonblocking(true).map_err(cannot)?;
                Socket::Udp { socket, remote }
            }
        };
        let (interest, buffer) = (EventFlags::empty(), vec![0; LONGEST]);
        Ok(Datagrams { socket, has_peer: false, waiting: None, interest, paused: false, buffer })
    }
}

#[derive(Debug)]
enum Socket {
    Unix {
        socket: UnixDatagram,
        remote: PathBuf,
        /// Connected to `remote`, so that its space can be waited for.
        out: Option<UnixDatagram>,
        /// Events of `out` that are waited for; `None` if it is in no epoll set.
        followed: Option<EventFlags>,
        /// Removed at the end.
        _file: SocketFile,
    },
    Udp {
        socket: UdpSocket,
        remote: SocketAddr,
    },
}

/// A bound socket, and whether the peer sends. No method blocks.
#[derive(Debug)]
pub struct Datagrams {
    socket: Socket,
    has_peer: bool,
    /// A frame for which the peer has no space.
    waiting: Option<Vec<u8>>,
    /// Events of the bound socket that are waited for.
    interest: EventFlags,
    /// True while no datagrams are received.
    pub paused: bool,
    buffer: Vec<u8>,
}

impl Datagrams {
    /// Adds the bound socket to an epoll set, without interest in events.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn add_to(&self, token: u64, epoll: &OwnedFd) -> Result<(), Errno> {
        let data = EventData::new_u64(token);
        match &self.socket {
            Socket::Unix { socket, .. } => epoll::add(epoll, socket, data, EventFlags::empty()),
            Socket::Udp { socket, .. } => epoll::add(epoll, socket, data, EventFlags::empty()),
        }
    }

    /// Returns whether a datagram of the peer has arrived, and none was refused since.
    pub const fn has_peer(&self) -> bool {
        self.has_peer
    }

    /// Appends the next datagram of the peer to `bytes`. Returns false if there is none. A datagram
    /// longer than any frame is cut off, and still too long for the switch.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn receive(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Broken> {
        for _ in 0..STRANGERS {
            let received = match &self.socket {
                Socket::Unix { socket, .. } => socket.recv(&mut self.buffer).map(|len| (len, true)),
                Socket::Udp { socket, remote } => {
                    socket.recv_from(&mut self.buffer).map(|(len, from)| (len, from == *remote))
                }
            };
            match received {
                Ok((len, true)) => {
                    self.has_peer = true;
                    bytes.extend_from_slice(self.buffer.get(..len).unwrap_or_default());
                    return Ok(true);
                }
                Ok((_, false)) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
            }
        }
        Ok(false)
    }

    /// Returns whether frames must wait.
    pub const fn is_congested(&self) -> bool {
        self.waiting.is_some()
    }

    /// Sends a frame. The frame waits if the peer has no space, and is lost without a peer.
    pub fn send(&mut self, frame: &[u8]) {
        match self.socket.send(frame) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.waiting = Some(frame.to_vec()),
            // A frame that does not fit into a datagram is lost, too.
            Err(error) => self.has_peer &= error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()),
        }
    }

    /// Sends the frame that waits.
    pub fn flush(&mut self) {
        if let Some(frame) = self.waiting.take() {
            self.send(&frame);
        }
    }

    /// Updates the events to wait for.
    pub fn follow(&mut self, token: u64, epoll: &OwnedFd) {
        let token = EventData::new_u64(token);
        let wanted = if self.paused { EventFlags::empty() } else { EventFlags::IN };
        let socket = match &self.socket {
            Socket::Unix { socket, .. } => socket.as_fd(),
            Socket::Udp { socket, .. } => socket.as_fd(),
        };
        // UDP always has space sooner or later, as the peer's does not count.
        let is_udp = matches!(self.socket, Socket::Udp { .. });
        let space = if self.waiting.is_some() { EventFlags::OUT } else { EventFlags::empty() };
        let wanted = if is_udp { wanted | space } else { wanted };
        if wanted != self.interest && epoll::modify(epoll, socket, token, wanted).is_ok() {
            self.interest = wanted;
        }
        if let Socket::Unix { out: Some(out), followed, .. } = &mut self.socket
            && *followed != Some(space)
        {
            let done = match followed {
                None => epoll::add(epoll, &*out, token, space),
                Some(_) => epoll::modify(epoll, &*out, token, space),
            };
            if done.is_ok() {
                *followed = Some(space);
            }
        }
    }
}

impl Socket {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let (remote, out, followed) = match self {
            Self::Udp { socket, remote } => return socket.send_to(frame, *remote).map(drop),
            Self::Unix { remote, out, followed, .. } => (remote, out, followed),
        };
        if let Some(socket) = out {
            match socket.send(frame) {
                // The peer is gone; another one may be at its path.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                sent => return sent.map(drop),
            }
        }
        (*out, *followed) = (None, None);
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(remote)?;
        out.insert(socket).send(frame).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_and_others_kept_out() {
        let (local, remote) = ("/a/b".into(), "c".into());
        let unix = Ends::Unix { local, remote };
        assert_eq!("/a/b,unix:c".parse::<Ends>().expect("right"), unix);
        assert_eq!(unix.to_string().parse::<Ends>().expect("right"), unix);
        let udp: Ends = "udp:127.0.0.1:7,udp:[::1]:8".parse().expect("right");
        assert_eq!(udp.to_string(), "udp:127.0.0.1:7,udp:[::1]:8");
        for text in ["", "/a", "/a,", "a,b", "/a,udp:h:7", "udp:h,udp:h:7", "tcp:h:7,tcp:h:8"] {
            let error = text.parse::<Ends>().expect_err("wrong").to_string();
            assert!(error.contains("udp:HOST:PORT"), "{text}: {error}");
        }
        let open: Ends = "udp:0.0.0.0:0,udp:127.0.0.1:9".parse().expect("right");
        assert!(open.bind(false).expect_err("open to all").to_string().contains("--listen-anywhere"));
    }
}
