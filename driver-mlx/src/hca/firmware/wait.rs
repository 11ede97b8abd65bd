//! Waits of bring-up: for a device that is away for a moment, for a reset's end, for firmware's start.

use super::device_state::{health_syndrome, interface_state, is_away};
use super::limits::Limits;
use crate::control;
use crate::error::{Error, Step};
use crate::platform::{Bar, Platform};
use crate::types::Duration;
use mlx5_prm::init_seg;
use mlx5_prm::value::NicInterface;

/// Distance of looks at `initializing`.
const INITIALIZING_POLL: Duration = Duration::from_millis(2);
/// How long registers may read as all ones before the device counts as gone: a link that is being retrained.
pub(super) const ABSENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Tells the device where its command queue is, and waits until it has taken that in.
pub(super) fn hand_over_queue<P: Platform>(
    platform: &P,
    address: u64,
    limits: &mut Limits,
) -> Result<(), Error> {
    let bar = platform.bar();
    control::write32(bar, init_seg::CMDQ_ADDR_H_OFFSET, (address >> 32) as u32);
    control::write32(bar, init_seg::CMDQ_ADDR_L_SZ_OFFSET, address as u32);
    limits.read_segment(bar);
    Wait::new(Step::CommandQueue, limits.command_queue(), ABSENCE_TIMEOUT).until_initialized(platform)
}

/// A wait for something that registers say.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    step: Step,
    limit: Duration,
    absence: Duration,
}

impl Wait {
    /// A wait of `step` for `limit`, during which the device may be away for `absence` without a break.
    pub(super) const fn new(step: Step, limit: Duration, absence: Duration) -> Self {
        Self { step, limit, absence }
    }

    /// Waits until registers can be read; as long as they cannot, it may be because configuration space was reset.
    pub(super) fn until_restored<P: Platform>(self, platform: &P) -> Result<(), Error> {
        self.until(platform, |bar| {
            if is_away(bar) {
                control::restore_function(platform);
            }
            true
        })
    }

    /// Waits until `initializing` is clear.
    pub(super) fn until_initialized<P: Platform>(self, platform: &P) -> Result<(), Error> {
        let clear = |bar: P::Bar| bar.read32(init_seg::INITIALIZING_OFFSET) & init_seg::INITIALIZING == 0;
        self.until(platform, clear)
    }

    /// Waits until `nic_interface` says that the function is enabled.
    pub(super) fn until_enabled<P: Platform>(self, platform: &P) -> Result<(), Error> {
        let enabled = |bar: P::Bar| interface_state(bar) == NicInterface::FULL_DRIVER.0;
        self.until(platform, enabled).map_err(|error| match error {
            Error::Timeout { .. } => Error::NicInterface(interface_state(platform.bar())),
            error => error,
        })
    }

    /// Waits until `nic_interface` is not "in reset": one that somebody else began comes to its end.
    pub(super) fn until_reset_is_over<P: Platform>(self, platform: &P) -> Result<(), Error> {
        let over = |bar: P::Bar| interface_state(bar) != NicInterface::SW_RESET.0;
        self.until(platform, over).map_err(|error| match error {
            Error::Timeout { .. } => Error::NicInterface(NicInterface::SW_RESET.0),
            error => error,
        })
    }

    fn until<P: Platform>(self, platform: &P, ready: impl Fn(P::Bar) -> bool) -> Result<(), Error> {
        let bar = platform.bar();
        let began = platform.now();
        let mut away_since = None;
        loop {
            // A device that is away reads as all ones, whatever is asked.
            let ready = ready(bar) && !is_away(bar);
            if ready {
                return Ok(());
            }
            let now = platform.now();
            let waited = now - began;
            if is_away(bar) {
                if now - *away_since.get_or_insert(now) >= self.absence {
                    return Err(Error::NotPresent);
                }
            } else {
                away_since = None;
            }
            if waited >= self.limit {
                return Err(Error::Timeout {
                    step: self.step,
                    opcode: None,
                    waited_ms: waited.as_millis() as u64,
                    syndrome: health_syndrome(bar),
                });
            }
            platform.idle(now + INITIALIZING_POLL);
        }
    }
}
