//! An HCA that fails under a DAT program: everything outstanding is reported, the adapter recovers, and the program goes on with the same
//! memory.

use crate::common;

use common::{Net, Options, Side};
use dat_nostd::*;

const SECOND: u64 = 1_000_000_000;
const NONE: CompletionFlags = CompletionFlags::empty();
/// Bytes of a message.
const LEN: usize = 9000;

/// What a program sees of its own device's end: every DTO, then the end of the connection, and the asynchronous error.
fn end(net: &mut Net, node: usize, side: &Side) {
    for cookie in [10, 11] {
        let flushed = net.dto(node, side.recv);
        assert_eq!((flushed.status, flushed.user_cookie), (DtoStatus::ErrFlushed, cookie));
    }
    for cookie in [20, 21, 22] {
        let done = net.dto(node, side.request);
        assert_eq!(done.user_cookie, cookie);
        assert!(matches!(done.status, DtoStatus::Success | DtoStatus::ErrFlushed), "{done:?}");
    }
    assert_eq!(net.connection(node, side), ConnectionEvent::Broken);
    let error = net.event(node, side.asynchronous);
    assert!(matches!(error, EventData::Async { error: AsyncError::IaCatastrophic, .. }), "{error:?}");
    for evd in [side.recv, side.request, side.connect, side.asynchronous] {
        net.empty(node, evd);
    }
    assert!(net.nodes[node].is_dead());
}

/// Work that does not come to an end: two receives, three sends to a peer that has no buffers.
fn leave_outstanding(net: &mut Net, node: usize, side: &Side) {
    for cookie in [10, 11] {
        net.nodes[node].ep_post_recv(side.ep, &[side.segment(LEN, LEN)], cookie, NONE).unwrap();
    }
    for cookie in [20, 21, 22] {
        net.nodes[node].ep_post_send(side.ep, &[side.segment(0, LEN)], cookie, NONE).unwrap();
    }
}

#[test]
fn a_program_outlives_twenty_ends_of_its_hca() {
    let mut net = Net::new(20, 2);
    let options = Options::default();
    let mut sides = net.pair(&options);
    let mut before = None;
    for round in 0..20 {
        let victim = round % 2;
        net.ping(&sides, LEN, round as u64 * 100);
        leave_outstanding(&mut net, victim, &sides[victim]);
        // From at once to after a minute; sometimes firmware fails and asks for a reset instead.
        let began = net.world.now();
        if round % 5 == 4 {
            net.world.with_hca(victim, |hca| hca.fail(mlx5_prm::status::HealthSyndrome(1)));
        } else {
            net.world.lose_hca(victim, [3, 10, 30, 50][round % 4] * SECOND);
        }
        end(&mut net, victim, &sides[victim]);
        assert!(net.world.now() - began < 3 * SECOND, "noticed in time");
        let refused = net.nodes[victim].ia_open("ib0", 8, None).unwrap_err();
        assert!(refused.is(ReturnType::InternalError), "{refused}");

        // Bounded, too: the reset, and the subnet manager's sweep.
        let began = net.world.now();
        net.nodes[victim].recover(Duration::from_secs(30)).unwrap();
        assert!(net.world.now() - began < 70 * SECOND);
        let old = sides[victim];
        assert!(net.nodes[victim].ia_query(old.ia).is_err_and(|error| error.is(ReturnType::InvalidHandle)));
        old.check(0, LEN, round as u64 * 100 + victim as u64);

        net.nodes[1 - victim].ia_close(sides[1 - victim].ia, CloseFlags::Abrupt).unwrap();
        let census = net.nodes[victim].census();
        assert_eq!(*before.get_or_insert((census.ias, census.eps, census.lmrs, census.events)), (0, 0, 0, 0));
        sides = [0, 1].map(|node| net.side_over(node, &options, sides[node].memory));
        net.connect(&sides);
        // Another failure at once would be refused.
        net.pass(61 * SECOND);
    }
    net.ping(&sides, LEN, 7777);
    for node in [0, 1] {
        // Nothing but the failures that were ordered.
        let refusals = net.world.refusals(node);
        assert!(refusals.iter().all(|line| line.ends_with("the device stops")), "{refusals:?}");
    }
}

