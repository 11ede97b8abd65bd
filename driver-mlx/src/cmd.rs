//! The command queue: entries, mailbox chains, tokens, ownership.
//!
//! What runs here is one command in one slot; waiting, and serving page requests while waiting, is the [`Hca`](crate::Hca)'s.

use crate::barrier;
use crate::control;
use crate::dma::{DmaMemory, OutOfBounds};
use crate::platform::Bar;
use crate::types::{Duration, Instant};
use mlx5_prm::cmd::{self, BLOCK_ALIGN, BLOCK_DATA_LEN, INLINE_LEN, cmd_if_box, cmd_queue_entry};
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};

/// Slots this driver uses, if the device has as many. The last one is kept for MANAGE_PAGES: other commands may wait for it.
pub(crate) const MAX_SLOTS: usize = 4;
/// Mailbox blocks for each direction of a slot: enough for a capability block of 4096 bytes or 512 pages.
const BLOCKS: usize = 8;
/// Bytes of the mailbox memory of one slot.
const SLOT_BYTES: usize = 2 * BLOCKS * BLOCK_ALIGN;
/// Bytes of shared memory that the queue takes beside its own page.
pub(crate) const MAILBOX_BYTES: usize = MAX_SLOTS * SLOT_BYTES;
/// Byte offset of the pointer to the next block, in a block.
const NEXT: usize = 0x230;
/// Byte offset of the block number, in a block.
const NUMBER: usize = 0x238;
/// Byte offset of the dword with the token, in a block.
const TOKEN: usize = 0x23c;
/// Byte offset of the dword with token, signature, delivery status and ownership, in an entry.
const OWNER_DWORD: usize = cmd::TOKEN_OFFSET;

/// The start of a command input of `N` bytes.
pub(crate) fn input<const N: usize>(opcode: Opcode, op_mod: u16) -> [u8; N] {
    let mut bytes = [0; N];
    cmd::cmd_in::opcode.set(&mut bytes, opcode.0);
    cmd::cmd_in::op_mod.set(&mut bytes, op_mod);
    bytes
}

/// The list of 64-bit entries at the end of an input.
#[derive(Clone, Copy)]
pub(crate) struct Tail<'a> {
    pub(crate) count: usize,
    pub(crate) entry: &'a dyn Fn(usize) -> u64,
}

impl Tail<'_> {
    pub(crate) const NONE: Tail<'static> = Tail { count: 0, entry: &|_| 0 };

    pub(crate) fn bytes(&self) -> usize {
        self.count * 8
    }
}

/// What is to be issued.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The fixed part, at least 16 bytes and a multiple of 8.
    pub(crate) input: &'a [u8],
    /// What follows it.
    pub(crate) tail: Tail<'a>,
    /// Bytes of output that are wanted.
    pub(crate) out_len: usize,
    /// Mailbox memory of [`lent_bytes`] for the input, if a slot's own is too short.
    pub(crate) lent: Option<DmaMemory>,
    pub(crate) user: User,
}

/// Caller of a command, which decides the slots that the command may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// The caller goes on meanwhile, and leaves a slot to callers that wait.
    Poller,
    /// The caller waits.
    Waiter,
    /// The page server: its slot is kept for it, because other commands may wait for pages.
    Pages,
}

/// A command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Ticket {
    slot: u8,
    generation: u32,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) opcode: Opcode,
    pub(crate) op_mod: u16,
    pub(crate) delivery: DeliveryStatus,
    pub(crate) status: CmdStatus,
    pub(crate) syndrome: u32,
    pub(crate) issued: Instant,
    /// Mailbox memory that the caller lent for a long input.
    pub(crate) lent: Option<DmaMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Busy,
    /// Not answered in time. The device may still write into it, so it is not used again before it has answered.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: SlotState,
    generation: u32,
    opcode: Opcode,
    op_mod: u16,
    out_len: usize,
    issued: Instant,
    lent: Option<DmaMemory>,
}

