//! RDMA tests without hardware: unmodified Linux guests and unikernels, with emulated ConnectX HCAs
//! on one fabric, in stock QEMU. The program `rdma-lab` and `cargo xtask` are made of it.
//!
//! | module | what |
//! |---|---|
//! | [`command_line`] | the commands, their options and help |
//! | [`setup`] | a QEMU with `vfio-user-pci` |
//! | [`debian`], [`cache`] | files of Debian's packages, in the user's cache directory |
//! | [`process`], [`progress`] | children and temporary files that never outlive the tool; progress |
//! | [`accelerator`] | probe of KVM |
//! | [`qemu`] | QEMU's argument line, process and console |
//! | [`unikernel`], [`defmt_log`], [`iso`] | a unikernel: booted, its log decoded, on a boot medium |
//! | [`linux`] | unmodified Linux guests |
//! | [`passthrough`] | HCAs of this machine, assigned to a unikernel |
//! | [`serve`] | emulated HCAs over vfio-user, by `hca-serve` |

pub mod accelerator;
pub mod cache;
pub mod command_line;
pub mod debian;
pub mod defmt_log;
pub mod error;
pub mod iso;
pub mod linux;
pub mod option_rom;
pub mod passthrough;
pub mod process;
pub mod progress;
pub mod qemu;
pub mod serve;
pub mod setup;
pub mod unikernel;

pub use error::{Error, Result};
