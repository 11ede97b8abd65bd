//! Link of this server's Ethernet switch to the switch of the server at `--uplink`.
//!
//! ```text
//! HCAs, network devices ── switch ── trunk ─ stream ─ cable ── switch ── HCAs, network devices
//! ```
//!
//! Both ends are ordinary ports. Frames cross as the switches forward them; frames between ports of
//! one server stay there.

use super::buffers::CableWork;
use super::cable::{Cable, unplug};
use super::stream::{Broken, Link, Stream};
use crate::planted::{self, Place};
use rdma_fabric::medium::Medium;
use rdma_fabric::ports::PortIndex;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The trunk, plugged in or not.
#[derive(Debug)]
pub struct Trunk {
    port: PortIndex,
    /// `None` while the cable is cut.
    cable: Option<Cable>,
    /// A packet has arrived at the port, or an event at the socket.
    awake: bool,
    /// The socket's events may have to change.
    touched: bool,
    work: CableWork,
}

impl Trunk {
    /// Token of the socket's events.
    pub const TOKEN: u64 = 1 << 35;

    /// Creates an unplugged trunk at a port.
    pub fn new(port: PortIndex) -> Self {
        Self { port, cable: None, awake: false, touched: false, work: CableWork::default() }
    }

    /// Returns the work for the trunk so far.
    pub const fn work(&self) -> CableWork {
        self.work
    }

    /// Plugs in the cable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn plug(&mut self, stream: Stream, epoll: &OwnedFd, now: Instant) -> std::io::Result<()> {
        let link = Link::new(stream, now)?;
        epoll::add(epoll, link.socket(), EventData::new_u64(Self::TOKEN), EventFlags::empty())?;
        (self.cable, self.awake) = (Some(Cable::new(link)), true);
        Ok(())
    }

    /// Handles readiness of the socket.
    pub fn event(&mut self) {
        self.awake = true;
        if let Some(cable) = &mut self.cable {
            cable.readable = true;
        }
    }

    /// A packet has arrived at `port`, or its link or credit has changed.
    pub fn wake_port(&mut self, port: PortIndex) {
        self.awake |= port == self.port;
    }

    /// Gives the trunk a turn later.
    pub const fn wake(&mut self) {
        self.awake = true;
    }

    /// Returns whether the trunk has work.
    pub fn is_ready(&self, instant: Instant) -> bool {
        self.cable.as_ref().is_some_and(|cable| self.awake || cable.link.deadline() <= instant)
    }

    /// Moves frames in both directions. Returns whether there is more work.
    ///
    /// # Errors
    /// The reason why the cable was just cut.
    pub fn turn(&mut self, medium: &mut Medium, now: u64, instant: Instant) -> Result<bool, Broken> {
        let Self { port, cable: Some(cable), awake, touched, work } = self else { return Ok(false) };
        (*awake, *touched) = (false, true);
        // A panic must not reach HCAs.
        let served = catch_unwind(AssertUnwindSafe(|| {
            planted::here(Place::Cable(Self::TOKEN));
            cable.read(instant, work)?;
            let served = cable.exchange(*port, medium, now, instant, work)?;
            cable.flush(instant)?;
            Ok(served)
        }));
        match served.unwrap_or(Err(Broken::Panicked)) {
            Ok(served) => {
                *awake = served.busy || served.owes;
                Ok(served.busy)
            }
            Err(broken) => {
                self.cut(medium, now);
                Err(broken)
            }
        }
    }

    /// Cuts the cable.
    pub fn cut(&mut self, medium: &mut Medium, now: u64) {
        // Closing the socket removes it from the epoll set.
        self.cable = None;
        unplug(self.port, medium, now);
    }

    /// Returns the time at which work is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.cable.as_ref().map(|cable| cable.link.deadline())
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self, epoll: &OwnedFd) {
        if let Some(cable) = self.cable.as_mut().filter(|_| std::mem::take(&mut self.touched)) {
            cable.link.follow(Self::TOKEN, epoll);
        }
    }
}
