//! HCAs served step by step by the caller: without a thread, and on a clock that counts work.

use super::clock::{Clock, Counted};
use super::event_loop::{Activity, EventLoop};
use super::{Options, Prepared};
use crate::error::{Error, Result};
use hca_model::world::World;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Served HCAs that advance only in [`step`](Self::step). Time is counted: a step of a device, a
/// message or a system call takes its approximate real duration, but always the same. An idle clock
/// jumps to the next deadline. Therefore the service of a client next to a busy one depends on the
/// server only, not on the machine.
pub struct Stepped {
    event_loop: EventLoop,
    sockets: Vec<PathBuf>,
}

impl Stepped {
    /// Serves the HCAs of `options`. Other servers can join at `listen`, but `uplink` must be `None`,
    /// because a thread reconnects its cables.
    ///
    /// # Errors
    /// As [`serve`](super::serve), or `uplink` is given.
    pub fn new(mut options: Options) -> Result<Self> {
        if options.uplink.is_some() {
            let text = "a server that is moved step by step has its own fabric: give no uplink";
            return Err(Error::Serve(text.into()));
        }
        let lines = Arc::new(AtomicU64::new(0));
        let (told, log) = (Arc::clone(&lines), Arc::clone(&options.log));
        options.log = Arc::new(move |node, entry| {
            told.fetch_add(1, Ordering::Relaxed);
            log(node, entry);
        });
        let sockets = options.sockets.clone();
        let prepared = Prepared::new(options)?;
        let event_loop = prepared
            .event_loop(Clock::Counted(Counted::new(lines)))
            .map_err(|error| Error::Serve(format!("cannot start to serve: {error}")))?;
        Ok(Self { event_loop, sockets })
    }

    /// Returns the sockets, in the order of the nodes.
    #[must_use]
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Receives the clients' messages and does a bounded amount of work for each, like the server's
    /// thread between two sleeps.
    pub fn step(&mut self) {
        self.step_until(Duration::MAX);
    }

    /// Like [`step`](Self::step), but an idle clock does not jump beyond the counted time `limit`.
    pub fn step_until(&mut self, limit: Duration) {
        self.event_loop.step(limit);
    }

    /// Returns the counted time of all work so far.
    #[must_use]
    pub fn worked(&self) -> Duration {
        self.event_loop.clock.worked()
    }

    /// Returns the counted time since the start.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.event_loop.now())
    }

    /// Returns all devices and their fabric.
    pub fn world(&mut self) -> &mut World {
        &mut self.event_loop.world
    }

    /// Returns the activity so far.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.event_loop.activity()
    }
}
