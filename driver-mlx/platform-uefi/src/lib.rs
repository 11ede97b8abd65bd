//! The platform of a UEFI application or driver: an HCA by `EFI_PCI_IO_PROTOCOL`.
//!
//! | what `driver-mlx` needs | by |
//! |---|---|
//! | registers | `PciIo.Mem`, which firmware may translate |
//! | configuration space, reset | `PciIo.Pci`, `PciIo.Attributes` |
//! | DMA memory | `PciIo.AllocateBuffer` and `PciIo.Map`, so an IOMMU lets the device in |
//! | waiting | `Stall`, because timer events tick every 10 ms |
//! | time | the processor's counter, measured by `Stall` |
//!
//! An application opens a card, uses it, and closes it:
//!
//! ```no_run
//! use driver_mlx::{Config, Error, Hca, HcaStorage};
//! use platform_uefi::{Clock, Device, Firmware, UefiPlatform, functions};
//! use r_efi::efi::{Handle, SystemTable};
//!
//! # fn ready(_: &mut Hca<'_, &UefiPlatform>) -> Result<(), Error> { Ok(()) }
//! fn first_card(
//!     image: Handle,
//!     table: *mut SystemTable,
//!     storage: &mut HcaStorage<16_384>,
//! ) -> Result<(), platform_uefi::Error> {
//!     // SAFETY: the arguments of the program's entry, before ExitBootServices.
//!     let firmware = unsafe { Firmware::new(image, table) }.ok_or(platform_uefi::Error::NoFirmware)?;
//!     let clock = Clock::measure(firmware);
//!     let Some(function) = functions(firmware)?.find(|function| function.identity().is_some()) else {
//!         return Ok(());
//!     };
//!     let device = Device::open(firmware, &function, clock)?;
//!     let (dma, host) = (device.dma(64 << 20)?, firmware.memory(4 << 20)?);
//!     // SAFETY: this is the only region over each memory, and both live until the HCA is gone.
//!     let regions = unsafe { (dma.region(), host.region()) };
//!     if let (Some(region), Some(host)) = regions {
//!         let hca = Hca::bring_up(device.platform(), region, host, storage.parts(), &Config::DEFAULT);
//!         let _ = hca.and_then(|mut hca| {
//!             let used = ready(&mut hca);
//!             used.and(hca.tear_down())
//!         });
//!     }
//!     // Bus mastering is off now, whatever became of the HCA.
//!     device.close();
//!     // SAFETY: the device accesses no memory, and the HCA is gone.
//!     unsafe { dma.free() };
//!     // SAFETY: as above.
//!     unsafe { host.free() };
//!     Ok(())
//! }
//! ```
//!
//! # Rules
//!
//! - **Task priority.** The firmware has one processor, and its task priority level is its only
//!   mutual exclusion. A driver enters at different levels, so each of its entry points raises the
//!   level first: [`Firmware::raise`]. All calls of this crate are legal up to
//!   [`Level::Callback`], those of an HCA that is running up to [`Level::Notify`].
//! - **Stack.** The specification promises 128 KiB. DAT and RDS take more than half of it, and a
//!   driver may be entered deep inside the firmware. [`Firmware::on_stack`] runs code on a stack of
//!   its own.
//! - **Boot options.** [`install`] makes the program a driver, whose HCAs become boot options. The option starts the
//!   program that [`BootOption::load`] returns, with its command line and its initial RAM disk.
//! - **The end.** When the operating system starts, firmware calls no driver's `Stop`. Each open
//!   [`Device`] has an event that ends its DMA in `ExitBootServices`.
//! - **Interrupts.** UEFI has none for drivers. The driver polls its event queues.
//!
//! The crate compiles for hosts too, where a fake `EFI_PCI_IO_PROTOCOL` tests it.
#![no_std]
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bar;
#[allow(unsafe_code)]
mod boot_image;
#[allow(unsafe_code)]
mod boot_option;
#[allow(unsafe_code)]
mod clock;
#[allow(unsafe_code)]
mod device;
mod error;
#[allow(unsafe_code)]
mod exit;
#[allow(unsafe_code)]
mod firmware;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod pci_io;
#[allow(unsafe_code)]
mod platform;
#[allow(unsafe_code)]
mod stack;

pub use bar::{UefiBar, UefiDoorbellRegister};
pub use boot_image::{BootFile, BootImage};
pub use boot_option::{BootOption, install};
pub use clock::Clock;
pub use device::{Bound, Device, Function, Functions, functions};
pub use error::{Error, Result};
pub use firmware::{Firmware, Level, Raised};
pub use memory::{DmaMemory, HostMemory};
pub use pci_io::PciIo;
pub use platform::UefiPlatform;
