//! Memory: who owns a buffer while regions lead to it, memory of the consumer's own, and what `lmr_sync` does where DMA is not
//! coherent.

use crate::common;

use common::*;
use dat_nostd::{
    AgentCalls, BufferKept, CompletionFlags, DatResult, DatReturn, DtoStatus, EvdFlags, EvdHandle, EventData,
    LmrCreated, LmrTriplet, MemPriv, ProxyAgent, Region, ReturnType, RmrHandle, RmrTriplet, SoleAccess,
    Subtype,
};
use std::cell::Cell;
use std::ptr;

const NONE: CompletionFlags = CompletionFlags::empty();
const IN_USE: DatReturn = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse);

fn kept<T>(freed: Result<T, BufferKept>) -> BufferKept {
    freed.err().expect("it was kept")
}

#[test]
fn a_buffer_is_not_freed_while_a_region_leads_to_it() {
    let mut net = Net::new(1, 1);
    let side = net.side(0, &Options::default());
    let node = &mut net.nodes[0];
    let free = node.hca().free_bytes();
    let buffer = node.dma_alloc(10_000, 4096).unwrap();
    let part = buffer.slice(5000, 100).unwrap();
    let first = node.lmr_create(side.ia, part, side.pz, MemPriv::ALL).unwrap().lmr;
    let of_first = node.lmr_create(side.ia, first, side.pz, MemPriv::READ).unwrap().lmr;
    let shared = Region::SharedVirtual(buffer.as_slice(), [3; 40]);
    let shared = node.lmr_create(side.ia, shared, side.pz, MemPriv::ALL).unwrap().lmr;
    let mut buffer = buffer;
    for lmr in [first, shared, of_first] {
        let refused = kept(node.dma_free(buffer));
        assert_eq!(refused.reason, IN_USE);
        buffer = refused.buffer;
        node.lmr_free(lmr).unwrap();
    }
    node.dma_free(buffer).unwrap();
    assert_eq!(node.hca().free_bytes(), free);
}

#[test]
fn a_buffer_of_another_adapter_is_refused() {
    let mut net = Net::new(3, 2);
    let [here, there] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let buffer = net.nodes[0].dma_alloc(4096, 4096).unwrap();
    let foreign = net.nodes[1].lmr_create(there.ia, &buffer, there.pz, MemPriv::ALL);
    assert_eq!(foreign.err(), Some(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3)));
    let refused = kept(net.nodes[1].dma_free(buffer));
    assert!(refused.reason.is(ReturnType::InvalidParameter));
    let lmr = net.nodes[0].lmr_create(here.ia, &refused.buffer, here.pz, MemPriv::ALL).unwrap();
    net.nodes[0].lmr_free(lmr.lmr).unwrap();
    net.nodes[0].dma_free(refused.buffer).unwrap();
}

/// `len` bytes of the process that belong to the node and its device alone: their address.
fn own(len: usize) -> *mut u8 {
    let bytes: &'static mut [u8] = Box::leak(vec![0; len].into_boxed_slice());
    let va = bytes.as_mut_ptr();
    va.expose_provenance();
    va
}

fn put(va: *mut u8, data: &[u8]) {
    for (at, byte) in data.iter().enumerate() {
        // SAFETY: `own` made and leaked at least so many bytes.
        unsafe { va.add(at).write_volatile(*byte) };
    }
}

fn get(va: *mut u8, len: usize) -> Vec<u8> {
    // SAFETY: `own` made and leaked at least so many bytes.
    (0..len).map(|at| unsafe { va.add(at).read_volatile() }).collect()
}

/// Writes 1000 bytes of one side to the other.
fn write(net: &mut Net, from: &Side, segment: LmrTriplet, to: RmrTriplet) {
    net.nodes[0].ep_post_rdma_write(from.ep, &[segment], 1, &to, NONE).unwrap();
    assert_eq!(net.dto(0, from.request).status, dat_nostd::DtoStatus::Success);
}

fn named(lmr: &LmrCreated, len: u64) -> (LmrTriplet, RmrTriplet) {
    let at = lmr.registered_address;
    (LmrTriplet::new(lmr.lmr_context, at, len), RmrTriplet::new(lmr.rmr_context, at, len))
}

