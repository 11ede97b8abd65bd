//! Access registers of an Ethernet port (PRM, software context formats).

use crate::cmd::refusal::{Outcome, Refusal};
use crate::port::{EthernetPort, NicVport};
use mlx5_prm::registers::*;
use mlx5_prm::value::PpcntGroup;

/// `ptys_reg.proto_mask`: Ethernet.
const ETHERNET: u32 = 4;

impl EthernetPort {
    pub(in crate::cmd) fn pmtu(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let most = NicVport::MAX_FRAME;
        if write {
            let asked = pmtu_reg::admin_mtu.get32(register) as u16;
            if asked > most {
                return Err(Refusal::param("pmtu_reg.admin_mtu", format!("{asked}, at most {most}")));
            }
            self.frame_size = asked;
        }
        pmtu_reg::max_mtu.set(register, most);
        pmtu_reg::admin_mtu.set(register, self.frame_size);
        pmtu_reg::oper_mtu.set(register, self.frame_size);
        Ok(())
    }

    pub(in crate::cmd) fn ptys(&self, register: &mut [u8], write: bool, is_up: bool) -> Outcome {
        let mask = ptys_reg::proto_mask.get32(register);
        if mask != ETHERNET {
            return Err(Refusal::param("ptys_reg.proto_mask", format!("{mask:#x}: the port is Ethernet")));
        }
        let (able, extended) = self.protocols;
        for (field, able, name) in [
            (ptys_reg::eth_proto_admin, able, "ptys_reg.eth_proto_admin"),
            (ptys_reg::ext_eth_proto_admin, extended, "ptys_reg.ext_eth_proto_admin"),
        ] {
            let asked = field.get32(register);
            if write && asked & !able != 0 {
                return Err(Refusal::param(name, format!("{asked:#x}, of {able:#x}")));
            }
        }
        for (field, value) in [
            (ptys_reg::eth_proto_capability, able),
            (ptys_reg::eth_proto_admin, able),
            (ptys_reg::eth_proto_oper, if is_up { able } else { 0 }),
            (ptys_reg::ext_eth_proto_capability, extended),
            (ptys_reg::ext_eth_proto_admin, extended),
            (ptys_reg::ext_eth_proto_oper, if is_up { extended } else { 0 }),
        ] {
            field.set(register, value);
        }
        Ok(())
    }

    /// Counters of `register`, all of which are zero.
    pub(in crate::cmd) fn ppcnt(&mut self, register: &mut [u8], clear: bool) -> Outcome {
        use eth_802_3_cntrs_grp_data_layout as g;
        let group = PpcntGroup(ppcnt_reg::grp.get32(register) as u8);
        let counters = ppcnt_reg::counter_set.of_mut(register);
        match group {
            PpcntGroup::IEEE_802_3 => {
                for (high, low, value) in [
                    (g::a_frames_transmitted_ok_high, g::a_frames_transmitted_ok_low, self.sent.frames),
                    (g::a_frames_received_ok_high, g::a_frames_received_ok_low, self.received.frames),
                    (g::a_octets_transmitted_ok_high, g::a_octets_transmitted_ok_low, self.sent.octets),
                    (g::a_octets_received_ok_high, g::a_octets_received_ok_low, self.received.octets),
                    (
                        g::a_multicast_frames_xmitted_ok_high,
                        g::a_multicast_frames_xmitted_ok_low,
                        self.sent.multicast,
                    ),
                    (
                        g::a_broadcast_frames_xmitted_ok_high,
                        g::a_broadcast_frames_xmitted_ok_low,
                        self.sent.broadcast,
                    ),
                    (
                        g::a_multicast_frames_received_ok_high,
                        g::a_multicast_frames_received_ok_low,
                        self.received.multicast,
                    ),
                    (
                        g::a_broadcast_frames_received_ok_high,
                        g::a_broadcast_frames_received_ok_low,
                        self.received.broadcast,
                    ),
                    (g::a_frame_too_long_errors_high, g::a_frame_too_long_errors_low, self.too_long),
                ] {
                    high.set(counters, (value >> 32) as u32);
                    low.set(counters, value as u32);
                }
            }
            // Groups of which every counter is zero on a link without errors.
            known if PpcntGroup::ALL.contains(&known) => {}
            other => return Err(Refusal::param("ppcnt_reg.grp", format!("{other}"))),
        }
        if clear {
            self.clear();
        }
        Ok(())
    }
}
