//! Ports, vports and management datagrams (PRM, command reference).

use super::refusal::{Outcome, Refusal};
use crate::port::Port;
use crate::port::{GID_TABLE_SIZE, PKEY_TABLE_SIZE, SETTABLE_CAPABILITIES};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::hca_vport_context;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{HcaVportFields, PortState};

/// Only the function's own vport and port 1 exist.
pub(super) fn own_vport(other: bool, vport: u32, port: Option<u32>, input: &str) -> Outcome {
    if other || vport != 0 {
        let text = format!("vport {vport} is not this function's");
        return Err(Refusal::param(format!("{input}.vport_number"), text));
    }
    // The port number counts only on devices with two ports.
    match port {
        Some(port) if port > 1 => {
            Err(Refusal::param(format!("{input}.port_num"), format!("port {port} does not exist")))
        }
        _ => Ok(()),
    }
}

impl Port {
    pub(super) fn query_vport_state(&self, op_mod: u16, input: &[u8], output: &mut [u8]) -> Outcome {
        if op_mod > 2 {
            return Err(Refusal::op_mod(op_mod));
        }
        let other = query_vport_state_in::other_vport.is_set(input);
        own_vport(other, query_vport_state_in::vport_number.get32(input), None, "query_vport_state_in")?;
        query_vport_state_out::admin_state.set(output, self.admin_up);
        query_vport_state_out::state.set(output, self.state != PortState::DOWN);
        Ok(())
    }

    pub(super) fn modify_vport_state(&mut self, op_mod: u16, input: &[u8]) -> Outcome {
        if op_mod > 2 {
            return Err(Refusal::op_mod(op_mod));
        }
        let other = modify_vport_state_in::other_vport.is_set(input);
        own_vport(other, modify_vport_state_in::vport_number.get32(input), None, "modify_vport_state_in")?;
        match modify_vport_state_in::admin_state.get32(input) {
            0 => self.set_admin(false),
            // Following the link is what being up means here.
            1 | 2 => self.set_admin(true),
            other => return Err(Refusal::param("modify_vport_state_in.admin_state", format!("{other}"))),
        }
        Ok(())
    }

    pub(super) fn query_hca_vport_context(&self, input: &[u8], output: &mut [u8]) -> Outcome {
        own_vport(
            query_hca_vport_context_in::other_vport.is_set(input),
            query_hca_vport_context_in::vport_number.get32(input),
            Some(query_hca_vport_context_in::port_num.get32(input)),
            "query_hca_vport_context_in",
        )?;
        let port = &self;
        let context = query_hca_vport_context_out::hca_vport_context.of_mut(output);
        for (field, value) in [
            (hca_vport_context::has_smi, u64::from(port.has_smi)),
            (hca_vport_context::port_physical_state, u64::from(port.physical_state.0)),
            // Up: the vport follows nobody.
            (hca_vport_context::vport_state_policy, u64::from(port.admin_up)),
            (hca_vport_context::port_state, u64::from(port.state.0)),
            (hca_vport_context::vport_state, u64::from(port.state.0)),
            (hca_vport_context::system_image_guid, port.system_image_guid),
            (hca_vport_context::port_guid, port.port_guid),
            (hca_vport_context::node_guid, port.node_guid),
            (hca_vport_context::cap_mask1, u64::from(port.capability_mask)),
            (hca_vport_context::cap_mask1_field_select, u64::from(SETTABLE_CAPABILITIES)),
            (hca_vport_context::lid, u64::from(port.lid)),
            (hca_vport_context::init_type_reply, u64::from(port.init_type_reply)),
            (hca_vport_context::lmc, u64::from(port.lmc)),
            (hca_vport_context::subnet_timeout, u64::from(port.subnet_timeout)),
            (hca_vport_context::sm_lid, u64::from(port.sm_lid)),
            (hca_vport_context::sm_sl, u64::from(port.sm_sl)),
            (hca_vport_context::qkey_violation_counter, u64::from(port.qkey_violations)),
            (hca_vport_context::pkey_violation_counter, u64::from(port.pkey_violations)),
        ] {
            field.set(context, value);
        }
        Ok(())
    }

