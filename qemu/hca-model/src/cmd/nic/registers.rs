//! Access registers of an Ethernet port (PRM, software context formats).

use crate::cmd::refusal::{Outcome, Refusal};
use crate::port::{EthernetPort, NicVport};
use mlx5_prm::Field;
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
        let group = PpcntGroup(ppcnt_reg::grp.get32(register) as u8);
        let counters = ppcnt_reg::counter_set.of_mut(register);
        match group {
            PpcntGroup::IEEE_802_3 => self.ieee_802_3(counters),
            PpcntGroup::RFC_2863 => self.rfc_2863(counters),
            PpcntGroup::RFC_2819 => self.rfc_2819(counters),
            // Groups of which every counter is zero on a link without errors.
            known if PpcntGroup::ALL.contains(&known) => {}
            other => return Err(Refusal::param("ppcnt_reg.grp", format!("{other}"))),
        }
        if clear {
            self.clear();
        }
        Ok(())
    }

    fn ieee_802_3(&self, counters: &mut [u8]) {
        use eth_802_3_cntrs_grp_data_layout as g;
        set(counters, g::a_frames_transmitted_ok_high, self.sent.frames);
        set(counters, g::a_frames_received_ok_high, self.received.frames);
        set(counters, g::a_octets_transmitted_ok_high, self.sent.octets);
        set(counters, g::a_octets_received_ok_high, self.received.octets);
        set(counters, g::a_multicast_frames_xmitted_ok_high, self.sent.multicast);
        set(counters, g::a_broadcast_frames_xmitted_ok_high, self.sent.broadcast);
        set(counters, g::a_multicast_frames_received_ok_high, self.received.multicast);
        set(counters, g::a_broadcast_frames_received_ok_high, self.received.broadcast);
        set(counters, g::a_frame_too_long_errors_high, self.too_long);
    }

    fn rfc_2863(&self, counters: &mut [u8]) {
        use eth_2863_cntrs_grp_data_layout as g;
        set(counters, g::if_in_octets_high, self.received.octets);
        set(counters, g::if_in_ucast_pkts_high, self.received.unicast());
        set(counters, g::if_in_multicast_pkts_high, self.received.multicast);
        set(counters, g::if_in_broadcast_pkts_high, self.received.broadcast);
        set(counters, g::if_in_errors_high, self.too_long);
        set(counters, g::if_out_octets_high, self.sent.octets);
        set(counters, g::if_out_ucast_pkts_high, self.sent.unicast());
        set(counters, g::if_out_multicast_pkts_high, self.sent.multicast);
        set(counters, g::if_out_broadcast_pkts_high, self.sent.broadcast);
    }

    /// Counts received frames alone, as the names in Linux (`rx_64_bytes_phy`).
    fn rfc_2819(&self, counters: &mut [u8]) {
        use eth_2819_cntrs_grp_data_layout as g;
        set(counters, g::ether_stats_octets_high, self.received.octets);
        set(counters, g::ether_stats_pkts_high, self.received.frames);
        set(counters, g::ether_stats_multicast_pkts_high, self.received.multicast);
        set(counters, g::ether_stats_broadcast_pkts_high, self.received.broadcast);
        set(counters, g::ether_stats_oversize_pkts_high, self.too_long);
        let sizes = [
            g::ether_stats_pkts64octets_high,
            g::ether_stats_pkts65to127octets_high,
            g::ether_stats_pkts128to255octets_high,
            g::ether_stats_pkts256to511octets_high,
            g::ether_stats_pkts512to1023octets_high,
            g::ether_stats_pkts1024to1518octets_high,
            g::ether_stats_pkts1519to2047octets_high,
            g::ether_stats_pkts2048to4095octets_high,
            g::ether_stats_pkts4096to8191octets_high,
            g::ether_stats_pkts8192to10239octets_high,
        ];
        for (high, frames) in sizes.into_iter().zip(self.received.sizes.0) {
            set(counters, high, frames);
        }
    }

    /// Flow control. A write changes what its masks name, as IEEE 802.1Qaz's negotiation needs it.
    pub(in crate::cmd) fn pfcc(&mut self, register: &mut [u8], write: bool) -> Outcome {
        let (sent, obeyed) = &mut self.pause;
        for (direction, masked, global, priorities, mask) in [
            (sent, pfcc_reg::pptx_mask_n, pfcc_reg::pptx, pfcc_reg::pfctx, pfcc_reg::prio_mask_tx),
            (obeyed, pfcc_reg::pprx_mask_n, pfcc_reg::pprx, pfcc_reg::pfcrx, pfcc_reg::prio_mask_rx),
        ] {
            if write && !masked.is_set(register) {
                direction.global = global.is_set(register);
            }
            if write {
                let named = mask.get32(register) as u8;
                let asked = priorities.get32(register) as u8;
                direction.priorities = (direction.priorities & !named) | (asked & named);
            }
            global.set(register, u8::from(direction.global));
            priorities.set(register, direction.priorities);
        }
        Ok(())
    }
}

/// Sets a counter of 64 bits, whose upper half is `high`.
fn set(counters: &mut [u8], high: Field, value: u64) {
    Field::quad(high.bit_offset / 8).set(counters, value);
}
