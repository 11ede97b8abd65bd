//! What the data path keeps per QP.

use std::collections::VecDeque;
use std::ops::Range;

use mlx5_prm::contexts::mkc;
use mlx5_prm::datapath::{DS_SIZE, SendOpcode, UmrFlags, WQEBB_SIZE};
use mlx5_prm::status::CqeSyndrome;

use super::address::AddressVector;
use super::blueflame::Pushed;
use super::place::Place;
use crate::caps::LOG_MAX_RA;
use crate::object::mkey::User;
use crate::recorder::Recorder;
use ib_types::Psn;

/// Request packets that a requester has on their way at most.
pub(super) const WINDOW: u32 = 128;
/// Within a message, every so many packets ask for an acknowledgement. Never less often than `log_ack_req_freq` says.
pub(super) const ACK_EVERY: u32 = 32;
/// Responses that a responder keeps in mind beyond its own limit of new ones: repeated requests.
pub(super) const REPEATED_JOBS: usize = 64;
/// Answers and acknowledgements that wait before acknowledgements are drawn together.
pub(super) const ACK_LIMIT: usize = 256;
/// Packets that may wait inside the device on their way back to it.
pub(super) const LOOPBACK_LIMIT: usize = 8_192;
/// Basic blocks of a QP's WQEs that are fetched and not completed: those for which every QP has room, and the most. One WQE always has.
pub(super) const FIRST_BLOCKS: u16 = 8;
const BLOCK_LIMIT: u16 = 2 * WINDOW as u16;
/// Longest send WQE (`cmd_hca_cap.max_wqe_sz_sq`).
pub(super) const MAX_WQE: usize = 1024;
/// The same in basic blocks.
const MAX_WQE_BLOCKS: u64 = (MAX_WQE / WQEBB_SIZE) as u64;
/// Most memory for the data segments of a basic block: inline data or [`Sge`]s in a list that grew
/// by doubling, or [`Piece`]s.
const BLOCK_MEMORY: u64 = 2 * WQEBB_SIZE as u64;
/// WQEs of one queue that are flushed in one go.
pub(super) const FLUSH_TURN: usize = 64;

/// What QUERY_QP reports of a QP's progress (`qpc` fields of the same names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpProgress {
    /// PSN of the next request packet.
    pub next_send_psn: u32,
    /// PSN expected next.
    pub next_rcv_psn: u32,
    /// Last PSN acknowledged by the peer.
    pub last_acked_psn: u32,
    /// Send sequence number.
    pub ssn: u32,
    /// Receive message sequence number.
    pub rmsn: u32,
    /// Basic blocks of the send queue processed.
    pub hw_sq_wqebb_counter: u16,
    /// Basic blocks of the send queue posted, as last read from the doorbell record.
    pub sw_sq_wqebb_counter: u16,
    /// Receive entries processed.
    pub hw_rq_counter: u32,
    /// Receive entries posted, as last read from the doorbell record.
    pub sw_rq_counter: u32,
}

/// What the data path keeps per QP.
#[derive(Clone, Debug, Default)]
pub struct QpTransport {
    pub(super) queue: SendRing,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) receive: ReceiveRing,
    pub(super) place: Place,
    /// When the QP wants to run although nothing happens.
    pub(super) deadline: Option<u64>,
    /// Its next turn is in the next call: a neighbour has done its share of work.
    pub(super) later: bool,
    /// The last turn had no time for requests.
    pub(super) requests_first: bool,
    /// In error, and not all that was posted is flushed.
    pub(super) flushing: bool,
    /// In error by itself, and not because the driver put it there.
    pub(super) failed: bool,
    /// The WQE in its BlueFlame buffer, where that counts.
    pub(super) pushed: Option<Box<Pushed>>,
    /// Time before which the peer is not notified of congestion again.
    pub(super) next_notification: u64,
    /// Its last events.
    pub(super) recorder: Recorder,
}

impl QpTransport {
    /// Host memory that it takes at most with a send queue of `blocks` basic blocks: requests under way, answers that the peer asked
    /// for, the receive that is being filled, its last events.
    pub(crate) fn memory(&self, blocks: u64) -> u64 {
        let answers = (REPEATED_JOBS + (1 << LOG_MAX_RA)) * size_of::<Job>();
        self.requests_memory(blocks) + (answers + 4096) as u64 + Recorder::MEMORY
    }

    /// Host memory of requests under way with their lists and inline data, as many as there is room for.
    pub(super) fn requests_memory(&self, blocks: u64) -> u64 {
        let room = u64::from(self.requester.room.0);
        let wqe = (size_of::<Wqe>() + size_of::<Rare>()) as u64;
        blocks.min(room) * wqe + blocks.min(room.max(MAX_WQE_BLOCKS)) * BLOCK_MEMORY
    }

