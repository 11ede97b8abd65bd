//! `sendmsg` and `recvmsg`.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::error::RdsError;
use crate::ids::ConnectionId;
use crate::io::post::Wire;
use crate::node::Rds;
use crate::rdma::{Control, RdmaCookie};
use crate::socket::{Arrival, Received, SocketHandle, address_of};

impl Rds<'_> {
    /// Sends a message and gives its length. When this succeeds the message is kept until the peer's RDS has it, however
    /// often the connection has to be made anew; a peer that cannot be reached is tried without end. A message to port 0 is a
    /// ping: an empty message from port 0 answers it.
    ///
    /// # Errors
    /// [`RdsError::Again`]: the socket's send buffer is full. [`RdsError::NoBufferSpace`]: the frames that this peer may have, or the
    /// node's connections, are in use. Either may pass with [`poll`](Self::poll), and [`poll_mask`](Self::poll_mask) tells when.
    /// [`RdsError::MessageSize`]: longer than the send buffer or than
    /// [`longest_message`](Self::longest_message). [`RdsError::Congested`]: the destination's port takes no more until it is read from.
    /// [`RdsError::InvalidArgument`]: a destination that is no unicast address, or a loopback address that this socket does not
    /// reach. [`RdsError::NotSupported`]: one of another family. [`RdsError::NotConnected`]: not bound. [`RdsError::BadSocket`].
    #[inline]
    pub fn sendmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<usize, RdsError> {
        if self.protocol.send(from, &to, payload, &mut Wire(adapter)) {
            return Ok(payload.len());
        }
        self.queue(adapter, from, &to, payload)
    }

    /// The same where the message does not leave at once.
    #[inline(never)]
    fn queue<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        from: SocketHandle,
        to: &SocketAddr,
        payload: &[u8],
    ) -> Result<usize, RdsError> {
        if let Some(outgoing) = self.protocol.compose(from, to, payload, true)? {
            self.transmit(adapter, outgoing.connection);
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
    /// memory, with empty parts or with more bytes than the peer's part. [`RdsError::MessageSize`]: an operation of more than
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
        if control.is_empty() {
            return self.sendmsg(adapter, from, to, payload).map(|_| None);
        }
        let offers = usize::from(control.map.is_some()) + usize::from(control.dest.is_some());
        if offers > 1 || offers > 0 && (control.rdma.is_some() || control.atomic.is_some()) {
            return Err(RdsError::InvalidArgument);
        }
        let Some(outgoing) = self.protocol.compose(from, &to, payload, false)? else { return Ok(None) };
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
        let now = adapter.platform().now();
        self.serve(adapter, id, now);
    }

    /// Takes the oldest message of a socket. What does not fit into `buffer` is gone.
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    #[inline]
    pub fn recvmsg<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Received, RdsError> {
        let Some((read, more)) = self.protocol.take_front(handle, buffer) else {
            return self.receive_message(adapter, handle, buffer);
        };
        if more {
            self.frames_are_free(adapter, handle);
        }
        let from = SocketAddr::new(address_of(read.source), read.sport);
        Ok(Received { from, len: read.len, message_len: read.message_len, cookie: None })
    }

    /// The same for any message.
    #[inline(never)]
    fn receive_message<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Received, RdsError> {
        let received = self.protocol.take_message(handle, buffer)?;
        self.frames_are_free(adapter, handle);
        Ok(received)
    }

    /// A message was read: a port may be free again, and a connection may get receives.
    #[cold]
    fn frames_are_free<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, handle: SocketHandle) {
        self.protocol.relieve(usize::from(handle.slot));
        self.send_changed_maps(adapter);
        if self.protocol.starved {
            self.frames_came_free(adapter);
        }
    }

    /// Copies the oldest message of a socket and leaves it there (`MSG_PEEK`).
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub fn peekmsg(&self, handle: SocketHandle, buffer: &mut [u8]) -> Result<Received, RdsError> {
        self.protocol.peek_message(handle, buffer)
    }

    /// Whatever a socket has for its application, in the order of Linux's `recvmsg`: ends of RDMA operations, congestion
    /// updates, messages. [`recvmsg`](Self::recvmsg) leaves the former where they are.
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub fn receive<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
    ) -> Result<Arrival, RdsError> {
        if let Some(notify) = self.take_notification(handle)? {
            return Ok(Arrival::RdmaStatus(notify));
        }
        match self.take_congestion_update(handle)? {
            0 => Ok(Arrival::Message(self.recvmsg(adapter, handle, buffer)?)),
            ports => Ok(Arrival::CongestionUpdate(ports)),
        }
    }
}
