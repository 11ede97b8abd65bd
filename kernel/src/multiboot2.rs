//! Multiboot2's boot information (specification 2.0, section 3.6): a list of tags in memory.

use crate::framebuffer::Framebuffer;
use crate::information::{Information, ModuleInformation, Screen};
use core::fmt;

use crate::acpi::PhysicalMemory;
use crate::pvh::{u32_at, u64_at};

/// What is wrong with the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It cannot be read, or its lengths make no sense, at this address.
    Broken(u64),
    /// There is no memory map, or its entries are too small.
    NoMemoryMap,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Broken(at) => write!(f, "boot: the Multiboot2 information makes no sense at {at:#x}"),
            Error::NoMemoryMap => f.write_str("boot: the loader passed no memory map"),
        }
    }
}

impl core::error::Error for Error {}

/// Longest list taken, in bytes.
const MAX_BYTES: u32 = 1 << 20;
/// Most tags looked at.
const MAX_TAGS: usize = 256;

const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MODULE: u32 = 3;
const MEMORY_MAP: u32 = 6;
const FRAMEBUFFER: u32 = 8;
const ACPI_OLD: u32 = 14;
const ACPI_NEW: u32 = 15;
/// `framebuffer_type` of pixels with their colours in them.
const DIRECT: u8 = 1;
/// `framebuffer_type` of EGA text.
const TEXT: u8 = 2;

/// Walks the list at `address`; what it answers lies inside that.
///
/// # Errors
/// [`Error`].
pub fn parse(memory: &impl PhysicalMemory, address: u64) -> Result<Information, Error> {
    let mut head = [0; 8];
    let read = |at: u64, into: &mut [u8]| memory.read(at, into).then_some(()).ok_or(Error::Broken(at));
    read(address, &mut head)?;
    let total = u32_at(&head, 0);
    if !(16..=MAX_BYTES).contains(&total) {
        return Err(Error::Broken(address));
    }
    let mut tags = Information::default();
    let (mut offset, mut modules) = (8, 0);
    for _ in 0..MAX_TAGS {
        let at = address + u64::from(offset);
        // All fields that are looked at; what of them is beyond the tag is not used.
        let mut tag = [0; 32];
        read(at, &mut tag)?;
        let (kind, size) = (u32_at(&tag, 0), u32_at(&tag, 4));
        if size < 8 || size > total - offset {
            return Err(Error::Broken(at));
        }
        match kind {
            END => break,
            COMMAND_LINE if size > 8 => tags.command_line = at + 8,
            MEMORY_MAP if size > 16 => {
                let stride = u32_at(&tag, 8);
                if stride < 24 || !stride.is_multiple_of(8) {
                    return Err(Error::NoMemoryMap);
                }
                tags.memory_map = at + 16;
                tags.memory_map_stride = stride;
                tags.memory_map_entries = (size - 16) / stride;
            }
            MODULE if size > 16 => {
                if let Some(place) = tags.modules.get_mut(modules) {
                    let (start, end) = (u32_at(&tag, 8), u32_at(&tag, 12));
                    let len = u64::from(end.saturating_sub(start));
                    *place = ModuleInformation { start: start.into(), len, text: at + 16 };
                    modules += 1;
                }
            }
            FRAMEBUFFER if size >= 30 => tags.screen = screen(&tag),
            // Under EFI there are both.
            ACPI_OLD if tags.rsdp == 0 && size >= 28 => tags.rsdp = at + 8,
            ACPI_NEW if size >= 44 => tags.rsdp = at + 8,
            _ => {}
        }
        // The next tag begins on 8 bytes; the end tag has to come before the end.
        offset = size.next_multiple_of(8).saturating_add(offset);
        if offset > total - 8 {
            return Err(Error::Broken(at));
        }
    }
    if tags.memory_map_entries == 0 { Err(Error::NoMemoryMap) } else { Ok(tags) }
}

