//! Requests to a neighbour on the same fabric, in place of packets that nothing watches.
//!
//! Payload is copied from one guest's memory to the other's. QPs, queues and counters are as if
//! packets had gone. Packets are sent while others are on their way, to a receiver that is not
//! ready, of WQEs with data both inline and in memory, and after a refusal. A refusal has changed
//! nothing but memory.

use crate::run::{Address, Copied, Data, Neighbour, Ranges, ReadRun, Requester, Run};
use ib_mgmt::smp::pkeys_match;
use mlx5_prm::value::{AccessFlags, QpState, ServiceType};
use rdma_fabric::counters::Traffic;
use rdma_fabric::infiniband::packet::{Aeth, ImmDt, Reth};
use rdma_fabric::ports::PortIndex;

use super::data_path::DataPath;
use super::output::{Envelope, Output};
use super::state::{ACK_EVERY, Current, Payload, WINDOW, Work};
use crate::device::Device;
use crate::meter::price;
use crate::object::qp::Qp;
use crate::object::qps::Qps;
use crate::port::{EthernetPort, FrameSizes, NicVport, Port};
use crate::seams::Io;
use ib_types::Psn;

/// Payload of a run. Bounds the work of one call of the neighbour.
const RUN_BYTES: usize = 32 << 10;

/// What became of the request at the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It went, or a part of it.
    Gone,
    /// The neighbour will take it later.
    Later,
    /// It goes as packets.
    AsPackets,
}

/// Neighbour that takes requests without packets in this turn of a QP.
#[derive(Debug)]
pub(super) struct Way {
    port: PortIndex,
    neighbour: Neighbour,
    from: Requester,
    /// Packets replaced so far.
    traffic: Traffic,
}

/// Bytes of a response beside what follows its BTH.
#[inline]
fn response_overhead(qp: &Qp, from: &Requester) -> u32 {
    let [unrouted, routed] = from.response_overhead;
    if qp.path().route().is_routed { routed } else { unrouted }
}

/// Frames of a run on Ethernet.
struct Sizes {
    /// Bytes of a frame beside what follows its BTH.
    overhead: u32,
    mtu: u32,
    psns: u32,
    /// Extended headers of the first frame.
    first: u64,
}

impl Sizes {
    /// Counts the frames, `bytes` together without padding. Returns their bytes.
    #[inline]
    fn count(&self, bytes: u64, sizes: &mut FrameSizes) -> u64 {
        let full = u64::from(self.overhead + self.mtu);
        let between = u64::from(self.psns).saturating_sub(2);
        if self.psns > 1 {
            sizes.add(full + self.first, 1);
            sizes.add(full, between);
        }
        // A SEND of nothing over IPv4 is padded.
        let others = if self.psns > 1 { full * (between + 1) + self.first } else { 0 };
        let last = (bytes - others).max(EthernetPort::SHORTEST_FRAME as u64);
        sizes.add(last, 1);
        others + last
    }
}

/// How many of `psns` packets from `psn` on ask for an acknowledgement, `last` of a message among them.
fn ack_requests(psn: u32, psns: u32, log_every: u32, last: bool) -> u32 {
    let asked = ((psn + psns) >> log_every) - (psn >> log_every);
    let mask = (1 << log_every) - 1;
    asked + u32::from(last && (psn + psns - 1) & mask != mask)
}

impl Output<'_, '_> {
    /// Returns the way to a neighbour that takes requests without packets.
    pub(super) fn way(&self, envelope: &Envelope, mtu: u32) -> Option<Way> {
        // What is not let out is dropped as a packet.
        if envelope.loopback || envelope.is_outcast() || !self.port().is_active() {
            return None;
        }
        let from = envelope.requester(mtu)?;
        if let Address::Roce(to) = &from.to
            && !self.carries(to)
        {
            return None;
        }
        let (port, neighbour) = self.neighbour(from.way())?;
        Some(Way { port, neighbour, from, traffic: Traffic::default() })
    }
}

impl DataPath<'_, '_> {
    /// Has a neighbour take the request at the cursor, or a run of its packets.
    pub(super) fn copy_request(&mut self, qp: &mut Qp, way: &mut Way, budget: &mut usize) -> Next {
        let requester = &qp.transport.requester;
        // What is on its way must not be overtaken.
        let quiet = requester.at == 0
            && requester.cursor == requester.unacked
            && requester.sent == requester.cursor
            && requester.burst >= WINDOW;
        if !quiet {
            return Next::AsPackets;
        }
        // Asked before anything is gathered: whoever gathers in vain uses up its steps, and the neighbour, which does the same,
        // never has any left.
        if !self.neighbours().has_turn(way.neighbour) {
            return Next::Later;
        }
        match requester.wqes.front().map(|wqe| wqe.work) {
            Some(Work::Read) => self.copy_answer(qp, way, budget),
            Some(
                Work::Send | Work::SendImmediate | Work::SendInvalidate | Work::Write | Work::WriteImmediate,
            ) => self.copy_data(qp, way, budget),
            _ => Next::AsPackets,
        }
    }

