//! Counters, named and ordered as `rds-info -c` shows them where Linux has the same (`net/rds/stats.c`, `ib_stats.c`); what only
//! this implementation counts comes after. Those of Linux that have no meaning here (locks, retries, page remainders, copies) are
//! left out.

use crate::reason::DownReason;

/// A counter's name and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// As Linux has it; shorter than 32 bytes.
    pub name: &'static str,
    /// The count.
    pub value: u64,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// What a node has seen since it started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
            /// Connections that went down and attempts given up, by the number of the [`DownReason`].
            pub downs: [u64; DownReason::COUNT],
        }

        impl Counters {
            /// How many counters there are.
            pub const COUNT: usize = [$($name),*].len() + DownReason::COUNT;

            /// All counters with their names, in a fixed order.
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
    /// Messages to a port that nobody is bound to.
    recv_drop_no_sock = "recv_drop_no_sock",
    /// Messages longer than this node accepts: acknowledged and dropped.
    recv_drop_too_long = "recv_drop_too_long",
    /// Messages read by the application.
    recv_delivered = "recv_delivered",
    /// Messages handed to a socket's receive queue.
    recv_queued = "recv_queued",
    /// Messages that asked for an acknowledgement.
    recv_ack_required = "recv_ack_required",
    /// Bytes that peers say to have read or written by RDMA (Linux 7.2 tells, older ones do not).
    recv_rdma_bytes = "recv_rdma_bytes",
    /// Pings answered.
    recv_ping = "recv_ping",
    /// Calls answered with EAGAIN because of a full send buffer.
    send_queue_full = "send_queue_full",
    /// Messages not sent again after a reconnection, because the peer has them or because of their operation.
    send_drop_acked = "send_drop_acked",
    /// Messages sent with the wish for an acknowledgement.
    send_ack_required = "send_ack_required",
    /// Messages accepted from applications.
    send_queued = "send_queued",
    /// RDMA operations accepted, and their bytes.
    send_rdma = "send_rdma",
    /// See `send_rdma`.
    send_rdma_bytes = "send_rdma_bytes",
    /// Pongs sent.
    send_pong = "send_pong",
    /// Changes of our own congestion map.
    cong_update_queued = "cong_update_queued",
    /// Congestion maps received.
    cong_update_received = "cong_update_received",
    /// Messages refused because of the peer's congestion map.
    cong_send_error = "cong_send_error",
    /// Both sides connected at once and one attempt was given up.
    connect_raced = "ib_connect_raced",
    /// Times that no frame was left to post as a receive.
    rx_ring_starved = "ib_rx_ring_empty",
    /// Acknowledgement frames sent.
    ack_sent = "ib_ack_sent",
    /// Acknowledgement frames received.
    ack_received = "ib_ack_received",
    /// Regions of up to 8 KiB offered to peers.
    mr_8k_alloc = "ib_rdma_mr_8k_alloc",
    /// Those of them released.
    mr_8k_free = "ib_rdma_mr_8k_free",
    /// Times that there was no region left for up to 8 KiB.
    mr_8k_depleted = "ib_rdma_mr_8k_pool_depleted",
    /// Longer regions offered to peers.
    mr_1m_alloc = "ib_rdma_mr_1m_alloc",
    /// Those of them released.
    mr_1m_free = "ib_rdma_mr_1m_free",
    /// Times that there was no region left for more.
    mr_1m_depleted = "ib_rdma_mr_1m_pool_depleted",
    /// Compare and swap operations accepted.
    atomic_cswp = "ib_atomic_cswp",
    /// Fetch and add operations accepted.
    atomic_fadd = "ib_atomic_fadd",

    /// Requests of peers refused: other protocol version, addresses that disagree, too soon, no connection left. And replies.
    connect_refused = "connect_refused",
    /// Of those, requests that came too soon after another of the same peer.
    connect_too_often = "connect_too_often",
    /// Frames that break the protocol: wrong lengths, mixed fragments. Each costs the connection.
    recv_protocol_errors = "recv_protocol_errors",
    /// Congestion maps of a wrong length or with other flags beside; ignored.
    recv_bad_map = "recv_bad_map",
    /// RDMA extensions that name no region of the message's socket; ignored.
    recv_bad_rkey = "recv_bad_rkey",
    /// Pings not answered: too many answers are on their way, or the pinger's port is congested.
    recv_ping_dropped = "recv_ping_dropped",
    /// Pings sent, which request acknowledgements of silent peers.
    send_ping = "send_ping",
    /// Messages dropped because their peer was unreachable and other peers needed its entry.
    send_drop_unreachable = "send_drop_unreachable",
    /// Messages sent again after a reconnection.
    send_retransmitted = "send_retransmitted",
    /// Messages refused because their connection, or this node itself, had no frame left.
    send_frames_short = "send_frames_short",
    /// Regions offered as windows on registered memory, which takes no command of the HCA's firmware.
    windows_bound = "windows_bound",
    /// Peers that expect larger numbers than this boot began with, which it then went on from: this node's clock was set back, or it has none.
    send_numbers_raised = "send_numbers_raised",
    /// Acknowledgements beyond what was sent; taken for the last one sent.
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
