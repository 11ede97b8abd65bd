//! The adapter: one per port, owner of everything. Progress, and the end of the device.

use core::fmt;

use driver_mlx::{
    AsyncEvent, Config, Cq, CqConfig, CqNumber, DmaRegion, Error, Gid, Hca, Platform, QpNumber,
};
use ib_port::ib_mgmt::sa::ClientConfig;
use ib_port::{IpConfig, Port, PortConfig, PortCounters, PortInfo};

use crate::bind::Binds;
use crate::cno::Cno;
use crate::cr::Cr;
use crate::ep::Ep;
use crate::evd::{Evd, Notification};
use crate::event::AsyncError;
use crate::handle::*;
use crate::ia::Ia;
use crate::memory::{Lmr, Pz};
use crate::queue::EventPool;
use crate::random::Random;
use crate::ret::{DatResult, DatReturn, ReturnType};
use crate::rmr::Rmr;
use crate::service::{Psp, Rsp};
use crate::srq::Srq;
use crate::states::{EpEvent, SrqEvent};
use crate::storage::AdapterParts;
use crate::table::Table;
use crate::types::{EpState, IaAddress};

/// Completions of one EVD looked at in one poll.
const LOOK_AHEAD: u32 = 256;
/// Distance of looks at the port while waiting for it to become active, nanoseconds.
const ACTIVATION_STEP: u64 = 10_000_000;

/// Event of a QP that got its first packet before its confirmation (PRM, event types).
const COMMUNICATION_ESTABLISHED: u8 = 0x02;
/// Port change by which the subnet manager asks its clients to come again (PRM, port state change event).
const CLIENT_REREGISTER: u8 = 0x09;

/// An address and the port that has it.
pub type Neighbour = (IaAddress, Gid);

/// What the embedder chooses.
#[derive(Clone, Copy, Debug)]
pub struct AdapterConfig<'s> {
    /// The adapter's name: that of its IAs with RDMA-CM framing, and with `-dat` behind it of those with our own.
    pub name: &'s str,
    /// This port's address.
    pub address: IaAddress,
    /// Other ports' addresses that are not asked for by ARP. Without IP, the only ones that can be connected to.
    pub neighbours: &'s [Neighbour],
    /// IP over InfiniBand at this port's address, which then must be an IPv4 one; `None` for none.
    pub ip: Option<IpConfig>,
    /// Tells adapters of one node apart in handles.
    pub id: u8,
    /// Source of all randomness.
    pub seed: u128,
    /// Differs from boot to boot.
    pub generation: u64,
    /// The HCA's settings.
    pub hca: Config,
    /// How long to wait for the port to become active, nanoseconds; 0 not at all.
    pub activation_timeout: u64,
    /// Questions to the subnet administrator.
    pub sa: ClientConfig,
}

impl<'s> AdapterConfig<'s> {
    /// Defaults beside what has none: half a minute for the port, one second and three tries for the subnet administrator; IP
    /// unless there is a static table of neighbours.
    pub fn new(name: &'s str, address: IaAddress, neighbours: &'s [Neighbour], seed: u128) -> Self {
        Self {
            name,
            address,
            neighbours,
            ip: (neighbours.is_empty() && address.is_ipv4()).then_some(IpConfig::DEFAULT),
            id: 0,
            seed,
            generation: 0,
            hca: Config::DEFAULT,
            activation_timeout: 30_000_000_000,
            sa: ClientConfig::default(),
        }
    }
}

/// Why an adapter could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The HCA.
    Hca(Error),
    /// The port did not become active.
    PortNotActive {
        /// How long was waited, milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Hca(error) => error.fmt(f),
            OpenError::PortNotActive { waited_ms } => write!(
                f,
                "the port did not become active in {waited_ms} ms: no link, or no subnet manager on the fabric"
            ),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        OpenError::Hca(error)
    }
}

