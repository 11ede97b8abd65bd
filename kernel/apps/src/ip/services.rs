//! `app=ip`: the small services that every IP host once had, and one that hashes.

use core::net::Ipv4Addr;

use dat_nostd::net::smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use dat_nostd::net::smoltcp::socket::{tcp, udp};
use dat_nostd::net::smoltcp::time::Duration;
use dat_nostd::net::smoltcp::wire::IpAddress;
use dat_nostd::net::{Host, PacketLink};
use driver_mlx::{Instant, Wake};

use super::TCP_BUFFER;
use super::digest::{Digest, LINE_LEN, Stream};

/// What a TCP service does with its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Gives back what comes (RFC 862).
    Echo,
    /// Takes what comes (RFC 863).
    Discard,
    /// Gives a number of bytes, then ends.
    Source,
    /// Takes what comes; after its end, gives the line that `sha256sum` would print.
    Hash,
}

impl Service {
    /// Its TCP port.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Echo => 7,
            Self::Discard => 9,
            Self::Source => 19,
            Self::Hash => 256,
        }
    }

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Discard => "discard",
            Self::Source => "source",
            Self::Hash => "hash",
        }
    }
}

/// The sockets: a client each at a time, two where clients are likely to overlap.
const LISTENERS: [Service; 7] = [
    Service::Echo,
    Service::Echo,
    Service::Discard,
    Service::Source,
    Service::Source,
    Service::Hash,
    Service::Hash,
];
const SOCKETS: usize = LISTENERS.len() + 2;
/// Bytes of a UDP socket's buffers, and datagrams in it.
const UDP_BUFFER: usize = 16 << 10;
const UDP_DATAGRAMS: usize = 16;
/// Bytes moved within a socket at once.
const CHUNK: usize = 2048;
/// A client that says nothing for so long, its acknowledgements included, is gone.
const GONE: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Marks the bytes of the source.
pub(super) const SOURCE_SENDER: u8 = 1;

/// A client that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// By which service.
    pub service: Service,
    /// Who it was.
    pub peer: Ipv4Addr,
    /// Bytes that came, or of the source: that went.
    pub bytes: u64,
    /// Their digest.
    pub sha256: Digest,
}

/// The sockets' buffers: all zero bytes, for static memory.
pub struct ServicesStorage {
    tcp: [[[u8; TCP_BUFFER]; 2]; LISTENERS.len()],
    udp: [[[u8; UDP_BUFFER]; 2]; 2],
}

impl ServicesStorage {
    /// Empty.
    #[must_use]
    pub const fn new() -> Self {
        Self { tcp: [[[0; TCP_BUFFER]; 2]; LISTENERS.len()], udp: [[[0; UDP_BUFFER]; 2]; 2] }
    }
}

impl Default for ServicesStorage {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the sockets themselves are, and what describes their datagrams. Small, and not zero bytes when empty: not for static
/// memory.
pub struct ServicesSlots<'s> {
    sockets: [SocketStorage<'s>; SOCKETS],
    datagrams: [[[udp::PacketMetadata; UDP_DATAGRAMS]; 2]; 2],
}

impl ServicesSlots<'_> {
    /// Empty.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sockets: [const { SocketStorage::EMPTY }; SOCKETS],
            datagrams: [[[udp::PacketMetadata::EMPTY; UDP_DATAGRAMS]; 2]; 2],
        }
    }
}

impl Default for ServicesSlots<'_> {
    fn default() -> Self {
        Self::new()
    }
}

struct Listener {
    service: Service,
    socket: SocketHandle,
    stream: Stream,
    peer: Option<Ipv4Addr>,
    /// The answer of the hash service, and how much of it went.
    reply: [u8; LINE_LEN],
    replied: usize,
    /// The client was reported.
    told: bool,
}

/// The services of a host.
pub struct Services<'s> {
    sockets: SocketSet<'s>,
    listeners: [Listener; LISTENERS.len()],
    udp_echo: SocketHandle,
    udp_discard: SocketHandle,
    source_bytes: u64,
}

impl<'s> Services<'s> {
    /// Listens on all ports. The source gives each client `source_bytes`.
    pub fn new(
        storage: &'s mut ServicesStorage,
        slots: &'s mut ServicesSlots<'s>,
        source_bytes: u64,
    ) -> Self {
        let ServicesStorage { tcp, udp } = storage;
        let ServicesSlots { sockets, datagrams } = slots;
        let mut sockets = SocketSet::new(&mut sockets[..]);
        let mut services = LISTENERS.iter();
        let listeners = tcp.each_mut().map(|[rx, tx]| {
            let service = services.next().copied().unwrap_or(Service::Echo);
            let mut socket =
                tcp::Socket::new(tcp::SocketBuffer::new(&mut rx[..]), tcp::SocketBuffer::new(&mut tx[..]));
            socket.set_nagle_enabled(false);
            socket.set_timeout(Some(GONE));
            socket.set_keep_alive(Some(KEEP_ALIVE));
            Listener {
                service,
                socket: sockets.add(socket),
                stream: Stream::new(),
                peer: None,
                reply: [0; LINE_LEN],
                replied: 0,
                told: true,
            }
        });
        let mut pairs = udp.iter_mut().zip(datagrams);
        let mut datagram = |port: u16| {
            pairs.next().map(|([rx, tx], [rx_meta, tx_meta])| {
                let mut socket = udp::Socket::new(
                    udp::PacketBuffer::new(&mut rx_meta[..], &mut rx[..]),
                    udp::PacketBuffer::new(&mut tx_meta[..], &mut tx[..]),
                );
                // A port that is not 0, of a socket that is not open: cannot fail.
                let _ = socket.bind(port);
                sockets.add(socket)
            })
        };
        let udp_echo = datagram(Service::Echo.port()).unwrap_or_default();
        let udp_discard = datagram(Service::Discard.port()).unwrap_or_default();
        Self { sockets, listeners, udp_echo, udp_discard, source_bytes }
    }

