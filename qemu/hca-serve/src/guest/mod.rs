//! What a client lends its device: memory and interrupts. None of it is trusted to stay what it was.

mod files;
pub mod interrupts;
pub mod mapping;
pub mod memory;
pub mod range;
mod ranges;
pub mod registers;
pub mod watchdog;
