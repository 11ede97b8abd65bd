//! `app=idle`: waits on the timer for different times and checks that it neither woke early nor slept through.

use unikernel::ExitCode;

use unikernel::{Machine, println};

/// Waits in microseconds, on both sides of the border between a pause loop and a halt.
const WAITS_US: [u64; 10] = [0, 1, 50, 99, 101, 200, 1_000, 5_000, 20_000, 100_000];
/// The host may be busy with others; a timer that does not wake is later than this.
const LATE_LIMIT_US: u64 = 5_000_000;

pub fn run(machine: &mut Machine) -> ExitCode {
    let clock = machine.clock();
    let mut good = true;
    let mut expected_halts = 0;
    for wait_us in WAITS_US {
        let start = clock.now();
        let deadline = start + wait_us * 1000;
        // A wait may end early, for instance by an interrupt that was on its way; then one waits again.
        let mut rounds = 0;
        while clock.now() < deadline {
            clock.idle(deadline);
            rounds += 1;
        }
        let late_us = (clock.now() - deadline) / 1000;
        good &= late_us < LATE_LIMIT_US && rounds <= 10;
        expected_halts += u32::from(wait_us > 100);
        println!("idle {wait_us} us: {late_us} us late, {rounds} rounds");
    }
    let (timer, unexpected) = clock.interrupt_counts();
    println!("timer interrupts: {timer}, unexpected interrupts: {unexpected}");
    good &= timer >= expected_halts && unexpected == 0;
    if good {
        ExitCode::Success
    } else {
        println!("error: idle: a wait was {LATE_LIMIT_US} us late, or the timer did not wake it");
        ExitCode::Failed
    }
}
