//! Memory that a user handed over once, to be named by number and offset in the objects that he makes (PRM, user memory).

use super::pages::PageList;
use std::sync::Arc;

/// Registered user memory.
#[derive(Clone, Debug)]
pub struct Umem {
    pages: PageList,
    log_page_size: u32,
    page_offset: u64,
    len: u64,
    /// Shared with the rings that lie in the memory.
    users: Arc<()>,
}

impl Umem {
    /// Memory made of `pages` of `1 << log_page_size` bytes, which begins `page_offset` bytes into the first; `None` where
    /// that is beyond it.
    #[must_use]
    pub fn new(pages: Vec<u64>, log_page_size: u32, page_offset: u64) -> Option<Self> {
        let whole = (pages.len() as u64).checked_shl(log_page_size)?;
        let len = whole.checked_sub(page_offset).filter(|len| *len != 0)?;
        let pages = PageList::new(pages, log_page_size, page_offset, len)?;
        Some(Self { pages, log_page_size, page_offset, len, users: Arc::default() })
    }

    /// Host memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        size_of::<Self>() as u64 + self.pages.memory()
    }

    /// The `len` bytes from `offset` on; `None` where they are not all inside. They stay what they are when the
    /// registration ends.
    #[must_use]
    pub fn part(&self, offset: u64, len: u64) -> Option<PageList> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let at = self.page_offset + offset;
        let first = usize::try_from(at >> self.log_page_size).ok()?;
        let inside = at & ((1 << self.log_page_size) - 1);
        let count = usize::try_from(PageList::pages_needed(len, inside, self.log_page_size)).ok()?;
        let pages = self.pages.pages().get(first..first.checked_add(count)?)?;
        Some(PageList::new(pages.to_vec(), self.log_page_size, inside, len)?.of_umem(&self.users))
    }

    /// Returns whether an object has its ring in the memory.
    #[must_use]
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.users) > 1
    }

    /// The device address of the 8 bytes at `offset`.
    #[must_use]
    pub fn record(&self, offset: u64) -> Option<u64> {
        self.pages.address(offset).filter(|(_, left)| *left >= 8).map(|(address, _)| address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_through_pages_of_any_size() {
        let umem = Umem::new(vec![0x10_0000, 0x5000_0000, 0x20_0000], 16, 0x1230).expect("three pages");
        let part = umem.part(0xe000, 0x1_2000).expect("inside");
        assert_eq!(part.address(0), Some((0x10_f230, 0xdd0)));
        assert_eq!(part.address(0xdd0), Some((0x5000_0000, 0x1_0000)));
        assert_eq!(part.address(0x1_0dd0), Some((0x20_0000, 0x1230)));
        assert_eq!(umem.record(0xe000), Some(0x10_f230));
        let len = 0x3_0000 - 0x1230;
        assert!(umem.part(len - 8, 8).is_some() && umem.part(len - 8, 9).is_none());
        assert!(umem.part(u64::MAX, 2).is_none());
        assert_eq!((umem.record(len - 8).is_some(), umem.record(len - 4)), (true, None));
        assert!(Umem::new(vec![0; 2], 12, 0x2000).is_none());
    }
}
