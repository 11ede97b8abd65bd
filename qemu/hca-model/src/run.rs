//! Request packets of a reliable connection without bytes of their own: what the packets say, and the data where it lies.

use rdma_fabric::infiniband::Traffic;
use rdma_fabric::infiniband::packet::Reth;

/// Consecutive request packets of one SEND or RDMA WRITE: one packet, some, or the whole message.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// An RDMA WRITE, not a SEND.
    pub write: bool,
    /// The message begins with them.
    pub first: bool,
    /// It ends with them.
    pub last: bool,
    /// Sequence number of the first.
    pub psn: u32,
    /// How many.
    pub psns: u32,
    /// How many of them ask for an acknowledgement.
    pub ack_requests: u32,
    /// Of the first packet of an RDMA WRITE.
    pub reth: Option<Reth>,
    /// Of the last packet.
    pub immediate: Option<u32>,
    /// Of the last packet: the key to invalidate.
    pub invalidate: Option<u32>,
    /// Of the last packet.
    pub solicited: bool,
    /// Their payload.
    pub data: &'a [u8],
}

/// An RDMA READ, or a part of its answer.
#[derive(Clone, Copy, Debug)]
pub struct ReadRun {
    /// What was asked for, in all.
    pub reth: Reth,
    /// Sequence number of the first packet of the whole answer.
    pub psn: u32,
    /// Packets of the whole answer.
    pub psns: u32,
    /// Packets of the answer before this part.
    pub done: u32,
    /// Packets of this part.
    pub part: u32,
    /// Payload before this part.
    pub offset: u64,
}

/// A port that takes requests without packets, as the wire names it. Good for one turn of the device that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour(pub u32);

/// What became of packets that were to be taken without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// They were taken, and acknowledged where they asked for it.
    Done {
        /// Credit code of the last acknowledgement.
        credits: u8,
        /// Message sequence number.
        msn: u32,
        /// The packets that would have gone.
        traffic: Traffic,
    },
    /// They have to go as packets; nothing has happened.
    No,
}
