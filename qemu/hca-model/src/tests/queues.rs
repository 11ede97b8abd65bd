//! Event and completion queues: ownership, arming, overruns, doorbells in pieces.

use super::guest::{Failed, Guest, Input};
use crate::object::cq::CqError;
use crate::profile::Profile;
use crate::seams::{GuestMemory, Io, NoPeers};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::cqc;
use mlx5_prm::event::{EventType, PortChange};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::QpState;
use rdma_fabric::wire::Unplugged;

/// An EQ for completions, its ring, a CQ, its ring and its doorbell record.
pub(super) struct Pair {
    pub(super) eqn: u32,
    pub(super) events: u64,
    pub(super) cqn: u32,
    pub(super) ring: u64,
    pub(super) record: u64,
}

pub(super) fn pair(guest: &mut Guest, log_size: u32) -> Pair {
    let events = guest.page();
    let eqn = guest.create_eq(events, 4, 3, 0).unwrap();
    let (ring, record) = (guest.page(), guest.page());
    let cqn = guest.create_cq(ring, log_size, record, eqn).unwrap();
    guest.eq_doorbell(eqn, 0, true);
    Pair { eqn, events, cqn, ring, record }
}

fn push(guest: &mut Guest, cqn: u32, mark: u8, notify: bool) -> Result<(), CqError> {
    let mut cqe = [mark; 64];
    cqe[63] = 2 << 4 | u8::from(notify) << 1;
    guest.push_cqe(cqn, &cqe, notify)
}

pub(super) fn arm(guest: &mut Guest, cqn: u32, sequence: u32, solicited: bool, consumer: u32) {
    let value = u64::from(sequence << 28 | u32::from(solicited) << 24 | consumer) << 32 | u64::from(cqn);
    let at = guest.uar as usize * 4096 + 0x20;
    guest.bar.write(at, &value.to_be_bytes());
    guest.poll();
}

pub(super) fn event(guest: &Guest, ring: u64, index: u64) -> (u8, u32, u8) {
    let bytes = guest.memory.bytes(ring + index * 64, 64);
    (bytes[1], u32::from_be_bytes(bytes[0x38..0x3c].try_into().unwrap()), bytes[63])
}

#[test]
fn completions_carry_the_owner_bit_of_their_lap() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 1);
    for lap in 0..3u32 {
        for i in 0..2 {
            let mark = (lap * 2 + i) as u8;
            assert_eq!(push(&mut guest, p.cqn, mark, false), Ok(()));
            let entry = guest.memory.bytes(p.ring + u64::from(i) * 64, 64);
            assert_eq!((entry[0], entry[62]), (mark, mark));
            assert_eq!(entry[63], 2 << 4 | (lap & 1) as u8, "lap {lap}");
        }
        guest.memory.store32(p.record, (lap + 1) * 2).unwrap();
    }
    assert!(guest.vectors.0.is_empty(), "never armed");
}

#[test]
fn an_armed_cq_fires_once_and_its_sequence_moves_on() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 4);
    arm(&mut guest, p.cqn, 0, false, 0);
    assert!(guest.vectors.0.is_empty());
    assert_eq!(push(&mut guest, p.cqn, 1, false), Ok(()));
    assert_eq!(push(&mut guest, p.cqn, 2, false), Ok(()));
    assert_eq!(event(&guest, p.events, 0), (EventType::COMP.0, p.cqn, 0));
    assert_eq!(event(&guest, p.events, 1).2, 1, "one event for two completions");
    assert_eq!(guest.vectors.0, [3]);
    // An arm that crosses the event counts for nothing; the next sequence number does.
    arm(&mut guest, p.cqn, 0, false, 0);
    assert_eq!(event(&guest, p.events, 1).2, 1);
    arm(&mut guest, p.cqn, 1, false, 1);
    assert_eq!(event(&guest, p.events, 1), (EventType::COMP.0, p.cqn, 0), "one completion is newer: at once");
    guest.eq_doorbell(p.eqn, 1, true);
    assert_eq!(guest.vectors.0, [3, 3], "arming with an event left raises at once");
}

