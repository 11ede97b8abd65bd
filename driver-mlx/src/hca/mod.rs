//! The HCA: bring-up, tear-down, and everything made, asked and destroyed by commands.

mod access;
mod bring_up;
mod buffers;
mod counters;
mod device_state;
mod event_room;
mod exec;
mod function;
mod health;
mod limits;
mod memory;
mod multicast;
mod pages;
mod port;
mod probe;
mod queue;
mod queue_pair;
mod record_pages;
mod records;
mod recover;
mod recoveries;
#[allow(unsafe_code)]
mod reserved;
mod reset_lock;
mod resize;
mod shared_queue;
mod stop;
#[allow(unsafe_code)]
mod unchecked;
mod wait;

pub use counters::{PortCounters, QCounters, Traffic};
pub use device_state::{DeviceState, HealthBuffer};
pub use memory::{MemoryRegion, MkeyState};
pub use port::{LinkState, PortState};
pub use reserved::ReservedLKey;
pub use shared_queue::SrqState;
pub use stop::emergency_stop;

use crate::buddy::{self, BLOCK, Buddy};
use crate::caps::Capabilities;
use crate::cmd::CommandQueue;
use crate::config::{Config, MAX_COMPLETION_EQS};
use crate::control;
use crate::dma::DmaMemory;
use crate::eq::Eq;
use crate::error::{Error, FatalCause, Step};
use crate::event::AsyncEvent;
use crate::host::HostMemory;
use crate::life::{Life, Made, Object};
use crate::platform::Platform;
use crate::trace::{Counters, Trace};
use crate::types::{Duration, Instant, LKey, UarPage};

/// One HCA, up and running.
///
/// Queues made here own what posting and polling need and do not borrow it; give them back with
/// [`Hca::destroy_qp`] and [`Hca::destroy_cq`] before [`Hca::tear_down`]. An HCA that is dropped
/// without `tear_down` stops the device, so that it accesses memory no more, and waits for that at
/// most some seconds; nothing is given back then. Bus mastering is off afterwards if the device
/// does not confirm that it has stopped ([`Platform::set_bus_master`]).
pub struct Hca<'s, P: Platform> {
    platform: P,
    config: Config,
    region: DmaMemory,
    buddy: Buddy<'s>,
    /// For the first block of each buffer, 1 + the memory keys that lead to it; 0 for all other blocks.
    users: &'s mut [u16],
    host: HostMemory,
    records: record_pages::Records,
    cmd: CommandQueue,
    events: EventRing<'s>,
    trace: Trace<'s>,
    counters: Counters,
    caps: Capabilities,
    step: Step,
    steps: StepTimes,
    fatal: Option<FatalCause>,
    /// The device's present life: what was made in an earlier one is gone.
    life: Life,
    recoveries: recoveries::Recoveries,
    health: health::Health,
    limits: limits::Limits,
    firmware_pages: u32,
    /// `firmware_pages` at the end of bring-up; 0 before.
    boot_pages: u32,
    /// The number by which firmware knows this function where pages are concerned.
    own_pages: function::Function,
    /// This side is a BlueField's own processor.
    embedded_cpu: bool,
    /// The key that ends a scatter list.
    terminator: LKey,
    firmware_version: (u16, u16, u16),
    psid: [u8; 16],
    /// The interface step sequence agreed on.
    issi: u8,
    /// The device was told where the command queue is, and has not let go of the memory since.
    owned: bool,
    /// The same, in storage that survives this value.
    region_in_use: &'s mut bool,
    /// How far bring-up got, so that tear-down undoes that much.
    enabled: bool,
    initialized: bool,
    /// Foreign memory went back to its owner because a device that has failed could not reach it.
    gave_back_foreign: bool,
    /// The trace reports that the link's MTU is assumed.
    mtu_is_assumed: bool,
    /// Atomics count as this side does.
    atomics: bool,
    /// Control page: arming, event queues, plain doorbells.
    uar: Option<UarPage>,
    blueflame: [BlueFlamePage<P::Bar>; BLUEFLAME_PAGES],
    /// The platform has refused to map a UAR page write-combining.
    no_write_combining: bool,
    async_eq: Option<Eq>,
    completion_eqs: [Option<Eq>; MAX_COMPLETION_EQS as usize],
    reserved_lkey: LKey,
    /// Variants of keys: the last one, and what the next are drawn from.
    last_variant: u8,
    variants: u64,
    /// Events that the objects made may send.
    expected_events: u32,
}

/// UAR pages for BlueFlame; each holds four registers.
const BLUEFLAME_PAGES: usize = 16;

/// A UAR page whose registers belong to one QP each, and its write-combining view.
#[derive(Clone, Copy, Debug)]
struct BlueFlamePage<B> {
    page: Option<(UarPage, B)>,
    used: u8,
}

