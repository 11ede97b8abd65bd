//! The sizes of messages: the same function of (seed, sequence) at both ends, so that nobody has to say them.

use ib_types::mix;

/// Sizes from 0 to `max`: the edge cases first, then log-uniform.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The largest size, in bytes.
    pub max: u32,
    /// Path MTU, for the edge cases around it.
    pub mtu: u32,
    /// Varies the whole run.
    pub seed: u64,
}

impl Sizes {
    /// Bytes of message `sequence`.
    #[must_use]
    pub fn of(&self, sequence: u64) -> u32 {
        let edges = [0, 1, self.mtu - 1, self.mtu, self.mtu + 1, 4095, 4096, 4097, self.max];
        let size = match edges.get(usize::try_from(sequence).unwrap_or(usize::MAX)) {
            Some(&edge) => edge,
            None => self.log_uniform(mix(self.seed ^ sequence.wrapping_mul(0x2545_f491_4f6c_dd1d))),
        };
        size.min(self.max)
    }

    /// 2^u − 1 with u uniform in [0, log2(max + 1)), in fixed point with 16 fractional bits.
    fn log_uniform(&self, random: u64) -> u32 {
        let octaves = log2_16(u64::from(self.max) + 1);
        let u = ((random >> 32) * octaves) >> 32;
        let (whole, fraction) = (u >> 16, u & 0xffff);
        // 2^f ≈ 1 + f·(0.6565 + 0.3435·f) for f in [0, 1): within 0.3 %, and exact at both ends.
        let power = 65536 + ((fraction * (43024 + ((22512 * fraction) >> 16))) >> 16);
        (((power << whole) >> 16) - 1) as u32
    }
}

/// log2 of `x` in fixed point with 16 fractional bits, the fraction interpolated linearly.
const fn log2_16(x: u64) -> u64 {
    let whole = x.ilog2() as u64;
    (whole << 16) + (((x - (1 << whole)) << 16) >> whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SIZES: Sizes = Sizes { max: 65536, mtu: 1024, seed: 7 };

    #[test]
    fn the_edges_come_first() {
        let first: Vec<u32> = (0..9).map(|n| SIZES.of(n)).collect();
        assert_eq!(first, [0, 1, 1023, 1024, 1025, 4095, 4096, 4097, 65536]);
    }

    #[test]
    fn each_octave_gets_its_share_and_none_is_too_large() {
        let mut octaves = [0u32; 17];
        for n in 9..160_009 {
            let size = SIZES.of(n);
            assert!(size <= 65536);
            octaves[(size + 1).ilog2().min(16) as usize] += 1;
        }
        for (octave, &count) in octaves[..16].iter().enumerate() {
            // 10,000 each; small octaves hold few distinct sizes, so the share there is coarser.
            assert!((8_000..12_500).contains(&count), "octave {octave}: {count}");
        }
    }

    #[test]
    fn a_seed_repeats() {
        let again = Sizes { ..SIZES };
        assert!((0..1000).all(|n| SIZES.of(n) == again.of(n)));
        let other = Sizes { seed: 8, ..SIZES };
        assert!((9..1000).any(|n| SIZES.of(n) != other.of(n)));
    }
}
