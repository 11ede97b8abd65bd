//! What exists in an adapter, and what went by.

/// What went by, beside the port's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterCounters {
    /// Completions that the device cannot have meant.
    pub bad_completions: u64,
    /// Completions of EPs that are gone.
    pub stale_completions: u64,
    /// EVDs that lost an event.
    pub overflows: u64,
}

/// What exists, to compare one moment with another: nothing may leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Live objects of the kind named.
pub struct AdapterCensus {
    pub ias: usize,
    pub pzs: usize,
    pub lmrs: usize,
    pub evds: usize,
    pub eps: usize,
    pub psps: usize,
    pub rsps: usize,
    pub crs: usize,
    pub cnos: usize,
    pub srqs: usize,
    pub rmrs: usize,
    /// Events queued in software.
    pub events: u32,
    /// Places of the event pool that EVDs have reserved.
    pub events_reserved: u32,
    /// EPs on their way to disconnected, and those that wait for a path.
    pub closing: u32,
    pub resolving: u32,
    /// Connections in the connection manager, those in TimeWait included.
    pub connections: usize,
    /// Bytes of the DMA region that are not in use.
    pub free_bytes: usize,
}
