//! The C library's calls beside the same of Rust: on HCAs of one fabric, served to this process, through the same platform.

use crate::OPERATIONS;
use dat::calls::*;
use dat::layout::{Event, RegionDescription};
use dat_nostd::{
    Adapter, AdapterConfig, CompletionFlags, ConnectFlags, DatResult, EpHandle, EvdFlags, EvdHandle,
    EventData, LmrTriplet, MemPriv, Qos, RmrTriplet, Wait, adapter_storage,
};
use harness::dat::register;
use hca_serve::{Options as ServeOptions, serve};
use platform_linux::{DeviceName, LinuxBar, LinuxPlatform, Opened, Options, open};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::path::Path;
use std::ptr;

const LEN: usize = 64;
const PORT: u64 = 7000;
/// Posts between looks at what is done.
const BATCH: usize = 8;
/// A round waits for its last completion, and what tells of the first is not counted.
const ROUNDS: usize = OPERATIONS / (BATCH - 1) + 1;

/// Whether another of so many is counted.
fn counts(done: &mut usize) -> bool {
    *done += 1;
    *done <= OPERATIONS
}
const DMA_BYTES: usize = 64 << 20;
const PATIENCE_US: u32 = 60_000_000;

type Node = Adapter<'static, LinuxPlatform>;
adapter_storage! {
    struct Tables {
        bar: LinuxBar, dma_bytes: DMA_BYTES, eps: 8, evds: 8, lmrs: 8, events: 64, connections: 16,
    }
}
type PostWrite = unsafe extern "C-unwind" fn(u64, i32, *const LmrTriplet, u64, *const RmrTriplet, u32) -> u32;
type Dequeue = unsafe extern "C-unwind" fn(u64, *mut Event) -> u32;

#[inline(never)]
fn measured_linux_post_write(
    node: &mut Node,
    ep: EpHandle,
    local: &LmrTriplet,
    cookie: u64,
    remote: &RmrTriplet,
    // As with C, the compiler does not know them.
    flags: CompletionFlags,
) -> DatResult<()> {
    node.ep_post_rdma_write(ep, std::slice::from_ref(local), cookie, remote, flags)
}

#[inline(never)]
fn measured_linux_dequeue(node: &mut Node, evd: EvdHandle) -> DatResult<dat_nostd::Event> {
    node.evd_dequeue(evd)
}

#[inline(never)]
fn measured_capi_post_write(
    call: PostWrite,
    ep: u64,
    local: &LmrTriplet,
    cookie: u64,
    remote: &RmrTriplet,
) -> u32 {
    // SAFETY: one segment, and one triplet.
    unsafe { call(ep, 1, local, cookie, remote, 0) }
}

#[inline(never)]
fn measured_capi_dequeue(call: Dequeue, evd: u64, event: &mut Event) -> u32 {
    // SAFETY: an event that may be written.
    unsafe { call(evd, event) }
}

fn address(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + node)
}

fn ok(code: u32) {
    assert_eq!(code, 0, "a call of the C library's fails");
}

/// Runs Rust's calls and C's.
pub fn run() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let sockets: Vec<_> =
        (0..3).map(|node| folder.join(format!("bench.{}.{node}", std::process::id()))).collect();
    let options = ServeOptions { file_io: true, ..ServeOptions::new(sockets.clone()) };
    let _served = serve(options).expect("served");
    let name = |node: u8| format!("{}@{}\0", sockets[usize::from(node)].display(), address(node));
    let mut far = Side::open(&name(2));
    far.listen();
    rust_writes(&mut node(&sockets[0]), &far);
    far.ep = far.endpoint();
    c_writes(&Side::open(&name(1)), &far);
}

/// An adapter as a Rust program has it.
fn node(socket: &Path) -> Node {
    let device = DeviceName::Socket(socket.into());
    let options = Options { dma_bytes: DMA_BYTES, ..Options::default() };
    let Opened { platform, dma, host, .. } = open(&device, &options).expect("opens");
    let tables: &'static mut Tables = Box::leak(Box::new(Tables::new()));
    let config = AdapterConfig::new("ib0", address(0).into(), &[], 1);
    let mut node = Adapter::open(platform, dma, host, tables.parts(), &config).expect("opens");
    register(&mut node, 0);
    while node.ip().is_some_and(|ip| !ip.is_up()) {
        step(&mut node);
    }
    node
}