#[test]
fn solicited_arming_waits_for_a_solicited_completion() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 4);
    arm(&mut guest, p.cqn, 0, true, 0);
    assert_eq!(push(&mut guest, p.cqn, 1, false), Ok(()));
    assert_eq!(event(&guest, p.events, 0).2, 1);
    assert_eq!(push(&mut guest, p.cqn, 2, true), Ok(()));
    assert_eq!(event(&guest, p.events, 0), (EventType::COMP.0, p.cqn, 0));
    arm(&mut guest, p.cqn, 1, true, 2);
    assert_eq!(event(&guest, p.events, 1).2, 1, "the solicited one was consumed");
    assert_eq!(push(&mut guest, p.cqn, 3, true), Ok(()));
    assert_eq!(event(&guest, p.events, 1).2, 0);
    assert_eq!(push(&mut guest, p.cqn, 4, false), Ok(()));
    arm(&mut guest, p.cqn, 2, true, 2);
    assert_eq!(event(&guest, p.events, 2).2, 0, "a solicited one is among the new");
}

#[test]
fn a_full_cq_fails_with_an_event_and_keeps_what_it_has() {
    let mut guest = Guest::up(Profile::node(0));
    let asynchronous = guest.page();
    guest.create_eq(asynchronous, 4, 1, 1 << EventType::CQ_ERROR.0).unwrap();
    let p = pair(&mut guest, 1);
    assert_eq!(push(&mut guest, p.cqn, 1, false), Ok(()));
    assert_eq!(push(&mut guest, p.cqn, 2, false), Ok(()));
    assert_eq!(push(&mut guest, p.cqn, 3, false), Err(CqError::Overrun));
    assert_eq!(push(&mut guest, p.cqn, 4, false), Err(CqError::Failed));
    let bytes = guest.memory.bytes(asynchronous, 64);
    assert_eq!(bytes[1], EventType::CQ_ERROR.0);
    assert_eq!(bytes[0x20..0x24], p.cqn.to_be_bytes());
    assert_eq!(bytes[0x2b], 1, "overrun");
    assert_eq!(guest.memory.bytes(p.ring, 1), [1]);
    let input = Input::new(Opcode::QUERY_CQ).set(query_cq_in::cqn, u64::from(p.cqn));
    let output = guest.command(&input).unwrap();
    assert_eq!(cqc::status.get32(query_cq_out::cq_context.of(&output)), 9);
}

#[test]
fn doorbells_come_whole_in_halves_or_in_bytes() {
    for sizes in [&[8usize][..], &[4, 4], &[1; 8], &[2, 2, 4]] {
        let mut guest = Guest::up(Profile::node(0));
        let p = pair(&mut guest, 4);
        assert_eq!(push(&mut guest, p.cqn, 1, false), Ok(()));
        let value = u64::from(p.cqn).to_be_bytes();
        let mut at = 0;
        for size in sizes {
            assert_eq!(event(&guest, p.events, 0).2, 1, "acts on the last byte");
            guest.bar.write(guest.uar as usize * 4096 + 0x20 + at, &value[at..at + size]);
            guest.poll();
            at += size;
        }
        assert_eq!(event(&guest, p.events, 0).2, 0, "{sizes:?}");
    }
}