    pub(super) fn modify_hca_vport_context(&mut self, input: &[u8]) -> Outcome {
        own_vport(
            modify_hca_vport_context_in::other_vport.is_set(input),
            modify_hca_vport_context_in::vport_number.get32(input),
            Some(modify_hca_vport_context_in::port_num.get32(input)),
            "modify_hca_vport_context_in",
        )?;
        let context = modify_hca_vport_context_in::hca_vport_context.of(input);
        let select = hca_vport_context::field_select.get32(context);
        let Some(select) = HcaVportFields::from_bits(select) else {
            return Err(Refusal::param("hca_vport_context.field_select", format!("{select:#x}")));
        };
        if select.intersects(HcaVportFields::PORT_GUID | HcaVportFields::NODE_GUID) {
            // GUIDs are given to virtual functions; the physical function's are burnt in.
            return Err(Refusal::param("hca_vport_context.field_select", "the own GUIDs are fixed"));
        }
        let capabilities = hca_vport_context::cap_mask1_field_select.get32(context);
        if capabilities & !SETTABLE_CAPABILITIES != 0 {
            let text = format!("{:#x} cannot be set", capabilities & !SETTABLE_CAPABILITIES);
            return Err(Refusal::param("hca_vport_context.cap_mask1_field_select", text));
        }
        let value = hca_vport_context::cap_mask1.get32(context);
        self.capability_mask = self.capability_mask & !capabilities | value & capabilities;
        if select.contains(HcaVportFields::STATE_POLICY) {
            match hca_vport_context::vport_state_policy.get32(context) {
                0 => self.set_admin(false),
                1 | 2 => self.set_admin(true),
                other => {
                    return Err(Refusal::param("hca_vport_context.vport_state_policy", format!("{other}")));
                }
            }
        }
        Ok(())
    }

    pub(super) fn query_hca_vport_gid(
        &self,
        input: &[u8],
        output: &mut Vec<u8>,
        output_len: usize,
    ) -> Outcome {
        own_vport(
            query_hca_vport_gid_in::other_vport.is_set(input),
            query_hca_vport_gid_in::vport_number.get32(input),
            Some(query_hca_vport_gid_in::port_num.get32(input)),
            "query_hca_vport_gid_in",
        )?;
        let index = query_hca_vport_gid_in::gid_index.get32(input);
        let field = "query_hca_vport_gid_in.gid_index";
        let (first, count) = range(index, GID_TABLE_SIZE, 16, output_len, field)?;
        output.truncate(16);
        query_hca_vport_gid_out::gids_num.set(output, count as u32);
        for i in first..first + count {
            output.extend_from_slice(&self.gid(i));
        }
        Ok(())
    }

    pub(super) fn query_hca_vport_pkey(
        &self,
        input: &[u8],
        output: &mut Vec<u8>,
        output_len: usize,
    ) -> Outcome {
        own_vport(
            query_hca_vport_pkey_in::other_vport.is_set(input),
            query_hca_vport_pkey_in::vport_number.get32(input),
            Some(query_hca_vport_pkey_in::port_num.get32(input)),
            "query_hca_vport_pkey_in",
        )?;
        let index = query_hca_vport_pkey_in::pkey_index.get32(input);
        let field = "query_hca_vport_pkey_in.pkey_index";
        let (first, count) = range(index, PKEY_TABLE_SIZE, 4, output_len, field)?;
        output.truncate(16);
        for pkey in self.pkeys.iter().skip(first).take(count) {
            output.extend_from_slice(&u32::from(*pkey).to_be_bytes());
        }
        Ok(())
    }

    pub(super) fn mad_ifc(&mut self, op_mod: u16, input: &[u8], output: &mut [u8], now: u64) -> Outcome {
        if op_mod > 3 {
            return Err(Refusal::op_mod(op_mod));
        }
        let port = mad_ifc_in::port.get32(input);
        if port != 1 {
            return Err(Refusal::param("mad_ifc_in.port", format!("port {port} does not exist")));
        }
        let Ok(mad) = <[u8; 256]>::try_from(mad_ifc_in::mad.of(input)) else {
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, "mad_ifc_in.mad", ""));
        };
        match self.agent(&mad, op_mod & 1 != 0, now) {
            Some(reply) => {
                mad_ifc_out::response_mad_packet.of_mut(output).copy_from_slice(&reply);
                Ok(())
            }
            None => Err(Refusal::new(CmdStatus::BAD_PKT, "mad_ifc_in.mad", "no request, or a wrong M_Key")),
        }
    }
}

/// The range of table entries that an index means (0xffff is all), if the output holds them.
fn range(
    index: u32,
    table: usize,
    stride: usize,
    output_len: usize,
    field: &str,
) -> Result<(usize, usize), Refusal> {
    let (first, count) = match index {
        0xffff => (0, table),
        index if (index as usize) < table => (index as usize, 1),
        index => return Err(Refusal::param(field, format!("{index}, {table} entries"))),
    };
    let needed = 16 + count * stride;
    if output_len < needed {
        return Err(Refusal::new(
            CmdStatus::BAD_OUTP_LEN,
            field,
            format!("{output_len} bytes, {needed} needed"),
        ));
    }
    Ok((first, count))
}

pub(super) fn query_mad_demux(output: &mut [u8]) -> Outcome {
    query_mad_demux_out::mad_dumux_parameters_block.set(output, 0u8);
    Ok(())
}

pub(super) fn set_mad_demux(input: &[u8]) -> Outcome {
    match set_mad_demux_in::demux_mode.get32(input) {
        // Everything unsolicited goes to software; nothing else is modelled.
        0 => Ok(()),
        mode => Err(Refusal::param("set_mad_demux_in.demux_mode", format!("{mode} is not supported"))),
    }
}
