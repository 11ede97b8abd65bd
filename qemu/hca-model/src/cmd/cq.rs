//! Completion queue commands (PRM, command reference).

use super::devx::{CQ_RECORD, CQ_RING};
use super::refusal::{Outcome, Refusal};
use super::ring::{OWNERS_CHECKED, Ring};
use crate::caps::LOG_MAX_CQ_SZ;
use crate::device::Device;
use crate::log::Subject;
use crate::object::compression::MiniFormat;
use crate::object::cq::{Cq, Moderation};
use crate::object::pages::PageList;
use crate::seams::Io;
use mlx5_prm::caps::cmd_hca_cap as cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::cqc;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{CqStatus, CqeSize, ModifyCqFields, ResizeCqFields};

fn ring(context: &[u8], log_size: u32, cqe_bytes: u32, input: &'static str) -> Ring<'static> {
    Ring {
        context: "cqc",
        input,
        len: u64::from(cqe_bytes) << log_size,
        page_offset: cqc::page_offset.get32(context),
        log_page_size: cqc::log_page_size.get32(context),
    }
}

fn log_size_of(context: &[u8]) -> Result<u32, Refusal> {
    let log_size = cqc::log_cq_size.get32(context);
    if log_size > LOG_MAX_CQ_SZ {
        return Err(Refusal::param("cqc.log_cq_size", format!("{log_size}, at most {LOG_MAX_CQ_SZ}")));
    }
    Ok(log_size)
}

impl Device {
    fn eq_of_cq(&self, context: &[u8]) -> Result<u32, Refusal> {
        let eqn = cqc::c_eqn_or_apu_element.get32(context) & 0xff;
        match self.objects.queues.eqs.get(eqn) {
            None => Err(Refusal::missing("cqc.c_eqn_or_apu_element", eqn)),
            Some(_) => Ok(eqn),
        }
    }

    pub(super) fn create_cq(&mut self, io: &mut Io<'_>, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_cq_in::cq_context.of(input);
        let log_size = log_size_of(context)?;
        let size = CqeSize(cqc::cqe_sz.get32(context) as u8);
        let cqe_bytes = match size {
            CqeSize::BYTES_64 => 64,
            CqeSize::BYTES_128 | CqeSize::BYTES_128_PAD => 128,
            _ => return Err(Refusal::param("cqc.cqe_sz", format!("{size}"))),
        };
        let mut moderation = Moderation::default();
        moderation.configure(context);
        if cqc::apu_cq.is_set(context) {
            return Err(Refusal::param("cqc.apu_cq", "the capability is off"));
        }
        let compression = self.compression_of(context, cqe_bytes)?;
        let uar_page = self.uar_place("cqc.uar_page", cqc::uar_page.get32(context))?;
        let eqn = self.eq_of_cq(context)?;
        let dbr_addr = CQ_RECORD.record(self, context, cqc::dbr_addr.get(context))?;
        if !dbr_addr.is_multiple_of(8) || io.memory.load64(dbr_addr).is_err() {
            return Err(Refusal::param(
                "cqc.dbr_addr",
                format!("{dbr_addr:#x}: not aligned or not accessible"),
            ));
        }
        let ring = ring(context, log_size, cqe_bytes, "create_cq_in");
        let buffer = CQ_RING.ring(self, &ring, input, input, create_cq_in::pas)?;
        self.meter.charge((1u64 << log_size).min(OWNERS_CHECKED));
        let stale = stale_entries(io, &buffer, log_size, cqe_bytes, "create_cq_in.pas")?;
        let cq = Cq {
            buffer,
            log_size,
            cqe_bytes,
            uar_page,
            eqn,
            dbr_addr,
            overrun_ignore: cqc::oi.is_set(context),
            collapsed: cqc::cc.is_set(context),
            producer: 0,
            consumer: 0,
            last_solicited: None,
            arm_sn: 0,
            state: None,
            status: CqStatus::OK,
            moderation,
            listed: None,
            compression,
            session: None,
            context: context.to_vec(),
        };
        let memory = cq.memory();
        self.hold(memory)?;
        let Some(cqn) = self.objects.queues.cqs.insert(|_| cq) else {
            self.budget.release(memory);
            return Err(Refusal::full("CQs"));
        };
        self.warn_stale_cqes(cqn, stale);
        create_cq_out::cqn.set(output, cqn);
        Ok(())
    }

    /// The format in which completions may be written in short, if they may.
    fn compression_of(&self, context: &[u8], cqe_bytes: u32) -> Result<Option<MiniFormat>, Refusal> {
        if !cqc::cqe_comp_en.is_set(context) {
            return Ok(None);
        }
        let capability = if cqe_bytes == 128 { cap::cqe_compression_128 } else { cap::cqe_compression };
        if self.caps.current(capability) == 0 {
            return Err(Refusal::param("cqc.cqe_comp_en", "the capability is off"));
        }
        // One entry has no room for what belongs together.
        if cqc::cc.is_set(context) || cqc::log_cq_size.get32(context) == 0 {
            return Err(Refusal::param("cqc.cqe_comp_en", "set for a CQ of one entry"));
        }
        let layout = cqc::cqe_compression_layout.get32(context);
        if layout != 0 {
            return Err(Refusal::param("cqc.cqe_compression_layout", format!("{layout} is not supported")));
        }
        let format = cqc::mini_cqe_res_format.get32(context);
        let has_stride = self.caps.current(cap::mini_cqe_resp_stride_index) != 0;
        MiniFormat::new(format)
            .filter(|format| has_stride || !matches!(format, MiniFormat::ChecksumAndStride))
            .map(Some)
            .ok_or_else(|| Refusal::param("cqc.mini_cqe_res_format", format!("{format}")))
    }

    fn warn_stale_cqes(&mut self, cqn: u32, stale: u32) {
        if stale != 0 {
            let text = format!("{stale} entries do not hold the invalid opcode 15");
            self.log.warn(Subject::CompletionQueue { cqn }, "cqe64.op_own", text);
        }
    }

    pub(super) fn destroy_cq(&mut self, input: &[u8]) -> Outcome {
        let field = "destroy_cq_in.cqn";
        let cqn = destroy_cq_in::cqn.get32(input);
        if !self.objects.queues.cqs.contains(cqn) {
            return Err(Refusal::missing(field, cqn));
        }
        self.charge_scan();
        if let Some(qpn) = self.objects.qps.user(|qp| qp.uses_cq(cqn)) {
            return Err(Refusal::busy(field, format!("used by QP {qpn:#x}")));
        }
        if let Some((srqn, _)) = self.objects.srqs.iter().find(|(_, srq)| srq.cqn == cqn) {
            return Err(Refusal::busy(field, format!("used by SRQ {srqn:#x}")));
        }
        if let Some(user) = self.objects.nic.user(|queue| queue.cqn == cqn) {
            return Err(Refusal::busy(field, user));
        }
        if let Some(cq) = self.objects.queues.cqs.remove(cqn) {
            self.budget.release(cq.memory());
            self.end_released_uar(cq.uar_page);
        }
        self.objects.queues.failed_cqs.retain(|&failed| failed != cqn);
        Ok(())
    }

    pub(super) fn query_cq(&self, io: &mut Io<'_>, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let cqn = query_cq_in::cqn.get32(input);
        let Some(cq) = self.objects.queues.cqs.get(cqn) else {
            return Err(Refusal::missing("query_cq_in.cqn", cqn));
        };
        let pages = cq.buffer.pages();
        output.resize(query_cq_out::pas.len_with(pages.len()), 0);
        let context = query_cq_out::cq_context.of_mut(output);
        context.copy_from_slice(&cq.context);
        let consumer = io.memory.load32(cq.dbr_addr).unwrap_or(cq.consumer) & 0x00ff_ffff;
        cqc::status.set(context, cq.status.0);
        cqc::st.set(context, cq.state.map_or(0, |state| state.0));
        cqc::consumer_counter.set(context, consumer);
        cqc::producer_counter.set(context, cq.producer);
        cqc::last_solicit_index.set(context, cq.last_solicited.unwrap_or(0));
        for (i, page) in pages.iter().enumerate() {
            query_cq_out::pas.set_quad(output, i, *page);
        }
        Ok(())
    }

    pub(super) fn modify_cq(&mut self, io: &mut Io<'_>, op_mod: u16, input: &[u8]) -> Outcome {
        let cqn = modify_cq_in::cqn.get32(input);
        if !self.objects.queues.cqs.contains(cqn) {
            return Err(Refusal::missing("modify_cq_in.cqn", cqn));
        }
        match op_mod {
            0 => self.modify_cq_fields(cqn, input),
            1 => self.resize_cq(io, cqn, input),
            _ => Err(Refusal::op_mod(op_mod)),
        }
    }

    fn modify_cq_fields(&mut self, cqn: u32, input: &[u8]) -> Outcome {
        let context = modify_cq_in::cq_context.of(input);
        let select = MODIFY_SELECT.get32(input);
        let Some(select) = ModifyCqFields::from_bits(select) else {
            return Err(Refusal::param("modify_cq_in.modify_field_select", format!("{select:#x}")));
        };
        let eqn = if select.contains(ModifyCqFields::C_EQN) { Some(self.eq_of_cq(context)?) } else { None };
        let Some(cq) = self.objects.queues.cqs.get_mut(cqn) else { return Ok(()) };
        if select.contains(ModifyCqFields::CQ_PERIOD) {
            cqc::cq_period.set(&mut cq.context, cqc::cq_period.get32(context));
            cqc::cq_period_mode.set(&mut cq.context, cqc::cq_period_mode.get32(context));
        }
        if select.contains(ModifyCqFields::CQ_MAX_COUNT) {
            cqc::cq_max_count.set(&mut cq.context, cqc::cq_max_count.get32(context));
        }
        if select.contains(ModifyCqFields::OI) {
            cq.overrun_ignore = cqc::oi.is_set(context);
            cqc::oi.set(&mut cq.context, cq.overrun_ignore);
        }
        cq.moderation.configure(&cq.context);
        if let Some(eqn) = eqn {
            cq.eqn = eqn;
            cqc::c_eqn_or_apu_element.set(&mut cq.context, eqn);
        }
        Ok(())
    }

    /// The device ends the old ring with a resize CQE, which takes an index of its own, and goes on in the new one.
    fn resize_cq(&mut self, io: &mut Io<'_>, cqn: u32, input: &[u8]) -> Outcome {
        let context = modify_cq_in::cq_context.of(input);
        // What is held back belongs into the old ring. A CQ that fails by it says so itself.
        let _ = self.objects.queues.write_held(io, &mut self.log, cqn);
        let select = MODIFY_SELECT.get32(input);
        let Some(select) = ResizeCqFields::from_bits(select) else {
            return Err(Refusal::param("modify_cq_in.resize_field_select", format!("{select:#x}")));
        };
        let Some(cq) = self.objects.queues.cqs.get(cqn) else { return Ok(()) };
        let log_size =
            if select.contains(ResizeCqFields::LOG_CQ_SIZE) { log_size_of(context)? } else { cq.log_size };
        let ring = ring(context, log_size, cq.cqe_bytes, "modify_cq_in");
        let buffer = CQ_RING.ring(self, &ring, input, input, modify_cq_in::pas)?;
        let Some(cq) = self.objects.queues.cqs.get_mut(cqn) else { return Ok(()) };
        self.meter.charge((1u64 << log_size).min(OWNERS_CHECKED));
        let stale = stale_entries(io, &buffer, log_size, cq.cqe_bytes, "modify_cq_in.pas")?;
        let outstanding =
            cq.outstanding(io).map_err(|fault| Refusal::param("cqc.dbr_addr", fault.to_string()))?;
        // The resize CQE itself needs a place in the old ring, and counts in the new one.
        if outstanding >= cq.entries().min(1 << log_size) {
            let text =
                format!("{outstanding} completions are not consumed, the new ring has {}", 1 << log_size);
            return Err(Refusal::new(CmdStatus::BAD_SIZE_OUTS_CQES, "cqc.log_cq_size", text));
        }
        let (before, after) = (cq.buffer.memory(), buffer.memory());
        if let Err(over) = self.budget.hold(after) {
            return Err(Refusal::new(CmdStatus::NO_RES, "", over.to_string()));
        }
        let mut marker = [0; 64];
        marker[0x3f] = 5 << 4;
        let pushed = match self.profile.misbehaviour.silent_resize {
            true => Ok(false),
            false => cq.push(io, &marker, None, false),
        };
        self.budget.release(if pushed.is_ok() { before } else { after });
        match pushed {
            Ok(due) => {
                let eqn = cq.eqn;
                cq.buffer = buffer;
                cq.log_size = log_size;
                cqc::log_cq_size.set(&mut cq.context, log_size);
                cqc::page_offset.set(&mut cq.context, cqc::page_offset.get32(context));
                cqc::log_page_size.set(&mut cq.context, cqc::log_page_size.get32(context));
                if due {
                    self.objects.queues.completion_event(io, &mut self.log, eqn, cqn);
                }
                self.warn_stale_cqes(cqn, stale);
                Ok(())
            }
            Err(error) => Err(Refusal::new(
                CmdStatus::BAD_RES_STATE,
                "modify_cq_in.cqn",
                format!("the old ring takes no resize CQE: {error:?}"),
            )),
        }
    }
}

/// Entries of a new ring that do not hold the invalid opcode.
fn stale_entries(
    io: &Io<'_>,
    buffer: &PageList,
    log_size: u32,
    cqe_bytes: u32,
    field: &str,
) -> Result<u32, Refusal> {
    let mut stale = 0;
    let count = (1u64 << log_size).min(OWNERS_CHECKED);
    let read = buffer.entry_ends(io.memory, count, cqe_bytes, |own| stale += u32::from(own >> 4 != 0xf));
    read.map_err(|_| Refusal::param(field, "not accessible to the device"))?;
    Ok(stale)
}

/// `modify_field_select` and `resize_field_select` share their place.
const MODIFY_SELECT: mlx5_prm::Field = mlx5_prm::Field::bits(0x0c, 31, 0);
