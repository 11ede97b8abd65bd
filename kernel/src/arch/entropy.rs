//! The boot's seed: RDRAND where the CPU has it, and always the jitter of the TSC against ports, and the wall clock.

use x86_64::instructions::random::RdRand;

use crate::arch::clock;
use crate::seed::{BootSecond, Mixer, boot_generation};

/// What tells this boot from every other.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// 128 random bits.
    pub seed: u128,
    /// Larger than that of an earlier boot, if the wall clock works.
    pub boot_generation: u64,
    /// Numbers the boot, in what peers remember of it.
    pub boot_second: BootSecond,
    /// RDRAND gave its share.
    pub hardware_random: bool,
}

/// Gathers the seed. The clock must be calibrated.
pub fn gather() -> Identity {
    let mut mixer = Mixer::new();
    let mut words = 0;
    if let Some(source) = RdRand::new() {
        // The instruction may come up empty now and then; Intel's guide asks for ten attempts.
        for _ in 0..40 {
            if let Some(word) = source.get_u64() {
                mixer.stir(word);
                words += 1;
            }
            if words == 4 {
                break;
            }
        }
    }
    let seconds = clock::unix_seconds();
    mixer.stir(seconds.unwrap_or(0));
    for _ in 0..64 {
        // Reading the RTC leaves the CPU (a port access), and how long that takes nobody knows to the tick.
        clock::unix_seconds();
        mixer.stir(clock::tsc());
    }
    let seed = mixer.seed();
    let boot_generation = boot_generation(seconds.unwrap_or(0), seed);
    Identity { seed, boot_generation, boot_second: BootSecond::read(seconds), hardware_random: words == 4 }
}
