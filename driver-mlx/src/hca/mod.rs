//! The HCA: bring-up, tear-down, recovery, and all objects that commands create.
//!
//! An [`Hca`] checks arguments and delegates to its parts, whose fields are private to their folders:
//! `firmware` has the device and its command queue, `memory` the region, `objects` what commands
//! create, `port` the link.

mod bring_up;
mod dump;
mod firmware;
mod memory;
mod objects;
mod page_list;
mod pending;
mod port;
mod recover;
mod recoveries;
#[allow(unsafe_code)]
mod reserved;
#[allow(unsafe_code)]
mod unchecked;

pub use firmware::{DeviceState, HealthBuffer, StepTime, emergency_stop};
pub use objects::{Deregistration, MemoryRegion, MkeyState, QCounters, Registration, SrqState};
pub use pending::{Operation, Pending};
pub use port::{EthernetLink, InfiniBandLink, Link, LinkState, PortCounters, PortState, Traffic};
pub use reserved::ReservedLKey;

use crate::caps::Capabilities;
use crate::cmd::Ticket;
use crate::control;
use crate::dma::DmaBuffer;
use crate::error::{Error, FatalCause, Rejected};
use crate::event::AsyncEvent;
use crate::generation::Object;
use crate::platform::Platform;
use crate::trace::{Counters, Trace};
use crate::types::{CqNumber, Gid, Instant, PKey, Wake};
use firmware::Firmware;
use memory::Memory;
use objects::Objects;
use port::Port;
use recoveries::Recoveries;

/// One HCA, up and running.
///
/// Queues made here own what posting and polling need and do not borrow it; give them back with
/// [`Hca::destroy_qp`] and [`Hca::destroy_cq`] before [`Hca::tear_down`]. An HCA that is dropped
/// without `tear_down` stops the device, so that it accesses memory no more, and waits for that at
/// most some seconds; nothing is given back then. Bus mastering is off afterwards if the device
/// does not confirm that it has stopped ([`Platform::set_bus_master`]).
///
/// An HCA does not lend its platform, which leads to every register:
///
/// ```compile_fail,E0599
/// fn any_register<P: driver_mlx::Platform>(hca: &driver_mlx::Hca<'_, P>) -> P::Bar {
///     hca.platform().bar()
/// }
/// ```
pub struct Hca<'s, P: Platform> {
    firmware: Firmware<'s, P>,
    memory: Memory<'s>,
    objects: Objects<P::Bar>,
    port: Port,
    recoveries: Recoveries,
}

