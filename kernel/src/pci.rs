//! PCI as the unikernel needs it: which functions there are, where their BARs are, MSI-X and PCI Express
//! capabilities, function-level reset. Generic over the access to configuration space, so that it runs on a fake one.
//!
//! pci_types' own header views size BARs without turning decoding off and panic on a reserved type, and its trait is
//! unsafe to call; its addresses and command register are used here. Sections are those of the PCI Express
//! Base Specification 5.0.

pub mod assign;

use core::fmt;
use heapless::Vec;
use pci_types::{CommandRegister, PciAddress};

/// Mellanox Technologies.
pub const VENDOR_MELLANOX: u16 = 0x15b3;

/// Most functions listed.
pub const MAX_FUNCTIONS: usize = 512;

const COMMAND: u16 = 0x04;
const CLASS: u16 = 0x08;
const HEADER: u16 = 0x0c;
const FIRST_BAR: u16 = 0x10;
const BUS_NUMBERS: u16 = 0x18;
const CAPABILITY_POINTER: u16 = 0x34;
const CAPABILITY_PCI_EXPRESS: u8 = 0x10;
const CAPABILITY_MSIX: u8 = 0x11;
/// The most capabilities that fit behind the header: a longer list has a loop.
const MAX_CAPABILITIES: usize = 48;

/// Access to configuration space. Safe, because a register that is not there reads as all ones.
pub trait ConfigAccess {
    /// Reads the 32-bit register at `offset`, a multiple of 4 below 256.
    fn read(&self, address: PciAddress, offset: u16) -> u32;
    /// Writes it.
    fn write(&self, address: PciAddress, offset: u16, value: u32);
}

/// One function, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is.
    pub address: PciAddress,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Base class and subclass, as `0x0207`.
    pub class: u16,
    /// Revision ID.
    pub revision: u8,
    /// Secondary bus, for a PCI-to-PCI bridge.
    pub secondary_bus: Option<u8>,
}

/// Buses of a segment that configuration space reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buses {
    /// The segment.
    pub segment: u16,
    /// The first bus.
    pub first: u8,
    /// The last bus.
    pub last: u8,
}

impl Buses {
    /// Whether `address` is on one of them.
    #[must_use]
    pub fn contain(&self, address: PciAddress) -> bool {
        address.segment() == self.segment && (self.first..=self.last).contains(&address.bus())
    }
}

/// Lists the functions on all of `buses`, at most [`MAX_FUNCTIONS`]. Every bus is looked at, because a machine has more root buses than
/// bus 0, and only its AML says which. `wait(nanos)` lets that much time pass: a function that was just reset may ask for some.
pub fn functions(
    access: &impl ConfigAccess,
    buses: impl Iterator<Item = Buses>,
    mut wait: impl FnMut(u64),
) -> Vec<Function, MAX_FUNCTIONS> {
    let mut found = Vec::new();
    for buses in buses {
        for bus in buses.first..=buses.last {
            scan_bus(access, (buses.segment, bus), &mut found, &mut wait);
        }
    }
    found
}

/// The vendor ID that says "ask again" (section 2.3.2).
const RETRY: u16 = 0x0001;
const RETRY_INTERVAL_NANOS: u64 = 10_000_000;
/// A function has a second after its reset (section 6.6.1).
const RETRIES: usize = 100;

fn scan_bus(
    access: &impl ConfigAccess,
    (segment, bus): (u16, u8),
    found: &mut Vec<Function, MAX_FUNCTIONS>,
    wait: &mut impl FnMut(u64),
) {
    for device in 0..32 {
        for function in 0..8 {
            let address = PciAddress::new(segment, bus, device, function);
            let mut id = access.read(address, 0);
            for _ in 0..RETRIES {
                if id as u16 != RETRY {
                    break;
                }
                wait(RETRY_INTERVAL_NANOS);
                id = access.read(address, 0);
            }
            if matches!(id as u16, 0xffff | 0 | RETRY) {
                if function == 0 {
                    break;
                }
                continue;
            }
            let class = access.read(address, CLASS);
            let header_type = (access.read(address, HEADER) >> 16) as u8;
            let bridge = header_type & 0x7f == 1;
            let secondary_bus = bridge.then(|| (access.read(address, BUS_NUMBERS) >> 8) as u8);
            let (vendor, device) = (id as u16, (id >> 16) as u16);
            let (class, revision) = ((class >> 16) as u16, class as u8);
            // Beyond the limit functions are not listed.
            if found.push(Function { address, vendor, device, class, revision, secondary_bus }).is_err() {
                return;
            }
            if function == 0 && header_type & 0x80 == 0 {
                break;
            }
        }
    }
}

