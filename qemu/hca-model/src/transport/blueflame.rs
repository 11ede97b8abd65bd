//! A WQE in a BlueFlame buffer, as its bytes arrive (PRM, UAR page format).

use mlx5_prm::datapath::{WQEBB_SIZE, wqe_ctrl_seg};

/// A WQE of one basic block in a BlueFlame buffer.
#[derive(Clone, Debug)]
pub(super) struct Pushed {
    index: u16,
    bytes: [u8; WQEBB_SIZE],
    filled: usize,
    /// The WQE is executed from this buffer.
    is_next: bool,
}

/// Returns the index of the WQE whose first 8 bytes are `head`.
pub(super) fn index_of(head: [u8; 8]) -> u16 {
    wqe_ctrl_seg::wqe_index.get32(&head) as u16
}

impl Pushed {
    /// Begins with the first 8 bytes, which are a doorbell, too.
    pub(super) fn new(head: [u8; 8]) -> Self {
        let mut bytes = [0; WQEBB_SIZE];
        bytes[..8].copy_from_slice(&head);
        Self { index: index_of(head), bytes, filled: 8, is_next: false }
    }

    /// Adds the bytes at `at`. Returns whether the WQE is complete.
    pub(super) fn add(&mut self, at: usize, bytes: &[u8]) -> bool {
        let place = self.bytes.get_mut(at..at + bytes.len());
        let Some(place) = place.filter(|_| !self.is_next && self.filled == at) else { return false };
        place.copy_from_slice(bytes);
        self.filled += bytes.len();
        let len = wqe_ctrl_seg::ds.get32(&self.bytes) as usize * 16;
        (16..=WQEBB_SIZE).contains(&len) && self.filled >= len
    }

    /// Has the WQE executed from here if it is the one at `next`. Returns whether it is.
    pub(super) const fn set_next(&mut self, next: u16) -> bool {
        self.is_next = self.index == next;
        self.is_next
    }

    /// Returns the WQE if it is executed from here and is the one at `index`.
    pub(super) fn at(&self, index: u16) -> Option<&[u8; WQEBB_SIZE]> {
        (self.is_next && self.index == index).then_some(&self.bytes)
    }
}
