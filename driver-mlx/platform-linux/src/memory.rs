//! Mappings: memory that the device accesses, and registers.

use crate::error::{Error, Result};
use crate::iova::PAGE;
use crate::socket::Client;
use driver_mlx::{DmaRegion, HostRegion, MmioBar};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::io::{self, BufRead as _, BufReader};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

/// Memory that is aligned so that an IOMMU can map it by large pages.
const LARGE_PAGE: usize = 2 << 20;
/// The driver's host memory needs 16 bytes for each 64 bytes of a queue. Nearly all of the DMA
/// region may be queues.
const HOST_SHARE: usize = 4;

/// The regions, registers and connection of an open device. They remain when the platform is
/// dropped, because handles and buffers may be left. [`Memory::free`] frees them once none is left.
#[derive(Debug, Default)]
#[must_use = "it stays in the process until it is freed"]
pub struct Memory(Vec<Piece>);

#[derive(Debug)]
enum Piece {
    Mapping(Mapping),
    Words(NonNull<[u64]>),
    Client(NonNull<Client>),
}

// SAFETY: the pieces belong to the process, not to a thread; the value only frees them.
unsafe impl Send for Memory {}
// SAFETY: only `fmt` takes `&Memory`, and it prints pointers without reading through them.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn add_mapping(&mut self, mapping: Mapping) {
        self.0.push(Piece::Mapping(mapping));
    }

    /// Stores a connection. The reference is valid until `free`.
    pub(crate) fn lend(&mut self, client: Client) -> &'static Client {
        let client = NonNull::from(Box::leak(Box::new(client)));
        self.0.push(Piece::Client(client));
        // SAFETY: just leaked. Only `free` frees it, whose contract excludes references that are
        // still used.
        unsafe { client.as_ref() }
    }

    /// Allocates the driver's host memory for a DMA region of `len` bytes.
    pub(crate) fn host_region(&mut self, len: usize) -> Result<HostRegion> {
        let words = vec![0_u64; (len / HOST_SHARE / 8).max(4096)];
        let mut words = NonNull::from(words.leak());
        self.0.push(Piece::Words(words));
        // SAFETY: as in `lend`, and this is the only reference.
        let region = HostRegion::from_static(unsafe { words.as_mut() });
        region.ok_or(Error::Options("the DMA region is too small"))
    }

    /// Frees it.
    ///
    /// # Safety
    /// 1. The platform was dropped, or has never been handed out.
    /// 2. No object made from it or from the regions is used any longer: no
    ///    [`LinuxBar`](crate::LinuxBar), no [`Pinner`](crate::Pinner), no
    ///    [`DmaBuffer`](driver_mlx::DmaBuffer), no reference into one.
    pub unsafe fn free(self) {
        for piece in self.0 {
            match piece {
                // SAFETY: a complete mapping; clause 2 of the contract excludes further use.
                Piece::Mapping(Mapping { start, len }) => unsafe {
                    let _ = rustix::mm::munmap(start.as_ptr().cast(), len);
                },
                // SAFETY: the pointer is from a vector of exactly this length; clause 2 excludes further use.
                Piece::Words(words) => drop(unsafe { Box::from_raw(words.as_ptr()) }),
                // SAFETY: the pointer is from a box; clause 2 excludes further use.
                Piece::Client(client) => drop(unsafe { Box::from_raw(client.as_ptr()) }),
            }
        }
    }
}

/// A mapping of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

/// New zeroed memory that remains mapped until its [`Memory`] is freed, and its file if a server
/// maps it too.
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
    /// The complete mapping; `None` once a [`Memory`] owns it.
    mapping: Option<Mapping>,
    pub(crate) file: Option<OwnedFd>,
}

