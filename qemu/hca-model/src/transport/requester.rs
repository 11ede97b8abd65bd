//! The requester half of a reliable connection: sending, and starting over (IBTA 9.7.3, 9.7.4, 9.7.6).

use mlx5_prm::commands::query_q_counter_out as q;
use mlx5_prm::event::EventType;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};
use rdma_fabric::infiniband::packet::{AtomicEth, Opcode, Reth, XrcEth};

use super::completion::vendor;
use super::copy::{Next, Way};
use super::data_path::DataPath;
use super::output::{Envelope, Head};
use super::state::{ACK_EVERY, FIRST_BLOCKS, Failure, Fence, Requester, Sge, WINDOW, Work, Wqe};
use crate::object::qp::Qp;
use crate::recorder::ResendCause;
use ib_types::Psn;
use rdma_fabric::random::Random;

/// PSNs that may be outstanding at all: a responder tells new from old only within half the circle.
const PSN_LIMIT: u32 = 1 << 22;
/// Packets or WQEs sent before a UMR that came first, where it is carried out late.
const MOST_AHEAD: u64 = 4;
/// Time for which a request waits for a neighbour that is in debt before it goes as a packet, in
/// nanoseconds. A neighbour pays an ordinary debt within a few calls.
const COPY_PATIENCE: u64 = 1_000_000;

impl Requester {
    /// PSNs sent and not acknowledged that are packets of ours.
    fn in_flight(&self) -> u32 {
        self.cursor.since(self.unacked).saturating_sub(self.read_psns)
    }

    /// Returns whether a fence holds the next WQE back.
    #[cold]
    const fn is_fenced(&self, fence: Fence) -> bool {
        match fence {
            Fence::None => false,
            Fence::Local => self.ahead,
            Fence::Reads => self.reads != 0,
            Fence::LocalAndReads => self.ahead || self.reads != 0,
            Fence::Everything => self.at != 0,
        }
    }

    /// Returns whether the neighbour has been in debt for so long that the request must go as a
    /// packet, whose acknowledgement has a timer.
    fn waits_longer(&mut self, now: u64) -> bool {
        let Self { waiting, cursor, .. } = self;
        let (_, since) = waiting.filter(|(psn, _)| psn == cursor).unwrap_or((*cursor, now));
        *waiting = Some((*cursor, since));
        now.saturating_sub(since) > COPY_PATIENCE
    }

    /// Moves the cursor to `psn`.
    pub(super) fn seek(&mut self, psn: Psn) {
        self.cursor = psn;
        // One without PSNs is carried out once, when its turn comes.
        let covers = |wqe: &Wqe| {
            let is_due = if wqe.psns == 0 { !wqe.issued } else { psn.is_before(wqe.end()) };
            is_due || wqe.failure.is_some()
        };
        self.at = self.wqes.iter().position(covers).unwrap_or(self.wqes.len());
    }

    /// READs and atomics that were issued and are not fully answered.
    pub(super) fn count_reads(&mut self) {
        let (mut reads, mut psns) = (0, 0);
        for wqe in &self.wqes {
            if wqe.issued && wqe.work.is_answered() && wqe.answered < wqe.psns {
                reads += 1;
                psns += wqe.psns - wqe.answered;
            }
        }
        self.reads = reads;
        self.read_psns = psns;
    }
}

impl DataPath<'_, '_> {
    /// Sends what may be sent. Answers whether the budget, and nothing else, ended it.
    pub(super) fn transmit(&mut self, qp: &mut Qp, budget: &mut usize) -> bool {
        if !matches!(qp.state(), QpState::RTS | QpState::SQD | QpState::SQ_DRAINING | QpState::SQER) {
            return false;
        }
        if qp.transport.queue.rung && self.refresh_posted(qp).is_err() {
            self.catastrophe(qp);
            return false;
        }
        if qp.state() == QpState::SQER {
            return self.flush_sends(qp);
        }
        if qp.transport.requester.rnr_until.is_some() {
            return false;
        }
        let transport = &qp.transport;
        let fetched = transport.requester.at == transport.requester.wqes.len();
        if fetched && transport.queue.fetched == transport.queue.posted && qp.state() == QpState::RTS {
            return false;
        }
        self.transmit_posted(qp, budget)
    }

