//! Health poll: registers that show a failure, and a probe of firmware whose counter stands.

use super::device_state::{CMDQ_ADDRESS_MASK, HealthBuffer, interface_state, is_away};
use super::{Firmware, Memory};
use crate::cmd::{Tail, Ticket, User, input};
use crate::error::{Error, FatalCause, HealthWarning};
use crate::event::AsyncEvent;
use crate::platform::{Bar, Platform};
use crate::trace::TraceKind;
use crate::types::{Instant, Wake};
use mlx5_prm::commands::{query_issi_in, query_issi_out};
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::NicInterface;

/// Equal readings of the health counter, after the first, that are reported.
const EQUAL_READINGS: u32 = 3;

/// State of the health poll.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    counter: Option<u32>,
    equal: u32,
    /// A command that probes firmware whose counter stands.
    probe: Option<Ticket>,
    /// The register of the command queue's address reads as it was written.
    names_owner: bool,
    /// The syndrome that was reported last.
    syndrome: Option<HealthSyndrome>,
    /// When to look next; never at a device that has failed, and whose bus mastering reads as off.
    next: Instant,
}

impl<P: Platform> Firmware<'_, P> {
    /// As [`Hca::poll`](crate::Hca::poll).
    #[inline]
    pub(in crate::hca) fn poll(&mut self, memory: &mut Memory<'_>, now: Instant) -> Wake {
        self.drain_async(memory, now);
        self.poll_health(memory, now);
        Wake::by(self.health.next)
    }

    pub(super) fn set_fatal(&mut self, now: Instant, cause: FatalCause) {
        if self.fatal.is_none() {
            self.fail(cause);
            self.log.trace(now, TraceKind::Health(cause));
            self.log.push_event(AsyncEvent::Fatal(cause));
        }
    }

    /// The device counts as failed. Its queues may outlive its firmware: before anybody learns of it, and uses buffers again, it is kept
    /// from memory.
    pub(in crate::hca) fn fail(&mut self, cause: FatalCause) {
        self.fatal.get_or_insert(cause);
        self.end_health_poll();
    }

    /// Stops looking at a device that has failed, if its bus mastering reads as off.
    fn end_health_poll(&mut self) {
        if self.bus_master_off() {
            self.health.next = Instant::MAX;
        }
    }

    /// The health poll, if it is time.
    #[inline]
    pub(super) fn poll_health(&mut self, memory: &mut Memory<'_>, now: Instant) {
        if now >= self.health.next {
            self.check_health(memory, now);
        }
    }

    // Not inlined, so that every other poll stays short.
    #[inline(never)]
    fn check_health(&mut self, memory: &mut Memory<'_>, now: Instant) {
        self.health.next = now + self.limits.health_interval();
        if self.fatal.is_some() {
            // Configuration space may have been out of reach at the failure.
            self.end_health_poll();
            return;
        }
        self.log.counters_mut().health_polls += 1;
        self.check_sensors(now);
        if self.fatal.is_none() && self.enabled {
            self.check_warnings(memory, now);
        }
    }

    /// Checks the fatal sensors of Linux's mlx5, in its order, because a device that is gone reads as
    /// all ones everywhere.
    pub(in crate::hca) fn check_sensors(&mut self, now: Instant) {
        let bar = self.platform.bar();
        if self.fatal.is_some() {
            return;
        }
        if is_away(bar) {
            return self.set_fatal(now, FatalCause::LinkDead);
        }
        // Before ENABLE_HCA the function may be disabled, and the buffer may be from before a reset.
        if !self.enabled {
            return;
        }
        let interface = interface_state(bar);
        if interface == NicInterface::DISABLED.0 || interface == NicInterface::SW_RESET.0 {
            return self.set_fatal(now, FatalCause::Interface(interface));
        }
        let HealthBuffer { reset_wanted, syndrome, ext_syndrome, .. } = HealthBuffer::read(bar);
        if reset_wanted && syndrome != HealthSyndrome::HEALTHY {
            return self.set_fatal(now, FatalCause::Syndrome { syndrome, extended: ext_syndrome });
        }
        if self.is_disowned() {
            self.set_fatal(now, FatalCause::Forgotten);
        }
    }

    /// Begins to watch a device that this driver has enabled. Registers that show the driver's queue
    /// show a function-level reset too.
    pub(super) fn begin_health_poll(&mut self) {
        self.health.next = self.platform.now() + self.limits.health_interval();
        self.health.names_owner = shows_queue(self.platform.bar(), self.cmd.device_address());
    }

    /// Reports conditions that need no reset: a syndrome that another function may have caused, and a
    /// counter that stands.
    fn check_warnings(&mut self, memory: &mut Memory<'_>, now: Instant) {
        let bar = self.platform.bar();
        let HealthBuffer { syndrome, ext_syndrome, .. } = HealthBuffer::read(bar);
        let ill = (syndrome != HealthSyndrome::HEALTHY).then_some(syndrome);
        if ill != self.health.syndrome {
            self.health.syndrome = ill;
            if let Some(syndrome) = ill {
                self.log.warn(now, HealthWarning::Syndrome { syndrome, extended: ext_syndrome });
            }
        }
        let counter = bar.read32(init_seg::HEALTH_COUNTER_OFFSET) & 0xff_ffff;
        if self.health.counter.replace(counter) != Some(counter) {
            self.health.equal = 0;
        } else {
            self.health.equal = self.health.equal.saturating_add(1);
            if self.health.equal == EQUAL_READINGS {
                self.log.warn(now, HealthWarning::CounterStands);
            }
        }
        self.probe(memory, now, self.health.equal >= EQUAL_READINGS);
    }

    /// Returns whether the device shows another command queue after it has shown this driver's.
    pub(super) fn is_disowned(&self) -> bool {
        self.health.names_owner && !shows_queue(self.platform.bar(), self.cmd.device_address())
    }

    /// Firmware whose counter stands may run all the same; if it does not answer a command either, the device has failed.
    fn probe(&mut self, memory: &mut Memory<'_>, now: Instant, stands: bool) {
        let Some(ticket) = self.health.probe else {
            if stands {
                let query = input::<{ query_issi_in::SIZE }>(Opcode::QUERY_ISSI, 0);
                // Without a free slot, the commands in flight time out just as late.
                self.health.probe =
                    self.issue(memory, &query, Tail::NONE, query_issi_out::SIZE, User::Waiter).ok();
            }
            return;
        };
        match self.poll_command(memory, ticket, &mut [0; query_issi_out::SIZE]) {
            Ok(false) => {}
            Err(Error::Timeout { .. }) if stands => self.set_fatal(now, FatalCause::Hung),
            _ => self.health.probe = None,
        }
    }
}

/// Returns whether the register of the command queue's address reads as `address`.
fn shows_queue(bar: impl Bar, address: u64) -> bool {
    let low = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & CMDQ_ADDRESS_MASK;
    u64::from(bar.read32(init_seg::CMDQ_ADDR_H_OFFSET)) << 32 | u64::from(low) == address
}
