//! Opening a device.

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::name::DeviceName;
use crate::options::Options;
use crate::platform::{Device, LinuxPlatform};
use crate::{pci, socket, vfio};
use driver_mlx::{DmaRegion, HostRegion};

/// A device that is open: what the driver takes.
#[derive(Debug)]
pub struct Opened {
    /// Registers, interrupts, translation.
    pub platform: LinuxPlatform,
    /// Memory that the device accesses.
    pub dma: DmaRegion,
    /// Memory that the device cannot access.
    pub host: HostRegion,
    /// Memory that remains after the device is closed, and can be freed then.
    pub memory: Memory,
    /// MSI-X vectors that were connected, from 0 on.
    pub vectors: u16,
}

/// Opens and resets a device, and maps a DMA region for it.
///
/// # Errors
/// [`Error`], with a remedy if one is documented. No descriptor remains open.
pub fn open(name: &DeviceName, options: &Options) -> Result<Opened> {
    if !(1..=32).contains(&options.vectors) {
        return Err(Error::Options("from 1 to 32 interrupt vectors can be asked for"));
    }
    let mut memory = Memory::default();
    match open_in(name, options, &mut memory) {
        Ok((platform, dma, host)) => {
            let vectors = platform.interrupts.descriptors().len() as u16;
            Ok(Opened { platform, dma, host, memory, vectors })
        }
        Err(error) => {
            // SAFETY: no platform was handed out, and the parts of the device and its regions were
            // dropped.
            unsafe { memory.free() };
            Err(error)
        }
    }
}

/// The same, with the process's resources stored in `memory`.
fn open_in(
    name: &DeviceName,
    options: &Options,
    memory: &mut Memory,
) -> Result<(LinuxPlatform, DmaRegion, HostRegion)> {
    let (bar, interrupts, device, dma) = match name {
        DeviceName::Vfio(address) => {
            let (bar, interrupts, device, dma) = vfio::open(*address, options, memory)?;
            (bar, interrupts, Device::Vfio(device), dma)
        }
        DeviceName::Socket(path) => {
            let (bar, interrupts, device, dma) = socket::open(path, options, memory)?;
            (bar, interrupts, Device::Socket(device), dma)
        }
    };
    let host = memory.host_region(options.dma_bytes)?;
    let physical = !pci::identity(&device)?.virtual_function;
    Ok((LinuxPlatform::new(bar, interrupts, device, physical), dma, host))
}
