//! The firmware's boot services, as far as the platform uses them.

use crate::error::{Error, Result, check};
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use r_efi::efi::{
    ALLOCATE_ANY_PAGES, BOOT_SERVICES_DATA, BootServices, Handle, PhysicalAddress, SystemTable, TPL_CALLBACK,
    TPL_NOTIFY, Tpl,
};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// The firmware, as the program `image` sees it.
#[derive(Clone, Copy, Debug)]
pub struct Firmware {
    image: Handle,
    services: NonNull<BootServices>,
}

/// Calls a boot service. Only the called member of the table is read, as older firmware has shorter
/// tables.
macro_rules! call {
    ($firmware:expr, $service:ident ( $($argument:expr),* $(,)? )) => {{
        let services = $firmware.services();
        // SAFETY: `Firmware::new`'s caller promised the table, and its members are functions. Each
        // argument is a value, or a pointer to a local variable or to memory of the firmware's.
        unsafe { ((*services).$service)($($argument),*) }
    }};
}
pub(crate) use call;

impl Firmware {
    /// The firmware that started the program `image` with this table.
    ///
    /// `None` if the table is null or has no boot services.
    ///
    /// # Safety
    /// 1. `image` and `table` are the arguments of the program's entry.
    /// 2. Neither the value nor anything made of it is used after `ExitBootServices`.
    /// 3. All calls are made on the processor and from the program that firmware started.
    #[must_use]
    pub unsafe fn new(image: Handle, table: *mut SystemTable) -> Option<Self> {
        let table = NonNull::new(table)?;
        // SAFETY: the caller's first promise.
        let services = unsafe { (*table.as_ptr()).boot_services };
        NonNull::new(services).map(|services| Self { image, services })
    }

    pub(crate) fn services(self) -> *mut BootServices {
        self.services.as_ptr()
    }

    /// The program's own handle.
    pub(crate) fn image(self) -> Handle {
        self.image
    }

    /// Waits for `microseconds`.
    pub fn stall(self, microseconds: usize) {
        // The specification names no error.
        let _ = call!(self, stall(microseconds));
    }

    /// Stops the timer that resets a machine whose boot option does not return, five minutes after
    /// the boot manager has started it.
    pub fn disable_watchdog(self) {
        // A machine without such a timer returns an error.
        let _ = call!(self, set_watchdog_timer(0, 0, 0, core::ptr::null_mut()));
    }

    /// Raises the task priority level until the result is dropped.
    #[must_use = "the level is restored when the value is dropped"]
    pub fn raise(self, level: Level) -> Raised {
        Raised { firmware: self, before: call!(self, raise_tpl(level.tpl())) }
    }

    /// Allocates pages for the processor only.
    pub(crate) fn allocate_pages(self, pages: usize) -> Result<NonNull<u8>> {
        let mut address: PhysicalAddress = 0;
        let status =
            call!(self, allocate_pages(ALLOCATE_ANY_PAGES, BOOT_SERVICES_DATA, pages, &raw mut address));
        check("AllocatePages", status)?;
        // Firmware maps memory one to one.
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize)).ok_or(Error::Mapping)
    }

    pub(crate) fn free_pages(self, start: NonNull<u8>, pages: usize) {
        let address = start.as_ptr().expose_provenance() as u64;
        // It fails only for memory that is not allocated.
        let _ = call!(self, free_pages(address, pages));
    }

    /// Allocates a value of the firmware's pool, which events may refer to.
    pub(crate) fn pool<T>(self, value: T) -> Result<NonNull<T>> {
        let mut memory: *mut c_void = null_mut();
        let status = call!(self, allocate_pool(BOOT_SERVICES_DATA, size_of::<T>(), &raw mut memory));
        check("AllocatePool", status)?;
        let place = NonNull::new(memory.cast::<T>()).ok_or(Error::Mapping)?;
        // SAFETY: the pool's memory is aligned to 8 and has the size of the value.
        unsafe { place.write_unaligned(value) };
        Ok(place)
    }

    pub(crate) fn free_pool(self, memory: NonNull<c_void>) {
        // It fails only for memory that is not allocated.
        let _ = call!(self, free_pool(memory.as_ptr()));
    }
}

/// A task priority level that excludes other code of the firmware's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No timer event and no other driver's callback runs meanwhile.
    Callback,
    /// No event of `ExitBootServices` runs meanwhile either.
    Notify,
}

impl Level {
    fn tpl(self) -> Tpl {
        match self {
            Self::Callback => TPL_CALLBACK,
            Self::Notify => TPL_NOTIFY,
        }
    }
}

/// A raised task priority level. Dropping it restores the level before.
///
/// Levels are restored in the reverse order in which they were raised, as scopes are left.
#[derive(Debug)]
pub struct Raised {
    firmware: Firmware,
    before: Tpl,
}

impl Drop for Raised {
    fn drop(&mut self) {
        call!(self.firmware, restore_tpl(self.before));
    }
}
