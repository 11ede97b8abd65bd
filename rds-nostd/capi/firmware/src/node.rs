//! The one HCA: an adapter with RDS on it, used by one call at a time.

use crate::place::{self, Place};
use crate::platform::Firmware;
use crate::registers::Registers;
use crate::sockets::{Number, Numbers};
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};
use dat_calls::{RawHandle, Storage};
use dat_nostd::{DatResult, DatReturn, Duration, IaHandle, Instant, ReturnType, Wake, adapter_storage};
use rds_calls::recovery::{Hca, Health};
use rds_calls::{Answer, Iovs};
use rds_nostd::{Rds, RdsError, RdsStorage, SocketHandle};

pub(crate) const SOCKETS: usize = 32;
const CONNECTIONS: usize = 32;
pub(crate) const FRAMES: usize = 1024;
const REGIONS: usize = 64;
const OPERATIONS: usize = 16;
const IOVS: usize = 512;
/// Maximum bytes of a message of several parts.
const WHOLE: usize = 64 << 10;

adapter_storage! {
    /// The tables of the DMA region's blocks are separate, because the firmware chooses their size.
    pub(crate) struct Tables {
        bar: Registers, dma_bytes: 4096, eps: 64, evds: 64, lmrs: 128 + REGIONS + IOVS,
        events: 1024, connections: 128, cnos: 16,
    }
}
pub(crate) type Notes = Storage<8, 64, 32, { 128 + REGIONS + IOVS }, 32>;
pub(crate) type RdsTables = RdsStorage<SOCKETS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS, IOVS>;

/// Tables of the node. All bytes are zero, so they take no space in an image.
pub(crate) struct Memory {
    pub(crate) tables: Tables,
    pub(crate) notes: Notes,
    pub(crate) rds: RdsTables,
    pub(crate) whole: [u8; WHOLE],
}

impl Memory {
    /// Returns empty tables.
    pub(crate) const fn new() -> Self {
        Self { tables: Tables::new(), notes: Notes::new(), rds: RdsTables::new(), whole: [0; WHOLE] }
    }

    /// Empties the tables in place, because they are larger than the stack.
    pub(crate) fn clear(&mut self) {
        // SAFETY: empty tables are zero bytes, as their types say and a test asserts.
        unsafe { core::ptr::from_mut(self).write_bytes(0, 1) };
    }
}

const _: () = assert!(size_of::<Memory>() <= 1216 << 10, "what the README says");

/// The RDS protocol, and its sockets.
pub struct Protocol {
    pub(crate) rds: Rds<'static>,
    /// The platform of the HCA, in addition to the adapter's.
    pub(crate) firmware: Firmware,
    pub(crate) sockets: Numbers,
    pub(crate) whole: &'static mut [u8],
    pub(crate) iovs: &'static mut Iovs,
    pub(crate) health: Health,
    /// Time of a failure that is not recovered yet.
    pub(crate) failed: Option<Instant>,
}

/// The state that a call has exclusively.
pub type Inner = dat_calls::State<Node>;

/// Time that recovery leaves the program to close its IAs after a failure, because recovery
/// destroys them.
const IA_PATIENCE: Duration = Duration::from_secs(1);

/// Recovers the HCA after a failure. Returns when to call this again at the latest; `None` if the
/// HCA works or is gone.
fn tend(inner: &mut Inner) -> Option<Instant> {
    let dat_calls::State { adapter, waiting, .. } = inner;
    let Protocol { rds, sockets, health, failed, firmware, .. } = waiting;
    let given = *firmware.given();
    let now = adapter.now();
    if adapter.is_dead() && *health == Health::Working {
        let since = *failed.get_or_insert_with(|| {
            match adapter.hca().fatal() {
                Some(cause) => given.say(&format_args!("the HCA has failed: {cause}; recovery follows")),
                None => given.say(&"the HCA has failed; recovery follows"),
            }
            now
        });
        // The protocol owns one IA.
        if adapter.census().ias > 1 && now - since < IA_PATIENCE {
            return Some(since + IA_PATIENCE);
        }
    }
    let complain = |what: &dyn fmt::Display| given.say(what);
    let look = health.tend(&mut Hca { adapter, rds, is_gone: false, complain: &complain });
    if *health == Health::Working && !adapter.is_dead() && failed.take().is_some() {
        given.say(&"the HCA is back");
        sockets.close_left(rds, adapter);
    }
    look
}

/// The one HCA, or none. Public for tests on a host, where the library exports no C names.
pub struct Node {
    place: Place<Inner>,
    /// Number in the handles of the last opened device, so that older handles are invalid.
    id: AtomicU8,
    /// Time until which the machine may idle, from the last `work`; `None` if new work may have
    /// arrived since.
    rest: Cell<Option<Instant>>,
}

// SAFETY: `place` admits one call at a time, and the other fields are accessed within a call.
unsafe impl Sync for Node {}

pub(crate) static NODE: Node = Node { place: Place::new(), id: AtomicU8::new(0), rest: Cell::new(None) };

/// A running call on the open device.
pub type Guard<'n> = place::Guard<'n, Inner>;

