//! Unreliable datagrams: UD QPs and the two management QPs (IBTA 9.8.3, 10.2.5, 14.2).

use mlx5_prm::datapath::{CqeOpcode, GrhPresence};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};
use rdma_fabric::infiniband::packet::{Bth, Deth, Grh, ImmDt, Opcode, Operation};

use super::completion::vendor;
use super::data_path::DataPath;
use super::delivery::Received;
use super::failure::Reason;
use super::inbound::Inbound;
use super::output::Head;
use super::receive::NoReceive;
use super::state::{Failure, ReceiveWqe, Work, Wqe};
use crate::log::Subject;
use crate::object::qp::Qp;
use crate::recorder::{DropReason, Event};
use crate::run::Data;
use ib_types::Psn;
use rdma_fabric::infiniband::packet::{LID_MULTICAST, LID_PERMISSIVE, QPN_MULTICAST};

/// Top bit of a WQE's Q_Key: the QP's own is used instead (IBTA 10.2.5).
const QKEY_CONTROLLED: u32 = 1 << 31;
/// Bytes in front of a datagram's payload in the receive buffer.
const GRH_AREA: usize = Grh::LEN;
/// P_Key of the default partition, full member.
const PKEY_DEFAULT: u16 = 0xffff;

impl DataPath<'_, '_> {
    /// Sends the posted datagrams of a UD, QP0 or QP1. Answers whether the budget, and nothing else, ended it.
    pub(super) fn transmit_datagrams(&mut self, qp: &mut Qp, budget: &mut usize) -> bool {
        if qp.state() != QpState::RTS {
            if qp.state() == QpState::SQER {
                return self.flush_sends(qp);
            } else if qp.state() == QpState::SQ_DRAINING {
                qp.enter(QpState::SQD);
                self.delivery().qp_event(qp, mlx5_prm::event::EventType::SQ_DRAINED);
            }
            return false;
        }
        if qp.transport.queue.rung && self.refresh_posted(qp).is_err() {
            self.catastrophe(qp);
            return false;
        }
        self.state().prefetched.count = 0;
        loop {
            if *budget == 0 || self.meter().is_spent() {
                return true;
            }
            let mut wqe = Wqe::new();
            if !self.fetch(qp, &mut wqe) {
                return false;
            }
            *budget -= 1;
            if wqe.failure.is_none() && wqe.work != Work::Nop {
                wqe.failure = self.send_datagram(qp, &wqe).err();
            }
            if wqe.failure.is_some() {
                qp.transport.requester.wqes.push_back(wqe);
                self.fail_front(qp);
                return false;
            }
            qp.transport.queue.retired = wqe.index.wrapping_add(wqe.blocks);
            if wqe.signalled {
                self.delivery().complete_send(qp, wqe.index, wqe.opcode, 0, &[]);
            }
        }
    }