#[derive(Debug)]
pub(crate) struct CommandQueue {
    page: DmaMemory,
    mailboxes: DmaMemory,
    log_stride: u32,
    count: usize,
    slots: [Slot; MAX_SLOTS],
    token: u8,
}

/// Why a command could not be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssueError {
    NoSlot,
    TooLong,
}

impl From<OutOfBounds> for IssueError {
    fn from(_: OutOfBounds) -> Self {
        Self::TooLong
    }
}

/// Bytes of mailbox memory that an input of `len` bytes needs beyond what a slot has; 0 if the slot's own is enough.
pub(crate) fn lent_bytes(len: usize) -> usize {
    let blocks = cmd::blocks(len);
    if blocks > BLOCKS { blocks * BLOCK_ALIGN } else { 0 }
}

impl CommandQueue {
    /// A queue over a zeroed page and [`MAILBOX_BYTES`] of mailboxes, aligned to 1024. `None` if the device's geometry does
    /// not fit a page or has fewer than two entries.
    pub(crate) fn new(page: DmaMemory, mailboxes: DmaMemory, log_size: u32, log_stride: u32) -> Option<Self> {
        let fits = (1..=5).contains(&log_size) && log_stride >= 6 && log_size + log_stride <= 12;
        if !fits || mailboxes.len() < MAILBOX_BYTES || page.len() < 4096 {
            return None;
        }
        let slot = Slot {
            state: SlotState::Free,
            generation: 0,
            opcode: Opcode(0),
            op_mod: 0,
            out_len: 0,
            issued: Instant::ORIGIN,
            lent: None,
        };
        let count = (1usize << log_size).min(MAX_SLOTS);
        Some(Self { page, mailboxes, log_stride, count, slots: [slot; MAX_SLOTS], token: 0 })
    }

    /// Begins again after a reset of the device, which has forgotten all commands; their tickets are void. `false` if the device's geometry
    /// no longer fits.
    pub(crate) fn restart(&mut self, log_size: u32, log_stride: u32) -> Result<bool, OutOfBounds> {
        self.page.fill(0, self.page.len(), 0)?;
        let Some(fresh) = Self::new(self.page, self.mailboxes, log_size, log_stride) else {
            return Ok(false);
        };
        let generations = self.slots.map(|slot| slot.generation.wrapping_add(1));
        *self = Self { token: self.token, ..fresh };
        self.slots.iter_mut().zip(generations).for_each(|(slot, generation)| slot.generation = generation);
        Ok(true)
    }

    /// The mailbox memory lent to commands that the device has forgotten, one piece at a time.
    pub(crate) fn take_lent(&mut self) -> Option<DmaMemory> {
        self.slots.iter_mut().find_map(|slot| slot.lent.take())
    }

    /// Device address of the queue.
    pub(crate) fn device_address(&self) -> u64 {
        self.page.device_address()
    }

    /// The shared memory, for giving it back.
    pub(crate) fn memory(&self) -> [DmaMemory; 2] {
        [self.page, self.mailboxes]
    }

