//! Four-level page tables built in a fixed pool, with 2 MiB and 1 GiB pages where addresses allow (Intel SDM volume 3,
//! section 4.5). Pure arithmetic over the pool; loading CR3 is the image's business.

use bitflags::bitflags;

use crate::memory_map::{MemoryMap, Range, TooManyRanges};

/// Small page size in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Large page size in bytes.
pub const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// Size in bytes of the pages that not every CPU has.
pub const HUGE_PAGE_BYTES: u64 = 1 << 30;

const ENTRIES: usize = 512;
const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;

/// The value of the PAT MSR (0x277) that these tables need: entry 1, which the write-through bit alone selects, is
/// write-combining; all others stay as at reset (SDM volume 3, section 12.12).
pub const PAT: u64 = 0x0007_0406_0007_0106;

bitflags! {
    /// What a mapping allows beyond reading.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Stores are allowed.
        const WRITE = 1;
        /// Instructions may be fetched.
        const EXECUTE = 2;
    }
}

/// The memory type of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Ordinary memory.
    WriteBack,
    /// Every access reaches the device, in program order: registers.
    Uncached,
    /// Stores are gathered: BlueFlame pages.
    WriteCombining,
}

/// Why a mapping was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Addresses or length are not whole pages, or not canonical.
    BadRange,
    /// A page of the range is mapped already.
    AlreadyMapped,
    /// The pool has no table left.
    OutOfTables,
}

impl core::fmt::Display for MapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            MapError::BadRange => "paging: the range is not whole pages of the lower half",
            MapError::AlreadyMapped => "paging: a page of the range is mapped already",
            MapError::OutOfTables => "paging: no page table left",
        })
    }
}

impl core::error::Error for MapError {}

/// One page table of any level.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct Table([u64; ENTRIES]);

impl Table {
    /// Nothing mapped.
    pub const EMPTY: Table = Table([0; ENTRIES]);
}

/// A tree of page tables in a pool; table 0 is the root.
#[derive(Debug)]
pub struct PageTables<'p> {
    pool: &'p mut [Table],
    /// Physical address of the pool's first table.
    base: u64,
    used: usize,
    /// Bytes of a page at each level that a mapping can end at, from the lowest level on.
    pages: &'static [u64],
}

/// Tables in the pool: one for each GiB of RAM where the CPU has no 1 GiB pages, those at the ends
/// of RAM's ranges, and those of device windows.
pub const TABLES: usize = 128;

/// First address of device windows.
pub const WINDOWS: u64 = 1 << 46;

/// Returns the end of the RAM that is mapped. Without 1 GiB pages (`huge`) it is lower, which
/// bounds the tables.
#[must_use]
pub const fn ram_end(huge: bool) -> u64 {
    if huge { WINDOWS } else { 64 << 30 }
}

/// Returns the RAM that is mapped one to one: `map` without page 0, which catches null pointers,
/// `image`, which has other permissions, and what begins at [`ram_end`].
///
/// # Errors
/// [`TooManyRanges`].
pub fn mapped_ram(map: &MemoryMap, image: Range, huge: bool) -> Result<MemoryMap, TooManyRanges> {
    let mut ram = map.clone();
    for hole in [Range { start: 0, end: PAGE_BYTES }, image, Range { start: ram_end(huge), end: u64::MAX }] {
        ram.remove(hole)?;
    }
    Ok(ram)
}

/// Page sizes by level, without and with 1 GiB pages.
const PAGES: [u64; 3] = [PAGE_BYTES, LARGE_PAGE_BYTES, HUGE_PAGE_BYTES];

impl<'p> PageTables<'p> {
    /// Starts with nothing mapped. `base` is the physical address of `pool`, a multiple of 4096. `huge` says whether the CPU
    /// has 1 GiB pages.
    ///
    /// # Errors
    /// [`MapError::OutOfTables`] for an empty pool, [`MapError::BadRange`] for a misaligned base.
    pub fn new(pool: &'p mut [Table], base: u64, huge: bool) -> Result<Self, MapError> {
        if base & !ADDRESS_MASK != 0 {
            return Err(MapError::BadRange);
        }
        *pool.first_mut().ok_or(MapError::OutOfTables)? = Table::EMPTY;
        let (without, _) = PAGES.split_at(2);
        Ok(PageTables { pool, base, used: 1, pages: if huge { &PAGES } else { without } })
    }

