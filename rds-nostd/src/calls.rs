//! `sendmsg` and `recvmsg` with their flags, as the C calls have them: what a thin layer of C needs beside the other functions.

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::error::RdsError;
use crate::node::Rds;
use crate::rdma::{Control, RdmaCookie};
use crate::socket::{Arrival, SocketHandle};

bitflags::bitflags! {
    /// Flags of `sendmsg` and `recvmsg`, with the values of Linux.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MsgFlags: u32 {
        /// Out-of-band data, of which there is none.
        const OOB = 0x0001;
        /// Leave the message where it is.
        const PEEK = 0x0002;
        /// Asked: give the message's whole length. Told: the buffer was too short for it.
        const TRUNC = 0x0020;
        /// Do not wait; nothing here waits in any case.
        const DONTWAIT = 0x0040;
        const _ = !0;
    }
}

/// What `recvmsg` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsgReceived {
    /// The call's value, bytes. 0 for a notification and for a congestion update, as for a message of no bytes.
    pub value: usize,
    /// `msg_flags`: TRUNC or nothing.
    pub flags: MsgFlags,
    /// What came; None for out-of-band data.
    pub arrival: Option<Arrival>,
}

impl Rds<'_> {
    /// `recvmsg`: the next of what a socket has for its application, in Linux's order (see [`receive`](Self::receive)). PEEK leaves a
    /// message, but neither a notification nor a congestion update.
    ///
    /// # Errors
    /// [`RdsError::Again`]: nothing there. [`RdsError::BadSocket`].
    pub fn recvmsg_with<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        buffer: &mut [u8],
        flags: MsgFlags,
    ) -> Result<MsgReceived, RdsError> {
        if flags.contains(MsgFlags::OOB) {
            self.protocol.sockets.open(handle)?;
            return Ok(MsgReceived { value: 0, flags: MsgFlags::empty(), arrival: None });
        }
        let arrival = if flags.contains(MsgFlags::PEEK) {
            self.peek(handle, buffer)?
        } else {
            self.receive(adapter, handle, buffer)?
        };
        let mut told = MsgFlags::empty();
        let value = match arrival {
            Arrival::Message(message) => {
                told.set(MsgFlags::TRUNC, message.message_len > message.len);
                if flags.contains(MsgFlags::TRUNC) { message.message_len } else { message.len }
            }
            Arrival::RdmaStatus(_) | Arrival::CongestionUpdate(_) => 0,
        };
        Ok(MsgReceived { value, flags: told, arrival: Some(arrival) })
    }

    fn peek(&mut self, handle: SocketHandle, buffer: &mut [u8]) -> Result<Arrival, RdsError> {
        if let Some(notify) = self.take_notification(handle)? {
            return Ok(Arrival::RdmaStatus(notify));
        }
        match self.take_congestion_update(handle)? {
            0 => Ok(Arrival::Message(self.peekmsg(handle, buffer)?)),
            ports => Ok(Arrival::CongestionUpdate(ports)),
        }
    }

    /// `sendmsg`, to `to` or to where [`connect`](Self::connect) said; gives the call's value and the cookie of memory that was mapped.
    ///
    /// # Errors
    /// [`RdsError::NotSupported`] for any flag but DONTWAIT; [`RdsError::NotConnected`]: nowhere to send to. Those of
    /// [`sendmsg_control`](Self::sendmsg_control).
    pub fn sendmsg_with<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        to: Option<SocketAddr>,
        payload: &[u8],
        control: Option<&Control<'_>>,
        flags: MsgFlags,
    ) -> Result<(usize, Option<RdmaCookie>), RdsError> {
        if !MsgFlags::DONTWAIT.contains(flags) {
            return Err(RdsError::NotSupported);
        }
        let to = match to {
            Some(to) => to,
            None => self.peer_address(handle)?,
        };
        match control {
            Some(control) => {
                let cookie = self.sendmsg_control(adapter, handle, to, payload, control)?;
                Ok((payload.len(), cookie))
            }
            None => Ok((self.sendmsg(adapter, handle, to, payload)?, None)),
        }
    }
}
