//! A device that is open in this process: an adapter behind its lock, with what waits for it.

use capi_device::{Choices, Device, Guard, Inherited, Lent, Lock, Parked, Target, device};
use dat_calls::{Call, RawHandle, State, Storage};
use dat_nostd::{DatResult, Instant, Ready, adapter_storage};
use platform_linux::{LinuxBar, Memory, Pinner, Pins, Sleeper};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Thread, ThreadId};
use std::time::Duration;

/// Bytes of the DMA region: queues and the firmware's pages; programs' memory is their own.
const DMA_BYTES: usize = 256 << 20;
/// How long a program may connect before the other side listens, without being refused.
const SERVICE_PATIENCE: Duration = Duration::from_secs(2);

adapter_storage! {
    /// Capacities for programs that were written for other providers and ignore the limits.
    struct Tables {
        bar: LinuxBar, dma_bytes: DMA_BYTES, eps: 512, evds: 1024, lmrs: 4096, events: 16384,
        connections: 640, ias: 32, pzs: 256, psps: 128, rsps: 128, cnos: 128, srqs: 64, rmrs: 1024,
        binds: 2048, crs: 256, listeners: 256,
    }
}
type Notes = Storage<32, 512, 256, 4096, 256>;

/// In messages to people.
pub(crate) const LIBRARY: &str = "libdat";

/// A place for a device: one is open there, or none.
#[derive(Default)]
pub(crate) struct Node {
    lock: Lock<Inner>,
    /// The HCA is a process of this machine.
    emulated: AtomicBool,
}

/// What the lock is for.
pub(crate) type Inner = State<Node>;

/// Who waits, and what the device's thread sleeps by.
pub(crate) struct Waiting {
    pub(crate) parked: Parked<RawHandle>,
    pub(crate) sleeper: Arc<Sleeper>,
    /// Threads that wait for firmware, or pin memory, share it.
    pinner: Arc<Pinner>,
    /// The agent that the device's thread was sent to call last, and how many have come back.
    pub(crate) calling: Option<Calling>,
    pub(crate) returned: Arc<AtomicU64>,
    watch: Watch,
    /// The thread that calls agents.
    agents: Option<Thread>,
    inherited: Inherited,
    lent: Borrowed,
}

/// Choice of the thread that sleeps on the device.
///
/// A thread of the program that waits leads if no other does: it sleeps on the device's interrupts,
/// and serves the device when it wakes. The library's thread stands back meanwhile, so that an
/// interrupt wakes one thread. It stands back for [`LEASE`] more after each lead, because the next
/// wait of a program usually follows soon.
#[derive(Default)]
struct Watch {
    /// A thread of the program sleeps on the device.
    is_led: bool,
    /// Number of leads that have ended, and the number when the library's thread last looked.
    ended: u64,
    seen: u64,
    /// The library's thread sleeps until it is woken.
    is_retired: bool,
    /// Objects have changed since the library's thread last looked.
    has_changes: bool,
}

/// Time for which the library's thread stands back.
const LEASE: Duration = Duration::from_millis(1);

impl Waiting {
    /// The calling thread is about to sleep. Returns whether it leads.
    pub(crate) fn lead(&mut self) -> bool {
        !mem::replace(&mut self.watch.is_led, true)
    }

    /// The leader has woken.
    pub(crate) fn end_lead(&mut self) {
        self.watch.is_led = false;
        self.watch.ended += 1;
    }

    /// For the library's thread: returns how long it stands back, [`Duration::MAX`] until it is
    /// woken, or `None` if it has to serve the device.
    pub(crate) fn stand_back(&mut self) -> Option<Duration> {
        let watch = &mut self.watch;
        let has_ended = mem::replace(&mut watch.seen, watch.ended) != watch.ended;
        let has_changes = mem::take(&mut watch.has_changes);
        watch.is_retired = watch.is_led && !has_ended;
        match (watch.is_led, has_ended) {
            (true, false) => Some(Duration::MAX),
            (false, true) if has_changes => None,
            (_, true) => Some(LEASE),
            (false, false) => None,
        }
    }

