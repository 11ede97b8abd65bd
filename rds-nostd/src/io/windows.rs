//! Memory windows where they meet the adapter: offers of registered memory, and their ends, without a command of the HCA's firmware.
//!
//! A bind is one of the connection's requests, like a message: what is sent behind it finds the window bound. Without a connection that is
//! up, or with its send queue full, an offer is registered by itself and a window is freed, by commands.

use dat_nostd::{
    Adapter, CompletionFlags, DatResult, DatReturn, DmaSlice, DtoStatus, Duration, EpHandle, LmrTriplet,
    MemPriv, Platform, PzHandle, ReturnType, RmrCompletion, RmrHandle, Subtype,
};

use crate::connection::{Connection, Cookie, CookieKind, State};
use crate::ids::{ConnectionId, MemoryId, SocketHandle, WindowId};
use crate::node::Rds;
use crate::protocol::Protocol;
use crate::rdma::{Memory, Region, Use, Window};
use crate::reason::DownReason;

/// Limit of a wait for a bind without completions on its connection: far longer than a request to a
/// responsive peer takes. Then the limit of the whole wait.
const WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// From one look to the next.
const APART: Duration = Duration::from_micros(1);

impl Rds<'_> {
    /// Offers part of memory that a socket has registered for a peer, or for all if they share a zone. `behind` is the connection that tells
    /// the peer of it, behind the bind; without one the window is bound when this returns. None if it has to be registered by itself.
    pub(crate) fn bind_window<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        (owner, zone): (SocketHandle, PzHandle),
        behind: Option<ConnectionId>,
        memory: DmaSlice<'_>,
        rights: MemPriv,
    ) -> Option<WindowId> {
        if !self.objects.has_windows {
            return None;
        }
        let memories = &mut self.protocol.operations.memories;
        let part = memories.enter(owner, zone.bits(), memory.va(), memory.len())?;
        let bound = u32::try_from(part.address).ok().and_then(|address| {
            let by = self.way_out(adapter, behind, zone.bits())?;
            let id = self.window_in(adapter, zone)?;
            let window = self.protocol.windows.get_mut(id)?;
            *window = Window {
                state: Use::Unbound,
                memory: Some(part.memory),
                home: Some(by),
                lmr_context: part.lmr_context,
                address,
                len: memory.len() as u32,
                rights,
                ..*window
            };
            let rkey = self.post_bind(adapter, id, by);
            let window = self.protocol.windows.get_mut(id)?;
            match rkey {
                Ok(rkey) => window.rkey = rkey,
                Err(_) => (window.state, window.memory) = (Use::Free, None),
            }
            rkey.ok().map(|_| id)
        });
        let Some(id) = bound else {
            self.protocol.operations.memories.leave(part.memory);
            return None;
        };
        if behind.is_none() && !self.await_window(adapter, id) {
            // The key was not sent to any peer. The unbind is not waited for.
            if let Some(window) = self.protocol.windows.get_mut(id) {
                window.home = None;
            }
            let _ = self.end_window(adapter, id, false);
            if let Some(newest) = Cookie::decode(self.protocol.windows.get(id).cookie) {
                self.protocol.connections.at_mut(newest.connection).tx.note_late_bind(newest.number);
            }
            return None;
        }
        self.protocol.counters.windows_bound += 1;
        bound
    }

    /// A window of a zone that nobody uses.
    fn window_in<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, zone: PzHandle) -> Option<WindowId> {
        let id = self.protocol.windows.vacant(zone.bits())?;
        if self.protocol.windows.get(id).rmr_bits != 0 && self.protocol.windows.get(id).zone == zone.bits() {
            return Some(id);
        }
        self.free_window(adapter, id).ok()?;
        let rmr = adapter.rmr_create(zone).ok()?;
        let window = self.protocol.windows.get_mut(id)?;
        *window = Window { rmr_bits: rmr.bits(), zone: zone.bits(), ..Window::EMPTY };
        Some(id)
    }

    /// A connection that binds in a zone can be posted on: this one and no other; or of those in it the one with the least before it, but
    /// for any that kept the last bind waiting and has not come to it yet.
    fn way_out<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        only: Option<ConnectionId>,
        zone: u64,
    ) -> Option<ConnectionId> {
        let common = self.objects.pz.bits();
        let find = |protocol: &Protocol<'_>| {
            let takes = |id: ConnectionId| {
                let connection = protocol.connection(id);
                let theirs = if connection.objects.zone == 0 { common } else { connection.objects.zone };
                theirs == zone && protocol.takes_bind(id)
            };
            let tx = |id: ConnectionId| &protocol.connection(id).tx;
            match only {
                Some(id) => takes(id).then_some(id),
                None => {
                    let able = protocol.connections.ids().filter(|id| takes(*id) && !tx(*id).has_late_bind());
                    able.min_by_key(|id| tx(*id).in_flight())
                }
            }
        };
        let found = find(&self.protocol);
        if found.is_some() {
            return found;
        }
        // Completions that were not polled yet may free entries of the send queue.
        self.poll_requests(adapter);
        find(&self.protocol)
    }

    /// Posts the bind of a window to what it says, or what unbinds it; its key then.
    ///
    /// # Errors
    /// DAT's.
    fn post_bind<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: WindowId,
        by: ConnectionId,
    ) -> DatResult<u32> {
        let window = self.protocol.windows.get(id);
        let unbinds = window.state != Use::Unbound;
        let what = LmrTriplet::new(
            window.lmr_context,
            u64::from(window.address),
            if unbinds { 0 } else { u64::from(window.len) },
        );
        let (rmr, ep) = (
            RmrHandle::from_bits(window.rmr_bits),
            EpHandle::from_bits(self.protocol.connection(by).objects.ep),
        );
        let mut flow = self.protocol.flow(by);
        let cookie = flow.cookie(CookieKind::Rdma, flow.connection.tx.posts + 1);
        let flags = CompletionFlags::empty();
        let rkey = adapter.rmr_bind(rmr, &what, window.rights, ep, cookie, flags)?;
        flow.count(true);
        if let Some(window) = self.protocol.windows.get_mut(id) {
            window.state = if unbinds { Use::Ending } else { Use::Binding };
            window.cookie = cookie;
        }
        Ok(rkey)
    }

    /// A bind is over. One that failed broke its connection, with which it is [settled](Self::settle_windows).
    #[cold]
    #[inline(never)]
    pub(crate) fn bind_done<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, done: &RmrCompletion) {
        let current = self.protocol.connections.current(done.user_cookie);
        let Some(cookie) = current.filter(|cookie| cookie.kind == CookieKind::Rdma) else { return };
        if done.status != DtoStatus::Success {
            return self.protocol.mark_broken(cookie.connection, DownReason::of_request(done.status));
        }
        if let Some(id) = self.protocol.windows.find(|window| window.cookie == done.user_cookie) {
            self.window_changed(id);
        }
        self.protocol.connections.at_mut(cookie.connection).tx.bind_done(cookie.number);
        self.protocol.sent(cookie);
        self.release_ended(adapter);
        self.bind_was_awaited(adapter);
        // There is room for one that could not be bound again when its connection came up, before messages that tell of it.
        self.bind_again(adapter, cookie.connection);
        self.flush(adapter, cookie.connection);
    }

    /// Revokes regions that were used up and waited for the bind of a window.
    fn bind_was_awaited<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) {
        if self.protocol.regions.wait_no_more() {
            self.free_spent_regions(adapter);
        }
    }

    /// The newest bind of a window was carried out.
    fn window_changed(&mut self, id: WindowId) {
        let Some(window) = self.protocol.windows.get_mut(id) else { return };
        window.cookie = 0;
        if window.state == Use::Ending {
            window.state = Use::Free;
            self.protocol.leave_memory(id);
        } else {
            window.state = Use::Bound;
        }
    }

    /// Waits until the binds of a window are over. False if that takes too long.
    pub(crate) fn await_window<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, id: WindowId) -> bool {
        let last = adapter.now() + LONGEST_WAIT;
        let mut until = adapter.now() + WAIT;
        let completed = |protocol: &Protocol<'_>| {
            let by = protocol.windows.get(id).by();
            by.map_or(0, |by| protocol.connection(by).tx.completed)
        };
        let mut before = completed(&self.protocol);
        loop {
            let moved = self.poll_requests(adapter);
            let window = self.protocol.windows.get(id);
            if window.cookie == 0 {
                return true;
            }
            let now = adapter.now();
            let broken = |by| self.protocol.connection(by).reconnect.broken_by.is_some();
            if now >= until || window.by().is_some_and(broken) || adapter.is_dead() {
                return false;
            }
            // What moves on others' connections says nothing of this one.
            let known = completed(&self.protocol);
            if core::mem::replace(&mut before, known) < known {
                until = last.min(now + WAIT);
            }
            if !moved {
                adapter.idle(now + APART);
            }
        }
    }

    /// Ends what a window offers; if `at_once`, nobody has access any more when this returns. Without room in the send queue a command does
    /// it, behind a bind that is on its way, which would fail else, and its connection with it.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn end_window<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: WindowId,
        at_once: bool,
    ) -> DatResult<()> {
        let mut unbinds = self.unbind(adapter, id);
        if !unbinds && self.protocol.windows.get(id).state == Use::Binding && !adapter.is_dead() {
            self.await_window(adapter, id);
            // What went before it may have left room, though its bind still waits.
            unbinds = self.unbind(adapter, id);
        }
        match unbinds {
            true if at_once => self.finish_window(adapter, id),
            true => Ok(()),
            false => self.free_window(adapter, id),
        }
    }

    /// Posts what unbinds a window. False if nothing was posted.
    fn unbind<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, id: WindowId) -> bool {
        let is_bound = |window: Window| matches!(window.state, Use::Binding | Use::Bound);
        let window = self.protocol.windows.get(id);
        if !is_bound(window) || adapter.is_dead() {
            return false;
        }
        // Of two binds on two connections it would not be known which comes first.
        let by = self.way_out(adapter, window.by(), window.zone);
        // `way_out` polls, which may have changed the state.
        let by = by.filter(|_| is_bound(self.protocol.windows.get(id)));
        by.is_some_and(|by| self.post_bind(adapter, id, by).is_ok())
    }

    /// Waits for the end of a window's binds, at the price of the connection if its peer keeps it waiting.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn finish_window<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        id: WindowId,
    ) -> DatResult<()> {
        if !self.await_window(adapter, id) {
            let now = adapter.now();
            self.take_down_broken(adapter, now);
            if let Some(by) = self.protocol.windows.get(id).by() {
                self.connection_down(adapter, by, DownReason::Local, now);
            }
        }
        if self.protocol.windows.get(id).state == Use::Ending {
            self.free_window(adapter, id)
        } else {
            Ok(())
        }
    }

    /// What was released of memory like this is out of reach when this returns. What keeps other memory's waiting is not waited for.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn finish_released<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        is_meant: impl Fn(MemoryId, &Memory) -> bool,
    ) -> DatResult<()> {
        self.revoke_spent_of(adapter, &is_meant)?;
        let find = |protocol: &Protocol<'_>| {
            let memories = &protocol.operations.memories;
            let meant = |id| memories.get(id).is_some_and(|memory| is_meant(id, memory));
            protocol.windows.find(|window| window.state == Use::Ending && window.memory.is_some_and(meant))
        };
        while let Some(id) = find(&self.protocol) {
            self.finish_window(adapter, id)?;
        }
        Ok(())
    }

    /// Frees a window, bound or not, by a command.
    ///
    /// # Errors
    /// DAT's; INVALID_STATE (LMR_IN_USE), as of a region: a device that has failed may still write to memory that is not the adapter's.
    fn free_window<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, id: WindowId) -> DatResult<()> {
        let window = self.protocol.windows.get(id);
        let memories = &self.protocol.operations.memories;
        let is_foreign =
            window.memory.and_then(|id| memories.get(id)).is_some_and(|memory| memory.is_foreign);
        if is_foreign && adapter.is_dead() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse));
        }
        free(adapter, window)?;
        self.protocol.leave_memory(id);
        self.protocol.windows.take(id);
        Ok(())
    }

    /// Frees the windows that are like this. A region that had one knows it no more.
    ///
    /// # Errors
    /// DAT's, of the last that could not be freed.
    pub(crate) fn free_windows<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        is_meant: impl Fn(&Window) -> bool,
    ) -> DatResult<()> {
        let mut result = Ok(());
        for id in self.protocol.windows.ids() {
            if is_meant(&self.protocol.windows.get(id)) {
                result = self.free_window(adapter, id).and(result);
            }
        }
        result
    }

    /// The endpoint of a connection is gone, and what DAT says of windows that were bound on it is certain.
    #[inline]
    pub(crate) fn settle_windows<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, by: ConnectionId) {
        while let Some(id) = self.protocol.windows.find(|window| window.by() == Some(by)) {
            let Some(window) = self.protocol.windows.get_mut(id) else { return };
            window.cookie = 0;
            let rmr = RmrHandle::from_bits(window.rmr_bits);
            let bound = adapter.rmr_query(rmr).is_ok_and(|rmr| rmr.binding.is_some());
            if window.state == Use::Ending {
                // In either case: whether what unbinds it was carried out at the very end is not known.
                let _ = self.free_window(adapter, id);
            } else if bound {
                window.state = Use::Bound;
            } else {
                self.protocol.windows.unbound(id);
            }
        }
        self.bind_was_awaited(adapter);
    }

    /// A connection is up, or there is room on it: before anything is sent, what was not bound when it broke is bound again, by the keys
    /// that messages which wait here tell of. Whoever uses what could not be is denied, as with any key that is not there.
    pub(crate) fn bind_again<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, by: ConnectionId) {
        if self.protocol.windows.some_unbound() {
            self.bind_unbound(adapter, by);
        }
    }

    /// Others' follow: what stood in their way may have been this one's binds, of which the adapter takes so many at once.
    #[cold]
    fn bind_unbound<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>, first: ConnectionId) {
        for others in [false, true] {
            for id in self.protocol.windows.ids() {
                let window = self.protocol.windows.get(id);
                let home =
                    window.home.filter(|home| window.state == Use::Unbound && (*home != first) == others);
                let Some(by) = home.filter(|home| self.protocol.takes_bind(*home)) else { continue };
                if self.post_bind(adapter, id, by).is_ok_and(|rkey| rkey != window.rkey) {
                    // No peer has the new key.
                    let _ = self.end_window(adapter, id, false);
                }
            }
        }
        self.protocol.windows.look_for_unbound();
    }
}

