//! The sleep object `_S5_` in AML, which is searched for, not interpreted (ACPI 6.5 sections 7.4.2
//! and 20.2).

use super::{HEADER_BYTES, PhysicalMemory};

/// The name and PackageOp.
const START: &[u8] = b"_S5_\x12";
/// The start, PkgLength, NumElements, and two elements of QWordPrefix and 8 bytes.
const LONGEST: usize = START.len() + 4 + 1 + 2 * 9;
const BLOCK: usize = 512;

/// Returns `SLP_TYP` of both PM1 control registers from the first `_S5_` that is a package of
/// integers in the table of `len` bytes at `address`.
pub(super) fn soft_off(memory: &impl PhysicalMemory, address: u64, len: u32) -> Option<[u8; 2]> {
    let mut block = [0; BLOCK];
    let mut at = HEADER_BYTES as u32;
    while at < len {
        let there = BLOCK.min((len - at) as usize);
        let bytes = block.split_at_mut(there).0;
        if !memory.read(address + u64::from(at), bytes) {
            return None;
        }
        let found = bytes.windows(START.len()).enumerate().filter(|(_, window)| *window == START);
        for (start, _) in found {
            let package = bytes.get(start + START.len()..).unwrap_or_default();
            if let Some(types) = sleep_types(package) {
                return Some(types);
            }
        }
        // Blocks overlap: an object that this one cuts off is complete in the next.
        at = at.saturating_add((BLOCK - LONGEST) as u32);
    }
    None
}

/// Returns the sleep types of a package that begins with its PkgLength. A package of one integer
/// has them in that integer's bytes, as ACPI 1.0 did.
fn sleep_types(package: &[u8]) -> Option<[u8; 2]> {
    // PkgLength has as many further bytes as the two upper bits of its first byte say.
    let (count, mut rest) = package.get(usize::from(package.first()? >> 6) + 1..)?.split_first()?;
    let mut element = || {
        let (value, after) = integer(rest)?;
        rest = after;
        Some(value)
    };
    let [first, second] = match count {
        0 => return None,
        1 => {
            let both = element()?;
            [both, both >> 8]
        }
        _ => [element()?, element()?],
    };
    Some([first as u8 & 7, second as u8 & 7])
}

/// Returns the integer constant at the start of `aml`, and the bytes after it.
fn integer(aml: &[u8]) -> Option<(u64, &[u8])> {
    let (prefix, rest) = aml.split_first()?;
    let len = match prefix {
        // ZeroOp, OneOp, OnesOp.
        0x00 => return Some((0, rest)),
        0x01 => return Some((1, rest)),
        0xff => return Some((u64::MAX, rest)),
        // BytePrefix, WordPrefix, DWordPrefix, QWordPrefix.
        0x0a => 1,
        0x0b => 2,
        0x0c => 4,
        0x0e => 8,
        _ => return None,
    };
    let (bytes, rest) = rest.split_at_checked(len)?;
    Some((bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)), rest))
}
