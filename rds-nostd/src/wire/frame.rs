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
    /// # Errors
    /// - [`DownReason::FrameLength`]: shorter than a header, or longer than a frame.
    /// - [`DownReason::BadChecksum`]
    /// - [`DownReason::AcknowledgementPayload`]
    #[inline]
    pub(crate) fn parse(words: &[u64; HEADER_WORDS], length: u32) -> Result<Self, DownReason> {
        let (header, payload_len) = checked(words, length)?;
        if header.is_acknowledgement() {
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

    /// Like [`parse`](Self::parse). Returns the header if the frame is a complete message to a
    /// socket, without extension headers, that is sent for the first time.
    #[inline(always)]
    pub(crate) fn parse_plain(words: &[u64; HEADER_WORDS], length: u32) -> Option<Header> {
        let (header, payload_len) = checked(words, length).ok()?;
        (header.is_plain() && header.len == payload_len).then_some(header)
    }
}

/// Returns the header and the payload bytes of a frame, see [`Frame::parse`].
///
/// Checks the length before any field: behind the end of a short frame lie the bytes of an earlier
/// one.
#[inline]
fn checked(words: &[u64; HEADER_WORDS], length: u32) -> Result<(Header, u32), DownReason> {
    let payload_len = length.wrapping_sub(HEADER_LEN as u32);
    if payload_len > FRAGMENT_LEN as u32 {
        return Err(DownReason::FrameLength);
    }
    let Ok(header) = Header::from_words(words) else { return Err(DownReason::BadChecksum) };
    Ok((header, payload_len))
}
