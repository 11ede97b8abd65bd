//! Completions against a reference decoder: any entry of a CQ, at any time, means the same to both.

use super::*;
use crate::completion::{Completion, ReceiveOpcode, WorkQueue, WrId};
use crate::cq::{CompletionKind, CqError};
use mlx5_prm::datapath::SendOpcode;
use reference::cases::{self, Random};
use reference::cqe::{self, Entry, Kind, Posted, Queues};
use std::fmt;
use std::vec::Vec;

const ENTRIES: u32 = 64;
const RECEIVES: u16 = 8;

/// A completion as both sides report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retired {
    Sent { name: u64, count: usize, opcode: u8 },
    Received { name: u64, how: Kind, immediate: u32, length: u32 },
    Failed { name: u64, count: usize, is_request: bool, syndrome: u8, vendor: u8 },
}

fn told(completion: &Completion) -> Retired {
    match *completion {
        Completion::Sent(sent) => {
            Retired::Sent { name: sent.wr_id.id, count: sent.count.into(), opcode: sent.opcode.0 }
        }
        Completion::Received(message) => {
            let (how, immediate) = match message.opcode {
                ReceiveOpcode::Send => (Kind::Send, 0),
                ReceiveOpcode::SendImm(immediate) => (Kind::SendImmediate, immediate),
                ReceiveOpcode::SendInval(key) => (Kind::SendInvalidate, key.get()),
                ReceiveOpcode::WriteImm(immediate) => (Kind::WriteImmediate, immediate),
            };
            Retired::Received { name: message.wr_id.id, how, immediate, length: message.length }
        }
        Completion::Failed(failed) => Retired::Failed {
            name: failed.wr_id.id,
            count: failed.count.into(),
            is_request: failed.queue == WorkQueue::Send,
            syndrome: failed.error.syndrome.0,
            vendor: failed.error.vendor,
        },
    }
}

fn expected(completion: &cqe::Completion, (posted, count): (Posted, usize)) -> Retired {
    let (name, length) = (posted.name, completion.byte_count.unwrap_or_default());
    if let Some((syndrome, vendor)) = completion.error {
        return Retired::Failed { name, count, is_request: completion.kind.is_request(), syndrome, vendor };
    }
    match completion.kind {
        Kind::Request => Retired::Sent { name, count, opcode: completion.send_opcode },
        how => {
            let immediate = if how == Kind::Send { 0 } else { completion.immediate.unwrap_or_default() };
            Retired::Received { name, how, immediate, length }
        }
    }
}

/// Failure report of one case. Text is made only then: it would take most of the time.
struct Case<'c> {
    owner: u8,
    entry: &'c [u8; 64],
    queues: &'c Queues,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, entry, queues } = self;
        write!(f, "owner {owner}, {entry:02x?}, outstanding {queues:?}")
    }
}

/// A queue pair and its CQ.
struct Side {
    bench: Bench,
    produced: u32,
}

impl Side {
    fn new(inline: bool, start: u16) -> Self {
        let mut bench = Bench::with_inline(Service::Rc, 8, RECEIVES.into(), 0, inline);
        bench.qp.sq.start_at(start);
        bench.qp.rq.as_mut().expect("a receive queue").start_at(start);
        Self { bench, produced: 0 }
    }

    fn owner(&self) -> u8 {
        (self.produced / ENTRIES) as u8 & 1
    }

    fn put(&self, entry: &[u8; 64]) {
        let at = (self.produced % ENTRIES) as usize * 64;
        self.bench.cq_memory.write(at, entry).expect("inside");
    }
}

/// Driver and reference.
struct Comparison {
    polled: Side,
    queues: Queues,
    /// Index of the next request, and of the next receive.
    heads: (u16, u16),
    names: u64,
    spurious: u32,
    refused: u32,
}

impl Comparison {
    fn new(inline: bool, start: u16) -> Self {
        let polled = Side::new(inline, start);
        let queues =
            Queues { qpn: QPN, requests: Vec::new(), receives: Vec::new(), receive_ring: RECEIVES, inline };
        Self { polled, queues, heads: (start, start), names: 0, spurious: 0, refused: 0 }
    }

    /// Posts requests of one or two blocks, and receives, unless a queue is full.
    fn post(&mut self, random: &mut Random) {
        let segments = 1 + random.below(4) as usize;
        let sges: Vec<Sge> = (0..segments).map(|_| sge(0x1000, 64)).collect();
        let wr_id = WrId { id: self.names, tag: !self.names << 8 };
        let writes = random.one_in(2);
        let op = if writes { SendOp::Write { raddr: 1, rkey: RKey::new(1) } } else { SendOp::Send };
        if self.polled.bench.qp.post_send(op, &sges, wr_id, SendFlags::empty()).is_ok() {
            self.queues.requests.push(Posted { index: self.heads.0, name: self.names });
            // Control segment, remote address, data segments: four of them are a block.
            let octowords = 1 + usize::from(writes) + segments;
            self.heads.0 = self.heads.0.wrapping_add(octowords.div_ceil(4) as u16);
        }
        self.names += 1;
        if random.one_in(2) && self.queues.receives.len() < usize::from(RECEIVES) {
            self.polled.bench.qp.post_recv(&[sge(0x1000, 64)], self.names).expect("room");
            self.queues.receives.push(Posted { index: self.heads.1, name: self.names });
            self.heads.1 = self.heads.1.wrapping_add(1);
            self.names += 1;
        }
    }

