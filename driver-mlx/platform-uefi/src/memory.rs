//! Memory of the device, and memory out of its reach.

use crate::error::{Error, Result, check};
use crate::firmware::{Firmware, PAGE};
use crate::pci_io::{PciIo, io};
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use driver_mlx::{DmaRegion, HostRegion};
use r_efi::efi::{ALLOCATE_ANY_PAGES, BOOT_SERVICES_DATA, PhysicalAddress};
use r_efi::protocols::pci_io::OPERATION_BUS_MASTER_COMMON_BUFFER;

/// Memory that the device may access, until it is freed.
///
/// Dropping it leaks it, because the device may still write there. The operating system takes it
/// over with the other memory of boot services.
#[derive(Debug)]
pub struct DmaMemory {
    pci: PciIo,
    host: NonNull<u8>,
    device: u64,
    pages: usize,
    token: *mut c_void,
}

impl DmaMemory {
    /// Allocates `bytes`, rounded up to pages, and maps them for the device.
    pub(crate) fn allocate(pci: PciIo, bytes: usize) -> Result<Self> {
        let pages = bytes.div_ceil(PAGE);
        let mut host: *mut c_void = null_mut();
        // No attribute: DUAL_ADDRESS_CYCLE is one of the function, and an error here.
        let status =
            io!(pci, allocate_buffer(ALLOCATE_ANY_PAGES, BOOT_SERVICES_DATA, pages, &raw mut host, 0));
        check("PciIo.AllocateBuffer", status)?;
        let host = NonNull::new(host.cast::<u8>()).ok_or(Error::Mapping)?;
        let (mut mapped, mut device, mut token) = (pages * PAGE, 0 as PhysicalAddress, null_mut());
        let status = io!(
            pci,
            map(
                OPERATION_BUS_MASTER_COMMON_BUFFER,
                host.as_ptr().cast(),
                &raw mut mapped,
                &raw mut device,
                &raw mut token,
            )
        );
        let memory = Self { pci, host, device, pages, token };
        let error = match check("PciIo.Map", status) {
            Ok(()) if mapped == pages * PAGE && device.is_multiple_of(PAGE as u64) => return Ok(memory),
            Ok(()) => {
                memory.unmap();
                Error::Mapping
            }
            Err(error) => error,
        };
        memory.free_buffer();
        Err(error)
    }

    /// All of it, for the driver. `None` if the device would reach it at address 0.
    ///
    /// # Safety
    /// 1. Nothing made of an earlier region of this memory is used any more.
    /// 2. The memory is not freed while anything made of this region is used.
    #[must_use]
    pub unsafe fn region(&self) -> Option<DmaRegion> {
        // SAFETY: the memory is this value's, mapped, and a common buffer, which is coherent. The
        // caller promised the rest.
        unsafe { DmaRegion::new(self.host.as_ptr(), self.device, self.pages * PAGE) }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages * PAGE
    }

    /// Returns whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Takes the memory away from the device and gives it back to the firmware.
    ///
    /// # Safety
    /// 1. The function exists: the [`Device`](crate::Device) that allocated the memory may be
    ///    closed, but its handle must not be gone.
    /// 2. The device accesses it no more: it was torn down, or bus mastering is off.
    /// 3. Nothing made of a region of it is used any more.
    pub unsafe fn free(self) {
        self.unmap();
        self.free_buffer();
    }

    fn unmap(&self) {
        // It fails only for a token that is not the firmware's.
        let _ = io!(self.pci, unmap(self.token));
    }

    fn free_buffer(&self) {
        let _ = io!(self.pci, free_buffer(self.pages, self.host.as_ptr().cast()));
    }
}

/// Memory that no device may access. Dropping it leaks it.
#[derive(Debug)]
pub struct HostMemory {
    firmware: Firmware,
    start: NonNull<u8>,
    pages: usize,
}

impl Firmware {
    /// Allocates `bytes` of zeros, rounded up to pages, which no device may access.
    ///
    /// # Errors
    /// [`Error::Call`]: too little memory.
    pub fn memory(self, bytes: usize) -> Result<HostMemory> {
        let pages = bytes.div_ceil(PAGE);
        let start = self.allocate_pages(pages)?;
        // SAFETY: as many pages were allocated.
        unsafe { start.write_bytes(0, pages * PAGE) };
        Ok(HostMemory { firmware: self, start, pages })
    }
}

impl HostMemory {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages * PAGE
    }

    /// Returns whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// All of it, for the driver. `None` for less than a page.
    ///
    /// # Safety
    /// As [`DmaMemory::region`].
    #[must_use]
    pub unsafe fn region(&self) -> Option<HostRegion> {
        // SAFETY: the memory is this value's, and the caller promised the rest.
        unsafe { HostRegion::new(self.start.as_ptr(), self.len()) }
    }

    /// All of it, for the program.
    ///
    /// # Safety
    /// No region was made of it.
    #[must_use]
    pub unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is this value's and was written when it was allocated. The caller promised that no region is of it.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }

    /// Gives it back to the firmware.
    ///
    /// # Safety
    /// Nothing made of a region of it is used any more.
    pub unsafe fn free(self) {
        self.firmware.free_pages(self.start, self.pages);
    }
}
