//! Memory windows: keys for parts of registered memory. Work requests bind and unbind them, without
//! a firmware command. Windows are reused.
//!
//! Type 1 windows: all QPs of the zone may use the key, on each connection of a peer and after a
//! reconnection, as with the key of a registration.

use dat_nostd::MemPriv;

use crate::connection::Cookie;
use crate::ids::{ConnectionId, MemoryId, WindowId};
use crate::rdma::regions::Region;

/// State of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Not bound.
    Free,
    /// The bind is in flight.
    Binding,
    /// Bound.
    Bound,
    /// The connection broke before the bind executed. The next connection binds the window again,
    /// with the same key.
    Unbound,
    /// Released while the bind is in flight on a connection that accepts no unbind. Freed when the
    /// bind completes.
    Revoked,
    /// Released: the unbind is in flight, or the window cannot be freed yet.
    Ending,
}

with_empty! {
    /// Table entry of a window.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Window {
        /// The RMR, 0 if there is none, and its zone.
        pub(crate) rmr_bits: u64 = 0,
        pub(crate) zone: u64 = 0,
        pub(crate) state: Use = Use::Free,
        /// Cookie of the newest bind while that is in flight; otherwise 0.
        pub(crate) cookie: u64 = 0,
        /// The connection whose messages carry the key.
        pub(crate) home: Option<ConnectionId> = None,
        /// The memory that contains it, which remains registered meanwhile.
        pub(crate) memory: Option<MemoryId> = None,
        /// Target of the bind, as in work requests; length in bytes.
        pub(crate) lmr_context: u32 = 0,
        pub(crate) address: u32 = 0,
        pub(crate) len: u32 = 0,
        pub(crate) rights: MemPriv = MemPriv::empty(),
        pub(crate) rkey: u32 = 0,
    }
}

impl Window {
    const fn is_there(&self) -> bool {
        self.rmr_bits != 0
    }

    /// Returns whether the window was released but may still be bound.
    pub(crate) const fn is_ending(&self) -> bool {
        matches!(self.state, Use::Revoked | Use::Ending)
    }

    /// Returns the connection of a bind in flight.
    pub(crate) const fn by(&self) -> Option<ConnectionId> {
        Cookie::connection_of(self.cookie)
    }
}

/// All windows of a node.
pub(crate) struct Windows<'s> {
    entries: &'s mut [Window],
    /// True if some windows may be unbound; saves the search if there are none.
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

    pub(crate) fn get(&self, id: WindowId) -> &Window {
        self.entries.get(id.index()).unwrap_or(&Window::EMPTY)
    }

    pub(crate) fn get_mut(&mut self, id: WindowId) -> Option<&mut Window> {
        self.entries.get_mut(id.index())
    }

    /// Returns whether a region's window still belongs to it.
    pub(crate) fn is_of(&self, id: WindowId, region: &Region) -> bool {
        let window = self.get(id);
        window.state != Use::Free && (window.rmr_bits, window.rkey) == (region.lmr_bits, region.rkey)
    }

    /// Returns the first window that satisfies a condition.
    pub(crate) fn find(&self, is_meant: impl Fn(&Window) -> bool) -> Option<WindowId> {
        self.ids().find(|id| {
            self.entries.get(id.index()).is_some_and(|window| window.is_there() && is_meant(window))
        })
    }

    /// Returns an entry for a new use in a zone: a free window of the zone, an empty entry, or a
    /// free window of another zone.
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

    /// Records that the connection broke before the bind executed.
    pub(crate) fn unbound(&mut self, id: WindowId) {
        if let Some(window) = self.get_mut(id) {
            window.state = Use::Unbound;
            self.some_unbound = true;
        }
    }

    /// Returns whether windows may have to be bound again.
    #[inline]
    pub(crate) const fn some_unbound(&self) -> bool {
        self.some_unbound
    }

    /// Updates the flag after windows were bound again.
    pub(crate) fn update_unbound(&mut self) {
        let waits = |window: &Window| window.state == Use::Unbound && window.home.is_some();
        self.some_unbound = self.find(waits).is_some();
    }

    /// Removes a window from the table, to free it.
    pub(crate) fn take(&mut self, id: WindowId) -> Window {
        self.get_mut(id).map_or(Window::EMPTY, |entry| core::mem::replace(entry, Window::EMPTY))
    }

    /// Clears the table without freeing the windows.
    pub(crate) fn forget(&mut self) {
        self.entries.fill(Window::EMPTY);
        self.some_unbound = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flag for unbound windows is clear without such windows, and after they were bound,
    /// freed, or lost with the adapter.
    #[test]
    fn the_unbound_flag_is_exact() {
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
        windows.update_unbound();
        assert!(windows.some_unbound(), "the second");
        windows.get_mut(ids[1]).expect("there").state = Use::Bound;
        windows.update_unbound();
        assert!(!windows.some_unbound());
        windows.unbound(ids[1]);
        windows.forget();
        assert!(!windows.some_unbound());
    }

    /// Order of preference: a window of the zone, an empty entry, a window of another zone. Windows
    /// in use are never taken.
    #[test]
    fn vacant_prefers_the_cheapest_window() {
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
