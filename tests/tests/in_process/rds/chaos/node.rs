//! A node that sends what the plan says, reads what comes, dies and boots.

use crate::rds::chaos::desk::{Desk, Hand};
use crate::rds::chaos::ledger::Ledger;
use crate::rds::chaos::model::{Model, content};
use crate::rds::chaos::plan::{Death, FIRST_PORT, Job, NOBODYS_PORT, NodePlan, Settings, Whim, peers};
use crate::rds::chaos::trace::{Event, Trace};
use dat_nostd::CloseFlags;
use driver_mlx::Instant;
use harness::dat::due;
use harness::dat::{self, ModelAdapter};
use harness::rds::{at, finish, stop};
use harness::{ModelPlatform, Next, World};
use rds_nostd::{
    Arrival, Counters, Generation, Msg, MsgFlags, RdmaFlags, Rds, RdsConfig, RdsError, RdsStorage,
    SocketHandle,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// The port of the socket that hurries acknowledgements at the end; that of another type of service is two below.
const LAST_PORT: u16 = 3999;
/// Regions of a node.
const REGIONS: usize = 16;
/// The longest message.
const LONGEST: usize = 100_000;
/// Longest time that a node sleeps, so that it hears of the next stage.
const DOZE: u64 = SECOND;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Messages are sent and things break.
    Chaos,
    /// Everything was sent and nothing breaks any more: each node sends a last message to each other one, to be acknowledged.
    Last,
    /// The same once more, for what was answered to messages from before.
    VeryLast,
    /// Everything is acknowledged: time for the last acknowledgements of those.
    Quiet,
    /// The end.
    Over,
}

/// What the nodes of a run share.
pub struct Shared {
    pub world: Rc<World>,
    pub seed: u64,
    pub count: usize,
    pub settings: Settings,
    /// When the story began, once all nodes had booted.
    pub began: Cell<u64>,
    pub model: RefCell<Model>,
    pub ledger: RefCell<Ledger>,
    /// Of each node, the one that lives or lived last.
    pub incarnations: RefCell<Vec<u32>>,
    pub trace: Trace,
    pub stage: Cell<Stage>,
}

impl Shared {
    /// Whether each peer has a zone of its own.
    pub fn isolates(&self) -> bool {
        self.seed.is_multiple_of(2)
    }

    /// The nodes that `node` reaches.
    pub fn peers(&self, node: usize) -> impl Iterator<Item = usize> {
        peers(self.seed, self.count, node)
    }

    /// Whether operations are on memory that was registered before.
    fn registers(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// Of a node's boot, whose clock may be set back each time.
    fn generation(&self, boot: u32) -> Generation {
        harness::rds::boot(if self.seed.is_multiple_of(5) { 1000 - boot } else { boot })
    }
}

/// What dies with a node.
struct Life {
    adapter: ModelAdapter,
    rds: Rds<'static>,
    /// In the order of their ports.
    sockets: Vec<SocketHandle>,
    /// The sockets of the last messages, one for each type of service.
    last: Vec<SocketHandle>,
    desk: Desk,
    free_frames: usize,
    /// Lengths of what each socket sent and the peer may not have acknowledged.
    outstanding: Vec<VecDeque<usize>>,
    /// Whom a last message is still to be sent to, of which type of service, and in which stage this is.
    last_jobs: (Stage, VecDeque<(usize, usize)>),
}

/// A socket of the type of service that its number has.
fn bind(rds: &mut Rds<'static>, to: SocketAddr, number: u16, services: usize) -> SocketHandle {
    let socket = rds.bind(to).expect("free");
    rds.set_type_of_service(socket, (usize::from(number) % services) as u8).expect("nothing was sent");
    socket
}

pub struct Node {
    shared: Rc<Shared>,
    index: usize,
    platform: ModelPlatform,
    life: Option<Life>,
    pub incarnation: u32,
    plan: NodePlan,
    boot_at: u64,
    /// Counters of all that died.
    pub past: Vec<Counters>,
    pub boots: u64,
    /// Of its deaths those that nobody heard of.
    pub silent_deaths: u64,
    buffer: Vec<u8>,
}

impl Node {
    /// A node whose HCA is there, not booted.
    pub fn new(shared: &Rc<Shared>, index: usize, platform: ModelPlatform, plan: NodePlan) -> Self {
        Self {
            shared: Rc::clone(shared),
            index,
            platform,
            life: None,
            incarnation: 0,
            plan,
            boot_at: 0,
            past: Vec::new(),
            boots: 0,
            silent_deaths: 0,
            buffer: vec![0; 1 << 18],
        }
    }

