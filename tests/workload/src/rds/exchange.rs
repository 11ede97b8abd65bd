//! Messages and memory of server and client, the same as in `tests/guest/rds_rdma.c`.
//!
//! A message has 40 bytes: kind, the number it belongs to, four values; little-endian. The client asks, the server answers each
//! request with the same kind.
//!
//! | kind | values asked | values answered |
//! |---|---|---|
//! | 1 offer | offset and length of the region in the server's memory, flags for the map, milliseconds of silence after which the server frees it (Linux's does, which makes a connection anew only when its regions are freed; 0: never) | errno, bytes that the region reaches from its first one on; with the cookie |
//! | 2 check | offset and length of what the client wrote, by the client's pattern; 1 to overwrite it all after that | bytes that are not as they should be, the first of them |
//! | 3 free | cookie, flags | errno |
//! | 4 hold | port, receive buffer: a socket that is not read | errno |
//! | 5 release | port, messages, their length, the first one's number: they are read and compared | messages that are wrong, whether there are more |
//! | 6 close | port | errno |
//! | 7 done | | |
//! | 8 again | cookie: it is sent once more (`RDMA_DEST`) | errno; with the cookie |

use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};
use ib_types::Payload;
use rds_nostd::{Msg, Rds, RdsError, SocketHandle};

/// Port of the server. Its clients have the two after it.
pub(super) const PORT: u16 = 4300;

/// Bytes of a message.
pub(super) const LEN: usize = 40;
/// The server's memory.
pub(super) const ARENA: usize = (1 << 20) + (32 << 10);
/// Before the region, and after it, so many bytes are compared, too.
pub(super) const BEFORE: usize = 4096;
/// See [`BEFORE`].
pub(super) const AFTER: usize = 8192;
/// The least offset of a region.
pub(super) const FIRST_OFFSET: usize = 8192;

/// Writer of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Writer {
    Server = 1,
    Client = 2,
    /// The server, after it was told to overwrite.
    Overwritten = 3,
}

/// Returns the payload of `writer` for a number.
pub(super) const fn payload(writer: Writer, number: u32) -> Payload {
    Payload::new(0, writer as u64, number as u64)
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Offer = 1,
    Check = 2,
    Free = 3,
    Hold = 4,
    Release = 5,
    Close = 6,
    Done = 7,
    Again = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Offer,
        Self::Check,
        Self::Free,
        Self::Hold,
        Self::Release,
        Self::Close,
        Self::Done,
        Self::Again,
    ];
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) values: [u64; 4],
}

impl Message {
    pub(super) const fn new(kind: Kind, number: u32, values: [u64; 4]) -> Self {
        Self { kind, number, values }
    }

    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let words = [(self.number as u64) << 32 | self.kind as u64];
        let words = words.into_iter().chain(self.values);
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Nothing for what is no message.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != LEN {
            return None;
        }
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let first = words.next()?;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == first as u32)?;
        let values = [words.next()?, words.next()?, words.next()?, words.next()?];
        Some(Self { kind, number: (first >> 32) as u32, values })
    }

    /// A value as a size; one that fits nowhere if it is too large.
    pub(super) fn size(&self, index: usize) -> usize {
        let value = self.values.get(index).copied().unwrap_or(0);
        usize::try_from(value).unwrap_or(usize::MAX)
    }
}

/// Sends a message behind which no other comes, so that its acknowledgement is asked for: that is when half of the send buffer
/// or more waits for one.
pub(super) fn send_last<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    rds: &mut Rds<'_>,
    socket: SocketHandle,
    to: SocketAddr,
    message: &Message,
) -> Result<(), RdsError> {
    let before = rds.send_buffer(socket)?;
    // What is too little for what waits already is half of the next.
    for doubled in 0..16 {
        rds.set_send_buffer(socket, LEN << doubled)?;
        match rds.sendmsg(adapter, socket, Msg::to(&to, &message.encode())) {
            Err(RdsError::Again) => {}
            result => return result.map(|_| ()),
        }
    }
    rds.set_send_buffer(socket, before)?;
    Err(RdsError::Again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back() {
        for kind in Kind::ALL {
            let message = Message::new(kind, 0x0102_0304, [1, 2, u64::MAX, 4 << 40]);
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        let mut bytes = Message::new(Kind::Done, 0, [0; 4]).encode();
        assert_eq!(Message::decode(&bytes[..LEN - 1]), None);
        bytes[0] = 77;
        assert_eq!(Message::decode(&bytes), None);
    }
}
