//! How long the device may take for what: defaults of mlx5_core, what the embedder chose, and what the device says of itself.

use crate::config::Config;
use crate::platform::Bar;
use crate::types::Duration;
use mlx5_prm::init_seg::{self, timeout_word};
use mlx5_prm::later::DTOR_LEN;
use mlx5_prm::registers::dtor_reg;

/// Times that hold from bring-up on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Accepting the command queue's address.
    command_queue: Duration,
    /// A command.
    command: Duration,
    /// Distance of health polls.
    health_interval: Duration,
    /// Giving back pages may go so long without progress.
    reclaim: Duration,
    /// Letting go of all memory.
    tear_down: Duration,
    /// A reset of the firmware, until registers can be read again.
    firmware_reset: Duration,
}

/// A time-out word as a duration; zero, or a unit that does not exist, means that the default stays.
fn time(word: u32) -> Option<Duration> {
    timeout_word(word).filter(|&milliseconds| milliseconds > 0).map(Duration::from_millis)
}

impl Limits {
    pub(super) const fn new(config: &Config) -> Self {
        Self {
            command_queue: Duration::from_secs(2),
            command: config.command_timeout,
            health_interval: config.health_interval,
            reclaim: config.reclaim_timeout,
            tear_down: Duration::from_secs(3),
            firmware_reset: Duration::from_secs(62),
        }
    }

    pub(super) const fn command_queue(&self) -> Duration {
        self.command_queue
    }

    pub(super) const fn command(&self) -> Duration {
        self.command
    }

    pub(super) const fn health_interval(&self) -> Duration {
        self.health_interval
    }

    pub(super) const fn reclaim(&self) -> Duration {
        self.reclaim
    }

    pub(super) const fn tear_down(&self) -> Duration {
        self.tear_down
    }

    pub(super) const fn firmware_reset(&self) -> Duration {
        self.firmware_reset
    }

    /// Gives a command no more time than tear-down has.
    pub(super) fn shorten_commands(&mut self) {
        self.command = self.command.min(self.tear_down);
    }

    /// What the initialization segment says; meaningful after the command queue's address was written. Answers whether the device states
    /// times at all, those of DTOR included.
    pub(super) fn read_segment(&mut self, bar: impl Bar) -> bool {
        let queue = bar.read32(init_seg::CMD_Q_INIT_TO_OFFSET);
        if queue == 0 || queue == init_seg::LINK_DEAD {
            return false;
        }
        self.command_queue = time(queue).unwrap_or(self.command_queue);
        self.command = time(bar.read32(init_seg::CMD_EXEC_TO_OFFSET)).unwrap_or(self.command);
        true
    }

    /// What DTOR says.
    pub(super) fn read_register(&mut self, register: &[u8; DTOR_LEN]) {
        let at = |part: mlx5_prm::Part| part.of(register).first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
        let mut set = |limit: fn(&mut Self) -> &mut Duration, value: Option<Duration>| {
            if let Some(value) = value {
                *limit(self) = value;
            }
        };
        set(|limits| &mut limits.health_interval, time(at(dtor_reg::health_poll_to)));
        set(|limits| &mut limits.reclaim, time(at(dtor_reg::reclaim_pages_to)));
        set(|limits| &mut limits.tear_down, time(at(dtor_reg::tear_down_to)));
        // The bus comes back some time after the firmware.
        let reset = time(at(dtor_reg::fw_reset_to));
        let toggle = time(at(dtor_reg::pcie_toggle_to)).unwrap_or(Duration::from_secs(2));
        set(|limits| &mut limits.firmware_reset, reset.map(|reset| reset + toggle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[derive(Clone, Copy)]
    struct Words<'a>(&'a [Cell<u32>; 2]);

    #[allow(unsafe_code)]
    impl Bar for Words<'_> {
        type DoorbellRegister = crate::mmio::MmioDoorbellRegister;

        fn len(&self) -> usize {
            0x4000
        }
        fn read32(&self, offset: usize) -> u32 {
            self.0[usize::from(offset == 0xffc)].get()
        }
        unsafe fn write32(&self, _: usize, _: u32) {}
        unsafe fn doorbell_register(&self, _: usize, _: usize) -> Self::DoorbellRegister {
            unreachable!("it is only read")
        }
    }

    #[test]
    fn the_device_s_own_times_count_where_it_states_them() {
        let words = [Cell::new(0x2000_0005), Cell::new(0)];
        let default = Limits::new(&Config::DEFAULT);
        let mut limits = default;
        assert!(!limits.read_segment(Words(&words)), "nothing counts without cmd_q_init_to");
        assert_eq!(limits, default);
        words[1].set(0x4000_0001);
        assert!(limits.read_segment(Words(&words)));
        assert_eq!((limits.command_queue, limits.command), (Duration::from_secs(60), Duration::from_secs(5)));
        words[0].set(0xe000_0001);
        limits.read_segment(Words(&words));
        assert_eq!(limits.command, Duration::from_secs(5), "no such unit: what was there stays");

        let mut register = [0; DTOR_LEN];
        limits.read_register(&register);
        assert_eq!(limits.health_interval, default.health_interval);
        for (offset, word) in
            [(0x04, 0x2000_0001u32), (0x14, 500), (0x1c, 0x2000_0014), (0x28, 7_000), (0x30, 1)]
        {
            register[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
        }
        limits.read_register(&register);
        assert_eq!(limits.health_interval, Duration::from_millis(500));
        assert_eq!(limits.firmware_reset, Duration::from_secs(21), "with the time of the link");
        assert_eq!((limits.tear_down, limits.reclaim), (Duration::from_secs(7), Duration::from_millis(1)));
    }
}
