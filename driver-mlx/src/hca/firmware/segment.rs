//! The initialization segment before there is a command queue.

use super::limits::Limits;
use super::log::Log;
use super::wait::{ABSENCE_TIMEOUT, Wait};
use crate::config::Config;
use crate::error::{Error, Step};
use crate::platform::{Bar, Platform};
use crate::types::Duration;
use mlx5_prm::init_seg::{self, initial_seg};
use mlx5_prm::later;

/// As [`Config::initializing_timeout`], of firmware that starts again after a fault.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(7200);

/// Facts in the initialization segment that hold without a command queue.
pub(super) struct InitialSegment {
    pub(super) version: (u16, u16, u16),
    pub(super) embedded_cpu: bool,
    pub(super) log_size: u32,
    pub(super) log_stride: u32,
}

impl InitialSegment {
    /// Waits until a reset that is under way is over and firmware has started; the steps from [`Step::Presence`] to
    /// [`Step::CommandQueue`].
    pub(super) fn wait<P: Platform>(
        platform: &P,
        config: &Config,
        limits: &Limits,
        log: &mut Log<'_>,
    ) -> Result<Self, Error> {
        let bar = platform.bar();
        let absence = if config.recovery { limits.firmware_reset() } else { ABSENCE_TIMEOUT };
        let reset = Wait::new(Step::Presence, limits.firmware_reset(), absence);
        reset.until_reset_is_over(platform)?;
        log.enter(platform.now(), Step::Initializing);
        let limit = if config.recovery { RECOVERY_TIMEOUT } else { config.initializing_timeout };
        Wait::new(Step::Initializing, limit, absence).until_initialized(platform)?;
        let version = bar.read32(init_seg::FW_REV_OFFSET);
        let revision = bar.read32(init_seg::CMD_INTERFACE_REV_OFFSET);
        if revision >> 16 != init_seg::CMD_INTERFACE_REV {
            return Err(Error::InterfaceRevision((revision >> 16) as u16));
        }
        // Boot code and a driver that stopped the device leave the interface disabled. `nic_interface`
        // is meaningful only after ENABLE_HCA.
        let embedded_cpu = bar.read32(init_seg::INITIALIZING_OFFSET) & later::EMBEDDED_CPU != 0;
        log.enter(platform.now(), Step::CommandQueue);
        let word = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET).to_be_bytes();
        let mut segment = [0; 0x18];
        segment[init_seg::CMDQ_ADDR_L_SZ_OFFSET..].copy_from_slice(&word);
        Ok(Self {
            version: (version as u16, (version >> 16) as u16, revision as u16),
            embedded_cpu,
            log_size: initial_seg::log_cmdq_size.get32(&segment),
            log_stride: initial_seg::log_cmdq_stride.get32(&segment),
        })
    }
}