fn step(node: &mut Node) {
    let _ = node.poll(node.now());
    std::thread::yield_now();
}

fn rust_writes(node: &mut Node, far: &Side) {
    let (ia, _) = node.ia_open("ib0", 8, None).expect("IA");
    let pz = node.pz_create(ia).expect("PZ");
    let transfers = node.evd_create(ia, 64, None, EvdFlags::DTO).expect("EVD");
    let connections = node.evd_create(ia, 8, None, EvdFlags::CONNECTION).expect("EVD");
    let memory = node.dma_alloc(LEN, 4096).expect("memory");
    let lmr = node.lmr_create(ia, &memory, pz, MemPriv::ALL).expect("LMR");
    let local = LmrTriplet::new(lmr.lmr_context, memory.va() as u64, LEN as u64);
    let ep =
        node.ep_create(ia, Some(pz), Some(transfers), Some(transfers), Some(connections), None).expect("EP");
    let flags = ConnectFlags::Default;
    node.ep_connect(ep, &address(2).into(), PORT, PATIENCE_US, &[], Qos::BestEffort, flags).expect("asks");
    let mut accepted = false;
    while node.evd_dequeue(connections).is_err() {
        accepted = accepted || far.accept(0);
        step(node);
    }
    let (mut posts, mut dequeues) = (0, 0);
    let none = black_box(CompletionFlags::empty());
    for first in (0..ROUNDS).map(|round| round * BATCH) {
        for cookie in (first as u64..).take(BATCH) {
            if counts(&mut posts) {
                measured_linux_post_write(node, ep, &local, cookie, &far.remote, none)
            } else {
                node.ep_post_rdma_write(ep, &[local], cookie, &far.remote, none)
            }
            .expect("posts");
        }
        let now = node.now();
        let mut wait = node.evd_wait_begin(transfers, now, PATIENCE_US, BATCH as u32).expect("waits");
        let mut event = loop {
            match node.evd_wait_poll(&mut wait, node.now()).expect("waits") {
                Wait::Ready(event, _) => break event,
                Wait::TimedOut(_) => panic!("nothing completes"),
                Wait::Pending(_) => step(node),
            }
        };
        for cookie in first..first + BATCH {
            if cookie > first {
                event = if counts(&mut dequeues) {
                    measured_linux_dequeue(node, transfers)
                } else {
                    node.evd_dequeue(transfers)
                }
                .expect("an event");
            }
            let EventData::Dto(dto) = event.data else { panic!("{event:?}") };
            assert_eq!((dto.user_cookie, dto.transferred_length), (cookie as u64, LEN as u64));
        }
    }
}

fn c_writes(near: &Side, far: &Side) {
    // As a program calls them that is linked with the library: nothing is inlined.
    let post = black_box(dat_ep_post_rdma_write as PostWrite);
    let dequeue = black_box(dat_evd_dequeue as Dequeue);
    near.connect();
    assert!(far.accept(PATIENCE_US));
    near.wait(near.connections, 1);
    let (mut posts, mut dequeues) = (0, 0);
    for first in (0..ROUNDS).map(|round| round * BATCH) {
        for cookie in (first as u64..).take(BATCH) {
            if counts(&mut posts) {
                ok(measured_capi_post_write(post, near.ep, &near.local, cookie, &far.remote));
            } else {
                // SAFETY: one segment, and one triplet.
                ok(unsafe { post(near.ep, 1, &near.local, cookie, &far.remote, 0) });
            }
        }
        let mut event = near.wait(near.transfers, BATCH as i32);
        for cookie in first..first + BATCH {
            if cookie > first && counts(&mut dequeues) {
                ok(measured_capi_dequeue(dequeue, near.transfers, &mut event));
            } else if cookie > first {
                // SAFETY: an event that may be written.
                ok(unsafe { dequeue(near.transfers, &mut event) });
            }
            // A completion's cookie and its length.
            assert_eq!((event.data.second, event.data.fourth), (cookie as u64, LEN as u64));
        }
    }
}

