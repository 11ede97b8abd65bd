//! Two nodes with objects of every kind; calls are judged on node 0.

use crate::common::{Net, Node, Options, Side, address};
use dat_nostd::*;
use harness::WorldConfig;

pub const NONE: CompletionFlags = CompletionFlags::empty();

/// A small shared receive queue.
pub const SRQ: SrqAttributes = SrqAttributes { max_recv_dtos: 8, max_recv_iov: 2, low_watermark: 0 };

/// Handles of objects that lived on node 0.
#[derive(Clone, Copy)]
pub struct Dead {
    pub ia: IaHandle,
    pub pz: PzHandle,
    pub lmr: LmrHandle,
    pub lmr_context: u32,
    pub evd: EvdHandle,
    pub ep: EpHandle,
    pub psp: PspHandle,
    pub rsp: RspHandle,
    pub cno: CnoHandle,
    pub srq: SrqHandle,
    pub rmr: RmrHandle,
    pub cr: CrHandle,
}

/// Objects of node 1.
#[derive(Clone, Copy)]
pub struct Foreign {
    pub psp: PspHandle,
    pub rsp: RspHandle,
    pub cno: CnoHandle,
    pub srq: SrqHandle,
    pub rmr: RmrHandle,
}

pub struct Bench {
    pub net: Net,
    pub here: Side,
    pub there: Side,
    pub dead: Dead,
    pub foreign: Foreign,
    /// Methods that succeeded in the row that is judged.
    pub succeeded: Vec<&'static str>,
    /// Waits that stay open.
    pub evd_waiters: Vec<EvdWaiter<'static>>,
    pub cno_waiters: Vec<CnoWaiter<'static>>,
    qualifier: u64,
    /// What node 0's EPs take their receives from.
    shared: Option<SrqHandle>,
}

impl Bench {
    pub fn new() -> Self {
        let mut net = Self::bare();
        let mut here = net.side(0, &Options::default());
        let there = net.side(1, &Options::default());
        let node = &mut net.nodes[1];
        let foreign = Foreign {
            psp: node.psp_create(there.ia, 40, there.cr, PspFlags::Consumer).unwrap(),
            rsp: node.rsp_create(there.ia, 39, None, there.cr).unwrap(),
            cno: node.cno_create(there.ia, None).unwrap(),
            srq: node.srq_create(there.ia, there.pz, &SRQ).unwrap(),
            rmr: node.rmr_create(there.pz).unwrap(),
        };
        let a = &mut net.nodes[0];
        // Requests of node 0 include binds.
        a.ep_free(here.ep).unwrap();
        a.evd_free(here.request).unwrap();
        here.request = a.evd_create(here.ia, 64, None, EvdFlags::DTO | EvdFlags::RMR_BIND).unwrap();
        let (pz, connect) = (Some(here.pz), Some(here.connect));
        here.ep = a.ep_create(here.ia, pz, Some(here.recv), Some(here.request), connect, None).unwrap();
        let (ia, _) = a.ia_open("ib0", 8, None).unwrap();
        let pz = a.pz_create(ia).unwrap();
        let memory = a.dma_alloc(4096, 4096).unwrap();
        let lmr = a.lmr_create(ia, &memory, pz, MemPriv::ALL).unwrap();
        let evd = a.evd_create(ia, 8, None, EvdFlags::all() - EvdFlags::ASYNC).unwrap();
        let ep = a.ep_create(ia, Some(pz), Some(evd), Some(evd), Some(evd), None).unwrap();
        let psp = a.psp_create(ia, 9, evd, PspFlags::Consumer).unwrap();
        let rsp = a.rsp_create(ia, 10, None, evd).unwrap();
        let cno = a.cno_create(ia, None).unwrap();
        let srq = a.srq_create(ia, pz, &SRQ).unwrap();
        let rmr = a.rmr_create(pz).unwrap();
        // A request that was refused.
        let mut bench = Self {
            net,
            here,
            there,
            dead: Dead {
                ia,
                pz,
                lmr: lmr.lmr,
                lmr_context: lmr.lmr_context,
                evd,
                ep,
                psp,
                rsp,
                cno,
                srq,
                rmr,
                cr: CrHandle::from_bits(0),
            },
            foreign,
            succeeded: Vec::new(),
            evd_waiters: Vec::new(),
            cno_waiters: Vec::new(),
            qualifier: 1000,
            shared: None,
        };
        let (cr, _) = bench.request();
        let a = &mut bench.net.nodes[0];
        a.cr_reject(cr).unwrap();
        a.ia_close(ia, CloseFlags::Abrupt).unwrap();
        a.dma_free(memory).unwrap();
        bench.dead.cr = cr;
        bench.net.pass(1_000_000);
        bench.drain();
        bench
    }

    /// The same, with a shared receive queue for node 0's EPs.
    pub fn on_shared_queue() -> Self {
        let mut bench = Self::new();
        let h = bench.here;
        bench.shared = Some(bench.a().srq_create(h.ia, h.pz, &SRQ).unwrap());
        bench
    }

    /// Two nodes and nothing made on them.
    pub fn bare() -> Net {
        Net::with_memory(&WorldConfig::new(5), 2, 8 << 20)
    }

