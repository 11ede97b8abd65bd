//! What the unikernel wants of ACPI: where the PM timer is (FADT) and where PCI configuration space is mapped
//! (MCFG). Firmware's tables are read with bounds and checksums; anything odd means "not there".

use crate::pvh::{u32_at, u64_at};

/// Reads physical memory.
pub trait PhysicalMemory {
    /// Copies `into.len()` bytes from `address`; false when they cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// The memory-mapped configuration space of PCI segment 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecam {
    /// Physical address of bus 0's configuration space, also when the first bus is another.
    pub base: u64,
    /// First bus decoded.
    pub first_bus: u8,
    /// Last bus decoded.
    pub last_bus: u8,
}

/// What the tables said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// I/O port of the PM timer (3.579545 MHz, at least 24 bits).
    pub pm_timer_port: Option<u16>,
    /// PCI configuration space.
    pub ecam: Option<Ecam>,
}

/// Longest table that is looked at, in bytes.
const MAX_TABLE_BYTES: u32 = 64 << 10;
/// Most tables that are looked at.
const MAX_TABLES: u64 = 64;
const HEADER_BYTES: u64 = 36;

impl Tables {
    /// Follows the RSDP at `rsdp` (0: there is none).
    pub fn find(memory: &impl PhysicalMemory, rsdp: u64) -> Tables {
        let mut tables = Tables::default();
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
            match checked_table(memory, address) {
                Some((signature, len)) if signature == *b"FACP" => {
                    tables.pm_timer_port = tables.pm_timer_port.or(pm_timer(memory, address, len));
                }
                Some((signature, len)) if signature == *b"MCFG" => {
                    tables.ecam = tables.ecam.or(segment_0(memory, address, len));
                }
                _ => {}
            }
        }
        tables
    }
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

/// FADT: `PM_TMR_BLK` at 76, `PM_TMR_LEN` at 91 (ACPI 6.5 section 5.2.9).
fn pm_timer(memory: &impl PhysicalMemory, address: u64, len: u32) -> Option<u16> {
    let mut bytes = [0; 92];
    if len < 92 || !memory.read(address, &mut bytes) {
        return None;
    }
    let port = u16::try_from(u32_at(&bytes, 76)).ok()?;
    (port != 0 && bytes[91] == 4).then_some(port)
}

/// MCFG: allocation structures of 16 bytes from 44 (PCI Firmware Specification 3.2 section 4.1.2).
fn segment_0(memory: &impl PhysicalMemory, address: u64, len: u32) -> Option<Ecam> {
    let count = u64::from(len).saturating_sub(44) / 16;
    (0..count.min(MAX_TABLES)).find_map(|i| {
        let mut entry = [0; 16];
        if !memory.read(address + 44 + i * 16, &mut entry) {
            return None;
        }
        let ecam = Ecam { base: u64_at(&entry, 0), first_bus: entry[10], last_bus: entry[11] };
        let segment = u16::from_le_bytes([entry[8], entry[9]]);
        let sane = ecam.base != 0 && ecam.base.is_multiple_of(1 << 20) && ecam.first_bus <= ecam.last_bus;
        (segment == 0 && sane).then_some(ecam)
    })
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
        let mut fadt = [0; 100];
        fadt[76 - 36..80 - 36].copy_from_slice(&0x608u32.to_le_bytes());
        fadt[91 - 36] = 4;
        image.table(0x1000, b"FACP", &fadt);
        let mut mcfg = [0; 8 + 32];
        mcfg[8..16].copy_from_slice(&0x7000_0000u64.to_le_bytes());
        mcfg[16] = 1; // another segment
        mcfg[24..32].copy_from_slice(&0xb000_0000u64.to_le_bytes());
        mcfg[34] = 0;
        mcfg[35] = 255;
        image.table(0x2004, b"MCFG", &mcfg);
        let addresses = [0x3f00u64, 0x1000, 0x2004];
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

    const FOUND: Tables = Tables {
        pm_timer_port: Some(0x608),
        ecam: Some(Ecam { base: 0xb000_0000, first_bus: 0, last_bus: 255 }),
    };

    #[test]
    fn both_root_tables() {
        assert_eq!(Tables::find(&image(false), 0x100), FOUND);
        assert_eq!(Tables::find(&image(true), 0x100), FOUND);
    }

    #[test]
    fn damage_is_absence() {
        assert_eq!(Tables::find(&image(true), 0), Tables::default());
        assert_eq!(Tables::find(&image(true), 0x7fff_ffff_ffff), Tables::default());
        let mut image = image(false);
        image.0[0x1000 + 77] ^= 0x10;
        assert_eq!(Tables::find(&image, 0x100), Tables { pm_timer_port: None, ..FOUND });
        image.0[0x3001 + 40] ^= 1;
        assert_eq!(Tables::find(&image, 0x100), Tables::default());
    }

    #[test]
    fn no_byte_of_the_tables_can_panic() {
        for at in (0x100..0x124).chain(0x1000..0x1040).chain(0x2004..0x2060).chain(0x3001..0x3040) {
            for value in [0, 0x7f, 0xff] {
                let mut image = image(true);
                image.0[at] = value;
                Tables::find(&image, 0x100);
            }
        }
    }
}