impl<P: Platform> Hca<'_, P> {
    /// The platform's monotonic clock.
    pub fn now(&self) -> Instant {
        self.firmware.now()
    }

    /// Waits for an interrupt or until `deadline`, and may return early: [`Platform::idle`].
    pub fn idle(&self, deadline: Instant) {
        self.firmware.platform().idle(deadline);
    }

    /// Returns whether processor and device see each other's writes at once: [`Platform::dma_is_coherent`].
    pub fn dma_is_coherent(&self) -> bool {
        self.firmware.platform().dma_is_coherent()
    }

    /// What the HCA can do.
    pub fn caps(&self) -> &Capabilities {
        self.firmware.caps()
    }

    /// How often things happened.
    pub fn counters(&self) -> Counters {
        Counters { leaked_bytes: self.memory.quarantined_bytes(), ..*self.firmware.log().counters() }
    }

    /// What happened last.
    pub fn trace(&self) -> &Trace<'_> {
        self.firmware.log().entries()
    }

    /// How long the steps of bring-up took, in their order.
    pub fn steps(&self) -> &[StepTime] {
        self.firmware.log().times()
    }

    /// What the device says of itself now; `None` if it does not answer.
    pub fn device_state(&self) -> Option<DeviceState> {
        DeviceState::read(self.firmware.bar())
    }

    /// The same for a device that has failed and may have been reset by others: its configuration space is restored first
    /// ([`Platform::restore_function`]), because registers cannot be read without.
    pub fn restored_device_state(&self) -> Option<DeviceState> {
        control::restore_function(self.firmware.platform());
        self.device_state()
    }

    /// Why the device can no longer be used, if so.
    pub fn fatal(&self) -> Option<FatalCause> {
        self.firmware.fatal()
    }

    /// Firmware version: major, minor, sub-minor.
    pub fn firmware_version(&self) -> (u16, u16, u16) {
        self.firmware.identity().version()
    }

    /// Name of the board (PSID): text padded with zeros.
    pub fn psid(&self) -> &[u8; 16] {
        self.firmware.identity().psid()
    }

    /// Pages of 4 KiB that firmware holds.
    pub fn firmware_pages(&self) -> u32 {
        self.memory.firmware_pages()
    }

    /// Bytes left in the region, in one piece or many.
    pub fn free_bytes(&self) -> usize {
        self.memory.free_bytes()
    }

    /// Takes `len` bytes, zeroed, from the region. They begin at a multiple of `align` (a power of two) as the device counts,
    /// and of 4096 in any case; what is taken is rounded up to a power of two.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::InvalidArgument`] if `align` is no power of two or the region itself is less aligned.
    pub fn alloc(&mut self, len: usize, align: usize) -> Result<DmaBuffer, Error> {
        self.memory.alloc(self.firmware.usable()?, len, align)
    }

    /// Gives back what [`Hca::alloc`] gave.
    ///
    /// # Errors
    /// [`Error::InUse`] while a memory key leads to it, [`Error::NotAllocated`] for a buffer of another HCA; the buffer comes back.
    pub fn free(&mut self, buffer: DmaBuffer) -> Result<(), Rejected<DmaBuffer>> {
        self.memory.free(buffer)
    }

    /// Looks whether a command has been answered: `Ok(true)` with the output in `out`, `Ok(false)` if not yet.
    ///
    /// # Errors
    /// [`Error::Command`] if firmware refused, [`Error::Timeout`] when the limit has passed (the slot comes back when the device answers after all),
    /// [`Error::BadTicket`].
    pub fn poll_command(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<bool, Error> {
        self.firmware.poll_command(&mut self.memory, ticket, out)
    }

    /// Takes asynchronous events, answers page requests, and polls the device's health when it is due.
    /// Returns the time of the next call. A device that has failed is polled until its bus mastering
    /// reads as off.
    pub fn poll(&mut self, now: Instant) -> Wake {
        self.firmware.poll(&mut self.memory, now)
    }

    /// The oldest event not yet taken.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        self.firmware.log_mut().next_event()
    }

    /// Takes completion events and names the CQ of each: it has completions, and [`Cq::notified`](crate::Cq::notified) is
    /// due. The number is the device's claim. Gives how many there were; the most in one call is the size of the queues.
    pub fn poll_completions(&mut self, notify: impl FnMut(CqNumber)) -> u32 {
        let (taken, bad) = self.objects.poll_completions(self.firmware.bar(), notify);
        self.firmware.log_mut().count_completions(taken, bad);
        taken
    }

    /// Arms all event queues: the next event raises an interrupt, at once if there is one already.
    pub fn arm_events(&mut self) {
        self.firmware.arm_async();
        self.objects.arm_completions(self.firmware.bar());
    }

    /// Checks now whether the device has failed, and returns the cause. Does not count as a health
    /// poll.
    pub fn check_health(&mut self, now: Instant) -> Option<FatalCause> {
        self.firmware.check_sensors(now);
        self.firmware.fatal()
    }

    /// Returns the state of port 1.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn port(&mut self) -> Result<PortState, Error> {
        self.port.state(&mut self.firmware, &mut self.memory)
    }

    /// An entry of port 1's GID table. On Ethernet it holds the addresses of
    /// [`Hca::add_roce_address`]; unused entries are zero.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Limit`] beyond the table.
    pub fn gid(&mut self, index: u16) -> Result<Gid, Error> {
        port::gid(&self.port, &mut self.firmware, &mut self.memory, index)
    }

    /// An entry of port 1's P_Key table. On Ethernet it has one, 0xffff.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Limit`] beyond the table.
    pub fn pkey(&mut self, index: u16) -> Result<PKey, Error> {
        port::pkey(&mut self.firmware, &mut self.memory, index)
    }

    /// Reads port 1's P_Key table into `keys`, as far as there is room, and returns the number of
    /// entries. Empty ones are 0.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn pkeys(&mut self, keys: &mut [PKey]) -> Result<usize, Error> {
        port::pkeys(&mut self.firmware, &mut self.memory, keys)
    }

    /// Issues a command and waits for its answer.
    fn exec(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), Error> {
        self.firmware.exec(&mut self.memory, input, out)
    }

    /// Issues the command that destroys `object`: [`Firmware::destroy`].
    fn destroy(&mut self, object: &impl Object, input: &[u8], out: &mut [u8]) -> Result<(), Error> {
        self.firmware.destroy(&mut self.memory, object, input, out)
    }
}
