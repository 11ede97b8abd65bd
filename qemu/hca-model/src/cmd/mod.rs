//! The command interface (PRM, command interface): queue entries, mailbox chains, ownership, delivery status.

mod check;
mod counters;
mod cq;
mod device;
mod dispatch;
mod eq;
mod mkey;
mod port;
mod qp;
mod register;
mod resources;
mod srq;

use crate::hca::Hca;
use crate::log::Subject;
use crate::meter::{FOR_PACKETS, price};
use crate::profile::Strictness;
use crate::seams::{DmaFault, GuestMemory, Io};
use dispatch::Verdict;
use mlx5_prm::cmd::{self, cmd_if_box, cmd_queue_entry};
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};
pub(crate) use register::access_register;
use std::collections::VecDeque;

/// log2 of bytes of an entry.
pub const LOG_STRIDE: u32 = 6;

/// Longest input or output: what one MANAGE_PAGES of a large device takes, and some.
const MAX_LEN: usize = 16 + 512 * 2048;

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status firmware gives.
    pub status: CmdStatus,
    /// The field at fault, `structure.field`; empty when there is none.
    pub field: String,
    /// In words.
    pub text: String,
}

impl Refusal {
    /// A refusal because of `field`.
    pub fn new(status: CmdStatus, field: impl Into<String>, text: impl Into<String>) -> Self {
        Self { status, field: field.into(), text: text.into() }
    }

    /// BAD_PARAM because of `field`.
    pub fn param(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(CmdStatus::BAD_PARAM, field, text)
    }

    /// BAD_RES: `field` names an object that does not exist.
    pub fn missing(field: impl Into<String>, number: u32) -> Self {
        Self::new(CmdStatus::BAD_RES, field, format!("{number:#x} does not exist"))
    }

    /// RES_BUSY: the object is referred to.
    pub fn busy(field: impl Into<String>, by: impl Into<String>) -> Self {
        Self::new(CmdStatus::RES_BUSY, field, by)
    }

    /// NO_RES: the table is full.
    pub fn full(what: &str) -> Self {
        Self::new(CmdStatus::NO_RES, "", format!("no more {what}"))
    }
}

/// Whether a command was carried out.
pub type Outcome = Result<(), Refusal>;

/// A command taken from its entry.
#[derive(Clone, Debug)]
struct Command {
    slot: u8,
    input: Vec<u8>,
    output_len: usize,
    /// Mailbox blocks of the output.
    output_blocks: Vec<u64>,
    /// The entry as the driver wrote it.
    entry: [u8; 64],
}

/// State of the command interface.
#[derive(Debug, Default)]
pub struct Interface {
    /// Where the queue lies; `None` before the driver says so.
    base: Option<u64>,
    log_size: u32,
    /// Entries that were rung and not yet fetched.
    rung: u32,
    /// Fetched, to be carried out.
    ready: VecDeque<Command>,
    /// Waiting for pages.
    waiting: VecDeque<Command>,
    /// Entries that firmware has.
    owned: u32,
    /// Host memory of the commands that were fetched.
    held: u64,
}

impl Command {
    /// Host memory that it takes.
    fn memory(&self) -> u64 {
        (size_of::<Self>() + self.input.len() + 8 * self.output_blocks.len()) as u64
    }
}

