//! The platform of a Linux process: what `driver-mlx`, and with it DAT and RDS, need to run there
//! unchanged.
//!
//! | device | access | needs |
//! |---|---|---|
//! | a real HCA, or one passed through | VFIO | a function bound to `vfio-pci` |
//! | | | access to its group or character device, locked memory |
//! | an emulated HCA | vfio-user | access to the Unix socket of an `hca-serve` |
//!
//! VFIO maps the registers into the process, and the IOMMU translates between the device and
//! memory. vfio-user is a protocol of messages through the socket.
//!
//! [`open`] opens a device by its [`DeviceName`]. It returns the platform and the two regions of
//! memory that the driver takes:
//!
//! ```no_run
//! use platform_linux::{DeviceName, Options, Opened, open};
//!
//! let name: DeviceName = "0000:3b:00.0".parse()?;
//! let Opened { platform, dma, host, .. } = open(&name, &Options::default())?;
//! // driver_mlx::Hca::bring_up(platform, dma, host, …) or dat_nostd::Adapter::open(platform, dma, host, …)
//! # Ok::<(), platform_linux::Error>(())
//! ```
//!
//! Memory: the DMA region is allocated by [`open`] and remains mapped until the process exits,
//! unless its [`Memory`] is freed. [`Platform::map`](driver_mlx::Platform::map) makes the
//! application's own memory (heap, stack, statics) accessible, with one mapping of complete pages
//! for each region. Cards access it through the IOMMU. The server of an emulated HCA gets a
//! descriptor of this process's memory, so that it can read and write all of it. Give it only to a
//! trusted server.
//!
//! A program that keeps its adapter behind a lock sleeps by a [`Sleeper`] and pins memory by a
//! [`Pinner`], which need no lock.
//!
//! Dropping the platform and its [`Pinner`]s closes the device: interrupts are off, DMA has ended,
//! and every remaining [`LinuxBar`] reads all ones.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bar;
mod error;
mod interrupts;
mod iova;
#[allow(unsafe_code)]
mod memory;
mod name;
#[allow(unsafe_code)]
mod open;
mod options;
mod pci;
mod pins;
#[allow(unsafe_code)]
mod platform;
mod sleeper;
mod socket;
#[allow(unsafe_code)]
mod vfio;

pub use bar::{LinuxBar, LinuxDoorbellRegister};
pub use error::{Error, Result};
pub use memory::Memory;
pub use name::DeviceName;
pub use open::{Opened, open};
pub use options::{Iommu, Options};
pub use pins::{Pinner, Pins};
pub use platform::LinuxPlatform;
pub use sleeper::Sleeper;
pub use vfio_functions::PciAddress;
