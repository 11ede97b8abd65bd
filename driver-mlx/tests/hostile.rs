//! A device that writes what it likes where it likes, and answers registers at random: every call must come back with an
//! answer, nothing may panic, and no drain may go on without end.

use crate::common;

use common::node::kept;
use common::{BLOCKS, ModelBar, ModelRegister, World, host_region};
use driver_mlx::{
    Access, Bar, Base, Config, CqConfig, Duration, Error, Hca, HcaStorage, InitParams, Instant, LKey,
    MapError, Platform, Psn, QpConfig, RtsParams, SendFlags, SendOp, Service, Sge, SrqConfig, WorkQueue,
};
use hca_model::Profile;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A stream of numbers from a seed (xorshift).
#[derive(Clone)]
struct Random(Rc<Cell<u64>>);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Rc::new(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)))
    }

    fn next(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        x
    }

    fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// How the device misbehaves.
#[derive(Clone, Copy)]
struct Malice {
    /// One register read in so many is a lie; 0 for none.
    registers: u64,
    /// Writes into memory at each wait.
    writes: u64,
}

/// A platform on the model, with malice from a certain moment on.
struct Hostile {
    inner: common::ModelPlatform,
    world: Rc<World>,
    random: Random,
    malice: Rc<Cell<Option<Malice>>>,
}

#[derive(Clone, Copy)]
struct HostileBar {
    inner: ModelBar,
    malice: &'static (Random, Rc<Cell<Option<Malice>>>),
}

impl Bar for HostileBar {
    type DoorbellRegister = ModelRegister;

    fn len(&self) -> usize {
        self.inner.len()
    }
    fn read32(&self, offset: usize) -> u32 {
        let (random, malice) = self.malice;
        match malice.get() {
            Some(Malice { registers, .. }) if registers != 0 && random.below(registers) == 0 => {
                random.next() as u32
            }
            _ => self.inner.read32(offset),
        }
    }
    unsafe fn write32(&self, offset: usize, value: u32) {
        assert!(offset + 4 <= self.len(), "a register outside the BAR");
        // SAFETY: this function's contract.
        unsafe { self.inner.write32(offset, value) };
    }
    unsafe fn doorbell_register(&self, offset: usize, len: usize) -> ModelRegister {
        assert!(offset + len <= self.len(), "a register outside the BAR");
        // SAFETY: this function's contract.
        unsafe { self.inner.doorbell_register(offset, len) }
    }
}

impl Platform for Hostile {
    type Bar = HostileBar;

