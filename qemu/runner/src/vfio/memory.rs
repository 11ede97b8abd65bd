//! Guest memory as an emulated HCA's DMA sees it: the ranges that the client mapped, each a file it handed over.
//!
//! No pointer leaves this module and none is kept between accesses, so that an unmapped range is out of reach
//! as soon as [`GuestMap::unmap`] has returned. All accesses are volatile or atomic (`vm-memory`).

use hca_model::{DmaFault, GuestMemory};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// mmap's `PROT_READ`, `PROT_WRITE` and `MAP_SHARED`, as POSIX systems on Linux number them.
const PROT_READ: i32 = 1;
const PROT_WRITE: i32 = 2;
const MAP_SHARED: i32 = 1;

/// A range of guest memory.
#[derive(Debug)]
pub struct Range {
    size: u64,
    writable: bool,
    /// None for a range that came without a file: it is known and inaccessible.
    pages: Option<MmapRegion>,
}

impl Range {
    /// Maps `size` bytes of `file` from `offset` on; without a file the range is known but inaccessible.
    ///
    /// # Errors
    /// The file is too short, the offset is not page-aligned, or the system refuses.
    pub fn new(file: Option<File>, offset: u64, size: u64, writable: bool) -> io::Result<Self> {
        let pages = match file {
            Some(file) => {
                let length = usize::try_from(size).map_err(io::Error::other)?;
                // Pages behind a file's end can be mapped but not touched.
                if offset
                    .checked_add(size)
                    .is_none_or(|end| file.metadata().is_ok_and(|data| data.len() < end))
                {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let protection = if writable { PROT_READ | PROT_WRITE } else { PROT_READ };
                let file = FileOffset::new(file, offset);
                Some(
                    MmapRegion::build(Some(file), length, protection, MAP_SHARED)
                        .map_err(io::Error::other)?,
                )
            }
            None => None,
        };
        Ok(Self { size, writable, pages })
    }

    /// Whether DMA can reach it.
    pub fn is_accessible(&self) -> bool {
        self.pages.is_some()
    }
}

/// All mapped ranges of one guest, by device address.
#[derive(Debug, Default)]
pub struct GuestMap {
    ranges: BTreeMap<u64, Range>,
}

impl GuestMap {
    /// Adds a range at the device address `address`.
    ///
    /// # Errors
    /// It is empty, passes the end of the address space, or overlaps one that is mapped.
    pub fn map(&mut self, address: u64, range: Range) -> io::Result<()> {
        let end = address.checked_add(range.size).filter(|&end| end > address);
        let Some(end) = end else { return Err(io::ErrorKind::InvalidInput.into()) };
        let overlaps = self
            .ranges
            .range(..end)
            .next_back()
            .is_some_and(|(&start, before)| start.saturating_add(before.size) > address);
        if overlaps {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.ranges.insert(address, range);
        Ok(())
    }

    /// Takes out every range that lies within the given one; what it cuts through stays, as VFIO has it.
    pub fn unmap(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let within: Vec<u64> = self
            .ranges
            .range(address..end)
            .filter(|(start, range)| start.saturating_add(range.size) <= end)
            .map(|(&start, _)| start)
            .collect();
        for start in within {
            self.ranges.remove(&start);
        }
    }

    /// Takes out everything.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// The pages that hold `address`, the offset in them and how many bytes follow there.
    fn find(&self, address: u64, write: bool) -> Option<(&MmapRegion, usize, usize)> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        let pages = range.pages.as_ref().filter(|_| range.writable || !write)?;
        let offset = usize::try_from(address - start).ok()?;
        let rest = pages.size().checked_sub(offset).filter(|&rest| rest > 0)?;
        Some((pages, offset, rest))
    }

    /// Calls `each` for every piece of `len` bytes from `address` on, with the offset in the transfer.
    fn pieces(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut each: impl FnMut(&MmapRegion, usize, usize, usize) -> bool,
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { address, len };
        // The whole transfer is checked first: a fault leaves nothing half done.
        for act in [false, true] {
            let mut done = 0;
            while done < len {
                let at = u64::try_from(done).ok().and_then(|done| address.checked_add(done)).ok_or(fault)?;
                let (pages, offset, rest) = self.find(at, write).ok_or(fault)?;
                let piece = rest.min(len - done);
                if act && !each(pages, offset, done, piece) {
                    return Err(fault);
                }
                done += piece;
            }
        }
        Ok(())
    }

