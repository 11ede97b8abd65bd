//! QP numbers that are set aside: no QP of the device has them, so that software can use them for connections of which the device knows nothing
//! (general object RESERVED_QPN).

use super::table::Table;

/// log2 of all numbers that can be set aside.
pub const LOG_NUMBERS: u32 = 16;
/// log2 of the numbers of one range.
pub const LOG_RANGE: u32 = 6;
/// First number: beyond those of QPs.
const FIRST: u32 = 0x80_0000;

/// Ranges of numbers.
#[derive(Debug)]
pub struct Reserved(Table<()>);

impl Default for Reserved {
    fn default() -> Self {
        Self(Table::new(FIRST >> LOG_RANGE, 1 << (LOG_NUMBERS - LOG_RANGE)))
    }
}

impl Reserved {
    /// Sets a range aside; answers its first number, `None` when all are.
    pub fn take(&mut self) -> Option<u32> {
        self.0.insert(|_| ()).map(|range| range << LOG_RANGE)
    }

    /// Gives the range back that begins with `first`. Answers whether there was one.
    pub fn give_back(&mut self, first: u32) -> bool {
        first.is_multiple_of(1 << LOG_RANGE) && self.0.remove(first >> LOG_RANGE).is_some()
    }

    /// Ranges that are set aside.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives all back.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
