//! Event queue commands (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use super::ring::{OWNERS_CHECKED, Ring};
use crate::device::Device;
use crate::log::Subject;
use crate::object::eq::Eq;
use crate::seams::Io;
use mlx5_prm::Field;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::eqc;
use mlx5_prm::event::EventType;
use mlx5_prm::value::EqStatus;

impl Device {
    pub(super) fn create_eq(&mut self, io: &mut Io<'_>, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_eq_in::eq_context_entry.of(input);
        let log_size = eqc::log_eq_size.get32(context);
        let limit = self.caps.max(cmd_hca_cap::log_max_eq_sz);
        if log_size > limit {
            return Err(Refusal::param("eqc.log_eq_size", format!("{log_size}, at most {limit}")));
        }
        let uar_page = self.uar_place("eqc.uar_page", eqc::uar_page.get32(context))?;
        let intr = eqc::intr.get32(context);
        if intr >= u32::from(self.profile.vectors) {
            let text = format!("{intr}, {} vectors", self.profile.vectors);
            return Err(Refusal::param("eqc.intr", text));
        }
        let ring = Ring {
            context: "eqc",
            input: "create_eq_in",
            len: 64 << log_size,
            page_offset: eqc::page_offset.get32(context),
            log_page_size: eqc::log_page_size.get32(context),
        };
        let buffer = ring.pages(input, create_eq_in::pas, self.profile.strictness)?;
        let mut event_bitmask = [0; 4];
        for (word, offset) in event_bitmask.iter_mut().zip((create_eq_in::event_bitmask.offset..).step_by(8))
        {
            *word = Field::quad(offset as u32).get(input);
        }
        for (eqn, other) in self.objects.queues.eqs.iter() {
            let both = event_bitmask.iter().zip(other.event_bitmask).find(|(a, b)| *a & b != 0);
            if let Some((a, b)) = both {
                let kind = EventType((a & b).trailing_zeros() as u8);
                let text = format!("{kind} is mapped to EQ {eqn:#x} already");
                return Err(Refusal::param("create_eq_in.event_bitmask", text));
            }
        }
        self.meter.charge((1u64 << log_size).min(OWNERS_CHECKED));
        let mut stale = 0u32;
        let count = (1u64 << log_size).min(OWNERS_CHECKED);
        buffer
            .entry_ends(io.memory, count, 64, |owner| stale += u32::from(owner & 1 == 0))
            .map_err(|_| Refusal::param("create_eq_in.pas", "not accessible to the device"))?;
        let eq = Eq {
            buffer,
            log_size,
            uar_page,
            intr: intr as u16,
            event_bitmask,
            overrun_ignore: eqc::oi.is_set(context),
            producer: 0,
            consumer: 0,
            state: None,
            status: EqStatus::OK,
            context: context.to_vec(),
        };
        let memory = eq.memory();
        self.hold(memory)?;
        let Some(eqn) = self.objects.queues.eqs.insert(|_| eq) else {
            self.budget.release(memory);
            return Err(Refusal::full("EQs"));
        };
        if stale != 0 {
            let text = format!("{stale} entries do not have their owner bit set");
            self.log.warn(Subject::EventQueue { eqn }, "eqe.owner", text);
        }
        create_eq_out::eq_number.set(output, eqn);
        Ok(())
    }

    pub(super) fn destroy_eq(&mut self, input: &[u8]) -> Outcome {
        let field = "destroy_eq_in.eq_number";
        let eqn = destroy_eq_in::eq_number.get32(input);
        if !self.objects.queues.eqs.contains(eqn) {
            return Err(Refusal::missing(field, eqn));
        }
        self.charge_scan();
        if let Some((cqn, _)) = self.objects.queues.cqs.iter().find(|(_, cq)| cq.eqn == eqn) {
            return Err(Refusal::busy(field, format!("used by CQ {cqn:#x}")));
        }
        if let Some(eq) = self.objects.queues.eqs.remove(eqn) {
            self.budget.release(eq.memory());
            self.end_released_uar(eq.uar_page);
        }
        Ok(())
    }

    pub(super) fn query_eq(&self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let eqn = query_eq_in::eq_number.get32(input);
        let Some(eq) = self.objects.queues.eqs.get(eqn) else {
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

    pub(super) fn config_int_moderation(&mut self, op_mod: u16, input: &[u8], output: &mut [u8]) -> Outcome {
        let vector = config_int_moderation_in::int_vector.get32(input);
        let Some(delay) = self.int_moderation.get_mut(vector as usize) else {
            let text = format!("{vector}, {} vectors", self.profile.vectors);
            return Err(Refusal::param("config_int_moderation_in.int_vector", text));
        };
        match op_mod {
            0 => *delay = config_int_moderation_in::min_delay.get32(input) as u16,
            1 => {}
            _ => return Err(Refusal::op_mod(op_mod)),
        }
        config_int_moderation_out::min_delay.set(output, *delay);
        config_int_moderation_out::int_vector.set(output, vector);
        Ok(())
    }
}