    /// As [`transmit`](Self::transmit), of a QP that has something to send. Apart, because many doorbells find nothing new.
    #[inline(never)]
    fn transmit_posted(&mut self, qp: &mut Qp, budget: &mut usize) -> bool {
        // The registration QP is connected to nothing.
        let envelope = (qp.service() != ServiceType::REG_UMR).then(|| self.output().connection(qp));
        let mut way = envelope
            .as_ref()
            .filter(|_| qp.service() == ServiceType::RC)
            .and_then(|to| self.output().way(to, qp.connection().mtu()));
        self.state().prefetched.count = 0;
        let more = self.transmit_along(qp, envelope.as_ref(), way.as_mut(), budget);
        if let Some(way) = &way {
            self.count_copied(way);
        }
        more
    }

    /// Sends as packets, or to a neighbour along `way`, as long as that takes requests.
    #[inline(always)]
    fn transmit_along(
        &mut self,
        qp: &mut Qp,
        envelope: Option<&Envelope>,
        mut way: Option<&mut Way>,
        budget: &mut usize,
    ) -> bool {
        loop {
            if *budget == 0 || self.meter().is_spent() {
                return true;
            }
            if qp.transport.requester.at == qp.transport.requester.wqes.len() && !self.fetch_request(qp) {
                return false;
            }
            let reads_sent = qp.connection().reads_sent();
            let requester = &mut qp.transport.requester;
            let at = requester.at;
            let Some(wqe) = requester.wqes.get(at) else { return false };
            if wqe.failure.is_some() {
                if at == 0 {
                    self.fail_front(qp);
                }
                return false;
            }
            if !wqe.issued {
                let fence = wqe.fence;
                if fence != Fence::None && requester.is_fenced(fence) {
                    return false;
                }
            }
            if wqe.psns == 0 {
                // What comes before it may be sent again, but the key changes once.
                if let Some(umr) = wqe.umr().filter(|_| !wqe.issued) {
                    // What is not acknowledged may have to be sent again, with the key that goes.
                    if umr.invalidates() && at != 0 {
                        return false;
                    }
                    let (index, umr) = (wqe.index, umr.clone());
                    let ahead = match self.habits().lazy_umr {
                        Some(seed) => self.send_ahead(qp, at, seed, budget),
                        None => at,
                    };
                    // A WQE that went ahead may have failed the QP, which flushes this one.
                    if qp.transport.requester.wqes.get(at).is_none_or(|wqe| wqe.index != index) {
                        return false;
                    }
                    let done = self.execute_umr(qp, index, &umr);
                    let requester = &mut qp.transport.requester;
                    if let Err(failure) = done {
                        requester.at = at;
                        if let Some(wqe) = requester.wqes.get_mut(at) {
                            wqe.failure = Some(failure);
                        }
                        continue;
                    }
                    requester.at = ahead;
                }
                if let Some((index, ends)) = copy_of(qp, at)
                    && let Err(failure) = self.execute_copy(qp, index, ends)
                {
                    if let Some(wqe) = qp.transport.requester.wqes.get_mut(at) {
                        wqe.failure = Some(failure);
                    }
                    continue;
                }
                let requester = &mut qp.transport.requester;
                requester.at = requester.at.max(at + 1);
                if let Some(wqe) = requester.wqes.get_mut(at) {
                    wqe.issued = true;
                }
                *budget = budget.saturating_sub(1);
                self.complete_finished(qp);
                continue;
            }
            let far = requester.cursor.since(requester.unacked).saturating_add(wqe.psns) > PSN_LIMIT
                && requester.cursor != requester.unacked;
            let full = if wqe.work.is_answered() {
                !wqe.issued && requester.reads >= reads_sent
            } else {
                requester.in_flight() >= requester.burst.clamp(1, WINDOW)
            };
            // One message may always try, when nothing else is under way that would bring news (IBTA 9.7.7.2.5).
            let waits = requester.exceeds_credit(wqe, requester.cursor.since(wqe.first))
                && requester.cursor != requester.unacked;
            if far || full || waits {
                return false;
            }
            let Some(envelope) = envelope else { return false };
            if let Some(open) = &mut way {
                match self.copy_request(qp, open, budget) {
                    Next::Gone => continue,
                    Next::Later if qp.transport.requester.waits_longer(self.now()) => way = None,
                    Next::Later => {
                        qp.transport.later = true;
                        return true;
                    }
                    Next::AsPackets => way = None,
                }
            }
            *budget -= 1;
            self.send_request(qp, envelope);
        }
    }