/// Lets accesses through every bridge between `function` and its root bus: memory decoding down, bus mastering up.
pub fn open_bridges(access: &impl ConfigAccess, functions: &[Function], function: &Function) {
    let mut below = *function;
    // A tree is not deeper than its buses are many; bridges that name each other end here too.
    for _ in 0..=u8::MAX {
        let bus = below.address.bus();
        let above = functions.iter().find(|bridge| {
            bridge.address.segment() == function.address.segment()
                && bridge.secondary_bus == Some(bus)
                && bus != bridge.address.bus()
        });
        let Some(bridge) = above else { return };
        let on = CommandRegister::MEMORY_ENABLE | CommandRegister::BUS_MASTER_ENABLE;
        bridge.set_command(access, bridge.command(access) | on);
        below = *bridge;
    }
}

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBar {
    /// Physical address.
    pub address: u64,
    /// Length in bytes, a power of two.
    pub len: u64,
    /// Reads have no side effect, as far as the device says.
    pub prefetchable: bool,
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
    /// Transactions were still outstanding after 100 ms, or the function did not come back within a second.
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
            Error::ResetTimedOut => write!(f, "PCI: the function did not come back from its reset"),
        }
    }
}

impl core::error::Error for Error {}

impl Function {
    fn command(&self, access: &impl ConfigAccess) -> CommandRegister {
        CommandRegister::from_bits_retain(access.read(self.address, COMMAND) as u16)
    }

    /// The upper half is the status register, where ones clear: zeros leave it alone.
    fn set_command(&self, access: &impl ConfigAccess, command: CommandRegister) {
        access.write(self.address, COMMAND, command.bits().into());
    }

    /// Turns memory decoding and bus mastering on and INTx off.
    pub fn enable(&self, access: &impl ConfigAccess) {
        let on = CommandRegister::MEMORY_ENABLE
            | CommandRegister::BUS_MASTER_ENABLE
            | CommandRegister::INTERRUPT_DISABLE;
        self.set_command(access, self.command(access) | on);
    }

    /// Turns memory decoding on and leaves the rest as it is.
    pub fn decode_memory(&self, access: &impl ConfigAccess) {
        self.set_command(access, self.command(access) | CommandRegister::MEMORY_ENABLE);
    }

    /// Turns bus mastering off, so that the function can reach neither memory nor the interrupt controller.
    pub fn stop_bus_master(&self, access: &impl ConfigAccess) {
        self.set_command(access, self.command(access) - CommandRegister::BUS_MASTER_ENABLE);
    }

    /// Whether the function can reach memory. One that is gone cannot.
    pub fn masters_bus(&self, access: &impl ConfigAccess) -> bool {
        let command = access.read(self.address, COMMAND);
        command != u32::MAX
            && CommandRegister::from_bits_retain(command as u16).contains(CommandRegister::BUS_MASTER_ENABLE)
    }

    /// Calls `with` while the function decodes no addresses.
    fn without_decoding(&self, access: &impl ConfigAccess, with: impl FnOnce()) {
        let command = self.command(access);
        self.set_command(access, command - CommandRegister::MEMORY_ENABLE - CommandRegister::IO_ENABLE);
        with();
        self.set_command(access, command);
    }

    /// Address and size of memory BAR `index` (section 7.5.1.2.1). Decoding is off while the size mask is read.
    ///
    /// # Errors
    /// [`Error::NoMemoryBar`], [`Error::BadBar`], [`Error::NotAssigned`].
    pub fn memory_bar(&self, access: &impl ConfigAccess, index: u8) -> Result<MemoryBar, Error> {
        let (bar, _) = self.sized_bar(access, index)?;
        if bar.address == 0 { Err(Error::NotAssigned(index)) } else { Ok(bar) }
    }

