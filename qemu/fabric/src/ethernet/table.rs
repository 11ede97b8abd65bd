//! Addresses that the switch has learned, by VLAN (IEEE 802.1Q 8.8).

use std::collections::BTreeMap;

use ib_types::MacAddress;

use crate::ports::PortIndex;

/// Addresses of one port. A port that sends from more forgets its oldest ones, and takes no space
/// from other ports.
pub(super) const ADDRESSES_OF_A_PORT: usize = 1_024;

/// Nanoseconds for which an address that sends stays at its port. A frame from it at another port
/// came back through a loop, or from a station that pretends to have the address.
pub(super) const HOLD: u64 = 100_000_000;

/// Address and VLAN in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn new(address: MacAddress, vlan: u16) -> Self {
        let [a, b, c, d, e, f] = address.0;
        let [high, low] = vlan.to_be_bytes();
        Self(u64::from_be_bytes([high, low, a, b, c, d, e, f]))
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortIndex,
    /// Position in the port's order of learning.
    serial: u64,
    /// Time of the last frame from the address.
    seen: u64,
}

/// Ports by address and VLAN.
#[derive(Debug)]
pub(super) struct AddressTable {
    entries: BTreeMap<Key, Entry>,
    /// Addresses of each port, by serial: oldest first.
    learned: Vec<BTreeMap<u64, Key>>,
    /// Addresses that only one port may use, in all VLANs.
    pinned: BTreeMap<MacAddress, PortIndex>,
    next_serial: u64,
    /// Nanoseconds after which an address without frames is forgotten.
    ageing: u64,
}

/// Effect of a frame's source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// The address was at this port before.
    Known,
    /// The address is new at this port.
    New,
    /// The address belongs to another port: it is pinned there, or was seen there less than [`HOLD`]
    /// ago.
    Foreign,
}