/// The framebuffer's tag (section 3.6.12), if text can be shown on what it describes.
fn screen(tag: &[u8; 32]) -> Option<Screen> {
    let (address, pitch) = (u64_at(tag, 8), u32_at(tag, 16));
    let (width, height) = (u32_at(tag, 20), u32_at(tag, 24));
    let [.., bits, kind, _, _] = *tag;
    match kind {
        TEXT if address != 0 && (pitch, width, height) == (160, 80, 25) => Some(Screen::Text(address)),
        DIRECT => Framebuffer::new(address, pitch, (width, height), bits).map(Screen::Pixels),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    struct Image(Vec<u8>);

    const BASE: u64 = 0x4000;

    impl PhysicalMemory for Image {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let Some(start) = address.checked_sub(BASE).map(|start| start as usize) else { return false };
            // Memory goes on behind the list.
            (start < self.0.len())
                .then(|| {
                    for (i, byte) in into.iter_mut().enumerate() {
                        *byte = self.0.get(start + i).copied().unwrap_or(0xcc);
                    }
                })
                .is_some()
        }
    }

    fn list(tags: &[(u32, &[u8])]) -> Image {
        let mut bytes = std::vec![0; 8];
        for (kind, payload) in tags {
            bytes.extend(kind.to_le_bytes());
            bytes.extend((payload.len() as u32 + 8).to_le_bytes());
            bytes.extend(*payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        Image(bytes)
    }

    fn map(stride: u32, entries: usize) -> Vec<u8> {
        let mut payload = [stride.to_le_bytes(), [0; 4]].concat();
        payload.resize(8 + stride as usize * entries, 0);
        payload
    }

    #[test]
    fn what_grub_gives_under_efi() {
        let map = map(24, 3);
        let image = list(&[
            (1, b"app=hello\0"),
            (2, b"GRUB 2.12\0"),
            (21, &[0; 4]),
            (14, &[0; 20]),
            (15, &[0; 36]),
            (6, &map),
            (0, &[]),
        ]);
        let tags = parse(&image, BASE).unwrap();
        assert_eq!(tags.command_line, BASE + 16);
        assert_eq!((tags.memory_map_stride, tags.memory_map_entries), (24, 3));
        // The newer copy, behind 8 + 24 + 24 + 16 + 32 bytes and its own head.
        assert_eq!(tags.rsdp, BASE + 8 + 24 + 24 + 16 + 32 + 8);
        assert_eq!(tags.screen, None);
    }

    #[test]
    fn a_screen_is_one_of_80_by_25_or_of_pixels() {
        let map = map(24, 1);
        let parse = |address: u64, [pitch, width, height]: [u32; 3], bits: u8, kind: u8| {
            let mut screen = address.to_le_bytes().to_vec();
            [pitch, width, height].iter().for_each(|word| screen.extend(word.to_le_bytes()));
            screen.extend([bits, kind, 0, 0, 16, 8, 8, 8, 0, 8]);
            parse(&list(&[(6, &map), (8, &screen), (0, &[])]), BASE).unwrap().screen
        };
        assert_eq!(parse(0xb8000, [160, 80, 25], 16, TEXT), Some(Screen::Text(0xb8000)));
        assert_eq!(parse(0xb8000, [160, 132, 25], 16, TEXT), None);
        assert_eq!(parse(0, [160, 80, 25], 16, TEXT), None);
        let pixels = Framebuffer::new(0x8000_0000, 3200, (800, 600), 32).map(Screen::Pixels);
        assert!(pixels.is_some());
        assert_eq!(parse(0x8000_0000, [3200, 800, 600], 32, DIRECT), pixels);
        assert_eq!(parse(0x8000_0000, [3200, 800, 600], 32, 0), None, "colours of a palette");
        assert_eq!(parse(0x8000_0000, [0, u32::MAX, u32::MAX], 32, DIRECT), None);
    }

    #[test]
    fn modules_are_where_their_tags_say() {
        let module = |start: u32, end: u32, text: &str| {
            [&start.to_le_bytes()[..], &end.to_le_bytes(), text.as_bytes(), &[0]].concat()
        };
        let (first, second) = (module(0x80_0000, 0x81_2345, "linux.efi"), module(9, 5, ""));
        let map = map(24, 1);
        let image =
            list(&[(3, &first), (6, &map), (3, &second), (3, &first), (3, &first), (3, &first), (0, &[])]);
        let tags = parse(&image, BASE).unwrap();
        let expected = ModuleInformation { start: 0x80_0000, len: 0x1_2345, text: BASE + 24 };
        assert_eq!(tags.modules[0], expected);
        assert_eq!(tags.modules[1].len, 0, "an end before the start");
        assert_eq!(tags.modules[3].start, 0x80_0000, "more than there is room for");
    }

    #[test]
    fn lists_that_make_no_sense() {
        assert_eq!(parse(&list(&[(1, b"x\0"), (0, &[])]), BASE), Err(Error::NoMemoryMap));
        assert_eq!(parse(&list(&[(6, &map(16, 4)), (0, &[])]), BASE), Err(Error::NoMemoryMap));
        assert_eq!(parse(&list(&[]), BASE), Err(Error::Broken(BASE)));
        assert_eq!(parse(&list(&[(6, &map(24, 1))]), BASE), Err(Error::Broken(BASE + 8)));
        assert_eq!(parse(&Image(Vec::new()), BASE), Err(Error::Broken(BASE)));
    }

    #[test]
    fn no_byte_of_the_list_can_panic_or_keep_us() {
        let map = map(24, 3);
        let good = list(&[(1, b"words\0"), (6, &map), (8, &[0; 24]), (15, &[0; 36]), (0, &[])]);
        for at in 0..good.0.len() {
            for value in [0, 1, 7, 0x7f, 0x80, 0xff] {
                let mut image = Image(good.0.clone());
                image.0[at] = value;
                let _ = parse(&image, BASE);
            }
        }
    }
}