    fn now(&self) -> u64 {
        self.shared.world.now() - self.shared.began.get()
    }

    fn note(&self, event: Event) {
        self.shared.trace.note(self.now(), event);
    }

    pub fn boot(&mut self) {
        let shared = &self.shared;
        self.incarnation += 1;
        self.boots += 1;
        let generation = self.incarnation;
        shared.world.set_cable(self.index, true);
        let region = shared.world.memory(self.index).region_again();
        let mut adapter =
            dat::boot(self.platform.clone(), region, shared.seed, shared.count, u64::from(generation))
                .expect("opens");
        let Settings { frames, receive_depth, retry_count, send_buffer, receive_buffer, services } =
            shared.settings;
        let config = RdsConfig {
            receive_depth,
            retry_count,
            send_buffer,
            receive_buffer,
            seed: shared.seed << 16 | (self.index as u64) << 8 | u64::from(generation),
            isolate_peers: shared.isolates(),
            ..RdsConfig::new(shared.generation(generation))
        };
        let mut rds = match frames {
            _ if services > 1 => {
                Rds::start(&mut adapter, Box::leak(Box::new(RdsStorage::<6, 16, 512>::new())).parts(), config)
            }
            128 => {
                Rds::start(&mut adapter, Box::leak(Box::new(RdsStorage::<5, 8, 128>::new())).parts(), config)
            }
            256 => {
                Rds::start(&mut adapter, Box::leak(Box::new(RdsStorage::<5, 8, 256>::new())).parts(), config)
            }
            _ => {
                Rds::start(&mut adapter, Box::leak(Box::new(RdsStorage::<5, 8, 512>::new())).parts(), config)
            }
        }
        .expect("starts");
        let free_frames = rds.free_frames();
        let count = self.plan.senders.len();
        let sockets: Vec<SocketHandle> = (0..count as u16)
            .map(|port| bind(&mut rds, at(self.index, FIRST_PORT + port), port, services))
            .collect();
        let last = (0..services as u16)
            .map(|service| bind(&mut rds, at(self.index, LAST_PORT - 2 * service), service, services))
            .collect();
        let desk = Desk::open(self.index, &mut adapter, &mut rds);
        if shared.registers() {
            shared.peers(self.index).for_each(|other| desk.register_all(&mut adapter, &mut rds, other));
        }
        shared.incarnations.borrow_mut()[self.index] = generation;
        let outstanding = vec![VecDeque::new(); count];
        self.life = Some(Life {
            adapter,
            rds,
            sockets,
            last,
            desk,
            free_frames,
            outstanding,
            last_jobs: (Stage::Chaos, VecDeque::new()),
        });
        self.note(Event::Booted { node: self.index, incarnation: generation, free_frames });
    }

    fn die(&mut self, orderly: bool, silent: bool) {
        let Some(mut life) = self.life.take() else { return };
        self.note(Event::Died { node: self.index, incarnation: self.incarnation, orderly });
        // Nothing leaves the HCA in between: this only tells what nobody will read.
        self.read(&mut life, true);
        self.past.push(*life.rds.counters());
        let Life { mut adapter, rds, desk, .. } = life;
        if orderly {
            let before = self.shared.world.now();
            let unreached = stop(rds, &mut adapter);
            let took = self.shared.world.now() - before;
            assert!(took <= 60 * MS, "node {} took {took} ns to stop", self.index);
            self.shared.model.borrow_mut().ended(self.index, self.incarnation, &unreached);
            desk.close(&mut adapter);
            adapter.close().expect("closes");
            let census = self.shared.world.census(self.index);
            assert_eq!(census.total(), 0, "node {} left behind: {census}", self.index);
        }
        self.shared.world.reset(self.index);
        // Without power the link is down, which the subnet manager sees; of a mere reset nobody hears.
        if silent {
            self.silent_deaths += 1;
        } else {
            self.shared.world.set_cable(self.index, false);
        }
    }

