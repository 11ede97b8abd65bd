//! The MSI-X capability (PCI Express Base Specification 5.0 section 7.7.2).

use super::bar::MemoryBar;
use super::function::{ConfigAccess, ConfigRead, Error, Function};
use crate::memory_map::Range;

const CAPABILITY: u8 = 0x11;

/// Where the MSI-X table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Offset of the capability.
    at: u16,
    /// Entries in the table, 1 to 2048.
    pub vectors: u16,
    /// BAR of the table.
    pub table_bar: u8,
    /// Offset of the table in it.
    pub table_offset: u32,
    /// BAR of the pending bits.
    pub pending_bar: u8,
    /// Offset of the pending bits in it.
    pub pending_offset: u32,
}

impl Msix {
    /// Bytes of one table entry.
    pub const ENTRY_BYTES: u64 = 16;

    /// Returns the table's physical addresses.
    ///
    /// # Errors
    /// [`Error::BadMsixTable`]: the table is not inside `bar`.
    pub(crate) fn table(&self, bar: &MemoryBar) -> Result<Range, Error> {
        let start = u64::from(self.table_offset);
        let end = start + u64::from(self.vectors) * Self::ENTRY_BYTES;
        if end > bar.len {
            return Err(Error::BadMsixTable);
        }
        Ok(Range { start: bar.address + start, end: bar.address + end })
    }
}

impl Function {
    /// The MSI-X capability (section 7.7.2).
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub fn msix(&self, access: &impl ConfigRead) -> Result<Msix, Error> {
        let at = self
            .capability(access, CAPABILITY)
            .filter(|at| *at <= 0x100 - 12)
            .ok_or(Error::NoCapability("MSI-X"))?;
        let control = (access.read(self.address, at) >> 16) as u16;
        let table = access.read(self.address, at + 4);
        let pending = access.read(self.address, at + 8);
        Ok(Msix {
            at,
            vectors: (control & 0x7ff) + 1,
            table_bar: (table & 7) as u8,
            table_offset: table & !7,
            pending_bar: (pending & 7) as u8,
            pending_offset: pending & !7,
        })
    }

    /// Switches MSI-X on or off, and the mask over all its vectors.
    pub(crate) fn set_msix(&self, access: &impl ConfigAccess, msix: &Msix, enable: bool, mask_all: bool) {
        let mut control = access.read(self.address, msix.at) & !(0b11 << 30);
        control |= u32::from(enable) << 31 | u32::from(mask_all) << 30;
        access.write(self.address, msix.at, control);
    }
}
