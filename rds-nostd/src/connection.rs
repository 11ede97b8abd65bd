//! Connections: one for each peer address and type of service, shared by all sockets.

use dat_nostd::EpHandle;

use crate::frames::{Link, Queue};
use crate::reason::DownReason;
use crate::slot::Slot;

/// After so many messages one asks for an acknowledgement, as Linux does.
const MESSAGES_PER_ACK: u64 = 8;
/// As the post that asked: so far behind any that the next one asks.
pub(crate) const NEVER_ASKED: u64 = 1 << 63;

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
}

/// The table entry of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// Its endpoint failed, for this reason; it goes down as soon as all completions of requests were looked at.
    pub(crate) broken: bool,
    pub(crate) broken_by: Slot<DownReason>,
    /// Distinguishes the connection's endpoints in cookies.
    pub(crate) epoch: u16,
    /// The peer, IPv4 mapped, and the type of service: together they name the connection.
    pub(crate) foreign: u128,
    pub(crate) tos: u8,
    /// The frames' memory as its queue pair knows it.
    pub(crate) lmr_context: u32,
    /// Its peer's own protection zone and the frames' memory in it; 0 with the one of all peers.
    pub(crate) zone: u64,
    pub(crate) zone_lmr: u64,
    /// The endpoint's handle, 0 without one.
    pub(crate) ep_bits: u64,

    /// Number of the next message; survives reconnections, as does `next_rx`.
    pub(crate) next_tx: u64,
    pub(crate) next_rx: u64,

    /// Messages not (or not completely) posted; the first may be in the middle of it.
    pub(crate) unsent: Queue,
    /// The next frame of the first unsent message, if some of it was posted.
    pub(crate) cursor: Link,
    /// Messages posted completely, not yet acknowledged by the peer's RDS or not yet completed by the HCA.
    pub(crate) unacked: Queue,
    /// Sends posted, and sends known to be complete, since the endpoint was made.
    pub(crate) posts: u64,
    pub(crate) completed: u64,
    /// Number of the last post that will be reported.
    pub(crate) signalled: u64,
    /// Fragments of the congestion map that must go first.
    pub(crate) maps_to_send: u8,
    /// The map changed since its first fragment was posted.
    pub(crate) map_changed: bool,
    /// A socket was refused because of the peer's map: the next one must be heard of, if by connecting anew.
    pub(crate) map_wanted: bool,
    /// The map changed since the last one that the peer has for certain; and the number of the last post of a map.
    pub(crate) map_owed: bool,
    pub(crate) map_post: u64,

    /// Highest number received complete on this endpoint: what we acknowledge.
    pub(crate) ack_value: u64,
    pub(crate) ack_wanted: bool,
    /// One acknowledgement frame is in flight, in the frame kept for it.
    pub(crate) ack_in_flight: bool,
    pub(crate) ack_frame: Link,
    /// Highest acknowledgement seen on this endpoint.
    pub(crate) highest_ack: u64,
    /// Number of the last message on this endpoint that asked for an acknowledgement, and of the post of its last frame;
    /// [`NEVER_ASKED`] before the first.
    pub(crate) asked: u64,
    pub(crate) asked_post: u64,
    /// Messages with an operation that is not over.
    pub(crate) operations: u16,
    /// Answers to pings that the peer has not acknowledged.
    pub(crate) pongs: u8,

    /// First frame of a message that has arrived in part.
    pub(crate) partial: Link,
    pub(crate) receives_posted: u16,
    /// Cookie of the receives posted, but for the frame; 0 without any.
    pub(crate) receive_cookie: u64,
    /// A first fragment of a congestion map has arrived.
    pub(crate) map_begun: bool,

    /// When it last came up (nanoseconds); 0 if never.
    pub(crate) up_at: u64,
    /// When a request of the peer was last accepted (nanoseconds), and how long from then on further ones are refused.
    pub(crate) accepted_at: u64,
    pub(crate) stands: u64,
    /// A request of the peer that waits for what becomes of ours; 0 if none does.
    pub(crate) held_request: u64,
    /// Port GID of the peer, as of the last connection.
    pub(crate) foreign_gid: [u8; 16],
    /// How often it went down or an attempt ended, and why it last did.
    pub(crate) downs: u64,
    pub(crate) last_down: Slot<DownReason>,
    /// When to connect next, or to see whether the peer is there (nanoseconds), and how long the wait was drawn from.
    pub(crate) retry_at: u64,
    pub(crate) backoff: u64,
}

