//! The Ethernet segment of a frame to send: checksums to compute, and the first bytes of the frame
//! (PRM, "Ethernet Segment").

use crate::wqe::{FrameChecksums, PostError};
use mlx5_prm::datapath::{ETH_INLINE_OFFSET, wqe_eth_seg};

/// Octowords of the longest segment, and bytes of a frame in it: Ethernet header and VLAN tag, IPv6
/// header, TCP header, and 4 more.
const OCTOWORDS: usize = 6;
/// Bytes of a frame that a request holds itself at most.
pub const MAX_FRAME_HEAD: usize = OCTOWORDS * 16 - ETH_INLINE_OFFSET;

/// An Ethernet segment, in processor order.
#[derive(Clone, Copy, Debug)]
pub(super) struct EthSegment {
    words: [(u64, u64); OCTOWORDS],
    head_len: u8,
    checksums: FrameChecksums,
}

impl EthSegment {
    /// The segment of a frame that begins with `head`.
    pub(super) fn new(head: &[u8], checksums: FrameChecksums) -> Result<Self, PostError> {
        let mut bytes = [0; OCTOWORDS * 16];
        bytes
            .get_mut(ETH_INLINE_OFFSET..)
            .and_then(|to| to.get_mut(..head.len()))
            .ok_or(PostError::TooLong)?
            .copy_from_slice(head);
        wqe_eth_seg::cs_flags.set(&mut bytes, checksums.bits());
        wqe_eth_seg::inline_hdr_sz.set(&mut bytes, head.len() as u32);
        let mut words = [(0, 0); OCTOWORDS];
        let quads = bytes.as_chunks::<16>().0;
        words.iter_mut().zip(quads).for_each(|(to, from)| {
            let both = u128::from_be_bytes(*from);
            *to = ((both >> 64) as u64, both as u64);
        });
        Ok(Self { words, head_len: head.len() as u8, checksums })
    }

    /// The octowords that are in use.
    pub(super) fn octowords(&self) -> &[(u64, u64)] {
        let used = (ETH_INLINE_OFFSET + usize::from(self.head_len)).div_ceil(16).clamp(1, OCTOWORDS);
        self.words.get(..used).unwrap_or_default()
    }

    /// Bytes of the frame that it holds.
    pub(super) fn head_len(&self) -> usize {
        self.head_len.into()
    }

    pub(super) fn has_checksums(&self) -> bool {
        !self.checksums.is_empty()
    }
}
