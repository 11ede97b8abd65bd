//! Memory windows: keys for parts of registered memory, which are bound and unbound by work requests, without a command of the HCA's
//! firmware. They are kept from one use to the next.
//!
//! They are windows of type 1: whoever is in the zone may use the key, on each of a peer's connections and on those made after a break,
//! as with a key of memory that was registered for it.

use dat_nostd::MemPriv;

use crate::connection::Cookie;
use crate::ids::{ConnectionId, MemoryId, WindowId};
use crate::rdma::regions::Region;

/// Where a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Bound to nothing.
    Free,
    /// Its bind is on its way.
    Binding,
    /// Bound.
    Bound,
    /// The connection broke before the bind was carried out: it is bound again, by the same key, when the next one is up.
    Unbound,
    /// Released while its bind is in flight and its connection takes no unbind: ended once the bind completes.
    Revoked,
    /// Released: its unbind is in flight, or it cannot be freed yet.
    Ending,
}

/// The table entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The RMR, 0 if there is none; the zone that it is in.
    pub(crate) rmr_bits: u64,
    pub(crate) zone: u64,
    pub(crate) state: Use,
    /// The cookie of its newest bind, 0 when that is over.
    pub(crate) cookie: u64,
    /// The connection whose messages carry the key.
    pub(crate) home: Option<ConnectionId>,
    /// The memory that it is part of, which stays registered for as long.
    pub(crate) memory: Option<MemoryId>,
    /// What it is bound to, or is to be: as work requests name it, bytes.
    pub(crate) lmr_context: u32,
    pub(crate) address: u32,
    pub(crate) len: u32,
    pub(crate) rights: MemPriv,
    pub(crate) rkey: u32,
}

impl Window {
    pub(crate) const EMPTY: Self = Self {
        rmr_bits: 0,
        zone: 0,
        state: Use::Free,
        cookie: 0,
        home: None,
        memory: None,
        lmr_context: 0,
        address: 0,
        len: 0,
        rights: MemPriv::empty(),
        rkey: 0,
    };

    const fn is_there(&self) -> bool {
        self.rmr_bits != 0
    }

    /// Returns whether it was released and may be bound still.
    pub(crate) const fn is_ending(&self) -> bool {
        matches!(self.state, Use::Revoked | Use::Ending)
    }

    /// The connection that its newest bind was posted on, until that is over.
    pub(crate) const fn by(&self) -> Option<ConnectionId> {
        Cookie::connection_of(self.cookie)
    }
}

/// All windows of a node.
pub(crate) struct Windows<'s> {
    entries: &'s mut [Window],
    /// Some of them may be unbound: nobody looks for those that are not there.
    some_unbound: bool,
}

impl<'s> Windows<'s> {
    pub(crate) fn new(entries: &'s mut [Window]) -> Self {
        let count = entries.len().min(WindowId::MOST);
        let (entries, _) = entries.split_at_mut(count);
        entries.fill(Window::EMPTY);
        Self { entries, some_unbound: false }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = WindowId> + use<> {
        (0..self.entries.len()).map(WindowId::new)
    }

    pub(crate) fn get(&self, id: WindowId) -> Window {
        self.entries.get(id.index()).copied().unwrap_or(Window::EMPTY)
    }

    pub(crate) fn get_mut(&mut self, id: WindowId) -> Option<&mut Window> {
        self.entries.get_mut(id.index())
    }

    /// Whether a region's window is still there, and its.
    pub(crate) fn is_of(&self, id: WindowId, region: &Region) -> bool {
        let window = self.get(id);
        window.state != Use::Free && (window.rmr_bits, window.rkey) == (region.lmr_bits, region.rkey)
    }

    /// The first one that is like this.
    pub(crate) fn find(&self, is_meant: impl Fn(&Window) -> bool) -> Option<WindowId> {
        self.ids().find(|id| {
            self.entries.get(id.index()).is_some_and(|window| window.is_there() && is_meant(window))
        })
    }

    /// An entry for a new use in a zone: with a window that is there, or with none, or with one of another zone.
    pub(crate) fn vacant(&self, zone: u64) -> Option<WindowId> {
        let free = |window: &Window| window.state == Use::Free;
        self.find(|window| free(window) && window.zone == zone)
            .or_else(|| self.ids().find(|id| !self.get(*id).is_there()))
            .or_else(|| self.find(free))
    }

    /// Marks a released window that cannot be freed yet.
    pub(crate) fn begin_end(&mut self, id: WindowId) {
        if let Some(window) = self.get_mut(id).filter(|window| window.state != Use::Free) {
            window.state = Use::Ending;
        }
    }

    /// Its bind was not carried out before its connection broke.
    pub(crate) fn unbound(&mut self, id: WindowId) {
        if let Some(window) = self.get_mut(id) {
            window.state = Use::Unbound;
            self.some_unbound = true;
        }
    }

    /// Whether there may be windows that are to be bound again.
    #[inline]
    pub(crate) const fn some_unbound(&self) -> bool {
        self.some_unbound
    }

    /// Those that could be were bound again.
    pub(crate) fn look_for_unbound(&mut self) {
        let waits = |window: &Window| window.state == Use::Unbound && window.home.is_some();
        self.some_unbound = self.find(waits).is_some();
    }

    /// Takes it out of the table, to be freed.
    pub(crate) fn take(&mut self, id: WindowId) -> Window {
        self.get_mut(id).map_or(Window::EMPTY, |entry| core::mem::replace(entry, Window::EMPTY))
    }

    /// None of them is there any more.
    pub(crate) fn forget(&mut self) {
        self.entries.fill(Window::EMPTY);
        self.some_unbound = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flag for unbound windows is clear without such windows, and once they were bound, freed, or lost with the adapter.
    #[test]
    fn the_unbound_are_remembered() {
        let mut entries = [Window::EMPTY; 2];
        let mut windows = Windows::new(&mut entries);
        let ids = [0, 1].map(WindowId::new);
        assert!(!windows.some_unbound());
        for id in ids {
            *windows.get_mut(id).expect("there") =
                Window { rmr_bits: 1, home: Some(ConnectionId::new(0)), ..Window::EMPTY };
            windows.unbound(id);
        }
        windows.take(ids[0]);
        windows.look_for_unbound();
        assert!(windows.some_unbound(), "the second");
        windows.get_mut(ids[1]).expect("there").state = Use::Bound;
        windows.look_for_unbound();
        assert!(!windows.some_unbound());
        windows.unbound(ids[1]);
        windows.forget();
        assert!(!windows.some_unbound());
    }

    /// One of the zone first, then a place without one, then one of another zone; none that is in use.
    #[test]
    fn windows_are_taken_where_they_cost_least() {
        let mut entries = [Window::EMPTY; 3];
        let mut windows = Windows::new(&mut entries);
        let [first, second, third] = [0, 1, 2].map(WindowId::new);
        *windows.get_mut(first).expect("there") = Window { rmr_bits: 1, zone: 5, ..Window::EMPTY };
        *windows.get_mut(second).expect("there") = Window { rmr_bits: 2, zone: 6, ..Window::EMPTY };
        assert_eq!(windows.vacant(6), Some(second));
        assert_eq!(windows.vacant(7), Some(third));
        windows.get_mut(third).expect("there").rmr_bits = 3;
        assert_eq!(windows.vacant(7), Some(first));
        for id in [first, second, third] {
            windows.get_mut(id).expect("there").state = Use::Ending;
        }
        assert_eq!(windows.vacant(5), None);
        assert_eq!(windows.take(second).rmr_bits, 2);
        assert_eq!(windows.vacant(5), Some(second));
    }
}