    /// Whether the QP went to error by itself.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// The progress, for QUERY_QP.
    pub(crate) fn progress(&self) -> QpProgress {
        QpProgress {
            next_send_psn: self.requester.assigned.get(),
            next_rcv_psn: self.responder.expected.get(),
            last_acked_psn: self.requester.unacked.previous().get(),
            ssn: self.requester.ssn,
            rmsn: self.responder.msn,
            hw_sq_wqebb_counter: self.queue.fetched,
            sw_sq_wqebb_counter: self.queue.posted,
            hw_rq_counter: u32::from(self.receive.taken),
            sw_rq_counter: u32::from(self.receive.posted),
        }
    }

    /// As new, but for its places in the device's lists, the room for its requests, and its last events.
    pub(super) fn reset(&mut self) {
        let room = self.requester.room;
        let mut recorder = core::mem::take(&mut self.recorder);
        recorder.counters_reset();
        let place = core::mem::take(&mut self.place);
        *self = Self { place, recorder, ..Self::default() };
        self.requester.room = room;
    }

    /// Makes room for the most requests under way. Answers whether there was less.
    pub(crate) fn make_room(&mut self) -> bool {
        std::mem::replace(&mut self.requester.room, Room(BLOCK_LIMIT)) != Room(BLOCK_LIMIT)
    }

    /// Takes the room back that [`make_room`](Self::make_room) made, when nothing uses it.
    pub(crate) fn give_room_back(&mut self) {
        self.requester.room = Room::default();
    }
}

/// The device's side of a send queue. Counters are in basic blocks and wrap at 16 bits.
#[derive(Clone, Debug, Default)]
pub(super) struct SendRing {
    /// The doorbell was rung since the record was last read.
    pub(super) rung: bool,
    /// Producer counter, as last read from the doorbell record.
    pub(super) posted: u16,
    /// The next WQE to fetch.
    pub(super) fetched: u16,
    /// WQEs before this one are completed.
    pub(super) retired: u16,
}

impl SendRing {
    /// Basic blocks of WQEs that are fetched and not completed.
    pub(super) const fn under_way(&self) -> u16 {
        self.fetched.wrapping_sub(self.retired)
    }
}

/// The device's side of a receive queue.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiveRing {
    /// Producer counter, as last read from the doorbell record.
    pub(super) posted: u16,
    /// The next WQE to take.
    pub(super) taken: u16,
}

/// A piece of local memory named by a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sge {
    pub(super) address: u64,
    /// At most 2 GiB.
    pub(super) len: u32,
    pub(super) lkey: u32,
}

/// SGEs of a WQE, without an allocation if a basic block holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sges {
    Few(usize, [Sge; Self::FEW]),
    Many(Vec<Sge>),
}

impl Default for Sges {
    #[inline]
    fn default() -> Self {
        Self::Few(0, [Sge { address: 0, len: 0, lkey: 0 }; Self::FEW])
    }
}

impl Sges {
    /// SGEs in a basic block, beside the control segment.
    const FEW: usize = WQEBB_SIZE / DS_SIZE - 1;

    /// The SGEs, in order.
    #[inline]
    pub(super) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Few(count, sges) => sges.get(..*count).unwrap_or_default(),
            Self::Many(sges) => sges,
        }
    }

    /// Adds one.
    #[inline]
    pub(super) fn push(&mut self, sge: Sge) {
        if let Self::Few(count, sges) = self
            && let Some(place) = sges.get_mut(*count)
        {
            *place = sge;
            *count += 1;
            return;
        }
        self.push_many(sge);
    }

    #[cold]
    fn push_many(&mut self, sge: Sge) {
        if let Self::Few(count, sges) = self {
            *self = Self::Many(sges.get(..*count).unwrap_or_default().to_vec());
        }
        if let Self::Many(sges) = self {
            sges.push(sge);
        }
    }
}

/// Where a send WQE's data is, or where a READ's answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    Gather(Sges),
    Inline(Vec<u8>),
    /// Some of it in the WQE, some in memory. Rare: other requests shall not be larger for it.
    Mixed(Box<Mixed>),
}

/// Data in a WQE and in memory by turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mixed {
    pub(super) inline: Vec<u8>,
    /// In order.
    pub(super) pieces: Vec<Piece>,
}

/// One of the places where a send WQE's data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// In the WQE: a part of its inline data.
    Inline(Range<u16>),
    Memory(Sge),
}

impl Piece {
    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Inline(part) => part.len() as u64,
            Self::Memory(sge) => u64::from(sge.len),
        }
    }
}