    /// Takes packets in, serves, sends. Returns when to poll again.
    pub fn poll<L: PacketLink>(
        &mut self,
        host: &mut Host<'_>,
        link: &mut L,
        now: Instant,
        report: &mut dyn FnMut(&Served),
    ) -> Wake {
        let wake = host.poll(link, &mut self.sockets, now);
        let mut moved = false;
        for listener in &mut self.listeners {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(listener.socket);
            moved |= listener.serve(socket, self.source_bytes, report);
        }
        moved |= self.serve_datagrams();
        // Data put into sockets goes out now, and windows open for what was taken.
        if moved {
            wake.earliest(host.poll(link, &mut self.sockets, now))
        } else {
            wake.earliest(host.poll_at(&self.sockets, now))
        }
    }

    /// Whether anything was moved.
    fn serve_datagrams(&mut self) -> bool {
        let mut moved = false;
        let mut chunk = [0; CHUNK * 2];
        let echo = self.sockets.get_mut::<udp::Socket<'_>>(self.udp_echo);
        while echo.can_recv() && echo.can_send() {
            let Ok((len, from)) = echo.recv_slice(&mut chunk) else { continue };
            moved = true;
            // No room: lost, as datagrams are.
            let _ = echo.send_slice(chunk.get(..len).unwrap_or_default(), from.endpoint);
        }
        let discard = self.sockets.get_mut::<udp::Socket<'_>>(self.udp_discard);
        while discard.can_recv() {
            let _ = discard.recv();
            moved = true;
        }
        moved
    }
}

impl Listener {
    /// Whether anything was moved.
    fn serve(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        source_bytes: u64,
        report: &mut dyn FnMut(&Served),
    ) -> bool {
        use tcp::State;
        match socket.state() {
            State::Closed => {
                self.tell(report);
                self.stream = Stream::new();
                self.replied = 0;
                self.peer = None;
                // A port that is not 0, of a socket that is closed: cannot fail.
                let _ = socket.listen(self.service.port());
                return false;
            }
            State::Listen | State::SynSent | State::SynReceived => return false,
            State::TimeWait => {
                // The client is done; its socket is not kept from the next.
                self.tell(report);
                socket.abort();
                return true;
            }
            // All of the client's has come and is answered; what is left is to hear that it knows.
            State::LastAck | State::Closing => self.tell(report),
            _ => {}
        }
        if self.peer.is_none() {
            self.told = false;
            self.peer = socket.remote_endpoint().map(|endpoint| {
                let IpAddress::Ipv4(address) = endpoint.addr;
                address
            });
        }
        let before = self.stream.bytes;
        let replied = self.replied;
        match self.service {
            Service::Echo => self.echo(socket),
            Service::Discard => self.take(socket),
            Service::Source => self.give(socket, source_bytes),
            Service::Hash => self.hash(socket),
        }
        self.stream.bytes != before || self.replied != replied
    }

    /// Everything that the client will send has come.
    fn at_end(socket: &tcp::Socket<'_>) -> bool {
        !socket.may_recv() && socket.recv_queue() == 0
    }

    fn take(&mut self, socket: &mut tcp::Socket<'_>) {
        self.drain(socket);
        if Self::at_end(socket) {
            socket.close();
        }
    }

    fn drain(&mut self, socket: &mut tcp::Socket<'_>) {
        while socket.can_recv() {
            let taken = socket.recv(|bytes| {
                self.stream.update(bytes);
                (bytes.len(), ())
            });
            if taken.is_err() {
                break;
            }
        }
    }

    fn echo(&mut self, socket: &mut tcp::Socket<'_>) {
        let mut chunk = [0; CHUNK];
        while socket.can_recv() && socket.can_send() {
            let room = (socket.send_capacity() - socket.send_queue()).min(CHUNK);
            let Some(part) = chunk.get_mut(..room) else { break };
            let Ok(len) = socket.recv_slice(part) else { break };
            let part = part.get(..len).unwrap_or_default();
            self.stream.update(part);
            // There is room for it.
            let _ = socket.send_slice(part);
        }
        if Self::at_end(socket) {
            socket.close();
        }
    }

    fn give(&mut self, socket: &mut tcp::Socket<'_>, source_bytes: u64) {
        while socket.can_recv() && socket.recv(|bytes| (bytes.len(), ())).is_ok() {}
        while self.stream.bytes < source_bytes && socket.can_send() {
            let left = source_bytes - self.stream.bytes;
            let sent = socket.send(|room| {
                let len = left.min(room.len() as u64) as usize;
                self.stream.produce(SOURCE_SENDER, &mut room[..len]);
                (len, ())
            });
            if sent.is_err() {
                break;
            }
        }
        if self.stream.bytes >= source_bytes {
            socket.close();
        }
    }

    fn hash(&mut self, socket: &mut tcp::Socket<'_>) {
        self.drain(socket);
        if !Self::at_end(socket) {
            return;
        }
        if self.replied == 0 {
            self.reply = self.stream.digest().line();
        }
        if let Some(rest) = self.reply.get(self.replied..)
            && socket.can_send()
            && let Ok(sent) = socket.send_slice(rest)
        {
            self.replied += sent;
        }
        if self.replied == LINE_LEN {
            socket.close();
        }
    }

    fn tell(&mut self, report: &mut dyn FnMut(&Served)) {
        if let (false, Some(peer)) = (self.told, self.peer) {
            self.told = true;
            let (service, sha256) = (self.service, self.stream.digest());
            report(&Served { service, peer, bytes: self.stream.bytes, sha256 });
        }
    }
}