    pub fn a(&mut self) -> &mut Node {
        &mut self.net.nodes[0]
    }

    /// Lets node 0 and the devices come to rest. Node 1's software stands still, so what waits for it goes on waiting.
    pub fn settle(&mut self) {
        for _ in 0..4 {
            let now = self.net.world.now();
            let _ = self.net.nodes[0].poll(Instant::from_nanos(now));
            self.net.world.settle(20_000);
        }
    }

    /// Takes all events of both sides' own EVDs.
    pub fn drain(&mut self) {
        for (node, side) in [(0, self.here), (1, self.there)] {
            for evd in [side.recv, side.request, side.connect, side.cr] {
                while self.net.nodes[node].evd_dequeue(evd).is_ok() {}
            }
        }
    }

    /// Bits that are no handle of node 0 of this kind: of an object that is gone, of another adapter, of another kind, beyond
    /// the table, the reserved values, nonsense.
    pub fn no_handles(&self, kind: HandleType) -> Vec<u64> {
        let (here, there, dead) = (&self.here, &self.there, &self.dead);
        let (gone, foreign, wrong) = match kind {
            HandleType::Ia => (dead.ia.bits(), there.ia.bits(), here.pz.bits()),
            HandleType::Pz => (dead.pz.bits(), there.pz.bits(), here.ia.bits()),
            HandleType::Lmr => (dead.lmr.bits(), there.lmr.lmr.bits(), here.ep.bits()),
            HandleType::Evd => (dead.evd.bits(), there.recv.bits(), here.ep.bits()),
            HandleType::Ep => (dead.ep.bits(), there.ep.bits(), here.recv.bits()),
            HandleType::Psp => (dead.psp.bits(), self.foreign.psp.bits(), here.ep.bits()),
            HandleType::Rsp => (dead.rsp.bits(), self.foreign.rsp.bits(), here.cr.bits()),
            HandleType::Cno => (dead.cno.bits(), self.foreign.cno.bits(), here.recv.bits()),
            HandleType::Cr => (dead.cr.bits(), dead.cr.bits() | 1 << 48, here.ep.bits()),
            HandleType::Srq => (dead.srq.bits(), self.foreign.srq.bits(), here.pz.bits()),
            HandleType::Rmr => (dead.rmr.bits(), self.foreign.rmr.bits(), here.lmr.lmr.bits()),
        };
        let mut all = vec![gone, foreign, wrong, gone | 0xffff << 32, gone ^ 0x8000_0000, 0, 1, 2, u64::MAX];
        // No handle of an object that lives.
        all.retain(|bits| *bits != 0 || kind != HandleType::Cr || self.dead.cr.bits() != 0);
        all
    }

