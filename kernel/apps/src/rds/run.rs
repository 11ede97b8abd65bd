//! A node: RDS, and its work.

use core::ops::ControlFlow;

use dat_nostd::{Adapter, Duration, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Rds, RdsConfig};

use super::echo::Echo;
use super::ping::Ping;
use super::work::{Work, stop};
use super::{AppError, Config, InCall, MAX_LEN, Mode, Outcome, Report, Settings, Storage};
use crate::Status;

/// A node in the middle of its work.
pub struct Node<'s, W> {
    stall_timeout: Duration,
    rds: Rds<'s>,
    buffer: &'s mut [u8; MAX_LEN],
    work: W,
    last_moved: u64,
    last_moved_at: Instant,
}

impl<'s, W: Work> Node<'s, W> {
    /// Starts RDS, and the work on it. Peers may send from then on.
    ///
    /// # Errors
    /// [`AppError::Rds`] if the adapter lacks memory or objects, and those of `start`.
    pub fn with<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        storage: &'s mut Storage,
        settings: Settings,
        start: impl FnOnce(&mut Adapter<'_, P>, &mut Rds<'s>) -> Result<W, AppError>,
    ) -> Result<Self, AppError> {
        let Settings { random, generation, stall_timeout } = settings;
        let last_moved_at = adapter.now();
        let config = RdsConfig { send_frames: 1024, seed: random, ..RdsConfig::new(generation) };
        let mut rds = Rds::start(adapter, storage.rds.parts(), config).in_call("rds start")?;
        match start(adapter, &mut rds) {
            Ok(work) => {
                let buffer = &mut storage.buffer;
                Ok(Self { stall_timeout, rds, buffer, work, last_moved: 0, last_moved_at })
            }
            Err(error) => {
                // The reason is in `error`.
                let _ = stop(rds, adapter);
                Err(error)
            }
        }
    }

    /// Moves on. The caller polls the adapter before.
    ///
    /// # Errors
    /// [`AppError`]: over without success.
    pub fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
    ) -> Result<Status, AppError> {
        let Self { rds, buffer, work, .. } = self;
        let rds_wake = rds.poll(adapter, now);
        let ControlFlow::Continue(own) = work.poll(adapter, rds, buffer, now)? else {
            return Ok(ControlFlow::Break(()));
        };
        let wake = own.earliest(rds_wake);
        let Some(moved) = work.moved() else { return Ok(ControlFlow::Continue(wake)) };
        if moved != self.last_moved {
            (self.last_moved, self.last_moved_at) = (moved, now);
        }
        // What waits for its own time does not hang.
        if own != Wake::Idle {
            return Ok(ControlFlow::Continue(wake));
        }
        let stalls_at = self.last_moved_at + self.stall_timeout;
        if now >= stalls_at {
            let waited_ms = (now - self.last_moved_at).as_millis() as u64;
            return Err(AppError::Stalled { moved, waited_ms });
        }
        Ok(ControlFlow::Continue(wake.earliest(Wake::by(stalls_at))))
    }

    /// The adapter has been recovered: RDS carries on, and with it what exchanges messages. What has offered memory to its peer does not.
    ///
    /// # Errors
    /// [`AppError::Rds`] if the adapter has failed again.
    pub fn adapter_recovered<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), AppError> {
        self.rds.adapter_recovered(adapter).in_call("rds adapter_recovered")
    }

    /// Returns the work, which has a report.
    #[must_use]
    pub const fn work(&self) -> &W {
        &self.work
    }

    /// The work, to give it more.
    #[must_use]
    pub const fn work_mut(&mut self) -> &mut W {
        &mut self.work
    }

    /// The node's RDS, for whatever it tells of itself.
    #[must_use]
    pub const fn rds(&mut self) -> &mut Rds<'s> {
        &mut self.rds
    }

    /// Closes the sockets and ends RDS.
    ///
    /// # Errors
    /// [`AppError::Rds`] if something could not be freed.
    pub fn close<P: Platform>(mut self, adapter: &mut Adapter<'_, P>) -> Result<(), AppError> {
        let closed = self.work.close(adapter, &mut self.rds);
        let stopped = stop(self.rds, adapter).in_call("rds stop");
        closed.and(stopped)
    }
}

/// The work of a [`Mode`].
pub enum ModeWork {
    /// Of [`Mode::Ping`].
    Ping(Ping),
    /// Of [`Mode::Echo`].
    Echo(Echo),
}

impl Work for ModeWork {
    fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        rds: &mut Rds<'_>,
        buffer: &mut [u8; MAX_LEN],
        now: Instant,
    ) -> Result<Status, AppError> {
        match self {
            Self::Ping(ping) => ping.poll(adapter, rds, now),
            Self::Echo(echo) => echo.poll(adapter, rds, buffer, now),
        }
    }

    fn moved(&self) -> Option<u64> {
        match self {
            Self::Ping(ping) => Some(ping.moved()),
            Self::Echo(_) => None,
        }
    }

    fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>, rds: &mut Rds<'_>) -> Result<(), AppError> {
        match self {
            Self::Ping(ping) => ping.close(adapter, rds),
            Self::Echo(echo) => echo.close(adapter, rds),
        }
    }
}

/// A node of `app=rds`.
pub type RdsApp<'s> = Node<'s, ModeWork>;

impl<'s> RdsApp<'s> {
    /// Starts RDS and binds the sockets.
    ///
    /// # Errors
    /// [`AppError::Rds`] if the adapter lacks memory or objects.
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        storage: &'s mut Storage,
        config: Config,
    ) -> Result<Self, AppError> {
        let peer = config.peer;
        Self::with(adapter, storage, config.settings, |adapter, rds| match config.mode {
            Mode::Ping { count, interval } => {
                Ping::start(adapter, rds, peer, count, interval).map(ModeWork::Ping)
            }
            Mode::Echo => Echo::start(adapter, rds).map(ModeWork::Echo),
        })
    }

    /// How it went so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let report = match &self.work {
            ModeWork::Ping(ping) => Report::Ping(ping.report()),
            ModeWork::Echo(echo) => Report::Echo(echo.report()),
        };
        Outcome { report, counters: *self.rds.counters() }
    }
}