impl Node {
    /// Begins a call. Returns `None` if another is in progress or no device is open.
    pub(crate) fn begin(&self) -> Option<Guard<'_>> {
        let guard = self.place.enter()?;
        self.rest.set(None);
        Some(guard)
    }

    /// Opens the device with `make`, which gets the number for its handles.
    ///
    /// # Errors
    /// The error of `make`; `busy` if a device is open or a call is in progress.
    pub(crate) fn open<E>(&self, busy: E, make: impl FnOnce(u8) -> Result<Inner, E>) -> Result<(), E> {
        self.place.open(busy, || {
            let id = self.id.load(Ordering::Relaxed).wrapping_add(1);
            self.id.store(id, Ordering::Relaxed);
            make(id)
        })
    }

    /// Closes the device, if one is open. No other can be opened meanwhile.
    ///
    /// # Errors
    /// The error of `end`, after which the device is closed as well; `busy` if a call is in
    /// progress.
    pub(crate) fn close<E>(&self, busy: E, end: impl FnOnce(Inner) -> Result<(), E>) -> Result<(), E> {
        self.place.close(busy, end)
    }

    /// Makes progress, and runs pending upcalls outside of the call. Returns until when the machine
    /// may idle.
    pub(crate) fn work(&self) -> Option<Instant> {
        let mut guard = self.place.enter()?;
        let mut rest = <Self as rds_calls::Node>::state(&mut guard).work();
        if let Some(look) = tend(&mut guard) {
            rest = rest.map(|rest| rest.min(look));
        }
        // Discard the notifications: every waiting call checks again in any case.
        while guard.adapter.next_ready().is_some() {}
        while let Some(call) = guard.next_call() {
            rest = None;
            self.rest.set(None);
            drop(guard);
            call.run();
            guard = self.place.enter()?;
        }
        // Stored within the call, so that an interrupt handler's call can clear it.
        self.rest.set(rest);
        rest
    }

    /// Waits within a call: makes progress and idles until `until` at most. The caller has checked
    /// its condition.
    pub(crate) fn pause<'n>(&'n self, guard: Guard<'n>, until: Option<Instant>) -> Option<Guard<'n>> {
        if let Some(rest) = self.rest.take() {
            guard.adapter.idle(until.map_or(rest, |until| until.min(rest)));
        }
        drop(guard);
        self.work();
        self.place.enter()
    }
}

impl dat_calls::Node for Node {
    type Platform = Firmware;
    type Waiting = Protocol;
    type Guard<'n> = Guard<'n>;

    fn get(id: u8) -> Option<&'static Self> {
        (id == NODE.id.load(Ordering::Relaxed)).then_some(&NODE)
    }

    fn lock(&self) -> Option<Guard<'_>> {
        self.begin()
    }

    fn changed(&self, guard: Guard<'_>) {
        drop(guard);
    }

    fn close_ia(&'static self, ia: IaHandle, flags: u32) -> DatResult<()> {
        let closed = dat_nostd::HandleType::Ia.invalid();
        self.begin().ok_or(closed)?.close_ia(ia, flags)
    }
}

impl dat_calls::Sleep for Node {
    fn sleep<'n>(
        &'n self,
        guard: Guard<'n>,
        _what: RawHandle,
        now: Instant,
        wake: Wake,
    ) -> DatResult<Guard<'n>> {
        self.pause(guard, wake.deadline(now)).ok_or(DatReturn::new(ReturnType::Abort))
    }
}

impl rds_calls::Node for Node {
    type Platform = Firmware;
    type Descriptor = Number;
    type Sockets = Numbers;
    type Guard<'n> = Guard<'n>;

    fn state<'g>(guard: &'g mut Guard<'_>) -> rds_calls::State<'g, Self> {
        let dat_calls::State { adapter, waiting, .. } = &mut **guard;
        let Protocol { rds, sockets, whole, iovs, health, .. } = waiting;
        let is_gone = *health == Health::Gone;
        let is_failed = *health != Health::Working || adapter.is_dead();
        rds_calls::State { adapter, rds, sockets, whole, iovs, is_gone, is_failed }
    }

    fn open() -> Result<&'static Self, RdsError> {
        Ok(&NODE)
    }

    fn of(_fd: i32) -> Option<&'static Self> {
        Some(&NODE)
    }

    fn lock(&self) -> Option<Guard<'_>> {
        self.begin()
    }

    fn changed(&self, guard: Guard<'_>) {
        drop(guard);
    }

    fn closed(&self, guard: Guard<'_>) {
        drop(guard);
    }

    fn sleep<'n>(&'n self, guard: Guard<'n>, _socket: SocketHandle, _now: Instant) -> Answer<Guard<'n>> {
        Ok(self.nap(guard).ok_or(RdsError::BadSocket)?)
    }

    fn nap<'n>(&'n self, guard: Guard<'n>) -> Option<Guard<'n>> {
        self.pause(guard, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static EMPTY: Constant = Constant(Memory::new());

    struct Constant(Memory);
    // SAFETY: read-only.
    unsafe impl Sync for Constant {}

    #[test]
    fn empty_memory_is_zero_bytes() {
        // SAFETY: a static whose bytes the linker has all initialized.
        let bytes = unsafe {
            core::slice::from_raw_parts(core::ptr::from_ref(&EMPTY.0).cast::<u8>(), size_of::<Memory>())
        };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