    fn bar(&self) -> HostileBar {
        let malice = Box::leak(Box::new((self.random.clone(), Rc::clone(&self.malice))));
        HostileBar { inner: self.inner.bar(), malice }
    }
    fn uar_write_combining(&self, offset: usize, len: usize) -> Option<HostileBar> {
        Some(HostileBar { inner: self.inner.uar_write_combining(offset, len)?, ..self.bar() })
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn idle(&self, deadline: Instant) {
        self.inner.idle(deadline);
        let Some(malice) = self.malice.get() else { return };
        let memory = self.world.memory(0);
        for _ in 0..malice.writes {
            // The driver's own structures lie at the start of the region.
            let at = self.random.below(memory.len() as u64 / 4) as usize / 8 * 8;
            let value = match self.random.below(4) {
                0 => 0,
                1 => u64::MAX,
                2 => self.random.below(256),
                _ => self.random.next(),
            };
            memory.store_be64(at, value).expect("inside");
        }
    }
    unsafe fn map(&self, _: usize, _: usize, _: bool) -> Result<u64, MapError> {
        Err(MapError::Unsupported)
    }
    unsafe fn unmap(&self, _: u64, _: usize) {}
}

/// Everything a user does, with every error taken as an answer.
fn exercise(seed: u64, during_bring_up: bool, malice: Malice) {
    let world = World::new([Profile::node(0)], FabricConfig::default());
    let switch = Rc::new(Cell::new(during_bring_up.then_some(malice)));
    let random = Random::new(seed);
    let platform = Hostile {
        inner: world.platform(0),
        world: Rc::clone(&world),
        random: random.clone(),
        malice: Rc::clone(&switch),
    };
    let config = Config {
        command_timeout: Duration::from_nanos(1_000_000_000),
        initializing_timeout: Duration::from_nanos(1_000_000_000),
        ..Config::DEFAULT
    };
    let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
    let Ok(mut hca) = Hca::bring_up(platform, world.region(0), host_region(), storage.parts(), &config)
    else {
        return;
    };
    let made = (|| {
        let pd = hca.alloc_pd().ok()?;
        let mut cq = hca.create_cq(&CqConfig { entries: 40, eq: 0 }).ok()?;
        let config = QpConfig { blueflame: seed.is_multiple_of(2), ..QpConfig::rc(pd, cq.number()) };
        let qp = hca.create_qp(&config).ok()?;
        cq.arm(false);
        Some((pd, cq, qp))
    })();
    let Some((pd, mut cq, mut qp)) = made else { return };
    let memory = hca.alloc(65_536, 4096);
    let mut keys_left = 0;
    switch.set(Some(malice));
    for round in 0..40u64 {
        let _ = hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access: Access::empty() });
        let rts = RtsParams {
            sq_psn: Psn::new(0),
            ack_timeout: 1,
            retry_count: 1,
            rnr_retry: 1,
            initiator_depth: 1,
        };
        let _ = hca.modify_to_rts(&mut qp, &rts);
        let _ = (hca.port(), hca.gid(round as u16), hca.pkey(round as u16), hca.query_qp_state(&qp));
        if let Ok(memory) = &memory {
            let dead = hca.fatal().is_some();
            let made = hca.register(pd, memory, Access::LOCAL_WRITE, Base::Virtual);
            // Without an answer there may be a key.
            keys_left += u32::from(!dead && matches!(made, Err(Error::Timeout { .. } | Error::Fatal(_))));
            if let Ok(key) = made {
                let sge = Sge { address: key.address(), length: 100, lkey: key.lkey() };
                let _ = qp.post_recv(&[sge], round);
                if let Ok(doorbell) = qp.post_send(SendOp::Send, &[sge], round, SendFlags::SIGNALED) {
                    qp.ring(doorbell);
                }
                keys_left += u32::from(hca.deregister(key).is_err());
            }
            hca.idle(Instant::from_nanos(world.now() + 1000));
        }
        cq.arm(round.is_multiple_of(2));
        world.pass(1_000_000);
        hca.idle(Instant::from_nanos(world.now() + 1000));
        let _ = hca.poll(Instant::from_nanos(world.now()));
        let mut named = 0;
        assert!(hca.poll_completions(|_| named += 1) <= 512);
        for ahead in 0..70 {
            let _ = cq.peek(ahead);
        }
        // No more than the ring holds can be there at once, as the device is not running meanwhile.
        for taken in 0.. {
            assert!(taken <= 64, "a drain without end");
            match cq.poll(kept) {
                Ok(None) => break,
                Ok(Some(completion)) => {
                    let _ = (qp.retire(&completion), completion.error(), format!("{completion:?}"));
                }
                Err(error) => drop(error.to_string()),
            }
        }
        cq.sweep(qp.number());
        hca.arm_events();
        let mut events = 0;
        while let Some(event) = hca.next_event() {
            drop(event.to_string());
            events += 1;
            assert!(events <= 64);
        }
        let _ = hca.check_health(Instant::from_nanos(world.now()));
    }
    assert!(qp.service() == Service::Rc && qp.send_outstanding() <= 256 && qp.receive_outstanding() <= 32);
    let _ = hca.destroy_qp(qp);
    let _ = hca.destroy_cq(cq);
    if let Ok(memory) = memory {
        // A key that was not given back keeps the buffer; beyond that the driver's own books are out of the device's reach.
        match hca.free(memory) {
            Ok(()) => assert_eq!(keys_left, 0),
            Err(rejected) => assert_eq!((rejected.error, keys_left > 0), (Error::InUse, true)),
        }
    }
    let _ = hca.tear_down();
}

#[test]
fn scribbles_over_shared_memory_are_survived() {
    for seed in 1..=30 {
        exercise(seed, false, Malice { registers: 0, writes: 200 });
    }
}

#[test]
fn a_few_wrong_words_are_survived() {
    for seed in 1..=30 {
        exercise(seed, false, Malice { registers: 0, writes: 3 });
    }
}

#[test]
fn lying_registers_are_survived() {
    for seed in 1..=30 {
        exercise(seed, false, Malice { registers: 5, writes: 0 });
        exercise(seed, true, Malice { registers: 20, writes: 0 });
    }
}

#[test]
fn a_bring_up_under_fire_comes_back() {
    for seed in 1..=30 {
        exercise(seed, true, Malice { registers: 50, writes: 20 });
    }
}

