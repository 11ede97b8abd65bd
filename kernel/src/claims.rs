//! Physical addresses of devices that are in use, each by one owner.
//!
//! Firmware, a defect in it, or a device may place a BAR over memory or over another device's
//! registers. Such a range is refused, because safe code would write to memory through it.

use core::fmt;

use heapless::Vec;
use pci_types::PciAddress;

use crate::memory_map::{MemoryMap, Range};

/// Most ranges in use.
const MAX_CLAIMS: usize = 256;

/// The interrupt controllers, firmware's ROM, and other registers that chipsets have at fixed
/// addresses.
pub(crate) const CHIPSET: Range = Range { start: 0xfec0_0000, end: 4 << 30 };

/// The owner of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The unikernel.
    Unikernel,
    /// The function at this address.
    Function(PciAddress),
}

/// Why a range of physical addresses cannot be used as registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The range overlaps memory.
    Memory,
    /// The range overlaps a range that is in use.
    InUse,
    /// The range is empty, or too many ranges are in use.
    Refused,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "the registers' addresses overlap memory: firmware placed the BAR wrongly",
            Self::InUse => "the registers' addresses are in use",
            Self::Refused => "no registers, or too many ranges of registers in use",
        })
    }
}

impl core::error::Error for Conflict {}

/// Memory, and the ranges in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    memory: MemoryMap,
    claimed: Vec<(Range, Owner), MAX_CLAIMS>,
}

impl Claims {
    /// `memory` is all usable memory of the machine.
    pub(crate) const fn new(memory: MemoryMap) -> Self {
        Self { memory, claimed: Vec::new() }
    }

    /// Records a range of the unikernel's own, wherever it is.
    pub(crate) fn keep(&mut self, range: Range) {
        // Beyond the capacity, every later claim is refused.
        let _ = self.claimed.push((range, Owner::Unikernel));
    }

    /// Claims `range` for `owner`.
    ///
    /// # Errors
    /// [`Conflict`]; a range that `owner` has is in use, too.
    pub(crate) fn claim(&mut self, range: Range, owner: Owner) -> Result<(), Conflict> {
        self.check(range, None)?;
        self.claimed.push((range, owner)).map_err(|_| Conflict::Refused)
    }

    /// Checks that `range` overlaps neither memory nor a range of an owner other than `owner`.
    ///
    /// # Errors
    /// [`Conflict`].
    pub(crate) fn check(&self, range: Range, owner: Option<Owner>) -> Result<(), Conflict> {
        if range.is_empty() {
            return Err(Conflict::Refused);
        }
        if self.memory.ranges().iter().any(|memory| memory.overlaps(range)) {
            return Err(Conflict::Memory);
        }
        let others = self.claimed.iter().filter(|(_, claimed_by)| Some(*claimed_by) != owner);
        if others.into_iter().any(|(claimed, _)| claimed.overlaps(range)) {
            return Err(Conflict::InUse);
        }
        Ok(())
    }

    /// Releases all ranges of `owner`.
    pub(crate) fn release(&mut self, owner: Owner) {
        self.claimed.retain(|(_, claimed_by)| *claimed_by != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pvh::{MemoryMapEntry, TYPE_RAM};

    const PAGE: u64 = 4096;
    fn nic() -> Owner {
        Owner::Function(PciAddress::new(0, 1, 0, 0))
    }

    fn hca() -> Owner {
        Owner::Function(PciAddress::new(0, 2, 0, 0))
    }

    fn range(start: u64, len: u64) -> Range {
        Range { start, end: start + len }
    }

    fn claims() -> Claims {
        let entry = MemoryMapEntry { address: 0x10_0000, len: 0x1000_0000, kind: TYPE_RAM };
        let mut claims = Claims::new(MemoryMap::from_entries([entry].into_iter()).unwrap());
        claims.keep(CHIPSET);
        claims.keep(range(0xb000_0000, 256 << 20));
        claims
    }

    #[test]
    fn claim_refuses_memory_and_ranges_in_use() {
        let mut claims = claims();
        // The image's text, memory's last byte, a BAR larger than memory.
        for (start, len) in [(0x100_0000, PAGE), (0x1010_0000 - 1, 16), (0, 1 << 40)] {
            assert_eq!(claims.claim(range(start, len), nic()), Err(Conflict::Memory), "{start:#x}");
        }
        // Local APIC, configuration space.
        for start in [0xfee0_0000, 0xbfff_f000] {
            assert_eq!(claims.claim(range(start, PAGE), nic()), Err(Conflict::InUse), "{start:#x}");
        }
        assert_eq!(claims.claim(range(0xe000_0000, 0), nic()), Err(Conflict::Refused));
        assert_eq!(claims.claim(range(0x1010_0000, PAGE), nic()), Ok(()), "directly above memory");
        assert_eq!(claims.claim(range(0xe000_0000, 64 << 10), nic()), Ok(()));
        assert_eq!(claims.claim(range(0xe000_0000, 64 << 10), nic()), Err(Conflict::InUse), "once");
        assert_eq!(claims.claim(range(0xe000_fff0, PAGE), hca()), Err(Conflict::InUse));
        assert_eq!(claims.claim(range(0xe001_0000, PAGE), hca()), Ok(()));
    }

    #[test]
    fn check_passes_the_owners_own_ranges() {
        let mut claims = claims();
        claims.claim(range(0xe000_0000, 64 << 10), nic()).unwrap();
        // An MSI-X table in the BAR of its own function.
        assert_eq!(claims.check(range(0xe000_2000, PAGE), Some(nic())), Ok(()));
        assert_eq!(claims.check(range(0xe000_2000, PAGE), Some(hca())), Err(Conflict::InUse));
        assert_eq!(claims.check(range(0xfee0_0000, PAGE), Some(nic())), Err(Conflict::InUse));
        assert_eq!(claims.check(range(0x20_0000, PAGE), Some(nic())), Err(Conflict::Memory));
    }

    #[test]
    fn released_ranges_can_be_claimed_again() {
        let mut claims = claims();
        claims.claim(range(0xe000_0000, PAGE), nic()).unwrap();
        claims.claim(range(0xe100_0000, PAGE), hca()).unwrap();
        claims.release(nic());
        assert_eq!(claims.claim(range(0xe000_0000, PAGE), hca()), Ok(()));
        assert_eq!(claims.claim(range(0xe100_0000, PAGE), nic()), Err(Conflict::InUse));
    }

    #[test]
    fn claims_beyond_the_capacity_are_refused() {
        let mut claims = Claims::default();
        for i in 0..MAX_CLAIMS as u64 {
            assert_eq!(claims.claim(range(i * PAGE, PAGE), nic()), Ok(()));
        }
        assert_eq!(claims.claim(range(1 << 40, PAGE), nic()), Err(Conflict::Refused));
    }
}
