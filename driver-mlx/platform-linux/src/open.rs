//! Opening a device.

use crate::error::{Error, Result};
use crate::name::DeviceName;
use crate::platform::LinuxPlatform;
use crate::{memory, socket, vfio};
use driver_mlx::{DmaRegion, HostRegion};

/// Which of the kernel's interfaces to the IOMMU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iommu {
    /// The group, or, where there is no file of it, the character device.
    #[default]
    Any,
    /// `/dev/vfio/vfio` and `/dev/vfio/GROUP`: every kernel has them.
    Group,
    /// `/dev/iommu` and `/dev/vfio/devices/vfioN`: Linux 6.6 and later.
    Iommufd,
}

/// Choices at [`open`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the DMA region: the driver's queues, firmware's pages (ConnectX takes tens of MiB), and the buffers that are allocated
    /// from the adapter.
    pub dma_bytes: usize,
    /// MSI-X vectors to ask for, 1 to 32; the device may have fewer.
    pub vectors: u16,
    /// Whether the DMA region comes from the kernel's pool of huge pages. Only with VFIO.
    pub huge_pages: bool,
    /// The interface to the IOMMU. Only with VFIO.
    pub iommu: Iommu,
}

impl Default for Options {
    /// 128 MiB, one vector, ordinary pages.
    fn default() -> Self {
        Self { dma_bytes: 128 << 20, vectors: 1, huge_pages: false, iommu: Iommu::Any }
    }
}

/// A device that is open: what the driver takes.
#[derive(Debug)]
pub struct Opened {
    /// Registers, interrupts, translation.
    pub platform: LinuxPlatform,
    /// Memory that the device reaches.
    pub dma: DmaRegion,
    /// Memory that it does not reach.
    pub host: HostRegion,
    /// MSI-X vectors that were connected, from 0 on.
    pub vectors: u16,
}

/// Opens a device, which is reset by that, and maps a DMA region for it.
///
/// # Errors
/// [`Error`], which says what to do where that is known. Nothing stays open.
pub fn open(name: &DeviceName, options: &Options) -> Result<Opened> {
    if !(1..=32).contains(&options.vectors) {
        return Err(Error::Options("from 1 to 32 interrupt vectors can be asked for"));
    }
    let host = memory::host_region(options.dma_bytes)?;
    let (platform, dma) = match name {
        DeviceName::Vfio(address) => vfio::open(*address, options)?,
        DeviceName::Socket(path) => socket::open(path, options)?,
    };
    let vectors = platform.interrupts.descriptors().len() as u16;
    Ok(Opened { platform, dma, host, vectors })
}
