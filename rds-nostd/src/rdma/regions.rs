//! The table of memory offered to peers.

use crate::counters::Counters;
use crate::rdma::RdmaCookie;
use crate::socket::SocketHandle;
use crate::wire::{Extension, Extensions, Header};

/// Regions up to this are counted with those of 8 KiB, bytes.
const SHORT: usize = 8192;

/// The table entry of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// The LMR, 0 if the entry is free.
    pub(crate) lmr_bits: u64,
    /// The zone of the only peer that may use it, and that peer (IPv4 mapped); 0 if all may.
    pub(crate) zone: u64,
    pub(crate) foreign: u128,
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
        zone: 0,
        foreign: 0,
        rkey: 0,
        owner: SocketHandle { slot: 0, generation: 0 },
        use_once: false,
        short: false,
        spent: false,
    };

    pub(crate) const fn is_short(len: usize) -> bool {
        len <= SHORT
    }

    /// Whether this peer may use it.
    const fn is_for(&self, foreign: u128) -> bool {
        self.foreign == 0 || self.foreign == foreign
    }

    fn is_of(&self, owner: SocketHandle) -> bool {
        self.lmr_bits != 0 && self.owner == owner
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
        self.entries.iter().any(|region| region.lmr_bits == 0)
    }

    pub(crate) fn insert(&mut self, region: Region) {
        if let Some(free) = self.entries.iter_mut().find(|region| region.lmr_bits == 0) {
            *free = region;
        }
    }

    /// Takes a region out of the table, for revoking it.
    pub(crate) fn take(&mut self, owner: SocketHandle, cookie: RdmaCookie) -> Option<Region> {
        self.take_if(|region| region.is_of(owner) && region.rkey == cookie.rkey())
    }

    /// Takes one of the regions that were used up.
    #[inline]
    pub(crate) fn take_spent(&mut self) -> Option<Region> {
        if !self.some_spent {
            return None;
        }
        let spent = self.take_if(|region| region.spent);
        self.some_spent = spent.is_some();
        spent
    }

    /// Takes one of a socket's regions, or one of all.
    pub(crate) fn take_any(&mut self, owner: Option<SocketHandle>) -> Option<Region> {
        self.take_if(|region| owner.is_none_or(|owner| region.is_of(owner)))
    }

    fn take_if(&mut self, is_meant: impl Fn(&Region) -> bool) -> Option<Region> {
        let found = self.entries.iter_mut().find(|region| region.lmr_bits != 0 && is_meant(region))?;
        Some(core::mem::replace(found, Region::EMPTY))
    }

    /// Whether something is offered in a zone.
    pub(crate) fn any_in(&self, zone: u64) -> bool {
        zone != 0 && self.entries.iter().any(|region| region.lmr_bits != 0 && region.zone == zone)
    }

    /// Whether the socket has a region of this key that a peer may use.
    pub(crate) fn may_offer(&self, owner: SocketHandle, cookie: RdmaCookie, foreign: u128) -> bool {
        let found =
            |region: &Region| region.is_of(owner) && region.rkey == cookie.rkey() && region.is_for(foreign);
        self.entries.iter().any(found)
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
