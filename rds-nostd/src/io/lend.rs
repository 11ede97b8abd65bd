//! Zero-copy payloads: borrowed from the application to send, and by the application to receive.

use dat_nostd::{Adapter, DmaSlice, MemPriv, Platform};

use crate::error::RdsError;
use crate::frames::Lent;
use crate::ids::{ConnectionId, SocketHandle};
use crate::io::rdma::Request;
use crate::io::{Node, Rds};
use crate::message::FramesHandle;
use crate::rdma::{GATHER, Kind, Lend, MAX_IOVS, RdmaCookie};
use crate::wire::FRAGMENT_LEN;

impl Rds<'_> {
    /// Returns the bytes of a message received with
    /// [`MsgFlags::ZEROCOPY`](crate::MsgFlags::ZEROCOPY), fragment by fragment, in place.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`]: the frames were returned already.
    pub fn frames(&self, handle: FramesHandle) -> Result<impl Iterator<Item = DmaSlice<'_>>, RdsError> {
        let frames = &self.protocol.frames;
        frames.lent_frames(&handle).ok_or(RdsError::InvalidArgument)?;
        Ok(frames.lent_payloads(handle))
    }

    /// Returns the frames of a message received with
    /// [`MsgFlags::ZEROCOPY`](crate::MsgFlags::ZEROCOPY). Until then they count against the
    /// sender's share and the socket's receive buffer, like an unread message.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`]: the frames were returned already.
    pub fn give_back<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: FramesHandle,
    ) -> Result<(), RdsError> {
        let mut node = self.node(adapter);
        let owner = node.protocol.take_back_lent(handle).ok_or(RdsError::InvalidArgument)?;
        node.frames_are_free(owner);
        Ok(())
    }
}

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Creates the loan of a zero-copy payload.
    ///
    /// # Errors
    /// [`RdsError::NoMemory`], [`RdsError::Dat`]: see [`sendmsg`](crate::Rds::sendmsg).
    pub(crate) fn create_loan(
        &mut self,
        by: (SocketHandle, ConnectionId),
        lend: &Lend<'_>,
    ) -> Result<Lent, RdsError> {
        // A loan is an operation without remote memory: it holds the registration and reports the
        // end.
        let &Lend { payload: local, flags, user_token } = lend;
        let (kind, cookie, rights) = (Kind::Transfer, RdmaCookie(0), MemPriv::LOCAL_READ);
        let request = Request { kind, cookie, remote_offset: 0, local, rights, flags, user_token };
        let operation = self.create_operation(by, &request)?;
        let iov = self.protocol.operations.first_iov(operation).ok_or(RdsError::NoMemory)?;
        let (address, lmr_context) = match lend.payload {
            [_] => (iov.address, iov.lmr_context),
            _ => (0, Lent::SCATTERED),
        };
        Ok(Lent { address, lmr_context, operation })
    }

    /// Returns the bytes of a payload that can be sent without a copy.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`], [`RdsError::MessageSize`]: see [`sendmsg`](crate::Rds::sendmsg).
    pub(crate) fn check_loan(lend: &Lend<'_>) -> Result<usize, RdsError> {
        if lend.payload.is_empty() || lend.payload.iter().any(|iov| iov.is_empty()) {
            return Err(RdsError::InvalidArgument);
        }
        if lend.payload.len() > MAX_IOVS {
            return Err(RdsError::MessageSize);
        }
        // Bytes of the fragment at the start of a segment, and the number of segments in that
        // fragment so far.
        let (mut filled, mut parts) = (0, 0);
        for iov in lend.payload {
            let end = filled + iov.len();
            parts += 1;
            if parts >= GATHER {
                return Err(RdsError::InvalidArgument);
            }
            if end >= FRAGMENT_LEN {
                parts = usize::from(!end.is_multiple_of(FRAGMENT_LEN));
            }
            filled = end % FRAGMENT_LEN;
        }
        Ok(lend.payload.iter().fold(0, |sum, iov| iov.len().saturating_add(sum)))
    }
}