    fn send_datagram(&mut self, qp: &mut Qp, wqe: &Wqe) -> Result<(), Failure> {
        let bad = Failure { syndrome: CqeSyndrome::LOCAL_QP_OP_ERR, vendor: 0 };
        let av = wqe.rare.as_ref().and_then(|rare| rare.address.as_ref()).ok_or(bad)?;
        // Partitions do not exist on the management lane (IBTA 10.9.3).
        let own = if qp.service() == ServiceType::QP0 {
            Some(PKEY_DEFAULT)
        } else {
            self.port().pkey(qp.path().pkey_index())
        };
        let Some(pkey) = own else {
            let text = format!("{:#x} names an empty entry", qp.path().pkey_index());
            self.reports().refuse_work(qp, Some(wqe.index), "ads.pkey_index", text);
            return Err(bad);
        };
        let multicast = match self.port().ethernet {
            Some(_) => av.route.rmac.is_multicast(),
            None => (LID_MULTICAST..LID_PERMISSIVE).contains(&av.route.dlid),
        };
        let dest_qpn = if multicast { QPN_MULTICAST } else { av.dqpn };
        let envelope = self.output().envelope(&av.route, pkey, dest_qpn);
        let deth = Deth {
            qkey: if av.qkey & QKEY_CONTROLLED != 0 && !is_management(qp.service(), av.qkey) {
                qp.q_key()
            } else {
                av.qkey
            },
            src_qpn: qp.source_qpn(),
        };
        let mut extended = [0; Deth::LEN + ImmDt::LEN];
        let (front, back) = extended.split_at_mut(Deth::LEN);
        front.copy_from_slice(&deth.to_bytes());
        back.copy_from_slice(&wqe.immediate.to_be_bytes());
        let (opcode, len) = match wqe.work {
            Work::SendImmediate => (Opcode::UD_SEND_ONLY_IMM, extended.len()),
            _ => (Opcode::UD_SEND_ONLY, Deth::LEN),
        };
        let psn = self.output().take_datagram_psn();
        let head = Head { opcode, psn, ack_request: false, solicited: wqe.solicited };
        let mut draft =
            self.output().draft(&envelope, &head, extended.get(..len).unwrap_or_default(), wqe.len as usize);
        let filled = self.memory().gather_payload(qp.user(), &wqe.payload, 0, draft.payload());
        if let Err(fault) = filled {
            self.output().discard(draft);
            self.reports().refuse_data(qp, wqe.index, fault);
            return Err(Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION });
        }
        if deth.src_qpn == 0 {
            if !self.port().has_smi {
                // The management lane is the physical function's.
                self.port().counters.xmit_discards += 1;
                self.output().discard(draft);
                return Ok(());
            }
            draft.mark_management();
        }
        if multicast && qp.loops_multicast() && !envelope.is_outcast() {
            self.output().dispatch_multicast(draft);
        } else {
            self.output().dispatch(draft);
        }
        Ok(())
    }

    /// A datagram for a UD QP (or QP1) of this device.
    pub(super) fn datagram(&mut self, qp: &mut Qp, operation: Operation, packet: &Inbound<'_>) {
        let receives = matches!(
            qp.state(),
            QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQ_DRAINING | QpState::SQER
        );
        let psn = Psn::new(packet.bth.psn);
        if !receives || qp.service() == ServiceType::RC {
            self.counters().no_qp += 1;
            return self.reports().note(qp, Event::Dropped { reason: DropReason::State, psn });
        }
        let content = packet.content;
        let Ok(deth) = Deth::parse(content) else {
            self.counters().malformed += 1;
            return;
        };
        // QP0 has no Q_Key: nothing but its lane leads to it (IBTA 10.2.5).
        if deth.qkey != qp.q_key() && qp.service() != ServiceType::QP0 {
            self.counters().qkey_mismatches += 1;
            let violations = &mut self.port().qkey_violations;
            *violations = violations.saturating_add(1);
            return self.reports().note(qp, Event::Dropped { reason: DropReason::QKey, psn });
        }
        let mut data = content.get(Deth::LEN..).unwrap_or_default();
        let mut received = Received {
            opcode: CqeOpcode::RESP_SEND,
            byte_count: 0,
            // Without immediate data the P_Key stands in its place (PRM, work requests and completions).
            immediate: u32::from(packet.bth.pkey),
            solicited: packet.bth.solicited,
            slid: packet.origin.slid,
            sl: packet.origin.sl,
            path_bits: packet.origin.path_bits,
            vlan: packet.origin.vlan,
            grh: 0,
            source_qpn: deth.src_qpn,
        };
        if operation == Operation::SendOnlyImm {
            let Ok(value) = ImmDt::parse(data) else {
                self.counters().malformed += 1;
                return;
            };
            received.opcode = CqeOpcode::RESP_SEND_IMM;
            received.immediate = u32::from_be_bytes(value.to_bytes());
            data = data.get(ImmDt::LEN..).unwrap_or_default();
        }
        let total = GRH_AREA + data.len();
        let receive = match self.take_receive(qp, total as u64) {
            Ok(receive) => receive,
            Err(NoReceive::Empty) => {
                self.counters().datagrams_dropped += 1;
                self.delivery().count(qp, mlx5_prm::commands::query_q_counter_out::out_of_buffer);
                return self.reports().note(qp, Event::Dropped { reason: DropReason::NoReceive, psn });
            }
            Err(NoReceive::Broken) => {
                self.catastrophe(qp);
                return;
            }
        };
        let (mut area, header) = ([0; GRH_AREA], packet.origin.header);
        // A shorter header lies at the end.
        if let Some(place) = area.get_mut(GRH_AREA.saturating_sub(header.len())..)
            && !header.is_empty()
        {
            place.copy_from_slice(header);
            received.grh = GrhPresence::IN_BUFFER.0;
        }
        received.byte_count = total as u32;
        self.place(qp, &receive, &area, data, &received);
    }

    fn place(&mut self, qp: &mut Qp, receive: &ReceiveWqe, area: &[u8], data: &[u8], received: &Received) {
        let user = receive.user(qp.qpn());
        let (list, mut memory) = (receive.sges.as_slice(), self.memory());
        let placed = memory.scatter(user, list, 0, &Data::Bytes(area));
        let placed = placed.and_then(|()| memory.scatter(user, list, GRH_AREA as u64, &Data::Bytes(data)));
        match placed {
            Ok(()) => self.delivery().complete_receive(qp, receive, received, &[]),
            Err(fault) => {
                let (field, text) = self.reports().explain(qp, Reason::Fault(fault, "lkey"));
                let text = format!("receive WQE {:#x}: {text}", receive.index);
                self.reports().refuse(Subject::WorkQueue { qpn: qp.qpn() }, field, text.clone());
                qp.transport.recorder.blame(None, text);
                let failure =
                    Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION };
                self.delivery().complete_receive_error(qp, receive, failure);
                self.enter_error(qp);
            }
        }
    }

    /// Whether a packet's P_Key lets it in to a QP: equal to its own, and not both limited members (IBTA 10.9.3). QP1 takes
    /// any P_Key of the port.
    pub(super) fn pkey_fits(&mut self, qp: &mut Qp, bth: &Bth) -> bool {
        let index = (qp.service() != ServiceType::QP1).then_some(qp.path().pkey_index());
        let fits = self.port().admits(index, bth.pkey);
        if !fits {
            self.counters().pkey_mismatches += 1;
            self.reports().note(qp, Event::Dropped { reason: DropReason::PKey, psn: Psn::new(bth.psn) });
        }
        fits
    }
}

/// QP1's well-known Q_Key has its top bit set, and is meant as it stands by those who may use it.
fn is_management(service: ServiceType, qkey: u32) -> bool {
    qkey == rdma_fabric::infiniband::packet::QKEY_GSI
        && matches!(service, ServiceType::QP1 | ServiceType::QP0)
}