    /// One turn.
    pub fn turn(&mut self, now: u64) -> Next {
        if self.shared.stage.get() == Stage::Over {
            return Next::Done;
        }
        let time = now - self.shared.began.get();
        if let Some(&Death { at, orderly, silent, boot_at }) = self.plan.deaths.front()
            && at <= time
            && self.life.is_some()
        {
            self.plan.deaths.pop_front();
            self.die(orderly, silent);
            self.boot_at = boot_at.max(time + MS);
        }
        if self.life.is_none() {
            if time < self.boot_at {
                return Next::At(self.boot_at + self.shared.began.get());
            }
            self.boot();
        }
        if let Some((_, until)) =
            self.plan.stalls.iter().find(|(from, until)| (*from..*until).contains(&time))
        {
            return Next::At(until + self.shared.began.get());
        }
        let Some(mut life) = self.life.take() else { return Next::Again };
        let mut deadlines = vec![
            due(life.adapter.poll(Instant::from_nanos(now))),
            due(life.rds.poll(&mut life.adapter, Instant::from_nanos(now))),
            Some(now + DOZE),
        ];
        self.indulge(&mut life, time, &mut deadlines);
        let mut moved = self.send(&mut life, time, &mut deadlines);
        if matches!(self.shared.stage.get(), Stage::Last | Stage::VeryLast) {
            moved |= self.send_last(&mut life);
        }
        moved |= self.rdma(&mut life, time, &mut deadlines);
        match self.plan.pauses.iter().find(|(from, to)| (*from..*to).contains(&time)) {
            Some((_, to)) => deadlines.push(Some(to + self.shared.began.get())),
            None => moved |= self.read(&mut life, false),
        }
        deadlines.extend(self.plan.deaths.front().map(|death| Some(death.at + self.shared.began.get())));
        let next = if moved { Next::Again } else { dat::sleep(&mut life.adapter, now, deadlines) };
        self.life = Some(life);
        next
    }

    /// Closes and cancels what is due.
    fn indulge(&mut self, life: &mut Life, time: u64, deadlines: &mut Vec<Option<u64>>) {
        while let Some(&Whim { at: when, socket: index, closes }) = self.plan.whims.front() {
            if when > time {
                deadlines.push(Some(when + self.shared.began.get()));
                return;
            }
            self.plan.whims.pop_front();
            let from = at(self.index, FIRST_PORT + index as u16);
            if closes {
                let mut model = self.shared.model.borrow_mut();
                model.gave_up(from, None);
                let Life { adapter, rds, sockets, .. } = &mut *life;
                // What it has, and nobody will read.
                while let Ok(Arrival::Message(unread)) =
                    rds.recvmsg(adapter, sockets[index], &mut self.buffer, MsgFlags::empty())
                {
                    model.got(unread.from, from, self.incarnation, &self.buffer[..unread.len]);
                }
                rds.close(adapter, sockets[index]).expect("open");
                sockets[index] = bind(rds, from, index as u16, self.shared.settings.services);
                life.outstanding[index].clear();
            } else if let Some(&Job { to, .. }) = self.plan.senders[index].jobs.front() {
                self.shared.model.borrow_mut().gave_up(from, Some(to));
                let Life { adapter, rds, sockets, .. } = &mut *life;
                rds.cancel_sent_to(adapter, sockets[index], to).expect("bound");
            }
            self.note(Event::Whim { from, closes });
        }
    }

    /// Sends what is due; whether something was accepted.
    fn send(&mut self, life: &mut Life, time: u64, deadlines: &mut Vec<Option<u64>>) -> bool {
        let mut moved = false;
        let Life { adapter, rds, sockets, outstanding, .. } = life;
        for (index, sender) in self.plan.senders.iter_mut().enumerate() {
            let from = at(self.index, FIRST_PORT + index as u16);
            let socket = sockets[index];
            while let Some(&Job { at, to, len }) = sender.jobs.front() {
                if at > time {
                    deadlines.push(Some(at + self.shared.began.get()));
                    break;
                }
                let mut model = self.shared.model.borrow_mut();
                let number = model.next_number(from, to);
                let again_empty = len == 0 && to.port() != 0 && model.has_empty(from, to);
                let len = if again_empty { 1 } else { len.min(rds.longest_message()) };
                let unacknowledged = rds.unacknowledged(socket).expect("open");
                let known = &mut outstanding[index];
                assert!(unacknowledged <= known.len(), "{from}: acknowledged more than was sent");
                known.drain(..known.len() - unacknowledged);
                let bytes: usize = known.iter().sum();
                let limit = self.shared.settings.send_buffer;
                match rds.sendmsg(adapter, socket, Msg::to(&to, &content(from, to, number, len))) {
                    Ok(_) => {
                        assert!(
                            !sender.pinned || bytes < limit,
                            "{from}: {bytes} bytes outstanding, and one more accepted"
                        );
                        known.push_back(len);
                        match to.port() {
                            0 => model.pinged(from, to),
                            NOBODYS_PORT => {}
                            _ => drop(model.accepted(from, to, self.incarnation, len, false)),
                        }
                        self.shared.trace.note(time, Event::Sent { from, to, number, len });
                    }
                    Err(RdsError::Again) => {
                        assert!(
                            !sender.pinned || bytes >= limit,
                            "{from}: {bytes} bytes outstanding, and refused"
                        );
                        break;
                    }
                    Err(RdsError::NoBufferSpace | RdsError::Congested) => break,
                    Err(error) => panic!("{from} to {to}: {error}"),
                }
                sender.jobs.pop_front();
                moved = true;
            }
        }
        moved
    }

