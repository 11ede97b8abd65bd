//! The ACPI tables that the unikernel uses: PM timer and power registers (FADT), the sleep object
//! (DSDT, SSDTs), mapped PCI configuration space (MCFG), DMA remapping units (DMAR, IVRS), I/O APICs (MADT), HPET.
//!
//! Firmware's tables are read with bounds; a malformed table counts as absent. A table with a wrong checksum is used, and its
//! signature is reported, as in Linux: firmware often has a wrong checksum in a sound table.

pub mod register;
mod sleep;
#[cfg(test)]
mod tests;

use core::cell::Cell;
use core::fmt;

use heapless::Vec;

use crate::acpi::register::Register;
use crate::memory_map::Range;
use crate::pvh::{u32_at, u64_at};
use crate::uart::{self, Setting};

/// Reads physical memory.
pub trait PhysicalMemory {
    /// Copies `into.len()` bytes from `address`; false when they cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// The memory-mapped configuration space of some buses of a PCI segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecam {
    /// Physical address of bus 0's configuration space, also when the first bus is another.
    pub base: u64,
    /// The segment.
    pub segment: u16,
    /// First bus decoded.
    pub first_bus: u8,
    /// Last bus decoded.
    pub last_bus: u8,
}

impl Ecam {
    /// The physical addresses that it occupies.
    #[must_use]
    pub const fn range(&self) -> Range {
        const BYTES_PER_BUS: u64 = 1 << 20;
        let start = self.base.saturating_add(self.first_bus as u64 * BYTES_PER_BUS);
        Range { start, end: self.base.saturating_add((self.last_bus as u64 + 1) * BYTES_PER_BUS) }
    }
}

/// Most entries of MCFG that are kept.
pub const MAX_WINDOWS: usize = 16;
/// Most DMA remapping units that are kept: machines with eight sockets have some forty.
pub const MAX_UNITS: usize = 128;

/// Most tables with a wrong checksum that are named.
const MAX_DAMAGED: usize = 8;
/// Most I/O APICs that are kept: machines with eight sockets have some forty.
pub const MAX_IO_APICS: usize = 64;

/// A DMA remapping unit, by the physical address of its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Intel's VT-d.
    Intel(u64),
    /// AMD's IOMMU.
    Amd(u64),
}

impl Unit {
    /// Returns the page of its registers.
    #[must_use]
    pub const fn range(self) -> Range {
        let (Self::Intel(start) | Self::Amd(start)) = self;
        Range { start, end: start.saturating_add(4096) }
    }
}

/// Registers that switch the machine off and reset it (ACPI 6.5 sections 4.8.3.2, 4.8.3.6, 4.8.3.7, 7.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// I/O ports of the PM1 control registers, a and b.
    pub pm1_control: [Option<u16>; 2],
    /// The sleep control register of a machine without PM1 registers ("hardware-reduced").
    pub sleep_control: Option<Register>,
    /// The values of `SLP_TYP` that switch the machine off, of both PM1 control registers. The sleep
    /// control register has the first one.
    pub soft_off: Option<[u8; 2]>,
    /// I/O port of SMI commands, and the command that hands the power registers to the operating
    /// system.
    pub enable: Option<(u16, u8)>,
    /// Register and value that reset the machine.
    pub reset: Option<(Register, u8)>,
}

/// Why ACPI cannot switch the machine off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSoftOff {
    /// Neither a PM1 control register nor a sleep control register: there is no FADT.
    Register,
    /// Neither the DSDT nor an SSDT has a sleep object `_S5_` with two integers.
    Object,
}

impl fmt::Display for NoSoftOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Register => "ACPI names no sleep control register",
            Self::Object => "no sleep object _S5_ in ACPI's DSDT and SSDTs",
        })
    }
}

/// Registers that switch the machine off, with their sleep types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftOff {
    /// I/O ports of the PM1 control registers; there is at least one.
    Pm1([Option<(u16, u8)>; 2]),
    /// The sleep control register.
    SleepControl(Register, u8),
}

impl Power {
    /// Returns the registers that switch the machine off.
    ///
    /// # Errors
    /// [`NoSoftOff`].
    pub fn soft_off_registers(&self) -> Result<SoftOff, NoSoftOff> {
        let types = |there: bool| match self.soft_off {
            _ if !there => Err(NoSoftOff::Register),
            types => types.ok_or(NoSoftOff::Object),
        };
        match (self.pm1_control, self.sleep_control) {
            ([None, None], control) => {
                let [sleep_type, _] = types(control.is_some())?;
                Ok(SoftOff::SleepControl(control.ok_or(NoSoftOff::Register)?, sleep_type))
            }
            (ports, _) => {
                let [a, b] = ports.map(|port| port.ok_or(NoSoftOff::Register));
                let [first, second] = types(true)?;
                Ok(SoftOff::Pm1([a.map(|port| (port, first)).ok(), b.map(|port| (port, second)).ok()]))
            }
        }
    }
}

