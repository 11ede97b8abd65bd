//! SQ and RQ commands: raw Ethernet queues.

use crate::caps::LOG_MAX_QP_SZ;
use crate::cmd::devx::{WQ_RECORD, WQ_RING};
use crate::cmd::refusal::{Outcome, Refusal};
use crate::cmd::ring::Ring;
use crate::device::Device;
use crate::object::nic::{Rq, Sq, Wq};
use crate::seams::Io;
use mlx5_prm::Tail;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{rqc, sqc, wq};
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::WqState;

/// `pas[]` begins at the same place in the inputs and outputs of both kinds.
const PAS: Tail = Tail { offset: 0x110, stride: 8 };
/// `wq.wq_type`: cyclic.
const CYCLIC: u32 = 1;
/// `rqc.mem_rq_type`: the queue has its own entries.
const INLINE: u32 = 0;
/// log2 of bytes of a basic block, the entry of a send queue.
const LOG_BLOCK: u32 = 6;
/// `modify_rq_in.modify_bitmask`: VLAN stripping, and the counter set.
const MODIFY_VSD: u64 = 1 << 1;
const MODIFY_COUNTERS: u64 = 1 << 3;

/// The state after MODIFY, if it follows the one before.
fn next_state(field: &str, now: WqState, given: u32, asked: u32) -> Result<WqState, Refusal> {
    let (given, asked) = (WqState(given as u8), WqState(asked as u8));
    let follows = matches!(
        (now, asked),
        (WqState::RST | WqState::RDY | WqState::ERR, WqState::RST)
            | (WqState::RST | WqState::RDY, WqState::RDY)
            | (WqState::RDY | WqState::ERR, WqState::ERR)
    );
    if given != now || !follows {
        let text = format!("from {given} to {asked}, the queue is in {now}");
        return Err(Refusal::new(CmdStatus::BAD_RES_STATE, field, text));
    }
    Ok(asked)
}

/// Puts a queue's counters into its `wq` at `offset` of an output, and its pages behind.
fn show_ring(output: &mut Vec<u8>, offset: usize, queue: &Wq) {
    if let Some(context) = output.get_mut(offset..) {
        wq::hw_counter.set(context, queue.next);
        wq::sw_counter.set(context, queue.posted);
    }
    let pages = queue.buffer.pages();
    output.resize(PAS.len_with(pages.len()), 0);
    for (i, page) in pages.iter().enumerate() {
        PAS.set_quad(output, i, *page);
    }
}

