//! Two adapters with the DAT objects that a connection needs, in a blocking style: every wait runs both nodes.

use crate::dat::{self, ModelAdapter, address};
use crate::net::usual_card;
use crate::world::{World, WorldConfig};
use dat_nostd::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatResult, DmaBuffer,
    DtoCompletion, DtoStatus, EpAttributes, EpHandle, EvdFlags, EvdHandle, Event, EventData, IaHandle,
    LmrCreated, LmrTriplet, MemPriv, PspFlags, PspHandle, PzHandle, Qos, RmrTriplet,
};
use driver_mlx::{Instant, Wake};
use hca_model::Profile;
use std::rc::Rc;

/// How long a wait may take, in virtual nanoseconds.
const WAIT: u64 = 120_000_000_000;
/// Bytes of registered memory on each side.
pub const MEMORY: usize = 2 << 20;

/// The objects of one side.
pub struct Side {
    /// The adapter.
    pub adapter: ModelAdapter,
    /// Its IA.
    pub ia: IaHandle,
    /// Protection zone of everything here.
    pub pz: PzHandle,
    /// Receive completions.
    pub receive_evd: EvdHandle,
    /// Request completions.
    pub request_evd: EvdHandle,
    /// Connection events.
    pub connect_evd: EvdHandle,
    /// Connection requests.
    pub cr_evd: EvdHandle,
    /// Registered memory, all rights.
    pub memory: DmaBuffer,
    /// Its registration.
    pub lmr: LmrCreated,
}

/// Two sides: 0 connects, 1 listens.
pub struct Pair {
    /// Their world.
    pub world: Rc<World>,
    /// The sides.
    pub sides: [Side; 2],
}

impl Side {
    fn new(mut adapter: ModelAdapter, name: &str) -> DatResult<Self> {
        let (ia, _) = adapter.ia_open(name, 8, None)?;
        let pz = adapter.pz_create(ia)?;
        let receive_evd = adapter.evd_create(ia, 64, None, EvdFlags::DTO)?;
        let request_evd = adapter.evd_create(ia, 64, None, EvdFlags::DTO)?;
        let connect_evd = adapter.evd_create(ia, 16, None, EvdFlags::CONNECTION)?;
        let cr_evd = adapter.evd_create(ia, 16, None, EvdFlags::CR)?;
        let memory = adapter.dma_alloc(MEMORY, 4096)?;
        let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::ALL)?;
        Ok(Self { adapter, ia, pz, receive_evd, request_evd, connect_evd, cr_evd, memory, lmr })
    }

    /// A new endpoint of this side.
    ///
    /// # Errors
    /// Those of `ep_create`.
    pub fn endpoint(&mut self, attributes: &EpAttributes) -> DatResult<EpHandle> {
        let (receives, requests, connects) = (self.receive_evd, self.request_evd, self.connect_evd);
        self.adapter.ep_create(
            self.ia,
            Some(self.pz),
            Some(receives),
            Some(requests),
            Some(connects),
            Some(attributes),
        )
    }

    /// A segment of the memory.
    #[must_use]
    pub fn local(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet::new(self.lmr.lmr_context, (self.memory.va() + offset) as u64, len as u64)
    }

    /// The same bytes as peers name them.
    #[must_use]
    pub fn remote(&self, offset: usize, len: usize) -> RmrTriplet {
        RmrTriplet::new(self.lmr.rmr_context, self.lmr.registered_address + offset as u64, len as u64)
    }

    /// Posts a receive into the memory at `offset`.
    ///
    /// # Errors
    /// Those of `ep_post_recv`.
    pub fn receive(&mut self, ep: EpHandle, offset: usize, len: usize, cookie: u64) -> DatResult<()> {
        let segment = self.local(offset, len);
        self.adapter.ep_post_recv(ep, &[segment], cookie, CompletionFlags::empty())
    }

    /// Posts a send of the memory at `offset`.
    ///
    /// # Errors
    /// Those of `ep_post_send`.
    pub fn send(&mut self, ep: EpHandle, offset: usize, len: usize, cookie: u64) -> DatResult<()> {
        let segment = self.local(offset, len);
        self.adapter.ep_post_send(ep, &[segment], cookie, CompletionFlags::empty())
    }
}

