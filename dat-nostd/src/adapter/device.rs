//! The HCA of an adapter, its port and its addresses.

use core::mem;
use core::net::{Ipv4Addr, Ipv6Addr};

use driver_mlx::{
    Cq, CqConfig, CqNumber, DmaRegion, Duration, Error, Hca, HcaParts, HostRegion, Instant, Platform,
    PortType, Wake,
};
use ib_port::ib_mgmt::cm::{Cm, ConnId};
use ib_port::ib_mgmt::ipoib::NeighbourState;
use ib_port::{AddressResolution, Ip, Port, PortConfig, PortParts, gid_of};

use crate::adapter::config::{AdapterConfig, Neighbour, OpenError};
use crate::base::log::log;
use crate::base::random::Random;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::IaAddress;
use crate::ep::MAX_DTOS;
use crate::ia::listing::Listings;
use crate::mem::lmr::creation_error;
use crate::srq::queue::MAX_SRQ_DTOS;
use crate::srq::sink::Sink;

/// Distance of looks at the port while waiting for it to become active.
const ACTIVATION_STEP: Duration = Duration::from_millis(10);

/// The HCA of an adapter, its port and its addresses.
pub(crate) struct Device<'s, P: Platform> {
    hca: Hca<'s, P>,
    port: Port<'s, P::Bar>,
    sink: Sink<P::Bar>,
    address: IaAddress,
    neighbours: &'s [Neighbour],
    random: Random,
    /// The device is gone.
    dead: bool,
    /// Completions that every CQ has room for at least.
    min_completions: u32,
    /// Its names, and which of them are registered.
    listings: Listings<'s>,
}

