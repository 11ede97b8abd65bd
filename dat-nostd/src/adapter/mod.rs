//! The adapter: one per port, owner of everything. Progress, and the end of the device.

pub(crate) mod census;
pub(crate) mod config;
pub(crate) mod device;
pub(crate) mod events;
pub(crate) mod masked;
pub(crate) mod objects;
pub(crate) mod part;
pub(crate) mod progress;
pub(crate) mod recover;
pub(crate) mod storage;

use driver_mlx::{Config, DmaRegion, Error, Hca, HostRegion, Instant, Platform, PortType, Wake};
use ib_port::{PortCounters, PortInfo};

use crate::adapter::census::{AdapterCensus, AdapterCounters};
use crate::adapter::config::{AdapterConfig, OpenError};
use crate::adapter::device::Device;
use crate::adapter::events::DeviceEvents;
use crate::adapter::objects::Objects;
use crate::adapter::part::Parts;
use crate::adapter::progress::Progress;
use crate::adapter::storage::{AdapterParts, log_eq_size};
use crate::base::handle::IaHandle;
use crate::base::types::{CloseFlags, IaAddress};
use crate::conn::Connections;
use crate::conn::pending::Pending;
use crate::ep::endpoints::Endpoints;
use crate::evd::delivery::Delivery;
use crate::evd::dispatchers::Dispatchers;
use crate::ia::listing::AdapterId;
use crate::mem::Memory;
use crate::srq::QueuePairs;

/// Bytes of the encapsulation header of IP over InfiniBand (RFC 4391, 6).
const ENCAPSULATION_LEN: u32 = 4;

