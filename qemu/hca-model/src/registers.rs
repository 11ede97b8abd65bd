//! The registers of the initialization segment (PRM, "Initialization Segment"): what reads show, and what writes ask for.

use crate::bar::{BarPort, BarWrite, INIT_SEG_SIZE};
use crate::card::Card;
use crate::cmd::LOG_STRIDE;
use crate::device::device_clock;
use crate::habits::Habits;
use crate::object::memic::DeviceMemory;
use crate::profile::Profile;
use mlx5_prm::init_seg as reg;
use mlx5_prm::later;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::NicInterface;
use std::ops::Range;
use std::sync::Arc;

/// Nanoseconds of a step of the health counter.
const SLOW: u64 = 10_000_000;
/// Time from reset until `initializing` clears.
const BOOT_TIME: u64 = 2_000_000;
/// Time that a software reset takes.
const SOFTWARE_RESET_TIME: u64 = 10_000_000;
/// Longest time between two movements of the health counter.
const HEALTH_PERIOD: u64 = 100_000_000;

/// Bytes of an entry of the MSI-X table.
const MSIX_ENTRY: usize = 16;

/// `health_buffer.valid`: the severity beside it counts.
const HEALTH_VALID: u32 = 1 << 27;
/// What assertions of the model say to the vendor.
const ASSERTION: u32 = 0x20a1_35c8;

/// What a register write asks the device for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect<'a> {
    /// `nic_interface` and the command queue's address were written.
    Interface(NicInterface, u64),
    /// The command doorbell vector was written.
    Commands(u32),
    /// A part of at most 8 bytes of a UAR page was written, within one 64-bit unit at `offset` of BAR0.
    Uar {
        /// Bytes from the start of BAR0.
        offset: usize,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A register was written that is read-only.
    ReadOnly(usize),
}

/// The registers.
#[derive(Debug)]
pub(crate) struct Registers {
    card: &'static Card,
    /// Where the MSI-X table and its pending bits are, if among the registers: whoever sends the interrupts keeps them.
    interrupts: [Range<usize>; 2],
    /// What the guest sees and writes.
    bar: Arc<BarPort>,
    /// When `initializing` clears; `None` before the first poll after a reset, or when it has cleared.
    booting: Option<Option<u64>>,
    /// When a software reset is done.
    resetting: Option<u64>,
    cmdq_high: u32,
    cmdq_low: u32,
    doorbell: u32,
    /// Last `now`.
    now: u64,
    /// Until when the slow counters are as shown.
    shown_until: u64,
    /// When a reset that somebody else began is over.
    foreign_reset: Option<u64>,
    /// When ENABLE_HCA completed, where `nic_interface` follows late.
    enabled_since: Option<u64>,
    /// Until when all registers read as all ones after a reset.
    away_until: u64,
    /// Time from reset until `initializing` clears.
    boot_time: u64,
    /// A neighbour's syndrome, as it was last shown.
    neighbour: u8,
    /// The health counter stands still for a while.
    counter_stands: bool,
    /// The syndrome that the health buffer shows.
    syndrome: u8,
    /// The read-only low byte of 0x014.
    sizes: u32,
    /// The health counter stands still (a fault ordered by the profile).
    wedge_health: bool,
    /// `initializing` never clears (likewise).
    never_initialized: bool,
}

impl Registers {
    /// Registers before [`power_on`](Self::power_on).
    pub(crate) fn new(profile: &Profile, memory: Arc<DeviceMemory>) -> Self {
        let [table, pending] = profile.msix.map(|at| at as usize);
        let vectors = usize::from(profile.vectors);
        Self {
            card: profile.card,
            interrupts: [
                table..table + MSIX_ENTRY * vectors,
                pending..pending + vectors.next_multiple_of(64) / 8,
            ],
            bar: Arc::new(BarPort::new(profile, memory)),
            booting: None,
            resetting: None,
            cmdq_high: 0,
            cmdq_low: 0,
            doorbell: 0,
            now: 0,
            shown_until: 0,
            foreign_reset: None,
            enabled_since: None,
            away_until: 0,
            boot_time: BOOT_TIME,
            neighbour: 0,
            counter_stands: false,
            syndrome: 0,
            sizes: u32::from(profile.log_cmdq_size.min(5)) << 4 | LOG_STRIDE,
            wedge_health: profile.misbehaviour.wedge_health,
            never_initialized: profile.misbehaviour.never_initialized,
        }
    }

