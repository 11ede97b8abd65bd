//! Devices' interrupts that have fired: one word for their owners, one for waits.
//!
//! An owner takes its own vectors only, so that no device's interrupt is lost to another owner. A
//! wait ends with interrupts that fired since the last wait of the same vectors. An owner that does
//! not look therefore does not turn later waits into busy loops.

use core::sync::atomic::{AtomicU64, Ordering};

/// The flags of 64 vectors.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// Fired since the owner took it.
    fired: AtomicU64,
    /// Fired since a wait ended with it.
    news: AtomicU64,
}

impl Flags {
    pub(crate) const fn new() -> Self {
        Self { fired: AtomicU64::new(0), news: AtomicU64::new(0) }
    }

    /// Sets the flags of vector `n`, from its interrupt handler.
    pub(crate) fn raise(&self, n: u8) {
        let bit = 1u64.checked_shl(n.into()).unwrap_or(0);
        self.fired.fetch_or(bit, Ordering::Release);
        self.news.fetch_or(bit, Ordering::Release);
    }

    /// Takes the flags of `mask` for their owner. Others stay.
    pub(crate) fn take(&self, mask: u64) -> u64 {
        self.fired.fetch_and(!mask, Ordering::Acquire) & mask
    }

    /// Returns whether a vector of `mask` fired since a wait for it ended, and ends a wait for
    /// `mask`. The owners' flags stay, as do other vectors' for those who wait for them.
    pub(crate) fn ends_wait(&self, mask: u64) -> bool {
        self.news.fetch_and(!mask, Ordering::Acquire) & mask != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HCA: u64 = 0b0011;
    const NIC: u64 = 0b1100;

    #[test]
    fn each_owner_takes_its_own_flags() {
        let flags = Flags::new();
        flags.raise(1);
        flags.raise(2);
        assert_eq!(flags.take(HCA), 0b0010);
        assert_eq!((flags.take(HCA), flags.take(NIC), flags.take(NIC)), (0, 0b0100, 0));
        flags.raise(63);
        flags.raise(64);
        assert_eq!(flags.take(u64::MAX), 1 << 63);
    }

    #[test]
    fn waits_leave_owners_their_flags() {
        let flags = Flags::new();
        flags.raise(2);
        // The driver of the HCA waits for a command.
        assert!(!flags.ends_wait(HCA));
        flags.raise(0);
        assert!(flags.ends_wait(HCA) && !flags.ends_wait(HCA));
        // The application's own wait does end, once, and the owner has its flag.
        assert!(flags.ends_wait(u64::MAX) && !flags.ends_wait(u64::MAX));
        assert_eq!((flags.take(NIC), flags.take(HCA)), (0b0100, 0b0001));
        flags.raise(2);
        assert!(flags.ends_wait(u64::MAX), "again, whether the owner looked or not");
    }
}
