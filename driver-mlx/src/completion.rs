//! What a queue answers for a work request that is done, and the owner's name for it.

use crate::cq::{CompletionError, CompletionKind, Cqe};
use crate::types::RKey;
use mlx5_prm::datapath::SendOpcode;

/// The owner's name for a work request: given to the post, given back with its completion. Where 64 bits are enough, posts take them
/// alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct WrId {
    /// The consumer's `wr_id`: any number.
    pub id: u64,
    /// For a layer between the consumer and the driver: any number in bits 63:8; bits 7:0 do not come back.
    pub tag: u64,
}

impl From<u64> for WrId {
    #[inline]
    fn from(id: u64) -> Self {
        Self { id, tag: 0 }
    }
}

/// One of the two queues of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WorkQueue {
    /// Requests.
    Send,
    /// Receives.
    Receive,
}

/// A work request that is done and whose place in its queue is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Completion {
    /// A request is done, and with it all requests before it.
    Sent(Sent),
    /// A message has arrived.
    Received(Received),
    /// A work request failed, or was flushed because an earlier one failed.
    Failed(Failed),
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sent {
    /// The owner's name for it.
    pub wr_id: WrId,
    /// What it did, as the device repeats it.
    pub opcode: SendOpcode,
    /// Requests that are done with it: itself, and those before it that have no completion of their own.
    pub count: u16,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Received {
    /// The owner's name for the receive.
    pub wr_id: WrId,
    /// How the message came.
    pub opcode: ReceiveOpcode,
    /// Bytes that arrived, for datagrams with the 40 bytes of the GRH area. As the device claims: the owner compares it with what it
    /// posted. Where a datagram came from says [`Cqe::datagram`](crate::Cqe::datagram).
    pub length: u32,
}

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ReceiveOpcode {
    /// By a send.
    Send,
    /// By a send with immediate data: the number that the peer's network-order bytes spell.
    SendImm(u32),
    /// By a send that invalidated this key.
    SendInval(RKey),
    /// By an RDMA write with immediate data; the receive's own memory was not used.
    WriteImm(u32),
}

/// A work request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Failed {
    /// The owner's name for it.
    pub wr_id: WrId,
    /// Which queue it was in.
    pub queue: WorkQueue,
    /// Why.
    pub error: CompletionError,
    /// Work requests that are done with it: itself, and those before it that have no completion of their own.
    pub count: u16,
}

impl Completion {
    /// The owner's name for the work request.
    #[inline]
    pub fn wr_id(&self) -> WrId {
        match self {
            Self::Sent(sent) => sent.wr_id,
            Self::Received(received) => received.wr_id,
            Self::Failed(failed) => failed.wr_id,
        }
    }

    /// Work requests that are done with it, itself included.
    #[inline]
    pub fn count(&self) -> u16 {
        match self {
            Self::Sent(sent) => sent.count,
            Self::Received(_) => 1,
            Self::Failed(failed) => failed.count,
        }
    }

    /// Of `count` work requests, the last of which `cqe` reports done.
    #[inline]
    pub(crate) fn new(cqe: &Cqe<'_>, wr_id: WrId, count: u16) -> Self {
        let received = |opcode| Self::Received(Received { wr_id, opcode, length: cqe.byte_len() });
        match cqe.kind() {
            CompletionKind::Send => Self::Sent(Sent { wr_id, opcode: cqe.send_opcode(), count }),
            CompletionKind::Receive => received(ReceiveOpcode::Send),
            CompletionKind::ReceiveImm => received(ReceiveOpcode::SendImm(cqe.imm())),
            CompletionKind::ReceiveInval => received(ReceiveOpcode::SendInval(RKey::new(cqe.imm()))),
            CompletionKind::ReceiveWriteImm => received(ReceiveOpcode::WriteImm(cqe.imm())),
            CompletionKind::SendError | CompletionKind::ReceiveError => {
                let queue = if cqe.is_send() { WorkQueue::Send } else { WorkQueue::Receive };
                Self::Failed(Failed { wr_id, queue, error: cqe.reason(), count })
            }
        }
    }
}