#[test]
fn memory_of_a_failed_adapter_is_not_given_out_before_its_reset() {
    let mut net = Net::new(21, 2);
    let options = Options::default();
    let side = net.side(0, &options);
    let buffer = net.nodes[0].dma_alloc(1 << 20, 4096).unwrap();
    let lmr = net.nodes[0].lmr_create(side.ia, &buffer, side.pz, MemPriv::ALL).unwrap();
    let free = net.nodes[0].census().free_bytes;
    net.world.lose_hca(0, 10 * SECOND);
    net.until("the end", |net| net.nodes[0].is_dead().then_some(()));
    net.nodes[0].lmr_free(lmr.lmr).unwrap();
    net.nodes[0].dma_free(buffer).unwrap();
    assert!(net.nodes[0].dma_alloc(4096, 4096).is_err());
    net.nodes[0].recover(Duration::from_secs(30)).unwrap();
    let again = net.nodes[0].dma_alloc(1 << 20, 4096).unwrap();
    assert!(net.nodes[0].census().free_bytes >= free);
    net.nodes[0].dma_free(again).unwrap();
}

#[test]
fn an_hca_that_does_not_come_back_is_given_up() {
    let mut net = Net::new(22, 2);
    net.world.lose_hca(0, u64::MAX);
    net.until("the end", |net| net.nodes[0].is_dead().then_some(()));
    for _ in 0..3 {
        let error = net.nodes[0].recover(Duration::ZERO).unwrap_err();
        assert_eq!(error, OpenError::Hca(driver_mlx::Error::NotPresent));
        assert!(net.nodes[0].is_dead());
    }
    let error = net.nodes[0].recover(Duration::ZERO).unwrap_err();
    assert_eq!(error, OpenError::Hca(driver_mlx::Error::RecoveryGivenUp { attempts: 3 }));
    // The other works on.
    net.pass(SECOND);
    assert!(net.nodes[1].is_up());
}

#[test]
fn an_adapter_that_works_stays_as_it_is() {
    let mut net = Net::new(23, 2);
    let sides = net.pair(&Options::default());
    net.nodes[0].recover(Duration::from_secs(30)).unwrap();
    net.ping(&sides, LEN, 1);
}

/// Bytes that are nobody's but a program's.
fn own(len: usize) -> *mut u8 {
    Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr()
}