impl Interface {
    /// An interface without a queue.
    #[must_use]
    pub fn new(log_size: u8) -> Self {
        Self { log_size: u32::from(log_size.min(5)), ..Self::default() }
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

    fn entry_address(&self, slot: u8) -> Option<u64> {
        self.base.map(|base| base + (u64::from(slot) << LOG_STRIDE))
    }
}

/// Fetches and carries out at most `budget` commands. Answers whether more could be done at once.
pub fn poll(hca: &mut Hca, io: &mut Io<'_>, budget: usize) -> bool {
    for _ in 0..budget {
        if hca.meter.leaves(FOR_PACKETS) {
            break;
        }
        if let Some(command) = hca.cmd.ready.pop_front() {
            run(hca, io, command);
        } else if hca.cmd.rung != 0 {
            let slot = hca.cmd.rung.trailing_zeros() as u8;
            hca.cmd.rung &= !(1 << slot);
            fetch(hca, io, slot);
        } else {
            break;
        }
    }
    // Pages may have come: those that wait for them try again, in order.
    for _ in 0..hca.cmd.waiting.len() {
        if hca.meter.leaves(FOR_PACKETS) {
            break;
        }
        let Some(command) = hca.cmd.waiting.pop_front() else { break };
        run(hca, io, command);
    }
    hca.cmd.rung != 0 || !hca.cmd.ready.is_empty()
}

fn fetch(hca: &mut Hca, io: &mut Io<'_>, slot: u8) {
    let subject = Subject::Register { offset: mlx5_prm::init_seg::CMD_DBELL_OFFSET };
    let Some(address) = hca.cmd.entry_address(slot) else {
        hca.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", "doorbell without a command queue");
        return;
    };
    if u32::from(slot) >> hca.cmd.log_size != 0 {
        hca.log.refuse(subject, "initial_seg.command_doorbell_vector", format!("no entry {slot}"));
        return;
    }
    if hca.cmd.owned & (1 << slot) != 0 {
        hca.log.refuse(subject, "initial_seg.command_doorbell_vector", format!("entry {slot} is in use"));
        return;
    }
    let mut entry = [0; 64];
    if let Err(fault) = io.memory.read(address, &mut entry) {
        hca.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", fault.to_string());
        return;
    }
    if !cmd_queue_entry::ownership.is_set(&entry) {
        hca.log.refuse(subject, "cmd_queue_entry.ownership", format!("entry {slot} is the driver's"));
        return;
    }
    hca.cmd.owned |= 1 << slot;
    let blocks = [cmd_queue_entry::input_length, cmd_queue_entry::output_length]
        .map(|length| cmd::blocks((length.get32(&entry) as usize).min(MAX_LEN)) as u64);
    hca.meter.charge(price::COMMAND + price::MAILBOX * blocks.iter().sum::<u64>());
    let strictness = hca.profile.strictness;
    match take(io.memory, slot, entry, hca.caps.signatures(), strictness) {
        Ok(mut command) => {
            let memory = command.memory();
            match hca.budget.hold(memory) {
                Ok(()) => {
                    hca.cmd.held += memory;
                    hca.cmd.ready.push_back(command);
                }
                Err(over) => {
                    let opcode = Opcode::of(&command.input);
                    let refusal =
                        Refusal::new(CmdStatus::NO_RES, "cmd_queue_entry.input_length", over.to_string());
                    let mut output = Vec::new();
                    let subject = refused(opcode, &refusal, &mut output);
                    hca.log.refuse(subject, refusal.field, refusal.text);
                    answer(hca, io, &mut command, &output, has_command_eq(hca));
                }
            }
        }
        Err((status, field, text)) => {
            hca.log.refuse(Subject::Delivery { slot, status }, field, text);
            finish(hca, io, slot, &mut entry, status);
        }
    }
}

type DeliveryError = (DeliveryStatus, &'static str, String);

/// Checks an entry and collects its input and the addresses of its output blocks.
fn take(
    memory: &dyn GuestMemory,
    slot: u8,
    entry: [u8; 64],
    signed: bool,
    strictness: Strictness,
) -> Result<Command, DeliveryError> {
    let kind = cmd_queue_entry::r#type.get32(&entry);
    if kind != u32::from(cmd::TYPE_PCI_CMD_XPORT) {
        return Err((DeliveryStatus::BAD_COMMAND_TYPE, "cmd_queue_entry.type", format!("{kind:#x}")));
    }
    if let Some((offset, bits)) = cmd_queue_entry::LAYOUT.reserved_bits_set(&entry)
        && strictness == Strictness::Strict
    {
        let field = match offset {
            0x0c => "cmd_queue_entry.input_mailbox_pointer_31_9",
            0x34 => "cmd_queue_entry.output_mailbox_pointer_31_9",
            _ => "cmd_queue_entry",
        };
        let status = match offset {
            0x0c => DeliveryStatus::BAD_INPUT_POINTER,
            0x34 => DeliveryStatus::BAD_OUTPUT_POINTER,
            _ => DeliveryStatus::RESERVED_NOT_ZERO,
        };
        return Err((status, field, format!("reserved bits {bits:#x} set at {offset:#x}")));
    }
    if signed && !cmd::entry_signature_holds(&entry) {
        return Err((DeliveryStatus::SIGNATURE_ERR, "cmd_queue_entry.signature", String::new()));
    }
    let input_len = cmd_queue_entry::input_length.get32(&entry) as usize;
    let output_len = cmd_queue_entry::output_length.get32(&entry) as usize;
    if !(8..=MAX_LEN).contains(&input_len) {
        let field = "cmd_queue_entry.input_length";
        return Err((DeliveryStatus::BAD_INPUT_LEN, field, format!("{input_len}")));
    }
    if !(8..=MAX_LEN).contains(&output_len) {
        let field = "cmd_queue_entry.output_length";
        return Err((DeliveryStatus::BAD_OUTPUT_LEN, field, format!("{output_len}")));
    }
    let token = cmd_queue_entry::token.get32(&entry);
    let pointer = |high: mlx5_prm::Field, low: mlx5_prm::Field| high.get(&entry) << 32 | low.get(&entry) << 9;
    let input_pointer =
        pointer(cmd_queue_entry::input_mailbox_pointer_63_32, cmd_queue_entry::input_mailbox_pointer_31_9);
    let output_pointer =
        pointer(cmd_queue_entry::output_mailbox_pointer_63_32, cmd_queue_entry::output_mailbox_pointer_31_9);

    let mut input = cmd_queue_entry::command_input_inline_data.of(&entry).to_vec();
    let bad = DeliveryStatus::BAD_INPUT_POINTER;
    let chain = Chain { memory, token, strictness };
    chain.walk(input_pointer, cmd::blocks(input_len), signed, bad, |_, block| {
        input.extend_from_slice(cmd_if_box::mailbox_data.of(block));
    })?;
    input.truncate(input_len);
    let mut output_blocks = Vec::new();
    let bad = DeliveryStatus::BAD_OUTPUT_POINTER;
    // Output blocks carry numbers and token too; their signatures are the device's to write.
    chain.walk(output_pointer, cmd::blocks(output_len), false, bad, |address, _| {
        output_blocks.push(address);
    })?;
    Ok(Command { slot, input, output_len, output_blocks, entry })
}

/// A command's chains of mailboxes.
struct Chain<'a> {
    memory: &'a dyn GuestMemory,
    token: u32,
    strictness: Strictness,
}

impl Chain<'_> {
    /// Follows a chain of `count` blocks. A lenient device takes one that ends before: what is missing may not matter to the
    /// command (iPXE announces a context that it does not send where there is nothing to say).
    fn walk(
        &self,
        mut pointer: u64,
        count: usize,
        signed: bool,
        bad_pointer: DeliveryStatus,
        mut each: impl FnMut(u64, &[u8; 576]),
    ) -> Result<(), DeliveryError> {
        for number in 0..count {
            if pointer == 0 && self.strictness == Strictness::Lenient {
                return Ok(());
            }
            if pointer == 0 || !pointer.is_multiple_of(cmd::BLOCK_ALIGN as u64) {
                let text = format!("block {number} at {pointer:#x}: zero or not aligned to 1024");
                return Err((bad_pointer, "cmd_if_box.next_pointer_31_10", text));
            }
            let mut block = [0; 576];
            if let Err(fault) = self.memory.read(pointer, &mut block) {
                return Err((bad_pointer, "cmd_if_box.next_pointer_31_10", fault.to_string()));
            }
            let found = cmd_if_box::token.get32(&block);
            if found != self.token {
                let text = format!("block {number}: {found:#x}, the entry's is {:#x}", self.token);
                return Err((DeliveryStatus::TOKEN_ERR, "cmd_if_box.token", text));
            }
            let found = cmd_if_box::block_number.get32(&block) as usize;
            if found != number {
                let text = format!("{found} in block {number}");
                return Err((DeliveryStatus::BAD_BLOCK_NUMBER, "cmd_if_box.block_number", text));
            }
            if signed && !cmd::block_signatures_hold(&block) {
                let text = format!("block {number}");
                return Err((DeliveryStatus::SIGNATURE_ERR, "cmd_if_box.signature", text));
            }
            each(pointer, &block);
            pointer = cmd_if_box::next_pointer_63_32.get(&block) << 32
                | cmd_if_box::next_pointer_31_10.get(&block) << 10;
        }
        Ok(())
    }
}

