//! Latencies without a heap: counts in buckets whose width is a 32nd of their value.

/// Buckets per power of two.
const SUB: u32 = 32;
/// Values up to 2^42 ns (73 minutes) have a bucket of their own; longer ones share the last.
const OCTAVES: u32 = 38;
const BUCKETS: usize = (SUB * OCTAVES) as usize;

/// Counts of durations, in nanoseconds, to within 3 %. All zero bytes when empty.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Nothing counted.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }

    /// Counts one duration.
    pub fn record(&mut self, nanoseconds: u64) {
        let bucket = Self::bucket(nanoseconds).min(BUCKETS - 1);
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.total += 1;
    }

    /// Number of durations counted.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The smallest duration that at least `per_mille` of a thousand stay at or below, 0 if nothing was counted.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let wanted = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if count != 0 && seen >= wanted {
                return Self::lower_edge(bucket);
            }
        }
        0
    }

    /// Values below 2·SUB have a bucket each; from there on every octave has SUB.
    fn bucket(value: u64) -> usize {
        if value < u64::from(2 * SUB) {
            return value as usize;
        }
        let octave = value.ilog2() - SUB.ilog2();
        (octave * SUB) as usize + (value >> octave) as usize
    }

    fn lower_edge(bucket: usize) -> u64 {
        if bucket < 2 * SUB as usize {
            return bucket as u64;
        }
        let octave = bucket as u32 / SUB - 1;
        (u64::from(SUB) + u64::from(bucket as u32 % SUB)) << octave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut histogram = Histogram::new();
        for value in 1..=100_000u64 {
            histogram.record(value);
        }
        for (per_mille, exact) in [(500, 50_000f64), (990, 99_000.0), (1000, 100_000.0)] {
            let got = histogram.quantile(per_mille) as f64;
            assert!((exact * 0.96..=exact).contains(&got), "{per_mille}: {got}");
        }
        assert_eq!(histogram.total(), 100_000);
    }

    #[test]
    fn edges_are_their_own_bucket() {
        for bucket in 0..BUCKETS {
            assert_eq!(Histogram::bucket(Histogram::lower_edge(bucket)), bucket);
        }
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(500), 0);
        histogram.record(u64::MAX);
        assert!(histogram.quantile(500) > 1 << 41);
    }
}
