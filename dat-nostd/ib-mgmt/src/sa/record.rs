//! Records of the subnet administrator and their component masks (IBA volume 1, section 15.2.5).

use ib_types::{Gid, Lid, PKey, QKey, QpNumber, ServiceLevel};

use crate::mad::{GrhAddress, MadAddress};
use crate::smp::{NodeDescription, NodeInfo, PortInfo, SmInfo, SwitchInfo};
use crate::view::record;

/// Selectors of MTU, rate and life time.
pub mod selector {
    /// Greater than the value.
    pub const GREATER: u8 = 0;
    /// Less than the value.
    pub const LESS: u8 = 1;
    /// Exactly the value.
    pub const EXACTLY: u8 = 2;
    /// The largest available.
    pub const LARGEST: u8 = 3;
}

record! {
    /// PathRecord, attribute 0x35: a path between two ports, as the subnet administrator gives it
    /// and the communication manager uses it.
    pub struct PathRecord[64] {
        /// Service id; 0 when paths to no particular service are meant.
        service_id, set_service_id: u64 = 0, 8;
        /// Destination GID.
        dgid, set_dgid: Gid = 8, 16;
        /// Source GID.
        sgid, set_sgid: Gid = 24, 16;
        /// Destination LID.
        dlid, set_dlid: Lid = 40, 2;
        /// Source LID.
        slid, set_slid: Lid = 42, 2;
        /// Raw packets.
        raw_traffic, set_raw_traffic: bool = 44, 4 [31:31];
        /// Flow label.
        flow_label, set_flow_label: u32 = 44, 4 [27:8];
        /// Hop limit.
        hop_limit, set_hop_limit: u8 = 44, 4 [7:0];
        /// Traffic class.
        traffic_class, set_traffic_class: u8 = 48, 1;
        /// The path works both ways.
        reversible, set_reversible: bool = 49, 1 [7:7];
        /// Number of paths asked for.
        numb_path, set_numb_path: u8 = 49, 1 [6:0];
        /// Partition key.
        pkey, set_pkey: PKey = 50, 2;
        /// QoS class.
        qos_class, set_qos_class: u16 = 52, 2 [15:4];
        /// Service level.
        sl, set_sl: ServiceLevel = 52, 2 [3:0];
        /// MTU selector.
        mtu_selector, set_mtu_selector: u8 = 54, 1 [7:6];
        /// MTU code, 1 to 5.
        mtu, set_mtu: u8 = 54, 1 [5:0];
        /// Rate selector.
        rate_selector, set_rate_selector: u8 = 55, 1 [7:6];
        /// Rate code.
        rate, set_rate: u8 = 55, 1 [5:0];
        /// Packet life time selector.
        packet_life_time_selector, set_packet_life_time_selector: u8 = 56, 1 [7:6];
        /// Packet life time exponent: 4.096 µs · 2^n.
        packet_life_time, set_packet_life_time: u8 = 56, 1 [5:0];
        /// Preference among several paths, 0 best.
        preference, set_preference: u8 = 57, 1;
    }
}

impl PathRecord {
    /// Returns whether packets along this path need a GRH, because it crosses a router.
    pub fn is_routed(&self) -> bool {
        self.hop_limit() > 1
    }

    /// The global route to put into packets, if the path needs one.
    pub fn grh(&self) -> Option<GrhAddress> {
        self.is_routed().then(|| GrhAddress {
            local_gid: self.sgid(),
            remote_gid: self.dgid(),
            hop_limit: self.hop_limit(),
            traffic_class: self.traffic_class(),
            flow_label: self.flow_label(),
        })
    }

    /// QP1 at the end of this path. Path bits are 0: the caller adds them, because it has the own
    /// port's LMC.
    pub fn gsi_address(&self) -> MadAddress {
        MadAddress {
            lid: self.dlid(),
            qpn: QpNumber::GSI,
            sl: self.sl(),
            path_bits: 0,
            pkey: self.pkey(),
            grh: self.grh(),
        }
    }
}

