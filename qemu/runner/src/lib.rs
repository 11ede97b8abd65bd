//! The project's host tool: `cargo xtask` is this crate's program; the crate `tests` uses it as a
//! library. QEMU, guests and their HCAs are `rdma-lab`'s.
//!
//! | module | what |
//! |---|---|
//! | [`commands`] | the commands of `cargo xtask` |
//! | [`setup`], `cargo` | Rust targets, Miri; the workspace |
//! | [`kernel_image`], [`console`] | the project's unikernel, and its console |
//! | [`linux`] | Linux guests for this project's tests and demonstration |
//! | [`demo`], [`report`] | two unikernels that move verified data |
//! | [`tshark`] | captures dissected by Wireshark |
//! | [`levels`], [`ci`], `failures`, `features` | `cargo xtask test`, `bench` and `ci`; failed tests; the matrix of features |
//! | [`conditions`] | full lengths, required tools, skipped tests |
//! | [`rds_bench`] | RDS by Linux and by unikernels, in one run |
//! | [`install`] | installation of the C libraries |

mod cargo;
pub mod ci;
pub mod commands;
pub mod conditions;
pub mod console;
pub mod demo;
mod failures;
mod features;
pub mod install;
pub mod kernel_image;
pub mod levels;
pub mod linux;
pub mod rds_bench;
pub mod report;
pub mod setup;
pub mod tshark;

pub use cargo::{metadata, root};
