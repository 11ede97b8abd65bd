//! Access registers: which there are, how ACCESS_REG and tools reach them (PRM, software context formats).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::port::Port;
use crate::profile::Profile;
use mlx5_prm::commands::{access_register_in, access_register_out};
use mlx5_prm::later;
use mlx5_prm::management::*;
use mlx5_prm::registers::*;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::RegisterId;

/// What reads or writes a register.
#[derive(Clone, Copy)]
enum Handler {
    /// It belongs to the port, whose number all of these have in the same place.
    Port(fn(&mut Port, &mut [u8], bool) -> Outcome),
    /// It belongs to the card.
    Card(fn(&mut Device, &mut [u8], bool) -> Outcome),
}

/// What is known of a register.
#[derive(Clone, Copy)]
pub(super) struct Register {
    pub(super) id: RegisterId,
    /// Bytes.
    size: usize,
    /// Bytes at its start that say what is asked for.
    index: usize,
    /// It only tells.
    read_only: bool,
    handler: Handler,
}

impl Register {
    const fn of_port(
        id: RegisterId,
        size: usize,
        handler: fn(&mut Port, &mut [u8], bool) -> Outcome,
    ) -> Self {
        Self { id, size, index: size, read_only: false, handler: Handler::Port(handler) }
    }

    const fn of_card(
        id: RegisterId,
        size: usize,
        handler: fn(&mut Device, &mut [u8], bool) -> Outcome,
    ) -> Self {
        Self { id, size, index: size, read_only: false, handler: Handler::Card(handler) }
    }

    const fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// A register of which who reads it may send the first `index` bytes only.
    const fn asked_by(self, index: usize) -> Self {
        Self { index, ..self }
    }
}

/// All registers with their handlers. DTOR exists where the card's habits fill it, PFCC on Ethernet.
const REGISTERS: &[Register] = &[
    Register::of_port(RegisterId::PMLP, pmlp_reg::SIZE, |p, r, _| p.pmlp(r)).read_only(),
    Register::of_port(RegisterId::PMTU, pmtu_reg::SIZE, |p, r, write| p.pmtu(r, write)),
    Register::of_port(RegisterId::PTYS, ptys_reg::SIZE, |p, r, write| p.ptys(r, write)),
    Register::of_port(RegisterId::PAOS, paos_reg::SIZE, |p, r, write| p.paos(r, write)),
    Register::of_port(RegisterId::PPCNT, ppcnt_reg::SIZE, |p, r, write| p.ppcnt(r, write)),
    Register::of_port(RegisterId::PFCC, pfcc_reg::SIZE, |p, r, write| p.pfcc(r, write)),
    Register::of_port(RegisterId::PVLC, pvlc_reg::SIZE, |p, r, write| p.pvlc(r, write)),
    Register::of_port(RegisterId::PPLM, pplm_reg::SIZE, |p, r, _| p.pplm(r)).read_only(),
    Register::of_port(RegisterId::SLTP, sltp_reg::SIZE, |p, r, _| p.sltp(r)).read_only(),
    Register::of_port(RegisterId::PDDR, pddr_reg::SIZE, |p, r, _| p.pddr(r)).read_only(),
    Register::of_card(RegisterId::PCAM, capability_reg::SIZE, |d, r, _| d.pcam(r)).read_only(),
    Register::of_card(RegisterId::NODE_DESC, 64, |d, r, write| d.port.node_description(r, write)),
    Register::of_card(RegisterId::HOST_ENDIANNESS, 16, |_, r, write| host_endianness(r, write)),
    Register::of_card(RegisterId::MTCAP, mtcap_reg::SIZE, |d, r, _| d.mtcap(r)).read_only(),
    // Drivers switch the measuring of the highest temperature on, which does not end here.
    Register::of_card(RegisterId::MTMP, mtmp_reg::SIZE, |d, r, _| d.mtmp(r)),
    Register::of_card(RegisterId::MGIR, mgir_reg::SIZE, |d, r, _| d.mgir(r)).read_only(),
    Register::of_card(RegisterId::MPEIN, mpein_reg::SIZE, |d, r, _| d.mpein(r)).read_only(),
    Register::of_card(RegisterId::MCQS, mcqs_reg::SIZE, |d, r, _| d.mcqs(r)).read_only(),
    Register::of_card(RegisterId::MCQI, mcqi_reg::SIZE, |d, r, _| d.mcqi(r))
        .read_only()
        .asked_by(mcqi_reg::data.offset),
    Register::of_card(RegisterId::MCC, mcc_reg::SIZE, |d, r, _| d.mcc(r)).read_only(),
    Register::of_card(RegisterId::MCDA, mcda_reg::SIZE, |d, r, _| d.mcda(r))
        .read_only()
        .asked_by(mcda_reg::data.offset),
    Register::of_card(RegisterId::MQIS, mqis_reg::SIZE, |d, r, _| d.mqis(r)).read_only(),
    Register::of_card(RegisterId::MFRL, mfrl_reg::SIZE, |d, r, _| d.mfrl(r)).read_only(),
    // Without the end of what both kinds of them have in common.
    Register::of_card(RegisterId::MCAM, 0x48, |d, r, _| d.mcam(r)).read_only(),
    Register::of_card(RegisterId::DTOR, later::DTOR_LEN, |d, r, _| d.dtor(r)).read_only(),
];

