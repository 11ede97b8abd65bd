//! Shared receive queues, and the queue pairs on them.
//!
//! [`QueuePairs`] holds what the end of a queue pair needs, and nothing outside this directory sees
//! its fields.

pub(crate) mod draining;
pub(crate) mod life;
pub(crate) mod queue;
pub(crate) mod room;
pub(crate) mod sink;

use crate::adapter::part::part;

part! {
    /// The parts of an adapter that hold queue pairs, and the room in CQs for their completions.
    QueuePairs
}
