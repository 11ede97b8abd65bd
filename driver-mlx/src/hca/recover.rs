//! Recovery: a device that has failed is reset, or found reset, and brought up again, in the order of Linux's mlx5.

use super::bring_up::Firmware;
use super::device_state::{CMDQ_ADDRESS_MASK, interface_state, is_away};
use super::health::Health;
use super::limits::Limits;
use super::recoveries::Recoveries;
use super::reset_lock::ResetLock;
use super::stop::disable_interface;
use super::wait::{Wait, hand_over_queue};
use super::{BLUEFLAME_PAGES, BlueFlamePage, Hca, HealthBuffer, StepTimes};
use crate::config::Config;
use crate::error::{Error, FatalCause, Step};
use crate::platform::{Bar, Platform};
use crate::trace::TraceKind;
use crate::types::Duration;
use mlx5_prm::init_seg;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::NicInterface;

/// Interval between looks at `nic_interface` while firmware is being reset, and how long that may take.
const RESET_POLL: Duration = Duration::from_millis(20);
const RESET_TIMEOUT: Duration = Duration::from_secs(2);
/// The same if another function has the semaphore: it may be writing down the card's state first.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(60);
/// Looks at the health counter until it moves, and the interval between them.
const COUNTER_LOOKS: u32 = 100;
const COUNTER_POLL: Duration = Duration::from_millis(50);

