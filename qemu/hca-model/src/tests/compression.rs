//! CQEs in short: which CQs may have them, when they are written, and what is told of them.

use super::guest::{Failed, Guest, Input};
use super::queues::{Pair, arm, event, pair};
use crate::card::CONNECTX_4;
use crate::object::cq::CqError;
use crate::profile::Profile;
use crate::seams::GuestMemory;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::cqc;
use mlx5_prm::datapath::*;
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::CqStatus;

/// A CQ of `1 << log_size` entries in short, made by commands, with its EQ armed.
fn compressed(guest: &mut Guest, log_size: u32, cqe_sz: u8) -> Pair {
    let mut p = pair(guest, log_size);
    p.cqn = create(guest, &p, |context| {
        cqc::log_cq_size.set(context, log_size);
        cqc::cqe_sz.set(context, cqe_sz);
    })
    .unwrap();
    p
}

/// Makes a CQ in short on the ring, record and EQ of `p`, otherwise as `change` says.
fn create(guest: &mut Guest, p: &Pair, change: impl Fn(&mut [u8])) -> Result<u32, Failed> {
    for i in 0..64u64 {
        guest.memory.write(p.ring + i * 64 + 63, &[0xf0]).unwrap();
    }
    let mut input = Input::new(Opcode::CREATE_CQ);
    let context = create_cq_in::cq_context.of_mut(&mut input.0);
    cqc::log_cq_size.set(context, 3u8);
    cqc::uar_page.set(context, guest.uar);
    cqc::c_eqn_or_apu_element.set(context, p.eqn);
    cqc::dbr_addr.set(context, p.record);
    cqc::cqe_comp_en.set(context, 1u8);
    change(context);
    let pages = ((cqc::cqe_sz.get(context) + 1) * 64) << cqc::log_cq_size.get32(context);
    let pas: Vec<u64> = (0..pages.div_ceil(4096)).map(|i| p.ring + i * 4096).collect();
    guest.command(&input.pas(&pas)).map(|output| create_cq_out::cqn.get32(&output))
}

/// A receive of `100 + counter` bytes.
fn receive(guest: &mut Guest, cqn: u32, counter: u16, notify: bool) -> Result<(), CqError> {
    let mut cqe = [0; 64];
    cqe64::opcode.set(&mut cqe, CqeOpcode::RESP_SEND.0);
    cqe64::se.set(&mut cqe, notify);
    cqe64::wqe_counter.set(&mut cqe, counter);
    cqe64::byte_cnt.set(&mut cqe, 100 + u32::from(counter));
    guest.push_cqe(cqn, &cqe, notify)
}

/// A driver that takes the CQ's entries apart, as mlx5's are to: skipped entries get the owner bit of their lap.
struct Reader {
    ring: u64,
    log_size: u32,
    cqe_bytes: u64,
    consumer: u32,
    record: u64,
}

impl Reader {
    fn new(p: &Pair, log_size: u32, cqe_bytes: u64) -> Self {
        Self { ring: p.ring, log_size, cqe_bytes, consumer: 0, record: p.record }
    }

    fn place(&self, index: u32) -> u64 {
        let slot = u64::from(index & ((1 << self.log_size) - 1));
        self.ring + (slot + 1) * self.cqe_bytes - 64
    }

    fn owner(&self, index: u32) -> bool {
        index >> self.log_size & 1 != 0
    }

    /// Counters and lengths of all that has come, and how many entries were titles.
    fn take(&mut self, guest: &Guest) -> (Vec<(u16, u32)>, usize) {
        let (mut found, mut titles) = (Vec::new(), 0);
        loop {
            let cqe = guest.memory.bytes(self.place(self.consumer), 64);
            let op_own = cqe[CQE_OP_OWN];
            if cqe_opcode(op_own) == CqeOpcode::INVALID || cqe_owner(op_own) != self.owner(self.consumer) {
                break;
            }
            let (count, first) = (cqe64::byte_cnt.get32(&cqe), cqe64::wqe_counter.get32(&cqe) as u16);
            if cqe_format(op_own) != CqeFormat::COMPRESSED {
                found.push((first, count));
                self.consumer += 1;
                continue;
            }
            titles += 1;
            assert!((2..=7).contains(&count), "{count}");
            let array = guest.memory.bytes(self.place(self.consumer + 1), 64);
            for i in 0..count {
                let bytes: [u8; 4] = array[8 * i as usize + 4..][..4].try_into().unwrap();
                found.push((first.wrapping_add(i as u16), u32::from_be_bytes(bytes)));
            }
            for skipped in self.consumer + 1..self.consumer + count {
                let own = 0xf0 | u8::from(self.owner(skipped));
                guest.memory.write(self.place(skipped) + 63, &[own]).unwrap();
            }
            self.consumer += count;
        }
        guest.memory.store32(self.record, self.consumer & 0xff_ffff).unwrap();
        (found, titles)
    }
}

