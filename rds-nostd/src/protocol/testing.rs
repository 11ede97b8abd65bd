//! A node's protocol without an adapter: frames are in ordinary memory, and the tests act as the
//! HCA.

use std::boxed::Box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::vec::Vec;

use dat_nostd::{DatResult, DatReturn, Instant, ReceiveDto, ReturnType, Wake};

use crate::config::RdsConfig;
use crate::connection::{Connection, Map, Objects, Remembered};
use crate::error::RdsError;
use crate::frames::Frame;
use crate::generation::Generation;
use crate::ids::{ConnectionId, FrameId, SocketHandle};
use crate::limits::Limits;
use crate::message::Received;
use crate::protocol::{Body, Due, Outlet, Post, Protocol, Segment};
use crate::quota::Buffer;
use crate::rdma::{Iov, Memory, Operation, Region, Window};
use crate::reason::DownReason;
use crate::socket::{Socket, Transport, key};
use crate::storage::RdsParts;
use crate::wire::{HEADER_LEN, Header};

/// A node at 10.0.0.1.
pub(crate) struct Bench {
    pub(crate) protocol: Protocol<'static>,
    pub(crate) now: Instant,
    /// The fast path of `sendmsg` cannot post.
    pub(crate) queue_full: bool,
    /// Connection and sequence number of the messages that were posted by the fast path since the
    /// last flush.
    straight: Vec<(ConnectionId, u64)>,
}

/// A send queue that accepts all posts, or none.
struct SendQueue {
    full: bool,
    posts: usize,
}

impl Outlet for SendQueue {
    fn post(&mut self, _: &Objects, _: &Segment) -> DatResult<()> {
        self.posts += usize::from(!self.full);
        if self.full { Err(DatReturn::new(ReturnType::InsufficientResources)) } else { Ok(()) }
    }
}

fn table<T>(count: usize, make: impl Fn() -> T) -> &'static mut [T] {
    Box::leak((0..count).map(|_| make()).collect::<Vec<T>>().into_boxed_slice())
}

pub(crate) fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

pub(crate) const CONFIG: RdsConfig = RdsConfig::new(Generation::UNKNOWN);

impl Bench {
    pub(crate) fn new(config: RdsConfig, frames: usize, connections: usize) -> Self {
        let limits = Limits::new(&config, frames, connections).expect("enough");
        let parts = RdsParts {
            sockets: table(4, || Socket::EMPTY),
            connections: table(connections, || Connection::EMPTY),
            maps: table(connections, || Map::EMPTY),
            buckets: table(connections, || None),
            heap: table(connections, || None),
            remembered: table(64, || Remembered::EMPTY),
            frames: table(frames, || Frame::EMPTY),
            receives: table(frames, || None),
            regions: table(4, || Region::EMPTY),
            windows: table(4, || Window::EMPTY),
            operations: table(4, || Operation::EMPTY),
            iovs: table(16, || Iov::EMPTY),
            memories: table(2, || Memory::EMPTY),
        };
        let memory = crate::frames::Memory::plain(frames + connections);
        let now = Instant::from_nanos(1);
        Self {
            protocol: Protocol::new(parts, memory, config, limits, key(ip(1)), now),
            now,
            queue_full: false,
            straight: Vec::new(),
        }
    }

    /// Creates a socket with large buffers, bound to an address of this node.
    pub(crate) fn socket(&mut self, address: IpAddr, port: u16) -> SocketHandle {
        let is_loopback = address.is_loopback();
        let socket = Socket { sent: Buffer::new(1 << 20), unread: Buffer::new(1 << 20), ..Socket::EMPTY };
        let transport = if is_loopback { Transport::Loopback } else { Transport::InfiniBand };
        let handle = self.protocol.sockets.create(socket).expect("room");
        self.protocol.sockets.bind(handle, (key(address), port), transport).expect("open");
        handle
    }

    /// Creates a connection to 10.0.0.`last` that is up.
    pub(crate) fn up(&mut self, last: u8) -> ConnectionId {
        let id = self.protocol.connection_for(key(ip(last)), 0).expect("room");
        self.protocol.connections.at_mut(id).objects.ep = 1;
        self.protocol.came_up(id, Some([last; 16]), self.now);
        id
    }

    /// Breaks a connection.
    pub(crate) fn down(&mut self, id: ConnectionId, reason: DownReason) {
        self.straight.retain(|(of, _)| *of != id);
        self.protocol.turn_ends(id, reason);
        self.protocol.endpoint_gone(id, false);
        self.protocol.went_down(id, reason, self.now);
    }

    /// Posts receives up to the connection's limit. Returns how many are posted then.
    pub(crate) fn refill(&mut self, id: ConnectionId) -> u16 {
        self.protocol.refill(id, |_, receives| receives.count());
        self.protocol.connection(id).rx.ring.outstanding()
    }

    /// Returns the frame of the oldest receive.
    pub(crate) fn oldest(&self, id: ConnectionId) -> Option<FrameId> {
        self.protocol.rings.oldest(id, &self.protocol.connection(id).rx.ring)
    }

