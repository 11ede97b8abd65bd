//! Event queue commands (PRM, command reference).

use super::dispatch::bad_op_mod;
use super::{Outcome, Refusal};
use crate::caps::LOG_MAX_EQ_SZ;
use crate::hca::Hca;
use crate::log::Subject;
use crate::object::eq::Eq;
use crate::object::pages::PageList;
use crate::profile::Strictness;
use crate::seams::Io;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::eqc;
use mlx5_prm::event::EventType;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::EqStatus;
use mlx5_prm::{Field, Tail};

/// Entries of a new ring whose owner bits are looked at: all of a usual one, and a bounded number of a huge one.
pub(super) const OWNERS_CHECKED: u64 = 1 << 16;

/// A queue's geometry, as its context and the command's page list say.
pub(super) struct Ring<'a> {
    /// Name of the context, for refusals.
    pub(super) context: &'a str,
    /// Name of the input, for refusals.
    pub(super) input: &'a str,
    /// Bytes of the whole ring.
    pub(super) len: u64,
    /// In units of a 64th of a page: 64 bytes where pages are 4 KiB.
    pub(super) page_offset: u32,
    /// log2 of a page in units of 4 KiB.
    pub(super) log_page_size: u32,
}

impl Ring<'_> {
    /// Makes the page list and checks alignment, coverage and excess of `pas`.
    pub(super) fn pages(&self, input: &[u8], pas: Tail, strictness: Strictness) -> Result<PageList, Refusal> {
        let log_page = self.log_page_size + 12;
        let field = |name: &str| format!("{}.{name}", self.context);
        if log_page > 31 {
            return Err(Refusal::param(field("log_page_size"), format!("{}", self.log_page_size)));
        }
        let offset = u64::from(self.page_offset) << (log_page - 6);
        if offset >= 1 << log_page {
            return Err(Refusal::param(field("page_offset"), "beyond the first page"));
        }
        let count = pas.count(input);
        let needed = PageList::pages_needed(self.len, offset, log_page);
        if (count as u64) < needed {
            let text = format!("{count} pages, {needed} needed");
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, format!("{}.pas", self.input), text));
        }
        if count as u64 > needed && strictness == Strictness::Strict {
            let text = format!("{count} pages, {needed} expected");
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, format!("{}.pas", self.input), text));
        }
        let mut pages = Vec::with_capacity(count);
        for i in 0..count {
            let page = pas.quad(input, i);
            if !page.is_multiple_of(4096) || (page == 0 && strictness == Strictness::Strict) {
                let text = format!("{page:#x} is not the address of a page");
                return Err(Refusal::param(format!("{}.pas[{i}]", self.input), text));
            }
            pages.push(page);
        }
        PageList::new(pages, log_page, offset, self.len)
            .ok_or_else(|| Refusal::param(format!("{}.pas", self.input), "does not cover the ring"))
    }
}

pub(super) fn create(hca: &mut Hca, io: &mut Io<'_>, input: &[u8], output: &mut [u8]) -> Outcome {
    let context = create_eq_in::eq_context_entry.of(input);
    let log_size = eqc::log_eq_size.get32(context);
    if log_size > LOG_MAX_EQ_SZ {
        return Err(Refusal::param("eqc.log_eq_size", format!("{log_size}, at most {LOG_MAX_EQ_SZ}")));
    }
    let uar_page = eqc::uar_page.get32(context);
    if !hca.uars.contains(uar_page) {
        return Err(Refusal::missing("eqc.uar_page", uar_page));
    }
    let intr = eqc::intr.get32(context);
    if intr >= u32::from(hca.profile.vectors) {
        let text = format!("{intr}, {} vectors", hca.profile.vectors);
        return Err(Refusal::param("eqc.intr", text));
    }
    let ring = Ring {
        context: "eqc",
        input: "create_eq_in",
        len: 64 << log_size,
        page_offset: eqc::page_offset.get32(context),
        log_page_size: eqc::log_page_size.get32(context),
    };
    let buffer = ring.pages(input, create_eq_in::pas, hca.profile.strictness)?;
    let mut event_bitmask = [0; 4];
    for (word, offset) in event_bitmask.iter_mut().zip((create_eq_in::event_bitmask.offset..).step_by(8)) {
        *word = Field::quad(offset as u32).get(input);
    }
    for (eqn, other) in hca.queues.eqs.iter() {
        let both = event_bitmask.iter().zip(other.event_bitmask).find(|(a, b)| *a & b != 0);
        if let Some((a, b)) = both {
            let kind = EventType((a & b).trailing_zeros() as u8);
            let text = format!("{kind} is mapped to EQ {eqn:#x} already");
            return Err(Refusal::param("create_eq_in.event_bitmask", text));
        }
    }
    hca.meter.charge((1u64 << log_size).min(OWNERS_CHECKED));
    let mut stale = 0u32;
    for i in 0..(1u64 << log_size).min(OWNERS_CHECKED) {
        let mut owner = [0];
        if buffer.read(io.memory, i * 64 + 0x3f, &mut owner).is_err() {
            return Err(Refusal::param("create_eq_in.pas", "not accessible to the device"));
        }
        stale += u32::from(owner[0] & 1 == 0);
    }
    let eq = Eq {
        eqn: 0,
        buffer,
        log_size,
        uar_page,
        intr: intr as u16,
        event_bitmask,
        overrun_ignore: eqc::oi.is_set(context),
        collapse: eqc::ec.is_set(context),
        producer: 0,
        consumer: 0,
        state: None,
        status: EqStatus::OK,
        context: context.to_vec(),
    };
    let memory = eq.memory();
    hca.hold(memory)?;
    let Some(eqn) = hca.queues.eqs.insert(|eqn| Eq { eqn, ..eq }) else {
        hca.budget.release(memory);
        return Err(Refusal::full("EQs"));
    };
    if stale != 0 {
        let text = format!("{stale} entries do not have their owner bit set");
        hca.log.warn(Subject::EventQueue { eqn }, "eqe.owner", text);
    }
    create_eq_out::eq_number.set(output, eqn);
    Ok(())
}