/// An IA of the C library's, with one endpoint.
struct Side {
    ia: u64,
    requests: u64,
    connections: u64,
    transfers: u64,
    pz: u64,
    ep: u64,
    local: LmrTriplet,
    remote: RmrTriplet,
}

impl Side {
    fn open(name: &str) -> Self {
        let memory: &'static mut [u8] = vec![0; LEN].leak();
        let (mut ia, mut async_evd, mut pz, mut lmr) = (0, 0, 0, 0);
        let (mut lmr_context, mut rmr_context, mut size, mut start) = (0, 0, 0, 0);
        let at = memory.as_mut_ptr();
        // SAFETY: what calls write to is this function's; the memory that is registered stays for good.
        unsafe {
            ok(dat_ia_openv(name.as_ptr(), 8, &mut async_evd, &mut ia, 1, 2, 1));
            ok(dat_pz_create(ia, &mut pz));
            let region = RegionDescription { first: at.cast(), cookie: ptr::null() };
            ok(dat_lmr_create(
                ia,
                0,
                region,
                LEN as u64,
                pz,
                MemPriv::ALL.bits(),
                &mut lmr,
                &mut lmr_context,
                &mut rmr_context,
                &mut size,
                &mut start,
            ));
        }
        let local = LmrTriplet::new(lmr_context, at as u64, LEN as u64);
        let remote = RmrTriplet::new(rmr_context, at as u64, LEN as u64);
        let mut side = Self { ia, requests: 0, connections: 0, transfers: 0, pz, ep: 0, local, remote };
        side.requests = side.evd(EvdFlags::CR);
        side.connections = side.evd(EvdFlags::CONNECTION);
        side.transfers = side.evd(EvdFlags::DTO);
        side.ep = side.endpoint();
        side
    }

    fn evd(&self, flags: EvdFlags) -> u64 {
        let mut evd = 0;
        // SAFETY: the handle's place is this function's.
        ok(unsafe { dat_evd_create(self.ia, 64, 0, flags.bits(), &mut evd) });
        evd
    }

    fn endpoint(&self) -> u64 {
        let mut ep = 0;
        let Self { ia, pz, transfers, connections, .. } = *self;
        // SAFETY: as above; no attributes are the default.
        ok(unsafe { dat_ep_create(ia, pz, transfers, transfers, connections, ptr::null(), &mut ep) });
        ep
    }

    fn listen(&self) {
        let mut psp = 0;
        // SAFETY: as above.
        ok(unsafe { dat_psp_create(self.ia, PORT, self.requests, 0, &mut psp) });
    }

    /// Accepts who asks within so many microseconds.
    fn accept(&self, timeout: u32) -> bool {
        let (mut event, mut more) = (NO_EVENT, 0);
        // SAFETY: as above.
        if unsafe { dat_evd_wait(self.requests, timeout, 1, &mut event, &mut more) } != 0 {
            return false;
        }
        // The request is the fourth word of its event.
        // SAFETY: there is no private data.
        ok(unsafe { dat_cr_accept(event.data.fourth, self.ep, 0, ptr::null()) });
        true
    }

    fn connect(&self) {
        let mut to = [0_u8; 16];
        // AF_INET is 2.
        to[0] = 2;
        to[4..8].copy_from_slice(&address(2).octets());
        // SAFETY: a whole `sockaddr_in`.
        ok(unsafe { dat_ep_connect(self.ep, to.as_ptr(), PORT, PATIENCE_US, 0, ptr::null(), 0, 0) });
    }

    /// The first of so many events.
    fn wait(&self, evd: u64, threshold: i32) -> Event {
        let (mut event, mut more) = (NO_EVENT, 0);
        // SAFETY: as above.
        ok(unsafe { dat_evd_wait(evd, PATIENCE_US, threshold, &mut event, &mut more) });
        event
    }
}

const NO_EVENT: Event = Event {
    event_number: 0,
    evd_handle: 0,
    data: dat::layout::EventWords { first: 0, second: 0, third: 0, fourth: 0 },
};