/// How long a step of bring-up took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StepTime {
    /// Which.
    pub step: Step,
    /// For how long.
    pub took: Duration,
}

/// Steps in the order they were taken.
#[derive(Debug, Default)]
struct StepTimes {
    times: [StepTime; 20],
    len: usize,
    began: Instant,
}

/// Asynchronous events until somebody takes them.
struct EventRing<'s> {
    slots: &'s mut [AsyncEvent],
    first: usize,
    len: usize,
}

impl EventRing<'_> {
    fn push(&mut self, event: AsyncEvent) -> bool {
        if self.len >= self.slots.len() {
            return false;
        }
        let index = self.first + self.len;
        let index = if index >= self.slots.len() { index - self.slots.len() } else { index };
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = event;
            self.len += 1;
        }
        true
    }

    fn pop(&mut self) -> Option<AsyncEvent> {
        if self.len == 0 {
            return None;
        }
        let event = self.slots.get(self.first).copied();
        self.first = if self.first + 1 >= self.slots.len() { 0 } else { self.first + 1 };
        self.len -= 1;
        event
    }
}

/// An HCA does not lend its platform, which leads to every register:
///
/// ```compile_fail,E0599
/// fn any_register<P: driver_mlx::Platform>(hca: &driver_mlx::Hca<'_, P>) -> P::Bar {
///     hca.platform().bar()
/// }
/// ```
impl<P: Platform> Hca<'_, P> {
    /// The platform's monotonic clock.
    pub fn now(&self) -> Instant {
        self.platform.now()
    }

    /// Waits for an interrupt or until `deadline`, and may return early: [`Platform::idle`].
    pub fn idle(&self, deadline: Instant) {
        self.platform.idle(deadline);
    }

    /// Returns whether processor and device see each other's writes at once: [`Platform::dma_is_coherent`].
    pub fn dma_is_coherent(&self) -> bool {
        self.platform.dma_is_coherent()
    }

    /// What the HCA can do.
    pub fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// How often things happened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What happened last.
    pub fn trace(&self) -> &Trace<'_> {
        &self.trace
    }

    /// How long the steps of bring-up took, in their order.
    pub fn steps(&self) -> &[StepTime] {
        self.steps.times.get(..self.steps.len).unwrap_or(&[])
    }

    /// What the device says of itself now; `None` if it does not answer.
    pub fn device_state(&self) -> Option<DeviceState> {
        DeviceState::read(self.platform.bar())
    }

    /// The same for a device that has failed and may have been reset by others: its configuration space is restored first
    /// ([`Platform::restore_function`]), because registers cannot be read without.
    pub fn restored_device_state(&self) -> Option<DeviceState> {
        control::restore_function(&self.platform);
        self.device_state()
    }

    /// Why the device can no longer be used, if so.
    pub fn fatal(&self) -> Option<FatalCause> {
        self.fatal
    }

    /// Firmware version: major, minor, sub-minor.
    pub fn firmware_version(&self) -> (u16, u16, u16) {
        self.firmware_version
    }

    /// Name of the board (PSID): text padded with zeros.
    pub fn psid(&self) -> &[u8; 16] {
        &self.psid
    }

    /// Pages of 4 KiB that firmware holds.
    pub fn firmware_pages(&self) -> u32 {
        self.firmware_pages
    }

    /// What the device calls an object, for a command: the one place that tells whether it still does.
    fn named<O: Object>(&self, object: &O) -> Result<O::Number, Error> {
        match object.made(self.life) {
            Made::Now => Ok(object.name()),
            Made::Before => Err(Error::Stale),
            Made::Elsewhere => Err(Error::NotAllocated),
        }
    }

    /// Bytes left in the region, in one piece or many.
    pub fn free_bytes(&self) -> usize {
        self.buddy.free_blocks() * BLOCK
    }
}

/// The page list of `bytes` bytes of contiguous memory: log2 of the page size relative to 4 KiB, and the number of pages. The
/// largest page is chosen that the address is aligned to and that is not longer than the memory taken for it.
fn page_list(memory: DmaMemory, bytes: usize) -> (u32, usize) {
    let aligned = memory.device_address().trailing_zeros();
    let longest = buddy::order_for(memory.len()).map_or(31, |order| order + 12);
    let log = aligned.min(longest).clamp(12, 31);
    (log - 12, bytes.max(1).div_ceil(1 << log))
}

/// Whether a failed creation left the memory unused: firmware refused, so there is no object. After anything else (a time-out)
/// there may be one.
fn not_created(error: &Error) -> Result<(), Error> {
    match error {
        Error::Timeout { .. } | Error::Fatal(_) => Err(*error),
        _ => Ok(()),
    }
}