    /// The place of one aligned access of `len` bytes.
    fn place(&self, address: u64, len: usize, write: bool) -> Result<(&MmapRegion, usize), DmaFault> {
        let fault = DmaFault { address, len };
        let (pages, offset, rest) = self.find(address, write).ok_or(fault)?;
        if rest < len || !address.is_multiple_of(len as u64) { Err(fault) } else { Ok((pages, offset)) }
    }
}

impl GuestMemory for GuestMap {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        self.pieces(address, len, false, |pages, offset, done, piece| {
            let part = buf.get_mut(done..done + piece);
            part.is_some_and(|part| pages.as_volatile_slice().read_slice(part, offset).is_ok())
        })
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.pieces(address, data.len(), true, |pages, offset, done, piece| {
            let part = data.get(done..done + piece);
            part.is_some_and(|part| pages.as_volatile_slice().write_slice(part, offset).is_ok())
        })
    }

    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        let (pages, offset) = self.place(address, 4, false)?;
        let value: u32 = pages
            .as_volatile_slice()
            .load(offset, Ordering::Acquire)
            .map_err(|_| DmaFault { address, len: 4 })?;
        Ok(u32::from_be(value))
    }

    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        let (pages, offset) = self.place(address, 8, false)?;
        let value: u64 = pages
            .as_volatile_slice()
            .load(offset, Ordering::Acquire)
            .map_err(|_| DmaFault { address, len: 8 })?;
        Ok(u64::from_be(value))
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        let (pages, offset) = self.place(address, 4, true)?;
        let stored = pages.as_volatile_slice().store(value.to_be(), offset, Ordering::Release);
        stored.map_err(|_| DmaFault { address, len: 4 })
    }

    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        let (pages, offset) = self.place(address, 8, true)?;
        let stored = pages.as_volatile_slice().store(value.to_be(), offset, Ordering::Release);
        stored.map_err(|_| DmaFault { address, len: 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    const PAGE: u64 = 4096;

    fn file(pages: u64) -> File {
        let descriptor = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let file = File::from(descriptor);
        file.set_len(pages * PAGE).expect("length");
        file
    }

    fn range(file: &File, offset: u64, pages: u64, writable: bool) -> Range {
        let file = file.try_clone().expect("descriptor");
        Range::new(Some(file), offset, pages * PAGE, writable).expect("mapped")
    }

    #[test]
    fn transfers_cross_adjacent_ranges_and_land_in_the_files() {
        let (mut low, mut high) = (file(1), file(2));
        let mut map = GuestMap::default();
        map.map(0x10_0000, range(&low, 0, 1, true)).expect("map");
        map.map(0x10_1000, range(&high, PAGE, 1, true)).expect("map");
        let data: Vec<u8> = (0..100).collect();
        map.write(0x10_1000 - 40, &data).expect("write");
        let mut seen = vec![0; 100];
        map.read(0x10_1000 - 40, &mut seen).expect("read");
        assert_eq!(seen, data);
        let mut ends = (vec![0; 40], vec![0; 60]);
        low.seek(SeekFrom::Start(PAGE - 40)).expect("seek");
        low.read_exact(&mut ends.0).expect("read");
        high.seek(SeekFrom::Start(PAGE)).expect("seek");
        high.read_exact(&mut ends.1).expect("read");
        assert_eq!([ends.0, ends.1].concat(), data);
    }

    #[test]
    fn values_are_big_endian_in_memory_and_accesses_aligned() {
        let mut backing = file(1);
        backing.write_all(&[1, 2, 3, 4, 5, 6, 7, 8]).expect("write");
        let mut map = GuestMap::default();
        map.map(0, range(&backing, 0, 1, true)).expect("map");
        assert_eq!(map.load32(4), Ok(0x0506_0708));
        assert_eq!(map.load64(0), Ok(0x0102_0304_0506_0708));
        map.store64(8, 0x1122_3344_5566_7788).expect("store");
        map.store32(16, 0x99aa_bbcc).expect("store");
        let mut seen = [0; 12];
        map.read(8, &mut seen).expect("read");
        assert_eq!(seen, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc]);
        assert_eq!(map.load64(4), Err(DmaFault { address: 4, len: 8 }));
        assert_eq!(map.load32(PAGE - 2), Err(DmaFault { address: PAGE - 2, len: 4 }));
    }

    #[test]
    fn read_only_absent_and_fileless_ranges_fault_and_nothing_is_half_written() {
        let backing = file(3);
        let mut map = GuestMap::default();
        map.map(0, range(&backing, 0, 1, true)).expect("map");
        map.map(PAGE, range(&backing, PAGE, 1, false)).expect("map");
        map.map(2 * PAGE, Range::new(None, 0, PAGE, true).expect("no file")).expect("map");
        assert!(map.write(PAGE - 4, &[0xff; 8]).is_err(), "runs into the read-only range");
        assert_eq!(map.load32(PAGE - 4), Ok(0), "and changed nothing before it");
        assert!(map.read(PAGE, &mut [0; 16]).is_ok());
        assert!(map.store32(PAGE, 1).is_err());
        assert!(map.read(2 * PAGE, &mut [0; 1]).is_err());
        assert!(map.read(3 * PAGE, &mut [0; 1]).is_err());
        assert!(map.read(u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn maps_do_not_overlap_and_unmaps_take_whole_ranges() {
        let backing = file(4);
        let mut map = GuestMap::default();
        map.map(PAGE, range(&backing, 0, 2, true)).expect("map");
        let taken = |map: &mut GuestMap, at, pages| map.map(at, range(&backing, 0, pages, true)).is_err();
        assert!(taken(&mut map, 0, 2), "overlaps its start");
        assert!(taken(&mut map, 2 * PAGE, 1), "lies within");
        assert!(taken(&mut map, u64::MAX - PAGE + 1, 2), "passes the end of the address space");
        map.unmap(PAGE, PAGE);
        assert_eq!(map.ranges.len(), 1, "half a range is not unmapped");
        map.unmap(0, 4 * PAGE);
        assert!(map.ranges.is_empty());
        assert!(Range::new(Some(file(1)), 0, 2 * PAGE, true).is_err(), "longer than its file");
    }
}