    fn copy_data(&mut self, qp: &mut Qp, way: &mut Way, budget: &mut usize) -> Next {
        let mtu = qp.connection().mtu();
        let cursor = qp.transport.requester.cursor;
        let Some(wqe) = qp.transport.requester.wqes.front() else { return Next::AsPackets };
        let done = cursor.since(wqe.first);
        let psns = (wqe.psns - done).min((RUN_BYTES as u32) / mtu).min(*budget as u32).max(1);
        let (first, last) = (done == 0, done + psns == wqe.psns);
        let offset = u64::from(done) * u64::from(mtu);
        let len = (wqe.len - offset).min(u64::from(psns) * u64::from(mtu)) as usize;
        let log_every = ACK_EVERY.ilog2().min(u32::from(qp.connection().log_ack_req_freq()));
        let write = matches!(wqe.work, Work::Write | Work::WriteImmediate);
        self.meter().charge(price::PACKET);
        // The first packet finds the mistake.
        if let Payload::Gather(list) = &wqe.payload
            && self
                .memory()
                .find_list(qp.user(), list.as_slice(), offset, len, AccessFlags::LOCAL_READ)
                .is_err()
        {
            return Next::AsPackets;
        }
        let mut neighbours = self.neighbours();
        let data = match &wqe.payload {
            Payload::Gather(_) => Data::Memory(neighbours.found(len)),
            Payload::Inline(data) => {
                let data = data.get(offset as usize..).and_then(|data| data.get(..len));
                Data::Bytes(data.unwrap_or_default())
            }
            Payload::Mixed(_) => return Next::AsPackets,
        };
        let number = |work| (last && wqe.work == work).then_some(wqe.immediate);
        let run = Run {
            known: way.traffic.requests != 0,
            write,
            first,
            last,
            psn: cursor.get(),
            psns,
            ack_requests: ack_requests(cursor.get(), psns, log_every, last),
            reth: (write && first).then_some(Reth { va: wqe.raddr, rkey: wqe.rkey, dma_len: wqe.len as u32 }),
            immediate: number(Work::SendImmediate).or(number(Work::WriteImmediate)),
            invalidate: number(Work::SendInvalidate),
            solicited: last && wqe.solicited && wqe.work != Work::Write,
            data,
        };
        let numbers = run.immediate.or(run.invalidate).map_or(0, |_| ImmDt::LEN);
        let extended = run.reth.map_or(0, |_| Reth::LEN) + numbers + len.next_multiple_of(4);
        let mut bytes = u64::from(psns * way.from.overhead) + extended as u64;
        let copied = neighbours.copy(way.neighbour, &way.from, &run);
        let Copied::Done { credits, msn, responses, response_bytes } = copied else { return Next::AsPackets };
        *budget = budget.saturating_sub(psns as usize);
        if self.port().ethernet.is_some() {
            let first = if write && first { Reth::LEN as u64 } else { 0 };
            let sizes = Sizes { overhead: way.from.overhead, mtu, psns, first };
            let [requests, acknowledgements] = &mut self.state().copied_sizes;
            bytes = sizes.count(bytes, requests);
            // All of them have the same length.
            if let Some(len) = response_bytes.checked_div(responses) {
                acknowledgements.add(len.into(), responses.into());
            }
        }
        way.traffic.add(&Traffic {
            requests: u64::from(psns),
            request_bytes: bytes,
            responses: u64::from(responses),
            response_bytes: u64::from(response_bytes),
        });
        let requester = &mut qp.transport.requester;
        if let Some(wqe) = requester.wqes.front_mut() {
            wqe.issued = true;
        }
        let end = cursor.add(psns);
        (requester.cursor, requester.sent) = (end, end);
        requester.at = usize::from(last);
        if responses != 0 {
            requester.credited(credits, msn);
        }
        self.progress(qp, end);
        Next::Gone
    }