/// What the owner of two queues believes to be outstanding, in the order of the posts, with its WQEBBs.
struct Books {
    next: u64,
    sends: VecDeque<(u64, u16)>,
    receives: VecDeque<u64>,
    shared: Vec<u64>,
}

/// A device that fills all of its memory with completions that name any request, and overwrites all queues with them, cannot make
/// one request retire another's, or twice, or for ever: every `wr_id` comes back once, together with those before it in its queue.
fn account(seed: u64) {
    const OPCODES: [u8; 7] = [0, 1, 2, 3, 4, 13, 14];
    let world = World::new([Profile::node(0)], FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let mut cq = hca.create_cq(&CqConfig { entries: 40, eq: 0 }).expect("a CQ");
    let mut qp = hca.create_qp(&QpConfig::rc(pd, cq.number())).expect("a QP");
    let mut srq = hca.create_srq(&SrqConfig { pd, max_wr: 20, max_sge: 1 }).expect("an SRQ");
    let (memory, random) = (world.memory(0), Random::new(seed));
    let mut books = Books { next: 1, sends: VecDeque::new(), receives: VecDeque::new(), shared: Vec::new() };
    let mut retired = 0;
    for lap in 0..12u8 {
        let sge = Sge { address: 0x1000, length: 64, lkey: LKey::new(0x100) };
        loop {
            let sges = &[sge; 4][..1 + random.below(4) as usize];
            let before = qp.send_outstanding();
            if qp.post_send(SendOp::Send, sges, books.next, SendFlags::SIGNALED).is_err() {
                break;
            }
            books.sends.push_back((books.next, qp.send_outstanding() - before));
            books.next += 1;
        }
        while qp.post_recv(&[sge], books.next).is_ok() {
            books.receives.push_back(books.next);
            books.next += 1;
        }
        while srq.post_recv(&[sge], books.next).is_ok() {
            books.shared.push(books.next);
            books.next += 1;
        }
        // The ring of 64 entries is taken once in each lap, so its owner bit alternates.
        for at in (0..memory.len()).step_by(64) {
            let opcode = OPCODES[random.below(7) as usize];
            let counter = random.below(256) as u16;
            let tail = u64::from(qp.number().get()) << 32
                | u64::from(counter) << 16
                | u64::from(opcode << 4 | lap & 1);
            for quad in 0..7 {
                memory.store_be64(at + quad * 8, random.next()).expect("inside");
            }
            memory.store_be64(at + 56, tail).expect("inside");
        }
        for _ in 0..64 {
            let cqe = cq.poll(kept).expect("an opcode there is").expect("64 of them");
            if random.below(2) == 0 && !cqe.is_send() {
                if let Some(done) = srq.retire(&cqe) {
                    let place = books.shared.iter().position(|id| *id == done.wr_id().id);
                    books.shared.remove(place.expect("posted, and not retired before"));
                    retired += 1;
                }
            } else if let Some(done) = qp.retire(&cqe) {
                let id = done.wr_id().id;
                if cqe.is_send() {
                    let place = books.sends.iter().position(|(posted, _)| *posted == id);
                    let place = place.expect("posted, and not retired before");
                    assert_eq!(usize::from(done.count()), place + 1, "those before it with it");
                    books.sends.drain(..=place);
                } else {
                    assert_eq!((books.receives.pop_front(), done.count()), (Some(id), 1), "in their order");
                }
                retired += 1;
            }
            let wqebbs: u16 = books.sends.iter().map(|(_, wqebbs)| wqebbs).sum();
            assert_eq!(qp.send_outstanding(), wqebbs);
            assert_eq!(usize::from(qp.receive_outstanding()), books.receives.len());
            assert_eq!(usize::from(srq.outstanding()), books.shared.len());
        }
    }
    assert!(retired > 20, "{retired} completions of requests there are");
    for (id, _) in books.sends {
        assert_eq!(qp.flush_next(WorkQueue::Send).map(|wr_id| wr_id.id), Some(id));
    }
    for id in books.receives {
        assert_eq!(qp.flush_next(WorkQueue::Receive).map(|wr_id| wr_id.id), Some(id));
    }
    assert_eq!((qp.flush_next(WorkQueue::Send), qp.flush_next(WorkQueue::Receive)), (None, None));
}

#[test]
fn a_device_cannot_change_the_accounts() {
    for seed in 1..=10 {
        account(seed);
    }
}
