//! Memory that applications take from the machine.

use core::fmt;

use crate::memory_map::Range;

/// Memory that devices may reach, of whole 4 KiB pages and 2 MiB aligned. It is handed out once and never comes back.
#[derive(Debug)]
pub struct DmaMemory(Range);

impl DmaMemory {
    /// `range` was taken out of the map of free memory, once.
    pub(crate) const fn new(range: Range) -> Self {
        Self(range)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.0.len()
    }

    /// Its addresses, physical and virtual at once.
    pub(crate) const fn range(&self) -> Range {
        self.0
    }
}

/// Not so much memory in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// What was asked for.
    pub wanted_bytes: u64,
    /// The longest free piece.
    pub longest_bytes: u64,
}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wanted, longest) = (self.wanted_bytes >> 10, self.longest_bytes >> 10);
        write!(f, "memory: no room for {wanted} KiB; the longest free piece is {longest} KiB")
    }
}

impl core::error::Error for NoMemory {}