    /// Whether some slot was never answered, so that the device may still use the memory.
    pub(crate) fn has_lost(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == SlotState::Lost)
    }

    fn entry(&self, index: usize) -> Result<DmaMemory, OutOfBounds> {
        self.page.slice(index << self.log_stride, cmd_queue_entry::SIZE).ok_or(OutOfBounds)
    }

    fn mailbox(&self, index: usize, output: bool) -> Result<DmaMemory, OutOfBounds> {
        let offset = index * SLOT_BYTES + if output { BLOCKS * BLOCK_ALIGN } else { 0 };
        self.mailboxes.slice(offset, BLOCKS * BLOCK_ALIGN).ok_or(OutOfBounds)
    }

    /// Issues a command.
    pub(crate) fn issue<B: Bar>(
        &mut self,
        bar: B,
        request: &Request<'_>,
        now: Instant,
    ) -> Result<Ticket, IssueError> {
        let Request { input, out_len, lent, user, .. } = *request;
        let range = match user {
            User::Poller => 0..self.count.saturating_sub(2).max(1),
            User::Waiter => 0..self.count - 1,
            User::Pages => self.count - 1..self.count,
        };
        let index = range
            .into_iter()
            .find(|&i| self.slots.get(i).is_some_and(|s| s.state == SlotState::Free))
            .ok_or(IssueError::NoSlot)?;
        self.token = self.token.checked_add(1).unwrap_or(1);
        let input_box = match lent {
            Some(memory) => memory,
            None => self.mailbox(index, false)?,
        };
        let output_box = self.mailbox(index, true)?;
        let entry = self.entry(index)?;
        build(entry, [input_box, output_box], request, self.token)?;
        let slot = self.slots.get_mut(index).ok_or(IssueError::NoSlot)?;
        *slot = Slot {
            state: SlotState::Busy,
            generation: slot.generation.wrapping_add(1),
            opcode: Opcode::of(input),
            op_mod: cmd::cmd_in::op_mod.get(input) as u16,
            out_len,
            issued: now,
            lent,
        };
        let ticket = Ticket { slot: index as u8, generation: slot.generation };
        barrier::before_doorbell();
        control::write32(bar, init_seg::CMD_DBELL_OFFSET, 1 << index);
        Ok(ticket)
    }

    /// Frees a slot whose command was answered too late for anybody to ask, and gives the mailbox memory lent to it. `None` if there is
    /// no such slot.
    pub(crate) fn reclaim(&mut self) -> Option<Option<DmaMemory>> {
        let answered = |index: usize| {
            let owner = self.entry(index).and_then(|entry| entry.load_be32(OWNER_DWORD));
            owner.is_ok_and(|owner| !cmd::status_own(owner as u8).0)
        };
        let is_lost = |slot: &Slot| slot.state == SlotState::Lost;
        let index = (0..self.count).find(|&i| self.slots.get(i).is_some_and(is_lost) && answered(i))?;
        let slot = self.slots.get_mut(index)?;
        slot.state = SlotState::Free;
        Some(slot.lent.take())
    }

    /// Whether every slot for commands other than MANAGE_PAGES has been lost.
    pub(crate) fn all_lost(&self) -> bool {
        self.slots.iter().take(self.count - 1).all(|slot| slot.state == SlotState::Lost)
    }

    /// Returns whether a command is in the slot kept for MANAGE_PAGES.
    pub(crate) fn serves_pages(&self, ticket: Ticket) -> bool {
        usize::from(ticket.slot) == self.count - 1
    }

    fn busy(&self, ticket: Ticket) -> Option<&Slot> {
        self.slots
            .get(usize::from(ticket.slot))
            .filter(|slot| slot.state == SlotState::Busy && slot.generation == ticket.generation)
    }

    /// When the command was issued and which it is; `None` for a ticket without a command in flight.
    pub(crate) fn issued(&self, ticket: Ticket) -> Option<(Instant, Opcode)> {
        self.busy(ticket).map(|slot| (slot.issued, slot.opcode))
    }

    /// The answer, if it is there, with as much of the output as fits `out`. The slot is free then.
    pub(crate) fn take(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<Option<Answer>, OutOfBounds> {
        let Some(&slot) = self.busy(ticket) else { return Err(OutOfBounds) };
        let index = usize::from(ticket.slot);
        let entry = self.entry(index)?;
        let owner = entry.load_be32(OWNER_DWORD)?;
        let (hardware, delivery) = cmd::status_own(owner as u8);
        if hardware {
            return Ok(None);
        }
        barrier::acquire();
        let mut head = [0; INLINE_LEN];
        entry.read(cmd_queue_entry::command_output_inline_data.offset, &mut head)?;
        let wanted = out.len().min(slot.out_len);
        let (start, rest) = out.split_at_mut(wanted.min(INLINE_LEN));
        start.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        let mailbox = self.mailbox(index, true)?;
        let rest_len = wanted - start.len();
        if delivery == DeliveryStatus::OK {
            let rest = rest.get_mut(..rest_len).unwrap_or(&mut []);
            for (block, data) in rest.chunks_mut(BLOCK_DATA_LEN).enumerate() {
                mailbox.read(block * BLOCK_ALIGN, data)?;
            }
        }
        if let Some(slot) = self.slots.get_mut(index) {
            slot.state = SlotState::Free;
            slot.lent = None;
        }
        Ok(Some(Answer {
            opcode: slot.opcode,
            op_mod: slot.op_mod,
            delivery,
            status: CmdStatus(cmd::cmd_out::status.get(&head) as u8),
            syndrome: cmd::cmd_out::syndrome.get32(&head),
            issued: slot.issued,
            lent: slot.lent,
        }))
    }

    /// Gives up commands that were issued more than `limit` ago and never polled since. Returns
    /// whether there were any.
    pub(crate) fn lose_forgotten(&mut self, now: Instant, limit: Duration) -> bool {
        let mut lost = false;
        let others = self.count - 1;
        for slot in self.slots.iter_mut().take(others) {
            if slot.state == SlotState::Busy && now - slot.issued > limit {
                slot.state = SlotState::Lost;
                lost = true;
            }
        }
        lost
    }

    /// Gives a command up. Its slot and its memory are never used again.
    pub(crate) fn lose(&mut self, ticket: Ticket) {
        if self.busy(ticket).is_some()
            && let Some(slot) = self.slots.get_mut(usize::from(ticket.slot))
        {
            slot.state = SlotState::Lost;
        }
    }
}

