//! The device: its tables, its life cycle and its bounded step.

use crate::bar::BarPort;
use crate::caps::{self, Caps};
use crate::cmd;
use crate::front::{self, Front};
use crate::health::Health;
use crate::icmd;
use crate::log::{Log, Subject};
use crate::meter::{Budget, FOR_PACKETS, FOR_QUEUES, Meter, price};
use crate::object::counters::QCounters;
use crate::object::mkey::Mkeys;
use crate::object::qp::Qps;
use crate::object::queues::Queues;
use crate::object::srq::Srq;
use crate::object::table::Table;
use crate::object::uar::{FIRST_UAR, Uar};
use crate::pages::FirmwarePages;
use crate::pci::ConfigSpace;
use crate::port::Port;
use crate::profile::Profile;
use crate::restart::Restarts;
use crate::seams::{GuestMemory, Interrupts, Io, Link, NoMemory, Packet};
use crate::transport::{self, DeviceTransport};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::event::EventType;
use mlx5_prm::status::CmdStatus;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// How far the driver has brought the device up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Before ENABLE_HCA.
    Disabled,
    /// Before INIT_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}

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
/// The reserved L_Key.
const RESERVED_LKEY: u32 = 0x0000_0500;

/// An emulated HCA.
#[derive(Debug)]
pub struct Hca {
    /// What it was made as.
    pub profile: Profile,
    /// What it refused or noticed.
    pub log: Log,
    /// Capabilities.
    pub caps: Caps,
    /// How far it is brought up.
    pub life: Life,
    /// Host pages in the device's hands.
    pub pages: FirmwarePages,
    /// Event and completion queues.
    pub queues: Queues,
    /// Queue pairs.
    pub qps: Qps,
    /// Memory keys.
    pub mkeys: Mkeys,
    /// Protection domains.
    pub pds: Table<()>,
    /// XRC domains.
    pub xrcds: Table<()>,
    /// Transport domains.
    pub transport_domains: Table<()>,
    /// UAR pages.
    pub uars: Table<Uar>,
    /// Shared receive queues of all kinds.
    pub srqs: Table<Srq>,
    /// Q counter sets.
    pub q_counters: QCounters,
    /// The port.
    pub port: Port,
    /// State of the data path.
    pub transport: DeviceTransport,
    /// The work that the guest causes.
    pub meter: Meter,
    /// The host memory that the guest holds.
    pub budget: Budget,
    /// The interface that SET_ISSI chose.
    pub(crate) issi: u16,
    /// Moderation of each interrupt vector, as CONFIG_INT_MODERATION set it.
    pub(crate) int_moderation: Vec<u16>,
    pub(crate) cmd: cmd::Interface,
    pub(crate) front: Front,
    pub(crate) health: Health,
    pub(crate) config: ConfigSpace,
    pub(crate) bar: Arc<BarPort>,
    pub(crate) restarts: Restarts,
    inbox: VecDeque<Packet>,
    /// The device answers nothing any more, see [`kill`](Self::kill).
    killed: bool,
}

/// How many objects of each kind exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// UAR pages.
    pub uars: usize,
    /// Event queues.
    pub eqs: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Protection domains.
    pub pds: usize,
    /// Memory keys.
    pub mkeys: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues of all kinds.
    pub srqs: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// Transport domains.
    pub transport_domains: usize,
    /// Q counter sets.
    pub q_counters: usize,
    /// QPs in multicast groups.
    pub multicast: usize,
}

impl Census {
    /// All objects together.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.uars
            + self.eqs
            + self.cqs
            + self.pds
            + self.mkeys
            + self.qps
            + self.srqs
            + self.xrcds
            + self.transport_domains
            + self.q_counters
            + self.multicast
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.uars, "UAR"),
            (self.eqs, "EQ"),
            (self.cqs, "CQ"),
            (self.pds, "PD"),
            (self.mkeys, "memory key"),
            (self.qps, "QP"),
            (self.srqs, "SRQ"),
            (self.xrcds, "XRC domain"),
            (self.transport_domains, "transport domain"),
            (self.q_counters, "Q counter set"),
            (self.multicast, "multicast attachment"),
        ];
        let mut first = true;
        for (count, name) in counts {
            if count != 0 {
                write!(f, "{}{count} {name}", if first { "" } else { ", " })?;
                first = false;
            }
        }
        if first { f.write_str("nothing") } else { Ok(()) }
    }
}

