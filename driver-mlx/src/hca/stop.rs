//! The ways down: the orderly one, and the quick one of an HCA that is dropped.

use super::Hca;
use super::device_state::{CMDQ_ADDRESS_MASK, interface_state, is_away};
use super::exec::input;
use crate::control;
use crate::eq::Eq;
use crate::error::{Error, Step};
use crate::platform::{Bar, Platform};
use crate::trace::TraceKind;
use crate::types::Duration;
use mlx5_prm::commands::*;
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::{NicInterface, TeardownProfile};

/// Distance of looks at `nic_interface`.
const POLL: Duration = Duration::from_millis(1);

impl<P: Platform> Hca<'_, P> {
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
        self.step = Step::TearDown;
        self.trace.push(self.platform.now(), TraceKind::Step(Step::TearDown));
        let mut result = Ok(());
        for slot in 0..self.completion_eqs.len() {
            if let Some(eq) = self.completion_eqs.get_mut(slot).and_then(Option::take) {
                result = result.and(self.destroy_eq(&eq));
            }
        }
        // Page requests are lost without the queue, but nothing from here on makes firmware need pages.
        if let Some(eq) = self.async_eq.take() {
            result = result.and(self.destroy_eq(&eq));
        }
        for index in 0..self.blueflame.len() {
            if let Some((page, _)) = self.blueflame.get_mut(index).and_then(|entry| entry.page.take()) {
                result = result.and(self.dealloc_uar(page));
            }
        }
        if let Some(page) = self.uar.take() {
            result = result.and(self.dealloc_uar(page));
        }
        if self.initialized {
            let closed = self.close(TeardownProfile::GRACEFUL_CLOSE);
            self.initialized = closed.is_err();
            result = result.and(closed);
        }
        if self.enabled && !self.initialized {
            result = result.and(self.reclaim_pages());
            let mut disable = input::<{ disable_hca_in::SIZE }>(Opcode::DISABLE_HCA, 0);
            disable_hca_in::embedded_cpu_function.set(&mut disable, self.embedded_cpu);
            // `nic_interface` may read 1 before the completion is in memory. That is no failure.
            self.enabled = false;
            let disabled = self.exec(&disable, &mut [0; 16]);
            self.enabled = disabled.is_err();
            result = result.and(disabled);
        }
        if self.cmd.has_lost() {
            let [page, mailboxes] = self.cmd.memory();
            self.leak(page);
            self.leak(mailboxes);
        }
        // A command that was never answered, or anything that still is: the device has not let go of the memory.
        self.set_owned(result.is_err() || self.cmd.has_lost());
        result
    }

    /// The device has this driver's command queue and memory from now on, or has let go of both.
    pub(super) fn set_owned(&mut self, owned: bool) {
        self.owned = owned;
        *self.region_in_use = owned;
    }

    fn destroy_eq(&mut self, eq: &Eq) -> Result<(), Error> {
        let mut destroy = input::<{ destroy_eq_in::SIZE }>(Opcode::DESTROY_EQ, 0);
        destroy_eq_in::eq_number.set(&mut destroy, eq.number().get());
        let result = self.exec(&destroy, &mut [0; destroy_eq_out::SIZE]);
        self.free_unless(&result, eq.memory);
        result
    }

    /// Keeps a device that has failed from memory, and answers whether that is beyond doubt: bus mastering is off.
    pub(super) fn confine(&self) -> bool {
        control::set_bus_master(&self.platform, false)
    }

    /// TEARDOWN_HCA.
    pub(super) fn close(&mut self, profile: TeardownProfile) -> Result<(), Error> {
        let mut close = input::<{ teardown_hca_in::SIZE }>(Opcode::TEARDOWN_HCA, 0);
        teardown_hca_in::profile.set(&mut close, profile.0);
        let mut out = [0; teardown_hca_out::SIZE];
        self.exec(&close, &mut out)?;
        // For the quick profiles: 0 is "done", 1 "failed".
        match teardown_hca_out::state.get32(&out) {
            0 => Ok(()),
            state => Err(Error::BadAnswer { step: Step::TearDown, field: "state", value: state.into() }),
        }
    }

    /// Whether the device has this driver's command queue.
    pub(super) fn is_owner(&self) -> bool {
        let bar = self.platform.bar();
        let low = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & CMDQ_ADDRESS_MASK;
        let known = u64::from(bar.read32(init_seg::CMDQ_ADDR_H_OFFSET)) << 32 | u64::from(low);
        known == self.cmd.device_address()
    }

    /// Returns whether the device shows another command queue after it has shown this driver's.
    pub(super) fn is_disowned(&self) -> bool {
        self.health.names_owner && !self.is_owner()
    }

    /// Ends the device's DMA, whatever objects there are: fast teardown if it knows that, forced if not, and in any case the interface is
    /// disabled, which takes the command queue away. As Linux does before a reboot, in that order.
    fn halt(&mut self) {
        // After a reset, or off the bus, the function has no address of this driver's memory. A
        // register that never read back is no sign of that.
        if self.is_disowned() {
            return;
        }
        let address = self.cmd.device_address();
        self.step = Step::TearDown;
        self.limits.command = self.limits.command.min(self.limits.tear_down);
        if self.initialized {
            let fast = self.caps.fast_teardown && self.close(TeardownProfile::PREPARE_FAST_TEARDOWN).is_ok();
            if !fast {
                // There is nobody to tell if this fails too, and disabling the interface is all that is left then.
                let _ = self.close(TeardownProfile::FORCE_CLOSE);
            }
        }
        if !disable_interface(&self.platform, address, self.limits.tear_down) {
            self.confine();
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

impl<P: Platform> Drop for Hca<'_, P> {
    fn drop(&mut self) {
        // The next HCA may have queues of the same numbers.
        self.host.end_epoch();
        if self.owned {
            // `region_in_use` stays set: that the interface reads as disabled is no proof.
            self.owned = false;
            self.halt();
        }
    }
}
