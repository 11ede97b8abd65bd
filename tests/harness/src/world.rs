//! The world: a virtual clock, the devices, the fabric, and a scheduler that a seed decides for.
//!
//! Whatever runs costs a little virtual time, so that time goes on even when everybody is busy; when nobody has anything to
//! do, the clock jumps to the next deadline. A run that does not come to an end therefore always meets its limit in virtual
//! time, and a wall clock is never asked.

use crate::bounce::{Bounce, DeviceSide};
use crate::memory::Memory;
use crate::platform::{ModelBar, ModelPlatform};
use crate::trouble::Trouble;
use driver_mlx::{DmaRegion, DmaSlice, Instant, Wake};
use hca_model::Census;
use hca_model::log::{Entry, Level};
use hca_model::world::NodePort;
use hca_model::{DeviceSpec, GuestMemory, Hca, Interrupts, Profile};
use rdma_fabric::capture::Capture;
use rdma_fabric::counters::FabricCounters;
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::{Fabric, FabricConfig};
use rdma_fabric::medium::Medium;
use rdma_fabric::random::Random;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// How a world is made.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Decides who runs when, and what the fabric does to packets.
    pub seed: u64,
    /// The fabric's faults and latency; its own seed is set from `seed`.
    pub fabric: FabricConfig,
    /// The most virtual nanoseconds that a turn of a device or a node's software costs.
    pub turn: u64,
}

impl WorldConfig {
    /// A fabric without faults, 1 us from port to port.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, fabric: FabricConfig { seed, latency: 1_000, ..FabricConfig::default() }, turn: 1_000 }
    }
}

/// When a task wants its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as possible.
    Again,
    /// At this time, or when its node's HCA raises an interrupt.
    At(u64),
    /// Never.
    Done,
}

/// A node's software, as the scheduler sees it.
pub struct Task<'a> {
    node: usize,
    poll: Box<dyn FnMut(u64) -> Next + 'a>,
}

impl<'a> Task<'a> {
    /// `poll` is called with the time whenever it is the task's turn. Interrupts of `node` wake it.
    pub fn new(node: usize, poll: impl FnMut(u64) -> Next + 'a) -> Self {
        Self { node, poll: Box::new(poll) }
    }
}

/// The tasks did not end within their limit of virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// When it was given up, in virtual nanoseconds.
    pub at: u64,
    /// The nodes whose tasks were not done.
    pub unfinished: Vec<usize>,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodes {:?} were not done after {} us of virtual time", self.unfinished, self.at / 1_000)
    }
}

impl std::error::Error for Stalled {}

/// Interrupts counted.
#[derive(Debug)]
struct Vectors(Vec<u64>);

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        if let Some(count) = self.0.get_mut(usize::from(vector)) {
            *count += 1;
        } else {
            panic!("the device raised vector {vector} of {}", self.0.len());
        }
    }
}

/// The machine around an HCA.
struct Machine {
    memory: DeviceSide,
    vectors: Vectors,
}

impl NodePort for Machine {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        (&self.memory, &mut self.vectors)
    }
}

struct Device {
    bar: ModelBar,
    trouble: Rc<Trouble>,
    /// Has power.
    alive: bool,
    /// The last poll said that there is more.
    more: bool,
}

/// What is to befall a node's device, and when.
struct Fate {
    at: u64,
    node: usize,
    what: Box<dyn FnOnce(&mut Hca)>,
}

struct State {
    now: u64,
    turn: u64,
    random: Random,
    /// The HCAs and the fabric, with the turns of the server that users run.
    world: hca_model::world::World,
    /// By node, as all of these.
    machines: Vec<Machine>,
    devices: Vec<Device>,
    /// What is to befall devices.
    fates: Vec<Fate>,
    turns: u64,
}

/// See the [module](self).
pub struct World {
    state: RefCell<State>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World at {} ns", self.now())
    }
}

