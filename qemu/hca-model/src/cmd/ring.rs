//! Page lists of rings, as the commands that make queues bring them (PRM, command reference: `pas`).

use super::refusal::Refusal;
use crate::object::pages::PageList;
use crate::profile::Strictness;
use mlx5_prm::Tail;
use mlx5_prm::status::CmdStatus;

/// Entries of a new ring whose owner bits are looked at: all of a usual one, and a bounded number of a huge one.
pub(super) const OWNERS_CHECKED: u64 = 1 << 16;

/// A queue's geometry, as its context and the command's page list say.
pub(super) struct Ring<'a> {
    /// Name of the context, for refusals.
    pub(super) context: &'a str,
    /// Name of the input, for refusals.
    pub(super) input: &'a str,
    /// Bytes of the whole ring.
    pub(super) len: u64,
    /// In units of a 64th of a page: 64 bytes where pages are 4 KiB.
    pub(super) page_offset: u32,
    /// log2 of a page in units of 4 KiB.
    pub(super) log_page_size: u32,
}

impl Ring<'_> {
    /// Makes the page list and checks alignment, coverage and excess of `pas`.
    pub(super) fn pages(&self, input: &[u8], pas: Tail, strictness: Strictness) -> Result<PageList, Refusal> {
        let log_page = self.log_page_size + 12;
        let field = |name: &str| format!("{}.{name}", self.context);
        if log_page > 31 {
            return Err(Refusal::param(field("log_page_size"), format!("{}", self.log_page_size)));
        }
        let offset = u64::from(self.page_offset) << (log_page - 6);
        if offset >= 1 << log_page {
            return Err(Refusal::param(field("page_offset"), "beyond the first page"));
        }
        let count = pas.count(input);
        let needed = PageList::pages_needed(self.len, offset, log_page);
        if (count as u64) < needed {
            let text = format!("{count} pages, {needed} needed");
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, format!("{}.pas", self.input), text));
        }
        if count as u64 > needed && strictness == Strictness::Strict {
            let text = format!("{count} pages, {needed} expected");
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, format!("{}.pas", self.input), text));
        }
        let mut pages = Vec::with_capacity(count);
        for i in 0..count {
            let page = pas.quad(input, i);
            if !page.is_multiple_of(4096) || (page == 0 && strictness == Strictness::Strict) {
                let text = format!("{page:#x} is not the address of a page");
                return Err(Refusal::param(format!("{}.pas[{i}]", self.input), text));
            }
            pages.push(page);
        }
        PageList::new(pages, log_page, offset, self.len)
            .ok_or_else(|| Refusal::param(format!("{}.pas", self.input), "does not cover the ring"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_in_the_first_page_grows_with_the_page() {
        let pas = Tail { offset: 0, stride: 8 };
        let input = 0x20_0000u64.to_be_bytes();
        for (log_page_size, first) in [(0, 3 * 64), (1, 3 * 128), (4, 3 * 1024)] {
            let ring =
                Ring { context: "qpc", input: "create_qp_in", len: 1024, page_offset: 3, log_page_size };
            let pages = ring.pages(&input, pas, Strictness::Strict);
            let address = pages.map(|pages| pages.address(0).map(|(address, _)| address));
            assert_eq!(address, Ok(Some(0x20_0000 + first)), "pages of 2^{} bytes", log_page_size + 12);
        }
    }
}
