//! From registers to a usable device and back.

use super::firmware::Log;
use super::{Firmware, Hca, Memory, Objects, Port, Recoveries};
use crate::config::{Config, MAX_COMPLETION_EQS};
use crate::dma::DmaRegion;
use crate::error::{Error, Step};
use crate::host::HostRegion;
use crate::log::log;
use crate::platform::Platform;
use crate::storage::HcaParts;

impl<'s, P: Platform> Hca<'s, P> {
    /// Brings the HCA up. Bus mastering and memory decoding of the function are on, and no other driver uses it.
    ///
    /// # Errors
    /// Any [`Error`]. What was begun has then been undone as far as the device let it; if it did not answer, only a
    /// function-level reset makes the region safe to use for anything else.
    pub fn bring_up(
        platform: P,
        region: DmaRegion,
        host: HostRegion,
        storage: HcaParts<'s>,
        config: &Config,
    ) -> Result<Self, Error> {
        if !(1..=MAX_COMPLETION_EQS).contains(&config.completion_eqs) {
            return Err(Error::InvalidArgument("completion_eqs"));
        }
        for (name, log_size) in
            [("log_eq_size", config.log_eq_size), ("log_async_eq_size", config.log_async_eq_size)]
        {
            if !(7..=16).contains(&log_size) {
                return Err(Error::InvalidArgument(name));
            }
        }
        let HcaParts { map, users, trace, events, region_in_use } = storage;
        *region_in_use = false;
        let mut memory = Memory::new(region, host, map, users)?;
        let log = Log::new(trace, events, platform.now());
        let firmware = Firmware::attach(platform, config, &mut memory, log, region_in_use)?;
        let mut hca = Self {
            firmware,
            memory,
            objects: Objects::new(),
            port: Port::default(),
            recoveries: Recoveries::default(),
        };
        match hca.start() {
            Ok(()) => Ok(hca),
            Err(error) => {
                log!(error, "hca: bring-up ends in step {=str}: {}", hca.firmware.step().name(), error);
                // Return the error that stopped bring-up; the trace has those of undoing it.
                let _ = hca.stop();
                Err(error)
            }
        }
    }

    /// Issues the commands of bring-up.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        let Self { firmware, memory, objects, port, .. } = self;
        firmware.start(memory)?;
        objects.start(firmware, memory)?;
        port.start(firmware, memory)?;
        firmware.started(memory);
        Ok(())
    }

    /// Undoes bring-up: destroys event queues, stops the device, takes firmware's pages back, disables the function. All
    /// queues and keys must have been destroyed, else firmware refuses.
    ///
    /// # Errors
    /// Any [`Error`]. The device has then been stopped as if the HCA had been dropped, as far as it answers at all; if it does not, it may
    /// still use the region: reset the function before using it for anything else.
    pub fn tear_down(mut self) -> Result<(), Error> {
        self.stop()
    }

    pub(super) fn stop(&mut self) -> Result<(), Error> {
        let Self { firmware, memory, objects, .. } = self;
        firmware.set_step(Step::TearDown);
        let result = objects.stop(firmware, memory);
        let result = result.and(firmware.stop(memory));
        firmware.detach(memory, &result);
        result
    }
}

impl<P: Platform> Drop for Hca<'_, P> {
    fn drop(&mut self) {
        // The next HCA may have queues of the same numbers.
        self.memory.end_epoch();
        self.firmware.abandon(&mut self.memory);
    }
}
