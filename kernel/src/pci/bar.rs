//! Where the memory BARs of a function are, and how large.

use super::function::{ConfigAccess, Error, FIRST_BAR, Function, HOST_BRIDGE};
use crate::memory_map::Range;

/// A memory BAR, as its function had it when it was sized. Holding one gives no access to the
/// registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBar {
    pub(super) address: u64,
    /// A power of two; the end does not overflow.
    pub(super) len: u64,
    pub(super) prefetchable: bool,
}

impl MemoryBar {
    /// Returns the physical address.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes, a power of two.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.len
    }

    /// Returns whether reads have no side effect, according to the device.
    #[must_use]
    pub const fn is_prefetchable(&self) -> bool {
        self.prefetchable
    }

    /// Returns the physical addresses.
    #[must_use]
    pub const fn range(&self) -> Range {
        Range { start: self.address, end: self.address.saturating_add(self.len) }
    }
}

impl Function {
    /// Address and size of memory BAR `index` (section 7.5.1.2.1). Decoding is off while the size mask is read. The BARs
    /// of a host bridge are not sized, because some host bridges forward no memory accesses during that time.
    ///
    /// # Errors
    /// [`Error::NoMemoryBar`], [`Error::BadBar`], [`Error::NotAssigned`].
    pub(crate) fn memory_bar(&self, access: &impl ConfigAccess, index: u8) -> Result<MemoryBar, Error> {
        if self.class == HOST_BRIDGE {
            return Err(Error::NoMemoryBar(index));
        }
        let (bar, _) = self.sized_bar(access, index)?;
        if bar.address == 0 { Err(Error::NotAssigned(index)) } else { Ok(bar) }
    }

    /// The same, with 0 for an address that was not assigned, and whether the BAR has 64 bits.
    pub(super) fn sized_bar(
        &self,
        access: &impl ConfigAccess,
        index: u8,
    ) -> Result<(MemoryBar, bool), Error> {
        let last = if self.secondary_bus.is_some() { 1 } else { 5 };
        if index > last {
            return Err(Error::NoMemoryBar(index));
        }
        // Slots are taken from the first on, so that the upper half of a 64-bit BAR is not taken for a BAR.
        let mut slot = 0;
        while slot < index {
            let wide = access.read(self.address, FIRST_BAR + u16::from(slot) * 4) & 0b111 == 0b100;
            slot += if wide { 2 } else { 1 };
        }
        if slot != index {
            return Err(Error::NoMemoryBar(index));
        }
        let low_at = FIRST_BAR + u16::from(index) * 4;
        let low = access.read(self.address, low_at);
        let wide = match low & 0b111 {
            0b000 => false,
            0b100 if index < last => true,
            bits if bits & 1 == 1 => return Err(Error::NoMemoryBar(index)),
            _ => return Err(Error::BadBar(index)),
        };
        let high = if wide { access.read(self.address, low_at + 4) } else { 0 };

        let mask_of = |at, value| {
            access.write(self.address, at, u32::MAX);
            let mask = access.read(self.address, at);
            access.write(self.address, at, value);
            mask
        };
        let (mut low_mask, mut high_mask) = (0, u32::MAX);
        self.without_decoding(access, || {
            low_mask = mask_of(low_at, low) & !0xf;
            if wide {
                high_mask = mask_of(low_at + 4, high);
            }
        });

        if low_mask == 0 && (!wide || high_mask == 0) {
            return Err(Error::NoMemoryBar(index));
        }
        let mask = (u64::from(high_mask) << 32) | u64::from(low_mask);
        let len = (!mask).wrapping_add(1);
        let address = (u64::from(high) << 32) | u64::from(low & !0xf);
        if !len.is_power_of_two() || address & !mask != 0 || address.checked_add(len).is_none() {
            return Err(Error::BadBar(index));
        }
        Ok((MemoryBar { address, len, prefetchable: low & 0b1000 != 0 }, wide))
    }
}