/// Fills an entry and its mailbox chains; the ownership bit goes last.
fn build(
    entry: DmaMemory,
    [input_box, output_box]: [DmaMemory; 2],
    request: &Request<'_>,
    token: u8,
) -> Result<(), OutOfBounds> {
    let Request { input, tail, out_len, .. } = *request;
    let in_len = input.len() + tail.bytes();
    let (head, rest) = input.split_at_checked(INLINE_LEN).ok_or(OutOfBounds)?;
    let in_blocks = cmd::blocks(in_len);
    chain(input_box, in_blocks, token)?;
    for (block, data) in rest.chunks(BLOCK_DATA_LEN).enumerate() {
        input_box.write(block * BLOCK_ALIGN, data)?;
    }
    for index in 0..tail.count {
        let at = rest.len() + index * 8;
        let offset = at / BLOCK_DATA_LEN * BLOCK_ALIGN + at % BLOCK_DATA_LEN;
        input_box.store_be64(offset, (tail.entry)(index))?;
    }
    let out_blocks = cmd::blocks(out_len);
    chain(output_box, out_blocks, token)?;

    let mut bytes = [0; cmd_queue_entry::SIZE];
    cmd_queue_entry::r#type.set(&mut bytes, cmd::TYPE_PCI_CMD_XPORT);
    cmd_queue_entry::input_length.set(&mut bytes, u32::try_from(in_len).map_err(|_| OutOfBounds)?);
    cmd_queue_entry::command_input_inline_data.of_mut(&mut bytes).copy_from_slice(head);
    cmd_queue_entry::output_length.set(&mut bytes, u32::try_from(out_len).map_err(|_| OutOfBounds)?);
    if in_blocks > 0 {
        bytes[8..16].copy_from_slice(&input_box.device_address().to_be_bytes());
    }
    if out_blocks > 0 {
        bytes[0x30..0x38].copy_from_slice(&output_box.device_address().to_be_bytes());
    }
    cmd_queue_entry::token.set(&mut bytes, token);
    cmd_queue_entry::ownership.set(&mut bytes, cmd::OWNERSHIP_HW);
    let signature = cmd::entry_signature(&bytes);
    cmd_queue_entry::signature.set(&mut bytes, signature);
    let (body, owner) = bytes.split_at(OWNER_DWORD);
    entry.write(0, body)?;
    barrier::publish();
    let owner = owner.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    entry.store_be32(OWNER_DWORD, owner)
}

