//! Receive-path latency of messages, in Linux's format.

use dat_nostd::{Adapter, Platform};

use crate::cmsg::args::{RxTrace, RxTraceOption};
use crate::error::RdsError;
use crate::ids::SocketHandle;
use crate::io::Rds;

impl Rds<'_> {
    /// Selects the receive-path latencies to report with each message
    /// (`SO_RDS_MSG_RXPATH_LATENCY`), none by default. Slows all receives of the node while any
    /// socket selects some.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_rxpath_latency(&mut self, handle: SocketHandle, what: RxTraceOption) -> Result<(), RdsError> {
        self.set_rx_trace(handle, what.encode())
    }

    /// Returns the selection of [`set_rxpath_latency`](Self::set_rxpath_latency).
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn rxpath_latency_option(&self, handle: SocketHandle) -> Result<RxTraceOption, RdsError> {
        let asked = self.protocol().sockets.open(handle)?.rx_trace;
        Ok(RxTraceOption::decode(&asked).unwrap_or_default())
    }

    /// Returns the latencies to report with the next message of [`recvmsg`](Self::recvmsg)
    /// (`RDS_CMSG_RXPATH_LATENCY`), if it is read now. Returns `None` without a message or without
    /// a selection.
    ///
    /// Latencies that were not measured are 0: those of loopback messages, and of messages that
    /// arrived before a socket selected any.
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