fn run(hca: &mut Hca, io: &mut Io<'_>, mut command: Command) {
    // Decided before the command runs: the EQ for completions may be made or destroyed by this very command.
    let event = has_command_eq(hca);
    let mut output = Vec::new();
    match dispatch::execute(hca, io, &command.input, command.output_len, &mut output) {
        Verdict::Done => {
            hca.forget_command(command.memory());
            answer(hca, io, &mut command, &output, event);
        }
        Verdict::WaitForPages => hca.cmd.waiting.push_back(command),
        Verdict::Never => hca.forget_command(command.memory()),
    }
}

impl Hca {
    /// Gives back the memory of a command that was fetched.
    fn forget_command(&mut self, memory: u64) {
        self.cmd.held = self.cmd.held.saturating_sub(memory);
        self.budget.release(memory);
    }
}

/// Writes a command's output and gives its entry back.
fn answer(hca: &mut Hca, io: &mut Io<'_>, command: &mut Command, output: &[u8], event: bool) {
    let written = write_output(io.memory, command, output, hca.caps.signatures());
    if let Err(fault) = written {
        let status = DeliveryStatus::BAD_OUTPUT_POINTER;
        let subject = Subject::Delivery { slot: command.slot, status };
        hca.log.refuse(subject, "cmd_queue_entry.output_mailbox_pointer_31_9", fault.to_string());
        finish(hca, io, command.slot, &mut command.entry, status);
        return;
    }
    complete(hca, io, command.slot, &mut command.entry, DeliveryStatus::OK, event);
}

