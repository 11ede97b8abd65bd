//! The parts of a device below its registers: objects, pages, command interface, port, data path; and its life cycle.

use crate::caps::Caps;
use crate::cmd::{Interface, Refusal, Refused};
use crate::health::Health;
use crate::log::{Log, Subject};
use crate::meter::{Budget, Meter};

/// Bytes of objects whose removal counts as one step of work.
const BYTES_DROPPED_PER_STEP: u64 = 256;
use crate::object::objects::Objects;
use crate::object::queues::Overruns;
use crate::pages::FirmwarePages;
use crate::port::{NicVport, Port};
use crate::profile::Profile;
use crate::seams::Io;
use crate::transport::{DeviceTransport, NicTransport};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::init_seg as reg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::PortState;
use std::collections::BTreeMap;

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

/// What the command handlers and the data path work on.
#[derive(Debug)]
pub(crate) struct Device {
    /// What it was made as.
    pub(crate) profile: Profile,
    /// What it refused or noticed.
    pub(crate) log: Log,
    /// Capabilities.
    pub(crate) caps: Caps,
    /// How far it is brought up.
    pub(crate) life: Life,
    /// Somebody else has given a command queue since, whose ENABLE_HCA takes the device over.
    pub(crate) new_owner: bool,
    /// Host pages in the device's hands.
    pub(crate) pages: FirmwarePages,
    /// All objects.
    pub(crate) objects: Objects,
    /// The port.
    pub(crate) port: Port,
    /// The vport of an Ethernet function.
    pub(crate) vport: NicVport,
    /// State of the data path.
    pub(crate) transport: DeviceTransport,
    /// State of the data path of raw Ethernet.
    pub(crate) nic: NicTransport,
    /// The work that the guest causes.
    pub(crate) meter: Meter,
    /// The host memory that the guest holds.
    pub(crate) budget: Budget,
    /// Pages that it wants besides, see [`Habits::page_requests`](crate::habits::Habits::page_requests).
    pub(crate) hunger: u32,
    /// Pages of other functions.
    pub(crate) other_pages: BTreeMap<u16, FirmwarePages>,
    /// The interface that SET_ISSI chose.
    pub(crate) issi: u16,
    /// Moderation of each interrupt vector, as CONFIG_INT_MODERATION set it.
    pub(crate) int_moderation: Vec<u16>,
    /// The command interface.
    pub(crate) cmd: Interface,
    /// Commands that were refused.
    pub(crate) refused: Refused,
    /// Whether it works.
    pub(crate) health: Health,
}

/// The device's clock at `now`: [`DEVICE_FREQUENCY_KHZ`](crate::caps::DEVICE_FREQUENCY_KHZ) ticks, as in the internal timer and in
/// CQEs.
#[must_use]
pub const fn device_clock(now: u64) -> u64 {
    // 156.25 MHz is 5 ticks in 32 ns.
    (now / 32) * 5 + (now % 32) * 5 / 32
}

impl Device {
    /// Events and completions of completion queues whose time has come.
    #[inline(always)]
    pub(crate) fn expire_queues(&mut self, io: &mut Io<'_>) {
        let queues = &mut self.objects.queues;
        if queues.next_deadline().is_some_and(|due| due <= io.now) {
            queues.expire(io, &mut self.log, &mut self.meter);
        }
    }

    /// A device before ENABLE_HCA.
    pub(crate) fn new(profile: Profile) -> Self {
        let caps = Caps::new(&profile);
        Self {
            log: Log::default(),
            life: Life::Disabled,
            new_owner: false,
            pages: FirmwarePages::default(),
            objects: Objects::new(&caps, &profile),
            caps,
            port: Port::new(&profile),
            vport: NicVport::new(profile.mac()),
            transport: DeviceTransport::default(),
            nic: NicTransport::default(),
            meter: Meter::default(),
            budget: Budget::new(profile.memory),
            hunger: 0,
            other_pages: BTreeMap::new(),
            issi: 0,
            int_moderation: vec![0; usize::from(profile.vectors)],
            cmd: Interface::new(profile.log_cmdq_size),
            refused: Refused::default(),
            health: Health::default(),
            profile,
        }
    }

    /// Everything as at power-on. The cable stays.
    pub(crate) fn power_on(&mut self) {
        self.stop();
        self.health = Health::default();
        self.refused = Refused::default();
        self.objects.queues.overruns = Overruns::default();
        let Port { cable, link_lost, state, .. } = self.port;
        self.port = Port::new(&self.profile);
        // The other end sees the link go, although it may be back before it looks.
        self.port.link_lost = link_lost || state != PortState::DOWN;
        self.port.set_cable(cable);
    }

    /// Ends the driver's hold of the device: no objects, no pages, no command queue.
    pub(crate) fn stop(&mut self) {
        self.cmd = Interface::new(self.profile.log_cmdq_size);
        self.let_go();
    }

    /// The same, the command queue stays: that of the next owner.
    pub(crate) fn let_go(&mut self) {
        self.pages.clear();
        self.other_pages.clear();
        self.deinitialize();
        self.life = Life::Disabled;
        self.new_owner = false;
        self.issi = 0;
        self.vport = NicVport::new(self.profile.mac());
        self.int_moderation.fill(0);
        self.reset_caps();
    }

