//! What a client lends its device: memory and interrupts. None of it is trusted to stay what it was.

pub mod interrupts;
mod mapping;
pub mod memory;
pub mod range;
pub mod registers;
pub mod watchdog;
