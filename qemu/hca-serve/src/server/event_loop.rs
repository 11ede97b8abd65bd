//! The one thread that does everything: it takes the clients' messages, runs all devices and the fabric, and answers.
//!
//! It sleeps until a socket has something, somebody asks for something, or the fabric's or a device's next deadline. A doorbell
//! costs one wake-up: message, device, fabric and interrupt follow on each other without another thread. When idle it
//! never polls. Nothing here waits for a client without a limit, and each device gets its share of the thread's time.

use super::clock::{Clock, Done};
use super::seat::{Failure, Seat, Work};
use super::state::{HcaState, Summary};
use super::uplink::Uplink;
use super::waiting::{WAKE, listener_token};
use crate::link::hub::Hub;
use crate::link::spoke::Spoke;
use crate::server::options::{LogSink, NoticeSink};
use crate::wire::channel::Ended;
use hca_model::Hca;
use hca_model::log::Subject;
use hca_model::world::World;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Something to be done by the thread that runs everything.
type Task = Box<dyn FnOnce(&mut EventLoop) + Send>;

/// What that thread is asked for.
pub enum Message {
    Task(Task),
    /// To end, and to say what was seen.
    Stop(SyncSender<Summary>),
}

/// How far a device's use of time may be ahead of the one that used least, in nanoseconds.
const AHEAD: u64 = 200_000;
/// What the thread did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Sleeps that ended.
    pub wakeups: u64,
    /// Rounds of all devices.
    pub turns: u64,
    /// For each device.
    pub clients: Vec<Work>,
}

/// The thread's state.
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
    /// The least time used by any device that had something to do in the last turn.
    least: u64,
    /// A device could do more at once.
    pub(super) busy: Vec<bool>,
    /// A device could do more as soon as its peers take what is on its way.
    pub(super) stalled: bool,
    panics: u64,
    /// Steps of devices that others took the place of.
    past_steps: u64,
    /// Cables of other servers' HCAs.
    pub hub: Option<Hub>,
    /// With the fabric elsewhere: each HCA's cable, in order of the seats.
    pub spokes: Vec<Spoke>,
    /// Who mends cables.
    pub uplink: Option<Uplink>,
}

