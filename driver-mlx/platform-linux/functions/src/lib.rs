//! PCI functions that a Linux machine can hand to a process or to a virtual machine by VFIO. Lists
//! the functions, the obstacles and their remedies. Moves functions from the kernel's driver to
//! `vfio-pci` and back.
//!
//! Everything is read from and written to sysfs (Linux, `Documentation/ABI/testing/sysfs-bus-pci`),
//! below a root that tests choose.
#![forbid(unsafe_code)]

mod address;
mod binding;
mod error;
mod function;
mod limits;
mod names;
mod node;
mod sysfs;
#[cfg(test)]
mod testing;

pub use address::PciAddress;
pub use binding::Binding;
pub use error::{Error, Result};
pub use function::{Function, MELLANOX};
pub use limits::check_locked_memory;
pub use names::Name;
pub use node::{CONTAINER, group_file, open_file};
pub use sysfs::Sysfs;
