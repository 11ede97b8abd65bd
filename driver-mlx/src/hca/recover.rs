//! Recovery: a device that has failed is reset, or found reset, and brought up again, in the order
//! of Linux's mlx5.

use super::Hca;
use crate::error::{Error, FatalCause, Step};
use crate::platform::Platform;

impl<P: Platform> Hca<'_, P> {
    /// Resets the device, or waits until somebody else has, and brings it up again. For one that has failed
    /// ([`AsyncEvent::Fatal`](crate::AsyncEvent::Fatal), [`Hca::fatal`]); one that works loses everything too.
    ///
    /// What becomes of what it was used with:
    ///
    /// | | before, while it has failed | afterwards |
    /// |---|---|---|
    /// | [`DmaBuffer`](crate::DmaBuffer) | can be freed; none can be allocated | lives on with its content; no key leads to it: register it again |
    /// | queues | what was posted does not complete: retire it as flushed. Destroying one succeeds and needs no device | the same; all other calls for it are refused, and one with BlueFlame rings nothing |
    /// | [`MemoryRegion`](crate::MemoryRegion) | can be deregistered; of foreign memory only if the platform can keep the device from it ([`Platform::set_bus_master`]) | can be deregistered |
    /// | windows | – | ending one succeeds; all other calls for it are refused |
    /// | protection domains, counters | – | ending one succeeds; all other calls with it are refused |
    /// | tickets | lost | void |
    ///
    /// So nothing that the device could still write to is ever allocated for something else, and a consumer keeps its data and makes its
    /// objects anew over the same buffers. Bus mastering is switched off before a failure is told, so that buffers of flushed requests can
    /// be used again, with three exceptions: platforms that do not switch it ([`Platform::set_bus_master`]); a device that is off the bus,
    /// until it is back and the next [`Hca::poll`] finds it; and a function that cannot be reset, which needs bus mastering to be ended by
    /// a command, in this call. Whoever has to do with those leaves such buffers alone until recovery has succeeded.
    ///
    /// It waits: up to some seconds for a reset, up to a minute for a device that is off the bus, and up to two hours for firmware that
    /// says that it is starting.
    ///
    /// # Errors
    /// [`Error::RecoveryTooSoon`] within [`Config::recovery_grace`](crate::Config::recovery_grace) of the last recovery, [`Error::RecoveryGivenUp`] after three failures
    /// in a row; otherwise any [`Error`] of the reset or of bring-up: [`Error::NotPresent`] for a device that does not come back. It can
    /// then be tried again.
    pub fn recover(&mut self) -> Result<(), Error> {
        self.recoveries.admit(self.now(), self.firmware.config().recovery_grace)?;
        self.firmware.set_step(Step::Recovery);
        let result = self.firmware.reset_device(&mut self.memory).and_then(|()| self.reinit());
        match result {
            Ok(()) => self.recoveries.succeeded(self.now()),
            Err(_) => {
                if self.firmware.can_be_stopped() {
                    // A device that cannot be reset can only begin again if what was begun is undone.
                    // The caller gets the first error.
                    let _ = self.stop();
                }
                self.recoveries.failed();
                // Nothing is created before another recovery succeeds.
                self.firmware.fail(FatalCause::NotRecovered);
            }
        }
        result
    }

    /// The device came back, but not what its owner needs besides, the port say: the recovery counts as failed, and the device is as
    /// unusable as before it.
    pub fn recovery_failed(&mut self) {
        self.recoveries.withdraw();
        self.firmware.fail(FatalCause::NotRecovered);
    }

    /// Brings a device up that was reset. Nothing of the last generation is left.
    fn reinit(&mut self) -> Result<(), Error> {
        let Self { firmware, memory, objects, port, .. } = self;
        memory.end_epoch();
        firmware.begin_generation(memory)?;
        objects.begin_generation(memory, firmware.take_async_eq())?;
        memory.begin_generation()?;
        port.begin_generation();
        firmware.reattach()?;
        self.start()?;
        match self.check_health(self.now()) {
            None => Ok(()),
            Some(cause) => Err(Error::Fatal(cause)),
        }
    }
}
