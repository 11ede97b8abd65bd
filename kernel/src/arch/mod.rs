//! The CPU and the board: everything that needs instructions or ports that Rust has no safe word for.

pub mod apic;
pub mod application;
pub mod boot_memory;
pub mod clock;
pub mod config_space;
pub mod debug_log;
pub mod emergency;
pub mod entropy;
pub mod entry;
pub mod exceptions;
pub mod exit;
pub mod interrupts;
pub mod layout;
pub mod log_memory;
pub mod machine_check;
pub mod msix;
pub mod screen;
pub mod serial;
pub mod vectors;
