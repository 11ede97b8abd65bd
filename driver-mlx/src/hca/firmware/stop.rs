//! The ways down: the orderly one, and the quick one of an HCA that is dropped.

use super::device_state::{CMDQ_ADDRESS_MASK, interface_state, is_away};
use super::{Firmware, Memory};
use crate::cmd::input;
use crate::control;
use crate::error::{Error, Step};
use crate::platform::{Bar, Platform};
use crate::types::Duration;
use mlx5_prm::commands::*;
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{NicInterface, TeardownProfile};

/// Distance of looks at `nic_interface`.
const POLL: Duration = Duration::from_millis(1);

impl<P: Platform> Firmware<'_, P> {
    /// Begins a step outside of bring-up.
    pub(in crate::hca) fn set_step(&mut self, step: Step) {
        self.log.set_step(self.platform.now(), step);
    }

    /// Undoes [`Firmware::start`], after objects and event queues are gone.
    pub(in crate::hca) fn stop(&mut self, memory: &mut Memory<'_>) -> Result<(), Error> {
        let mut result = Ok(());
        if self.initialized {
            let closed = self.close(memory, TeardownProfile::GRACEFUL_CLOSE);
            self.initialized = closed.is_err();
            result = result.and(closed);
        }
        if self.enabled && !self.initialized {
            result = result.and(self.pages(memory).reclaim());
            let mut disable = input::<{ disable_hca_in::SIZE }>(Opcode::DISABLE_HCA, 0);
            disable_hca_in::embedded_cpu_function.set(&mut disable, self.identity.embedded_cpu);
            // `nic_interface` may read 1 before the completion is in memory. That is no failure.
            self.enabled = false;
            let disabled = self.exec(memory, &disable, &mut [0; 16]);
            self.enabled = disabled.is_err();
            result = result.and(disabled);
        }
        result
    }

    /// Records that the device no longer accesses the region, unless an earlier step of tear-down
    /// failed or a command was never answered.
    pub(in crate::hca) fn detach(&mut self, memory: &mut Memory<'_>, stopped: &Result<(), Error>) {
        let lost = self.cmd.has_lost();
        if lost {
            self.cmd.memory().into_iter().for_each(|lost| memory.count_quarantined(lost));
        }
        self.set_attached(stopped.is_err() || lost);
    }

    /// Switches bus mastering off. Returns whether it reads back so, which keeps the device from
    /// memory beyond doubt.
    pub(in crate::hca) fn bus_master_off(&self) -> bool {
        control::set_bus_master(&self.platform, false)
    }

    /// Notes that foreign memory is unmapped; a device that has failed is not led to memory again
    /// before its reset.
    pub(in crate::hca) fn unmap(&mut self, device_address: u64, len: usize, current: bool) {
        self.gave_back_foreign |= current && self.fatal.is_some();
        control::unmap(&self.platform, device_address, len);
    }

    /// Stops a device whose HCA is dropped. `region_in_use` stays set, because an interface that
    /// reads as disabled is no proof.
    pub(in crate::hca) fn abandon(&mut self, memory: &mut Memory<'_>) {
        if core::mem::take(&mut self.attached) {
            self.halt(memory);
        }
    }

    /// TEARDOWN_HCA.
    pub(super) fn close(&mut self, memory: &mut Memory<'_>, profile: TeardownProfile) -> Result<(), Error> {
        let mut close = input::<{ teardown_hca_in::SIZE }>(Opcode::TEARDOWN_HCA, 0);
        teardown_hca_in::profile.set(&mut close, profile.0);
        let mut out = [0; teardown_hca_out::SIZE];
        self.exec(memory, &close, &mut out)?;
        // For the quick profiles: 0 is "done", 1 "failed".
        match teardown_hca_out::state.get32(&out) {
            0 => Ok(()),
            state => Err(Error::BadAnswer { step: Step::TearDown, field: "state", value: state.into() }),
        }
    }

    /// Ends the device's DMA, whatever objects there are: fast teardown if it knows that, forced if not, and in any case the interface is
    /// disabled, which takes the command queue away. As Linux does before a reboot, in that order.
    fn halt(&mut self, memory: &mut Memory<'_>) {
        // After a reset, or off the bus, the function has no address of this driver's memory. A
        // register that never read back is no sign of that.
        if self.is_disowned() {
            return;
        }
        let address = self.cmd.device_address();
        self.set_step(Step::TearDown);
        self.limits.shorten_commands();
        if self.initialized {
            let fast =
                self.caps.fast_teardown && self.close(memory, TeardownProfile::PREPARE_FAST_TEARDOWN).is_ok();
            if !fast {
                // There is nobody to tell if this fails too, and disabling the interface is all that is left then.
                let _ = self.close(memory, TeardownProfile::FORCE_CLOSE);
            }
        }
        if !disable_interface(&self.platform, address, self.limits.tear_down()) {
            self.bus_master_off();
        }
    }
}

/// Requests that an HCA end its DMA, for a panic handler: writes one register, whatever state the
/// driver is in. Neither waits nor allocates nor takes a lock. A driver can bring the device up
/// again.
///
/// This is best effort. Linux writes `nic_interface` 1 only after TEARDOWN_HCA has prepared firmware
/// for it, and how soon a device without that preparation stops is not documented. Clearing the
/// bus master bit of the command register in configuration space is the sure way: do that as well
/// wherever configuration space is within reach.
pub fn emergency_stop(bar: impl Bar) {
    write_disabled(bar, bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET));
}

/// Tells firmware that nobody uses the function any more; `queue` is the lower half of the command queue's address.
fn write_disabled(bar: impl Bar, queue: u32) {
    let disabled = u32::from(NicInterface::DISABLED.0) << init_seg::NIC_INTERFACE_SHIFT;
    control::write32(bar, init_seg::CMDQ_ADDR_L_SZ_OFFSET, queue & CMDQ_ADDRESS_MASK | disabled);
}

/// Disables the interface, which takes the command queue away: the device then accesses no memory. Answers whether the register reads so
/// in time, which is no proof by itself: it may only be what was written.
pub(super) fn disable_interface<P: Platform>(platform: &P, queue: u64, limit: Duration) -> bool {
    let bar = platform.bar();
    write_disabled(bar, queue as u32);
    let end = platform.now() + limit;
    loop {
        let now = platform.now();
        let done = interface_state(bar) == NicInterface::DISABLED.0;
        if is_away(bar) || done || now >= end {
            return done;
        }
        platform.idle(now + POLL);
    }
}
