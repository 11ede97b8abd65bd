//! Choices at opening a device.

/// Kernel interface to the IOMMU.
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

/// Choices at [`open`](crate::open()).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the DMA region: the driver's queues, firmware's pages (ConnectX takes tens of MiB),
    /// and the buffers that are allocated from the adapter.
    pub dma_bytes: usize,
    /// MSI-X vectors to request, 1 to 32; the device may have fewer.
    pub vectors: u16,
    /// Take the DMA region from the kernel's pool of huge pages. Only with VFIO.
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