    /// Sends the last messages, which ask for acknowledgements; whether one was accepted.
    fn send_last(&mut self, life: &mut Life) -> bool {
        let index = self.index;
        let Life { adapter, rds, last, last_jobs, .. } = life;
        let stage = self.shared.stage.get();
        if last_jobs.0 != stage {
            let all = self
                .shared
                .peers(index)
                .flat_map(|other| (0..last.len()).map(move |service| (other, service)));
            *last_jobs = (stage, all.collect());
        }
        let jobs = &mut last_jobs.1;
        let len = (self.shared.settings.send_buffer / 2).min(rds.longest_message());
        let mut moved = false;
        while let Some(&(other, service)) = jobs.front() {
            let [from, to] = [index, other].map(|node| at(node, LAST_PORT - 2 * service as u16));
            let mut model = self.shared.model.borrow_mut();
            let number = model.next_number(from, to);
            match rds.sendmsg(adapter, last[service], Msg::to(&to, &content(from, to, number, len))) {
                Ok(_) => drop(model.accepted(from, to, self.incarnation, len, false)),
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => break,
                Err(error) => panic!("{from} to {to}: {error}"),
            }
            jobs.pop_front();
            moved = true;
        }
        moved
    }

    /// Offers memory, uses what is offered, and hears what became of it; whether something happened.
    fn rdma(&mut self, life: &mut Life, time: u64, deadlines: &mut Vec<Option<u64>>) -> bool {
        let Life { adapter, rds, desk, .. } = life;
        let (shared, index, incarnation) = (&*self.shared, self.index, self.incarnation);
        let mut hand = Hand { shared, index, incarnation, time, adapter, rds };
        desk.offer(&mut hand, &mut self.plan.rdma, deadlines)
            | desk.hear(&mut hand)
            | desk.use_offers(&mut hand)
    }

    /// Reads all that there is; whether there was something.
    fn read(&mut self, life: &mut Life, dead: bool) -> bool {
        let mut moved = false;
        let (time, shared, index, incarnation) = (self.now(), &*self.shared, self.index, self.incarnation);
        let Life { adapter, rds, sockets, last, desk, .. } = life;
        for socket in sockets.iter().chain(&*last).copied().chain([desk.socket]) {
            let to = rds.local_address(socket).expect("open");
            let mut unread = 0;
            while let Ok(arrival) = rds.recvmsg(adapter, socket, &mut self.buffer, MsgFlags::empty()) {
                moved = true;
                let received = match arrival {
                    Arrival::Message(received) => received,
                    Arrival::RdmaStatus(notify) => {
                        if !dead {
                            let mut hand = Hand { shared, index, incarnation, time, adapter, rds };
                            desk.ended(&mut hand, notify);
                        }
                        continue;
                    }
                    other => panic!("{to}: {other:?}"),
                };
                let (from, len) = (received.from, received.len);
                assert_eq!(len, received.message_len, "the buffer is long enough");
                unread += len;
                let number = shared.model.borrow_mut().got(from, to, incarnation, &self.buffer[..len]);
                let event = match dead {
                    true => Event::Unread { from, to, number, len },
                    false => Event::Received { from, to, number, len },
                };
                shared.trace.note(time, event);
                if socket == desk.socket && !dead {
                    let mut hand = Hand { shared, index, incarnation, time, adapter, rds };
                    desk.received(&mut hand, to, number, &received);
                }
            }
            // The limit is soft: what was under way when the peers heard that the port is full still comes. That is no more
            // than each of their sockets may have outstanding, and the message that goes beyond it, once before and once after.
            let senders = shared.peers(index).count() * (self.plan.senders.len() + 2);
            let most = shared.settings.receive_buffer + 2 * senders * (shared.settings.send_buffer + LONGEST);
            assert!(unread <= most, "{to}: {unread} bytes were unread");
        }
        moved
    }

    /// Everything was sent, and it lives for good.
    pub fn is_through(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.desk.is_idle())
            && self.plan.deaths.is_empty()
            && self.plan.rdma.is_empty()
            && self.plan.whims.is_empty()
            && self.plan.senders.iter().all(|sender| sender.jobs.is_empty())
    }