/// What went by, beside the port's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterCounters {
    /// Completions that the device cannot have meant.
    pub bad_completions: u64,
    /// Completions of EPs that are gone.
    pub stale_completions: u64,
    /// EVDs that lost an event.
    pub overflows: u64,
}

/// What exists, to compare one moment with another: nothing may leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Live objects of the kind named.
pub struct AdapterCensus {
    pub ias: usize,
    pub pzs: usize,
    pub lmrs: usize,
    pub evds: usize,
    pub eps: usize,
    pub psps: usize,
    pub rsps: usize,
    pub crs: usize,
    pub cnos: usize,
    pub srqs: usize,
    pub rmrs: usize,
    /// Events queued in software.
    pub events: u32,
    /// Places of the event pool that EVDs have reserved.
    pub events_reserved: u32,
    /// EPs on their way to disconnected, and those that wait for a path.
    pub closing: u32,
    pub resolving: u32,
    /// Connections in the connection manager, those in TimeWait included.
    pub connections: usize,
    /// Bytes of the DMA region that are not in use.
    pub free_bytes: usize,
}

/// What completions change beside their EP.
pub(crate) struct Shared<'s> {
    pub(crate) srqs: Table<'s, SrqHandle, Srq>,
    pub(crate) rmrs: Table<'s, RmrHandle, Rmr>,
    pub(crate) binds: Binds<'s>,
}