impl Shared {
    /// Maps private memory, for a device behind an IOMMU. `huge` takes it from the kernel's pool of
    /// huge pages.
    pub(crate) fn anonymous(len: usize, huge: bool) -> Result<Self> {
        let len = rounded(len, huge)?;
        let hint = if huge { ": reserve huge pages (sysctl vm.nr_hugepages), or do without" } else { "" };
        let failed = |errno: rustix::io::Errno| Error::Map { len, error: errno.into(), hint };
        let flags = if huge { MapFlags::PRIVATE | MapFlags::HUGETLB } else { MapFlags::PRIVATE };
        let room = if huge { len } else { len + LARGE_PAGE };
        // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags)
        }
        .map_err(failed)?;
        // The rest before and after it is unused address space.
        let before = if huge { 0 } else { start.addr().wrapping_neg() % LARGE_PAGE };
        let base = start.cast::<u8>().wrapping_byte_add(before);
        // SAFETY: the range is inside the mapping just made. Both calls are hints: large pages need
        // fewer IOMMU entries, and a child process must not access the device's memory.
        unsafe {
            let _ = rustix::mm::madvise(base.cast(), len, Advice::LinuxHugepage);
            let _ = rustix::mm::madvise(base.cast(), len, Advice::LinuxDontFork);
        }
        let nowhere = Error::Options("the kernel gave memory at address 0");
        let (Some(base), Some(start)) = (NonNull::new(base), NonNull::new(start.cast())) else {
            return Err(nowhere);
        };
        Ok(Self { base, len, mapping: Some(Mapping { start, len: room }), file: None })
    }

    /// Maps an unnamed file, which a server can map too. The file cannot shrink.
    pub(crate) fn file(len: usize) -> Result<Self> {
        let len = rounded(len, false)?;
        let failed = |errno: rustix::io::Errno| Error::Map { len, error: errno.into(), hint: "" };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"hca-dma", flags).map_err(failed)?;
        rustix::fs::ftruncate(&file, len as u64).map_err(failed)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        // SAFETY: as in `anonymous`.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0)
        }
        .map_err(failed)?;
        let base = NonNull::new(base.cast()).ok_or(Error::Options("the kernel gave memory at address 0"))?;
        Ok(Self { base, len, mapping: Some(Mapping { start: base, len }), file: Some(file) })
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the driver's region. The device accesses it at `device_address`, and `memory` frees
    /// it.
    pub(crate) fn into_region(mut self, device_address: u64, memory: &mut Memory) -> Result<DmaRegion> {
        if let Some(mapping) = self.mapping.take() {
            memory.add_mapping(mapping);
        }
        // SAFETY: 1. `self` owns the mapping. 2. `Memory` unmaps it only after the device is gone
        // and no handle is left. 3. The caller maps it at `device_address`. 4. DMA is coherent, by
        // VFIO as through a server.
        unsafe { DmaRegion::new(self.base.as_ptr(), device_address, self.len) }
            .ok_or(Error::Options("the driver refuses the DMA region"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(Mapping { start, len }) = self.mapping {
            // SAFETY: a complete mapping without a region. A device that has it mapped holds its
            // pages.
            unsafe {
                let _ = rustix::mm::munmap(start.as_ptr().cast(), len);
            }
        }
    }
}

fn rounded(len: usize, huge: bool) -> Result<usize> {
    let unit = if huge { LARGE_PAGE } else { PAGE as usize };
    len.max(1)
        .checked_next_multiple_of(unit)
        .filter(|len| *len < isize::MAX as usize / 2)
        .ok_or(Error::Options("the DMA region cannot be that large"))
}

/// Returns whether all pages from `va` on are mapped in this process.
pub(crate) fn is_mapped(va: usize, len: usize) -> bool {
    /// Pages per call.
    const BATCH: usize = 4096;
    let mut resident = [0_u8; BATCH];
    // Not by `msync`, which Valgrind's tools take for a read of all the memory.
    (va..va + len).step_by(BATCH * PAGE as usize).all(|start| {
        let bytes = (va + len - start).min(BATCH * PAGE as usize);
        // SAFETY: the call writes a byte for each page to the array, which has `BATCH` bytes, and
        // fails if a page is not mapped.
        unsafe { libc::mincore(ptr::without_provenance_mut(start), bytes, resident.as_mut_ptr()) == 0 }
    })
}

/// Returns whether this process may write all of `len` mapped bytes from `start` on. True where the
/// kernel does not list mappings.
pub(crate) fn is_writable(start: u64, len: u64) -> bool {
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else { return true };
    let end = start.saturating_add(len);
    let lines = BufReader::new(maps).lines().map_while(io::Result::ok);
    let ranges = lines.filter_map(|line| protection(&line).filter(|(range, _)| range.end > start));
    ranges.take_while(|(range, _)| range.start < end).all(|(_, writable)| writable)
}

/// Parses a line of `/proc/self/maps`: its range, and whether it is writable (proc_pid_maps(5)).
fn protection(line: &str) -> Option<(Range<u64>, bool)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?..number(end)?, rest.as_bytes().get(1) == Some(&b'w')))
}

/// A device's mapped registers. Dropping replaces them by plain memory, so that remaining handles
/// are harmless.
#[derive(Debug)]
pub(crate) struct Registers {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; the value only ends it.
unsafe impl Send for Registers {}
// SAFETY: nothing is done by reference.
unsafe impl Sync for Registers {}

impl Registers {
    /// Returns the address range of the mapping, which remains reserved.
    pub(crate) fn mapping(&self) -> Mapping {
        Mapping { start: self.base, len: self.len }
    }

