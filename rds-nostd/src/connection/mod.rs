//! Connections: one for each peer address and type of service, shared by all sockets.

mod absent;
mod cookie;
mod map;
mod reconnect;
mod remembered;
mod rx;
mod table;
mod tx;

pub(crate) use absent::{Absent, AbsentPeers};
pub(crate) use cookie::{Cookie, CookieKind};
pub use map::port_mask;
pub(crate) use map::{FRAGMENT_WORDS, Map, MapState};
pub(crate) use reconnect::{Broken, PROBE, Reconnect, STANDS};
pub(crate) use remembered::{Remembered, RememberedPeers};
pub(crate) use rx::Rx;
#[cfg(test)]
pub(crate) use rx::{ACK_DELAY, PARTIAL_LIMIT};
pub(crate) use table::{Connections, Links};
pub(crate) use tx::Tx;

/// Where a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// The table entry is not in use.
    #[default]
    Free = 0,
    /// Not connected.
    Down,
    /// Our request is on its way.
    Connecting,
    /// We accepted the peer's request.
    Accepting,
    /// Messages flow.
    Up,
    /// Its endpoint failed and is about to go: nothing is begun on it any more.
    Failed,
}

/// The objects of the layer below that a connection uses. The protocol does not look into them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects {
    /// The endpoint's handle, 0 without one.
    pub(crate) ep: u64,
    /// The frames' memory as its queue pair knows it.
    pub(crate) lmr_context: u32,
    /// Distinguishes the connection's endpoints in cookies.
    pub(crate) epoch: u16,
    /// Its peer's own protection zone and the frames' memory in it; 0 with the one of all peers.
    pub(crate) zone: u64,
    pub(crate) zone_lmr: u64,
}

impl Objects {
    pub(crate) const NONE: Self = Self { ep: 0, lmr_context: 0, epoch: 0, zone: 0, zone_lmr: 0 };
}

/// The table entry of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// The type of service and the peer, IPv4 mapped: together they name the connection.
    pub(crate) tos: u8,
    pub(crate) foreign: u128,
    /// Port GID of the peer, as of the last connection.
    pub(crate) foreign_gid: [u8; 16],
    pub(crate) objects: Objects,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(crate) map: MapState,
    pub(crate) reconnect: Reconnect,
    /// Its places in the lists of the table.
    pub(crate) links: Links,
}

impl Connection {
    pub(crate) const EMPTY: Self = Self {
        state: State::Free,
        tos: 0,
        foreign: 0,
        foreign_gid: [0; 16],
        objects: Objects::NONE,
        tx: Tx::EMPTY,
        rx: Rx::EMPTY,
        map: MapState::EMPTY,
        reconnect: Reconnect::EMPTY,
        links: Links::EMPTY,
    };

    /// Whether there is a reason to connect: messages, or a map that one side waits for. A socket here waits for a port there to clear,
    /// or perhaps one there for one here.
    pub(crate) const fn wants_up(&self) -> bool {
        !self.tx.queue.is_empty() || self.map.is_wanted() || self.map.is_owed() && self.reconnect.was_up
    }

    /// Whether somebody waits for the peer: a socket that its map holds back, messages that it has not acknowledged, or the rest of one
    /// that it has begun. If it died it will do nothing of this, and nothing that would notice its death may be sent to it any more.
    pub(crate) const fn waits_for_peer(&self) -> bool {
        self.map.is_wanted() || !self.tx.queue.is_empty() || self.rx.partial.is_some()
    }

    /// Whether it has nothing to move and holds no memory, so that its entry may become another peer's.
    pub(crate) const fn is_idle(&self) -> bool {
        self.tx.queue.is_empty()
            && self.rx.held() == 0
            && !self.map.is_wanted()
            && self.reconnect.held_request == 0
    }

    /// Returns whether the peer has the acknowledgement of every message that arrived, so that it repeats none of them.
    ///
    /// Every post carries the acknowledgement. The last post has arrived if it completed, or if the peer acknowledged the message
    /// in it.
    pub(crate) const fn is_settled(&self) -> bool {
        let Self { rx, tx, .. } = self;
        if rx.ack_value == 0 {
            return !rx.is_unsettled;
        }
        let arrived = !tx.has_unacknowledged() || tx.completed == tx.posts;
        rx.ack_value.wrapping_add(1) == rx.next_sequence && !rx.owes_acknowledgement() && arrived
    }

    /// Returns whether one more acknowledgement on this endpoint would make the connection [settled](Self::is_settled).
    pub(crate) fn can_settle(&self) -> bool {
        let is_whole = self.rx.ack_value != 0 && self.rx.ack_value.wrapping_add(1) == self.rx.next_sequence;
        matches!(self.state, State::Accepting | State::Up) && is_whole && !self.is_settled()
    }

    /// Whether it is one with this address, or with this port, whatever addresses that gives. A port of zeros is none.
    pub(crate) fn is_of(&self, foreign: u128, gid: [u8; 16]) -> bool {
        self.foreign == foreign || gid != [0; 16] && self.foreign_gid == gid
    }

    /// The endpoint is about to go: nothing more is begun on it.
    pub(crate) const fn fail(&mut self) {
        self.state = State::Failed;
        self.tx.plain_until = 0;
    }

    /// Whether there may be something to send, or it is not known how far messages may be posted straight from `sendmsg`.
    #[inline]
    pub(crate) const fn may_send(&self) -> bool {
        let tx = &self.tx;
        self.rx.ack_wanted || tx.next.is_some() || self.map.is_due() || tx.plain_until <= tx.posts
    }

    /// Whether a message of one frame may be posted straight from `sendmsg`: nothing is before it, and one post is left for an
    /// acknowledgement.
    pub(crate) fn is_clear(&self, depth: u16) -> bool {
        self.state == State::Up && self.tx.next.is_none() && !self.map.is_due() && self.tx.has_room(depth)
    }

    /// After the endpoint is gone: everything that is of one endpoint only begins anew. Queues and frames are the caller's.
    pub(crate) const fn reset(&mut self) {
        self.rx.is_unsettled = !self.is_settled();
        self.state = State::Down;
        self.objects.ep = 0;
        self.objects.epoch = self.objects.epoch.wrapping_add(1);
        self.tx.reset();
        self.rx.reset();
        self.map.reset();
        self.reconnect.broken_by = None;
    }
}