/// One HCA port with its DAT objects. Everything is called from one thread.
pub struct Adapter<'s, P: Platform> {
    pub(crate) hca: Hca<'s, P>,
    pub(crate) port: Port<'s, P::Bar>,
    pub(crate) null_cq: Cq<P::Bar>,
    pub(crate) name: &'s str,
    pub(crate) address: IaAddress,
    pub(crate) neighbours: &'s [Neighbour],
    pub(crate) ias: Table<'s, IaHandle, Ia>,
    pub(crate) pzs: Table<'s, PzHandle, Pz>,
    pub(crate) lmrs: Table<'s, LmrHandle, Lmr>,
    pub(crate) evds: Table<'s, EvdHandle, Evd<P::Bar>>,
    pub(crate) eps: Table<'s, EpHandle, Ep<P::Bar>>,
    pub(crate) psps: Table<'s, PspHandle, Psp>,
    pub(crate) rsps: Table<'s, RspHandle, Rsp>,
    pub(crate) cnos: Table<'s, CnoHandle, Cno>,
    pub(crate) shared: Shared<'s>,
    pub(crate) crs: Table<'s, CrHandle, Cr>,
    pub(crate) events: EventPool<'s>,
    pub(crate) random: Random,
    pub(crate) counters: AdapterCounters,
    pub(crate) local_port: u16,
    /// EPs that wait for a path; EPs that are closing.
    pub(crate) resolving: u32,
    pub(crate) closing: u32,
    /// EPs with a high watermark.
    pub(crate) watched: u32,
    /// Something happened since `prepare_idle` last asked.
    pub(crate) progress: bool,
    /// The connection manager has something to send.
    pub(crate) flush_port: bool,
    /// The device is gone.
    pub(crate) dead: bool,
    id: u8,
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// Brings the HCA up, starts QP1 and waits for the port to become active.
    ///
    /// # Errors
    /// [`OpenError`]; what was begun is undone as far as the device lets it.
    pub fn open(
        platform: P,
        region: DmaRegion,
        parts: AdapterParts<'s, P::Bar>,
        config: &AdapterConfig<'s>,
    ) -> Result<Self, OpenError> {
        let mut hca = Hca::bring_up(platform, region, parts.hca, &config.hca)?;
        let mut random = Random::new(config.seed, config.generation);
        let ip = match config.address {
            IaAddress::V4(address) => config.ip.map(|ip| (address, ip)),
            IaAddress::V6(_) => None,
        };
        let port_config = PortConfig { seed: random.next_u64(), sa: config.sa, ip };
        let opened = Port::open(&mut hca, parts.port, &port_config);
        let mut port = match opened {
            Ok(port) => port,
            Err(error) => {
                // The first error is the one to tell.
                let _ = hca.tear_down();
                return Err(error.into());
            }
        };
        let result = wait_active(&mut hca, &mut port, config.activation_timeout)
            .and_then(|()| hca.create_cq(&CqConfig { entries: 1, eq: 0 }).map_err(OpenError::Hca));
        let null_cq = match result {
            Ok(cq) => cq,
            Err(error) => {
                let _ = port.close(&mut hca);
                let _ = hca.tear_down();
                return Err(error);
            }
        };
        let id = config.id;
        let local_port = random.next_u32() as u16;
        Ok(Self {
            hca,
            port,
            null_cq,
            name: config.name,
            address: config.address,
            neighbours: config.neighbours,
            ias: Table::new(id, parts.ias),
            pzs: Table::new(id, parts.pzs),
            lmrs: Table::new(id, parts.lmrs),
            evds: Table::new(id, parts.evds),
            eps: Table::new(id, parts.eps),
            psps: Table::new(id, parts.psps),
            rsps: Table::new(id, parts.rsps),
            cnos: Table::new(id, parts.cnos),
            shared: Shared {
                srqs: Table::new(id, parts.srqs),
                rmrs: Table::new(id, parts.rmrs),
                binds: Binds::new(parts.binds),
            },
            crs: Table::new(id, parts.crs),
            events: EventPool::new(parts.events),
            random,
            counters: AdapterCounters::default(),
            local_port,
            resolving: 0,
            closing: 0,
            watched: 0,
            progress: false,
            flush_port: false,
            dead: false,
            id,
        })
    }

    /// Closes every IA abruptly and takes the HCA down. Peers are told as far as one datagram each goes.
    ///
    /// # Errors
    /// The driver's first; the rest is done all the same.
    pub fn close(mut self) -> Result<(), Error> {
        for slot in 0..self.ias.end() {
            if let Some(ia) = self.ias.handle_at(slot) {
                let _ = self.ia_close(ia, crate::types::CloseFlags::Abrupt);
            }
        }
        if !self.dead {
            let now = self.hca.platform().now();
            self.port.poll(now);
        }
        let Self { mut hca, port, null_cq, .. } = self;
        let port = port.close(&mut hca);
        let cq = hca.destroy_cq(null_cq);
        let down = hca.tear_down();
        port.and(cq).and(down)
    }

    /// Runs everything that is due: events, page requests, health, management datagrams, connections, time-outs. Gives the
    /// time by which it wants to be called again (nanoseconds; not after `now` if there is more to do at once).
    pub fn poll(&mut self, now: u64) -> Option<u64> {
        let hca_deadline = self.hca.poll(now);
        while let Some(event) = self.hca.next_event() {
            self.progress = true;
            self.device_event(event);
        }
        if self.hca.fatal().is_some() {
            self.die();
        }
        if self.dead {
            return self.wait_deadline();
        }
        self.notifications();
        let mut port_deadline = self.port.poll(now);
        self.port.service(&mut self.hca, now);
        if self.port.take_ip_news() {
            self.progress = true;
        }
        self.process_cm(now);
        let resolving = self.advance_all_resolving(now);
        for slot in 0..self.evds.end() {
            if self.evds.at(slot).is_some_and(|evd| evd.reserved > 0) {
                self.look_ahead(slot, LOOK_AHEAD);
            }
        }
        self.check_watermarks();
        let closing = self.progress_all_closing(now);
        // What the steps above made the connection manager say goes out now.
        if self.flush_port || self.port.cm_ref().poll_at() == Some(0) {
            self.flush_port = false;
            port_deadline = self.port.poll(now);
        }
        let more = self.port.cm_ref().has_event().then_some(now);
        [Some(hca_deadline), port_deadline, resolving, closing, self.wait_deadline(), more]
            .into_iter()
            .flatten()
            .min()
    }

    /// Completion events: whose CQ may be armed again.
    fn notifications(&mut self) {
        let Self { hca, port, evds, .. } = self;
        let count = hca.poll_completions(|number: CqNumber| {
            if port.notified(number) {
                return;
            }
            for slot in 0..evds.end() {
                if let Some(evd) = evds.at_mut(slot)
                    && let Some(cq) = &mut evd.cq
                    && cq.number() == number
                {
                    cq.notified();
                    evd.armed = false;
                }
            }
        });
        if count > 0 {
            self.progress = true;
        }
    }

    /// Arms the interrupts of the event queues, of QP1 and of every EVD that takes completions, polls once more, and says
    /// whether the loop may idle until the next interrupt or deadline.
    pub fn prepare_idle(&mut self, now: u64) -> bool {
        if !self.dead {
            self.port.arm();
            for slot in 0..self.evds.end() {
                if let Some(evd) = self.evds.at_mut(slot)
                    && evd.reserved > 0
                    && !evd.armed
                    && let Some(cq) = &mut evd.cq
                {
                    cq.arm(evd.notification == Notification::Solicited);
                    evd.armed = true;
                }
            }
            self.hca.arm_events();
        }
        let deadline = self.poll(now);
        // What happened since the last look counts too: another consumer's call may have queued an event for this one.
        !core::mem::take(&mut self.progress)
            && (self.dead || !self.port.has_work())
            && deadline.is_none_or(|deadline| deadline > now)
    }

    /// Sends what the connection manager has to say, if it has.
    pub(crate) fn run_port(&mut self) {
        if self.flush_port && !self.dead {
            self.flush_port = false;
            let now = self.hca.platform().now();
            self.port.poll(now);
        }
    }

    fn device_event(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::Port { change, .. } => {
                // If it cannot be read now, a later event or the health check tells more.
                let _ = self.port.refresh(&mut self.hca, change.0 == CLIENT_REREGISTER);
            }
            AsyncEvent::Qp { qpn, .. } if self.port.qp_failed(qpn) => {}
            AsyncEvent::Qp { qpn, event } => self.qp_event(qpn, event.0 == COMMUNICATION_ESTABLISHED),
            AsyncEvent::CqError { cqn, .. } => self.cq_error(cqn),
            AsyncEvent::QpLastWqe(qpn) => self.last_receive(qpn),
            AsyncEvent::SrqLimit(number) => self.srq_told(number, SrqEvent::Low),
            AsyncEvent::SrqError(number) => self.srq_told(number, SrqEvent::Failed),
            AsyncEvent::Fatal(_) => self.die(),
            AsyncEvent::PagesRefused { .. } => {
                self.async_error(None, AsyncError::ProviderInternalError, Handle::from_bits(0));
            }
            _ => {}
        }
    }

    /// An event of a QP: the first data before the confirmation, or an error that no completion tells of.
    fn qp_event(&mut self, qpn: QpNumber, established: bool) {
        for slot in 0..self.eps.end() {
            let Some(ep) = self.eps.at(slot) else { continue };
            if ep.qpn != qpn || ep.qp.is_none() {
                continue;
            }
            if established {
                self.establish_passive(slot);
            } else {
                let alive = matches!(ep.state, EpState::Connected | EpState::DisconnectPending);
                let (ia, handle) = (ep.ia, self.eps.handle_at(slot));
                self.fail_ep(slot);
                if alive && let Some(handle) = handle {
                    self.async_error(Some(ia), AsyncError::EpBroken, handle.into());
                }
            }
            return;
        }
    }

    /// A CQ failed: its EVD is unusable, and the EPs that use it fail.
    fn cq_error(&mut self, number: CqNumber) {
        for slot in 0..self.evds.end() {
            let Some(evd) = self.evds.at_mut(slot) else { continue };
            if evd.cq.as_ref().is_none_or(|cq| cq.number() != number) || evd.overflowed {
                continue;
            }
            evd.overflowed = true;
            self.counters.overflows += 1;
            let ia = evd.ia;
            let Some(handle) = self.evds.handle_at(slot) else { continue };
            self.async_error(Some(ia), AsyncError::EvdOverflow, handle.into());
            for ep in 0..self.eps.end() {
                if self
                    .eps
                    .at(ep)
                    .is_some_and(|ep| ep.recv_evd == Some(handle) || ep.request_evd == Some(handle))
                {
                    self.fail_ep(ep);
                }
            }
        }
    }

    /// The device is gone: IA_CATASTROPHIC, every connection ends, everything outstanding counts as flushed.
    fn die(&mut self) {
        if self.dead {
            return;
        }
        self.dead = true;
        self.progress = true;
        self.async_error(None, AsyncError::IaCatastrophic, Handle::from_bits(0));
        for slot in 0..self.eps.end() {
            self.end_ep(slot, EpEvent::DeviceGone);
        }
        self.progress_all_closing(0);
    }

    /// Whether the device is gone.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// INTERNAL_ERROR if the device is gone: nothing can be made any more.
    pub(crate) fn usable(&self) -> DatResult<()> {
        if self.dead { Err(DatReturn::new(ReturnType::InternalError)) } else { Ok(()) }
    }

    /// The address that is none, of this port's family.
    pub(crate) fn unspecified(&self) -> IaAddress {
        match self.address {
            IaAddress::V4(_) => core::net::Ipv4Addr::UNSPECIFIED.into(),
            IaAddress::V6(_) => core::net::Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        self.hca.platform()
    }

    /// The HCA, to look at: capabilities, bring-up times, counters, trace.
    pub fn hca(&self) -> &Hca<'s, P> {
        &self.hca
    }

    /// What tells it apart: [`AdapterConfig::id`].
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Extension: this port's address.
    pub fn address(&self) -> IaAddress {
        self.address
    }

    /// Extension: the port's MTU, bytes.
    pub fn mtu(&self) -> u32 {
        self.port.info().mtu.bytes()
    }

    /// Extension: whether the port is active.
    pub fn is_up(&self) -> bool {
        !self.dead && self.port.info().active
    }

    /// How the port stands.
    pub fn port_info(&self) -> &PortInfo {
        self.port.info()
    }

    /// The port's counters.
    pub fn port_counters(&self) -> PortCounters {
        self.port.counters()
    }

    /// What exists now.
    pub fn census(&self) -> AdapterCensus {
        AdapterCensus {
            ias: self.ias.len(),
            pzs: self.pzs.len(),
            lmrs: self.lmrs.len(),
            evds: self.evds.len(),
            eps: self.eps.len(),
            psps: self.psps.len(),
            rsps: self.rsps.len(),
            crs: self.crs.len(),
            cnos: self.cnos.len(),
            srqs: self.shared.srqs.len(),
            rmrs: self.shared.rmrs.len(),
            events: self.events.used(),
            events_reserved: self.events.reserved(),
            closing: self.closing,
            resolving: self.resolving,
            connections: self.port.cm_ref().slots_in_use(),
            free_bytes: self.hca.free_bytes(),
        }
    }

    /// Counters.
    pub fn counters(&self) -> AdapterCounters {
        self.counters
    }
}

/// Waits until the port is active.
fn wait_active<P: Platform>(
    hca: &mut Hca<'_, P>,
    port: &mut Port<'_, P::Bar>,
    timeout: u64,
) -> Result<(), OpenError> {
    let start = hca.platform().now();
    let end = start.saturating_add(timeout);
    loop {
        let now = hca.platform().now();
        if port.info().active || timeout == 0 {
            return Ok(());
        }
        if now >= end {
            return Err(OpenError::PortNotActive { waited_ms: now.saturating_sub(start) / 1_000_000 });
        }
        hca.poll(now);
        while hca.next_event().is_some() {}
        if let Some(syndrome) = hca.fatal() {
            return Err(OpenError::Hca(Error::Fatal(syndrome)));
        }
        port.refresh(hca, false)?;
        if !port.info().active {
            hca.arm_events();
            hca.platform().idle(now.saturating_add(ACTIVATION_STEP).min(end));
        }
    }
}
