//! What a queue pair is to be made with.

use driver_mlx::Pd;

use crate::base::attr::EpAttributes;
use crate::base::handle::SrqHandle;
use crate::base::types::WATERMARK_INFINITE;
use crate::ep::streams::{Streams, reservations};
use crate::ep::watermark::Watermarks;

/// What a QP is made by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) pd: Pd,
    pub(crate) streams: Streams,
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) attributes: EpAttributes,
}

impl Plan {
    /// Requests and receives that may be outstanding.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let (requests, receives) = reservations(&self.attributes, &self.streams);
        // Receives of an EP on an SRQ are not its own.
        (requests.saturating_sub(1), if self.srq.is_some() { 0 } else { receives })
    }

    /// The watermarks that the EP begins with: those of an EP on an SRQ are among its attributes.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let (soft, hard) = match self.srq {
            Some(_) => (self.attributes.srq_soft_hw, WATERMARK_INFINITE),
            None => (WATERMARK_INFINITE, WATERMARK_INFINITE),
        };
        Watermarks { soft, hard }
    }
}
