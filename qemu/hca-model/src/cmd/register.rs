//! Access registers: which there are, how ACCESS_REG and tools reach them (PRM, software context formats).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::habits::Habits;
use mlx5_prm::commands::{access_register_in, access_register_out};
use mlx5_prm::later;
use mlx5_prm::management::*;
use mlx5_prm::registers::*;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::RegisterId;

/// Registers that every card has, with their sizes.
const REGISTERS: &[(RegisterId, usize)] = &[
    (RegisterId::PMLP, pmlp_reg::SIZE),
    (RegisterId::PMTU, pmtu_reg::SIZE),
    (RegisterId::PTYS, ptys_reg::SIZE),
    (RegisterId::PAOS, paos_reg::SIZE),
    (RegisterId::PPCNT, ppcnt_reg::SIZE),
    (RegisterId::PVLC, pvlc_reg::SIZE),
    (RegisterId::PPLM, pplm_reg::SIZE),
    (RegisterId::SLTP, sltp_reg::SIZE),
    (RegisterId::PDDR, pddr_reg::SIZE),
    (RegisterId::PCAM, capability_reg::SIZE),
    (RegisterId::NODE_DESC, 64),
    (RegisterId::HOST_ENDIANNESS, 16),
    (RegisterId::MTCAP, mtcap_reg::SIZE),
    (RegisterId::MTMP, mtmp_reg::SIZE),
    (RegisterId::MGIR, mgir_reg::SIZE),
    (RegisterId::MPEIN, mpein_reg::SIZE),
    (RegisterId::MCQS, mcqs_reg::SIZE),
    (RegisterId::MCQI, mcqi_reg::SIZE),
    (RegisterId::MCC, mcc_reg::SIZE),
    (RegisterId::MCDA, mcda_reg::SIZE),
    (RegisterId::MQIS, mqis_reg::SIZE),
    (RegisterId::MFRL, mfrl_reg::SIZE),
    // Without the end of what both kinds of them have in common.
    (RegisterId::MCAM, 0x48),
];

/// Bytes at the start of a register of `size` bytes that say what is asked for.
fn index_of(id: RegisterId, size: usize) -> usize {
    match id {
        RegisterId::MCQI => mcqi_reg::data.offset,
        RegisterId::MCDA => mcda_reg::data.offset,
        _ => size,
    }
}

/// There is no such register.
pub(super) fn unknown(id: RegisterId) -> Refusal {
    Refusal::param("access_register_in.register_id", format!("{id} is not supported"))
}

/// All registers of a card, with their sizes.
pub(super) fn all(habits: &Habits) -> impl Iterator<Item = (RegisterId, usize)> {
    let timeouts = (!habits.default_timeouts.is_empty()).then_some((RegisterId::DTOR, later::DTOR_LEN));
    REGISTERS.iter().copied().chain(timeouts).filter(|(id, _)| !habits.refused_registers.contains(id))
}

impl Device {
    pub(super) fn access_register(
        &mut self,
        op_mod: u16,
        input: &[u8],
        output: &mut Vec<u8>,
        output_len: usize,
    ) -> Outcome {
        let id = RegisterId(access_register_in::register_id.get32(input) as u16);
        let write = match op_mod {
            0 => true,
            1 => false,
            _ => return Err(Refusal::op_mod(op_mod)),
        };
        let size = self.register_size(id)?;
        let data_at = access_register_in::register_data.offset;
        // Who reads leaves out what only the answer has, and takes as much of that as he asked for.
        let least = if write { size } else { index_of(id, size) };
        let data = input.get(data_at..).unwrap_or_default();
        if data.len() < least {
            let text = format!("{} bytes, {id} has {size}", data.len());
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, "access_register_in.register_data", text));
        }
        if output_len < data_at + least {
            let text = format!("{output_len} bytes, {} needed", data_at + least);
            return Err(Refusal::new(CmdStatus::BAD_OUTP_LEN, "access_register_out.register_data", text));
        }
        let mut register = data.get(..size).unwrap_or(data).to_vec();
        register.resize(size, 0);
        self.access(id, write, &mut register)?;
        output.truncate(access_register_out::register_data.offset);
        output.extend_from_slice(&register);
        Ok(())
    }

    /// Bytes of the register `id`.
    ///
    /// # Errors
    /// There is no such register.
    pub(crate) fn register_size(&self, id: RegisterId) -> Result<usize, Refusal> {
        let found = all(&self.profile.habits).find(|(known, _)| *known == id);
        found.map(|(_, size)| size).ok_or_else(|| unknown(id))
    }

    /// Reads or writes the register `id`, whose content is at the beginning of `data`.
    ///
    /// # Errors
    /// There is no such register, `data` is too short for it, or it does not take the content.
    pub(crate) fn access(&mut self, id: RegisterId, write: bool, data: &mut [u8]) -> Outcome {
        let size = self.register_size(id)?;
        let field = "access_register_in.register_id";
        let Some(register) = data.get_mut(..size) else {
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, field, format!("{id} has {size} bytes")));
        };
        if write && self.profile.habits.read_only_registers.contains(&id) {
            return Err(Refusal::param(field, format!("{id} is not this function's")));
        }
        match id {
            RegisterId::HOST_ENDIANNESS => host_endianness(register, write),
            RegisterId::NODE_DESC => {
                self.port.node_description(register, write);
                Ok(())
            }
            RegisterId::PAOS
            | RegisterId::PMTU
            | RegisterId::PTYS
            | RegisterId::PVLC
            | RegisterId::PMLP
            | RegisterId::PDDR
            | RegisterId::PPLM
            | RegisterId::SLTP
            | RegisterId::PPCNT => self.port.access(id, write, register),
            _ => self.access_card(id, write, register),
        }
    }
}

fn host_endianness(register: &[u8], write: bool) -> Outcome {
    // 0x00 little-endian, 0x80 big-endian; only the former is modelled.
    match register.first() {
        Some(0) => Ok(()),
        Some(other) if write => Err(Refusal::param(
            "host_endianness.he",
            format!("{other:#x}: a big-endian host is not supported"),
        )),
        _ => Ok(()),
    }
}