    /// The front of BAR0.
    pub(crate) const fn bar(&self) -> &Arc<BarPort> {
        &self.bar
    }

    /// Shows its values in another register file from now on.
    pub(crate) fn adopt_bar(&mut self, bar: &Arc<BarPort>) {
        self.bar = Arc::clone(bar);
    }

    /// Values after power-on.
    pub(crate) fn power_on(&mut self) {
        self.booting = Some(None);
        self.resetting = None;
        (self.cmdq_high, self.cmdq_low, self.doorbell) = (0, 0, 0);
        (self.now, self.shown_until, self.syndrome) = (0, 0, 0);
        (self.foreign_reset, self.neighbour, self.counter_stands) = (None, 0, false);
        self.away_until = 0;
        self.enabled_since = None;
        let bar = &self.bar;
        // A driver that reads it right after a reset sees it go on.
        let timer =
            [reg::INTERNAL_TIMER_H_OFFSET, reg::INTERNAL_TIMER_L_OFFSET].map(|at| (at, bar.get32(at)));
        bar.clear();
        bar.zero_registers();
        for (at, value) in timer {
            bar.set32(at, value);
        }
        let (major, minor, sub_minor) = self.card.firmware;
        bar.set32(reg::FW_REV_OFFSET, minor << 16 | major);
        bar.set32(reg::CMD_INTERFACE_REV_OFFSET, reg::CMD_INTERFACE_REV << 16 | sub_minor);
        bar.set32(reg::CMDQ_ADDR_L_SZ_OFFSET, self.sizes);
        // Full driver, disabled, software reset.
        // A driver may ask for a reset after a fatal error.
        bar.set32(reg::INITIALIZING_OFFSET, reg::INITIALIZING | reg::FW_RESET_SUPPORTED | 0b011 << 24);
        bar.set32(reg::HEALTH_FW_VERSION_OFFSET, major << 24 | minor << 16 | sub_minor);
        bar.set32(reg::HEALTH_BUFFER_OFFSET + 0x34, self.card.hardware_id);
        bar.set_dead(false);
    }

    /// What some cards show and others do not; after [`power_on`](Self::power_on).
    pub(crate) fn begin_with(&mut self, habits: &Habits) {
        self.boot_time = habits.initializing.unwrap_or(BOOT_TIME);
        self.bar.set32(reg::CMD_EXEC_TO_OFFSET, habits.cmd_exec_to);
        self.bar.set32(reg::CMD_Q_INIT_TO_OFFSET, habits.cmd_q_init_to);
        if habits.embedded_cpu {
            let word = self.bar.get32(reg::INITIALIZING_OFFSET);
            self.bar.set32(reg::INITIALIZING_OFFSET, word | later::EMBEDDED_CPU);
        }
        if let Some(state) = habits.at_power_on() {
            self.show_interface(state);
        }
    }

    /// The same as time goes on, of a device that works.
    pub(crate) fn show_habits(&mut self, habits: &Habits, enabled: bool, disabling: bool) {
        self.bar.set_initializing_again(habits.initializing_again.is_some());
        self.bar.set_hidden_queue(habits.hidden_queue);
        self.bar.set_dead(self.now < self.away_until || habits.is_away(self.now));
        self.counter_stands = habits.counter_stands(self.now);
        if self.interface() == NicInterface::SW_RESET
            && let Some(time) = habits.reset_under_way
            && self.resetting.is_none()
        {
            let end = *self.foreign_reset.get_or_insert(self.now.saturating_add(time));
            if self.now >= end {
                self.show_interface(NicInterface::DISABLED);
            }
        }
        if enabled && habits.disabled_until_enabled && !habits.stays_disabled {
            self.show_interface(NicInterface::FULL_DRIVER);
        }
        self.enabled_since = enabled.then(|| self.enabled_since.unwrap_or(self.now));
        if let (Some(since), Some(late)) = (self.enabled_since, habits.enabled_late)
            && self.now >= since.saturating_add(late)
        {
            self.show_interface(NicInterface::FULL_DRIVER);
        }
        if disabling && habits.disabled_early {
            self.show_interface(NicInterface::DISABLED);
        }
        // Without `rfr`: this function is well.
        let neighbour = habits.neighbour_syndrome.map_or(0, |syndrome| syndrome.0);
        if self.neighbour != neighbour {
            self.neighbour = neighbour;
            self.syndrome = neighbour;
            self.bar.set32(reg::HEALTH_SYND_OFFSET, u32::from(neighbour) << 16);
        }
    }