    /// An EP of node 0 on its usual EVDs.
    pub fn endpoint(&mut self) -> EpHandle {
        let (h, shared) = (self.here, self.shared);
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        let a = self.a();
        match shared {
            None => a.ep_create(h.ia, Some(h.pz), recv, request, connect, None),
            Some(srq) => {
                a.ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &EpAttributes::DEFAULT)
            }
        }
        .unwrap()
    }

    /// An SRQ of node 0's zone and an EP on it.
    pub fn shared(&mut self) -> (SrqHandle, EpHandle) {
        let h = self.here;
        let a = self.a();
        let srq = a.srq_create(h.ia, h.pz, &SRQ).unwrap();
        let (recv, request, connect) = (Some(h.recv), Some(h.request), Some(h.connect));
        let ep = a.ep_create_with_srq(h.ia, h.pz, recv, request, connect, srq, &EpAttributes::DEFAULT);
        (srq, ep.unwrap())
    }

    fn peer_endpoint(&mut self) -> EpHandle {
        let t = self.there;
        self.net.nodes[1]
            .ep_create(t.ia, Some(t.pz), Some(t.recv), Some(t.request), Some(t.connect), None)
            .unwrap()
    }

    /// A qualifier not used before.
    pub fn qualifier(&mut self) -> u64 {
        self.qualifier += 1;
        self.qualifier
    }

    /// A request of node 1 that waits for node 0's answer, and the EP that asks.
    pub fn request(&mut self) -> (CrHandle, EpHandle) {
        let (h, qualifier) = (self.here, self.qualifier());
        let psp = self.a().psp_create(h.ia, qualifier, h.cr, PspFlags::Consumer).unwrap();
        let ep = self.ask(qualifier, b"please");
        let cr = self.arrived(qualifier);
        self.a().psp_free(psp).unwrap();
        (cr, ep)
    }

    /// The request for a qualifier that arrives at node 0.
    #[track_caller]
    pub fn arrived(&mut self, qualifier: u64) -> CrHandle {
        loop {
            match self.net.event(0, self.here.cr) {
                EventData::ConnectionRequest { cr, conn_qual, .. } if conn_qual == qualifier => return cr,
                EventData::ConnectionRequest { .. } => {}
                other => panic!("not a request: {other:?}"),
            }
        }
    }

    /// An EP of node 1 asks node 0 for this qualifier.
    pub fn ask(&mut self, qualifier: u64, private_data: &[u8]) -> EpHandle {
        let ep = self.peer_endpoint();
        let flags = ConnectFlags::Default;
        self.net.nodes[1]
            .ep_connect(ep, &address(0), qualifier, TIMEOUT_INFINITE, private_data, Qos::BestEffort, flags)
            .unwrap();
        ep
    }

    /// A connection between the two nodes: node 0's EP and node 1's.
    pub fn connection(&mut self) -> (EpHandle, EpHandle) {
        let (cr, peer) = self.request();
        let ep = self.endpoint();
        self.a().cr_accept(cr, Some(ep), b"welcome").unwrap();
        assert_eq!(self.connection_event(0, ep), ConnectionEvent::Established);
        assert_eq!(self.connection_event(1, peer), ConnectionEvent::Established);
        (ep, peer)
    }

    /// The next connection event of an EP; those of others that live on from earlier rows are passed over.
    #[track_caller]
    pub fn connection_event(&mut self, node: usize, wanted: EpHandle) -> ConnectionEvent {
        let evd = [self.here, self.there][node].connect;
        loop {
            match self.net.event(node, evd) {
                EventData::Connection { event, ep, .. } if ep == wanted => return event,
                EventData::Connection { .. } => {}
                other => panic!("not a connection event: {other:?}"),
            }
        }
    }

    /// An EP of node 0 in this state, at rest as long as node 1's software does not run.
    pub fn ep_in(&mut self, state: EpState) -> EpHandle {
        let ep = match state {
            EpState::Unconnected => self.endpoint(),
            EpState::ActiveConnectionPending => {
                let ep = self.endpoint();
                let flags = ConnectFlags::Default;
                self.a()
                    .ep_connect(ep, &address(1), 40, TIMEOUT_INFINITE, b"", Qos::BestEffort, flags)
                    .unwrap();
                ep
            }
            EpState::CompletionPending => {
                let (cr, _) = self.request();
                let ep = self.endpoint();
                self.a().cr_accept(cr, Some(ep), b"").unwrap();
                ep
            }
            EpState::Connected => self.connection().0,
            EpState::DisconnectPending => {
                let (ep, _) = self.connection();
                // A send without a receive keeps a graceful disconnect waiting.
                self.a().ep_post_send(ep, &[], 1, NONE).unwrap();
                self.a().ep_disconnect(ep, CloseFlags::Graceful).unwrap();
                ep
            }
            EpState::Disconnected => {
                let (ep, _) = self.connection();
                self.a().ep_disconnect(ep, CloseFlags::Abrupt).unwrap();
                assert_eq!(self.connection_event(0, ep), ConnectionEvent::Disconnected);
                ep
            }
            EpState::Reserved => self.reserved().0,
            EpState::PassiveConnectionPending => self.passive().0,
            EpState::TentativeConnectionPending => self.tentative().0,
        };
        self.settle();
        assert_eq!(self.a().ep_get_status(ep).unwrap().state, state);
        ep
    }

    /// A reserved EP, its service point and the qualifier.
    pub fn reserved(&mut self) -> (EpHandle, RspHandle, u64) {
        let (h, qualifier, ep) = (self.here, self.qualifier(), self.endpoint());
        let rsp = self.a().rsp_create(h.ia, qualifier, Some(ep), h.cr).unwrap();
        (ep, rsp, qualifier)
    }

    /// An EP that a request has found reserved, the request, the service point, and the peer's EP.
    pub fn passive(&mut self) -> (EpHandle, CrHandle, RspHandle, EpHandle) {
        let (ep, rsp, qualifier) = self.reserved();
        let peer = self.ask(qualifier, b"you");
        (ep, self.arrived(qualifier), rsp, peer)
    }

    /// An EP that the provider made for a request, the request, and the peer's EP.
    pub fn tentative(&mut self) -> (EpHandle, CrHandle, EpHandle) {
        let (h, qualifier) = (self.here, self.qualifier());
        let psp = self.a().psp_create(h.ia, qualifier, h.cr, PspFlags::Provider).unwrap();
        let peer = self.ask(qualifier, b"anybody");
        let cr = self.arrived(qualifier);
        self.a().psp_free(psp).unwrap();
        let ep = self.a().cr_query(cr).unwrap().local_ep.expect("the provider's");
        (ep, cr, peer)
    }

    /// EPs of node 0 in all states but these. The order keeps those that wait for node 1 at the end, as making one runs both
    /// nodes.
    pub fn eps_not_in(&mut self, legal: &[EpState]) -> Vec<EpHandle> {
        ALL_STATES.iter().filter(|state| !legal.contains(state)).map(|state| self.ep_in(*state)).collect()
    }
}

/// The states that an EP can be brought to, those that node 1 could end last.
pub const ALL_STATES: &[EpState] = &[
    EpState::Unconnected,
    EpState::Connected,
    EpState::DisconnectPending,
    EpState::Disconnected,
    EpState::Reserved,
    EpState::PassiveConnectionPending,
    EpState::TentativeConnectionPending,
    EpState::CompletionPending,
    EpState::ActiveConnectionPending,
];
