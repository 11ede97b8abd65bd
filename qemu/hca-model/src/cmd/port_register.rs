//! Access registers of the port (PRM, software context formats).

use super::refusal::{Outcome, Refusal};
use crate::port::Port;
use mlx5_prm::Field;
use mlx5_prm::management::*;
use mlx5_prm::registers::*;
use mlx5_prm::value::PortState;

/// Lanes of the port.
const LANES: u8 = 4;
/// The same as PTYS has it.
const WIDTH_4X: u32 = 0x4;
/// PDDR: what a port that is up, and one that waits for another, says for itself.
const NO_ISSUE: (u32, &str) = (0, "No issue was observed");
const NO_CABLE: (u32, &str) = (1024, "Cable is unplugged");
const CLOSED: (u32, &str) = (1, "Port is close by command (see PAOS)");
const NO_PARTNER: (u32, &str) = (57, "signal not detected");

impl Port {
    /// Reads or writes NODE_DESC.
    pub(super) fn node_description(&mut self, register: &mut [u8], write: bool) -> Outcome {
        if let Some(register) = register.first_chunk_mut() {
            if write {
                self.set_node_description(register);
            } else {
                *register = self.node_description;
            }
        }
        Ok(())
    }

    pub(super) fn paos(&mut self, register: &mut [u8], write: bool) -> Outcome {
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

    pub(super) fn pfcc(&mut self, register: &mut [u8], write: bool) -> Outcome {
        self.ethernet.as_mut().map_or(Ok(()), |port| port.pfcc(register, write))
    }

    pub(super) fn pmtu(&mut self, register: &mut [u8], write: bool) -> Outcome {
        if let Some(port) = &mut self.ethernet {
            return port.pmtu(register, write);
        }
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

    pub(super) fn ptys(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let mask = ptys_reg::proto_mask.get32(register);
        if let Some(port) = &self.ethernet {
            return port.ptys(register, write, self.state != PortState::DOWN);
        }
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
            (ptys_reg::ib_proto_oper, if up { self.speeds.fastest() } else { 0 }),
            (ptys_reg::ib_link_width_oper, if up { WIDTH_4X } else { 0 }),
        ] {
            field.set(register, value);
        }
        Ok(())
    }

    pub(super) fn pvlc(&mut self, register: &mut [u8], write: bool) -> Outcome {
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

    pub(super) fn ppcnt(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let group = ppcnt_reg::grp.get32(register);
        let clear = ppcnt_reg::clr.is_set(register);
        if write && !clear {
            return Err(Refusal::param("ppcnt_reg.clr", "counters can be read and cleared"));
        }
        if let Some(counters) = register.get_mut(8..) {
            counters.fill(0);
        }
        if let Some(port) = &mut self.ethernet
            && group != 0x20
        {
            return port.ppcnt(register, clear);
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
            *counters = rdma_fabric::infiniband::PortCounters::default();
        }
        Ok(())
    }

    /// Which technology its lanes are of; there is nothing about them that could be set.
    pub(super) fn sltp(&self, register: &mut [u8]) -> Outcome {
        nothing(register);
        sltp_reg::status.set(register, 0u8);
        sltp_reg::version.set(register, self.technology);
        Ok(())
    }

    /// No error correction.
    pub(super) fn pplm(&self, register: &mut [u8]) -> Outcome {
        nothing(register);
        Ok(())
    }

    /// All lanes lead to the one module.
    pub(super) fn pmlp(&self, register: &mut [u8]) -> Outcome {
        pmlp_reg::width.set(register, LANES);
        let lanes = pmlp_reg::lane_module_mapping.of_mut(register).as_chunks_mut::<4>().0;
        for (lane, mapping) in (0..LANES).zip(lanes) {
            *mapping = [lane, lane, 0, 0];
        }
        Ok(())
    }

    pub(super) fn pddr(&self, register: &mut [u8]) -> Outcome {
        let up = self.state != PortState::DOWN;
        let select = pddr_reg::page_select.get32(register);
        let page = pddr_reg::page_data.of_mut(register);
        page.fill(0);
        match select {
            0 => {
                use pddr_operation_info_page as p;
                let (able, widths) = (self.speeds.ptys(), self.speeds.widths());
                for (field, value) in [
                    (p::proto_active, 1),
                    // Negotiated as the specification says.
                    (p::neg_mode_active, if up { 4 } else { 0 }),
                    // Active or disabled or polling; link up or disabled or polling.
                    (
                        p::phy_mngr_fsm_state,
                        if up {
                            3
                        } else if self.admin_up {
                            2
                        } else {
                            0
                        },
                    ),
                    (
                        p::ib_phy_fsm_state,
                        if up {
                            7
                        } else if self.admin_up {
                            8
                        } else {
                            0
                        },
                    ),
                    (p::phy_manager_link_width_enabled, widths),
                    (p::phy_manager_link_proto_enabled, able),
                    (p::core_to_phy_link_width_enabled, widths),
                    (p::core_to_phy_link_proto_enabled, able),
                    (p::cable_link_width_cap, if self.cable { widths } else { 0 }),
                    (p::cable_link_speed_cap, if self.cable { able } else { 0 }),
                    (p::link_width_active, if up { WIDTH_4X } else { 0 }),
                    (p::link_speed_active, if up { self.speeds.fastest() } else { 0 }),
                ] {
                    field.set(page, value);
                }
            }
            1 => {
                use pddr_troubleshooting_page as p;
                let (code, text) = match () {
                    () if up => NO_ISSUE,
                    () if !self.admin_up => CLOSED,
                    () if !self.cable => NO_CABLE,
                    () => NO_PARTNER,
                };
                p::monitor_opcode.set(page, code);
                for (to, from) in p::status_message.of_mut(page).iter_mut().zip(text.bytes()) {
                    *to = from;
                }
            }
            other => return Err(Refusal::param("pddr_reg.page_select", format!("{other} is not supported"))),
        }
        Ok(())
    }
}

/// Nothing behind the first dword.
fn nothing(register: &mut [u8]) {
    if let Some(answer) = register.get_mut(4..) {
        answer.fill(0);
    }
}
