//! What the device reports on its own.

use crate::completion::WorkQueue;
use crate::error::{FatalCause, HealthWarning};
use crate::types::{CqNumber, QpNumber, SrqNumber};
use core::fmt;
use mlx5_prm::event::{EventType, PortChange};
use mlx5_prm::status::CqErrorSyndrome;

/// Something happened that nobody is waiting for. Numbers are the device's claim: look them up, do not index with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum AsyncEvent {
    /// No event: the content of an empty slot.
    #[default]
    None,
    /// The port's state, LID, P_Keys or GUID changed, or the subnet manager wants clients to register again.
    Port {
        /// Port number, from 1.
        port: u8,
        /// What changed.
        change: PortChange,
    },
    /// Something about a QP: communication established, path migrated, an error on its work queues.
    Qp {
        /// The QP.
        qpn: QpNumber,
        /// What happened.
        event: EventType,
    },
    /// A queue of the raw-packet QP failed: destroy the QP and create another one.
    RawPacket {
        /// Which of its queues.
        queue: WorkQueue,
        /// What happened.
        event: EventType,
    },
    /// A QP in the error state will take nothing more from its shared receive queue: what it took has completed.
    QpLastWqe(QpNumber),
    /// A shared receive queue holds fewer receives than its limit. It is not armed any more.
    SrqLimit(SrqNumber),
    /// A shared receive queue failed; QPs that use it fail when something arrives.
    SrqError(SrqNumber),
    /// A CQ failed; QPs that use it fail too.
    CqError {
        /// The CQ.
        cqn: CqNumber,
        /// Why.
        syndrome: CqErrorSyndrome,
    },
    /// The device has failed or is gone; nothing works any more.
    Fatal(FatalCause),
    /// Something about the card's health that does not end its use.
    Health(HealthWarning),
    /// Firmware asked for pages at run time and could not be given them; commands may time out.
    PagesRefused {
        /// Pages asked for.
        needed: u32,
        /// Pages that were left.
        available: u32,
    },
    /// An event of another kind.
    Other {
        /// Its type.
        event: EventType,
        /// Its sub-type.
        sub_type: u8,
    },
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => f.write_str("no event"),
            Self::Port { port, change } => write!(f, "port {port}: {change}"),
            Self::Qp { qpn, event } => write!(f, "QP {qpn}: {event}"),
            Self::RawPacket { queue: WorkQueue::Send, event } => write!(f, "raw-packet SQ: {event}"),
            Self::RawPacket { queue: WorkQueue::Receive, event } => write!(f, "raw-packet RQ: {event}"),
            Self::QpLastWqe(qpn) => write!(f, "QP {qpn}: {}", EventType::SRQ_LAST_WQE),
            Self::SrqLimit(srqn) => write!(f, "SRQ {srqn}: {}", EventType::SRQ_RQ_LIMIT),
            Self::SrqError(srqn) => write!(f, "SRQ {srqn}: {}", EventType::SRQ_CATAS_ERROR),
            Self::CqError { cqn, syndrome } => write!(f, "CQ {cqn}: {syndrome}"),
            Self::Fatal(cause) => write!(f, "the device has failed: {cause}"),
            Self::Health(warning) => warning.fmt(f),
            Self::PagesRefused { needed, available } => {
                write!(f, "firmware asked for {needed} pages, {available} are left")
            }
            Self::Other { event, sub_type } => write!(f, "{event}, sub-type {sub_type}"),
        }
    }
}
