//! Connections that are being made and closed.

use driver_mlx::Duration;

use crate::base::list::List;
use crate::ep::{ClosingEp, ResolvingEp};

/// Connections that are being made and closed.
#[derive(Debug)]
pub(crate) struct Pending {
    /// EPs that wait for a path.
    resolving: List<ResolvingEp>,
    /// EPs whose requests are flushed, or whose peers have not answered a disconnect.
    closing: List<ClosingEp>,
    /// The connection manager has something to send.
    flush: bool,
    /// Source port of the last attempt.
    local_port: u16,
    /// Time for which requests for a service without a listener are repeated.
    service_patience: Duration,
}

impl Pending {
    /// Without any. Source ports follow `local_port`.
    pub(crate) fn new(local_port: u16, service_patience: Duration) -> Self {
        let (resolving, closing) = (List::default(), List::default());
        Self { resolving, closing, flush: false, local_port, service_patience }
    }

    /// Number of EPs that wait for a path.
    pub(crate) fn resolving(&self) -> u32 {
        self.resolving.len()
    }

    /// EPs that wait for a path.
    pub(super) fn resolving_mut(&mut self) -> &mut List<ResolvingEp> {
        &mut self.resolving
    }

    /// Number of EPs that are closing.
    pub(crate) fn closing(&self) -> u32 {
        self.closing.len()
    }

    /// EPs that are closing.
    pub(super) fn closing_mut(&mut self) -> &mut List<ClosingEp> {
        &mut self.closing
    }

    /// Time for which requests for a service without a listener are repeated.
    pub(super) fn service_patience(&self) -> Duration {
        self.service_patience
    }

    /// The connection manager has queued messages.
    pub(super) fn request_flush(&mut self) {
        self.flush = true;
    }

    /// Returns whether the connection manager has queued messages since the last call.
    pub(crate) fn take_flush(&mut self) -> bool {
        core::mem::take(&mut self.flush)
    }

    /// Returns a source port for the next attempt: of the dynamic range, from a start that differs
    /// from boot to boot.
    pub(super) fn next_local_port(&mut self) -> u16 {
        self.local_port = self.local_port.wrapping_add(1);
        0xc000 | self.local_port & 0x3fff
    }
}
