//! The address space: memory one to one, and windows on devices from 2^46 up.
//!
//! | virtual | what | how |
//! |---|---|---|
//! | 0 to 4 KiB | nothing | a null pointer faults |
//! | RAM's physical addresses, those below 64 GiB on a CPU without 1 GiB pages | RAM | write-back, no execution |
//! | the image inside that | text, constants, data | execute, read only, read and write; stacks have guard pages |
//! | 2^46 upwards | device windows, as asked for | uncached or write-combining |

pub mod registers;

use core::mem::MaybeUninit;

use crate::claims::{CHIPSET, Claims, Conflict, Owner};
use crate::memory_map::{MemoryMap, Range};
use crate::paging::{
    Access, Caching, LARGE_PAGE_BYTES, MapError, PAT, PageTables, TABLES, Table, WINDOWS, mapped_ram, ram_end,
};
use spin::Mutex;
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::registers::model_specific::Msr;
use x86_64::structures::paging::PhysFrame;

use crate::arch::layout;

const PAT_MSR: u32 = 0x277;

static mut POOL: [Table; TABLES] = [Table::EMPTY; TABLES];
static SPACE: Mutex<Option<Space>> = Mutex::new(None);

struct Space {
    tables: PageTables<'static>,
    next_window: u64,
    claims: Claims,
}

impl Space {
    /// Addresses for a window that agree with `phys` below 2 MiB, which allows large pages.
    fn reserve(&mut self, phys: u64, len: u64) -> Result<u64, MapError> {
        let virt = self.next_window + phys % LARGE_PAGE_BYTES;
        // A gap behind, so that running off the end faults.
        let end = virt.checked_add(len).and_then(|end| end.checked_add(4096));
        self.next_window =
            end.and_then(|end| end.checked_next_multiple_of(LARGE_PAGE_BYTES)).ok_or(MapError::BadRange)?;
        Ok(virt)
    }
}

/// Returns whether the CPU has 1 GiB pages (SDM volume 2, CPUID leaf 0x80000001).
fn has_huge_pages() -> bool {
    const FEATURES: u32 = 0x8000_0001;
    let known = core::arch::x86_64::__cpuid(0x8000_0000).eax >= FEATURES;
    known && core::arch::x86_64::__cpuid(FEATURES).edx & 1 << 26 != 0
}

/// The first address whose RAM is left alone.
pub fn mapped_ram_end() -> u64 {
    ram_end(has_huge_pages())
}

/// Builds the address space and switches to it; what the boot page tables mapped beyond it is gone. Once, with interrupts
/// off. `map` is all usable memory.
pub fn init(map: &MemoryMap) -> Result<(), Error> {
    if SPACE.lock().is_some() {
        return Err(Error::Map(MapError::AlreadyMapped));
    }
    let pool = &raw mut POOL;
    // SAFETY: this is reached once (SPACE is still empty), so it is the only reference to the pool ever made.
    let pool: &'static mut [Table] = unsafe { &mut *pool };
    let base = pool.as_ptr() as u64;
    let mut tables = PageTables::new(pool, base, has_huge_pages())?;

    let image = layout::image();
    for range in mapped_ram(map, image, has_huge_pages())?.ranges() {
        tables.map(range.start, range.start, range.len(), Access::WRITE, Caching::WriteBack)?;
    }

    let (text_end, rodata_end) = layout::text_and_rodata_end();
    let code = (image.start, text_end, Access::EXECUTE);
    let constants = (text_end, rodata_end, Access::empty());
    // Data, but for the guard pages.
    let mut start = rodata_end;
    let data = layout::guard_pages().into_iter().chain([image.end]).map(|end| {
        let piece = (start, end, Access::WRITE);
        start = end + 4096;
        piece
    });
    for (start, end, access) in [code, constants].into_iter().chain(data) {
        tables.map(start, start, end - start, access, Caching::WriteBack)?;
    }

    let root = PhysFrame::containing_address(PhysAddr::new_truncate(tables.root()));
    // SAFETY:
    // 1. PAT changes only what the write-through bit selects, and the boot tables do not use it.
    // 2. The new tables map the code that runs, its stack and all statics where they are now.
    unsafe {
        Msr::new(PAT_MSR).write(PAT);
        Cr3::write(root, Cr3Flags::empty());
    }
    let mut claims = Claims::new(map.clone());
    claims.keep(CHIPSET);
    *SPACE.lock() = Some(Space { tables, next_window: WINDOWS, claims });
    Ok(())
}

/// Records a range of the unikernel's own, which no device may have.
pub fn keep(range: Range) {
    if let Some(space) = SPACE.lock().as_mut() {
        space.claims.keep(range);
    }
}

/// Claims registers for `owner`, until [`release`]. Memory is refused, and ranges in use.
pub fn claim(range: Range, owner: Owner) -> Result<(), Conflict> {
    SPACE.lock().as_mut().ok_or(Conflict::Refused)?.claims.claim(range, owner)
}