    /// The calling thread calls agents from now on.
    pub(crate) fn call_agents_here(&mut self) {
        self.agents = Some(std::thread::current());
    }
}

/// What an adapter uses that is not its own.
struct Borrowed {
    tables: Lent<Tables>,
    notes: Lent<Notes>,
    memory: Memory,
}

impl Borrowed {
    /// Frees it.
    ///
    /// # Safety
    /// The adapter is gone, and everything that it gave pointers to.
    unsafe fn free(self) {
        // SAFETY: this function's contract; the platform was dropped with the adapter.
        unsafe {
            self.tables.free();
            self.notes.free();
            self.memory.free();
        }
    }
}

/// A call of an agent.
pub(crate) struct Calling {
    pub(crate) call: Call,
    /// How many had come back before.
    pub(crate) number: u64,
    pub(crate) thread: ThreadId,
}

/// An agent that is being called, whose CNO is gone.
pub(crate) struct Leaving {
    number: u64,
    returned: Arc<AtomicU64>,
}

impl Leaving {
    /// None if no agent of a CNO's or an IA's is being called, or this thread is in it. One that is given `kept` may go on.
    pub(crate) fn find(inner: &Inner, owner: RawHandle, kept: Option<usize>) -> Option<Self> {
        let Calling { call, number, thread } = inner.waiting.calling.as_ref()?;
        let is_under_way = inner.waiting.returned.load(Ordering::Acquire) == *number;
        let matters = is_under_way && call.is_of(owner) && kept != Some(call.instance_data());
        (matters && *thread != std::thread::current().id())
            .then(|| Self { number: *number, returned: Arc::clone(&inner.waiting.returned) })
    }

