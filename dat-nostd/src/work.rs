//! What an endpoint keeps of its outstanding operations: the consumer's cookies, counters, marks.

use driver_mlx::{DmaCells, DmaSlice};

use crate::event::DtoOperation;

/// What the driver keeps for us beside a work request.
///
/// | bits | content |
/// |---|---|
/// | 63–32 | bytes |
/// | 31–16 | place of the consumer's cookie |
/// | 6–4 | operation |
/// | 3 | a bind: bytes is the window's generation, its slot lies beside the consumer's cookie |
/// | 2 | our own marker |
/// | 1 | posted UNSIGNALLED |
/// | 0 | posted SUPPRESS |
#[derive(Clone, Copy)]
pub(crate) struct Cookie(pub(crate) u64);

impl Cookie {
    pub(crate) const SUPPRESS: u64 = 1;
    pub(crate) const UNSIGNALLED: u64 = 2;
    pub(crate) const MARKER: u64 = 4;
    pub(crate) const BIND: u64 = 8;

    #[inline(always)]
    pub(crate) fn new(length: u32, index: u32, operation: DtoOperation, flags: u64) -> Self {
        Self(u64::from(length) << 32 | u64::from(index as u16) << 16 | (operation as u64) << 4 | flags)
    }

    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        u32::from((self.0 >> 16) as u16)
    }

    #[inline(always)]
    pub(crate) fn operation(self) -> DtoOperation {
        const OPERATIONS: [DtoOperation; 8] = [
            DtoOperation::Send,
            DtoOperation::Receive,
            DtoOperation::RdmaWrite,
            DtoOperation::RdmaRead,
            DtoOperation::CompareSwap,
            DtoOperation::FetchAdd,
            DtoOperation::FetchAdd,
            DtoOperation::FetchAdd,
        ];
        OPERATIONS[(self.0 >> 4 & 7) as usize]
    }

    /// Whether success is not told.
    #[inline(always)]
    pub(crate) fn is_silent(self) -> bool {
        self.0 & (Self::SUPPRESS | Self::MARKER) != 0
    }

    /// Whether there is more to it than a transfer that is told.
    #[inline(always)]
    pub(crate) fn is_special(self) -> bool {
        self.0 & (Self::SUPPRESS | Self::MARKER | Self::BIND) != 0
    }

    pub(crate) fn is_bind(self) -> bool {
        self.0 & Self::BIND != 0
    }

    /// What it was posted with.
    pub(crate) fn marks(self) -> u64 {
        self.0 & (Self::SUPPRESS | Self::UNSIGNALLED | Self::MARKER | Self::BIND)
    }

    pub(crate) fn is_marker(self) -> bool {
        self.0 & Self::MARKER != 0
    }

    pub(crate) fn is_unsignalled(self) -> bool {
        self.0 & Self::UNSIGNALLED != 0
    }
}

/// One direction's outstanding operations: counters, and where what is kept of each lies.
///
/// | bytes of a place | content |
/// |---|---|
/// | 0–7 | the consumer's cookie |
/// | 8–15 | slot of the window of a bind (bits 47–32), first block of the work request in the send queue (bits 31–16), marks of its [`Cookie`] (15–0) |
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Operations posted, circular.
    pub(crate) head: u32,
    /// Operations retired.
    pub(crate) tail: u32,
    /// Places less one; a power of two.
    mask: u32,
    pub(crate) limit: u32,
    /// Offset of the places in the EP's cookie memory.
    base: usize,
    /// Block of the send queue that the next request begins at, circular as the device counts.
    pub(crate) block: u16,
    /// The places once more, in the form that the hot path writes; None until something was posted.
    cells: Option<DmaCells>,
}

impl Work {
    pub(crate) fn new(limit: u32, base: usize) -> Self {
        // One more for our marker.
        let places = if limit == 0 { 0 } else { (limit + 1).next_power_of_two() };
        Self { head: 0, tail: 0, mask: places.saturating_sub(1), limit, base, block: 0, cells: None }
    }

