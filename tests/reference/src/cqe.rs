//! Completion queue entries of mlx5, 64 bytes: PRM "Completion Queue Entry", Linux
//! `include/linux/mlx5/device.h`.
//!
//! Offsets are those of the PRM. Compressed entries, 64 inline bytes and signature errors are
//! refused, because the driver enables none of them.

use crate::number;

/// Kinds of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request of the send queue is done.
    Request,
    /// An RDMA write with immediate data arrived.
    WriteImmediate,
    /// A send arrived.
    Send,
    /// A send with immediate data arrived.
    SendImmediate,
    /// A send that invalidates a key arrived.
    SendInvalidate,
    /// A request of the send queue failed.
    RequestError,
    /// A receive failed.
    ReceiveError,
}

impl Kind {
    /// Returns whether the completion is of the send queue.
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Request | Self::RequestError)
    }

    /// Returns whether the work request failed.
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::RequestError | Self::ReceiveError)
    }
}

/// The fields of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The kind of completion.
    pub kind: Kind,
    /// The queue pair, 24 bits.
    pub qpn: u32,
    /// Its user index, 24 bits.
    pub user_index: u32,
    /// Index of the work request.
    pub wqe_counter: u16,
    /// Opcode of the request in the send queue.
    pub send_opcode: u8,
    /// The sender requested an event.
    pub solicited: bool,
    /// Bytes that arrived or were read. Errors have none.
    pub byte_count: Option<u32>,
    /// Immediate data or invalidated key: the word at 0x24. Errors have none.
    pub immediate: Option<u32>,
    /// Syndrome and vendor syndrome of an error.
    pub error: Option<(u8, u8)>,
    /// The bytes that arrived, if they are in the entry.
    pub inline: Option<[u8; 32]>,
    /// The sender of a datagram: QP number, LID, service level, path bits, GRH present.
    pub source: (u32, u16, u8, u8, bool),
}

/// An entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Not handed over by the device yet.
    Absent,
    /// An opcode that is not asked for.
    Opcode(u8),
    /// A format that is not asked for.
    Format(u8),
    /// A completion.
    Completion(Completion),
}

/// Returns what an entry is, in a ring of whose entries the device has handed over those with this
/// `owner` bit.
#[must_use]
pub fn decode(entry: &[u8; 64], owner: u8) -> Entry {
    let last = entry[0x3f];
    let (opcode, format) = (last >> 4, last >> 2 & 3);
    if opcode == 15 || last & 1 != owner {
        return Entry::Absent;
    }
    let kind = match opcode {
        0 => Kind::Request,
        1 => Kind::WriteImmediate,
        2 => Kind::Send,
        3 => Kind::SendImmediate,
        4 => Kind::SendInvalidate,
        13 => Kind::RequestError,
        14 => Kind::ReceiveError,
        // 5 is the end of a ring that was resized, 12 a signature error; the others are undefined.
        other => return Entry::Opcode(other),
    };
    let may_be_inline = matches!(kind, Kind::Send | Kind::SendImmediate | Kind::SendInvalidate);
    if format != 0 && !(format == 1 && may_be_inline) {
        return Entry::Format(format);
    }
    let mut inline = [0; 32];
    inline.copy_from_slice(&entry[..32]);
    let word = |at: usize| number(&entry[at..at + 4]) as u32;
    Entry::Completion(Completion {
        kind,
        qpn: word(0x38) & 0xff_ffff,
        user_index: word(0x20) & 0xff_ffff,
        wqe_counter: number(&entry[0x3c..0x3e]) as u16,
        send_opcode: entry[0x38],
        solicited: last & 2 != 0,
        byte_count: (!kind.is_error()).then(|| word(0x2c)),
        immediate: (!kind.is_error()).then(|| word(0x24)),
        error: kind.is_error().then_some((entry[0x37], entry[0x36])),
        inline: (format == 1).then_some(inline),
        source: (
            word(0x18) & 0xff_ffff,
            number(&entry[0x16..0x18]) as u16,
            entry[0x18] & 0xf,
            entry[0x11] & 0x7f,
            entry[0x18] >> 4 & 3 != 0,
        ),
    })
}

/// A work request that is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Where it begins, in units of its queue: 64-byte blocks, or receives.
    pub index: u16,
    /// Its owner's name for it.
    pub name: u64,
}

/// The outstanding work requests of a queue pair, oldest first.
#[derive(Clone, Debug)]
pub struct Queues {
    /// Its number.
    pub qpn: u32,
    /// Requests.
    pub requests: Vec<Posted>,
    /// Receives.
    pub receives: Vec<Posted>,
    /// Receives that the ring has room for: indices count modulo this.
    pub receive_ring: u16,
    /// Short messages are requested in the completion.
    pub inline: bool,
}

impl Queues {
    /// Returns the work request that a completion reports done, and how many are done with it.
    /// `None` if it reports none of them.
    ///
    /// A request takes all before it along, because the device completes them in order. Receives
    /// have a completion each, so that only the oldest can be reported.
    pub fn retire(&mut self, completion: &Completion) -> Option<(Posted, usize)> {
        if completion.qpn != self.qpn {
            return None;
        }
        if completion.kind.is_request() {
            let place = self.requests.iter().position(|posted| posted.index == completion.wqe_counter)?;
            let posted = self.requests[place];
            self.requests.drain(..=place);
            return Some((posted, place + 1));
        }
        let oldest = *self.receives.first()?;
        let same = oldest.index % self.receive_ring == completion.wqe_counter % self.receive_ring;
        if !same || completion.inline.is_some() && !self.inline {
            return None;
        }
        self.receives.remove(0);
        Some((oldest, 1))
    }
}

/// DAT 1.2's completion status of a DTO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    Success,
    Flushed,
    LocalLength,
    LocalEp,
    LocalProtection,
    BadResponse,
    RemoteAccess,
    RemoteResponder,
    Transport,
    ReceiverNotReady,
    RmrOperationFailed,
}

/// Returns the DAT status of an error's syndrome (PRM, "Completion with Error syndromes").
/// Undefined ones count as flushed.
#[must_use]
pub fn status(syndrome: u8) -> Status {
    match syndrome {
        0x01 => Status::LocalLength,
        0x02 => Status::LocalEp,
        0x04 => Status::LocalProtection,
        0x05 => Status::Flushed,
        0x06 => Status::RmrOperationFailed,
        0x10 => Status::BadResponse,
        0x11 => Status::LocalProtection,
        0x12 => Status::RemoteResponder,
        0x13 => Status::RemoteAccess,
        0x14 => Status::RemoteResponder,
        0x15 => Status::Transport,
        0x16 => Status::ReceiverNotReady,
        0x22 => Status::RemoteResponder,
        _ => Status::Flushed,
    }
}