    /// Waits until it has come back.
    pub(crate) fn wait(self) {
        while self.returned.load(Ordering::Acquire) == self.number {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Node {
    /// Locks the open device; `None` if there is none.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_, Inner>> {
        self.lock.lock()
    }

    /// As [`Self::lock`], ahead of threads that lock in the common case.
    pub(crate) fn lock_urgently(&self) -> Option<Guard<'_, Inner>> {
        self.lock.lock_urgently()
    }

    /// Repeats `poll` with the lock until it returns a result. Firmware works and memory is pinned
    /// without the lock. Returns `None` if the device was closed meanwhile.
    ///
    /// Not a cancellation point: the calling frames are not to be unwound.
    pub(crate) fn repeat<R>(
        &self,
        mut poll: impl FnMut(&mut Inner) -> DatResult<Option<R>>,
    ) -> Option<DatResult<R>> {
        let mut guard = self.lock()?;
        let pinner = Arc::clone(&guard.waiting.pinner);
        let mut pins = Pins::new(&pinner);
        loop {
            let result = pins.during(|| poll(&mut guard)).transpose();
            drop(guard);
            match (pins.serve(), result) {
                (false, Some(result)) => return Some(result),
                (false, None) => capi_device::pause(Duration::from_micros(50)),
                (true, _) => {}
            }
            // Another device may be open in the node's place by then.
            guard = self.lock_urgently().filter(|inner| Arc::ptr_eq(&inner.waiting.pinner, &pinner))?;
        }
    }

    /// Unlocks, and wakes all threads that wait and the device's thread: objects have changed.
    pub(crate) fn changed(&self, mut guard: Guard<'_, Inner>) {
        guard.waiting.watch.has_changes = true;
        guard.waiting.parked.wake_all();
        let sleeper = Arc::clone(&guard.waiting.sleeper);
        drop(guard);
        sleeper.wake();
    }

    /// Whether a poll without result should yield the processor: to threads that wait for the lock, or to the server of an
    /// emulated HCA.
    #[inline]
    pub(crate) fn should_yield(&self) -> bool {
        self.emulated.load(Ordering::Relaxed) || self.lock.is_wanted()
    }

    /// The process ends: gives the device back, unless a thread stands still with the lock. Who waits there hears of it, for the program may
    /// join that thread. Other threads may still read what their calls gave them pointers to, so the tables stay.
    pub(crate) fn end(&self) {
        let Some(guard) = self.lock.lock_within(PATIENCE) else { return };
        // They look again once they get the lock.
        guard.waiting.parked.wake_all();
        if let Some(state) = guard.take() {
            let _lent = close(state);
        }
    }

    /// Brings a device up and waits until its port can be reached by address. `id` is in all its handles.
    pub(crate) fn open(&self, target: &Target, id: u8) -> DatResult<()> {
        // SAFETY: `adapter_storage!` defines structs whose empty form is all zero bytes.
        let (tables, parts): (Lent<Tables>, _) = unsafe { Lent::zeroed() };
        let choices =
            Choices { library: LIBRARY, dma_bytes: DMA_BYTES, id, service_patience: SERVICE_PATIENCE };
        let Device { adapter, sleeper, pinner, memory, is_emulated, inherited } =
            match device::open(target, parts.parts(), &choices) {
                Ok(device) => device,
                Err(error) => {
                    // SAFETY: no adapter has come of it.
                    unsafe { tables.free() };
                    return Err(error);
                }
            };
        let (notes, beside) = Lent::new(Box::new(Notes::new()));
        let sleeper = Arc::new(sleeper);
        let waiting = Waiting {
            parked: Parked::default(),
            sleeper,
            pinner: Arc::new(pinner),
            calling: None,
            returned: Arc::default(),
            watch: Watch::default(),
            agents: None,
            inherited,
            lent: Borrowed { tables, notes, memory },
        };
        self.emulated.store(is_emulated, Ordering::Relaxed);
        self.lock.open(State { adapter, beside: beside.parts(target.address), waiting });
        Ok(())
    }

    /// Gives the device back, once everybody has left who slept there, or would have. There is no IA any more.
    pub(crate) fn close(&self) {
        let end = std::time::Instant::now() + PATIENCE;
        while let Some(guard) = self.lock.lock_urgently() {
            guard.waiting.parked.wake_all();
            // A thread that is stopped does not leave. A thread that pins memory does, and needs the
            // device until then.
            let is_left = guard.waiting.parked.is_empty() || std::time::Instant::now() >= end;
            if is_left && Arc::strong_count(&guard.waiting.pinner) == 1 {
                if let Some(state) = guard.take() {
                    let lent = close(state);
                    // SAFETY: adapter and notes are gone, and they borrowed these.
                    unsafe { lent.free() };
                }
                return;
            }
            drop(guard);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// How long the end of a device waits for threads that sleep there, and the end of the process for one that has the lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes the adapter down; what it had is left.
fn close(state: Inner) -> Borrowed {
    let State { adapter, waiting, .. } = state;
    let Waiting { sleeper, agents, inherited, lent, .. } = waiting;
    drop(inherited);
    // An HCA that failed is stopped by the platform.
    let _ = adapter.close();
    // Its threads find the device closed.
    sleeper.wake();
    agents.inspect(Thread::unpark);
    lent
}

/// Polls the device and arms it. Returns until when the thread may sleep, or `None` if something has
/// happened.
pub(crate) fn serve(inner: &mut Inner) -> Option<Instant> {
    let rest = inner.work();
    wake_waiters(inner);
    rest
}

/// A wait that led is over: another thread has to watch the device. `sleeper` is its device's.
pub(crate) fn hand_over(node: &Node, sleeper: &Arc<Sleeper>) {
    let inner = node.lock_urgently().filter(|inner| Arc::ptr_eq(&inner.waiting.sleeper, sleeper));
    let Some(mut inner) = inner else { return };
    // The wait's polls may have made other objects ready.
    wake_waiters(&mut inner);
    let Waiting { watch, parked, .. } = &mut inner.waiting;
    if !watch.is_led && !parked.wake_one() && mem::take(&mut watch.is_retired) {
        sleeper.wake();
    }
}

/// Wakes the threads that wait for what became ready, and the one that calls agents.
fn wake_waiters(inner: &mut Inner) {
    if inner.adapter.has_upcalls() {
        inner.waiting.agents.as_ref().inspect(|agents| agents.unpark());
    }
    while let Some(ready) = inner.adapter.next_ready() {
        let handle = match ready {
            Ready::Evd(evd) => evd.bits(),
            Ready::Cno(cno) => cno.bits(),
        };
        inner.waiting.parked.wake(handle);
    }
}