impl AddressTable {
    pub(super) const fn new(ageing: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            learned: Vec::new(),
            pinned: BTreeMap::new(),
            next_serial: 0,
            ageing,
        }
    }

    pub(super) fn attach(&mut self) {
        self.learned.push(BTreeMap::new());
    }

    /// Reserves an address for a port.
    pub(super) fn pin(&mut self, address: MacAddress, port: PortIndex) {
        self.pinned.insert(address, port);
    }

    /// Releases all reserved addresses of a port.
    pub(super) fn unpin(&mut self, port: PortIndex) {
        self.pinned.retain(|_, owner| *owner != port);
    }

    /// Learns the source of a frame. Group addresses are no sources, and are not learned.
    ///
    /// An address moves only after it was silent for [`HOLD`], because a loop without this rule
    /// multiplies broadcasts without end.
    pub(super) fn learn(&mut self, source: MacAddress, vlan: u16, port: PortIndex, now: u64) -> Learned {
        if let Some(owner) = self.pinned.get(&source) {
            return if *owner == port { Learned::Known } else { Learned::Foreign };
        }
        let key = Key::new(source, vlan);
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.port == port {
                entry.seen = now;
                return Learned::Known;
            }
            let former = *entry;
            if now.saturating_sub(former.seen) < HOLD {
                return Learned::Foreign;
            }
            if let Some(learned) = self.learned.get_mut(former.port.0 as usize) {
                learned.remove(&former.serial);
            }
        }
        if source.is_multicast() {
            return Learned::Known;
        }
        let Some(learned) = self.learned.get_mut(port.0 as usize) else { return Learned::Known };
        if learned.len() >= ADDRESSES_OF_A_PORT
            && let Some((_, oldest)) = learned.pop_first()
        {
            self.entries.remove(&oldest);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        learned.insert(serial, key);
        self.entries.insert(key, Entry { port, serial, seen: now });
        Learned::New
    }

    /// Returns the port of a pinned or learned address.
    #[inline]
    pub(super) fn find(&self, address: MacAddress, vlan: u16, now: u64) -> Option<PortIndex> {
        if let Some(owner) = self.pinned.get(&address) {
            return Some(*owner);
        }
        let entry = self.entries.get(&Key::new(address, vlan))?;
        (now.saturating_sub(entry.seen) < self.ageing).then_some(entry.port)
    }

    /// Counts a frame from an address that the table has.
    pub(super) fn refresh(&mut self, address: MacAddress, vlan: u16, now: u64) {
        if let Some(entry) = self.entries.get_mut(&Key::new(address, vlan)) {
            entry.seen = now;
        }
    }

    /// Forgets the addresses that a port has sent from.
    pub(super) fn forget(&mut self, port: PortIndex) {
        let learned = self.learned.get_mut(port.0 as usize).map(std::mem::take);
        for key in learned.into_iter().flat_map(BTreeMap::into_values) {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortIndex = PortIndex(0);
    const B: PortIndex = PortIndex(1);

    fn address(n: u32) -> MacAddress {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddress([2, 0, a, b, c, d])
    }

    fn table() -> AddressTable {
        let mut table = AddressTable::new(100);
        table.attach();
        table.attach();
        table
    }

    #[test]
    fn addresses_are_learned_by_vlan_and_age() {
        let mut table = table();
        assert_eq!(table.find(address(1), 0, 0), None);
        assert_eq!(table.learn(address(1), 0, A, 10), Learned::New);
        assert_eq!(table.learn(address(1), 7, B, 10), Learned::New);
        assert_eq!([0, 7, 8].map(|vlan| table.find(address(1), vlan, 20)), [Some(A), Some(B), None]);
        assert_eq!(table.learn(address(1), 0, A, 60), Learned::Known);
        assert_eq!(table.find(address(1), 0, 159), Some(A), "refreshed at 60");
        assert_eq!(table.find(address(1), 0, 160), None);
        assert_eq!(table.find(address(1), 7, 110), None);
        assert_eq!(table.learn(MacAddress::BROADCAST, 0, A, 0), Learned::Known);
        assert_eq!(table.find(MacAddress::BROADCAST, 0, 0), None);
    }

    #[test]
    fn addresses_move_and_are_forgotten_with_their_port() {
        let mut table = table();
        table.learn(address(1), 0, A, 0);
        table.learn(address(2), 0, A, 0);
        assert_eq!(table.learn(address(1), 0, B, HOLD - 1), Learned::Foreign, "it was just seen at A");
        assert_eq!(table.find(address(1), 0, 99), Some(A));
        assert_eq!(table.learn(address(1), 0, B, HOLD), Learned::New);
        assert_eq!(table.learn(address(1), 0, A, HOLD + 1), Learned::Foreign);
        assert_eq!(table.find(address(1), 0, HOLD), Some(B));
        table.forget(A);
        assert_eq!([1, 2].map(|n| table.find(address(n), 0, HOLD)), [Some(B), None]);
        table.forget(B);
        assert!(table.entries.is_empty() && table.learned.iter().all(BTreeMap::is_empty));
    }

    #[test]
    fn floods_of_sources_evict_only_their_own_port() {
        let mut table = table();
        table.learn(address(0), 0, B, 0);
        for n in 1..=3 * ADDRESSES_OF_A_PORT as u32 {
            table.learn(address(n), 0, A, 0);
        }
        assert_eq!(table.entries.len(), ADDRESSES_OF_A_PORT + 1);
        assert_eq!(table.find(address(0), 0, 0), Some(B));
        let kept = |n| table.find(address(n), 0, 0).is_some();
        assert_eq!([1, 2_048, 2_049, 3_072].map(kept), [false, false, true, true], "oldest first");
        // An address that moves to and fro takes one entry.
        for round in 0..1_000 {
            table.learn(address(3_072), 0, [A, B][round % 2], round as u64 * HOLD);
        }
        let entries: usize = table.learned.iter().map(BTreeMap::len).sum();
        assert_eq!((entries, table.entries.len()), (1_025, 1_025));
    }

    #[test]
    fn pinned_addresses_stay_at_their_port() {
        let mut table = table();
        table.learn(address(1), 5, B, 0);
        table.pin(address(1), A);
        assert_eq!(table.learn(address(1), 5, B, 0), Learned::Foreign);
        assert_eq!(table.learn(address(1), 5, A, 0), Learned::Known);
        assert_eq!(table.find(address(1), 5, 1_000), Some(A), "without ageing, in every VLAN");
        table.unpin(A);
        assert_eq!(table.learn(address(1), 6, B, 0), Learned::New);
    }
}
