//! What a loader says, by whichever protocol it came.

use core::fmt;

use crate::multiboot2;
use crate::pvh;

/// Where the parts of a loader's information are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Information {
    /// Physical address of the command line, NUL-terminated; 0 when there is none.
    pub command_line: u64,
    /// Physical address of the ACPI RSDP; 0 when the loader names none.
    pub rsdp: u64,
    /// Physical address of the memory map.
    pub memory_map: u64,
    /// From one entry of the memory map to the next, in bytes.
    pub memory_map_stride: u32,
    /// Entries of the memory map.
    pub memory_map_entries: u32,
    /// Physical address of a text screen of 80 by 25 characters; 0 when there is none.
    pub text_screen: u64,
}

/// What is wrong with a loader's information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// PVH.
    Pvh(pvh::Error),
    /// Multiboot2.
    Multiboot2(multiboot2::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pvh(error) => error.fmt(f),
            Error::Multiboot2(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl From<pvh::StartInfo> for Information {
    fn from(info: pvh::StartInfo) -> Self {
        Self {
            command_line: info.cmdline,
            rsdp: info.rsdp,
            memory_map: info.memory_map,
            memory_map_stride: pvh::MEMORY_MAP_ENTRY_LEN as u32,
            memory_map_entries: info.memory_map_entries,
            text_screen: 0,
        }
    }
}

impl From<multiboot2::Tags> for Information {
    fn from(tags: multiboot2::Tags) -> Self {
        Self {
            command_line: tags.command_line,
            rsdp: tags.rsdp,
            memory_map: tags.memory_map,
            memory_map_stride: tags.memory_map_stride,
            memory_map_entries: tags.memory_map_entries,
            text_screen: tags.text_screen,
        }
    }
}