#[test]
fn doorbells_through_the_wrong_page_or_for_nobody_do_nothing() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 4);
    let output = guest.command(&Input::new(Opcode::ALLOC_UAR)).unwrap();
    let other = alloc_uar_out::uar.get32(&output);
    let (own, cqn) = (guest.uar, p.cqn);
    assert_eq!(push(&mut guest, cqn, 1, false), Ok(()));
    guest.uar = other;
    arm(&mut guest, cqn, 0, false, 0);
    assert!(guest.refusal().contains("cqc.uar_page"), "{}", guest.refusal());
    guest.eq_doorbell(p.eqn, 0, true);
    assert!(guest.refusal().contains("eqc.uar_page"), "{}", guest.refusal());
    guest.uar = own + 100;
    arm(&mut guest, cqn, 0, false, 0);
    assert!(guest.refusal().contains("not allocated"), "{}", guest.refusal());
    guest.uar = own;
    arm(&mut guest, cqn + 1, 0, false, 0);
    assert!(guest.refusal().contains("no such CQ"), "{}", guest.refusal());
    guest.eq_doorbell(p.eqn, 5, true);
    assert!(guest.refusal().contains("eqc.consumer_counter"), "{}", guest.refusal());
    assert_eq!(event(&guest, p.events, 0).2, 1);
}

#[test]
fn asynchronous_events_go_where_they_are_mapped() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 6, 9, 1 << EventType::PORT_CHANGE.0).unwrap();
    let second = guest.page();
    let twice = guest.create_eq(second, 6, 9, 1 << EventType::PORT_CHANGE.0);
    assert_eq!(twice, Err(Failed::Status(CmdStatus::BAD_PARAM)));
    assert!(guest.refusal().contains("create_eq_in.event_bitmask"), "{}", guest.refusal());
    guest.eq_doorbell(eqn, 0, true);
    guest.hca.device.port.set_cable(true);
    guest.poll();
    let bytes = guest.memory.bytes(ring, 64);
    assert_eq!(
        (bytes[1], bytes[3], bytes[0x28]),
        (EventType::PORT_CHANGE.0, PortChange::INITIALIZED.0, 1 << 4)
    );
    assert_eq!(guest.vectors.0, [9]);
    let input = Input::new(Opcode::DESTROY_EQ).set(destroy_eq_in::eq_number, u64::from(eqn));
    assert_eq!(guest.status(&input), CmdStatus::OK);
    guest.hca.device.port.set_cable(false);
    guest.poll();
    assert_eq!(guest.vectors.0, [9], "events without an EQ are lost");
}

#[test]
fn a_resized_cq_goes_on_in_its_new_ring() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 1);
    assert_eq!(push(&mut guest, p.cqn, 1, false), Ok(()));
    let new = guest.page();
    let mut input =
        Input::new(Opcode::MODIFY_CQ).op_mod(1).set(modify_cq_in::cqn, u64::from(p.cqn)).pas(&[new]);
    input.0[0x0f] = 1;
    cqc::log_cq_size.set(modify_cq_in::cq_context.of_mut(&mut input.0), 2u8);
    assert_eq!(guest.status(&input), CmdStatus::OK);
    assert_eq!(guest.memory.bytes(p.ring + 64 + 63, 1), [5 << 4], "the old ring ends with a resize CQE");
    assert_eq!(push(&mut guest, p.cqn, 7, false), Ok(()));
    let entry = guest.memory.bytes(new + 2 * 64, 64);
    assert_eq!((entry[0], entry[63]), (7, 2 << 4));
}

/// MODIFY_CQ that asks for `1 << log_size` entries at `ring`.
fn resize(guest: &mut Guest, cqn: u32, ring: u64, log_size: u8) -> CmdStatus {
    for i in 0..1u64 << log_size {
        // A ring outside memory is left to the device to find out.
        let _ = guest.memory.write(ring + i * 64 + 63, &[0xf0]);
    }
    let mut input =
        Input::new(Opcode::MODIFY_CQ).op_mod(1).set(modify_cq_in::cqn, u64::from(cqn)).pas(&[ring]);
    input.0[0x0f] = 7;
    cqc::log_cq_size.set(modify_cq_in::cq_context.of_mut(&mut input.0), log_size);
    guest.status(&input)
}

