//! What a loader says, by whichever protocol it came.

use core::fmt;

pub use crate::information::Information;
use crate::multiboot2;
use crate::pvh;

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
            modules: Default::default(),
            screen: None,
        }
    }
}