/// The tables' contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// I/O port of the PM timer (3.579545 MHz, at least 24 bits).
    pub pm_timer_port: Option<u16>,
    /// PCI configuration space.
    pub ecam: Vec<Ecam, MAX_WINDOWS>,
    /// DMA remapping units.
    pub remapping: Vec<Unit, MAX_UNITS>,
    /// I/O APICs, by the physical address of their registers.
    pub io_apics: Vec<u64, MAX_IO_APICS>,
    /// Physical address of the HPET's registers.
    pub hpet: Option<u64>,
    /// Number of entries of MCFG, of remapping units, and of I/O APICs, beyond those that are kept.
    pub dropped: [usize; 3],
    /// Signatures of tables whose checksum is wrong.
    pub damaged: Vec<[u8; 4], MAX_DAMAGED>,
    /// Firmware's console.
    pub console: Option<Setting>,
    /// Firmware wants the x2APIC to stay off.
    pub no_x2apic: bool,
    /// Switching off, and reset.
    pub power: Power,
}

/// Most bytes read in all. A DSDT of 1.6 MiB, as servers with Xeon SP have it, is read twice. The
/// limit bounds the time that a table with a damaged length takes, because reads of holes are slow.
const MAX_BYTES: u64 = 256 << 20;
/// Most entries followed in one table: servers list some hundred SSDTs.
const MAX_ENTRIES: u64 = 1024;
const HEADER_BYTES: u64 = 36;

/// Physical memory of which [`MAX_BYTES`] can be read.
struct Bounded<'m, M> {
    memory: &'m M,
    left: Cell<u64>,
}

impl<M: PhysicalMemory> PhysicalMemory for Bounded<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(left) = self.left.get().checked_sub(into.len() as u64) else { return false };
        self.left.set(left);
        self.memory.read(address, into)
    }
}