    /// The entry is where the device writes next: both take it.
    fn take(&mut self, entry: &[u8; 64]) {
        self.polled.put(entry);
        let owner = self.polled.owner();
        let decoded = cqe::decode(entry, owner);
        let outstanding = self.queues.clone();
        let case = Case { owner, entry, queues: &outstanding };
        let mut queues = outstanding.clone();
        let retired = match &decoded {
            Entry::Completion(completion) => {
                queues.retire(completion).map(|found| expected(completion, found))
            }
            _ => None,
        };
        let polled = self.take_polled(&decoded, retired, &case);
        assert_eq!(polled, retired, "by poll: {case}");
        match decoded {
            Entry::Absent => return,
            Entry::Opcode(_) | Entry::Format(_) => self.refused += 1,
            Entry::Completion(_) => self.spurious += u32::from(retired.is_none()),
        }
        self.queues = queues;
        self.polled.produced += 1;
        assert_eq!(self.polled.bench.qp.spurious_completions(), self.spurious);
        assert_eq!(self.polled.bench.cq.errors(), self.refused);
    }

    fn take_polled(&mut self, decoded: &Entry, retired: Option<Retired>, case: &Case<'_>) -> Option<Retired> {
        let Bench { qp, cq, .. } = &mut self.polled.bench;
        assert_eq!(cq.is_empty(), *decoded == Entry::Absent, "{case}");
        let ahead = cq.peek(0).map(|ahead| ahead.map(|cqe| kept(&cqe)));
        let polled = cq.poll(kept);
        let (ahead, found) = match (ahead, polled) {
            (Ok(ahead), Ok(found)) => (ahead, found),
            (ahead, polled) => {
                let refused = match *decoded {
                    Entry::Opcode(opcode) => CqError::UnexpectedOpcode(opcode),
                    Entry::Format(format) => CqError::UnexpectedFormat(format),
                    _ => panic!("refused: {case}"),
                };
                assert_eq!(ahead.map(|_| ()), Err(refused), "{case}");
                assert_eq!(polled.map(|_| ()), Err(refused), "{case}");
                return None;
            }
        };
        let Some(found) = found else {
            assert!(ahead.is_none() && *decoded == Entry::Absent, "{case}");
            return None;
        };
        let Entry::Completion(completion) = decoded else { panic!("taken: {case}") };
        for cqe in [&found, &ahead.expect("there")] {
            compare(cqe, completion, case);
        }
        if !completion.kind.is_request() && !completion.kind.is_error() {
            let source = found.datagram();
            let source = (source.src_qpn.get(), source.slid.get(), source.sl, source.path_bits, source.grh);
            assert_eq!(source, completion.source, "{case}");
        }
        let inline = found.inline_data();
        assert_eq!(inline.map(|(bytes, _)| bytes), completion.inline, "{case}");
        let length = completion.byte_count.unwrap_or_default() as usize;
        assert!(inline.is_none_or(|(_, len)| len == length.min(32)), "{case}");
        let end = qp.end_of(&found);
        let place = self.queues.requests.iter().position(|posted| {
            completion.kind.is_request() && completion.qpn == QPN && posted.index == completion.wqe_counter
        });
        let next = place.map(|place| self.queues.requests.get(place + 1).map_or(self.heads.0, |p| p.index));
        assert_eq!(end, next, "{case}");
        let peeked = qp.peek(&found);
        if let Some(retired) = retired {
            let (Retired::Sent { name, .. } | Retired::Received { name, .. } | Retired::Failed { name, .. }) =
                retired;
            assert_eq!(peeked.map(|wr_id| wr_id.id), Some(name), "{case}");
        }
        assert!(!completion.kind.is_request() || peeked.is_some() == retired.is_some(), "{case}");
        qp.retire(&found).as_ref().map(told)
    }
}