bitflags::bitflags! {
    /// Components of a [`PathRecord`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PathMask: u64 {
        /// Service id, upper 56 bits.
        const SERVICE_ID_56MSB = 1;
        /// Service id, lower 8 bits.
        const SERVICE_ID_8LSB = 1 << 1;
        /// Destination GID.
        const DGID = 1 << 2;
        /// Source GID.
        const SGID = 1 << 3;
        /// Destination LID.
        const DLID = 1 << 4;
        /// Source LID.
        const SLID = 1 << 5;
        /// Raw traffic.
        const RAW_TRAFFIC = 1 << 6;
        /// Flow label.
        const FLOW_LABEL = 1 << 8;
        /// Hop limit.
        const HOP_LIMIT = 1 << 9;
        /// Traffic class.
        const TRAFFIC_CLASS = 1 << 10;
        /// Reversible.
        const REVERSIBLE = 1 << 11;
        /// Number of paths.
        const NUMB_PATH = 1 << 12;
        /// Partition key.
        const PKEY = 1 << 13;
        /// QoS class.
        const QOS_CLASS = 1 << 14;
        /// Service level.
        const SL = 1 << 15;
        /// MTU selector.
        const MTU_SELECTOR = 1 << 16;
        /// MTU.
        const MTU = 1 << 17;
        /// Rate selector.
        const RATE_SELECTOR = 1 << 18;
        /// Rate.
        const RATE = 1 << 19;
        /// Packet life time selector.
        const PACKET_LIFE_TIME_SELECTOR = 1 << 20;
        /// Packet life time.
        const PACKET_LIFE_TIME = 1 << 21;
        /// Preference.
        const PREFERENCE = 1 << 22;
    }
}

record! {
    /// MCMemberRecord, attribute 0x38.
    pub struct McMemberRecord[52] {
        /// Multicast GID.
        mgid, set_mgid: Gid = 0, 16;
        /// GID of the port that joins.
        port_gid, set_port_gid: Gid = 16, 16;
        /// Q_Key of the group.
        qkey, set_qkey: QKey = 32, 4;
        /// Multicast LID.
        mlid, set_mlid: Lid = 36, 2;
        /// MTU selector.
        mtu_selector, set_mtu_selector: u8 = 38, 1 [7:6];
        /// MTU code.
        mtu, set_mtu: u8 = 38, 1 [5:0];
        /// Traffic class.
        traffic_class, set_traffic_class: u8 = 39, 1;
        /// Partition key.
        pkey, set_pkey: PKey = 40, 2;
        /// Rate selector.
        rate_selector, set_rate_selector: u8 = 42, 1 [7:6];
        /// Rate code.
        rate, set_rate: u8 = 42, 1 [5:0];
        /// Packet life time selector.
        packet_life_time_selector, set_packet_life_time_selector: u8 = 43, 1 [7:6];
        /// Packet life time exponent.
        packet_life_time, set_packet_life_time: u8 = 43, 1 [5:0];
        /// Service level.
        sl, set_sl: ServiceLevel = 44, 4 [31:28];
        /// Flow label.
        flow_label, set_flow_label: u32 = 44, 4 [27:8];
        /// Hop limit.
        hop_limit, set_hop_limit: u8 = 44, 4 [7:0];
        /// Scope.
        scope, set_scope: u8 = 48, 1 [7:4];
        /// Join state, see [`join_state`].
        join_state, set_join_state: u8 = 48, 1 [3:0];
        /// Joined by proxy.
        proxy_join, set_proxy_join: bool = 49, 1 [7:7];
    }
}

/// Join states of an [`McMemberRecord`].
pub mod join_state {
    /// Full member.
    pub const FULL_MEMBER: u8 = 1;
    /// Non-member: receives, does not keep the group alive.
    pub const NON_MEMBER: u8 = 2;
    /// Send-only non-member.
    pub const SEND_ONLY_NON_MEMBER: u8 = 4;
    /// Send-only full member: keeps the group alive, does not receive.
    pub const SEND_ONLY_FULL_MEMBER: u8 = 8;
}

bitflags::bitflags! {
    /// Components of an [`McMemberRecord`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct McMemberMask: u64 {
        /// Multicast GID.
        const MGID = 1;
        /// Port GID.
        const PORT_GID = 1 << 1;
        /// Q_Key.
        const QKEY = 1 << 2;
        /// Multicast LID.
        const MLID = 1 << 3;
        /// MTU selector.
        const MTU_SELECTOR = 1 << 4;
        /// MTU.
        const MTU = 1 << 5;
        /// Traffic class.
        const TRAFFIC_CLASS = 1 << 6;
        /// Partition key.
        const PKEY = 1 << 7;
        /// Rate selector.
        const RATE_SELECTOR = 1 << 8;
        /// Rate.
        const RATE = 1 << 9;
        /// Packet life time selector.
        const PACKET_LIFE_TIME_SELECTOR = 1 << 10;
        /// Packet life time.
        const PACKET_LIFE_TIME = 1 << 11;
        /// Service level.
        const SL = 1 << 12;
        /// Flow label.
        const FLOW_LABEL = 1 << 13;
        /// Hop limit.
        const HOP_LIMIT = 1 << 14;
        /// Scope.
        const SCOPE = 1 << 15;
        /// Join state.
        const JOIN_STATE = 1 << 16;
        /// Proxy join.
        const PROXY_JOIN = 1 << 17;
    }
}

