//! The command interface (PRM, command interface): queue entries, mailbox chains, ownership, delivery status.
//!
//! | module | subject |
//! |---|---|
//! | `interface` | the queue and the commands that firmware has |
//! | `refusal` | why a command is refused |
//! | `check` | what every command must pass before its handler sees it |
//! | `table` | each command's handler and properties |
//! | `dispatch` | from an input to its handler |
//! | `habits` | what some cards do otherwise |
//! | `functions` | pages for other functions, and at any time |
//! | `markers` | state in firmware pages |
//! | `owner` | whose an object is |
//! | `ring` | page lists of rings |
//! | the others | handlers, by the object that they are about |

mod card_register;
mod check;
mod counters;
mod cq;
mod device;
mod devx;
mod dispatch;
mod eq;
mod functions;
mod habits;
mod interface;
mod markers;
mod memic;
mod mkey;
mod multicast;
mod nic;
mod owner;
mod port;
mod port_register;
mod qp;
mod qp_state;
mod refusal;
mod register;
mod resources;
mod ring;
mod srq;
mod table;

use crate::device::Device;
use crate::log::Subject;
use crate::meter::{FOR_PACKETS, price};
use crate::profile::Strictness;
use crate::seams::{DmaFault, GuestMemory, Io};
use dispatch::Verdict;
use interface::Command;
use mlx5_prm::cmd::{self, cmd_if_box, cmd_queue_entry};
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};
use rdma_fabric::random::Random;

pub use interface::{Interface, LOG_STRIDE};
pub(crate) use refusal::{Refusal, Refused};

/// Longest input or output: what one MANAGE_PAGES of a large device takes, and some.
const MAX_LEN: usize = 16 + 512 * 2048;

impl Device {
    /// Fetches and carries out at most `budget` commands. Answers whether more could be done at once.
    pub(crate) fn poll_commands(&mut self, io: &mut Io<'_>, budget: usize) -> bool {
        for _ in 0..budget {
            if self.meter.leaves(FOR_PACKETS) {
                break;
            }
            if let Some(command) = self.cmd.ready.pop_front() {
                self.run_command(io, command);
            } else if self.cmd.rung != 0 {
                let slot = self.cmd.rung.trailing_zeros() as u8;
                self.cmd.rung &= !(1 << slot);
                self.fetch_command(io, slot);
            } else {
                break;
            }
        }
        // Pages may have come: those that wait for them try again, in order.
        for _ in 0..self.cmd.waiting.len() {
            if self.meter.leaves(FOR_PACKETS) {
                break;
            }
            let Some(command) = self.cmd.waiting.pop_front() else { break };
            self.run_command(io, command);
        }
        self.cmd.rung != 0 || !self.cmd.ready.is_empty()
    }

    fn fetch_command(&mut self, io: &mut Io<'_>, slot: u8) {
        let subject = Subject::Register { offset: mlx5_prm::init_seg::CMD_DBELL_OFFSET };
        let Some(address) = self.cmd.entry_address(slot) else {
            self.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", "doorbell without a command queue");
            return;
        };
        if u32::from(slot) >> self.cmd.log_size != 0 {
            self.log.refuse(subject, "initial_seg.command_doorbell_vector", format!("no entry {slot}"));
            return;
        }
        if self.cmd.owned & (1 << slot) != 0 {
            self.log.refuse(
                subject,
                "initial_seg.command_doorbell_vector",
                format!("entry {slot} is in use"),
            );
            return;
        }
        let mut entry = [0; 64];
        if let Err(fault) = io.memory.read(address, &mut entry) {
            self.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", fault.to_string());
            return;
        }
        if !cmd_queue_entry::ownership.is_set(&entry) {
            self.log.refuse(subject, "cmd_queue_entry.ownership", format!("entry {slot} is the driver's"));
            return;
        }
        self.cmd.owned |= 1 << slot;
        let blocks = [cmd_queue_entry::input_length, cmd_queue_entry::output_length]
            .map(|length| cmd::blocks((length.get32(&entry) as usize).min(MAX_LEN)) as u64);
        self.meter.charge(price::COMMAND + price::MAILBOX * blocks.iter().sum::<u64>());
        let strictness = self.profile.strictness;
        match take(io.memory, slot, entry, self.caps.signatures(), strictness) {
            Ok(mut command) => {
                let memory = command.memory();
                match self.budget.hold(memory) {
                    Ok(()) => {
                        self.cmd.held += memory;
                        self.grow_hungry(Opcode::of(&command.input));
                        self.cmd.ready.push_back(command);
                    }
                    Err(over) => {
                        let opcode = Opcode::of(&command.input);
                        let refusal =
                            Refusal::new(CmdStatus::NO_RES, "cmd_queue_entry.input_length", over.to_string());
                        self.refused.count(refusal.status);
                        let mut output = Vec::new();
                        let subject = refusal.answer(opcode, &mut output);
                        self.log.refuse(subject, refusal.field, refusal.text);
                        self.answer_command(io, &mut command, &output, self.has_command_eq());
                    }
                }
            }
            Err((status, field, text)) => {
                self.log.refuse(Subject::Delivery { slot, status }, field, text);
                self.finish_command(io, slot, &mut entry, status);
            }
        }
    }