impl<'s, P: Platform> Device<'s, P> {
    /// Brings the HCA up, starts QP1 and waits for the port to become active.
    ///
    /// # Errors
    /// [`OpenError`]; what was begun is undone as far as the device lets it.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(super) fn open(
        platform: P,
        region: DmaRegion,
        host: HostRegion,
        (hca, port): (HcaParts<'s>, PortParts<'s>),
        config: &AdapterConfig<'s>,
    ) -> Result<Self, OpenError> {
        let mut hca = Hca::bring_up(platform, region, host, hca, &config.hca)?;
        let mut random = Random::new(config.seed, config.generation);
        let ip = match config.address {
            IaAddress::V4(address) => config.ip.map(|ip| (address, ip)),
            IaAddress::V6(_) => None,
        };
        let address = Some(config.address);
        let port_config =
            PortConfig { seed: random.next_u64(), sa: config.sa, ip, address, vlan: config.vlan };
        let mut port = match Port::open(&mut hca, port, &port_config) {
            Ok(port) => port,
            Err(error) => {
                // The first error is the one to report.
                let _ = hca.tear_down();
                return Err(error.into());
            }
        };
        let result = wait_active(&mut hca, &mut port, config.activation_timeout)
            .and_then(|()| hca.create_cq(&CqConfig { entries: 1, eq: 0 }).map_err(OpenError::Hca));
        let sink = match result {
            Ok(cq) => Sink::new(cq),
            Err(error) => {
                let _ = port.close(&mut hca);
                let _ = hca.tear_down();
                return Err(error);
            }
        };
        let info = port.info();
        log!(
            info,
            "dat: {=str} open: port active {=bool}, LID {=u16}, SM LID {=u16}, MTU {=u32}",
            config.name,
            info.active,
            info.lid.get(),
            info.sm_lid.get(),
            info.mtu.bytes()
        );
        let port_type = info.port_type;
        Ok(Self {
            hca,
            port,
            sink,
            address: config.address,
            neighbours: config.neighbours,
            random,
            dead: false,
            min_completions: config.min_completions,
            listings: Listings::new(config.name, port_type),
        })
    }

    /// Sends queued messages, if the device is alive, and takes the HCA down.
    ///
    /// # Errors
    /// The driver's first; the rest is done all the same.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(super) fn close(mut self) -> Result<(), Error> {
        self.flush();
        let Self { mut hca, port, sink, .. } = self;
        let port = port.close(&mut hca);
        let cq = hca.destroy_cq(sink.into_cq());
        let down = hca.tear_down();
        port.and(cq).and(down)
    }

    /// Brings port and sink back after a recovery of the HCA, and waits for the port to become active. The device is
    /// dead again if that fails.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(super) fn reopen(&mut self, activation_timeout: Duration) -> Result<(), OpenError> {
        let active = self.reopen_port().map_err(OpenError::Hca).and_then(|()| {
            while self.hca.next_event().is_some() {}
            wait_active(&mut self.hca, &mut self.port, activation_timeout)
        });
        self.dead = matches!(active, Err(OpenError::Hca(_)));
        if self.dead {
            // The next attempt begins with the reset again.
            self.hca.recovery_failed();
        }
        active
    }

    fn reopen_port(&mut self) -> Result<(), Error> {
        let seed = self.random.next_u64();
        self.port.reopen(&mut self.hca, seed)?;
        let cq = self.hca.create_cq(&CqConfig { entries: 1, eq: 0 })?;
        self.hca.destroy_cq(mem::replace(&mut self.sink, Sink::new(cq)).into_cq())
    }

    /// The HCA.
    pub(crate) fn hca(&self) -> &Hca<'s, P> {
        &self.hca
    }

    pub(crate) fn hca_mut(&mut self) -> &mut Hca<'s, P> {
        &mut self.hca
    }

    /// The HCA's port.
    pub(crate) fn port(&self) -> &Port<'s, P::Bar> {
        &self.port
    }

    pub(crate) fn port_mut(&mut self) -> &mut Port<'s, P::Bar> {
        &mut self.port
    }

    /// The port's connection manager.
    pub(crate) fn cm(&self) -> &Cm<'s> {
        self.port.cm_ref()
    }

    pub(crate) fn cm_mut(&mut self) -> &mut Cm<'s> {
        self.port.cm()
    }

    /// Packets in and out; `None` without IPoIB, and on a dead device.
    pub(crate) fn ip(&mut self) -> Option<Ip<'_, 's, P::Bar>> {
        let now = self.now();
        if self.dead { None } else { self.port.ip(now) }
    }

    /// The CQ of streams without an EVD.
    pub(crate) fn sink_mut(&mut self) -> &mut Sink<P::Bar> {
        &mut self.sink
    }

    /// The adapter's names.
    pub(crate) fn listings(&self) -> &Listings<'s> {
        &self.listings
    }

    pub(crate) fn listings_mut(&mut self) -> &mut Listings<'s> {
        &mut self.listings
    }

    /// The port's address.
    pub(crate) fn address(&self) -> IaAddress {
        self.address
    }

    /// Returns a number that looks random.
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Returns whether the device is gone.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Marks the device as gone. Returns false if it was already.
    #[must_use]
    pub(super) fn die(&mut self) -> bool {
        !mem::replace(&mut self.dead, true)
    }

    /// Creates a CQ for `entries` completions, and for those that every CQ has room for at least.
    pub(crate) fn create_cq(&mut self, entries: u32) -> DatResult<Cq<P::Bar>> {
        let cq = self.hca.create_cq(&CqConfig { entries: entries.max(self.min_completions), eq: 0 });
        cq.map_err(|error| creation_error(error, Subtype::ResourceTevd))
    }

    /// Returns whether a completion waits in the sink.
    pub(crate) fn sink_has_work(&self) -> bool {
        self.sink.has_work()
    }

    /// Makes the sink hold `entries` completions.
    pub(crate) fn resize_sink(&mut self, entries: u32) -> Result<(), Error> {
        self.sink.resize(&mut self.hca, entries)
    }

    /// Runs the port. Returns when it is due again.
    pub(super) fn poll_port(&mut self, now: Instant) -> Wake {
        let wake = self.port.poll(now);
        self.port.service(&mut self.hca, now);
        wake
    }

    /// Sends the messages that the connection manager has queued, unless the device is dead.
    pub(crate) fn flush(&mut self) {
        if !self.dead {
            let now = self.now();
            let _ = self.port.poll(now);
        }
    }

    /// Reads the port's state again after a change.
    pub(super) fn refresh_port(&mut self, reregister: bool) {
        // Ignore a failed read: a later event or the health check repeats it.
        let _ = self.port.refresh(&mut self.hca, reregister);
    }

    /// Passes the CQs that notified to `take`, except those of the port and of the sink. Returns the number of
    /// notifications.
    pub(super) fn poll_completions(&mut self, mut take: impl FnMut(CqNumber)) -> u32 {
        let Self { hca, port, sink, .. } = self;
        hca.poll_completions(|number| {
            if !port.notified(number) && !sink.notified(number) {
                take(number);
            }
        })
    }

    /// Arms the CQs of the port and of the sink.
    pub(super) fn arm_cqs(&mut self) {
        self.port.arm();
        self.sink.arm();
    }

    /// The port GID that an address is known to have, without an ARP request: this port's, that of the static table, one
    /// that ARP confirmed lately, or on Ethernet the address itself.
    pub(crate) fn known_gid(&mut self, address: &IaAddress) -> Option<[u8; 16]> {
        if *address == self.address {
            return Some(self.port.info().gid.0);
        }
        if let Some(neighbour) = self.neighbour(address) {
            return Some(neighbour.1.0);
        }
        if self.port.info().port_type == PortType::Ethernet {
            return Some(gid_of(*address).0);
        }
        let IaAddress::V4(address) = *address else { return None };
        let now = self.now();
        let ip = self.port.ip(now)?;
        let known = ip.neighbours().find(|neighbour| neighbour.ip == address)?;
        known.hw.filter(|_| known.state == NeighbourState::Reachable).map(|hw| hw.gid.0)
    }

    /// The GID at an address: this port's own, that of the static table, or what ARP finds.
    pub(crate) fn resolve_address(&mut self, now: Instant, address: &IaAddress) -> AddressResolution {
        if *address == self.address || address.is_loopback() {
            return AddressResolution::Known(self.port.info().gid);
        }
        if let Some(neighbour) = self.neighbour(address) {
            return AddressResolution::Known(neighbour.1);
        }
        match address {
            IaAddress::V4(address) => self.port.resolve_address(now, *address),
            IaAddress::V6(address) => self.port.resolve_ipv6(*address),
        }
    }

    /// A peer rejected a REQ that may have reached the wrong port. Returns whether its path must be resolved again.
    pub(crate) fn doubt_path(&mut self, now: Instant, conn: ConnId) -> bool {
        let info = self.port.cm_ref().info(conn);
        info.is_some_and(|info| self.port.doubt_path(now, info.path.dgid()))
    }

    /// An address of the static table.
    fn neighbour(&self, address: &IaAddress) -> Option<&'s Neighbour> {
        self.neighbours.iter().find(|neighbour| neighbour.0 == *address)
    }

    /// What the clock says: for calls that are not given the time.
    pub(crate) fn now(&self) -> Instant {
        self.hca.now()
    }

    /// INTERNAL_ERROR if the device is gone: nothing can be made any more.
    pub(crate) fn usable(&self) -> DatResult<()> {
        if self.dead { Err(DatReturn::new(ReturnType::InternalError)) } else { Ok(()) }
    }

    /// The address that is none, of this port's family.
    pub(crate) fn unspecified(&self) -> IaAddress {
        match self.address {
            IaAddress::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IaAddress::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Bytes of the longest message that the device takes.
    pub(crate) fn longest_message(&self) -> u64 {
        1 << self.hca.caps().log_max_msg.clamp(12, 31)
    }

    /// Operations that an EP may have outstanding in one direction.
    pub(crate) fn max_dtos(&self) -> u32 {
        (1u32 << self.hca.caps().log_max_qp_sz.min(15)).min(MAX_DTOS)
    }

    /// RDMA reads that an EP may have outstanding: as target, and as originator.
    pub(crate) fn max_reads(&self) -> (u32, u32) {
        let caps = self.hca.caps();
        (1 << caps.log_max_ra_res_qp.min(7), 1 << caps.log_max_ra_req_qp.min(7))
    }

    /// Buffers that an SRQ may be asked to hold.
    pub(crate) fn max_srq_dtos(&self) -> u32 {
        MAX_SRQ_DTOS.min((1 << self.hca.caps().log_max_srq_sz.min(15)) - 1)
    }
}

/// Waits until the port is active.
// Code size: inlined, its locals share a frame so large that each access takes four more bytes.
#[inline(never)]
fn wait_active<P: Platform>(
    hca: &mut Hca<'_, P>,
    port: &mut Port<'_, P::Bar>,
    timeout: Duration,
) -> Result<(), OpenError> {
    let start = hca.now();
    let end = start + timeout;
    loop {
        let now = hca.now();
        if port.info().active || timeout.is_zero() {
            return Ok(());
        }
        if now >= end {
            return Err(OpenError::PortNotActive { waited_ms: (now - start).as_millis() as u64 });
        }
        let _ = hca.poll(now);
        while hca.next_event().is_some() {}
        if let Some(syndrome) = hca.fatal() {
            return Err(OpenError::Hca(Error::Fatal(syndrome)));
        }
        port.refresh(hca, false)?;
        if !port.info().active {
            hca.arm_events();
            // A wait may end early, and what is asked of the device is itself a reason for that.
            let next = (now + ACTIVATION_STEP).min(end);
            while hca.now() < next {
                hca.idle(next);
            }
        }
    }
}
