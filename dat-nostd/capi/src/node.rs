//! A device that is open: an adapter behind its lock, and what goes with it.

use crate::asides::{Asides, SocketAddress};
use crate::debug::complain;
use crate::handles::{Kinded, RawHandle};
use crate::layout;
use crate::lock::{Guard, Lock};
use crate::parked::Parked;
use crate::target::Target;
use dat_nostd::{
    Adapter, AdapterConfig, DatResult, DatReturn, Instant, Platform, ProviderInfo, ProxyAgent, Ready,
    Registry, RegistryEntry, ReturnType, Subtype, adapter_storage,
};
use platform_linux::{
    DeviceName, Error as PlatformError, LinuxBar, LinuxPlatform, Opened, Options, Sleeper, open,
};
use std::collections::HashMap;
use std::time::Duration;

/// Bytes of the DMA region: queues and the firmware's pages; programs' memory is their own.
const DMA_BYTES: usize = 256 << 20;
/// How long the port may take to join IP's broadcast group.
const IP_UP: Duration = Duration::from_secs(30);

/// How long a program may connect before the other side listens, without being refused.
const SERVICE_PATIENCE: Duration = Duration::from_secs(2);

/// What programs written for other providers make without a look at the limits.
type Tables = adapter_storage! {
    bar: LinuxBar, dma_bytes: DMA_BYTES, eps: 512, evds: 1024, lmrs: 4096, events: 16384, connections: 640, ias: 32,
    pzs: 256, psps: 128, rsps: 128, cnos: 128, srqs: 64, rmrs: 1024, binds: 2048, crs: 256, listeners: 256,
};

/// The names of every adapter: with the CM's framing of RDMA-CM, and with our own.
const NAMES: [&str; 2] = ["ib0", "ib0-dat"];

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
    pub(crate) parked: Parked,
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
        let options = Options { dma_bytes: DMA_BYTES, iommu: target.iommu, ..Options::default() };
        let Opened { platform, dma, host, .. } = open(&target.device, &options).map_err(|error| {
            complain(&format!("{}: {error}", target.device));
            why(&error)
        })?;
        let sleeper = platform.sleeper().map_err(|error| why(&error))?;
        let tables: &'static mut Tables = Box::leak(Box::new(Tables::new()));
        let config = AdapterConfig {
            service_patience: SERVICE_PATIENCE,
            ..AdapterConfig::new(NAMES[0], target.address, &[], seed(target))
        };
        let failed = |error: &dyn std::fmt::Display| {
            complain(&format!("{}: {error}", target.device));
            DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceDevice)
        };
        let adapter = Adapter::open(platform, dma, host, tables.parts(), &config);
        let mut adapter = adapter.map_err(|error| failed(&error))?;
        let mut names = [RegistryEntry::EMPTY; NAMES.len()];
        let mut registry = Registry::with_first_id(&mut names, id);
        for name in NAMES {
            registry.registry_add_provider(&mut adapter, ProviderInfo::new(name))?;
        }
        if !wait_ip_up(&mut adapter) {
            let _ = adapter.close();
            return Err(failed(&"the port joined no broadcast group: is there a subnet administrator?"));
        }
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
            emulated: matches!(target.device, DeviceName::Socket(_)),
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

/// Why a device could not be opened, as far as DAT has words for it.
fn why(error: &PlatformError) -> DatReturn {
    match error {
        PlatformError::Name(_) | PlatformError::Options(_) => {
            DatReturn::error(ReturnType::ProviderNotFound, Subtype::NameNotRegistered)
        }
        _ => DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceDevice),
    }
}

/// Differs from process to process and from time to time.
fn seed(target: &Target) -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(target.address));
    half() << 64 | half()
}

fn wait_ip_up(adapter: &mut Adapter<'static, LinuxPlatform>) -> bool {
    let end = adapter.platform().now() + IP_UP;
    loop {
        let now = adapter.platform().now();
        let wake = adapter.poll(now);
        match adapter.ip() {
            Some(ip) if !ip.is_up() => {}
            _ => return true,
        }
        if now >= end || adapter.is_dead() {
            return false;
        }
        if !wake.is_due(now) && adapter.prepare_idle(adapter.platform().now()) {
            adapter.platform().idle(wake.deadline(now).unwrap_or(Instant::MAX).min(end));
        }
    }
}
