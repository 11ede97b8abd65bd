//! A peer without RDS: a DAT consumer that connects as RDS does and posts frames of its own making. What it does with that is others'
//! affair.

use dat_nostd::{
    CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DtoOperation, DtoStatus, EpAttributes,
    EpHandle, EpState, EvdFlags, EvdHandle, EventData, IaHandle, LmrCreated, LmrTriplet, MemPriv, PspFlags,
    PzHandle, Qos, RmrTriplet,
};
use driver_mlx::DmaBuffer;
use harness::dat::{ModelAdapter, address};
use rds_nostd::wire::SERVICE_PORT;

/// Where frames are sent from, and as many places where they are received; each is at least as long as the longest SEND.
pub const SLOTS: usize = 32;
const SLOT: usize = 8192;
/// Requests, and receives, that an endpoint takes.
pub const DEPTH: usize = 16;

/// What happened to it.
#[derive(Clone, Copy, Debug)]
pub enum Heard {
    /// A connection stands, or has gone, or never came to be.
    Connection(EpHandle, ConnectionEvent),
    /// Somebody asks for one.
    Request(CrHandle),
    /// A frame came into this place.
    Frame(EpHandle, usize),
}

pub struct Raw {
    pub adapter: ModelAdapter,
    ia: IaHandle,
    pz: PzHandle,
    dto: EvdHandle,
    connect: EvdHandle,
    demand: EvdHandle,
    memory: DmaBuffer,
    registered: LmrCreated,
    next_slot: usize,
}

impl Raw {
    pub fn new(mut adapter: ModelAdapter) -> Self {
        let (ia, _) = adapter.ia_open("ib0", 8, None).expect("opens");
        let pz = adapter.pz_create(ia).expect("a zone");
        let dto = adapter.evd_create(ia, 512, None, EvdFlags::DTO).expect("an EVD");
        let connect = adapter.evd_create(ia, 64, None, EvdFlags::CONNECTION).expect("an EVD");
        let demand = adapter.evd_create(ia, 16, None, EvdFlags::CR).expect("an EVD");
        adapter.psp_create(ia, u64::from(SERVICE_PORT), demand, PspFlags::Consumer).expect("nobody listens");
        let memory = adapter.dma_alloc(2 * SLOTS * SLOT, 4096).expect("memory");
        let registered = adapter.lmr_create(ia, &memory, pz, MemPriv::ALL).expect("registers");
        Self { adapter, ia, pz, dto, connect, demand, memory, registered, next_slot: 0 }
    }

    /// The next event.
    pub fn hear(&mut self) -> Option<Heard> {
        while let Ok(event) = self.adapter.evd_dequeue(self.dto) {
            if let EventData::Dto(done) = event.data
                && done.operation == DtoOperation::Receive
                && done.status == DtoStatus::Success
            {
                return Some(Heard::Frame(done.ep, done.user_cookie as usize));
            }
        }
        while let Ok(event) = self.adapter.evd_dequeue(self.connect) {
            if let EventData::Connection { event, ep, .. } = event.data {
                return Some(Heard::Connection(ep, event));
            }
        }
        while let Ok(event) = self.adapter.evd_dequeue(self.demand) {
            if let EventData::ConnectionRequest { cr, .. } = event.data {
                return Some(Heard::Request(cr));
            }
        }
        None
    }

    fn segment(&self, slot: usize, len: usize) -> LmrTriplet {
        let address = self.registered.registered_address + (slot * SLOT) as u64;
        LmrTriplet::new(self.registered.lmr_context, address, len as u64)
    }

    /// An endpoint without receives: its peer waits until there is one.
    pub fn endpoint(&mut self) -> Option<EpHandle> {
        let depth = DEPTH as u32;
        let attributes =
            EpAttributes { max_recv_dtos: depth, max_request_dtos: depth, ..EpAttributes::DEFAULT };
        let evds = (Some(self.dto), Some(self.dto), Some(self.connect));
        self.adapter.ep_create(self.ia, Some(self.pz), evds.0, evds.1, evds.2, Some(&attributes)).ok()
    }

    /// Posts a receive of so many bytes.
    pub fn post_receive(&mut self, ep: EpHandle, slot: usize, len: usize) {
        let segment = self.segment(SLOTS + slot, len);
        let _ = self.adapter.ep_post_recv(ep, &[segment], slot as u64, CompletionFlags::empty());
    }

    /// Asks a node for a connection, with this private data. False if that cannot be.
    pub fn ask(&mut self, ep: EpHandle, node: usize, microseconds: u32, data: &[u8]) -> bool {
        let (to, port) = (address(node), u64::from(SERVICE_PORT));
        let default = ConnectFlags::Default;
        self.adapter.ep_connect(ep, &to, port, microseconds, data, Qos::BestEffort, default).is_ok()
    }

    pub fn is_connected(&self, ep: EpHandle) -> bool {
        self.adapter.ep_get_status(ep).is_ok_and(|status| status.state == EpState::Connected)
    }

    /// Sends these bytes as a frame. False if the endpoint has no room.
    pub fn post(&mut self, ep: EpHandle, bytes: &[u8]) -> bool {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        self.memory.write(slot * SLOT, bytes).expect("in range");
        let segment = self.segment(slot, bytes.len());
        self.adapter.ep_post_send(ep, &[segment], 0, CompletionFlags::SOLICITED_WAIT).is_ok()
    }

    /// Reads or writes memory of the peer, whatever comes of it.
    pub fn reach(&mut self, ep: EpHandle, remote: &RmrTriplet, write: bool) {
        let segment = [self.segment(0, remote.segment_length as usize)];
        let none = CompletionFlags::empty();
        let _ = if write {
            self.adapter.ep_post_rdma_write(ep, &segment, 0, remote, none)
        } else {
            self.adapter.ep_post_rdma_read(ep, &segment, 0, remote, none)
        };
    }
}