    /// How long a command takes, if it is not done at once.
    fn time_of(&mut self, opcode: Opcode) -> Option<u64> {
        let habits = &self.profile.habits;
        if let Some((slow, time)) = habits.slow_command
            && slow == opcode
        {
            return Some(time);
        }
        let times = habits.command_time?;
        Some(times.next(self.cmd.random.get_or_insert_with(|| Random::new(times.seed))))
    }

    fn run_command(&mut self, io: &mut Io<'_>, mut command: Command) {
        if command.due.is_none()
            && let Some(time) = self.time_of(Opcode::of(&command.input))
        {
            command.due = Some(io.now.saturating_add(time));
            self.cmd.slow.push(command);
            return;
        }
        self.check_page(io);
        // Decided before the command runs: the EQ for completions may be made or destroyed by this very command.
        let event = self.has_command_eq();
        let mut output = Vec::new();
        match self.execute(io, &command.input, command.output_len, &mut output) {
            Verdict::Done => {
                self.forget_command(command.memory());
                self.answer_command(io, &mut command, &output, event);
            }
            Verdict::WaitForPages => self.cmd.waiting.push_back(command),
            Verdict::Never => self.forget_command(command.memory()),
        }
    }

    /// Writes a command's output and gives its entry back.
    fn answer_command(&mut self, io: &mut Io<'_>, command: &mut Command, output: &[u8], event: bool) {
        let written = write_output(io.memory, command, output, self.caps.signatures());
        if let Err(fault) = written {
            let status = DeliveryStatus::BAD_OUTPUT_POINTER;
            let subject = Subject::Delivery { slot: command.slot, status };
            self.log.refuse(subject, "cmd_queue_entry.output_mailbox_pointer_31_9", fault.to_string());
            self.finish_command(io, command.slot, &mut command.entry, status);
            return;
        }
        self.complete_command(io, command.slot, &mut command.entry, DeliveryStatus::OK, event);
    }

    fn has_command_eq(&self) -> bool {
        self.objects.queues.eqs.iter().any(|(_, eq)| eq.takes(EventType::CMD))
    }

    fn finish_command(&mut self, io: &mut Io<'_>, slot: u8, entry: &mut [u8; 64], status: DeliveryStatus) {
        let event = self.has_command_eq();
        self.complete_command(io, slot, entry, status, event);
    }

    /// Gives the entry back: output first, the dword with ownership last, then the event.
    fn complete_command(
        &mut self,
        io: &mut Io<'_>,
        slot: u8,
        entry: &mut [u8; 64],
        status: DeliveryStatus,
        event: bool,
    ) {
        self.cmd.owned &= !(1 << slot);
        cmd_queue_entry::ownership.set(entry, 0u8);
        cmd_queue_entry::status.set(entry, status.0);
        if self.caps.signatures() {
            let signature = cmd::entry_signature(entry);
            cmd_queue_entry::signature.set(entry, signature);
        }
        let Some(address) = self.cmd.entry_address(slot) else { return };
        let [.., a, b, c, d] = *entry;
        let written = io
            .memory
            .write(address + 0x20, cmd_queue_entry::command_output_inline_data.of(entry))
            .and_then(|()| io.memory.store32(address + 0x3c, u32::from_be_bytes([a, b, c, d])));
        if let Err(fault) = written {
            let subject = Subject::Delivery { slot, status: DeliveryStatus::INTERNAL_ERR };
            self.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", fault.to_string());
            return;
        }
        if event && self.has_command_eq() {
            let mut data = [0; 28];
            data[..4].copy_from_slice(&(1u32 << slot).to_be_bytes());
            self.objects.queues.event(io, &mut self.log, EventType::CMD, 0, &data);
        }
    }

    /// Gives back the memory of a command that was fetched.
    fn forget_command(&mut self, memory: u64) {
        self.cmd.held = self.cmd.held.saturating_sub(memory);
        self.budget.release(memory);
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
    Ok(Command { slot, input, output_len, output_blocks, entry, due: None })
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
