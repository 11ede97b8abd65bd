//! What a node chooses at start.

use dat_nostd::SoleAccess;

use crate::generation::Generation;
use crate::profile::Profile;

/// What a node chooses at start.
#[derive(Clone, Copy, Debug)]
pub struct RdsConfig {
    /// Receives kept posted for each connection, 2 or more. No more than its share of the frames, so that no peer can take
    /// those of another; half of the receiving side's frames (at most 256) are kept back for long messages.
    pub receive_depth: u16,
    /// Sends in flight for each connection, 4 or more. One in 16 of them, at most 8, are kept for binds of memory windows.
    pub send_depth: u16,
    /// Frames that messages of ours may take together, at most half of all; the others are for what arrives.
    pub send_frames: usize,
    /// Send buffer of a new socket, bytes.
    pub send_buffer: usize,
    /// Receive buffer of a new socket, bytes: with more than this unread its port counts as congested.
    pub receive_buffer: usize,
    /// The most that `SO_SNDBUF` and `SO_RCVBUF` may ask for in the Linux profile (`wmem_max`, `rmem_max`), bytes.
    /// [`set_send_buffer`](crate::Rds::set_send_buffer) and
    /// [`set_receive_buffer`](crate::Rds::set_receive_buffer) are not bound by it.
    pub buffer_max: usize,
    /// What programs of new sockets expect.
    pub profile: Profile,
    /// How often the HCA sends a packet again before it gives the connection up (0 to 7; Linux: 1). What was not
    /// acknowledged is then sent again on a new connection.
    pub retry_count: u8,
    /// Gives each peer a protection zone of its own, so that a key offered to one peer is of no use to another, whoever learns it. Then
    /// memory is offered only for a destination, with a message or by [`get_mr_for_dest`](crate::Rds::get_mr_for_dest):
    /// [`get_mr`](crate::Rds::get_mr) names none, and is refused as Linux refuses it. Costs a PZ and a registration of the frames for each
    /// peer. Without it a peer may use every key that it learns or guesses.
    pub isolate_peers: bool,
    /// Connections of different types of service that one peer may ask for. This node itself makes as many as its sockets have
    /// types. A peer that is not trusted may take them all and keep them: the table of connections has room for the others beside
    /// them, or this is 1.
    pub connections_per_peer: u8,
    /// RDMA between sockets of this node, which this processor does: it needs a promise about who else accesses the memory that programs
    /// offer. Without it such an operation is [`NotSupported`](crate::RdsError::NotSupported).
    pub rdma_within: Option<SoleAccess>,
    /// Grows from boot to boot: messages are numbered from here, so that a peer that knew this node before does not take new messages
    /// for old ones.
    pub generation: Generation,
    /// Randomness of this node, for ports and for the time between connection attempts.
    pub seed: u64,
}

impl RdsConfig {
    /// What Linux uses, scaled to a pool of some 1000 frames.
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