    /// Physical address of the root, for CR3.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.base
    }

    /// Tables in use, and the pool's size.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        (self.used, self.pool.len())
    }

    /// Maps `len` bytes at `virt` to `phys`, with large pages where both addresses and the length allow. What was
    /// mapped before an error stays mapped.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(
        &mut self,
        virt: u64,
        phys: u64,
        len: u64,
        access: Access,
        caching: Caching,
    ) -> Result<(), MapError> {
        let end = virt.checked_add(len).ok_or(MapError::BadRange)?;
        let phys_end = phys.checked_add(len).ok_or(MapError::BadRange)?;
        if !(virt | phys | len).is_multiple_of(PAGE_BYTES) || end > 1 << 47 || phys_end > 1 << 52 {
            return Err(MapError::BadRange);
        }
        let mut flags = PRESENT
            | match caching {
                Caching::WriteBack => 0,
                Caching::WriteCombining => WRITE_THROUGH,
                Caching::Uncached => WRITE_THROUGH | CACHE_DISABLE,
            };
        if access.contains(Access::WRITE) {
            flags |= WRITABLE;
        }
        if !access.contains(Access::EXECUTE) {
            flags |= NO_EXECUTE;
        }
        let mut offset = 0;
        while offset < len {
            let (from, to) = (virt + offset, phys + offset);
            let fits = |bytes: &u64| (from | to).is_multiple_of(*bytes) && len - offset >= *bytes;
            let level = self.pages.iter().rposition(fits).ok_or(MapError::BadRange)?;
            let step = self.pages[level];
            let extra = if level == 0 { 0 } else { LARGE };
            let entry = self.entry(from, level as u32)?;
            if *entry != 0 {
                return Err(MapError::AlreadyMapped);
            }
            *entry = to | flags | extra;
            offset += step;
        }
        Ok(())
    }

    /// The entry for `virt` at `level` (0: page table, 1: page directory, 2: directory pointers), making the tables above it.
    fn entry(&mut self, virt: u64, level: u32) -> Result<&mut u64, MapError> {
        let mut table = 0;
        for above in (level + 1..4).rev() {
            let slot = index(virt, above);
            let found = self.pool.get(table).map_or(0, |t| t.0[slot]);
            table = if found == 0 {
                let new = self.used;
                *self.pool.get_mut(new).ok_or(MapError::OutOfTables)? = Table::EMPTY;
                self.used += 1;
                let address = self.base + new as u64 * PAGE_BYTES;
                if let Some(t) = self.pool.get_mut(table) {
                    // What may be done is decided by the last level alone.
                    t.0[slot] = address | PRESENT | WRITABLE;
                }
                new
            } else if found & LARGE != 0 {
                return Err(MapError::AlreadyMapped);
            } else {
                self.child(found)
            };
        }
        let entries = &mut self.pool.get_mut(table).ok_or(MapError::OutOfTables)?.0;
        Ok(&mut entries[index(virt, level)])
    }

    fn child(&self, entry: u64) -> usize {
        (((entry & ADDRESS_MASK) - self.base) / PAGE_BYTES) as usize
    }

    /// What `virt` is mapped to.
    #[must_use]
    pub fn translate(&self, virt: u64) -> Option<(u64, Access, Caching)> {
        let mut table = 0;
        for level in (0..4).rev() {
            let entry = self.pool.get(table)?.0[index(virt, level)];
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & LARGE != 0 {
                let page = *PAGES.get(level as usize)?;
                let mut access = Access::empty();
                access.set(Access::WRITE, entry & WRITABLE != 0);
                access.set(Access::EXECUTE, entry & NO_EXECUTE == 0);
                let caching = match entry & (WRITE_THROUGH | CACHE_DISABLE) {
                    0 => Caching::WriteBack,
                    WRITE_THROUGH => Caching::WriteCombining,
                    _ => Caching::Uncached,
                };
                return Some(((entry & ADDRESS_MASK & !(page - 1)) + virt % page, access, caching));
            }
            table = self.child(entry);
        }
        None
    }
}

