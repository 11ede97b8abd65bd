//! Subscriptions to events of the subnet, and the notices that report them (IBA volume 1, sections
//! 13.4.8.2 and 13.4.8.3).

use crate::view::record;
use ib_types::Gid;

/// Values of [`Notice::notice_type`] and [`InformInfo::trap_type`].
pub mod notice_type {
    /// Fatal.
    pub const FATAL: u8 = 0;
    /// Urgent.
    pub const URGENT: u8 = 1;
    /// Security.
    pub const SECURITY: u8 = 2;
    /// Subnet management.
    pub const SUBNET_MANAGEMENT: u8 = 3;
    /// Informational.
    pub const INFORMATIONAL: u8 = 4;
    /// All types, in a subscription.
    pub const ALL: u16 = 0xffff;
}

/// Producer types of generic notices: the kind of node that saw the event.
pub mod producer {
    /// Channel adapter.
    pub const CA: u32 = 1;
    /// Switch.
    pub const SWITCH: u32 = 2;
    /// Router.
    pub const ROUTER: u32 = 3;
    /// Class manager: the subnet manager or administrator.
    pub const CLASS_MANAGER: u32 = 4;
    /// All, in a subscription.
    pub const ALL: u32 = 0xff_ffff;
}

/// Trap numbers of subnet management (IBA volume 1, section 14.2.5.1).
pub mod trap {
    /// A port came into service; the details are its GID.
    pub const IN_SERVICE: u16 = 64;
    /// A port went out of service; the details are its GID.
    pub const OUT_OF_SERVICE: u16 = 65;
    /// A multicast group was created; the details are its MGID.
    pub const GROUP_CREATED: u16 = 66;
    /// A multicast group was deleted; the details are its MGID.
    pub const GROUP_DELETED: u16 = 67;
    /// The state of a link of the switch changed.
    pub const LINK_STATE: u16 = 128;
    /// The capability mask of a port, or its node's description, changed.
    pub const CAPABILITY: u16 = 144;
    /// In [`CAPABILITY`]: set in byte 5 of the details if the word at byte 10 reports further
    /// changes.
    pub const OTHER_LOCAL_CHANGES: u8 = 1;
    /// Among these, that the node's description changed.
    pub const NODE_DESCRIPTION_CHANGE: u16 = 1;
    /// A packet's M_Key was wrong.
    pub const BAD_M_KEY: u16 = 256;
    /// A packet's P_Key was wrong.
    pub const BAD_P_KEY: u16 = 257;
    /// A packet's Q_Key was wrong.
    pub const BAD_Q_KEY: u16 = 258;
    /// All traps, in a subscription.
    pub const ALL: u16 = 0xffff;
}

record! {
    /// InformInfo, attribute 3: Set subscribes to events of the subnet, or ends the subscription.
    pub struct InformInfo[36] {
        /// GID of the port whose events are meant; zero: [`InformInfo::lid_range_begin`] counts.
        gid, set_gid: Gid = 0, 16;
        /// First LID of the ports whose events are meant; 0xffff: all.
        lid_range_begin, set_lid_range_begin: u16 = 16, 2;
        /// Last LID of them.
        lid_range_end, set_lid_range_end: u16 = 18, 2;
        /// 1: generic events, 0: a vendor's.
        is_generic, set_is_generic: u8 = 22, 1;
        /// 1: subscribe, 0: end the subscription.
        subscribe, set_subscribe: u8 = 23, 1;
        /// Type of the events, see [`notice_type`].
        trap_type, set_trap_type: u16 = 24, 2;
        /// Trap number (of a vendor: device id), see [`trap`].
        trap_number, set_trap_number: u16 = 26, 2;
        /// QP that reports go to.
        qpn, set_qpn: u32 = 28, 4 [31:8];
        /// Response time exponent of the subscriber: 4.096 µs · 2^n.
        resp_time_value, set_resp_time_value: u8 = 28, 4 [4:0];
        /// Producer type (of a vendor: its id), see [`producer`].
        producer_type, set_producer_type: u32 = 32, 4 [23:0];
    }
}

impl InformInfo {
    /// A subscription to one generic trap of all ports, reported to QP1.
    pub fn subscription(trap_number: u16) -> InformInfo {
        let mut info = InformInfo::zeroed();
        info.set_lid_range_begin(0xffff)
            .set_is_generic(1)
            .set_subscribe(1)
            .set_trap_type(notice_type::ALL)
            .set_trap_number(trap_number)
            .set_qpn(1)
            .set_resp_time_value(18)
            .set_producer_type(producer::ALL);
        info
    }
}

record! {
    /// InformInfoRecord, attribute 0xf3: who is subscribed to what.
    pub struct InformInfoRecord[60] {
        /// The subscriber's GID.
        subscriber_gid, set_subscriber_gid: Gid = 0, 16;
        /// Number that distinguishes the subscriptions of one subscriber.
        inform_enum, set_inform_enum: u16 = 16, 2;
    }
}

impl InformInfoRecord {
    /// The subscription.
    pub fn inform_info(&self) -> InformInfo {
        self.as_bytes().get(24..).and_then(InformInfo::from_slice).unwrap_or_default()
    }

