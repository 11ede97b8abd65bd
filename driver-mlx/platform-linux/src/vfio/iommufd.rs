//! The newer way in: the function's character device, and an address space of an iommufd.

use super::ioctl::{self, AttachIommufd, BindIommufd, IoasAlloc, IoasMap, IoasUnmap};
use super::{Translation, call};
use crate::error::Result;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use vfio_functions::open_file;

/// `IOMMU_IOAS_MAP_FIXED_IOVA`: at the address given.
const FIXED: u32 = 1;
/// `IOMMU_IOAS_MAP_WRITEABLE`: the device may write.
const WRITE: u32 = 2;
/// `IOMMU_IOAS_MAP_READABLE`: the device may read.
const READ: u32 = 4;

/// Flags of a mapping.
fn map_flags(writable: bool) -> u32 {
    FIXED | READ | if writable { WRITE } else { 0 }
}

/// An address space that the function uses.
#[derive(Debug)]
pub(super) struct AddressSpace {
    iommufd: File,
    id: u32,
}

impl AddressSpace {
    /// Opens the function and gives it an address space; the function is reset by that.
    pub(super) fn open(device: &Path) -> Result<(Self, OwnedFd)> {
        let device = open_file(device, "")?;
        let iommufd = open_file(Path::new("/dev/iommu"), ": modprobe iommufd, or use the group")?;
        let mut bind =
            BindIommufd { argsz: BindIommufd::SIZE, iommufd: iommufd.as_raw_fd(), ..BindIommufd::default() };
        ioctl::call(device.as_fd(), &mut bind).map_err(call("VFIO_DEVICE_BIND_IOMMUFD"))?;
        let mut alloc = IoasAlloc { size: IoasAlloc::SIZE, ..IoasAlloc::default() };
        ioctl::call(iommufd.as_fd(), &mut alloc).map_err(call("IOMMU_IOAS_ALLOC"))?;
        let id = alloc.out_ioas_id;
        let mut attach = AttachIommufd { argsz: AttachIommufd::SIZE, flags: 0, pt_id: id };
        ioctl::call(device.as_fd(), &mut attach).map_err(call("VFIO_DEVICE_ATTACH_IOMMUFD_PT"))?;
        Ok((Self { iommufd, id }, device.into()))
    }
}

impl Translation for AddressSpace {
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        let ranges = ioctl::ioas_ranges(self.iommufd.as_fd(), self.id).unwrap_or_default();
        ranges.into_iter().map(|range| range.start..=range.last).collect()
    }

    fn map(&self, va: u64, at: u64, len: u64, writable: bool) -> io::Result<()> {
        let mut map = IoasMap {
            size: IoasMap::SIZE,
            flags: map_flags(writable),
            ioas_id: self.id,
            reserved: 0,
            user_va: va,
            length: len,
            iova: at,
        };
        ioctl::call(self.iommufd.as_fd(), &mut map).map(drop)
    }

    fn unmap(&self, at: u64, len: u64) -> io::Result<()> {
        let mut unmap = IoasUnmap { size: IoasUnmap::SIZE, ioas_id: self.id, iova: at, length: len };
        ioctl::call(self.iommufd.as_fd(), &mut unmap).map(drop)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.iommufd.as_raw_fd()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_write_only_where_they_may() {
        assert_eq!([true, false].map(map_flags), [7, 5]);
    }
}
