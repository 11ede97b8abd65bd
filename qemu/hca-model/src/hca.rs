//! The device: registers and configuration space in front of its parts, and its bounded step.

use crate::bar::BarPort;
use crate::caps::Caps;
use crate::device::{Device, Life};
use crate::habits::Habits;
use crate::log::{Log, Subject};
use crate::meter::{Budget, FOR_PACKETS, FOR_QUEUES, Meter, price};
use crate::object::census::Census;
use crate::pages::FirmwarePages;
use crate::pci::ConfigSpace;
use crate::port::Port;
use crate::profile::{FalseDisable, Misbehaviour, Profile, Strictness};
use crate::recorder::{Failures, PeerAddress, QpRecord};
use crate::registers::{Effect, Registers};
use crate::restart::Restarts;
use crate::seams::{GuestMemory, Interrupts, Io, NoMemory, NoPeers};
use crate::transport::TransportCounters;
use mlx5_prm::event::EventType;
use mlx5_prm::init_seg as reg;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::NicInterface;
use rdma_fabric::packet::Packet;
use rdma_fabric::wire::Wire;
use std::collections::VecDeque;
use std::sync::Arc;

/// Register writes taken in one poll.
const BAR_BUDGET: usize = 512;
/// Commands carried out in one poll.
const COMMAND_BUDGET: usize = 8;
/// Packets taken in one poll.
const PACKET_BUDGET: usize = 64;
/// Work of the data path in one poll.
const TRANSPORT_BUDGET: usize = 64;
/// Packets that wait between two polls; more are lost, as in a full receive buffer.
const INBOX_LIMIT: usize = 1 << 12;

/// An emulated HCA.
#[derive(Debug)]
pub struct Hca {
    pub(crate) device: Device,
    registers: Registers,
    config: ConfigSpace,
    pub(crate) restarts: Restarts,
    /// Since when the link trains, or has trained.
    trained_since: Option<u64>,
    /// It has, or had, habits that show as time goes on.
    unusual: bool,
    inbox: VecDeque<Packet>,
    /// The device answers nothing any more, see [`kill`](Self::kill).
    killed: bool,
    /// Register writes are lost, and nothing is done: killed, or in D3hot where that counts.
    deaf: bool,
    /// Stands in for an HCA that was [lent](Self::lend).
    stands_in: bool,
}