    /// Everything, the last messages included, was sent and acknowledged.
    pub fn is_settled(&mut self) -> bool {
        let stage = self.shared.stage.get();
        let Some(Life { rds, sockets, last, desk, last_jobs, .. }) = &mut self.life else { return false };
        // What the desk did since the last messages went is acknowledged with the very last ones.
        let desks = (stage == Stage::VeryLast).then_some(desk.socket);
        let mut waiting = sockets.iter().chain(&*last).copied().chain(desks);
        let acknowledged = waiting.all(|socket| rds.unacknowledged(socket) == Ok(0));
        let read = rds.is_readable(desk.socket) == Ok(false) && desk.is_idle();
        acknowledged && read && last_jobs.0 == stage && last_jobs.1.is_empty()
    }

    /// Nobody's messages wait, and what nobody uses can be had: all frames are free but the receives that are posted.
    pub fn assert_all_is_free(&mut self) {
        let Some(Life { adapter, rds, sockets, desk, free_frames, .. }) = &mut self.life else {
            panic!("it lives")
        };
        for socket in sockets {
            assert_eq!(rds.is_readable(*socket), Ok(false), "everything was read");
        }
        let memory = adapter.dma_alloc(64, 64).expect("a little");
        let mut regions = desk.offers();
        let to = at(self.shared.peers(self.index).next().expect("a peer"), LAST_PORT);
        let offer = |rds: &mut Rds<'_>, adapter: &mut ModelAdapter| {
            rds.get_mr_for_dest(adapter, desk.socket, to, memory.as_slice(), RdmaFlags::empty()).is_ok()
        };
        while offer(rds, adapter) {
            regions += 1;
        }
        assert_eq!(regions, REGIONS, "node {}", self.index);
        let peers = self.shared.peers(self.index).count() * self.shared.settings.services;
        assert_eq!(rds.connections_up(), peers, "node {}: everybody is connected to everybody", self.index);
        let posted: usize = rds.ib_connections_info(adapter).map(|info| info.cache_allocs as usize).sum();
        assert_eq!(rds.free_frames() + posted, *free_frames, "node {}", self.index);
    }

    /// Prints what it has not done and what its connections are up to.
    pub fn describe(&self) {
        let index = self.index;
        eprintln!("node {index}, incarnation {}:", self.incarnation);
        for (port, sender) in (FIRST_PORT..).zip(&self.plan.senders) {
            if let Some(job) = sender.jobs.front() {
                eprintln!("  port {port}: {} messages left, next {job:?}", sender.jobs.len());
            }
        }
        let Some(Life { rds, free_frames, .. }) = &self.life else { return };
        eprintln!("  {} of {free_frames} frames are free; {:?}", rds.free_frames(), rds.counters());
        rds.connections_info().for_each(|connection| eprintln!("  {connection:?}"));
        rds.sockets_info().for_each(|socket| eprintln!("  {socket:?}"));
        let waiting = rds.send_queue_info().chain(rds.retransmit_queue_info());
        waiting.for_each(|message| eprintln!("  {message:?}"));
    }

    /// Times in which it did nothing.
    pub fn stalls(&self) -> usize {
        self.plan.stalls.len()
    }

    pub fn counters(&self) -> Vec<Counters> {
        self.past.iter().copied().chain(self.life.as_ref().map(|life| *life.rds.counters())).collect()
    }

    /// Ends RDS and the adapter, and looks what stays behind.
    pub fn close(&mut self) {
        let Some(Life { mut adapter, mut rds, sockets, last, desk, .. }) = self.life.take() else { return };
        for socket in sockets.into_iter().chain(last).chain([desk.socket]) {
            finish(&mut rds, &mut adapter, |rds, adapter| rds.close(adapter, socket)).expect("closes");
        }
        rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
        desk.close(&mut adapter);
        adapter.close().expect("closes");
        let world = &self.shared.world;
        let census = world.census(self.index);
        assert_eq!(census.total(), 0, "node {} left behind: {census}", self.index);
        // Peers that used a key too late were denied, perhaps while the connection was being made.
        let denied = |refusal: &String| {
            let has = |words: &str| refusal.contains(words);
            (has(": rkey ") && has("does not exist")) || has("remote access error") || has("is in error")
        };
        let other: Vec<String> =
            world.refusals(self.index).into_iter().filter(|refusal| !denied(refusal)).collect();
        assert!(other.is_empty(), "node {}: {other:?}", self.index);
    }
}
