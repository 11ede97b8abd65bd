//! Interrupts are flags: a handler sets its bits and nothing else. All waits are in [`idle`].

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use x86_64::instructions::interrupts;
use x86_64::instructions::port::Port;

use crate::arch::vectors::{DEVICE_VECTORS, FIRST_DEVICE, PIC, SPURIOUS, TIMER};
use crate::arch::{apic, clock};
use crate::flags::Flags;

/// With less time than this to go, setting the timer and halting takes longer than waiting.
const PAUSE_BELOW_NANOS: u64 = 100_000;

static FLAGS: Flags = Flags::new();
/// When the timer is going to interrupt, in monotonic nanoseconds; 0 if it is not.
static TIMER_AT: AtomicU64 = AtomicU64::new(0);
static TIMER_COUNT: AtomicU32 = AtomicU32::new(0);
static UNEXPECTED: AtomicU32 = AtomicU32::new(0);

/// Masks the PIC, moved out of the exceptions' vectors first.
pub fn mask_pic() {
    for (port, value) in [
        (0x20u16, 0x11u8),
        (0xa0, 0x11),
        (0x21, PIC),
        (0xa1, PIC + 8),
        (0x21, 4),
        (0xa1, 2),
        (0x21, 1),
        (0xa1, 1),
        (0x21, 0xff),
        (0xa1, 0xff),
    ] {
        // SAFETY: the initialization sequence of the two 8259s, which nothing else uses.
        unsafe { Port::<u8>::new(port).write(value) };
    }
}

/// Called by the stub of every vector that is not an exception's.
pub fn handle(vector: u8) {
    const DEVICES: core::ops::Range<u8> = FIRST_DEVICE..FIRST_DEVICE + DEVICE_VECTORS;
    match vector {
        vector if DEVICES.contains(&vector) => {
            FLAGS.raise(vector - FIRST_DEVICE);
        }
        TIMER => {
            TIMER_AT.store(0, Ordering::Relaxed);
            TIMER_COUNT.fetch_add(1, Ordering::Relaxed);
        }
        SPURIOUS | PIC..0x30 => {
            UNEXPECTED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        _ => {
            UNEXPECTED.fetch_add(1, Ordering::Relaxed);
        }
    }
    apic::end_of_interrupt();
}

/// Timer interrupts since boot, and interrupts that nobody asked for.
pub fn counts() -> (u32, u32) {
    (TIMER_COUNT.load(Ordering::Relaxed), UNEXPECTED.load(Ordering::Relaxed))
}

/// Takes the flags of those device vectors in `mask` that fired since they were last taken: bit `n`
/// for vector `n`. Their owner takes them before it looks at what the device wrote, so that an
/// interrupt that comes meanwhile is not lost.
pub fn take_fired(mask: u64) -> u64 {
    FLAGS.take(mask)
}

/// Waits until a device vector in `mask` fires or until the monotonic time `deadline` in
/// nanoseconds; may return earlier. Takes no flags. Halts the CPU unless the deadline is close.
pub fn idle(deadline: u64, mask: u64) {
    let now = clock::now();
    let left = deadline.saturating_sub(now).min(clock::longest_wait_nanos());
    if left < PAUSE_BELOW_NANOS {
        while !FLAGS.ends_wait(mask) && clock::now() < deadline {
            core::hint::spin_loop();
        }
        return;
    }
    interrupts::disable();
    if FLAGS.ends_wait(mask) {
        interrupts::enable();
        return;
    }
    // A timer that is left from an earlier wait and interrupts in time is left alone: whoever waits thousands of times a second is mostly
    // woken by a device, and each write to the local APIC leaves the guest.
    let (at, end) = (TIMER_AT.load(Ordering::Relaxed), now.saturating_add(left));
    if at <= now || at > end {
        apic::set_timer(left);
        TIMER_AT.store(end, Ordering::Relaxed);
    }
    // An interrupt that became pending since the check ends the halt at once: sti takes effect after hlt began.
    interrupts::enable_and_hlt();
    FLAGS.ends_wait(mask);
}

/// Lets `nanos` pass.
pub fn wait(nanos: u64) {
    let end = clock::now().saturating_add(nanos);
    while clock::now() < end {
        // Interrupts end none of these waits, and wait for those who want them.
        idle(end, 0);
    }
}