/// One HCA port with its DAT objects. Everything is called from one thread.
///
/// A facade: the calls of the specification check their arguments and delegate to these parts.
pub struct Adapter<'s, P: Platform> {
    /// The HCA and its port.
    device: Device<'s, P>,
    /// What consumers have made.
    objects: Objects<'s, P::Bar>,
    /// What is due, and what happened.
    progress: Progress,
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// Brings the HCA up, starts QP1 and waits for the port to become active.
    ///
    /// # Errors
    /// [`OpenError`]; what was begun is undone as far as the device lets it.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub fn open(
        platform: P,
        region: DmaRegion,
        host: HostRegion,
        parts: AdapterParts<'s, P::Bar>,
        config: &AdapterConfig<'s>,
    ) -> Result<Self, OpenError> {
        let log_eq_size = log_eq_size(parts.evds.len(), &config.hca);
        let config = AdapterConfig { hca: Config { log_eq_size, ..config.hca }, ..*config };
        let (objects, parts) = Objects::new(parts);
        let mut device = Device::open(platform, region, host, parts, &config)?;
        let connections = Pending::new((device.next_random() >> 32) as u16, config.service_patience);
        Ok(Self { device, objects, progress: Progress::new(connections) })
    }

    /// Closes every IA abruptly and takes the HCA down. Peers are informed as far as one datagram each goes.
    ///
    /// # Errors
    /// The driver's first; the rest is done all the same.
    pub fn close(mut self) -> Result<(), Error> {
        self.close_ias();
        self.device.close()
    }

    /// The HCA and its port.
    #[inline]
    pub(crate) fn device(&self) -> &Device<'s, P> {
        &self.device
    }

    pub(crate) fn device_mut(&mut self) -> &mut Device<'s, P> {
        &mut self.device
    }

    /// What consumers have made.
    pub(crate) fn objects(&self) -> &Objects<'s, P::Bar> {
        &self.objects
    }

    #[inline]
    pub(crate) fn objects_mut(&mut self) -> &mut Objects<'s, P::Bar> {
        &mut self.objects
    }

    /// All parts, for calls that borrow several.
    #[inline]
    pub(crate) fn parts(&mut self) -> Parts<'_, 's, P> {
        Parts { device: &mut self.device, objects: &mut self.objects, progress: &mut self.progress }
    }

    /// The part for what the device reports.
    fn device_events(&mut self) -> DeviceEvents<'_, 's, P> {
        DeviceEvents::new(&mut self.device, &mut self.objects, &mut self.progress)
    }

    /// The part for memory.
    pub(crate) fn memory(&mut self) -> Memory<'_, 's, P> {
        Memory::new(&mut self.device, &mut self.objects)
    }

    /// The part for connections.
    pub(crate) fn connections(&mut self) -> Connections<'_, 's, P> {
        Connections::new(&mut self.device, &mut self.objects, &mut self.progress)
    }

    /// The part for events on EVDs.
    pub(crate) fn dispatchers(&mut self) -> Dispatchers<'_, 's, P> {
        Dispatchers::new(&mut self.device, &mut self.objects, &mut self.progress)
    }

    /// The part that queues events.
    pub(crate) fn delivery(&mut self) -> Delivery<'_, 's, P::Bar> {
        Delivery::new(&mut self.objects, &mut self.progress)
    }

    /// The part for EPs.
    pub(crate) fn endpoints(&mut self) -> Endpoints<'_, 's, P> {
        Endpoints::new(&mut self.device, &mut self.objects, &mut self.progress)
    }

    /// The part for queue pairs.
    pub(crate) fn queue_pairs(&mut self) -> QueuePairs<'_, 's, P> {
        QueuePairs::new(&mut self.device, &mut self.objects, &mut self.progress)
    }

    fn close_ias(&mut self) {
        for slot in self.objects.table::<IaHandle>().slots() {
            if let Some(ia) = self.objects.table().handle_at(slot) {
                let _ = self.ia_close(ia, CloseFlags::Abrupt);
            }
        }
    }

    /// Runs everything that is due: events, page requests, health, management datagrams, connections, time-outs. Says
    /// when it wants to be called again. There is one clock, the platform's: `now` is what it says, read once for everything that the
    /// caller polls.
    pub fn poll(&mut self, now: Instant) -> Wake {
        let hca = self.device_events().take(now);
        let waits = self.delivery().expire_waits(now);
        if self.device.is_dead() {
            // Until it is known that it reaches no memory.
            return hca.earliest(waits);
        }
        self.device_events().notifications();
        let mut port = self.device.poll_port(now);
        if self.device.port_mut().take_ip_news() {
            self.progress.set_happened();
        }
        if self.device.cm().has_event() {
            self.process_cm(now);
        }
        // An idle adapter is polled often, so the part is not made for empty lists.
        let resolving = match self.progress.pending().resolving() {
            0 => Wake::Idle,
            _ => self.connections().advance_all_resolving(now),
        };
        self.dispatchers().look_at_evds();
        if self.device.sink_has_work() {
            self.connections().drain_sink();
        }
        self.endpoints().check_watermarks();
        let closing = match self.progress.pending().closing() {
            0 => Wake::Idle,
            _ => self.connections().progress_all_closing(now),
        };
        let closing = closing.earliest(self.queue_pairs().expire_draining(now));
        // What the steps above made the connection manager say goes out now.
        if self.progress.pending_mut().take_flush() || self.device.cm().poll_at() == Wake::Now {
            port = self.device.port_mut().poll(now);
        }
        if self.device.cm().has_event() {
            return Wake::Now;
        }
        hca.earliest(port).earliest(resolving).earliest(closing).earliest(waits)
    }

    /// Arms the interrupts of the event queues, of QP1 and of every EVD that takes completions, polls once more, and says
    /// whether the loop may idle until the next interrupt or deadline. It may not while upcalls are due.
    pub fn prepare_idle(&mut self, now: Instant) -> bool {
        self.rest(now).is_some()
    }

    /// The same for a loop that sleeps outside the adapter: until when it may ([`Instant::MAX`] for the next interrupt).
    pub fn rest(&mut self, now: Instant) -> Option<Instant> {
        self.rest_besides_upcalls(now).filter(|_| !self.has_upcalls())
    }

    /// As [`Adapter::rest`], for a program that calls its agents on another thread: upcalls that
    /// are due do not keep the loop from sleeping.
    pub fn rest_besides_upcalls(&mut self, now: Instant) -> Option<Instant> {
        if !self.device.is_dead() {
            self.device.arm_cqs();
            self.objects.evds_mut().arm();
            self.device.hca_mut().arm_events();
        }
        let wake = self.poll(now);
        // What happened since the last look counts too: another consumer's call may have queued an event for this one.
        let happened = self.progress.take_happened()
            | self.objects.evds_mut().take_happened()
            | self.objects.cnos_mut().take_happened();
        let quiet =
            !happened && (self.device.is_dead() || !self.device.port().has_work()) && !wake.is_due(now);
        quiet.then_some(wake.deadline(now).unwrap_or(Instant::MAX))
    }

    /// Whether the device is gone.
    pub fn is_dead(&self) -> bool {
        self.device.is_dead()
    }

    /// The platform's monotonic clock.
    ///
    /// The platform itself is not lent, because it leads to every register:
    ///
    /// ```compile_fail,E0599
    /// fn any_register<P: dat_nostd::Platform>(adapter: &dat_nostd::Adapter<'_, P>) -> P::Bar {
    ///     adapter.platform().bar()
    /// }
    /// ```
    pub fn now(&self) -> Instant {
        self.device.now()
    }

    /// Waits for an interrupt or until `deadline`, and may return early.
    pub fn idle(&self, deadline: Instant) {
        self.device.hca().idle(deadline);
    }

    /// The HCA, to look at: capabilities, bring-up times, counters, trace.
    pub fn hca(&self) -> &Hca<'s, P> {
        self.device.hca()
    }

    /// The name of its IAs with RDMA-CM framing: as the embedder calls it, and on Ethernet `roce0` to `roce15` instead of `ib0` to `ib15`.
    pub fn name(&self) -> &'s str {
        self.device.listings().name()
    }

    /// What tells it apart from the other adapters of its [`Registry`](crate::Registry); None before it is registered.
    pub fn id(&self) -> Option<AdapterId> {
        self.device.listings().id()
    }

    /// Extension: this port's address.
    pub fn address(&self) -> IaAddress {
        self.device.address()
    }

    /// Extension: the port's MTU, bytes.
    pub fn mtu(&self) -> u32 {
        self.device.port().info().mtu.bytes()
    }

    /// Extension: the longest IP packet, bytes: the port's MTU less the encapsulation header, or
    /// the payload of an Ethernet frame.
    pub fn ip_mtu(&self) -> u32 {
        let info = self.device.port().info();
        info.ethernet.map_or(info.mtu.bytes().saturating_sub(ENCAPSULATION_LEN), |link| u32::from(link.mtu))
    }

    /// Extension: the port's kind.
    pub fn port_type(&self) -> PortType {
        self.device.port().info().port_type
    }

    /// Extension: whether the port is active.
    pub fn is_up(&self) -> bool {
        !self.device.is_dead() && self.device.port().info().active
    }

    /// How the port stands.
    pub fn port_info(&self) -> &PortInfo {
        self.device.port().info()
    }

    /// The port's counters.
    pub fn port_counters(&self) -> PortCounters {
        self.device.port().counters()
    }

    /// What exists now.
    pub fn census(&self) -> AdapterCensus {
        let connections = self.progress.pending();
        self.objects.census(AdapterCensus {
            closing: connections.closing(),
            resolving: connections.resolving(),
            connections: self.device.cm().slots_in_use(),
            free_bytes: self.device.hca().free_bytes(),
            ..AdapterCensus::default()
        })
    }

    /// Number of objects and completions that all polls and waits together have looked at. Idle
    /// objects are not looked at, however many there are.
    pub fn visits(&self) -> u64 {
        self.progress.visits()
    }

    /// Counters.
    pub fn counters(&self) -> AdapterCounters {
        self.progress.counters()
    }
}
