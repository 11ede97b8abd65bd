//! Events of completions against a reference decoder: any entry of a CQ becomes the event that both
//! expect.
//!
//! The endpoint is disconnected, so that errors change nothing more, and no time passes: the device
//! never looks at what is posted. The test writes the completions in its place.

use crate::common;

use common::{Net, Options, Side};
use dat_nostd::*;
use driver_mlx::DmaSlice;
use harness::WorldConfig;
use reference::cases::{self, Random};
use reference::cqe::{self, Entry, Kind, Posted, Queues, Status};
use std::collections::BTreeMap;
use std::fmt;

const NONE: CompletionFlags = CompletionFlags::empty();
/// Entries of the CQ: its EVD's events and a reserve, as a power of two.
const ENTRIES: u32 = 2048;
/// Requests and receives outstanding at most.
const MOST: usize = 8;
/// Cases with one world, whose device keeps every doorbell.
const CASES_OF_WORLD: u64 = 1_000_000;

/// An operation that is outstanding.
#[derive(Clone, Copy, Debug)]
struct Operation {
    kind: DtoOperation,
    length: u64,
    suppressed: bool,
}

/// Failure report of one case. Text is made only then: it would take most of the time.
struct Case<'c> {
    entry: &'c [u8; 64],
    queues: &'c Queues,
    call: u64,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, queues, call } = self;
        write!(f, "call {call}, {entry:02x?}, outstanding {queues:?}")
    }
}

struct Bed {
    net: Net,
    side: Side,
    /// The CQ, and entries written so far.
    ring: DmaSlice<'static>,
    produced: u32,
    user_index: u32,
    queues: Queues,
    heads: (u16, u16),
    operations: BTreeMap<u64, Operation>,
    names: u64,
}