    /// Delivers a frame, if a receive is posted. The payload is arbitrary.
    pub(crate) fn arrives(
        &mut self,
        id: ConnectionId,
        header: &Header,
        payload: usize,
    ) -> Option<Option<DownReason>> {
        let arrival = self.arrival(id, header, payload)?;
        self.protocol.arrived(arrival, core::iter::empty(), self.now);
        Some(self.protocol.connection(id).reconnect.broken_by.get())
    }

    /// Returns the completion for a frame, if a receive is posted.
    pub(crate) fn arrival(
        &mut self,
        id: ConnectionId,
        header: &Header,
        payload: usize,
    ) -> Option<ReceiveDto> {
        let connection = self.protocol.connection(id);
        let frame = self.oldest(id)?;
        let epoch = connection.objects.epoch;
        let kind = crate::connection::CookieKind::Receive;
        let number = frame.bits().into();
        let cookie = crate::connection::Cookie { kind, connection: id, epoch, number }.encode();
        self.protocol.frames.write_header(frame, header);
        Some(ReceiveDto { user_cookie: cookie, length: (HEADER_LEN + payload) as u32 })
    }

    /// Sends like `sendmsg`.
    pub(crate) fn send(&mut self, from: SocketHandle, to: SocketAddr, len: usize) -> Result<(), RdsError> {
        let payload = std::vec![7; len];
        let mut queue = SendQueue { full: self.queue_full, posts: 0 };
        if !self.protocol.send(from, &to, &payload, &mut queue) {
            return self.protocol.compose(from, &to, Body::Copied(&payload), true).map(|_| ());
        }
        if queue.posts > 0 {
            let id = self.protocol.sockets.open(from)?.route.expect("it went that way");
            self.straight.push((id, self.protocol.connection(id).peer.next_tx - 1));
        }
        Ok(())
    }

    /// Posts everything that a connection has to send. Returns the sequence numbers of its
    /// messages.
    pub(crate) fn flush(&mut self, id: ConnectionId) -> Vec<u64> {
        let mut sequences: Vec<u64> =
            self.straight.extract_if(.., |(of, _)| *of == id).map(|(_, sequence)| sequence).collect();
        loop {
            let next = self.protocol.connection(id).tx.next;
            let mut flow = self.protocol.flow(id);
            match flow.dispatch() {
                None => {
                    flow.settle();
                    return sequences;
                }
                Some(Post::Map) => {
                    let signal = flow.map_fragment().signal;
                    flow.map_fragment_posted(signal);
                }
                Some(Post::Acknowledgement) => {
                    flow.acknowledgement();
                    flow.acknowledgement_posted();
                }
                Some(_) => {
                    let mut burst = flow.burst().expect("something");
                    let signal = flow.segment(&burst).signal;
                    flow.segment_posted(&mut burst, signal);
                    flow.end(&burst);
                    sequences.push(self.protocol.frames.message(next.expect("it")).sequence);
                }
            }
        }
    }

    /// Advances time until `end`, and serves due connections: receives and sends are posted, and
    /// sends complete.
    pub(crate) fn pass(&mut self, end: Instant) {
        loop {
            self.protocol.now = self.now;
            self.protocol.expire(self.now);
            while let Some(id) = self.protocol.connections.pop_due() {
                match self.protocol.due(id, self.now) {
                    Due::Serve => {
                        self.refill(id);
                        self.flush(id);
                        self.complete(id);
                    }
                    Due::Break(reason) => self.down(id, reason),
                    // All attempts fail.
                    Due::Connect => self.down(id, DownReason::Unreachable),
                    Due::Nothing => {}
                }
            }
            match self.protocol.poll_at() {
                Wake::At(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Completes all posts.
    pub(crate) fn complete(&mut self, id: ConnectionId) {
        let posts = self.protocol.connection(id).tx.posts;
        self.complete_to(id, posts);
    }

    /// Completes all posts up to this number.
    pub(crate) fn complete_to(&mut self, id: ConnectionId, number: u64) {
        let epoch = self.protocol.connection(id).objects.epoch;
        for kind in [crate::connection::CookieKind::Message, crate::connection::CookieKind::Acknowledgement] {
            self.protocol.sent(crate::connection::Cookie {
                kind,
                connection: id,
                epoch,
                number: number as u32,
            });
        }
    }

    /// Reads a message.
    pub(crate) fn read(&mut self, socket: SocketHandle) -> Option<usize> {
        let received = self.receive(socket, &mut [0; 64]);
        self.protocol.relieve(usize::from(socket.slot));
        received.ok().map(|received| received.message_len)
    }

    /// Takes the oldest message of a socket, from its slot or elsewhere.
    pub(crate) fn receive(&mut self, socket: SocketHandle, buffer: &mut [u8]) -> Result<Received, RdsError> {
        if let Some((received, _)) = self.protocol.take_in_slot(socket, buffer) {
            return Ok(received);
        }
        Ok(self.protocol.take_message(socket, buffer)?.0)
    }
}
