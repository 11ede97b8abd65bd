//! What the loader left in memory.

use heapless::Vec;

use crate::boot::{Error, Information};
use crate::information::{MAX_MODULES, ModuleInformation, Screen};
use crate::modules::{MAX_NAME, Module};
use crate::multiboot2;
use crate::options::MAX_LEN_BYTES;
use crate::pvh::{MEMORY_MAP_ENTRY_LEN, MODULE_ENTRY_LEN, MemoryMapEntry, START_INFO_LEN, StartInfo};

/// How the loader speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Xen's PVH.
    Pvh,
    /// Multiboot2.
    Multiboot2,
}

/// What the loader left in memory. Valid only while the boot page tables are in use.
pub struct BootMemory {
    information: u64,
    protocol: Protocol,
}

/// The boot page tables reach this far.
const MAPPED_END: u64 = 4 << 30;

impl BootMemory {
    /// With the loader's information at this address.
    pub fn at(information: u32, protocol: Protocol) -> Self {
        Self { information: information.into(), protocol }
    }

    /// The loader's information.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub fn information(&self) -> Result<Information, Error> {
        match self.protocol {
            Protocol::Pvh => {
                let mut bytes = [0; START_INFO_LEN];
                self.copy(self.information, &mut bytes);
                let start = StartInfo::parse(&bytes).map_err(Error::Pvh)?;
                let mut info = Information::from(start);
                let count = (start.module_count as usize).min(MAX_MODULES);
                for (index, module) in info.modules.iter_mut().take(count).enumerate() {
                    let mut entry = [0; MODULE_ENTRY_LEN];
                    if self.copy(start.modules.saturating_add((index * MODULE_ENTRY_LEN) as u64), &mut entry)
                    {
                        *module = ModuleInformation::parse(&entry);
                    }
                }
                Ok(info)
            }
            Protocol::Multiboot2 => multiboot2::parse(self, self.information).map_err(Error::Multiboot2),
        }
    }

    /// The screen that the loader names; where it names none, the text screen that a BIOS says it has set up (its data area: mode 3, 80
    /// columns).
    pub fn screen(&self, info: &Information) -> Option<Screen> {
        const VIDEO_MODE: u64 = 0x449;
        const TEXT_80: [u8; 3] = [3, 80, 0];
        let mut mode = [0; 3];
        // Other loaders than a BIOS's say what screen there is, and that area need not be what it looks like.
        let by_bios = self.protocol == Protocol::Pvh && self.copy(VIDEO_MODE, &mut mode) && mode == TEXT_80;
        if by_bios { Some(Screen::Text(0xb8000)) } else { info.screen }
    }

    /// The memory map's entries, which are alike in both protocols.
    pub fn memory_map<'a>(&'a self, info: &Information) -> impl Iterator<Item = MemoryMapEntry> + Clone + 'a {
        // 4096 entries are more than any machine has; an absurd count must not keep us here.
        let (first, count) = (info.memory_map, u64::from(info.memory_map_entries.min(4096)));
        let stride = u64::from(info.memory_map_stride);
        (0..count).map_while(move |i| {
            let mut bytes = [0; MEMORY_MAP_ENTRY_LEN];
            let address = first.checked_add(i * stride)?;
            self.copy(address, &mut bytes).then(|| MemoryMapEntry::parse(&bytes))
        })
    }

    /// The loader's files.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub fn modules(&self, info: &Information) -> Vec<Module, MAX_MODULES> {
        let module = |module: &ModuleInformation| {
            let mut text = [0; MAX_NAME];
            let mut len = 0;
            while let Some(byte) = text.get_mut(len)
                && module.text != 0
                && self.copy(module.text.saturating_add(len as u64), core::slice::from_mut(byte))
                && *byte != 0
            {
                len += 1;
            }
            Module::new(module, text.get(..len).unwrap_or_default())
        };
        info.modules.iter().filter_map(module).collect()
    }

    /// The command line without its NUL; one that is too long is cut to one byte more than it may have.
    pub fn command_line(&self, info: &Information) -> Vec<u8, { MAX_LEN_BYTES + 1 }> {
        let mut line = Vec::new();
        let mut byte = [0];
        let mut at = info.command_line;
        while at != 0 && self.copy(at, &mut byte) && byte[0] != 0 && line.push(byte[0]).is_ok() {
            at += 1;
        }
        line
    }

    fn copy(&self, address: u64, into: &mut [u8]) -> bool {
        let end = address.checked_add(into.len() as u64);
        if address == 0 || end.is_none_or(|end| end > MAPPED_END) {
            return false;
        }
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: the boot page tables map the first 4 GiB, and any byte pattern is a u8. What is not RAM
            // answers with something. `into` is exclusively borrowed, so it is not what is being read.
            *byte = unsafe { core::ptr::read_volatile((address as usize + i) as *const u8) };
        }
        true
    }
}

impl crate::acpi::PhysicalMemory for BootMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.copy(address, into)
    }
}