/// What a send WQE does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Nop,
    Send,
    SendImmediate,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    CompareSwap,
    FetchAdd,
    Umr,
    /// From one place in memory to another.
    Copy,
}

/// Where the translations of a UMR are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UmrList {
    Inline(Vec<u8>),
    Memory(Sge),
}

/// What a UMR does to which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Umr {
    pub(super) key: u32,
    pub(super) flags: UmrFlags,
    /// [`mlx5_prm::datapath::MkeyMask`] as given.
    pub(super) mask: u64,
    /// In octowords.
    pub(super) offset: u64,
    pub(super) context: [u8; mkc::SIZE],
    pub(super) list: UmrList,
}

impl Work {
    /// Completed by data that comes back.
    pub(super) const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }
}

/// How a WQE waits for earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    None,
    /// For earlier changes of memory keys.
    Local,
    /// For all earlier READs and atomics.
    Reads,
    /// For everything earlier.
    Everything,
    /// For changes of memory keys, READs and atomics.
    LocalAndReads,
}

/// Why a WQE failed on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) syndrome: CqeSyndrome,
    pub(super) vendor: u8,
}

/// Parts of a send WQE that few have.
#[derive(Clone, Debug, Default)]
pub(super) struct Rare {
    /// Destination of a datagram.
    pub(super) address: Option<AddressVector>,
    /// XRC: the SRQ at the other side.
    pub(super) xrc_srqn: u32,
    pub(super) swap_add: u64,
    pub(super) compare: u64,
    pub(super) umr: Option<Umr>,
    /// Answer in the completion in place of memory.
    pub(super) inline_answer: Option<Vec<u8>>,
}

/// A send WQE, fetched and not yet completed.
#[derive(Clone, Debug)]
pub(super) struct Wqe {
    /// Its place in the ring, in basic blocks.
    pub(super) index: u16,
    /// Its length in basic blocks.
    pub(super) blocks: u16,
    pub(super) opcode: SendOpcode,
    pub(super) work: Work,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
    pub(super) fence: Fence,
    /// Immediate, or rkey to invalidate.
    pub(super) immediate: u32,
    pub(super) raddr: u64,
    pub(super) rkey: u32,
    pub(super) len: u64,
    pub(super) payload: Payload,
    pub(super) rare: Option<Box<Rare>>,
    /// Its first PSN.
    pub(super) first: Psn,
    /// Its number among the messages of the QP, from 1 (SSN).
    pub(super) message: u32,
    /// PSNs it takes; 0 for a NOP, a UMR, or a WQE that failed before it was sent.
    pub(super) psns: u32,
    /// Of a READ or atomic: response packets that came, in order.
    pub(super) answered: u32,
    /// Sent at least once.
    pub(super) issued: bool,
    /// Why it cannot be sent (further).
    pub(super) failure: Option<Failure>,
}

/// Each request is written to the queue and read from it once.
const _: () = assert!(size_of::<Wqe>() <= 2 * WQEBB_SIZE);

impl Wqe {
    /// A WQE to fill in.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            index: 0,
            blocks: 1,
            opcode: SendOpcode::NOP,
            work: Work::Nop,
            signalled: true,
            solicited: false,
            fence: Fence::None,
            immediate: 0,
            raddr: 0,
            rkey: 0,
            len: 0,
            payload: Payload::Gather(Sges::default()),
            rare: None,
            first: Psn::default(),
            message: 0,
            psns: 0,
            answered: 0,
            issued: false,
            failure: None,
        }
    }

    /// The parts that few WQEs have, to fill in.
    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Change of a memory key, of a UMR.
    pub(super) fn umr(&self) -> Option<&Umr> {
        self.rare.as_ref()?.umr.as_ref()
    }

    /// Local memory of data or answer; none if the data is inline.
    pub(super) fn sges(&self) -> &[Sge] {
        match &self.payload {
            Payload::Gather(sges) => sges.as_slice(),
            Payload::Inline(_) | Payload::Mixed(_) => &[],
        }
    }

    /// The PSN after its last.
    pub(super) fn end(&self) -> Psn {
        self.first.add(self.psns)
    }
}

/// How many basic blocks of WQEs a QP can have under way: memory for them is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room(pub(super) u16);

impl Default for Room {
    fn default() -> Self {
        Self(FIRST_BLOCKS)
    }
}

