//! The functions of the machine, each handed out once.

use heapless::Vec;

use super::enumerate::MAX_FUNCTIONS;
use super::function::Function;

const WORDS: usize = MAX_FUNCTIONS.div_ceil(64);

/// The functions of the machine, and which of them are in use.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    found: Vec<Function, MAX_FUNCTIONS>,
    /// Bit `n` of all words together for the `n`th function.
    in_use: [u64; WORDS],
}

impl Inventory {
    pub(crate) const fn new(found: Vec<Function, MAX_FUNCTIONS>) -> Self {
        Self { found, in_use: [0; WORDS] }
    }

    pub(crate) fn found(&self) -> &[Function] {
        &self.found
    }

    /// Hands out `function`. Returns false for a bridge, a function in use, and one of another
    /// machine.
    pub(crate) fn take(&mut self, function: &Function) -> bool {
        if function.is_bridge() {
            return false;
        }
        let Some((word, bit)) = self.place(function) else { return false };
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    /// Takes `function` back.
    pub(crate) fn give_back(&mut self, function: &Function) {
        if let Some((word, bit)) = self.place(function) {
            *word &= !bit;
        }
    }

    fn place(&mut self, function: &Function) -> Option<(&mut u64, u64)> {
        let index = self.found.iter().position(|found| found == function)?;
        Some((self.in_use.get_mut(index / 64)?, 1 << (index % 64)))
    }
}