impl Device {
    /// The ring that `context`, a `wq`, describes. `pas` are in `input`.
    fn parse_wq(
        &self,
        io: &Io<'_>,
        context: &[u8],
        (input, name): (&[u8], &'static str),
    ) -> Result<Wq, Refusal> {
        if wq::wq_signature.is_set(context) {
            return Err(Refusal::param("wq.wq_signature", "the capability is off"));
        }
        let (log_size, log_stride) = (wq::log_wq_sz.get32(context), wq::log_wq_stride.get32(context));
        if log_size > LOG_MAX_QP_SZ {
            return Err(Refusal::param("wq.log_wq_sz", format!("{log_size}, at most {LOG_MAX_QP_SZ}")));
        }
        let ring = Ring {
            context: "wq",
            input: name,
            len: 1 << (log_size + log_stride),
            page_offset: wq::page_offset.get32(context),
            log_page_size: wq::log_wq_pg_sz.get32(context),
        };
        let dbr_addr = WQ_RECORD.record(self, context, wq::dbr_addr.get(context))?;
        if !dbr_addr.is_multiple_of(4) || io.memory.load32(dbr_addr).is_err() {
            let text = format!("{dbr_addr:#x}: not aligned or not accessible");
            return Err(Refusal::param("wq.dbr_addr", text));
        }
        // Linux's queue for frames to drop, which is never filled, has none.
        let pd = wq::pd.get32(context);
        if pd != 0 && !self.objects.pds.contains(pd) {
            return Err(Refusal::missing("wq.pd", pd));
        }
        let buffer = WQ_RING.ring(self, &ring, context, input, PAS)?;
        Ok(Wq { pd, buffer, log_size, log_stride, dbr_addr, posted: 0, next: 0 })
    }

    fn check_cq(&self, field: &str, cqn: u32) -> Outcome {
        if self.objects.queues.cqs.contains(cqn) { Ok(()) } else { Err(Refusal::missing(field, cqn)) }
    }

    pub(in crate::cmd) fn create_sq(&mut self, io: &Io<'_>, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_sq_in::ctx.of(input);
        for (field, name) in [
            (sqc::cd_master, "sqc.cd_master"),
            (sqc::allow_multi_pkt_send_wqe, "sqc.allow_multi_pkt_send_wqe"),
            (sqc::hairpin, "sqc.hairpin"),
            (sqc::packet_pacing_rate_limit_index, "sqc.packet_pacing_rate_limit_index"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        let state = WqState(sqc::state.get32(context) as u8);
        if state != WqState::RST {
            return Err(Refusal::param("sqc.state", format!("{state}, {} expected", WqState::RST)));
        }
        let queue = sqc::wq.of(context);
        let wq = self.parse_wq(io, queue, (input, "create_sq_in"))?;
        if wq::wq_type.get32(queue) != CYCLIC || wq.log_stride != LOG_BLOCK {
            let text = format!("type {}, stride 2^{}", wq::wq_type.get32(queue), wq.log_stride);
            return Err(Refusal::param("wq.wq_type", text));
        }
        let tisn = match sqc::tis_lst_sz.get32(context) {
            0 => None,
            1 => Some(sqc::tis_num_0.get32(context)),
            size => return Err(Refusal::param("sqc.tis_lst_sz", format!("{size}, at most 1"))),
        };
        if let Some(tisn) = tisn.filter(|tisn| !self.objects.nic.tises.contains(*tisn)) {
            return Err(Refusal::missing("sqc.tis_num_0", tisn));
        }
        let sq = Sq {
            sqn: 0,
            state,
            wq,
            cqn: sqc::cqn.get32(context),
            user_index: sqc::user_index.get32(context),
            uar_page: self.uar_place("wq.uar_page", wq::uar_page.get32(queue))?,
            tisn,
            reserved_lkey: sqc::rlky.is_set(context),
            flushes: sqc::flush_in_error_en.is_set(context),
            rung: false,
            scheduled: false,
            context: context.to_vec(),
        };
        self.check_cq("sqc.cqn", sq.cqn)?;
        let memory = sq.memory();
        self.hold(memory)?;
        let Some(number) = self.objects.nic.sqs.insert(|sqn| Sq { sqn, ..sq }) else {
            self.budget.release(memory);
            return Err(Refusal::full("send queues"));
        };
        create_sq_out::sqn.set(output, number);
        Ok(())
    }

    pub(in crate::cmd) fn modify_sq(&mut self, input: &[u8]) -> Outcome {
        let number = modify_sq_in::sqn.get32(input);
        let Some(sq) = self.objects.nic.sqs.get_mut(number) else {
            return Err(Refusal::missing("modify_sq_in.sqn", number));
        };
        let asked = sqc::state.get32(modify_sq_in::ctx.of(input));
        let given = modify_sq_in::sq_state.get32(input);
        if modify_sq_in::modify_bitmask.get(input) != 0 {
            return Err(Refusal::param("modify_sq_in.modify_bitmask", "the capability is off"));
        }
        sq.state = next_state("modify_sq_in.sq_state", sq.state, given, asked)?;
        if sq.state == WqState::RST {
            sq.wq.reset();
        }
        // WQEs posted before are sent from now on, or flushed.
        sq.rung = sq.state != WqState::RST;
        self.nic.schedule(sq);
        Ok(())
    }

    pub(in crate::cmd) fn destroy_sq(&mut self, input: &[u8]) -> Outcome {
        let number = destroy_sq_in::sqn.get32(input);
        let Some(sq) = self.objects.nic.sqs.remove(number) else {
            return Err(Refusal::missing("destroy_sq_in.sqn", number));
        };
        self.nic.forget(&sq);
        self.budget.release(sq.memory());
        self.end_released_uar(sq.uar_page);
        Ok(())
    }

    pub(in crate::cmd) fn query_sq(&mut self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let number = query_sq_in::sqn.get32(input);
        let Some(sq) = self.objects.nic.sqs.get(number) else {
            return Err(Refusal::missing("query_sq_in.sqn", number));
        };
        let context = query_sq_out::sq_context.of_mut(output);
        context.copy_from_slice(&sq.context);
        sqc::state.set(context, sq.state.0);
        show_ring(output, query_sq_out::sq_context.offset + sqc::wq.offset, &sq.wq);
        Ok(())
    }

    pub(in crate::cmd) fn create_rq(&mut self, io: &Io<'_>, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_rq_in::ctx.of(input);
        for (field, name) in [
            (rqc::delay_drop_en, "rqc.delay_drop_en"),
            (rqc::scatter_fcs, "rqc.scatter_fcs"),
            (rqc::hairpin, "rqc.hairpin"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        let state = WqState(rqc::state.get32(context) as u8);
        if state != WqState::RST {
            return Err(Refusal::param("rqc.state", format!("{state}, {} expected", WqState::RST)));
        }
        let memory_type = rqc::mem_rq_type.get32(context);
        if memory_type != INLINE {
            return Err(Refusal::param("rqc.mem_rq_type", format!("{memory_type} is not supported")));
        }
        let queue = rqc::wq.of(context);
        let kind = wq::wq_type.get32(queue);
        if kind > CYCLIC {
            return Err(Refusal::param("wq.wq_type", format!("{kind} is not supported")));
        }
        let wq = self.parse_wq(io, queue, (input, "create_rq_in"))?;
        let longest = self.caps.current(mlx5_prm::caps::cmd_hca_cap::max_wqe_sz_rq);
        let shortest = if kind == CYCLIC { 16 } else { 32 };
        if !(shortest..=longest).contains(&(1u32 << wq.log_stride)) {
            let text = format!("2^{} bytes, {shortest} to {longest}", wq.log_stride);
            return Err(Refusal::param("wq.log_wq_stride", text));
        }
        let rq = Rq {
            rqn: 0,
            state,
            wq,
            linked: kind != CYCLIC,
            cqn: rqc::cqn.get32(context),
            user_index: rqc::user_index.get32(context),
            counter_set_id: rqc::counter_set_id.get32(context) as u8,
            reserved_lkey: rqc::rlky.is_set(context),
            keeps_vlan: rqc::vsd.is_set(context),
            flushes: rqc::flush_in_error_en.is_set(context),
            head: 0,
            context: context.to_vec(),
        };
        self.check_cq("rqc.cqn", rq.cqn)?;
        let memory = rq.memory();
        self.hold(memory)?;
        let Some(number) = self.objects.nic.rqs.insert(|rqn| Rq { rqn, ..rq }) else {
            self.budget.release(memory);
            return Err(Refusal::full("receive queues"));
        };
        create_rq_out::rqn.set(output, number);
        Ok(())
    }

    pub(in crate::cmd) fn modify_rq(&mut self, io: &mut Io<'_>, input: &[u8]) -> Outcome {
        let number = modify_rq_in::rqn.get32(input);
        let Some(rq) = self.objects.nic.rqs.get_mut(number) else {
            return Err(Refusal::missing("modify_rq_in.rqn", number));
        };
        let context = modify_rq_in::ctx.of(input);
        let select = modify_rq_in::modify_bitmask.get(input);
        if select & !(MODIFY_VSD | MODIFY_COUNTERS) != 0 {
            return Err(Refusal::param("modify_rq_in.modify_bitmask", format!("{select:#x}")));
        }
        let given = modify_rq_in::rq_state.get32(input);
        rq.state = next_state("modify_rq_in.rq_state", rq.state, given, rqc::state.get32(context))?;
        if select & MODIFY_VSD != 0 {
            rq.keeps_vlan = rqc::vsd.is_set(context);
        }
        if select & MODIFY_COUNTERS != 0 {
            rq.counter_set_id = rqc::counter_set_id.get32(context) as u8;
        }
        if rq.state == WqState::RST {
            rq.wq.reset();
            rq.head = 0;
        }
        if rq.state == WqState::ERR {
            self.flush_rq(io, number);
        }
        Ok(())
    }

    pub(in crate::cmd) fn destroy_rq(&mut self, input: &[u8]) -> Outcome {
        let (field, number) = ("destroy_rq_in.rqn", destroy_rq_in::rqn.get32(input));
        self.charge_scan();
        self.meter.charge(self.objects.nic.listed());
        if let Some(user) = self.objects.nic.user_of_rq(number) {
            return Err(Refusal::busy(field, user));
        }
        let rq = self.objects.nic.rqs.remove(number).ok_or_else(|| Refusal::missing(field, number))?;
        self.budget.release(rq.memory());
        Ok(())
    }

    pub(in crate::cmd) fn query_rq(&mut self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let number = query_rq_in::rqn.get32(input);
        let Some(rq) = self.objects.nic.rqs.get(number) else {
            return Err(Refusal::missing("query_rq_in.rqn", number));
        };
        let context = query_rq_out::rq_context.of_mut(output);
        context.copy_from_slice(&rq.context);
        rqc::state.set(context, rq.state.0);
        rqc::vsd.set(context, rq.keeps_vlan);
        rqc::counter_set_id.set(context, rq.counter_set_id);
        show_ring(output, query_rq_out::rq_context.offset + rqc::wq.offset, &rq.wq);
        Ok(())
    }
}
