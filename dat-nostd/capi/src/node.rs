//! A device that is open: an adapter behind its lock, and what goes with it.

use crate::asides::{Asides, SocketAddress};
use crate::handles::{Kinded, RawHandle};
use crate::layout;
use capi_device::{Choices, Device, Guard, Lock, Parked, Target, device};
use dat_nostd::{Adapter, DatResult, ProxyAgent, Ready, adapter_storage};
use platform_linux::{LinuxBar, LinuxPlatform, Sleeper};
use std::collections::HashMap;
use std::time::Duration;

/// Bytes of the DMA region: queues and the firmware's pages; programs' memory is their own.
const DMA_BYTES: usize = 256 << 20;
/// How long a program may connect before the other side listens, without being refused.
const SERVICE_PATIENCE: Duration = Duration::from_secs(2);

/// What programs written for other providers make without a look at the limits.
type Tables = adapter_storage! {
    bar: LinuxBar, dma_bytes: DMA_BYTES, eps: 512, evds: 1024, lmrs: 4096, events: 16384, connections: 640, ias: 32,
    pzs: 256, psps: 128, rsps: 128, cnos: 128, srqs: 64, rmrs: 1024, binds: 2048, crs: 256, listeners: 256,
};

/// In messages to people.
pub(crate) const LIBRARY: &str = "libdat";

/// A device that is open.
pub(crate) struct Node {
    lock: Lock<Inner>,
    pub(crate) sleeper: Sleeper,
    /// This port's address.
    address: Box<SocketAddress>,
    /// The HCA is a process of this machine.
    emulated: bool,
}

/// What is known of an IA beside its adapter.
pub(crate) struct IaNote {
    /// The name that it was opened by.
    pub(crate) name: String,
    /// Its asynchronous EVD is said to be elsewhere.
    pub(crate) out_of_scope: bool,
}

/// What the lock is for.
pub(crate) struct Inner {
    pub(crate) adapter: Adapter<'static, LinuxPlatform>,
    pub(crate) ias: HashMap<RawHandle, IaNote>,
    /// What regions were made from, as numbers: the library reads nothing there.
    pub(crate) regions: HashMap<RawHandle, [usize; 2]>,
    pub(crate) agents: Agents,
    pub(crate) asides: Asides,
    pub(crate) parked: Parked<RawHandle>,
}

/// Agents of CNOs, by the numbers under which the adapter knows them.
#[derive(Default)]
pub(crate) struct Agents {
    known: HashMap<u64, Agent>,
    next: u64,
}

/// An agent as the program gave it.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(crate) function: layout::AgentFunction,
    pub(crate) instance_data: usize,
}

impl Agents {
    /// Enters an agent; none without a function.
    pub(crate) fn enter(&mut self, agent: layout::ProxyAgent) -> Option<ProxyAgent> {
        let function = agent.function?;
        self.next += 1;
        self.known
            .insert(self.next, Agent { function, instance_data: agent.instance_data.expose_provenance() });
        // Agents are called by the library's thread, outside the lock, and not by the adapter.
        Some(ProxyAgent { function: |_, _, _| {}, instance_data: self.next })
    }

    pub(crate) fn get(&self, agent: &ProxyAgent) -> Option<Agent> {
        self.known.get(&agent.instance_data).copied()
    }

    pub(crate) fn take(&mut self, agent: &ProxyAgent) -> Option<Agent> {
        self.known.remove(&agent.instance_data)
    }
}

impl Node {
    /// Opens a device and waits until its port can be reached by address. `id` is in all its handles.
    pub(crate) fn open(target: &Target, id: u8) -> DatResult<Self> {
        let tables: &'static mut Tables = Box::leak(Box::new(Tables::new()));
        let choices =
            Choices { library: LIBRARY, dma_bytes: DMA_BYTES, id, service_patience: SERVICE_PATIENCE };
        let Device { adapter, sleeper, is_emulated } = device::open(target, tables.parts(), &choices)?;
        let inner = Inner {
            adapter,
            ias: HashMap::new(),
            regions: HashMap::new(),
            agents: Agents::default(),
            asides: Asides::default(),
            parked: Parked::default(),
        };
        Ok(Self {
            lock: Lock::new(inner),
            sleeper,
            address: Box::new(SocketAddress::new(target.address)),
            emulated: is_emulated,
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, Inner> {
        self.lock.lock()
    }

    pub(crate) fn lock_urgently(&self) -> Guard<'_, Inner> {
        self.lock.lock_urgently()
    }

    /// Lets threads go first that have waited for the lock, and the server of an emulated HCA, which may want this processor; for calls
    /// that are made in a loop and have found nothing.
    #[inline]
    pub(crate) fn make_way(&self) {
        if self.emulated || self.lock.is_wanted() {
            std::thread::yield_now();
        }
    }

    /// This port's address, where a program can read it as long as the process lives.
    pub(crate) fn address(&self) -> layout::Pointer {
        (&raw const *self.address).cast_mut().cast()
    }
}

impl Inner {
    /// What became ready: those who wait for it are woken.
    pub(crate) fn tell_waiters(&mut self) {
        while let Some(ready) = self.adapter.next_ready() {
            let handle = match ready {
                Ready::Evd(evd) => evd.raw(),
                Ready::Cno(cno) => cno.raw(),
            };
            self.parked.wake(handle);
        }
    }

    /// Objects have gone; so does what lay beside them.
    pub(crate) fn forget_the_dead(&mut self) {
        let adapter = &self.adapter;
        let is_alive =
            |handle: RawHandle| adapter.get_handle_type(dat_nostd::Handle::from_bits(handle)).is_ok();
        self.asides.retain(is_alive);
        self.regions.retain(|handle, _| is_alive(*handle));
        self.ias.retain(|handle, _| is_alive(*handle));
    }
}
