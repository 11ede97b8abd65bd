//! Peers: what outlives their connections.

use core::net::Ipv4Addr;

use dat_nostd::Instant;

use crate::frames::Queue;
use crate::quota::Used;

with_empty! {
    /// A peer with one type of service. When its entry in the table is reused, it moves to
    /// [`AbsentPeers`](super::AbsentPeers), or leaves its numbers in
    /// [`RememberedPeers`](super::RememberedPeers).
    #[derive(Debug)]
    pub(crate) struct Peer {
        /// Type of service and address, IPv4 mapped: the key of the connection.
        pub(crate) tos: u8 = 0,
        pub(crate) foreign: u128 = 0,
        /// The address, if it is an IPv4 address.
        pub(crate) v4: Option<Ipv4Addr> = None,
        /// GID of its port on the last connection.
        pub(crate) gid: [u8; 16] = [0; 16],
        /// Sequence number of the next message to the peer.
        pub(crate) next_tx: u64 = 0,
        /// Sequence number after the last complete message from the peer.
        pub(crate) next_rx: u64 = 0,
        /// An earlier endpoint was freed before the peer certainly had all acknowledgements.
        pub(crate) is_unsettled: bool = false,
        /// All messages that the peer's RDS has not acknowledged, or that the HCA still uses,
        /// oldest first; and their frames.
        pub(crate) queue: Queue = Queue::EMPTY,
        pub(crate) frames: Used = Used::NONE,
        /// Time until which the peer cannot get the reserve, because it held the reserve without
        /// progress.
        pub(crate) barred_until: Instant = Instant::ORIGIN,
        /// Whether the peer was connected at least once.
        pub(crate) was_up: bool = false,
        /// Time at which the peer was last reachable, or got its entry.
        pub(crate) reachable_at: Instant = Instant::ORIGIN,
    }
}

impl Peer {
    /// Returns whether the peer has this address, or this port GID whatever its address. A GID of
    /// zeros is none.
    pub(crate) fn is_of(&self, foreign: u128, gid: [u8; 16]) -> bool {
        self.foreign == foreign || gid != [0; 16] && self.gid == gid
    }
}
