//! The parts of the unikernel that need no machine: what firmware and devices say is parsed here, as plain
//! functions over bytes and numbers, so that the host's test harness runs them.
//!
//! | module | what |
//! |---|---|
//! | [`cmdline`] | the command line's words |
//! | [`mod@line`] | lines from the console's bytes |
//! | [`pvh`] | the boot protocol's start information |
//! | [`memory_map`] | usable memory and what is carved from it |
//! | [`paging`] | page tables in a fixed pool |
//! | [`acpi`] | the two ACPI tables that matter: PM timer and ECAM |
//! | [`pci`] | enumeration, BAR sizes, capabilities, function-level reset |
//! | [`clock`] | tick and calendar arithmetic |
//! | [`seed`] | the boot's seed from what randomness there is |
//! | [`exit`] | exit status values |
//!
//! The image itself is the `kernel` binary (`main.rs`), which exists on `x86_64-unknown-none` only. It
//! has no heap; what it does not do: more than one CPU, user mode, paging to disk, legacy interrupts.
//!
//! ```
//! let words = kernel::cmdline::Options::parse("app=hello dma=16M").unwrap();
//! assert_eq!(words.dma_bytes, 16 << 20);
//! ```
#![no_std]
#![forbid(unsafe_code)]

pub mod acpi;
pub mod clock;
pub mod cmdline;
pub mod exit;
pub mod line;
pub mod memory_map;
pub mod paging;
pub mod pci;
pub mod pvh;
pub mod seed;

#[cfg(test)]
extern crate std;
