//! The CPU and the board: everything that needs instructions or ports that Rust has no safe word for.

pub mod apic;
pub mod boot;
pub mod clock;
pub mod config_space;
pub mod debug_log;
pub mod entropy;
pub mod exceptions;
pub mod exit;
pub mod interrupts;
pub mod msix;
pub mod serial;