    /// `nic_interface` as it is shown.
    pub(crate) fn interface(&self) -> NicInterface {
        let word = self.bar.get32(reg::CMDQ_ADDR_L_SZ_OFFSET) & reg::NIC_INTERFACE_MASK;
        NicInterface((word >> reg::NIC_INTERFACE_SHIFT) as u8)
    }

    /// Whether `initializing` is set.
    pub(crate) const fn is_booting(&self) -> bool {
        self.booting.is_some()
    }

    /// Whether a software reset is under way.
    pub(crate) const fn is_resetting(&self) -> bool {
        self.resetting.is_some()
    }

    /// The function was reset at `now`, and answers all ones for a while.
    pub(crate) fn go_away(&mut self, now: u64, time: u64) {
        self.away_until = now.saturating_add(time);
        self.bar.set_dead(true);
    }

    /// Sets `initializing` again for a while.
    pub(crate) fn initialize_again(&mut self, time: u64) {
        self.booting = Some(Some(self.now.saturating_add(time)));
    }

    /// Shows `initializing` as it is.
    pub(crate) fn show_initializing(&self) {
        let word = self.bar.get32(reg::INITIALIZING_OFFSET) & !reg::INITIALIZING;
        let now = if self.is_booting() { reg::INITIALIZING } else { 0 };
        self.bar.set32(reg::INITIALIZING_OFFSET, word | now);
    }

    /// The last time that was passed.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// Begins a software reset.
    pub(crate) fn begin_reset(&mut self) {
        self.resetting = Some(self.now.saturating_add(SOFTWARE_RESET_TIME));
        self.show_interface(NicInterface::SW_RESET);
    }

    /// Shows the health syndrome.
    pub(crate) fn show_health(&mut self, syndrome: HealthSyndrome, habits: &Habits) {
        self.syndrome = syndrome.0;
        let syndrome = u32::from(syndrome.0);
        let failed = |word: u32| if syndrome == 0 { 0 } else { word };
        // Firmware asks for a reset, as a rule; severity 0, an emergency, is valid.
        let wish = if habits.silent_assert { 0 } else { later::HEALTH_RFR };
        let cold = if habits.cold_reset { later::HEALTH_CRR } else { 0 };
        self.bar.set32(reg::HEALTH_RFR_OFFSET, failed(wish | cold | HEALTH_VALID));
        // Arguments of the assertion, its place and its caller mean something to the vendor alone.
        for i in 0..later::ASSERT_VARS {
            let word = ASSERTION.rotate_left(4 * i as u32);
            self.bar.set32(later::ASSERT_VAR_OFFSET + 4 * i, failed(word));
        }
        self.bar.set32(reg::HEALTH_BUFFER_OFFSET + 0x20, failed(ASSERTION >> 8));
        self.bar.set32(reg::HEALTH_BUFFER_OFFSET + 0x24, failed(ASSERTION >> 8 | 0x40));
        self.bar.set32(reg::HEALTH_SYND_OFFSET, syndrome << 16);
        let counter = self.bar.get32(reg::HEALTH_COUNTER_OFFSET) & 0x00ff_ffff;
        self.bar.set32(reg::HEALTH_COUNTER_OFFSET, syndrome << 24 | counter);
    }

    /// Shows the command queue's address as the device has taken it.
    pub(crate) fn show_command_queue(&self) {
        let address = if self.bar.hides_queue() { 0 } else { self.cmdq_low & !0xfff };
        self.bar.set32(reg::CMDQ_ADDR_L_SZ_OFFSET, address | self.sizes);
    }

    /// Shows the state of the driver's interface.
    pub(crate) fn show_interface(&self, state: NicInterface) {
        let low = self.bar.get32(reg::CMDQ_ADDR_L_SZ_OFFSET) & !reg::NIC_INTERFACE_MASK;
        self.bar.set32(reg::CMDQ_ADDR_L_SZ_OFFSET, low | u32::from(state.0) << reg::NIC_INTERFACE_SHIFT);
    }

    /// The free-running timer.
    #[inline]
    pub(crate) fn show_timer(&self, now: u64) {
        let clock = device_clock(now);
        self.bar.set32(reg::INTERNAL_TIMER_H_OFFSET, (clock >> 32) as u32);
        self.bar.set32(reg::INTERNAL_TIMER_L_OFFSET, clock as u32);
    }

    /// What moves with time.
    #[inline]
    pub(crate) fn tick(&mut self, now: u64) {
        self.now = now;
        self.show_timer(now);
        if now >= self.shown_until {
            self.show_slow_counters(now);
        }
        if self.booting.is_some() || self.resetting.is_some() {
            self.go_on_with_reset(now);
        }
    }

