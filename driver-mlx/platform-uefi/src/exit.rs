//! The end of DMA when the operating system starts.

use crate::bar::UefiBar;
use crate::error::{Result, check};
use crate::firmware::{Firmware, call};
use crate::pci_io::PciIo;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use driver_mlx::emergency_stop;
use r_efi::efi::{EVT_SIGNAL_EXIT_BOOT_SERVICES, Event, TPL_NOTIFY};

/// An event of `ExitBootServices` that ends a device's DMA.
#[derive(Debug)]
pub(crate) struct ExitEvent {
    firmware: Firmware,
    event: Event,
    context: NonNull<Context>,
}

/// Context of the event, in the firmware's pool, which does not move.
#[derive(Debug)]
struct Context {
    pci: PciIo,
    bar: UefiBar,
}

impl ExitEvent {
    pub(crate) fn create(firmware: Firmware, pci: PciIo, bar: UefiBar) -> Result<Self> {
        let context = firmware.pool(Context { pci, bar })?;
        let mut event: Event = null_mut();
        // Drivers of IOMMUs take their translations away in events of TPL_CALLBACK: later.
        let status = call!(
            firmware,
            create_event(
                EVT_SIGNAL_EXIT_BOOT_SERVICES,
                TPL_NOTIFY,
                Some(stop),
                context.as_ptr().cast(),
                &raw mut event,
            )
        );
        if let Err(error) = check("CreateEvent", status) {
            firmware.free_pool(context.cast());
            return Err(error);
        }
        Ok(Self { firmware, event, context })
    }
}

impl Drop for ExitEvent {
    fn drop(&mut self) {
        // It fails only for invalid events.
        let _ = call!(self.firmware, close_event(self.event));
        self.firmware.free_pool(self.context.cast());
    }
}

/// Neither allocates nor waits: the memory map is final by now, and timers are off.
unsafe extern "efiapi" fn stop(_: Event, context: *mut c_void) {
    // SAFETY: the event is closed before its context is freed.
    let Context { pci, bar } = unsafe { context.cast::<Context>().read_unaligned() };
    emergency_stop(bar);
    pci.stop_dma();
}
