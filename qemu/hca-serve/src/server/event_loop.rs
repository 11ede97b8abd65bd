//! The server's main thread, which receives the clients' messages, runs all devices and the fabric,
//! and replies.
//!
//! The thread sleeps until a socket is ready, a request arrives, or a deadline of the fabric or a
//! device passes. A doorbell costs one wake-up: message, device, fabric and interrupt follow
//! without a thread switch. An idle server never polls, and idle devices cost nothing. Every wait
//! for a client has a limit, and each device gets its share of the thread's time
//! ([`hca_model::scheduler`]).

use super::clock::{Clock, Done};
use super::seat::{Failure, Seat, Turn, Work};
use super::shares::Shares;
use super::state::{EthernetSummary, HcaState, Summary};
use super::uplink::{Side, Uplink};
use super::waiting::{WAKE, listener_token};
use crate::link::hub::Hub;
use crate::link::netdev::Netdevs;
use crate::link::notices::Notices;
use crate::link::spoke::Spoke;
use crate::link::trunk::Trunk;
use crate::planted::{self, Place};
use crate::server::options::{LogSink, NoticeSink};
use crate::wire::channel::Ended;
use hca_model::Hca;
use hca_model::log::Subject;
use hca_model::scheduler::Slot;
use hca_model::world::World;
use rdma_fabric::agenda::ReadySet;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Work for the server's thread.
type Task = Box<dyn FnOnce(&mut EventLoop) + Send>;

/// Request to the server's thread.
pub enum Message {
    Task(Task),
    /// Stop and reply with a summary.
    Stop(SyncSender<Summary>),
}

/// Time until a device without credit is looked at again, in nanoseconds, if no credit returns.
const STALL: u64 = 200_000;

/// Activity of the server's thread so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Number of wake-ups.
    pub wakeups: u64,
    /// Iterations.
    pub turns: u64,
    /// Turns of devices.
    pub visits: u64,
    /// Work by device.
    pub clients: Vec<Work>,
}

/// State of the server's thread.
pub struct EventLoop {
    pub world: World,
    pub seats: Vec<Seat>,
    pub epoll: OwnedFd,
    pub wake: Arc<OwnedFd>,
    pub log: LogSink,
    pub notices: NoticeSink,
    pub file_io: bool,
    pub clock: Clock,
    started: Instant,
    pub(super) wakeups: u64,
    turns: u64,
    /// Devices whose polls are suspended.
    suspended: ReadySet,
    /// Devices that had a turn since their interests were updated.
    pub(super) touched: ReadySet,
    panics: u64,
    /// Steps of devices that have been replaced.
    past_steps: u64,
    /// Time that cables may use.
    pub(super) shares: Shares,
    /// Lines about cables of other servers, and of network devices.
    pub(super) cable_notices: Notices,
    pub(super) netdev_notices: Notices,
    /// Cables of remote HCAs.
    pub hub: Option<Hub>,
    /// Cables of guests' ordinary network devices.
    pub netdevs: Option<Netdevs>,
    /// Cables to a remote fabric, in the order of the seats: `None` for an Ethernet HCA. Empty with a
    /// local fabric.
    pub spokes: Vec<Option<Spoke>>,
    /// Cable of the local Ethernet switch to a remote one.
    pub trunk: Option<Trunk>,
    /// Reconnects cut cables.
    pub uplink: Option<Uplink>,
    /// Request that waits until no poll is suspended, because it may need every HCA. Meanwhile no
    /// poll that could be suspended begins.
    waiting: Option<Message>,
}

