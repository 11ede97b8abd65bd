//! Configuration of a node.

use dat_nostd::SoleAccess;

use crate::generation::Generation;
use crate::profile::Profile;

/// Configuration of a node, fixed at start.
#[derive(Clone, Copy, Debug)]
pub struct RdsConfig {
    /// Receives posted per connection, 2 or more. Bounded by the connection's share of the frames,
    /// so that no peer can take another's. Half of the receiving side's frames, at most 256, are
    /// reserved for long messages.
    pub receive_depth: u16,
    /// Sends in flight per connection, 4 or more. One in 16 of them, at most 8, are reserved for
    /// binds of memory windows.
    pub send_depth: u16,
    /// Frames for outgoing messages, at most half of all. The other frames are for receives.
    pub send_frames: usize,
    /// Default send buffer of a socket, in bytes.
    pub send_buffer: usize,
    /// Default receive buffer of a socket, in bytes. With more unread bytes its port is congested.
    pub receive_buffer: usize,
    /// Maximum of `SO_SNDBUF` and `SO_RCVBUF` in the Linux profile (`wmem_max`, `rmem_max`), in
    /// bytes. [`set_send_buffer`](crate::Rds::set_send_buffer) and
    /// [`set_receive_buffer`](crate::Rds::set_receive_buffer) ignore it.
    pub buffer_max: usize,
    /// Default profile of a socket.
    pub profile: Profile,
    /// Packet retries of the HCA before it breaks the connection (0 to 7; Linux: 1). Unacknowledged
    /// messages are then retransmitted on a new connection.
    pub retry_count: u8,
    /// Creates a protection zone per peer, so that a key offered to one peer is useless to all
    /// others. An offer must then name its destination, with a message or by
    /// [`get_mr_for_dest`](crate::Rds::get_mr_for_dest): [`get_mr`](crate::Rds::get_mr) names none
    /// and fails, as in Linux. Costs a PZ and a registration of the frames per peer. Without
    /// isolation a peer may use every key that it learns or guesses.
    pub isolate_peers: bool,
    /// Connections of different types of service that one peer may open. This node opens as many as
    /// its sockets have types. An untrusted peer may occupy all of them permanently, so give the
    /// table of connections enough entries, or set this to 1.
    pub connections_per_peer: u8,
    /// RDMA between sockets of this node, executed by the processor. Requires a promise about other
    /// accesses to offered memory. Without it such an operation is
    /// [`NotSupported`](crate::RdsError::NotSupported).
    pub rdma_within: Option<SoleAccess>,
    /// Start of the sequence numbers. Increases from boot to boot, so that peers do not take new
    /// messages for duplicates.
    pub generation: Generation,
    /// Random seed for ports and for the backoff of connection attempts.
    pub seed: u64,
}

impl RdsConfig {
    /// Returns Linux's settings, scaled to about 1000 frames.
    #[must_use]
    pub const fn new(generation: Generation) -> Self {
        Self {
            receive_depth: 256,
            send_depth: 128,
            send_frames: 512,
            send_buffer: 106_496,
            receive_buffer: 106_496,
            buffer_max: 212_992,
            profile: Profile::Linux,
            retry_count: 7,
            isolate_peers: true,
            connections_per_peer: 4,
            rdma_within: None,
            generation,
            seed: 1,
        }
    }
}
