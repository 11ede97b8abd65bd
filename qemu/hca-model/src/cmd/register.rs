//! Access registers (PRM, software context formats).

use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::port::Port;
use mlx5_prm::Field;
use mlx5_prm::commands::{access_register_in, access_register_out};
use mlx5_prm::registers::{ib_port_cntrs_grp_data_layout, paos_reg, pmtu_reg, ppcnt_reg, ptys_reg, pvlc_reg};
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{PortState, RegisterId};

/// Registers that exist, with their sizes.
fn size_of(id: RegisterId) -> Option<usize> {
    Some(match id {
        RegisterId::HOST_ENDIANNESS => 16,
        RegisterId::PAOS => paos_reg::SIZE,
        RegisterId::PMTU => pmtu_reg::SIZE,
        RegisterId::PTYS => ptys_reg::SIZE,
        RegisterId::PVLC => pvlc_reg::SIZE,
        RegisterId::PPCNT => ppcnt_reg::SIZE,
        RegisterId::NODE_DESC => 64,
        _ => return None,
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
        let habits = &self.profile.habits;
        if habits.own_register(input) {
            return habits.access_register(op_mod, output, output_len);
        }
        self.port.access_register(op_mod, input, output, output_len)
    }
}

impl Port {
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
        let Some(size) = size_of(id) else {
            return Err(Refusal::param("access_register_in.register_id", format!("{id} is not supported")));
        };
        let data_at = access_register_in::register_data.offset;
        let Some(data) = input.get(data_at..data_at + size) else {
            let text = format!("{} bytes, {id} has {size}", input.len().saturating_sub(data_at));
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, "access_register_in.register_data", text));
        };
        if output_len < data_at + size {
            let text = format!("{output_len} bytes, {} needed", data_at + size);
            return Err(Refusal::new(CmdStatus::BAD_OUTP_LEN, "access_register_out.register_data", text));
        }
        let mut register = data.to_vec();
        self.access(id, write, &mut register)?;
        output.truncate(access_register_out::register_data.offset);
        output.extend_from_slice(&register);
        Ok(())
    }

    /// Reads or writes the register `id`, whose content is at the beginning of `data`.
    ///
    /// # Errors
    /// There is no such register, `data` is too short for it, or it does not take the content.
    pub(crate) fn access(&mut self, id: RegisterId, write: bool, data: &mut [u8]) -> Outcome {
        let field = "access_register_in.register_id";
        let Some(size) = size_of(id) else {
            return Err(Refusal::param(field, format!("{id} is not supported")));
        };
        let Some(register) = data.get_mut(..size) else {
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, field, format!("{id} has {size} bytes")));
        };
        match id {
            RegisterId::HOST_ENDIANNESS => host_endianness(register, write)?,
            RegisterId::NODE_DESC => self.node_description(register, write),
            _ => {
                // All others are the port's; they have its number in the same place.
                let port = paos_reg::local_port.get32(register);
                if port != 1 {
                    return Err(Refusal::param("local_port", format!("port {port} does not exist")));
                }
                match id {
                    RegisterId::PAOS => self.paos(register, write)?,
                    RegisterId::PMTU => self.pmtu(register, write)?,
                    RegisterId::PTYS => self.ptys(register, write)?,
                    RegisterId::PVLC => self.pvlc(register, write)?,
                    _ => self.ppcnt(register, write)?,
                }
            }
        }
        Ok(())
    }

    fn node_description(&mut self, register: &mut [u8], write: bool) {
        let held = &mut self.node_description;
        for (register, held) in register.iter_mut().zip(held.iter_mut()) {
            if write {
                *held = *register;
            } else {
                *register = *held;
            }
        }
    }

    fn paos(&mut self, register: &mut [u8], write: bool) -> Outcome {
        if write && paos_reg::ase.is_set(register) {
            match paos_reg::admin_status.get32(register) {
                1 => self.set_admin(true),
                2 => self.set_admin(false),
                other => return Err(Refusal::param("paos_reg.admin_status", format!("{other}"))),
            }
        }
        paos_reg::admin_status.set(register, if self.admin_up { 1u8 } else { 2 });
        paos_reg::oper_status.set(register, if self.state == PortState::DOWN { 2u8 } else { 1 });
        Ok(())
    }

    fn pmtu(&self, register: &mut [u8], write: bool) -> Outcome {
        let max = 128u32 << self.mtu_cap;
        let asked = pmtu_reg::admin_mtu.get32(register);
        if write && asked > max {
            return Err(Refusal::param("pmtu_reg.admin_mtu", format!("{asked}, at most {max}")));
        }
        pmtu_reg::max_mtu.set(register, max);
        pmtu_reg::admin_mtu.set(register, max);
        pmtu_reg::oper_mtu.set(register, self.mtu_bytes());
        Ok(())
    }

    fn ptys(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let mask = ptys_reg::proto_mask.get32(register);
        if mask != 1 {
            return Err(Refusal::param("ptys_reg.proto_mask", format!("{mask:#x}: the port is InfiniBand")));
        }
        let (able, able_widths) = (self.speeds.ptys(), self.speeds.widths());
        if write {
            let speeds = ptys_reg::ib_proto_admin.get32(register);
            let widths = ptys_reg::ib_link_width_admin.get32(register);
            if speeds & !able != 0 {
                return Err(Refusal::param("ptys_reg.ib_proto_admin", format!("{speeds:#x}, of {able:#x}")));
            }
            if widths & !able_widths != 0 {
                return Err(Refusal::param(
                    "ptys_reg.ib_link_width_admin",
                    format!("{widths:#x}, of {able_widths:#x}"),
                ));
            }
        }
        let up = self.state != PortState::DOWN;
        for (field, value) in [
            (ptys_reg::ib_proto_capability, able),
            (ptys_reg::ib_link_width_capability, able_widths),
            (ptys_reg::ib_proto_admin, able),
            (ptys_reg::ib_link_width_admin, able_widths),
            // 4x.
            (ptys_reg::ib_proto_oper, if up { self.speeds.fastest() } else { 0 }),
            (ptys_reg::ib_link_width_oper, if up { 0x4 } else { 0 }),
        ] {
            field.set(register, value);
        }
        Ok(())
    }

    fn pvlc(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let admin = pvlc_reg::vl_admin.get32(register);
        if write {
            if ![1, 2, 4].contains(&admin) {
                return Err(Refusal::param("pvlc_reg.vl_admin", format!("{admin}, at most 4")));
            }
            self.operational_vls = (admin.ilog2() + 1) as u8;
        }
        // A mask of the numbers of lanes here (1, 2, 4), an exponent in PortInfo.
        let operational = 1u32 << self.operational_vls.saturating_sub(1).min(3);
        pvlc_reg::vl_hw_cap.set(register, 4u8);
        pvlc_reg::vl_admin.set(register, operational);
        pvlc_reg::vl_operational.set(register, operational);
        Ok(())
    }

    fn ppcnt(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let group = ppcnt_reg::grp.get32(register);
        let clear = ppcnt_reg::clr.is_set(register);
        if write && !clear {
            return Err(Refusal::param("ppcnt_reg.clr", "counters can be read and cleared"));
        }
        if let Some(counters) = register.get_mut(8..) {
            counters.fill(0);
        }
        let counters = &mut self.counters;
        match group {
            0x20 => {
                let Some(data) = register.get_mut(8..) else { return Ok(()) };
                let small = |value: u64, field: Field| value.min(field.max());
                use ib_port_cntrs_grp_data_layout as g;
                for (field, value) in [
                    (g::link_downed_counter, counters.link_downed),
                    (g::port_rcv_errors, counters.rcv_errors),
                    (g::port_xmit_discards, counters.xmit_discards),
                    (g::vl_15_dropped, counters.vl15_dropped),
                    // Between VL15Dropped and PortXmitWait lie the four data counters of PortCounters.
                    (Field::bits(0x14, 31, 0), counters.xmit_data),
                    (Field::bits(0x18, 31, 0), counters.rcv_data),
                    (Field::bits(0x1c, 31, 0), counters.xmit_packets),
                    (Field::bits(0x20, 31, 0), counters.rcv_packets),
                ] {
                    field.set(data, small(value, field));
                }
            }
            // Groups of which every counter is zero on a link without errors.
            0x00 | 0x01 | 0x10 | 0x12 | 0x16 => {}
            other => return Err(Refusal::param("ppcnt_reg.grp", format!("{other:#x}"))),
        }
        if clear {
            *counters = crate::port::PortCounters::default();
        }
        Ok(())
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