const fn index(virt: u64, level: u32) -> usize {
    (virt >> (12 + 9 * level)) as usize % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const RW: Access = Access::WRITE;

    #[test]
    fn pat_entry_1_is_write_combining_and_the_rest_as_at_reset() {
        const RESET: [u8; 8] = [6, 4, 7, 0, 6, 4, 7, 0];
        let mut expected = RESET;
        expected[1] = 1;
        assert_eq!(PAT.to_le_bytes(), expected);
    }

    #[test]
    fn large_pages_in_the_middle_small_ones_at_the_ends() {
        let mut pool = vec![Table::EMPTY; 8];
        let mut tables = PageTables::new(&mut pool, 0x30_0000, false).unwrap();
        let (start, len) = (0x1f_f000, 0x40_2000);
        tables.map(start, start, len, RW, Caching::WriteBack).unwrap();
        // Root, directory pointers, directory, and a page table for either end.
        assert_eq!(tables.usage(), (5, 8));
        for address in [0x1f_f000, 0x20_0000, 0x3f_ffff, 0x40_0123, 0x60_0fff] {
            assert_eq!(tables.translate(address), Some((address, RW, Caching::WriteBack)), "{address:#x}");
        }
        assert_eq!(tables.translate(0x1f_efff), None);
        assert_eq!(tables.translate(0x60_1000), None);
    }

    #[test]
    fn pages_of_1_gib_take_no_tables() {
        const GIB: u64 = 1 << 30;
        let used = |huge| {
            let mut pool = vec![Table::EMPTY; 80];
            let mut tables = PageTables::new(&mut pool, 0, huge).unwrap();
            // 64 GiB and a half behind the first 4 MiB.
            let end = 64 * GIB + GIB / 2;
            tables.map(4 << 20, 4 << 20, end - (4 << 20), RW, Caching::WriteBack).unwrap();
            for address in [4 << 20, GIB, 7 * GIB + 0x1234_5678, end - 1] {
                assert_eq!(
                    tables.translate(address),
                    Some((address, RW, Caching::WriteBack)),
                    "{address:#x}"
                );
            }
            assert_eq!(tables.translate(end), None);
            assert_eq!(tables.map(GIB, GIB, 0x1000, RW, Caching::WriteBack), Err(MapError::AlreadyMapped));
            tables.usage().0
        };
        // Root, directory pointers, and a directory for each GiB or for either end.
        assert_eq!((used(false), used(true)), (67, 4));
    }

    #[test]
    fn windows_on_a_high_bar() {
        let mut pool = vec![Table::EMPTY; 8];
        let mut tables = PageTables::new(&mut pool, 0, false).unwrap();
        let (bar, len) = (0xe00_0000_0000, 32 << 20);
        tables.map(1 << 46, bar, len, RW, Caching::Uncached).unwrap();
        tables.map((1 << 46) + len, bar, len, RW, Caching::WriteCombining).unwrap();
        tables.map(0x1000, 0x5000, 0x1000, Access::EXECUTE, Caching::WriteBack).unwrap();
        assert_eq!(tables.translate((1 << 46) + 0x1234), Some((bar + 0x1234, RW, Caching::Uncached)));
        let second = (1 << 46) + len + 0x20_0008;
        assert_eq!(tables.translate(second), Some((bar + 0x20_0008, RW, Caching::WriteCombining)));
        assert_eq!(tables.translate(0x1fff), Some((0x5fff, Access::EXECUTE, Caching::WriteBack)));
    }

    #[test]
    fn refusals() {
        let mut pool = vec![Table::EMPTY; 4];
        let mut tables = PageTables::new(&mut pool, 0, false).unwrap();
        let wb = Caching::WriteBack;
        assert_eq!(tables.map(0x1001, 0, 0x1000, RW, wb), Err(MapError::BadRange));
        assert_eq!(tables.map(0, 0x800, 0x1000, RW, wb), Err(MapError::BadRange));
        assert_eq!(tables.map((1 << 47) - 0x1000, 0, 0x2000, RW, wb), Err(MapError::BadRange));
        assert_eq!(tables.map(0, 1 << 52, 0x1000, RW, wb), Err(MapError::BadRange));
        assert_eq!(tables.map(u64::MAX - 0xfff, 0, 0x1000, RW, wb), Err(MapError::BadRange));
        tables.map(0x20_0000, 0x20_0000, 0x20_0000, RW, wb).unwrap();
        assert_eq!(tables.map(0x20_1000, 0, 0x1000, RW, wb), Err(MapError::AlreadyMapped));
        tables.map(0x1000, 0, 0x1000, RW, wb).unwrap();
        assert_eq!(tables.map(0x1000, 0, 0x1000, RW, wb), Err(MapError::AlreadyMapped));
        assert_eq!(tables.map(0, 0, 0x20_0000, RW, wb), Err(MapError::AlreadyMapped));
        assert_eq!(tables.map(1 << 40, 0, 0x1000, RW, wb), Err(MapError::OutOfTables));
        assert_eq!(PageTables::new(&mut [], 0, false).unwrap_err(), MapError::OutOfTables);
    }
}
