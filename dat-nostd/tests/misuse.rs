//! Wrong arguments, stale handles, full tables: the specified error, and nothing changed.

use crate::common;

use common::{Net, Options, address};
use dat_nostd::*;

const NONE: CompletionFlags = CompletionFlags::empty();

#[track_caller]
fn is<T: core::fmt::Debug>(result: DatResult<T>, kind: ReturnType) {
    match result {
        Err(error) if error.is(kind) => {}
        other => panic!("{other:?} instead of {kind:?}"),
    }
}

/// Adapters that one program opens with nothing but defaults: neither takes a handle of the other's for one of its own.
#[test]
fn adapters_with_default_configuration_have_handles_of_their_own() {
    let world = harness::World::new(&harness::WorldConfig::new(73));
    let mut entries = [RegistryEntry::EMPTY; 3];
    let mut registry = Registry::new(&mut entries);
    let names = ["ib0", "ib1", "ib2"];
    let mut nodes = [0, 1, 2].map(|node| {
        let (platform, region) = world.attach(hca_model::Profile::node(node), 8 << 20);
        let storage = Box::leak(Box::new(common::Storage::new()));
        let config = AdapterConfig::new(names[usize::from(node)], address(usize::from(node)), &[], 1);
        let config = AdapterConfig { activation_timeout: Duration::from_nanos(0), ip: None, ..config };
        Adapter::open(platform, region, harness::host_region(), storage.parts(), &config).unwrap()
    });
    for (node, name) in nodes.iter_mut().zip(names) {
        assert_eq!(node.id(), None);
        is(node.ia_open(name, 8, None), ReturnType::ProviderNotFound);
        registry.registry_add_provider(node, ProviderInfo::new(name)).unwrap();
    }
    let made = [0, 1, 2].map(|node: usize| {
        assert_eq!(registry.find(names[node], 1, 2, false).ok(), nodes[node].id());
        let (ia, evd) = nodes[node].ia_open(names[node], 8, None).unwrap();
        (ia, evd, nodes[node].pz_create(ia).unwrap())
    });
    for (mine, node) in nodes.iter_mut().enumerate() {
        for (theirs, (ia, evd, pz)) in made.into_iter().enumerate().filter(|(theirs, _)| *theirs != mine) {
            assert_ne!((ia, evd, pz), made[mine], "{mine} and {theirs}");
            is(node.ia_query(ia), ReturnType::InvalidHandle);
            is(node.evd_query(evd), ReturnType::InvalidHandle);
            is(node.pz_free(pz), ReturnType::InvalidHandle);
        }
        node.pz_free(made[mine].2).unwrap();
    }
    // The next adapter in the registry gets an id that was never given: handles that outlived theirs mean nothing to it.
    let [first, second, _] = &mut nodes;
    first.ia_close(made[0].0, CloseFlags::Graceful).unwrap();
    registry.registry_remove_provider(first, &ProviderInfo::new("ib0")).unwrap();
    let before = first.id();
    registry.registry_add_provider(first, ProviderInfo::new("ib0")).unwrap();
    assert!(first.id() != before && first.id() != second.id());
}