    /// Maps `len` bytes at `offset` of a device's file.
    pub(crate) fn map(device: impl AsFd, offset: u64, len: usize) -> Result<(MmioBar, Self)> {
        // SAFETY: as in `Shared::anonymous`.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, device, offset)
        }
        .map_err(Error::kernel("cannot map BAR0"))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or(Error::Options("the kernel gave registers at address 0"))?;
        let registers = Self { base, len };
        // A child process that kept the mapping would keep the device open. An error is ignored,
        // because the parent process works without this advice.
        // SAFETY: the range was just mapped, and child processes do not use it.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) };
        // SAFETY: BAR0 was just mapped here, uncached, and the range stays mapped: `drop` only
        // changes what it is mapped to.
        let bar = unsafe { MmioBar::new(base, len) };
        let bar = bar.ok_or_else(|| Error::Unusable(format!("BAR0 has {len} bytes, no power of two")))?;
        Ok((bar, registers))
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: new memory replaces the registers in one step, at an address that stays mapped;
        // handles access it as they did these. If that fails, the registers remain mapped, which
        // keeps the device open and is harmless.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let Ok(memory) =
                rustix::mm::mmap_anonymous(ptr::null_mut(), self.len, protection, MapFlags::PRIVATE)
            else {
                return;
            };
            let place = self.base.as_ptr().cast();
            let _ = rustix::mm::mremap_fixed(memory, self.len, self.len, MremapFlags::MAYMOVE, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver_mlx::Bar;

    #[test]
    fn handles_outlive_registers_without_harm() {
        let file = rustix::fs::memfd_create(c"registers", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let (bar, registers) = Registers::map(&file, 0, 8192).unwrap();
        // SAFETY: the "registers" are a file, so a write has no other effect.
        unsafe { bar.write32(4, 0x0102_0304) };
        let mut bytes = [0; 4];
        rustix::io::pread(&file, &mut bytes[..], 4).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        drop(registers);
        assert_eq!(bar.read32(4), 0);
        // SAFETY: as above.
        unsafe { bar.write32(4, 7) };
        rustix::io::pread(&file, &mut bytes[..], 4).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4], "the file is out of reach");
    }

    #[test]
    fn what_is_freed_is_gone() {
        let mut memory = Memory::default();
        let mut places = Vec::new();
        for shared in [Shared::file(8192).unwrap(), Shared::anonymous(4096, false).unwrap()] {
            let Mapping { start, len } = shared.mapping.unwrap();
            let end = start.as_ptr().addr() + len - 4096;
            places.push(end);
            assert!(is_mapped(end, 4096));
            shared.into_region(4096, &mut memory).unwrap();
        }
        memory.host_region(1 << 20).unwrap();
        // SAFETY: no device has it, and the regions were dropped.
        unsafe { memory.free() };
        // Another test's memory may be in one of the places by now.
        assert!(places.iter().any(|end| !is_mapped(*end, 4096)));
    }

    #[test]
    fn memory_is_writable_if_all_of_it_is() {
        let shared = Shared::anonymous(3 * 4096, false).unwrap();
        let start = shared.address();
        assert!(is_writable(start, 3 * 4096));
        let middle = ptr::with_exposed_provenance_mut(start as usize + 4096);
        // SAFETY: the page is this test's, and no code writes it.
        unsafe { rustix::mm::mprotect(middle, 4096, rustix::mm::MprotectFlags::READ) }.unwrap();
        let pages = [(0, 1), (1, 1), (2, 1), (0, 2), (0, 3), (1, 2)];
        let answers = pages.map(|(first, pages)| is_writable(start + first * 4096, pages * 4096));
        assert_eq!(answers, [true, false, true, false, false, false]);
    }

    #[test]
    fn mappings_are_parsed() {
        let line = "7f10-7f20 r-xp 00000000 08:01 42                  /usr/lib/w";
        assert_eq!(protection(line), Some((0x7f10..0x7f20, false)));
        assert_eq!(protection("0-fff000 rw-s 0 0:0 0"), Some((0..0xfff000, true)));
        assert_eq!([protection(""), protection("7f10 rw"), protection("x-y rw")], [None, None, None]);
    }

    #[test]
    fn a_shared_file_cannot_shrink() {
        let shared = Shared::file(5000).unwrap();
        assert_eq!(shared.len(), 8192);
        let file = shared.file.as_ref().unwrap();
        assert!(rustix::fs::ftruncate(file, 4096).is_err());
    }

    #[test]
    fn anonymous_memory_begins_at_a_large_page() {
        let shared = Shared::anonymous(3 << 20, false).unwrap();
        assert!(shared.address().is_multiple_of(2 << 20));
        assert!(is_mapped(shared.address() as usize, shared.len()));
        assert!(!is_mapped(4096, 4096));
    }
}