pub(super) fn destroy(hca: &mut Hca, input: &[u8]) -> Outcome {
    let field = "destroy_eq_in.eq_number";
    let eqn = destroy_eq_in::eq_number.get32(input);
    if !hca.queues.eqs.contains(eqn) {
        return Err(Refusal::missing(field, eqn));
    }
    hca.charge_scan();
    if let Some((cqn, _)) = hca.queues.cqs.iter().find(|(_, cq)| cq.eqn == eqn) {
        return Err(Refusal::busy(field, format!("used by CQ {cqn:#x}")));
    }
    if let Some(eq) = hca.queues.eqs.remove(eqn) {
        hca.budget.release(eq.memory());
    }
    Ok(())
}

pub(super) fn query(hca: &Hca, input: &[u8], output: &mut Vec<u8>) -> Outcome {
    let eqn = query_eq_in::eq_number.get32(input);
    let Some(eq) = hca.queues.eqs.get(eqn) else {
        return Err(Refusal::missing("query_eq_in.eq_number", eqn));
    };
    let pages = eq.buffer.pages();
    output.resize(query_eq_out::pas.len_with(pages.len()), 0);
    let context = query_eq_out::eq_context_entry.of_mut(output);
    context.copy_from_slice(&eq.context);
    eqc::status.set(context, eq.status.0);
    eqc::st.set(context, eq.state.map_or(0, |state| state.0));
    eqc::consumer_counter.set(context, eq.consumer);
    eqc::producer_counter.set(context, eq.producer);
    query_eq_out::event_bitmask.set(output, eq.event_bitmask[0]);
    for (i, page) in pages.iter().enumerate() {
        query_eq_out::pas.set_quad(output, i, *page);
    }
    Ok(())
}

pub(super) fn config_int_moderation(hca: &mut Hca, op_mod: u16, input: &[u8], output: &mut [u8]) -> Outcome {
    let vector = config_int_moderation_in::int_vector.get32(input);
    let Some(delay) = hca.int_moderation.get_mut(vector as usize) else {
        let text = format!("{vector}, {} vectors", hca.profile.vectors);
        return Err(Refusal::param("config_int_moderation_in.int_vector", text));
    };
    match op_mod {
        0 => *delay = config_int_moderation_in::min_delay.get32(input) as u16,
        1 => {}
        _ => return Err(bad_op_mod(op_mod)),
    }
    config_int_moderation_out::min_delay.set(output, *delay);
    config_int_moderation_out::int_vector.set(output, vector);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_in_the_first_page_grows_with_the_page() {
        let pas = Tail { offset: 0, stride: 8 };
        let input = 0x20_0000u64.to_be_bytes();
        for (log_page_size, first) in [(0, 3 * 64), (1, 3 * 128), (4, 3 * 1024)] {
            let ring =
                Ring { context: "qpc", input: "create_qp_in", len: 1024, page_offset: 3, log_page_size };
            let pages = ring.pages(&input, pas, Strictness::Strict);
            let address = pages.map(|pages| pages.address(0).map(|(address, _)| address));
            assert_eq!(address, Ok(Some(0x20_0000 + first)), "pages of 2^{} bytes", log_page_size + 12);
        }
    }
}
