//! Names of files beside a program.

use heapless::Vec;

/// Longest path in UTF-16 units, with the zero at its end.
pub(crate) const LONGEST: usize = 256;
/// Nodes of a device path (UEFI 2.11, 10.3): type, sub-type, length of 16 bits, data.
const HEADER: usize = 4;
const MEDIA: u8 = 4;
const FILE_PATH: u8 = 4;
const END: u8 = 0x7f;
const BACKSLASH: u16 = b'\\' as u16;

/// Reads the bytes of a device path, node by node. Nodes lie at any address.
pub(crate) trait Bytes {
    /// The byte at `offset`.
    fn byte(&self, offset: usize) -> u8;
}

/// Returns the path of the file `name` in the directory of the program whose device path is `path`, with a zero at its end.
/// `None` if it is too long or malformed.
pub(crate) fn beside(path: &impl Bytes, name: &str) -> Option<Vec<u16, LONGEST>> {
    let mut text: Vec<u16, LONGEST> = Vec::new();
    let mut at = 0;
    // Each node has 4 bytes at least, and no path of a file is longer than this.
    while at < 4 * LONGEST {
        let [kind, subtype] = [path.byte(at), path.byte(at + 1)];
        let len = usize::from(u16::from_le_bytes([path.byte(at + 2), path.byte(at + 3)]));
        if kind & END == END {
            let directory = text.iter().rposition(|unit| *unit == BACKSLASH).map_or(0, |last| last + 1);
            text.truncate(directory);
            name.encode_utf16().chain([0]).try_for_each(|unit| text.push(unit)).ok()?;
            return Some(text);
        }
        if len < HEADER {
            return None;
        }
        if (kind, subtype) == (MEDIA, FILE_PATH) {
            // A path may be divided into several nodes.
            if text.last().is_some_and(|last| *last != BACKSLASH) {
                text.push(BACKSLASH).ok()?;
            }
            let units = (at + HEADER..at + len - 1).step_by(2);
            for unit in units.map(|at| u16::from_le_bytes([path.byte(at), path.byte(at + 1)])) {
                if unit == 0 {
                    break;
                }
                text.push(unit).ok()?;
            }
        }
        at += len;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec;
    use std::vec::Vec;

    impl Bytes for Vec<u8> {
        fn byte(&self, offset: usize) -> u8 {
            self[offset]
        }
    }

    fn node(text: &str) -> Vec<u8> {
        let units: Vec<u8> = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let len = (units.len() + HEADER) as u16;
        [&[MEDIA, FILE_PATH][..], &len.to_le_bytes(), &units].concat()
    }

    fn beside_text(parts: &[Vec<u8>]) -> Option<String> {
        let end = vec![END, 0xff, 4, 0];
        let path: Vec<u8> = parts.iter().chain([&end]).flatten().copied().collect();
        let text = beside(&path, "selftest.txt")?;
        assert_eq!(text.last(), Some(&0));
        Some(String::from_utf16(&text[..text.len() - 1]).expect("text"))
    }

    #[test]
    fn file_is_in_the_directory_of_the_program() {
        assert_eq!(
            beside_text(&[node("\\EFI\\BOOT\\BOOTX64.EFI")]).as_deref(),
            Some("\\EFI\\BOOT\\selftest.txt")
        );
        assert_eq!(beside_text(&[node("\\selftest.efi")]).as_deref(), Some("\\selftest.txt"));
        assert_eq!(beside_text(&[node("\\EFI"), node("a.efi")]).as_deref(), Some("\\EFI\\selftest.txt"));
        // A hardware node before it, and none of a file.
        let pci = vec![1, 1, 6, 0, 0, 2];
        assert_eq!(beside_text(&[pci.clone(), node("\\x.efi")]).as_deref(), Some("\\selftest.txt"));
        assert_eq!(beside_text(&[pci]).as_deref(), Some("selftest.txt"));
    }

    #[test]
    fn malformed_paths_are_refused_in_bounded_work() {
        assert_eq!(beside_text(&[vec![4, 4, 3, 0]]), None, "a node without length");
        assert_eq!(beside_text(&[node(&"\\long".repeat(60))]), None);
        let endless: Vec<u8> = [1, 1, 4, 0].repeat(2 * LONGEST);
        assert_eq!(beside(&endless, "a"), None);
    }
}
