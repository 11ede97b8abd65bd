//! A unikernel to write applications on: no heap, no threads, one core. It boots, finds memory, clock and PCI functions, and calls
//! the application, which is handed the [`Machine`]:
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//!
//! use unikernel::{ExitCode, Machine, println};
//!
//! unikernel::entry!(main);
//!
//! fn main(machine: &mut Machine) -> ExitCode {
//!     println!("{} PCI functions", machine.pci().len());
//!     ExitCode::Success
//! }
//! ```
//!
//! `kernel/template` is what one copies to begin; `kernel/README.md` is the guide. What exists on `x86_64-unknown-none` only:
//!
//! | module | what |
//! |---|---|
//! | `machine` | [`Machine`]: command line, memory, PCI, HCAs, clock, seed; what an application finds |
//! | `memory` | what applications take of memory |
//! | `hca` | an HCA as `driver-mlx` wants it |
//! | `verbs` | from the machine to a running HCA, for applications on the driver alone |
//! | `failure` | why an application ended: its line and its exit code |
//! | `adapter` | with the feature `dat`: from the machine to an open adapter, its loop, and why it ended |
//! | `tasks` | with the feature `dat`: waiting as `async`, an executor over that loop |
//! | `sockets` | with the feature `rds`: RDS sockets for it |
//! | `net` | with the feature `net`: IP sockets over it |
//! | `heap` | with the feature `alloc`: memory for `alloc` |
//! | `console` | text out and in |
//! | `device` | other devices: registers, interrupts, configuration space |
//! | `fault` | CPU exceptions on purpose |
//!
//! The parts that need no machine are plain functions over bytes and numbers, which the host's test harness runs:
//!
//! | module | what |
//! |---|---|
//! | [`options`] | the command line: `key=value` words |
//! | [`mod@line`] | lines from the console's bytes |
//! | [`boot`], [`pvh`], [`multiboot2`] | what loaders say, by both protocols |
//! | [`memory_map`] | usable memory and what is carved from it |
//! | [`paging`] | page tables in a fixed pool |
//! | [`acpi`] | the ACPI tables that matter: PM timer, ECAM, power, DMA remapping |
//! | [`iommu`] | DMA remapping that firmware left on |
//! | [`io_apic`] | interrupt inputs that firmware left open |
//! | [`pci`] | enumeration, bus numbers, slots, BARs, capabilities, function-level reset |
//! | [`clock`] | tick and calendar arithmetic |
//! | [`seed`] | the boot's seed from what randomness there is |
//! | [`machine_check`] | the registers of hardware errors, in words |
//! | [`log_ring`] | the console's text in memory that a reset leaves alone |
//! | [`text_screen`], [`framebuffer`] | the screen as BIOSes leave it, and as UEFI does |
//! | [`exit`] | exit status values |
//!
//! What it does not do: more than one CPU, user mode, paging to disk, legacy interrupts.
//!
//! Unsafe code is confined to `arch` (CPU and board), `mem` (page tables, device windows), `hca`
//! (the driver's platform) and `device` (declarations). An application without `unsafe` reaches no
//! physical memory but its own, and writes to no configuration space; `tests/doors.rs` asserts that
//! for each way that there is.
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(
    not(target_os = "none"),
    allow(rustdoc::broken_intra_doc_links, reason = "the machine is not there")
)]

pub mod acpi;
mod application;
pub mod boot;
pub mod choice;
#[cfg_attr(not(target_os = "none"), allow(dead_code, reason = "the machine that calls it is not there"))]
mod claims;
pub mod clock;
pub mod exit;
#[cfg_attr(not(target_os = "none"), allow(dead_code, reason = "the machine that calls it is not there"))]
mod flags;
pub mod framebuffer;
pub mod information;
pub mod io_apic;
pub mod iommu;
pub mod line;
pub mod log_ring;
pub mod machine_check;
pub mod memory_map;
pub mod modules;
pub mod multiboot2;
pub mod options;
pub mod paging;
#[cfg_attr(
    not(target_os = "none"),
    allow(dead_code, unused_imports, reason = "the machine that uses it is not there")
)]
pub mod pci;
pub mod pvh;
pub mod seed;
pub mod text_screen;
pub mod uart;

#[cfg(all(target_os = "none", feature = "dat"))]
#[allow(
    clippy::result_large_err,
    clippy::large_enum_variant,
    reason = "an error carries its words, once in a run, and there is no heap"
)]
pub mod adapter;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
mod arch;
#[cfg(target_os = "none")]
pub mod console;
#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "declarations of functions that are `unsafe` to call")]
pub mod device;
#[cfg(target_os = "none")]
#[allow(
    clippy::result_large_err,
    clippy::large_enum_variant,
    reason = "an error carries its words, once in a run, and there is no heap"
)]
pub mod failure;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
pub mod hca;
#[cfg(all(target_os = "none", feature = "alloc"))]
pub mod heap;
#[cfg(target_os = "none")]
pub mod machine;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
mod mem;
#[cfg(target_os = "none")]
pub mod memory;
#[cfg(all(target_os = "none", feature = "net"))]
pub mod net;
#[cfg(all(target_os = "none", feature = "rds"))]
#[allow(clippy::result_large_err, reason = "an error carries its words, once in a run, and there is no heap")]
pub mod sockets;
#[cfg(target_os = "none")]
mod start;
#[cfg(all(target_os = "none", feature = "dat"))]
#[allow(clippy::result_large_err, reason = "an error carries its words, once in a run, and there is no heap")]
pub mod tasks;
#[cfg(target_os = "none")]
#[allow(clippy::result_large_err, reason = "as for failures")]
pub mod verbs;

#[cfg(target_os = "none")]
pub use arch::exceptions::raise as fault;
#[cfg(target_os = "none")]
pub use machine::{Clock, Machine};
/// For what an application keeps in statics: tables that are too large for the stack.
#[cfg(target_os = "none")]
pub use spin::Mutex;

#[cfg(test)]
mod corpus;

pub use exit::ExitCode;
pub use options::{Key, Options};

#[cfg(test)]
extern crate std;