impl Hca {
    /// A device at power-on, its cable unplugged.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let unusual = profile.habits != Habits::default();
        let device = Device::new(profile);
        let mut hca = Self {
            registers: Registers::new(&device.profile, Arc::clone(device.objects.memic.memory())),
            config: ConfigSpace::new(&device.profile),
            restarts: Restarts::default(),
            trained_since: None,
            unusual,
            inbox: VecDeque::new(),
            killed: false,
            deaf: false,
            stands_in: false,
            device,
        };
        hca.power_on();
        hca
    }

    /// What it was made as.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.device.profile
    }

    /// Its habits, to be changed while it lives.
    pub const fn habits_mut(&mut self) -> &mut Habits {
        self.unusual = true;
        &mut self.device.profile.habits
    }

    /// Its faults, likewise.
    pub const fn misbehaviour_mut(&mut self) -> &mut Misbehaviour {
        &mut self.device.profile.misbehaviour
    }

    /// Firmware fails: it stops, and asks for a reset with this syndrome.
    pub fn fail(&mut self, syndrome: HealthSyndrome) {
        self.device.objects.queues.fatal = Some(syndrome);
    }

    /// What it refused or noticed.
    #[must_use]
    pub const fn log(&self) -> &Log {
        &self.device.log
    }

    /// The log, for its owner's entries and its sink.
    pub const fn log_mut(&mut self) -> &mut Log {
        &mut self.device.log
    }

    /// Capabilities.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        &self.device.caps
    }

    /// How far the driver has brought it up.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.device.life
    }

    /// Host pages in the device's hands.
    #[must_use]
    pub const fn pages(&self) -> &FirmwarePages {
        &self.device.pages
    }

    /// The same of another function of the card that the driver gives pages for.
    #[must_use]
    pub fn pages_of(&self, function: u16) -> Option<&FirmwarePages> {
        self.device.other_pages.get(&function)
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> &Port {
        &self.device.port
    }

    /// The port, for whoever holds the other end of its cable.
    pub const fn port_mut(&mut self) -> &mut Port {
        &mut self.device.port
    }

    /// What happened on the data path.
    #[must_use]
    pub const fn counters(&self) -> &TransportCounters {
        &self.device.transport.counters
    }

    /// The work that the guest causes.
    #[must_use]
    pub const fn meter(&self) -> &Meter {
        &self.device.meter
    }

    /// The host memory that the guest holds.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.device.budget
    }

    /// How many objects of each kind exist.
    #[must_use]
    pub fn census(&self) -> Census {
        self.device.objects.census()
    }

    /// Returns the record of QP `qpn`, or `None` if it does not exist.
    #[must_use]
    pub fn qp_record(&self, qpn: u32) -> Option<QpRecord> {
        self.device.qp_record(qpn)
    }

    /// Returns the records of all QPs, in the order of their numbers, without their events.
    pub fn qp_records(&self) -> impl Iterator<Item = QpRecord> {
        self.device.qp_records()
    }

    /// Returns whether packets to `address` are for this HCA. No port has LID 0.
    #[must_use]
    pub fn has_address(&self, address: PeerAddress) -> bool {
        match address {
            PeerAddress::Lid(lid) => lid != 0 && self.device.port.lid == lid,
            PeerAddress::Gid(gid) => self.device.vport.roce_addresses().any(|own| own.gid == gid.0),
        }
    }

    /// Returns the last failures of QPs, also of those that were destroyed since.
    #[must_use]
    pub const fn qp_failures(&self) -> &Failures {
        self.device.transport.failures()
    }

    /// The shared receive queues: how many receives were taken from each, and the address of its doorbell record.
    pub fn shared_receive_queues(&self) -> impl Iterator<Item = (u16, u64)> {
        self.device.objects.srqs.iter().map(|(_, srq)| (srq.taken, srq.dbr_addr))
    }

    /// Moves the doorbell records of the queue pairs of QP1 out of the device's reach, or back:
    /// meanwhile each of them fails at its next work request.
    pub fn toggle_management_records(&mut self) {
        self.device.objects.qps.toggle_management_records();
    }

    /// Delays the flushes of queue pairs in ERROR, or lets them go on. Hardware too needs some time
    /// from the command to the completions.
    pub fn hold_flushes(&mut self, hold: bool) {
        self.device.hold_flushes(hold);
    }

    /// The front of BAR0.
    #[must_use]
    pub fn bar(&self) -> Arc<BarPort> {
        Arc::clone(self.registers.bar())
    }

    /// The front of BAR0, for who has the device at hand.
    #[must_use]
    pub fn registers(&self) -> &BarPort {
        self.registers.bar()
    }

    /// Shows the free-running timer as it is at `now`. Between two [`poll`](Self::poll)s it stands still; whoever lets a guest read
    /// registers then calls this first.
    #[inline]
    pub fn show_timer(&self, now: u64) {
        self.registers.show_timer(now);
    }

    /// Reads configuration space.
    pub fn config_read(&self, offset: usize, buf: &mut [u8]) {
        if self.killed {
            buf.fill(0xff);
            return;
        }
        self.config.read(offset, buf);
    }

    /// Writes configuration space; a function-level reset and an internal command act at once.
    pub fn config_write(&mut self, offset: usize, data: &[u8]) {
        if self.killed {
            return;
        }
        let effects = self.config.write(offset, data);
        if effects.internal_command {
            self.config.vendor_specific.icmd.run(&mut self.device);
        }
        if effects.function_level_reset {
            self.reset();
        }
        self.decode();
    }

    /// Registers answer if configuration space says so. Clients other than a QEMU may have left that to a host that does not exist here.
    fn decode(&mut self) {
        let lenient = self.device.profile.strictness == Strictness::Lenient;
        let sleeps = self.device.profile.habits.adversary.d3hot && self.config.sleeps();
        self.deaf = self.killed || sleeps;
        self.registers.bar().set_decoding(!sleeps && (lenient || self.config.memory_space()));
    }

    /// The device falls off the bus: every read answers all ones, writes have no effect, its link is down, and it does no
    /// DMA. Only [`revive`](Self::revive) ends that, no reset does.
    pub fn kill(&mut self) {
        if self.killed {
            return;
        }
        self.device.log.warn(Subject::Device, "", "killed: reads answer all ones");
        self.config.reset();
        self.power_on();
        (self.killed, self.deaf) = (true, true);
        self.registers.bar().set_dead(true);
    }

    /// Ends [`kill`](Self::kill): the device is as at power-on.
    pub fn revive(&mut self) {
        if std::mem::take(&mut self.killed) {
            self.power_on();
        }
    }

    /// Whether the device was killed and not revived since.
    #[must_use]
    pub const fn is_killed(&self) -> bool {
        self.killed
    }

    /// Whether the device may access memory and send interrupts (bus mastering is on).
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.config.bus_master()
    }

    /// Function-level reset: everything is as at power-on, configuration space included. The cable stays.
    pub fn reset(&mut self) {
        if self.killed {
            return;
        }
        self.device.log.info(Subject::Device, "function-level reset");
        self.restarts.count_reset();
        self.config.reset();
        let now = self.registers.now();
        self.power_on();
        if let Some(time) = self.device.profile.habits.reset_time {
            self.registers.go_away(now, time);
        }
    }

    /// Everything but configuration space as at power-on.
    fn power_on(&mut self) {
        self.device.power_on();
        self.registers.power_on();
        self.registers.begin_with(&self.device.profile.habits);
        self.decode();
        self.trained_since = None;
        self.inbox.clear();
    }

    /// Whether the port's physical link is up, as far as this side goes: cable plugged and port enabled.
    #[must_use]
    pub const fn link_is_up(&self) -> bool {
        self.device.port.cable && self.device.port.admin_up && self.device.port.trained
    }

    /// Whether the link went down since this was last asked, by a reset, a command or a cable out and in again: what holds the other
    /// end takes its own end down, too, although [`link_is_up`](Self::link_is_up) never said so.
    pub const fn take_link_loss(&mut self) -> bool {
        core::mem::replace(&mut self.device.port.link_lost, false)
    }

    /// A packet from the wire; the next [`poll`](Self::poll) takes it.
    pub fn receive(&mut self, packet: Packet) {
        if self.inbox.len() < INBOX_LIMIT && !self.killed {
            self.inbox.push_back(packet);
        } else {
            self.device.port.counters.rcv_errors += 1;
        }
    }

    /// Moves the HCA out, for a poll elsewhere, and leaves `stand_in` in its place until
    /// [`restore`](Self::restore). The stand-in shows the HCA's registers and work so far, collects
    /// packets, and has no work.
    #[must_use]
    pub fn lend(&mut self, mut stand_in: Self) -> Self {
        stand_in.stands_in = true;
        stand_in.registers.adopt_bar(self.registers.bar());
        stand_in.device.meter = self.device.meter;
        stand_in.device.log.adopt_count(&self.device.log);
        stand_in.device.port.cable = self.device.port.cable;
        stand_in.restarts = self.restarts;
        std::mem::replace(self, stand_in)
    }

    /// Puts a lent HCA back and passes on the packets that arrived meanwhile. Returns the stand-in.
    pub fn restore(&mut self, hca: Self) -> Self {
        let mut stand_in = std::mem::replace(self, hca);
        for packet in stand_in.inbox.drain(..) {
            self.receive(packet);
        }
        stand_in
    }

    /// Returns whether this is the stand-in of a lent HCA.
    #[must_use]
    pub const fn is_lent(&self) -> bool {
        self.stands_in
    }

    /// Does a bounded amount of work. Answers whether more could be done at once.
    pub fn poll(
        &mut self,
        now: u64,
        memory: &dyn GuestMemory,
        interrupts: &mut dyn Interrupts,
        wire: &mut dyn Wire,
    ) -> bool {
        !self.pass(now) && self.work(Io { now, memory, interrupts, wire, peers: &mut NoPeers })
    }

    /// [`poll`](Self::poll) after [`pass`](Self::pass) returned that there is work.
    pub fn work(&mut self, mut io: Io<'_>) -> bool {
        if !self.config.bus_master() {
            io.memory = &NoMemory;
        }
        let Self { device, registers, inbox, unusual, .. } = self;
        if !device.meter.begin() {
            return true;
        }
        let mut more = take_writes(device, registers, &mut io);
        if device.health.is_fatal() {
            // No EQ takes them any more, and internal commands go on making them.
            device.port.changes.clear();
            return more;
        }
        if !device.cmd.is_idle() {
            // What was held back comes before what commands do to its queue.
            device.expire_queues(&mut io);
            more |= device.poll_commands(&mut io, COMMAND_BUDGET);
            registers.show_habits(&device.profile.habits, device.is_enabled(), device.is_disabling());
        }
        for _ in 0..PACKET_BUDGET {
            if device.meter.leaves(FOR_QUEUES) {
                break;
            }
            let Some(packet) = inbox.pop_front() else { break };
            device.receive_packet(&mut io, packet);
        }
        more |= !inbox.is_empty();
        more |= device.poll_transport(&mut io, TRANSPORT_BUDGET);
        if !device.nic.is_idle() {
            more |= device.poll_nic(&mut io, TRANSPORT_BUDGET);
        }
        while !device.meter.is_spent()
            && let Some(cqn) = device.objects.queues.failed_cqs.pop()
        {
            device.cq_failed(&mut io, cqn);
        }
        if *unusual {
            device.follow_functions(&mut io);
        }
        more |= !device.objects.queues.failed_cqs.is_empty();
        device.expire_queues(&mut io);
        let queues = &mut device.objects.queues;
        if !device.port.changes.is_empty() {
            for change in device.port.changes.drain(..) {
                let mut data = [0; 28];
                data[8] = 1 << 4;
                queues.event(&mut io, &mut device.log, EventType::PORT_CHANGE, change.0, &data);
            }
        }
        if let Some(syndrome) = queues.fatal.take() {
            device.health.fail(&mut device.log, syndrome);
            registers.show_health(device.health.syndrome, &device.profile.habits);
        }
        more
    }

    /// Carries out the register writes so far, and nothing else, as a device does that
    /// [reads work queues at the doorbell](crate::adversary::Adversary::eager_fetch). The next
    /// [`poll`](Self::poll) does the work.
    pub fn take_writes(
        &mut self,
        now: u64,
        memory: &dyn GuestMemory,
        interrupts: &mut dyn Interrupts,
        wire: &mut dyn Wire,
    ) {
        if self.pass(now) || !self.device.meter.begin() {
            return;
        }
        let memory: &dyn GuestMemory = if self.config.bus_master() { memory } else { &NoMemory };
        take_writes(
            &mut self.device,
            &mut self.registers,
            &mut Io { now, memory, interrupts, wire, peers: &mut NoPeers },
        );
    }

    /// Lets time pass. Returns whether that is all there is to do.
    #[inline]
    pub fn pass(&mut self, now: u64) -> bool {
        self.device.log.tick(now);
        if self.stands_in {
            return true;
        }
        if self.deaf {
            self.registers.bar().clear();
            return true;
        }
        if self.restarts.held() {
            return true;
        }
        self.registers.tick(now);
        if !self.device.health.is_fatal() {
            if self.unusual {
                self.show_habits(now);
            }
            self.device.cmd.wake(now);
        }
        let idle = self.is_idle(now);
        if idle {
            self.device.meter.idle();
        }
        idle
    }

    /// Whether there is nothing to do.
    #[inline]
    fn is_idle(&self, now: u64) -> bool {
        let queues = &self.device.objects.queues;
        !self.registers.bar().has_work()
            && self.inbox.is_empty()
            && self.device.cmd.is_idle()
            && self.device.transport_is_idle(now)
            && queues.failed_cqs.is_empty()
            && queues.next_deadline().is_none_or(|due| due > now)
            && queues.fatal.is_none()
            && self.device.port.changes.is_empty()
            && !(self.unusual && self.device.functions_changed())
    }

    /// What some cards show as time goes on.
    #[cold]
    #[inline(never)]
    fn show_habits(&mut self, now: u64) {
        let (enabled, disabling) = (self.device.is_enabled(), self.device.is_disabling());
        self.registers.show_habits(&self.device.profile.habits, enabled, disabling);
        self.train(now);
    }

    /// Lets the link train, where that takes time or a driver.
    fn train(&mut self, now: u64) {
        let Device { profile, port, life, .. } = &mut self.device;
        let Habits { training, link_follows_driver, .. } = profile.habits;
        if training.is_none() && !link_follows_driver {
            self.trained_since = None;
            return port.set_trained(true);
        }
        let may = port.cable && port.admin_up && (!link_follows_driver || *life == Life::Initialized);
        self.trained_since = may.then(|| self.trained_since.unwrap_or(now));
        let end = self.trained_since.map(|since| since.saturating_add(training.unwrap_or(0)));
        port.set_trained(end.is_some_and(|end| now >= end));
    }

    /// When [`poll`](Self::poll) must be called next although nothing happens until then: timers of the data path, and
    /// the health counter, which must be seen to move.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if self.deaf || self.stands_in || self.restarts.held() {
            return None;
        }
        // A neighbour's request may have found a queue that fails.
        let queues = &self.device.objects.queues;
        let works = !self.device.health.is_fatal();
        if works && (!queues.failed_cqs.is_empty() || queues.fatal.is_some()) {
            return Some(0);
        }
        let mut own = self.registers.next_deadline();
        if let Some(due) = self.device.cmd.next_deadline() {
            own = own.min(due);
        }
        if let Some(held_back) = queues.next_deadline().filter(|_| works) {
            own = own.min(held_back);
        }
        match self.device.transport_deadline() {
            Some(deadline) if works => Some(deadline.min(own)),
            _ => Some(own),
        }
    }

    /// Whether it takes a neighbour's requests without packets.
    pub(crate) fn takes_copies(&self) -> bool {
        !self.deaf && !self.stands_in && !self.restarts.held() && !self.device.health.is_fatal()
    }

    /// Whether it takes a neighbour's request now, or says at once that it takes none.
    pub(crate) fn has_turn(&self) -> bool {
        self.device.meter.serves_neighbours() || !self.takes_copies()
    }

    /// The parts of a device that takes a neighbour's requests without packets, if it works.
    pub(crate) fn neighbour(&mut self) -> Option<&mut Device> {
        self.takes_copies().then_some(&mut self.device)
    }
}