impl Hca {
    /// A device at power-on, its cable unplugged.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let mut hca = Self {
            log: Log::default(),
            caps: Caps::new(&profile),
            life: Life::Disabled,
            pages: FirmwarePages::default(),
            queues: Queues::new(1 << caps::LOG_MAX_EQ, 1 << caps::LOG_MAX_CQ),
            qps: Qps::new(1 << profile.log_max_qp.min(caps::LOG_MAX_QP as u8)),
            mkeys: Mkeys::new(1 << caps::LOG_MAX_MKEY, RESERVED_LKEY),
            pds: Table::new(1, 1 << caps::LOG_MAX_PD),
            xrcds: Table::new(1, 1 << caps::LOG_MAX_XRCD),
            transport_domains: Table::new(1, 1 << caps::LOG_MAX_TRANSPORT_DOMAIN),
            uars: Table::new(FIRST_UAR, 1 << 12),
            srqs: Table::new(1, 1 << caps::LOG_MAX_SRQ),
            q_counters: QCounters::new(caps::MAX_QP_CNT),
            port: Port::new(&profile),
            transport: DeviceTransport::default(),
            meter: Meter::default(),
            budget: Budget::new(profile.memory),
            issi: 0,
            int_moderation: vec![0; usize::from(profile.vectors)],
            cmd: cmd::Interface::new(profile.log_cmdq_size),
            front: Front::default(),
            health: Health::default(),
            config: ConfigSpace::new(profile.vectors),
            bar: Arc::new(BarPort::default()),
            restarts: Restarts::default(),
            inbox: VecDeque::new(),
            killed: false,
            profile,
        };
        hca.power_on();
        hca
    }

    /// The front of BAR0.
    #[must_use]
    pub fn bar(&self) -> Arc<BarPort> {
        Arc::clone(&self.bar)
    }

    /// The front of BAR0, for who has the device at hand.
    #[must_use]
    pub fn registers(&self) -> &BarPort {
        &self.bar
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
            icmd::run(self);
        }
        if effects.function_level_reset {
            self.reset();
        }
    }

    /// The device falls off the bus: every read answers all ones, writes have no effect, its link is down, and it does no
    /// DMA. Only [`revive`](Self::revive) ends that, no reset does.
    pub fn kill(&mut self) {
        if self.killed {
            return;
        }
        self.log.warn(Subject::Device, "", "killed: reads answer all ones");
        self.config.reset();
        self.power_on();
        self.killed = true;
        self.bar.set_dead(true);
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
        self.log.info(Subject::Device, "function-level reset");
        self.restarts.count_reset();
        self.config.reset();
        self.power_on();
    }

    /// Everything but configuration space as at power-on.
    fn power_on(&mut self) {
        self.stop();
        self.bar.clear();
        self.health = Health::default();
        self.front = Front::default();
        let cable = self.port.cable;
        self.port = Port::new(&self.profile);
        self.port.set_cable(cable);
        self.inbox.clear();
        front::power_on(self);
    }

    /// Ends the driver's hold of the device: no objects, no pages, no command queue.
    pub(crate) fn stop(&mut self) {
        self.deinitialize();
        self.life = Life::Disabled;
        self.pages.clear();
        self.issi = 0;
        self.int_moderation.fill(0);
        self.cmd = cmd::Interface::new(self.profile.log_cmdq_size);
        self.budget.clear();
        self.reset_caps();
    }

    /// INIT_HCA.
    pub(crate) fn initialize(&mut self) {
        self.qps = Qps::new(1 << self.caps.current(cmd_hca_cap::log_max_qp).min(caps::LOG_MAX_QP));
        self.life = Life::Initialized;
        self.update_needed_pages();
    }

    /// TEARDOWN_HCA: no object survives; pages are all spare.
    pub(crate) fn deinitialize(&mut self) {
        self.queues.clear();
        self.qps.clear();
        self.mkeys.clear();
        self.pds.clear();
        self.xrcds.clear();
        self.transport_domains.clear();
        self.uars.clear();
        self.srqs.clear();
        self.q_counters.sets.clear();
        transport::on_reset(self);
        // What is left are the pages, and commands under way.
        self.budget.clear();
        let _ = self.budget.hold(self.pages.memory() + self.cmd.memory());
        if self.life == Life::Initialized {
            self.life = Life::Enabled;
        }
        self.pages.set_needed(0);
    }

    pub(crate) fn reset_caps(&mut self) {
        self.caps = Caps::new(&self.profile);
    }

    /// How many objects of each kind exist.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            uars: self.uars.len(),
            eqs: self.queues.eqs.len(),
            cqs: self.queues.cqs.len(),
            pds: self.pds.len(),
            mkeys: self.mkeys.table.len(),
            qps: self.qps.table.len(),
            srqs: self.srqs.len(),
            xrcds: self.xrcds.len(),
            transport_domains: self.transport_domains.len(),
            q_counters: self.q_counters.sets.len(),
            multicast: self.qps.multicast.len(),
        }
    }

    /// Pages asked for before SET_HCA_CAP.
    pub(crate) const fn boot_pages(&self) -> u32 {
        self.profile.boot_pages
    }

    /// Pages asked for before INIT_HCA; every further 1024 QPs cost one more.
    pub(crate) fn init_pages(&self) -> u32 {
        match self.profile.misbehaviour.starve_pages {
            Some(pages) => pages,
            None => self.profile.init_pages + ((1 << self.caps.current(cmd_hca_cap::log_max_qp)) >> 10),
        }
    }

    /// Pages that `objects` objects need.
    fn pages_for(&self, objects: usize) -> u32 {
        let steps = objects / (self.profile.objects_per_growth.max(1) as usize);
        let growth = u32::try_from(steps).unwrap_or(u32::MAX).saturating_mul(self.profile.growth_pages);
        self.boot_pages().saturating_add(self.init_pages()).saturating_add(growth)
    }

    /// Holds host memory for an object.
    pub(crate) fn hold(&mut self, bytes: u64) -> Result<(), cmd::Refusal> {
        self.budget.hold(bytes).map_err(|over| cmd::Refusal::new(CmdStatus::NO_RES, "", over.to_string()))
    }

    /// Counts a look at every queue for what it refers to.
    pub(crate) fn charge_scan(&mut self) {
        let queues = self.queues.cqs.len() + self.qps.table.len() + self.srqs.len();
        self.meter.charge(queues as u64);
    }

    /// Objects that live in host pages.
    fn paged_objects(&self) -> usize {
        self.queues.cqs.len() + self.mkeys.table.len() + self.qps.table.len() + self.srqs.len()
    }

    /// Sets the number of pages needed to what the objects need, and the commands that wait.
    pub(crate) fn update_needed_pages(&mut self) {
        let waiting = self.cmd.waiting();
        self.pages.set_needed(self.pages_for(self.paged_objects() + waiting));
    }

    /// Whether one more object can be made with the pages at hand; if not, the number needed is raised.
    pub(crate) fn pages_suffice(&mut self) -> bool {
        let needed = self.pages_for(self.paged_objects() + 1);
        if self.pages.given() >= needed {
            return true;
        }
        self.pages.set_needed(needed);
        false
    }

    /// Whether the port's physical link is up, as far as this side goes: cable plugged and port enabled.
    #[must_use]
    pub const fn link_is_up(&self) -> bool {
        self.port.cable && self.port.admin_up
    }

    /// A packet from the wire; the next [`poll`](Self::poll) takes it.
    pub fn receive(&mut self, packet: Packet) {
        if self.inbox.len() < INBOX_LIMIT && !self.killed {
            self.inbox.push_back(packet);
        } else {
            self.port.counters.rcv_errors += 1;
        }
    }

    /// The device's clock at `now`: [`caps::DEVICE_FREQUENCY_KHZ`] ticks, as in the internal timer and in CQEs.
    #[must_use]
    pub const fn device_clock(now: u64) -> u64 {
        // 156.25 MHz is 5 ticks in 32 ns.
        (now / 32) * 5 + (now % 32) * 5 / 32
    }

    /// Does a bounded amount of work. Answers whether more could be done at once.
    pub fn poll(
        &mut self,
        now: u64,
        memory: &dyn GuestMemory,
        interrupts: &mut dyn Interrupts,
        link: &mut dyn Link,
    ) -> bool {
        !self.pass(now) && self.work(now, memory, interrupts, link)
    }

    /// [`poll`](Self::poll) after [`pass`](Self::pass) said that there is something to do.
    pub(crate) fn work(
        &mut self,
        now: u64,
        memory: &dyn GuestMemory,
        interrupts: &mut dyn Interrupts,
        link: &mut dyn Link,
    ) -> bool {
        let memory: &dyn GuestMemory = if self.config.bus_master() { memory } else { &NoMemory };
        let mut io = Io { now, memory, interrupts, link };
        if !self.meter.begin() {
            return true;
        }
        let mut more = false;
        for taken in 0.. {
            if taken == BAR_BUDGET || self.meter.leaves(FOR_PACKETS) {
                more |= self.bar.has_work();
                break;
            }
            let Some(write) = self.bar.pop() else { break };
            self.meter.charge(price::REGISTER);
            front::write(self, &mut io, &write);
        }
        if self.health.is_fatal() {
            return more;
        }
        if !self.cmd.is_idle() {
            more |= cmd::poll(self, &mut io, COMMAND_BUDGET);
        }
        for _ in 0..PACKET_BUDGET {
            if self.meter.leaves(FOR_QUEUES) {
                break;
            }
            let Some(packet) = self.inbox.pop_front() else { break };
            transport::receive(self, &mut io, packet);
        }
        more |= !self.inbox.is_empty();
        more |= transport::poll(self, &mut io, TRANSPORT_BUDGET);
        while !self.meter.is_spent()
            && let Some(cqn) = self.queues.failed_cqs.pop()
        {
            transport::on_cq_error(self, &mut io, cqn);
        }
        more |= !self.queues.failed_cqs.is_empty();
        if self.queues.next_deadline().is_some_and(|due| due <= now) {
            self.queues.expire(&mut io, &mut self.log, &mut self.meter);
        }
        if !self.port.changes.is_empty() {
            self.raise_port_changes(&mut io);
        }
        if let Some(syndrome) = self.queues.fatal.take() {
            self.health.fail(&mut self.log, syndrome);
            front::show_health(self);
        }
        more
    }

    /// Lets time pass. Answers whether that is all there is to do.
    #[inline]
    pub(crate) fn pass(&mut self, now: u64) -> bool {
        self.log.tick(now);
        if self.killed {
            self.bar.clear();
            return true;
        }
        if self.restarts.held() {
            return true;
        }
        front::tick(self, now);
        let idle = self.is_idle(now);
        if idle {
            self.meter.idle();
        }
        idle
    }

    /// Whether there is nothing to do.
    fn is_idle(&self, now: u64) -> bool {
        !self.bar.has_work()
            && self.inbox.is_empty()
            && self.cmd.is_idle()
            && transport::is_idle(self, now)
            && self.queues.failed_cqs.is_empty()
            && self.queues.next_deadline().is_none_or(|due| due > now)
            && self.queues.fatal.is_none()
            && self.port.changes.is_empty()
    }

    fn raise_port_changes(&mut self, io: &mut Io<'_>) {
        for change in std::mem::take(&mut self.port.changes) {
            let mut data = [0; 28];
            data[8] = 1 << 4;
            self.queues.event(io, &mut self.log, EventType::PORT_CHANGE, change.0, &data);
        }
    }

    /// When [`poll`](Self::poll) must be called next although nothing happens until then: timers of the data path, and
    /// the health counter, which must be seen to move.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if self.killed || self.restarts.held() {
            return None;
        }
        // A neighbour's request may have found a queue that fails.
        let failed = !self.queues.failed_cqs.is_empty() || self.queues.fatal.is_some();
        if failed && !self.health.is_fatal() {
            return Some(0);
        }
        let mut own = front::next_deadline(self);
        if let Some(held_back) = self.queues.next_deadline().filter(|_| !self.health.is_fatal()) {
            own = own.min(held_back);
        }
        match transport::next_deadline(self) {
            Some(deadline) if !self.health.is_fatal() => Some(deadline.min(own)),
            _ => Some(own),
        }
    }
}
