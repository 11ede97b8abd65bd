//! Time: the processor's counter.

use crate::firmware::Firmware;
use core::time::Duration;
use driver_mlx::Instant;

/// Microseconds of a measurement of the counter, and how many there are. The least is taken, because
/// firmware may do other things during a wait, but never waits too little.
const MEASUREMENT: usize = 10_000;
const MEASUREMENTS: usize = 4;

/// A monotonic clock. UEFI has none that every machine implements.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    counter: fn() -> u64,
    start: u64,
    /// Ticks in 10 ms.
    rate: u64,
}

impl Clock {
    /// Measures the processor's counter, in 40 ms.
    #[must_use]
    pub fn measure(firmware: Firmware) -> Self {
        Self::of(firmware, counter)
    }

    /// Measures another counter, which must not stop and counts 100,000 times a second or faster.
    #[must_use]
    pub fn of(firmware: Firmware, counter: fn() -> u64) -> Self {
        let measured = || {
            let before = counter();
            firmware.stall(MEASUREMENT);
            counter().wrapping_sub(before)
        };
        let rate = core::iter::repeat_with(measured).take(MEASUREMENTS).min().unwrap_or(1);
        Self { counter, start: counter(), rate: rate.max(1) }
    }

    /// Returns the time since the measurement.
    #[must_use]
    pub fn now(&self) -> Instant {
        let ticks = (self.counter)().wrapping_sub(self.start);
        let nanos = u128::from(ticks) * (MEASUREMENT as u128 * 1000) / u128::from(self.rate);
        // 64 bits of nanoseconds are five centuries.
        Instant::from_nanos(nanos as u64)
    }

    /// Returns the ticks of the counter in a second, as measured.
    #[must_use]
    pub fn ticks_per_second(&self) -> u64 {
        let tenth = Duration::from_micros(MEASUREMENT as u64);
        self.rate * (Duration::from_secs(1).as_micros() / tenth.as_micros()) as u64
    }
}

/// Returns the counter of the processor.
#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and firmware runs in ring 0.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the counter of the processor.
#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let count: u64;
    // SAFETY: reads the virtual counter, which firmware's exception level may.
    unsafe {
        core::arch::asm!("isb", "mrs {count}, cntvct_el0", count = out(reg) count, options(nomem, nostack))
    };
    count
}
