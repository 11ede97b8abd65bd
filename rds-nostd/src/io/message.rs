//! `sendmsg` and `recvmsg`.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::connection::State;
use crate::error::RdsError;
use crate::ids::{ConnectionId, SocketHandle};
use crate::io::post::Wire;
use crate::io::{Node, Rds};
use crate::message::{Arrival, Msg, MsgFlags};
use crate::protocol::{Body, Outgoing};
use crate::rdma::{Control, RdmaCookie};

impl Rds<'_> {
    /// Sends a message. On success the node retains the message until the peer's RDS has
    /// acknowledged it, and retransmits it after each reconnection. It tries to reach an
    /// unreachable peer without limit, unless the list of such peers overflows
    /// ([`RdsError::Unreachable`]). A message to port 0 is a ping: the peer replies with an empty
    /// message from port 0.
    ///
    /// Returns the cookie of memory that was mapped for the message ([`Control::map`]). An RDMA
    /// operation executes before its message, and can report its status. If the operation fails, or
    /// the connection breaks before its end, the message does not arrive.
    ///
    /// # Errors
    /// [`poll`](Self::poll) may resolve the first three, and [`poll_mask`](Self::poll_mask) reports
    /// when.
    ///
    /// - [`RdsError::Again`]: the socket's send buffer is full.
    /// - [`RdsError::NoBufferSpace`]: all frames for this peer, connections, or entries for
    ///   operations are in use.
    /// - [`RdsError::Congested`]: the destination's port is congested.
    /// - [`RdsError::Exhausted`]: no region is free, or unread notifications of the socket occupy
    ///   half of the entries for operations.
    /// - [`RdsError::NotConnected`]: no destination, or not bound.
    /// - [`RdsError::NotSupported`]: flags other than DONTWAIT and MORE; a destination of another
    ///   family; control messages to a loopback address, as on Linux; or a lent payload to this
    ///   node itself.
    /// - [`RdsError::MessageSize`]: longer than the send buffer, than
    ///   [`longest_message`](Self::longest_message), or than the peer accepts; an operation of more
    ///   than [`MAX_RDMA_LEN`](crate::MAX_RDMA_LEN) bytes or [`MAX_IOVS`](crate::MAX_IOVS)
    ///   segments.
    /// - [`RdsError::InvalidArgument`]: the destination is not unicast, or a loopback address that
    ///   the socket cannot reach; a lent payload is empty, has empty or too many short segments, or
    ///   is combined with other data; a cookie does not belong to the socket; memory is offered
    ///   with an operation, or twice; an operation has no local memory, an empty segment, or more
    ///   local than remote bytes.
    /// - [`RdsError::NoMemory`]: an operation has more segments than the table, or two operations
    ///   exceed it.
    /// - The errors of [`get_mr`](Self::get_mr) for memory to map; [`RdsError::BadSocket`].
    // Inlined, so that constant arguments at a call remove the other paths.
    #[inline(always)]
    pub fn sendmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        message: Msg<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        if !MsgFlags::DONTWAIT.union(MsgFlags::MORE).contains(message.flags) {
            return Err(RdsError::NotSupported);
        }
        let Msg { to, payload, control, flags } = message;
        let peer = if to.is_none() { Some(self.peer_address(from)?) } else { None };
        let Some(to) = to.or(peer.as_ref()) else { return Err(RdsError::NotConnected) };
        let is_plain = control.is_none() && !flags.contains(MsgFlags::MORE);
        if is_plain && self.protocol.send(from, to, payload, &mut Wire(adapter)) {
            return Ok(None);
        }
        self.node(adapter).send_slow(from, to, (payload, flags), control)
    }

    /// Returns the next item for the application, in Linux's order: notifications of RDMA
    /// operations, congestion updates, messages. Bytes of a message that exceed `buffer` are lost.
    ///
    /// PEEK leaves a message in the queue, but not the other items. OOB returns
    /// [`Arrival::Nothing`]. TRUNC only changes the value of the C call ([`Arrival::value`]).
    /// ZEROCOPY lends the message's frames ([`Arrival::Lent`]), which the caller returns by
    /// [`give_back`](Self::give_back).
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing to receive. [`RdsError::Unreachable`], once: messages of the
    /// socket were dropped. [`RdsError::BadSocket`].
    #[inline]
    pub fn recvmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
        flags: MsgFlags,
    ) -> Result<Arrival, RdsError> {
        if flags.intersects(MsgFlags::OOB.union(MsgFlags::PEEK).union(MsgFlags::ZEROCOPY)) {
            return self.node(adapter).look(handle, buffer, flags);
        }
        let Some((received, more)) = self.protocol.take_in_slot(handle, buffer) else {
            return self.node(adapter).receive(handle, buffer);
        };
        if more {
            self.node(adapter).frames_are_free(handle);
        }
        Ok(Arrival::Message(received))
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Sends a message outside of the fast path.
    #[inline(never)]
    fn send_slow(
        &mut self,
        from: SocketHandle,
        to: &SocketAddr,
        (payload, flags): (&[u8], MsgFlags),
        control: Option<&Control<'_>>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        let Some(control) = control.filter(|control| !control.is_empty()) else {
            let composed = self.compose(from, (to, Body::Copied(payload)), true)?;
            if let Some((connection, _)) = composed.filter(|_| !flags.contains(MsgFlags::MORE)) {
                self.transmit(connection);
            }
            return Ok(None);
        };
        let offers = usize::from(control.map.is_some()) + usize::from(control.dest.is_some());
        if offers > 1 || offers > 0 && (control.rdma.is_some() || control.atomic.is_some()) {
            return Err(RdsError::InvalidArgument);
        }
        if !self.protocol.reachable(from, *to)? {
            return self.send_along_within(from, *to, payload, control);
        }
        let body = match &control.lend {
            None => Body::Copied(payload),
            Some(lend) => {
                let alone = Control { lend: None, ..*control }.is_empty() && payload.is_empty();
                if !alone {
                    return Err(RdsError::InvalidArgument);
                }
                Body::Lent(Self::check_loan(lend)?)
            }
        };
        let Some(outgoing) = self.compose(from, (to, body), false)? else { return Ok(None) };
        match self.attach(from, outgoing, control) {
            Ok(cookie) => {
                self.protocol.enqueue(outgoing, from);
                self.transmit(outgoing.0);
                Ok(cookie)
            }
            Err(error) => {
                self.protocol.frames.give_message(outgoing.1);
                Err(error)
            }
        }
    }

    /// Composes a message. Evicts an idle connection if a new peer needs an entry.
    fn compose(
        &mut self,
        from: SocketHandle,
        (to, body): (&SocketAddr, Body<'_>),
        alone: bool,
    ) -> Result<Option<Outgoing>, RdsError> {
        match self.protocol.compose(from, to, body, alone) {
            Err(RdsError::NoBufferSpace) if self.make_room_to(from, to) => {
                self.protocol.compose(from, to, body, alone)
            }
            composed => composed,
        }
    }

    /// Posts queued messages, as many as possible. Connects first if necessary.
    fn transmit(&mut self, id: ConnectionId) {
        if self.protocol.connection(id).state == State::Up {
            return self.flush(id);
        }
        let now = self.adapter.now();
        self.serve(id, now);
    }

    /// Takes the next item of any kind.
    #[inline(never)]
    fn receive(&mut self, handle: SocketHandle, buffer: &mut [u8]) -> Result<Arrival, RdsError> {
        if let Some(told) = self.take_told(handle)? {
            return Ok(told);
        }
        let (received, more) = self.protocol.take_message(handle, buffer)?;
        if more {
            self.frames_are_free(handle);
        }
        Ok(Arrival::Message(received))
    }

    /// Handles OOB, PEEK and ZEROCOPY.
    #[inline(never)]
    fn look(
        &mut self,
        handle: SocketHandle,
        buffer: &mut [u8],
        flags: MsgFlags,
    ) -> Result<Arrival, RdsError> {
        if flags.contains(MsgFlags::OOB) {
            self.protocol.sockets.open(handle)?;
            return Ok(Arrival::Nothing);
        }
        match self.take_told(handle)? {
            Some(told) => Ok(told),
            None if flags.contains(MsgFlags::PEEK) => {
                Ok(Arrival::Message(self.protocol.peek(handle, buffer)?.1))
            }
            None => Ok(Arrival::Lent(self.protocol.lend_message(handle)?)),
        }
    }

    /// Takes events that precede messages.
    fn take_told(&mut self, handle: SocketHandle) -> Result<Option<Arrival>, RdsError> {
        if core::mem::take(&mut self.protocol.sockets.open_mut(handle)?.gave_up) {
            return Err(RdsError::Unreachable);
        }
        if let Some(notify) = self.protocol.take_notification(handle)? {
            return Ok(Some(Arrival::RdmaStatus(notify)));
        }
        let ports = core::mem::take(&mut self.protocol.sockets.open_mut(handle)?.cleared);
        Ok((ports != 0).then_some(Arrival::CongestionUpdate(ports)))
    }

    /// Handles freed space after a message was read: clears a port, sends our changed map to all
    /// peers, and posts receives where they were lacking.
    #[cold]
    pub(crate) fn frames_are_free(&mut self, handle: SocketHandle) {
        self.protocol.relieve(usize::from(handle.slot));
        if self.protocol.take_changes() {
            self.serve_due(self.protocol.now);
        }
    }
}
