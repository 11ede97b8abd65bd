//! A request's record, and which records it means: the components of each record, by the bits of the mask that select them.
//!
//! Offsets are written down here from the specification's tables (IBTA volume 1, section 15.2.5), independent of the
//! client's.

use ib_mgmt::mad::{Mad, status};
use ib_mgmt::sa::SaMad;
use ib_types::Gid;
use std::cell::Cell;

/// Bytes of the tables under way to one port.
pub(super) const TABLE_LIMIT: usize = 16 << 20;

/// First bit and width of each component of a record, by its bit in the component mask.
pub(super) type Components = &'static [(usize, usize)];

/// NodeRecord.
pub(super) const NODE: Components = &[
    (0, 16),
    (16, 16),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 64),
    (128, 64),
    (192, 64),
    (256, 16),
    (272, 16),
    (288, 32),
    (320, 8),
    (328, 24),
    (352, 512),
];
/// PortInfoRecord.
pub(super) const PORT_INFO: Components = &[
    (0, 16),
    (16, 8),
    (24, 8),
    (32, 64),
    (96, 64),
    (160, 16),
    (176, 16),
    (192, 32),
    (224, 16),
    (240, 16),
    (256, 8),
    (264, 8),
    (272, 8),
    (280, 8),
    (288, 4),
    (292, 4),
    (296, 4),
    (300, 4),
    (304, 2),
    (306, 3),
    (309, 3),
    (312, 4),
    (316, 4),
    (320, 4),
    (324, 4),
    (328, 4),
    (332, 4),
    (336, 8),
    (344, 8),
    (352, 8),
    (360, 4),
    (364, 4),
    (368, 3),
    (371, 5),
    (376, 4),
    (380, 1),
    (381, 1),
    (382, 1),
    (383, 1),
    (384, 16),
    (400, 16),
    (416, 16),
    (432, 8),
    (440, 3),
    (443, 5),
    (448, 3),
    (451, 5),
    (456, 4),
    (460, 4),
    (464, 16),
    (480, 8),
    (488, 24),
    (512, 16),
    (528, 4),
    (532, 4),
    (536, 3),
    (539, 5),
];
/// SwitchInfoRecord.
pub(super) const SWITCH_INFO: Components =
    &[(0, 16), (16, 16), (32, 16), (48, 16), (64, 16), (80, 16), (96, 8), (104, 8), (112, 8), (120, 5)];
/// SMInfoRecord.
pub(super) const SM_INFO: Components =
    &[(0, 16), (16, 16), (32, 64), (96, 64), (160, 32), (192, 4), (196, 4)];
/// LinkRecord.
pub(super) const LINK: Components = &[(0, 16), (16, 8), (24, 8), (32, 16)];
/// LinearForwardingTableRecord.
pub(super) const LINEAR_FORWARDING: Components = &[(0, 16), (16, 16)];
/// MulticastForwardingTableRecord: LID, position, a reserved field, block.
pub(super) const MULTICAST_FORWARDING: Components = &[(0, 16), (16, 4), (20, 3), (23, 9)];
/// SLtoVLMappingTableRecord: LID, the port that a packet comes in by, the one it leaves by.
pub(super) const SL_TO_VL: Components = &[(0, 16), (16, 8), (24, 8)];
/// VLArbitrationTableRecord: LID, port, block.
pub(super) const VL_ARBITRATION: Components = &[(0, 16), (16, 8), (24, 8)];
/// P_KeyTableRecord.
pub(super) const PKEY_TABLE: Components = &[(0, 16), (16, 16), (32, 8)];
/// GUIDInfoRecord.
pub(super) const GUID_INFO: Components = &[(0, 16), (16, 8)];
/// InformInfoRecord.
pub(super) const INFORM: Components = &[(0, 128), (128, 16)];
/// MCMemberRecord. Selectors and what they select have no place here: see [`Query::selects`].
pub(super) const MEMBER: Components = &[
    (0, 128),
    (128, 128),
    (256, 32),
    (288, 16),
    (0, 0),
    (0, 0),
    (312, 8),
    (320, 16),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (352, 4),
    (356, 20),
    (376, 8),
    (384, 4),
    (388, 4),
    (392, 1),
];
/// ServiceRecord, up to its name; the data follows in components of 8, 16, 32 and 64 bits.
pub(super) const SERVICE: Components =
    &[(0, 64), (64, 128), (192, 16), (208, 16), (224, 32), (256, 128), (384, 512)];

/// The MAD's bytes as a query.
pub(super) struct Query<'a> {
    pub(super) mad: &'a Mad,
    /// Pairs of ports that were looked at.
    looked: Cell<u64>,
    /// Bytes that a table may have.
    room: usize,
}

impl<'a> Query<'a> {
    pub(super) fn new(mad: &'a Mad, room: usize) -> Self {
        Self { mad, looked: Cell::new(0), room }
    }

    /// Checks the length of a table of `count` records of `len` bytes, before they are made.
    ///
    /// # Errors
    /// The status of a refusal.
    pub(super) fn admits(&self, count: usize, len: usize) -> Result<(), u16> {
        match count.saturating_mul(len) {
            bytes if bytes <= self.room => Ok(()),
            bytes if bytes <= TABLE_LIMIT => Err(status::BUSY),
            _ => Err(status::SA_TOO_MANY_RECORDS),
        }
    }

