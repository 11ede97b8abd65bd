//! The clock: the TSC, calibrated against the ACPI PM timer, the PIT, the HPET, or what CPUID says, the first that is there. Where the TSC changes its pace with the CPU's
//! power states, the PM timer is the clock itself.

use core::arch::x86_64::{__cpuid, _rdtsc};
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;
use x86_64::instructions::port::Port;

use crate::arch::apic;
use crate::clock::{
    Choice, PIT_HZ, PM_TIMER_HZ, RtcRegisters, Scale, Source, hpet_hz, named_tsc_hz, pm_timer_elapsed,
    pm_timer_extended,
};
use crate::mem::registers::Registers;

/// How long both counters are watched, in microseconds. The readings are some 0.1 us uncertain, so the result is
/// good to some 0.002 %.
const WINDOW_US: u64 = 10_000;

/// Readings of a reference that does not count before it is given up: at 70 ns or more each.
const MAX_READINGS: u32 = 4_000_000;

/// Registers of the HPET.
const HPET_PERIOD: u32 = 0x04;
const HPET_CONFIGURATION: u32 = 0x10;
const HPET_ENABLE: u32 = 1;
const HPET_COUNTER: u32 = 0xf0;

static SCALE: Once<Scale> = Once::new();
/// The PM timer's port and scale, where it is the clock.
static PM_CLOCK: Once<(u16, Scale)> = Once::new();
static PM_COUNT: AtomicU64 = AtomicU64::new(0);
/// The PM timer has to be looked at more often than every 4.6 s.
const PM_LONGEST_WAIT_NANOS: u64 = 2_000_000_000;

/// No clock could be calibrated.
#[derive(Clone, Copy, Debug)]
pub struct NoClock;

impl core::fmt::Display for NoClock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("machine: neither PM timer nor PIT nor HPET counts and CPUID names no frequency, or the TSC or APIC timer stands still")
    }
}

/// The counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: CR4.TSD is clear, and the instruction has no other condition.
    unsafe { _rdtsc() }
}

/// Nanoseconds since the CPU's reset, monotonic; 0 before [`calibrate`].
#[inline]
pub fn now() -> u64 {
    if let Some((port, scale)) = PM_CLOCK.get() {
        return scale.nanos(pm_count(*port));
    }
    SCALE.get().map_or(0, |scale| scale.nanos(tsc()))
}

fn pm_count(port: u16) -> u64 {
    let mut last = PM_COUNT.load(Ordering::Relaxed);
    loop {
        let count = pm_timer_extended(last, Reference::PmTimer(port).read(None));
        // Interrupt handlers do not look at the clock; this is for whoever reads it inside one all the same.
        match PM_COUNT.compare_exchange(last, count, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return count,
            Err(other) => last = other,
        }
    }
}

/// How long the clock may go without being looked at.
pub fn longest_wait_nanos() -> u64 {
    if PM_CLOCK.get().is_some() { PM_LONGEST_WAIT_NANOS } else { u64::MAX }
}

/// Whether the TSC keeps its pace whatever the CPU does; a hypervisor's is taken to.
pub fn tsc_is_invariant() -> bool {
    const INVARIANT: u32 = 1 << 8;
    const HYPERVISOR: u32 = 1 << 31;
    let known = __cpuid(0x8000_0000).eax >= 0x8000_0007;
    known && __cpuid(0x8000_0007).edx & INVARIANT != 0 || __cpuid(1).ecx & HYPERVISOR != 0
}

/// Nanoseconds in a number of ticks of the TSC; 0 before [`calibrate`].
pub fn nanos(ticks: u64) -> u64 {
    SCALE.get().map_or(0, |scale| scale.nanos(ticks))
}

/// The TSC's frequency in Hz; 0 before [`calibrate`].
pub fn tsc_hz() -> u64 {
    SCALE.get().map_or(0, |scale| scale.hz())
}

