//! Explicit congestion notification (RFC 3168).

use super::Frame;
use super::checksum::add;
use super::ip::{Ecn, Version, be16};

/// Marks an IP packet as congested and updates the checksum of an IPv4 header.
///
/// Returns false, without side effects, if the sender does not support it or the packet has the
/// mark. A wrong checksum remains wrong (RFC 1624). The ICRC does not cover these fields.
pub fn mark_congestion(frame: &mut [u8]) -> bool {
    let Some(ip) = Frame::parse(frame).and_then(|frame| frame.ip()) else { return false };
    if !matches!(ip.ecn(), Ecn::Capable0 | Ecn::Capable1) {
        return false;
    }
    let (version, start) = (ip.version(), ip.start());
    let Some(header) = frame.get_mut(start..) else { return false };
    let Some(before) = be16(header, 0) else { return false };
    let after = match version {
        Version::V4 => before | 3,
        Version::V6 => before | 3 << 4,
    };
    if let Some(word) = header.first_chunk_mut() {
        *word = after.to_be_bytes();
    }
    if version == Version::V4
        && let Some(checksum) = be16(header, 10)
        && let Some(place) = header.get_mut(10..12)
    {
        let sum = add(add(!checksum, !before), after);
        place.copy_from_slice(&(!sum).to_be_bytes());
    }
    true
}
