//! What the data path of raw Ethernet keeps.

use crate::object::nic::Sq;
use std::collections::VecDeque;

/// What the data path of raw Ethernet keeps.
#[derive(Debug, Default)]
pub struct NicTransport {
    /// Send queues with work.
    pub(super) run: VecDeque<u32>,
    /// Frames on their way back to the function.
    pub(super) loopback: VecDeque<Own>,
}

/// A frame of the function's own.
#[derive(Debug)]
pub(super) struct Own {
    /// TIS of the send queue.
    pub(super) tisn: Option<u32>,
    pub(super) bytes: Vec<u8>,
}

impl NicTransport {
    /// Frames that wait on their way back to the device.
    pub(super) const LOOPBACK_LIMIT: usize = 1_024;

    /// Puts a send queue in line for its turn.
    pub(crate) fn schedule(&mut self, sq: &mut Sq) {
        if !sq.scheduled {
            sq.scheduled = true;
            self.run.push_back(sq.sqn);
        }
    }

    /// Forgets a send queue that goes.
    pub(crate) fn forget(&mut self, sq: &Sq) {
        if sq.scheduled {
            self.run.retain(|sqn| *sqn != sq.sqn);
        }
    }

    /// Forgets all work.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns whether there is no work.
    pub(crate) fn is_idle(&self) -> bool {
        self.run.is_empty() && self.loopback.is_empty()
    }
}
