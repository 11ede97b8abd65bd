//! The calls, with their structures. Each structure begins with its size, so that the kernel can
//! distinguish versions.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IO(';', 100 + n)`: VFIO.
const fn vfio(number: u32) -> libc::c_ulong {
    0x3b64 + number as libc::c_ulong
}

/// `_IO(';', 0x80 + n)`: iommufd.
const fn iommufd(number: u32) -> libc::c_ulong {
    0x3b80 + number as libc::c_ulong
}

/// A call whose argument is a structure.
///
/// # Safety
/// An implementation's number must be that of a call that takes a pointer to the structure. The
/// call reads and writes only inside the structure, or inside its `argsz` bytes. The call has no
/// other effect on this process's memory.
pub(super) unsafe trait Call {
    /// The call's number.
    const NUMBER: libc::c_ulong;
}

/// Makes the call. Returns its non-negative result.
pub(super) fn call<T: Call>(fd: BorrowedFd<'_>, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the trait's contract, and the reference is exclusive.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), T::NUMBER, std::ptr::from_mut(argument)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A call whose argument is a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Simple {
    ApiVersion,
    CheckExtension,
    SetIommu,
    DeviceReset,
}

/// Makes the call. Returns its non-negative result.
pub(super) fn simple(fd: BorrowedFd<'_>, what: Simple, argument: u32) -> io::Result<i32> {
    let number = match what {
        Simple::ApiVersion => vfio(0),
        Simple::CheckExtension => vfio(1),
        Simple::SetIommu => vfio(2),
        Simple::DeviceReset => vfio(11),
    };
    // SAFETY: these take a number, or nothing.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), number, libc::c_ulong::from(argument)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:expr, { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub(super) struct $name {
                $(pub(super) $field: $kind),*
            }

            // SAFETY: number and layout are those of the kernel's header, whose call stays inside
            // the structure; the tests hold the sizes.
            unsafe impl Call for $name {
                const NUMBER: libc::c_ulong = $number;
            }

            impl $name {
                /// Bytes, as the first field of most has them.
                #[allow(dead_code)]
                pub(super) const SIZE: u32 = size_of::<Self>() as u32;
            }
        )*
    };
}

/// Ranges that an address space may have; more are not looked at.
pub(super) const MOST_RANGES: usize = 64;

calls! {
    /// `VFIO_GROUP_GET_STATUS`.
    GroupStatus = vfio(3), { argsz: u32, flags: u32 }
    /// `VFIO_GROUP_SET_CONTAINER`.
    SetContainer = vfio(4), { container: i32 }
    /// `VFIO_GROUP_GET_DEVICE_FD`: the function's address, which ends with a NUL.
    DeviceFd = vfio(6), { name: [u8; 32] }
    /// `VFIO_DEVICE_GET_INFO`.
    DeviceInfo = vfio(7), { argsz: u32, flags: u32, num_regions: u32, num_irqs: u32, cap_offset: u32, pad: u32 }
    /// `VFIO_DEVICE_GET_REGION_INFO`.
    RegionInfo = vfio(8), { argsz: u32, flags: u32, index: u32, cap_offset: u32, size: u64, offset: u64 }
    /// `VFIO_DEVICE_GET_IRQ_INFO`.
    IrqInfo = vfio(9), { argsz: u32, flags: u32, index: u32, count: u32 }
    /// `VFIO_DEVICE_SET_IRQS` with event descriptors.
    SetIrqs = vfio(10), { argsz: u32, flags: u32, index: u32, start: u32, count: u32, events: [i32; 32] }
    /// `VFIO_IOMMU_GET_INFO`, with room for the capabilities.
    IommuInfo = vfio(12), {
        argsz: u32, flags: u32, page_sizes: u64, cap_offset: u32, pad: u32, capabilities: Capabilities,
    }
    /// `VFIO_IOMMU_MAP_DMA`.
    MapDma = vfio(13), { argsz: u32, flags: u32, vaddr: u64, iova: u64, size: u64 }
    /// `VFIO_IOMMU_UNMAP_DMA`.
    UnmapDma = vfio(14), { argsz: u32, flags: u32, iova: u64, size: u64 }
    /// `VFIO_DEVICE_BIND_IOMMUFD`.
    BindIommufd = vfio(18), { argsz: u32, flags: u32, iommufd: i32, out_devid: u32 }
    /// `VFIO_DEVICE_ATTACH_IOMMUFD_PT`.
    AttachIommufd = vfio(19), { argsz: u32, flags: u32, pt_id: u32 }
    /// `IOMMU_IOAS_ALLOC`.
    IoasAlloc = iommufd(1), { size: u32, flags: u32, out_ioas_id: u32 }
    /// `IOMMU_IOAS_MAP`.
    IoasMap = iommufd(5), {
        size: u32, flags: u32, ioas_id: u32, reserved: u32, user_va: u64, length: u64, iova: u64,
    }
    /// `IOMMU_IOAS_UNMAP`.
    IoasUnmap = iommufd(6), { size: u32, ioas_id: u32, iova: u64, length: u64 }
}

/// Room for the capabilities behind an [`IommuInfo`].
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Capabilities(pub(super) [u8; 4096]);

impl Default for Capabilities {
    fn default() -> Self {
        Self([0; 4096])
    }
}

/// A range of device addresses, the last one included.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IovaRange {
    pub(super) start: u64,
    pub(super) last: u64,
}

/// `IOMMU_IOAS_IOVA_RANGES`: what an address space may use.
pub(super) fn ioas_ranges(fd: BorrowedFd<'_>, ioas_id: u32) -> io::Result<Vec<IovaRange>> {
    #[repr(C)]
    struct Ranges {
        size: u32,
        ioas_id: u32,
        num_iovas: u32,
        reserved: u32,
        allowed_iovas: u64,
        out_iova_alignment: u64,
    }
    let mut ranges = [IovaRange::default(); MOST_RANGES];
    let mut argument = Ranges {
        size: size_of::<Ranges>() as u32,
        ioas_id,
        num_iovas: MOST_RANGES as u32,
        reserved: 0,
        allowed_iovas: ranges.as_mut_ptr().expose_provenance() as u64,
        out_iova_alignment: 0,
    };
    // SAFETY: the call writes the structure, and at most `num_iovas` entries where `allowed_iovas`
    // points: the array, which lives.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), iommufd(4), &raw mut argument) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ranges.into_iter().take(argument.num_iovas as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_the_kernels() {
        let sizes =
            [GroupStatus::SIZE, SetContainer::SIZE, DeviceInfo::SIZE, RegionInfo::SIZE, IrqInfo::SIZE];
        assert_eq!(sizes, [8, 4, 24, 32, 16]);
        let sizes = [MapDma::SIZE, UnmapDma::SIZE, BindIommufd::SIZE, AttachIommufd::SIZE];
        assert_eq!(sizes, [32, 24, 16, 12]);
        assert_eq!([IoasAlloc::SIZE, IoasMap::SIZE, IoasUnmap::SIZE], [12, 40, 24]);
        assert_eq!((SetIrqs::SIZE, IommuInfo::SIZE), (20 + 4 * 32, 24 + 4096));
        assert_eq!([MapDma::NUMBER, RegionInfo::NUMBER, SetIrqs::NUMBER], [0x3b71, 0x3b6c, 0x3b6e]);
        assert_eq!([BindIommufd::NUMBER, AttachIommufd::NUMBER, IoasMap::NUMBER], [0x3b76, 0x3b77, 0x3b85]);
    }
}