/// NodeRecord, attribute 0x11: LID, NodeInfo, NodeDescription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// LID of a port of the node.
    pub lid: u16,
    /// NodeInfo.
    pub info: NodeInfo,
    /// NodeDescription.
    pub description: NodeDescription,
}

impl NodeRecord {
    /// Encoded length in bytes.
    pub const LEN: usize = 108;

    /// From record data.
    pub fn from_slice(data: &[u8]) -> Option<NodeRecord> {
        Some(NodeRecord {
            lid: u16::from_be_bytes(*data.first_chunk()?),
            info: NodeInfo::from_slice(data.get(4..)?)?,
            description: NodeDescription(*data.get(44..)?.first_chunk()?),
        })
    }

    /// Record data.
    pub fn to_bytes(&self) -> [u8; 108] {
        let mut b = [0; 108];
        b[0..2].copy_from_slice(&self.lid.to_be_bytes());
        b[4..44].copy_from_slice(self.info.as_bytes());
        b[44..108].copy_from_slice(&self.description.0);
        b
    }
}

/// PortInfoRecord, attribute 0x12: LID, port number, PortInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfoRecord {
    /// LID of the end port; of a switch, of its port 0.
    pub end_port_lid: u16,
    /// Port number.
    pub port_num: u8,
    /// PortInfo.
    pub info: PortInfo,
}

impl PortInfoRecord {
    /// Encoded length in bytes.
    pub const LEN: usize = 68;

    /// From record data.
    pub fn from_slice(data: &[u8]) -> Option<PortInfoRecord> {
        Some(PortInfoRecord {
            end_port_lid: u16::from_be_bytes(*data.first_chunk()?),
            port_num: *data.get(2)?,
            info: PortInfo::from_slice(data.get(4..)?)?,
        })
    }

    /// Record data.
    pub fn to_bytes(&self) -> [u8; 68] {
        let mut b = [0; 68];
        b[0..2].copy_from_slice(&self.end_port_lid.to_be_bytes());
        b[2] = self.port_num;
        b[4..68].copy_from_slice(self.info.as_bytes());
        b
    }
}

bitflags::bitflags! {
    /// The leading components of [`NodeRecord`], [`PortInfoRecord`] and [`GuidInfoRecord`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RecordMask: u64 {
        /// LID.
        const LID = 1;
        /// Port number (PortInfoRecord) or block number (GUIDInfoRecord).
        const PORT_OR_BLOCK = 1 << 1;
        /// NodeRecord: port GUID of the NodeInfo.
        const NODE_PORT_GUID = 1 << 8;
    }
}

bitflags::bitflags! {
    /// Components of a [`NodeRecord`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NodeMask: u64 {
        /// LID.
        const LID = 1;
        /// Node type.
        const NODE_TYPE = 1 << 4;
        /// System image GUID.
        const SYSTEM_IMAGE_GUID = 1 << 6;
        /// Node GUID.
        const NODE_GUID = 1 << 7;
        /// Port GUID.
        const PORT_GUID = 1 << 8;
        /// Node description.
        const NODE_DESCRIPTION = 1 << 14;
    }
}

bitflags::bitflags! {
    /// Components of a [`PortInfoRecord`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PortInfoMask: u64 {
        /// LID of the end port.
        const LID = 1;
        /// Port number.
        const PORT_NUM = 1 << 1;
        /// GID prefix.
        const GID_PREFIX = 1 << 4;
        /// Base LID.
        const BASE_LID = 1 << 5;
        /// LID of the subnet manager.
        const MASTER_SM_LID = 1 << 6;
        /// Capability mask; with bit 31 of the attribute modifier set, the bits that are to be set.
        const CAPABILITY_MASK = 1 << 7;
        /// Port state.
        const PORT_STATE = 1 << 15;
    }
}

record! {
    /// SwitchInfoRecord, attribute 0x14: LID, SwitchInfo.
    pub struct SwitchInfoRecord[24] {
        /// LID of the switch.
        lid, set_lid: u16 = 0, 2;
    }
}

impl SwitchInfoRecord {
    /// The SwitchInfo.
    pub fn info(&self) -> SwitchInfo {
        self.as_bytes().get(4..).and_then(SwitchInfo::from_slice).unwrap_or_default()
    }