/// What the device has failed over, it may still write to: the program gets its memory back when that is over, and not before.
#[test]
fn memory_of_a_program_s_own_is_given_back_when_the_device_cannot_reach_it() {
    let mut net = Net::new(24, 2);
    let side = net.side(0, &Options::default());
    let memory = own(5000);
    let coherent = |net: &Net| net.nodes[0].hca().dma_is_coherent();
    // SAFETY: leaked, and not touched here.
    let make = |net: &mut Net, ia, pz| unsafe {
        net.nodes[0].lmr_create_virtual(ia, memory, 5000, pz, MemPriv::ALL)
    };
    let lmr = make(&mut net, side.ia, side.pz).unwrap();
    assert!(!coherent(&net), "mapped");
    // Out of reach: nothing is known of what it does.
    net.world.lose_hca(0, 10 * SECOND);
    net.until("the end", |net| net.nodes[0].is_dead().then_some(()));
    let refused = net.nodes[0].lmr_free(lmr.lmr).unwrap_err();
    assert!(refused.is(ReturnType::InvalidState), "{refused}");
    assert!(net.nodes[0].lmr_query(lmr.lmr).is_ok());
    // Closing the IA does not change that.
    net.nodes[0].ia_close(side.ia, CloseFlags::Abrupt).unwrap();
    assert!(net.nodes[0].lmr_free(lmr.lmr).is_err() && !coherent(&net));
    assert_eq!((net.nodes[0].census().lmrs, net.nodes[0].census().pzs), (1, 1));
    net.nodes[0].recover(Duration::from_secs(30)).unwrap();
    assert!(coherent(&net), "unmapped");
    assert_eq!((net.nodes[0].census().lmrs, net.nodes[0].census().pzs), (0, 0));

    // Within reach: bus mastering is switched off for it.
    net.pass(61 * SECOND);
    let (ia, _) = net.nodes[0].ia_open("ib0", 8, None).unwrap();
    let pz = net.nodes[0].pz_create(ia).unwrap();
    let lmr = make(&mut net, ia, pz).unwrap();
    net.world.with_hca(0, |hca| hca.fail(mlx5_prm::status::HealthSyndrome(1)));
    net.until("the end", |net| net.nodes[0].is_dead().then_some(()));
    net.nodes[0].lmr_free(lmr.lmr).unwrap();
    assert!(coherent(&net) && !net.world.with_hca(0, |hca| hca.bus_master()));
    net.nodes[0].recover(Duration::from_secs(30)).unwrap();
    assert!(net.world.with_hca(0, |hca| hca.bus_master()));
}

#[test]
fn nothing_is_closed_before_a_recovery_is_admitted() {
    let mut net = Net::new(25, 2);
    for round in 0..2 {
        let side = net.side(0, &Options::default());
        net.world.lose_hca(0, SECOND);
        net.until("the end", |net| net.nodes[0].is_dead().then_some(()));
        if round == 1 {
            // The one before was a moment ago.
            let error = net.nodes[0].recover(Duration::from_secs(30)).unwrap_err();
            assert!(matches!(error, OpenError::Hca(driver_mlx::Error::RecoveryTooSoon { .. })), "{error}");
            let error = net.event(0, side.asynchronous);
            assert!(matches!(error, EventData::Async { error: AsyncError::IaCatastrophic, .. }), "{error:?}");
            net.nodes[0].ia_close(side.ia, CloseFlags::Abrupt).unwrap();
            net.world.pass(61 * SECOND);
        }
        net.nodes[0].recover(Duration::from_secs(30)).unwrap();
        assert_eq!(net.nodes[0].census().ias, 0);
    }
}

#[test]
fn a_failure_that_no_poll_has_seen_is_recovered_from() {
    let mut net = Net::new(26, 2);
    let side = net.side(0, &Options::default());
    // As a function-level reset does, and nobody has looked since.
    net.world.with_hca(0, hca_model::Hca::reset);
    assert!(!net.nodes[0].is_dead());
    net.nodes[0].recover(Duration::from_secs(30)).unwrap();
    assert!(net.nodes[0].is_up());
    assert!(net.nodes[0].ia_query(side.ia).is_err());
    net.nodes[0].ia_open("ib0", 8, None).unwrap();
}

#[test]
fn a_port_that_does_not_come_back_counts() {
    let mut net = Net::new(27, 2);
    net.world.lose_hca(0, SECOND);
    net.until("the end", |net| net.nodes[0].is_dead().then_some(()));
    net.world
        .with_hca(0, |hca| hca.habits_mut().refused_commands = vec![mlx5_prm::opcode::Opcode::CREATE_QP]);
    for _ in 0..3 {
        let error = net.nodes[0].recover(Duration::ZERO).unwrap_err();
        assert!(matches!(error, OpenError::Hca(driver_mlx::Error::Command(_))), "{error}");
        assert!(net.nodes[0].is_dead());
    }
    let error = net.nodes[0].recover(Duration::ZERO).unwrap_err();
    assert_eq!(error, OpenError::Hca(driver_mlx::Error::RecoveryGivenUp { attempts: 3 }));
}
