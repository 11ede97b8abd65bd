//! Messages of the communication manager (IBA volume 1, section 12.6): class 0x07, class version 2,
//! method Send.
//!
//! Each is 232 bytes at byte 24 of the MAD. `from_mad` takes the bytes as they are, whatever the
//! header says; [`Message::parse`] looks at the header first.

use crate::mad::{Mad, attr, class, method};
use crate::view::record;
use ib_types::{Gid, Guid, Lid, PKey, Psn, QKey, QpNumber, ServiceLevel};

/// Class version of communication management.
pub const CLASS_VERSION: u8 = 2;

/// Error: the private data is longer than the field of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl core::fmt::Display for TooLong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("private data exceeds the message's room")
    }
}

impl core::error::Error for TooLong {}

macro_rules! message {
    ($name:ident, $attr:expr, private $private_at:literal, $private_len:literal $(, ari $ari_at:literal)?) => {
        impl $name {
            /// Attribute id of this message.
            pub const ATTR_ID: u16 = $attr;
            /// Bytes of private data.
            pub const PRIVATE_LEN: usize = $private_len;

            /// The message in a MAD.
            pub fn from_mad(mad: &Mad) -> Self {
                Self::from_bytes(*mad.data())
            }

            /// A MAD with this message.
            pub fn to_mad(&self, tid: u64) -> Mad {
                let mut mad = Mad::new(class::CM, CLASS_VERSION, method::SEND, $attr, tid);
                mad.set_data(self.as_bytes());
                mad
            }

            /// Private data, the whole fixed-size field.
            pub fn private_data(&self) -> &[u8] {
                const { assert!($private_at + $private_len == 232) };
                self.as_bytes().get($private_at..).unwrap_or_default()
            }

            /// Sets the private data; what remains of the field becomes zero.
            pub fn set_private_data(&mut self, data: &[u8]) -> Result<&mut Self, TooLong> {
                let field = self.as_bytes_mut().get_mut($private_at..).ok_or(TooLong)?;
                let (front, back) = field.split_at_mut_checked(data.len()).ok_or(TooLong)?;
                front.copy_from_slice(data);
                back.fill(0);
                Ok(self)
            }

            $(
                /// Additional information, the whole 72-byte field.
                pub fn info(&self) -> &[u8] {
                    self.as_bytes().get($ari_at..$ari_at + 72).unwrap_or_default()
                }

                /// Sets the additional information, 72 bytes at most.
                pub fn set_info(&mut self, info: &[u8]) -> Result<&mut Self, TooLong> {
                    let field = self.as_bytes_mut().get_mut($ari_at..$ari_at + 72).ok_or(TooLong)?;
                    let (front, back) = field.split_at_mut_checked(info.len()).ok_or(TooLong)?;
                    front.copy_from_slice(info);
                    back.fill(0);
                    // Checked above: at most 72.
                    self.set_info_len(info.len() as u8);
                    Ok(self)
                }
            )?
        }
    };
}