#[test]
fn memory_of_the_consumers_own_goes_both_ways() {
    let mut net = Net::new(4, 2);
    let [active, passive] = net.pair(&Options::default());
    let (source, sink) = (own(5000), own(5000));
    let world = net.world.clone();
    // SAFETY: both are leaked, and accessed by `put` and `get` alone, which are volatile.
    let [from, to] = unsafe {
        [
            net.nodes[0].lmr_create_virtual(active.ia, source, 5000, active.pz, MemPriv::ALL).unwrap(),
            net.nodes[1].lmr_create_virtual(passive.ia, sink, 5000, passive.pz, MemPriv::ALL).unwrap(),
        ]
    };
    assert_eq!((from.registered_address, from.registered_size), (source.addr() as u64, 5000));
    assert_eq!(world.mapped(0), [(source.addr(), 5000, true)]);
    let data: Vec<u8> = (0..1000).map(|at| payload(7).byte(at)).collect();
    put(source, &data);
    let ((local, _), (far, remote)) = (named(&from, 1000), named(&to, 1000));
    net.nodes[0].lmr_sync_rdma_read(active.ia, &[local]).unwrap();
    write(&mut net, &active, local, remote);
    net.nodes[1].lmr_sync_rdma_write(passive.ia, &[far]).unwrap();
    assert!(get(sink, 1000) == data);
    assert!(get(sink, 5000)[1000..].iter().all(|&byte| byte == 0));
    // A region made of it keeps a mapping of its own.
    let again = net.nodes[0].lmr_create(active.ia, from.lmr, active.pz, MemPriv::READ).unwrap();
    net.nodes[0].lmr_free(from.lmr).unwrap();
    assert_eq!(world.mapped(0), [(source.addr(), 5000, false)]);
    net.nodes[0].lmr_free(again.lmr).unwrap();
    net.nodes[1].lmr_free(to.lmr).unwrap();
    assert!(world.mapped(0).is_empty() && world.mapped(1).is_empty());
    net.assert_no_refusals();
}