impl World {
    /// A world with a fabric and no nodes.
    #[must_use]
    pub fn new(config: &WorldConfig) -> Rc<Self> {
        let fabric = FabricConfig { seed: config.seed, ..config.fabric.clone() };
        let mut world = hca_model::world::World::new(fabric);
        // Packets take their time and meet faults that are switched on later.
        world.set_packets_only(true);
        Rc::new(Self {
            state: RefCell::new(State {
                // Not zero, so that a forgotten time shows.
                now: 1_000_000_000,
                turn: config.turn.max(1),
                random: Random::new(config.seed ^ 0x7365_6564),
                world,
                machines: Vec::new(),
                devices: Vec::new(),
                fates: Vec::new(),
                turns: 0,
            }),
        })
    }

    /// Adds an HCA with its cable plugged in, and memory of `memory` bytes for its node. PCI is set up as a machine's
    /// firmware and kernel would: memory decoding and bus mastering are on. The HCA forgives no
    /// mistake of its driver ([`DeviceSpec::adversarial`]).
    ///
    /// # Panics
    /// If the switch has no port left.
    pub fn attach(self: &Rc<Self>, profile: Profile, memory: usize) -> (ModelPlatform, DmaRegion) {
        let mut state = self.state.borrow_mut();
        let node = state.devices.len();
        let (memory, region) = Memory::new(node, memory);
        let vectors = Vectors(vec![0; usize::from(profile.vectors)]);
        let mut profile = DeviceSpec::adversarial(profile);
        let seed = state.world.medium.fabric().config().seed;
        profile.habits.adversary.lazy_umr = Some(seed ^ node as u64);
        state.world.add(profile, &format!("node {node}")).expect("the switch has a port left");
        let hca = state.world.hca_mut(node).expect("added");
        enable(hca);
        let bar = ModelBar::new(hca.bar());
        let world = Rc::downgrade(self);
        let rung = move || world.upgrade().iter().for_each(|world| world.take_doorbell(node));
        assert!(bar.registers.rung.set(Box::new(rung)).is_ok(), "the BAR is new");
        let bounce = Bounce::default();
        let memory = DeviceSide { memory, bounce: bounce.clone() };
        let trouble = Rc::<Trouble>::default();
        let platform =
            ModelPlatform { world: Rc::clone(self), node, bar, bounce, trouble: Rc::clone(&trouble) };
        state.machines.push(Machine { memory, vectors });
        state.devices.push(Device { bar, trouble, alive: true, more: false });
        (platform, region)
    }

    /// A doorbell of node `node` was written: half of the time its HCA reads the work queue at once, half of
    /// the time in its next turn.
    fn take_doorbell(&self, node: usize) {
        // A doorbell from within the world's own work waits for the next turn.
        let Ok(mut state) = self.state.try_borrow_mut() else { return };
        let State { devices, world, machines, now, turns, .. } = &mut *state;
        let Some(device) = devices.get_mut(node).filter(|device| device.alive && *turns % 2 == 0) else {
            return;
        };
        world.take_writes(node, *now, &mut machines[node]);
        // An interrupt that this raised ends the node's next sleep.
        device.more = true;
    }

