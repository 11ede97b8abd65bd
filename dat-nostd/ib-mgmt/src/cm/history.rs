//! Records of ended connections that gave up their slot: they distinguish a late copy of a REQ from
//! a new REQ.

use super::message::Req;
use super::reason::RejReason;
use super::slot::CmSlot;
use ib_types::mix;
use ib_types::{Guid, Instant, Psn, QpNumber};

/// Entries of a set.
const WAYS: usize = 4;
/// Bits of [`Ended::until`] that hold the reason.
const REASON: u64 = 0xffff;

/// A connection that is over.
#[derive(Clone, Copy, Debug)]
struct Ended {
    /// Fingerprint of its REQ; 0 for a free entry.
    key: u64,
    /// Time in nanoseconds until which copies of the REQ may arrive. The low 16 bits (66 µs) hold
    /// the reason of the REJ.
    until: u64,
}

impl Ended {
    const EMPTY: Ended = Ended { key: 0, until: 0 };
}

/// Memory for four ended connections, 64 bytes. A [`Cm`](super::Cm) finds an entry in its set
/// without a search.
#[derive(Clone, Copy, Debug)]
pub struct EndedSet([Ended; WAYS]);

impl EndedSet {
    /// A free set; all bytes zero.
    pub const EMPTY: EndedSet = EndedSet([Ended::EMPTY; WAYS]);
}

/// The ended connections. A full set forgets the entry that ends first.
#[derive(Debug, Default)]
pub(super) struct History<'s> {
    sets: &'s mut [EndedSet],
    seed: u64,
}

impl<'s> History<'s> {
    pub(super) fn new(sets: &'s mut [EndedSet], seed: u64) -> Self {
        sets.fill(EndedSet::EMPTY);
        History { sets, seed }
    }

    pub(super) fn into_sets(self) -> &'s mut [EndedSet] {
        self.sets
    }

    fn key(&self, remote_id: u32, guid: Guid, qpn: QpNumber, psn: Psn) -> u64 {
        // Keyed, so that no peer can choose identities that share a set or a key.
        let numbers = u64::from(qpn.get()) << 32 | u64::from(psn.get());
        let key = mix(mix(mix(self.seed ^ guid.get()) ^ u64::from(remote_id)) ^ numbers);
        key.max(1)
    }

    fn set(&mut self, key: u64) -> Option<&mut [Ended; WAYS]> {
        let index = key.checked_rem(self.sets.len() as u64)? as usize;
        self.sets.get_mut(index).map(|set| &mut set.0)
    }

    /// Remembers a passive connection until `until`. Copies of its REQ get a REJ with this reason.
    pub(super) fn remember(&mut self, slot: &CmSlot, until: Instant, reason: RejReason) {
        let key = self.key(slot.remote_id, slot.remote_guid, slot.remote_qpn, slot.remote_psn);
        let until = until.as_nanos() | REASON;
        let Some(set) = self.set(key) else { return };
        if let Some(first) = set.iter_mut().min_by_key(|ended| ended.until) {
            *first = Ended { key, until: until ^ REASON | u64::from(reason.0) };
        }
    }

    /// Returns the reason for which a copy of an ended connection's REQ must be rejected.
    pub(super) fn find(&mut self, now: Instant, req: &Req) -> Option<RejReason> {
        let key = self.key(req.local_comm_id(), req.local_ca_guid(), req.local_qpn(), req.starting_psn());
        let found = self.set(key)?.iter().find(|ended| ended.key == key)?;
        (now.as_nanos() <= found.until | REASON).then_some(RejReason((found.until & REASON) as u16))
    }
}