#[test]
fn stale_foreign_and_wrong_handles() {
    use ReturnType::InvalidHandle;
    let mut net = Net::new(1, 2);
    let options = Options::default();
    let here = net.side(0, &options);
    let there = net.side(1, &options);
    // A dead one, one of another adapter, one of another kind, one beyond the table, nonsense.
    let dead = {
        let adapter = &mut net.nodes[0];
        let ep = adapter
            .ep_create(here.ia, Some(here.pz), Some(here.recv), Some(here.request), Some(here.connect), None)
            .unwrap();
        adapter.ep_free(ep).unwrap();
        // The slot is somebody else's now.
        adapter
            .ep_create(here.ia, Some(here.pz), Some(here.recv), Some(here.request), Some(here.connect), None)
            .unwrap();
        ep
    };
    let beyond = EpHandle::from_bits(here.ep.bits() | 0xffff);
    let kind = EpHandle::from_bits(here.pz.bits());
    for ep in [dead, there.ep, beyond, kind, EpHandle::from_bits(0), EpHandle::from_bits(u64::MAX)] {
        let iov = [here.segment(0, 8)];
        let adapter = &mut net.nodes[0];
        is(adapter.ep_query(ep), InvalidHandle);
        is(adapter.ep_get_status(ep), InvalidHandle);
        is(adapter.ep_private_data(ep), InvalidHandle);
        is(adapter.ep_post_send(ep, &iov, 0, NONE), InvalidHandle);
        is(adapter.ep_post_recv(ep, &iov, 0, NONE), InvalidHandle);
        is(adapter.ep_post_rdma_write(ep, &iov, 0, &here.remote(0, 8), NONE), InvalidHandle);
        is(adapter.ep_post_rdma_read(ep, &iov, 0, &here.remote(0, 8), NONE), InvalidHandle);
        is(adapter.ep_disconnect(ep, CloseFlags::Abrupt), InvalidHandle);
        is(adapter.ep_reset(ep), InvalidHandle);
        is(adapter.ep_free(ep), InvalidHandle);
        let to = address(1);
        is(adapter.ep_connect(ep, &to, 7, 1, b"", Qos::BestEffort, ConnectFlags::Default), InvalidHandle);
    }
    let adapter = &mut net.nodes[0];
    for evd in
        [there.recv, EvdHandle::from_bits(here.ep.bits()), EvdHandle::from_bits(1), EvdHandle::from_bits(2)]
    {
        is(adapter.evd_query(evd), InvalidHandle);
        is(adapter.evd_dequeue(evd), InvalidHandle);
        is(adapter.evd_wait_begin(evd, Instant::from_nanos(0), 1, 1), InvalidHandle);
        is(adapter.evd_enable(evd), InvalidHandle);
        is(adapter.evd_disable(evd), InvalidHandle);
        is(adapter.evd_set_unwaitable(evd), InvalidHandle);
        is(adapter.evd_clear_unwaitable(evd), InvalidHandle);
        is(adapter.evd_post_se(evd, 1), InvalidHandle);
        is(adapter.evd_free(evd), InvalidHandle);
        is(adapter.psp_create(here.ia, 7, evd, PspFlags::Consumer), InvalidHandle);
        is(adapter.ep_create(here.ia, Some(here.pz), Some(evd), None, None, None), InvalidHandle);
    }
    let mut foreign =
        net.nodes[1].evd_wait_begin(there.recv, Instant::from_nanos(0), TIMEOUT_INFINITE, 1).unwrap();
    let adapter = &mut net.nodes[0];
    is(adapter.evd_wait_poll(&mut foreign, Instant::from_nanos(0)), InvalidHandle);
    is(adapter.evd_wait_end(foreign), InvalidHandle);
    for ia in [there.ia, IaHandle::from_bits(here.pz.bits())] {
        is(adapter.ia_query(ia), InvalidHandle);
        is(adapter.ia_close(ia, CloseFlags::Abrupt), InvalidHandle);
        is(adapter.pz_create(ia), InvalidHandle);
        is(adapter.evd_create(ia, 8, None, EvdFlags::DTO), InvalidHandle);
        is(adapter.lmr_create(ia, here.memory, here.pz, MemPriv::ALL), InvalidHandle);
        is(adapter.lmr_sync_rdma_read(ia, &[]), InvalidHandle);
        is(adapter.psp_create(ia, 7, here.cr, PspFlags::Consumer), InvalidHandle);
        is(adapter.ep_create(ia, Some(here.pz), None, None, None, None), InvalidHandle);
    }
    is(adapter.pz_query(there.pz), InvalidHandle);
    is(adapter.pz_free(there.pz), InvalidHandle);
    is(adapter.lmr_create(here.ia, here.memory, there.pz, MemPriv::ALL), InvalidHandle);
    is(adapter.lmr_query(there.lmr.lmr), InvalidHandle);
    is(adapter.lmr_free(there.lmr.lmr), InvalidHandle);
    let (psp, cr) = (PspHandle::from_bits(here.ep.bits()), CrHandle::from_bits(here.ep.bits()));
    is(adapter.psp_query(psp), InvalidHandle);
    is(adapter.psp_free(psp), InvalidHandle);
    is(adapter.cr_query(cr), InvalidHandle);
    is(adapter.cr_accept(cr, Some(here.ep), b""), InvalidHandle);
    is(adapter.cr_reject(cr), InvalidHandle);
}