    /// Virtual time in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.state.borrow().now
    }

    /// How many turns were taken so far, of devices and of tasks.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.state.borrow().turns
    }

    /// As [`World::idle`] until somebody wants to run again, but for a nanosecond at least.
    pub fn idle_until(&self, wake: Wake) {
        let now = self.now();
        let deadline = wake.deadline(Instant::from_nanos(now)).unwrap_or(Instant::MAX);
        self.idle(deadline.as_nanos().max(now + 1));
    }

    /// Lets each device that has something to do have one turn, in an order of the seed's; if none has, the clock goes to
    /// `deadline` or to the devices' next deadline, whichever is earlier.
    pub fn idle(&self, deadline: u64) {
        let state = &mut *self.state.borrow_mut();
        let first = state.random.below(state.devices.len() as u64) as usize;
        let mut ran = false;
        for step in 0..state.devices.len() {
            let index = (first + step) % state.devices.len();
            if state.device_is_due(index) {
                state.run_device(index);
                ran = true;
            }
        }
        if !ran {
            // The fabric has work of its own, and where no device has power nobody else sees to it.
            state.world.medium.poll(state.now);
            let next = state.next_deadline().filter(|at| *at > state.now);
            state.now = state.now.max(next.map_or(deadline, |at| at.min(deadline)));
        }
    }

    /// Gives devices and tasks turns until all tasks are done.
    ///
    /// # Errors
    /// [`Stalled`] after `limit` nanoseconds of virtual time.
    pub fn run(&self, tasks: &mut [Task<'_>], limit: u64) -> Result<(), Stalled> {
        /// Asleep until a time, or until there were more interrupts than this.
        #[derive(Clone, Copy)]
        struct Sleep {
            until: u64,
            interrupts: u64,
        }
        let end = self.now().saturating_add(limit);
        let mut sleeping = vec![Some(Sleep { until: 0, interrupts: 0 }); tasks.len()];
        let mut due = Vec::new();
        loop {
            let (now, interrupts) = {
                let state = &mut *self.state.borrow_mut();
                if sleeping.iter().all(Option::is_none) {
                    return Ok(());
                }
                if state.now >= end {
                    let unfinished = tasks.iter().zip(&sleeping).filter(|(_, s)| s.is_some());
                    return Err(Stalled { at: limit, unfinished: unfinished.map(|(t, _)| t.node).collect() });
                }
                due.clear();
                let devices = state.devices.len();
                due.extend((0..devices).filter(|&index| state.device_is_due(index)));
                for (index, (task, sleep)) in tasks.iter().zip(&sleeping).enumerate() {
                    if sleep
                        .is_some_and(|s| s.until <= state.now || s.interrupts != state.interrupts(task.node))
                    {
                        due.push(devices + index);
                    }
                }
                let Some(&chosen) = due.get(state.random.below(due.len() as u64) as usize) else {
                    let wakes = sleeping.iter().flatten().map(|sleep| sleep.until);
                    state.world.medium.poll(state.now);
                    let work = state.next_deadline().filter(|at| *at > state.now);
                    let next = work.into_iter().chain(wakes).min().unwrap_or(u64::MAX);
                    state.now = next.min(end).max(state.now + 1);
                    continue;
                };
                if chosen < devices {
                    state.run_device(chosen);
                    continue;
                }
                due.clear();
                due.push(chosen - devices);
                state.spend();
                (state.now, state.interrupts(tasks[chosen - devices].node))
            };
            // The world is not borrowed here: the software calls back into it.
            let index = due[0];
            sleeping[index] = match (tasks[index].poll)(now) {
                Next::Again => Some(Sleep { until: 0, interrupts }),
                Next::At(until) => Some(Sleep { until, interrupts }),
                Next::Done => None,
            };
        }
    }

    /// Lets the devices run alone until nothing more happens within `window` nanoseconds.
    pub fn settle(&self, window: u64) {
        loop {
            let state = &mut *self.state.borrow_mut();
            let due: Vec<usize> =
                (0..state.devices.len()).filter(|&index| state.device_is_due(index)).collect();
            if let Some(&index) = due.get(state.random.below(due.len() as u64) as usize) {
                state.run_device(index);
                continue;
            }
            state.world.medium.poll(state.now);
            match state.next_deadline().filter(|at| *at > state.now) {
                Some(at) if at <= state.now.saturating_add(window) => state.now = state.now.max(at),
                _ => return,
            }
        }
    }

    /// Lets the devices run alone for `duration` nanoseconds.
    pub fn pass(&self, duration: u64) {
        let end = self.now().saturating_add(duration);
        while self.now() < end {
            self.idle(end);
        }
    }

    /// Returns the packet counters of the busier medium.
    #[must_use]
    pub fn fabric_counters(&self) -> FabricCounters {
        let medium = &self.state.borrow().world.medium;
        let (fabric, switch) = (medium.fabric().counters(), medium.switch().counters());
        if switch.sent > fabric.sent { switch } else { fabric }
    }

    /// Request packets that all HCAs together sent again.
    #[must_use]
    pub fn retransmissions(&self) -> u64 {
        let state = self.state.borrow();
        state.world.nodes().iter().map(|node| node.hca.counters().retransmitted).sum()
    }

    /// Does something with the fabric: faults, links.
    pub fn with_fabric<R>(&self, work: impl FnOnce(&mut Fabric) -> R) -> R {
        work(self.state.borrow_mut().world.medium.fabric_mut())
    }

    /// Changes the injected faults of InfiniBand and Ethernet from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.borrow_mut().world.medium.set_faults(faults);
    }

    /// Does something with both networks at the world's time.
    pub fn with_medium<R>(&self, work: impl FnOnce(&mut Medium, u64) -> R) -> R {
        let state = &mut *self.state.borrow_mut();
        work(&mut state.world.medium, state.now)
    }

    /// Does something with node `node`'s HCA behind its driver's back.
    pub fn with_hca<R>(&self, node: usize, work: impl FnOnce(&mut Hca) -> R) -> R {
        work(self.state.borrow_mut().world.hca_mut(node).expect("attached"))
    }

    /// Records all packets from now on.
    pub fn capture(&self, capture: Box<dyn Capture + Send>) {
        self.state.borrow_mut().world.medium.fabric_mut().set_capture(capture);
    }

    /// Pulls or plugs in a node's cable.
    pub fn set_cable(&self, node: usize, plugged: bool) {
        self.state.borrow_mut().world.set_cable(node, plugged);
    }

    /// Takes power from a node: its HCA does nothing more, and its link is down.
    pub fn kill(&self, node: usize) {
        let state = &mut *self.state.borrow_mut();
        state.devices[node].alive = false;
        let port = state.world.nodes()[node].port;
        state.world.medium.cable(port, state.now).set_up(false);
    }

    /// Takes a node's HCA off the bus: reads give all ones, writes and interrupts get lost, the link is down.
    pub fn unplug(&self, node: usize) {
        self.state.borrow().devices[node].bar.registers.gone.set(true);
        self.kill(node);
    }

    /// A node's HCA falls off the bus at once, and comes back after so many nanoseconds as if it had just got power. PCI is then for its
    /// driver to set up.
    pub fn lose_hca(&self, node: usize, nanoseconds: u64) {
        self.with_hca(node, Hca::kill);
        self.later(node, nanoseconds, Hca::revive);
    }

    /// Something befalls a node's HCA in so many nanoseconds, whatever is going on then.
    pub fn later(&self, node: usize, nanoseconds: u64, what: impl FnOnce(&mut Hca) + 'static) {
        let state = &mut *self.state.borrow_mut();
        state.fates.push(Fate { at: state.now.saturating_add(nanoseconds), node, what: Box::new(what) });
    }

    /// Function-level reset of a node's HCA, and PCI set up again.
    pub fn reset(&self, node: usize) {
        self.with_hca(node, |hca| hca.reset());
        self.enable(node);
    }

    /// PCI of a node's HCA set up as a kernel does.
    pub fn enable(&self, node: usize) {
        enable(self.state.borrow_mut().world.hca_mut(node).expect("attached"));
    }

    /// A handle to the platform of node `node`, beside the one that its driver has.
    #[must_use]
    pub fn platform(self: &Rc<Self>, node: usize) -> ModelPlatform {
        let state = self.state.borrow();
        let Device { bar, trouble, .. } = &state.devices[node];
        let (bounce, trouble) = (state.machines[node].memory.bounce.clone(), Rc::clone(trouble));
        ModelPlatform { world: Rc::clone(self), node, bar: *bar, bounce, trouble }
    }

    /// Faults of a node's platform.
    #[must_use]
    pub fn trouble(&self, node: usize) -> Rc<Trouble> {
        Rc::clone(&self.state.borrow().devices[node].trouble)
    }

    /// Node `node`'s memory.
    #[must_use]
    pub fn memory(&self, node: usize) -> Memory {
        self.state.borrow().machines[node].memory.memory
    }

    /// From now on node `node`'s DMA is not coherent in this part of its region: its HCA sees a copy, and only the platform's hooks carry
    /// bytes from one to the other.
    pub fn end_coherence(&self, node: usize, part: DmaSlice<'_>) {
        self.state.borrow().machines[node].memory.bounce.shadow(part);
    }

    /// Virtual address and length of each mapping that node `node`'s platform has beside the
    /// region, and whether its HCA may write there.
    #[must_use]
    pub fn mapped(&self, node: usize) -> Vec<(usize, usize, bool)> {
        self.state.borrow().machines[node].memory.bounce.mapped()
    }

    /// How often a node's HCA raised each vector.
    #[must_use]
    pub fn interrupts(&self, node: usize) -> Vec<u64> {
        self.state.borrow().machines[node].vectors.0.clone()
    }

    /// What a node's HCA refused so far, as text.
    #[must_use]
    pub fn refusals(&self, node: usize) -> Vec<String> {
        let state = self.state.borrow();
        let refused = |entry: &&Entry| entry.level == Level::Refusal;
        state.world.nodes()[node].hca.log().entries().filter(refused).map(ToString::to_string).collect()
    }

    /// The objects that a node's HCA holds; equal before and after whatever cleans up behind itself.
    #[must_use]
    pub fn census(&self, node: usize) -> Census {
        self.with_hca(node, |hca| hca.census())
    }

    /// Pages of 4 KiB that a node's HCA holds.
    #[must_use]
    pub fn firmware_pages(&self, node: usize) -> u32 {
        self.with_hca(node, |hca| hca.pages().given())
    }
}

