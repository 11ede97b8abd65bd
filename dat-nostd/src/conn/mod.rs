//! Connections: service points, requests, the active side, the end.
//!
//! [`Connections`] holds what an adapter's connections need, and nothing outside this directory sees
//! its fields. Calls of the specification are methods of `Adapter`, which delegate to it.

pub(crate) mod attempt;
pub(crate) mod close;
pub(crate) mod closing;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod cr;
pub(crate) mod duplicate;
pub(crate) mod framing;
pub(crate) mod ip;
pub(crate) mod pending;
pub(crate) mod service;

use driver_mlx::Platform;

use crate::adapter::part::part;

part! {
    /// The parts of an adapter that connections go through.
    Connections
}

impl<'s, P: Platform> Connections<'_, 's, P> {
    /// Sends the messages that the connection manager has queued.
    pub(crate) fn run_port(&mut self) {
        if self.progress.pending_mut().take_flush() {
            self.device.flush();
        }
    }
}
