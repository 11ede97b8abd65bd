//! All UAR pages of a device, and how software numbers them (PRM, UAR page format; `cmd_hca_cap.log_uar_page_sz`, `uar_4k`).
//!
//! A driver whose machine has larger pages than 4 KiB takes UARs by such pages, as only those can be mapped. Registers stay 4 KiB apart. With
//! `uar_4k`, numbers count 4 KiB and all UARs of a page are the driver's; without it they count pages, and only the first UAR of each is there.

use super::table::Table;
use super::uar::{FIRST_UAR, UAR_PAGE, Uar};

/// UARs that are handed out at most.
const MOST_UARS: u32 = 1 << 12;

/// Pages that software was given, each of one UAR or several.
#[derive(Debug)]
pub struct Uars {
    /// By their place in BAR0, in units of 4 KiB.
    uars: Vec<Option<Box<Uar>>>,
    /// By their place in BAR0, in units of a page.
    pages: Table<Page>,
    /// log2 of a page in units of 4 KiB.
    log_page: u32,
    /// Numbers count 4 KiB.
    by_4k: bool,
}

#[derive(Debug, Default)]
struct Page {
    /// The driver gave the page back while queues still used it: it ends with the last of them.
    released: bool,
}

impl Uars {
    /// Pages of `1 << log_page` times 4 KiB in a BAR of `bar_size` bytes.
    #[must_use]
    pub fn new(bar_size: usize, log_page: u32, by_4k: bool) -> Self {
        let end = ((bar_size / UAR_PAGE) as u32).min(FIRST_UAR + MOST_UARS) >> log_page;
        let first = FIRST_UAR.div_ceil(1 << log_page);
        Self { uars: Vec::new(), pages: Table::new(first, end.saturating_sub(first)), log_page, by_4k }
    }

    const fn per_page(&self) -> u32 {
        if self.by_4k { 1 << self.log_page } else { 1 }
    }

    /// Host memory that a page takes at most.
    #[must_use]
    pub const fn page_memory(&self) -> u64 {
        Uar::MEMORY * self.per_page() as u64
    }

    /// Number of pages.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pages.len()
    }

    /// Hands out a page; answers the number that software calls it by, `None` when there is no more.
    pub fn allocate(&mut self) -> Option<u32> {
        let page = self.pages.insert(|_| Page::default())?;
        let first = (page << self.log_page) as usize;
        let end = first + self.per_page() as usize;
        if self.uars.len() < end {
            self.uars.resize_with(end, || None);
        }
        self.uars.get_mut(first..end)?.fill_with(|| Some(Box::default()));
        Some(if self.by_4k { first as u32 } else { page })
    }

    /// The place of the UAR that software calls `number`, in units of 4 KiB; `None` if it was not given that one.
    #[must_use]
    pub fn place(&self, number: u32) -> Option<u32> {
        let place = if self.by_4k { number } else { number.checked_mul(1 << self.log_page)? };
        self.uars.get(place as usize)?.is_some().then_some(place)
    }

    /// The number of the page that UAR `number` is part of.
    #[must_use]
    pub const fn page_number(&self, number: u32) -> u32 {
        number & !(self.per_page() - 1)
    }

    /// The UAR at `place`.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, place: u32) -> Option<&mut Uar> {
        self.uars.get_mut(place as usize)?.as_deref_mut()
    }

    /// The driver gives the page `number` back. Answers its first place, `None` if there is none, or it was given back before.
    pub fn release(&mut self, number: u32) -> Option<u32> {
        let place = self.place(number).filter(|_| self.page_number(number) == number)?;
        let page = self.pages.get_mut(place >> self.log_page).filter(|page| !page.released)?;
        page.released = true;
        Some(place)
    }

    /// Whether the page around `place` was given back, and exists all the same.
    #[must_use]
    pub fn is_released(&self, place: u32) -> bool {
        self.pages.get(place >> self.log_page).is_some_and(|page| page.released)
    }

    /// Whether two places are of one page.
    #[must_use]
    pub const fn same_page(&self, a: u32, b: u32) -> bool {
        a >> self.log_page == b >> self.log_page
    }

    /// Ends the page around `place`.
    pub fn remove(&mut self, place: u32) {
        let page = place >> self.log_page;
        self.pages.remove(page);
        let first = (page << self.log_page) as usize;
        let count = self.per_page() as usize;
        self.uars.iter_mut().skip(first).take(count).for_each(|uar| *uar = None);
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.uars.clear();
        self.pages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_page_holds_one_uar_or_as_many_as_fit() {
        for (by_4k, numbers, second) in [(false, [1, 2], None), (true, [16, 32], Some(17))] {
            let mut uars = Uars::new(2 << 20, 4, by_4k);
            assert_eq!(numbers.map(Some), [uars.allocate(), uars.allocate()]);
            assert_eq!(uars.place(numbers[0]), Some(16));
            assert_eq!(uars.place(17), second);
            assert_eq!(uars.get_mut(17).is_some(), by_4k);
            assert_eq!(uars.len(), 2);
            if by_4k {
                assert_eq!(uars.release(17), None, "not the number of a page");
                assert_eq!(uars.page_number(31), 16);
            }
            assert_eq!(uars.release(numbers[0]), Some(16));
            assert_eq!(uars.release(numbers[0]), None, "once");
            assert!(uars.is_released(31) && !uars.is_released(32));
            uars.remove(20);
            assert_eq!((uars.place(numbers[0]), uars.len()), (None, 1));
            assert_eq!(uars.place(numbers[1]), Some(32));
        }
    }

    #[test]
    fn pages_lie_behind_the_registers_and_inside_the_bar() {
        for (log_page, first, count) in [(0, 16, 496), (4, 1, 31), (8, 1, 1), (9, 1, 0)] {
            let mut uars = Uars::new(2 << 20, log_page, false);
            let numbers: Vec<u32> = std::iter::from_fn(|| uars.allocate()).collect();
            assert_eq!(numbers.len(), count, "{log_page}");
            assert!(numbers.first().is_none_or(|number| *number == first));
        }
    }
}
