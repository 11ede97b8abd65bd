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

use crate::adapter::device::Device;
use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;
use crate::evd::delivery::Delivery;

/// The parts of an adapter that connections go through.
pub(crate) struct Connections<'a, 's, P: Platform> {
    device: &'a mut Device<'s, P>,
    objects: &'a mut Objects<'s, P::Bar>,
    progress: &'a mut Progress<'s>,
}

impl<'a, 's, P: Platform> Connections<'a, 's, P> {
    pub(crate) fn new(
        device: &'a mut Device<'s, P>,
        objects: &'a mut Objects<'s, P::Bar>,
        progress: &'a mut Progress<'s>,
    ) -> Self {
        Self { device, objects, progress }
    }

    fn delivery(&mut self) -> Delivery<'_, 's, P::Bar> {
        Delivery::new(self.objects, self.progress)
    }

    /// Sends the messages that the connection manager has queued.
    pub(crate) fn run_port(&mut self) {
        if self.progress.connections.take_flush() && !self.device.dead {
            let now = self.device.now();
            let _ = self.device.port.poll(now);
        }
    }
}
