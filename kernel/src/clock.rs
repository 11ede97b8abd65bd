//! Arithmetic of time: ticks of a counter to nanoseconds and back, the PM timer's wrap, the RTC's calendar.

/// Frequency of the ACPI PM timer in Hz.
pub const PM_TIMER_HZ: u64 = 3_579_545;

/// Frequency of the 8254 PIT in Hz.
pub const PIT_HZ: u64 = 1_193_182;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The ratio between a counter and nanoseconds, as a 32.32 fixed-point number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    nanos_per_tick: u64,
    hz: u64,
}

impl Scale {
    /// From `ticks` of the counter counted while a reference of `reference_hz` counted `reference_ticks`. Nothing when
    /// the counter stood still, or is slower than 1 kHz or faster than 100 GHz: then it is no clock.
    #[must_use]
    pub fn measured(ticks: u64, reference_ticks: u64, reference_hz: u64) -> Option<Scale> {
        let hz = u128::from(ticks).checked_mul(reference_hz.into())?.checked_div(reference_ticks.into())?;
        if !(1_000..=100_000_000_000).contains(&hz) {
            return None;
        }
        let nanos = (u128::from(reference_ticks) * NANOS_PER_SECOND) << 32;
        let nanos_per_tick = nanos.checked_div(u128::from(ticks) * u128::from(reference_hz))?;
        Some(Scale { nanos_per_tick: u64::try_from(nanos_per_tick).ok()?, hz: hz as u64 })
    }

    /// The counter's frequency in Hz.
    #[must_use]
    pub const fn hz(self) -> u64 {
        self.hz
    }

    /// Nanoseconds in `ticks`, saturating.
    #[must_use]
    #[inline]
    pub const fn nanos(self, ticks: u64) -> u64 {
        let nanos = (ticks as u128 * self.nanos_per_tick as u128) >> 32;
        if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
    }

    /// Ticks in `nanos`, rounded up so that a timer set to them is not early, saturating.
    #[must_use]
    pub const fn ticks(self, nanos: u64) -> u64 {
        let ticks = ((nanos as u128) << 32).div_ceil(self.nanos_per_tick as u128);
        if ticks > u64::MAX as u128 { u64::MAX } else { ticks as u64 }
    }
}

/// Clock that the command line chooses by `clock=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The TSC, measured by the first source that exists.
    Tsc,
    /// The PM timer.
    PmTimer,
    /// The TSC, measured by this source.
    MeasuredBy(Source),
}

/// Source of the TSC's frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The PM timer.
    PmTimer,
    /// The PIT.
    Pit,
    /// The HPET.
    Hpet,
    /// The CPU or the hypervisor, by CPUID.
    Cpuid,
}

impl Source {
    /// All, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::PmTimer, Self::Pit, Self::Hpet, Self::Cpuid];
}

/// The TSC's frequency in Hz as CPUID names it: leaf 0x15's three words (a ratio and the crystal's frequency), leaf 0x16's (MHz of the
/// processor, for CPUs that do not name the crystal), and a hypervisor's leaf 0x4000_0010 (kHz); 0 for what is not there (SDM volume 2,
/// CPUID).
#[must_use]
pub fn named_tsc_hz(
    [denominator, numerator, crystal]: [u32; 3],
    mhz: u32,
    hypervisor_khz: u32,
) -> Option<u64> {
    let by_crystal = u64::from(crystal).checked_mul(numerator.into())?.checked_div(denominator.into());
    let named = [by_crystal, Some(u64::from(hypervisor_khz) * 1_000), Some(u64::from(mhz) * 1_000_000)];
    named.into_iter().flatten().find(|hz| *hz != 0)
}

/// The HPET's frequency in Hz, from the period of its first register's upper half, in femtoseconds: at most 100 ns (IA-PC HPET 1.0a
/// section 2.3.4).
#[must_use]
pub fn hpet_hz(period: u32) -> Option<u64> {
    const LONGEST: u32 = 0x05f5_e100;
    (1..=LONGEST).contains(&period).then(|| 1_000_000_000_000_000 / u64::from(period))
}

