//! The device and its firmware: registers, command queue, asynchronous events, health, reset.

mod access;
mod device_state;
mod events;
mod exec;
mod function;
mod health;
mod limits;
mod log;
mod pages;
mod reset;
mod reset_lock;
mod segment;
mod start;
mod stop;
mod wait;

pub use device_state::{DeviceState, HealthBuffer};
pub use log::StepTime;
pub use stop::emergency_stop;

pub(super) use access::{access_register, optional};
pub(super) use log::Log;

use super::memory::{Memory, Usable};
use crate::caps::Capabilities;
use crate::cmd::{CommandQueue, MAILBOX_BYTES};
use crate::config::Config;
use crate::eq::Eq;
use crate::error::{Error, FatalCause, Step};
use crate::generation::{Age, Generation, Object};
use crate::platform::{Bar, Platform};
use crate::types::Instant;
use health::Health;
use limits::Limits;
use mlx5_prm::init_seg;
use segment::InitialSegment;
use wait::hand_over_queue;

/// The driver's side of one device's firmware.
///
/// Commands take the DMA region's [`Memory`] as an argument, because firmware may request pages
/// while a command runs.
pub(super) struct Firmware<'s, P: Platform> {
    platform: P,
    config: Config,
    cmd: CommandQueue,
    /// Taken while it is drained.
    async_eq: Option<Eq>,
    log: Log<'s>,
    caps: Capabilities,
    fatal: Option<FatalCause>,
    /// Objects of earlier generations ended with a recovery.
    generation: Generation,
    health: Health,
    limits: Limits,
    identity: Identity,
    /// The device has the address of the command queue, and so may access the region.
    attached: bool,
    /// `attached`, in storage that survives this value.
    region_in_use: &'s mut bool,
    /// ENABLE_HCA and INIT_HCA succeeded and have not been undone.
    enabled: bool,
    initialized: bool,
    /// Pages that firmware required before SET_HCA_CAP and before INIT_HCA.
    start_pages: [u32; 2],
    /// Foreign memory was unmapped because bus mastering was off.
    gave_back_foreign: bool,
}

/// Facts that firmware states once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identity {
    /// Major, minor, sub-minor.
    version: (u16, u16, u16),
    psid: [u8; 16],
    /// Interface step sequence.
    issi: u8,
    /// This side is a BlueField's own processor.
    embedded_cpu: bool,
}

impl Identity {
    pub(super) const fn version(&self) -> (u16, u16, u16) {
        self.version
    }

    pub(super) const fn psid(&self) -> &[u8; 16] {
        &self.psid
    }

    pub(super) const fn issi(&self) -> u8 {
        self.issi
    }
}

impl<'s, P: Platform> Firmware<'s, P> {
    /// Waits until firmware has started, and hands it a command queue.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(super) fn attach(
        platform: P,
        config: &Config,
        memory: &mut Memory<'_>,
        mut log: Log<'s>,
        region_in_use: &'s mut bool,
    ) -> Result<Self, Error> {
        if platform.bar().len() < init_seg::INIT_SEG_LEN {
            return Err(Error::InvalidArgument("BAR0 length"));
        }
        let mut limits = Limits::new(config);
        let segment = InitialSegment::wait(&platform, config, &limits, &mut log)?;
        let InitialSegment { version, embedded_cpu, log_size, log_stride } = segment;
        let usable = Usable::unless(None)?;
        let [page, mailboxes] =
            [memory.take_zeroed(usable, 4096)?, memory.take_zeroed(usable, MAILBOX_BYTES)?];
        let cmd = CommandQueue::new(page, mailboxes, log_size, log_stride)
            .ok_or(Error::CommandQueue { log_size: log_size as u8, log_stride: log_stride as u8 })?;
        *region_in_use = true;
        hand_over_queue(&platform, cmd.device_address(), &mut limits)?;
        memory.set_reserve(config.firmware_reserve, 0);
        Ok(Self {
            platform,
            config: *config,
            cmd,
            async_eq: None,
            log,
            caps: Capabilities::default(),
            fatal: None,
            generation: memory.first_generation(),
            health: Health::default(),
            limits,
            identity: Identity { version, embedded_cpu, ..Identity::default() },
            attached: true,
            region_in_use,
            enabled: false,
            initialized: false,
            start_pages: [0; 2],
            gave_back_foreign: false,
        })
    }

    pub(super) fn platform(&self) -> &P {
        &self.platform
    }

    pub(super) fn bar(&self) -> P::Bar {
        self.platform.bar()
    }

    pub(super) fn now(&self) -> Instant {
        self.platform.now()
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn caps(&self) -> &Capabilities {
        &self.caps
    }

    pub(super) fn start_pages(&self) -> [u32; 2] {
        self.start_pages
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn log(&self) -> &Log<'s> {
        &self.log
    }

    pub(super) fn log_mut(&mut self) -> &mut Log<'s> {
        &mut self.log
    }

    pub(super) fn step(&self) -> Step {
        self.log.step()
    }

    pub(super) fn fatal(&self) -> Option<FatalCause> {
        self.fatal
    }

    /// # Errors
    /// [`Error::Fatal`] if the device has failed.
    pub(super) fn usable(&self) -> Result<Usable, Error> {
        Usable::unless(self.fatal)
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the device's number of an object, for a command.
    ///
    /// # Errors
    /// [`Error::Stale`] for an object from before a recovery, [`Error::NotAllocated`] for one of
    /// another HCA.
    pub(super) fn resolve<O: Object>(&self, object: &O) -> Result<O::Number, Error> {
        match object.made(self.generation) {
            Age::Current => Ok(object.name()),
            Age::Stale => Err(Error::Stale),
            Age::Foreign => Err(Error::NotAllocated),
        }
    }

    /// Records whether the device may access the region.
    fn set_attached(&mut self, attached: bool) {
        self.attached = attached;
        *self.region_in_use = attached;
    }
}
