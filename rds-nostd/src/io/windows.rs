//! Memory windows on the adapter: offers of registered memory, and their release, without firmware
//! commands.
//!
//! A bind is one of the connection's requests, like a message, so later messages find the window
//! bound. Without an established connection, or with a full send queue, commands register an offer
//! separately or free its window.

use dat_nostd::{
    Adapter, CompletionFlags, DatResult, DatReturn, DmaSlice, DtoStatus, EpHandle, LmrTriplet, MemPriv,
    Platform, PzHandle, ReturnType, RmrCompletion, RmrHandle, Subtype,
};

use crate::connection::{CookieKind, State};
use crate::error::RdsError;
use crate::ids::{ConnectionId, MemoryId, SocketHandle, WindowId};
use crate::io::Node;
use crate::protocol::Protocol;
use crate::rdma::{Memory, Use, Window};
use crate::reason::DownReason;

impl<P: Platform> Node<'_, '_, '_, P> {
    /// Offers part of a socket's registered memory to a peer, or to all peers if they share a zone.
    /// The bind is posted on the connection `behind`, so later messages there find the window
    /// bound. Returns `None` if the offer needs its own registration.
    pub(crate) fn bind_window(
        &mut self,
        (owner, zone): (SocketHandle, PzHandle),
        behind: ConnectionId,
        memory: DmaSlice<'_>,
        rights: MemPriv,
    ) -> Option<WindowId> {
        if !self.objects.has_windows {
            return None;
        }
        let memories = self.protocol.operations.memories_mut();
        let part = memories.enter(owner, zone.bits(), memory.va(), memory.len())?;
        let bound = u32::try_from(part.address).ok().and_then(|address| {
            let by = self.way_out(Some(behind), zone.bits())?;
            let id = self.window_in(zone)?;
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
            let rkey = self.post_bind(id, by);
            let window = self.protocol.windows.get_mut(id)?;
            match rkey {
                Ok(rkey) => window.rkey = rkey,
                Err(_) => (window.state, window.memory) = (Use::Free, None),
            }
            rkey.ok().map(|_| id)
        });
        match bound {
            Some(_) => self.protocol.counters.windows_bound += 1,
            None => self.protocol.operations.memories_mut().leave(part.memory),
        }
        bound
    }

    /// Returns a free window of a zone.
    fn window_in(&mut self, zone: PzHandle) -> Option<WindowId> {
        let id = self.protocol.windows.vacant(zone.bits())?;
        if self.protocol.windows.get(id).rmr_bits != 0 && self.protocol.windows.get(id).zone == zone.bits() {
            return Some(id);
        }
        self.free_window(id).ok()?;
        let rmr = self.adapter.rmr_create(zone).ok()?;
        let window = self.protocol.windows.get_mut(id)?;
        *window = Window { rmr_bits: rmr.bits(), zone: zone.bits(), ..Window::EMPTY };
        Some(id)
    }

    /// Returns a connection for binds in a zone: `only` that one, or the one with the fewest posts
    /// in flight.
    fn way_out(&mut self, only: Option<ConnectionId>, zone: u64) -> Option<ConnectionId> {
        let common = self.objects.pz.bits();
        let find = |protocol: &Protocol<'_>| {
            let takes = |id: ConnectionId| {
                let connection = protocol.connection(id);
                let theirs = if connection.objects.zone == 0 { common } else { connection.objects.zone };
                theirs == zone && protocol.takes_bind(id)
            };
            match only {
                Some(id) => takes(id).then_some(id),
                None => {
                    let able = protocol.connections.ids().filter(|id| takes(*id));
                    able.min_by_key(|id| protocol.connection(*id).tx.in_flight())
                }
            }
        };
        let found = find(self.protocol);
        if found.is_some() {
            return found;
        }
        // Completions that were not polled yet may free entries of the send queue.
        self.poll_requests();
        find(self.protocol)
    }

    /// Posts a bind of an unbound window, or an unbind of a bound one. Returns its key.
    ///
    /// # Errors
    /// DAT's.
    fn post_bind(&mut self, id: WindowId, by: ConnectionId) -> DatResult<u32> {
        let window = *self.protocol.windows.get(id);
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
        let cookie = flow.cookie(CookieKind::Rdma);
        let flags = CompletionFlags::empty();
        let rkey = self.adapter.rmr_bind(rmr, &what, window.rights, ep, cookie, flags)?;
        flow.count(true);
        if let Some(window) = self.protocol.windows.get_mut(id) {
            window.state = if unbinds { Use::Ending } else { Use::Binding };
            window.cookie = cookie;
        }
        Ok(rkey)
    }

    /// Handles the completion of a bind. A failed bind has broken its connection, and
    /// [`settle_windows`](Self::settle_windows) handles it.
    #[cold]
    #[inline(never)]
    pub(crate) fn bind_done(&mut self, done: &RmrCompletion) {
        let current = self.protocol.connections.current(done.user_cookie);
        let Some(cookie) = current.filter(|cookie| cookie.kind == CookieKind::Rdma) else { return };
        if done.status != DtoStatus::Success {
            return self.protocol.mark_broken(cookie.connection, DownReason::of_request(done.status));
        }
        let changed = self.protocol.windows.find(|window| window.cookie == done.user_cookie);
        let is_revoked = changed.is_some_and(|id| self.protocol.bind_ended(id));
        self.protocol.sent(cookie);
        if let Some(id) = changed.filter(|_| is_revoked) {
            // A window that cannot be freed stays in `Ending`; `finish_released` reports the error.
            let _ = self.end_window(id);
        }
        self.release_ended();
        // The completion freed an entry of the send queue. Binds must precede the messages that
        // carry their keys.
        self.bind_again(cookie.connection);
        self.flush(cookie.connection);
    }

    /// Starts to revoke a window: by an unbind on a connection, or by a command if none accepts it.
    /// A command would fail a bind in flight and break its connection, so such a window is revoked
    /// when the bind completes.
    ///
    /// # Errors
    /// DAT's.
    pub(crate) fn end_window(&mut self, id: WindowId) -> DatResult<()> {
        if self.unbind(id) {
            return Ok(());
        }
        match self.protocol.windows.get_mut(id) {
            Some(window) if window.state == Use::Binding && !self.adapter.is_dead() => {
                window.state = Use::Revoked;
                Ok(())
            }
            _ => self.free_window(id),
        }
    }

    /// Posts the unbind of a window. Returns false if nothing was posted.
    fn unbind(&mut self, id: WindowId) -> bool {
        let is_bound = |window: &Window| matches!(window.state, Use::Binding | Use::Bound);
        let window = self.protocol.windows.get(id);
        if !is_bound(window) || self.adapter.is_dead() {
            return false;
        }
        // The order of two binds on different connections would be undefined.
        let by = self.way_out(window.by(), window.zone);
        // `way_out` polls, which may have changed the state.
        let by = by.filter(|_| is_bound(self.protocol.windows.get(id)));
        by.is_some_and(|by| self.post_bind(id, by).is_ok())
    }

    /// Checks that access has ended to all released regions of the given memory. From now on a
    /// connection without progress breaks if a bind of such a region is in flight.
    ///
    /// # Errors
    /// [`RdsError::Again`]: binds are in flight. [`RdsError::Dat`]: a window cannot be freed.
    pub(crate) fn finish_released(
        &mut self,
        is_meant: impl Fn(MemoryId, &Memory) -> bool,
    ) -> Result<(), RdsError> {
        self.protocol.now = self.adapter.now();
        self.revoke_spent_of(&is_meant)?;
        let mut in_flight = false;
        for id in self.protocol.windows.ids() {
            let window = self.protocol.windows.get(id);
            let memories = self.protocol.operations.memories();
            let meant = |id| memories.get(id).is_some_and(|memory| is_meant(id, memory));
            if !window.is_ending() || !window.memory.is_some_and(meant) {
                continue;
            }
            match window.by() {
                Some(by) => {
                    self.protocol.limit_wait(by);
                    in_flight = true;
                }
                None => self.free_window(id)?,
            }
        }
        if in_flight { Err(RdsError::Again) } else { Ok(()) }
    }

    /// Frees a window, bound or not, by a command.
    ///
    /// # Errors
    /// DAT's; INVALID_STATE (LMR_IN_USE): a failed device may still write to memory outside of the
    /// adapter's DMA region.
    fn free_window(&mut self, id: WindowId) -> DatResult<()> {
        let window = self.protocol.windows.get(id);
        let memories = self.protocol.operations.memories();
        let is_foreign =
            window.memory.and_then(|id| memories.get(id)).is_some_and(|memory| memory.is_foreign);
        let freed = match is_foreign && self.adapter.is_dead() {
            true => Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateLmrInUse)),
            false => free(self.adapter, *window),
        };
        if freed.is_err() {
            self.protocol.windows.begin_end(id);
            return freed;
        }
        self.protocol.leave_memory(id);
        self.protocol.windows.take(id);
        Ok(())
    }

    /// Frees the windows that satisfy a condition. Their regions no longer refer to them.
    ///
    /// # Errors
    /// DAT's, of the last window that could not be freed.
    pub(crate) fn free_windows(&mut self, is_meant: impl Fn(&Window) -> bool) -> DatResult<()> {
        let mut result = Ok(());
        for id in self.protocol.windows.ids() {
            if is_meant(self.protocol.windows.get(id)) {
                result = self.free_window(id).and(result);
            }
        }
        result
    }

    /// Updates the windows with binds in flight on a connection whose endpoint is freed. DAT's
    /// records of their bindings are final now.
    #[inline]
    pub(crate) fn settle_windows(&mut self, by: ConnectionId) {
        while let Some(id) = self.protocol.windows.find(|window| window.by() == Some(by)) {
            let Some(window) = self.protocol.windows.get_mut(id) else { return };
            window.cookie = 0;
            let rmr = RmrHandle::from_bits(window.rmr_bits);
            let bound = self.adapter.rmr_query(rmr).is_ok_and(|rmr| rmr.binding.is_some());
            if window.is_ending() {
                // Free it in either case, because the last unbind may or may not have executed.
                let _ = self.free_window(id);
            } else if bound {
                window.state = Use::Bound;
            } else {
                self.protocol.windows.unbound(id);
            }
        }
    }

    /// Binds the windows again that were unbound when a connection broke, with the same keys,
    /// before any message that carries a key is sent. Called when a connection comes up, or has
    /// free entries. Until then peers are denied, as with any invalid key.
    pub(crate) fn bind_again(&mut self, by: ConnectionId) {
        if self.protocol.windows.some_unbound() {
            self.bind_unbound(by);
        }
    }

    /// Continues with other connections' windows, because this connection's binds may have used up
    /// the adapter's limit.
    #[cold]
    fn bind_unbound(&mut self, first: ConnectionId) {
        for others in [false, true] {
            for id in self.protocol.windows.ids() {
                let window = *self.protocol.windows.get(id);
                let home =
                    window.home.filter(|home| window.state == Use::Unbound && (*home != first) == others);
                let Some(by) = home.filter(|home| self.protocol.takes_bind(*home)) else { continue };
                if self.post_bind(id, by).is_ok_and(|rkey| rkey != window.rkey) {
                    // No peer has the new key.
                    let _ = self.end_window(id);
                }
            }
        }
        self.protocol.windows.update_unbound();
    }
}

