//! The TCP connection between the two sides: options, a byte each way to begin, and an end that ends the run.

use core::net::Ipv4Addr;

use dat_nostd::net::smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use dat_nostd::net::smoltcp::socket::tcp;
use dat_nostd::net::smoltcp::wire::IpAddress;
use dat_nostd::net::{Host, PacketLink};
use dat_nostd::{Duration, Instant};
use driver_mlx::Wake;

/// Bytes of its buffers, each way.
pub(super) const BUFFER: usize = 512;
/// From one attempt to the next.
const RETRY: Duration = Duration::from_millis(200);
/// First local port of the active side.
const FIRST_PORT: u16 = 49_152;

/// What is to become of it.
#[derive(Clone, Copy, Debug)]
enum Aim {
    Listen(u16),
    /// From this local port, and when to try next.
    Connect {
        to: (Ipv4Addr, u16),
        local: u16,
        at: Instant,
    },
}

pub(super) struct Control<'s> {
    sockets: SocketSet<'s>,
    socket: SocketHandle,
    aim: Aim,
}

impl<'s> Control<'s> {
    /// The passive side's, without a peer, or the active one's.
    pub(super) fn new(
        buffers: &'s mut [[u8; BUFFER]; 2],
        slot: &'s mut SocketStorage<'s>,
        port: u16,
        peer: Option<Ipv4Addr>,
        random: u64,
    ) -> Self {
        let [rx, tx] = buffers;
        let mut sockets = SocketSet::new(core::slice::from_mut(slot));
        let socket =
            tcp::Socket::new(tcp::SocketBuffer::new(&mut rx[..]), tcp::SocketBuffer::new(&mut tx[..]));
        let aim = match peer {
            None => Aim::Listen(port),
            Some(peer) => {
                Aim::Connect { to: (peer, port), local: FIRST_PORT | random as u16, at: Instant::ORIGIN }
            }
        };
        Self { socket: sockets.add(socket), sockets, aim }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'s> {
        self.sockets.get_mut(self.socket)
    }

    /// Moves packets. Whether there are more at once.
    pub(super) fn poll<L: PacketLink>(&mut self, host: &mut Host<'_>, link: &mut L, now: Instant) -> bool {
        host.poll(link, &mut self.sockets, now) == Wake::Now
    }

    /// When to poll again.
    pub(super) fn wake(&mut self, host: &mut Host<'_>, now: Instant) -> Wake {
        host.poll_at(&self.sockets, now)
    }

    /// Sees to it that there is a connection. True as soon as there is one.
    pub(super) fn open(&mut self, host: &mut Host<'_>, now: Instant) -> bool {
        let aim = &mut self.aim;
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        match (socket.state(), aim) {
            (tcp::State::Closed, Aim::Listen(port)) => {
                // Ports are not 0: whoever chose this one saw to it.
                let _ = socket.listen(*port);
            }
            (tcp::State::Closed, Aim::Connect { to: (to, port), local, at }) if now >= *at => {
                (*local, *at) = (FIRST_PORT | local.wrapping_add(1), now + RETRY);
                // It is tried again if not.
                let _ = socket.connect(host.interface().context(), (IpAddress::Ipv4(*to), *port), *local);
            }
            _ => {}
        }
        socket.may_send()
    }

    /// Whoever is at the other end.
    pub(super) fn peer(&mut self) -> Option<Ipv4Addr> {
        let IpAddress::Ipv4(peer) = self.socket().remote_endpoint()?.addr;
        Some(peer)
    }

    /// Puts bytes into the way, all of them or none.
    pub(super) fn send(&mut self, bytes: &[u8]) -> bool {
        let socket = self.socket();
        let fits = socket.can_send() && socket.send_capacity() - socket.send_queue() >= bytes.len();
        fits && socket.send_slice(bytes).is_ok()
    }

    /// Takes as many bytes as `out` has, once so many are there.
    pub(super) fn take(&mut self, out: &mut [u8]) -> bool {
        let socket = self.socket();
        socket.recv_queue() >= out.len() && socket.recv_slice(out).is_ok()
    }

    /// The next byte, without taking it.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.socket().peek(1).ok()?.first().copied()
    }

    /// Whether the other side has closed it, and nothing is left to take.
    pub(super) fn has_ended(&mut self) -> bool {
        let socket = self.socket();
        !socket.may_recv() && socket.recv_queue() == 0
    }

    pub(super) fn close(&mut self) {
        self.socket().close();
    }

    /// Ends it at once: the other side hears of it with the next [`poll`](Self::poll).
    pub(super) fn abort(&mut self) {
        self.socket().abort();
    }
}
