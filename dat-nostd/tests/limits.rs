//! Limits are ordinary errors: every table, queue and pool is filled, refuses, and takes again what was freed; a great many
//! create/free cycles leave nothing behind. `MLX5_TESTS_LONG=1` makes it 1,000,000 cycles.

use crate::common;

use common::{Net, Node, Side};
use dat_nostd::*;

/// Everything that could leak: the adapter's tables and memory, the HCA's objects.
fn census(net: &Net) -> (AdapterCensus, String) {
    (net.nodes[0].census(), net.world.census(0).to_string())
}

/// Creates and frees once.
type Cycle = fn(&mut Node, &Side, &mut u64) -> DatResult<()>;

const SRQ: SrqAttributes = SrqAttributes { max_recv_dtos: 8, max_recv_iov: 1, low_watermark: 0 };

/// The kinds of objects, and how often more each is made than one with queues of its own.
const CYCLES: [(&str, u32, Cycle); 14] = [
    ("software event", 12, |node, side, count| {
        let evd = side.cr;
        let _ = node.evd_dequeue(evd);
        *count += 1;
        Ok(())
    }),
    ("EVD for software events", 12, |node, side, _| {
        let evd = node.evd_create(side.ia, 8, None, EvdFlags::SOFTWARE)?;
        node.evd_post_se(evd, 1)?;
        node.evd_free(evd)
    }),
    ("CNO", 12, |node, side, _| {
        let cno = node.cno_create(side.ia, None)?;
        node.cno_free(cno)
    }),
    ("PSP", 12, |node, side, _| {
        let psp = node.psp_create(side.ia, 700, side.cr, PspFlags::Consumer)?;
        node.psp_free(psp)
    }),
    ("PSP anywhere", 12, |node, side, _| {
        let (_, psp) = node.psp_create_any(side.ia, side.cr, PspFlags::Provider)?;
        node.psp_free(psp)
    }),
    ("RSP", 12, |node, side, _| {
        let rsp = node.rsp_create(side.ia, 701, Some(side.ep), side.cr)?;
        node.rsp_free(rsp)
    }),
    ("IA", 12, |node, _, _| {
        let (ia, _) = node.ia_open("ib0", 8, None)?;
        node.ia_close(ia, CloseFlags::Graceful)
    }),
    ("EP without queues", 12, |node, side, _| {
        let ep = node.ep_create(side.ia, None, None, None, None, None)?;
        node.ep_free(ep)
    }),
    ("PZ", 1, |node, side, _| {
        let pz = node.pz_create(side.ia)?;
        node.pz_free(pz)
    }),
    ("LMR", 1, |node, side, _| {
        let lmr = node.lmr_create(side.ia, side.memory, side.pz, MemPriv::ALL)?;
        node.lmr_free(lmr.lmr)
    }),
    ("RMR", 1, |node, side, _| {
        let rmr = node.rmr_create(side.pz)?;
        node.rmr_free(rmr)
    }),
    ("SRQ", 1, |node, side, _| {
        let srq = node.srq_create(side.ia, side.pz, &SRQ)?;
        node.srq_free(srq)
    }),
    ("EVD for completions", 1, |node, side, _| {
        let evd = node.evd_create(side.ia, 8, None, EvdFlags::DTO)?;
        node.evd_free(evd)
    }),
    ("EP", 1, |node, side, _| {
        let (recv, request, connect) = (Some(side.recv), Some(side.request), Some(side.connect));
        let ep = node.ep_create(side.ia, Some(side.pz), recv, request, connect, None)?;
        node.ep_post_recv(ep, &[side.segment(0, 8)], 1, CompletionFlags::empty())?;
        node.ep_free(ep)
    }),
];