    /// The same, with 0 for an address that was not assigned, and whether the BAR has 64 bits.
    fn sized_bar(&self, access: &impl ConfigAccess, index: u8) -> Result<(MemoryBar, bool), Error> {
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

    /// Offset of the first capability with this ID (section 7.5.3).
    pub fn capability(&self, access: &impl ConfigAccess, id: u8) -> Option<u16> {
        const STATUS_CAPABILITIES: u32 = 1 << 20;
        if access.read(self.address, COMMAND) & STATUS_CAPABILITIES == 0 {
            return None;
        }
        let mut at = access.read(self.address, CAPABILITY_POINTER) as u16 & 0xfc;
        for _ in 0..MAX_CAPABILITIES {
            if at < 0x40 {
                return None;
            }
            let header = access.read(self.address, at);
            if header as u8 == id {
                return Some(at);
            }
            at = (header >> 8) as u16 & 0xfc;
        }
        None
    }

    /// The PCI Express capability's figures.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub fn express(&self, access: &impl ConfigAccess) -> Result<Express, Error> {
        let at = self
            .capability(access, CAPABILITY_PCI_EXPRESS)
            .filter(|at| *at <= 0x100 - 0x14)
            .ok_or(Error::NoCapability("PCI Express"))?;
        let device_capabilities = access.read(self.address, at + 4);
        let device_control = access.read(self.address, at + 8) as u16;
        let link_status = (access.read(self.address, at + 0x10) >> 16) as u16;
        Ok(Express {
            at,
            max_payload: 128 << (device_control >> 5 & 0b111),
            max_read_request: 128 << (device_control >> 12 & 0b111),
            link_speed: (link_status & 0xf) as u8,
            link_width: (link_status >> 4 & 0x3f) as u8,
            function_level_reset: device_capabilities & (1 << 28) != 0,
        })
    }

    /// The MSI-X capability (section 7.7.2).
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub fn msix(&self, access: &impl ConfigAccess) -> Result<Msix, Error> {
        let at = self
            .capability(access, CAPABILITY_MSIX)
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
    pub fn set_msix(&self, access: &impl ConfigAccess, msix: &Msix, enable: bool, mask_all: bool) {
        let mut control = access.read(self.address, msix.at) & !(0b11 << 30);
        control |= u32::from(enable) << 31 | u32::from(mask_all) << 30;
        access.write(self.address, msix.at, control);
    }

    /// Resets this function alone (section 6.6.2) and gives it back its BARs and command register. `wait(nanos)` lets
    /// that much time pass.
    ///
    /// # Errors
    /// [`Error::NoCapability`], [`Error::NoFunctionLevelReset`], [`Error::ResetTimedOut`].
    pub fn reset(&self, access: &impl ConfigAccess, mut wait: impl FnMut(u64)) -> Result<(), Error> {
        const MILLISECOND: u64 = 1_000_000;
        const TRANSACTIONS_PENDING: u32 = 1 << 21;
        const INITIATE_RESET: u32 = 1 << 15;
        let express = self.express(access)?;
        if !express.function_level_reset {
            return Err(Error::NoFunctionLevelReset);
        }
        let control_at = express.at + 8;
        let command = self.command(access);
        let bars: [u32; 6] = core::array::from_fn(|i| access.read(self.address, FIRST_BAR + i as u16 * 4));

        self.set_command(access, command - CommandRegister::BUS_MASTER_ENABLE);
        let idle = (0..=100).any(|attempt| {
            if attempt > 0 {
                wait(MILLISECOND);
            }
            access.read(self.address, control_at) & TRANSACTIONS_PENDING == 0
        });
        if !idle {
            self.set_command(access, command);
            return Err(Error::ResetTimedOut);
        }
        // The upper half is the device status register, whose ones clear.
        let control = access.read(self.address, control_at) & 0xffff;
        access.write(self.address, control_at, control | INITIATE_RESET);
        // 100 ms without any access; then the function may still answer with retries for a while.
        wait(100 * MILLISECOND);
        let back = (0..90).any(|attempt| {
            if attempt > 0 {
                wait(10 * MILLISECOND);
            }
            access.read(self.address, 0) as u16 == self.vendor
        });
        if !back {
            return Err(Error::ResetTimedOut);
        }
        for (i, bar) in bars.iter().enumerate() {
            access.write(self.address, FIRST_BAR + i as u16 * 4, *bar);
        }
        access.write(self.address, control_at, control);
        self.set_command(access, command);
        Ok(())
    }
}

/// What the PCI Express capability says (section 7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Offset of the capability.
    at: u16,
    /// Largest packet payload that is set, in bytes.
    pub max_payload: u16,
    /// Largest read request that is set, in bytes.
    pub max_read_request: u16,
    /// Current link speed: 1 is 2.5 GT/s, 3 is 8 GT/s.
    pub link_speed: u8,
    /// Lanes in use.
    pub link_width: u8,
    /// The function can be reset by itself.
    pub function_level_reset: bool,
}

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

    /// The table's physical address, if it lies inside `bar`.
    ///
    /// # Errors
    /// [`Error::BadMsixTable`].
    pub fn table_address(&self, bar: &MemoryBar) -> Result<u64, Error> {
        let end = u64::from(self.table_offset) + u64::from(self.vectors) * Self::ENTRY_BYTES;
        if end > bar.len { Err(Error::BadMsixTable) } else { Ok(bar.address + u64::from(self.table_offset)) }
    }
}

#[cfg(test)]
mod tests;