    /// Sends up to [`MOST_AHEAD`] WQEs behind the UMR at `at` before that is carried out, unless a fence
    /// stops them. Returns the place of the first WQE that is not sent.
    #[cold]
    fn send_ahead(&mut self, qp: &mut Qp, at: usize, seed: u64, budget: &mut usize) -> usize {
        let requester = &mut qp.transport.requester;
        if requester.ahead {
            return at;
        }
        (requester.ahead, requester.at) = (true, at + 1);
        let place = requester.wqes.get(at).map_or(0, |wqe| u64::from(wqe.index));
        let most = Random::new(seed ^ u64::from(qp.qpn()) << 16 ^ place).below(MOST_AHEAD + 1) as usize;
        let mut left = most.min(*budget);
        let given = left;
        self.transmit_posted(qp, &mut left);
        *budget -= given - left;
        let requester = &mut qp.transport.requester;
        requester.ahead = false;
        requester.at
    }

    /// Fetches a WQE and gives it its PSNs. Answers whether there was one.
    fn fetch_request(&mut self, qp: &mut Qp) -> bool {
        if qp.state() != QpState::RTS {
            // Draining: what is in progress is finished, nothing new begun.
            if qp.transport.requester.wqes.is_empty() && qp.state() == QpState::SQ_DRAINING {
                qp.enter(QpState::SQD);
                self.delivery().qp_event(qp, EventType::SQ_DRAINED);
            }
            return false;
        }
        // Those that take no PSN are not held back by the window.
        if qp.transport.queue.under_way() >= FIRST_BLOCKS && !self.turns().has_room(qp, 1) {
            return false;
        }
        let mut wqe = Wqe::new();
        if !self.fetch(qp, &mut wqe) {
            return false;
        }
        let mtu = qp.connection().mtu();
        let requester = &mut qp.transport.requester;
        wqe.first = requester.assigned;
        wqe.psns = match wqe.work {
            _ if wqe.failure.is_some() => 0,
            Work::Nop | Work::Umr | Work::Copy => 0,
            Work::CompareSwap | Work::FetchAdd => 1,
            _ => (wqe.len as u32).div_ceil(mtu).max(1),
        };
        requester.assigned = wqe.end();
        if wqe.psns != 0 {
            requester.messages = (requester.messages + 1) & 0x00ff_ffff;
            wqe.message = requester.messages;
        }
        requester.wqes.push_back(wqe);
        true
    }

