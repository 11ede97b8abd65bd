//! The state of a function after it was opened: does it need another reset?

use driver_mlx::{Bar, DeviceState, Duration};

/// Interval between reads of the registers.
const POLL: Duration = Duration::from_millis(10);
/// Longest time for which registers may read as all ones after the kernel's reset.
const ABSENCE: Duration = Duration::from_secs(2);
/// Longest time that firmware may take to start after it, as in
/// [`Config::DEFAULT`](driver_mlx::Config::DEFAULT).
const INITIALIZING: Duration = Duration::from_secs(120);

/// Waits until firmware has started. Returns whether only a reset makes the function usable: it
/// does not answer, or it is still in the hands of its last owner.
///
/// Opening has reset a function that the kernel can reset. A second reset within the first one
/// makes ENABLE_HCA hang on a ConnectX-5. `wait` lets so much time pass.
pub(super) fn needs_reset(bar: impl Bar, mut wait: impl FnMut(Duration)) -> bool {
    let mut waited = Duration::ZERO;
    loop {
        match DeviceState::read(bar) {
            Some(state) if !state.initializing => return state.left_running(),
            // Bring-up reports firmware that does not start.
            Some(_) if waited >= INITIALIZING => return false,
            None if waited >= ABSENCE => return true,
            _ => {}
        }
        wait(POLL);
        waited += POLL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The registers that count, as (offset, value); all others read as 0.
    #[derive(Clone, Copy)]
    struct Card<'a>(&'a Cell<[(usize, u32); 3]>);

    impl Bar for Card<'_> {
        type DoorbellRegister = driver_mlx::MmioDoorbellRegister;

        fn len(&self) -> usize {
            0x4000
        }
        fn read32(&self, offset: usize) -> u32 {
            self.0.get().into_iter().find(|(at, _)| *at == offset).map_or(0, |(_, value)| value)
        }
        unsafe fn write32(&self, _: usize, _: u32) {}
        unsafe fn doorbell_register(&self, _: usize, _: usize) -> Self::DoorbellRegister {
            unreachable!("it is only read")
        }
    }

    const QUEUE: usize = 0x14;
    const INITIALIZING_BIT: (usize, u32) = (0x1fc, 1 << 31);
    const FW_VERSION: usize = 0x230;
    const THERE: (usize, u32) = (FW_VERSION, 0x1020_0000);

    /// Looks at a function that reads `first` and, after the time `after`, `then`. Returns whether
    /// a reset is needed, and the time that passed.
    fn look(first: [(usize, u32); 3], after: Duration, then: [(usize, u32); 3]) -> (bool, Duration) {
        let (card, mut passed) = (Cell::new(first), Duration::ZERO);
        let needed = needs_reset(Card(&card), |time| {
            passed += time;
            if passed >= after {
                card.set(then);
            }
        });
        (needed, passed)
    }

    #[test]
    fn a_function_that_the_kernel_has_reset_is_not_reset_again() {
        for queue in [0, 0x100, 0x56, 0x1234_5156] {
            let state = [THERE, (QUEUE, queue), (0, 0)];
            assert_eq!(look(state, Duration::ZERO, state), (false, Duration::ZERO), "{queue:#x}");
        }
    }

    #[test]
    fn firmware_starts_before_anything_else_is_done() {
        let starting = [THERE, (QUEUE, 0), INITIALIZING_BIT];
        for (queue, needed) in [(0, false), (0x1234_5056, true)] {
            let started = [THERE, (QUEUE, queue), (0, 0)];
            let time = Duration::from_secs(30);
            assert_eq!(look(starting, time, started), (needed, time));
        }
        assert_eq!(look(starting, INITIALIZING * 2, starting), (false, INITIALIZING));
    }

    #[test]
    fn a_function_that_is_away_or_left_running_is_reset() {
        let away = [(FW_VERSION, u32::MAX), (QUEUE, u32::MAX), INITIALIZING_BIT];
        assert_eq!(look(away, ABSENCE * 2, away), (true, ABSENCE));
        let back = [THERE, (QUEUE, 0), (0, 0)];
        assert_eq!(look(away, ABSENCE / 2, back), (false, ABSENCE / 2));
        let left = [THERE, (QUEUE, 0x1234_5056), (0, 0)];
        assert_eq!(look(left, Duration::ZERO, left), (true, Duration::ZERO));
    }
}