    /// Sets [`Self::info`].
    pub fn set_info(&mut self, info: &SwitchInfo) -> &mut Self {
        if let Some(room) = self.as_bytes_mut().last_chunk_mut() {
            *room = *info.as_bytes();
        }
        self
    }
}

record! {
    /// SMInfoRecord, attribute 0x18: LID, SMInfo.
    pub struct SmInfoRecord[28] {
        /// LID of the subnet manager.
        lid, set_lid: u16 = 0, 2;
    }
}

impl SmInfoRecord {
    /// The SMInfo.
    pub fn info(&self) -> SmInfo {
        self.as_bytes().get(4..).and_then(SmInfo::from_slice).unwrap_or_default()
    }

    /// Sets [`Self::info`].
    pub fn set_info(&mut self, info: &SmInfo) -> &mut Self {
        if let Some(room) = self.as_bytes_mut().last_chunk_mut() {
            *room = *info.as_bytes();
        }
        self
    }
}

record! {
    /// LinkRecord, attribute 0x20: one direction of a link.
    pub struct LinkRecord[8] {
        /// LID of the node it leads from.
        from_lid, set_from_lid: u16 = 0, 2;
        /// Port it leads from.
        from_port, set_from_port: u8 = 2, 1;
        /// Port it leads to.
        to_port, set_to_port: u8 = 3, 1;
        /// LID of the node it leads to.
        to_lid, set_to_lid: u16 = 4, 2;
    }
}

record! {
    /// Records of 64-byte blocks: LinearForwardingTableRecord (attribute 0x15) and P_KeyTableRecord
    /// (attribute 0x33). VLArbitrationTableRecord (attribute 0x36) has the port in the upper byte
    /// of [`Self::block_num`]. The block is bytes 8 to 71.
    pub struct BlockRecord[72] {
        /// LID of the node or end port.
        lid, set_lid: u16 = 0, 2;
        /// Number of the block.
        block_num, set_block_num: u16 = 2, 2;
        /// P_KeyTableRecord: port number.
        port_num, set_port_num: u8 = 4, 1;
    }
}

impl BlockRecord {
    /// The block.
    pub fn block(&self) -> &[u8; 64] {
        self.as_bytes().last_chunk().unwrap_or(&[0; 64])
    }

    /// Sets [`Self::block`].
    pub fn set_block(&mut self, block: &[u8; 64]) -> &mut Self {
        if let Some(room) = self.as_bytes_mut().last_chunk_mut() {
            *room = *block;
        }
        self
    }
}

record! {
    /// SLtoVLMappingTableRecord, attribute 0x13. The table is bytes 8 to 15, four bits for each of
    /// 16 service levels.
    pub struct SlToVlRecord[16] {
        /// LID of the node or end port.
        lid, set_lid: u16 = 0, 2;
        /// The port that packets come in by; 0 at a channel adapter.
        input_port_num, set_input_port_num: u8 = 2, 1;
        /// The port that they leave by.
        output_port_num, set_output_port_num: u8 = 3, 1;
    }
}

impl SlToVlRecord {
    /// The table, as in SLtoVLMappingTable.
    pub fn sl_to_vl(&self) -> &[u8; 8] {
        self.as_bytes().last_chunk().unwrap_or(&[0; 8])
    }

    /// Sets [`Self::sl_to_vl`].
    pub fn set_sl_to_vl(&mut self, table: &[u8; 8]) -> &mut Self {
        if let Some(room) = self.as_bytes_mut().last_chunk_mut() {
            *room = *table;
        }
        self
    }
}

record! {
    /// GUIDInfoRecord, attribute 0x30: LID, block number, eight GUIDs (bytes 8 to 71).
    pub struct GuidInfoRecord[72] {
        /// LID.
        lid, set_lid: u16 = 0, 2;
        /// Block number.
        block_num, set_block_num: u8 = 2, 1;
    }
}

record! {
    /// ServiceRecord, attribute 0x31. Its name is bytes 48 to 111, its data bytes 112 to 175.
    pub struct ServiceRecord[176] {
        /// Service id.
        service_id, set_service_id: u64 = 0, 8;
        /// GID of the port that offers the service.
        service_gid, set_service_gid: Gid = 8, 16;
        /// Partition key.
        service_pkey, set_service_pkey: u16 = 24, 2;
        /// Seconds the registration lasts; all ones for ever.
        service_lease, set_service_lease: u32 = 28, 4;
    }
}