    #[cold]
    fn show_slow_counters(&mut self, now: u64) {
        let slow = now / SLOW;
        self.shown_until = (slow + 1).saturating_mul(SLOW);
        self.bar.set32(reg::HEALTH_BUFFER_OFFSET + 0x2c, (slow / 100) as u32);
        if !self.wedge_health && !self.counter_stands {
            let counter = slow as u32 & 0x00ff_ffff;
            self.bar.set32(reg::HEALTH_COUNTER_OFFSET, u32::from(self.syndrome) << 24 | counter);
        }
    }

    #[cold]
    fn go_on_with_reset(&mut self, now: u64) {
        let bar = &self.bar;
        match self.booting {
            Some(None) => self.booting = Some(Some(now.saturating_add(self.boot_time))),
            Some(Some(until)) if now >= until && !self.never_initialized => {
                self.booting = None;
                let value = bar.get32(reg::INITIALIZING_OFFSET);
                bar.set32(reg::INITIALIZING_OFFSET, value & !reg::INITIALIZING);
            }
            _ => {}
        }
        if self.resetting.is_some_and(|until| now >= until) {
            self.resetting = None;
            self.show_interface(NicInterface::DISABLED);
        }
    }

    /// When [`tick`](Self::tick) has something to show at the latest.
    pub(crate) fn next_deadline(&self) -> u64 {
        let mut deadline = self.now.saturating_add(HEALTH_PERIOD);
        match self.booting {
            Some(None) => deadline = self.now,
            Some(Some(until)) if !self.never_initialized => deadline = deadline.min(until),
            _ => {}
        }
        if let Some(until) = self.resetting {
            deadline = deadline.min(until);
        }
        deadline
    }

    /// Takes one register write, and gives what it asks for to `act` with the registers.
    #[inline]
    pub(crate) fn write(&mut self, write: &BarWrite, mut act: impl FnMut(&mut Self, Effect<'_>)) {
        if write.len == 8 && write.offset >= INIT_SEG_SIZE && write.offset.is_multiple_of(8) {
            return act(self, Effect::Uar { offset: write.offset, bytes: &write.data });
        }
        // In parts of at most one dword or one 64-bit register, in ascending order.
        let mut offset = write.offset;
        let mut bytes = write.bytes();
        while !bytes.is_empty() {
            let unit = if offset < INIT_SEG_SIZE { 4 } else { 8 };
            let len = bytes.len().min(unit - offset % unit);
            let (part, rest) = bytes.split_at(len);
            if offset < INIT_SEG_SIZE {
                if let Some(effect) = self.write_register(offset, part) {
                    act(self, effect);
                }
            } else if offset < self.bar.len() {
                act(self, Effect::Uar { offset, bytes: part });
            }
            offset += len;
            bytes = rest;
        }
    }

    fn write_register(&mut self, offset: usize, bytes: &[u8]) -> Option<Effect<'static>> {
        let last = (offset + bytes.len()).is_multiple_of(4);
        match offset & !3 {
            reg::CMDQ_ADDR_H_OFFSET => {
                self.cmdq_high = merge(self.cmdq_high, offset, bytes);
                None
            }
            reg::CMDQ_ADDR_L_SZ_OFFSET => {
                self.cmdq_low = merge(self.cmdq_low, offset, bytes);
                let low = self.cmdq_low;
                let state = NicInterface(((low & reg::NIC_INTERFACE_MASK) >> reg::NIC_INTERFACE_SHIFT) as u8);
                let base = u64::from(self.cmdq_high) << 32 | u64::from(low & !0xfff);
                last.then_some(Effect::Interface(state, base))
            }
            reg::CMD_DBELL_OFFSET => {
                self.doorbell = merge(self.doorbell, offset, bytes);
                last.then(|| Effect::Commands(std::mem::take(&mut self.doorbell)))
            }
            reg::CLR_INTX_OFFSET => None,
            _ if self.interrupts.iter().any(|part| part.contains(&offset)) => None,
            _ => Some(Effect::ReadOnly(offset)),
        }
    }
}

fn merge(value: u32, offset: usize, bytes: &[u8]) -> u32 {
    let mut whole = value.to_be_bytes();
    for (to, from) in whole.iter_mut().skip(offset % 4).zip(bytes) {
        *to = *from;
    }
    u32::from_be_bytes(whole)
}
