//! PCI configuration space: memory-mapped (ECAM) where ACPI says so, else by the ports of mechanism 1.

use heapless::Vec;
use pci_types::PciAddress;
use spin::Once;
use x86_64::instructions::port::Port;

use crate::acpi::{Ecam, MAX_WINDOWS};
use crate::mem;
use crate::paging::{Caching, MapError};
use crate::pci::{Buses, ConfigAccess, ConfigRead};

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const BYTES_PER_BUS: u64 = 1 << 20;

/// Some buses of a segment, memory-mapped.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Virtual address of the first bus's registers.
    base: usize,
    buses: Buses,
}

/// Access to configuration space: memory-mapped, or where nothing is, of segment 0 by ports 0xcf8 and 0xcfc.
#[derive(Debug)]
pub struct ConfigSpace {
    windows: Vec<Window, MAX_WINDOWS>,
}

static SPACE: Once<ConfigSpace> = Once::new();

/// What the ports reach.
const BY_PORTS: Buses = Buses { segment: 0, first: 0, last: 255 };

impl ConfigSpace {
    /// Maps what ACPI found, or falls back to the ports. Once: later calls give what the first has made.
    pub(crate) fn open(ecam: &[Ecam]) -> Result<&'static ConfigSpace, MapError> {
        SPACE.try_call_once(|| Self::new(ecam))
    }

    fn new(ecam: &[Ecam]) -> Result<ConfigSpace, MapError> {
        let mut windows = Vec::new();
        for ecam in ecam {
            let buses = Buses { segment: ecam.segment, first: ecam.first_bus, last: ecam.last_bus };
            let phys =
                ecam.base.checked_add(u64::from(buses.first) * BYTES_PER_BUS).ok_or(MapError::BadRange)?;
            let len = (u64::from(buses.last - buses.first) + 1) * BYTES_PER_BUS;
            let base = mem::map_device(phys, len, Caching::Uncached)?;
            mem::keep(ecam.range());
            // There is room for as many as ACPI lists.
            let _ = windows.push(Window { base, buses });
        }
        Ok(ConfigSpace { windows })
    }

    /// The buses that can be looked at.
    pub fn buses(&self) -> impl Iterator<Item = Buses> + Clone + '_ {
        let ports = self.windows.is_empty().then_some(BY_PORTS);
        self.windows.iter().map(|window| window.buses).chain(ports)
    }

    /// Reads the 32-bit register at `offset` of the function at `address`, as [`ConfigRead`] does.
    #[must_use]
    pub fn read(&self, address: PciAddress, offset: u16) -> u32 {
        ConfigRead::read(self, address, offset)
    }

    /// Writes the 32-bit register at `offset`, a multiple of 4 below 256. A register that does not
    /// exist is ignored.
    ///
    /// # Safety
    /// 1. No driver operates the function, or a function behind it if it is a bridge.
    /// 2. Afterwards no BAR and no window of a bridge overlaps memory or registers that are in use.
    /// 3. The function gains no access to memory (bus mastering, MSI) other than memory that is set
    ///    aside for it.
    pub unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        ConfigAccess::write(self, address, offset, value);
    }

    /// The register's address, where it is memory-mapped.
    fn register(&self, address: PciAddress, offset: u16) -> Option<usize> {
        let window = self.windows.iter().find(|window| window.buses.contain(address))?;
        let bus = usize::from(address.bus() - window.buses.first);
        let (device, function) = (usize::from(address.device()), usize::from(address.function()));
        Some(window.base + (bus << 20) + (device << 15) + (function << 12) + usize::from(offset & 0xffc))
    }

    /// What goes to the address port, where the ports are used.
    fn port_address(&self, address: PciAddress, offset: u16) -> Option<u32> {
        (self.windows.is_empty() && BY_PORTS.contain(address)).then(|| {
            1 << 31
                | u32::from(address.bus()) << 16
                | u32::from(address.device()) << 11
                | u32::from(address.function()) << 8
                | u32::from(offset & 0xfc)
        })
    }
}

// Not inlined: an access takes a microsecond, and there are many places that make one.
impl ConfigRead for ConfigSpace {
    #[inline(never)]
    fn read(&self, address: PciAddress, offset: u16) -> u32 {
        if let Some(register) = self.register(address, offset) {
            // SAFETY: inside a window that `new` mapped, 4-byte aligned.
            return unsafe { core::ptr::read_volatile(register as *const u32) };
        }
        let Some(port_address) = self.port_address(address, offset) else { return u32::MAX };
        // SAFETY: mechanism 1; nothing else uses the two ports, and handlers do not.
        unsafe {
            Port::<u32>::new(ADDRESS_PORT).write(port_address);
            Port::<u32>::new(DATA_PORT).read()
        }
    }
}

impl ConfigAccess for ConfigSpace {
    #[inline(never)]
    fn write(&self, address: PciAddress, offset: u16, value: u32) {
        if let Some(register) = self.register(address, offset) {
            // SAFETY: as for reading.
            unsafe { core::ptr::write_volatile(register as *mut u32, value) };
        } else if let Some(port_address) = self.port_address(address, offset) {
            // SAFETY: as for reading.
            unsafe {
                Port::<u32>::new(ADDRESS_PORT).write(port_address);
                Port::<u32>::new(DATA_PORT).write(value);
            }
        }
    }
}