/// Carries out register writes. Returns whether there are more.
#[inline(always)]
fn take_writes(device: &mut Device, registers: &mut Registers, io: &mut Io<'_>) -> bool {
    for taken in 0.. {
        if taken == BAR_BUDGET || device.meter.leaves(FOR_PACKETS) {
            return registers.bar().has_work();
        }
        let Some(write) = registers.bar().pop() else { break };
        device.meter.charge(price::REGISTER);
        registers.write(&write, |registers, effect| carry_out(device, registers, io, effect));
    }
    false
}

/// Does what a register write asks for.
#[inline]
fn carry_out(device: &mut Device, registers: &mut Registers, io: &mut Io<'_>, effect: Effect<'_>) {
    match effect {
        Effect::Uar { offset, bytes } => device.write_uar(io, offset, bytes),
        Effect::Commands(vector) => ring_commands(device, registers, vector),
        Effect::Interface(state, base) => change_interface(device, registers, state, base),
        Effect::ReadOnly(offset) => {
            device.log.warn(Subject::Register { offset }, "", "written, but read-only");
        }
    }
}

/// The command doorbell was rung.
#[inline(never)]
fn ring_commands(device: &mut Device, registers: &Registers, vector: u32) {
    if registers.is_booting() {
        let subject = Subject::Register { offset: reg::CMD_DBELL_OFFSET };
        let field = "initial_seg.command_doorbell_vector";
        return device.log.refuse(subject, field, "rung while `initializing` is set");
    }
    device.ring_commands(vector);
}

