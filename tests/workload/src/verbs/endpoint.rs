//! Queues and memory of a side.

use driver_mlx::{
    Access, Base, Completion, Cq, CqConfig, DmaBuffer, Error, Gid, Grh, Hca, InitParams, MacAddress,
    MemoryRegion, OutOfBounds, Path, Pd, Platform, Psn, Qp, QpConfig, RKey, RtrParams, RtsParams, SendFlags,
    SendOp, ServiceLevel, Sge,
};
use ib_types::Payload;

use super::address::Address;
use super::error::VerbsError;
use super::program::{MAX_LEN, NOTICE_LEN};
use crate::memory;

/// Requests in flight, at most: an operation and its notice, and those before them whose
/// acknowledgement is late.
const SENDS: u32 = 8;
/// Receives. A peer sends nothing while this side has the turn.
const RECEIVES: u32 = 1;
/// Reads and atomics in flight in each direction.
const READS: u8 = 4;
/// Local ACK timeout of about 1.07 s: addresses travel by hand.
const ACK_TIMEOUT: u8 = 18;

const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Parts of the memory, [`MAX_LEN`] bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// The peer writes here.
    Target,
    /// The peer reads here.
    Source,
    /// The word of the peer's atomics.
    Word,
    /// Source of sends and writes.
    Out,
    /// Destination of reads.
    In,
    /// Destination of atomics.
    Fetched,
    /// The receive.
    Receive,
    /// Notices.
    Notice,
}

impl Area {
    const COUNT: usize = Self::Notice as usize + 1;

    const fn offset(self) -> usize {
        self as usize * MAX_LEN
    }
}

pub(super) struct Endpoint<P: Platform> {
    pd: Pd,
    memory: DmaBuffer,
    key: MemoryRegion,
    cq: Cq<P::Bar>,
    qp: Qp<P::Bar>,
    peer: Option<Address>,
    /// Requests in flight.
    outstanding: usize,
    armed: bool,
}

/// The path to the peer's link-local GID, in which its MAC address is.
fn roce_path<P: Platform>(hca: &Hca<'_, P>, own: MacAddress, peer: &Address) -> Result<Path, VerbsError> {
    let dgid = peer.gid.ok_or(VerbsError::Driver(Error::InvalidArgument("gid")))?;
    let dmac = dgid.link_local_mac().ok_or(VerbsError::Driver(Error::InvalidArgument("gid")))?;
    let index = hca.roce_address_index(Gid::link_local(own), None);
    let source_gid_index = index.ok_or(VerbsError::Driver(Error::InvalidArgument("gid")))?;
    let grh = Grh { dgid, source_gid_index, flow_label: 0, hop_limit: 64, traffic_class: 0 };
    Ok(Path::Roce { dmac, priority: 0, grh })
}