#[test]
fn a_resize_that_would_lose_completions_is_refused_and_does_no_harm() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 2);
    let new = guest.page();
    for mark in 0..3 {
        assert_eq!(push(&mut guest, p.cqn, mark, false), Ok(()));
    }
    assert_eq!(resize(&mut guest, p.cqn, new, 1), CmdStatus::BAD_SIZE_OUTS_CQES);
    assert!(guest.refusal().contains("cqc.log_cq_size"), "{}", guest.refusal());
    assert_eq!(push(&mut guest, p.cqn, 3, false), Ok(()));
    // All four entries hold completions: there is no place for the resize CQE either.
    assert_eq!(resize(&mut guest, p.cqn, new, 4), CmdStatus::BAD_SIZE_OUTS_CQES);
    guest.memory.store32(p.record, 3).unwrap();
    assert_eq!(resize(&mut guest, p.cqn, new, 1), CmdStatus::OK);
    // The one not consumed was copied, and the resize CQE counts as consumed.
    guest.memory.store32(p.record, 4).unwrap();
    assert_eq!(push(&mut guest, p.cqn, 9, false), Ok(()));
    // Number 5 of a ring of two: the second entry, third lap.
    let entry = guest.memory.bytes(new + 64, 64);
    assert_eq!((entry[0], entry[63]), (9, 2 << 4));
    assert_eq!(resize(&mut guest, p.cqn, 1 << 40, 1), CmdStatus::BAD_PARAM);
}

/// MODIFY_CQ of period (us) and count.
fn moderate(guest: &mut Guest, cqn: u32, period: u32, count: u32, mode: u8) {
    let mut input = Input::new(Opcode::MODIFY_CQ).set(modify_cq_in::cqn, u64::from(cqn));
    input.0[0x0f] = 3;
    let context = modify_cq_in::cq_context.of_mut(&mut input.0);
    cqc::cq_period.set(context, period);
    cqc::cq_max_count.set(context, count);
    cqc::cq_period_mode.set(context, mode);
    assert_eq!(guest.status(&input), CmdStatus::OK);
}

#[test]
fn a_moderated_event_waits_for_completions_or_time() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 6);
    moderate(&mut guest, p.cqn, 100, 3, 1);
    arm(&mut guest, p.cqn, 0, false, 0);
    for mark in 0..2 {
        assert_eq!(push(&mut guest, p.cqn, mark, false), Ok(()));
        assert_eq!(event(&guest, p.events, 0).2, 1, "held back");
    }
    assert_eq!(push(&mut guest, p.cqn, 2, false), Ok(()));
    assert_eq!(event(&guest, p.events, 0), (EventType::COMP.0, p.cqn, 0), "enough of them");
    // One alone comes when its time is over.
    arm(&mut guest, p.cqn, 1, false, 3);
    assert_eq!(push(&mut guest, p.cqn, 3, false), Ok(()));
    guest.poll();
    assert_eq!(event(&guest, p.events, 1).2, 1);
    let due = guest.hca.next_deadline().unwrap();
    assert!(due <= guest.now + 100_000, "the device asks to be woken");
    guest.now += 100_000;
    guest.poll();
    assert_eq!(event(&guest, p.events, 1), (EventType::COMP.0, p.cqn, 0));
    guest.now += 1_000_000;
    guest.poll();
    assert_eq!(event(&guest, p.events, 2).2, 1, "once");
    // Counted from the last event, an old one does not wait any longer.
    moderate(&mut guest, p.cqn, 100, 3, 0);
    arm(&mut guest, p.cqn, 2, false, 4);
    assert_eq!(push(&mut guest, p.cqn, 4, false), Ok(()));
    assert_eq!(event(&guest, p.events, 2).2, 0);
}

/// Dwords of QUERY_VNIC_ENV's counters that are not zero, by their offset.
fn environment(guest: &mut Guest) -> Vec<(usize, u32)> {
    let output = guest.command(&Input::new(Opcode::QUERY_VNIC_ENV)).unwrap();
    let dwords = query_vnic_env_out::vport_env.of(&output).as_chunks::<4>().0.iter().enumerate();
    dwords.map(|(i, dword)| (i * 4, u32::from_be_bytes(*dword))).filter(|(_, count)| *count != 0).collect()
}