    /// An RDMA READ: the answer comes part by part, the neighbour has taken the request with the first one.
    fn copy_answer(&mut self, qp: &mut Qp, way: &mut Way, budget: &mut usize) -> Next {
        let mtu = qp.connection().mtu();
        let Some(wqe) = qp.transport.requester.wqes.front() else { return Next::AsPackets };
        let inline = wqe.psns == 1 && wqe.len <= qp.completions().inline_answer() as u64;
        if wqe.len == 0 || inline {
            return Next::AsPackets;
        }
        let part = (wqe.psns - wqe.answered).min((RUN_BYTES as u32) / mtu).min(*budget as u32).max(1);
        let offset = u64::from(wqe.answered) * u64::from(mtu);
        let len = (wqe.len - offset).min(u64::from(part) * u64::from(mtu)) as usize;
        let read = ReadRun {
            reth: Reth { va: wqe.raddr, rkey: wqe.rkey, dma_len: wqe.len as u32 },
            psn: wqe.first.get(),
            psns: wqe.psns,
            done: wqe.answered,
            part,
            offset,
        };
        self.meter().charge(price::PACKET);
        // The first packet of the answer finds the mistake.
        if self.memory().find_list(qp.user(), wqe.sges(), offset, len, AccessFlags::LOCAL_WRITE).is_err() {
            return Next::AsPackets;
        }
        let mut neighbours = self.neighbours();
        let to = neighbours.found(len);
        let bytes = u64::from(way.from.overhead) + Reth::LEN as u64;
        let copied = neighbours.copy_read(way.neighbour, &way.from, &read, &to);
        let Copied::Done { responses, response_bytes, .. } = copied else { return Next::AsPackets };
        *budget = budget.saturating_sub(part as usize);
        self.counters().bytes_placed += len as u64;
        let requests = u64::from(read.done == 0);
        if self.port().ethernet.is_some() {
            let first = if requests != 0 { Aeth::LEN as u64 } else { 0 };
            let sizes = Sizes { overhead: way.from.overhead, mtu, psns: part, first };
            let [asked, answered] = &mut self.state().copied_sizes;
            asked.add(bytes, requests);
            sizes.count(response_bytes.into(), answered);
        }
        way.traffic.add(&Traffic {
            requests,
            request_bytes: requests * bytes,
            responses: u64::from(responses),
            response_bytes: u64::from(response_bytes),
        });
        let requester = &mut qp.transport.requester;
        let Some(wqe) = requester.wqes.front_mut() else { return Next::AsPackets };
        wqe.answered += part;
        if wqe.answered == wqe.psns {
            wqe.issued = true;
            let end = wqe.end();
            (requester.cursor, requester.sent) = (end, end);
            requester.at = 1;
            self.progress(qp, end);
        }
        Next::Gone
    }

    /// Counts the packets replaced in a turn, at both ends and between them.
    pub(super) fn count_copied(&mut self, way: &Way) {
        let Way { port, neighbour, traffic, from } = way;
        if *traffic == Traffic::default() {
            return;
        }
        self.neighbours().count(*neighbour, traffic);
        self.output().count_direct(from.way(), *port, traffic);
    }

    fn take_copy(&mut self, qps: &mut Qps, from: &Requester, run: &Run<'_>) -> Copied {
        let Some(qp) = receiver(self.addresses(), qps, from, run.known) else { return Copied::No };
        let responder = &qp.transport.responder;
        let begun = match (&responder.current, run.first, run.write) {
            (None, true, _) | (Some(Current::Write { .. }), false, true) => 0,
            (Some(Current::Send { received, .. }), false, false) => *received,
            _ => return Copied::No,
        };
        if responder.expected != Psn::new(run.psn) {
            return Copied::No;
        }
        self.meter().charge(price::PACKET);
        let (slid, sl) = from.shown;
        if let Err(refused) = self.take_run(qp, run, slid, sl) {
            // The packets will find the receive as it was.
            let responder = &mut qp.transport.responder;
            match refused.receive {
                Some(receive) if run.first || run.write => responder.spare = Some(receive),
                Some(receive) => responder.current = Some(Current::Send { receive, received: begun }),
                None => {}
            }
            return Copied::No;
        }
        let responses = run.ack_requests;
        let credits = if responses == 0 { 0 } else { qp.credits(self.guest()) };
        Copied::Done {
            credits,
            msn: qp.transport.responder.msn,
            responses,
            response_bytes: responses * (response_overhead(qp, from) + Aeth::LEN as u32),
        }
    }