    /// Counts what has to be looked at for the answer.
    pub(super) fn look(&self, count: usize) {
        self.looked.set(self.looked.get().saturating_add(count as u64));
    }

    pub(super) fn looked(&self) -> u64 {
        self.looked.get()
    }

    pub(super) fn mask(&self) -> u64 {
        self.number(48, 8)
    }

    pub(super) fn has(&self, bit: u32) -> bool {
        self.mask() >> bit & 1 != 0
    }

    /// The key by which software shows that it may know everything.
    pub(super) fn sm_key(&self) -> u64 {
        self.number(36, 8)
    }

    fn number(&self, at: usize, len: usize) -> u64 {
        let bytes = self.mad.as_bytes().get(at..at + len).unwrap_or_default();
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The record that the query carries.
    pub(super) fn record(&self) -> [u8; 200] {
        *SaMad::from_mad(self.mad).record_data()
    }

    /// A field of the record, by bytes.
    pub(super) fn field(&self, at: usize, len: usize) -> u64 {
        self.number(56 + at, len)
    }

    pub(super) fn gid(&self, at: usize) -> Gid {
        self.record().get(at..).and_then(<[u8]>::first_chunk).map_or(Gid::ZERO, |bytes| Gid(*bytes))
    }

    pub(super) fn matches(&self, bit: u32, at: usize, len: usize, value: u64) -> bool {
        !self.has(bit) || self.field(at, len) == value
    }

    /// Whether the record is one that the query means: equal in all components of the mask but those in `except`.
    pub(super) fn means(&self, components: Components, record: &[u8], except: u64) -> bool {
        let query = self.record();
        let selected = (0u32..).zip(components).filter(|(bit, _)| self.has(*bit) && except >> bit & 1 == 0);
        selected.into_iter().all(|(_, (first, width))| {
            (*first..first + width).all(|bit| bit_of(&query, bit) == bit_of(record, bit))
        })
    }

    /// Whether a selector and a 6-bit value (of MTU, rate or life) at `at` admit `value`. Rates are in order of their speed.
    pub(super) fn selects(
        &self,
        selector_bit: u32,
        value_bit: u32,
        at: usize,
        value: u8,
        order: fn(u8) -> u32,
    ) -> bool {
        if !self.has(value_bit) {
            return true;
        }
        let byte = self.field(at, 1) as u8;
        let (selector, wanted) = (byte >> 6, order(byte & 0x3f));
        let value = order(value);
        match if self.has(selector_bit) { selector } else { 2 } {
            0 => value > wanted,
            1 => value < wanted,
            2 => value == wanted,
            _ => true,
        }
    }
}

fn bit_of(bytes: &[u8], bit: usize) -> bool {
    bytes.get(bit / 8).is_some_and(|byte| byte >> (7 - bit % 8) & 1 != 0)
}

/// The order of MTUs and life times is that of their codes.
pub(super) fn by_code(code: u8) -> u32 {
    u32::from(code)
}

/// Tenths of Gb/s of a rate code (IBTA volume 1, table 207, and its later additions).
pub(super) fn by_rate(code: u8) -> u32 {
    const RATES: [u32; 23] = [
        0, 0, 25, 100, 300, 50, 200, 400, 600, 800, 1200, 140, 560, 1120, 1680, 250, 1000, 2000, 3000, 280,
        500, 4000, 6000,
    ];
    RATES.get(usize::from(code)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mgmt::sa::{McMemberRecord, PathRecord, PortInfoRecord};
    use ib_types::ServiceLevel;

    #[test]
    fn components_are_in_order_and_fill_their_records() {
        for (components, bits) in
            [(NODE, 108 * 8), (PORT_INFO, PortInfoRecord::LEN * 8), (LINK, 48), (SERVICE, 112 * 8)]
        {
            let mut next = 0;
            for (first, width) in components {
                assert_eq!(*first, next);
                next += width;
            }
            assert_eq!(next, bits);
        }
        assert_eq!(PathRecord::LEN, 64);
    }

    #[test]
    fn a_component_of_some_bits() {
        let mut record = McMemberRecord::zeroed();
        record.set_sl(ServiceLevel::new(3)).set_flow_label(0x12345).set_scope(2).set_join_state(1);
        let mut mad = SaMad::request(0x12, 0x38, 1 << 12 | 1 << 15, 1);
        mad.set_record_data(record.as_bytes());
        let mad = mad.to_mad();
        let query = Query::new(&mad, 0);
        let mut other = record;
        other.set_flow_label(0).set_join_state(7);
        assert!(query.means(MEMBER, other.as_bytes(), 0));
        other.set_scope(5);
        assert!(!query.means(MEMBER, other.as_bytes(), 0));
        assert!(query.means(MEMBER, other.as_bytes(), 1 << 15));
    }

    #[test]
    fn rates_have_an_order_of_their_own() {
        assert!(by_rate(5) < by_rate(3) && by_rate(2) < by_rate(5) && by_rate(16) > by_rate(13 - 1));
        assert_eq!(by_rate(63), 0);
    }
}
