//! The reserved bits of WQE segments, worked out once: every WQE is checked for them.

use mlx5_prm::Layout;
use mlx5_prm::datapath::{DS_SIZE, av, wqe_ctrl_seg, wqe_raddr_seg, wqe_umr_ctrl_seg, wqe_xrc_seg};

/// A segment whose reserved bits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Control,
    Xrc,
    RemoteAddress,
    Umr,
    Address,
}

/// Data segments of 16 bytes of the longest.
const LONGEST: usize = 3;

impl Segment {
    const ALL: [Self; 5] = [Self::Control, Self::Xrc, Self::RemoteAddress, Self::Umr, Self::Address];

    /// Its name and layout.
    pub(super) const fn layout(self) -> (&'static str, &'static Layout) {
        match self {
            Self::Control => ("wqe_ctrl_seg", &wqe_ctrl_seg::LAYOUT),
            Self::Xrc => ("wqe_xrc_seg", &wqe_xrc_seg::LAYOUT),
            Self::RemoteAddress => ("wqe_raddr_seg", &wqe_raddr_seg::LAYOUT),
            Self::Umr => ("wqe_umr_ctrl_seg", &wqe_umr_ctrl_seg::LAYOUT),
            Self::Address => ("av", &av::LAYOUT),
        }
    }
}

/// The reserved bits of each segment, 16 bytes by 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved([[u128; LONGEST]; Segment::ALL.len()]);

impl Default for Reserved {
    fn default() -> Self {
        Self(Segment::ALL.map(|segment| {
            let (_, layout) = segment.layout();
            let mut masks = [0; LONGEST];
            for at in (0..layout.size).step_by(4) {
                let mut bytes = [0; DS_SIZE * LONGEST];
                if let Some(dword) = bytes.get_mut(at..at + 4) {
                    dword.fill(0xff);
                }
                let bits = layout.reserved_bits_set(&bytes).map_or(0, |(_, bits)| bits);
                if let Some(mask) = masks.get_mut(at / DS_SIZE) {
                    *mask |= u128::from(bits) << (96 - at % DS_SIZE * 8);
                }
            }
            masks
        }))
    }
}

impl Reserved {
    /// Whether `bytes`, a whole segment, have a reserved bit set.
    #[inline]
    pub(super) fn are_set(&self, segment: Segment, bytes: &[u8]) -> bool {
        let Some(masks) = self.0.get(segment as usize) else { return false };
        bytes.as_chunks().0.iter().zip(masks).any(|(part, mask)| u128::from_be_bytes(*part) & mask != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masks_are_those_of_the_layouts() {
        let reserved = Reserved::default();
        for segment in Segment::ALL {
            let (name, layout) = segment.layout();
            assert!(layout.size <= DS_SIZE * LONGEST && layout.size.is_multiple_of(DS_SIZE), "{name}");
            for bit in 0..layout.size * 8 {
                let mut bytes = vec![0; layout.size];
                bytes[bit / 8] = 0x80 >> (bit % 8);
                let expected = layout.reserved_bits_set(&bytes).is_some();
                assert_eq!(reserved.are_set(segment, &bytes), expected, "{name}, bit {bit}");
            }
        }
    }
}
