//! `sendmsg` and `recvmsg`.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::error::RdsError;
use crate::ids::{ConnectionId, SocketHandle};
use crate::io::Rds;
use crate::io::post::Wire;
use crate::message::{Arrival, Msg, MsgFlags};
use crate::protocol::{Body, Outgoing};
use crate::rdma::{Control, RdmaCookie};

impl Rds<'_> {
    /// Sends a message. When this succeeds the message is kept until the peer's RDS has it, however often the connection has to be made
    /// anew; a peer that cannot be reached is tried without end, unless more unreachable peers than there is room for lose their entries
    /// to others ([`RdsError::Unreachable`]). A message to port 0 is a ping: an empty message from port 0 answers it.
    ///
    /// Gives the cookie of memory that was mapped for it ([`Control::map`]). An RDMA operation that goes along is done before the message,
    /// and its end can be asked for; if it fails, or the connection breaks before its end, the message does not arrive.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`]: flags other than DONTWAIT and MORE; a destination of another family; something that goes along with a
    /// message to a loopback address, as on Linux, or a lent payload to this node itself. [`RdsError::NotConnected`]: nowhere to send to, or
    /// not bound. [`RdsError::Again`]: the socket's send buffer is full. [`RdsError::NoBufferSpace`]: the frames that this peer may have, the
    /// node's connections, or its RDMA operations are in use.
    /// Either may pass with [`poll`](Self::poll), and [`poll_mask`](Self::poll_mask) tells when. [`RdsError::Exhausted`]: no region is left,
    /// or half of all operations are ones whose ends the socket has not read. [`RdsError::MessageSize`]: longer than the send buffer or than
    /// [`longest_message`](Self::longest_message), or than the peer accepts; an operation of more than [`MAX_RDMA_LEN`](crate::MAX_RDMA_LEN) or
    /// [`MAX_PIECES`](crate::MAX_PIECES). [`RdsError::Congested`]: the destination's port takes no more until it is read from.
    /// [`RdsError::InvalidArgument`]: a destination that is no unicast address, or a loopback address that this socket does not reach; a
    /// lent payload that is empty, has empty pieces or too short ones, or with anything else beside it;
    /// a cookie that is not the socket's; memory offered together with an operation, or twice; an operation with no local memory, with
    /// empty parts or with more bytes than the peer's part. [`RdsError::NoMemory`]: an operation of more pieces than there are, or two
    /// operations where there are never so many. Those of
    /// [`get_mr`](Self::get_mr) for memory to map. [`RdsError::BadSocket`].
    // Whoever writes out what a message is gets only the way that such a message goes.
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
        let peer;
        let to = match &message.to {
            Some(to) => to,
            None => {
                peer = self.peer_address(from)?;
                &peer
            }
        };
        match message.control {
            None if message.flags.contains(MsgFlags::MORE) => {
                self.send_later(adapter, from, *to, message.payload)
            }
            None => self.send(adapter, from, to, message.payload),
            Some(control) => self.send_along(adapter, from, *to, message.payload, control),
        }
    }

    /// A message, and nothing beside it.
    #[inline(always)]
    fn send<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: &SocketAddr,
        payload: &[u8],
    ) -> Result<Option<RdmaCookie>, RdsError> {
        if self.protocol.send(from, to, payload, &mut Wire(adapter)) {
            return Ok(None);
        }
        self.queue(adapter, from, *to, payload)
    }

    /// Composes a message. If there is no entry for a new peer, a connection that has been idle for a while makes room.
    fn compose<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        (to, body): (&SocketAddr, Body<'_>),
        alone: bool,
    ) -> Result<Option<Outgoing>, RdsError> {
        match self.protocol.compose(from, to, body, alone) {
            Err(RdsError::NoBufferSpace) if self.make_room_to(adapter, from, to) => {
                self.protocol.compose(from, to, body, alone)
            }
            composed => composed,
        }
    }

    /// The message leaves with those that follow it.
    #[inline(never)]
    fn send_later<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<Option<RdmaCookie>, RdsError> {
        self.compose(adapter, from, (&to, Body::Copied(payload)), true).map(|_| None)
    }

    /// The message does not leave at once.
    #[inline(never)]
    fn queue<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<Option<RdmaCookie>, RdsError> {
        if let Some(outgoing) = self.compose(adapter, from, (&to, Body::Copied(payload)), true)? {
            self.transmit(adapter, outgoing.connection);
        }
        Ok(None)
    }

    /// The message has something beside it.
    #[inline(never)]
    fn send_along<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
        control: &Control<'_>,
    ) -> Result<Option<RdmaCookie>, RdsError> {
        if control.is_empty() {
            return self.queue(adapter, from, to, payload);
        }
        let offers = usize::from(control.map.is_some()) + usize::from(control.dest.is_some());
        if offers > 1 || offers > 0 && (control.rdma.is_some() || control.atomic.is_some()) {
            return Err(RdsError::InvalidArgument);
        }
        if !self.protocol.reachable(from, to)? {
            return self.send_along_within(adapter, from, to, payload, control);
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
        let Some(outgoing) = self.compose(adapter, from, (&to, body), false)? else { return Ok(None) };
        match self.attach(adapter, from, outgoing, control) {
            Ok(cookie) => {
                self.protocol.enqueue(outgoing, from);
                self.transmit(adapter, outgoing.connection);
                Ok(cookie)
            }
            Err(error) => {
                self.protocol.withdraw(outgoing);
                Err(error)
            }
        }
    }

    /// Posts what can be posted of what was queued.
    fn transmit<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, id: ConnectionId) {
        if self.protocol.is_up(id) {
            self.flush(adapter, id);
        } else {
            self.wake_up(adapter, id);
        }
    }

    /// There is something to send on a connection that is not up.
    #[cold]
    fn wake_up<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, id: ConnectionId) {
        let now = adapter.now();
        self.serve(adapter, id, now);
    }

    /// The next of what a socket has for its application, in Linux's order: ends of RDMA operations, congestion updates, messages. Of a
    /// message, what does not fit into `buffer` is gone.
    ///
    /// PEEK leaves a message where it is, but neither of the others; with OOB there is [`Arrival::Nothing`]. TRUNC only changes what the C
    /// call returns ([`Arrival::value`]). ZEROCOPY returns the message's memory ([`Arrival::Lent`]), which the caller [gives
    /// back](Self::give_back).
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::Unreachable`], once: messages of the socket were dropped. [`RdsError::BadSocket`].
    #[inline]
    pub fn recvmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
        flags: MsgFlags,
    ) -> Result<Arrival, RdsError> {
        if flags.intersects(MsgFlags::OOB.union(MsgFlags::PEEK).union(MsgFlags::ZEROCOPY)) {
            return self.look(handle, buffer, flags);
        }
        let Some((received, more)) = self.protocol.take_in_slot(handle, buffer) else {
            return self.receive(adapter, handle, buffer);
        };
        if more {
            self.frames_are_free(adapter, handle);
        }
        Ok(Arrival::Message(received))
    }

    /// Takes whatever is there.
    #[inline(never)]
    fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Arrival, RdsError> {
        if let Some(told) = self.take_told(handle)? {
            return Ok(told);
        }
        let (received, more) = self.protocol.take_message(handle, buffer)?;
        if more {
            self.frames_are_free(adapter, handle);
        }
        Ok(Arrival::Message(received))
    }

    /// Leaves a message where it is, or its bytes.
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

    /// Events that come before messages.
    fn take_told(&mut self, handle: SocketHandle) -> Result<Option<Arrival>, RdsError> {
        if core::mem::take(&mut self.protocol.sockets.open_mut(handle)?.gave_up) {
            return Err(RdsError::Unreachable);
        }
        if let Some(notify) = self.take_notification(handle)? {
            return Ok(Some(Arrival::RdmaStatus(notify)));
        }
        let ports = self.take_congestion_update(handle)?;
        Ok((ports != 0).then_some(Arrival::CongestionUpdate(ports)))
    }

    /// A message was read: a port may be free again, and a connection may get receives.
    #[cold]
    pub(crate) fn frames_are_free<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
    ) {
        self.protocol.relieve(usize::from(handle.slot));
        self.send_changed_maps(adapter);
        if self.protocol.starved {
            self.frames_came_free(adapter);
        }
    }
}
