//! Management datagrams: the common header, classes, methods, statuses, attribute ids.
//! (IBA volume 1, section 13.4.)

use ib_types::{Gid, Lid, PKey, QpNumber, ServiceLevel};

use crate::view::record;

/// Every MAD has this size in bytes.
pub const MAD_LEN: usize = 256;
/// `base_version` of every MAD.
pub const BASE_VERSION: u8 = 1;

record! {
    /// A management datagram: 256 bytes that begin with the common header.
    pub struct Mad[256] {
        /// Base version, 1.
        base_version, set_base_version: u8 = 0, 1;
        /// Management class, see [`class`].
        mgmt_class, set_mgmt_class: u8 = 1, 1;
        /// Class version.
        class_version, set_class_version: u8 = 2, 1;
        /// Method, see [`method`]; the top bit marks a response.
        method, set_method: u8 = 3, 1;
        /// Status, see [`status`].
        status, set_status: u16 = 4, 2;
        /// Class specific; hop pointer and hop count of a directed-route SMP.
        class_specific, set_class_specific: u16 = 6, 2;
        /// Transaction id, echoed by the response.
        tid, set_tid: u64 = 8, 8;
        /// Attribute id, see [`attr`].
        attr_id, set_attr_id: u16 = 16, 2;
        /// Attribute modifier.
        attr_mod, set_attr_mod: u32 = 20, 4;
    }
}

impl Mad {
    /// Length of the common header.
    pub const HEADER_LEN: usize = 24;

    /// A MAD with its header filled in, data zero.
    pub fn new(mgmt_class: u8, class_version: u8, method: u8, attr_id: u16, tid: u64) -> Mad {
        let mut mad = Mad::zeroed();
        mad.set_base_version(BASE_VERSION)
            .set_mgmt_class(mgmt_class)
            .set_class_version(class_version)
            .set_method(method)
            .set_attr_id(attr_id)
            .set_tid(tid);
        mad
    }

    /// Everything after the common header.
    pub fn data(&self) -> &[u8; 232] {
        // The slice has exactly this length, so the fallback is never taken and the optimiser drops
        // it.
        self.as_bytes().last_chunk().unwrap_or(&[0; 232])
    }

    /// Replaces everything after the common header.
    pub fn set_data(&mut self, data: &[u8; 232]) -> &mut Mad {
        if let Some(room) = self.as_bytes_mut().last_chunk_mut() {
            *room = *data;
        }
        self
    }

    /// Returns whether this is a response ([`method::RESPONSE`] set, or a TrapRepress).
    pub fn is_response(&self) -> bool {
        self.method() & method::RESPONSE != 0 || self.method() == method::TRAP_REPRESS
    }

    /// Turns a request into its response: same header and data, response method, the status given.
    pub fn to_response(&self, status: u16) -> Mad {
        let mut mad = *self;
        let method = match self.method() {
            method::SET => method::GET_RESP,
            other => other | method::RESPONSE,
        };
        mad.set_method(method).set_status(status);
        mad
    }
}

/// Management classes.
pub mod class {
    /// Subnet management, LID routed.
    pub const SUBN_LID_ROUTED: u8 = 0x01;
    /// Subnet management, directed route.
    pub const SUBN_DIRECTED_ROUTE: u8 = 0x81;
    /// Subnet administration; class version 2.
    pub const SUBN_ADM: u8 = 0x03;
    /// Performance management.
    pub const PERF_MGMT: u8 = 0x04;
    /// Baseboard management.
    pub const BM: u8 = 0x05;
    /// Device management.
    pub const DEVICE_MGMT: u8 = 0x06;
    /// Communication management; class version 2.
    pub const CM: u8 = 0x07;
}

