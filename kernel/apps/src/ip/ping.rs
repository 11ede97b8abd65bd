//! `app=ping`: ICMP echo requests, one after the other.

use core::net::Ipv4Addr;
use core::ops::ControlFlow;

use dat_nostd::net::smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use dat_nostd::net::smoltcp::phy::ChecksumCapabilities;
use dat_nostd::net::smoltcp::socket::icmp;
use dat_nostd::net::smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpAddress};
use dat_nostd::net::{Host, PacketLink};
use driver_mlx::{Duration, Instant, Wake};

use crate::Status;

/// Bytes of each of the two buffers.
const BUFFER: usize = 8 << 10;
/// Bytes of the longest payload.
const MAX_PAYLOAD: usize = 2048;
/// Bytes of ICMP's header for echo.
const HEADER: usize = 8;

/// What to ping.
#[derive(Clone, Copy, Debug)]
pub struct PingConfig {
    /// Whom.
    pub to: Ipv4Addr,
    /// How often.
    pub count: u32,
    /// Payload bytes, at most 2048; more are cut.
    pub size: usize,
    /// Tells this pinger's replies from another's.
    pub ident: u16,
    /// From one reply to the next request.
    pub interval: Duration,
    /// Maximum time for a reply.
    pub timeout: Duration,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u32,
    /// Replies received, each with the payload that was sent.
    pub received: u32,
    /// Requests without a reply in time.
    pub lost: u32,
    /// Replies with another payload.
    pub wrong: u32,
    /// Shortest, longest and summed round trip, nanoseconds.
    pub min: u64,
    /// See above.
    pub max: u64,
    /// See above.
    pub sum: u64,
}

/// The socket's buffers.
pub struct PingStorage {
    buffers: [[u8; BUFFER]; 2],
    packets: [[icmp::PacketMetadata; 4]; 2],
}

impl PingStorage {
    /// Empty.
    #[must_use]
    pub const fn new() -> Self {
        Self { buffers: [[0; BUFFER]; 2], packets: [[icmp::PacketMetadata::EMPTY; 4]; 2] }
    }
}

impl Default for PingStorage {
    fn default() -> Self {
        Self::new()
    }
}

enum State {
    /// The next request goes at this time.
    Pause(Instant),
    /// Sent at the first, given up at the second.
    Wait(Instant, Instant),
}

/// A pinger.
pub struct Ping<'s> {
    config: PingConfig,
    sockets: SocketSet<'s>,
    socket: SocketHandle,
    state: State,
    report: PingReport,
}

impl<'s> Ping<'s> {
    /// Begins at the first poll.
    pub fn new(storage: &'s mut PingStorage, slot: &'s mut SocketStorage<'s>, config: PingConfig) -> Self {
        let PingStorage { buffers: [rx, tx], packets: [rx_meta, tx_meta] } = storage;
        let mut sockets = SocketSet::new(core::slice::from_mut(slot));
        let mut socket = icmp::Socket::new(
            icmp::PacketBuffer::new(&mut rx_meta[..], &mut rx[..]),
            icmp::PacketBuffer::new(&mut tx_meta[..], &mut tx[..]),
        );
        // A new socket can be bound.
        let _ = socket.bind(icmp::Endpoint::Ident(config.ident));
        let socket = sockets.add(socket);
        let config = PingConfig { size: config.size.min(MAX_PAYLOAD), ..config };
        Self { config, sockets, socket, state: State::Pause(Instant::ORIGIN), report: PingReport::default() }
    }

    /// How it went so far.
    #[must_use]
    pub fn report(&self) -> &PingReport {
        &self.report
    }

    /// Moves on.
    pub fn poll<L: PacketLink>(&mut self, host: &mut Host<'_>, link: &mut L, now: Instant) -> Status {
        let mut wake = host.poll(link, &mut self.sockets, now);
        self.receive(now);
        match self.state {
            State::Pause(_) if self.report.sent == self.config.count => return ControlFlow::Break(()),
            State::Pause(at) if now >= at => {
                self.send(now);
                wake = wake.earliest(host.poll(link, &mut self.sockets, now));
            }
            State::Wait(_, end) if now >= end => {
                self.report.lost += 1;
                self.state = State::Pause(now);
            }
            _ => {}
        }
        let own = match self.state {
            State::Pause(at) | State::Wait(_, at) => at,
        };
        ControlFlow::Continue(wake.earliest(Wake::At(own)))
    }

    /// Byte `i` of request `number`'s payload.
    fn pattern(&self, number: u32, i: usize) -> u8 {
        (i as u32).wrapping_mul(31).wrapping_add(number.wrapping_mul(7)) as u8
    }

    fn send(&mut self, now: Instant) {
        let number = self.report.sent;
        let mut data = [0; MAX_PAYLOAD];
        for (i, byte) in data.iter_mut().take(self.config.size).enumerate() {
            *byte = self.pattern(number, i);
        }
        let repr = Icmpv4Repr::EchoRequest {
            ident: self.config.ident,
            seq_no: number as u16,
            data: data.get(..self.config.size).unwrap_or_default(),
        };
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(self.socket);
        self.state = State::Wait(now, now + self.config.timeout);
        self.report.sent += 1;
        // One that finds no room counts as lost.
        if let Ok(buffer) = socket.send(HEADER + self.config.size, IpAddress::Ipv4(self.config.to)) {
            let mut packet = Icmpv4Packet::new_unchecked(buffer);
            repr.emit(&mut packet, &ChecksumCapabilities::default());
        }
    }

    fn receive(&mut self, now: Instant) {
        let number = self.report.sent.wrapping_sub(1);
        loop {
            let socket = self.sockets.get_mut::<icmp::Socket<'_>>(self.socket);
            let Ok((bytes, from)) = socket.recv() else { return };
            let mut data = [0; MAX_PAYLOAD];
            let len = match reply(bytes) {
                Some((ident, seq_no, payload))
                    if ident == self.config.ident
                        && seq_no == number as u16
                        && from == IpAddress::Ipv4(self.config.to) =>
                {
                    let len = payload.len().min(MAX_PAYLOAD);
                    data.iter_mut().zip(payload).for_each(|(to, from)| *to = *from);
                    len
                }
                // Late, or of somebody else.
                _ => continue,
            };
            let State::Wait(sent_at, _) = self.state else { continue };
            let right = len == self.config.size
                && data.iter().take(len).enumerate().all(|(i, byte)| *byte == self.pattern(number, i));
            let trip = (now - sent_at).as_nanos() as u64;
            let report = &mut self.report;
            if right {
                report.min = if report.received == 0 { trip } else { report.min.min(trip) };
                report.max = report.max.max(trip);
                report.sum = report.sum.saturating_add(trip);
                report.received += 1;
            } else {
                report.wrong += 1;
            }
            self.state = State::Pause(now + self.config.interval);
        }
    }
}

/// Identifier, sequence number and payload of an echo reply.
fn reply(bytes: &[u8]) -> Option<(u16, u16, &[u8])> {
    let packet = Icmpv4Packet::new_checked(bytes).ok()?;
    match Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).ok()? {
        Icmpv4Repr::EchoReply { ident, seq_no, data } => Some((ident, seq_no, data)),
        _ => None,
    }
}
