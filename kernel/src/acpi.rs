//! What the unikernel wants of ACPI: the PM timer and the machine's end (FADT, DSDT), where PCI configuration space is mapped
//! (MCFG), and DMA remapping units (DMAR). Firmware's tables are read with bounds and checksums; anything odd means "not there".

use heapless::Vec;

use crate::memory_map::Range;
use crate::pvh::{u32_at, u64_at};

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
    /// What it takes of memory's addresses.
    #[must_use]
    pub const fn range(&self) -> Range {
        const BYTES_PER_BUS: u64 = 1 << 20;
        let start = self.base.saturating_add(self.first_bus as u64 * BYTES_PER_BUS);
        Range { start, end: self.base.saturating_add((self.last_bus as u64 + 1) * BYTES_PER_BUS) }
    }
}

/// Most entries of MCFG and of DMAR that are kept.
pub const MAX_UNITS: usize = 16;

/// How the machine is switched off and reset (ACPI 6.5 sections 4.8.3.2, 4.8.3.6, 7.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// I/O ports of the PM1 control registers, a and b.
    pub pm1_control: [Option<u16>; 2],
    /// What switches the machine off when written into their `SLP_TYP`.
    pub soft_off: Option<[u8; 2]>,
    /// I/O port of SMI commands, and the command that hands the power registers to the operating system.
    pub enable: Option<(u16, u8)>,
    /// I/O port and value that reset the machine.
    pub reset: Option<(u16, u8)>,
}

/// What the tables said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// I/O port of the PM timer (3.579545 MHz, at least 24 bits).
    pub pm_timer_port: Option<u16>,
    /// PCI configuration space.
    pub ecam: Vec<Ecam, MAX_UNITS>,
    /// Physical addresses of the registers of DMA remapping units (VT-d).
    pub remapping: Vec<u64, MAX_UNITS>,
    /// The machine's end.
    pub power: Power,
}

/// Longest table that is looked at, in bytes: DSDTs of servers have some hundred KiB.
const MAX_TABLE_BYTES: u32 = 1 << 20;
/// Most tables that are looked at.
const MAX_TABLES: u64 = 64;
const HEADER_BYTES: u64 = 36;

impl Tables {
    /// Follows the RSDP at `rsdp`; where the loader named none (0), looks for it where BIOSes put it.
    pub fn find(memory: &impl PhysicalMemory, rsdp: u64) -> Tables {
        let mut tables = Tables::default();
        let rsdp = if rsdp == 0 { scan_for_rsdp(memory) } else { rsdp };
        let Some((root, entry_bytes)) = root_table(memory, rsdp) else { return tables };
        let Some((_, len)) = checked_table(memory, root) else { return tables };
        let count = ((u64::from(len) - HEADER_BYTES) / entry_bytes).min(MAX_TABLES);
        for i in 0..count {
            let mut entry = [0; 8];
            // Entries of the XSDT need not be aligned, and those of the RSDT are 4 bytes.
            let wanted = entry.split_at_mut(entry_bytes as usize).0;
            if !memory.read(root + HEADER_BYTES + i * entry_bytes, wanted) {
                break;
            }
            let address = u64::from_le_bytes(entry);
            let Some((signature, len)) = checked_table(memory, address) else { continue };
            match &signature {
                b"FACP" => tables.take_fadt(memory, address, len),
                b"MCFG" => tables.take_mcfg(memory, address, len),
                b"DMAR" => tables.take_dmar(memory, address, len),
                _ => {}
            }
        }
        tables
    }