record! {
    /// REQ: request for communication (section 12.6.5).
    pub struct Req[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// Vendor id of the CA.
        vendor_id, set_vendor_id: u32 = 5, 3;
        /// The service asked for.
        service_id, set_service_id: u64 = 8, 8;
        /// The sender's CA GUID.
        local_ca_guid, set_local_ca_guid: Guid = 16, 8;
        /// The sender's Q_Key.
        local_qkey, set_local_qkey: QKey = 28, 4;
        /// The sender's QP number.
        local_qpn, set_local_qpn: QpNumber = 32, 3;
        /// RDMA READs and atomics the sender can serve at a time.
        responder_resources, set_responder_resources: u8 = 35, 1;
        /// The sender's EE context number.
        local_eecn, set_local_eecn: u32 = 36, 3;
        /// RDMA READs and atomics the sender wants to have outstanding.
        initiator_depth, set_initiator_depth: u8 = 39, 1;
        /// The receiver's EE context number.
        remote_eecn, set_remote_eecn: u32 = 40, 3;
        /// Exponent of the time in which the receiver should answer.
        remote_cm_response_timeout, set_remote_cm_response_timeout: u8 = 43, 1 [7:3];
        /// Transport service: 0 RC, 1 UC, 2 RD, 3 see [`Self::extended_transport`].
        transport_service, set_transport_service: u8 = 43, 1 [2:1];
        /// End-to-end flow control.
        flow_control, set_flow_control: bool = 43, 1 [0:0];
        /// The PSN with which the receiver shall begin to send.
        starting_psn, set_starting_psn: Psn = 44, 3;
        /// Exponent of the time in which the sender will answer.
        local_cm_response_timeout, set_local_cm_response_timeout: u8 = 47, 1 [7:3];
        /// Transport retry count of the connection, both directions.
        retry_count, set_retry_count: u8 = 47, 1 [2:0];
        /// Partition key of the connection.
        pkey, set_pkey: PKey = 48, 2;
        /// Path MTU code.
        path_mtu, set_path_mtu: u8 = 50, 1 [7:4];
        /// An RD channel exists already.
        rdc_exists, set_rdc_exists: bool = 50, 1 [3:3];
        /// RNR retry count that the receiver shall use; 7 without limit.
        rnr_retry_count, set_rnr_retry_count: u8 = 50, 1 [2:0];
        /// Number of repetitions of each CM message.
        max_cm_retries, set_max_cm_retries: u8 = 51, 1 [7:4];
        /// The sender's QP uses a shared receive queue.
        srq, set_srq: bool = 51, 1 [3:3];
        /// Extended transport: 1 XRC.
        extended_transport, set_extended_transport: u8 = 51, 1 [2:0];
        /// Primary path: the sender's LID.
        primary_local_lid, set_primary_local_lid: Lid = 52, 2;
        /// Primary path: the receiver's LID.
        primary_remote_lid, set_primary_remote_lid: Lid = 54, 2;
        /// Primary path: the sender's GID.
        primary_local_gid, set_primary_local_gid: Gid = 56, 16;
        /// Primary path: the receiver's GID.
        primary_remote_gid, set_primary_remote_gid: Gid = 72, 16;
        /// Primary path: flow label.
        primary_flow_label, set_primary_flow_label: u32 = 88, 4 [31:12];
        /// Primary path: packet rate code.
        primary_packet_rate, set_primary_packet_rate: u8 = 91, 1 [5:0];
        /// Primary path: traffic class.
        primary_traffic_class, set_primary_traffic_class: u8 = 92, 1;
        /// Primary path: hop limit.
        primary_hop_limit, set_primary_hop_limit: u8 = 93, 1;
        /// Primary path: service level.
        primary_sl, set_primary_sl: ServiceLevel = 94, 1 [7:4];
        /// Primary path: both ends are on one subnet.
        primary_subnet_local, set_primary_subnet_local: bool = 94, 1 [3:3];
        /// Primary path: local ACK timeout exponent.
        primary_local_ack_timeout, set_primary_local_ack_timeout: u8 = 95, 1 [7:3];
        /// Alternate path: the sender's LID.
        alternate_local_lid, set_alternate_local_lid: Lid = 96, 2;
        /// Alternate path: the receiver's LID.
        alternate_remote_lid, set_alternate_remote_lid: Lid = 98, 2;
        /// Alternate path: the sender's GID.
        alternate_local_gid, set_alternate_local_gid: Gid = 100, 16;
        /// Alternate path: the receiver's GID.
        alternate_remote_gid, set_alternate_remote_gid: Gid = 116, 16;
        /// Alternate path: flow label.
        alternate_flow_label, set_alternate_flow_label: u32 = 132, 4 [31:12];
        /// Alternate path: packet rate code.
        alternate_packet_rate, set_alternate_packet_rate: u8 = 135, 1 [5:0];
        /// Alternate path: traffic class.
        alternate_traffic_class, set_alternate_traffic_class: u8 = 136, 1;
        /// Alternate path: hop limit.
        alternate_hop_limit, set_alternate_hop_limit: u8 = 137, 1;
        /// Alternate path: service level.
        alternate_sl, set_alternate_sl: ServiceLevel = 138, 1 [7:4];
        /// Alternate path: both ends are on one subnet.
        alternate_subnet_local, set_alternate_subnet_local: bool = 138, 1 [3:3];
        /// Alternate path: local ACK timeout exponent.
        alternate_local_ack_timeout, set_alternate_local_ack_timeout: u8 = 139, 1 [7:3];
        /// Suggested alternate paths supported.
        sap_supported, set_sap_supported: bool = 139, 1 [2:2];
    }
}
message!(Req, attr::CM_REQ, private 140, 92);

/// `transport_service` of a REQ.
pub mod transport {
    /// Reliable connection.
    pub const RC: u8 = 0;
    /// Unreliable connection.
    pub const UC: u8 = 1;
    /// Reliable datagram.
    pub const RD: u8 = 2;
    /// See the extended transport field.
    pub const EXTENDED: u8 = 3;
}

record! {
    /// MRA: message receipt acknowledgement, "I need longer" (section 12.6.6).
    pub struct Mra[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
        /// The message acknowledged: 0 REQ, 1 REP, 2 LAP.
        message_mraed, set_message_mraed: u8 = 8, 1 [7:6];
        /// Exponent of the time the sender needs for its answer.
        service_timeout, set_service_timeout: u8 = 9, 1 [7:3];
    }
}
message!(Mra, attr::CM_MRA, private 10, 222);

