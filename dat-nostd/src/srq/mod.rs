//! Shared receive queues, and the queue pairs on them.
//!
//! [`QueuePairs`] holds what the end of a queue pair needs, and nothing outside this directory sees
//! its fields.

pub(crate) mod draining;
pub(crate) mod life;
pub(crate) mod queue;
pub(crate) mod room;
pub(crate) mod sink;

use driver_mlx::Platform;

use crate::adapter::device::Device;
use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;
use crate::evd::delivery::Delivery;

/// The parts of an adapter that hold queue pairs, and the room in CQs for their completions.
pub(crate) struct QueuePairs<'a, 's, P: Platform> {
    device: &'a mut Device<'s, P>,
    objects: &'a mut Objects<'s, P::Bar>,
    progress: &'a mut Progress<'s>,
}

impl<'a, 's, P: Platform> QueuePairs<'a, 's, P> {
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
}
