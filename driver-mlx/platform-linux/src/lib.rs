//! The platform of a Linux process: what `driver-mlx`, and with it DAT and RDS, need to run there unchanged.
//!
//! | device | how it is reached | needs |
//! |---|---|---|
//! | a real HCA, or one passed through | VFIO: its registers mapped into the process, the IOMMU between it and memory | a function bound to `vfio-pci`, access to its group or character device, locked memory |
//! | an emulated HCA | vfio-user: messages through the Unix socket of an `hca-serve` | access to the socket |
//!
//! [`open`] takes either, by its [`DeviceName`], and gives the platform beside the two regions of memory that the driver takes:
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
//! Memory: the DMA region is allocated by [`open`] and stays mapped to the end of the process,
//! unless its [`Memory`] is freed. Memory of the application's own (heap, stack, statics) is made
//! visible by [`Platform::map`](driver_mlx::Platform::map), one mapping of whole pages for each
//! region. Cards reach it through the IOMMU. The server of an emulated HCA gets a descriptor of
//! this process's memory, so that it can read and write all of that. Only a server one trusts with
//! that should get it.
//!
//! A platform that is dropped gives the device back: interrupts off, DMA over, and every [`LinuxBar`] that is left reads all ones.
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
pub use platform::LinuxPlatform;
pub use sleeper::Sleeper;
pub use vfio_functions::PciAddress;