bitflags::bitflags! {
    /// Components of a [`ServiceRecord`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ServiceMask: u64 {
        /// Service id.
        const SERVICE_ID = 1;
        /// Service GID.
        const SERVICE_GID = 1 << 1;
        /// Partition key.
        const SERVICE_PKEY = 1 << 2;
        /// Lease.
        const SERVICE_LEASE = 1 << 4;
        /// Key.
        const SERVICE_KEY = 1 << 5;
        /// Name.
        const SERVICE_NAME = 1 << 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::assert_disjoint;

    #[test]
    fn fields_do_not_overlap() {
        assert_disjoint(PathRecord::fields(), PathRecord::LEN);
        assert_disjoint(McMemberRecord::fields(), McMemberRecord::LEN);
        assert_disjoint(ServiceRecord::fields(), ServiceRecord::LEN);
        assert_disjoint(GuidInfoRecord::fields(), GuidInfoRecord::LEN);
        assert_disjoint(super::super::SaMad::fields(), 256);
    }

    #[test]
    fn path_record_literal() {
        let mut r = PathRecord::zeroed();
        r.set_dgid(Gid([0xd0; 16]))
            .set_sgid(Gid([0x50; 16]))
            .set_dlid(Lid::new(0x0102))
            .set_slid(Lid::new(0x0304))
            .set_flow_label(0x12345)
            .set_hop_limit(64)
            .set_traffic_class(0x20)
            .set_reversible(true)
            .set_numb_path(1)
            .set_pkey(PKey::DEFAULT)
            .set_qos_class(0xabc)
            .set_sl(ServiceLevel::new(3))
            .set_mtu_selector(selector::EXACTLY)
            .set_mtu(5)
            .set_rate_selector(selector::EXACTLY)
            .set_rate(16)
            .set_packet_life_time_selector(selector::EXACTLY)
            .set_packet_life_time(18)
            .set_preference(7);
        let b = r.as_bytes();
        assert_eq!((b[8], b[23], b[24], b[39]), (0xd0, 0xd0, 0x50, 0x50));
        assert_eq!(b[40..50], [1, 2, 3, 4, 0x01, 0x23, 0x45, 64, 0x20, 0x81]);
        assert_eq!(b[50..58], [0xff, 0xff, 0xab, 0xc3, 0x85, 0x90, 0x92, 7]);
        // The usual query: dgid, sgid, reversible, numb_path, pkey.
        let mask =
            PathMask::DGID | PathMask::SGID | PathMask::REVERSIBLE | PathMask::NUMB_PATH | PathMask::PKEY;
        assert_eq!(mask.bits(), 0x380c);
    }

    #[test]
    fn mc_member_record_literal() {
        let mut r = McMemberRecord::zeroed();
        r.set_qkey(QKey::new(0x0b1b))
            .set_mlid(Lid::new(0xc001))
            .set_mtu_selector(2)
            .set_mtu(4)
            .set_pkey(PKey::new(0xffff))
            .set_rate(3);
        r.set_sl(ServiceLevel::new(2))
            .set_flow_label(0x54321)
            .set_hop_limit(9)
            .set_scope(2)
            .set_join_state(join_state::FULL_MEMBER);
        r.set_proxy_join(true);
        let b = r.as_bytes();
        assert_eq!(b[32..44], [0, 0, 0x0b, 0x1b, 0xc0, 1, 0x84, 0, 0xff, 0xff, 3, 0]);
        assert_eq!(b[44..50], [0x25, 0x43, 0x21, 9, 0x21, 0x80]);
    }

    #[test]
    fn composite_records_round_trip() {
        let mut info = NodeInfo::zeroed();
        info.set_node_guid(9).set_vendor_id(0x02c9);
        let node = NodeRecord { lid: 7, info, description: NodeDescription::new("model") };
        assert_eq!(node.to_bytes()[..2], [0, 7]);
        assert_eq!(node.to_bytes()[44..49], *b"model");
        assert_eq!(NodeRecord::from_slice(&node.to_bytes()), Some(node));
        assert_eq!(NodeRecord::from_slice(&[0; 107]), None);
        let mut info = PortInfo::zeroed();
        info.set_lid(7);
        let port = PortInfoRecord { end_port_lid: 7, port_num: 1, info };
        assert_eq!(port.to_bytes()[20..22], [0, 7]);
        assert_eq!(PortInfoRecord::from_slice(&port.to_bytes()), Some(port));
        assert_eq!(PortInfoRecord::from_slice(&[0; 67]), None);
    }
}