/// Links `count` blocks of 1024 bytes and clears them.
fn chain(memory: DmaMemory, count: usize, token: u8) -> Result<(), OutOfBounds> {
    for number in 0..count {
        let at = number * BLOCK_ALIGN;
        memory.fill(at, cmd_if_box::SIZE, 0)?;
        if number + 1 < count {
            memory.store_be64(at + NEXT, memory.device_address() + (at + BLOCK_ALIGN) as u64)?;
        }
        memory.store_be32(at + NUMBER, number as u32)?;
        memory.store_be32(at + TOKEN, u32::from(token) << 16)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::memory;
    use core::cell::Cell;
    use std::vec;

    /// A BAR that remembers the last command doorbell.
    #[derive(Clone, Copy)]
    struct Doorbell<'a>(&'a Cell<u32>);

    #[allow(unsafe_code)]
    impl Bar for Doorbell<'_> {
        type DoorbellRegister = crate::mmio::MmioDoorbellRegister;

        fn len(&self) -> usize {
            4096
        }
        fn read32(&self, _: usize) -> u32 {
            0
        }
        unsafe fn write32(&self, offset: usize, value: u32) {
            assert_eq!(offset, 0x18);
            self.0.set(value);
        }
        unsafe fn doorbell_register(&self, _: usize, _: usize) -> Self::DoorbellRegister {
            unreachable!("commands only")
        }
    }

    fn queue(log_size: u32) -> (CommandQueue, DmaMemory) {
        let all = memory(4096 + MAILBOX_BYTES + 65536);
        let page = all.slice(0, 4096).expect("inside");
        let mailboxes = all.slice(4096, MAILBOX_BYTES).expect("inside");
        (CommandQueue::new(page, mailboxes, log_size, 6).expect("geometry"), all)
    }

    fn plain(input: &[u8]) -> Request<'_> {
        Request { input, tail: Tail::NONE, out_len: 16, lent: None, user: User::Waiter }
    }

    #[test]
    fn first_command_is_the_captured_one() {
        let (mut queue, all) = queue(5);
        let rung = Cell::new(0);
        let mut input = [0; 16];
        input[..2].copy_from_slice(&0x104u16.to_be_bytes());
        queue.issue(Doorbell(&rung), &plain(&input), Instant::from_nanos(5)).expect("a slot");
        // The entry a ConnectX-4 got from Linux (publicly posted dump).
        let golden: [u32; 16] =
            [0x0700_0000, 0x10, 0, 0, 0x0104_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x01fd_0001];
        for (index, word) in golden.into_iter().enumerate() {
            assert_eq!(all.load_be32(index * 4), Ok(word), "dword {index}");
        }
        assert_eq!(rung.get(), 1);
    }

    #[test]
    fn long_inputs_and_outputs_are_chained() {
        let (mut queue, all) = queue(5);
        let rung = Cell::new(0);
        let mut input = [0; 272];
        for (at, byte) in input.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let count = 200;
        let lent = all.slice(4096 + MAILBOX_BYTES, 65536).expect("inside");
        assert_eq!(lent_bytes(272 + count * 8), 0);
        let entry = |i: usize| 0xabcd_0000_0000 + i as u64;
        let tail = Tail { count, entry: &entry };
        let request = Request { input: &input, tail, out_len: 1100, lent: Some(lent), user: User::Waiter };
        let ticket = queue.issue(Doorbell(&rung), &request, Instant::ORIGIN).expect("a slot");
        assert_eq!(all.load_be32(4), Ok(272 + 1600));
        assert_eq!(all.load_be64(8), Ok(lent.device_address()));
        assert_eq!(all.load_be32(0x38), Ok(1100));
        let mut data = vec![];
        let mut at = 0;
        let mut number = 0;
        loop {
            let block = lent.slice(at, 1024).expect("inside");
            let mut bytes = [0; 512];
            block.read(0, &mut bytes).expect("inside");
            data.extend_from_slice(&bytes);
            assert_eq!(block.load_be32(0x238), Ok(number));
            assert_eq!(block.load_be32(0x23c), Ok(0x0001_0000));
            let next = block.load_be64(0x230).expect("inside");
            if next == 0 {
                break;
            }
            assert!(next.is_multiple_of(1024));
            at = (next - lent.device_address()) as usize;
            number += 1;
        }
        assert_eq!(number, 3);
        assert_eq!(data[..256], input[16..]);
        for index in 0..count {
            let at = 256 + index * 8;
            assert_eq!(data[at..at + 8], (0xabcd_0000_0000 + index as u64).to_be_bytes());
        }
        assert!(data[256 + 1600..].iter().all(|&b| b == 0));

        let mut out = vec![0xee; 1100];
        assert_eq!(queue.take(ticket, &mut out), Ok(None));
        let output = all.load_be64(0x30).expect("inside") - all.device_address();
        for block in 0..3usize {
            all.fill(output as usize + block * 1024, 512, block as u8 + 1).expect("inside");
        }
        all.write(0x20, &[0, 0, 0, 0, 1, 2, 3, 4]).expect("inside");
        all.store_be32(0x3c, 0x01fd_0000).expect("inside");
        let answer = queue.take(ticket, &mut out).expect("in flight").expect("done");
        assert_eq!(
            (answer.delivery, answer.status, answer.syndrome),
            (DeliveryStatus(0), CmdStatus(0), 0x0102_0304)
        );
        assert_eq!(answer.lent.map(|m| m.va()), Some(lent.va()));
        assert_eq!(out[16..528], [1; 512]);
        assert_eq!(out[528..1040], [2; 512]);
        assert_eq!(out[1040..], [3; 60]);
        assert_eq!(queue.take(ticket, &mut out), Err(OutOfBounds), "the ticket is used up");
    }

    #[test]
    fn the_last_slot_is_kept_for_pages_and_lost_slots_come_back_when_answered() {
        let (mut queue, all) = queue(1);
        let rung = Cell::new(0);
        let bar = Doorbell(&rung);
        let input = [0; 16];
        let first = queue.issue(bar, &plain(&input), Instant::ORIGIN).expect("a slot");
        assert_eq!(queue.issue(bar, &plain(&input), Instant::ORIGIN), Err(IssueError::NoSlot));
        queue
            .issue(bar, &Request { user: User::Pages, ..plain(&input) }, Instant::ORIGIN)
            .expect("the kept slot");
        assert_eq!(rung.get(), 2);
        assert!(!queue.all_lost());
        queue.lose(first);
        assert!(queue.has_lost() && queue.all_lost());
        assert_eq!((queue.issued(first), queue.reclaim()), (None, None));
        assert_eq!(queue.issue(bar, &plain(&input), Instant::ORIGIN), Err(IssueError::NoSlot));
        all.store_be32(0x3c, 0x01fd_0000).expect("inside");
        assert_eq!((queue.reclaim(), queue.reclaim()), (Some(None), None));
        assert!(!queue.has_lost());
        let second = queue.issue(bar, &plain(&input), Instant::ORIGIN).expect("the slot is back");
        assert_ne!(second, first);
        assert_eq!(queue.issued(first), None, "the old ticket stays void");
    }

    #[test]
    fn too_long_an_input_is_refused_without_ringing() {
        let (mut queue, _) = queue(5);
        let rung = Cell::new(0);
        let tail = Tail { count: 1000, entry: &|_| 0 };
        assert_eq!(
            queue.issue(Doorbell(&rung), &Request { tail, ..plain(&[0; 16]) }, Instant::ORIGIN),
            Err(IssueError::TooLong)
        );
        assert_eq!(rung.get(), 0);
    }

    #[test]
    fn impossible_geometry_is_refused() {
        let (_, all) = queue(5);
        let (page, boxes) = (all.slice(0, 4096).expect("in"), all.slice(4096, MAILBOX_BYTES).expect("in"));
        for (size, stride) in [(0, 6), (6, 6), (5, 5), (5, 8), (15, 15)] {
            assert!(CommandQueue::new(page, boxes, size, stride).is_none(), "{size} {stride}");
        }
    }
}