impl EventLoop {
    /// With everything in its place.
    ///
    /// # Errors
    /// The system's.
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
        let busy = vec![true; seats.len()];
        let started = clock.now();
        let (wakeups, turns, panics, past_steps, least) = (0, 0, 0, 0, u64::MAX);
        let (hub, spokes, uplink, stalled) = (None, Vec::new(), None, false);
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
            least,
            busy,
            stalled,
            panics,
            past_steps,
            hub,
            spokes,
            uplink,
        })
    }

    /// Nanoseconds since the beginning: the model's time.
    pub fn now(&self) -> u64 {
        let passed = self.clock.now().saturating_duration_since(self.started);
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Serves until it is told to stop.
    pub fn run(mut self, messages: &Receiver<Message>) {
        loop {
            while let Ok(message) = messages.try_recv() {
                match message {
                    Message::Task(task) => {
                        let outcome = catch_unwind(AssertUnwindSafe(|| task(&mut self)));
                        if outcome.is_err() {
                            (self.notices)("a request failed: please report this");
                        }
                        self.busy.fill(true);
                    }
                    Message::Stop(answer) => {
                        let summary = self.summary();
                        // The sockets are gone when the answer comes.
                        drop(self);
                        let _ = answer.send(summary);
                        return;
                    }
                }
            }
            let more = self.turn();
            self.follow_interests();
            let sleep = if more { Duration::ZERO } else { self.sleep() };
            self.wait(sleep);
        }
    }

    /// What [`run`](Self::run) does between two sleeps, without the sleep: where nothing is to be done, counted time jumps.
    pub fn step(&mut self) {
        self.wait(Duration::ZERO);
        self.follow_work();
        let more = self.turn();
        self.follow_interests();
        if !more {
            let sleep = self.sleep();
            self.clock.pass(sleep);
        }
    }

    /// A counted clock goes on with what was done.
    #[inline]
    pub(super) fn follow_work(&mut self) {
        let Self { clock, world, seats, past_steps, .. } = self;
        clock.follow(|| {
            let mut done = Done { steps: *past_steps, ..Done::default() };
            for node in &world.nodes {
                done.steps += node.hca.meter().steps();
                done.refusals += node.hca.log().refusals();
            }
            for seat in seats {
                seat.count(&mut done);
            }
            done
        });
    }

    /// Messages, devices, fabric: a bounded amount of work. Answers whether there is more.
    fn turn(&mut self) -> bool {
        self.turns += 1;
        let now = self.now();
        let mut instant = self.clock.now();
        self.least = self.least_used(instant);
        let least = self.least;
        let active = self.seats.iter().filter(|seat| seat.is_active(instant)).count();
        let mut more = self.guarded_fabric(now);
        self.stalled = false;
        if let Some(hub) = &mut self.hub {
            let notices = &self.notices;
            let tell = |line: String| notices(&line);
            more |= hub.turn(&mut self.world.fabric, now, instant, tell);
        }
        for index in 0..self.seats.len() {
            let Some(seat) = self.seats.get_mut(index) else { break };
            seat.used = seat.used.max(least.saturating_sub(AHEAD));
            if seat.used > least.saturating_add(AHEAD) {
                // The others first.
                more = true;
                continue;
            }
            if seat.resting_until.is_some_and(|until| until > instant) {
                continue;
            }
            seat.resting_until = None;
            // Whoever has others beside it takes small steps, so that none of them waits long.
            seat.contended = active > usize::from(seat.is_active(instant));
            more |= self.serve_seat(index, now, instant);
            self.follow_work();
            let end = self.clock.now();
            if let Some(seat) = self.seats.get_mut(index) {
                seat.charge(end - instant);
            }
            instant = end;
        }
        more | self.guarded_fabric(now)
    }

    /// Whether a device used so much more time than one that has something to do that it has to wait.
    pub(super) fn is_ahead(&self, seat: &Seat) -> bool {
        seat.used > self.least.saturating_add(AHEAD)
    }

    /// The least time used by any device that has something to do and may do it.
    fn least_used(&self, now: Instant) -> u64 {
        let rests = |seat: &Seat| seat.resting_until.is_some_and(|until| until > now);
        let busy = self.seats.iter().zip(&self.busy).filter(|(seat, busy)| **busy && !rests(seat));
        let least = busy.map(|(seat, _)| seat.used).min();
        least.unwrap_or_else(|| self.seats.iter().map(|seat| seat.used).max().unwrap_or(0))
    }

    fn guarded_fabric(&mut self, now: u64) -> bool {
        if self.uplink.is_some() {
            return false;
        }
        match catch_unwind(AssertUnwindSafe(|| self.world.poll_fabric(now))) {
            Ok(more) => more,
            Err(_) => {
                self.panics += 1;
                if self.panics.is_power_of_two() {
                    (self.notices)("the fabric failed at a packet: please report this");
                }
                false
            }
        }
    }

    /// One seat's messages and its device's work. Answers whether there is more.
    fn serve_seat(&mut self, index: usize, now: u64, instant: Instant) -> bool {
        let (world, seats, file_io) = (&mut self.world, &mut self.seats, self.file_io);
        let spoke = self.spokes.get_mut(index);
        let mut cut = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let hca = world.nodes.get_mut(index).map(|node| &mut node.hca);
            let turn =
                seats.get_mut(index).zip(hca).map(|(seat, hca)| seat.take_messages(hca, file_io, instant));
            let more = match (spoke, world.nodes.get_mut(index), seats.get_mut(index)) {
                (Some(spoke), Some(node), Some(seat)) => {
                    let (more, broken) = spoke.turn(&mut node.hca, &mut seat.guest, now, instant);
                    cut = broken;
                    more
                }
                // A device reaches the guests of others, too, where its requests are for them.
                _ => world.poll_node(index, now, seats),
            };
            (turn.unwrap_or_default(), more)
        }));
        if let (Some(broken), Some(uplink)) = (cut, &self.uplink) {
            (self.notices)(&format!("cable of hca {index} cut: {broken}"));
            uplink.mend(index);
        }
        let (mut more, failure) = match outcome {
            Ok((turn, more)) => {
                for remark in turn.remarks {
                    self.tell(index, remark.to_string());
                }
                if let Some(ended) = turn.ended {
                    self.end_connection(index, ended);
                    return true;
                }
                (more, None)
            }
            Err(_) => (false, Some(Failure::Panic)),
        };
        let Some(seat) = self.seats.get_mut(index) else { return false };
        let failure = failure.or_else(|| seat.trouble(self.clock.now()));
        if let Some(failure) = failure {
            self.fail(index, failure);
            more = true;
        }
        let Some(seat) = self.seats.get(index) else { return false };
        let node = self.world.nodes.get(index);
        let waits = self.uplink.is_none() && node.is_some_and(|node| !self.world.fabric.ready(node.port));
        if waits {
            self.stalled = true;
            more = false;
        }
        let deferred = seat.deferred;
        if let Some(busy) = self.busy.get_mut(index) {
            *busy = more || deferred;
        }
        if more && let Some(seat) = self.seats.get_mut(index) {
            seat.active_at = Some(instant);
        }
        more || (deferred && !waits)
    }

    fn end_connection(&mut self, index: usize, ended: Ended) {
        if ended != Ended::Closed {
            self.tell(index, format!("connection {ended}"));
        }
        let (Some(seat), Some(node)) = (self.seats.get_mut(index), self.world.nodes.get_mut(index)) else {
            return;
        };
        // Closing the socket takes it out of the set that is waited for.
        seat.disconnect(&mut node.hca);
    }

    /// The device of `index` is of no use any more to its client.
    pub fn fail(&mut self, index: usize, failure: Failure) {
        let (Some(seat), Some(node)) = (self.seats.get_mut(index), self.world.nodes.get_mut(index)) else {
            return;
        };
        if failure == Failure::Panic {
            // Nobody knows what state it is in: a new one takes its place.
            let profile = node.hca.profile().clone();
            let (cable, warm) = (node.hca.port().cable, node.hca.is_warm());
            self.past_steps += node.hca.meter().steps();
            node.hca = Hca::new(profile);
            node.hca.port_mut().set_cable(cable);
            node.hca.set_warm(warm);
            tell_log(&mut node.hca, index, &self.log);
        }
        seat.fail(failure, &mut node.hca, self.clock.now());
        self.tell(index, format!("failed: {failure}"));
    }

    /// Tells the user about the client of `index`: by its device's log, whose rate is limited.
    pub(super) fn tell(&mut self, index: usize, text: String) {
        if let Some(node) = self.world.nodes.get_mut(index) {
            node.hca.log_mut().warn(Subject::Device, "", text);
        }
    }

    /// What was done so far.
    pub fn activity(&self) -> Activity {
        let clients = self.seats.iter().map(Seat::work).collect();
        Activity { wakeups: self.wakeups, turns: self.turns, clients }
    }

    /// The HCAs as they are now.
    pub fn states(&self) -> Vec<HcaState> {
        self.seats.iter().zip(&self.world.nodes).map(|(seat, node)| HcaState::of(seat, node)).collect()
    }

    fn summary(&mut self) -> Summary {
        for node in &mut self.world.nodes {
            node.hca.log_mut().flush();
        }
        let hcas = self.states();
        Summary {
            fabric: self.world.fabric.counters(),
            retransmitted: hcas.iter().map(|hca| hca.retransmitted).sum(),
            refusals: hcas.iter().map(|hca| hca.refusals).collect(),
            hcas,
            seconds: self.clock.now().saturating_duration_since(self.started).as_secs_f64(),
            losses: self.world.fabric.losses().clone(),
            capture_error: self.world.fabric.finish_capture().err().map(|error| error.to_string()),
        }
    }
}

