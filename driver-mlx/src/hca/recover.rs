//! Recovery: a device that has failed is reset, or found reset, and brought up again, in the order of Linux's mlx5.

use super::bring_up::Firmware;
use super::device_state::{CMDQ_ADDRESS_MASK, health_syndrome, interface_state, is_away};
use super::health::Health;
use super::limits::Limits;
use super::reset_lock::ResetLock;
use super::stop::disable_interface;
use super::wait::{Wait, hand_over_queue};
use super::{BLUEFLAME_PAGES, BlueFlamePage, Hca, HealthBuffer, StepTimes};
use crate::config::Config;
use crate::control;
use crate::error::{Error, FatalCause, Step};
use crate::platform::{Bar, Platform};
use crate::trace::TraceKind;
use crate::types::Duration;
use mlx5_prm::init_seg;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::{NicInterface, TeardownProfile};

/// Interval between looks at `nic_interface` while firmware is being reset, and how long that may take.
const RESET_POLL: Duration = Duration::from_millis(20);
const RESET_TIMEOUT: Duration = Duration::from_secs(2);
/// The same if another function has the semaphore: it may be writing down the card's state first.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the health counter is watched until it moves, and the interval between looks.
const COUNTER_TIMEOUT: Duration = Duration::from_secs(5);
const COUNTER_POLL: Duration = Duration::from_millis(50);

