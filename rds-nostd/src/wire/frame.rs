//! The parser of frames that arrive.
//!
//! ```text
//! length  >  checksum  >  Ack (nothing but zeros for lengths and ports)
//!                      >  Map (flags exactly CONG_BITMAP)
//!                      >  Fragment
//! ```

use crate::reason::DownReason;
use crate::wire::{CONGESTION_MAP_LEN, FRAGMENT_LEN, HEADER_LEN, HEADER_WORDS, Header};

/// A frame that arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frame {
    /// An acknowledgement without payload.
    Ack(Header),
    /// A fragment of the peer's congestion map. `is_whole` if its lengths are those of one.
    Map { header: Header, is_whole: bool },
    /// A fragment of a message, and its payload bytes: at most [`FRAGMENT_LEN`].
    Fragment(Header, u32),
}

impl Frame {
    /// Parses a frame of `length` bytes that begins with `words`.
    ///
    /// Checks the length before any field: behind the end of a short frame lie the bytes of an
    /// earlier one.
    ///
    /// # Errors
    /// - [`DownReason::FrameLength`]: shorter than a header, or longer than a frame.
    /// - [`DownReason::BadChecksum`]
    /// - [`DownReason::AcknowledgementPayload`]
    #[inline]
    pub(crate) fn parse(words: &[u64; HEADER_WORDS], length: u32) -> Result<Self, DownReason> {
        let payload_len = length.wrapping_sub(HEADER_LEN as u32);
        if payload_len > FRAGMENT_LEN as u32 {
            return Err(DownReason::FrameLength);
        }
        let Ok(header) = Header::from_words(words) else { return Err(DownReason::BadChecksum) };
        if header.dport == 0 && is_nothing(header.sport, header.len) {
            return if payload_len == 0 {
                Ok(Self::Ack(header))
            } else {
                Err(DownReason::AcknowledgementPayload)
            };
        }
        if header.is_congestion_map() {
            let is_whole = header.len == CONGESTION_MAP_LEN as u32 && payload_len == FRAGMENT_LEN as u32;
            return Ok(Self::Map { header, is_whole });
        }
        Ok(Self::Fragment(header, payload_len))
    }
}

/// Returns whether a frame to port 0 is an acknowledgement.
// A call, so that the test of other frames remains a single comparison.
#[cold]
#[inline(never)]
const fn is_nothing(sport: u16, len: u32) -> bool {
    sport == 0 && len == 0
}