#[test]
fn create_and_free_leave_nothing_behind() {
    let long = std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| value != "0");
    let weights: u32 = CYCLES.iter().map(|cycle| cycle.1).sum();
    let total: u32 = if long { 1_000_000 } else { 20_000 };
    let mut net = Net::new(1, 1);
    let side = net.side(0, &Default::default());
    // Everything once: what is made on first use stays.
    let mut count = 0;
    for (name, _, cycle) in CYCLES {
        cycle(&mut net.nodes[0], &side, &mut count).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let before = census(&net);
    let mut done = 0;
    while done < total {
        for (name, weight, cycle) in CYCLES {
            for _ in 0..weight {
                cycle(&mut net.nodes[0], &side, &mut count).unwrap_or_else(|error| panic!("{name}: {error}"));
                done += 1;
            }
        }
        if done % (weights * 50) == 0 {
            net.step();
        }
    }
    assert_eq!(census(&net), before, "after {done} cycles");
    net.nodes[0].ia_close(side.ia, CloseFlags::Abrupt).unwrap();
    let world = net.world.clone();
    net.nodes.remove(0).close().unwrap();
    assert_eq!(world.census(0).total(), 0, "{}", world.census(0));
}

/// Makes objects until there are no more, frees every second one, fills up again, and frees all.
#[track_caller]
fn exhaust<T>(
    net: &mut Net,
    what: &str,
    make: impl Fn(&mut Node) -> DatResult<T>,
    free: impl Fn(&mut Node, T) -> DatResult<()>,
) {
    let before = census(net);
    let node = &mut net.nodes[0];
    let fill = |node: &mut Node, made: &mut Vec<T>| loop {
        match make(node) {
            Ok(object) => made.push(object),
            Err(error) => {
                assert!(error.is(ReturnType::InsufficientResources), "{what}: {error}");
                return;
            }
        }
        assert!(made.len() < 1 << 17, "{what}: no end");
    };
    let mut made = Vec::new();
    fill(node, &mut made);
    let most = made.len();
    assert!(most > 0, "{what}");
    for round in 0..3 {
        let (keep, gone): (Vec<_>, Vec<_>) =
            made.drain(..).enumerate().partition(|(at, _)| at % 2 == round % 2);
        for (_, object) in gone {
            free(node, object).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        made = keep.into_iter().map(|(_, object)| object).collect();
        fill(node, &mut made);
        assert_eq!(made.len(), most, "{what}: as many as before fit again");
    }
    for object in made {
        free(node, object).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert_eq!(census(net), before, "{what}");
}

#[test]
fn every_table_queue_and_pool_can_be_filled_and_used_again() {
    let mut net = Net::new(2, 1);
    let side = net.side(0, &Default::default());
    let small = EpAttributes { max_recv_dtos: 1, max_request_dtos: 1, ..EpAttributes::DEFAULT };
    let streams = (Some(side.recv), Some(side.request), Some(side.connect));
    exhaust(
        &mut net,
        "IAs",
        |node| Ok(node.ia_open("ib0", 8, None)?.0),
        |node, ia| node.ia_close(ia, CloseFlags::Graceful),
    );
    exhaust(&mut net, "PZs", |node| node.pz_create(side.ia), Node::pz_free);
    exhaust(
        &mut net,
        "LMRs",
        |node| Ok(node.lmr_create(side.ia, side.memory, side.pz, MemPriv::ALL)?.lmr),
        Node::lmr_free,
    );
    exhaust(&mut net, "RMRs", |node| node.rmr_create(side.pz), Node::rmr_free);
    exhaust(&mut net, "CNOs", |node| node.cno_create(side.ia, None), Node::cno_free);
    exhaust(&mut net, "SRQs", |node| node.srq_create(side.ia, side.pz, &SRQ), Node::srq_free);
    exhaust(
        &mut net,
        "EPs",
        |node| node.ep_create(side.ia, Some(side.pz), streams.0, streams.1, streams.2, Some(&small)),
        Node::ep_free,
    );
    exhaust(&mut net, "EVDs", |node| node.evd_create(side.ia, 8, None, EvdFlags::DTO), Node::evd_free);
    exhaust(
        &mut net,
        "the event pool",
        |node| node.evd_create(side.ia, 100, None, EvdFlags::SOFTWARE),
        Node::evd_free,
    );
    exhaust(
        &mut net,
        "PSPs",
        |node| Ok(node.psp_create_any(side.ia, side.cr, PspFlags::Consumer)?.1),
        Node::psp_free,
    );
    exhaust(
        &mut net,
        "DMA memory",
        |node| node.dma_alloc(1 << 20, 4096),
        |node, buffer| Ok(node.dma_free(buffer)?),
    );
    // Queues: what was refused for want of room is taken when there is some.
    let node = &mut net.nodes[0];
    let evd = node.evd_create(side.ia, 8, None, EvdFlags::SOFTWARE).unwrap();
    let room = node.evd_query(evd).unwrap().evd_qlen;
    for round in 0..5 {
        for value in 0..room {
            node.evd_post_se(evd, u64::from(value + round)).unwrap();
        }
        assert!(node.evd_post_se(evd, 0).unwrap_err().is(ReturnType::QueueFull));
        for value in 0..room {
            let event = node.evd_dequeue(evd).unwrap();
            assert_eq!(event.data, EventData::Software { value: u64::from(value + round) });
        }
        assert_eq!(node.evd_dequeue(evd), Err(DatReturn::QUEUE_EMPTY));
    }
    let srq = node.srq_create(side.ia, side.pz, &SRQ).unwrap();
    let posts = (0..).take_while(|cookie| node.srq_post_recv(srq, &[], *cookie).is_ok()).count();
    assert_eq!(posts, 8);
    let none = CompletionFlags::empty();
    let posts = (0..).take_while(|cookie| node.ep_post_recv(side.ep, &[], *cookie, none).is_ok()).count();
    assert_eq!(posts, 16);
    net.assert_no_refusals();
}

/// What the documentation of [`Capacities`] says of DMA memory.
#[test]
fn dma_memory_costs_what_is_documented() {
    let mut net = Net::new(79, 1);
    let side = net.side(0, &common::Options::default());
    let node = &mut net.nodes[0];
    let cost = |node: &mut Node, make: &mut dyn FnMut(&mut Node)| {
        let before = node.census().free_bytes;
        make(node);
        before - node.census().free_bytes
    };
    let evd =
        |flags, length| move |node: &mut Node| _ = node.evd_create(side.ia, length, None, flags).unwrap();
    assert_eq!(cost(node, &mut evd(EvdFlags::CONNECTION | EvdFlags::CR | EvdFlags::SOFTWARE, 64)), 0);
    // 512 completions at least; with the driver's reserve they take a ring of 1024.
    for (length, ring) in [(1, 1024), (512, 1024), (1500, 2048), (4000, 4096)] {
        let bytes = cost(node, &mut evd(EvdFlags::DTO, length));
        // A block of doorbell records now and then.
        assert!((64 * ring..=64 * ring + 4096).contains(&bytes), "{length} completions: {bytes}");
    }
    let ep = |recv: u32, request: u32| {
        move |node: &mut Node| {
            let attributes = EpAttributes {
                max_recv_dtos: recv,
                max_request_dtos: request,
                max_recv_iov: 1,
                max_request_iov: 1,
                ..EpAttributes::DEFAULT
            };
            let evds = (Some(side.recv), Some(side.request), Some(side.connect));
            node.ep_create(side.ia, Some(side.pz), evds.0, evds.1, evds.2, Some(&attributes)).unwrap();
        }
    };
    for (recv, request) in [(1, 1), (16, 15), (200, 100)] {
        let bytes = cost(node, &mut ep(recv, request)) as u32;
        let least = 64 * (request + 1) + 16 * recv;
        assert!(
            (least..4 * least + 8192).contains(&bytes),
            "{recv} and {request}: {bytes}, {least} at least"
        );
    }
}
