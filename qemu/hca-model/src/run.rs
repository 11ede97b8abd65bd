//! Request packets of a reliable connection without bytes of their own: what the packets say, and the data where it lies.

use crate::guest_memory::{DmaFault, GuestMemory};
use crate::object::qp::Route;
use crate::object::translation::Segment;
use crate::port::{NicVport, Port, RoceAddress, RoceVersion};
use ib_types::Gid;
use rdma_fabric::ethernet::RocePath;
use rdma_fabric::infiniband::Destination;
use rdma_fabric::infiniband::packet::Reth;
use rdma_fabric::wire::Way;

/// Ranges of one guest's memory, in order.
#[derive(Clone, Copy)]
pub struct Ranges<'a> {
    memory: &'a dyn GuestMemory,
    list: &'a [Segment],
    len: usize,
}

impl<'a> Ranges<'a> {
    /// The ranges of `list` in `memory`, `len` bytes together.
    pub(crate) const fn new(memory: &'a dyn GuestMemory, list: &'a [Segment], len: usize) -> Self {
        Self { memory, list, len }
    }

    /// Bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Copies out of the first ranges.
    fn read(&self, mut out: &mut [u8]) -> Result<(), DmaFault> {
        for segment in self.list {
            let count = out.len().min(usize::try_from(segment.len).unwrap_or(usize::MAX));
            let (part, rest) = out.split_at_mut(count);
            self.memory.read(segment.in_guest()?, part)?;
            out = rest;
        }
        Ok(())
    }

    /// Copies all bytes to another guest's memory.
    ///
    /// # Errors
    /// [`DmaFault`]: as of [`GuestMemory::copy`], or one of the ranges is in a device's own memory.
    pub(crate) fn copy_to(&self, to: &Self) -> Result<(), DmaFault> {
        let mut targets = to.list.iter();
        let (mut target, mut free) = (0, 0);
        for segment in self.list {
            let (mut source, mut left) = (segment.in_guest()?, segment.len);
            while left != 0 {
                if free == 0 {
                    let next = targets.next().ok_or(DmaFault { address: source, len: self.len })?;
                    (target, free) = (next.in_guest()?, next.len);
                }
                let part = left.min(free);
                self.memory.copy(source, to.memory, target, part as usize)?;
                (source, left) = (source.wrapping_add(part), left - part);
                (target, free) = (target.wrapping_add(part), free - part);
            }
        }
        Ok(())
    }
}

/// Payload of a [`Run`].
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// Of a packet, or of the WQE.
    Bytes(&'a [u8]),
    /// In the requester's memory.
    Memory(Ranges<'a>),
}

impl Data<'_> {
    /// Bytes.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(ranges) => ranges.len(),
        }
    }

    /// Copies the first bytes to `out`, which is not longer.
    ///
    /// # Errors
    /// As [`Ranges::copy_to`].
    pub(crate) fn read(&self, out: &mut [u8]) -> Result<(), DmaFault> {
        match self {
            Self::Bytes(bytes) => {
                out.iter_mut().zip(*bytes).for_each(|(to, from)| *to = *from);
                Ok(())
            }
            Self::Memory(ranges) => ranges.read(out),
        }
    }
}

/// Consecutive request packets of one SEND or RDMA WRITE: one packet, some, or the whole message.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The responder took a run of this connection earlier in the same turn: its addresses match.
    pub known: bool,
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
    pub data: Data<'a>,
}

/// The requester of a connection, to its responder.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// Where its packets go, and as whose.
    pub(crate) to: Address,
    /// Destination QP.
    pub(crate) qpn: u32,
    /// P_Key.
    pub(crate) pkey: u16,
    /// Bytes of a packet beside what follows its BTH.
    pub(crate) overhead: u32,
    /// The same of responses, without and with a route in the responder's path.
    pub(crate) response_overhead: [u32; 2],
    /// Source LID and service level, or what completions on Ethernet show in their place.
    pub(crate) shown: (u16, u8),
    /// Path MTU, bytes.
    pub(crate) mtu: u32,
}

impl Requester {
    /// Returns the addresses for the switch.
    pub(crate) const fn way(&self) -> Way<'_> {
        match &self.to {
            Address::InfiniBand(to) => Way::InfiniBand(to),
            Address::Roce(to) => Way::Roce(&to.path),
        }
    }
}

/// Addresses of request packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Address {
    InfiniBand(Destination),
    Roce(RoceDestination),
}

/// Addresses of the request packets of RoCE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoceDestination {
    /// Addresses of frames, and the length of the longest one of requests and responses.
    pub(crate) path: RocePath,
    pub(crate) version: RoceVersion,
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
}

impl RoceDestination {
    /// Returns whether a port sends and receives RoCE frames as long as the connection's.
    pub(crate) fn is_carried(&self, port: &Port, vport: &NicVport) -> bool {
        vport.roce && port.ethernet.as_ref().is_some_and(|port| port.fits(self.path.longest))
    }

    /// Returns whether packets along a responder's `route` are those that the requester takes as responses.
    pub(crate) fn returns(&self, route: &Route, vport: &NicVport) -> bool {
        vport.roce_source(usize::from(route.grh.src_index)) == Some(self.taker())
            && route.rmac == self.path.source
            && route.grh.dgid == self.source.0
            && !route.is_congested()
            && !vport.is_own(route)
    }

    /// Returns the entry of an address table that takes the packets.
    fn taker(&self) -> RoceAddress {
        let vlan = Some(self.path.vlan).filter(|vlan| *vlan != 0);
        RoceAddress { gid: self.destination.0, mac: self.path.destination, vlan, version: self.version }
    }
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
        /// Acknowledgements, or packets of a READ's answer.
        responses: u32,
        /// Their bytes, LRH to ICRC.
        response_bytes: u32,
    },
    /// They have to go as packets; nothing has happened.
    No,
}