impl EventLoop {
    /// Creates the event loop with its seats, cables and fabric.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(
        world: World,
        seats: Vec<Seat>,
        wake: Arc<OwnedFd>,
        log: LogSink,
        notices: NoticeSink,
        file_io: bool,
        clock: Clock,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        for (index, seat) in seats.iter().enumerate() {
            let token = EventData::new_u64(listener_token(index));
            epoll::add(&epoll, &seat.listener, token, EventFlags::empty())?;
        }
        let started = clock.now();
        let (wakeups, turns, panics, past_steps) = (0, 0, 0, 0);
        let (hub, netdevs, spokes, trunk, uplink) = (None, None, Vec::new(), None, None);
        let [cable_notices, netdev_notices] = [(); 2].map(|()| Notices::new(Arc::clone(&notices)));
        Ok(Self {
            world,
            seats,
            epoll,
            wake,
            log,
            notices,
            file_io,
            clock,
            started,
            wakeups,
            turns,
            suspended: ReadySet::default(),
            touched: ReadySet::default(),
            panics,
            past_steps,
            shares: Shares::default(),
            cable_notices,
            netdev_notices,
            hub,
            netdevs,
            spokes,
            trunk,
            uplink,
            waiting: None,
        })
    }

    /// Returns the nanoseconds since the start, which is the model's time.
    pub fn now(&self) -> u64 {
        self.time_of(self.clock.now())
    }

    /// Returns the model's time of an instant.
    pub(super) fn time_of(&self, instant: Instant) -> u64 {
        nanoseconds(instant.saturating_duration_since(self.started))
    }

    /// Serves until a stop request arrives.
    pub fn run(mut self, messages: &Receiver<Message>) {
        loop {
            while let Some(message) = self.next_request(messages) {
                match message {
                    Message::Task(task) => {
                        let outcome = catch_unwind(AssertUnwindSafe(|| task(&mut self)));
                        if outcome.is_err() {
                            (self.notices)("a request failed: please report this");
                        }
                        self.world.scheduler.claim_all();
                    }
                    Message::Stop(answer) => {
                        let summary = self.summary();
                        // Remove the sockets before replying.
                        drop(self);
                        let _ = answer.send(summary);
                        return;
                    }
                }
            }
            let more = self.turn() | (self.waiting.is_some() && !self.is_suspended());
            self.follow_interests();
            let sleep = if more { Duration::ZERO } else { self.sleep() };
            self.wait(sleep);
        }
    }

    /// Returns whether a poll of an HCA is suspended.
    fn is_suspended(&self) -> bool {
        self.suspended.first_in(0..self.seats.len()).is_some()
    }

    /// Follows whether the poll of `index` is suspended.
    fn follow_suspension(&self, index: usize) {
        match self.seats.get(index).is_some_and(|seat| seat.suspended_at.is_some()) {
            true => self.suspended.insert(index),
            false => self.suspended.remove(index),
        }
    }

    /// Returns the next request, once no poll is suspended. A suspension lasts 1 s at most.
    fn next_request(&mut self, messages: &Receiver<Message>) -> Option<Message> {
        if self.waiting.is_none() {
            self.waiting = messages.try_recv().ok();
        }
        if self.is_suspended() { None } else { self.waiting.take() }
    }

    /// Runs one iteration of [`run`](Self::run) without sleeping. An idle counted clock jumps to
    /// the next deadline, but not beyond `limit` since the start.
    pub fn step(&mut self, limit: Duration) {
        self.wait(Duration::ZERO);
        self.follow_work();
        let more = self.turn();
        self.follow_interests();
        if !more {
            let sleep = self.sleep();
            self.clock.pass(sleep.min(limit.saturating_sub(Duration::from_nanos(self.now()))));
        }
    }

    /// Advances a counted clock by the work done.
    #[inline]
    pub(super) fn follow_work(&mut self) {
        let Self { clock, world, seats, hub, netdevs, trunk, past_steps, .. } = self;
        clock.follow(|| {
            let mut cables = hub.as_ref().map(Hub::work).unwrap_or_default();
            cables += netdevs.as_ref().map(Netdevs::work).unwrap_or_default();
            cables += trunk.as_ref().map(Trunk::work).unwrap_or_default();
            let steps = *past_steps + cables.steps + world.medium.owed();
            let mut done = Done { steps, messages: cables.frames, reads: cables.reads, ..Done::default() };
            for node in world.nodes() {
                done.steps += node.hca.meter().steps();
                done.refusals += node.hca.log().refusals();
            }
            for seat in seats {
                seat.count(&mut done);
            }
            done
        });
    }

    /// Processes messages, devices and fabric, with a bounded amount of work. Returns whether there
    /// is more.
    fn turn(&mut self) -> bool {
        self.turns += 1;
        let now = self.now();
        let mut more = self.guarded_fabric(now);
        more |= self.serve_cables(now);
        // The device with the first turn does not pay for fabric and cables.
        self.follow_work();
        let mut instant = self.clock.now();
        let mut longest = Duration::ZERO;
        self.world.begin_round(now);
        while let Some(slot) = self.world.next_slot(now) {
            match slot {
                Slot::Waits(index) => self.world.deliver(index, now),
                Slot::Turn(index) => {
                    self.serve_seat(index, now, instant);
                    self.follow_work();
                    let end = self.clock.now();
                    self.charge(index, end - instant);
                    longest = longest.max(end - instant);
                    instant = end;
                }
            }
        }
        self.shares.pass(longest);
        more |= self.guarded_fabric(now);
        self.follow_work();
        more | self.world.scheduler.has_work() | self.world.has_other_ports()
    }

    /// Charges `time` of the server to the device.
    pub(super) fn charge(&mut self, index: usize, time: Duration) {
        let time = nanoseconds(time);
        self.world.scheduler.charge(index, time);
        if let Some(seat) = self.seats.get_mut(index) {
            seat.charge(time);
        }
    }

    fn guarded_fabric(&mut self, now: u64) -> bool {
        let medium = &mut self.world.medium;
        match catch_unwind(AssertUnwindSafe(|| medium.poll(now))) {
            Ok(()) => medium.is_due(now),
            Err(_) => {
                self.panics += 1;
                if self.panics.is_power_of_two() {
                    (self.notices)("the fabric failed at a packet: please report this");
                }
                false
            }
        }
    }

    /// Processes a seat's messages and its device's work.
    fn serve_seat(&mut self, index: usize, now: u64, instant: Instant) {
        self.touched.insert(index);
        if self.seats.get_mut(index).is_some_and(Seat::begin_turn) {
            // At a peer's request.
            self.fail(index, Failure::Panic);
        }
        // A device with active peers takes small steps, so that no peer waits long.
        let contended = self.world.scheduler.is_contended(index, now);
        let (world, seats, file_io) = (&mut self.world, &mut self.seats, self.file_io);
        let spoke = self.spokes.get_mut(index).and_then(Option::as_mut);
        let requested = self.waiting.is_some();
        let mut cut = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let Some((seat, hca)) = seats.get_mut(index).zip(world.running(index)) else {
                return (Turn::default(), Ok(false));
            };
            planted::here(Place::Turn(index));
            hca.show_timer(now);
            let (turn, more) = match hca.is_lent() {
                true => (Turn::default(), seat.serve_registers()),
                false => (seat.take_messages(hca, file_io, contended, instant), false),
            };
            let detached = hca.is_lent() || seat.guest.memory.is_private();
            if detached && !hca.is_lent() && requested {
                return (turn, Ok(false));
            }
            let polled = if let Some(spoke) = spoke {
                let (polled, busy, broken) =
                    spoke.turn(hca, now, instant, |hca, wire| seat.poll(hca, now, instant, wire));
                cut = broken;
                polled.unwrap_or(Ok(false)).map(|more| more | busy)
            } else if detached {
                let (polled, busy) =
                    world.run_with(index, now, |hca, wire| seat.poll(hca, now, instant, wire));
                polled.unwrap_or(Ok(false)).map(|more| more | busy)
            } else {
                // A device also accesses the memory of other guests, if its requests address them.
                Ok(world.run(index, now, seats))
            };
            (turn, polled.map(|busy| busy | more))
        }));
        if let Some(broken) = cut {
            self.mend(Side::Hca(index), broken, instant);
        }
        let (mut more, failure) = match outcome {
            Ok((turn, more)) => {
                for remark in turn.remarks {
                    self.tell(index, remark.to_string());
                }
                if let Some(ended) = turn.ended {
                    return self.end_connection(index, ended);
                }
                (more.unwrap_or(false), more.err())
            }
            Err(_) => (false, Some(Failure::Panic)),
        };
        let Some(seat) = self.seats.get_mut(index) else { return };
        let failure = failure.or_else(|| seat.trouble(self.clock.now()));
        if let Some(failure) = failure {
            self.fail(index, failure);
            more = true;
        }
        self.follow_suspension(index);
        if more {
            self.world.scheduler.note_active(index, now);
        }
        let waits = !self.world.has_credit(index, now);
        let deferred = self.seats.get(index).is_some_and(|seat| seat.deferred);
        let wake = self.deadline_of(index).map(|deadline| self.time_of(deadline));
        let wake = wake.into_iter().chain(waits.then(|| now.saturating_add(STALL))).min();
        // The scheduler also wakes a device when its credit returns.
        self.world.end_turn(index, (more && !waits) || deferred, wake);
    }

    fn end_connection(&mut self, index: usize, ended: Ended) {
        if ended != Ended::Closed {
            self.tell(index, format!("connection {ended}"));
        }
        self.recall(index);
        if let (Some(seat), Some(hca)) = (self.seats.get_mut(index), self.world.hca_mut(index)) {
            // Closing the socket removes it from the epoll set.
            seat.disconnect(hca);
        }
    }

    /// Ends a suspended poll of `index`, so that its device is in place.
    fn recall(&mut self, index: usize) {
        let now = self.clock.now();
        let parts = self.seats.get_mut(index).zip(self.world.hca_mut(index));
        if let Some(Err(failure)) = parts.map(|(seat, hca)| seat.abandon(hca, now)) {
            self.fail(index, failure);
        }
        self.follow_suspension(index);
    }

    /// Fails the device of `index`, which becomes unusable to its client.
    pub fn fail(&mut self, index: usize, mut failure: Failure) {
        let now = self.clock.now();
        let Some((seat, hca)) = self.seats.get_mut(index).zip(self.world.hca_mut(index)) else { return };
        if seat.abandon(hca, now).is_err() {
            failure = Failure::Panic;
        }
        if failure == Failure::Panic {
            // The model's state is undefined after a panic, so a new one replaces it.
            self.past_steps += hca.meter().steps();
            self.world.renew(index);
        }
        let Some(hca) = self.world.hca_mut(index) else { return };
        if failure == Failure::Panic {
            tell_log(hca, index, &self.log);
        }
        seat.fail(failure, hca, now);
        self.follow_suspension(index);
        self.tell(index, format!("failed: {failure}"));
    }

    /// Logs a text about the client of `index` in its device's log, whose rate is limited.
    pub(super) fn tell(&mut self, index: usize, text: String) {
        if let Some(hca) = self.world.running(index) {
            hca.log_mut().warn(Subject::Device, "", text);
        }
    }

    /// Returns the activity so far.
    pub fn activity(&self) -> Activity {
        let clients: Vec<Work> = self.seats.iter().map(Seat::work).collect();
        let visits = clients.iter().map(|client| client.visits).sum();
        Activity { wakeups: self.wakeups, turns: self.turns, visits, clients }
    }

    /// Returns the current states of the HCAs.
    pub fn states(&self) -> Vec<HcaState> {
        self.seats.iter().zip(self.world.nodes()).map(|(seat, node)| HcaState::of(seat, node)).collect()
    }

    fn summary(&mut self) -> Summary {
        for index in 0..self.seats.len() {
            if let Some(hca) = self.world.running(index) {
                hca.log_mut().flush();
            }
        }
        let hcas = self.states();
        Summary {
            fabric: self.world.medium.fabric().counters(),
            retransmitted: hcas.iter().map(|hca| hca.retransmitted).sum(),
            refusals: hcas.iter().map(|hca| hca.refusals).collect(),
            hcas,
            seconds: self.clock.now().saturating_duration_since(self.started).as_secs_f64(),
            losses: self.world.medium.fabric().losses().clone(),
            ethernet: EthernetSummary::of(self.world.medium.switch()),
            capture_error: self.world.medium.finish_capture().err().map(|error| error.to_string()),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Forwards a device's log to `log`, with the device's number.
pub fn tell_log(hca: &mut Hca, index: usize, log: &LogSink) {
    let log = Arc::clone(log);
    hca.log_mut().set_sink(Some(Box::new(move |entry| log(index, entry))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::watchdog::Watchdog;
    use crate::link::stream::Kind;
    use crate::server::clock::Counted;
    use crate::server::listener::listen;
    use crate::wire::channel::Channel;
    use crate::wire::protocol::{Header, command};
    use hca_model::Profile;
    use hca_model::scheduler::AHEAD;
    use hca_model::world::NodePort;
    use rdma_fabric::infiniband::FabricConfig;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU32, Ordering};

    static SOCKETS: AtomicU32 = AtomicU32::new(0);

    /// Creates an event loop that no thread runs, with two HCAs and their clients.
    fn two() -> (EventLoop, [UnixStream; 2]) {
        let mut world = World::new(FabricConfig::default());
        let watchdog = Rc::new(Watchdog::start().expect("watchdog"));
        let mut seats = Vec::new();
        for index in 0..2 {
            let profile = Profile::node(index);
            // Unique paths, because tests share a process.
            let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("hca-serve-loop-{}-{number}", std::process::id()));
            let (listener, file) = listen(&path, None).expect("listens");
            seats.push(Seat::new(listener, file, &profile, 16, Rc::clone(&watchdog)));
            world.add(profile, "node").expect("a port");
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd"));
        let quiet: NoticeSink = Arc::new(|_| {});
        let mut event_loop =
            EventLoop::new(world, seats, wake, Arc::new(|_, _| {}), quiet, false, Clock::System)
                .expect("a loop");
        let clients = [0, 1].map(|index| {
            let (client, server) = UnixStream::pair().expect("pair");
            let channel = Channel::new(server).expect("channel");
            let hca = event_loop.world.hca_mut(index).expect("added");
            event_loop.seats[index].connect(channel, hca);
            client
        });
        (event_loop, clients)
    }

    /// Sends 1000 messages without a reply.
    fn flood(client: &mut UnixStream) {
        let header = Header { id: 1, command: command::VERSION, size: 16, flags: 0x10, error: 0 };
        client.write_all(&header.to_bytes().repeat(1000)).expect("sent");
    }

    fn taken(event_loop: &EventLoop, index: usize) -> u64 {
        event_loop.seats[index].work().messages
    }

    #[test]
    fn a_flood_takes_small_steps_while_another_is_active() {
        let (mut event_loop, mut clients) = two();
        flood(&mut clients[0]);
        event_loop.seats[0].read();
        assert!(event_loop.turn(), "there is more");
        let alone = taken(&event_loop, 0);
        assert!(alone > 100, "{alone}: nobody else wants anything");
        let late = event_loop.now() + 3_600_000_000_000;
        event_loop.world.scheduler.note_active(1, late);
        event_loop.turn();
        let beside = taken(&event_loop, 0) - alone;
        assert!((1..=32).contains(&beside), "{beside}");
    }

    #[test]
    fn device_that_waits_for_its_turn_takes_its_packets() {
        let (mut event_loop, _clients) = two();
        // The links come up, and the subnet manager sends requests to both ports.
        for _ in 0..2 {
            event_loop.world.scheduler.charge(0, 10 * AHEAD);
            event_loop.world.scheduler.claim_all();
            event_loop.turn();
        }
        assert!(event_loop.world.medium.fabric().counters().delivered >= 2);
        let port = event_loop.world.nodes()[0].port;
        assert!(event_loop.world.medium.fabric_mut().receive(port, u64::MAX).is_none());
    }

    #[test]
    fn planted_panic_fails_one_device() {
        let first_client = 2;
        for place in [Place::Turn(0), Place::Event(first_client), Place::Interest(0)] {
            let (mut event_loop, mut clients) = two();
            // On a busy machine, reading the flood takes so long that the device has no turn.
            event_loop.clock = Clock::Counted(Counted::new(Arc::default()));
            let token = EventData::new_u64(first_client);
            let add = |socket: std::os::fd::BorrowedFd<'_>| {
                epoll::add(&event_loop.epoll, socket, token, EventFlags::IN).expect("added");
            };
            event_loop.seats[0].with_socket(add).expect("connected");
            flood(&mut clients[0]);
            planted::plant(place);
            event_loop.step(Duration::ZERO);
            let failed = event_loop.seats.iter().map(|seat| seat.failed);
            assert!(failed.eq([Some(Failure::Panic), None]), "{place:?}");
        }
        let (mut event_loop, _clients) = two();
        planted::plant(Place::Copy(1));
        assert!(event_loop.seats[1].contain(|_, _| ()).is_none());
        assert!(!event_loop.seats[1].takes_copies(), "its model is undefined");
        event_loop.turn();
        let failed = event_loop.seats.iter().map(|seat| seat.failed);
        assert!(failed.eq([None, Some(Failure::Panic)]));
    }

    #[test]
    fn planted_panic_cuts_one_cable() {
        for place in [Place::Cable, Place::Event] {
            let (mut event_loop, _clients) = two();
            let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("hca-serve-hub-{}-{number}", std::process::id()));
            let address: crate::link::address::Address =
                format!("unix:{}", path.display()).parse().expect("an address");
            let listener = address.listen(false).expect("listens");
            event_loop.hub = Some(Hub::new(listener, [], 1, &event_loop.epoll).expect("a hub"));
            // A cable that took long on a busy machine would wait for the HCAs.
            event_loop.clock = Clock::Counted(Counted::new(Arc::default()));
            let cables = [7u64, 8].map(|guid| {
                let mut cable = UnixStream::connect(&path).expect("connects");
                let hello = [&crate::link::stream::MAGIC[..], &[0], &guid.to_le_bytes()].concat();
                let length = 1 + hello.len() as u32;
                cable.write_all(&[&length.to_le_bytes()[..], &[0], &hello].concat()).expect("sent");
                // Accepted here, then served.
                event_loop.step(Duration::ZERO);
                event_loop.step(Duration::ZERO);
                cable
            });
            let guids = |event_loop: &EventLoop| {
                let states = event_loop.hub.as_ref().map(Hub::states).expect("a hub");
                states.iter().map(|state| state.port_guid).collect::<Vec<_>>()
            };
            assert_eq!(guids(&event_loop), [7, 8]);
            // A keep-alive makes the first cable readable. The listener's token precedes it.
            planted::plant(place((1 << 32) + 1));
            (&cables[0]).write_all(&[1, 0, 0, 0, Kind::Alive as u8]).expect("sent");
            event_loop.step(Duration::ZERO);
            assert_eq!(guids(&event_loop), [8]);
            assert!(event_loop.seats.iter().all(|seat| seat.failed.is_none()));
        }
    }

    #[test]
    fn keep_alives_do_not_extend_a_handshake() {
        let (mut event_loop, _clients) = two();
        let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hca-serve-hub-{}-{number}", std::process::id()));
        let address: crate::link::address::Address =
            format!("unix:{}", path.display()).parse().expect("an address");
        let listener = address.listen(false).expect("listens");
        event_loop.hub = Some(Hub::new(listener, [], 1, &event_loop.epoll).expect("a hub"));
        event_loop.clock = Clock::Counted(Counted::new(Arc::default()));
        let mut stranger = UnixStream::connect(&path).expect("connects");
        stranger.set_nonblocking(true).expect("nonblocking");
        event_loop.step(Duration::ZERO);
        for (seconds, open) in [(4, true), (1, false)] {
            event_loop.clock.pass(Duration::from_secs(seconds));
            stranger.write_all(&[1, 0, 0, 0, Kind::Alive as u8]).expect("sent");
            event_loop.step(Duration::ZERO);
            // A keep-alive of the server may come first.
            let ended = (0..2).any(|_| matches!(stranger.read(&mut [0; 64]), Ok(0)));
            assert_eq!(ended, !open, "{seconds} s");
        }
    }

    #[test]
    fn who_used_more_time_waits_for_those_who_have_something_to_do() {
        let (mut event_loop, mut clients) = two();
        event_loop.clock = Clock::Counted(Counted::new(Arc::default()));
        // The subnet manager brings the links up.
        while event_loop.turn() {}
        for (client, seat) in clients.iter_mut().zip(&mut event_loop.seats) {
            flood(client);
            seat.read();
        }
        event_loop.world.scheduler.claim_all();
        event_loop.world.scheduler.charge(0, 10 * AHEAD);
        event_loop.turn();
        assert_eq!(taken(&event_loop, 0), 0);
        assert!(taken(&event_loop, 1) > 0);
        // An idle device neither holds back the others nor accumulates time.
        event_loop.world.scheduler.charge(0, 100 * AHEAD);
        event_loop.world.scheduler.begin_turn(1);
        event_loop.turn();
        assert!(taken(&event_loop, 0) > 0);
        assert!(event_loop.world.scheduler.used(1) >= 98 * AHEAD);
    }
}