    /// Returns whether DISABLE_HCA is in progress.
    pub(crate) fn is_disabling(&self) -> bool {
        self.cmd.is_carrying_out(Opcode::DISABLE_HCA)
    }

    /// Whether ENABLE_HCA was the last owner's, and not that of one before.
    pub(crate) fn is_enabled(&self) -> bool {
        self.life != Life::Disabled && !self.new_owner
    }

    /// The driver gave the command queue's address. What was given to an earlier queue and is not completed is forgotten. A device that is
    /// enabled has another owner now (a crash kernel, the next system of a kexec): what the one before left goes on until the new one's
    /// ENABLE_HCA, since the device cannot know that nobody waits for it any more.
    pub(crate) fn start_commands(&mut self, base: u64) {
        self.new_owner = self.life != Life::Disabled;
        if self.cmd.outstanding() != 0 {
            let subject = Subject::Register { offset: reg::CMDQ_ADDR_L_SZ_OFFSET };
            let text = format!("replaced while {} commands are outstanding", self.cmd.outstanding());
            self.log.warn(subject, "initial_seg.cmdq_phy_addr_31_12", text);
        }
        self.budget.release(self.cmd.memory());
        self.cmd.start(base);
    }

    /// The doorbell vector of the command interface was written.
    pub(crate) fn ring_commands(&mut self, vector: u32) {
        if self.health.is_fatal() {
            return;
        }
        if self.cmd.started() {
            self.cmd.ring(vector);
        } else if !self.cmd.is_disabled() {
            let subject = Subject::Register { offset: reg::CMD_DBELL_OFFSET };
            let text = "rung without a command queue";
            self.log.refuse(subject, "initial_seg.command_doorbell_vector", text);
        }
    }

    /// INIT_HCA.
    pub(crate) fn initialize(&mut self) {
        self.objects.initialize(&self.caps, &self.profile);
        self.life = Life::Initialized;
        self.update_needed_pages();
    }

    /// TEARDOWN_HCA: no object survives; pages are all spare.
    pub(crate) fn deinitialize(&mut self) {
        self.objects.clear();
        self.transport.reset();
        self.nic.reset();
        // What is left are the pages, and commands under way.
        // The objects are dropped here at once, and later calls pay for it.
        self.meter.charge(self.budget.held() / BYTES_DROPPED_PER_STEP);
        self.budget.clear();
        let others: u64 = self.other_pages.values().map(FirmwarePages::memory).sum();
        let _ = self.budget.hold(self.pages.memory() + others + self.cmd.memory());
        self.hunger = 0;
        if self.life == Life::Initialized {
            self.life = Life::Enabled;
        }
        self.pages.set_needed(0);
    }

    pub(crate) fn reset_caps(&mut self) {
        self.caps = Caps::new(&self.profile);
    }

    /// Pages asked for before SET_HCA_CAP.
    pub(crate) const fn boot_pages(&self) -> u32 {
        self.profile.boot_pages
    }

    /// Pages asked for before INIT_HCA: QPs cost some.
    pub(crate) fn init_pages(&self) -> u32 {
        match self.profile.misbehaviour.starve_pages {
            Some(pages) => pages,
            None => {
                let thousands = (1 << self.caps.current(cmd_hca_cap::log_max_qp)) >> 10;
                let for_qps = self.profile.card.pages_for_qps.saturating_mul(thousands);
                self.profile.init_pages.saturating_add(for_qps)
            }
        }
    }

    /// Pages that `objects` objects need.
    fn pages_for(&self, objects: usize) -> u32 {
        let steps = objects / (self.profile.objects_per_growth.max(1) as usize);
        let growth = u32::try_from(steps).unwrap_or(u32::MAX).saturating_mul(self.profile.growth_pages);
        self.boot_pages().saturating_add(self.init_pages()).saturating_add(growth).saturating_add(self.hunger)
    }

    /// Holds host memory for an object.
    pub(crate) fn hold(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.budget.hold(bytes).map_err(|over| Refusal::new(CmdStatus::NO_RES, "", over.to_string()))
    }

    /// Counts a look at every queue for what it refers to.
    pub(crate) fn charge_scan(&mut self) {
        let queues = self.objects.queues();
        self.meter.charge(queues as u64);
    }

    /// Sets the number of pages needed to what the objects need, and the commands that wait.
    pub(crate) fn update_needed_pages(&mut self) {
        let waiting = self.cmd.waiting();
        self.pages.set_needed(self.pages_for(self.objects.paged() + waiting));
    }

    /// Whether one more object can be made with the pages at hand; if not, the number needed is raised.
    pub(crate) fn pages_suffice(&mut self) -> bool {
        self.pages_suffice_for(1)
    }

    /// The same for so many more objects.
    pub(crate) fn pages_suffice_for(&mut self, objects: usize) -> bool {
        let needed = self.pages_for(self.objects.paged() + objects);
        if self.pages.given() >= needed {
            return true;
        }
        self.pages.set_needed(needed);
        false
    }
}
