//! Queue pair commands (PRM, command reference).

use super::devx::{QP_RECORD, QP_RING};
use super::refusal::{Outcome, Refusal};
use super::ring::Ring;
use crate::caps::{LOG_MAX_MSG, LOG_MAX_QP_SZ};
use crate::device::Device;
use crate::object::pages::PageList;
use crate::object::qp::{AddressPath, Qp, ReceiveQueue, SendQueue};
use crate::object::qps::Qps;
use crate::object::remote_access::RemoteAccess;
use crate::profile::Strictness;
use crate::transport::QpTransport;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::qpc;
use mlx5_prm::value::{QpState, RqType, ServiceType};

/// `cmd_hca_cap.sq_ts_format`: time stamps of the real-time clock, and of no other.
const REAL_TIME_ONLY: u32 = 1;
/// `qpc.ts_format` of the free-running clock.
const FREE_RUNNING: u32 = 0;

impl Device {
    pub(super) fn create_qp(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_qp_in::qpc.of(input);
        let service = ServiceType(qpc::st.get32(context) as u8);
        self.check_created_qp(service, context, input)?;
        let (buffer, sq, rq) = self.rings_of_qp(context, input)?;
        let mut qp = Qp {
            qpn: 0,
            service,
            state: QpState::RST,
            pd: 0,
            uar_page: 0,
            cqn_snd: 0,
            cqn_rcv: 0,
            rq_type: RqType::NON_ZERO_RQ,
            srqn: 0,
            xrcd: 0,
            buffer,
            sq,
            rq,
            dbr_addr: 0,
            user_index: 0,
            reserved_lkey: false,
            fast_registration: false,
            cs_req: 0,
            cs_res: 0,
            block_multicast_loopback: false,
            counter_set_id: 0,
            mtu: 0,
            log_msg_max: LOG_MAX_MSG as u8,
            remote_qpn: 0,
            primary_path: AddressPath::default(),
            alternate_path: AddressPath::default(),
            pm_state: 0,
            log_ack_req_freq: 0,
            log_sra_max: 0,
            log_rra_max: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_nak: 0,
            next_send_psn: 0,
            next_rcv_psn: 0,
            remote_access: RemoteAccess::default(),
            q_key: 0,
            deth_sqpn: 0,
            context: context.to_vec(),
            transport: QpTransport::default(),
        };
        qp.parse_created(context);
        qp.dbr_addr = QP_RECORD.record(self, context, qp.dbr_addr)?;
        self.check_references_of_qp(&qp)?;
        if qp.sq.is_some() {
            qp.uar_page = self.uar_place("qpc.uar_page", qp.uar_page)?;
        }
        let memory = qp.memory();
        self.hold(memory)?;
        let Some(qpn) = self.objects.qps.insert(qp) else {
            self.budget.release(memory);
            return Err(Refusal::full("QPs"));
        };
        create_qp_out::qpn.set(output, qpn);
        Ok(())
    }