/// The requester half of an RC QP.
#[derive(Clone, Debug, Default)]
pub(super) struct Requester {
    /// Fetched WQEs in order; the first is the oldest that is not completed.
    pub(super) wqes: VecDeque<Wqe>,
    pub(super) room: Room,
    /// Last PSN whose request waited for a neighbour in debt, and since when.
    pub(super) waiting: Option<(Psn, u64)>,
    /// PSN that the next fetched WQE begins with.
    pub(super) assigned: Psn,
    /// Oldest PSN that is not acknowledged.
    pub(super) unacked: Psn,
    /// Next PSN to send.
    pub(super) cursor: Psn,
    /// The WQE in `wqes` that `cursor` lies in, or their number.
    pub(super) at: usize,
    /// The PSN after the highest ever sent.
    pub(super) sent: Psn,
    /// READs and atomics issued and not fully answered.
    pub(super) reads: u32,
    /// PSNs that those take: they are no packets of ours.
    pub(super) read_psns: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    /// Waiting after an RNR NAK.
    pub(super) rnr_until: Option<u64>,
    /// Nanoseconds that an acknowledgement may take; 0 for any time.
    pub(super) ack_time: u64,
    /// When to give up waiting for an acknowledgement.
    pub(super) ack_deadline: Option<u64>,
    /// The READ position for which a repetition was already asked because of a gap.
    pub(super) gap_at: Option<Psn>,
    /// Completed messages.
    pub(super) ssn: u32,
    /// Number of the last message fetched.
    pub(super) messages: u32,
    /// The last message for which the responder promised a receive (LSN); `None` when it promises nothing.
    pub(super) limit: Option<u32>,
    /// Packets that may be on their way: [`WINDOW`], but for a while after the responder was not ready.
    pub(super) burst: u32,
    /// The WQEs now sent follow a UMR that is not carried out yet.
    pub(super) ahead: bool,
}

/// A message that the responder has begun to take.
#[derive(Clone, Debug)]
pub(super) enum Current {
    Send { receive: ReceiveWqe, received: u64 },
    Write { va: u64, rkey: u32, left: u64, total: u64 },
}

/// The XRC SRQ that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) srqn: u32,
    pub(super) user: User,
}

/// Where completions of an XRC SRQ's receive WQEs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedOwner {
    pub(super) cqn: u32,
    pub(super) user_index: u32,
}

/// A receive WQE that was taken from its queue.
#[derive(Clone, Debug)]
pub(super) struct ReceiveWqe {
    pub(super) index: u16,
    pub(super) sges: Sges,
    pub(super) capacity: u64,
    /// Protection domain of its keys: the QP's, or the shared receive queue's.
    pub(super) pd: u32,
    pub(super) reserved_lkey: bool,
    /// From this shared receive queue.
    pub(super) srqn: Option<u32>,
    /// With a CQ and a user index of its own.
    pub(super) owner: Option<SharedOwner>,
}

impl ReceiveWqe {
    /// Returns the user of its keys; `qpn` is the QP that took it.
    pub(super) const fn user(&self, qpn: u32) -> User {
        User { pd: self.pd, qpn, reserved_lkey: self.reserved_lkey }
    }
}

/// An answer that the responder has to send, in order.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// PSN of its next packet.
    pub(super) psn: Psn,
    /// PSN after its last packet.
    pub(super) end: Psn,
    pub(super) msn: u32,
    /// It answers a new request, not a repeated one.
    pub(super) new: bool,
    pub(super) started: bool,
    pub(super) kind: Answer,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Read { va: u64, rkey: u32, left: u64, user: User },
    Atomic { original: u64 },
    Acknowledge,
}

/// A negative acknowledgement that waits for the answers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nak {
    /// The request it is about; `None` for the one expected next.
    pub(super) psn: Option<Psn>,
    pub(super) syndrome: u8,
    /// The QP goes to error after it.
    pub(super) fatal: bool,
}

/// The responder half of an RC QP.
#[derive(Clone, Debug, Default)]
pub(super) struct Responder {
    pub(super) expected: Psn,
    pub(super) msn: u32,
    pub(super) current: Option<Current>,
    /// A receive WQE that was taken for a message that then was dropped: the next message's.
    pub(super) spare: Option<ReceiveWqe>,
    /// XRC: on whose behalf, and from which SRQ, the request at hand is carried out.
    pub(super) target: Option<Target>,
    pub(super) jobs: VecDeque<Job>,
    pub(super) ack_due: bool,
    pub(super) nak: Option<Nak>,
    /// A NAK for the expected PSN was sent: what is ahead is dropped without another.
    pub(super) nak_sent: bool,
    /// A fatal NAK is due: nothing more is taken.
    pub(super) halted: bool,
    /// Results of the last atomics, by PSN.
    pub(super) results: VecDeque<(Psn, u64)>,
    /// The communication-established event was sent.
    pub(super) established: bool,
    /// The event that nothing more comes from the shared receive queue was sent.
    pub(super) last_wqe_told: bool,
}
