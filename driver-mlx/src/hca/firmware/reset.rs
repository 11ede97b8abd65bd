//! Reset of a device that has failed, in the order of Linux's mlx5.

use super::device_state::{CMDQ_ADDRESS_MASK, HealthBuffer, health_syndrome, interface_state, is_away};
use super::health::Health;
use super::limits::Limits;
use super::reset_lock::ResetLock;
use super::segment::InitialSegment;
use super::stop::disable_interface;
use super::wait::{Wait, hand_over_queue};
use super::{Firmware, Identity, Memory};
use crate::config::Config;
use crate::control;
use crate::error::{Error, Step};
use crate::platform::{Bar, Platform};
use crate::types::Duration;
use mlx5_prm::init_seg;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::{NicInterface, TeardownProfile};

/// Interval between looks at `nic_interface` while firmware is being reset, and how long that may take.
const RESET_POLL: Duration = Duration::from_millis(20);
const RESET_TIMEOUT: Duration = Duration::from_secs(2);
/// The same if another function has the semaphore: it may be writing down the card's state first.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the health counter to move, and the interval between looks.
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

impl<P: Platform> Firmware<'_, P> {
    /// Returns whether a recovery that failed got so far that tear-down can undo it.
    pub(in crate::hca) fn can_be_stopped(&self) -> bool {
        self.attached && self.fatal.is_none()
    }

    /// Makes sure that the device has forgotten this driver's memory, is there, and that its firmware runs.
    pub(in crate::hca) fn reset_device(&mut self, memory: &mut Memory<'_>) -> Result<(), Error> {
        let mut reset = FirmwareReset { lock: ResetLock::Absent, limit: RESET_TIMEOUT, begun: false };
        if self.reset().wants_reset() {
            reset = self.reset().reset_firmware();
        }
        let FirmwareReset { lock, limit, begun } = reset;
        if self.fatal.is_some() {
            self.reset().await_disabled(limit);
        }
        let firmware_was_reset = begun && self.reset().is_disabled() && !self.reset().wants_reset();
        lock.release(&self.platform);
        self.reset().wait_pci_up()?;
        // If the gateway, or the function itself, was out of reach before.
        lock.release(&self.platform);
        self.bus_master_off();
        self.quiesce(memory, firmware_was_reset)?;
        self.set_attached(false);
        self.reset().wait_for_counter()?;
        control::set_bus_master(&self.platform, true);
        Ok(())
    }

    /// Makes sure that the device no longer accesses this driver's memory. Another command queue in the
    /// register is no proof, nor is a reset under way, nor a `nic_interface` that this driver wrote.
    ///
    /// A disabled interface counts only after a firmware reset that this driver began, because the
    /// device has then changed the register itself. Otherwise the function is reset.
    fn quiesce(&mut self, memory: &mut Memory<'_>, firmware_was_reset: bool) -> Result<(), Error> {
        // An earlier attempt got this far, and the device has got no memory since.
        if !self.attached {
            return Ok(());
        }
        if firmware_was_reset {
            return Ok(());
        }
        self.reset().await_firmware()?;
        if control::reset_function(&self.platform) {
            return self.reset().wait_pci_up();
        }
        // A function without a reset gives no better sign. A function that was never enabled may
        // read so too.
        if self.enabled && self.reset().is_disabled() && !self.reset().wants_reset() {
            return Ok(());
        }
        if self.force_teardown(memory) {
            return Ok(());
        }
        Err(Error::NicInterface(interface_state(self.platform.bar())))
    }

    /// Ends all access to memory by TEARDOWN_HCA, for a function without a reset. Returns whether
    /// firmware confirmed it. Commands need bus mastering, which is not switched on again if foreign
    /// memory was unmapped because it was off.
    fn force_teardown(&mut self, memory: &mut Memory<'_>) -> bool {
        if self.reset().wants_reset() || self.is_disowned() || self.cmd.all_lost() || self.gave_back_foreign {
            return false;
        }
        control::set_bus_master(&self.platform, true);
        let failure = self.fatal.take();
        let limits = self.limits;
        self.limits.shorten_commands();
        let closed = self.close(memory, TeardownProfile::FORCE_CLOSE);
        self.limits = limits;
        self.fatal = failure.or(self.fatal);
        self.bus_master_off();
        let address = self.cmd.device_address();
        let ended = closed.is_ok() && disable_interface(&self.platform, address, self.limits.tear_down());
        self.enabled &= !ended;
        ended
    }

    fn reset(&self) -> Reset<'_, P> {
        Reset { platform: &self.platform, config: &self.config, limits: &self.limits }
    }

    /// Forgets commands and failure of a device that was reset.
    pub(in crate::hca) fn begin_generation(&mut self, memory: &mut Memory<'_>) -> Result<(), Error> {
        self.generation = self.generation.next();
        while let Some(mailboxes) = self.cmd.take_lent() {
            memory.release(mailboxes)?;
        }
        memory.set_reserve(self.config.firmware_reserve, 0);
        (self.enabled, self.initialized, self.fatal, self.gave_back_foreign) = (false, false, None, false);
        self.health = Health::default();
        self.limits = Limits::new(&self.config);
        self.log.restart(self.platform.now());
        Ok(())
    }

    /// Waits until the firmware of a device that was reset has started, and hands it the command
    /// queue.
    pub(in crate::hca) fn reattach(&mut self) -> Result<(), Error> {
        let config = Config { recovery: true, ..self.config };
        let segment = InitialSegment::wait(&self.platform, &config, &self.limits, &mut self.log)?;
        let InitialSegment { version, embedded_cpu, log_size, log_stride } = segment;
        if !self.cmd.restart(log_size, log_stride)? {
            return Err(Error::CommandQueue { log_size: log_size as u8, log_stride: log_stride as u8 });
        }
        self.identity = Identity { version, embedded_cpu, issi: 0, ..self.identity };
        self.set_attached(true);
        hand_over_queue(&self.platform, self.cmd.device_address(), &mut self.limits)
    }
}

/// Reset of a device, by its registers alone.
struct Reset<'a, P> {
    platform: &'a P,
    config: &'a Config,
    limits: &'a Limits,
}

impl<P: Platform> Reset<'_, P> {
    /// Returns whether the health buffer requests a reset.
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
        let lock = if supported { ResetLock::take(self.platform) } else { ResetLock::Absent };
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

    /// Waits until `nic_interface` shows the end of a firmware reset. A device that does not get there
    /// is reset as a function next.
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
    fn wait_pci_up(&self) -> Result<(), Error> {
        let limit = self.limits.firmware_reset();
        control::restore_function(self.platform);
        Wait::new(Step::Recovery, limit, limit).until_restored(self.platform)
    }

    /// Waits until firmware has started, because a reset while it starts makes ENABLE_HCA hang on a
    /// ConnectX-5. Firmware that does not start in time is reset all the same.
    fn await_firmware(&self) -> Result<(), Error> {
        let (limit, absence) = (self.config.initializing_timeout, self.limits.firmware_reset());
        match Wait::new(Step::Recovery, limit, absence).until_initialized(self.platform) {
            Err(Error::Timeout { .. }) => Ok(()),
            result => result,
        }
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
}