/// Ticks between two readings of the PM timer, of which 24 bits are certain: right for less than 4.6 s.
#[must_use]
pub const fn pm_timer_elapsed(before: u32, after: u32) -> u32 {
    after.wrapping_sub(before) & 0x00ff_ffff
}

/// The PM timer's count beyond its width: `last`, and what was read since. Right if less than 4.6 s passed.
#[must_use]
pub const fn pm_timer_extended(last: u64, read: u32) -> u64 {
    last + pm_timer_elapsed(last as u32, read) as u64
}

/// The RTC's registers as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtcRegisters {
    /// Register 0.
    pub second: u8,
    /// Register 2.
    pub minute: u8,
    /// Register 4.
    pub hour: u8,
    /// Register 7.
    pub day: u8,
    /// Register 8.
    pub month: u8,
    /// Register 9, without the century.
    pub year: u8,
    /// Register B: bit 2 set means binary, not BCD; bit 1 set means 24 hours.
    pub status_b: u8,
}

impl RtcRegisters {
    /// Seconds since 1970-01-01, taking the year as 2000 to 2099. Nothing when the values are no date.
    #[must_use]
    pub fn unix_seconds(self) -> Option<u64> {
        let decode = |value: u8| {
            if self.status_b & 0x04 != 0 {
                return Some(u64::from(value));
            }
            (value >> 4 < 10 && value & 0xf < 10).then(|| u64::from(value >> 4) * 10 + u64::from(value & 0xf))
        };
        let hour = if self.status_b & 0x02 != 0 {
            decode(self.hour)?
        } else {
            let hour = decode(self.hour & 0x7f)?;
            if !(1..=12).contains(&hour) {
                return None;
            }
            hour % 12 + if self.hour & 0x80 != 0 { 12 } else { 0 }
        };
        let (second, minute) = (decode(self.second)?, decode(self.minute)?);
        let (day, month, year) = (decode(self.day)?, decode(self.month)?, 2000 + decode(self.year)?);
        let sane = second < 60
            && minute < 60
            && hour < 24
            && (1..=31).contains(&day)
            && (1..=12).contains(&month)
            && year < 2100;
        sane.then(|| (days_since_1970(year, month, day) * 24 + hour) * 3600 + minute * 60 + second)
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar between 2000 and 2099.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    // Months counted from March, so that the leap day comes last.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_that_registers_name() {
        // Skylake-SP, Alder Lake; a CPU that does not name its crystal; a hypervisor; nothing.
        assert_eq!(named_tsc_hz([2, 168, 25_000_000], 2_100, 0), Some(2_100_000_000));
        assert_eq!(named_tsc_hz([1, 80, 38_400_000], 0, 0), Some(3_072_000_000));
        assert_eq!(named_tsc_hz([2, 216, 0], 2_600, 0), Some(2_600_000_000));
        assert_eq!(named_tsc_hz([0; 3], 0, 2_893_300), Some(2_893_300_000));
        assert_eq!(named_tsc_hz([0; 3], 0, 0), None);
        assert_eq!(named_tsc_hz([0, u32::MAX, u32::MAX], 0, 0), None);
        assert_eq!((hpet_hz(69_841_279), hpet_hz(10_000_000)), (Some(14_318_179), Some(100_000_000)));
        assert_eq!((hpet_hz(0), hpet_hz(u32::MAX)), (None, None));
    }

    #[test]
    fn scale_there_and_back() {
        let scale = Scale::measured(23_000_000, 35_795, PM_TIMER_HZ).unwrap();
        assert!((2_299_900_000..2_300_100_000).contains(&scale.hz()), "{}", scale.hz());
        let second = scale.nanos(scale.hz());
        assert!((999_999_000..1_000_001_000).contains(&second), "{second}");
        for nanos in [0, 1, 99_999, 100_000, 1_000_000_000, 86_400_000_000_000] {
            let back = scale.nanos(scale.ticks(nanos));
            assert!(back >= nanos.saturating_sub(1) && back <= nanos + 1, "{nanos} {back}");
        }
    }

