//! The PVH boot protocol's start information (Xen `public/arch-x86/hvm/start_info.h`), parsed from bytes.

use crate::information::ModuleInformation;

/// `XEN_HVM_START_MAGIC_VALUE`.
pub const MAGIC: u32 = 0x336e_c578;

/// Length of the version-1 structure in bytes.
pub const START_INFO_LEN: usize = 56;

/// Length of one memory map entry in bytes.
pub const MEMORY_MAP_ENTRY_LEN: usize = 24;

/// Length of one module's entry in bytes.
pub const MODULE_ENTRY_LEN: usize = 32;

/// `XEN_HVM_MEMMAP_TYPE_RAM`: the only type that may be used as memory.
pub const TYPE_RAM: u32 = 1;

/// `struct hvm_start_info`, version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartInfo {
    /// Physical address of the command line, NUL-terminated; 0 when there is none.
    pub cmdline: u64,
    /// Physical address of the ACPI RSDP; 0 when there is none.
    pub rsdp: u64,
    /// Physical address of the memory map.
    pub memory_map: u64,
    /// Physical address of the list of modules.
    pub modules: u64,
    /// Number of modules.
    pub module_count: u32,
    /// Number of entries of the memory map.
    pub memory_map_entries: u32,
}

/// What is wrong with the start information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The magic value is another one: not booted by PVH.
    BadMagic(u32),
    /// Version 0 carries no memory map.
    NoMemoryMap,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::BadMagic(magic) => write!(f, "boot: start info magic is {magic:#x}, not {MAGIC:#x}"),
            Error::NoMemoryMap => write!(f, "boot: the loader passed no memory map"),
        }
    }
}

impl core::error::Error for Error {}

impl StartInfo {
    /// Reads the structure.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or has no memory map.
    pub fn parse(bytes: &[u8; START_INFO_LEN]) -> Result<StartInfo, Error> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(Error::BadMagic(magic));
        }
        let version = u32_at(bytes, 4);
        let info = StartInfo {
            cmdline: u64_at(bytes, 24),
            rsdp: u64_at(bytes, 32),
            memory_map: u64_at(bytes, 40),
            modules: u64_at(bytes, 16),
            module_count: u32_at(bytes, 12),
            memory_map_entries: u32_at(bytes, 48),
        };
        if version == 0 || info.memory_map == 0 || info.memory_map_entries == 0 {
            return Err(Error::NoMemoryMap);
        }
        Ok(info)
    }
}

/// `struct hvm_memmap_table_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMapEntry {
    /// First physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// Type; see [`TYPE_RAM`].
    pub kind: u32,
}

impl MemoryMapEntry {
    /// Reads one entry.
    #[must_use]
    pub fn parse(bytes: &[u8; MEMORY_MAP_ENTRY_LEN]) -> MemoryMapEntry {
        MemoryMapEntry { address: u64_at(bytes, 0), len: u64_at(bytes, 8), kind: u32_at(bytes, 16) }
    }
}

impl ModuleInformation {
    /// Reads one entry, `struct hvm_modlist_entry`.
    #[must_use]
    pub fn parse(bytes: &[u8; MODULE_ENTRY_LEN]) -> Self {
        Self { start: u64_at(bytes, 0), len: u64_at(bytes, 8), text: u64_at(bytes, 16) }
    }
}

/// Little-endian 32-bit value at `offset`; 0 past the end.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

/// Little-endian 64-bit value at `offset`; 0 past the end.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_info(version: u32) -> [u8; START_INFO_LEN] {
        let mut bytes = [0; START_INFO_LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
        bytes[16..24].copy_from_slice(&0x9000u64.to_le_bytes());
        bytes[24..32].copy_from_slice(&0x1_0000_2000u64.to_le_bytes());
        bytes[32..40].copy_from_slice(&0xf_5000u64.to_le_bytes());
        bytes[40..48].copy_from_slice(&0x6000u64.to_le_bytes());
        bytes[48..52].copy_from_slice(&7u32.to_le_bytes());
        bytes
    }

    #[test]
    fn fields_are_where_the_header_puts_them() {
        assert_eq!(
            StartInfo::parse(&start_info(1)).unwrap(),
            StartInfo {
                cmdline: 0x1_0000_2000,
                rsdp: 0xf_5000,
                memory_map: 0x6000,
                modules: 0x9000,
                module_count: 1,
                memory_map_entries: 7,
            }
        );
    }

    #[test]
    fn refuses_other_loaders() {
        assert_eq!(StartInfo::parse(&start_info(0)), Err(Error::NoMemoryMap));
        assert_eq!(StartInfo::parse(&[0; START_INFO_LEN]), Err(Error::BadMagic(0)));
    }

    #[test]
    fn module_entry() {
        let mut bytes = [0; MODULE_ENTRY_LEN];
        bytes[0..8].copy_from_slice(&0x700_0000u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&0x12_3456u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&0x9100u64.to_le_bytes());
        let entry = ModuleInformation { start: 0x700_0000, len: 0x12_3456, text: 0x9100 };
        assert_eq!(ModuleInformation::parse(&bytes), entry);
    }

    #[test]
    fn memory_map_entry() {
        let mut bytes = [0; MEMORY_MAP_ENTRY_LEN];
        bytes[0..8].copy_from_slice(&0x10_0000u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&0x1fee_0000u64.to_le_bytes());
        bytes[16] = 1;
        let entry = MemoryMapEntry { address: 0x10_0000, len: 0x1fee_0000, kind: TYPE_RAM };
        assert_eq!(MemoryMapEntry::parse(&bytes), entry);
    }
}