/// What the clock was calibrated against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// ACPI PM timer at this I/O port.
    PmTimer(u16),
    /// Channel 2 of the 8254.
    Pit,
    /// The HPET, with this frequency in Hz.
    Hpet(u64),
    /// The TSC itself, with the frequency in Hz that CPUID names.
    Named(u64),
}

impl core::fmt::Display for Reference {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Reference::PmTimer(port) => write!(f, "PM timer at {port:#x}"),
            Reference::Pit => f.write_str("PIT"),
            Reference::Hpet(_) => f.write_str("HPET"),
            Reference::Named(_) => f.write_str("CPUID"),
        }
    }
}

impl Reference {
    fn hz(self) -> u64 {
        match self {
            Reference::PmTimer(_) => PM_TIMER_HZ,
            Reference::Pit => PIT_HZ,
            Reference::Hpet(hz) | Reference::Named(hz) => hz,
        }
    }

    fn start(self) {
        if self == Reference::Pit {
            // SAFETY: channel 2's gate on, speaker off; mode 0 counting down from 65535 (8254 data sheet).
            // Nothing else uses the channel.
            unsafe {
                let mut gate = Port::<u8>::new(0x61);
                let value = gate.read() & !0b11 | 0b01;
                gate.write(value);
                Port::<u8>::new(0x43).write(0b1011_0000);
                Port::<u8>::new(0x42).write(0xff);
                Port::<u8>::new(0x42).write(0xff);
            }
        }
    }

    /// Its count. The HPET's are at `hpet`.
    fn read(self, hpet: Option<&Registers>) -> u32 {
        match self {
            // SAFETY: FADT's PM timer; reading has no effect.
            Reference::PmTimer(port) => unsafe { Port::<u32>::new(port).read() },
            // SAFETY: latches and reads channel 2.
            Reference::Pit => unsafe {
                Port::<u8>::new(0x43).write(0b1000_0000);
                let mut counter = Port::<u8>::new(0x42);
                let low = counter.read();
                u16::from_le_bytes([low, counter.read()]).into()
            },
            Reference::Hpet(_) => hpet.map_or(0, |registers| registers.read32(HPET_COUNTER)),
            Reference::Named(_) => tsc() as u32,
        }
    }

    fn elapsed(self, before: u32, after: u32) -> u32 {
        match self {
            Reference::PmTimer(_) => pm_timer_elapsed(before, after),
            Reference::Pit => before.wrapping_sub(after) & 0xffff,
            Reference::Hpet(_) | Reference::Named(_) => after.wrapping_sub(before),
        }
    }