impl<P: Platform> Endpoint<P> {
    /// Creates the objects. The QP is in INIT and has its receive.
    pub(super) fn new(hca: &mut Hca<'_, P>) -> Result<Self, VerbsError> {
        let pd = hca.alloc_pd()?;
        let memory = hca.alloc(Area::COUNT * MAX_LEN, 4096)?;
        memory.fill(0, Area::COUNT * MAX_LEN, 0)?;
        let key = hca.register(pd, &memory, Access::LOCAL_WRITE | RIGHTS, Base::Virtual)?;
        let cq = hca.create_cq(&CqConfig { entries: SENDS + RECEIVES, eq: 0 })?;
        let config = QpConfig { max_send_wr: SENDS, max_recv_wr: RECEIVES, ..QpConfig::rc(pd, cq.number()) };
        let mut qp = hca.create_qp(&config)?;
        hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access: RIGHTS })?;
        let mut endpoint = Self { pd, memory, key, cq, qp, peer: None, outstanding: 0, armed: false };
        endpoint.post_receive()?;
        Ok(endpoint)
    }

    pub(super) fn address(&self, hca: &mut Hca<'_, P>, psn: Psn) -> Result<Address, VerbsError> {
        let port = hca.port()?;
        let gid = match port.ethernet() {
            Some(link) => {
                let own = Gid::link_local(link.mac);
                hca.add_roce_address(own, None)?;
                own
            }
            None => hca.gid(0)?,
        };
        Ok(Address {
            qpn: self.qp.number(),
            psn,
            lid: port.lid(),
            gid: Some(gid),
            rkey: self.key.rkey(),
            addr: self.key.address(),
        })
    }

    /// Brings the QP to RTS.
    pub(super) fn connect(
        &mut self,
        hca: &mut Hca<'_, P>,
        peer: &Address,
        psn: Psn,
    ) -> Result<(), VerbsError> {
        let port = hca.port()?;
        let path = match port.ethernet() {
            Some(link) => roce_path(hca, link.mac, peer)?,
            None => Path::InfiniBand {
                dlid: peer.lid,
                sl: ServiceLevel::default(),
                src_path_bits: 0,
                static_rate: 0,
                grh: None,
            },
        };
        let rtr = RtrParams {
            path,
            mtu: port.mtu,
            remote_qpn: peer.qpn,
            rq_psn: peer.psn,
            responder_resources: READS,
            min_rnr_timer: 12,
        };
        hca.modify_to_rtr(&mut self.qp, &rtr)?;
        let rts = RtsParams {
            sq_psn: psn,
            ack_timeout: ACK_TIMEOUT,
            retry_count: 7,
            rnr_retry: 7,
            initiator_depth: READS,
        };
        hca.modify_to_rts(&mut self.qp, &rts)?;
        self.peer = Some(*peer);
        Ok(())
    }

    /// Returns an area of the peer as requests address it.
    pub(super) fn remote(&self, area: Area) -> Result<(u64, RKey), VerbsError> {
        let peer = self.peer.ok_or(OutOfBounds)?;
        Ok((peer.addr.wrapping_add(area.offset() as u64), peer.rkey))
    }

    pub(super) fn fill(&self, area: Area, len: usize, payload: Payload) -> Result<(), VerbsError> {
        Ok(memory::fill(self.memory.as_slice(), area.offset(), len, payload, 0)?)
    }

    pub(super) fn mismatch(&self, area: Area, len: usize, payload: Payload) -> Option<usize> {
        memory::mismatch(self.memory.as_slice(), area.offset(), len, payload, 0)
    }

    pub(super) fn read(&self, area: Area, bytes: &mut [u8]) -> Result<(), VerbsError> {
        Ok(self.memory.read(area.offset(), bytes)?)
    }

    fn sge(&self, area: Area, len: usize) -> Sge {
        let address = self.key.address() + area.offset() as u64;
        Sge { address, length: len as u32, lkey: self.key.lkey() }
    }

    pub(super) fn post_receive(&mut self) -> Result<(), VerbsError> {
        let sge = self.sge(Area::Receive, MAX_LEN);
        Ok(self.qp.post_recv(&[sge], 0)?)
    }

    pub(super) fn post(&mut self, op: SendOp, area: Area, len: usize) -> Result<(), VerbsError> {
        let doorbell = self.qp.post_send(op, &[self.sge(area, len)], 0, SendFlags::SIGNALED)?;
        self.qp.ring(doorbell);
        self.outstanding += 1;
        Ok(())
    }

    pub(super) fn send(&mut self, notice: &[u8; NOTICE_LEN]) -> Result<(), VerbsError> {
        self.memory.write(Area::Notice.offset(), notice)?;
        self.post(SendOp::Send, Area::Notice, NOTICE_LEN)
    }

    /// Returns whether everything posted has completed.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    pub(super) fn completion(&mut self) -> Result<Option<Completion>, VerbsError> {
        let retired = self.cq.poll(|cqe| self.qp.retire(cqe))?.flatten();
        if matches!(retired, Some(Completion::Sent(_))) {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        Ok(retired)
    }

    /// Requests an interrupt at the next completion.
    pub(super) fn arm(&mut self, hca: &mut Hca<'_, P>) {
        if !self.armed {
            self.cq.arm(false);
            self.armed = true;
        }
        hca.arm_events();
    }

    /// Takes completion events. Returns whether there was one.
    pub(super) fn notified(&mut self, hca: &mut Hca<'_, P>) -> bool {
        let Self { cq, armed, .. } = self;
        hca.poll_completions(|number| {
            if cq.number() == number {
                cq.notified();
                *armed = false;
            }
        }) > 0
    }

    pub(super) fn close(self, hca: &mut Hca<'_, P>) -> Result<(), VerbsError> {
        hca.destroy_qp(self.qp)?;
        hca.destroy_cq(self.cq)?;
        hca.deregister(self.key)?;
        hca.free(self.memory)?;
        Ok(hca.dealloc_pd(self.pd)?)
    }
}
