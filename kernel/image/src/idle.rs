//! `app=idle`: waits on the timer for different times and checks that it neither woke early nor slept through.

use driver_mlx::Duration;
use unikernel::{Clock, ExitCode, Machine, println};

/// Waits in microseconds, on both sides of the border between a pause loop and a halt.
const WAITS_US: [u64; 10] = [0, 1, 50, 99, 101, 200, 1_000, 5_000, 20_000, 100_000];
/// The host may be busy with others; a timer that does not wake is later than this.
const LATE_LIMIT_US: u64 = 5_000_000;

/// A host that takes the processor away before the CPU halts leaves nothing to wait for; then the wait is tried again, at most so often.
const ATTEMPTS: u32 = 50;

pub fn run(machine: &mut Machine) -> ExitCode {
    let clock = machine.clock();
    let mut good = true;
    for wait_us in WAITS_US {
        let (before, _) = clock.interrupt_counts();
        let woken = (0..ATTEMPTS).any(|_| {
            good &= wait(clock, wait_us);
            // Shorter ones need no timer.
            wait_us <= 100 || clock.interrupt_counts().0 > before
        });
        good &= woken;
    }
    let (timer, unexpected) = clock.interrupt_counts();
    println!("timer interrupts: {timer}, unexpected interrupts: {unexpected}");
    good &= unexpected == 0;
    if good {
        ExitCode::Success
    } else {
        println!("error: idle: a wait was {LATE_LIMIT_US} us late, or the timer did not wake it");
        ExitCode::Failed
    }
}

/// Waits once, and says whether that ended in time.
fn wait(clock: Clock, wait_us: u64) -> bool {
    let deadline = clock.now() + Duration::from_micros(wait_us);
    // A wait may end early, for instance by an interrupt that was on its way; then one waits again.
    let mut rounds = 0;
    while clock.now() < deadline {
        clock.idle(deadline);
        rounds += 1;
    }
    let late_us = (clock.now() - deadline).as_micros() as u64;
    println!("idle {wait_us} us: {late_us} us late, {rounds} rounds");
    late_us < LATE_LIMIT_US && rounds <= 10
}