impl Pair {
    /// Two nodes with adapters and objects; `name` is the IA's.
    ///
    /// # Panics
    /// If anything fails: nothing here may.
    #[must_use]
    pub fn new(config: &WorldConfig, name: &str) -> Self {
        Self::in_world(World::new(config), config.seed, name)
    }

    /// The same in a world that is there already.
    ///
    /// # Panics
    /// If anything fails.
    #[must_use]
    pub fn in_world(world: Rc<World>, seed: u64, name: &str) -> Self {
        Self::of_kinds(world, seed, name, [0, 1].map(|i| Profile::of(usual_card(), i)))
    }

    /// The same with these HCAs.
    ///
    /// # Panics
    /// If anything fails.
    #[must_use]
    pub fn of_kinds(world: Rc<World>, seed: u64, name: &str, profiles: [Profile; 2]) -> Self {
        let adapters = dat::open_all(&world, seed, profiles, 16 << 20).expect("adapters open");
        let sides: Vec<Side> =
            adapters.into_iter().map(|adapter| Side::new(adapter, name).expect("objects")).collect();
        Self { world, sides: sides.try_into().ok().expect("two of them") }
    }

    /// Runs both nodes once, or the devices until somebody has something to do.
    pub fn step(&mut self) {
        let now = self.world.now();
        let wakes = self.sides.each_mut().map(|side| side.adapter.poll(Instant::from_nanos(now)));
        self.world.idle_until(wakes.into_iter().fold(Wake::Idle, Wake::earliest));
    }