    /// FADT (ACPI 6.5 section 5.2.9): each register has an old field and, in longer tables, an extended one; either may be empty.
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
        let has_reset = u32_at(&bytes, 112) & (1 << 10) != 0 && bytes[116] == SYSTEM_IO;
        let reset_port = u16::try_from(u64_at(&bytes, 120)).ok().filter(|port| *port != 0 && has_reset);
        self.power.reset = reset_port.map(|port| (port, bytes[128]));
        let dsdt = match u64_at(&bytes, 140) {
            0 => u32_at(&bytes, 40).into(),
            extended => extended,
        };
        if let Some((signature, len)) = checked_table(memory, dsdt)
            && signature == *b"DSDT"
        {
            self.power.soft_off = soft_off(memory, dsdt, len);
        }
    }

    /// MCFG: allocation structures of 16 bytes from 44 (PCI Firmware Specification 3.2 section 4.1.2).
    fn take_mcfg(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let count = u64::from(len).saturating_sub(44) / 16;
        for i in 0..count.min(MAX_TABLES) {
            let mut entry = [0; 16];
            if !memory.read(address + 44 + i * 16, &mut entry) {
                return;
            }
            let segment = u16::from_le_bytes([entry[8], entry[9]]);
            let ecam = Ecam { base: u64_at(&entry, 0), segment, first_bus: entry[10], last_bus: entry[11] };
            if ecam.base != 0 && ecam.base.is_multiple_of(1 << 20) && ecam.first_bus <= ecam.last_bus {
                // Segments beyond the list's room are not seen.
                let _ = self.ecam.push(ecam);
            }
        }
    }

    /// DMAR: structures {type, length} from 48; a remapping unit (type 0) has its registers' address at 8 (VT-d 4.1 section 8.3).
    fn take_dmar(&mut self, memory: &impl PhysicalMemory, address: u64, len: u32) {
        let mut at = 48;
        while at + 16 <= len {
            let mut entry = [0; 16];
            if !memory.read(address + u64::from(at), &mut entry) {
                return;
            }
            let entry_len = u32::from(u16::from_le_bytes([entry[2], entry[3]]));
            let base = u64_at(&entry, 8);
            if u16::from_le_bytes([entry[0], entry[1]]) == 0 && base != 0 && base.is_multiple_of(4096) {
                let _ = self.remapping.push(base);
            }
            // A length of zero would keep us here.
            at += entry_len.max(4);
        }
    }
}

/// `AddressSpaceKeyword` SystemIO of a generic address structure.
const SYSTEM_IO: u8 = 1;

/// `SLP_TYP` of both PM1 control registers from the package `_S5_` of the DSDT (ACPI 6.5 section 7.4.2): the name, then PackageOp,
/// a length, a number of elements, and those as small constants.
fn soft_off(memory: &impl PhysicalMemory, address: u64, len: u32) -> Option<[u8; 2]> {
    const NAME: &[u8] = b"_S5_\x12";
    const LONGEST: usize = 16;
    let mut block = [0; 256];
    let mut at = HEADER_BYTES as u32;
    while at < len {
        let wanted = block.split_at_mut(256.min((len - at) as usize)).0;
        if !memory.read(address + u64::from(at), wanted) {
            return None;
        }
        let found = wanted.windows(NAME.len()).position(|window| window == NAME);
        match found {
            Some(start) if start + LONGEST <= wanted.len() || at + 256 >= len => {
                return sleep_types(wanted.get(start + NAME.len()..)?);
            }
            // The package goes on in the next block.
            Some(start) => at += start as u32,
            None => at += 256 - LONGEST as u32,
        }
    }
    None
}

fn sleep_types(package: &[u8]) -> Option<[u8; 2]> {
    // The length's own length is in its two upper bits; then the number of elements.
    let mut rest = package.get(usize::from(package.first()? >> 6) + 2..)?.iter();
    let mut element = || match rest.next()? {
        // BytePrefix.
        0x0a => rest.next().copied(),
        // ZeroOp, OneOp.
        value @ (0 | 1) => Some(*value),
        _ => None,
    };
    Some([element()? & 7, element()? & 7])
}

/// The RSDP's places on a machine with a BIOS (ACPI 6.5 section 5.2.5.1): the first KiB of the extended BIOS data area, and the BIOS's
/// own area. 0 when it is nowhere.
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