/// Methods.
pub mod method {
    /// Bit of every response method.
    pub const RESPONSE: u8 = 0x80;
    /// Get.
    pub const GET: u8 = 0x01;
    /// Set.
    pub const SET: u8 = 0x02;
    /// Send, no response.
    pub const SEND: u8 = 0x03;
    /// Trap.
    pub const TRAP: u8 = 0x05;
    /// Report.
    pub const REPORT: u8 = 0x06;
    /// TrapRepress.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// Response to Get and Set.
    pub const GET_RESP: u8 = 0x81;
    /// Response to Report.
    pub const REPORT_RESP: u8 = 0x86;
    /// Subnet administration: table query.
    pub const GET_TABLE: u8 = 0x12;
    /// Response to GetTable.
    pub const GET_TABLE_RESP: u8 = 0x92;
    /// Subnet administration: query with several segments.
    pub const GET_MULTI: u8 = 0x14;
    /// Subnet administration: delete.
    pub const DELETE: u8 = 0x15;
    /// Response to Delete.
    pub const DELETE_RESP: u8 = 0x95;
}

/// Statuses: common ones in the low byte, subnet administration's in the high byte.
pub mod status {
    /// Success.
    pub const OK: u16 = 0;
    /// Busy, request discarded: try again.
    pub const BUSY: u16 = 0x01;
    /// Redirection required.
    pub const REDIRECT: u16 = 0x02;
    /// Bad base or class version.
    pub const BAD_VERSION: u16 = 0x04;
    /// Method not supported.
    pub const METHOD_NOT_SUPPORTED: u16 = 0x08;
    /// Method and attribute combination not supported.
    pub const ATTR_NOT_SUPPORTED: u16 = 0x0c;
    /// Invalid field in attribute or modifier.
    pub const INVALID_FIELD: u16 = 0x1c;
    /// SA: no resources.
    pub const SA_NO_RESOURCES: u16 = 0x0100;
    /// SA: request invalid.
    pub const SA_REQ_INVALID: u16 = 0x0200;
    /// SA: no records match.
    pub const SA_NO_RECORDS: u16 = 0x0300;
    /// SA: more records match than the method can return.
    pub const SA_TOO_MANY_RECORDS: u16 = 0x0400;
    /// SA: the requester's GID is invalid.
    pub const SA_INVALID_GID: u16 = 0x0500;
    /// SA: component mask lacks required components.
    pub const SA_INSUFFICIENT_COMPONENTS: u16 = 0x0600;
    /// Direction bit of a directed-route SMP's status.
    pub const SMP_DIRECTION: u16 = 0x8000;
}