    /// Sets [`Self::inform_info`].
    pub fn set_inform_info(&mut self, info: &InformInfo) -> &mut Self {
        if let Some(room) = self.as_bytes_mut().last_chunk_mut() {
            *room = *info.as_bytes();
        }
        self
    }
}

record! {
    /// Notice, attribute 2: an event. In a Trap the first 64 bytes; a Report of the subnet
    /// administrator adds the issuer's GID.
    pub struct Notice[80] {
        /// Set if the event is generic, not a vendor's.
        is_generic, set_is_generic: bool = 0, 1 [7:7];
        /// Type, see [`notice_type`].
        notice_type, set_notice_type: u8 = 0, 1 [6:0];
        /// Producer type (of a vendor: its id), see [`producer`].
        producer_type, set_producer_type: u32 = 1, 3;
        /// Trap number (of a vendor: device id), see [`trap`].
        trap_number, set_trap_number: u16 = 4, 2;
        /// LID of the port that issued the notice.
        issuer_lid, set_issuer_lid: u16 = 6, 2;
        /// Changes with every new event.
        toggle, set_toggle: bool = 8, 2 [15:15];
        /// Events that wait.
        count, set_count: u16 = 8, 2 [14:0];
        /// GID of the issuing port.
        issuer_gid, set_issuer_gid: Gid = 64, 16;
    }
}

impl Notice {
    /// Bytes of a notice in a Trap.
    pub const TRAP_LEN: usize = 64;
    /// Where the details begin.
    const DETAILS_AT: usize = 10;

    /// A generic notice.
    pub fn generic(notice_type: u8, producer: u32, trap_number: u16, issuer_lid: u16) -> Notice {
        let mut notice = Notice::zeroed();
        notice
            .set_is_generic(true)
            .set_notice_type(notice_type)
            .set_producer_type(producer)
            .set_trap_number(trap_number)
            .set_issuer_lid(issuer_lid);
        notice
    }

    /// The details: 54 bytes whose meaning the trap number decides.
    pub fn details(&self) -> &[u8; 54] {
        // The slice is long enough, so the fallback is never taken.
        self.as_bytes().get(Self::DETAILS_AT..).and_then(<[u8]>::first_chunk).unwrap_or(&[0; 54])
    }

    /// Replaces the front of the details; what exceeds 54 bytes is dropped.
    pub fn set_details(&mut self, details: &[u8]) -> &mut Notice {
        for (to, from) in self.as_bytes_mut().iter_mut().skip(Self::DETAILS_AT).zip(details.iter().take(54)) {
            *to = *from;
        }
        self
    }

    /// Traps 64 to 67: the GID of the port or of the group.
    pub fn gid(&self) -> Gid {
        self.as_bytes().get(16..).and_then(<[u8]>::first_chunk).map_or(Gid::ZERO, |bytes| Gid(*bytes))
    }

    /// Sets [`Self::gid`].
    pub fn set_gid(&mut self, gid: Gid) -> &mut Notice {
        let mut details = [0; 22];
        if let Some(room) = details.last_chunk_mut() {
            *room = gid.0;
        }
        self.set_details(&details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::assert_disjoint;

    #[test]
    fn a_subscription_is_where_the_table_says() {
        let mut info = InformInfo::subscription(trap::IN_SERVICE);
        info.set_qpn(0x12_3456).set_resp_time_value(19).set_lid_range_end(0x0102);
        let b = info.as_bytes();
        assert_eq!(b[..16], [0; 16]);
        assert_eq!(b[16..28], [0xff, 0xff, 1, 2, 0, 0, 1, 1, 0xff, 0xff, 0, 64]);
        assert_eq!(b[28..], [0x12, 0x34, 0x56, 19, 0, 0xff, 0xff, 0xff]);
        assert_disjoint(InformInfo::fields(), InformInfo::LEN);
        let mut record = InformInfoRecord::zeroed();
        record.set_inform_info(&info).set_inform_enum(3);
        assert_eq!(record.as_bytes()[24..], b[..]);
        assert_eq!(record.inform_info(), info);
    }

    #[test]
    fn a_notice_is_where_the_table_says() {
        let mut notice = Notice::generic(notice_type::SUBNET_MANAGEMENT, producer::CLASS_MANAGER, 65, 1);
        let gid = Gid::new(0xfe80_0000_0000_0000, 0x1122_3344_5566_7788);
        notice.set_gid(gid).set_toggle(true).set_count(2).set_issuer_gid(Gid::new(1, 2));
        let b = notice.as_bytes();
        assert_eq!(b[..16], [0x83, 0, 0, 4, 0, 65, 0, 1, 0x80, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(b[16..32], gid.0);
        assert_eq!(b[64..], Gid::new(1, 2).0);
        assert_eq!(notice.gid(), gid);
        assert_disjoint(Notice::fields(), Notice::LEN);
        notice.set_details(&[7; 90]);
        assert_eq!((notice.details(), notice.issuer_gid()), (&[7; 54], Gid::new(1, 2)));
    }
}
