//! A queue's buffer in guest memory: the `pas[]` of a creating command.

use crate::seams::{DmaFault, GuestMemory};
use std::sync::Arc;

/// A contiguous buffer made of pages, each `1 << log_page_size` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageList {
    pages: Vec<u64>,
    log_page_size: u32,
    /// Where the buffer starts in the first page.
    page_offset: u64,
    len: u64,
    /// Keeps the user memory that the pages are of in use.
    umem: Option<Arc<()>>,
}

impl PageList {
    /// Pages that a buffer of `len` bytes needs that starts `page_offset` bytes into the first.
    #[must_use]
    pub const fn pages_needed(len: u64, page_offset: u64, log_page_size: u32) -> u64 {
        (page_offset + len).div_ceil(1 << log_page_size)
    }

    /// A buffer of `len` bytes, `None` when `pages` does not cover it.
    #[must_use]
    pub fn new(pages: Vec<u64>, log_page_size: u32, page_offset: u64, len: u64) -> Option<Self> {
        if log_page_size > 40 || Self::pages_needed(len, page_offset, log_page_size) > pages.len() as u64 {
            return None;
        }
        Some(Self { pages, log_page_size, page_offset, len, umem: None })
    }

    /// The same list of pages, as part of a user memory.
    #[must_use]
    pub(crate) fn of_umem(self, umem: &Arc<()>) -> Self {
        Self { umem: Some(Arc::clone(umem)), ..self }
    }

    /// Host memory that the list takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.pages.len() as u64 * 8
    }

    /// The pages as given.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// The device address of byte `offset` and how many bytes follow in the same page; `None` beyond the end.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<(u64, u64)> {
        if offset >= self.len {
            return None;
        }
        let at = self.page_offset + offset;
        let page = self.pages.get(usize::try_from(at >> self.log_page_size).ok()?)?;
        let inside = at & ((1 << self.log_page_size) - 1);
        let left = ((1 << self.log_page_size) - inside).min(self.len - offset);
        Some((page.wrapping_add(inside), left))
    }

    /// Copies out of the buffer.
    ///
    /// # Errors
    /// [`DmaFault`] when the range leaves the buffer or memory cannot be read.
    pub fn read(&self, memory: &dyn GuestMemory, offset: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < buf.len() {
            let fault = DmaFault { address: offset, len: buf.len() };
            let (address, left) = self.address(offset + done as u64).ok_or(fault)?;
            let end = buf.len().min(done + usize::try_from(left).unwrap_or(usize::MAX));
            memory.read(address, buf.get_mut(done..end).ok_or(fault)?)?;
            done = end;
        }
        Ok(())
    }

    /// Calls `each` with the last byte of each of `count` entries of `size` bytes. Reads many
    /// entries at once, because each read of private memory is a round trip.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn entry_ends(
        &self,
        memory: &dyn GuestMemory,
        count: u64,
        size: u32,
        mut each: impl FnMut(u8),
    ) -> Result<(), DmaFault> {
        let mut block = [0; 4096];
        let (mut at, end) = (0, count * u64::from(size));
        while at < end {
            let len = (end - at).min(block.len() as u64);
            let part = block.get_mut(..len as usize).unwrap_or_default();
            self.read(memory, at, part)?;
            part.chunks(size as usize).filter_map(|entry| entry.last()).for_each(|byte| each(*byte));
            at += len;
        }
        Ok(())
    }

    /// Copies into the buffer.
    ///
    /// # Errors
    /// [`DmaFault`] when the range leaves the buffer or memory cannot be written.
    pub fn write(&self, memory: &dyn GuestMemory, offset: u64, data: &[u8]) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < data.len() {
            let fault = DmaFault { address: offset, len: data.len() };
            let (address, left) = self.address(offset + done as u64).ok_or(fault)?;
            let end = data.len().min(done + usize::try_from(left).unwrap_or(usize::MAX));
            memory.write(address, data.get(done..end).ok_or(fault)?)?;
            done = end;
        }
        Ok(())
    }

    /// Writes a 64-byte entry, see [`GuestMemory::publish`].
    ///
    /// # Errors
    /// [`DmaFault`] when the entry leaves the buffer or memory cannot be written.
    pub fn publish(&self, memory: &dyn GuestMemory, offset: u64, entry: &[u8; 64]) -> Result<(), DmaFault> {
        let outside = DmaFault { address: offset, len: 64 };
        let (address, left) = self.address(offset).ok_or(outside)?;
        if left >= 64 {
            return memory.publish(address, entry);
        }
        self.publish_in_parts(memory, offset, entry)
    }

    /// A ring of user memory may begin anywhere, and an entry may lie in two pages.
    #[cold]
    #[inline(never)]
    fn publish_in_parts(
        &self,
        memory: &dyn GuestMemory,
        offset: u64,
        entry: &[u8; 64],
    ) -> Result<(), DmaFault> {
        let [.., a, b, c, d, e, f, g, h] = *entry;
        self.write(memory, offset, &entry[..56])?;
        let outside = DmaFault { address: offset, len: 64 };
        let (address, _) = self.address(offset + 56).ok_or(outside)?;
        memory.store64(address, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::NoMemory;
    use std::cell::{Cell, RefCell};

    /// Memory whose bytes are their page's number. It counts reads and notes where it is written.
    #[derive(Default)]
    struct Noted {
        reads: Cell<u32>,
        writes: RefCell<Vec<(u64, usize)>>,
    }

    impl GuestMemory for Noted {
        fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
            self.reads.set(self.reads.get() + 1);
            buf.fill((address >> 12) as u8);
            Ok(())
        }

        fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
            self.writes.borrow_mut().push((address, data.len()));
            Ok(())
        }

        fn load32(&self, address: u64) -> Result<u32, DmaFault> {
            NoMemory.load32(address)
        }

        fn load64(&self, address: u64) -> Result<u64, DmaFault> {
            NoMemory.load64(address)
        }

        fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
            NoMemory.store32(address, value)
        }

        fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
            self.write(address, &value.to_be_bytes())
        }
    }

    #[test]
    fn entries_are_published_in_two_pages() {
        for (offset, expected) in [
            (0x10, &[(0x9010, 56), (0x9048, 8)][..]),
            (0xfd0, &[(0x9fd0, 48), (0x5000, 8), (0x5008, 8)]),
            (0xfc0, &[(0x9fc0, 56), (0x9ff8, 8)]),
        ] {
            let (memory, list) =
                (Noted::default(), PageList::new(vec![0x9000, 0x5000], 12, 0, 0x2000).unwrap());
            list.publish(&memory, offset, &[0; 64]).unwrap();
            assert_eq!(memory.writes.take(), expected, "{offset:#x}");
        }
    }

    #[test]
    fn owner_bytes_are_read_by_page() {
        let (memory, mut seen) = (Noted::default(), Vec::new());
        let list = PageList::new(vec![0x9000, 0x5000, 0x7000], 12, 0, 0x3000).unwrap();
        list.entry_ends(&memory, 160, 64, |byte| seen.push(byte)).unwrap();
        assert_eq!(seen, [vec![9; 64], vec![5; 64], vec![7; 32]].concat());
        assert_eq!(memory.reads.get(), 3);
        assert!(list.entry_ends(&memory, 193, 64, |_| {}).is_err(), "beyond the list");
    }
}