/// Attribute ids.
pub mod attr {
    /// ClassPortInfo.
    pub const CLASS_PORT_INFO: u16 = 0x01;
    /// Notice.
    pub const NOTICE: u16 = 0x02;
    /// InformInfo.
    pub const INFORM_INFO: u16 = 0x03;
    /// SM: NodeDescription.
    pub const NODE_DESCRIPTION: u16 = 0x10;
    /// SM: NodeInfo.
    pub const NODE_INFO: u16 = 0x11;
    /// SM: SwitchInfo.
    pub const SWITCH_INFO: u16 = 0x12;
    /// SM: GUIDInfo.
    pub const GUID_INFO: u16 = 0x14;
    /// SM: PortInfo.
    pub const PORT_INFO: u16 = 0x15;
    /// SM: P_KeyTable.
    pub const PKEY_TABLE: u16 = 0x16;
    /// SM: SLtoVLMappingTable.
    pub const SL_TO_VL: u16 = 0x17;
    /// SM: VLArbitrationTable.
    pub const VL_ARBITRATION: u16 = 0x18;
    /// SM: LinearForwardingTable.
    pub const LINEAR_FORWARDING: u16 = 0x19;
    /// SM: MulticastForwardingTable.
    pub const MULTICAST_FORWARDING: u16 = 0x1b;
    /// SM: SMInfo.
    pub const SM_INFO: u16 = 0x20;
    /// SM, Mellanox: extended port info.
    pub const MLX_EXT_PORT_INFO: u16 = 0xff90;
    /// SA: NodeRecord.
    pub const NODE_RECORD: u16 = 0x11;
    /// SA: PortInfoRecord.
    pub const PORT_INFO_RECORD: u16 = 0x12;
    /// SA: SLtoVLMappingTableRecord.
    pub const SL_TO_VL_RECORD: u16 = 0x13;
    /// SA: SwitchInfoRecord.
    pub const SWITCH_INFO_RECORD: u16 = 0x14;
    /// SA: LinearForwardingTableRecord.
    pub const LINEAR_FORWARDING_RECORD: u16 = 0x15;
    /// SA: MulticastForwardingTableRecord.
    pub const MULTICAST_FORWARDING_RECORD: u16 = 0x17;
    /// SA: SMInfoRecord.
    pub const SM_INFO_RECORD: u16 = 0x18;
    /// SA: GUIDInfoRecord.
    pub const GUID_INFO_RECORD: u16 = 0x30;
    /// SA: LinkRecord.
    pub const LINK_RECORD: u16 = 0x20;
    /// SA: P_KeyTableRecord.
    pub const PKEY_TABLE_RECORD: u16 = 0x33;
    /// SA: ServiceRecord.
    pub const SERVICE_RECORD: u16 = 0x31;
    /// SA: PathRecord.
    pub const PATH_RECORD: u16 = 0x35;
    /// SA: VLArbitrationTableRecord.
    pub const VL_ARBITRATION_RECORD: u16 = 0x36;
    /// SA: MCMemberRecord.
    pub const MC_MEMBER_RECORD: u16 = 0x38;
    /// SA: MultiPathRecord.
    pub const MULTI_PATH_RECORD: u16 = 0x3a;
    /// SA: InformInfoRecord.
    pub const INFORM_INFO_RECORD: u16 = 0xf3;
    /// CM: REQ.
    pub const CM_REQ: u16 = 0x10;
    /// CM: MRA.
    pub const CM_MRA: u16 = 0x11;
    /// CM: REJ.
    pub const CM_REJ: u16 = 0x12;
    /// CM: REP.
    pub const CM_REP: u16 = 0x13;
    /// CM: RTU.
    pub const CM_RTU: u16 = 0x14;
    /// CM: DREQ.
    pub const CM_DREQ: u16 = 0x15;
    /// CM: DREP.
    pub const CM_DREP: u16 = 0x16;
    /// CM: SIDR_REQ.
    pub const CM_SIDR_REQ: u16 = 0x17;
    /// CM: SIDR_REP.
    pub const CM_SIDR_REP: u16 = 0x18;
    /// CM: LAP.
    pub const CM_LAP: u16 = 0x19;
    /// CM: APR.
    pub const CM_APR: u16 = 0x1a;
}

record! {
    /// ClassPortInfo, attribute 1 of every class (IBA volume 1, section 13.4.8.1).
    pub struct ClassPortInfo[72] {
        /// Base version, 1.
        base_version, set_base_version: u8 = 0, 1;
        /// Class version.
        class_version, set_class_version: u8 = 1, 1;
        /// Capability mask.
        capability_mask, set_capability_mask: u16 = 2, 2;
        /// Class-specific capability mask 2.
        capability_mask2, set_capability_mask2: u32 = 4, 4 [31:5];
        /// Response time exponent: 4.096 µs · 2^n.
        resp_time_value, set_resp_time_value: u8 = 4, 4 [4:0];
        /// Redirect GID.
        redirect_gid, set_redirect_gid: Gid = 8, 16;
        /// Redirect traffic class.
        redirect_tclass, set_redirect_tclass: u8 = 24, 4 [31:24];
        /// Redirect service level.
        redirect_sl, set_redirect_sl: u8 = 24, 4 [23:20];
        /// Redirect flow label.
        redirect_flow_label, set_redirect_flow_label: u32 = 24, 4 [19:0];
        /// Redirect LID.
        redirect_lid, set_redirect_lid: u16 = 28, 2;
        /// Redirect P_Key.
        redirect_pkey, set_redirect_pkey: u16 = 30, 2;
        /// Redirect QP number.
        redirect_qpn, set_redirect_qpn: u32 = 32, 4 [23:0];
        /// Redirect Q_Key.
        redirect_qkey, set_redirect_qkey: u32 = 36, 4;
        /// Trap GID.
        trap_gid, set_trap_gid: Gid = 40, 16;
        /// Trap traffic class.
        trap_tclass, set_trap_tclass: u8 = 56, 4 [31:24];
        /// Trap service level.
        trap_sl, set_trap_sl: u8 = 56, 4 [23:20];
        /// Trap flow label.
        trap_flow_label, set_trap_flow_label: u32 = 56, 4 [19:0];
        /// Trap LID.
        trap_lid, set_trap_lid: u16 = 60, 2;
        /// Trap P_Key.
        trap_pkey, set_trap_pkey: u16 = 62, 2;
        /// Trap hop limit.
        trap_hop_limit, set_trap_hop_limit: u8 = 64, 4 [31:24];
        /// Trap QP number.
        trap_qpn, set_trap_qpn: u32 = 64, 4 [23:0];
        /// Trap Q_Key.
        trap_qkey, set_trap_qkey: u32 = 68, 4;
    }
}