#[test]
fn opening_and_querying() {
    let mut net = Net::new(2, 1);
    let adapter = &mut net.nodes[0];
    is(adapter.ia_open("", 8, None), ReturnType::InvalidParameter);
    is(adapter.ia_open(&"x".repeat(256), 8, None), ReturnType::InvalidParameter);
    is(adapter.ia_open("ib0", 0, None), ReturnType::InvalidParameter);
    for name in ["ib", "ib1", "ib0-", "ib0-datx", "-dat", "nonsense"] {
        is(adapter.ia_open(name, 8, None), ReturnType::ProviderNotFound);
    }
    let (first, async_evd) = adapter.ia_open("ib0", 8, None).unwrap();
    let (second, shared) = adapter.ia_open("ib0-dat", 8, Some(async_evd)).unwrap();
    assert_ne!(first, second);
    assert_eq!(shared, async_evd);
    let (evd, ia, provider) = adapter.ia_query(first).unwrap();
    assert_eq!((evd, ia.adapter_name, ia.ia_address), (async_evd, adapter.name(), address(0)));
    assert!(ia.max_eps == 64 && ia.max_evds == 64 && ia.max_dto_per_ep >= 1024, "{ia:?}");
    assert!(ia.max_message_size >= 1 << 30 && ia.max_iov_segments_per_dto >= 4, "{ia:?}");
    assert_eq!(
        (provider.max_private_data_size, provider.is_thread_safe, provider.lmr_sync_req),
        (56, false, false)
    );
    assert!(!provider.evd_stream_merging_supported[5][2] && provider.evd_stream_merging_supported[2][3]);
    assert_eq!(adapter.ia_query(second).unwrap().2.max_private_data_size, 64);
    adapter.ia_close(second, CloseFlags::Graceful).unwrap();
    let pz = adapter.pz_create(first).unwrap();
    is(adapter.ia_close(first, CloseFlags::Graceful), ReturnType::InvalidState);
    assert_eq!(adapter.pz_query(pz), Ok(first));
    adapter.ia_close(first, CloseFlags::Abrupt).unwrap();
    is(adapter.pz_query(pz), ReturnType::InvalidHandle);
    is(adapter.evd_query(async_evd), ReturnType::InvalidHandle);
    for _ in 0..20 {
        // All IAs that there can be, and the next.
        let open: Vec<_> =
            (0..Capacities::DEFAULT.ias).map(|_| adapter.ia_open("ib0", 8, None).unwrap().0).collect();
        is(adapter.ia_open("ib0", 8, None), ReturnType::InsufficientResources);
        for ia in open {
            adapter.ia_close(ia, CloseFlags::Graceful).unwrap();
        }
    }
}

