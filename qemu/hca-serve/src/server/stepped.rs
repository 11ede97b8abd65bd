//! HCAs served by whoever calls, step by step: without a thread, and on a clock that counts what is done.

use super::clock::{Clock, Counted};
use super::event_loop::{Activity, EventLoop};
use super::{Options, Prepared};
use crate::error::{Error, Result};
use hca_model::world::World;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Served HCAs that move only in [`step`](Self::step). Time is counted: a step of a device, a message, a system call last about as long as
/// they do on a clock, but always the same; where nothing is to be done, time jumps to the next deadline. So what one client gets while
/// another one is busy depends on the server alone, not on the machine that it runs on.
pub struct Stepped {
    event_loop: EventLoop,
    sockets: Vec<PathBuf>,
}

impl Stepped {
    /// HCAs as `options` have them. Servers that are joined need threads: there is neither `listen` nor `uplink` here.
    ///
    /// # Errors
    /// As [`serve`](super::serve); or the options name another server.
    pub fn new(mut options: Options) -> Result<Self> {
        if options.listen.is_some() || options.uplink.is_some() {
            return Err(Error::Serve(
                "a server that is moved step by step cannot be joined to another".into(),
            ));
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

    /// The sockets, in the order of the nodes.
    #[must_use]
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Takes what clients sent and does a bounded amount of work for each, as the server's thread does between two sleeps.
    pub fn step(&mut self) {
        self.event_loop.step();
    }

    /// The time spent on work so far, as it is counted.
    #[must_use]
    pub fn worked(&self) -> Duration {
        self.event_loop.clock.worked()
    }

    /// The time since the beginning, as it is counted.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.event_loop.now())
    }

    /// All devices and their fabric.
    pub fn world(&mut self) -> &mut World {
        &mut self.event_loop.world
    }

    /// What was done so far.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.event_loop.activity()
    }
}
