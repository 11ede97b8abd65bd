//! Calls that wait. They return to the function that C called before they sleep, so that the thread
//! can be cancelled there: [`Cancellation`].

use crate::calls::value;
use crate::node::{Inner, Node, hand_over, serve};
use capi_device::{Cancellation, Guard, Rest, Slept};
use dat_calls::{Pause, Turn, Wait, WaitCall};
use dat_nostd::{DatResult, DatReturn, ReturnType, Wake};
use platform_linux::Sleeper;
use std::ffi::c_void;
use std::mem::{self, MaybeUninit};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The device was closed under the wait, or the thread was cancelled.
const ABORT: DatReturn = DatReturn::new(ReturnType::Abort);

/// State that a call needs after its sleep. Its thread is entered in the device's list of those
/// that wait.
struct Sleeping<W> {
    node: &'static Node,
    /// Another device may be open in the node's place by then.
    sleeper: Arc<Sleeper>,
    fd: Arc<OwnedFd>,
    wait: W,
    rest: Rest,
    /// The thread sleeps on the device.
    leads: bool,
}

impl<W: Wait<Node>> Sleeping<W> {
    fn enter(pause: Pause<Node, W>) -> DatResult<Self> {
        let Pause { node, mut guard, wait, now, wake } = pause;
        let fd = guard.waiting.parked.enter(wait.object())?;
        let sleeper = Arc::clone(&guard.waiting.sleeper);
        let leads = guard.waiting.lead();
        // If something has happened, the wait looks again before it sleeps.
        let until = serve(&mut guard).unwrap_or(now);
        drop(guard);
        let mut rest = Rest::new(&fd, wake.earliest(Wake::by(until)), now);
        if leads {
            let (interrupts, peer) = sleeper.events();
            rest.add_device(interrupts, peer);
        }
        Ok(Self { node, sleeper, fd, wait, rest, leads })
    }

    /// Takes the lock after a sleep; `None` if the device was closed.
    fn leave(self) -> Option<(&'static Node, Guard<'static, Inner>, W)> {
        let Self { node, sleeper, fd, wait, leads, .. } = self;
        // The thread that closes the device waits for this.
        let guard = node.lock_urgently().filter(|inner| Arc::ptr_eq(&inner.waiting.sleeper, &sleeper));
        let Some(mut guard) = guard else {
            // `wait` refers to the device's tables, which may have been freed.
            mem::forget(wait);
            return None;
        };
        guard.waiting.parked.leave(fd);
        if leads {
            guard.waiting.end_lead();
        }
        Some((node, guard, wait))
    }
}

/// Makes a call that waits.
///
/// # Safety
/// 1. The call's pointers are as the header says.
/// 2. As [`Cancellation::restore`].
pub(crate) unsafe fn make<C: WaitCall<Node>>(call: C) -> u32 {
    let mut slot = MaybeUninit::uninit();
    // SAFETY: clause 2. Nothing here has a destructor.
    let cancellation = unsafe { Cancellation::point() };
    // SAFETY: clause 1.
    let mut outcome = unsafe { begin(&call, &mut slot) };
    loop {
        if let Some(code) = outcome {
            // SAFETY: clause 2. Nothing here has a destructor.
            unsafe { cancellation.restore() };
            return code;
        }
        // SAFETY: without an outcome the slot is filled, and it is this frame's. The rest is as
        // above.
        outcome = unsafe {
            let slept = rest(cancellation, &mut slot);
            resume(&call, &mut slot, slept == Slept::Interrupted)
        };
    }
}

/// # Safety
/// The slot is filled. As [`Cancellation::restore`].
#[inline]
unsafe fn rest<W: Wait<Node>>(cancellation: Cancellation, slot: &mut MaybeUninit<Sleeping<W>>) -> Slept {
    // SAFETY: this function's contract. The slot is not moved or read before the sleep is over.
    unsafe {
        let (fds, count, timeout) = slot.assume_init_mut().rest.parts();
        cancellation.sleep(fds, count, timeout, gone::<W>, slot.as_mut_ptr().cast())
    }
}

/// Begins a call. Returns its code, or fills the slot and returns `None` if the thread has to
/// sleep.
///
/// # Safety
/// The call's pointers are as the header says.
#[inline(never)]
unsafe fn begin<C: WaitCall<Node>>(call: &C, slot: &mut MaybeUninit<Sleeping<C::Wait>>) -> Option<u32> {
    // SAFETY: this function's contract.
    caught(|| unsafe { step(call, call.begin()?, slot) })
}

/// Goes on with a call after a sleep. Returns as [`begin`] does.
///
/// # Safety
/// The call's pointers are as the header says, and the slot is filled.
#[inline(never)]
unsafe fn resume<C: WaitCall<Node>>(
    call: &C,
    slot: &mut MaybeUninit<Sleeping<C::Wait>>,
    interrupted: bool,
) -> Option<u32> {
    // SAFETY: this function's contract; no other code reads the slot.
    let sleeping = unsafe { slot.assume_init_read() };
    caught(|| {
        let led = sleeping.leads.then(|| Arc::clone(&sleeping.sleeper));
        let (node, guard, wait) = sleeping.leave().ok_or(ABORT)?;
        let turn = Turn::new(node, guard, wait, interrupted);
        if let (Turn::Over(_), Some(sleeper)) = (&turn, led) {
            hand_over(node, &sleeper);
        }
        // SAFETY: this function's contract.
        unsafe { step(call, turn, slot) }
    })
}

/// # Safety
/// The call's pointers are as the header says.
unsafe fn step<C: WaitCall<Node>>(
    call: &C,
    turn: Turn<Node, C::Wait>,
    slot: &mut MaybeUninit<Sleeping<C::Wait>>,
) -> DatResult<Option<()>> {
    match turn {
        // SAFETY: this function's contract.
        Turn::Over(answer) => unsafe { call.finish(answer) }.map(Some),
        Turn::Pause(pause) => {
            slot.write(Sleeping::enter(pause)?);
            Ok(None)
        }
    }
}

/// The code of a call, unless it is to sleep. A mistake of this library's is INTERNAL_ERROR.
fn caught(call: impl FnOnce() -> DatResult<Option<()>>) -> Option<u32> {
    let result = catch_unwind(AssertUnwindSafe(call));
    match result.unwrap_or(Err(DatReturn::new(ReturnType::InternalError))) {
        Ok(over) => over.map(|()| value(Ok(()))),
        Err(error) => Some(value(Err(error))),
    }
}

/// The thread was cancelled in its sleep: gives the wait up, so that others can wait for the
/// object.
///
/// # Safety
/// `slot` is a filled slot of this type, and is not used afterwards.
unsafe extern "C" fn gone<W: Wait<Node>>(slot: *mut c_void) {
    // SAFETY: this function's contract.
    let sleeping = unsafe { slot.cast::<Sleeping<W>>().read() };
    // A mistake here must not stop the thread from ending.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some((node, mut guard, wait)) = sleeping.leave() {
            let _ = wait.end(&mut guard, ABORT);
            node.changed(guard);
        }
    }));
}
