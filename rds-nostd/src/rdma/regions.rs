//! The table of memory offered to peers.

use crate::counters::Counters;
use crate::ids::{SocketHandle, WindowId};
use crate::rdma::RdmaCookie;
use crate::wire::{Extension, Extensions, Header};

/// Regions up to this are counted with those of 8 KiB, bytes.
const SHORT: usize = 8192;

/// The table entry of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// The LMR, or the window on registered memory with its RMR in place of the LMR; neither if the entry is free.
    pub(crate) lmr_bits: u64,
    pub(crate) window: Option<WindowId>,
    /// The zone of the only peer that may use it, and that peer (IPv4 mapped); 0 if all may.
    pub(crate) zone: u64,
    pub(crate) foreign: u128,
    /// The only peer that has the key, and the only one whose message uses the region up. 0 for any peer.
    pub(crate) given: u128,
    pub(crate) rkey: u32,
    pub(crate) owner: SocketHandle,
    pub(crate) use_once: bool,
    /// No longer than two pages.
    pub(crate) short: bool,
    /// Its peer used it up: to be freed as soon as the adapter is at hand.
    pub(crate) spent: bool,
}

impl Region {
    pub(crate) const EMPTY: Self = Self {
        lmr_bits: 0,
        window: None,
        zone: 0,
        foreign: 0,
        given: 0,
        rkey: 0,
        owner: SocketHandle { slot: 0, generation: 0 },
        use_once: false,
        short: false,
        spent: false,
    };

    pub(crate) const fn is_short(len: usize) -> bool {
        len <= SHORT
    }

    const fn is_there(&self) -> bool {
        self.lmr_bits != 0 || self.window.is_some()
    }

    /// Whether this peer may use it.
    const fn is_for(&self, foreign: u128) -> bool {
        self.foreign == 0 || self.foreign == foreign
    }

    /// Whether this peer can have the key.
    const fn is_given_to(&self, foreign: u128) -> bool {
        self.given == 0 || self.given == foreign
    }

    fn is_of(&self, owner: SocketHandle) -> bool {
        self.is_there() && self.owner == owner
    }
}

/// All regions of a node.
pub(crate) struct Regions<'s> {
    entries: &'s mut [Region],
    /// Some of them are spent.
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

    /// Puts it into a free entry, of which there is one.
    pub(crate) fn insert(&mut self, region: Region) {
        self.some_spent |= region.spent;
        if let Some(free) = self.entries.iter_mut().find(|region| !region.is_there()) {
            *free = region;
        }
    }

    /// Takes a region out of the table, for revoking it.
    pub(crate) fn take(&mut self, owner: SocketHandle, cookie: RdmaCookie) -> Option<Region> {
        self.take_if(|region| region.is_of(owner) && region.rkey == cookie.rkey())
    }

    /// Whether there may be regions that were used up.
    #[inline]
    pub(crate) const fn has_spent(&self) -> bool {
        self.some_spent
    }

    /// Takes one of the regions that were used up and are like this.
    pub(crate) fn take_spent(&mut self, is_meant: impl Fn(&Region) -> bool) -> Option<Region> {
        self.take_if(|region| region.spent && is_meant(region))
    }

    /// Regions that were used up are revoked.
    pub(crate) const fn none_spent(&mut self) {
        self.some_spent = false;
    }

    /// Takes one of a socket's regions, or one of all.
    pub(crate) fn take_any(&mut self, owner: Option<SocketHandle>) -> Option<Region> {
        self.take_if(|region| owner.is_none_or(|owner| region.is_of(owner)))
    }

    fn take_if(&mut self, is_meant: impl Fn(&Region) -> bool) -> Option<Region> {
        let found = self.entries.iter_mut().find(|region| region.is_there() && is_meant(region))?;
        Some(core::mem::replace(found, Region::EMPTY))
    }

    /// Whether something is offered in a zone.
    pub(crate) fn any_in(&self, zone: u64) -> bool {
        zone != 0 && self.entries.iter().any(|region| region.is_there() && region.zone == zone)
    }

    /// The region that a key is of, if this peer may use it.
    pub(crate) fn of_key(&self, rkey: u32, foreign: u128) -> Option<&Region> {
        let named = |region: &&Region| region.is_there() && region.rkey == rkey && region.is_for(foreign);
        self.entries.iter().find(named).filter(|region| !region.spent)
    }

    /// The socket tells a peer of a region of this key. False if it has none that the peer may use.
    pub(crate) fn give(&mut self, owner: SocketHandle, cookie: RdmaCookie, foreign: u128) -> bool {
        let found =
            |region: &Region| region.is_of(owner) && region.rkey == cookie.rkey() && region.is_for(foreign);
        let Some(region) = self.entries.iter_mut().find(|region| found(region)) else { return false };
        if region.given != foreign {
            region.given = 0;
        }
        true
    }

    /// A message with extensions arrived for a socket: if the peer used a region that was to be used once, that one goes.
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
                Some(region) if !region.is_given_to(foreign) => counters.recv_bad_rkey += 1,
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

    /// A region for one use is used up by the only peer that has its key, or by any if two have it.
    #[test]
    fn who_was_not_told_uses_nothing_up() {
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
