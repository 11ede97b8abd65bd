//! The management key of an adapter's port or of a switch: who may set, and who may read (IBTA volume 1, 14.2.4).

use ib_mgmt::mad::{attr, method};
use ib_mgmt::smp::{PortInfo, Smp};

/// What a subnet management packet may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Whole,
    /// Read all but the key itself.
    Reading,
    /// Nothing, not even get an answer.
    None,
}

/// A management key, and how far it protects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MKey {
    /// The key; 0 for none.
    pub key: u64,
    /// Protection level (M_KeyProtectBits): 0 and 1 let everybody read, 0 even the key.
    pub protect: u8,
}

impl MKey {
    /// Whether a packet has the key.
    pub fn is_of(self, request: &Smp) -> bool {
        request.m_key() == self.key
    }

    /// What a Get or Set may do (14.2.4.1, table of protection levels).
    pub fn access(self, request: &Smp) -> Access {
        if self.key == 0 || self.is_of(request) {
            return Access::Whole;
        }
        match (request.method(), self.protect) {
            (method::GET, 0) => Access::Whole,
            (method::GET, 1) => Access::Reading,
            _ => Access::None,
        }
    }
}

/// The lease of a key (M_KeyLeasePeriod): it runs from a packet that is refused to the next that has the key. At its end the protection is
/// lifted, so that another manager can learn the key where the one who set it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    ends: Option<u64>,
}

impl Lease {
    /// Whether it has run out since this was last asked.
    pub fn has_run_out(&mut self, now: u64) -> bool {
        self.ends.take_if(|ends| *ends <= now).is_some()
    }

    /// A packet was judged by `key`, whose lease lasts `seconds`; 0 is for ever.
    pub fn judged(&mut self, key: MKey, request: &Smp, access: Access, seconds: u16, now: u64) {
        if key.is_of(request) {
            self.ends = None;
        } else if access == Access::None && seconds != 0 {
            self.ends.get_or_insert(now.saturating_add(u64::from(seconds) * 1_000_000_000));
        }
    }
}

impl Access {
    /// An answer as the asker may see it.
    pub fn show(self, mut answer: Smp) -> Smp {
        if self != Self::Whole && answer.attr_id() == attr::PORT_INFO {
            let mut info = PortInfo::from_bytes(*answer.data());
            answer.set_data(info.set_m_key(0).as_bytes());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_protection() {
        let smp = |method, key| *Smp::lid_routed(method, attr::PORT_INFO, 0, 1).set_m_key(key);
        for (key, protect, [read, set]) in [
            (0, 3, [Access::Whole, Access::Whole]),
            (7, 0, [Access::Whole, Access::None]),
            (7, 1, [Access::Reading, Access::None]),
            (7, 2, [Access::None, Access::None]),
            (7, 3, [Access::None, Access::None]),
        ] {
            let key = MKey { key, protect };
            for other in [0, 8] {
                assert_eq!(key.access(&smp(method::GET, other)), read, "{key:?}");
                assert_eq!(key.access(&smp(method::SET, other)), set, "{key:?}");
            }
            assert_eq!([method::GET, method::SET].map(|m| key.access(&smp(m, 7))), [Access::Whole; 2]);
        }
    }

    #[test]
    fn a_lease_runs_from_a_refusal_to_the_next_right_key() {
        const SECOND: u64 = 1_000_000_000;
        let key = MKey { key: 7, protect: 2 };
        let packet = |with: u64| *Smp::lid_routed(method::GET, attr::NODE_INFO, 0, 1).set_m_key(with);
        let mut lease = Lease::default();
        let comes = |lease: &mut Lease, with: u64, seconds: u16, now: u64| {
            let request = packet(with);
            lease.judged(key, &request, key.access(&request), seconds, now);
        };
        comes(&mut lease, 8, 0, 0);
        assert!(!lease.has_run_out(u64::MAX), "0 is for ever");
        comes(&mut lease, 8, 5, SECOND);
        comes(&mut lease, 9, 5, 4 * SECOND);
        assert!(!lease.has_run_out(6 * SECOND - 1));
        assert!(lease.has_run_out(6 * SECOND), "from the first on");
        assert!(!lease.has_run_out(7 * SECOND), "once");
        comes(&mut lease, 8, 5, 10 * SECOND);
        comes(&mut lease, 7, 5, 14 * SECOND);
        assert!(!lease.has_run_out(u64::MAX), "who has the key is there");
    }

    #[test]
    fn the_key_is_shown_to_who_has_it() {
        let mut answer = Smp::lid_routed(method::GET_RESP, attr::PORT_INFO, 0, 1);
        answer.set_data(PortInfo::zeroed().set_m_key(7).set_lid(3).as_bytes());
        let shown = |access: Access| PortInfo::from_bytes(*access.show(answer).data());
        assert_eq!((shown(Access::Whole).m_key(), shown(Access::Whole).lid()), (7, 3));
        assert_eq!((shown(Access::Reading).m_key(), shown(Access::Reading).lid()), (0, 3));
    }
}