/// Every accessor.
fn compare(found: &Cqe<'_>, completion: &cqe::Completion, case: &Case<'_>) {
    let kind = match found.kind() {
        CompletionKind::Send => Kind::Request,
        CompletionKind::ReceiveWriteImm => Kind::WriteImmediate,
        CompletionKind::Receive => Kind::Send,
        CompletionKind::ReceiveImm => Kind::SendImmediate,
        CompletionKind::ReceiveInval => Kind::SendInvalidate,
        CompletionKind::SendError => Kind::RequestError,
        CompletionKind::ReceiveError => Kind::ReceiveError,
    };
    assert_eq!((kind, found.is_send()), (completion.kind, completion.kind.is_request()), "{case}");
    assert_eq!((found.qpn().get(), found.user_index()), (completion.qpn, completion.user_index), "{case}");
    assert_eq!(found.wqe_counter(), completion.wqe_counter, "{case}");
    assert_eq!(found.send_opcode(), SendOpcode(completion.send_opcode), "{case}");
    assert_eq!(found.solicited(), completion.solicited, "{case}");
    assert_eq!(found.error().map(|error| (error.syndrome.0, error.vendor)), completion.error, "{case}");
    assert_eq!(found.is_inline(), completion.inline.is_some(), "{case}");
    let invalidated = completion.immediate.filter(|_| kind == Kind::SendInvalidate);
    assert_eq!(found.invalidated_rkey().map(RKey::get), invalidated, "{case}");
    if let (Some(bytes), Some(immediate)) = (completion.byte_count, completion.immediate) {
        assert_eq!((found.byte_len(), found.imm()), (bytes, immediate), "{case}");
        assert_eq!(u32::from(found.pkey().get()), immediate & 0xffff, "{case}");
    }
}

/// An entry with each field at an edge or at random.
fn drawn(random: &mut Random, comparison: &Comparison) -> [u8; 64] {
    let mut entry = [0; 64];
    if random.one_in(2) {
        entry.fill_with(|| random.bits() as u8);
    }
    let put = |entry: &mut [u8; 64], at: usize, value: u32| {
        entry[at..at + 4].copy_from_slice(&value.to_be_bytes());
    };
    let edges = [0, 1, 32, 33, 4096, 1 << 31, u32::MAX];
    put(&mut entry, 0x24, random.pick(&edges));
    put(&mut entry, 0x2c, random.pick(&edges));
    put(&mut entry, 0x20, random.pick(&[0, 1, 0xff_ffff, 0x100_0000, u32::MAX]));
    if random.one_in(2) {
        put(&mut entry, 0x18, random.pick(&[0, 1, 0xff_ffff, 0x0100_0000, 0x1000_0000, 0x3000_0000]));
    }
    if random.one_in(2) {
        entry[0x37] =
            random.pick(&[0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22]);
    }
    let opcode = random.pick(&[0u8, 10, 13, 16, 255]);
    let qpn = if random.one_in(12) { random.pick(&[0, QPN ^ 1, QPN ^ 0x80_0000, 0xff_ffff]) } else { QPN };
    put(&mut entry, 0x38, u32::from(opcode) << 24 | qpn);
    let Queues { requests, receives, .. } = &comparison.queues;
    let outstanding = |random: &mut Random, posted: &[Posted]| match posted {
        [] => 0,
        posted if random.one_in(2) => posted[0].index,
        posted => random.pick(posted).index,
    };
    let counter = match random.below(16) {
        0 => random.bits() as u16,
        1 => comparison.heads.0,
        2 => comparison.heads.1,
        // The second block of a request, the one before the oldest, another lap of the ring.
        3 => outstanding(random, requests).wrapping_add(1),
        4 => outstanding(random, receives).wrapping_sub(1),
        5 => outstanding(random, receives).wrapping_add(RECEIVES * random.below(4) as u16),
        6 => outstanding(random, requests).wrapping_add(0x4000),
        7..12 => outstanding(random, requests),
        _ => outstanding(random, receives),
    };
    entry[0x3c..0x3e].copy_from_slice(&counter.to_be_bytes());
    let opcode = if random.one_in(8) {
        random.below(16) as u8
    } else {
        random.pick(&[0, 0, 0, 1, 2, 2, 2, 3, 4, 13, 14])
    };
    let format = if random.one_in(8) { random.below(4) as u8 } else { 0 };
    let owner = comparison.polled.owner() ^ u8::from(random.one_in(32));
    entry[0x3f] = opcode << 4 | format << 2 | (random.below(2) as u8) << 1 | owner;
    entry
}

/// Every last byte of an entry, with every syndrome.
#[test]
#[cfg_attr(miri, ignore = "65,536 entries")]
fn every_opcode_format_and_syndrome_agrees_with_the_reference() {
    let mut random = Random::new(1);
    let mut comparison = Comparison::new(true, 0xfff0);
    for op_own in 0..=255u8 {
        for syndrome in 0..=255u8 {
            comparison.post(&mut random);
            let mut entry = drawn(&mut random, &comparison);
            (entry[0x37], entry[0x3f]) = (syndrome, op_own);
            comparison.take(&entry);
        }
    }
}

#[test]
fn any_entry_agrees_with_the_reference() {
    let mut random = Random::new(2);
    let mut cases = 0;
    for (inline, start) in [(false, 0), (true, 0xfff8)] {
        let mut comparison = Comparison::new(inline, start);
        for _ in 0..cases::count() / 2 {
            if random.one_in(2) {
                comparison.post(&mut random);
            }
            let entry = drawn(&mut random, &comparison);
            comparison.take(&entry);
            cases += 1;
        }
    }
    std::println!("{cases} entries");
}