    /// Runs both nodes for `duration` virtual nanoseconds.
    pub fn pass(&mut self, duration: u64) {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            let now = self.world.now();
            let wakes = self.sides.each_mut().map(|side| side.adapter.poll(Instant::from_nanos(now)));
            let end = Wake::At(Instant::from_nanos(end));
            self.world.idle_until(wakes.into_iter().fold(end, Wake::earliest));
        }
    }

    /// The next event of `evd` on `side`.
    ///
    /// # Panics
    /// If there is none for two minutes of virtual time.
    pub fn event(&mut self, side: usize, evd: EvdHandle) -> Event {
        let end = self.world.now() + WAIT;
        loop {
            if let Ok(event) = self.sides[side].adapter.evd_dequeue(evd) {
                return event;
            }
            assert!(self.world.now() < end, "no event on side {side} for {} s", WAIT / 1_000_000_000);
            self.step();
        }
    }

    /// The next connection event of `side`.
    ///
    /// # Panics
    /// If there is none, or something else comes.
    pub fn connection_event(&mut self, side: usize) -> (ConnectionEvent, EpHandle) {
        let evd = self.sides[side].connect_evd;
        match self.event(side, evd).data {
            EventData::Connection { event, ep, .. } => (event, ep),
            other => panic!("{other:?} instead of a connection event"),
        }
    }

    /// The next connection request at side 1.
    ///
    /// # Panics
    /// If there is none, or something else comes.
    pub fn request(&mut self) -> CrHandle {
        let evd = self.sides[1].cr_evd;
        match self.event(1, evd).data {
            EventData::ConnectionRequest { cr, .. } => cr,
            other => panic!("{other:?} instead of a request"),
        }
    }

    /// The next completion of `side`, of receives or of requests.
    ///
    /// # Panics
    /// If there is none, or something else comes.
    pub fn completion(&mut self, side: usize, receives: bool) -> DtoCompletion {
        let evd = if receives { self.sides[side].receive_evd } else { self.sides[side].request_evd };
        match self.event(side, evd).data {
            EventData::Dto(dto) => dto,
            other => panic!("{other:?} instead of a completion"),
        }
    }

    /// The next completion of `side` is a success for `cookie`; gives its length.
    ///
    /// # Panics
    /// If it is not.
    pub fn success(&mut self, side: usize, receives: bool, cookie: u64) -> u64 {
        let dto = self.completion(side, receives);
        assert_eq!((dto.status, dto.user_cookie), (DtoStatus::Success, cookie), "{dto:?}");
        dto.transferred_length
    }

    /// Side 1 listens.
    ///
    /// # Errors
    /// Those of `psp_create`.
    pub fn listen(&mut self, qualifier: u64) -> DatResult<PspHandle> {
        let side = &mut self.sides[1];
        side.adapter.psp_create(side.ia, qualifier, side.cr_evd, PspFlags::Consumer)
    }

    /// Side 0 asks side 1 for a connection.
    ///
    /// # Errors
    /// Those of `ep_connect`.
    pub fn ask(&mut self, ep: EpHandle, qualifier: u64, timeout_us: u32, private: &[u8]) -> DatResult<()> {
        let flags = ConnectFlags::Default;
        let adapter = &mut self.sides[0].adapter;
        adapter.ep_connect(ep, &address(1), qualifier, timeout_us, private, Qos::BestEffort, flags)
    }

    /// Connects two new endpoints; `prepare` may post receives before anybody can send.
    ///
    /// # Panics
    /// If anything fails.
    pub fn connect(
        &mut self,
        qualifier: u64,
        attributes: &EpAttributes,
        prepare: impl FnOnce(&mut [Side; 2], [EpHandle; 2]),
    ) -> [EpHandle; 2] {
        let psp = self.listen(qualifier).expect("listens");
        let eps = self.sides.each_mut().map(|side| side.endpoint(attributes).expect("endpoint"));
        prepare(&mut self.sides, eps);
        self.ask(eps[0], qualifier, 30_000_000, b"from the active side").expect("asks");
        let cr = self.request();
        let adapter = &mut self.sides[1].adapter;
        assert!(adapter.cr_query(cr).expect("lives").private_data.starts_with(b"from the active side"));
        adapter.cr_accept(cr, Some(eps[1]), b"from the passive side").expect("accepts");
        for side in [0, 1] {
            assert_eq!(self.connection_event(side), (ConnectionEvent::Established, eps[side]));
        }
        let data = self.sides[0].adapter.ep_private_data(eps[0]).expect("lives");
        assert!(data.starts_with(b"from the passive side"));
        self.sides[1].adapter.psp_free(psp).expect("freed");
        eps
    }

    /// Disconnects: both sides hear of it.
    ///
    /// # Panics
    /// If they do not.
    pub fn disconnect(&mut self, eps: [EpHandle; 2]) {
        self.sides[0].adapter.ep_disconnect(eps[0], CloseFlags::Graceful).expect("disconnects");
        for side in [0, 1] {
            assert_eq!(self.connection_event(side), (ConnectionEvent::Disconnected, eps[side]));
        }
    }

    /// Frees everything, closes both adapters, and checks that nothing stays behind and nothing was refused.
    ///
    /// # Panics
    /// If something does.
    pub fn finish(mut self, eps: &[[EpHandle; 2]]) {
        for pair in eps {
            for (side, ep) in self.sides.iter_mut().zip(pair) {
                side.adapter.ep_free(*ep).expect("EP freed");
            }
        }
        self.pass(1_000_000_000);
        for (node, side) in self.sides.into_iter().enumerate() {
            let Side { mut adapter, ia, pz, receive_evd, request_evd, connect_evd, cr_evd, memory, lmr } =
                side;
            adapter.lmr_free(lmr.lmr).expect("LMR freed");
            adapter.dma_free(memory).expect("memory freed");
            for evd in [receive_evd, request_evd, connect_evd, cr_evd] {
                adapter.evd_free(evd).expect("EVD freed");
            }
            adapter.pz_free(pz).expect("PZ freed");
            adapter.ia_close(ia, CloseFlags::Graceful).expect("IA closed, nothing left in it");
            let counters = adapter.counters();
            assert_eq!((counters.bad_completions, counters.overflows), (0, 0));
            adapter.close().expect("adapter closed");
            assert_eq!(self.world.census(node).total(), 0, "left behind: {}", self.world.census(node));
            assert_eq!(self.world.refusals(node), [""; 0]);
        }
    }
}
