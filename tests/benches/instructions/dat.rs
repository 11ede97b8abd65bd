//! Posts and dequeues of DAT: some connections of one adapter with another.

use crate::lines::Tracer;
pub use crate::platform::BenchAdapter;
use crate::platform::{BenchBar, BenchPlatform};
use crate::{DEQUEUE, MANY_HANDLES, OPERATIONS, POST_WRITE};
use dat_nostd::{
    Adapter, AdapterConfig, CompletionFlags, ConnectFlags, DatResult, DatReturn, DmaBuffer, DtoOperation,
    DtoStatus, Duration, EpAttributes, EpHandle, EvdFlags, EvdHandle, Event, EventData, Instant, LmrCreated,
    LmrTriplet, MemPriv, PspFlags, Qos, RmrTriplet, Wake, adapter_storage,
};
use harness::dat::{address, register};
use harness::net::{gid, usual_card};
use harness::{World, WorldConfig};
use hca_model::Profile;
use std::sync::atomic::{Ordering, compiler_fence};

const LEN: usize = 64;
const PORT: u64 = 7000;
/// Bytes of an adapter's memory: for a thousand endpoints.
const MEMORY: usize = 128 << 20;

adapter_storage! {
    struct Tables {
        bar: BenchBar, dma_bytes: MEMORY, eps: MANY_HANDLES + 8, evds: 8, lmrs: 8, events: 256,
        connections: MANY_HANDLES + 40,
    }
}

#[inline(never)]
fn measured_dat_post_write(
    adapter: &mut BenchAdapter,
    ep: EpHandle,
    local: &LmrTriplet,
    cookie: u64,
    remote: &RmrTriplet,
) -> DatResult<()> {
    adapter.ep_post_rdma_write(ep, std::slice::from_ref(local), cookie, remote, CompletionFlags::empty())
}

#[inline(never)]
fn measured_dat_dequeue(adapter: &mut BenchAdapter, evd: EvdHandle) -> DatResult<Event> {
    adapter.evd_dequeue(evd)
}

#[inline(never)]
fn measured_dat_post_send(
    adapter: &mut BenchAdapter,
    ep: EpHandle,
    local: &LmrTriplet,
    cookie: u64,
) -> DatResult<()> {
    adapter.ep_post_send(ep, std::slice::from_ref(local), cookie, CompletionFlags::empty())
}

#[inline(never)]
fn measured_dat_post_recv(
    adapter: &mut BenchAdapter,
    ep: EpHandle,
    local: &LmrTriplet,
    cookie: u64,
) -> DatResult<()> {
    adapter.ep_post_recv(ep, std::slice::from_ref(local), cookie, CompletionFlags::empty())
}

// Not word for word as the one for requests, or the compiler makes one function of both.
#[inline(never)]
fn measured_dat_dequeue_recv(adapter: &mut BenchAdapter, evd: &EvdHandle) -> DatResult<Event> {
    adapter.evd_dequeue(*evd)
}

// The fence takes no instruction, and keeps the compiler from merging this function with the others.
#[inline(never)]
fn measured_dat_dequeue_empty(adapter: &mut BenchAdapter, evd: EvdHandle) -> DatResult<Event> {
    compiler_fence(Ordering::SeqCst);
    adapter.evd_dequeue(evd)
}

#[inline(never)]
fn measured_dat_poll_idle(adapter: &mut BenchAdapter, now: Instant) -> Wake {
    adapter.poll(now)
}

/// Two adapters of one world.
pub fn adapters(seed: u64) -> [BenchAdapter; 2] {
    let world = World::new(&WorldConfig::new(seed));
    let attached = [0, 1].map(|node| world.attach(Profile::of(usual_card(), node), MEMORY));
    let mut node = 0;
    attached.map(|(platform, region)| {
        let other = 1 - node;
        let neighbours = Box::leak(Box::new([(address(other), gid(usual_card(), other))]));
        let config =
            AdapterConfig::new("ib0", address(node), neighbours, u128::from(seed) << 8 | node as u128);
        let tables = Box::leak(Box::new(Tables::new()));
        node = other;
        let platform = BenchPlatform::new(platform);
        let mut adapter =
            Adapter::open(platform.clone(), region, harness::host_region(), tables.parts(), &config)
                .expect("opens");
        register(&mut adapter, 0);
        BenchAdapter::new(adapter, platform)
    })
}

/// Runs both nodes once.
pub fn step(adapters: &mut [BenchAdapter; 2]) {
    let now = adapters[0].now();
    for adapter in adapters.iter_mut() {
        let _ = adapter.poll(now);
        adapter.platform().ring();
    }
    adapters[0].platform().settle();
    adapters[0].idle(now + Duration::from_nanos(100_000));
}

