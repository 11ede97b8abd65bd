//! What a platform does to its driver: the faults of PCI and of a kernel's services.

use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Offset of the data word of the models' vendor-specific capability. The driver cannot detect that
/// a write there got lost: it would use the former value.
const VENDOR_DATA: u16 = 0xc0 + 0x14;

/// Faults of one node's platform. All are off at first.
#[derive(Debug, Default)]
pub struct Trouble {
    /// The function cannot be reset.
    pub no_reset: Cell<bool>,
    /// Bus mastering cannot be switched.
    pub no_bus_master: Cell<bool>,
    /// No page is mapped write-combining.
    pub no_write_combining: Cell<bool>,
    /// Waits end after a microsecond, without a reason.
    pub restless: Cell<bool>,
    /// Accesses of the driver to configuration space so far.
    pub accesses: Cell<u32>,
    /// Accesses that fail: reads return nothing, writes get lost.
    pub failing: RefCell<Range<u32>>,
}

impl Trouble {
    /// Counts a read of configuration space. Returns whether it fails.
    pub(crate) fn loses_read(&self) -> bool {
        let access = self.accesses.replace(self.accesses.get() + 1);
        self.failing.borrow().contains(&access)
    }

    /// The same for a write.
    pub(crate) fn loses_write(&self, offset: u16) -> bool {
        self.loses_read() && offset != VENDOR_DATA
    }
}
