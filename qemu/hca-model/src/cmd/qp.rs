//! Queue pair commands (PRM, command reference).

use super::devx::{QP_RECORD, QP_RING};
use super::refusal::{Outcome, Refusal};
use super::ring::Ring;
use crate::caps::LOG_MAX_QP_SZ;
use crate::device::Device;
use crate::object::pages::PageList;
use crate::object::qp::{Qp, ReceiveQueue, Rings, SendQueue};
use crate::object::qps::Qps;
use crate::profile::Strictness;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::qpc;
use mlx5_prm::value::{RqType, ServiceType};

/// `cmd_hca_cap.sq_ts_format`: time stamps of the real-time clock, and of no other.
const REAL_TIME_ONLY: u32 = 1;
/// `qpc.ts_format` of the free-running clock.
const FREE_RUNNING: u32 = 0;

impl Device {
    pub(super) fn create_qp(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_qp_in::qpc.of(input);
        let service = ServiceType(qpc::st.get32(context) as u8);
        self.check_created_qp(service, context, input)?;
        let rings = self.rings_of_qp(context, input)?;
        self.check_references_of_qp(service, context, &rings)?;
        let page = qpc::uar_page.get32(context);
        let page = if rings.send().is_some() { self.uar_place("qpc.uar_page", page)? } else { page };
        let qp = Qp::new(context, rings, page);
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
    fn rings_of_qp(&self, context: &[u8], input: &[u8]) -> Result<Rings, Refusal> {
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
                Some(ReceiveQueue::new(log_size, log_stride))
            }
            RqType::SRQ_RQ | RqType::ZERO_LEN_RQ => None,
            other => return Err(Refusal::param("qpc.rq_type", format!("{other}"))),
        };
        let rq_len = rq.map_or(0, ReceiveQueue::bytes);
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
            Some(SendQueue::new(rq_len, log_size))
        };
        let sq_len = sq.map_or(0, SendQueue::bytes);
        let buffer = if rq_len + sq_len == 0 {
            PageList::default()
        } else {
            self.buffer_of_qp(rq_len + sq_len, context, input)?
        };
        let record = QP_RECORD.record(self, context, qpc::dbr_addr.get(context))?;
        let nowhere = record == 0 && self.profile.strictness == Strictness::Strict;
        if !record.is_multiple_of(8) || (nowhere && (sq.is_some() || rq.is_some())) {
            return Err(Refusal::param("qpc.dbr_addr", format!("{record:#x}")));
        }
        Ok(Rings::new(buffer, record, sq, rq))
    }

    fn buffer_of_qp(&self, len: u64, context: &[u8], input: &[u8]) -> Result<PageList, Refusal> {
        let ring = Ring {
            context: "qpc",
            input: "create_qp_in",
            len,
            page_offset: qpc::page_offset.get32(context),
            log_page_size: qpc::log_page_size.get32(context),
        };
        QP_RING.ring(self, &ring, input, input, create_qp_in::pas)
    }

    fn check_references_of_qp(&self, service: ServiceType, context: &[u8], rings: &Rings) -> Outcome {
        let objects = &self.objects;
        let rq_type = RqType(qpc::rq_type.get32(context) as u8);
        let [pd, cqn_snd, cqn_rcv, xrcd, srqn] =
            [qpc::pd, qpc::cqn_snd, qpc::cqn_rcv, qpc::xrcd, qpc::srqn_rmpn_xrqn]
                .map(|field| field.get32(context));
        // The registration QP belongs to no protection domain.
        if service != ServiceType::REG_UMR && !objects.pds.contains(pd) {
            return Err(Refusal::missing("qpc.pd", pd));
        }
        if rings.send().is_some() && !objects.queues.cqs.contains(cqn_snd) {
            return Err(Refusal::missing("qpc.cqn_snd", cqn_snd));
        }
        if rq_type != RqType::ZERO_LEN_RQ && !objects.queues.cqs.contains(cqn_rcv) {
            return Err(Refusal::missing("qpc.cqn_rcv", cqn_rcv));
        }
        if service == ServiceType::XRC && !objects.xrcds.contains(xrcd) {
            return Err(Refusal::missing("qpc.xrcd", xrcd));
        }
        if rq_type == RqType::SRQ_RQ && !objects.srqs.contains(srqn) {
            return Err(Refusal::missing("qpc.srqn_rmpn_xrqn", srqn));
        }
        self.check_counter_set(qpc::counter_set_id.get32(context) as u8)
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
            self.end_released_uar(qp.uar_page());
        }
        Ok(())
    }

    pub(super) fn query_qp(&self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let qpn = query_qp_in::qpn.get32(input);
        let Some(qp) = self.objects.qps.get(qpn) else {
            return Err(Refusal::missing("query_qp_in.qpn", qpn));
        };
        let pages = qp.rings().pages();
        output.resize(query_qp_out::pas.len_with(pages.len()), 0);
        qp.emit(query_qp_out::qpc.of_mut(output));
        for (i, page) in pages.iter().enumerate() {
            query_qp_out::pas.set_quad(output, i, *page);
        }
        Ok(())
    }
}
