//! Shared receive queues. DAT 1.2, SRQ management.

pub(crate) mod drain;
pub(crate) mod draining;
pub(crate) mod ended_qp;
pub(crate) mod life;
pub(crate) mod queue;
pub(crate) mod sink;
