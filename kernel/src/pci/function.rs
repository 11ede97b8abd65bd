//! A function's header, access to its configuration space, and what can be wrong with it.

use core::fmt;

use driver_mlx::pci;
use pci_types::{CommandRegister, PciAddress};

const COMMAND: u16 = 0x04;
pub(super) const CLASS: u16 = 0x08;
pub(super) const HEADER: u16 = 0x0c;
pub(super) const FIRST_BAR: u16 = 0x10;
pub(super) const BUS_NUMBERS: u16 = 0x18;

/// Read access to configuration space.
pub trait ConfigRead {
    /// Reads the 32-bit register at `offset`, a multiple of 4 below 256. Returns all ones for a
    /// register that does not exist.
    fn read(&self, address: PciAddress, offset: u16) -> u32;
}

/// Access to configuration space. Private to the unikernel, because a write can move a BAR onto
/// memory or let a device write into it.
pub(crate) trait ConfigAccess: ConfigRead {
    /// Writes the 32-bit register at `offset`.
    fn write(&self, address: PciAddress, offset: u16, value: u32);
}

/// A function, from its header. Only enumeration makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub(super) address: PciAddress,
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) class: u16,
    pub(super) revision: u8,
    pub(super) secondary_bus: Option<u8>,
}

/// What is wrong with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The BAR is not implemented, or is an I/O BAR, or the second half of a 64-bit one.
    NoMemoryBar(u8),
    /// The BAR's type bits or size mask make no sense.
    BadBar(u8),
    /// Firmware gave the BAR no address.
    NotAssigned(u8),
    /// Nor is there a place for it.
    NoRoom(u8),
    /// No such capability.
    NoCapability(&'static str),
    /// The MSI-X table does not lie inside its BAR.
    BadMsixTable,
    /// The function cannot be reset by itself.
    NoFunctionLevelReset,
    /// The function did not answer within 60 s of its reset.
    ResetTimedOut,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoMemoryBar(index) => write!(f, "PCI: BAR{index} is no memory BAR"),
            Error::BadBar(index) => write!(f, "PCI: BAR{index} has an impossible type or size"),
            Error::NotAssigned(index) => write!(f, "PCI: firmware gave BAR{index} no address"),
            Error::NoRoom(index) => write!(
                f,
                "PCI: firmware gave BAR{index} no address, and there is no room for it: switch \"above 4G decoding\" on in its setup"
            ),
            Error::NoCapability(name) => write!(f, "PCI: no {name} capability"),
            Error::BadMsixTable => write!(f, "PCI: the MSI-X table is outside its BAR"),
            Error::NoFunctionLevelReset => write!(f, "PCI: no function-level reset"),
            Error::ResetTimedOut => write!(f, "PCI: the function did not answer within 60 s of its reset"),
        }
    }
}

impl core::error::Error for Error {}

/// Base class and subclass of host bridges.
pub(super) const HOST_BRIDGE: u16 = 0x0600;
/// Base class of bridges of all kinds, host bridges among them.
const CLASS_BRIDGE: u16 = 0x06;

impl Function {
    /// Returns the function's address.
    #[must_use]
    pub const fn address(&self) -> PciAddress {
        self.address
    }

    /// Returns the vendor ID.
    #[must_use]
    pub const fn vendor(&self) -> u16 {
        self.vendor
    }

    /// Returns the device ID.
    #[must_use]
    pub const fn device(&self) -> u16 {
        self.device
    }

    /// Returns base class and subclass, as `0x0207`.
    #[must_use]
    pub const fn class(&self) -> u16 {
        self.class
    }

    /// Returns the revision ID.
    #[must_use]
    pub const fn revision(&self) -> u8 {
        self.revision
    }

    /// Returns the secondary bus of a PCI-to-PCI bridge.
    #[must_use]
    pub const fn secondary_bus(&self) -> Option<u8> {
        self.secondary_bus
    }

    /// Returns whether the function is a bridge of any kind, by its header or its class.
    #[must_use]
    pub const fn is_bridge(&self) -> bool {
        self.secondary_bus.is_some() || self.class >> 8 == CLASS_BRIDGE
    }

    /// Turns memory decoding and bus mastering on and INTx off.
    pub(crate) fn enable(&self, access: &impl ConfigAccess) {
        self.config(access).enable();
    }

    /// Turns bus mastering on and INTx off.
    pub(crate) fn enable_bus_master(&self, access: &impl ConfigAccess) {
        let config = self.config(access);
        let on = CommandRegister::BUS_MASTER_ENABLE | CommandRegister::INTERRUPT_DISABLE;
        config.set_command(config.command() | on);
    }

    /// Turns memory decoding on and leaves the rest as it is.
    pub(crate) fn decode_memory(&self, access: &impl ConfigAccess) {
        let config = self.config(access);
        config.set_command(config.command() | CommandRegister::MEMORY_ENABLE);
    }

    /// Turns bus mastering off, so that the function can reach neither memory nor the interrupt controller.
    pub(crate) fn stop_bus_master(&self, access: &impl ConfigAccess) {
        self.config(access).stop();
    }

    /// Whether the function can reach memory. One that is gone cannot.
    pub fn masters_bus(&self, access: &impl ConfigRead) -> bool {
        self.bus_mastering(access) == Some(true)
    }

    /// The same; `None` of a function that does not answer, and may only seem to be gone.
    pub fn bus_mastering(&self, access: &impl ConfigRead) -> Option<bool> {
        pci::bus_mastering(access.read(self.address, COMMAND))
    }

    /// Calls `with` while the function decodes no addresses.
    pub(super) fn without_decoding(&self, access: &impl ConfigAccess, with: impl FnOnce()) {
        let config = self.config(access);
        let command = config.command();
        config.set_command(command - CommandRegister::MEMORY_ENABLE - CommandRegister::IO_ENABLE);
        with();
        config.set_command(command);
    }

    /// Offset of the first capability with this ID (section 7.5.3).
    pub fn capability(&self, access: &impl ConfigRead, id: u8) -> Option<u16> {
        pci::find_capability(|offset| access.read(self.address, offset), id)
    }
}