/// Checks that `range` overlaps neither memory nor what an owner other than `owner` has.
pub fn check(range: Range, owner: Owner) -> Result<(), Conflict> {
    SPACE.lock().as_ref().ok_or(Conflict::Refused)?.claims.check(range, Some(owner))
}

/// Releases all ranges of `owner`. No window on them may be used any more.
pub fn release(owner: Owner) {
    if let Some(space) = SPACE.lock().as_mut() {
        space.claims.release(owner);
    }
}

/// Makes a window on `len` bytes of device registers at `phys`, both whole pages, and returns its virtual address. Each
/// call makes a new one, so that one BAR can be seen in two ways; no page may be accessed through both.
pub fn map_device(phys: u64, len: u64, caching: Caching) -> Result<usize, MapError> {
    let mut guard = SPACE.lock();
    let space = guard.as_mut().ok_or(MapError::OutOfTables)?;
    let virt = space.reserve(phys, len)?;
    space.tables.map(virt, phys, len, Access::WRITE, caching)?;
    // Entries that were not present are not in the TLB. The access that follows must not be moved before the stores into the
    // tables.
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    Ok(virt as usize)
}

/// Reserves a window for `len` bytes of device registers at `phys`, of which nothing is mapped yet; [`map_in_window`] does that.
pub fn reserve_window(phys: u64, len: u64) -> Result<usize, MapError> {
    let mut guard = SPACE.lock();
    let space = guard.as_mut().ok_or(MapError::OutOfTables)?;
    space.reserve(phys, len).map(|virt| virt as usize)
}

/// Maps whole pages of a reserved window; those that are mapped so already stay.
pub fn map_in_window(virt: usize, phys: u64, len: u64, caching: Caching) -> Result<(), MapError> {
    let mut guard = SPACE.lock();
    let space = guard.as_mut().ok_or(MapError::OutOfTables)?;
    for offset in (0..len).step_by(4096) {
        let (virt, phys) = (virt as u64 + offset, phys + offset);
        if space.tables.translate(virt) != Some((phys, Access::WRITE, caching)) {
            space.tables.map(virt, phys, 4096, Access::WRITE, caching)?;
        }
    }
    // As in `map_device`.
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    Ok(())
}

/// Whether all of `len` bytes at `virt` are ordinary memory that may be written, which is always mapped one to one.
pub fn is_memory(virt: u64, len: u64) -> bool {
    let guard = SPACE.lock();
    let (Some(space), Some(end)) = (guard.as_ref(), virt.checked_add(len)) else { return false };
    let mut page = virt - virt % 4096;
    while page < end {
        let found = space.tables.translate(page);
        if !matches!(found, Some((phys, Access::WRITE, Caching::WriteBack)) if phys == page) {
            return false;
        }
        page += 4096;
    }
    len != 0
}

/// Returns the bytes of `range`, which the caller took out of the map of free memory. That memory is below
/// [`mapped_ram_end`].
pub fn lend(range: Range) -> &'static mut [MaybeUninit<u8>] {
    // SAFETY: `init` mapped all usable memory one to one for good, and the range was taken from the free part of it, once.
    unsafe { core::slice::from_raw_parts_mut(range.start as *mut MaybeUninit<u8>, range.len() as usize) }
}

/// Returns the bytes of a loader's file, whose pages the caller took out of the map of free memory, as [`lend`] wants it.
pub fn file(pages: Range, (offset, len): (usize, usize)) -> &'static [u8] {
    let bytes = lend(pages).get(offset..offset + len).unwrap_or_default();
    // SAFETY: the loader wrote them, and nothing writes them any more.
    unsafe { bytes.assume_init_ref() }
}

/// Bits of a physical address that the CPU has (SDM volume 3, section 4.1.4).
pub fn physical_address_bits() -> u8 {
    const SIZES: u32 = 0x8000_0008;
    let known = core::arch::x86_64::__cpuid(0x8000_0000).eax >= SIZES;
    if known { core::arch::x86_64::__cpuid(SIZES).eax as u8 } else { 36 }
}

/// Page tables in use, and how many there are.
pub fn table_usage() -> (usize, usize) {
    SPACE.lock().as_ref().map_or((0, TABLES), |space| space.tables.usage())
}

/// Why the address space could not be made.
#[derive(Clone, Copy, Debug)]
pub enum Error {
    /// The tables.
    Map(MapError),
    /// The memory map.
    Ranges(crate::memory_map::TooManyRanges),
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::Map(error) => error.fmt(f),
            Error::Ranges(error) => error.fmt(f),
        }
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Error::Map(error)
    }
}

impl From<crate::memory_map::TooManyRanges> for Error {
    fn from(error: crate::memory_map::TooManyRanges) -> Self {
        Error::Ranges(error)
    }
}
