//! Performance management: the counters of a port (IBA volume 1, chapter 16).

use crate::mad::{ClassPortInfo, Mad};
use crate::view::record;

/// Attribute ids of performance management.
pub mod attr {
    /// PortSamplesControl.
    pub const PORT_SAMPLES_CONTROL: u16 = 0x10;
    /// PortCounters.
    pub const PORT_COUNTERS: u16 = 0x12;
    /// PortRcvErrorDetails.
    pub const PORT_RCV_ERROR_DETAILS: u16 = 0x15;
    /// PortXmitDiscardDetails.
    pub const PORT_XMIT_DISCARD_DETAILS: u16 = 0x16;
    /// PortCountersExtended.
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
}

/// Bits of the capability mask in ClassPortInfo.
pub mod capability {
    /// Port 255 stands for all ports.
    pub const ALL_PORT_SELECT: u16 = 1 << 8;
    /// PortCountersExtended with the packets by kind.
    pub const EXTENDED_WIDTH: u16 = 1 << 9;
    /// PortXmitWait.
    pub const PORT_XMIT_WAIT: u16 = 1 << 12;
    /// Capability mask 2: the error counters of PortCountersExtended.
    pub const MASK2_ADDITIONAL_EXTENDED: u32 = 1 << 1;
}

/// The port number that stands for all ports.
pub const ALL_PORTS: u8 = 0xff;
/// Bytes of attribute data.
pub const DATA_LEN: usize = 192;

/// The attribute data of a performance management MAD: everything from byte 64 on.
pub fn data(mad: &Mad) -> &[u8; DATA_LEN] {
    // 256 - 64 = 192: the slice has exactly this length.
    mad.as_bytes().last_chunk().unwrap_or(&[0; DATA_LEN])
}

/// Replaces the front of the attribute data, and clears the rest; what exceeds 192 bytes is
/// dropped.
pub fn set_data(mad: &mut Mad, data: &[u8]) {
    if let Some(room) = mad.as_bytes_mut().last_chunk_mut::<DATA_LEN>() {
        room.fill(0);
        for (to, from) in room.iter_mut().zip(data) {
            *to = *from;
        }
    }
}

record! {
    /// PortCounters, attribute 0x12. Every counter stops at its largest value.
    pub struct PortCounters[44] {
        /// Port.
        port_select, set_port_select: u8 = 1, 1;
        /// In a Set: the counters to write, bit 0 the first.
        counter_select, set_counter_select: u16 = 2, 2;
        /// Symbol errors.
        symbol_errors, set_symbol_errors: u16 = 4, 2;
        /// Link error recoveries.
        link_recovers, set_link_recovers: u8 = 6, 1;
        /// The link went down.
        link_downed, set_link_downed: u8 = 7, 1;
        /// Packets with an error.
        rcv_errors, set_rcv_errors: u16 = 8, 2;
        /// Packets marked bad by a switch before.
        rcv_remote_physical_errors, set_rcv_remote_physical_errors: u16 = 10, 2;
        /// Packets that the switch could not forward.
        rcv_switch_relay_errors, set_rcv_switch_relay_errors: u16 = 12, 2;
        /// Packets that could not be sent.
        xmit_discards, set_xmit_discards: u16 = 14, 2;
        /// Packets not sent because of a partition or raw filter.
        xmit_constraint_errors, set_xmit_constraint_errors: u8 = 16, 1;
        /// Packets not accepted because of a partition or raw filter.
        rcv_constraint_errors, set_rcv_constraint_errors: u8 = 17, 1;
        /// In a Set: bit 0 selects `xmit_wait`.
        counter_select2, set_counter_select2: u8 = 18, 1;
        /// Local link integrity errors.
        link_integrity_errors, set_link_integrity_errors: u8 = 19, 1 [7:4];
        /// Excessive buffer overruns.
        buffer_overruns, set_buffer_overruns: u8 = 19, 1 [3:0];
        /// Management packets dropped.
        vl15_dropped, set_vl15_dropped: u16 = 22, 2;
        /// Octets sent, divided by 4.
        xmit_data, set_xmit_data: u32 = 24, 4;
        /// Octets received, divided by 4.
        rcv_data, set_rcv_data: u32 = 28, 4;
        /// Packets sent.
        xmit_packets, set_xmit_packets: u32 = 32, 4;
        /// Packets received.
        rcv_packets, set_rcv_packets: u32 = 36, 4;
        /// Ticks during which packets waited.
        xmit_wait, set_xmit_wait: u32 = 40, 4;
    }
}