/// Has a device's log told with its number.
pub fn tell_log(hca: &mut Hca, index: usize, log: &LogSink) {
    let log = Arc::clone(log);
    hca.log_mut().set_sink(Some(Box::new(move |entry| log(index, entry))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::watchdog::Watchdog;
    use crate::server::listener::listen;
    use crate::wire::channel::Channel;
    use crate::wire::protocol::{Header, command};
    use hca_model::Profile;
    use hca_model::fabric::FabricConfig;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU32, Ordering};

    static SOCKETS: AtomicU32 = AtomicU32::new(0);

    /// A loop that nobody runs, with two HCAs and their clients.
    fn two() -> (EventLoop, [UnixStream; 2]) {
        let mut world = World::new(FabricConfig::default());
        let watchdog = Rc::new(Watchdog::start().expect("watchdog"));
        let mut seats = Vec::new();
        for index in 0..2 {
            let profile = Profile::node(index);
            // Tests run beside each other in one process.
            let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("hca-serve-loop-{}-{number}", std::process::id()));
            let (listener, file) = listen(&path).expect("listens");
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
            let hca = &mut event_loop.world.nodes[index].hca;
            event_loop.seats[index].connect(channel, hca);
            client
        });
        (event_loop, clients)
    }

    /// 1000 messages that want no answer.
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
        let now = Instant::now();
        event_loop.seats[0].active_at = Some(now);
        assert!(event_loop.turn(), "there is more");
        let alone = taken(&event_loop, 0);
        assert!(alone > 100, "{alone}: nobody else wants anything");
        event_loop.seats[1].active_at = Some(Instant::now() + Duration::from_secs(3600));
        event_loop.seats[0].used = 0;
        event_loop.turn();
        let beside = taken(&event_loop, 0) - alone;
        assert!((1..=32).contains(&beside), "{beside}");
    }

    #[test]
    fn who_used_more_time_waits_for_those_who_have_something_to_do() {
        let (mut event_loop, mut clients) = two();
        for (client, seat) in clients.iter_mut().zip(&mut event_loop.seats) {
            flood(client);
            seat.read();
        }
        event_loop.busy.fill(true);
        event_loop.seats[0].used = 10 * AHEAD;
        event_loop.turn();
        assert_eq!(taken(&event_loop, 0), 0);
        assert!(taken(&event_loop, 1) > 0);
        // One that rests is not waited for.
        event_loop.seats[0].used = 100 * AHEAD;
        event_loop.seats[1].used = 0;
        event_loop.busy.fill(true);
        event_loop.seats[1].resting_until = Some(Instant::now() + Duration::from_secs(3600));
        event_loop.turn();
        assert!(taken(&event_loop, 0) > 0);
        // Nor does one that did nothing for long have its time saved up.
        event_loop.seats[1].resting_until = None;
        assert!(event_loop.seats[1].used >= 98 * AHEAD);
    }
}
