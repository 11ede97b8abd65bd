//! Table of memory that is offered to peers.

use crate::counters::Counters;
use crate::ids::{SocketHandle, WindowId};
use crate::rdma::RdmaCookie;
use crate::wire::{Extension, Extensions, Header};

/// Upper bound of regions that are counted with those of 8 KiB, in bytes.
const SHORT: usize = 8192;

with_empty! {
    /// Table entry of a region.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Region {
        /// The LMR; or with a window on registered memory its RMR. Both fields are empty if the
        /// entry is free.
        pub(crate) lmr_bits: u64 = 0,
        pub(crate) window: Option<WindowId> = None,
        /// Zone of the only peer that may use it, and the peer's address (IPv4 mapped); 0 if all
        /// peers may.
        pub(crate) zone: u64 = 0,
        pub(crate) foreign: u128 = 0,
        /// The only peer that received the key, and so the only one whose message can use the
        /// region up. 0 for any peer.
        pub(crate) given: u128 = 0,
        pub(crate) rkey: u32 = 0,
        pub(crate) owner: SocketHandle = SocketHandle { slot: 0, generation: 0 },
        pub(crate) use_once: bool = false,
        /// Up to two pages long.
        pub(crate) short: bool = false,
        /// A peer has used it up. To be freed when the adapter is available.
        pub(crate) spent: bool = false,
    }
}

impl Region {
    pub(crate) const fn is_short(len: usize) -> bool {
        len <= SHORT
    }

    const fn is_there(&self) -> bool {
        self.lmr_bits != 0 || self.window.is_some()
    }

    /// Returns whether this peer may use the region.
    const fn is_for(&self, foreign: u128) -> bool {
        self.foreign == 0 || self.foreign == foreign
    }

    fn is_of(&self, owner: SocketHandle) -> bool {
        self.is_there() && self.owner == owner
    }
}

/// All regions of a node.
pub(crate) struct Regions<'s> {
    entries: &'s mut [Region],
    /// True if some regions are used up.
    some_spent: bool,
}

impl<'s> Regions<'s> {
    pub(crate) fn new(entries: &'s mut [Region]) -> Self {
        entries.fill(Region::EMPTY);
        Self { entries, some_spent: false }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.entries.iter().any(|region| !region.is_there())
    }

    /// Inserts a region into a free entry.
    pub(crate) fn insert(&mut self, region: Region) {
        self.some_spent |= region.spent;
        if let Some(free) = self.entries.iter_mut().find(|region| !region.is_there()) {
            *free = region;
        }
    }

    /// Removes a region from the table, to revoke it.
    pub(crate) fn take(&mut self, owner: SocketHandle, cookie: RdmaCookie) -> Option<Region> {
        self.take_if(|region| region.is_of(owner) && region.rkey == cookie.rkey())
    }

    /// Returns whether regions may be used up.
    #[inline]
    pub(crate) const fn has_spent(&self) -> bool {
        self.some_spent
    }

    /// Removes a used-up region that satisfies a condition.
    pub(crate) fn take_spent(&mut self, is_meant: impl Fn(&Region) -> bool) -> Option<Region> {
        self.take_if(|region| region.spent && is_meant(region))
    }

    /// Records that all used-up regions are revoked.
    pub(crate) const fn none_spent(&mut self) {
        self.some_spent = false;
    }

    /// Removes any region of a socket, or of all sockets.
    pub(crate) fn take_any(&mut self, owner: Option<SocketHandle>) -> Option<Region> {
        self.take_if(|region| owner.is_none_or(|owner| region.is_of(owner)))
    }

    fn take_if(&mut self, is_meant: impl Fn(&Region) -> bool) -> Option<Region> {
        let found = self.entries.iter_mut().find(|region| region.is_there() && is_meant(region))?;
        Some(core::mem::replace(found, Region::EMPTY))
    }

    /// Returns whether memory is offered in a zone.
    pub(crate) fn any_in(&self, zone: u64) -> bool {
        zone != 0 && self.entries.iter().any(|region| region.is_there() && region.zone == zone)
    }

    /// Returns the region of a key, if this peer may use it.
    pub(crate) fn of_key(&self, rkey: u32, foreign: u128) -> Option<&Region> {
        let named = |region: &&Region| region.is_there() && region.rkey == rkey && region.is_for(foreign);
        self.entries.iter().find(named).filter(|region| !region.spent)
    }

    /// Records that the socket offers a region to a peer. Returns false if the peer may not use the
    /// key.
    pub(crate) fn give(&mut self, owner: SocketHandle, cookie: RdmaCookie, foreign: u128) -> bool {
        let found =
            |region: &Region| region.is_of(owner) && region.rkey == cookie.rkey() && region.is_for(foreign);
        let Some(region) = self.entries.iter_mut().find(|region| found(region)) else { return false };
        if region.given != foreign {
            region.given = 0;
        }
        true
    }

    /// Evaluates the extensions of a message that arrived for a socket: marks use-once regions that
    /// the peer has used.
    pub(crate) fn used(
        &mut self,
        header: &Header,
        owner: SocketHandle,
        foreign: u128,
        counters: &mut Counters,
    ) {
        for extension in Extensions::of(header) {
            let rkey = match extension {
                Extension::Rdma { rkey } => rkey,
                Extension::RdmaBytes { bytes, .. } => {
                    counters.recv_rdma_bytes += u64::from(bytes);
                    continue;
                }
                _ => continue,
            };
            let named =
                |region: &Region| region.is_of(owner) && region.rkey == rkey && region.is_for(foreign);
            match self.entries.iter_mut().find(|region| named(region)) {
                Some(region) if region.given != 0 && region.given != foreign => counters.recv_bad_rkey += 1,
                Some(region) if region.use_once => {
                    region.spent = true;
                    self.some_spent = true;
                }
                Some(_) => {}
                None => counters.recv_bad_rkey += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: SocketHandle = SocketHandle { slot: 3, generation: 1 };

    /// A use-once region is used up by the only peer that has its key, or by any peer if several
    /// have it.
    #[test]
    fn only_a_peer_with_the_key_uses_a_region_up() {
        let mut entries = [Region::EMPTY; 2];
        let mut regions = Regions::new(&mut entries);
        let (given, use_once) = (7, true);
        let region = Region { lmr_bits: 1, given, rkey: 0x300, owner: OWNER, use_once, ..Region::EMPTY };
        regions.insert(region);
        let extensions = Extension::Rdma { rkey: 0x300 }.encode();
        let header = Header { extensions, ..Header::acknowledgement(0) };
        let mut counters = Counters::default();
        regions.used(&header, OWNER, 8, &mut counters);
        assert!(regions.take_spent(|_| true).is_none());
        assert_eq!(counters.recv_bad_rkey, 1);
        assert!(regions.give(OWNER, RdmaCookie::new(0x300, 0), 7));
        regions.used(&header, OWNER, 8, &mut counters);
        assert!(regions.take_spent(|_| true).is_none(), "told again");
        regions.used(&header, OWNER, 7, &mut counters);
        assert!(regions.take_spent(|_| true).is_some());
        regions.insert(region);
        assert!(regions.give(OWNER, RdmaCookie::new(0x300, 0), 8));
        regions.used(&header, OWNER, 8, &mut counters);
        assert!(regions.take_spent(|_| true).is_some());
        assert_eq!(counters.recv_bad_rkey, 2);
    }
}
