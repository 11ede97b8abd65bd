//! Counters, named and ordered as in `rds-info -c` where Linux has them (`net/rds/stats.c`,
//! `ib_stats.c`), followed by counters of this crate only. Linux's counters without a meaning here
//! (locks, retries, page remainders, copies) are missing.

use crate::reason::DownReason;

/// A counter's name and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Linux's name; shorter than 32 bytes.
    pub name: &'static str,
    /// The count.
    pub value: u64,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Events of a node since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
            /// Connections that went down and abandoned attempts, by the number of the
            /// [`DownReason`].
            pub downs: [u64; DownReason::COUNT],
        }

        impl Counters {
            /// Number of counters.
            pub const COUNT: usize = [$($name),*].len() + DownReason::COUNT;

            /// Returns all counters with their names, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = Counter> + '_ {
                let own = [$(Counter { name: $name, value: self.$field }),*];
                let downs = DownReason::ALL.into_iter().zip(self.downs);
                own.into_iter()
                    .chain(downs.map(|(reason, value)| Counter { name: reason.counter_name(), value }))
            }
        }
    };
}

counters! {
    /// Connections that went down.
    conn_reset = "conn_reset",
    /// Frames with a wrong checksum.
    recv_drop_bad_checksum = "recv_drop_bad_checksum",
    /// Retransmitted messages that had been received before.
    recv_drop_old_seq = "recv_drop_old_seq",
    /// Messages to an unbound port.
    recv_drop_no_sock = "recv_drop_no_sock",
    /// Messages longer than this node accepts: acknowledged and dropped.
    recv_drop_too_long = "recv_drop_too_long",
    /// Messages read by the application.
    recv_delivered = "recv_delivered",
    /// Messages added to a socket's receive queue.
    recv_queued = "recv_queued",
    /// Messages that requested an acknowledgement.
    recv_ack_required = "recv_ack_required",
    /// Bytes that peers report as transferred by RDMA (Linux since 7.2).
    recv_rdma_bytes = "recv_rdma_bytes",
    /// Replies to pings.
    recv_ping = "recv_ping",
    /// Calls that failed with EAGAIN because of a full send buffer.
    send_queue_full = "send_queue_full",
    /// Messages not retransmitted after a reconnection, because the peer has them or because of
    /// their operation.
    send_drop_acked = "send_drop_acked",
    /// Messages that requested an acknowledgement.
    send_ack_required = "send_ack_required",
    /// Messages accepted from applications.
    send_queued = "send_queued",
    /// RDMA operations accepted.
    send_rdma = "send_rdma",
    /// Bytes of RDMA operations accepted.
    send_rdma_bytes = "send_rdma_bytes",
    /// Pongs sent.
    send_pong = "send_pong",
    /// Changes of our own congestion map.
    cong_update_queued = "cong_update_queued",
    /// Congestion maps received.
    cong_update_received = "cong_update_received",
    /// Messages refused because of the peer's congestion map.
    cong_send_error = "cong_send_error",
    /// Simultaneous connection attempts of both sides, of which one was abandoned.
    connect_raced = "ib_connect_raced",
    /// Times that no frame was free to post a receive.
    rx_ring_starved = "ib_rx_ring_empty",
    /// Acknowledgement frames sent.
    ack_sent = "ib_ack_sent",
    /// Acknowledgement frames received.
    ack_received = "ib_ack_received",
    /// Regions of up to 8 KiB offered to peers.
    mr_8k_alloc = "ib_rdma_mr_8k_alloc",
    /// Regions of up to 8 KiB released.
    mr_8k_free = "ib_rdma_mr_8k_free",
    /// Failed offers of up to 8 KiB, because no region was free.
    mr_8k_depleted = "ib_rdma_mr_8k_pool_depleted",
    /// Longer regions offered to peers.
    mr_1m_alloc = "ib_rdma_mr_1m_alloc",
    /// Longer regions released.
    mr_1m_free = "ib_rdma_mr_1m_free",
    /// Failed longer offers, because no region was free.
    mr_1m_depleted = "ib_rdma_mr_1m_pool_depleted",
    /// Compare-and-swap operations accepted.
    atomic_cswp = "ib_atomic_cswp",
    /// Fetch-and-add operations accepted.
    atomic_fadd = "ib_atomic_fadd",

    /// Refused connection requests and replies of peers: other protocol version, addresses that
    /// disagree, too early, no free connection.
    connect_refused = "connect_refused",
    /// Connection requests refused because they came too early after another one of the same peer.
    connect_too_often = "connect_too_often",
    /// Frames that violate the protocol: wrong lengths, mixed fragments. Each breaks the
    /// connection.
    recv_protocol_errors = "recv_protocol_errors",
    /// Congestion maps with a wrong length or additional flags; ignored.
    recv_bad_map = "recv_bad_map",
    /// RDMA extensions that name no region of the message's socket; ignored.
    recv_bad_rkey = "recv_bad_rkey",
    /// Pings without reply, because too many replies are in flight or the sender's port is
    /// congested.
    recv_ping_dropped = "recv_ping_dropped",
    /// Pings sent, which request acknowledgements from unresponsive peers.
    send_ping = "send_ping",
    /// Messages dropped because their peer was unreachable and other peers needed its entry.
    send_drop_unreachable = "send_drop_unreachable",
    /// Messages retransmitted after a reconnection.
    send_retransmitted = "send_retransmitted",
    /// Messages refused because their connection, or this node itself, had no free frame.
    send_frames_short = "send_frames_short",
    /// Regions offered as windows on registered memory, without a firmware command.
    windows_bound = "windows_bound",
    /// Peers that expect larger sequence numbers than this boot began with, which then continue
    /// from there: this node's clock was set back, or is missing.
    send_numbers_raised = "send_numbers_raised",
    /// Acknowledgements beyond the last message sent, treated as acknowledging that one.
    ack_beyond = "ack_beyond",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_and_fit() {
        let counters = Counters { conn_reset: 7, ack_beyond: 9, ..Counters::default() };
        let all: std::vec::Vec<Counter> = counters.iter().collect();
        assert_eq!(all.len(), Counters::COUNT);
        assert_eq!(all.iter().map(|counter| counter.name).collect::<HashSet<_>>().len(), all.len());
        assert!(all.iter().all(|counter| counter.name.len() < 32));
        assert_eq!(all[0], Counter { name: "conn_reset", value: 7 });
        assert_eq!(all.iter().map(|counter| counter.value).sum::<u64>(), 16);
    }
}
