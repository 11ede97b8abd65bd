//! The protocol of a node, without I/O. Received frames go in (`Protocol::arrived`). Posts come out
//! ([`Flow::dispatch`](dispatch::Flow::dispatch)), and the time of the next poll
//! ([`Protocol::poll_at`]). The caller owns the adapter.

mod absent;
mod admission;
mod congestion;
mod deliver;
mod dispatch;
mod due;
mod ping;
mod process;
mod receives;
mod reserve;
mod room;
mod settle;
mod submit;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use dat_nostd::Instant;

pub(crate) use admission::{Admission, Request};
pub(crate) use dispatch::{Flow, Post, Segment, Step};
pub(crate) use due::Due;
pub(crate) use receives::BURST;
use reserve::Turns;
pub(crate) use submit::{Body, Outgoing, Outlet};

use crate::config::RdsConfig;
use crate::connection::{AbsentPeers, Connection, Connections, Map, RememberedPeers};
use crate::counters::Counters;
use crate::frames::{Frames, Memory, Rings};
use crate::ids::{ConnectionId, FrameId};
use crate::limits::Limits;
use crate::quota::{Shares, Used};
use crate::rdma::{Operations, Regions, Windows};
use crate::reason::DownReason;
use crate::socket::Sockets;
use crate::storage::RdsParts;
use crate::wire::MAP_FRAGMENTS;

/// State of a node.
pub(crate) struct Protocol<'s> {
    pub(crate) sockets: Sockets<'s>,
    pub(crate) connections: Connections<'s>,
    pub(crate) frames: Frames<'s>,
    pub(crate) rings: Rings<'s>,
    pub(crate) operations: Operations<'s>,
    pub(crate) regions: Regions<'s>,
    pub(crate) windows: Windows<'s>,
    /// Congestion maps of the connections' peers.
    maps: &'s mut [Map],
    remembered: RememberedPeers<'s>,
    absent: AbsentPeers,
    pub(crate) config: RdsConfig,
    pub(crate) limits: Limits,
    /// Address of this node, IPv4 mapped.
    pub(crate) local: u128,
    pub(crate) counters: Counters,
    /// Shares of the sending and of the receiving side, and frames of the latter that loopback
    /// messages use.
    sending: Shares,
    receiving: Shares,
    local_used: Used,
    turns: Turns,
    /// A connection lacks receives because frames are short.
    starved: bool,
    /// Unread messages occupy too many common frames of the receiving side.
    pool_short: bool,
    /// Frames that contain our congestion map, and from which it is sent.
    own_map: [Option<FrameId>; MAP_FRAGMENTS as usize],
    /// Our map has changed and was not sent to all peers.
    maps_changed: bool,
    /// Number of maps received.
    pub(crate) map_generation: u64,
    /// An endpoint has failed, and its connection is not down yet.
    pub(crate) some_broken: bool,
    /// A connection was opened or closed since the last poll: the adapter may have new deadlines,
    /// and frames may be free.
    pub(crate) connections_changed: bool,
    /// Start of the node, and time of the last poll.
    started: Instant,
    pub(crate) now: Instant,
    /// The node stops, at this time at the latest.
    pub(crate) stops_at: Option<Instant>,
    random: u64,
}

impl<'s> Protocol<'s> {
    pub(crate) fn new(
        parts: RdsParts<'s>,
        memory: Memory,
        config: RdsConfig,
        limits: Limits,
        local: u128,
        now: Instant,
    ) -> Self {
        parts.maps.fill_with(|| Map::EMPTY);
        let mut protocol = Self {
            sockets: Sockets::new(parts.sockets),
            connections: Connections::new(parts.connections, parts.buckets, parts.heap, config.seed),
            frames: Frames::new(parts.frames, memory),
            rings: Rings::new(parts.receives, limits.receive_depth),
            operations: Operations::new(parts.operations, parts.iovs, parts.memories),
            regions: Regions::new(parts.regions),
            windows: Windows::new(parts.windows),
            maps: parts.maps,
            remembered: RememberedPeers::new(parts.remembered),
            absent: AbsentPeers::EMPTY,
            config,
            limits,
            local,
            counters: Counters::default(),
            sending: limits.sending,
            receiving: limits.receiving,
            local_used: Used::NONE,
            turns: Turns::default(),
            starved: false,
            pool_short: false,
            own_map: [None; MAP_FRAGMENTS as usize],
            maps_changed: false,
            map_generation: 0,
            some_broken: false,
            connections_changed: false,
            started: now,
            now,
            stops_at: None,
            random: config.seed.max(1),
        };
        protocol.create_map();
        protocol
    }

    pub(crate) fn connection(&self, id: ConnectionId) -> &Connection {
        self.connections.at(id)
    }

    /// Records that the endpoint failed. The connection goes down at the end of this round. A DAT
    /// event replaces the reason of a mere flush.
    pub(crate) fn mark_broken(&mut self, id: ConnectionId, reason: DownReason) {
        let connection = self.connections.at_mut(id);
        if connection.objects.ep != 0 {
            connection.reconnect.breaks(reason);
            connection.fail();
            self.some_broken = true;
            self.connections.make_due(id);
        }
    }

    /// Returns the first sequence number for a peer without an entry. It exceeds all earlier ones,
    /// of this boot and of others, because no node sends a message per nanosecond.
    pub(crate) fn first_sequence(&self) -> u64 {
        let elapsed = self.now.saturating_duration_since(self.started).as_nanos() as u64;
        self.config.generation.first_sequence().saturating_add(elapsed)
    }

    /// xorshift64*.
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