/// The driver takes the device over, or lets it go.
#[inline(never)]
fn change_interface(device: &mut Device, registers: &mut Registers, state: NicInterface, base: u64) {
    take_or_leave(device, registers, state, base);
    registers.show_initializing();
}

fn take_or_leave(device: &mut Device, registers: &mut Registers, state: NicInterface, base: u64) {
    let subject = Subject::Register { offset: reg::CMDQ_ADDR_L_SZ_OFFSET };
    match state {
        NicInterface::FULL_DRIVER => {
            let field = "initial_seg.cmdq_phy_addr_31_12";
            if registers.is_booting() {
                device.log.refuse(subject, field, "written while `initializing` is set");
                return;
            }
            let resetting = registers.is_resetting() || registers.interface() == NicInterface::SW_RESET;
            if device.health.is_fatal() || resetting {
                return;
            }
            if base == 0 {
                device.log.refuse(subject, field, "address 0");
                return;
            }
            device.start_commands(base);
            registers.show_command_queue();
            let habits = &device.profile.habits;
            if habits.disabled_until_enabled || habits.stays_disabled || habits.enabled_late.is_some() {
                registers.show_interface(NicInterface::DISABLED);
            }
            if let Some(time) = device.profile.habits.initializing_again {
                registers.initialize_again(time);
            }
        }
        NicInterface::DISABLED => {
            let disable = device.profile.misbehaviour.disable;
            if disable.is_none() {
                device.log.info(subject, "interface disabled");
                device.stop();
                device.cmd.disable();
            }
            if disable != Some(FalseDisable::Ignored) {
                registers.show_interface(NicInterface::DISABLED);
            }
        }
        NicInterface::SW_RESET => {
            device.log.info(subject, "software reset");
            device.stop();
            device.health = crate::health::Health::default();
            registers.show_health(device.health.syndrome, &device.profile.habits);
            registers.begin_reset();
        }
        other => device.log.refuse(subject, "initial_seg.nic_interface", format!("{other}")),
    }
}
