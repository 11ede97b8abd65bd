//! Drivers that make one mistake and drivers that do not, on a card that forgives none: the data path.

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{FmCeSe, SendOpcode};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};

use super::bed::{Bed, Options, pattern};
use super::requests::Request;
use super::umr::{self, Change};
use crate::adversary::Adversary;

/// Two HCAs that do not forgive these mistakes.
fn bed(adversary: Adversary) -> Bed {
    let mut bed = Bed::new(2);
    for node in 0..2 {
        bed.hca(node).habits_mut().adversary = adversary;
    }
    bed
}

#[test]
fn atomics_need_an_atomic_mode() {
    for (mode, syndrome) in [(1, 0), (0, CqeSyndrome::REMOTE_ACCESS_ERR.0)] {
        let mut bed = bed(Adversary { atomic_mode: true, ..Adversary::default() });
        let (mut a, b) = bed.pair(&Options::default());
        let ((from, lkey), (to, rkey)) = (bed.buffer(0, 4096), bed.buffer(1, 4096));
        bed.allow(&b, &[qpc::rae], mode);
        bed.send(&mut a, &Request::new(SendOpcode::ATOMIC_FA, &[(from, 8, lkey)]).to(to, rkey));
        assert_eq!(bed.wait(&a).syndrome, syndrome);
    }
}

/// Connects a pair whose first QP posts a NOP in RTR. Rings it `before` RTS, `after` RTS, or never.
/// Returns whether the NOP completes.
fn post_in_rtr(rings_before: bool, rings_after: bool) -> bool {
    let mut bed = bed(Adversary { rts_doorbell: true, ..Adversary::default() });
    let mut qp = bed.make_qp(0, ServiceType::RC, &Options::default());
    bed.modify(&qp, QpState::RTR);
    bed.post(&mut qp, &Request::new(SendOpcode::NOP, &[]));
    if rings_before {
        bed.ring(&qp);
    }
    bed.run_for(10_000);
    bed.modify(&qp, QpState::RTS);
    if rings_after {
        bed.ring(&qp);
    }
    bed.run_for(10_000);
    bed.poll_cq(qp.node, qp.cqn).is_some()
}

#[test]
fn sends_posted_before_rts_wait_for_a_doorbell() {
    assert!(post_in_rtr(false, true));
    assert!(!post_in_rtr(false, false));
    assert!(!post_in_rtr(true, false));
}

/// Sends to a peer that is gone. Returns when the failure is reported, in nanoseconds.
fn time_to_give_up(ack_floor: Option<u8>) -> u64 {
    let mut bed = bed(Adversary { ack_floor, ..Adversary::default() });
    let options = Options { ack_timeout: 8, retry_count: 1, ..Options::default() };
    let (mut a, b) = bed.pair(&options);
    bed.modify(&b, QpState::RST);
    let start = bed.now;
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[]));
    assert_eq!(bed.wait(&a).syndrome, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR.0);
    bed.now - start
}

#[test]
fn acknowledgement_timeouts_have_a_floor() {
    // A driver that gives up after what it has asked for is too early.
    let asked = 2 * (4096 << 8);
    assert!(time_to_give_up(None) < asked + 100_000);
    assert!(time_to_give_up(Some(16)) >= 2 * (4096 << 16));
    assert!(time_to_give_up(Some(4)) < asked + 100_000, "a floor only");
}

/// Registers a page and writes from it to the peer, all with one doorbell. Returns the syndrome of the
/// write.
fn register_and_write(lazy_umr: Option<u64>, flags: FmCeSe) -> u8 {
    let mut bed = bed(Adversary { lazy_umr, ..Adversary::default() });
    let (_, mut b) = umr::pair(&mut bed);
    let key = umr::free_mtt(&mut bed, 1);
    let page = bed.guests[1].alloc(0x1000);
    bed.guests[1].write(page, &pattern(1, 1, 100));
    let (to, rkey) = bed.buffer(0, 0x1000);
    umr::post(
        &mut bed,
        &mut b,
        &Change::register(key, 0x7_0000, 0x1000, AccessFlags::empty()).pages(&[page]),
    );
    let write = Request::new(SendOpcode::RDMA_WRITE, &[(0x7_0000, 100, key)]).to(to, rkey);
    bed.send(&mut b, &write.flags(flags | FmCeSe::CQ_UPDATE));
    assert_eq!(bed.wait(&b).syndrome, 0, "of the registration");
    let syndrome = bed.wait(&b).syndrome;
    assert_eq!(bed.guests[0].read(to, 100) == pattern(1, 1, 100), syndrome == 0);
    syndrome
}

#[test]
fn keys_change_late_unless_a_fence_waits() {
    for seed in 0..16 {
        assert_eq!(register_and_write(Some(seed), FmCeSe::INITIATOR_SMALL_FENCE), 0, "{seed}");
        assert_eq!(register_and_write(Some(seed), FmCeSe::SMALL_AND_FENCE), 0, "{seed}");
    }
    let failed = (0..16).filter(|seed| register_and_write(Some(*seed), FmCeSe::empty()) != 0).count();
    assert!(failed > 8, "{failed}");
    assert_eq!(register_and_write(None, FmCeSe::empty()), 0);
}