record! {
    /// PortCountersExtended, attribute 0x1d.
    pub struct PortCountersExtended[184] {
        /// Port.
        port_select, set_port_select: u8 = 1, 1;
        /// In a Set: the counters to write, bit 0 the first.
        counter_select, set_counter_select: u16 = 2, 2;
        /// In a Set: the error counters to write, bit 0 `symbol_errors`.
        counter_select2, set_counter_select2: u32 = 4, 4;
        /// Octets sent, divided by 4.
        xmit_data, set_xmit_data: u64 = 8, 8;
        /// Octets received, divided by 4.
        rcv_data, set_rcv_data: u64 = 16, 8;
        /// Packets sent.
        xmit_packets, set_xmit_packets: u64 = 24, 8;
        /// Packets received.
        rcv_packets, set_rcv_packets: u64 = 32, 8;
        /// Unicast packets sent.
        unicast_xmit_packets, set_unicast_xmit_packets: u64 = 40, 8;
        /// Unicast packets received.
        unicast_rcv_packets, set_unicast_rcv_packets: u64 = 48, 8;
        /// Multicast packets sent.
        multicast_xmit_packets, set_multicast_xmit_packets: u64 = 56, 8;
        /// Multicast packets received.
        multicast_rcv_packets, set_multicast_rcv_packets: u64 = 64, 8;
        /// Symbol errors.
        symbol_errors, set_symbol_errors: u64 = 72, 8;
        /// Link error recoveries.
        link_recovers, set_link_recovers: u64 = 80, 8;
        /// The link went down.
        link_downed, set_link_downed: u64 = 88, 8;
        /// Packets with an error.
        rcv_errors, set_rcv_errors: u64 = 96, 8;
        /// Packets marked bad by a switch before.
        rcv_remote_physical_errors, set_rcv_remote_physical_errors: u64 = 104, 8;
        /// Packets that the switch could not forward.
        rcv_switch_relay_errors, set_rcv_switch_relay_errors: u64 = 112, 8;
        /// Packets that could not be sent.
        xmit_discards, set_xmit_discards: u64 = 120, 8;
        /// Packets not sent because of a partition or raw filter.
        xmit_constraint_errors, set_xmit_constraint_errors: u64 = 128, 8;
        /// Packets not accepted because of a partition or raw filter.
        rcv_constraint_errors, set_rcv_constraint_errors: u64 = 136, 8;
        /// Local link integrity errors.
        link_integrity_errors, set_link_integrity_errors: u64 = 144, 8;
        /// Excessive buffer overruns.
        buffer_overruns, set_buffer_overruns: u64 = 152, 8;
        /// Management packets dropped.
        vl15_dropped, set_vl15_dropped: u64 = 160, 8;
        /// Ticks during which packets waited.
        xmit_wait, set_xmit_wait: u64 = 168, 8;
        /// Packets to QP1 dropped.
        qp1_dropped, set_qp1_dropped: u64 = 176, 8;
    }
}

/// ClassPortInfo of an agent with extended counters; `all_ports` says whether port 255 may be asked
/// for.
pub fn class_port_info(all_ports: bool) -> ClassPortInfo {
    let mut info = ClassPortInfo::zeroed();
    let all = if all_ports { capability::ALL_PORT_SELECT } else { 0 };
    info.set_base_version(1)
        .set_class_version(1)
        .set_capability_mask(capability::EXTENDED_WIDTH | capability::PORT_XMIT_WAIT | all)
        .set_capability_mask2(capability::MASK2_ADDITIONAL_EXTENDED)
        .set_resp_time_value(18);
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{class, method};
    use crate::view::tests::assert_disjoint;

    #[test]
    fn counters_are_where_the_table_says() {
        let mut counters = PortCounters::zeroed();
        counters.set_port_select(1).set_rcv_errors(0x0102).set_xmit_wait(0x0304_0506).set_vl15_dropped(7);
        let b = counters.as_bytes();
        assert_eq!((b[1], b[8], b[9], b[23], b[40], b[43]), (1, 1, 2, 7, 3, 6));
        assert_disjoint(PortCounters::fields(), PortCounters::LEN);
        assert_disjoint(PortCountersExtended::fields(), PortCountersExtended::LEN);
        let mut mad = Mad::new(class::PERF_MGMT, 1, method::GET, attr::PORT_COUNTERS, 1);
        set_data(&mut mad, b);
        assert_eq!(mad.as_bytes()[64 + 43], 6);
        assert_eq!(PortCounters::from_slice(data(&mad)), Some(counters));
        set_data(&mut mad, &[9; 300]);
        assert_eq!(data(&mad), &[9; 192]);
        assert_eq!(mad.as_bytes()[63], 0);
    }

    #[test]
    fn the_agent_says_what_it_can() {
        let b = *class_port_info(true).as_bytes();
        assert_eq!(b[..8], [1, 1, 0x13, 0, 0, 0, 0, (0x20 * 2) | 18]);
    }
}
