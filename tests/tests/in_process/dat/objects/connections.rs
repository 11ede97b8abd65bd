//! Connections: the graceful end, hand-off, duplicates.

use crate::dat::objects::{BEST, NONE};
use dat_nostd::*;
use harness::WorldConfig;
use harness::net::{Net, Options, Side, address};

/// Everything posted before a graceful disconnect arrives, however much is lost on the way; nothing comes behind DISCONNECTED.
#[test]
fn a_graceful_disconnect_delivers_everything_posted() {
    for seed in 61..66 {
        let mut config = WorldConfig::new(seed);
        config.fabric.faults = "loss=2%,dup=1%,reorder=1%".parse().unwrap();
        let mut net = Net::with(&config, 2);
        let attributes = EpAttributes { max_recv_dtos: 32, max_request_dtos: 32, ..EpAttributes::DEFAULT };
        let options = Options { merged: true, attributes, ..Options::default() };
        let [active, passive] = net.pair(&options);
        for cookie in 0..32 {
            let segment = passive.segment(cookie as usize * 16384, 16384);
            net.nodes[1].ep_post_recv(passive.ep, &[segment], cookie, NONE).unwrap();
        }
        let len = |number: u64| [0, 1, 5000, 16384][number as usize % 4];
        for number in 0..30u64 {
            let offset = number as usize * 16384;
            active.fill(offset, len(number), number);
            let flags = if number % 3 == 0 { CompletionFlags::SUPPRESS } else { NONE };
            net.nodes[0]
                .ep_post_send(active.ep, &[active.segment(offset, len(number))], number, flags)
                .unwrap();
        }
        net.nodes[0].ep_disconnect(active.ep, CloseFlags::Graceful).unwrap();
        let error = net.nodes[0].ep_post_send(active.ep, &[], 99, NONE).unwrap_err();
        assert!(error.is(ReturnType::InvalidState), "no new requests: {error}");
        let mut told = Vec::new();
        loop {
            match net.event(0, active.connect) {
                EventData::Dto(done) => {
                    assert_eq!(done.status, DtoStatus::Success);
                    told.push(done.user_cookie);
                }
                EventData::Connection { event, .. } => {
                    break assert_eq!(event, ConnectionEvent::Disconnected);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(told, (0..30).filter(|number| number % 3 != 0).collect::<Vec<_>>());
        let mut arrived = 0;
        loop {
            match net.event(1, passive.connect) {
                EventData::Dto(done) if done.status == DtoStatus::Success => {
                    assert_eq!((done.user_cookie, done.transferred_length), (arrived, len(arrived) as u64));
                    passive.check(arrived as usize * 16384, len(arrived), arrived);
                    arrived += 1;
                }
                EventData::Dto(done) => {
                    assert_eq!(arrived, 30, "everything came before the flushes");
                    assert_eq!(done.status, DtoStatus::ErrFlushed);
                }
                EventData::Connection { event, .. } => {
                    break assert_eq!(event, ConnectionEvent::Disconnected);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(arrived, 30);
        net.pass(3_000_000_000);
        net.empty(0, active.connect);
        net.empty(1, passive.connect);
    }
}

/// A request goes through a chain of service points to one whose owner accepts it.
#[test]
fn a_request_is_handed_on_with_its_private_data() {
    for name in ["ib0", "ib0-dat"] {
        let mut net = Net::new(71, 2);
        let options = Options { name, ..Options::default() };
        let [active, passive] = [net.side(0, &options), net.side(1, &options)];
        let psps: Vec<PspHandle> = [7, 8, 9]
            .map(|qualifier| {
                net.nodes[1].psp_create(passive.ia, qualifier, passive.cr, PspFlags::Consumer).unwrap()
            })
            .into();
        net.ask(&active, 7, TIMEOUT_INFINITE, b"for whom it may concern");
        let mut cr = net.request(&passive, psps[0]);
        for (qualifier, psp) in [(8, psps[1]), (9, psps[2])] {
            net.nodes[1].cr_handoff(cr, qualifier).unwrap();
            cr = net.request(&passive, psp);
            let asked = net.nodes[1].cr_query(cr).unwrap();
            assert!(asked.private_data.starts_with(b"for whom it may concern"));
            assert_eq!(asked.remote_address, address(0));
        }
        net.nodes[1].cr_accept(cr, Some(passive.ep), b"me").unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Established);
        assert!(net.nodes[0].ep_private_data(active.ep).unwrap().starts_with(b"me"));
        // Handed to a place that cannot take it, the peer is refused.
        let ep = net.nodes[0]
            .ep_create(
                active.ia,
                Some(active.pz),
                Some(active.recv),
                Some(active.request),
                Some(active.connect),
                None,
            )
            .unwrap();
        let other = Side { ep, ..active };
        net.ask(&other, 7, TIMEOUT_INFINITE, b"");
        let cr = net.request(&passive, psps[0]);
        let rsp = net.nodes[1].rsp_create(passive.ia, 10, None, passive.cr).unwrap();
        net.nodes[1].rsp_free(rsp).unwrap();
        assert!(net.nodes[1].cr_handoff(cr, 10).unwrap_err().is(ReturnType::InvalidParameter));
        net.nodes[1].cr_reject(cr).unwrap();
        assert_eq!(net.connection(0, &other), ConnectionEvent::PeerRejected);
    }
}

/// A second connection to where the first goes, with data on both.
#[test]
fn a_connection_is_duplicated() {
    let mut net = Net::new(81, 2);
    let [active, passive] = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let mut eps = Vec::new();
    for round in 0..5u64 {
        let make = |node: &mut harness::net::Node, side: &Side| {
            let (recv, request, connect) = (Some(side.recv), Some(side.request), Some(side.connect));
            node.ep_create(side.ia, Some(side.pz), recv, request, connect, None).unwrap()
        };
        let ours = Side { ep: make(&mut net.nodes[0], &active), ..active };
        let theirs = Side { ep: make(&mut net.nodes[1], &passive), ..passive };
        match eps.last() {
            None => net.ask(&ours, 7, TIMEOUT_INFINITE, b""),
            Some((first, _)) => {
                let first: &Side = first;
                net.nodes[0].ep_dup_connect(ours.ep, first.ep, TIMEOUT_INFINITE, b"another", BEST).unwrap();
            }
        }
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_accept(cr, Some(theirs.ep), b"").unwrap();
        assert_eq!(net.connection(0, &ours), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &theirs), ConnectionEvent::Established);
        eps.push((ours, theirs));
        for (number, (ours, theirs)) in eps.iter().enumerate() {
            let message = round * 10 + number as u64;
            net.nodes[1].ep_post_recv(theirs.ep, &[passive.segment(0, 512)], message, NONE).unwrap();
            active.fill(0, 300, message);
            net.nodes[0].ep_post_send(ours.ep, &[active.segment(0, 300)], message, NONE).unwrap();
            assert_eq!(net.dto(1, passive.recv).user_cookie, message);
            passive.check(0, 300, message);
            net.dto(0, active.request);
        }
    }
}
