//! Randomness from a seed, and ways to spoil bytes.

use ib_mgmt::mad::{Mad, attr, class, method};
pub use ib_types::mix;
use ib_types::{Duration, SplitMix64};

/// Numbers from a seed.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(mix(seed)))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A time below `end`, which is not zero.
    pub fn time_below(&mut self, end: Duration) -> Duration {
        Duration::from_nanos(self.below(end.as_nanos() as u64))
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A number as programs like to get them wrong: an edge, a small one, or any.
    pub fn edge(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1u64 << self.below(64)).wrapping_sub(1),
            4 | 5 => self.below(16),
            _ => self.next(),
        }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Changes a few bytes: a bit, a byte, or a field of up to eight.
    pub fn spoil(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.index(bytes.len());
            match self.below(3) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.edge() as u8,
                _ => {
                    let value = self.edge().to_be_bytes();
                    let len = (1 << self.below(4)).min(bytes.len() - at);
                    bytes[at..at + len].copy_from_slice(&value[8 - len..]);
                }
            }
        }
    }

    /// A MAD of this class, or now and then of another one, with a header that may be wrong
    /// everywhere.
    pub fn mad(&mut self, mgmt_class: u8) -> Mad {
        let mut mad = Mad::from_bytes(self.bytes(256).try_into().expect("256 bytes"));
        mad.set_base_version(1).set_mgmt_class(mgmt_class).set_class_version(2).set_status(0);
        mad.set_method(if mgmt_class == class::CM { method::SEND } else { method::GET_RESP });
        let attribute = match self.below(4) {
            0 => self.edge() as u16,
            1 => [attr::PATH_RECORD, attr::MC_MEMBER_RECORD, attr::CLASS_PORT_INFO][self.index(3)],
            _ => attr::CM_REQ + self.below(12) as u16,
        };
        mad.set_attr_id(attribute);
        if self.chance(20) {
            self.spoil(&mut mad.as_bytes_mut()[..24]);
        }
        mad
    }
}