    #[test]
    fn scale_at_the_edges() {
        let fast = Scale::measured(1_000_000_000, PM_TIMER_HZ, PM_TIMER_HZ).unwrap();
        assert_eq!(fast.hz(), 1_000_000_000);
        assert_eq!(fast.nanos(12_345), 12_345);
        assert_eq!(fast.ticks(u64::MAX), u64::MAX);
        let slow = Scale::measured(1_000, 1, 1).unwrap();
        assert_eq!(slow.nanos(u64::MAX), u64::MAX);
        assert_eq!(Scale::measured(0, 100, PM_TIMER_HZ), None);
        assert_eq!(Scale::measured(100, 0, PM_TIMER_HZ), None);
        assert_eq!(Scale::measured(u64::MAX, 1, u64::MAX), None);
    }

    #[test]
    fn pm_timer_wraps_at_24_bits_whatever_is_above() {
        assert_eq!(pm_timer_elapsed(10, 30), 20);
        assert_eq!(pm_timer_elapsed(0x00ff_fff0, 0x0000_0010), 0x20);
        assert_eq!(pm_timer_elapsed(0xffff_fff0, 0x0000_0010), 0x20);
        assert_eq!(pm_timer_elapsed(0x00ff_fff0, 0x0100_0010), 0x20);
    }

    #[test]
    fn pm_timer_counts_on_beyond_its_width() {
        let mut count = pm_timer_extended(0, 0x00ff_0000);
        assert_eq!(count, 0x00ff_0000);
        for (read, expected) in [
            (0x0000_0010, 0x0100_0010),
            (0x0000_0010, 0x0100_0010),
            (0xab00_0020, 0x0100_0020),
            (0x0000_001f, 0x0200_001f),
        ] {
            count = pm_timer_extended(count, read);
            assert_eq!(count, expected);
        }
    }

    const NOON: RtcRegisters = RtcRegisters {
        second: 0x59,
        minute: 0x30,
        hour: 0x12,
        day: 0x29,
        month: 0x02,
        year: 0x24,
        status_b: 0x02,
    };

    #[test]
    fn rtc_formats() {
        // date -u -d '2024-02-29 12:30:59' +%s
        assert_eq!(NOON.unix_seconds(), Some(1_709_209_859));
        let binary =
            RtcRegisters { second: 59, minute: 30, hour: 12, day: 29, month: 2, year: 24, status_b: 0x06 };
        assert_eq!(binary.unix_seconds(), NOON.unix_seconds());
        assert_eq!(RtcRegisters { hour: 0x92, status_b: 0, ..NOON }.unix_seconds(), NOON.unix_seconds());
        let midnight = RtcRegisters { hour: 0x12, status_b: 0, ..NOON };
        assert_eq!(midnight.unix_seconds(), Some(1_709_209_859 - 12 * 3600));
        let end = RtcRegisters { day: 0x31, month: 0x12, year: 0x99, ..NOON };
        assert_eq!(end.unix_seconds(), Some(4_102_403_459));
    }

    #[test]
    fn rtc_nonsense() {
        for broken in [
            RtcRegisters { second: 0x5a, ..NOON },
            RtcRegisters { second: 0x60, ..NOON },
            RtcRegisters { month: 0x13, ..NOON },
            RtcRegisters { month: 0, ..NOON },
            RtcRegisters { day: 0, ..NOON },
            RtcRegisters { hour: 0x13, status_b: 0, ..NOON },
            RtcRegisters { hour: 0, status_b: 0, ..NOON },
            RtcRegisters { year: 0xff, ..NOON },
            RtcRegisters { year: 100, day: 1, month: 1, status_b: 0x06, ..NOON },
        ] {
            assert_eq!(broken.unix_seconds(), None, "{broken:?}");
        }
    }
}
