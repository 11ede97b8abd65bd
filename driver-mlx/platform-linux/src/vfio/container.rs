//! The older way in: a container, which has the translation, with the function's group in it.

use super::ioctl::{self, DeviceFd, GroupStatus, IommuInfo, MapDma, SetContainer, Simple, UnmapDma};
use super::{Translation, call};
use crate::error::{Error, Result};
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use vfio_functions::{CONTAINER, PciAddress, group_file, open_file};

/// `VFIO_TYPE1v2_IOMMU`.
const TYPE1_V2: u32 = 3;
/// All functions of the group are bound to VFIO or to no driver.
const VIABLE: u32 = 1;
/// `VFIO_DMA_MAP_FLAG_READ`: the device may read.
const READ: u32 = 1;
/// `VFIO_DMA_MAP_FLAG_WRITE`: the device may write.
const WRITE: u32 = 2;
/// An [`IommuInfo`] has capabilities.
const HAS_CAPABILITIES: u32 = 1 << 1;
/// The capability that lists usable ranges.
const IOVA_RANGES: u16 = 1;

/// A container with one group.
#[derive(Debug)]
pub(super) struct Container {
    container: File,
    /// Holds the group open.
    group: File,
}

impl Container {
    /// Opens container, group and function; the function is reset by that.
    pub(super) fn open(address: PciAddress, group: u32) -> Result<(Self, OwnedFd)> {
        let container = open_file(Path::new(CONTAINER), ": modprobe vfio-pci")?;
        let version =
            ioctl::simple(container.as_fd(), Simple::ApiVersion, 0).map_err(call("VFIO_GET_API_VERSION"))?;
        let has_type1 = ioctl::simple(container.as_fd(), Simple::CheckExtension, TYPE1_V2);
        if version != 0 || has_type1.is_ok_and(|answer| answer == 0) {
            return Err(Error::Options("this kernel's VFIO has no type1v2 IOMMU: modprobe vfio_iommu_type1"));
        }
        let group_device = open_file(&group_file(group), "")?;
        let mut status = GroupStatus { argsz: GroupStatus::SIZE, ..GroupStatus::default() };
        ioctl::call(group_device.as_fd(), &mut status).map_err(call("VFIO_GROUP_GET_STATUS"))?;
        if status.flags & VIABLE == 0 {
            return Err(Error::GroupInUse(group));
        }
        let mut set = SetContainer { container: container.as_raw_fd() };
        ioctl::call(group_device.as_fd(), &mut set).map_err(call("VFIO_GROUP_SET_CONTAINER"))?;
        ioctl::simple(container.as_fd(), Simple::SetIommu, TYPE1_V2).map_err(|error| {
            if error.kind() == io::ErrorKind::PermissionDenied {
                return Error::Options(
                    "the IOMMU does not remap interrupts (the kernel's log says more): vfio_iommu_type1 has allow_unsafe_interrupts=1",
                );
            }
            call("VFIO_SET_IOMMU")(error)
        })?;
        let mut name = DeviceFd::default();
        for (to, byte) in name.name.iter_mut().zip(address.to_string().bytes()) {
            *to = byte;
        }
        let device =
            ioctl::call(group_device.as_fd(), &mut name).map_err(call("VFIO_GROUP_GET_DEVICE_FD"))?;
        // SAFETY: the call returns a new descriptor, which has no other owner.
        let device = unsafe { OwnedFd::from_raw_fd(device) };
        Ok((Self { container, group: group_device }, device))
    }
}

impl Translation for Container {
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        let mut info = IommuInfo { argsz: IommuInfo::SIZE, ..IommuInfo::default() };
        let asked = ioctl::call(self.container.as_fd(), &mut info);
        let listed = match asked {
            Ok(_) if info.flags & HAS_CAPABILITIES != 0 => ranges_in(&info),
            _ => Vec::new(),
        };
        // Kernels before 5.4 do not list usable ranges. Every IOMMU has 39 bits of address, without
        // the window for interrupts.
        if listed.is_empty() { vec![0x1_0000..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1] } else { listed }
    }

    fn map(&self, va: u64, at: u64, len: u64, writable: bool) -> io::Result<()> {
        let mut map =
            MapDma { argsz: MapDma::SIZE, flags: map_flags(writable), vaddr: va, iova: at, size: len };
        ioctl::call(self.container.as_fd(), &mut map).map(drop)
    }

    fn unmap(&self, at: u64, len: u64) -> io::Result<()> {
        let mut unmap = UnmapDma { argsz: UnmapDma::SIZE, flags: 0, iova: at, size: len };
        ioctl::call(self.container.as_fd(), &mut unmap).map(drop)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.container.as_raw_fd(), self.group.as_raw_fd()]
    }
}

/// Flags of a mapping.
fn map_flags(writable: bool) -> u32 {
    if writable { READ | WRITE } else { READ }
}

/// The ranges that the capabilities list: a chain of headers (id, version, offset of the next from
/// the start of the structure).
fn ranges_in(info: &IommuInfo) -> Vec<RangeInclusive<u64>> {
    const FIXED: usize = IommuInfo::SIZE as usize - 4096;
    let bytes = &info.capabilities.0;
    let number = |at: usize, len: usize| {
        let bytes = bytes.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let mut ranges = Vec::new();
    let mut offset = info.cap_offset as usize;
    // More headers than fit would be a circle.
    for _ in 0..bytes.len() / 8 {
        let Some(at) = offset.checked_sub(FIXED) else { break };
        let (Some(id), Some(next)) = (number(at, 2), number(at + 4, 4)) else { break };
        if id == u64::from(IOVA_RANGES) {
            let count = number(at + 8, 4).unwrap_or(0) as usize;
            let entries = (0..count).map_while(|index| {
                let entry = at + 16 + index * 16;
                Some(number(entry, 8)?..=number(entry + 8, 8)?)
            });
            ranges.extend(entries);
        }
        offset = next as usize;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_write_only_where_they_may() {
        assert_eq!([true, false].map(map_flags), [3, 1]);
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let mut info = IommuInfo { cap_offset: 24, ..IommuInfo::default() };
        let bytes = &mut info.capabilities.0;
        // A capability of another kind, and then the ranges.
        bytes[0..2].copy_from_slice(&3_u16.to_le_bytes());
        bytes[4..8].copy_from_slice(&40_u32.to_le_bytes());
        bytes[16..18].copy_from_slice(&IOVA_RANGES.to_le_bytes());
        bytes[24..28].copy_from_slice(&2_u32.to_le_bytes());
        for (at, value) in [(32, 0_u64), (40, 0xfedf_ffff), (48, 0xfef0_0000), (56, 0x7f_ffff_ffff)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        assert_eq!(ranges_in(&info), [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    }

    #[test]
    fn a_chain_that_leads_nowhere_ends() {
        for cap_offset in [0, 1, 24, 4000, u32::MAX] {
            let mut info = IommuInfo { cap_offset, ..IommuInfo::default() };
            // Points to itself.
            info.capabilities.0[4..8].copy_from_slice(&24_u32.to_le_bytes());
            info.capabilities.0[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
            assert!(ranges_in(&info).is_empty());
        }
    }
}
