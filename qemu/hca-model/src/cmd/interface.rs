//! State of the command interface: the queue, and the commands that firmware has (PRM, command interface).

use mlx5_prm::opcode::Opcode;
use rdma_fabric::random::Random;
use std::collections::VecDeque;

/// log2 of bytes of an entry.
pub const LOG_STRIDE: u32 = 6;

/// A command taken from its entry.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) slot: u8,
    pub(super) input: Vec<u8>,
    pub(super) output_len: usize,
    /// Mailbox blocks of the output.
    pub(super) output_blocks: Vec<u64>,
    /// The entry as the driver wrote it.
    pub(super) entry: [u8; 64],
    /// When it is carried out, if it takes time.
    pub(super) due: Option<u64>,
}

/// State of the command interface.
#[derive(Debug, Default)]
pub struct Interface {
    /// Where the queue lies; `None` before the driver says so.
    base: Option<u64>,
    pub(super) log_size: u32,
    /// Entries that were rung and not yet fetched.
    pub(super) rung: u32,
    /// Fetched, to be carried out.
    pub(super) ready: VecDeque<Command>,
    /// Waiting for pages.
    pub(super) waiting: VecDeque<Command>,
    /// Taking their time.
    pub(super) slow: Vec<Command>,
    /// Entries that firmware has.
    pub(super) owned: u32,
    /// Decides how long commands take, where they take time.
    pub(super) random: Option<Random>,
    /// Host memory of the commands that were fetched.
    pub(super) held: u64,
    /// The driver disabled the interface.
    pub(super) disabled: bool,
}

impl Command {
    /// Host memory that it takes.
    pub(super) fn memory(&self) -> u64 {
        (size_of::<Self>() + self.input.len() + 8 * self.output_blocks.len()) as u64
    }
}

impl Interface {
    /// An interface without a queue.
    #[must_use]
    pub fn new(log_size: u8) -> Self {
        Self { log_size: u32::from(log_size.min(5)), ..Self::default() }
    }

    /// The driver disabled the interface. Drivers that shut down ring for commands still, which a card ignores.
    pub(crate) const fn disable(&mut self) {
        self.disabled = true;
    }

    /// Returns whether the driver disabled the interface.
    pub(crate) const fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// The driver gave the queue's address.
    pub fn start(&mut self, base: u64) {
        *self = Self { base: Some(base), log_size: self.log_size, ..Self::default() };
    }

    /// Whether there is a queue.
    #[must_use]
    pub const fn started(&self) -> bool {
        self.base.is_some()
    }

    /// Commands not completed.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        (self.owned | self.rung).count_ones()
    }

    /// Whether nothing waits to be fetched, carried out or tried again.
    pub(crate) fn is_idle(&self) -> bool {
        self.rung == 0 && self.ready.is_empty() && self.waiting.is_empty()
    }

    /// Returns whether a slow command of this kind is in progress.
    pub(crate) fn is_carrying_out(&self, opcode: Opcode) -> bool {
        self.slow.iter().any(|command| Opcode::of(&command.input) == opcode)
    }

    /// When the next command that takes time is due.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.slow.iter().filter_map(|command| command.due).min()
    }

    /// Commands whose time has come can be carried out.
    #[inline]
    pub(crate) fn wake(&mut self, now: u64) {
        if !self.slow.is_empty() {
            self.wake_slow(now);
        }
    }

    fn wake_slow(&mut self, now: u64) {
        if self.next_deadline().is_some_and(|due| due <= now) {
            let due = |command: &mut Command| command.due.is_some_and(|due| due <= now);
            self.ready.extend(self.slow.extract_if(.., due));
        }
    }

    /// Commands that wait for pages.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Host memory of the commands that were fetched and are not completed.
    pub(crate) const fn memory(&self) -> u64 {
        self.held
    }

    /// The doorbell vector was written.
    pub fn ring(&mut self, vector: u32) {
        self.rung |= vector;
    }

    pub(super) fn entry_address(&self, slot: u8) -> Option<u64> {
        self.base.map(|base| base + (u64::from(slot) << LOG_STRIDE))
    }
}