#[test]
fn a_function_can_ask_what_went_wrong() {
    let mut guest = Guest::up(Profile::node(0));
    assert_eq!(environment(&mut guest), []);
    // As Linux asks for each of them.
    for capability in [
        cmd_hca_cap::vnic_env_queue_counters,
        cmd_hca_cap::vnic_env_cq_overrun,
        cmd_hca_cap::eq_overrun_count,
        cmd_hca_cap::invalid_command_count,
        cmd_hca_cap::quota_exceeded_count,
    ] {
        assert_eq!(guest.hca.device.caps.current(capability), 1);
    }
    let unknown = Input::new(Opcode::DEALLOC_PD).set(dealloc_pd_in::pd, 0x777);
    assert_eq!(guest.status(&unknown), CmdStatus::BAD_RES);
    let other = Input::new(Opcode::QUERY_VNIC_ENV).set(query_vnic_env_in::other_vport, 1);
    assert_eq!(guest.status(&other), CmdStatus::BAD_PARAM);
    let [invalid, cq_overrun, failed_queues, async_overrun, comp_overrun] = [0x34, 0x40, 0x04, 0x28, 0x2c];
    assert_eq!(environment(&mut guest), [(invalid, 2)]);

    // A full CQ fails, with the QP that uses it.
    let p = pair(&mut guest, 0);
    let qpn = guest.create_qp(p.cqn, p.record).unwrap();
    guest.hca.device.objects.qps.get_mut(qpn).unwrap().enter(QpState::RTS);
    assert_eq!(push(&mut guest, p.cqn, 1, false), Ok(()));
    assert_eq!(push(&mut guest, p.cqn, 2, false), Err(CqError::Overrun));
    assert_eq!(push(&mut guest, p.cqn, 3, false), Err(CqError::Failed));
    guest.poll();
    assert_eq!(environment(&mut guest), [(failed_queues, 2), (invalid, 2), (cq_overrun, 1)]);
    // A QP that starts anew is in error no more.
    let reset = Input::new(Opcode::QP_2RST).set(qp_2rst_in::qpn, u64::from(qpn));
    assert_eq!(guest.status(&reset), CmdStatus::OK);
    let destroy = |opcode, field, number: u32| Input::new(opcode).set(field, number.into());
    assert_eq!(environment(&mut guest)[0], (failed_queues, 1));
    assert_eq!(guest.status(&destroy(Opcode::DESTROY_QP, destroy_qp_in::qpn, qpn)), CmdStatus::OK);
    assert_eq!(guest.status(&destroy(Opcode::DESTROY_CQ, destroy_cq_in::cqn, p.cqn)), CmdStatus::OK);
    assert_eq!(environment(&mut guest), [(invalid, 2), (cq_overrun, 1)]);

    // Event queues that may be overrun: two events have room.
    let ring = guest.page();
    for (mask, counter) in [(1 << EventType::PORT_CHANGE.0, async_overrun), (0, comp_overrun)] {
        let eqn = guest.create_eq(ring, 1, 0, mask).unwrap();
        let eq = guest.hca.device.objects.queues.eqs.get_mut(eqn).unwrap();
        eq.overrun_ignore = true;
        for i in 0..5 {
            let device = &mut guest.hca.device;
            if mask == 0 {
                let mut io = Io {
                    now: i,
                    memory: &guest.memory,
                    interrupts: &mut guest.vectors,
                    wire: &mut Unplugged,
                    peers: &mut NoPeers,
                };
                device.objects.queues.completion_event(&mut io, &mut device.log, eqn, 5);
            } else {
                device.port.changes.push(PortChange::GUID);
                guest.poll();
            }
        }
        assert!(environment(&mut guest).contains(&(counter, 3)));
    }
    // The counters are the function's, not a driver's: they end with a reset.
    guest.hca.reset();
    guest.attach();
    guest.initialize();
    assert_eq!(environment(&mut guest), []);
}
