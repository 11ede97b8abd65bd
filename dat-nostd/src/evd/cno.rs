//! A consumer notification object.

use crate::base::handle::{EvdHandle, IaHandle};
use driver_mlx::{Instant, Wake};

/// `DAT_OS_WAIT_PROXY_AGENT`: called when the CNO triggers, with the EVD that did it, or with none when the CNO goes away.
#[derive(Clone, Copy, Debug)]
pub struct ProxyAgent {
    /// Must not block.
    pub function: fn(u64, Option<EvdHandle>),
    /// First argument of the function.
    pub instance_data: u64,
}

impl PartialEq for ProxyAgent {
    fn eq(&self, other: &Self) -> bool {
        self.instance_data == other.instance_data && core::ptr::fn_addr_eq(self.function, other.function)
    }
}

impl Eq for ProxyAgent {}

/// A consumer notification object.
#[derive(Debug)]
pub struct Cno {
    pub(crate) ia: IaHandle,
    pub(crate) agent: Option<ProxyAgent>,
    /// The EVD that triggered first since the last wait took it.
    pub(crate) triggered: Option<EvdHandle>,
    /// The last EVD went away under the waiter.
    pub(crate) released: bool,
    /// Deadline of the open wait.
    pub(crate) wait: Option<Instant>,
    /// EVDs that feed it.
    pub(crate) users: u32,
}

/// Result of [`Adapter::cno_wait_poll`](crate::Adapter::cno_wait_poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CnoWait {
    /// Still waiting; poll again by this time, or when [`Adapter::poll`](crate::Adapter::poll) has run.
    Pending(Wake),
    /// Triggered, by this EVD first; none if that one is gone, or all are.
    Triggered(Option<EvdHandle>),
}