impl Bed {
    fn new(seed: u64) -> Self {
        let mut net = Net::with(&WorldConfig::new(seed), 2);
        let mut sides = [0, 1].map(|node| net.side(node, &Options::default()));
        let side = &mut sides[0];
        let node = &mut net.nodes[0];
        node.ep_free(side.ep).unwrap();
        let evd = node.evd_create(side.ia, 2000, None, EvdFlags::DTO).unwrap();
        (side.recv, side.request) = (evd, evd);
        let (evd, connect) = (Some(evd), Some(side.connect));
        side.ep = node.ep_create(side.ia, Some(side.pz), evd, evd, connect, None).unwrap();
        net.connect(&sides);
        let side = sides[0];
        net.nodes[0].ep_post_recv(side.ep, &[side.segment(0, 64)], 77, NONE).unwrap();
        net.nodes[0].ep_disconnect(side.ep, CloseFlags::Abrupt).unwrap();
        assert_eq!(net.connection(0, &side), ConnectionEvent::Disconnected);
        let flushed = net.dto(0, side.recv);
        assert_eq!((flushed.user_cookie, flushed.status), (77, DtoStatus::ErrFlushed));
        // Its completion names the queue pair.
        let (ring, entry) = ring(&net);
        let word = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().unwrap());
        let queues = Queues {
            qpn: word(0x38) & 0xff_ffff,
            requests: Vec::new(),
            receives: Vec::new(),
            receive_ring: MOST as u16,
            inline: false,
        };
        let user_index = word(0x20) & 0xff_ffff;
        let operations = BTreeMap::new();
        let mut bed =
            Self { net, side, ring, produced: 1, user_index, queues, heads: (0, 1), operations, names: 100 };
        bed.find_first_request();
        bed
    }

    /// The adapter may have posted requests of its own: tries where the next one is.
    fn find_first_request(&mut self) {
        let side = self.side;
        self.net.nodes[0].ep_post_send(side.ep, &[side.segment(0, 1)], 99, NONE).unwrap();
        let tried = (0..MOST as u16).find(|index| {
            let mut entry = [0; 64];
            entry[0x20..0x24].copy_from_slice(&self.user_index.to_be_bytes());
            entry[0x38..0x3c].copy_from_slice(&self.queues.qpn.to_be_bytes());
            entry[0x3c..0x3e].copy_from_slice(&index.to_be_bytes());
            self.put(entry);
            self.produced += 1;
            self.net.nodes[0].evd_take(side.request).is_some()
        });
        self.heads.0 = tried.expect("it was posted") + 1;
    }

    fn owner(&self) -> u8 {
        (self.produced / ENTRIES) as u8 & 1
    }

    fn put(&self, mut entry: [u8; 64]) {
        entry[0x3f] ^= self.owner();
        self.ring.write((self.produced % ENTRIES) as usize * 64, &entry).unwrap();
    }

    /// Posts an operation of one block, unless as many are outstanding as may be.
    fn post(&mut self, random: &mut Random) {
        let Self { net, side, names, .. } = self;
        let (adapter, ep, name) = (&mut net.nodes[0], side.ep, *names);
        let length = random.pick(&[1, 64, 4096, 100_000]);
        let receives = random.one_in(2);
        let outstanding = if receives { &mut self.queues.receives } else { &mut self.queues.requests };
        if outstanding.len() == MOST {
            return;
        }
        let suppressed = !receives && random.one_in(4);
        let flags = if suppressed { CompletionFlags::SUPPRESS } else { NONE };
        let (local, remote) = ([side.segment(0, length)], side.remote(0, length));
        let kind = if receives {
            adapter.ep_post_recv(ep, &local, name, NONE).unwrap();
            DtoOperation::Receive
        } else {
            match random.below(4) {
                0 => {
                    adapter.ep_post_rdma_write(ep, &local, name, &remote, flags).unwrap();
                    DtoOperation::RdmaWrite
                }
                1 => {
                    adapter.ep_post_rdma_read(ep, &local, name, &remote, flags).unwrap();
                    DtoOperation::RdmaRead
                }
                _ => {
                    adapter.ep_post_send(ep, &local, name, flags).unwrap();
                    DtoOperation::Send
                }
            }
        };
        let head = if receives { &mut self.heads.1 } else { &mut self.heads.0 };
        outstanding.push(Posted { index: *head, name });
        *head = head.wrapping_add(1);
        self.operations.insert(name, Operation { kind, length: length as u64, suppressed });
        *names += 1;
    }

    /// The event that the reference expects.
    fn expected(&mut self, decoded: &Entry) -> Option<DtoCompletion> {
        let Entry::Completion(completion) = decoded else { return None };
        if completion.user_index != self.user_index {
            return None;
        }
        let (posted, _) = self.queues.retire(completion)?;
        let operation = self.operations[&posted.name];
        self.operations.retain(|name, _| {
            self.queues.requests.iter().chain(&self.queues.receives).any(|posted| posted.name == *name)
        });
        let mut event = DtoCompletion {
            ep: self.side.ep,
            user_cookie: posted.name,
            status: DtoStatus::Success,
            transferred_length: operation.length,
            operation: operation.kind,
            received: Received::Plain,
            vendor_syndrome: 0,
        };
        if let Some((syndrome, vendor)) = completion.error {
            (event.status, event.transferred_length) = (status(cqe::status(syndrome)), 0);
            event.vendor_syndrome = vendor;
            return Some(event);
        }
        let (bytes, immediate) = (completion.byte_count?.into(), completion.immediate?);
        event.received = match completion.kind {
            Kind::SendImmediate | Kind::WriteImmediate => Received::Immediate(immediate),
            Kind::SendInvalidate => Received::Invalidated(immediate),
            _ => Received::Plain,
        };
        event.transferred_length = match completion.kind {
            // The device's length is bounded by what was posted, except for a write, which goes
            // elsewhere.
            Kind::Send | Kind::SendImmediate | Kind::SendInvalidate => operation.length.min(bytes),
            Kind::WriteImmediate => bytes,
            _ => operation.length,
        };
        (!operation.suppressed || !completion.kind.is_request()).then_some(event)
    }

    /// The device writes an entry, and it is dequeued by one of the calls for that.
    fn take(&mut self, entry: [u8; 64], call: u64) {
        self.put(entry);
        let mut in_place = entry;
        in_place[0x3f] ^= self.owner();
        let decoded = cqe::decode(&in_place, self.owner());
        let queues = self.queues.clone();
        let case = Case { entry: &in_place, queues: &queues, call };
        let expected = self.expected(&decoded);
        self.produced += u32::from(decoded != Entry::Absent);
        let (node, evd) = (&mut self.net.nodes[0], self.side.recv);
        let found = match call {
            0 => node.evd_dequeue(evd).ok(),
            1 => node.evd_take(evd),
            _ => {
                let mut taken = None;
                let (count, other) = node.evd_take_receives(evd, 8, |first, mut run| {
                    assert_eq!(run.next(), None, "{case}");
                    taken = Some(first);
                    0
                });
                let taken = taken.map(|ReceiveDto { user_cookie, length }| DtoCompletion {
                    ep: self.side.ep,
                    user_cookie,
                    status: DtoStatus::Success,
                    transferred_length: length.into(),
                    operation: DtoOperation::Receive,
                    received: Received::Plain,
                    vendor_syndrome: 0,
                });
                let found = taken.map(|done| Event { evd, data: EventData::Dto(done) }).or(other);
                assert_eq!(count, usize::from(found.is_some()), "{case}");
                found
            }
        };
        let found = found.map(|event| match event.data {
            EventData::Dto(done) => done,
            other => panic!("{other:?}: {case}"),
        });
        assert_eq!(found, expected, "{case}");
    }

    fn drawn(&self, random: &mut Random) -> [u8; 64] {
        let mut entry = [0; 64];
        if random.one_in(2) {
            entry.fill_with(|| random.bits() as u8);
        }
        let put = |entry: &mut [u8; 64], at: usize, value: u32| {
            entry[at..at + 4].copy_from_slice(&value.to_be_bytes());
        };
        put(&mut entry, 0x2c, random.pick(&[0, 1, 63, 64, 65, 4096, 1 << 31, u32::MAX]));
        put(&mut entry, 0x24, random.pick(&[0, 1, 1 << 31, u32::MAX]));
        let user_index = if random.one_in(16) { random.pick(&[0, 1, 79, 0xffff]) } else { self.user_index };
        put(&mut entry, 0x20, user_index);
        entry[0x37] = random.pick(&[1, 2, 4, 5, 6, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22, 0, 0xff]);
        let qpn = self.queues.qpn;
        let other = random.pick(&[0, qpn ^ 1, qpn ^ 0x80_0000, 0xff_ffff]);
        put(&mut entry, 0x38, if random.one_in(16) { other } else { qpn });
        let Queues { requests, receives, .. } = &self.queues;
        let posted = if random.one_in(2) { requests } else { receives };
        let index = match random.below(8) {
            0 => random.bits() as u16,
            1 if !posted.is_empty() => random.pick(posted).index,
            _ => posted.first().map_or(self.heads.0, |posted| posted.index),
        };
        entry[0x3c..0x3e].copy_from_slice(&index.to_be_bytes());
        // The size of the ring of receives decides which other indices it takes for the oldest.
        let is_receive = receives.iter().any(|posted| posted.index == index);
        let opcode = match random.below(16) {
            0 => random.below(16) as u8,
            _ => random.pick(&[0, 0, 0, 1, 2, 2, 2, 3, 4, 13, 14]),
        };
        let opcode = if !is_receive && matches!(opcode, 1..=4 | 14) { 0 } else { opcode };
        let format = if random.one_in(16) { random.below(4) as u8 } else { 0 };
        let absent = u8::from(random.one_in(64));
        entry[0x3f] = opcode << 4 | format << 2 | (random.below(2) as u8) << 1 | absent;
        entry
    }
}