/// Where a MAD came from or goes to, as QP1 sees it. A reply goes back to the address its request
/// came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddress {
    /// The other port's LID (source of a received MAD, destination of one to send).
    pub lid: Lid,
    /// The other side's QP number, 1 for general services.
    pub qpn: QpNumber,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low LID bits of the own port, below its LMC.
    pub path_bits: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Global route, when the packet has or needs a GRH.
    pub grh: Option<GrhAddress>,
}

impl MadAddress {
    /// QP1 of a port on the own subnet, service level 0, default partition.
    pub const fn local(lid: Lid) -> MadAddress {
        MadAddress {
            lid,
            qpn: QpNumber::GSI,
            sl: ServiceLevel::new(0),
            path_bits: 0,
            pkey: PKey::DEFAULT,
            grh: None,
        }
    }
}

/// The global part of a [`MadAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrhAddress {
    /// The own port's GID.
    pub local_gid: Gid,
    /// The other port's GID.
    pub remote_gid: Gid,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::assert_disjoint;

    #[test]
    fn header_literal() {
        let mut mad = Mad::new(class::CM, 2, method::SEND, attr::CM_REQ, 0x0102_0304_0506_0708);
        mad.set_attr_mod(0x0a0b_0c0d).set_status(status::SA_NO_RECORDS).set_class_specific(0x0102);
        let b = mad.as_bytes();
        assert_eq!(b[..8], [1, 7, 2, 3, 3, 0, 1, 2]);
        assert_eq!(b[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(b[16..24], [0, 0x10, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
        assert_disjoint(Mad::fields(), MAD_LEN);
        assert_disjoint(ClassPortInfo::fields(), ClassPortInfo::LEN);
    }

    #[test]
    fn responses() {
        for (request, response) in [
            (method::GET, method::GET_RESP),
            (method::SET, method::GET_RESP),
            (method::GET_TABLE, method::GET_TABLE_RESP),
            (method::DELETE, method::DELETE_RESP),
            (method::REPORT, method::REPORT_RESP),
        ] {
            let mad = Mad::new(class::SUBN_ADM, 2, request, attr::PATH_RECORD, 5);
            let reply = mad.to_response(status::SA_NO_RECORDS);
            assert_eq!((reply.method(), reply.status(), reply.tid()), (response, 0x0300, 5));
            assert!(reply.is_response() && !mad.is_response());
        }
    }

    #[test]
    fn data_is_the_part_after_the_header() {
        let mut mad = Mad::zeroed();
        let data: [u8; 232] = core::array::from_fn(|i| i as u8);
        mad.set_data(&data);
        assert_eq!(mad.data(), &data);
        assert_eq!((mad.as_bytes()[23], mad.as_bytes()[24], mad.as_bytes()[255]), (0, 0, 231));
    }
}
