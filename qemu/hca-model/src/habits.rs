//! What real cards do and the plain emulated ConnectX-5 does not, each to be ordered by itself: for tests of what a driver makes of it.
//! All of it is legal behaviour; what is not stands in [`Misbehaviour`](crate::profile::Misbehaviour).
//!
//! Each is looked at when it matters, so that a test may change it while the device lives.

use crate::adversary::Adversary;
use crate::card::Card;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::{NicInterface, RegisterId};
use rdma_fabric::random::Random;
use std::ops::Range;

/// The habits of a card. By default it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Habits {
    /// `nic_interface` after power-on, until a command queue is handed over. Network boot code leaves 1.
    pub start_interface: Option<NicInterface>,
    /// How long (in nanoseconds, from the first poll on) a reset that somebody else began keeps `nic_interface` at 7 after power-on; then
    /// it is 1.
    pub reset_under_way: Option<u64>,
    /// `nic_interface` reads 1 until ENABLE_HCA has completed.
    pub disabled_until_enabled: bool,
    /// `nic_interface` reads 1 until so many nanoseconds after ENABLE_HCA has completed.
    pub enabled_late: Option<u64>,
    /// `nic_interface` reads 1 from the start of DISABLE_HCA, before the completion is in memory.
    pub disabled_early: bool,
    /// The command queue's address reads as 0, whatever was written.
    pub hidden_queue: bool,
    /// A function that is enabled cannot be enabled by another owner, who has to reset it: firmware of a ConnectX-4 before 12.17.2020.
    pub no_take_over: bool,
    /// `nic_interface` reads 1 whatever is done: the function is nobody's to use.
    pub stays_disabled: bool,
    /// All registers read as all ones for these times of the clock: the link is retrained, or another function resets the card.
    pub away: Option<Range<u64>>,
    /// A fault of a neighbour on the card, logged in the health buffer that all share: a syndrome without `rfr`.
    pub neighbour_syndrome: Option<HealthSyndrome>,
    /// The health counter stands still for these times of the clock.
    pub counter_pause: Option<Range<u64>>,
    /// Registers that ACCESS_REG refuses, to read and to write.
    pub refused_registers: Vec<RegisterId>,
    /// Registers that ACCESS_REG refuses to write: a virtual function does not own them.
    pub read_only_registers: Vec<RegisterId>,
    /// Commands refused as unknown.
    pub refused_commands: Vec<Opcode>,
    /// `hca_vport_context.port_state`, where it is not `vport_state`.
    pub port_state: Option<u8>,
    /// `hca_vport_context.vport_state`, where it is not that of the link.
    pub vport_state: Option<u8>,
    /// `hca_vport_context.grh_required`: the port has no LID of its own, and every packet needs a GRH.
    pub grh_required: bool,
    /// `pmtu_reg.oper_mtu` in bytes.
    pub oper_mtu: Option<u32>,
    /// The LID reads 0xffff though the subnet manager has set one: a virtual function that is
    /// routed by GID.
    pub no_lid: bool,
    /// The LID reads 0xffff before it is set.
    pub unset_lid_is_ffff: bool,
    /// Management classes whose datagrams of QP1 this card sends and nobody gets: 0x03 subnet administration, 0x07 connection management.
    pub lost_classes: Vec<u8>,
    /// The number that firmware knows this function by where pages are concerned.
    pub pages_function: u16,
    /// `embedded_cpu`: the driver runs on the card's own processor, and every command about functions has to say so.
    pub embedded_cpu: bool,
    /// The dword at `cmd_exec_to`; counts if `cmd_q_init_to` is not 0.
    pub cmd_exec_to: u32,
    /// The dword at `cmd_q_init_to`.
    pub cmd_q_init_to: u32,
    /// DTOR, as (byte offset, time-out word); the register exists if there is any.
    pub default_timeouts: Vec<(usize, u32)>,
    /// The device does not do atomics in the host's byte order.
    pub no_atomic_byte_order: bool,
    /// `atomic_caps.atomic_operations` and `atomic_size_qp`, if not those of a ConnectX-5.
    pub atomics: Option<(u16, u16)>,
    /// The key that ends a scatter list, announced by QUERY_SPECIAL_CONTEXTS; 0x100 is then a key like any other.
    pub terminator: Option<u32>,
    /// A command that takes so many nanoseconds.
    pub slow_command: Option<(Opcode, u64)>,
    /// Every command takes time, so that they complete out of order.
    pub command_time: Option<CommandTime>,
    /// Pages that QUERY_PAGES offers back, where none are needed: a negative number.
    pub spare_pages: u32,
    /// Pages that firmware asks for anew with every command, whatever it is; later it gives them back.
    pub page_requests: u32,
    /// Other functions that the driver gives pages for, such as virtual ones, and how many each wants.
    pub other_functions: Vec<(u16, u32)>,
    /// Nanoseconds that the link takes to come up.
    pub training: Option<u64>,
    /// The link is up only while a driver has initialized the device.
    pub link_follows_driver: bool,
    /// Nanoseconds from power-on or reset until `initializing` clears.
    pub initializing: Option<u64>,
    /// `initializing` is set again for so many nanoseconds when the command queue's address is written.
    pub initializing_again: Option<u64>,
    /// Nanoseconds for which all registers read as all ones after a function-level reset.
    pub reset_time: Option<u64>,
    /// Firmware that fails says why and does not ask for a reset (`rfr`): as cards do whose SW_RECOVERY_ON_ERRORS is off.
    pub silent_assert: bool,
    /// Firmware that fails says that only switching the power off helps (`crr`).
    pub cold_reset: bool,
    /// Mistakes that the card does not forgive.
    pub adversary: Adversary,
}

/// How long commands take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTime {
    /// Decides which takes how long.
    pub seed: u64,
    /// Nanoseconds: the shortest time, and the longest, which is rare.
    pub range: (u64, u64),
}

impl CommandTime {
    /// The time of the next command.
    pub(crate) fn next(&self, random: &mut Random) -> u64 {
        let (shortest, longest) = self.range;
        let most = random.below(longest.saturating_sub(shortest).saturating_add(1));
        shortest.saturating_add(random.below(most + 1))
    }
}

impl Habits {
    /// Those of a kind of card.
    #[must_use]
    pub fn of(card: &Card) -> Self {
        let [cmd_exec_to, cmd_q_init_to] = card.command_timeouts;
        Self {
            read_only_registers: card.read_only_registers.to_vec(),
            refused_commands: card.refused_commands.to_vec(),
            unset_lid_is_ffff: card.unset_lid_is_ffff,
            terminator: card.terminator,
            default_timeouts: card.default_timeouts.to_vec(),
            cmd_exec_to,
            cmd_q_init_to,
            ..Self::default()
        }
    }

    /// `nic_interface` after power-on.
    pub(crate) fn at_power_on(&self) -> Option<NicInterface> {
        self.reset_under_way.map(|_| NicInterface::SW_RESET).or(self.start_interface)
    }

    /// Whether `number` is another function that the driver gives pages for.
    pub(crate) fn has_function(&self, number: u32) -> bool {
        self.other_functions.iter().any(|(function, _)| u32::from(*function) == number)
    }

    pub(crate) fn is_away(&self, now: u64) -> bool {
        self.away.as_ref().is_some_and(|times| times.contains(&now))
    }

    pub(crate) fn counter_stands(&self, now: u64) -> bool {
        self.counter_pause.as_ref().is_some_and(|times| times.contains(&now))
    }
}
