//! How long a message took from its arrival to its reader, as Linux tells it.

use dat_nostd::{Adapter, Platform};

use crate::cmsg::args::{RxTrace, RxTraceOption};
use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Rds;

impl Rds<'_> {
    /// Chooses what is told beside each message of how long it took (`SO_RDS_MSG_RXPATH_LATENCY`); nothing at first. While a socket of the
    /// node wants to know, all that arrives takes longer.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_rxpath_latency(&mut self, handle: SocketHandle, what: RxTraceOption) -> Result<(), RdsError> {
        self.set_rx_trace(handle, what.encode())
    }

    /// What [`set_rxpath_latency`](Self::set_rxpath_latency) chose.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn rxpath_latency_option(&self, handle: SocketHandle) -> Result<RxTraceOption, RdsError> {
        let asked = self.protocol().sockets.open(handle)?.rx_trace;
        Ok(RxTraceOption::decode(&asked).unwrap_or_default())
    }

    /// What is to be told of the message that [`recvmsg`](Self::recvmsg) gives next (`RDS_CMSG_RXPATH_LATENCY`), if it is read now; None if
    /// there is none, or the socket does not want to know.
    ///
    /// Of a message that was there before a socket wanted to know, or that is of this node itself, all is 0 but for what can be known.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn rxpath_latency<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        handle: SocketHandle,
    ) -> Result<Option<RxTrace>, RdsError> {
        let option = self.rxpath_latency_option(handle)?;
        if option.positions().is_empty() {
            return Ok(None);
        }
        Ok(self.next_latency(adapter, handle)?.map(|took| option.trace(took)))
    }
}