/// The CQ in node 0's memory, and its first entry, which alone is written.
fn ring(net: &Net) -> (DmaSlice<'static>, [u8; 64]) {
    let memory = net.world.memory(0).as_slice();
    let len = ENTRIES as usize * 64;
    let mut entry = [0; 64];
    let is_fresh = |at: usize| {
        let mut bytes = [0; 64];
        memory.read(at, &mut bytes).unwrap();
        bytes[..63] == [0; 63] && bytes[63] == mlx5_prm::datapath::CQE_INIT_OP_OWN
    };
    let start = (0..memory.len() - len).step_by(4096).find(|&start| {
        memory.read(start, &mut entry).unwrap();
        entry[0x3f] >> 4 == 14 && (1..ENTRIES as usize).all(|index| is_fresh(start + index * 64))
    });
    (memory.slice(start.expect("a CQ"), len).unwrap(), entry)
}

fn status(status: Status) -> DtoStatus {
    match status {
        Status::Success => DtoStatus::Success,
        Status::Flushed => DtoStatus::ErrFlushed,
        Status::LocalLength => DtoStatus::ErrLocalLength,
        Status::LocalEp => DtoStatus::ErrLocalEp,
        Status::LocalProtection => DtoStatus::ErrLocalProtection,
        Status::BadResponse => DtoStatus::ErrBadResponse,
        Status::RemoteAccess => DtoStatus::ErrRemoteAccess,
        Status::RemoteResponder => DtoStatus::ErrRemoteResponder,
        Status::Transport => DtoStatus::ErrTransport,
        Status::ReceiverNotReady => DtoStatus::ErrReceiverNotReady,
        Status::RmrOperationFailed => DtoStatus::RmrOperationFailed,
    }
}

/// Every syndrome, of requests and of receives.
#[test]
fn every_syndrome_agrees_with_the_reference() {
    let (mut bed, mut random) = (Bed::new(1), Random::new(1));
    for syndrome in 0..=255u8 {
        for (opcode, call) in [(13, 0), (13, 1), (14, 0), (14, 2)] {
            while bed.queues.requests.is_empty() || bed.queues.receives.is_empty() {
                bed.post(&mut random);
            }
            let mut entry = bed.drawn(&mut random);
            let Queues { requests, receives, qpn, .. } = &bed.queues;
            let index = if opcode == 13 { requests[0].index } else { receives[0].index };
            entry[0x20..0x24].copy_from_slice(&bed.user_index.to_be_bytes());
            entry[0x38..0x3c].copy_from_slice(&qpn.to_be_bytes());
            entry[0x3c..0x3e].copy_from_slice(&index.to_be_bytes());
            (entry[0x37], entry[0x3f]) = (syndrome, opcode << 4);
            bed.take(entry, call);
        }
    }
}

#[test]
fn any_entry_agrees_with_the_reference() {
    let mut left = cases::count();
    for seed in 2.. {
        let (mut bed, mut random) = (Bed::new(seed), Random::new(seed));
        let cases = left.min(CASES_OF_WORLD);
        for _ in 0..cases {
            for _ in 0..random.below(3) {
                bed.post(&mut random);
            }
            let entry = bed.drawn(&mut random);
            bed.take(entry, random.below(3));
        }
        left -= cases;
        if left == 0 {
            break;
        }
    }
    println!("{} entries", cases::count());
}
