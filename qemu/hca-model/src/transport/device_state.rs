//! What the data path keeps per device.

use std::collections::VecDeque;

use ib_types::Psn;
use mlx5_prm::datapath::WQEBB_SIZE;
use rdma_fabric::packet::Packet;

use super::schedule::Schedule;
use super::segments::Reserved;
use crate::object::mkey::Segments;
use crate::port::FrameSizes;
use crate::recorder::Failures;

/// Basic blocks of a send queue that were read together. Each read of guest memory has a cost, and
/// posted WQEs do not change.
#[derive(Debug)]
pub(super) struct Prefetched {
    /// Index of the first block, and how many are valid.
    pub(super) first: u16,
    pub(super) count: u16,
    pub(super) blocks: [[u8; WQEBB_SIZE]; Self::BLOCKS as usize],
}

impl Default for Prefetched {
    fn default() -> Self {
        Self { first: 0, count: 0, blocks: [[0; WQEBB_SIZE]; Self::BLOCKS as usize] }
    }
}

impl Prefetched {
    pub(super) const BLOCKS: u16 = 8;

    /// Returns the block at `index` of the queue.
    #[inline]
    pub(super) fn get(&self, index: u16) -> Option<&[u8; WQEBB_SIZE]> {
        let at = index.wrapping_sub(self.first);
        if at < self.count { self.blocks.get(usize::from(at)) } else { None }
    }
}

/// Counters of QUERY_CONG_STATISTICS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CongestionCounters {
    /// Packets received with a mark.
    pub(crate) marked: u64,
    /// Notifications sent.
    pub(crate) sent: u64,
    /// Notifications received by a QP.
    pub(crate) handled: u64,
    /// Notifications received that no QP takes.
    pub(crate) ignored: u64,
}

/// What the data path keeps per device: run queue, timers, loopback, counters.
#[derive(Debug, Default)]
pub struct DeviceTransport {
    /// What happened so far.
    pub counters: TransportCounters,
    /// The last failures of QPs.
    pub(super) failures: Failures,
    pub(super) schedule: Schedule,
    pub(super) loopback: VecDeque<Packet>,
    /// Bytes of a copy within memory.
    pub(super) buffer: Vec<u8>,
    pub(super) segments: Segments,
    pub(super) reserved: Reserved,
    pub(super) prefetched: Prefetched,
    pub(crate) congestion: CongestionCounters,
    /// Frames of requests and responses that were carried out without them in this turn of a QP.
    pub(super) copied_sizes: [FrameSizes; 2],
    /// PSN of the next packet that belongs to no connection.
    pub(super) datagram_psn: Psn,
}

impl DeviceTransport {
    /// Returns the last failures of QPs.
    pub(crate) const fn failures(&self) -> &Failures {
        &self.failures
    }

    /// The device is reset: all but the counters and the last failures is as at power-on.
    pub(crate) fn reset(&mut self) {
        let failures = core::mem::take(&mut self.failures);
        *self = Self { counters: self.counters, failures, ..Self::default() };
    }
}

/// What happened on the data path since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCounters {
    /// Send doorbells.
    pub doorbells: u64,
    /// Writes of the second 8 bytes of a BlueFlame buffer: doorbells that brought their work queue entry along.
    pub blueflame: u64,
    /// Packets sent, loopback included.
    pub packets_sent: u64,
    /// Packets received, loopback included.
    pub packets_received: u64,
    /// Payload bytes that were written to guest memory.
    pub bytes_placed: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Acknowledgement time-outs.
    pub timeouts: u64,
    /// PSN sequence error NAKs sent.
    pub sequence_naks_sent: u64,
    /// PSN sequence error NAKs received.
    pub sequence_naks_received: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Requests that were there before.
    pub duplicates: u64,
    /// Requests ahead of what was expected.
    pub out_of_sequence: u64,
    /// READ responses or acknowledgements that showed that an earlier READ response was lost.
    pub implied_naks: u64,
    /// Messages of unreliable connections dropped although all of them arrived: no receive WQE, no right.
    pub messages_dropped: u64,
    /// Packets with a wrong ICRC.
    pub icrc_errors: u64,
    /// Packets whose headers made no sense.
    pub malformed: u64,
    /// Packets for no QP of this device, or one that does not take them.
    pub no_qp: u64,
    /// Packets with a P_Key that does not match.
    pub pkey_mismatches: u64,
    /// Datagrams with a wrong Q_Key.
    pub qkey_mismatches: u64,
    /// Datagrams for which there was no, or too small, a receive WQE.
    pub datagrams_dropped: u64,
}
