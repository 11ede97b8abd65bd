//! An HCA by VFIO: the kernel's drivers let go of it, the IOMMU stands between it and memory.
//!
//! Linux, `include/uapi/linux/vfio.h` and `iommufd.h`.

mod container;
mod device;
mod ioctl;
mod iommufd;
mod start;

pub(crate) use device::{Device, open};

use crate::error::Error;
use driver_mlx::MapError;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;

/// Address translation of the device: a container with a group, or an address space of an iommufd.
trait Translation: std::fmt::Debug + Send + Sync {
    /// Device addresses that may be used.
    fn ranges(&self) -> Vec<RangeInclusive<u64>>;
    /// Maps whole pages. The kernel pins them for writing if `writable`, which fails with `EFAULT`
    /// for memory that may only be read.
    fn map(&self, va: u64, at: u64, len: u64, writable: bool) -> io::Result<()>;
    /// Ends that.
    fn unmap(&self, at: u64, len: u64) -> io::Result<()>;
    /// Descriptors that keep it open.
    fn descriptors(&self) -> Vec<RawFd>;
}

/// Returns the remedy for a failed mapping.
fn map_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            ": raise the limit of locked memory (ulimit -l, LimitMEMLOCK= or limits.d) beyond the memory that the device is to reach"
        }
        Some(libc::ENOSPC) => ": raise the parameter dma_entry_limit of vfio_iommu_type1",
        _ => "",
    }
}

fn map_error(error: &io::Error) -> MapError {
    match error.raw_os_error() {
        Some(libc::EFAULT) => MapError::BadAddress,
        _ => MapError::NoSpace,
    }
}

fn call(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Kernel { what, error }
}
