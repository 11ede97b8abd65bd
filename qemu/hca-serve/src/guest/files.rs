//! A client's files, mapped into this process. Each file is mapped once, however many ranges refer
//! to it. A machine with an IOMMU announces its memory page by page, but a process can have only
//! some ten thousand mappings.

use super::mapping::{Mapping, Sources};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Address space of a client's files, in bytes for each permitted mapping. All clients together may
/// use 64 TiB, half of a process's address space. Files can have holes, so large ones cost nothing.
const SHARE: u64 = 1 << 31;

/// Identity of a complete file: device, inode, and whether the mapping is writable.
type Identity = (u64, u64, bool);

/// A counted mapping.
#[derive(Debug)]
struct Known {
    /// Identity of the file if it is mapped completely. Partial mappings are not shared and have
    /// none.
    whole: Option<Identity>,
    mapping: Weak<Mapping>,
}

/// A client's files.
#[derive(Debug)]
pub struct Files {
    known: Vec<Known>,
    limit: usize,
}

impl Files {
    /// Creates an empty set of at most `limit` mappings, which share address space of 2 GiB each.
    pub fn new(limit: usize) -> Self {
        Self { known: Vec::new(), limit }
    }

    /// Returns the remaining address space, in bytes.
    fn room(&self) -> u64 {
        let mapped = self.known.iter().filter_map(|known| known.mapping.upgrade());
        let taken = mapped.fold(0u64, |sum, mapping| sum.saturating_add(mapping.len()));
        (self.limit as u64).saturating_mul(SHARE).saturating_sub(taken)
    }

    /// Returns a mapping that contains `size` bytes of `file` from `offset` on, and their offset in
    /// the mapping.
    ///
    /// # Errors
    /// As [`Mapping::new`]; `ENOSPC`: there are too many mappings, or they take too much address
    /// space.
    pub fn map(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        size: u64,
        writable: bool,
        sources: Sources,
    ) -> Result<(Rc<Mapping>, u64), Errno> {
        let status = fstat(file)?;
        let end = offset.checked_add(size).ok_or(Errno::OVERFLOW)?;
        if !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let identity = Some((status.st_dev, status.st_ino, writable));
        let is_same = |known: &&Known| known.whole == identity;
        let shared = self.known.iter().filter(is_same).find_map(|known| {
            known.mapping.upgrade().filter(|mapping| mapping.len() >= end && !mapping.is_lost())
        });
        if let Some(mapping) = shared {
            return Ok((mapping, offset));
        }
        // Unused mappings are unmapped already. This removes their entries.
        self.known.retain(|known| known.mapping.strong_count() > 0);
        if self.known.len() >= self.limit {
            return Err(Errno::NOSPC);
        }
        let length = u64::try_from(status.st_size).unwrap_or(0);
        let room = self.room();
        // A file larger than the remaining address space is mapped range by range.
        let whole = end <= length && length <= room;
        let (start, len) = if whole { (0, length) } else { (offset, size) };
        if len > room {
            return Err(Errno::NOSPC);
        }
        let mapping = Rc::new(Mapping::new(file, start, len, writable, sources)?);
        self.known.push(Known { whole: identity.filter(|_| whole), mapping: Rc::downgrade(&mapping) });
        Ok((mapping, offset - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(pages: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&file, pages * PAGE).expect("length");
        file
    }

    #[test]
    fn a_file_is_mapped_once_while_it_is_used() {
        let file_a = file(4);
        let mut files = Files::new(2);
        let (first, at) = files.map(&file_a, PAGE, PAGE, true, Sources::Memory).expect("mapped");
        assert_eq!(at, PAGE);
        let other = file_a.try_clone().expect("descriptor");
        let (second, at) = files.map(&other, 3 * PAGE, PAGE, true, Sources::Memory).expect("mapped");
        assert_eq!(at, 3 * PAGE);
        assert!(Rc::ptr_eq(&first, &second));
        let (read_only, _) = files.map(&file_a, 0, PAGE, false, Sources::Memory).expect("mapped");
        assert!(!Rc::ptr_eq(&first, &read_only), "what is read-only stays so");
        assert_eq!(files.map(&file(1), 0, PAGE, true, Sources::Memory).err(), Some(Errno::NOSPC));
        drop(read_only);
        files.map(&file(1), 0, PAGE, true, Sources::Memory).expect("room again");
    }

    #[test]
    fn a_file_that_grew_is_mapped_anew() {
        let growing = file(1);
        let mut files = Files::new(4);
        let (short, _) = files.map(&growing, 0, PAGE, true, Sources::Memory).expect("mapped");
        assert_eq!(files.map(&growing, PAGE, PAGE, true, Sources::Memory).err(), Some(Errno::OVERFLOW));
        ftruncate(&growing, 2 * PAGE).expect("length");
        let (long, _) = files.map(&growing, PAGE, PAGE, true, Sources::Memory).expect("mapped");
        assert_eq!((short.len(), long.len()), (PAGE, 2 * PAGE));
    }

    #[test]
    fn files_that_are_too_large_are_mapped_in_parts_and_address_space_is_counted() {
        const GIB: u64 = 1 << 30;
        let huge = file((4 * GIB + PAGE) / PAGE);
        // Capacity for 4 GiB.
        let mut files = Files::new(2);
        let (part, at) = files.map(&huge, 16 * PAGE, GIB, true, Sources::Memory).expect("mapped");
        assert_eq!((part.len(), at), (GIB, 0));
        assert_eq!(files.map(&huge, 0, 4 * GIB, true, Sources::Memory).err(), Some(Errno::NOSPC));
        let (other, _) = files.map(&huge, 16 * PAGE, GIB, true, Sources::Memory).expect("mapped");
        assert!(!Rc::ptr_eq(&part, &other));
        drop((part, other));
        let (most, _) = files.map(&huge, PAGE, 4 * GIB, true, Sources::Memory).expect("room again");
        assert_eq!(most.len(), 4 * GIB);
        assert_eq!(files.map(&file(1), 0, PAGE, true, Sources::Memory).err(), Some(Errno::NOSPC));
        drop(most);
        assert_eq!(files.map(&huge, 1, PAGE, true, Sources::Memory).err(), Some(Errno::INVAL));
    }
}