fn expected(first: u16, count: u16) -> Vec<(u16, u32)> {
    (0..count).map(|i| (first.wrapping_add(i), 100 + u32::from(first.wrapping_add(i)))).collect()
}

#[test]
fn what_cannot_be_written_in_short_is_refused() {
    let mut guest = Guest::up(Profile::node(0));
    let p = pair(&mut guest, 3);
    type Change = fn(&mut [u8]);
    let cases: [(&str, Change); 6] = [
        ("mini_cqe_res_format", |context| {
            cqc::mini_cqe_res_format.set(context, 2u8);
        }),
        ("cqe_compression_layout", |context| {
            cqc::cqe_compression_layout.set(context, 1u8);
        }),
        ("cqe_comp_en", |context| {
            cqc::cc.set(context, 1u8);
        }),
        ("cqe_comp_en", |context| {
            cqc::log_cq_size.set(context, 0u8);
        }),
        ("cqe_sz", |context| {
            cqc::cqe_sz.set(context, 3u8);
        }),
        ("log_cq_size", |context| {
            cqc::log_cq_size.set(context, 23u8);
        }),
    ];
    let before = guest.hca.device.objects.census().cqs;
    for (field, change) in cases {
        let refused = match field {
            "log_cq_size" => {
                let mut input = Input::new(Opcode::CREATE_CQ);
                let context = create_cq_in::cq_context.of_mut(&mut input.0);
                cqc::cqe_comp_en.set(context, 1u8);
                change(context);
                guest.command(&input).map(|_| 0)
            }
            _ => create(&mut guest, &p, change),
        };
        assert_eq!(refused, Err(Failed::Status(CmdStatus::BAD_PARAM)), "{field}");
        assert!(guest.refusal().contains(&format!("cqc.{field}")), "{field}: {}", guest.refusal());
    }
    assert_eq!(guest.hca.device.objects.census().cqs, before);
    // What is there, in all formats and sizes.
    for format in [0u8, 1, 3] {
        for size in [0u8, 1, 2] {
            let made = create(&mut guest, &p, |context| {
                cqc::mini_cqe_res_format.set(context, format);
                cqc::cqe_sz.set(context, size);
            });
            assert!(made.is_ok(), "{format}, {size}: {}", guest.refusal());
        }
    }
    // A card without the capability for larger entries, and for counters.
    let mut profile = Profile::of(&CONNECTX_4, 0);
    (profile.init_pages, profile.log_max_qp) = (64, 8);
    let mut guest = Guest::up(profile);
    let p = pair(&mut guest, 3);
    for (field, change) in [
        ("cqe_comp_en", (|context| cqc::cqe_sz.set(context, 1u8)) as fn(&mut [u8])),
        ("mini_cqe_res_format", |context| cqc::mini_cqe_res_format.set(context, 3u8)),
    ] {
        assert_eq!(create(&mut guest, &p, change), Err(Failed::Status(CmdStatus::BAD_PARAM)));
        assert!(guest.refusal().contains(&format!("cqc.{field}")), "{}", guest.refusal());
    }
    assert!(create(&mut guest, &p, |_| {}).is_ok());
}

#[test]
fn an_armed_cq_tells_of_a_session_once_and_when_it_is_written() {
    for (cqe_sz, bytes) in [(0, 64), (1, 128)] {
        let mut guest = Guest::up(Profile::node(0));
        let p = compressed(&mut guest, 4, cqe_sz);
        let mut reader = Reader::new(&p, 4, bytes);
        arm(&mut guest, p.cqn, 0, false, 0);
        for counter in 0..5 {
            assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()));
        }
        // Nothing is there yet, and nothing is said of it.
        assert_eq!((reader.take(&guest), event(&guest, p.events, 0).2), ((vec![], 0), 1));
        guest.poll();
        assert_eq!(event(&guest, p.events, 0), (EventType::COMP.0, p.cqn, 0));
        assert_eq!(event(&guest, p.events, 1).2, 1, "one event for all of them");
        assert_eq!(guest.vectors.0, [3]);
        assert_eq!(reader.take(&guest), (expected(0, 5), 1));
        // Fired, not armed: the next session is silent, until somebody arms behind it.
        for counter in 5..8 {
            assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()));
        }
        guest.poll();
        assert_eq!(event(&guest, p.events, 1).2, 1);
        arm(&mut guest, p.cqn, 1, false, reader.consumer);
        assert_eq!(event(&guest, p.events, 1), (EventType::COMP.0, p.cqn, 0), "three are newer: at once");
        assert_eq!(reader.take(&guest), (expected(5, 3), 1));
        // Armed while a session is held back: the event comes with it.
        assert_eq!(receive(&mut guest, p.cqn, 8, false), Ok(()));
        assert_eq!(receive(&mut guest, p.cqn, 9, false), Ok(()));
        arm(&mut guest, p.cqn, 2, false, reader.consumer);
        assert_eq!(event(&guest, p.events, 2), (EventType::COMP.0, p.cqn, 0));
        assert_eq!(event(&guest, p.events, 3).2, 1);
        assert_eq!(reader.take(&guest), (expected(8, 2), 1));
    }
}