impl Protocol<'_> {
    /// Returns whether a bind can be posted on a connection. One entry is left for an
    /// acknowledgement.
    fn takes_bind(&self, id: ConnectionId) -> bool {
        let connection = self.connection(id);
        connection.state == State::Up && connection.tx.has_room(self.limits.request_depth)
    }

    /// Records that the newest bind of a window was executed. Returns whether the window was
    /// released meanwhile.
    fn bind_ended(&mut self, id: WindowId) -> bool {
        let Some(window) = self.windows.get_mut(id) else { return false };
        window.cookie = 0;
        if window.state == Use::Ending {
            window.state = Use::Free;
            self.leave_memory(id);
            return false;
        }
        core::mem::replace(&mut window.state, Use::Bound) == Use::Revoked
    }

    /// Ends the window's use of its memory.
    fn leave_memory(&mut self, id: WindowId) {
        if let Some(memory) = self.windows.get_mut(id).and_then(|window| window.memory.take()) {
            self.operations.memories_mut().leave(memory);
        }
    }
}

/// Frees a window, if there is one.
fn free<P: Platform>(adapter: &mut Adapter<'_, P>, window: Window) -> DatResult<()> {
    if window.rmr_bits == 0 {
        return Ok(());
    }
    match adapter.rmr_free(RmrHandle::from_bits(window.rmr_bits)) {
        // Already freed by the recovery.
        Err(error) if error.is(ReturnType::InvalidHandle) => Ok(()),
        freed => freed,
    }
}