impl Tables {
    /// Follows the RSDP at `rsdp`. If the loader named none (0), searches the places where BIOSes
    /// put it.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub fn find(memory: &impl PhysicalMemory, rsdp: u64) -> Tables {
        let memory = &Bounded { memory, left: Cell::new(MAX_BYTES) };
        let mut tables = Tables::default();
        let rsdp = if rsdp == 0 { scan_for_rsdp(memory) } else { rsdp };
        let Some((root, entry_bytes)) = root_table(memory, rsdp) else { return tables };
        let Some((signature, len)) = header(memory, root) else { return tables };
        if !tables.is_usable(memory, root, signature, len) {
            return tables;
        }
        let count = ((u64::from(len) - HEADER_BYTES) / entry_bytes).min(MAX_ENTRIES);
        let mut in_ssdt = None;
        for i in 0..count {
            let mut entry = [0; 8];
            // Entries of the XSDT need not be aligned, and those of the RSDT are 4 bytes.
            let wanted = entry.split_at_mut(entry_bytes as usize).0;
            if !memory.read(root + HEADER_BYTES + i * entry_bytes, wanted) {
                break;
            }
            let address = u64::from_le_bytes(entry);
            let Some((signature, len)) = header(memory, address) else { continue };
            // Only tables in use are summed, because the others may be large.
            let mut usable = || tables.is_usable(memory, address, signature, len);
            match &signature {
                b"FACP" if usable() => tables.take_fadt(memory, address, len),
                b"MCFG" if usable() => tables.take_mcfg(memory, address, len),
                b"DMAR" if usable() => tables.take_dmar(memory, address, len),
                b"SPCR" if usable() => tables.take_spcr(memory, address, len),
                b"APIC" if usable() => tables.take_madt(memory, address, len),
                b"HPET" if usable() => tables.take_hpet(memory, address, len),
                b"IVRS" if usable() => tables.take_ivrs(memory, address, len),
                b"SSDT" if in_ssdt.is_none() && usable() => {
                    in_ssdt = sleep::soft_off(memory, address, len);
                }
                _ => {}
            }
        }
        // The FADT, which leads to the DSDT, may come after SSDTs.
        tables.power.soft_off = tables.power.soft_off.or(in_ssdt);
        tables
    }

    /// Returns whether all of a table can be read; remembers it if its checksum is wrong.
    fn is_usable(
        &mut self,
        memory: &impl PhysicalMemory,
        address: u64,
        signature: [u8; 4],
        len: u32,
    ) -> bool {
        let Some(total) = sum_of(memory, address, len) else { return false };
        if total != 0 && !self.damaged.contains(&signature) {
            // The list keeps the first eight.
            let _ = self.damaged.push(signature);
        }
        true
    }

    /// FADT (ACPI 6.5 section 5.2.9): each register has an old field and, in longer tables, an
    /// extended one. Either may be empty.
    fn take_fadt(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let mut bytes = [0; 276];
        let there = bytes.split_at_mut(276.min(len as usize)).0;
        if !memory.read(address, there) {
            return;
        }
        let port = |old: usize, extended: usize| {
            let port = |value: u64| u16::try_from(value).ok().filter(|port| *port != 0);
            port(u32_at(&bytes, old).into()).or(if bytes.get(extended) == Some(&SYSTEM_IO) {
                port(u64_at(&bytes, extended + 4))
            } else {
                None
            })
        };
        self.pm_timer_port = self.pm_timer_port.or(port(76, 208));
        self.power.pm1_control = [port(64, 172), port(68, 184)];
        self.power.enable =
            port(48, usize::MAX).map(|command| (command, bytes[52])).filter(|(_, value)| *value != 0);
        let has_reset = u32_at(&bytes, 112) & RESET_REGISTER != 0;
        self.power.reset = register(&bytes, 116).filter(|_| has_reset).map(|reset| (reset, bytes[128]));
        self.power.sleep_control = register(&bytes, 244);
        // The extended address may be beyond what can be read.
        self.power.soft_off = [u64_at(&bytes, 140), u32_at(&bytes, 40).into()].into_iter().find_map(|dsdt| {
            let (signature, len) = header(memory, dsdt)?;
            let usable = signature == *b"DSDT" && self.is_usable(memory, dsdt, signature, len);
            if usable { sleep::soft_off(memory, dsdt, len) } else { None }
        });
    }

    /// MCFG: allocation structures of 16 bytes from 44 (PCI Firmware Specification 3.2 section
    /// 4.1.2).
    fn take_mcfg(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let count = u64::from(len).saturating_sub(44) / 16;
        for i in 0..count.min(MAX_ENTRIES) {
            let mut entry = [0; 16];
            if !memory.read(address + 44 + i * 16, &mut entry) {
                return;
            }
            let segment = u16::from_le_bytes([entry[8], entry[9]]);
            let ecam = Ecam { base: u64_at(&entry, 0), segment, first_bus: entry[10], last_bus: entry[11] };
            if ecam.base != 0 && ecam.base.is_multiple_of(1 << 20) && ecam.first_bus <= ecam.last_bus {
                self.dropped[0] += usize::from(self.ecam.push(ecam).is_err());
            }
        }
    }

    /// SPCR (Serial Port Console Redirection Table 1.10).
    fn take_spcr(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let mut bytes = [0; 60];
        if len as usize >= bytes.len() && memory.read(address, &mut bytes) {
            self.console = uart::spcr(&bytes);
        }
    }

    /// HPET: a generic address structure at 40 (IA-PC HPET 1.0a section 3.2.4).
    fn take_hpet(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let mut bytes = [0; 56];
        if len as usize >= bytes.len() && memory.read(address, &mut bytes) && bytes[40] == SYSTEM_MEMORY {
            self.hpet = Some(u64_at(&bytes, 44)).filter(|base| *base != 0 && base.is_multiple_of(4096));
        }
    }

    /// MADT: structures {type, length of 8 bits} from 44. An I/O APIC (type 1) has its address at 4 (ACPI 6.5 section 5.2.12.3).
    fn take_madt(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        const IO_APIC: u8 = 1;
        let mut at = 44u32;
        while at.checked_add(12).is_some_and(|end| end <= len) {
            let mut entry = [0; 12];
            if !memory.read(address + u64::from(at), &mut entry) {
                return;
            }
            let base = u64::from(u32_at(&entry, 4));
            if entry[0] == IO_APIC && base != 0 && base.is_multiple_of(4096) && !self.io_apics.contains(&base)
            {
                self.dropped[2] += usize::from(self.io_apics.push(base).is_err());
            }
            // A length of zero would not end.
            at = at.saturating_add(u32::from(entry[1]).max(2));
        }
    }

    fn add_unit(&mut self, unit: Unit) {
        let base = unit.range().start;
        // IVRS lists a unit once for each version of its structure.
        if base != 0 && base.is_multiple_of(4096) && !self.remapping.contains(&unit) {
            self.dropped[1] += usize::from(self.remapping.push(unit).is_err());
        }
    }

    /// IVRS: blocks {type of 8 bits, flags, length of 16 bits} from 48. Those of units (types 0x10,
    /// 0x11, 0x40) have their registers' address at 8 (AMD I/O Virtualization 3.08 section 5.2.2).
    fn take_ivrs(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let mut at = 48u32;
        while at.checked_add(16).is_some_and(|end| end <= len) {
            let mut entry = [0; 16];
            if !memory.read(address + u64::from(at), &mut entry) {
                return;
            }
            if matches!(entry[0], 0x10 | 0x11 | 0x40) {
                self.add_unit(Unit::Amd(u64_at(&entry, 8)));
            }
            // A length of zero would not end.
            at = at.saturating_add(u32::from(u16::from_le_bytes([entry[2], entry[3]])).max(4));
        }
    }

    /// DMAR: flags at 37, structures {type, length} from 48. A remapping unit (type 0) has its
    /// registers' address at 8 (VT-d 4.1 sections 8.1 and 8.3).
    fn take_dmar(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        const X2APIC_OPT_OUT: u8 = 1 << 1;
        let mut flags = [0];
        self.no_x2apic = memory.read(address + 37, &mut flags) && flags[0] & X2APIC_OPT_OUT != 0;
        let mut at = 48u32;
        while at.checked_add(16).is_some_and(|end| end <= len) {
            let mut entry = [0; 16];
            if !memory.read(address + u64::from(at), &mut entry) {
                return;
            }
            let entry_len = u32::from(u16::from_le_bytes([entry[2], entry[3]]));
            if u16::from_le_bytes([entry[0], entry[1]]) == 0 {
                self.add_unit(Unit::Intel(u64_at(&entry, 8)));
            }
            // A length of zero would keep us here.
            at = at.saturating_add(entry_len.max(4));
        }
    }
}

