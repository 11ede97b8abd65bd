//! Shared receive queue commands: SRQ, XRC SRQ, RMP (PRM, command reference).

use super::devx::{WQ_RECORD, WQ_RING};
use super::refusal::{Outcome, Refusal};
use super::ring::Ring;
use crate::caps::LOG_MAX_QP_SZ;
use crate::device::Device;
use crate::object::srq::{Srq, SrqKind};
use crate::seams::Io;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{rmpc, srqc, wq, xrc_srqc};
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::{Field, Tail};

/// `pas[]` begins at the same place in all three inputs.
const PAS: Tail = Tail { offset: 0x110, stride: 8 };
/// `rmpc.state`: ready.
const RMP_READY: u32 = 1;
/// `rmpc.state`: error.
const RMP_ERROR: u32 = 3;
/// The queue's number has the same place in all inputs that name one, and in all outputs that give one.
const NUMBER: Field = Field::bits(0x08, 23, 0);

impl Device {
    pub(super) fn create_srq(
        &mut self,
        io: &mut Io<'_>,
        opcode: Opcode,
        input: &[u8],
        output: &mut [u8],
    ) -> Outcome {
        let srq = match opcode {
            Opcode::CREATE_SRQ => self.parse_srq(input)?,
            Opcode::CREATE_XRC_SRQ => self.parse_xrc_srq(input)?,
            _ => self.parse_rmp(input)?,
        };
        if !self.objects.pds.contains(srq.pd) {
            return Err(Refusal::missing("srqc.pd", srq.pd));
        }
        if srq.log_size > LOG_MAX_QP_SZ {
            return Err(Refusal::param(
                "srqc.log_srq_size",
                format!("{}, at most {LOG_MAX_QP_SZ}", srq.log_size),
            ));
        }
        if !srq.dbr_addr.is_multiple_of(8) || io.memory.load64(srq.dbr_addr).is_err() {
            let text = format!("{:#x}: not aligned or not accessible", srq.dbr_addr);
            return Err(Refusal::param("srqc.dbr_addr", text));
        }
        let stride = 1u32 << srq.log_stride;
        let longest = self.caps.current(mlx5_prm::caps::cmd_hca_cap::max_wqe_sz_rq);
        let shortest = if srq.has_next_segment() { 32 } else { 16 };
        if !(shortest..=longest).contains(&stride) {
            let text = format!("{stride} bytes, {shortest} to {longest}");
            return Err(Refusal::param("srqc.log_rq_stride", text));
        }
        if srq.kind != SrqKind::Rmp && !self.objects.queues.cqs.contains(srq.cqn) {
            return Err(Refusal::missing("srqc.cqn", srq.cqn));
        }
        if srq.kind == SrqKind::Xrc && !self.objects.xrcds.contains(srq.xrcd) {
            return Err(Refusal::missing("xrc_srqc.xrcd", srq.xrcd));
        }
        let memory = srq.memory();
        self.hold(memory)?;
        let Some(number) = self.objects.srqs.insert(|srqn| Srq { srqn, ..srq }) else {
            self.budget.release(memory);
            let text = format!("{} exist", self.objects.srqs.len());
            return Err(Refusal::new(CmdStatus::NO_RES, "cmd_hca_cap.log_max_srq", text));
        };
        NUMBER.set(output, number);
        Ok(())
    }

    fn parse_srq(&self, input: &[u8]) -> Result<Srq, Refusal> {
        let context = create_srq_in::srq_context_entry.of(input);
        let log_size = srqc::log_srq_size.get32(context);
        let log_stride = srqc::log_rq_stride.get32(context) + 4;
        let ring = Ring {
            context: "srqc",
            input: "create_srq_in",
            len: 1 << (log_size + log_stride),
            page_offset: srqc::page_offset.get32(context),
            log_page_size: srqc::log_page_size.get32(context),
        };
        if srqc::wq_signature.is_set(context) {
            return Err(Refusal::param("srqc.wq_signature", "the capability is off"));
        }
        Ok(Srq {
            srqn: 0,
            kind: SrqKind::Srq,
            pd: srqc::pd.get32(context),
            cqn: srqc::cqn.get32(context),
            xrcd: srqc::xrcd.get32(context),
            buffer: ring.pages(input, PAS, self.profile.strictness)?,
            log_size,
            log_stride,
            linked: true,
            dbr_addr: srqc::dbr_addr.get(context),
            reserved_lkey: srqc::rlky.is_set(context),
            user_index: 0,
            limit: srqc::lwm.get32(context) as u16,
            taken: 0,
            head: 0,
            failed: false,
            context: context.to_vec(),
        })
    }