    fn check_created_qp(&self, service: ServiceType, context: &[u8], input: &[u8]) -> Outcome {
        use mlx5_prm::caps::cmd_hca_cap;
        let supported = match service {
            ServiceType::RC => self.caps.current(cmd_hca_cap::rc) != 0,
            ServiceType::UC => self.caps.current(cmd_hca_cap::uc) != 0,
            ServiceType::UD => self.caps.current(cmd_hca_cap::ud) != 0,
            ServiceType::XRC => self.caps.current(cmd_hca_cap::xrc) != 0,
            ServiceType::QP0 | ServiceType::QP1 | ServiceType::REG_UMR => true,
            _ => false,
        };
        if !supported {
            return Err(Refusal::param("qpc.st", format!("{service} is not supported")));
        }
        if let Some(qpn) = self.objects.qps.management(service) {
            return Err(Refusal::busy("qpc.st", format!("the port's {service} is QP {qpn:#x}")));
        }
        for (field, name) in [
            (qpc::wq_signature, "qpc.wq_signature"),
            (qpc::drain_sigerr, "qpc.drain_sigerr"),
            (qpc::offload_type, "qpc.offload_type"),
            (qpc::cd_master, "qpc.cd_master"),
            (qpc::cd_slave_send, "qpc.cd_slave_send"),
            (qpc::cd_slave_receive, "qpc.cd_slave_receive"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        let real_time_only = self.caps.current(cmd_hca_cap::sq_ts_format) == REAL_TIME_ONLY;
        if real_time_only && qpc::ts_format.get32(context) == FREE_RUNNING {
            return Err(Refusal::param("qpc.ts_format", "free-running, of a device with a real-time clock"));
        }
        if create_qp_in::input_qpn.is_set(input) && self.profile.strictness == Strictness::Strict {
            return Err(Refusal::param("create_qp_in.input_qpn", "the device chooses numbers"));
        }
        Ok(())
    }

    /// Parses the sizes: the receive queue comes first in the buffer.
    fn rings_of_qp(
        &self,
        context: &[u8],
        input: &[u8],
    ) -> Result<(PageList, Option<SendQueue>, Option<ReceiveQueue>), Refusal> {
        let rq_type = RqType(qpc::rq_type.get32(context) as u8);
        let rq = match rq_type {
            RqType::NON_ZERO_RQ => {
                let log_size = qpc::log_rq_size.get32(context);
                let log_stride = qpc::log_rq_stride.get32(context) + 4;
                if log_size > LOG_MAX_QP_SZ {
                    return Err(Refusal::param(
                        "qpc.log_rq_size",
                        format!("{log_size}, at most {LOG_MAX_QP_SZ}"),
                    ));
                }
                let max = self.caps.current(mlx5_prm::caps::cmd_hca_cap::max_wqe_sz_rq);
                if 1 << log_stride > max {
                    let text = format!("{} bytes, at most {max}", 1 << log_stride);
                    return Err(Refusal::param("qpc.log_rq_stride", text));
                }
                Some(ReceiveQueue { offset: 0, log_size, log_stride })
            }
            RqType::SRQ_RQ | RqType::ZERO_LEN_RQ => None,
            other => return Err(Refusal::param("qpc.rq_type", format!("{other}"))),
        };
        let rq_len = rq.map_or(0, |rq| 1u64 << (rq.log_size + rq.log_stride));
        let sq = if qpc::no_sq.is_set(context) {
            None
        } else {
            let log_size = qpc::log_sq_size.get32(context);
            if log_size > LOG_MAX_QP_SZ {
                return Err(Refusal::param(
                    "qpc.log_sq_size",
                    format!("{log_size}, at most {LOG_MAX_QP_SZ}"),
                ));
            }
            Some(SendQueue { offset: rq_len, log_size })
        };
        let sq_len = sq.map_or(0, |sq| 64u64 << sq.log_size);
        if rq_len + sq_len == 0 {
            return Ok((PageList::default(), sq, rq));
        }
        let ring = Ring {
            context: "qpc",
            input: "create_qp_in",
            len: rq_len + sq_len,
            page_offset: qpc::page_offset.get32(context),
            log_page_size: qpc::log_page_size.get32(context),
        };
        Ok((QP_RING.ring(self, &ring, input, input, create_qp_in::pas)?, sq, rq))
    }

    fn check_references_of_qp(&self, qp: &Qp) -> Outcome {
        // The registration QP belongs to no protection domain.
        if qp.service != ServiceType::REG_UMR && !self.objects.pds.contains(qp.pd) {
            return Err(Refusal::missing("qpc.pd", qp.pd));
        }
        if qp.sq.is_some() && !self.objects.queues.cqs.contains(qp.cqn_snd) {
            return Err(Refusal::missing("qpc.cqn_snd", qp.cqn_snd));
        }
        if qp.rq_type != RqType::ZERO_LEN_RQ && !self.objects.queues.cqs.contains(qp.cqn_rcv) {
            return Err(Refusal::missing("qpc.cqn_rcv", qp.cqn_rcv));
        }
        if qp.service == ServiceType::XRC && !self.objects.xrcds.contains(qp.xrcd) {
            return Err(Refusal::missing("qpc.xrcd", qp.xrcd));
        }
        if qp.rq_type == RqType::SRQ_RQ && !self.objects.srqs.contains(qp.srqn) {
            return Err(Refusal::missing("qpc.srqn_rmpn_xrqn", qp.srqn));
        }
        let nowhere = qp.dbr_addr == 0 && self.profile.strictness == Strictness::Strict;
        if !qp.dbr_addr.is_multiple_of(8) || (nowhere && (qp.sq.is_some() || qp.rq.is_some())) {
            return Err(Refusal::param("qpc.dbr_addr", format!("{:#x}", qp.dbr_addr)));
        }
        self.check_counter_set(qp.counter_set_id)
    }

    pub(super) fn check_counter_set(&self, id: u8) -> Outcome {
        if id != 0 && !self.objects.q_counters.sets.contains(u32::from(id)) {
            return Err(Refusal::missing("qpc.counter_set_id", u32::from(id)));
        }
        Ok(())
    }

    pub(super) fn destroy_qp(&mut self, input: &[u8]) -> Outcome {
        let qpn = destroy_qp_in::qpn.get32(input);
        if self.objects.qps.get(qpn).is_none() {
            return Err(Refusal::missing("destroy_qp_in.qpn", qpn));
        }
        self.qp_goes(qpn);
        if let Some((qp, attachments)) = self.objects.qps.remove(qpn) {
            self.budget.release(qp.memory() + attachments as u64 * Qps::ATTACHMENT_MEMORY);
            self.end_released_uar(qp.uar_page);
        }
        Ok(())
    }

    pub(super) fn query_qp(&self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let qpn = query_qp_in::qpn.get32(input);
        let Some(qp) = self.objects.qps.get(qpn) else {
            return Err(Refusal::missing("query_qp_in.qpn", qpn));
        };
        let pages = qp.buffer.pages();
        output.resize(query_qp_out::pas.len_with(pages.len()), 0);
        let progress = qp.transport.progress();
        let context = query_qp_out::qpc.of_mut(output);
        context.copy_from_slice(&qp.context);
        let started = qp.state != QpState::RST && qp.state != QpState::INIT;
        for (field, value) in [
            (qpc::state, u32::from(qp.state.0)),
            (qpc::pm_state, u32::from(qp.pm_state)),
            (qpc::counter_set_id, u32::from(qp.counter_set_id)),
            (qpc::mtu, u32::from(qp.mtu)),
            (qpc::log_msg_max, u32::from(qp.log_msg_max)),
            (qpc::remote_qpn, qp.remote_qpn),
            (qpc::log_sra_max, u32::from(qp.log_sra_max)),
            (qpc::log_rra_max, u32::from(qp.log_rra_max)),
            (qpc::retry_count, u32::from(qp.retry_count)),
            (qpc::rnr_retry, u32::from(qp.rnr_retry)),
            (qpc::min_rnr_nak, u32::from(qp.min_rnr_nak)),
            (qpc::cqn_rcv, qp.cqn_rcv),
            (qpc::srqn_rmpn_xrqn, qp.srqn),
            (qpc::q_key, qp.q_key),
            (
                qpc::next_send_psn,
                if started { progress.next_send_psn } else { qp.next_send_psn } & 0x00ff_ffff,
            ),
            (qpc::next_rcv_psn, if started { progress.next_rcv_psn } else { qp.next_rcv_psn } & 0x00ff_ffff),
            (qpc::last_acked_psn, progress.last_acked_psn & 0x00ff_ffff),
            (qpc::ssn, progress.ssn & 0x00ff_ffff),
            (qpc::rmsn, progress.rmsn & 0x00ff_ffff),
            (qpc::hw_sq_wqebb_counter, u32::from(progress.hw_sq_wqebb_counter)),
            (qpc::sw_sq_wqebb_counter, u32::from(progress.sw_sq_wqebb_counter)),
            (qpc::hw_rq_counter, progress.hw_rq_counter),
            (qpc::sw_rq_counter, progress.sw_rq_counter),
        ] {
            field.set(context, value);
        }
        qp.remote_access.emit(context);
        qp.primary_path.emit(qpc::primary_address_path.of_mut(context));
        qp.alternate_path.emit(qpc::secondary_address_path.of_mut(context));
        for (i, page) in pages.iter().enumerate() {
            query_qp_out::pas.set_quad(output, i, *page);
        }
        Ok(())
    }
}