/// Memory decoding and bus mastering on.
fn enable(hca: &mut Hca) {
    const COMMAND: usize = 4;
    hca.config_write(COMMAND, &[0x06, 0x04]);
    hca.port_mut().set_cable(true);
}

impl Drop for State {
    fn drop(&mut self) {
        self.machines.iter().for_each(|machine| machine.memory.memory.discard());
    }
}

impl State {
    fn interrupts(&self, node: usize) -> u64 {
        self.machines.get(node).map_or(0, |machine| machine.vectors.0.iter().sum())
    }

    /// A turn costs from 1 ns to its full price.
    fn spend(&mut self) {
        self.turns += 1;
        self.now += 1 + self.random.below(self.turn);
    }

    fn device_is_due(&mut self, index: usize) -> bool {
        let device = &self.devices[index];
        // The first device also stands for the fabric's own work, which is done in every turn.
        device.alive
            && (device.more
                || device.bar.registers.port.has_work()
                || self.world.nodes()[index].hca.next_deadline().is_some_and(|at| at <= self.now)
                || self.fates.iter().any(|fate| fate.node == index && fate.at <= self.now)
                || self.world.medium.next_deadline().is_some_and(|at| at <= self.now)
                || self.world.link_changes(index, self.now))
    }

    fn run_device(&mut self, index: usize) {
        let now = self.now;
        for fate in self.fates.extract_if(.., |fate| fate.node == index && fate.at <= now) {
            (fate.what)(self.world.hca_mut(index).expect("attached"));
        }
        self.devices[index].more = self.world.poll_node(index, now, &mut self.machines);
        self.world.medium.poll(now);
        self.spend();
    }

    fn next_deadline(&self) -> Option<u64> {
        let alive = self.devices.iter().zip(self.world.nodes()).filter(|(device, _)| device.alive);
        let devices = alive.filter_map(|(_, node)| node.hca.next_deadline());
        let fates = self.fates.iter().map(|fate| fate.at);
        devices.chain(self.world.medium.next_deadline()).chain(fates).min()
    }
}
