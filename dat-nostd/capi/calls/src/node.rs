//! Where calls run: a device behind its lock.

use crate::beside::IaNote;
use crate::convert::name;
use crate::handles::{Kinded, RawHandle};
use crate::state::State;
use core::ops::DerefMut;
use dat_nostd::{DatResult, EvdHandle, IaHandle, Instant, Platform, Wake};

/// A device, as calls reach it. Calls take its lock and do not sleep with it, but for commands to the firmware.
pub trait Node: Sized + 'static {
    /// Where the adapter runs.
    type Platform: Platform + 'static;
    /// What the lock protects beside the calls' own: who waits, and for what.
    type Waiting;
    /// The lock, held.
    type Guard<'n>: DerefMut<Target = State<Self>>;

    /// The node whose handles have this number.
    fn get(id: u8) -> Option<&'static Self>;

    /// Takes the lock; None if the device is closed.
    fn lock(&self) -> Option<Self::Guard<'_>>;

    /// The same for those who come seldom: loops that find nothing let them go first.
    fn lock_urgently(&self) -> Option<Self::Guard<'_>> {
        self.lock()
    }

    /// Gives the lock back after a call that may have made others ready, or has left something to move on.
    fn changed(&self, guard: Self::Guard<'_>);

    /// The same after a CNO was freed, or has another agent, which is given `kept`. The old one is not being called any more afterwards, unless
    /// it is the one that has made this call.
    fn agent_gone(&self, guard: Self::Guard<'_>, cno: RawHandle, kept: Option<usize>) {
        let _ = (cno, kept);
        self.changed(guard);
    }

    /// Repeats `poll` with the lock until it returns a result: for a call that waits for firmware, or
    /// for memory to be pinned. Other threads have the device in between. Returns `None` if the device
    /// was closed meanwhile.
    ///
    /// A node that pins memory without the lock also repeats a `poll` that failed because its
    /// [`Platform::map`] answered that the memory is not pinned.
    fn repeat<R>(
        &self,
        mut poll: impl FnMut(&mut State<Self>) -> DatResult<Option<R>>,
    ) -> Option<DatResult<R>> {
        loop {
            if let Some(result) = poll(&mut *self.lock()?).transpose() {
                return Some(result);
            }
        }
    }

    /// Lets others go first; for calls that are made in a loop and have found nothing.
    fn make_way(&self) {}

    /// An IA is to be closed: by [`State::close_ia`], and the device with its last one where
    /// devices come and go.
    ///
    /// # Errors
    /// Errors of `dat_ia_close`.
    fn close_ia(&'static self, ia: IaHandle, flags: u32) -> DatResult<()>;
}

/// A node whose threads sleep within a call. Other nodes make calls that wait by
/// [`WaitCall`](crate::WaitCall).
pub trait Sleep: Node {
    /// Sleeps until `what` may be ready or `wake` is due, without the lock, and takes the lock
    /// again.
    ///
    /// # Errors
    /// ABORT: the device was closed meanwhile.
    fn sleep<'n>(
        &'n self,
        guard: Self::Guard<'n>,
        what: RawHandle,
        now: Instant,
        wake: Wake,
    ) -> DatResult<Self::Guard<'n>>;
}

/// `DAT_EVD_ASYNC_EXISTS`.
const ASYNC_EXISTS: RawHandle = 1;
/// `DAT_EVD_OUT_OF_SCOPE`.
pub(crate) const OUT_OF_SCOPE: RawHandle = 2;

/// What an open gives: the IA and its asynchronous EVD.
pub struct Opened {
    /// `DAT_IA_HANDLE`.
    pub ia: RawHandle,
    /// `DAT_EVD_HANDLE`.
    pub async_evd: RawHandle,
}

/// Opens an IA of a device. `registered` is its name there, `ia_name` the one that the program knows it by.
///
/// # Errors
/// Those of `dat_ia_openv`.
pub fn open_ia<N: Node>(
    state: &mut State<N>,
    registered: &str,
    ia_name: &str,
    qlen: i32,
    evd: RawHandle,
    minor: u32,
) -> DatResult<Opened> {
    // The asynchronous EVD of the first open is elsewhere; this IA gets one that nobody hears.
    let out_of_scope = matches!(evd, ASYNC_EXISTS | OUT_OF_SCOPE);
    let given = if out_of_scope { None } else { EvdHandle::given(evd) };
    let qlen = if out_of_scope { 1 } else { u32::try_from(qlen).unwrap_or(0) };
    // Thread safety is more than was asked for, or just that.
    let (ia, evd) = state.adapter.ia_openv(registered, qlen, given, 1, minor, false)?;
    state.beside.ias.put(ia.raw(), IaNote { name: name(ia_name), out_of_scope });
    Ok(Opened { ia: ia.raw(), async_evd: if out_of_scope { OUT_OF_SCOPE } else { evd.raw() } })
}
