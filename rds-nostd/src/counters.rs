//! Counters, named as `rds-info -c` names them where Linux has the same.

use crate::reason::DownReason;

/// What a node has seen since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that went down.
    pub conn_reset: u64,
    /// Both sides connected at once and one attempt was given up.
    pub connect_raced: u64,
    /// Requests refused: other protocol version, addresses that disagree, no connection left.
    pub connect_refused: u64,
    /// Of those, requests that came too soon after another of the same peer.
    pub connect_too_often: u64,
    /// Connections that went down and attempts given up, by the number of the [`DownReason`].
    pub downs: [u64; DownReason::COUNT],
    /// Frames with a wrong checksum.
    pub recv_drop_bad_checksum: u64,
    /// Retransmitted messages that had been received before.
    pub recv_drop_old_seq: u64,
    /// Messages to a port that nobody is bound to.
    pub recv_drop_no_sock: u64,
    /// Frames that break the protocol: wrong lengths, mixed fragments. Each costs the connection.
    pub recv_protocol_errors: u64,
    /// Messages handed to a socket's receive queue.
    pub recv_queued: u64,
    /// Messages read by the application.
    pub recv_delivered: u64,
    /// Messages that asked for an acknowledgement.
    pub recv_ack_required: u64,
    /// Pings answered.
    pub recv_ping: u64,
    /// Changes of our own congestion map.
    pub cong_update_queued: u64,
    /// Messages refused because of the peer's congestion map.
    pub cong_send_error: u64,
    /// Congestion maps received.
    pub cong_update_received: u64,
    /// Messages accepted from applications.
    pub send_queued: u64,
    /// Calls answered with EAGAIN because of a full send buffer.
    pub send_queue_full: u64,
    /// Messages sent again after a reconnection.
    pub send_retransmitted: u64,
    /// Pongs sent.
    pub send_pong: u64,
    /// Acknowledgement frames sent.
    pub ack_sent: u64,
    /// Acknowledgements beyond what was sent.
    pub ack_beyond: u64,
    /// Times that no frame was left to post as a receive.
    pub rx_ring_starved: u64,
}