fn write_output(
    memory: &dyn GuestMemory,
    command: &mut Command,
    output: &[u8],
    signed: bool,
) -> Result<(), DmaFault> {
    let mut whole = output.to_vec();
    whole.resize(command.output_len.max(cmd::INLINE_LEN), 0);
    let (inline, rest) = whole.split_at(cmd::INLINE_LEN);
    cmd_queue_entry::command_output_inline_data.of_mut(&mut command.entry).copy_from_slice(inline);
    for (address, data) in command.output_blocks.iter().zip(rest.chunks(cmd::BLOCK_DATA_LEN)) {
        memory.write(*address, data)?;
        if signed {
            let mut block = [0; 576];
            memory.read(*address, &mut block)?;
            let (ctrl, all) = cmd::block_signatures(&block);
            memory.write(*address + 0x23e, &[ctrl, all])?;
        }
    }
    Ok(())
}

fn has_command_eq(hca: &Hca) -> bool {
    hca.queues.eqs.iter().any(|(_, eq)| eq.takes(EventType::CMD))
}

fn finish(hca: &mut Hca, io: &mut Io<'_>, slot: u8, entry: &mut [u8; 64], status: DeliveryStatus) {
    let event = has_command_eq(hca);
    complete(hca, io, slot, entry, status, event);
}

/// Gives the entry back: output first, the dword with ownership last, then the event.
fn complete(
    hca: &mut Hca,
    io: &mut Io<'_>,
    slot: u8,
    entry: &mut [u8; 64],
    status: DeliveryStatus,
    event: bool,
) {
    hca.cmd.owned &= !(1 << slot);
    cmd_queue_entry::ownership.set(entry, 0u8);
    cmd_queue_entry::status.set(entry, status.0);
    if hca.caps.signatures() {
        let signature = cmd::entry_signature(entry);
        cmd_queue_entry::signature.set(entry, signature);
    }
    let Some(address) = hca.cmd.entry_address(slot) else { return };
    let [.., a, b, c, d] = *entry;
    let written = io
        .memory
        .write(address + 0x20, cmd_queue_entry::command_output_inline_data.of(entry))
        .and_then(|()| io.memory.store32(address + 0x3c, u32::from_be_bytes([a, b, c, d])));
    if let Err(fault) = written {
        let subject = Subject::Delivery { slot, status: DeliveryStatus::INTERNAL_ERR };
        hca.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", fault.to_string());
        return;
    }
    if event && has_command_eq(hca) {
        let mut data = [0; 28];
        data[..4].copy_from_slice(&(1u32 << slot).to_be_bytes());
        hca.queues.event(io, &mut hca.log, EventType::CMD, 0, &data);
    }
}

/// Makes the output of a refused command.
fn refused(opcode: Opcode, refusal: &Refusal, output: &mut Vec<u8>) -> Subject {
    // A syndrome tells NVIDIA's support which check it was; here it is made of opcode and status.
    let syndrome = 0x00e0_0000 | u32::from(opcode.0) << 4 | u32::from(refusal.status.0 & 0xf);
    output.clear();
    output.resize(16, 0);
    cmd::cmd_out::status.set(output, refusal.status.0);
    cmd::cmd_out::syndrome.set(output, syndrome);
    Subject::Command { opcode, status: refusal.status, syndrome }
}