    /// Sends the packet at the cursor and moves on.
    fn send_request(&mut self, qp: &mut Qp, envelope: &Envelope) {
        let mtu = qp.connection().mtu();
        let user = qp.user();
        let every = ACK_EVERY.min(1 << qp.connection().log_ack_req_freq().min(8)) - 1;
        let at = qp.transport.requester.at;
        let psn = qp.transport.requester.cursor;
        let Some(wqe) = qp.transport.requester.wqes.get(at) else { return };
        let done = psn.since(wqe.first);
        let offset = u64::from(done) * u64::from(mtu);
        let left = wqe.len.saturating_sub(offset);
        let last = done + 1 >= wqe.psns;
        let mut extended = [0; XrcEth::LEN + AtomicEth::LEN];
        let mut front = 0;
        if qp.service() == ServiceType::XRC {
            let srqn = wqe.rare.as_ref().map_or(0, |rare| rare.xrc_srqn);
            front = put(&mut extended, &XrcEth { srqn }.to_bytes());
        }
        let room = extended.get_mut(front..).unwrap_or_default();
        let mut head = Head {
            opcode: Opcode(0),
            psn,
            ack_request: qp.service() != ServiceType::UC
                && (last || psn.get() & every == every || qp.transport.requester.burst < WINDOW),
            solicited: false,
        };
        let result = if wqe.work.is_answered() {
            // A READ that starts over asks only for what is missing.
            let len = match wqe.work {
                Work::Read => {
                    let reth =
                        Reth { va: wqe.raddr.wrapping_add(offset), rkey: wqe.rkey, dma_len: left as u32 };
                    head.opcode = Opcode::RC_READ_REQUEST;
                    put(room, &reth.to_bytes())
                }
                work => {
                    let operands = wqe.rare.as_ref().map(|rare| (rare.swap_add, rare.compare));
                    let (swap_or_add, compare) = operands.unwrap_or_default();
                    let (opcode, compare) = match work {
                        Work::CompareSwap => (Opcode::RC_COMPARE_SWAP, compare),
                        _ => (Opcode::RC_FETCH_ADD, 0),
                    };
                    head.opcode = opcode;
                    let atomic = AtomicEth { va: wqe.raddr, rkey: wqe.rkey, swap_or_add, compare };
                    put(room, &atomic.to_bytes())
                }
            };
            head.ack_request = true;
            let draft =
                self.output().draft(envelope, &head, extended.get(..front + len).unwrap_or_default(), 0);
            self.output().dispatch(draft);
            Ok(())
        } else {
            let len = left.min(u64::from(mtu)) as usize;
            let (opcode, extended_len) = write_or_send(wqe, done == 0, last, room);
            head.opcode = opcode;
            head.solicited = last && wqe.solicited && wqe.work != Work::Write;
            let mut draft = self.output().draft(
                envelope,
                &head,
                extended.get(..front + extended_len).unwrap_or_default(),
                len,
            );
            let filled = self.memory().gather_payload(user, &wqe.payload, offset, draft.payload());
            match filled {
                Ok(()) => self.output().dispatch(draft),
                Err(_) => self.output().discard(draft),
            }
            filled
        };
        let again = psn.is_before(qp.transport.requester.sent);
        let acknowledged = qp.service() != ServiceType::UC;
        let requester = &mut qp.transport.requester;
        let Some(wqe) = requester.wqes.get_mut(at) else { return };
        if let Err(fault) = result {
            let index = wqe.index;
            let failure = Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION };
            wqe.failure = Some(failure);
            self.reports().refuse_data(qp, index, fault);
            if at == 0 {
                self.fail_front(qp);
            }
            return;
        }
        let answered = wqe.work.is_answered();
        let first_time = !wqe.issued;
        wqe.issued = true;
        let next = if answered { wqe.end() } else { psn.next() };
        if next == wqe.end() {
            requester.at += 1;
        }
        requester.cursor = next;
        if again {
            self.counters().retransmitted += 1;
        }
        if requester.sent.is_before(next) {
            requester.sent = next;
        }
        if !acknowledged {
            // A UC request is done once it is sent.
            requester.unacked = next;
            self.complete_finished(qp);
            return;
        }
        if answered && first_time {
            requester.count_reads();
        }
        if requester.ack_deadline.is_none() {
            let now = self.now();
            self.turns().restart_ack_timer(qp, now);
        }
    }

    /// What time has brought: retransmission after silence or after an RNR wait.
    pub(super) fn requester_timers(&mut self, qp: &mut Qp) {
        if let Some(until) = qp.transport.requester.rnr_until {
            if until > self.now() {
                return;
            }
            qp.transport.requester.rnr_until = None;
            let now = self.now();
            self.turns().restart_ack_timer(qp, now);
            self.turns().add(qp);
        }
        if qp.transport.requester.ack_deadline.is_some_and(|deadline| deadline <= self.now()) {
            self.counters().timeouts += 1;
            self.delivery().count(qp, q::local_ack_timeout_err);
            self.reports().note_resent(qp, ResendCause::Timeout, qp.transport.requester.unacked);
            if self.retry(qp) {
                let from = qp.transport.requester.unacked;
                self.start_over(qp, from);
            }
        }
    }

    /// Takes one of the retries. Without one left the oldest WQE fails.
    pub(super) fn retry(&mut self, qp: &mut Qp) -> bool {
        let requester = &mut qp.transport.requester;
        match requester.retries_left.checked_sub(1) {
            Some(left) => {
                requester.retries_left = left;
                true
            }
            None => {
                self.fail_oldest(qp, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, vendor::RETRY_EXCEEDED);
                false
            }
        }
    }

    /// Goes back to `psn` and sends everything from there again.
    pub(super) fn start_over(&mut self, qp: &mut Qp, psn: Psn) {
        qp.transport.requester.seek(psn);
        let now = self.now();
        self.turns().restart_ack_timer(qp, now);
        self.turns().add(qp);
    }
}