/// Signature and length of the table at `address`, if its header is sane and its checksum right.
fn checked_table(memory: &impl PhysicalMemory, address: u64) -> Option<([u8; 4], u32)> {
    let mut header = [0; HEADER_BYTES as usize];
    if address == 0 || !memory.read(address, &mut header) {
        return None;
    }
    let len = u32_at(&header, 4);
    if !(HEADER_BYTES as u32..=MAX_TABLE_BYTES).contains(&len) || address.checked_add(len.into()).is_none() {
        return None;
    }
    let mut total = 0u8;
    let mut at = 0;
    while at < len {
        let mut block = [0; 64];
        let wanted = block.split_at_mut((len - at).min(64) as usize).0;
        if !memory.read(address + u64::from(at), wanted) {
            return None;
        }
        total = total.wrapping_add(sum(wanted));
        at += 64;
    }
    let signature = *header.first_chunk()?;
    (total == 0).then_some((signature, len))
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |total, byte| total.wrapping_add(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    struct Image(Vec<u8>);

    impl PhysicalMemory for Image {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let Ok(address) = usize::try_from(address) else { return false };
            let Some(end) = address.checked_add(into.len()) else { return false };
            self.0.get(address..end).map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    impl Image {
        fn table(&mut self, address: usize, signature: &[u8; 4], body: &[u8]) {
            let len = 36 + body.len();
            self.0[address..address + 4].copy_from_slice(signature);
            self.0[address + 4..address + 8].copy_from_slice(&(len as u32).to_le_bytes());
            self.0[address + 36..address + len].copy_from_slice(body);
            self.0[address + 9] = 0;
            self.0[address + 9] = 0u8.wrapping_sub(sum(&self.0[address..address + len]));
        }
    }

    /// An image with the root table in either form; the extended one's entries are unaligned, as on microvm.
    fn image(extended: bool) -> Image {
        let mut image = Image(std::vec![0; 0x4000]);
        let mut fadt = [0; 276 - 36];
        let mut put = |at: usize, value: &[u8]| fadt[at - 36..at - 36 + value.len()].copy_from_slice(value);
        put(40, &0x2800u32.to_le_bytes());
        put(48, &0xb2u32.to_le_bytes());
        put(52, &[2]);
        put(64, &0x604u32.to_le_bytes());
        put(76, &0x608u32.to_le_bytes());
        put(112, &(1u32 << 10).to_le_bytes());
        put(116, &[SYSTEM_IO]);
        put(120, &0xcf9u64.to_le_bytes());
        put(128, &[0xf]);
        image.table(0x1000, b"FACP", &fadt);
        let mut mcfg = [0; 8 + 32];
        mcfg[8..16].copy_from_slice(&0x7000_0000u64.to_le_bytes());
        mcfg[16] = 1; // another segment
        mcfg[24..32].copy_from_slice(&0xb000_0000u64.to_le_bytes());
        mcfg[34] = 0;
        mcfg[35] = 255;
        image.table(0x2004, b"MCFG", &mcfg);
        // Flags; a unit, a reserved range, another unit.
        let mut dmar = std::vec![0; 12];
        for (kind, base) in [(0u16, 0xfed9_0000u64), (1, 0x1000), (0, 0xfed9_1000)] {
            dmar.extend(kind.to_le_bytes());
            dmar.extend(16u16.to_le_bytes());
            dmar.extend([0; 4]);
            dmar.extend(base.to_le_bytes());
        }
        image.table(0x2200, b"DMAR", &dmar);
        // The package lies across two of the blocks that are read.
        let mut dsdt = std::vec![0xff; 300];
        dsdt[230..244].copy_from_slice(b"_S5_\x12\x0a\x04\x0a\x05\x01\x00\x00\x08x");
        image.table(0x2800, b"DSDT", &dsdt);
        let addresses = [0x3f00u64, 0x1000, 0x2004, 0x2200];
        let body: Vec<u8> = addresses
            .iter()
            .flat_map(|a| a.to_le_bytes().into_iter().take(if extended { 8 } else { 4 }))
            .collect();
        image.table(0x3001, if extended { b"XSDT" } else { b"RSDT" }, &body);
        image.0[0x100..0x108].copy_from_slice(b"RSD PTR ");
        if extended {
            image.0[0x10f] = 2;
            image.0[0x118..0x11c].copy_from_slice(&0x3001u32.to_le_bytes());
        } else {
            image.0[0x110..0x114].copy_from_slice(&0x3001u32.to_le_bytes());
        }
        image.0[0x108] = 0u8.wrapping_sub(sum(&image.0[0x100..0x114]));
        image.0[0x120] = 0u8.wrapping_sub(sum(&image.0[0x100..0x124]));
        image
    }

    fn found() -> Tables {
        Tables {
            pm_timer_port: Some(0x608),
            ecam: heapless::Vec::from_array([
                Ecam { base: 0x7000_0000, segment: 1, first_bus: 0, last_bus: 0 },
                Ecam { base: 0xb000_0000, segment: 0, first_bus: 0, last_bus: 255 },
            ]),
            remapping: heapless::Vec::from_array([0xfed9_0000, 0xfed9_1000]),
            power: Power {
                pm1_control: [Some(0x604), None],
                soft_off: Some([5, 1]),
                enable: Some((0xb2, 2)),
                reset: Some((0xcf9, 0xf)),
            },
        }
    }

    #[test]
    fn both_root_tables() {
        assert_eq!(Tables::find(&image(false), 0x100), found());
        assert_eq!(Tables::find(&image(true), 0x100), found());
    }

    #[test]
    fn an_rsdp_that_the_loader_does_not_name_is_looked_for() {
        let mut image = image(true);
        image.0.resize(0x10_0000, 0);
        assert_eq!(Tables::find(&image, 0), Tables::default());
        // The place of the extended BIOS data area.
        image.0[0x40e..0x410].copy_from_slice(&0x380u16.to_le_bytes());
        let rsdp: [u8; 36] = image.0[0x100..0x124].try_into().unwrap();
        image.0[0x3a10..0x3a34].copy_from_slice(&rsdp);
        assert_eq!(Tables::find(&image, 0), found());
        image.0[0x3a10] = 0;
        image.0[0xe_4560..0xe_4584].copy_from_slice(&rsdp);
        assert_eq!(Tables::find(&image, 0), found());
    }

    #[test]
    fn registers_that_only_the_extended_fields_name() {
        let mut image = image(true);
        let mut body: Vec<u8> = image.0[0x1000 + 36..0x1000 + 276].to_vec();
        body[76 - 36..80 - 36].fill(0);
        body[208 - 36] = SYSTEM_IO;
        body[212 - 36..220 - 36].copy_from_slice(&0x1808u64.to_le_bytes());
        image.table(0x1000, b"FACP", &body);
        assert_eq!(Tables::find(&image, 0x100).pm_timer_port, Some(0x1808));
        // In memory, not among the ports.
        body[208 - 36] = 0;
        image.table(0x1000, b"FACP", &body);
        assert_eq!(Tables::find(&image, 0x100).pm_timer_port, None);
    }

    #[test]
    fn damage_is_absence() {
        assert_eq!(Tables::find(&image(true), 0), Tables::default());
        assert_eq!(Tables::find(&image(true), 0x7fff_ffff_ffff), Tables::default());
        let mut image = image(false);
        image.0[0x1000 + 77] ^= 0x10;
        let expected = Tables { pm_timer_port: None, power: Power::default(), ..found() };
        assert_eq!(Tables::find(&image, 0x100), expected);
        image.0[0x3001 + 40] ^= 1;
        assert_eq!(Tables::find(&image, 0x100), Tables::default());
    }

    #[test]
    fn no_byte_of_the_tables_can_panic() {
        for at in (0x100..0x124)
            .chain(0x1000..0x10a0)
            .chain(0x2004..0x2060)
            .chain(0x2200..0x2260)
            .chain(0x3001..0x3040)
        {
            for value in [0, 0x7f, 0xff] {
                let mut image = image(true);
                image.0[at] = value;
                Tables::find(&image, 0x100);
            }
        }
    }
}
