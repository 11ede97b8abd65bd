//! Wraps a UEFI driver in a PCI option ROM, as a card or QEMU's `romfile` has it (UEFI 2.11, section 14.4.2.1; PCI Firmware
//! Specification 3.3, section 5.1).

use crate::error::{Error, Result};

/// Bytes of a unit of the image's length.
const UNIT: usize = 512;
/// Offset of the PCI data structure, and its length.
const DATA: usize = 0x1c;
const DATA_LEN: usize = 0x1c;
/// Offset of the driver.
const DRIVER: usize = 0x40;

/// Returns the option ROM with the driver `pe`, for functions with these PCI numbers.
///
/// # Errors
/// [`Error::Format`]: `pe` is no PE image, or is longer than 32 MiB.
pub fn wrap(pe: &[u8], vendor: u16, device: u16) -> Result<Vec<u8>> {
    let not_pe = || Error::Format("the UEFI driver is no PE image".into());
    let number = |at: usize| Some(u16::from_le_bytes(pe.get(at..at + 2)?.try_into().ok()?));
    // The offset of the PE header, at 0x3c, has 32 bits, of which no linker uses more than 16.
    let header = usize::from(number(0x3c).ok_or_else(not_pe)?);
    if pe.get(header..header + 4) != Some(b"PE\0\0") {
        return Err(not_pe());
    }
    let (machine, subsystem) = number(header + 4).zip(number(header + 0x5c)).ok_or_else(not_pe)?;
    let len = (DRIVER + pe.len()).next_multiple_of(UNIT);
    let units = u16::try_from(len / UNIT)
        .map_err(|_| Error::Format("the UEFI driver is too long for an option ROM".into()))?;
    let mut rom = vec![0; len];
    let mut put = |at: usize, bytes: &[u8]| rom[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x55, 0xaa]);
    put(2, &units.to_le_bytes());
    put(4, &0x0ef1_u32.to_le_bytes());
    put(8, &subsystem.to_le_bytes());
    put(0xa, &machine.to_le_bytes());
    put(0x16, &(DRIVER as u16).to_le_bytes());
    put(0x18, &(DATA as u16).to_le_bytes());
    put(DATA, b"PCIR");
    put(DATA + 4, &vendor.to_le_bytes());
    put(DATA + 6, &device.to_le_bytes());
    put(DATA + 0xa, &(DATA_LEN as u16).to_le_bytes());
    // Revision of the structure, and the class of InfiniBand controllers.
    put(DATA + 0xc, &[3, 0, 7, 2]);
    put(DATA + 0x10, &units.to_le_bytes());
    // Code for UEFI, and the last image of the ROM.
    put(DATA + 0x14, &[3, 0x80]);
    put(DRIVER, pe);
    Ok(rom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_where_firmware_looks_for_them() {
        let mut pe = vec![0_u8; 700];
        pe[0x3c] = 0x80;
        pe[0x80..0x84].copy_from_slice(b"PE\0\0");
        pe[0x84..0x86].copy_from_slice(&0x8664_u16.to_le_bytes());
        pe[0xdc] = 11;
        let rom = wrap(&pe, 0x15b3, 0x1017).expect("a ROM");
        assert_eq!((rom.len(), &rom[..4]), (1024, &[0x55, 0xaa, 2, 0][..]));
        assert_eq!(rom[4..14], [0xf1, 0x0e, 0, 0, 11, 0, 0x64, 0x86, 0, 0]);
        let data = usize::from(rom[0x18]);
        assert_eq!(rom[data..data + 8], *b"PCIR\xb3\x15\x17\x10");
        assert_eq!((rom[data + 0x10], rom[data + 0x14], rom[data + 0x15]), (2, 3, 0x80));
        let driver = usize::from(rom[0x16]);
        assert_eq!(rom[driver..driver + pe.len()], pe);
        assert!(wrap(&pe[..0x81], 1, 1).is_err() && wrap(b"MZ", 1, 1).is_err());
        pe.resize(33 << 20, 0);
        assert!(wrap(&pe, 1, 1).is_err());
    }
}
