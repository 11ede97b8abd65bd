//! `app=tcp`: connects, sends a number of bytes, takes what comes back until the peer ends.

use core::fmt;
use core::net::Ipv4Addr;
use core::ops::ControlFlow;

use dat_nostd::net::smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use dat_nostd::net::smoltcp::socket::tcp;
use dat_nostd::net::smoltcp::wire::IpAddress;
use dat_nostd::net::{Host, PacketLink};
use driver_mlx::{Duration, Instant, Wake};

use super::TCP_BUFFER;
use super::digest::{Digest, LINE_LEN, Stream, digest_of};
use super::services::{SOURCE_SENDER, Service};
use crate::Status;

/// From a refusal to the next attempt.
const RETRY: Duration = Duration::from_millis(200);
/// Time after the end, in which a peer's last packet is answered again.
const LINGER: Duration = Duration::from_millis(500);
/// Marks the bytes sent.
const SENDER: u8 = 2;
/// First local port; attempts use the ones behind it.
const FIRST_PORT: u16 = 49_152;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Whom to connect to.
    pub to: Ipv4Addr,
    /// At which port.
    pub port: u16,
    /// Bytes to send; behind them the sending side ends. With 0 it ends when the peer's does.
    pub send: u64,
    /// Varies the local port.
    pub seed: u64,
    /// Maximum time for the connection.
    pub connect_timeout: Duration,
    /// Maximum time without progress.
    pub stall_timeout: Duration,
}

/// What the peer should answer, by the service at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nobody knows.
    Anything,
    /// What was sent.
    Echo,
    /// Nothing.
    Nothing,
    /// The bytes of [`Service::Source`], any number of them.
    Source,
    /// The line of [`Service::Hash`].
    Hash,
}

impl Expect {
    /// By the peer's port, if the peer is a node of this kind.
    #[must_use]
    pub const fn of_port(port: u16) -> Self {
        match port {
            7 => Self::Echo,
            9 => Self::Nothing,
            19 => Self::Source,
            256 => Self::Hash,
            _ => Self::Anything,
        }
    }
}

const _: () = assert!(Service::Echo.port() == 7 && Service::Discard.port() == 9);
const _: () = assert!(Service::Source.port() == 19 && Service::Hash.port() == 256);

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// Bytes sent.
    pub sent: u64,
    /// Their digest.
    pub sent_sha256: Digest,
    /// Bytes that came back.
    pub received: u64,
    /// Their digest.
    pub received_sha256: Digest,
    /// From the connection to the end, nanoseconds.
    pub ns: u64,
    /// The first bytes that came back.
    head: [u8; LINE_LEN],
}

impl ClientReport {
    /// Whether what came back is what was expected.
    #[must_use]
    pub fn is(&self, expected: Expect) -> bool {
        match expected {
            Expect::Anything => true,
            Expect::Nothing => self.received == 0,
            Expect::Echo => self.received == self.sent && self.received_sha256 == self.sent_sha256,
            Expect::Source => {
                self.received > 0 && self.received_sha256 == digest_of(SOURCE_SENDER, self.received)
            }
            Expect::Hash => self.received == LINE_LEN as u64 && self.head == self.sent_sha256.line(),
        }
    }
}

/// Why a client ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// No connection in time.
    NotConnected {
        /// How long it was tried, milliseconds.
        waited_ms: u64,
        /// Whether the peer refused (else nobody answered).
        refused: bool,
    },
    /// The peer reset the connection, or the other way round.
    Reset {
        /// Bytes sent until then.
        sent: u64,
        /// Bytes received until then.
        received: u64,
    },
    /// Nothing moved for too long.
    Stalled {
        /// For how long, milliseconds.
        waited_ms: u64,
        /// Bytes sent until then.
        sent: u64,
        /// Bytes received until then.
        received: u64,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected { waited_ms, refused } => {
                let how = if *refused { "the peer refused" } else { "nobody answered" };
                write!(f, "no connection for {waited_ms} ms: {how}")
            }
            Self::Reset { sent, received } => {
                write!(f, "connection reset after {sent} bytes sent and {received} received")
            }
            Self::Stalled { waited_ms, sent, received } => {
                write!(f, "nothing moved for {waited_ms} ms after {sent} bytes sent and {received} received")
            }
        }
    }
}

impl core::error::Error for ClientError {}

/// The socket's buffers.
pub struct ClientStorage([[u8; TCP_BUFFER]; 2]);

impl ClientStorage {
    /// Empty.
    #[must_use]
    pub const fn new() -> Self {
        Self([[0; TCP_BUFFER]; 2])
    }
}

impl Default for ClientStorage {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone, Copy)]
enum State {
    /// The next attempt is due at this time.
    Retry(Instant),
    Connecting,
    Open,
}

/// A client in the middle of its work.
pub struct Client<'s> {
    config: ClientConfig,
    sockets: SocketSet<'s>,
    socket: SocketHandle,
    state: State,
    attempts: u16,
    refused: bool,
    began_at: Instant,
    moved_at: Instant,
    sent: Stream,
    received: Stream,
    head: [u8; LINE_LEN],
    /// Our side has ended.
    closed: bool,
    ended: bool,
}

