//! Connections: one per peer address and type of service, shared by all sockets.

mod absent;
mod cookie;
mod map;
mod peer;
mod reconnect;
mod remembered;
mod rx;
mod table;
mod tx;

pub(crate) use absent::AbsentPeers;
pub(crate) use cookie::{Cookie, CookieKind};
pub use map::port_mask;
pub(crate) use map::{FRAGMENT_WORDS, Map, MapState};
pub(crate) use peer::Peer;
pub(crate) use reconnect::{PROBE, Reconnect, STANDS};
pub(crate) use remembered::{Remembered, RememberedPeers};
pub(crate) use rx::Rx;
#[cfg(test)]
pub(crate) use rx::{ACK_DELAY, PARTIAL_LIMIT};
pub(crate) use table::{Connections, Links};
pub(crate) use tx::Tx;

/// State of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// The table entry is free.
    #[default]
    Free = 0,
    /// Not connected.
    Down,
    /// Our request is in flight.
    Connecting,
    /// We accepted the peer's request.
    Accepting,
    /// Established.
    Up,
    /// The endpoint has failed and will be freed. Nothing is posted.
    Failed,
}

with_empty! {
    /// DAT objects of a connection, opaque to the protocol.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Objects {
        /// Handle of the endpoint; 0 without one.
        pub(crate) ep: u64 = 0,
        /// Context of the frames' registration for the endpoint.
        pub(crate) lmr_context: u32 = 0,
        /// Distinguishes the connection's endpoints in cookies.
        pub(crate) epoch: u16 = 0,
        /// The peer's own protection zone, and the registration of the frames in it; 0 in the
        /// common zone.
        pub(crate) zone: u64 = 0,
        pub(crate) zone_lmr: u64 = 0,
    }
}

with_empty! {
    /// Table entry of a peer, with the connection that carries it.
    #[derive(Debug)]
    pub(crate) struct Connection {
        pub(crate) state: State = State::Free,
        pub(crate) peer: Peer = Peer::EMPTY,
        pub(crate) objects: Objects = Objects::EMPTY,
        pub(crate) tx: Tx = Tx::EMPTY,
        pub(crate) rx: Rx = Rx::EMPTY,
        pub(crate) map: MapState = MapState::EMPTY,
        pub(crate) reconnect: Reconnect = Reconnect::EMPTY,
        /// Links of the table's lists.
        pub(crate) links: Links = Links::EMPTY,
    }
}

impl Connection {
    /// Returns whether there is a reason to connect: messages, or a map that one side waits for. A
    /// socket here may wait until a port there clears, or the other way round.
    pub(crate) const fn wants_up(&self) -> bool {
        !self.peer.queue.is_empty() || self.map.is_wanted() || self.map.is_owed() && self.peer.was_up
    }

    /// Returns whether the connection waits for the peer: for its congestion map, acknowledgements,
    /// or the rest of a message. A dead peer would never deliver these, and without a probe its
    /// death might remain unnoticed.
    pub(crate) const fn waits_for_peer(&self) -> bool {
        self.map.is_wanted() || !self.peer.queue.is_empty() || self.rx.partial.is_some()
    }

    /// Returns whether the connection has nothing to transfer and holds no memory, so that its
    /// entry may be reused.
    pub(crate) const fn is_idle(&self) -> bool {
        self.peer.queue.is_empty()
            && self.rx.held() == 0
            && !self.map.is_wanted()
            && self.reconnect.held_request == 0
    }

    /// Returns whether the peer has the acknowledgement of every received message, so that it
    /// retransmits none of them.
    ///
    /// Every post carries the acknowledgement. The last post has arrived if it completed, or if the
    /// peer acknowledged the message in it.
    pub(crate) const fn is_settled(&self) -> bool {
        let Self { peer, rx, tx, .. } = self;
        if rx.ack_value == 0 {
            return !peer.is_unsettled;
        }
        let arrived = !self.has_unacknowledged() || tx.completed == tx.posts;
        rx.ack_value.wrapping_add(1) == peer.next_rx && !rx.owes_acknowledgement() && arrived
    }

    /// Returns whether one more acknowledgement on this endpoint would [settle](Self::is_settled)
    /// the connection.
    pub(crate) fn can_settle(&self) -> bool {
        let is_whole = self.rx.ack_value != 0 && self.rx.ack_value.wrapping_add(1) == self.peer.next_rx;
        matches!(self.state, State::Accepting | State::Up) && is_whole && !self.is_settled()
    }

    /// Returns whether the peer lacks a message, or has not acknowledged it.
    pub(crate) const fn has_unacknowledged(&self) -> bool {
        !self.peer.queue.is_empty() && self.tx.highest_ack + 1 < self.peer.next_tx
    }

    /// Prepares to free the endpoint. Nothing is posted on it from now on.
    pub(crate) const fn fail(&mut self) {
        self.state = State::Failed;
        self.tx.fast_until = 0;
    }

    /// Returns whether there may be something to send, or the limit of the fast path must be
    /// computed.
    #[inline]
    pub(crate) const fn may_send(&self) -> bool {
        let tx = &self.tx;
        self.rx.ack_wanted || tx.next.is_some() || self.map.is_due() || tx.fast_until <= tx.posts
    }

    /// Returns whether `sendmsg` may post a single-frame message directly: no message precedes it,
    /// and one post remains for an acknowledgement.
    pub(crate) fn is_clear(&self, depth: u16) -> bool {
        self.state == State::Up && self.tx.next.is_none() && !self.map.is_due() && self.tx.has_room(depth)
    }

    /// Resets the state of an endpoint after it was freed. The caller handles queues, frames, and
    /// whether the peer has the last acknowledgement.
    pub(crate) const fn reset(&mut self) {
        self.state = State::Down;
        self.objects.ep = 0;
        self.objects.epoch = self.objects.epoch.wrapping_add(1);
        self.tx.reset(self.peer.queue.head());
        self.rx.reset();
        self.map.reset();
        self.reconnect.broken_by.clear();
    }
}