record! {
    /// REJ: reject (section 12.6.7).
    pub struct Rej[232] {
        /// The sender's communication id; 0 when it has none.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
        /// The message rejected: 0 REQ, 1 REP, 2 none or another one.
        message_rejected, set_message_rejected: u8 = 8, 1 [7:6];
        /// Bytes of additional information that mean something.
        info_len, set_info_len: u8 = 9, 1 [7:1];
        /// Reason, see [`RejReason`](super::RejReason).
        reason, set_reason: u16 = 10, 2;
    }
}
message!(Rej, attr::CM_REJ, private 84, 148, ari 12);

record! {
    /// REP: reply to a request for communication (section 12.6.8).
    pub struct Rep[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
        /// The sender's Q_Key.
        local_qkey, set_local_qkey: QKey = 8, 4;
        /// The sender's QP number.
        local_qpn, set_local_qpn: QpNumber = 12, 3;
        /// Vendor id of the CA, most significant byte.
        vendor_id_high, set_vendor_id_high: u8 = 15, 1;
        /// The sender's EE context number.
        local_eecn, set_local_eecn: u32 = 16, 3;
        /// Vendor id of the CA, middle byte.
        vendor_id_mid, set_vendor_id_mid: u8 = 19, 1;
        /// The PSN with which the receiver shall begin to send.
        starting_psn, set_starting_psn: Psn = 20, 3;
        /// Vendor id of the CA, least significant byte.
        vendor_id_low, set_vendor_id_low: u8 = 23, 1;
        /// RDMA READs and atomics the sender will serve at a time.
        responder_resources, set_responder_resources: u8 = 24, 1;
        /// RDMA READs and atomics the sender will have outstanding.
        initiator_depth, set_initiator_depth: u8 = 25, 1;
        /// Exponent of the delay of the sender's ACKs.
        target_ack_delay, set_target_ack_delay: u8 = 26, 1 [7:3];
        /// Failover: 0 accepted, 1 not supported, 2 alternate path refused.
        failover_accepted, set_failover_accepted: u8 = 26, 1 [2:1];
        /// End-to-end flow control.
        flow_control, set_flow_control: bool = 26, 1 [0:0];
        /// RNR retry count that the receiver shall use; 7 without limit.
        rnr_retry_count, set_rnr_retry_count: u8 = 27, 1 [7:5];
        /// The sender's QP uses a shared receive queue.
        srq, set_srq: bool = 27, 1 [4:4];
        /// The sender's CA GUID.
        local_ca_guid, set_local_ca_guid: Guid = 28, 8;
    }
}
message!(Rep, attr::CM_REP, private 36, 196);

record! {
    /// RTU: ready to use (section 12.6.9).
    pub struct Rtu[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
    }
}
message!(Rtu, attr::CM_RTU, private 8, 224);

record! {
    /// DREQ: request for communication release (section 12.6.10).
    pub struct Dreq[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
        /// The receiver's QP number.
        remote_qpn, set_remote_qpn: QpNumber = 8, 3;
    }
}
message!(Dreq, attr::CM_DREQ, private 12, 220);

record! {
    /// DREP: reply to a request for communication release (section 12.6.11).
    pub struct Drep[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
    }
}
message!(Drep, attr::CM_DREP, private 8, 224);

record! {
    /// LAP: load alternate path (section 12.8.1).
    pub struct Lap[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
        /// The receiver's QP number.
        remote_qpn, set_remote_qpn: QpNumber = 12, 4 [31:8];
        /// Exponent of the time in which the receiver should answer.
        remote_cm_response_timeout, set_remote_cm_response_timeout: u8 = 12, 4 [7:3];
        /// The sender's LID.
        alternate_local_lid, set_alternate_local_lid: Lid = 20, 2;
        /// The receiver's LID.
        alternate_remote_lid, set_alternate_remote_lid: Lid = 22, 2;
        /// The sender's GID.
        alternate_local_gid, set_alternate_local_gid: Gid = 24, 16;
        /// The receiver's GID.
        alternate_remote_gid, set_alternate_remote_gid: Gid = 40, 16;
        /// Flow label.
        alternate_flow_label, set_alternate_flow_label: u32 = 56, 4 [31:12];
        /// Traffic class.
        alternate_traffic_class, set_alternate_traffic_class: u8 = 56, 4 [7:0];
        /// Hop limit.
        alternate_hop_limit, set_alternate_hop_limit: u8 = 60, 1;
        /// Packet rate code.
        alternate_packet_rate, set_alternate_packet_rate: u8 = 61, 1 [5:0];
        /// Service level.
        alternate_sl, set_alternate_sl: ServiceLevel = 62, 1 [7:4];
        /// Both ends are on one subnet.
        alternate_subnet_local, set_alternate_subnet_local: bool = 62, 1 [3:3];
        /// Local ACK timeout exponent.
        alternate_local_ack_timeout, set_alternate_local_ack_timeout: u8 = 63, 1 [7:3];
    }
}
message!(Lap, attr::CM_LAP, private 64, 168);

