//! Subnet administration (IBA volume 1, chapter 15): headers, records, and a client without I/O.

mod client;
mod notice;
mod record;

pub use client::{
    Action, Client, ClientConfig, ClientCounters, ClientFull, PathQuery, QueryError, QueryId, QuerySlot,
    Response,
};
pub use notice::{InformInfo, InformInfoRecord, Notice, notice_type, producer, trap};
pub use record::{
    BlockRecord, GuidInfoRecord, LinkRecord, McMemberMask, McMemberRecord, NodeMask, NodeRecord, PathMask,
    PathRecord, PortInfoMask, PortInfoRecord, RecordMask, ServiceMask, ServiceRecord, SlToVlRecord,
    SmInfoRecord, SwitchInfoRecord, join_state, selector,
};

use crate::mad::{Mad, class};
use crate::view::record;

/// Class version of subnet administration.
pub const CLASS_VERSION: u8 = 2;
/// Bytes of record data in a MAD.
pub const RECORD_DATA_LEN: usize = 200;

record! {
    /// A subnet administration MAD: common header, RMPP header, SA header, 200 bytes of records.
    pub struct SaMad[256] {
        /// Management class.
        mgmt_class, set_mgmt_class: u8 = 1, 1;
        /// Class version.
        class_version, set_class_version: u8 = 2, 1;
        /// Method.
        method, set_method: u8 = 3, 1;
        /// Status.
        status, set_status: u16 = 4, 2;
        /// Transaction id.
        tid, set_tid: u64 = 8, 8;
        /// Attribute id.
        attr_id, set_attr_id: u16 = 16, 2;
        /// Attribute modifier.
        attr_mod, set_attr_mod: u32 = 20, 4;
        /// RMPP version, 1 when RMPP is used.
        rmpp_version, set_rmpp_version: u8 = 24, 1;
        /// RMPP type, see [`rmpp`].
        rmpp_type, set_rmpp_type: u8 = 25, 1;
        /// RMPP response time exponent.
        rmpp_resp_time, set_rmpp_resp_time: u8 = 26, 1 [7:3];
        /// RMPP flags, see [`rmpp`].
        rmpp_flags, set_rmpp_flags: u8 = 26, 1 [2:0];
        /// RMPP status.
        rmpp_status, set_rmpp_status: u8 = 27, 1;
        /// RMPP segment number, from 1.
        rmpp_segment, set_rmpp_segment: u32 = 28, 4;
        /// RMPP payload length of the last segment, SA header included; new window last of an ACK.
        rmpp_payload_len, set_rmpp_payload_len: u32 = 32, 4;
        /// SM_Key.
        sm_key, set_sm_key: u64 = 36, 8;
        /// Distance of records in a table response, in units of 8 bytes.
        attribute_offset, set_attribute_offset: u16 = 44, 2;
        /// Components of the record that are valid, see the masks.
        component_mask, set_component_mask: u64 = 48, 8;
    }
}

/// RMPP types and flags (IBA volume 1, section 13.6.2).
pub mod rmpp {
    /// Type: data.
    pub const DATA: u8 = 1;
    /// Type: acknowledge.
    pub const ACK: u8 = 2;
    /// Type: stop.
    pub const STOP: u8 = 3;
    /// Type: abort.
    pub const ABORT: u8 = 4;
    /// Flag: RMPP is active.
    pub const FLAG_ACTIVE: u8 = 1;
    /// Flag: first segment.
    pub const FLAG_FIRST: u8 = 2;
    /// Flag: last segment.
    pub const FLAG_LAST: u8 = 4;
}

impl SaMad {
    /// A request.
    pub fn request(method: u8, attr_id: u16, component_mask: u64, tid: u64) -> SaMad {
        let mad = Mad::new(class::SUBN_ADM, CLASS_VERSION, method, attr_id, tid);
        let mut sa = SaMad(*mad.as_bytes());
        sa.set_component_mask(component_mask);
        sa
    }

    /// A MAD as SA MAD, whatever its class.
    pub fn from_mad(mad: &Mad) -> SaMad {
        SaMad(*mad.as_bytes())
    }

    /// The MAD.
    pub fn to_mad(&self) -> Mad {
        Mad::from_bytes(self.0)
    }

    /// The 200 bytes of record data.
    pub fn record_data(&self) -> &[u8; RECORD_DATA_LEN] {
        // 256 - 56 = 200: the slice has exactly this length.
        self.0.last_chunk().unwrap_or(&[0; RECORD_DATA_LEN])
    }

    /// Replaces the front of the record data; what exceeds 200 bytes is dropped.
    pub fn set_record_data(&mut self, record: &[u8]) -> &mut SaMad {
        for (to, from) in self.0.iter_mut().skip(56).zip(record) {
            *to = *from;
        }
        self
    }

    /// Returns whether this is a complete response in one packet: no RMPP, or a single data
    /// segment.
    pub fn is_single_segment(&self) -> bool {
        let flags = self.rmpp_flags();
        flags & rmpp::FLAG_ACTIVE == 0
            || (self.rmpp_type() == rmpp::DATA
                && flags & (rmpp::FLAG_FIRST | rmpp::FLAG_LAST) == rmpp::FLAG_FIRST | rmpp::FLAG_LAST)
    }
}
