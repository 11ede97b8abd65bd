//! What is due in an adapter, and what happened.

use crate::adapter::census::AdapterCounters;

/// What is due, and what happened.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) counters: AdapterCounters,
    /// EPs that wait for a path; EPs that are closing.
    pub(crate) resolving: u32,
    pub(crate) closing: u32,
    /// EPs with a high watermark.
    pub(crate) watched: u32,
    /// Something happened since `prepare_idle` last asked.
    pub(crate) happened: bool,
}
