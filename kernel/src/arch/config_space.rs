//! PCI configuration space: memory-mapped (ECAM) where ACPI says so, else by the ports of mechanism 1.

use pci_types::PciAddress;
use x86_64::instructions::port::Port;

use crate::acpi::Ecam;
use crate::mem;
use crate::paging::{Caching, MapError};
use crate::pci::ConfigAccess;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const BYTES_PER_BUS: u64 = 1 << 20;

/// Access to configuration space.
#[derive(Clone, Copy, Debug)]
pub enum ConfigSpace {
    /// Memory-mapped: address of the first bus's window, and the buses.
    Ecam {
        /// Virtual address of `first_bus`.
        base: usize,
        /// First bus.
        first_bus: u8,
        /// Last bus.
        last_bus: u8,
    },
    /// Ports 0xcf8 and 0xcfc.
    Ports,
}

impl ConfigSpace {
    /// Maps what ACPI found, or falls back to the ports.
    pub fn new(ecam: Option<Ecam>) -> Result<ConfigSpace, MapError> {
        let Some(ecam) = ecam else { return Ok(ConfigSpace::Ports) };
        let (first_bus, last_bus) = (ecam.first_bus, ecam.last_bus);
        let phys = ecam.base.checked_add(u64::from(first_bus) * BYTES_PER_BUS).ok_or(MapError::BadRange)?;
        let len = (u64::from(last_bus - first_bus) + 1) * BYTES_PER_BUS;
        let base = mem::map_device(phys, len, Caching::Uncached)?;
        Ok(ConfigSpace::Ecam { base, first_bus, last_bus })
    }

    fn register(base: usize, first_bus: u8, address: PciAddress, offset: u16) -> usize {
        base + (usize::from(address.bus() - first_bus) << 20)
            + (usize::from(address.device()) << 15)
            + (usize::from(address.function()) << 12)
            + usize::from(offset & 0xffc)
    }

    fn port_address(address: PciAddress, offset: u16) -> u32 {
        1 << 31
            | u32::from(address.bus()) << 16
            | u32::from(address.device()) << 11
            | u32::from(address.function()) << 8
            | u32::from(offset & 0xfc)
    }
}

impl ConfigAccess for ConfigSpace {
    fn read(&self, address: PciAddress, offset: u16) -> u32 {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if !(first_bus..=last_bus).contains(&address.bus()) {
                    return u32::MAX;
                }
                let register = Self::register(base, first_bus, address, offset);
                // SAFETY: inside the window that `new` mapped, 4-byte aligned.
                unsafe { core::ptr::read_volatile(register as *const u32) }
            }
            // SAFETY: mechanism 1; nothing else uses the two ports, and handlers do not.
            ConfigSpace::Ports => unsafe {
                Port::<u32>::new(ADDRESS_PORT).write(Self::port_address(address, offset));
                Port::<u32>::new(DATA_PORT).read()
            },
        }
    }

    fn write(&self, address: PciAddress, offset: u16, value: u32) {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if (first_bus..=last_bus).contains(&address.bus()) {
                    let register = Self::register(base, first_bus, address, offset);
                    // SAFETY: inside the window that `new` mapped, 4-byte aligned.
                    unsafe { core::ptr::write_volatile(register as *mut u32, value) };
                }
            }
            // SAFETY: as for reading.
            ConfigSpace::Ports => unsafe {
                Port::<u32>::new(ADDRESS_PORT).write(Self::port_address(address, offset));
                Port::<u32>::new(DATA_PORT).write(value);
            },
        }
    }
}