impl Connection {
    pub(crate) const EMPTY: Self = Self {
        state: State::Free,
        broken: false,
        broken_by: Slot::empty(DownReason::NoResources),
        epoch: 0,
        foreign: 0,
        tos: 0,
        lmr_context: 0,
        zone: 0,
        zone_lmr: 0,
        ep_bits: 0,
        next_tx: 0,
        next_rx: 0,
        unsent: Queue::EMPTY,
        cursor: Link::NONE,
        unacked: Queue::EMPTY,
        posts: 0,
        completed: 0,
        signalled: 0,
        maps_to_send: 0,
        map_changed: false,
        map_wanted: false,
        map_owed: false,
        map_post: 0,
        ack_value: 0,
        ack_wanted: false,
        ack_in_flight: false,
        ack_frame: Link::NONE,
        highest_ack: 0,
        asked: 0,
        asked_post: 0,
        operations: 0,
        pongs: 0,
        partial: Link::NONE,
        receives_posted: 0,
        receive_cookie: 0,
        map_begun: false,
        up_at: 0,
        accepted_at: 0,
        stands: 0,
        held_request: 0,
        foreign_gid: [0; 16],
        downs: 0,
        last_down: Slot::empty(DownReason::NoResources),
        retry_at: 0,
        backoff: 0,
    };

    #[inline(always)]
    pub(crate) fn ep(&self) -> Option<EpHandle> {
        (self.ep_bits != 0).then(|| EpHandle::from_bits(self.ep_bits))
    }

    /// Whether it has to be made for the sake of the maps alone: a socket here waits for a port there to clear, or perhaps one
    /// there for one here.
    pub(crate) const fn wants_maps(&self) -> bool {
        self.map_wanted || self.map_owed && self.up_at != 0
    }

    /// Whether it never moved anything and has nothing to move, so that its entry may name another peer.
    pub(crate) fn is_unused(&self) -> bool {
        self.state == State::Down && self.up_at == 0 && self.unsent.is_empty()
    }

    /// Whether a socket with so many bytes outstanding of `buffer`, those of its new message included, hurries the peer's
    /// acknowledgement: from half of it on, unless one is on its way and many more such messages fit.
    #[inline(always)]
    pub(crate) const fn hurries(&self, outstanding: usize, buffer: usize, len: usize) -> bool {
        outstanding >= buffer / 2
            && (self.asked <= self.highest_ack || outstanding >= buffer || len >= buffer / 8)
    }

    /// Whether neither messages nor maps nor an acknowledgement wait to be sent.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        self.unsent.is_empty() && self.maps_to_send == 0 && !self.map_changed && !self.ack_wanted
    }

    /// Whether the message `sequence`, whose last frame will be post `number`, asks for an acknowledgement: because enough went without,
    /// or as the first one on its endpoint.
    #[inline(always)]
    pub(crate) const fn asks(&self, sequence: u64, number: u64, unasked_frames: u32) -> bool {
        sequence.wrapping_sub(self.asked) > MESSAGES_PER_ACK
            || number.wrapping_sub(self.asked_post) > unasked_frames as u64
    }

    pub(crate) fn set_ep(&mut self, ep: Option<EpHandle>) {
        self.ep_bits = ep.map_or(0, EpHandle::bits);
    }
}

/// What a post's cookie says when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie {
    pub(crate) kind: CookieKind,
    pub(crate) connection: u8,
    pub(crate) epoch: u16,
    /// The post's number for sends, the frame for receives.
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CookieKind {
    Message = 1,
    Acknowledgement = 2,
    Receive = 3,
    Rdma = 4,
}

impl Cookie {
    #[inline(always)]
    pub(crate) const fn encode(self) -> u64 {
        ((self.kind as u64) << 56)
            | ((self.connection as u64) << 48)
            | ((self.epoch as u64) << 32)
            | self.number as u64
    }

    #[inline(always)]
    pub(crate) const fn decode(bits: u64) -> Option<Self> {
        let kind = match bits >> 56 {
            1 => CookieKind::Message,
            2 => CookieKind::Acknowledgement,
            3 => CookieKind::Receive,
            4 => CookieKind::Rdma,
            _ => return None,
        };
        Some(Self { kind, connection: (bits >> 48) as u8, epoch: (bits >> 32) as u16, number: bits as u32 })
    }
}
