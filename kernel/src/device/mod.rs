//! Devices other than HCAs: PCI functions that an application drives itself.
//!
//! [`Machine::device`](crate::Machine::device) hands out each function once. Registers are mapped
//! by BAR, and only where they overlap neither memory nor other registers in use. Safe code can
//! therefore reach the device and nothing else. Letting the device reach memory is `unsafe`
//! ([`Device::enable_bus_master`]), and so are writes to configuration space:
//!
//! ```ignore
//! let card = *machine.pci().iter().find(|function| function.vendor() == 0x8086)?;
//! let device = machine.device(&card)?;
//! let registers = device.registers(0)?;
//! let vectors = machine.enable_msix(&device, 1)?;
//! // SAFETY: the card was reset, and the rings that it is about to be given are in `machine.dma(..)`.
//! unsafe { device.enable_bus_master() };
//! ```

pub(crate) mod error;

pub use crate::arch::config_space::ConfigSpace;
use crate::arch::interrupts;
pub use crate::arch::msix::Vectors;
pub use crate::claims::Conflict;
use crate::claims::Owner;
use crate::mem;
pub use crate::mem::registers::Registers;
use crate::pci::{self, Function, MemoryBar};
pub use error::Error;

/// A PCI function that the application drives. Each function is handed out once.
#[derive(Debug)]
pub struct Device {
    access: &'static ConfigSpace,
    function: Function,
}

impl Device {
    /// `function` was handed out, to no other owner.
    pub(crate) const fn new(access: &'static ConfigSpace, function: Function) -> Self {
        Self { access, function }
    }

    /// Returns the function.
    #[must_use]
    pub const fn function(&self) -> &Function {
        &self.function
    }

    /// Returns address and size of memory BAR `index`, 0 to 5.
    ///
    /// # Errors
    /// [`pci::Error`]: there is no such BAR, or firmware gave it no address.
    pub fn bar(&self, index: u8) -> Result<MemoryBar, pci::Error> {
        self.function.memory_bar(self.access, index)
    }

    /// Maps the registers of memory BAR `index`, and turns memory decoding on. Once for each BAR.
    ///
    /// # Errors
    /// - [`Error::Pci`]: there is no such BAR, or firmware gave it no address.
    /// - [`Error::Conflict`]: the BAR overlaps memory or registers in use, this device's own among
    ///   them.
    /// - [`Error::Map`]: there are no page tables left.
    pub fn registers(&self, index: u8) -> Result<Registers, Error> {
        let bar = self.bar(index)?;
        self.decode_memory()?;
        Registers::claim(bar.range(), self.owner())
    }

    /// Reads the 32-bit register at `offset`, a multiple of 4 below 256, of configuration space.
    #[must_use]
    pub fn read_config(&self, offset: u16) -> u32 {
        self.access.read(self.function.address(), offset)
    }

    /// Writes the 32-bit register at `offset`, a multiple of 4 below 256, of configuration space.
    ///
    /// # Safety
    /// 1. Afterwards no BAR overlaps memory or registers in use, and BARs with [`Registers`] are
    ///    where they were.
    /// 2. If the write lets the device reach memory: as for [`Device::enable_bus_master`].
    pub unsafe fn write_config(&self, offset: u16, value: u32) {
        // SAFETY: no other owner has the function, and it is no bridge; conditions 2 and 3 are 1
        // and 2 above.
        unsafe { self.access.write(self.function.address(), offset, value) };
    }

    /// Resets the function, which forgets everything but its BARs; MSI-X and bus mastering are off.
    /// Takes at least 100 ms.
    ///
    /// # Errors
    /// [`pci::Error`]: it cannot be reset by itself, or does not come back.
    pub fn reset(&self) -> Result<(), pci::Error> {
        self.function.reset(self.access, interrupts::wait)
    }

    /// Lets the device read and write memory, and raise MSI-X interrupts, which are writes. Legacy
    /// interrupts are turned off.
    ///
    /// # Safety
    /// 1. The device has no address of memory from an earlier driver: it was reset
    ///    ([`Device::reset`]), or its DMA engines were stopped.
    /// 2. As long as bus mastering is on, every write to its [`Registers`], by any owner of them,
    ///    directs it only to memory that is set aside for it, such as
    ///    [`Machine::dma`](crate::Machine::dma)'s.
    pub unsafe fn enable_bus_master(&self) {
        self.function.enable_bus_master(self.access);
    }

    /// Keeps the device from memory, and from raising interrupts.
    pub fn disable_bus_master(&self) {
        self.function.stop_bus_master(self.access);
    }

    pub(crate) const fn owner(&self) -> Owner {
        Owner::Function(self.function.address())
    }

    /// Turns memory decoding on, after a check of all BARs, which it turns on together.
    pub(crate) fn decode_memory(&self) -> Result<(), Error> {
        for bar in (0..6).filter_map(|index| self.bar(index).ok()) {
            mem::check(bar.range(), self.owner())?;
        }
        self.function.decode_memory(self.access);
        Ok(())
    }
}