fn wait(adapters: &mut [BenchAdapter; 2], side: usize, evd: EvdHandle) -> Event {
    for _ in 0..100_000 {
        if let Ok(event) = adapters[side].evd_dequeue(evd) {
            return event;
        }
        step(adapters);
    }
    panic!("no event");
}

/// What an adapter has for it.
pub struct Side {
    /// How transfers and receives end.
    pub transfers: EvdHandle,
    connections: EvdHandle,
    requests: EvdHandle,
    /// Registered memory.
    pub memory: DmaBuffer,
    pub lmr: LmrCreated,
    pub eps: Vec<EpHandle>,
}

impl Side {
    /// So many endpoints, with as many requests and receives at a time each, and memory of so many bytes.
    pub fn new(adapter: &mut BenchAdapter, handles: usize, depth: u32, bytes: usize) -> Self {
        let (ia, _) = adapter.ia_open("ib0", 8, None).expect("IA");
        let pz = adapter.pz_create(ia).expect("PZ");
        let transfers = adapter.evd_create(ia, 4 * depth * handles as u32, None, EvdFlags::DTO).expect("EVD");
        let connections = adapter.evd_create(ia, 64, None, EvdFlags::CONNECTION).expect("EVD");
        let requests = adapter.evd_create(ia, 64, None, EvdFlags::CR).expect("EVD");
        let memory = adapter.dma_alloc(bytes, 4096).expect("memory");
        let lmr = adapter.lmr_create(ia, &memory, pz, MemPriv::ALL).expect("LMR");
        let attributes = EpAttributes {
            max_recv_dtos: depth,
            max_request_dtos: depth,
            max_recv_iov: 1,
            max_request_iov: 1,
            ..EpAttributes::DEFAULT
        };
        let eps = (0..handles)
            .map(|_| {
                adapter
                    .ep_create(
                        ia,
                        Some(pz),
                        Some(transfers),
                        Some(transfers),
                        Some(connections),
                        Some(&attributes),
                    )
                    .expect("EP")
            })
            .collect();
        adapter.psp_create(ia, PORT, requests, PspFlags::Consumer).expect("PSP");
        Self { transfers, connections, requests, memory, lmr, eps }
    }
}

impl Side {
    /// What a handle sends, writes or receives.
    fn segment(&self, handle: usize) -> LmrTriplet {
        let at = (self.memory.va() + handle * LEN) as u64;
        LmrTriplet::new(self.lmr.lmr_context, at, LEN as u64)
    }

    /// The handle whose transfer an event says is done, and the cookie.
    fn done(&self, event: Event, operation: DtoOperation) -> (usize, u64) {
        let EventData::Dto(dto) = event.data else { panic!("{event:?}") };
        assert_eq!((dto.status, dto.transferred_length), (DtoStatus::Success, LEN as u64));
        assert_eq!((event.evd, dto.operation), (self.transfers, operation));
        (self.eps.iter().position(|ep| *ep == dto.ep).expect("one of them"), dto.user_cookie)
    }
}

/// Connects each endpoint of one side with its like of the other.
pub fn connect(adapters: &mut [BenchAdapter; 2], sides: [&Side; 2]) {
    let [near, far] = sides;
    for (from, to) in near.eps.iter().zip(&far.eps) {
        let flags = ConnectFlags::Default;
        adapters[0]
            .ep_connect(*from, &address(1), PORT, 10_000_000, &[], Qos::BestEffort, flags)
            .expect("asks");
        let request = wait(adapters, 1, far.requests);
        let EventData::ConnectionRequest { cr, .. } = request.data else { panic!("{request:?}") };
        adapters[1].cr_accept(cr, Some(*to), &[]).expect("accepts");
        for (side, end) in sides.iter().enumerate() {
            wait(adapters, side, end.connections);
        }
    }
}

/// Makes and checks the operations.
pub fn run(handles: usize) {
    let mut adapters = adapters(2);
    let sides = adapters.each_mut().map(|adapter| Side::new(adapter, handles, 4, handles * LEN));
    connect(&mut adapters, sides.each_ref());

    writes(&mut adapters, &sides, handles);
    sends(&mut adapters, &sides, handles);
    idles(&mut adapters, sides[0].transfers);
}

/// Number of cold endpoints: each gets one operation after all others were used. The first is not measured, because its
/// completion puts the EVD on the fast path.
const COLD: usize = 1 + 100;

