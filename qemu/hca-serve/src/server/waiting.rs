//! Waits of the server's thread between two iterations: sockets and time limits.

use super::event_loop::EventLoop;
use super::seat::Failure;
use super::uplink::Side;
use crate::guest::memory::PATIENCE;
use crate::link::hub::Hub;
use crate::link::netdev::Netdevs;
use crate::link::spoke::Spoke;
use crate::link::stream::Broken;
use crate::link::trunk::Trunk;
use crate::planted::{self, Place};
use crate::wire::channel::Channel;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Token of the descriptor by which other threads wake this one.
pub const WAKE: u64 = 0;
/// Longest sleep. Only bounds the effect of a missed deadline.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Socket events received by one call.
const EVENTS: usize = 64;

pub fn listener_token(index: usize) -> u64 {
    1 + 2 * index as u64
}

fn seat_of(token: u64) -> usize {
    ((token - 1) / 2) as usize
}

fn client_token(index: usize) -> u64 {
    2 + 2 * index as u64
}

impl EventLoop {
    /// Returns the time until work is due without an event.
    pub fn sleep(&mut self) -> Duration {
        let deadline = self.world.next_deadline();
        let now = self.clock.now();
        let deadline = deadline.map(|at| Duration::from_nanos(at.saturating_sub(self.time_of(now))));
        let hub = self.hub.as_ref().and_then(Hub::deadline);
        let links = hub.into_iter().chain(self.netdevs.as_ref().and_then(Netdevs::deadline));
        let links = links.chain(self.trunk.as_ref().and_then(Trunk::deadline));
        let links = links.map(|deadline| deadline.saturating_duration_since(now));
        deadline.into_iter().chain(links).fold(LONGEST_SLEEP, Duration::min)
    }

    /// Returns the time until which a device's turn can wait, without its model's deadlines.
    pub(super) fn deadline_of(&self, index: usize) -> Option<Instant> {
        let seat = self.seats.get(index)?;
        let late = seat.suspended_at.map(|since| since + PATIENCE);
        let cable = self.spokes.get(index).and_then(Option::as_ref).and_then(Spoke::deadline);
        late.into_iter().chain(seat.closed_until).chain(cable).min()
    }