    /// Reference, TSC and APIC timer at one moment: of a few attempts the one that took least time, because
    /// the host may take the CPU away between the readings.
    fn sample(self, hpet: Option<&Registers>) -> (u32, u64, u32) {
        let attempt = || {
            let before = tsc();
            let (reference, apic) = (self.read(hpet), apic::counted());
            let after = tsc();
            (after.wrapping_sub(before), (reference, before + (after.wrapping_sub(before)) / 2, apic))
        };
        let mut best = attempt();
        for _ in 0..7 {
            let next = attempt();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Ticks of TSC and APIC timer, and of the reference meanwhile.
    fn measure(self, hpet: Option<&Registers>) -> Option<(u64, u32, u32)> {
        let window = (self.hz() * WINDOW_US / 1_000_000) as u32;
        self.start();
        apic::start_counting();
        let (first, tsc_first, apic_first) = self.sample(hpet);
        (0..MAX_READINGS).find(|_| self.elapsed(first, self.read(hpet)) >= window)?;
        let (last, tsc_last, apic_last) = self.sample(hpet);
        let ticks = tsc_last.checked_sub(tsc_first)?;
        Some((ticks, apic_last.wrapping_sub(apic_first), self.elapsed(first, last)))
    }
}

/// The HPET at these registers, counting.
fn hpet(registers: &Registers) -> Option<Reference> {
    let hz = hpet_hz(registers.read32(HPET_PERIOD))?;
    let configuration = registers.read32(HPET_CONFIGURATION);
    registers.write32(HPET_CONFIGURATION, configuration | HPET_ENABLE);
    Some(Reference::Hpet(hz))
}

/// The TSC's frequency as CPUID names it.
fn named() -> Option<Reference> {
    const CRYSTAL: u32 = 0x15;
    const PROCESSOR: u32 = 0x16;
    const HYPERVISOR: u32 = 0x4000_0000;
    const HYPERVISOR_TIMING: u32 = 0x4000_0010;
    let last = __cpuid(0).eax;
    let crystal = if last >= CRYSTAL { __cpuid(CRYSTAL) } else { __cpuid(0) };
    let ratio = if last >= CRYSTAL { [crystal.eax, crystal.ebx, crystal.ecx] } else { [0; 3] };
    let mhz = if last >= PROCESSOR { __cpuid(PROCESSOR).eax & 0xffff } else { 0 };
    let has_timing = __cpuid(1).ecx & 1 << 31 != 0 && __cpuid(HYPERVISOR).eax >= HYPERVISOR_TIMING;
    let khz = if has_timing { __cpuid(HYPERVISOR_TIMING).eax } else { 0 };
    named_tsc_hz(ratio, mhz, khz).map(Reference::Named)
}

/// Measures TSC and APIC timer, and makes one of TSC and PM timer the clock: the PM timer if it is there and chosen, or nothing is
/// chosen and the TSC does not keep its pace. The APIC must be on. `map_hpet` maps the HPET's registers, if there is one.
// Code size: inlined, its locals share a frame so large that each access takes four more bytes.
#[inline(never)]
pub fn calibrate(
    pm_timer: Option<u16>,
    map_hpet: impl Fn() -> Option<Registers>,
    choice: Option<Choice>,
) -> Result<Reference, NoClock> {
    let by_tsc = choice.map_or_else(tsc_is_invariant, |choice| choice != Choice::PmTimer);
    let only = match choice {
        Some(Choice::MeasuredBy(source)) => Some(source),
        _ => None,
    };
    for source in Source::ALL.into_iter().filter(|source| only.is_none_or(|only| only == *source)) {
        let window = if source == Source::Hpet { map_hpet() } else { None };
        let reference = match source {
            Source::PmTimer => pm_timer.map(Reference::PmTimer),
            Source::Pit => Some(Reference::Pit),
            Source::Hpet => window.as_ref().and_then(hpet),
            Source::Cpuid => named(),
        };
        let Some(reference) = reference else { continue };
        let Some((tsc, apic, ticks)) = reference.measure(window.as_ref()) else { continue };
        let scale = |counted| Scale::measured(counted, ticks.into(), reference.hz());
        if let (Some(tsc), Some(apic)) = (scale(tsc), scale(apic.into())) {
            SCALE.call_once(|| tsc);
            apic::set_timer_scale(apic);
            if let (Reference::PmTimer(port), false) = (reference, by_tsc)
                && let Some(scale) = Scale::measured(PM_TIMER_HZ, PM_TIMER_HZ, PM_TIMER_HZ)
            {
                PM_CLOCK.call_once(|| (port, scale));
            }
            return Ok(reference);
        }
    }
    Err(NoClock)
}

/// The wall clock in seconds since 1970, from the RTC. Nothing when it makes no sense or does not hold still.
pub fn unix_seconds() -> Option<u64> {
    let read = |register: u8| {
        // SAFETY: CMOS index and data ports; bit 7 clear keeps NMI on. Reading these registers has no effect.
        unsafe {
            Port::<u8>::new(0x70).write(register);
            Port::<u8>::new(0x71).read()
        }
    };
    let all = || RtcRegisters {
        second: read(0),
        minute: read(2),
        hour: read(4),
        day: read(7),
        month: read(8),
        year: read(9),
        status_b: read(0xb),
    };
    // Two equal readings in a row did not meet an update in the middle.
    let mut last = all();
    for _ in 0..10 {
        let next = all();
        if next == last {
            return next.unix_seconds();
        }
        last = next;
    }
    None
}