impl<P: Platform> Hca<'_, P> {
    /// Resets the device, or waits until somebody else has, and brings it up again. For one that has failed
    /// ([`AsyncEvent::Fatal`](crate::AsyncEvent::Fatal), [`Hca::fatal`]); one that works loses everything too.
    ///
    /// What becomes of what it was used with:
    ///
    /// | | before, while it has failed | afterwards |
    /// |---|---|---|
    /// | [`DmaBuffer`](crate::DmaBuffer) | can be freed; none can be allocated | lives on with its content; no key leads to it: register it again |
    /// | queues | what was posted does not complete: retire it as flushed. Destroying one succeeds and needs no device | the same; all other calls for it are refused |
    /// | [`MemoryRegion`](crate::MemoryRegion) | its buffer's can be deregistered; foreign memory stays the device's | can be deregistered |
    /// | protection domains, windows, counters | – | gone: do not destroy them, their numbers may be in use again |
    /// | tickets | lost | void |
    ///
    /// So nothing that the device could still write to is ever used for something else, and a consumer keeps its data and makes its objects
    /// anew over the same buffers.
    ///
    /// It waits: up to some seconds for a reset, up to a minute for a device that is off the bus, and up to two hours for firmware that
    /// says that it is starting.
    ///
    /// # Errors
    /// [`Error::RecoveryTooSoon`] within [`Config::recovery_grace`] of the last recovery, [`Error::RecoveryGivenUp`] after three failures
    /// in a row; otherwise any [`Error`] of the reset or of bring-up: [`Error::NotPresent`] for a device that does not come back. It can
    /// then be tried again.
    pub fn recover(&mut self) -> Result<(), Error> {
        let now = self.platform.now();
        self.recoveries.admit(now, self.config.recovery_grace)?;
        self.step = Step::Recovery;
        self.trace.push(now, TraceKind::Step(Step::Recovery));
        match self.reset_device().and_then(|()| self.live_again()) {
            Ok(()) => {
                self.recoveries = Recoveries { failed: 0, last: Some(self.platform.now()) };
                Ok(())
            }
            Err(error) => {
                self.recoveries.failed += 1;
                // Nothing is made before a recovery succeeds.
                self.fatal.get_or_insert(FatalCause::NotRecovered);
                Err(error)
            }
        }
    }

    /// Makes sure that the device has forgotten this driver's memory, is there, and that its firmware runs.
    fn reset_device(&mut self) -> Result<(), Error> {
        if self.wants_reset() {
            self.reset_firmware();
        }
        let limit = self.limits.firmware_reset;
        Wait { step: Step::Recovery, limit, absence: limit }.until_present(&self.platform)?;
        self.platform.restore_function();
        self.make_it_let_go()?;
        self.owned = false;
        self.wait_for_counter()
    }

    /// Whether firmware asks for a reset.
    fn wants_reset(&self) -> bool {
        let bar = self.platform.bar();
        let HealthBuffer { reset_wanted, syndrome, .. } = HealthBuffer::read(bar);
        !is_away(bar) && reset_wanted && syndrome != HealthSyndrome::HEALTHY
    }

    /// Resets the firmware unless another function does, and waits for the end of it. A virtual function leaves it to the physical one.
    fn reset_firmware(&self) {
        let bar = self.platform.bar();
        let supported = bar.read32(init_seg::INITIALIZING_OFFSET) & init_seg::FW_RESET_SUPPORTED != 0;
        let lock = if self.config.physical_function && supported {
            ResetLock::take(&self.platform)
        } else {
            ResetLock::Absent
        };
        let interface = NicInterface(interface_state(bar));
        let done = interface == NicInterface::DISABLED || interface == NicInterface::SW_RESET;
        if matches!(lock, ResetLock::Held(_)) && !done && !is_away(bar) {
            let reset = u32::from(NicInterface::SW_RESET.0) << init_seg::NIC_INTERFACE_SHIFT;
            let low = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & CMDQ_ADDRESS_MASK;
            bar.write32(init_seg::CMDQ_ADDR_L_SZ_OFFSET, low | reset);
        }
        let limit = if lock == ResetLock::Busy { OTHERS_TIMEOUT } else { RESET_TIMEOUT };
        let end = self.platform.now() + limit;
        // A device that takes longer is waited for by what comes next.
        while interface_state(bar) != NicInterface::DISABLED.0 && self.platform.now() < end {
            self.platform.idle(self.platform.now() + RESET_POLL);
        }
        lock.release(&self.platform);
    }

    /// Makes sure that the device no longer accesses this driver's memory, whoever reset it, if anybody did.
    fn make_it_let_go(&mut self) -> Result<(), Error> {
        let state = interface_state(self.platform.bar());
        let failed = self.wants_reset();
        let free = state == NicInterface::DISABLED.0 || state == NicInterface::SW_RESET.0 || !self.is_owner();
        if free && !failed {
            return Ok(());
        }
        let address = self.cmd.device_address();
        if !failed && disable_interface(&self.platform, address, self.limits.tear_down) {
            return Ok(());
        }
        if !self.platform.reset_function() {
            return Err(Error::NicInterface(state));
        }
        let limit = self.limits.firmware_reset;
        Wait { step: Step::Recovery, limit, absence: limit }.until_present(&self.platform)?;
        self.platform.restore_function();
        Ok(())
    }

    /// Waits until the health counter moves: firmware runs.
    fn wait_for_counter(&self) -> Result<(), Error> {
        let bar = self.platform.bar();
        let began = self.platform.now();
        let mut last = None;
        for _ in 0..COUNTER_LOOKS {
            let counter = bar.read32(init_seg::HEALTH_COUNTER_OFFSET);
            if !matches!(counter, 0 | u32::MAX) && last.replace(counter).is_some_and(|last| last != counter) {
                return Ok(());
            }
            self.platform.idle(self.platform.now() + COUNTER_POLL);
        }
        let waited_ms = (self.platform.now() - began).as_millis() as u64;
        let syndrome = super::device_state::health_syndrome(bar);
        Err(Error::Timeout { step: Step::Recovery, opcode: None, waited_ms, syndrome })
    }

    /// Begins a new life: everything of the last one is forgotten, and the device brought up.
    fn live_again(&mut self) -> Result<(), Error> {
        self.forget_life()?;
        let config = Config { recovery: true, ..self.config };
        let firmware =
            Firmware::wait(&self.platform, &config, &self.limits, &mut self.steps, &mut self.trace)?;
        let Firmware { version, embedded_cpu, log_size, log_stride } = firmware;
        self.step = Step::CommandQueue;
        if !self.cmd.restart(log_size, log_stride)? {
            return Err(Error::CommandQueue { log_size: log_size as u8, log_stride: log_stride as u8 });
        }
        self.firmware_version = version;
        self.embedded_cpu = embedded_cpu;
        self.owned = true;
        hand_over_queue(&self.platform, self.cmd.device_address(), &mut self.limits)?;
        self.start()?;
        match self.check_health(self.platform.now()) {
            None => Ok(()),
            Some(cause) => Err(Error::Fatal(cause)),
        }
    }

    fn forget_life(&mut self) -> Result<(), Error> {
        self.life = self.life.wrapping_add(1);
        while let Some(memory) = self.cmd.take_lent() {
            self.release(memory)?;
        }
        for slot in 0..self.completion_eqs.len() {
            if let Some(eq) = self.completion_eqs.get_mut(slot).and_then(Option::take) {
                self.release(eq.memory)?;
            }
        }
        if let Some(eq) = self.async_eq.take() {
            self.release(eq.memory)?;
        }
        self.forget_memory();
        self.find_lost_records()?;
        self.uar = None;
        self.blueflame = [BlueFlamePage { page: None, used: 0 }; BLUEFLAME_PAGES];
        (self.enabled, self.initialized, self.fatal) = (false, false, None);
        self.health = Health::default();
        self.limits = Limits::new(&self.config);
        self.steps = StepTimes { began: self.platform.now(), ..StepTimes::default() };
        Ok(())
    }
}
