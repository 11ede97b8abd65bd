//! Where the parts of a loader's information are, whatever its protocol.

use crate::framebuffer::Framebuffer;

/// Where text can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// Cells of 80 by 25 characters, at this physical address.
    Text(u64),
    /// Pixels.
    Pixels(Framebuffer),
}

/// Most files of a loader.
pub const MAX_MODULES: usize = 4;

/// Where a file is that the loader put into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleInformation {
    /// Physical address of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Physical address of its text, NUL-terminated; 0 when there is none.
    pub text: u64,
}

/// Where the parts of a loader's information are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Files that the loader put into memory; those behind the last one are empty.
    pub modules: [ModuleInformation; MAX_MODULES],
    /// The screen, if there is one that text can be shown on.
    pub screen: Option<Screen>,
}
