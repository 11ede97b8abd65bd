//! Programming of MSI-X tables: entry `n` raises device vector `n` on this CPU.

use core::ptr::NonNull;

use volatile::{VolatileFieldAccess, VolatilePtr};

use crate::arch::config_space::ConfigSpace;
use crate::arch::{apic, interrupts, vectors};
use crate::claims::Owner;
use crate::device::error::Error;
use crate::mem;
use crate::paging::Caching;
use crate::pci::{self, Function};

/// One entry of the table (PCI Express Base 5.0, section 7.7.2.7).
#[derive(Clone, Copy, VolatileFieldAccess)]
#[repr(C)]
struct TableEntry {
    address_low: u32,
    address_high: u32,
    data: u32,
    control: u32,
}

const MASKED: u32 = 1;
/// Fixed delivery to the CPU whose APIC ID is in bits 12 to 19 (SDM volume 3, section 11.11.1).
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;

/// A function's MSI-X table, in use.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    table: usize,
    first: u8,
    count: u16,
}

/// Maps the table of `function`, lets entries 0 to `count` - 1 raise device vectors `first`, `first` + 1, ... of
/// [`vectors`], and turns MSI-X on. Memory decoding must be on.
pub fn enable(access: &ConfigSpace, function: &Function, first: u8, count: u16) -> Result<Vectors, Error> {
    let msix = function.msix(access)?;
    let there = msix.vectors.min(u16::from(vectors::DEVICE_VECTORS.saturating_sub(first)));
    if count == 0 || count > there {
        return Err(Error::TooFewVectors(count, there));
    }
    let bar = function.memory_bar(access, msix.table_bar)?;
    let range = msix.table(&bar)?;
    // The function may have other windows on the same BAR.
    mem::check(range, Owner::Function(function.address()))?;
    // Whole pages, with the other registers in them: the table's window is this module's alone.
    let page = range.start - range.start % 4096;
    let len = (range.end - page).next_multiple_of(4096);
    let table = mem::map_device(page, len, Caching::Uncached)? + (range.start - page) as usize;

    let vectors = Vectors { table, first, count };
    vectors.switch_on(access, function)?;
    Ok(vectors)
}

impl Vectors {
    /// Writes the entries and turns MSI-X on: at first, and again when the function has lost both
    /// in a reset. Memory decoding must be on.
    pub(crate) fn switch_on(&self, access: &ConfigSpace, function: &Function) -> Result<(), pci::Error> {
        let msix = function.msix(access)?;
        function.set_msix(access, &msix, true, true);
        for n in 0..self.count {
            self.program(n, vectors::FIRST_DEVICE + self.first + n as u8);
        }
        function.set_msix(access, &msix, true, false);
        Ok(())
    }

    /// Takes the flags of the entries that fired since they were last taken: bit `n` for entry `n`.
    /// Other devices' flags stay. Take them before looking at what the device wrote, so that an
    /// interrupt that comes meanwhile is not lost.
    #[must_use]
    pub fn take_fired(&self) -> u64 {
        interrupts::take_fired(self.mask()) >> self.first
    }

    /// The machine's vectors, as [`interrupts::idle`] wants them.
    pub(crate) fn mask(&self) -> u64 {
        let entries = u64::MAX >> (64 - self.count.clamp(1, 64));
        entries.checked_shl(self.first.into()).unwrap_or(0)
    }

    fn entry(&self, n: u16) -> VolatilePtr<'_, TableEntry> {
        let address = self.table + usize::from(n.min(self.count - 1)) * size_of::<TableEntry>();
        let pointer = NonNull::new(address as *mut TableEntry).unwrap_or(NonNull::dangling());
        // SAFETY:
        // 1. `enable` mapped the whole table of at least `count` entries, uncached, and checked that it lies in its BAR.
        // 2. The window is in the upper part of the address space, so it is not null.
        unsafe { VolatilePtr::new(pointer) }
    }

    fn program(&self, n: u16, vector: u8) {
        let (_, apic_id) = apic::identity();
        let entry = self.entry(n);
        entry.control().write(MASKED);
        // One CPU: its APIC ID is below 256 also with an x2APIC.
        entry.address_low().write(MESSAGE_ADDRESS | (apic_id & 0xff) << 12);
        entry.address_high().write(0);
        entry.data().write(vector.into());
        entry.control().write(0);
    }

    /// Masks or unmasks entry `n`.
    pub fn set_masked(&self, n: u16, masked: bool) {
        if n < self.count {
            self.entry(n).control().write(if masked { MASKED } else { 0 });
        }
    }
}