/// All registers of a card.
pub(super) fn all(profile: &Profile) -> impl Iterator<Item = &'static Register> {
    REGISTERS.iter().filter(|register| match register.id {
        id if profile.habits.refused_registers.contains(&id) => false,
        RegisterId::DTOR => !profile.habits.default_timeouts.is_empty(),
        RegisterId::PFCC => profile.card.is_ethernet(),
        _ => true,
    })
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
        let known = self.register(id)?;
        let size = known.size;
        let data_at = access_register_in::register_data.offset;
        // Who reads leaves out what only the answer has, and takes as much of that as he asked for.
        let least = if write { size } else { known.index };
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

    fn register(&self, id: RegisterId) -> Result<&'static Register, Refusal> {
        let found = all(&self.profile).find(|known| known.id == id);
        found
            .ok_or_else(|| Refusal::param("access_register_in.register_id", format!("{id} is not supported")))
    }

    /// Bytes of the register `id`.
    ///
    /// # Errors
    /// There is no such register.
    pub(crate) fn register_size(&self, id: RegisterId) -> Result<usize, Refusal> {
        self.register(id).map(|register| register.size)
    }

    /// Reads or writes the register `id`, whose content is at the beginning of `data`.
    ///
    /// # Errors
    /// There is no such register, `data` is too short for it, or it does not take the content.
    pub(crate) fn access(&mut self, id: RegisterId, write: bool, data: &mut [u8]) -> Outcome {
        let &Register { size, read_only, handler, .. } = self.register(id)?;
        let field = "access_register_in.register_id";
        let Some(register) = data.get_mut(..size) else {
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, field, format!("{id} has {size} bytes")));
        };
        if write && self.profile.habits.read_only_registers.contains(&id) {
            return Err(Refusal::param(field, format!("{id} is not this function's")));
        }
        if let Handler::Port(_) = handler {
            own_port(register)?;
        }
        if write && read_only {
            return Err(Refusal::param("access_register_in.op_mod", format!("{id} cannot be written")));
        }
        match handler {
            Handler::Port(run) => run(&mut self.port, register, write),
            Handler::Card(run) => run(self, register, write),
        }
    }
}

/// There is one port.
fn own_port(register: &[u8]) -> Outcome {
    match paos_reg::local_port.get32(register) {
        1 => Ok(()),
        port => Err(Refusal::param("local_port", format!("port {port} does not exist"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_stands_once_and_has_room_for_what_asks_for_it() {
        for (i, register) in REGISTERS.iter().enumerate() {
            assert!(REGISTERS.iter().take(i).all(|other| other.id != register.id), "{}", register.id);
            assert!(register.index <= register.size && register.size <= 0x200, "{}", register.id);
        }
    }
}