/// This processor does with a region what its rights let a device do, and no more.
#[test]
fn a_region_under_the_processor() {
    let mut net = Net::new(6, 1);
    let side = net.side(0, &Options::default());
    let world = net.world.clone();
    let (read_only, sink) = (own(64), own(64));
    // SAFETY: both are leaked, and accessed by `put` and `get` alone, which are volatile.
    let [given, taken] = unsafe {
        [(read_only, MemPriv::READ), (sink, MemPriv::ALL)]
            .map(|(va, rights)| net.nodes[0].lmr_create_virtual(side.ia, va, 64, side.pz, rights).unwrap())
    };
    put(read_only, &[7; 64]);
    // As for a device that does not see what the processor has in its cache.
    net.nodes[0].lmr_sync_rdma_read(side.ia, &[named(&given, 64).0]).unwrap();
    let buffer = net.nodes[0].dma_alloc(64, 64).unwrap();
    let node = &net.nodes[0];
    // SAFETY: there is one thread.
    let promise = unsafe { SoleAccess::promised() };
    let (from, to) = (given.registered_address, taken.registered_address);
    assert_eq!(node.lmr_read(promise, given.lmr, from + 8, buffer.slice(0, 16).unwrap()), Ok(()));
    assert_eq!(node.lmr_write(promise, taken.lmr, to + 40, buffer.slice(0, 16).unwrap()), Ok(()));
    assert_eq!((get(sink, 64)[39], get(sink, 64)[40], get(sink, 64)[56]), (0, 7, 0));
    let [long, word] = [32, 8].map(|len| buffer.slice(32, len).unwrap());
    assert_eq!(node.lmr_change(promise, taken.lmr, to + 40, word, |was| was + 1), Ok(()));
    let mut before = [0; 16];
    buffer.read(32, &mut before).unwrap();
    assert_eq!(before, [7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(get(sink, 64)[40..48], 0x0707_0707_0707_0708_u64.to_ne_bytes());
    let refused = |result: DatResult<()>| result.unwrap_err().kind().unwrap();
    let changed = node.lmr_change(promise, taken.lmr, to + 40, long, |_| 0);
    assert_eq!(refused(changed), ReturnType::InvalidParameter);
    assert_eq!(refused(node.lmr_write(promise, given.lmr, from, word)), ReturnType::PrivilegesViolation);
    let changed = node.lmr_change(promise, given.lmr, from, word, |was| was);
    assert_eq!(refused(changed), ReturnType::PrivilegesViolation);
    for outside in [to + 57, to.wrapping_sub(1), u64::MAX] {
        assert_eq!(refused(node.lmr_write(promise, taken.lmr, outside, word)), ReturnType::InvalidParameter);
        assert_eq!(refused(node.lmr_read(promise, taken.lmr, outside, word)), ReturnType::InvalidParameter);
    }
    assert_eq!(get(read_only, 64), [7; 64]);
    net.nodes[0].lmr_free(given.lmr).unwrap();
    net.nodes[0].lmr_free(taken.lmr).unwrap();
    net.nodes[0].dma_free(buffer).unwrap();
    assert!(world.mapped(0).is_empty());
    net.assert_no_refusals();
}

#[test]
fn memory_that_cannot_be_mapped_is_refused() {
    let mut net = Net::new(5, 1);
    let side = net.side(0, &Options::default());
    let node = &mut net.nodes[0];
    let free = own(64);
    // SAFETY: no region is made of the first two; the third is leaked memory, and no region is made of it either.
    let refused = unsafe {
        [
            node.lmr_create_virtual(side.ia, ptr::without_provenance_mut(8), 8, side.pz, MemPriv::ALL),
            node.lmr_create_virtual(side.ia, free, 0, side.pz, MemPriv::ALL),
            node.lmr_create_virtual(side.ia, free, 64, side.pz, MemPriv::REMOTE_WRITE),
        ]
    };
    let types = refused.map(|made| made.err().and_then(DatReturn::kind));
    let wrong = Some(ReturnType::InvalidParameter);
    assert_eq!(types, [wrong, Some(ReturnType::LengthError), wrong]);
    assert!(net.world.mapped(0).is_empty());
}

/// Without the calls the peers see old bytes, with them the right ones.
#[test]
fn lmr_sync_carries_bytes_where_dma_is_not_coherent() {
    let mut net = Net::new(6, 2);
    let [active, passive] = net.pair(&Options::default());
    assert!(!net.nodes[0].ia_query(active.ia).unwrap().2.lmr_sync_req);
    net.world.end_coherence(0, active.memory);
    assert!(net.nodes[0].ia_query(active.ia).unwrap().2.lmr_sync_req, "the provider says so");
    net.world.end_coherence(1, passive.memory);
    let (local, remote) = (active.segment(64, 1000), passive.remote(32, 1000));
    let far = passive.segment(32, 1000);
    let bytes = |side: &Side, at: usize| {
        let mut bytes = vec![0; 1000];
        side.memory.read(at, &mut bytes).unwrap();
        bytes
    };
    // The device does not see what was written here...
    active.fill(64, 1000, 1);
    write(&mut net, &active, local, remote);
    net.nodes[1].lmr_sync_rdma_write(passive.ia, &[far]).unwrap();
    assert!(bytes(&passive, 32).iter().all(|&byte| byte == 0), "what was there before");
    // ... until it is told,
    net.nodes[0].lmr_sync_rdma_read(active.ia, &[local]).unwrap();
    write(&mut net, &active, local, remote);
    // and the peer does not see what its device wrote until it asks.
    assert!(bytes(&passive, 32).iter().all(|&byte| byte == 0), "what was there before");
    net.nodes[1].lmr_sync_rdma_write(passive.ia, &[far]).unwrap();
    passive.check(32, 1000, 1);
    // Exactly the segment's bytes are carried.
    active.fill(0, 2000, 2);
    let middle = active.segment(64 + 400, 100);
    net.nodes[0].lmr_sync_rdma_read(active.ia, &[middle]).unwrap();
    write(&mut net, &active, local, remote);
    net.nodes[1].lmr_sync_rdma_write(passive.ia, &[far]).unwrap();
    let got = bytes(&passive, 32);
    for (at, byte) in got.into_iter().enumerate() {
        let expected = if (400..500).contains(&at) { payload(2).byte(at + 64) } else { payload(1).byte(at) };
        assert_eq!(byte, expected, "byte {at}");
    }
    net.assert_no_refusals();
}

#[test]
fn segments_of_no_bytes_name_nothing_to_sync() {
    let mut net = Net::new(7, 1);
    let side = net.side(0, &Options::default());
    let empty = LmrTriplet::new(0xdead_beef, 1, 0);
    let node = &mut net.nodes[0];
    node.lmr_sync_rdma_read(side.ia, &[empty, side.segment(0, 8)]).unwrap();
    node.lmr_sync_rdma_write(side.ia, &[side.segment(0, 8), empty]).unwrap();
    let outside = [side.segment(0, 8), LmrTriplet::new(0xdead_beef, 1, 1)];
    let wrong = Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
    assert_eq!(node.lmr_sync_rdma_read(side.ia, &outside), wrong);
    assert_eq!(node.lmr_sync_rdma_write(side.ia, &[side.segment(1 << 20, 1)]), wrong);
}

thread_local! {
    /// The window that [`offer`] binds, and its side. Upcalls come on the test's thread.
    static OFFERED: Cell<Option<(RmrHandle, Side)>> = const { Cell::new(None) };
}

/// Binds the window and sends its context behind the bind.
fn offer(adapter: &mut dyn AgentCalls, cookie: u64, _: Option<EvdHandle>) {
    let (rmr, side) = OFFERED.get().unwrap();
    let (part, message) = (side.segment(64, 500), side.segment(2000, 4));
    let context = adapter.rmr_bind(rmr, &part, MemPriv::WRITE, side.ep, cookie, NONE).unwrap();
    side.memory.write(2000, &context.to_le_bytes()).unwrap();
    adapter.ep_post_send(side.ep, &[message], cookie + 1, CompletionFlags::SUPPRESS).unwrap();
}

#[test]
fn an_agent_binds_a_window_in_its_upcall() {
    let mut net = Net::new(8, 2);
    let (active, mut passive) = (net.side(0, &Options::default()), net.side(1, &Options::default()));
    let node = &mut net.nodes[1];
    let agent = ProxyAgent { function: offer, instance_data: 40 };
    let cno = node.cno_create(passive.ia, Some(agent)).unwrap();
    passive.request = node.evd_create(passive.ia, 8, None, EvdFlags::DTO | EvdFlags::RMR_BIND).unwrap();
    let evds = [passive.recv, passive.request, passive.connect].map(Some);
    passive.ep = node.ep_create(passive.ia, Some(passive.pz), evds[0], evds[1], evds[2], None).unwrap();
    OFFERED.set(Some((node.rmr_create(passive.pz).unwrap(), passive)));
    net.connect(&[active, passive]);
    net.nodes[0].ep_post_recv(active.ep, &[active.segment(0, 4)], 1, NONE).unwrap();
    let trigger = net.nodes[1].evd_create(passive.ia, 1, Some(cno), EvdFlags::SOFTWARE).unwrap();
    net.nodes[1].evd_post_se(trigger, 0).unwrap();
    net.nodes[1].deliver_upcalls();
    assert_eq!(net.dto(0, active.recv).transferred_length, 4);
    let mut context = [0; 4];
    active.memory.read(0, &mut context).unwrap();
    assert!(matches!(net.event(1, passive.request), EventData::RmrBind(bound) if bound.user_cookie == 40
            && bound.status == DtoStatus::Success));
    let target = RmrTriplet { rmr_context: u32::from_le_bytes(context), ..passive.remote(64, 500) };
    assert_ne!(target.rmr_context, passive.lmr.rmr_context);
    active.fill(64, 500, 3);
    write(&mut net, &active, active.segment(64, 500), target);
    passive.check(64, 500, 3);
    net.assert_no_refusals();
}
