//! Memory and interrupts that a client provides for its device. The client is not trusted to leave
//! them unchanged.

mod files;
pub mod interrupts;
pub mod mapping;
pub mod memory;
pub mod range;
mod ranges;
pub mod registers;
pub mod watchdog;
