//! What some cards answer otherwise, as [`Habits`] order it: commands and registers refused, functions by other numbers, ports seen otherwise.

use super::refusal::Refusal;
use crate::habits::Habits;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::hca_vport_context as vport;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::registers::pmtu_reg;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::RegisterId;
use std::borrow::Cow;

/// Where a command names the function that it is about: the number, and that it is the embedded processor's.
fn function_fields(opcode: Opcode) -> Option<(Field, Field)> {
    Some(match opcode {
        Opcode::ENABLE_HCA => (enable_hca_in::function_id, enable_hca_in::embedded_cpu_function),
        Opcode::DISABLE_HCA => (disable_hca_in::function_id, disable_hca_in::embedded_cpu_function),
        Opcode::QUERY_PAGES => (query_pages_in::function_id, query_pages_in::embedded_cpu_function),
        Opcode::MANAGE_PAGES => (manage_pages_in::function_id, manage_pages_in::embedded_cpu_function),
        _ => return None,
    })
}

/// Commands that came with the first step of the software interface (PRM, ISSI).
const fn needs_issi(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::QUERY_HCA_VPORT_CONTEXT
            | Opcode::MODIFY_HCA_VPORT_CONTEXT
            | Opcode::QUERY_HCA_VPORT_GID
            | Opcode::QUERY_HCA_VPORT_PKEY
            | Opcode::CREATE_RMP
            | Opcode::CREATE_XRC_SRQ
    )
}

fn register_of(input: &[u8]) -> RegisterId {
    RegisterId(access_register_in::register_id.get32(input) as u16)
}

impl Habits {
    /// Refuses what this card refuses, and gives the input as a plain card would have it.
    pub(super) fn admit<'a>(
        &self,
        opcode: Opcode,
        input: Cow<'a, [u8]>,
        issi: u16,
    ) -> Result<Cow<'a, [u8]>, Refusal> {
        if self.adversary.issi && issi == 0 && needs_issi(opcode) {
            return Err(Refusal::new(CmdStatus::BAD_OP, "opcode", "not supported before SET_ISSI 1"));
        }
        if self.refused_commands.contains(&opcode) {
            return Err(Refusal::new(CmdStatus::BAD_OP, "opcode", "not supported"));
        }
        let Some((number, embedded)) = function_fields(opcode) else { return Ok(input) };
        let of_other = opcode == Opcode::MANAGE_PAGES && self.has_function(number.get32(&input));
        if of_other || self.pages_function == 0 && !self.embedded_cpu {
            return Ok(input);
        }
        let expected = if opcode == Opcode::MANAGE_PAGES { u32::from(self.pages_function) } else { 0 };
        let (asked, by) = (number.get32(&input), embedded.is_set(&input));
        if asked != expected || by != self.embedded_cpu {
            let text =
                format!("function {asked}, embedded {by}: this one is {expected}, {}", self.embedded_cpu);
            return Err(Refusal::param("function_id", text));
        }
        let mut plain = input.into_owned();
        number.set(&mut plain, 0u32);
        embedded.set(&mut plain, false);
        Ok(Cow::Owned(plain))
    }

    /// Changes an answer to what this card would say.
    pub(super) fn amend(&self, opcode: Opcode, input: &[u8], output: &mut [u8]) {
        match opcode {
            Opcode::QUERY_PAGES => {
                if query_pages_out::num_pages.get32(output) == 0 {
                    query_pages_out::num_pages.set(output, self.spare_pages.wrapping_neg());
                }
                query_pages_out::function_id.set(output, self.pages_function);
                query_pages_out::embedded_cpu_function.set(output, self.embedded_cpu);
            }
            Opcode::QUERY_HCA_VPORT_CONTEXT => {
                let context = query_hca_vport_context_out::hca_vport_context.of_mut(output);
                if self.no_lid || self.unset_lid_is_ffff && vport::lid.get(context) == 0 {
                    vport::lid.set(context, 0xffffu32);
                }
                if let Some(state) = self.port_state {
                    vport::port_state.set(context, state);
                }
                if let Some(state) = self.vport_state {
                    vport::vport_state.set(context, state);
                }
                if self.grh_required {
                    vport::grh_required.set(context, true);
                }
            }
            Opcode::ACCESS_REG if register_of(input) == RegisterId::PMTU => {
                let data = output.get_mut(access_register_out::register_data.offset..);
                if let (Some(mtu), Some(data)) = (self.oper_mtu, data) {
                    pmtu_reg::oper_mtu.set(data, mtu);
                }
            }
            _ => {}
        }
    }

    /// Whose a page request is, as its event says.
    pub(super) fn page_owner(&self) -> [u8; 4] {
        (u32::from(self.embedded_cpu) << 31 | u32::from(self.pages_function)).to_be_bytes()
    }
}
