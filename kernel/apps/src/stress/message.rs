//! The header of each message, and the bytes behind it.

/// Bytes of the header.
pub(super) const HEADER_LEN: usize = 63;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Request = 1,
    Ack = 2,
}

/// What whoever answers does with the memory that a request offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RdmaOp {
    Read = 1,
    Write = 2,
}

impl RdmaOp {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Read => Self::Write,
            Self::Write => Self::Read,
        }
    }
}

/// What a message says of RDMA; an answer repeats what its request said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rdma {
    pub(super) op: RdmaOp,
    /// The requester's address of its memory, without meaning to the other side.
    pub(super) address: u64,
    /// Where in the offered memory it begins.
    pub(super) offset: u64,
    /// Each eight bytes that are read or written.
    pub(super) pattern: u64,
    pub(super) key: u64,
    pub(super) len: u32,
    pub(super) vector: u32,
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u32,
    /// Addresses and ports of sender and receiver.
    pub(super) from: (u32, u16),
    pub(super) to: (u32, u16),
    pub(super) index: u16,
    pub(super) op: Op,
    pub(super) rdma: Option<Rdma>,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes.iter_mut().skip(at).zip(part).for_each(|(to, from)| *to = *from);
            at += part.len();
        };
        put(&self.sequence.to_be_bytes());
        put(&self.from.0.to_be_bytes());
        put(&self.to.0.to_be_bytes());
        put(&self.from.1.to_be_bytes());
        put(&self.to.1.to_be_bytes());
        put(&self.index.to_be_bytes());
        put(&[self.op as u8]);
        if let Some(rdma) = &self.rdma {
            put(&[rdma.op as u8]);
            put(&rdma.address.to_be_bytes());
            put(&rdma.offset.to_be_bytes());
            put(&rdma.pattern.to_be_bytes());
            put(&rdma.key.to_be_bytes());
            put(&rdma.len.to_be_bytes());
            put(&rdma.vector.to_be_bytes());
        }
        bytes
    }

    /// None if it is neither a request nor an answer, or shorter than a header.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        let half = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b));
        let long = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u64::from_be_bytes(*b));
        let op = match bytes[18] {
            1 => Op::Request,
            2 => Op::Ack,
            _ => return None,
        };
        let rdma_op = match bytes[19] {
            0 => None,
            1 => Some(RdmaOp::Read),
            2 => Some(RdmaOp::Write),
            _ => return None,
        };
        let rdma = match rdma_op {
            None => None,
            Some(op) => Some(Rdma {
                op,
                address: long(20)?,
                offset: long(28)?,
                pattern: long(36)?,
                key: long(44)?,
                len: word(52)?,
                vector: word(56)?,
            }),
        };
        Some(Self {
            sequence: word(0)?,
            from: (word(4)?, half(12)?),
            to: (word(8)?, half(14)?),
            index: half(16)?,
            op,
            rdma,
        })
    }
}

/// The bytes behind the header, where they are compared.
fn pattern() -> impl Iterator<Item = u8> {
    let mut k: u32 = 11;
    (0u32..).map(move |at| {
        let byte = k as u8;
        k = k.wrapping_add(3).wrapping_mul(41).wrapping_add((at + 1) >> 8);
        byte
    })
}

/// Fills what is behind the header.
pub(super) fn fill(message: &mut [u8]) {
    message.iter_mut().skip(HEADER_LEN).zip(pattern()).for_each(|(to, from)| *to = from);
}

/// The first byte behind the header that is not as [`fill`] makes it.
pub(super) fn mismatch(message: &[u8]) -> Option<usize> {
    let found =
        message.iter().skip(HEADER_LEN).zip(pattern()).position(|(found, expected)| *found != expected);
    found.map(|at| at + HEADER_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        let rdma = Rdma {
            op: RdmaOp::Write,
            address: 0x7f00_1234_5678_9abc,
            offset: 0,
            pattern: 0x1_0000_0002,
            key: 0x300,
            len: 65536,
            vector: 4,
        };
        let header = Header {
            sequence: 0x0102_0304,
            from: (0x0a00_0001, 4001),
            to: (0x0a00_0002, 4002),
            index: 7,
            op: Op::Ack,
            rdma: Some(rdma),
        };
        let bytes = header.encode();
        assert_eq!(bytes[..20], [1, 2, 3, 4, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa1, 0x0f, 0xa2, 0, 7, 2, 2]);
        assert_eq!((bytes[20], bytes[43], bytes[50], bytes[53], bytes[59]), (0x7f, 2, 3, 1, 4));
        assert_eq!(Header::decode(&bytes), Some(header));
        let plain = Header { op: Op::Request, rdma: None, ..header };
        assert_eq!(Header::decode(&plain.encode()), Some(plain));
        assert_eq!(Header::decode(&bytes[..62]), None);
        for (at, bad) in [(18, 0), (18, 3), (19, 3)] {
            let mut bytes = bytes;
            bytes[at] = bad;
            assert_eq!(Header::decode(&bytes), None);
        }
    }

    #[test]
    fn bytes_are_those_of_rds_stress() {
        let mut message = [0; HEADER_LEN + 600];
        fill(&mut message);
        // 11, then each 41 times the one before and three, and one more in each block of 256.
        assert_eq!(
            message[HEADER_LEN..HEADER_LEN + 3],
            [11, (41 * 14) as u8, ((41 * (41 * 14 + 3)) & 0xff) as u8]
        );
        assert_eq!(mismatch(&message), None);
        message[HEADER_LEN + 300] ^= 1;
        assert_eq!(mismatch(&message), Some(HEADER_LEN + 300));
    }
}