/// The cache lines that one operation on a cold endpoint touches at most, by its name.
///
/// # Errors
/// The instructions cannot be traced.
pub fn lines() -> Result<[(&'static str, usize); 2], String> {
    // Away from the stack, whose lines are not counted.
    let mut adapters = Box::new(adapters(4));
    let [near, far] = &adapters.each_mut().map(|adapter| Side::new(adapter, COLD, 4, COLD * LEN));
    connect(&mut adapters, [near, far]);
    let [adapter, _] = &mut *adapters;
    let tracer = Tracer::new(adapter.platform().reached())
        .map_err(|error| format!("instructions cannot be traced: {error}"))?;
    let mut most = [(POST_WRITE, 0), (DEQUEUE, 0)];
    for (handle, &ep) in near.eps.iter().enumerate() {
        let remote = RmrTriplet::new(far.lmr.rmr_context, far.memory.va() as u64, LEN as u64);
        let local = near.segment(handle);
        let (posted, lines) =
            tracer.lines(|| measured_dat_post_write(adapter, ep, &local, handle as u64, &remote));
        posted.expect("posts");
        most[0].1 = most[0].1.max(lines.len());
        adapter.platform().ring();
    }
    adapter.platform().settle();
    near.done(adapter.evd_dequeue(near.transfers).expect("an event"), DtoOperation::RdmaWrite);
    for _ in 1..COLD {
        let (event, lines) = tracer.lines(|| measured_dat_dequeue(adapter, near.transfers));
        near.done(event.expect("an event"), DtoOperation::RdmaWrite);
        most[1].1 = most[1].1.max(lines.len());
    }
    Ok(most)
}

fn idles(adapters: &mut [BenchAdapter; 2], transfers: EvdHandle) {
    // Until the CQs are armed.
    for _ in 0..200 {
        step(adapters);
    }
    let now = adapters[0].now();
    for _ in 0..OPERATIONS {
        assert_ne!(measured_dat_poll_idle(&mut adapters[0], now), Wake::Now);
    }
    for _ in 0..OPERATIONS {
        assert_eq!(measured_dat_dequeue_empty(&mut adapters[0], transfers), Err(DatReturn::QUEUE_EMPTY));
    }
}

fn writes(adapters: &mut [BenchAdapter; 2], [near, far]: &[Side; 2], handles: usize) {
    let mut done = 0;
    while done < OPERATIONS {
        let batch = handles.min(OPERATIONS - done);
        for handle in 0..batch {
            let word = (done + handle) as u64;
            near.memory.store_be64(handle * LEN, word).expect("inside");
            let local = near.segment(handle);
            let at = (far.memory.va() + handle * LEN) as u64;
            let remote = RmrTriplet::new(far.lmr.rmr_context, at, LEN as u64);
            measured_dat_post_write(&mut adapters[0], near.eps[handle], &local, word, &remote)
                .expect("posts");
            adapters[0].platform().ring();
        }
        adapters[0].platform().settle();
        for _ in 0..batch {
            let event = measured_dat_dequeue(&mut adapters[0], near.transfers).expect("an event");
            let (handle, cookie) = near.done(event, DtoOperation::RdmaWrite);
            assert_eq!(cookie, (done + handle) as u64);
            assert_eq!(far.memory.load_be64(handle * LEN), Ok(cookie));
        }
        done += batch;
    }
}

fn sends(adapters: &mut [BenchAdapter; 2], [near, far]: &[Side; 2], handles: usize) {
    let mut done = 0;
    while done < OPERATIONS {
        let batch = handles.min(OPERATIONS - done);
        for handle in 0..batch {
            let word = !(done + handle) as u64;
            near.memory.store_be64(handle * LEN, word).expect("inside");
            measured_dat_post_recv(&mut adapters[1], far.eps[handle], &far.segment(handle), word)
                .expect("posts");
            measured_dat_post_send(&mut adapters[0], near.eps[handle], &near.segment(handle), word)
                .expect("posts");
            adapters[0].platform().ring();
        }
        adapters[0].platform().settle();
        for _ in 0..batch {
            let event = measured_dat_dequeue_recv(&mut adapters[1], &far.transfers).expect("an event");
            let (handle, cookie) = far.done(event, DtoOperation::Receive);
            assert_eq!(cookie, !(done + handle) as u64);
            assert_eq!(far.memory.load_be64(handle * LEN), Ok(cookie));
            let event = adapters[0].evd_dequeue(near.transfers).expect("an event");
            let (handle, cookie) = near.done(event, DtoOperation::Send);
            assert_eq!(cookie, !(done + handle) as u64);
        }
        done += batch;
    }
}
