//! The host side of the project: provides QEMU, serves the emulated HCA over vfio-user, boots unikernels and
//! Linux guests, decodes their logs and reports. `cargo xtask` is this crate's program; the crate `tests`
//! uses it as a library.
//!
//! | module | what |
//! |---|---|
//! | [`setup`] | the Rust targets and a QEMU with `vfio-user-pci` |
//! | [`debian`], [`cache`] | files from Debian packages, in a cache under `target/` |
//! | [`process`] | children, sockets and temporary files that never outlive the tool |
//! | [`accelerator`] | whether KVM is usable on this machine |
//! | [`qemu`] | QEMU's argument line, process and console |
//! | [`unikernel`], [`kernel_image`], [`defmt_log`], [`console`] | the unikernel: build, boot, log, reports |
//! | [`linux`] | unmodified Linux guests |
//! | [`passthrough`] | HCAs of this machine in the hands of a unikernel |
//! | [`serve`] | emulated HCAs over vfio-user, by `hca-serve` |
//! | [`demo`], [`report`] | two unikernels that move verified data |
//! | [`tshark`] | captures dissected by Wireshark |
//! | [`levels`], [`ci`], `failures` | `cargo xtask test` and `bench`; all that a change has to pass; what failed |
//! | [`conditions`], `cargo` | full lengths, required tools, skipped tests; calls of cargo |
//! | [`rds_bench`] | RDS by Linux and by unikernels, in one run |
//! | [`install`] | the C library, where other programs build against it |
//! | [`help`] | what `--help` prints |
//! | [`graph`] | import circles among source files; files with unsafe code |
//! | [`prose`], `links`, `sources` | a ratchet for words; links of Markdown files; the project's files |

pub mod accelerator;
pub mod cache;
mod cargo;
pub mod ci;
pub mod conditions;
pub mod console;
pub mod debian;
pub mod defmt_log;
pub mod demo;
pub mod error;
mod failures;
pub mod graph;
pub mod help;
pub mod install;
pub mod iso;
pub mod kernel_image;
pub mod levels;
mod links;
pub mod linux;
pub mod passthrough;
pub mod process;
pub mod progress;
pub mod prose;
pub mod qemu;
pub mod rds_bench;
pub mod report;
pub mod serve;
pub mod setup;
mod sources;
pub mod tshark;
pub mod unikernel;

pub use error::{Error, Result};