impl Protocol<'_> {
    /// Whether a bind can be posted on a connection. One place is left for an acknowledgement.
    fn takes_bind(&self, id: ConnectionId) -> bool {
        takes_bind(self.connection(id), self.limits.request_depth)
    }

    /// Takes a region that was used up, if nobody has to wait for a bind to revoke it.
    pub(crate) fn take_spent(&mut self) -> Option<Region> {
        let Self { regions, windows, connections, limits, .. } = self;
        let is_stuck = |window: Window| {
            let by = window.by().filter(|_| window.state == Use::Binding);
            by.is_some_and(|by| !takes_bind(connections.at(by), limits.request_depth))
        };
        let window_of = |region: &Region| region.window.filter(|id| windows.is_of(*id, region));
        regions.take_spent(|region| !window_of(region).is_some_and(|id| is_stuck(windows.get(id))))
    }

    /// Nothing of a window leads to its memory any more.
    fn leave_memory(&mut self, id: WindowId) {
        if let Some(memory) = self.windows.get_mut(id).and_then(|window| window.memory.take()) {
            self.operations.memories.leave(memory);
        }
    }
}

/// Whether a bind can be posted on a connection whose send queue is so deep.
fn takes_bind(connection: &Connection, depth: u16) -> bool {
    connection.state == State::Up && connection.objects.ep != 0 && connection.tx.has_room(depth)
}

/// Frees a window, if there is one.
fn free<P: Platform>(adapter: &mut Adapter<'_, P>, window: Window) -> DatResult<()> {
    if window.rmr_bits == 0 {
        return Ok(());
    }
    match adapter.rmr_free(RmrHandle::from_bits(window.rmr_bits)) {
        // It has gone with a recovery.
        Err(error) if error.is(ReturnType::InvalidHandle) => Ok(()),
        freed => freed,
    }
}