impl<'s> Client<'s> {
    /// Begins at the first poll.
    pub fn new(
        storage: &'s mut ClientStorage,
        slot: &'s mut SocketStorage<'s>,
        config: ClientConfig,
        now: Instant,
    ) -> Self {
        let [rx, tx] = &mut storage.0;
        let mut sockets = SocketSet::new(core::slice::from_mut(slot));
        let socket =
            tcp::Socket::new(tcp::SocketBuffer::new(&mut rx[..]), tcp::SocketBuffer::new(&mut tx[..]));
        Self {
            config,
            socket: sockets.add(socket),
            sockets,
            state: State::Retry(now),
            attempts: config.seed as u16,
            refused: false,
            began_at: now,
            moved_at: now,
            sent: Stream::new(),
            received: Stream::new(),
            head: [0; LINE_LEN],
            closed: false,
            ended: false,
        }
    }

    /// How it went, once done.
    #[must_use]
    pub fn report(&self) -> ClientReport {
        ClientReport {
            sent: self.sent.bytes,
            sent_sha256: self.sent.digest(),
            received: self.received.bytes,
            received_sha256: self.received.digest(),
            ns: (self.moved_at - self.began_at).as_nanos() as u64,
            head: self.head,
        }
    }

    /// Moves on.
    ///
    /// # Errors
    /// [`ClientError`]: over without success.
    pub fn poll<L: PacketLink>(
        &mut self,
        host: &mut Host<'_>,
        link: &mut L,
        now: Instant,
    ) -> Result<Status, ClientError> {
        let mut wake = host.poll(link, &mut self.sockets, now);
        if !self.ended && self.step(host, now)? {
            self.moved_at = now;
            wake = wake.earliest(host.poll(link, &mut self.sockets, now));
        }
        if self.ended {
            let end = self.moved_at + LINGER;
            return Ok(if now >= end {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(wake.earliest(Wake::At(end)))
            });
        }
        let limit = match self.state {
            State::Open => self.config.stall_timeout,
            _ => self.config.connect_timeout,
        };
        let waited = now - self.moved_at;
        if waited > limit {
            let waited_ms = waited.as_millis() as u64;
            return Err(match self.state {
                State::Open => {
                    let (sent, received) = (self.sent.bytes, self.received.bytes);
                    ClientError::Stalled { waited_ms, sent, received }
                }
                _ => ClientError::NotConnected { waited_ms, refused: self.refused },
            });
        }
        wake = wake.earliest(Wake::At(self.moved_at + limit + Duration::from_nanos(1)));
        if let State::Retry(at) = self.state {
            wake = wake.earliest(Wake::At(at));
        }
        // A connection that was begun goes out at once.
        Ok(ControlFlow::Continue(wake.earliest(host.poll_at(&self.sockets, now))))
    }

    /// Whether anything moved.
    fn step(&mut self, host: &mut Host<'_>, now: Instant) -> Result<bool, ClientError> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        match self.state {
            State::Retry(at) if now >= at => {
                self.attempts = self.attempts.wrapping_add(1);
                let local = FIRST_PORT | (self.attempts & !FIRST_PORT);
                let remote = (IpAddress::Ipv4(self.config.to), self.config.port);
                // Address and port are not 0: the command line saw to it. If not, nobody answers.
                let connected = socket.connect(host.interface().context(), remote, local);
                self.state = if connected.is_ok() { State::Connecting } else { State::Retry(now + RETRY) };
                // Goes out at once, without counting as progress of the connection.
                Ok(false)
            }
            State::Retry(_) => Ok(false),
            State::Connecting => {
                match socket.state() {
                    tcp::State::Closed => {
                        self.refused = true;
                        self.state = State::Retry(now.saturating_add(RETRY));
                    }
                    tcp::State::SynSent | tcp::State::SynReceived => {}
                    _ => {
                        self.state = State::Open;
                        self.began_at = now;
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            State::Open => self.transfer(),
        }
    }

    fn transfer(&mut self) -> Result<bool, ClientError> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let before = self.sent.bytes + self.received.bytes;
        while socket.can_recv() {
            let (received, head) = (&mut self.received, &mut self.head);
            let taken = socket.recv(|bytes| {
                let at = usize::try_from(received.bytes).unwrap_or(LINE_LEN).min(LINE_LEN);
                head[at..].iter_mut().zip(bytes.iter()).for_each(|(to, from)| *to = *from);
                received.update(bytes);
                (bytes.len(), ())
            });
            if taken.is_err() {
                break;
            }
        }
        while self.sent.bytes < self.config.send && socket.can_send() {
            let left = self.config.send - self.sent.bytes;
            let sent = &mut self.sent;
            let put = socket.send(|room| {
                let len = left.min(room.len() as u64) as usize;
                sent.produce(SENDER, &mut room[..len]);
                (len, ())
            });
            if put.is_err() {
                break;
            }
        }
        let all_sent = self.sent.bytes == self.config.send;
        let peer_ended = !socket.may_recv() && socket.recv_queue() == 0;
        let mut moved = self.sent.bytes + self.received.bytes != before;
        match socket.state() {
            tcp::State::TimeWait => self.ended = true,
            // After the peer's end came and ours was acknowledged.
            tcp::State::Closed if all_sent && peer_ended && self.closed => self.ended = true,
            tcp::State::Closed => {
                return Err(ClientError::Reset { sent: self.sent.bytes, received: self.received.bytes });
            }
            tcp::State::Established | tcp::State::CloseWait
                if all_sent && (self.config.send > 0 || peer_ended) =>
            {
                socket.close();
                self.closed = true;
                moved = true;
            }
            _ => {}
        }
        Ok(moved || self.ended)
    }
}