record! {
    /// APR: alternate path response (section 12.8.2).
    pub struct Apr[232] {
        /// The sender's communication id.
        local_comm_id, set_local_comm_id: u32 = 0, 4;
        /// The receiver's communication id.
        remote_comm_id, set_remote_comm_id: u32 = 4, 4;
        /// Bytes of additional information that mean something.
        info_len, set_info_len: u8 = 8, 1;
        /// Status: 0 loaded, 1 invalid communication id, 2 not supported, 3 rejected.
        ap_status, set_ap_status: u8 = 9, 1;
    }
}
message!(Apr, attr::CM_APR, private 84, 148, ari 12);

record! {
    /// SIDR_REQ: service id resolution request (section 12.11.1).
    pub struct SidrReq[232] {
        /// The sender's request id.
        request_id, set_request_id: u32 = 0, 4;
        /// Partition key.
        pkey, set_pkey: PKey = 4, 2;
        /// The service asked for.
        service_id, set_service_id: u64 = 8, 8;
    }
}
message!(SidrReq, attr::CM_SIDR_REQ, private 16, 216);

record! {
    /// SIDR_REP: service id resolution response (section 12.11.2).
    pub struct SidrRep[232] {
        /// The request's id.
        request_id, set_request_id: u32 = 0, 4;
        /// Status, see [`sidr_status`].
        status, set_status: u8 = 4, 1;
        /// Bytes of additional information that mean something.
        info_len, set_info_len: u8 = 5, 1;
        /// The service's QP number.
        qpn, set_qpn: QpNumber = 8, 3;
        /// The service.
        service_id, set_service_id: u64 = 12, 8;
        /// The service's Q_Key.
        qkey, set_qkey: QKey = 20, 4;
    }
}
message!(SidrRep, attr::CM_SIDR_REP, private 96, 136, ari 24);

/// `status` of a SIDR_REP.
pub mod sidr_status {
    /// QP number and Q_Key are valid.
    pub const VALID: u8 = 0;
    /// Service id not supported.
    pub const SERVICE_ID_NOT_SUPPORTED: u8 = 1;
    /// Rejected by the service.
    pub const REJECTED: u8 = 2;
    /// No QP available.
    pub const NO_QP: u8 = 3;
    /// Redirected.
    pub const REDIRECT: u8 = 4;
    /// Version not supported.
    pub const VERSION_NOT_SUPPORTED: u8 = 5;
}

/// `ap_status` of an APR.
pub mod ap_status {
    /// Alternate path loaded.
    pub const SUCCESS: u8 = 0;
    /// Invalid communication id.
    pub const INVALID_COMM_ID: u8 = 1;
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: u8 = 2;
    /// Rejected.
    pub const REJECTED: u8 = 3;
}

/// Message numbers in MRA (0 to 2) and REJ (0 to 2).
pub mod which {
    /// The REQ.
    pub const REQ: u8 = 0;
    /// The REP.
    pub const REP: u8 = 1;
    /// MRA: the LAP. REJ: none, or another message.
    pub const OTHER: u8 = 2;
}

/// A received CM message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum Message {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
    /// An attribute that is no CM message.
    Unknown(u16),
}

impl Message {
    /// The message of a MAD; `None` unless it is of class 0x07, class version 2, method Send, base
    /// version 1.
    pub fn parse(mad: &Mad) -> Option<Message> {
        if mad.mgmt_class() != class::CM
            || mad.class_version() != CLASS_VERSION
            || mad.base_version() != crate::mad::BASE_VERSION
            || mad.method() != method::SEND
        {
            return None;
        }
        Some(match mad.attr_id() {
            attr::CM_REQ => Message::Req(Req::from_mad(mad)),
            attr::CM_MRA => Message::Mra(Mra::from_mad(mad)),
            attr::CM_REJ => Message::Rej(Rej::from_mad(mad)),
            attr::CM_REP => Message::Rep(Rep::from_mad(mad)),
            attr::CM_RTU => Message::Rtu(Rtu::from_mad(mad)),
            attr::CM_DREQ => Message::Dreq(Dreq::from_mad(mad)),
            attr::CM_DREP => Message::Drep(Drep::from_mad(mad)),
            attr::CM_SIDR_REQ => Message::SidrReq(SidrReq::from_mad(mad)),
            attr::CM_SIDR_REP => Message::SidrRep(SidrRep::from_mad(mad)),
            attr::CM_LAP => Message::Lap(Lap::from_mad(mad)),
            attr::CM_APR => Message::Apr(Apr::from_mad(mad)),
            other => Message::Unknown(other),
        })
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