    fn parse_xrc_srq(&self, input: &[u8]) -> Result<Srq, Refusal> {
        let context = create_xrc_srq_in::xrc_srq_context_entry.of(input);
        let log_size = xrc_srqc::log_xrc_srq_size.get32(context);
        let log_stride = xrc_srqc::log_rq_stride.get32(context) + 4;
        let ring = Ring {
            context: "xrc_srqc",
            input: "create_xrc_srq_in",
            len: 1 << (log_size + log_stride),
            page_offset: xrc_srqc::page_offset.get32(context),
            log_page_size: xrc_srqc::log_page_size.get32(context),
        };
        for (field, name) in [
            (xrc_srqc::wq_signature, "xrc_srqc.wq_signature"),
            (xrc_srqc::dbr_umem_valid, "xrc_srqc.dbr_umem_valid"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        let dbr_addr =
            xrc_srqc::db_record_addr_h.get(context) << 32 | xrc_srqc::db_record_addr_l.get(context) << 2;
        Ok(Srq {
            srqn: 0,
            kind: SrqKind::Xrc,
            pd: xrc_srqc::pd.get32(context),
            cqn: xrc_srqc::cqn.get32(context),
            xrcd: xrc_srqc::xrcd.get32(context),
            buffer: ring.pages(input, PAS, self.profile.strictness)?,
            log_size,
            log_stride,
            linked: !xrc_srqc::basic_cyclic_rcv_wqe.is_set(context),
            dbr_addr,
            reserved_lkey: xrc_srqc::rlky.is_set(context),
            user_index: xrc_srqc::user_index.get32(context),
            limit: xrc_srqc::lwm.get32(context) as u16,
            taken: 0,
            head: 0,
            failed: false,
            context: context.to_vec(),
        })
    }

    fn parse_rmp(&self, input: &[u8]) -> Result<Srq, Refusal> {
        let context = create_rmp_in::ctx.of(input);
        let queue = rmpc::wq.of(context);
        let state = rmpc::state.get32(context);
        if state != RMP_READY {
            return Err(Refusal::param("rmpc.state", format!("{state}, {RMP_READY} (ready) expected")));
        }
        let kind = wq::wq_type.get32(queue);
        if kind > 1 {
            return Err(Refusal::param("wq.wq_type", format!("{kind} is not supported")));
        }
        if wq::wq_signature.is_set(queue) {
            return Err(Refusal::param("wq.wq_signature", "the capability is off"));
        }
        let log_size = wq::log_wq_sz.get32(queue);
        let log_stride = wq::log_wq_stride.get32(queue);
        let ring = Ring {
            context: "wq",
            input: "create_rmp_in",
            len: 1 << (log_size + log_stride).min(40),
            page_offset: wq::page_offset.get32(queue),
            log_page_size: wq::log_wq_pg_sz.get32(queue),
        };
        Ok(Srq {
            srqn: 0,
            kind: SrqKind::Rmp,
            pd: wq::pd.get32(queue),
            cqn: 0,
            xrcd: 0,
            buffer: WQ_RING.ring(self, &ring, queue, input, PAS)?,
            log_size,
            log_stride,
            linked: kind == 0,
            dbr_addr: WQ_RECORD.record(self, queue, wq::dbr_addr.get(queue))?,
            reserved_lkey: false,
            user_index: 0,
            limit: wq::lwm.get32(queue) as u16,
            taken: 0,
            head: 0,
            failed: false,
            context: context.to_vec(),
        })
    }

    fn srq_mut(&mut self, opcode: Opcode, number: u32) -> Result<&mut Srq, Refusal> {
        let kind = kind_of(opcode);
        let field = opcode.input_layout().map_or("", |layout| layout.name);
        match self.objects.srqs.get_mut(number) {
            Some(srq) if srq.kind == kind => Ok(srq),
            _ => Err(Refusal::missing(field, number)),
        }
    }

    pub(super) fn destroy_srq(&mut self, opcode: Opcode, input: &[u8]) -> Outcome {
        let number = NUMBER.get32(input);
        let srqn = self.srq_mut(opcode, number)?.srqn;
        self.charge_scan();
        if let Some(qpn) = self.objects.qps.user(|qp| qp.shared_queue() == Some(srqn)) {
            return Err(Refusal::busy("srq_number", format!("used by QP {qpn:#x}")));
        }
        if let Some(srq) = self.objects.srqs.remove(srqn) {
            self.budget.release(srq.memory());
        }
        Ok(())
    }

    pub(super) fn query_srq(
        &mut self,
        io: &mut Io<'_>,
        opcode: Opcode,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Outcome {
        let srq = self.srq_mut(opcode, NUMBER.get32(input))?;
        let left = srq.left(io.memory).unwrap_or(0);
        let pages = srq.buffer.pages();
        output.resize(PAS.len_with(pages.len()), 0);
        match srq.kind {
            SrqKind::Srq => {
                let context = query_srq_out::srq_context_entry.of_mut(output);
                context.copy_from_slice(&srq.context);
                srqc::state.set(context, srq.failed);
                srqc::lwm.set(context, srq.limit);
                srqc::wqe_cnt.set(context, left);
            }
            SrqKind::Xrc => {
                let context = query_xrc_srq_out::xrc_srq_context_entry.of_mut(output);
                context.copy_from_slice(&srq.context);
                xrc_srqc::state.set(context, srq.failed);
                xrc_srqc::lwm.set(context, srq.limit);
                xrc_srqc::wqe_cnt.set(context, left);
            }
            SrqKind::Rmp => {
                let context = query_rmp_out::rmp_context.of_mut(output);
                context.copy_from_slice(&srq.context);
                if srq.failed {
                    rmpc::state.set(context, RMP_ERROR);
                }
                let queue = rmpc::wq.of_mut(context);
                wq::lwm.set(queue, srq.limit);
                wq::hw_counter.set(queue, srq.taken);
                wq::sw_counter.set(queue, srq.taken.wrapping_add(left));
            }
        }
        for (i, page) in pages.iter().enumerate() {
            PAS.set_quad(output, i, *page);
        }
        Ok(())
    }

    pub(super) fn arm_srq(&mut self, io: &mut Io<'_>, opcode: Opcode, op_mod: u16, input: &[u8]) -> Outcome {
        // 1 is a shared receive queue; 2, an XRQ, does not exist here.
        if op_mod != 1 {
            return Err(Refusal::op_mod(op_mod));
        }
        let limit = arm_rq_in::lwm.get32(input) as u16;
        let srqn = self.srq_mut(opcode, NUMBER.get32(input))?.srqn;
        self.set_srq_limit(io, srqn, limit);
        Ok(())
    }

    /// Arms the limit event. It comes at once when there are fewer entries already (IBTA 10.2.9.3).
    fn set_srq_limit(&mut self, io: &mut Io<'_>, srqn: u32, limit: u16) {
        let Some(srq) = self.objects.srqs.get_mut(srqn) else { return };
        srq.limit = limit;
        if srq.left(io.memory).is_ok_and(|left| srq.limit_reached(left)) {
            self.objects.queues.qp_event(
                io,
                &mut self.log,
                EventType::SRQ_RQ_LIMIT,
                EventQueueType::QP,
                srqn,
            );
        }
    }

    pub(super) fn modify_rmp(&mut self, io: &mut Io<'_>, input: &[u8]) -> Outcome {
        let limit = wq::lwm.get32(rmpc::wq.of(modify_rmp_in::ctx.of(input))) as u16;
        let srq = self.srq_mut(Opcode::MODIFY_RMP, modify_rmp_in::rmpn.get32(input))?;
        let (srqn, failed) = (srq.srqn, srq.failed);
        // Ready is the only state that can be asked for, and only of one that is.
        let state = modify_rmp_in::rmp_state.get32(input);
        if state != RMP_READY || failed {
            let now = if failed { RMP_ERROR } else { RMP_READY };
            return Err(Refusal::new(
                CmdStatus::BAD_RES_STATE,
                "modify_rmp_in.rmp_state",
                format!("{state}, the RMP is in {now}"),
            ));
        }
        if LWM_SELECTED.is_set(input) {
            self.set_srq_limit(io, srqn, limit);
        }
        Ok(())
    }
}

fn kind_of(opcode: Opcode) -> SrqKind {
    match opcode {
        Opcode::DESTROY_XRC_SRQ | Opcode::QUERY_XRC_SRQ | Opcode::ARM_XRC_SRQ => SrqKind::Xrc,
        Opcode::DESTROY_RMP | Opcode::QUERY_RMP | Opcode::MODIFY_RMP => SrqKind::Rmp,
        _ => SrqKind::Srq,
    }
}

/// `modify_rmp_in.bitmask.lwm`.
const LWM_SELECTED: Field = Field::bits(0x14, 0, 0);