#[test]
fn memory_regions() {
    let mut net = Net::new(3, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let memory = adapter.dma_alloc(10_000, 64).unwrap();
    assert!(memory.len() >= 10_000 && memory.va().is_multiple_of(4096));
    is(adapter.dma_alloc(0, 64), ReturnType::InvalidParameter);
    is(adapter.dma_alloc(64, 3), ReturnType::InvalidParameter);
    is(adapter.dma_alloc(1 << 40, 64), ReturnType::InsufficientResources);
    let piece = memory.slice(100, 5000).unwrap();
    is(
        adapter.lmr_create(side.ia, memory.slice(0, 0).unwrap(), side.pz, MemPriv::ALL),
        ReturnType::LengthError,
    );
    is(adapter.lmr_create(side.ia, piece, side.pz, MemPriv::REMOTE_WRITE), ReturnType::InvalidParameter);
    let local = adapter.lmr_create(side.ia, piece, side.pz, MemPriv::LOCAL_WRITE).unwrap();
    assert_eq!(local.rmr_context, 0, "no remote right, nothing for the peer");
    assert_eq!((local.registered_address, local.registered_size), (piece.va() as u64, 5000));
    // The same bytes once more, and rights that show in the query.
    let again = adapter.lmr_create(side.ia, piece, side.pz, MemPriv::READ).unwrap();
    assert_ne!(again.lmr_context, local.lmr_context);
    assert_ne!(again.rmr_context, 0);
    let query = adapter.lmr_query(again.lmr).unwrap();
    assert_eq!((query.mem_priv, query.length, query.pz), (MemPriv::READ, 5000, side.pz));
    assert_eq!((query.lmr_context, query.rmr_context), (again.lmr_context, again.rmr_context));
    is(adapter.pz_free(side.pz), ReturnType::InvalidState);

    let at = piece.va() as u64;
    let context = local.lmr_context;
    let good = LmrTriplet::new(context, at, 5000);
    assert_eq!(adapter.lmr_sync_rdma_read(side.ia, &[good]), Ok(()));
    assert_eq!(adapter.lmr_sync_rdma_write(side.ia, &[good, side.segment(0, 8)]), Ok(()));
    let other_zone = adapter.pz_create(side.ia).unwrap();
    let foreign = adapter.lmr_create(side.ia, piece, other_zone, MemPriv::ALL).unwrap();
    let cases = [
        (LmrTriplet::new(context, at - 1, 10), ReturnType::InvalidParameter),
        (LmrTriplet::new(context, at + 1, 5000), ReturnType::InvalidParameter),
        (LmrTriplet::new(context, at + 4999, 2), ReturnType::InvalidParameter),
        (LmrTriplet::new(context, u64::MAX - 5, 10), ReturnType::InvalidParameter),
        (LmrTriplet::new(context, at, u64::MAX), ReturnType::InvalidParameter),
        (LmrTriplet::new(context ^ 1 << 16, at, 10), ReturnType::PrivilegesViolation),
        (LmrTriplet::new(0, at, 10), ReturnType::PrivilegesViolation),
        (LmrTriplet::new(u32::MAX, at, 10), ReturnType::PrivilegesViolation),
        (LmrTriplet::new(foreign.lmr_context, at, 10), ReturnType::ProtectionViolation),
        (LmrTriplet::new(again.lmr_context, at, 10), ReturnType::PrivilegesViolation),
    ];
    for (segment, error) in cases {
        is(adapter.ep_post_recv(side.ep, &[segment], 1, NONE), error);
        is(adapter.ep_post_recv(side.ep, &[good, segment], 1, NONE), error);
    }
    assert!(adapter.ep_get_status(side.ep).unwrap().recv_idle, "nothing was posted");
    is(adapter.lmr_sync_rdma_read(side.ia, &[cases[0].0]), ReturnType::InvalidParameter);
    adapter.lmr_free(local.lmr).unwrap();
    is(adapter.ep_post_recv(side.ep, &[good], 1, NONE), ReturnType::PrivilegesViolation);
    // Its slot's next region has another context.
    for _ in 0..70 {
        let lmr = adapter.lmr_create(side.ia, piece, side.pz, MemPriv::ALL).unwrap();
        assert_ne!(lmr.lmr_context, context);
        adapter.lmr_free(lmr.lmr).unwrap();
    }
    net.assert_no_refusals();
}

#[test]
fn posting() {
    let mut net = Net::new(4, 2);
    let attributes = EpAttributes {
        max_request_dtos: 4,
        max_recv_dtos: 3,
        max_rdma_write_iov: 2,
        ..EpAttributes::DEFAULT
    };
    let [here, there] = net.pair(&Options { attributes, ..Options::default() });
    let adapter = &mut net.nodes[0];
    let one = here.segment(0, 100);
    use ReturnType::*;
    is(adapter.ep_post_send(here.ep, &[one; 5], 1, NONE), InvalidParameter);
    is(adapter.ep_post_recv(here.ep, &[one; 5], 1, NONE), InvalidParameter);
    is(adapter.ep_post_rdma_write(here.ep, &[one; 3], 1, &there.remote(0, 300), NONE), InvalidParameter);
    is(adapter.ep_post_rdma_write(here.ep, &[one], 1, &there.remote(0, 99), NONE), LengthError);
    is(adapter.ep_post_rdma_read(here.ep, &[one], 1, &there.remote(0, 101), NONE), LengthError);
    let unsignalled = CompletionFlags::UNSIGNALLED;
    is(adapter.ep_post_send(here.ep, &[one], 1, unsignalled), InvalidParameter);
    is(adapter.ep_post_recv(here.ep, &[one], 1, unsignalled), InvalidParameter);
    is(adapter.ep_post_recv(here.ep, &[one], 1, CompletionFlags::SUPPRESS), InvalidParameter);
    let solicited = CompletionFlags::SOLICITED_WAIT;
    is(adapter.ep_post_rdma_write(here.ep, &[one], 1, &there.remote(0, 100), solicited), InvalidParameter);
    is(adapter.ep_post_send(here.ep, &[one], 1, CompletionFlags::EVD_THRESHOLD), InvalidParameter);
    is(adapter.ep_post_send(here.ep, &[one], 1, CompletionFlags::from_bits_retain(0x100)), InvalidParameter);
    let read_only = adapter.lmr_create(here.ia, here.memory, here.pz, MemPriv::LOCAL_READ).unwrap();
    let sink = [LmrTriplet::new(read_only.lmr_context, here.memory.va() as u64, 100)];
    is(adapter.ep_post_rdma_read(here.ep, &sink, 1, &there.remote(0, 100), NONE), PrivilegesViolation);
    is(adapter.ep_post_recv(here.ep, &sink, 1, NONE), PrivilegesViolation);
    // Sources need no right, as existing consumers rely on.
    let write_only = adapter.lmr_create(here.ia, here.memory, here.pz, MemPriv::LOCAL_WRITE).unwrap();
    let source = [LmrTriplet::new(write_only.lmr_context, here.memory.va() as u64, 100)];
    adapter.ep_post_rdma_write(here.ep, &source, 1, &there.remote(0, 100), NONE).unwrap();
    assert_eq!(net.dto(0, here.request).status, DtoStatus::Success);
    // Full queues.
    let adapter = &mut net.nodes[0];
    for index in 0..4 {
        adapter.ep_post_send(here.ep, &[one], index, NONE).unwrap();
    }
    is(adapter.ep_post_send(here.ep, &[one], 9, NONE), InsufficientResources);
    for index in 0..3 {
        adapter.ep_post_recv(here.ep, &[one], index, NONE).unwrap();
    }
    is(adapter.ep_post_recv(here.ep, &[one], 9, NONE), InsufficientResources);
    for index in 0..3 {
        net.nodes[1].ep_post_recv(there.ep, &[there.segment(0, 100)], index, NONE).unwrap();
        let sent = net.dto(0, here.request);
        assert_eq!((sent.user_cookie, sent.status), (index, DtoStatus::Success));
        net.dto(1, there.recv);
    }
    net.nodes[0].ep_post_send(here.ep, &[one], 10, NONE).unwrap();
    net.assert_no_refusals();
}

#[test]
fn endpoint_attributes_and_service_points() {
    let mut net = Net::new(5, 1);
    let side = net.side(0, &Options::default());
    let adapter = &mut net.nodes[0];
    let try_attributes = |adapter: &mut common::Node, change: &dyn Fn(&mut EpAttributes)| {
        let mut attributes = EpAttributes::DEFAULT;
        change(&mut attributes);
        let (recv, request) = (Some(side.recv), Some(side.request));
        adapter.ep_create(side.ia, Some(side.pz), recv, request, Some(side.connect), Some(&attributes))
    };
    let wrong: [&dyn Fn(&mut EpAttributes); 16] = [
        &|a| a.max_recv_dtos = 0,
        &|a| a.max_request_dtos = 0,
        &|a| a.max_recv_dtos = u32::MAX,
        &|a| a.max_request_dtos = 1 << 20,
        &|a| a.max_recv_iov = 1000,
        &|a| a.max_request_iov = u32::MAX,
        &|a| a.max_rdma_read_iov = 17,
        &|a| a.max_message_size = u64::MAX,
        &|a| a.max_rdma_size = 1 << 32,
        &|a| a.qos = Qos::Premium,
        &|a| a.max_rdma_read_in = 1 << 20,
        &|a| a.max_rdma_read_out = u32::MAX,
        &|a| a.retry_count = 8,
        &|a| a.rnr_timer = 32,
        &|a| a.sl = Some(16),
        &|a| a.recv_completion_flags = CompletionFlags::SUPPRESS,
    ];
    for (index, change) in wrong.iter().enumerate() {
        let result = try_attributes(adapter, *change);
        assert!(result.is_err_and(|error| error.is(ReturnType::InvalidParameter)), "{index}");
    }
    // One EVD, one mode.
    let mixed = try_attributes(adapter, &|a| a.recv_completion_flags = CompletionFlags::SOLICITED_WAIT);
    is(mixed, ReturnType::InvalidParameter);
    // dtest's: sizes 0, empty flags.
    let usual = try_attributes(adapter, &|a| {
        a.recv_completion_flags = NONE;
        a.request_completion_flags = NONE;
    });
    adapter.ep_free(usual.unwrap()).unwrap();
    // An EVD without the stream.
    is(
        adapter.ep_create(side.ia, Some(side.pz), Some(side.connect), None, None, None),
        ReturnType::InvalidHandle,
    );
    // Without a zone it can do nothing yet.
    let bare = adapter.ep_create(side.ia, None, Some(side.recv), None, Some(side.connect), None).unwrap();
    is(adapter.ep_post_recv(bare, &[], 1, NONE), ReturnType::InvalidState);
    let to = address(0);
    is(
        adapter.ep_connect(bare, &to, 7, 1, b"", Qos::BestEffort, ConnectFlags::Default),
        ReturnType::InvalidState,
    );
    adapter.ep_free(bare).unwrap();

    use ReturnType::*;
    let connect = |adapter: &mut common::Node, qualifier, timeout, data: &[u8], qos, flags| {
        adapter.ep_connect(side.ep, &to, qualifier, timeout, data, qos, flags)
    };
    let (best, plain) = (Qos::BestEffort, ConnectFlags::Default);
    is(connect(adapter, 0, 1, b"", best, plain), InvalidParameter);
    is(connect(adapter, 0x0106_0007, 1, b"", best, plain), InvalidParameter);
    is(connect(adapter, 7, 0, b"", best, plain), InvalidParameter);
    is(connect(adapter, 7, 1, &[0; 57], best, plain), InvalidParameter);
    is(connect(adapter, 7, 1, b"", Qos::LowLatency, plain), ModelNotSupported);
    is(connect(adapter, 7, 1, b"", best, ConnectFlags::Multipath), ModelNotSupported);
    assert_eq!(adapter.ep_get_status(side.ep).unwrap().state, EpState::Unconnected);

    is(adapter.psp_create(side.ia, 0, side.cr, PspFlags::Consumer), InvalidParameter);
    is(adapter.psp_create(side.ia, 0x0106_0007, side.cr, PspFlags::Consumer), InvalidParameter);
    is(adapter.psp_create(side.ia, 7, side.recv, PspFlags::Consumer), InvalidHandle);
    let psp = adapter.psp_create(side.ia, 7, side.cr, PspFlags::Consumer).unwrap();
    is(adapter.psp_create(side.ia, 7, side.cr, PspFlags::Consumer), ConnQualInUse);
    // One table of service ids: port 7 of RDMA-CM's TCP space is taken for the other name too.
    let (dat, _) = adapter.ia_open("ib0-dat", 8, None).unwrap();
    is(adapter.psp_create(dat, u64::MAX, side.cr, PspFlags::Consumer), InvalidHandle);
    let dat_cr = adapter.evd_create(dat, 8, None, EvdFlags::CR).unwrap();
    is(adapter.psp_create(dat, 0x0106_0007, dat_cr, PspFlags::Consumer), ConnQualInUse);
    is(adapter.psp_create(dat, 0, dat_cr, PspFlags::Consumer), InvalidParameter);
    let other = adapter.psp_create(dat, u64::MAX, dat_cr, PspFlags::Consumer).unwrap();
    is(adapter.evd_free(side.cr), InvalidState);
    adapter.psp_free(psp).unwrap();
    adapter.psp_free(other).unwrap();
    is(adapter.psp_free(psp), InvalidHandle);
    adapter.evd_free(side.cr).unwrap();
}

#[test]
fn tables_and_reservations_run_out_and_recover() {
    let mut net = Net::new(6, 1);
    let side = net.side(0, &Options { merged: true, ..Options::default() });
    let adapter = &mut net.nodes[0];
    let census = net.world.census(0);
    for _ in 0..3 {
        // The CQ keeps room for what every EP may have outstanding.
        let attributes = EpAttributes { max_recv_dtos: 100, max_request_dtos: 99, ..EpAttributes::DEFAULT };
        let make = |adapter: &mut common::Node| {
            let evd = Some(side.recv);
            adapter.ep_create(side.ia, Some(side.pz), evd, evd, evd, Some(&attributes))
        };
        let eps: Vec<_> = std::iter::from_fn(|| make(adapter).ok()).collect();
        // It grows with them, until the table is full.
        assert_eq!(eps.len(), 63);
        assert!(adapter.evd_query(side.recv).unwrap().evd_qlen >= 33 + 63 * 200);
        is(make(adapter), ReturnType::InsufficientResources);
        for ep in eps {
            adapter.ep_free(ep).unwrap();
        }
        let evds: Vec<_> =
            std::iter::from_fn(|| adapter.evd_create(side.ia, 64, None, EvdFlags::DTO).ok()).collect();
        assert!(evds.len() > 40, "{}", evds.len());
        is(adapter.evd_create(side.ia, 64, None, EvdFlags::DTO), ReturnType::InsufficientResources);
        for evd in evds {
            adapter.evd_free(evd).unwrap();
        }
        let software = adapter.evd_create(side.ia, 900, None, EvdFlags::SOFTWARE).unwrap();
        is(adapter.evd_create(side.ia, 900, None, EvdFlags::SOFTWARE), ReturnType::InsufficientResources);
        adapter.evd_free(software).unwrap();
        let pzs: Vec<_> = std::iter::from_fn(|| adapter.pz_create(side.ia).ok()).collect();
        assert_eq!(pzs.len(), Capacities::DEFAULT.pzs - 1);
        is(adapter.pz_create(side.ia), ReturnType::InsufficientResources);
        for pz in pzs {
            adapter.pz_free(pz).unwrap();
        }
        let lmrs: Vec<_> =
            std::iter::from_fn(|| adapter.lmr_create(side.ia, side.memory, side.pz, MemPriv::ALL).ok())
                .collect();
        assert_eq!(lmrs.len(), 63);
        is(
            adapter.lmr_create(side.ia, side.memory, side.pz, MemPriv::ALL),
            ReturnType::InsufficientResources,
        );
        for lmr in lmrs {
            adapter.lmr_free(lmr.lmr).unwrap();
        }
    }
    assert_eq!(net.world.census(0), census);
}