    /// Waits for sockets for at most `sleep`, reads the ready ones and accepts clients.
    pub fn wait(&mut self, sleep: Duration) {
        let limit = Timespec {
            tv_sec: i64::try_from(sleep.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: sleep.subsec_nanos().into(),
        };
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&limit)) else { return };
        if !sleep.is_zero() {
            self.wakeups += 1;
        }
        let mut now = self.clock.now();
        for event in events {
            let token = event.data.u64();
            let handled = catch_unwind(AssertUnwindSafe(|| {
                planted::here(Place::Event(token));
                self.handle(token, now)
            }));
            match handled {
                Ok(end) => now = end,
                Err(_) => self.fail_token(token),
            }
        }
    }

    /// Handles the event of a socket. Returns the time afterwards.
    fn handle(&mut self, token: u64, now: Instant) -> Instant {
        if token == WAKE {
            // The messages are checked anyway, so the count is ignored.
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            return now;
        }
        if Hub::owns(token) {
            if let Some(hub) = &mut self.hub {
                hub.event(token, &self.epoll, now);
            }
            return now;
        }
        if Netdevs::owns(token) {
            let Self { netdevs, world, netdev_notices, epoll, .. } = self;
            if let Some(netdevs) = netdevs {
                netdevs.event(token, epoll, &mut world.medium, now, |line| netdev_notices.tell(&line, now));
            }
            return now;
        }
        if token == Trunk::TOKEN {
            if let Some(trunk) = &mut self.trunk {
                trunk.event();
            }
            return now;
        }
        if let Some(index) = Spoke::index(token) {
            if let Some(Some(spoke)) = self.spokes.get_mut(index) {
                spoke.event();
            }
            self.world.scheduler.claim(index);
            return now;
        }
        let index = seat_of(token);
        if self.world.scheduler.is_ahead(index) {
            // Devices with less used time run first; the event remains pending.
            return now;
        }
        if token == listener_token(index) {
            self.accept(index);
        } else if let Some(seat) = self.seats.get_mut(index) {
            seat.read();
            self.world.scheduler.note_active(index, self.time_of(now));
        }
        self.follow_work();
        let end = self.clock.now();
        self.charge(index, end - now);
        self.world.scheduler.claim(index);
        end
    }

    /// Fails the device or cuts the cable of a socket whose event panicked.
    fn fail_token(&mut self, token: u64) {
        if Hub::owns(token) {
            let (now, instant) = (self.now(), self.clock.now());
            let Self { hub, world, cable_notices, .. } = self;
            if let Some(hub) = hub {
                let tell = |line: String| cable_notices.tell(&line, instant);
                hub.cut(token, &mut world.medium, now, instant, tell);
            }
        } else if Netdevs::owns(token) {
            let (now, instant) = (self.now(), self.clock.now());
            let Self { netdevs, world, netdev_notices, .. } = self;
            if let Some(netdevs) = netdevs {
                let tell = |line: String| netdev_notices.tell(&line, instant);
                netdevs.cut(token, Broken::Panicked, &mut world.medium, now, tell);
            }
        } else if token == Trunk::TOKEN {
            let (now, instant) = (self.now(), self.clock.now());
            if let Some(trunk) = &mut self.trunk {
                trunk.cut(&mut self.world.medium, now);
            }
            self.mend(Side::Switch, Broken::Panicked, instant);
        } else if token != WAKE {
            self.fail(Spoke::index(token).unwrap_or_else(|| seat_of(token)), Failure::Panic);
        }
    }

    fn accept(&mut self, index: usize) {
        let Some((seat, hca)) = self.seats.get_mut(index).zip(self.world.hca_mut(index)) else { return };
        let accepted = seat.listener.accept().and_then(|(stream, _)| Channel::new(stream));
        match accepted {
            Ok(channel) => {
                let token = EventData::new_u64(client_token(index));
                if let Err(error) = epoll::add(&self.epoll, channel.socket(), token, EventFlags::empty()) {
                    let error = std::io::Error::from(error);
                    self.tell(index, format!("cannot serve a connection: {error}"));
                    return;
                }
                seat.connect(channel, hca);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                seat.closed_until = Some(self.clock.now() + Duration::from_millis(200));
                self.tell(index, format!("cannot accept a connection: {error}"));
            }
        }
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self) {
        let now = self.clock.now();
        if let Some(hub) = &mut self.hub {
            hub.follow_interests(&self.epoll, now);
        }
        if let Some(netdevs) = &mut self.netdevs {
            netdevs.follow_interests(&self.epoll, now);
        }
        if let Some(trunk) = &mut self.trunk {
            trunk.follow_interests(&self.epoll);
        }
        while let Some(index) = self.touched.first_in(0..self.seats.len()) {
            self.touched.remove(index);
            if let Some(Some(spoke)) = self.spokes.get_mut(index) {
                spoke.follow_interests(index, &self.epoll);
            }
            if catch_unwind(AssertUnwindSafe(|| self.follow_seat(index, now))).is_err() {
                self.fail(index, Failure::Panic);
            }
        }
    }

    fn follow_seat(&mut self, index: usize, now: Instant) {
        planted::here(Place::Interest(index));
        let Some(seat) = self.seats.get_mut(index) else { return };
        if seat.closed_until.is_some_and(|until| until <= now) {
            seat.closed_until = None;
        }
        let listening = !seat.is_connected() && seat.closed_until.is_none();
        if listening != seat.listening {
            let flags = if listening { EventFlags::IN } else { EventFlags::empty() };
            let token = EventData::new_u64(listener_token(index));
            if epoll::modify(&self.epoll, &seat.listener, token, flags).is_ok() {
                seat.listening = listening;
            }
        }
        let Some(wanted) = seat.wanted().filter(|wanted| *wanted != seat.interest) else { return };
        let token = EventData::new_u64(client_token(index));
        let modified = seat.with_socket(|socket| epoll::modify(&self.epoll, socket.as_fd(), token, wanted));
        if let Some(Ok(())) = modified {
            seat.interest = wanted;
        }
    }
}