/// Address spaces of a generic address structure.
const SYSTEM_MEMORY: u8 = 0;
const SYSTEM_IO: u8 = 1;
/// FADT's flag RESET_REG_SUP.
const RESET_REGISTER: u32 = 1 << 10;

/// Returns the register of the generic address structure at `at` in a FADT (ACPI 6.5 section 5.2.3.2).
fn register(fadt: &[u8; 276], at: usize) -> Option<Register> {
    match (fadt[at], u64_at(fadt, at + 4)) {
        (_, 0) => None,
        (SYSTEM_MEMORY, address) => Some(Register::Memory(address)),
        (SYSTEM_IO, port) => u16::try_from(port).ok().map(Register::Port),
        _ => None,
    }
}

/// Returns the RSDP's address on a machine with a BIOS (ACPI 6.5 section 5.2.5.1): it is in the
/// first KiB of the extended BIOS data area or in the BIOS's own area. Returns 0 if neither has it.
fn scan_for_rsdp(memory: &impl PhysicalMemory) -> u64 {
    let mut segment = [0; 2];
    let ebda = if memory.read(0x40e, &mut segment) { u64::from(u16::from_le_bytes(segment)) << 4 } else { 0 };
    let areas = [(ebda, ebda + 1024), (0xe_0000, 0x10_0000)];
    let mut candidates =
        areas.into_iter().filter(|(start, _)| *start != 0).flat_map(|(start, end)| (start..end).step_by(16));
    candidates.find(|at| root_table(memory, *at).is_some()).unwrap_or(0)
}

/// Address of the RSDT or XSDT, and the size of its entries (ACPI 6.5 section 5.2.5).
fn root_table(memory: &impl PhysicalMemory, rsdp: u64) -> Option<(u64, u64)> {
    let mut bytes = [0; 36];
    let (first, rest) = bytes.split_at_mut(20);
    if rsdp == 0 || !memory.read(rsdp, first) || !first.starts_with(b"RSD PTR ") || sum(first) != 0 {
        return None;
    }
    let revision = first.get(15).copied()?;
    if revision >= 2 && memory.read(rsdp.checked_add(20)?, rest) && sum(&bytes) == 0 {
        let xsdt = u64_at(&bytes, 24);
        if xsdt != 0 {
            return Some((xsdt, 8));
        }
    }
    Some((u64::from(u32_at(&bytes, 16)), 4))
}

/// Returns signature and length of the table at `address`, which ends below the last address.
fn header(memory: &impl PhysicalMemory, address: u64) -> Option<([u8; 4], u32)> {
    let mut header = [0; HEADER_BYTES as usize];
    if address == 0 || !memory.read(address, &mut header) {
        return None;
    }
    let len = u32_at(&header, 4);
    let ends = u64::from(len) >= HEADER_BYTES && address.checked_add(len.into()).is_some();
    ends.then_some((*header.first_chunk()?, len))
}

/// Returns the sum of a table's bytes, 0 where the checksum is right; `None` if it cannot be read.
fn sum_of(memory: &impl PhysicalMemory, address: u64, len: u32) -> Option<u8> {
    let mut total = 0u8;
    let mut block = [0; 256];
    let mut at = 0;
    while at < len {
        let wanted = block.split_at_mut((len - at).min(256) as usize).0;
        if !memory.read(address + u64::from(at), wanted) {
            return None;
        }
        total = total.wrapping_add(sum(wanted));
        at = at.saturating_add(256);
    }
    Some(total)
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |total, byte| total.wrapping_add(*byte))
}
