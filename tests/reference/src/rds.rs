//! RDS frames of protocol 3.1: Linux `net/rds/rds.h` (`struct rds_header`), `ib_recv.c` and
//! `recv.c`.
//!
//! Where Linux believes a peer, this is stricter: a frame that breaks the protocol ends the
//! connection.

use crate::number;

/// Bytes of a header.
pub const HEADER: usize = 48;
/// Payload bytes of a frame at most, and of every frame of a message but the last.
pub const PAYLOAD: usize = 4096;
/// Bytes of a congestion map.
pub const MAP: u32 = 8192;
/// Bytes of the longest message of the protocol.
pub const LONGEST: u32 = 1 << 20;

/// Flags of a header.
pub mod flags {
    /// The payload is a congestion map. Only exactly this value marks a map.
    pub const CONG_BITMAP: u8 = 0x01;
    /// Acknowledge at once after the complete message.
    pub const ACK_REQUIRED: u8 = 0x02;
    /// Sent again after a reconnection.
    pub const RETRANSMITTED: u8 = 0x04;
}

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    pub sequence: u64,
    pub ack: u64,
    pub len: u32,
    pub sport: u16,
    pub dport: u16,
    pub flags: u8,
    pub credit: u8,
    pub extensions: [u8; 16],
}

/// Reasons that end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Shorter than a header, or longer than a header and 4096 bytes.
    FrameLength,
    /// Wrong checksum.
    Checksum,
    /// An acknowledgement with payload.
    AcknowledgementPayload,
    /// A message longer than any.
    MessageLength,
    /// Too many or too few bytes for this place in its message.
    FragmentLength,
    /// A fragment of another message in the middle of one.
    FragmentMismatch,
}

/// A frame, taken alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'f> {
    /// Only acknowledges.
    Acknowledgement(Header),
    /// Half a congestion map.
    MapHalf(Header, &'f [u8]),
    /// Marked as a map, with another length than maps have: to be ignored.
    BadMap(Header),
    /// A part of a message, or a whole one.
    Fragment(Header, &'f [u8]),
}

/// The Internet checksum of a header, as RFC 1071 defines it, word by word. 0 if the header's own
/// is right.
#[must_use]
pub fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for word in header.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(word[1]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns what a frame is: all bytes of one SEND.
///
/// # Errors
/// The [`Fault`] that ends the connection.
pub fn parse(frame: &[u8]) -> Result<Frame<'_>, Fault> {
    if frame.len() < HEADER || frame.len() > HEADER + PAYLOAD {
        return Err(Fault::FrameLength);
    }
    let (bytes, payload) = frame.split_at(HEADER);
    // A sender that computes no checksum leaves 0.
    if bytes[30..32] != [0, 0] && checksum(bytes) != 0 {
        return Err(Fault::Checksum);
    }
    let mut extensions = [0; 16];
    extensions.copy_from_slice(&bytes[32..48]);
    let header = Header {
        sequence: number(&bytes[0..8]),
        ack: number(&bytes[8..16]),
        len: number(&bytes[16..20]) as u32,
        sport: number(&bytes[20..22]) as u16,
        dport: number(&bytes[22..24]) as u16,
        flags: bytes[24],
        credit: bytes[25],
        extensions,
    };
    if header.sport == 0 && header.dport == 0 && header.len == 0 {
        return if payload.is_empty() {
            Ok(Frame::Acknowledgement(header))
        } else {
            Err(Fault::AcknowledgementPayload)
        };
    }
    if header.flags == flags::CONG_BITMAP {
        return if header.len == MAP && payload.len() == PAYLOAD {
            Ok(Frame::MapHalf(header, payload))
        } else {
            Ok(Frame::BadMap(header))
        };
    }
    Ok(Frame::Fragment(header, payload))
}

/// Returns the cookie (key, offset) that the first RDMA_DEST extension of a header offers.
#[must_use]
pub fn offered(extensions: &[u8; 16]) -> Option<(u32, u32)> {
    let mut at = 0;
    while at < 16 {
        // Bytes behind the type: VERSION, RDMA, RDMA_DEST, RDMA_BYTES, NPATHS, GEN_NUM, CAP_BITS,
        // SPORT_IDX.
        let body = match extensions[at] {
            1 | 2 | 6 | 7 => 4,
            3 | 4 => 8,
            5 => 2,
            8 => 1,
            _ => return None,
        };
        let end = at + 1 + body;
        if end > 16 {
            return None;
        }
        if extensions[at] == 3 {
            let word = |from: usize| number(&extensions[from..from + 4]) as u32;
            return Some((word(at + 1), word(at + 5)));
        }
        at = end;
    }
    None
}

/// A message that has arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The header of its first fragment.
    pub first: Header,
    /// Where it goes.
    pub fate: Fate,
}

/// Fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// To the socket of its destination port, if there is one.
    Deliver,
    /// Dropped: it was received before.
    Old,
    /// Dropped: it is longer than the receiver takes.
    TooLong,
    /// Answered with a message to its source port.
    Ping,
    /// Port 1 to port 0, another transport's probe: dropped.
    Probe,
    /// Port 0 to port 0, and neither acknowledgement nor map: dropped, and counted as a bad map.
    Nothing,
}

/// Meaning of a frame to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Only acknowledges.
    Acknowledgement,
    /// The first half of a map, or the second.
    Map {
        /// The map is whole now.
        whole: bool,
    },
    /// Ignored.
    BadMap,
    /// The message has so many fragments now, and more follow.
    Part(usize),
    /// The message is whole.
    Whole(Message),
}

/// A receiver: one end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    /// Bytes of the longest message that it takes.
    longest: u32,
    /// Number after that of the last whole message. Outlives the connection.
    pub next: u64,
    begun: Option<(Header, usize)>,
    half_a_map: bool,
}

impl Receiver {
    /// A receiver of messages of at most `longest` bytes.
    #[must_use]
    pub const fn new(longest: u32) -> Self {
        Self { longest, next: 0, begun: None, half_a_map: false }
    }

    /// The connection was lost and made anew.
    pub const fn reconnect(&mut self) {
        (self.begun, self.half_a_map) = (None, false);
    }

    /// The message that has begun, and its fragments so far.
    #[must_use]
    pub const fn begun(&self) -> Option<(Header, usize)> {
        self.begun
    }

    /// Returns what a frame means, and remembers it.
    ///
    /// # Errors
    /// The [`Fault`] that ends the connection.
    pub fn receive(&mut self, frame: &[u8]) -> Result<Meaning, Fault> {
        let (header, payload) = match parse(frame)? {
            Frame::Acknowledgement(_) => return Ok(Meaning::Acknowledgement),
            Frame::BadMap(_) => return Ok(Meaning::BadMap),
            Frame::MapHalf(..) => {
                self.half_a_map = !self.half_a_map;
                return Ok(Meaning::Map { whole: !self.half_a_map });
            }
            Frame::Fragment(header, payload) => (header, payload),
        };
        if header.len > LONGEST {
            return Err(Fault::MessageLength);
        }
        let (first, before) = self.begun.unwrap_or((header, 0));
        let names = |header: Header| (header.sequence, header.len, header.sport, header.dport);
        if names(first) != names(header) {
            return Err(Fault::FragmentMismatch);
        }
        let left = first.len as usize - before * PAYLOAD;
        if payload.len() != left.min(PAYLOAD) {
            return Err(Fault::FragmentLength);
        }
        if payload.len() < left {
            self.begun = Some((first, before + 1));
            return Ok(Meaning::Part(before + 1));
        }
        self.begun = None;
        Ok(Meaning::Whole(Message { first, fate: self.fate(&first) }))
    }

    fn fate(&mut self, first: &Header) -> Fate {
        if first.sequence < self.next && first.flags & flags::RETRANSMITTED != 0 {
            return Fate::Old;
        }
        self.next = first.sequence.wrapping_add(1);
        if first.len > self.longest {
            return Fate::TooLong;
        }
        match (first.sport, first.dport) {
            (0, 0) => Fate::Nothing,
            (1, 0) => Fate::Probe,
            (_, 0) => Fate::Ping,
            _ => Fate::Deliver,
        }
    }
}