    fn take_copied_read(
        &mut self,
        qps: &mut Qps,
        from: &Requester,
        read: &ReadRun,
        to: &Ranges<'_>,
    ) -> Copied {
        let Some(qp) = receiver(self.addresses(), qps, from, false) else { return Copied::No };
        let begins = read.done == 0;
        let expected = Psn::new(read.psn).add(if begins { 0 } else { read.psns });
        let responder = &qp.transport.responder;
        if responder.expected != expected
            || (begins && responder.current.is_some())
            || qp.remote_access().check_read().is_err()
        {
            return Copied::No;
        }
        if begins && self.check_read(qp, &read.reth).is_err() {
            return Copied::No;
        }
        self.meter().charge(price::PACKET);
        let va = read.reth.va.wrapping_add(read.offset);
        let mut memory = self.memory();
        let found = memory.find_key(qp.user(), read.reth.rkey, va, to.len(), AccessFlags::REMOTE_READ);
        if found.is_err() || memory.found(to.len()).copy_to(to).is_err() {
            return Copied::No;
        }
        if begins {
            self.begin_read(qp, read.psns);
        }
        // The first and the last packet of an answer say that it is an acknowledgement too.
        let ends = read.done + read.part == read.psns;
        let says = if read.psns == 1 { 1 } else { usize::from(begins) + usize::from(ends) };
        let content = (to.len().next_multiple_of(4) + says * Aeth::LEN) as u32;
        Copied::Done {
            credits: 0,
            msn: qp.transport.responder.msn,
            responses: read.part,
            response_bytes: read.part * response_overhead(qp, from) + content,
        }
    }
}

/// Returns whether `qp` would take packets from `from`, and `from` its responses.
fn is_connected(port: &Port, vport: &NicVport, qp: &Qp, from: &Requester) -> bool {
    let path = qp.path();
    let addressed = match &from.to {
        Address::InfiniBand(from) => {
            from.dlid & !((1 << port.lmc.min(7)) - 1) == port.lid
                && from.grh.is_none_or(|grh| port.is_own_gid(&grh.dgid.0))
                && path.is_peer_lid(from.slid)
                && path.is_peer_gid(from.grh.as_ref())
        }
        Address::Roce(from) => from.is_carried(port, vport) && from.returns(path.route(), vport),
    };
    addressed
        && port.is_active()
        && qp.service() == ServiceType::RC
        && qp.connection().mtu() == from.mtu
        && !path.route().force_loopback
        && port.pkey(path.pkey_index()).is_some_and(|own| pkeys_match(own, from.pkey))
}

/// Returns the QP that takes requests from `from`, if nothing is on its way to it or from it.
/// The addresses of a `known` connection match.
#[inline(always)]
fn receiver<'q>(
    (port, vport): (&Port, &NicVport),
    qps: &'q mut Qps,
    from: &Requester,
    known: bool,
) -> Option<&'q mut Qp> {
    let qp = qps.get_mut(from.qpn)?;
    let peer = known || is_connected(port, vport, qp, from);
    let receives = match qp.state() {
        QpState::RTR => qp.transport.responder.established,
        QpState::RTS | QpState::SQD | QpState::SQ_DRAINING => true,
        _ => false,
    };
    let responder = &qp.transport.responder;
    let quiet = !responder.halted
        && !responder.nak_sent
        && !responder.ack_due
        && responder.nak.is_none()
        && responder.jobs.is_empty();
    (peer && receives && quiet).then_some(qp)
}

impl Device {
    /// Takes requests of a neighbour's.
    pub(crate) fn take_copy(&mut self, io: &mut Io<'_>, from: &Requester, run: &Run<'_>) -> Copied {
        let (qps, mut context) = self.split(io);
        context.take_copy(qps, from, run)
    }

    /// Counts packets of a neighbour that requests replaced.
    pub(crate) fn count_copied(&mut self, traffic: &Traffic, [requests, responses]: &[FrameSizes; 2]) {
        self.transport.counters.packets_received += traffic.requests;
        self.transport.counters.packets_sent += traffic.responses;
        self.port.add_received(traffic.requests, traffic.request_bytes, requests);
        self.port.add_sent(traffic.responses, traffic.response_bytes, responses);
    }

    /// Answers a neighbour's RDMA READ.
    pub(crate) fn take_copied_read(
        &mut self,
        io: &mut Io<'_>,
        from: &Requester,
        read: &ReadRun,
        to: &Ranges<'_>,
    ) -> Copied {
        let (qps, mut context) = self.split(io);
        context.take_copied_read(qps, from, read, to)
    }
}

#[cfg(test)]
mod tests {
    use super::ack_requests;

    #[test]
    fn packets_that_ask_are_counted_as_one_by_one() {
        for log_every in [0, 2, 5] {
            let mask = (1u32 << log_every) - 1;
            for psn in (0..70).chain(0xff_ffc0..0xff_fff0) {
                for psns in 1..70 {
                    for last in [false, true] {
                        let asks = |at: u32| at & mask == mask || (last && at + 1 == psn + psns);
                        let count = (psn..psn + psns).filter(|at| asks(*at)).count() as u32;
                        assert_eq!(ack_requests(psn, psns, log_every, last), count, "{psn} {psns}");
                    }
                }
            }
        }
    }
}