#[test]
fn a_solicited_completion_ends_a_session_and_is_told_of_alone() {
    let mut guest = Guest::up(Profile::node(0));
    let p = compressed(&mut guest, 4, 0);
    let mut reader = Reader::new(&p, 4, 64);
    arm(&mut guest, p.cqn, 0, true, 0);
    for counter in 0..4 {
        assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()));
    }
    guest.poll();
    assert_eq!(event(&guest, p.events, 0).2, 1, "nobody asked for those");
    for counter in 4..6 {
        assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()));
    }
    assert_eq!(receive(&mut guest, p.cqn, 6, true), Ok(()));
    // It is written at once, behind those that came before it.
    assert_eq!(reader.take(&guest), (expected(0, 7), 2));
    assert_eq!(event(&guest, p.events, 0), (EventType::COMP.0, p.cqn, 0));
    guest.poll();
    assert_eq!(event(&guest, p.events, 1).2, 1);
}

#[test]
fn sessions_wrap_with_their_ring() {
    for (log_size, cqe_sz, bytes) in [(3, 0, 64), (3, 1, 128), (2, 0, 64), (1, 0, 64)] {
        let mut guest = Guest::up(Profile::node(0));
        let p = compressed(&mut guest, log_size, cqe_sz);
        let mut reader = Reader::new(&p, log_size, bytes);
        let (mut counter, mut titles, mut split) = (0u16, 0, 0);
        // Sessions of all lengths begin at all places, over many laps.
        for round in 0..200u32 {
            let count = (1 + round * 5 % 7).min(1 << log_size) as u16;
            for i in 0..count {
                assert_eq!(receive(&mut guest, p.cqn, counter.wrapping_add(i), false), Ok(()));
            }
            let last = reader.consumer & ((1 << log_size) - 1);
            split += u32::from(count > 1 && last + u32::from(count) > 1 << log_size);
            guest.poll();
            let (found, short) = reader.take(&guest);
            assert_eq!(found, expected(counter, count), "round {round}, {count} from {last}");
            titles += short;
            counter = counter.wrapping_add(count);
        }
        assert!(titles > 100 && split > 20, "{titles} titles, {split} over the end");
        let cq = guest.hca.device.objects.queues.cqs.get(p.cqn).unwrap();
        assert_eq!((cq.producer, cq.status), (u32::from(counter), CqStatus::OK));
    }
}

#[test]
fn a_session_without_room_is_an_overrun() {
    let mut guest = Guest::up(Profile::node(0));
    let asynchronous = guest.page();
    guest.create_eq(asynchronous, 4, 1, 1 << EventType::CQ_ERROR.0).unwrap();
    let p = compressed(&mut guest, 2, 0);
    for counter in 0..4 {
        assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()));
    }
    guest.poll();
    let before = guest.memory.bytes(p.ring, 256);
    for counter in 4..6 {
        assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()), "held back");
    }
    guest.poll();
    assert_eq!(guest.memory.bytes(asynchronous, 2)[1], EventType::CQ_ERROR.0);
    assert_eq!(guest.memory.bytes(asynchronous + 0x2b, 1), [1], "overrun");
    assert_eq!(guest.memory.bytes(p.ring, 256), before, "what is there stays");
    assert_eq!(receive(&mut guest, p.cqn, 6, false), Err(CqError::Failed));
    // Where overruns are no error, the ring is overwritten.
    let cqn = create(&mut guest, &p, |context| {
        cqc::log_cq_size.set(context, 1u8);
        cqc::oi.set(context, 1u8);
    })
    .unwrap();
    for counter in 0..7 {
        assert_eq!(receive(&mut guest, cqn, counter, false), Ok(()));
    }
    guest.poll();
    let cq = guest.hca.device.objects.queues.cqs.get(cqn).unwrap();
    assert_eq!((cq.producer, cq.status), (7, CqStatus::OK));
}

#[test]
fn what_is_held_back_comes_before_what_commands_do() {
    let mut guest = Guest::up(Profile::node(0));
    let p = compressed(&mut guest, 3, 0);
    let mut reader = Reader::new(&p, 3, 64);
    for counter in 0..3 {
        assert_eq!(receive(&mut guest, p.cqn, counter, false), Ok(()));
    }
    let query = Input::new(Opcode::QUERY_CQ).set(query_cq_in::cqn, u64::from(p.cqn));
    let output = guest.command(&query).unwrap();
    assert_eq!(cqc::producer_counter.get32(query_cq_out::cq_context.of(&output)), 3);
    assert_eq!(reader.take(&guest), (expected(0, 3), 1));
    // The CQ goes with what it holds.
    assert_eq!(receive(&mut guest, p.cqn, 3, false), Ok(()));
    let destroy = Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, u64::from(p.cqn));
    assert_eq!(guest.status(&destroy), CmdStatus::OK);
    guest.poll();
    assert!(guest.hca.device.objects.queues.cqs.get(p.cqn).is_none());
}
