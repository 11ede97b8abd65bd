//! The host side of the project: provides QEMU, serves the emulated HCA over vfio-user, boots
//! unikernels and Linux guests, decodes their logs and reports. `cargo xtask` is this crate's
//! program; the crate `tests` uses it as a library.
//!
//! | module | what |
//! |---|---|
//! | [`setup`] | the Rust targets and a QEMU with `vfio-user-pci` |
//! | [`debian`], [`cache`] | files from Debian packages, in a cache under `target/` |
//! | [`process`] | children, sockets and temporary files that never outlive the tool |
//! | [`accelerator`] | probe of KVM |
//! | [`qemu`] | QEMU's argument line, process and console |
//! | [`unikernel`], [`kernel_image`], [`defmt_log`], [`console`] | the unikernel |
//! | [`linux`] | unmodified Linux guests |
//! | [`passthrough`] | HCAs of this machine, assigned to a unikernel |
//! | [`serve`] | emulated HCAs over vfio-user, by `hca-serve` |
//! | [`demo`], [`report`] | two unikernels that move verified data |
//! | [`tshark`] | captures dissected by Wireshark |
//! | [`levels`], [`ci`], `failures` | `cargo xtask test`, `bench` and `ci`; failed tests |
//! | [`conditions`], `cargo` | full lengths, required tools, skipped tests; calls of cargo |
//! | [`rds_bench`] | RDS by Linux and by unikernels, in one run |
//! | [`install`] | installation of the C libraries |
//! | [`help`] | texts of `--help` |
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
