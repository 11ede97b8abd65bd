//! Programming of MSI-X tables: entry `n` raises device vector `n` on this CPU.

use core::fmt;
use core::ptr::NonNull;

use volatile::{VolatileFieldAccess, VolatilePtr};

use crate::arch::config_space::ConfigSpace;
use crate::arch::{apic, vectors};
use crate::mem;
use crate::paging::{Caching, MapError};
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

/// Why MSI-X could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The function's capability or BARs.
    Pci(pci::Error),
    /// The table could not be mapped.
    Map(MapError),
    /// More vectors wanted than the function or the image has: wanted, there.
    TooFew(u16, u16),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pci(error) => error.fmt(f),
            Error::Map(error) => error.fmt(f),
            Error::TooFew(wanted, there) => write!(f, "MSI-X: {wanted} vectors wanted, {there} there"),
        }
    }
}

impl From<pci::Error> for Error {
    fn from(error: pci::Error) -> Self {
        Error::Pci(error)
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Error::Map(error)
    }
}

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
        return Err(Error::TooFew(count, there));
    }
    let bar = function.memory_bar(access, msix.table_bar)?;
    let address = msix.table_address(&bar)?;
    // Whole pages, with what else is in them: the table's window is this module's alone.
    let page = address - address % 4096;
    let len = (address - page + u64::from(msix.vectors) * pci::Msix::ENTRY_BYTES).next_multiple_of(4096);
    let table = mem::map_device(page, len, Caching::Uncached)? + (address - page) as usize;

    let vectors = Vectors { table, first, count };
    vectors.switch_on(access, function)?;
    Ok(vectors)
}

impl Vectors {
    /// Writes the entries and turns MSI-X on: at first, and again when the function has lost both in a reset. Memory decoding must be on.
    pub fn switch_on(&self, access: &ConfigSpace, function: &Function) -> Result<(), pci::Error> {
        let msix = function.msix(access)?;
        function.set_msix(access, &msix, true, true);
        for n in 0..self.count {
            self.program(n, vectors::FIRST_DEVICE + self.first + n as u8);
        }
        function.set_msix(access, &msix, true, false);
        Ok(())
    }

    /// What [`Clock::idle`](crate::Clock::idle) answers when entry `n` has fired.
    #[must_use]
    pub fn flag(&self, n: u16) -> u64 {
        1u64.checked_shl(u32::from(self.first) + u32::from(n)).unwrap_or(0)
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