/// A reset of the firmware, by this driver or another function.
struct FirmwareReset {
    lock: ResetLock,
    /// Time limit.
    limit: Duration,
    /// This driver began it.
    begun: bool,
}

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
                self.recoveries.succeeded(self.platform.now());
                Ok(())
            }
            Err(error) => {
                self.recoveries.failed();
                if self.owned && self.fatal.is_none() {
                    // What was begun is undone, so that a device that cannot be reset can begin again. The error is told already.
                    let _ = self.stop();
                }
                // Nothing is made before a recovery succeeds.
                self.fail(FatalCause::NotRecovered);
                Err(error)
            }
        }
    }

    /// The device came back, but not what its owner needs besides, the port say: the recovery counts as failed, and the device is as
    /// unusable as before it.
    pub fn recovery_failed(&mut self) {
        self.recoveries.withdraw();
        self.fail(FatalCause::NotRecovered);
    }

    /// Makes sure that the device has forgotten this driver's memory, is there, and that its firmware runs.
    fn reset_device(&mut self) -> Result<(), Error> {
        let mut reset = FirmwareReset { lock: ResetLock::Absent, limit: RESET_TIMEOUT, begun: false };
        if self.wants_reset() {
            reset = self.reset_firmware();
        }
        let FirmwareReset { lock, limit, begun } = reset;
        if self.fatal.is_some() {
            self.await_disabled(limit);
        }
        let firmware_was_reset = begun && self.is_disabled() && !self.wants_reset();
        lock.release(&self.platform);
        self.until_back()?;
        // If the gateway, or the function itself, was out of reach before.
        lock.release(&self.platform);
        self.confine();
        self.make_it_let_go(firmware_was_reset)?;
        self.set_owned(false);
        self.wait_for_counter()?;
        control::set_bus_master(&self.platform, true);
        Ok(())
    }

    /// Whether firmware asks for a reset.
    fn wants_reset(&self) -> bool {
        let bar = self.platform.bar();
        let HealthBuffer { reset_wanted, syndrome, .. } = HealthBuffer::read(bar);
        !is_away(bar) && reset_wanted && syndrome != HealthSyndrome::HEALTHY
    }

    /// Resets the firmware unless another function does; a virtual function leaves it to the physical one. Answers how long it may take, the
    /// crash dump included that another function may be writing first.
    fn reset_firmware(&self) -> FirmwareReset {
        let bar = self.platform.bar();
        if !self.config.physical_function {
            return FirmwareReset { lock: ResetLock::Absent, limit: OTHERS_TIMEOUT, begun: false };
        }
        let supported = bar.read32(init_seg::INITIALIZING_OFFSET) & init_seg::FW_RESET_SUPPORTED != 0;
        let lock = if supported { ResetLock::take(&self.platform) } else { ResetLock::Absent };
        let interface = NicInterface(interface_state(bar));
        let done = interface == NicInterface::DISABLED || interface == NicInterface::SW_RESET;
        let begun = matches!(lock, ResetLock::Held { .. }) && !done && !is_away(bar);
        if begun {
            let reset = u32::from(NicInterface::SW_RESET.0) << init_seg::NIC_INTERFACE_SHIFT;
            let low = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & CMDQ_ADDRESS_MASK;
            control::write32(bar, init_seg::CMDQ_ADDR_L_SZ_OFFSET, low | reset);
        }
        let alone = matches!(lock, ResetLock::Held { .. } | ResetLock::Absent);
        FirmwareReset { lock, limit: if alone { RESET_TIMEOUT } else { OTHERS_TIMEOUT }, begun }
    }

    /// Waits until firmware says that a reset is over, whoever asked for it; a device that does not get there is reset by what comes next.
    fn await_disabled(&self, limit: Duration) {
        let end = self.platform.now() + limit;
        while !self.is_disabled() && self.platform.now() < end {
            self.platform.idle((self.platform.now() + RESET_POLL).min(end));
        }
    }

    fn is_disabled(&self) -> bool {
        let bar = self.platform.bar();
        !is_away(bar) && interface_state(bar) == NicInterface::DISABLED.0
    }

    /// Waits until registers can be read, which they cannot before configuration space is as it was.
    fn until_back(&self) -> Result<(), Error> {
        let limit = self.limits.firmware_reset;
        control::restore_function(&self.platform);
        Wait { step: Step::Recovery, limit, absence: limit }.until_restored(&self.platform)
    }

    /// Makes sure that the device no longer accesses this driver's memory. That it does not know this driver's command queue, or is in the
    /// middle of a reset, is no proof; nor is what this driver itself has written to `nic_interface`.
    ///
    /// A disabled interface counts only after a firmware reset that this driver began, because the
    /// device has then changed the register itself. Otherwise the function is reset.
    fn make_it_let_go(&mut self, firmware_was_reset: bool) -> Result<(), Error> {
        // It has already, and nothing was given to it since: the recovery failed later.
        if !self.owned {
            return Ok(());
        }
        if firmware_was_reset {
            return Ok(());
        }
        self.await_firmware()?;
        if control::reset_function(&self.platform) {
            return self.until_back();
        }
        // A function without a reset gives no better sign. A function that was never enabled may
        // read so too.
        if self.enabled && self.is_disabled() && !self.wants_reset() {
            return Ok(());
        }
        if self.firmware_ends_it() {
            return Ok(());
        }
        Err(Error::NicInterface(interface_state(self.platform.bar())))
    }

    /// Waits until firmware has started, because a reset while it starts makes ENABLE_HCA hang on a
    /// ConnectX-5. Firmware that does not start in time is reset all the same.
    fn await_firmware(&self) -> Result<(), Error> {
        let (limit, absence) = (self.config.initializing_timeout, self.limits.firmware_reset);
        match (Wait { step: Step::Recovery, limit, absence }).until_initialized(&self.platform) {
            Err(Error::Timeout { .. }) => Ok(()),
            result => result,
        }
    }

    /// Where the function cannot be reset: firmware that still answers commands ends all access to memory, and says so. It reads them from
    /// memory, so that the device reaches that once more: not if any was given back because it did not.
    fn firmware_ends_it(&mut self) -> bool {
        if self.wants_reset() || self.is_disowned() || self.cmd.all_lost() || self.gave_back_foreign {
            return false;
        }
        control::set_bus_master(&self.platform, true);
        let failure = self.fatal.take();
        let limit = core::mem::replace(&mut self.limits.command, self.limits.tear_down);
        let closed = self.close(TeardownProfile::FORCE_CLOSE);
        self.limits.command = limit;
        self.fatal = failure.or(self.fatal);
        self.confine();
        let address = self.cmd.device_address();
        let ended = closed.is_ok() && disable_interface(&self.platform, address, self.limits.tear_down);
        self.enabled &= !ended;
        ended
    }

    /// Waits until the health counter moves: firmware runs.
    fn wait_for_counter(&self) -> Result<(), Error> {
        let bar = self.platform.bar();
        let began = self.platform.now();
        let mut last = None;
        loop {
            let counter = bar.read32(init_seg::HEALTH_COUNTER_OFFSET);
            if !matches!(counter, 0 | u32::MAX) && last.replace(counter).is_some_and(|last| last != counter) {
                return Ok(());
            }
            let now = self.platform.now();
            if now - began >= COUNTER_TIMEOUT {
                let waited_ms = (now - began).as_millis() as u64;
                let syndrome = health_syndrome(bar);
                return Err(Error::Timeout { step: Step::Recovery, opcode: None, waited_ms, syndrome });
            }
            self.platform.idle(now + COUNTER_POLL);
        }
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
        self.set_owned(true);
        hand_over_queue(&self.platform, self.cmd.device_address(), &mut self.limits)?;
        self.start()?;
        match self.check_health(self.platform.now()) {
            None => Ok(()),
            Some(cause) => Err(Error::Fatal(cause)),
        }
    }

    fn forget_life(&mut self) -> Result<(), Error> {
        self.life = self.life.next();
        self.host.end_epoch();
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
        (self.boot_pages, self.mtu_is_assumed) = (0, false);
        self.uar = None;
        self.blueflame = [BlueFlamePage { page: None, used: 0 }; BLUEFLAME_PAGES];
        (self.enabled, self.initialized, self.fatal, self.gave_back_foreign) = (false, false, None, false);
        self.health = Health::default();
        self.limits = Limits::new(&self.config);
        self.steps = StepTimes { began: self.platform.now(), ..StepTimes::default() };
        Ok(())
    }
}