/// Index and ends of the copy ordered by the WQE at `at`, unless it has been made already: earlier WQEs may be retransmitted, but a copy
/// is made only once.
fn copy_of(qp: &Qp, at: usize) -> Option<(u16, [Sge; 2])> {
    let wqe = qp.transport.requester.wqes.get(at).filter(|wqe| wqe.work == Work::Copy && !wqe.issued)?;
    Some((wqe.index, *wqe.sges().first_chunk()?))
}

/// Opcode and extended headers of a SEND or WRITE packet.
fn write_or_send(wqe: &Wqe, first: bool, last: bool, extended: &mut [u8]) -> (Opcode, usize) {
    let opcode = match (wqe.work, first, last) {
        (Work::Write | Work::WriteImmediate, true, false) => Opcode::RC_WRITE_FIRST,
        (Work::Write | Work::WriteImmediate, false, false) => Opcode::RC_WRITE_MIDDLE,
        (Work::Write, false, true) => Opcode::RC_WRITE_LAST,
        (Work::Write, true, true) => Opcode::RC_WRITE_ONLY,
        (Work::WriteImmediate, false, true) => Opcode::RC_WRITE_LAST_IMM,
        (Work::WriteImmediate, true, true) => Opcode::RC_WRITE_ONLY_IMM,
        (_, true, false) => Opcode::RC_SEND_FIRST,
        (_, false, false) => Opcode::RC_SEND_MIDDLE,
        (Work::SendImmediate, false, true) => Opcode::RC_SEND_LAST_IMM,
        (Work::SendImmediate, true, true) => Opcode::RC_SEND_ONLY_IMM,
        (Work::SendInvalidate, false, true) => Opcode::RC_SEND_LAST_INVALIDATE,
        (Work::SendInvalidate, true, true) => Opcode::RC_SEND_ONLY_INVALIDATE,
        (_, false, true) => Opcode::RC_SEND_LAST,
        (_, true, true) => Opcode::RC_SEND_ONLY,
    };
    let mut len = 0;
    if first && matches!(wqe.work, Work::Write | Work::WriteImmediate) {
        let reth = Reth { va: wqe.raddr, rkey: wqe.rkey, dma_len: wqe.len as u32 };
        len = put(extended, &reth.to_bytes());
    }
    if last && matches!(wqe.work, Work::SendImmediate | Work::SendInvalidate | Work::WriteImmediate) {
        // Immediate and rkey lie in the WQE as on the wire.
        let room = extended.get_mut(len..).unwrap_or_default();
        len += put(room, &wqe.immediate.to_be_bytes());
    }
    (opcode, len)
}

fn put(room: &mut [u8], header: &[u8]) -> usize {
    match room.get_mut(..header.len()) {
        Some(place) => {
            place.copy_from_slice(header);
            header.len()
        }
        None => 0,
    }
}