    /// Forgets everything outstanding, as a fresh QP has.
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail, self.block) = (0, 0, 0);
    }

    pub(crate) fn bytes(&self) -> usize {
        if self.limit == 0 { 0 } else { (self.mask as usize + 1) * 16 }
    }

    #[inline(always)]
    pub(crate) fn outstanding(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    #[inline(always)]
    fn place(&self, index: u32) -> usize {
        self.base + (index & self.mask) as usize * 16
    }

    /// From now on [`Work::next_place`] can be used. Few places stay as they are.
    pub(crate) fn attach(&mut self, cookies: &DmaSlice) {
        if self.cells.is_none() {
            self.cells = cookies.slice(self.base, self.bytes()).and_then(DmaCells::new);
        }
    }

    /// Where the next operation is to be kept, its place, and what is kept beside the consumer's cookie if it has no marks. None if it
    /// must be kept in the other way, or if no more may be outstanding.
    #[inline(always)]
    pub(crate) fn next_place(&self) -> Option<(&DmaCells, u32, u64)> {
        let head = self.head;
        let cells = self.cells.as_ref()?;
        (head.wrapping_sub(self.tail) < self.limit).then_some((
            cells,
            head & self.mask,
            u64::from(self.block) << 16,
        ))
    }

    /// The operation at [`Work::next_place`] has been kept and posted, in one block.
    #[inline(always)]
    pub(crate) fn posted(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.block = self.block.wrapping_add(1);
    }

    /// The consumer's cookie of the oldest operation, if it is the one at this place; it is done now. None if it must be asked for in
    /// the other way.
    #[inline(always)]
    pub(crate) fn retire_oldest(&mut self, index: u32) -> Option<u64> {
        let tail = self.tail;
        if (tail ^ index) & self.mask != 0 || tail == self.head {
            return None;
        }
        let user_cookie = self.cells.as_ref()?.first(index);
        self.tail = tail.wrapping_add(1);
        Some(user_cookie)
    }

    /// Keeps the consumer's cookie of the operation about to be posted; gives its place.
    #[inline(always)]
    pub(crate) fn keep(&self, cookies: &DmaSlice, user_cookie: u64, marks: u64) -> u32 {
        // Inside the memory by construction; a failure would only lose the cookie.
        let place = self.place(self.head);
        let _ = cookies.store_be64(place, user_cookie);
        let _ = cookies.store_be64(place + 8, u64::from(self.block) << 16 | marks);
        self.head & self.mask
    }

    /// The same for an operation about the window in `slot`.
    pub(crate) fn keep_for(&self, cookies: &DmaSlice, user_cookie: u64, marks: u64, slot: u16) -> u32 {
        let index = self.keep(cookies, user_cookie, marks);
        let kept = u64::from(slot) << 32 | u64::from(self.block) << 16 | marks;
        let _ = cookies.store_be64(self.place(self.head) + 8, kept);
        index
    }

    /// The slot of the window of the bind at this place.
    pub(crate) fn window_slot(&self, cookies: &DmaSlice, index: u32) -> Option<u16> {
        let kept = cookies.load_be64(self.place(index) + 8).ok()?;
        Cookie(kept & 0xffff).is_bind().then_some((kept >> 32) as u16)
    }

    #[inline(always)]
    pub(crate) fn user_cookie(&self, cookies: &DmaSlice, index: u32) -> u64 {
        cookies.load_be64(self.place(index)).unwrap_or(0)
    }

    /// First block of the request of this number.
    pub(crate) fn block_of(&self, cookies: &DmaSlice, number: u32) -> Option<u16> {
        cookies.load_be64(self.place(number) + 8).ok().map(|kept| (kept >> 16) as u16)
    }

    /// The consumer's cookie of the operation at this place, which and all before which are done now. None if it is not
    /// outstanding.
    #[inline(always)]
    pub(crate) fn retire(&mut self, cookies: &Option<DmaSlice>, index: u32) -> Option<u64> {
        let ahead = index.wrapping_sub(self.tail) & self.mask;
        if ahead >= self.outstanding() {
            return None;
        }
        let user_cookie = match &self.cells {
            Some(cells) => cells.first(index),
            None => self.user_cookie(cookies.as_ref()?, index),
        };
        self.tail = self.tail.wrapping_add(ahead + 1);
        Some(user_cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_carry_everything() {
        let cookie =
            Cookie::new(0x8000_0000, 0xabcd, DtoOperation::RdmaRead, Cookie::SUPPRESS | Cookie::UNSIGNALLED);
        assert_eq!((cookie.length(), cookie.index()), (0x8000_0000, 0xabcd));
        assert_eq!(cookie.operation(), DtoOperation::RdmaRead);
        assert!(cookie.is_silent() && cookie.is_unsignalled() && !cookie.is_marker());
        for operation in [
            DtoOperation::Send,
            DtoOperation::Receive,
            DtoOperation::RdmaWrite,
            DtoOperation::RdmaRead,
            DtoOperation::CompareSwap,
            DtoOperation::FetchAdd,
        ] {
            assert_eq!(Cookie::new(0, 0, operation, 0).operation(), operation);
        }
        assert!(Cookie::new(0, 1, DtoOperation::Send, Cookie::MARKER).is_silent());
    }

    #[test]
    fn work_counts_and_places() {
        let requests = Work::new(16, 0);
        let receives = Work::new(3, requests.bytes());
        assert_eq!((requests.bytes(), receives.bytes()), (512, 64));
        assert_eq!((receives.place(0), receives.place(5)), (512, 528));
        assert_eq!(Work::new(0, 8).bytes(), 0);
    }
}
