//! Files that the loader put into memory: QEMU's `-initrd`, GRUB's `module2`.

use core::ops::Range as Bytes;

use heapless::String;

use crate::information::ModuleInformation;
use crate::memory_map::{PAGE_BYTES, Range};

/// Longest name, in bytes.
pub const MAX_NAME: usize = 64;

/// A file in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    name: String<MAX_NAME>,
    bytes: Bytes<u64>,
}

impl Module {
    /// The file as the loader describes it. Its name is the first word of its text, without directories; it is empty where there is
    /// none, or one that is no text. `None` for an empty file.
    #[must_use]
    pub fn new(module: &ModuleInformation, text: &[u8]) -> Option<Self> {
        let end = module.start.checked_add(module.len).filter(|end| *end > module.start)?;
        let text = core::str::from_utf8(text).unwrap_or_default();
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        // Not `rsplit`, whose search for any `char` from the end is nowhere else in the image.
        let folder = word.bytes().rposition(|byte| byte == b'/').map_or(0, |at| at + 1);
        let name = word.get(folder..).unwrap_or_default();
        Some(Self { name: String::try_from(name).unwrap_or_default(), bytes: module.start..end })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pages that it takes.
    #[must_use]
    pub fn pages(&self) -> Range {
        let start = self.bytes.start - self.bytes.start % PAGE_BYTES;
        Range { start, end: self.bytes.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX) }
    }

    /// Offset in its first page, and length.
    #[cfg_attr(not(target_os = "none"), allow(dead_code, reason = "the machine that calls it is not there"))]
    pub(crate) fn place(&self) -> (usize, usize) {
        let offset = self.bytes.start % PAGE_BYTES;
        (offset as usize, (self.bytes.end - self.bytes.start) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_and_pages_are_whole() {
        let module = |start, len, text: &[u8]| Module::new(&ModuleInformation { start, len, text: 0 }, text);
        let file = module(0x7f_f123, 0x2000, b"/boot/linux.efi quiet").expect("a file");
        assert_eq!(file.name(), "linux.efi");
        assert_eq!(file.pages(), Range { start: 0x7f_f000, end: 0x80_2000 });
        assert_eq!(file.place(), (0x123, 0x2000));
        assert_eq!(module(4096, 1, b"").expect("a file").name(), "");
        assert_eq!(module(4096, 1, &[0xff]).expect("a file").name(), "", "no text");
        assert_eq!(module(4096, 0, b"empty"), None);
        assert_eq!(module(u64::MAX, 2, b"beyond"), None);
    }
}
