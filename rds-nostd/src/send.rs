//! The sending side: `sendmsg`, with what may go along with a message, and pings.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::congestion::port_mask;
use crate::connection::State;
use crate::error::RdsError;
use crate::frames::{Link, Marks, Use};
use crate::node::{Rds, is_unicast};
use crate::profile::Profile;
use crate::rdma::{Control, RdmaCookie};
use crate::socket::{SocketHandle, is_v4, key, open_socket};
use crate::wire::{Extension, FRAGMENT_LEN, Flags, fragments};

/// Answers to pings that a peer may have outstanding; further pings are not answered.
const MAX_PONGS: u8 = 16;
/// The owner of a message of RDS itself: no socket.
pub(crate) const NOBODY: u16 = u16::MAX;

impl Rds<'_> {
    /// Sends a message and gives its length. When this succeeds the message is kept until the peer's RDS has it, however
    /// often the connection has to be made anew; a peer that cannot be reached is tried without end. A message to port 0 is a
    /// ping: an empty message from port 0 answers it.
    ///
    /// # Errors
    /// [`RdsError::Again`]: the socket's send buffer is full. [`RdsError::NoBufferSpace`]: the node's frames or connections
    /// are. Either may pass with [`poll`](Self::poll). [`RdsError::MessageSize`]: longer than the send buffer or than
    /// [`longest_message`](Self::longest_message). [`RdsError::Congested`]: the destination's port takes no more until it is read from.
    /// [`RdsError::InvalidArgument`]: a destination that is no unicast address, or a loopback address that this socket does not
    /// reach. [`RdsError::NotSupported`]: one of another family. [`RdsError::NotConnected`]: not bound. [`RdsError::BadSocket`].
    pub fn sendmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<usize, RdsError> {
        if self.send_straight(adapter, from, &to, payload).is_none() {
            self.send_message(adapter, from, to, payload, None)?;
        }
        Ok(payload.len())
    }

    /// Sends a message with something beside it. Gives the cookie of memory that was mapped for it.
    ///
    /// An RDMA operation is done before the message, and its end can be asked for; if it fails, or the connection breaks before
    /// its end, the message does not arrive.
    ///
    /// # Errors
    /// As [`sendmsg`](Self::sendmsg); those of [`get_mr`](Self::get_mr) for memory to map. [`RdsError::InvalidArgument`]: a
    /// cookie that is not the socket's; memory offered together with an operation, or twice; an operation with no local
    /// memory, with empty pieces or with more bytes than the peer's part. [`RdsError::MessageSize`]: an operation of more than
    /// [`MAX_RDMA_LEN`](crate::MAX_RDMA_LEN) or [`MAX_PIECES`](crate::MAX_PIECES). [`RdsError::NotSupported`]: to this node
    /// itself. [`RdsError::NoMemory`]: no operation is left.
    pub fn sendmsg_control<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
        control: &Control<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        let offers = usize::from(control.map.is_some()) + usize::from(control.dest.is_some());
        if offers > 1 || offers > 0 && (control.rdma.is_some() || control.atomic.is_some()) {
            return Err(RdsError::InvalidArgument);
        }
        self.send_message(adapter, from, to, payload, Some(control))
    }

    /// Where a message from this socket would go: over the wire, or not. See [`sendmsg`](Self::sendmsg) for the errors.
    pub(crate) fn reachable(&mut self, from: SocketHandle, to: SocketAddr) -> Result<bool, RdsError> {
        let source = open_socket(self.sockets, from)?.address;
        if !is_unicast(to.ip()) {
            return Err(RdsError::InvalidArgument);
        }
        if source == 0 {
            return Err(RdsError::NotConnected);
        }
        let foreign = key(to.ip());
        if is_v4(foreign) != is_v4(source) {
            return Err(RdsError::NotSupported);
        }
        // Loopback addresses are reached from loopback addresses alone, and nothing else is.
        let loopback = source != self.local;
        if to.ip().to_canonical().is_loopback() != loopback {
            return Err(RdsError::InvalidArgument);
        }
        Ok(!loopback && foreign != self.local)
    }

    #[inline(never)]
    fn send_message<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
        control: Option<&Control<'_>>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        let remote = self.reachable(from, to)?;
        let socket = open_socket(self.sockets, from)?;
        let (sport, buffered, limit) = (socket.port, socket.send_bytes, socket.send_buffer);
        let (source, monitor, tos) = (socket.address, socket.monitor, socket.tos);
        let foreign = key(to.ip());
        let longest = if remote { self.limits.longest_sent } else { self.limits.longest_local };
        // Where buffers are as rds(3SOCKET) has them, only what waits already counts.
        if payload.len() > longest || payload.len() > limit && socket.profile == Profile::Linux {
            return Err(RdsError::MessageSize);
        }
        // Without a send buffer there are still empty messages.
        if buffered >= limit && buffered > 0 {
            self.counters.send_queue_full += 1;
            return Err(RdsError::Again);
        }
        if !remote {
            if control.is_some() {
                return Err(RdsError::NotSupported);
            }
            if foreign == self.local && self.own_port_is_marked(to.port()) {
                return Err(self.refuse_congested(from, to.port(), monitor));
            }
            self.send_to_self((source, sport), (foreign, to.port()), payload)?;
            return Ok(None);
        }
        let connection = self.connection_for(foreign, tos).ok_or(RdsError::NoBufferSpace)?;
        if self.port_is_congested(connection, to.port()) {
            // A connection that is down is made again, to hear how things stand now.
            if let Some(state) = self.connections.get_mut(connection) {
                state.map_wanted = true;
            }
            return Err(self.refuse_congested(from, to.port(), monitor));
        }
        let message = self.compose(payload)?;
        let cookie = match control {
            None => None,
            Some(control) => match self.attach(adapter, (from, connection), message, control) {
                Ok(cookie) => cookie,
                Err(error) => {
                    self.frames.give_message(message);
                    return Err(error);
                }
            },
        };
        if let Ok(socket) = open_socket(self.sockets, from) {
            socket.send_bytes += payload.len();
            socket.send_messages += 1;
            socket.tos_used = true;
            (socket.route_to, socket.route) = (foreign, connection as u8);
        }
        let hurry = self
            .connections
            .get(connection)
            .is_some_and(|state| state.hurries(buffered + payload.len(), limit, payload.len()));
        self.enqueue(connection, message, (sport, to.port()), payload.len(), Some(from), hurry);
        self.counters.send_queued += 1;
        if self.connections.get(connection).is_some_and(|state| state.state == State::Down) {
            let now = adapter.platform().now().as_nanos();
            self.connection_due(adapter, connection, now);
        } else {
            self.transmit(adapter, connection);
        }
        Ok(cookie)
    }

    /// Gives a message what goes along with it: an operation, a cookie.
    #[cold]
    fn attach<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        (from, connection): (SocketHandle, usize),
        message: usize,
        control: &Control<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        let (mut cookie, mut operation) = (None, Link::NONE);
        let mut extension = None;
        if let Some(args) = &control.rdma {
            operation = self.create_transfer(adapter, (from, connection), args)?;
            extension = Some(Extension::Rdma { rkey: args.cookie.rkey() });
        }
        if let Some(args) = &control.atomic {
            match self.create_atomic(adapter, (from, connection), args) {
                Ok(atomic) if operation.is_none() => operation = atomic,
                Ok(atomic) => self.follow(operation, atomic),
                Err(error) => {
                    self.withdraw_operation(adapter, operation);
                    return Err(error);
                }
            }
        }
        if operation.is_none() {
            let offered = match control.map {
                Some((memory, flags)) => {
                    cookie = Some(self.offer(adapter, from, memory, flags, Some(connection))?);
                    cookie
                }
                None => control.dest,
            };
            if offered.is_some_and(|offered| !self.may_offer(from, offered, connection)) {
                return Err(RdsError::InvalidArgument);
            }
            extension =
                offered.map(|offered| Extension::RdmaDest { rkey: offered.rkey(), offset: offered.offset() });
        }
        if let Some(extension) = extension {
            self.frames.write_extensions(message, &extension.encode());
        }
        if let Some(frame) = self.frames.at_mut(message) {
            frame.marks.set(Marks::EXTENDED, extension.is_some());
            frame.operation = operation;
        }
        Ok(cookie)
    }

    /// A chain of frames with the payload.
    fn compose(&mut self, payload: &[u8]) -> Result<usize, RdsError> {
        let count = fragments(payload.len());
        if self.frames.send_count() + count > self.limits.send_frames || self.frames.free_count() < count {
            return Err(RdsError::NoBufferSpace);
        }
        self.chain(payload, Use::Send).ok_or(RdsError::NoBufferSpace)
    }

    fn chain(&mut self, payload: &[u8], used: Use) -> Option<usize> {
        let first = self.frames.take(used)?;
        self.frames.append(first, first);
        let mut chunks = payload.chunks(FRAGMENT_LEN);
        self.frames.write_payload(first, chunks.next().unwrap_or(&[]));
        for chunk in chunks {
            let Some(index) = self.frames.take(used) else {
                self.frames.give_message(first);
                return None;
            };
            self.frames.append(first, index);
            self.frames.write_payload(index, chunk);
        }
        Some(first)
    }

    #[cold]
    fn refuse_congested(&mut self, from: SocketHandle, port: u16, monitor: bool) -> RdsError {
        self.counters.cong_send_error += 1;
        if let Ok(socket) = open_socket(self.sockets, from)
            && monitor
        {
            socket.refused |= port_mask(port);
        }
        RdsError::Congested
    }

    /// A message to this node never leaves it.
    fn send_to_self(
        &mut self,
        (source, sport): (u128, u16),
        (destination, dport): (u128, u16),
        payload: &[u8],
    ) -> Result<(), RdsError> {
        // A ping is answered at once.
        let ping = dport == 0;
        let (source, sport, destination, dport, payload) = if ping {
            (destination, 0, source, sport, &[][..])
        } else {
            (source, sport, destination, dport, payload)
        };
        if self.bound_to(destination, dport).is_none() {
            self.counters.send_queued += 1;
            self.counters.recv_drop_no_sock += 1;
            return Ok(());
        }
        let count = fragments(payload.len());
        if self.frames.free_count() < count || !self.may_receive(count) {
            return Err(RdsError::NoBufferSpace);
        }
        let message = self.chain(payload, Use::Receive).ok_or(RdsError::NoBufferSpace)?;
        if let Some(frame) = self.frames.at_mut(message) {
            frame.sport = sport;
            frame.dport = dport;
            frame.len = payload.len() as u32;
            frame.source = source;
        }
        self.counters.send_queued += 1;
        if ping {
            self.counters.recv_ping += 1;
            self.counters.send_pong += 1;
        }
        self.deliver(destination, message);
        Ok(())
    }

    /// Puts a message at the end of what the connection has to send.
    fn enqueue(
        &mut self,
        connection: usize,
        message: usize,
        (sport, dport): (u16, u16),
        len: usize,
        socket: Option<SocketHandle>,
        hurry: bool,
    ) {
        let Some(state) = self.connections.get_mut(connection) else { return };
        let operation = self.frames.at(message).operation;
        let sequence = state.next_tx;
        if !operation.is_none() {
            state.operations += 1;
        }
        // What is not sent has the number of what is before it.
        let silent = len == 0 && !operation.is_none() && self.is_silent(operation);
        let Some(state) = self.connections.get_mut(connection) else { return };
        state.next_tx += u64::from(!silent);
        if let Some(frame) = self.frames.at_mut(message) {
            frame.sequence = sequence - u64::from(silent);
            frame.marks.set(Marks::SILENT, silent);
            frame.sport = sport;
            frame.dport = dport;
            frame.len = len as u32;
            frame.flags = if hurry { Flags::ACK_REQUIRED.bits() } else { 0 };
            // A message of RDS itself belongs to no socket and counts against none.
            frame.marks.set(Marks::SETTLED, socket.is_none());
            let owner = socket.unwrap_or(SocketHandle { slot: NOBODY, generation: 0 });
            frame.socket = owner.slot;
            frame.generation = owner.generation;
        }
        self.frames.push_back(&mut state.unsent, message);
    }

    /// Answers a ping with a sequenced message of no bytes; silently not, if frames are short or the peer does not
    /// acknowledge those before it.
    pub(crate) fn pong(&mut self, connection: usize, dport: u16) {
        if self.connections.get(connection).is_none_or(|state| state.pongs >= MAX_PONGS)
            || self.port_is_congested(connection, dport)
        {
            self.counters.recv_ping_dropped += 1;
            return;
        }
        if let Ok(message) = self.compose(&[]) {
            self.enqueue(connection, message, (0, dport), 0, None, false);
            self.counters.send_pong += 1;
            if let Some(state) = self.connections.get_mut(connection) {
                state.pongs += 1;
            }
        }
    }
}
